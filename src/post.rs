//! Posting: chains of ours, and chains that the application posts for us.

use std::sync::atomic::Ordering;

use verbs::ibv_send_wr;

use crate::chain::{Early, Kind, MAX_CHAIN, Stage, Told, Work, WrId};
use crate::context::Context;
use crate::device::{Errno, Mw, Posted, Qp, link};
use crate::id;
use crate::op::Outcome;
use crate::peer::{Life, PeerBody};
use crate::stats::{add, count};
use crate::status::{Proof, Result, Status};
use crate::time::now_ns;
use crate::window::{AHEAD, Left, OpId, Right, State};

/// The line is cleaned of requests whose grants have ended when there are so many.
const DEAD_ENTRIES: usize = 64;

/// What the application reports of a post that carried a prepared chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// So many of the chain's first work requests were posted.
    First(usize),
    /// The provider reported an error and not where: any number may be posted.
    Unclear,
}

/// How a chain is posted.
#[derive(Clone, Copy)]
pub struct Manner {
    /// Its last request asks for a completion.
    pub asks: bool,
    /// Flags of its first request.
    pub first: u32,
    pub told: Option<Told>,
}

impl Manner {
    const OURS: Manner = Manner { asks: true, first: 0, told: None };
}

impl Committed {
    /// What `ibv_wr_complete` says by this result of a batch with `n` work requests of ours: an
    /// error means that nothing was posted. Not so on rxe, where the doorbell may fail behind a
    /// batch that is queued; there only a full queue is certain.
    pub fn batch(ret: i32, n: usize, exact: bool) -> Committed {
        match ret {
            0 => Committed::First(n),
            libc::ENOMEM | libc::ENOSPC => Committed::First(0),
            _ if exact => Committed::First(0),
            _ => Committed::Unclear,
        }
    }
}

impl Context {
    /// Posts what waits, as far as the budget goes: one post and one signaled completion a chain.
    pub fn pump(&self, index: u32, body: &mut PeerBody) {
        if body.pending.len() > 2 * body.windows + DEAD_ENTRIES {
            body.pending.retain(|work| self.concerns(work));
        }
        if !body.pending.is_empty() && !body.may_post() {
            self.retry_later(index, body);
            return self.raise_fd();
        }
        while body.life == Life::Live && !body.pending.is_empty() && body.used < body.budget {
            let room = ((body.budget - body.used) as usize).min(MAX_CHAIN);
            let more = self.with_works(|works| {
                self.take_pending(index, body, room, works);
                works.is_empty() || self.post_chain(index, body, works)
            });
            if !more {
                return;
            }
        }
        if body.life == Life::Live && body.pending.is_empty() {
            self.ask_behind(index, body);
        }
    }

    /// Takes up to `room` requests out of the line, without those whose turn will not come: their
    /// grant has ended, is being deallocated, or may not be bound.
    fn take_pending(&self, index: u32, body: &mut PeerBody, room: usize, works: &mut Vec<Work>) {
        while works.len() < room {
            let Some(work) = body.pending.pop_front() else { return };
            if let Some(ahead) = body.pending.get(AHEAD) {
                self.windows.at(ahead.window).prefetch();
            }
            let right = self.windows.at(work.window).right();
            let due = match work.kind {
                Kind::Bind => right.state == State::Binding,
                Kind::Invalidate => matches!(right.state, State::Binding | State::Revoking),
            };
            if !due || right.generation != work.generation {
                continue;
            }
            let window = self.windows.at(work.window);
            if right.state == State::Binding && window.unclear.load(Ordering::Relaxed) {
                // Nobody knows whether its bind was posted: what tells of that tries again.
                window.invalidate.store(false, Ordering::Relaxed);
                continue;
            }
            if self.comes_after(work, works) {
                works.push(work);
            } else {
                self.never_bound(index, body, work.window, Outcome::failed(0, Status::NotPosted));
            }
        }
    }

    /// Whether the grant that must end before a successor's bind has ended, or ends before it in the
    /// send queue.
    fn comes_after(&self, work: Work, works: &[Work]) -> bool {
        let Some((window, generation)) = work.after else { return true };
        let right = self.windows.at(window).right();
        right.generation != generation
            || right.state == State::Invalidating
            || works.iter().any(|other| other.window == window && other.kind == Kind::Invalidate)
    }

    /// Brings a completion behind requests of which none comes: a right to one byte under a key that nobody
    /// is told, and its revocation. Nothing goes out to the peer.
    fn ask_behind(&self, index: u32, body: &mut PeerBody) {
        if body.asking || !self.wants_completion(body) {
            return;
        }
        let last = self.last_alive(body);
        let region = match last {
            Some(work) => Some(self.windows.at(work.window).right().region),
            // Who leaves revokes, and that brings a completion.
            None if body.leaving => None,
            None => self.region_in(body.domain),
        };
        let Some(region) = region else { return };
        // Held until the right is in the tables: the region stays.
        let known = self.regions.at(region).body.read();
        let Some(addr) = known.as_ref().filter(|known| !known.closing).map(|known| known.facts.addr) else {
            return;
        };
        let Some((window, rkey)) = self.take_window(body.domain) else { return };
        body.asking = true;
        let right = Right {
            state: State::Binding,
            confirmed: false,
            generation: self.windows.at(window).right().generation,
            rkey,
            peer: index,
            region,
            access: verbs::IBV_ACCESS_REMOTE_READ,
            addr,
            length: 1,
        };
        self.windows.at(window).hidden.store(true, Ordering::Relaxed);
        body.hidden += 1;
        self.enter(index, body, window, &right);
        drop(known);
        body.pending.push_back(self.work(window, Kind::Bind));
        if let Some(op) = last.and_then(|work| self.detach_of(work.window)) {
            // The peer leaves when this has ended, too.
            let _ = self.attach(op, index, body, window, None);
        }
        self.start_revoke(index, body, window);
        self.pump(index, body);
        // Cut as well, or perhaps not posted: the next occasion tries again.
        let newest = body.outstanding.back();
        body.asking = newest.is_some_and(|slot| self.chains.at(*slot).body.lock().tells_of_others());
    }

    /// A chain that is to be prepared finds the budget in use. Where no completion is due that would bring
    /// entries back, one is asked for.
    pub fn ask_for_room(&self, index: u32, body: &mut PeerBody) {
        if body.life != Life::Live {
            return;
        }
        let comes = |slot: &u32| self.chains.at(*slot).body.lock().tells_of_others();
        if !body.outstanding.iter().any(comes) {
            self.ask_for(body);
            self.pump(index, body);
        }
    }

    /// A completion is wanted behind what is in the send queue: one is due, or the next `ask_behind` brings
    /// it.
    fn ask_for(&self, body: &PeerBody) {
        if let Some(newest) = body.outstanding.back() {
            let mut state = self.chains.at(*newest).body.lock();
            state.wants_completion |= !state.tells_of_others();
        }
    }

    /// The detach that waits for a window.
    fn detach_of(&self, window: u32) -> Option<OpId> {
        let mut next = self.windows.at(window).revoke_waiter();
        while let Some(at) = next {
            let body = self.op(at.op).body.lock();
            if body.generation() == at.op.generation && body.detaches.is_some() {
                return Some(at.op);
            }
            drop(body);
            next = self.op(at.op).behind(at.op.generation, at.item);
        }
        None
    }

    /// Whether no completion comes of the newest chain, and one is wanted.
    fn wants_completion(&self, body: &PeerBody) -> bool {
        body.outstanding.back().is_some_and(|slot| self.chains.at(*slot).body.lock().wants_completion)
    }

    /// The newest request of the newest chain whose grant is there still.
    fn last_alive(&self, body: &PeerBody) -> Option<Work> {
        let state = self.chains.at(*body.outstanding.back()?).body.lock();
        state.works.iter().rev().find(|work| self.concerns(**work)).copied()
    }

    /// Posts these requests as a chain; what is not posted goes back to the head of the line. False
    /// if the rest must wait.
    fn post_chain(&self, index: u32, body: &mut PeerBody, works: &[Work]) -> bool {
        let n = works.len();
        let (Some(qp), Some(slot)) = (body.qp, self.chains.take()) else {
            self.put_back(body, works);
            self.retry_later(index, body);
            return false;
        };
        let result = self.post_in(slot, index, body, qp, works, Manner::OURS);
        let (posted, error) = match result {
            Posted::All => (n, None),
            Posted::Part(posted, error) => (posted, Some(error)),
            Posted::Unclear(error) => (n, Some(error)),
        };
        self.put_back(body, &works[posted..]);
        let Some(error) = error else { return true };
        count(&self.counters.post_errors);
        if matches!(result, Posted::Unclear(_)) {
            body.suspect = true;
        } else if matches!(error.0, libc::ENOMEM | libc::EAGAIN) {
            // The application's own requests fill the queue: room comes with its completions.
            self.retry_later(index, body);
        } else {
            return self.refused(index, body, qp, error);
        }
        false
    }

    /// Posts these requests in a fresh chain's slot and enters what was posted.
    pub fn post_in(
        &self,
        slot: u32,
        index: u32,
        body: &mut PeerBody,
        qp: Qp,
        works: &[Work],
        manner: Manner,
    ) -> Posted {
        let n = works.len();
        let chain = self.chains.at(slot);
        let generation = chain.generation.load(Ordering::Acquire);
        let mut scratch = self.scratch.lock().pop().unwrap_or_default();
        for (position, work) in works.iter().enumerate() {
            let first = if position == 0 { manner.first } else { 0 };
            let last = if manner.asks && position + 1 == n { verbs::IBV_SEND_SIGNALED } else { 0 };
            let id = WrId { slot, generation, position: position as u32 };
            scratch.push(self.build(*work, id, first | last));
        }
        // Before the post: its completion may be polled by another thread at once, which then
        // waits for this peer's lock.
        chain.peer.store(index, Ordering::Release);
        let result = qp.post(&mut scratch);
        count(&self.counters.posts);
        scratch.clear();
        self.scratch.lock().push(scratch);

        let posted = match result {
            Posted::All | Posted::Unclear(_) => n,
            Posted::Part(posted, _) => posted,
        };
        body.sequence += 1;
        if posted == 0 {
            self.free_chain(slot);
            return result;
        }
        let asks = manner.asks && posted == n;
        let mut state = chain.body.lock();
        state.stage = Stage::Posted;
        state.works.clear();
        state.works.extend_from_slice(&works[..posted]);
        state.posted = posted;
        state.asked = if body.signal_all { posted } else { usize::from(asks) };
        state.seen_of_asked = 0;
        state.unclear = matches!(result, Posted::Unclear(_));
        state.wants_completion = !asks;
        state.told = manner.told.filter(|_| posted == n);
        state.begun = body.sequence;
        state.committed = body.sequence;
        state.posted_at = now_ns();
        self.count_posted(&state.works);
        for work in &state.works {
            self.windows.at(work.window).posted.fetch_add(1, Ordering::Relaxed);
            self.note_posted(*work, state.unclear);
        }
        body.used += posted as u32;
        body.outstanding.push_back(slot);
        result
    }

    /// The provider refuses the request that is first in line now: that one ends, and the others go
    /// on if the QP does. True if more may be posted.
    fn refused(&self, index: u32, body: &mut PeerBody, qp: Qp, error: Errno) -> bool {
        let state = qp.query().map(|facts| facts.state);
        let outcome = Outcome { error: error.0, ..Outcome::failed(0, Status::PostFailed) };
        if state == Ok(verbs::IBV_QPS_ERR) {
            self.drop_pending(index, body, outcome);
            self.peer_lost(index, body, Life::Dead);
            return false;
        }
        let good = state == Ok(verbs::IBV_QPS_RTS);
        body.suspect |= !good;
        while let Some(work) = body.pending.pop_front() {
            let window = self.windows.at(work.window);
            if work.kind == Kind::Bind || window.posted.load(Ordering::Relaxed) == 0 {
                self.drop_work(index, body, work, outcome);
            } else if self.concerns(work) {
                // Its bind is out: that one's completion tries again, or the deadline comes.
                window.invalidate.store(false, Ordering::Relaxed);
                self.ask_for(body);
            }
            if good {
                break;
            }
        }
        good
    }

    fn put_back(&self, body: &mut PeerBody, works: &[Work]) {
        for work in works.iter().rev() {
            body.pending.push_front(*work);
        }
    }

    /// A request for a window's present grant.
    pub fn work(&self, window: u32, kind: Kind) -> Work {
        Work { window, kind, generation: self.windows.at(window).right().generation, after: None }
    }

    /// Whether a request's grant has not ended meanwhile.
    pub fn concerns(&self, work: Work) -> bool {
        self.windows.at(work.window).right().generation == work.generation
    }

    fn count_posted(&self, works: &[Work]) {
        let binds = works.iter().filter(|work| work.kind == Kind::Bind).count();
        add(&self.counters.binds_posted, binds);
        add(&self.counters.invalidates_posted, works.len() - binds);
    }

    fn note_posted(&self, work: Work, unclear: bool) {
        let window = self.windows.at(work.window);
        match work.kind {
            Kind::Bind => {
                window.unclear.store(unclear, Ordering::Relaxed);
                window.device_rkey.store(window.right().rkey, Ordering::Release);
            }
            Kind::Invalidate => window.set_state(State::Invalidating),
        }
    }

    fn build(&self, work: Work, id: WrId, flags: u32) -> ibv_send_wr {
        let window = self.windows.at(work.window);
        let right = window.right();
        let wr_id = self.wr_ids.make(id);
        if work.kind == Kind::Invalidate {
            return verbs::local_inv_wr(wr_id, flags, right.rkey);
        }
        let mw = window.mw.load(Ordering::Acquire);
        if let Some(mw) = Mw::from_raw(mw) {
            mw.set_current_rkey(window.device_rkey.load(Ordering::Acquire));
        }
        let region = self.regions.at(right.region).body.read();
        let mr = region.as_ref().map_or(std::ptr::null_mut(), |r| r.facts.mr.raw());
        debug_assert!(!mr.is_null(), "a region with a grant can't be detached");
        let target = verbs::BindTarget { mr, addr: right.addr, length: right.length, access: right.access };
        verbs::bind_wr(wr_id, flags, mw, right.rkey, target)
    }

    /// What waits and can't be posted: binds fail, invalidates become deallocations.
    pub fn drop_pending(&self, index: u32, body: &mut PeerBody, outcome: Outcome) {
        while let Some(work) = body.pending.pop_front() {
            self.drop_work(index, body, work, outcome);
        }
    }

    fn drop_work(&self, index: u32, body: &mut PeerBody, work: Work, outcome: Outcome) {
        let state = self.windows.at(work.window).state();
        if !self.concerns(work) || state == State::Deallocating {
            return;
        }
        match work.kind {
            Kind::Bind => self.never_bound(index, body, work.window, outcome),
            Kind::Invalidate => self.to_deallocate(index, body, work.window, true),
        }
    }

    /// A grant whose bind was not posted ends; its window goes back to the pool.
    pub fn never_bound(&self, index: u32, body: &mut PeerBody, window: u32, outcome: Outcome) {
        if let Some(waiter) = self.windows.at(window).take_bind_waiter() {
            self.end_item(waiter, outcome);
        }
        self.close_window(index, body, window, Proof::NeverBound, Left::Free(now_ns()));
    }

    /// There is room: what waits goes out by `run_pumps`, which whoever calls this sees to.
    pub fn pump_soon(&self, index: u32, body: &mut PeerBody) {
        if !std::mem::replace(&mut body.to_pump, true) {
            self.to_pump.lock().push_back(index);
        }
    }

    /// Posts what waits where there is room now. A right that its client has given back meanwhile needs no
    /// LOCAL_INV and bears none, so there is a look before; for that no lock may be held. The looks may find
    /// room for others: those are the next call's, for this one is to return.
    pub fn run_pumps(&self) {
        let due = self.to_pump.lock().len();
        if due == 0 {
            return;
        }
        for _ in 0..due {
            let Some(index) = ({ self.to_pump.lock().pop_front() }) else { return };
            self.look_in_line(index);
            let mut body = self.peers.at(index).body.lock();
            if std::mem::take(&mut body.to_pump) {
                self.pump(index, &mut body);
            }
        }
        if !self.to_pump.lock().is_empty() {
            self.raise();
        }
    }

    /// What waits in line goes out at the next occasion.
    pub fn retry_later(&self, index: u32, body: &mut PeerBody) {
        if !std::mem::replace(&mut body.retry, true) {
            self.to_retry.lock().push_back(index);
        }
        self.wants_retry.store(true, Ordering::Release);
    }

    /// Tries again where a post was refused for lack of room.
    pub fn retry_posts(&self) {
        if !self.wants_retry.swap(false, Ordering::AcqRel) {
            return;
        }
        let due = self.to_retry.lock().len();
        for _ in 0..due {
            let Some(index) = ({ self.to_retry.lock().pop_front() }) else { break };
            let mut body = self.peers.at(index).body.lock();
            if std::mem::take(&mut body.retry) {
                self.pump_soon(index, &mut body);
            }
        }
        self.run_pumps();
    }

    /// Lends an empty list of works.
    pub fn with_works<R>(&self, body: impl FnOnce(&mut Vec<Work>) -> R) -> R {
        let mut works = self.works.lock().pop().unwrap_or_default();
        let result = body(&mut works);
        works.clear();
        self.works.lock().push(works);
        result
    }

    /// Begins a chain that the application will post: work requests into `out`, linked. The
    /// works' windows are counted as posted from here on, since nobody knows when they will be.
    pub fn prepare_chain(
        &self,
        index: u32,
        body: &mut PeerBody,
        works: &[Work],
        signal: bool,
        op: Option<OpId>,
        out: &mut [ibv_send_wr],
    ) -> Result<u64> {
        self.check_room(body, works.len())?;
        if works.len() > out.len() {
            return Err(Status::TooMany);
        }
        let slot = self.chains.take().ok_or(Status::QueueFull)?;
        let chain = self.chains.at(slot);
        let generation = chain.generation.load(Ordering::Acquire);
        chain.peer.store(index, Ordering::Release);
        // Half the budget may go unsignaled; whatever is posted beyond brings the slots back. A
        // LOCAL_INV asks for its own completion: the post may end right behind it.
        let signal = signal || body.used + works.len() as u32 > body.budget / 2;
        for (position, work) in works.iter().enumerate() {
            let last = position + 1 == works.len();
            let asks = last && signal || work.kind == Kind::Invalidate;
            let flags = if asks { verbs::IBV_SEND_SIGNALED } else { 0 };
            let id = WrId { slot, generation, position: position as u32 };
            out[position] = self.build(*work, id, flags);
            self.windows.at(work.window).posted.fetch_add(1, Ordering::Relaxed);
        }
        link(&mut out[..works.len()]);
        body.sequence += 1;
        body.used += works.len() as u32;
        body.prepared += 1;
        let mut state = chain.body.lock();
        state.stage = Stage::Prepared;
        state.works.clear();
        state.works.extend_from_slice(works);
        state.posted = works.len();
        state.signal = signal;
        state.seen_of_asked = 0;
        state.begun = body.sequence;
        state.early = Early::Nothing;
        state.op = op;
        state.first_wr = out.as_ptr() as usize;
        state.posted_at = now_ns();
        Ok(self.make_id(id::Kind::Token, slot, generation))
    }

    /// Where the application's work requests for a token lie, and how many there are.
    pub fn prepared_wrs(&self, token: u64) -> Result<(*const ibv_send_wr, usize)> {
        let (slot, generation) = self.parse_id(id::Kind::Token, token).ok_or(Status::StaleId)?;
        let chain = self.chains.get(slot).ok_or(Status::StaleId)?;
        let state = chain.body.lock();
        if chain.generation.load(Ordering::Acquire) != generation || state.stage != Stage::Prepared {
            return Err(Status::StaleId);
        }
        Ok((state.first_wr as *const ibv_send_wr, state.works.len()))
    }

    /// The application posted, or tried to. Returns how many of the chain's work requests count
    /// as posted. Never waits.
    pub fn commit(&self, token: u64, outcome: Committed) -> Result<usize> {
        let (slot, generation) = self.parse_id(id::Kind::Token, token).ok_or(Status::StaleId)?;
        let chain = self.chains.get(slot).ok_or(Status::StaleId)?;
        let index = chain.peer.load(Ordering::Acquire);
        let peer = self.peers.get(index).ok_or(Status::StaleId)?;
        let mut body = peer.body.lock();
        let mut state = chain.body.lock();
        if chain.generation.load(Ordering::Acquire) != generation || state.stage != Stage::Prepared {
            return Err(Status::StaleId);
        }
        let all = state.works.len();
        // A completion that came already knows better than what is reported.
        let posted = match (outcome, state.early) {
            (Committed::Unclear, _) | (_, Early::Failed) => all,
            (Committed::First(n), Early::Reached(reached)) => n.max(reached).min(all),
            (Committed::First(n), Early::Nothing) => n.min(all),
        };
        state.unclear = outcome == Committed::Unclear;
        body.prepared -= 1;
        body.used -= (all - posted) as u32;
        body.sequence += 1;
        let mut works = self.works.lock().pop().unwrap_or_default();
        works.extend_from_slice(&state.works);
        state.works.truncate(posted);
        state.posted = posted;
        state.asked = match &state.works[..] {
            all_posted if body.signal_all => all_posted.len(),
            some => {
                let invalidates = some.iter().filter(|work| work.kind == Kind::Invalidate).count();
                let last_bind = some.last().is_some_and(|work| work.kind == Kind::Bind);
                invalidates + usize::from(last_bind && posted == all && state.signal)
            }
        };
        // A LOCAL_INV asks by itself.
        state.wants_completion = posted < all
            && state.signal
            && !body.signal_all
            && state.works.last().is_some_and(|work| work.kind == Kind::Bind);
        state.committed = body.sequence;
        let op = state.op.take();
        let early = std::mem::take(&mut state.early);
        state.posted_at = now_ns();
        // Also those that the client has given back already.
        self.count_posted(&works[..posted]);
        for work in works[..posted].iter().filter(|work| self.concerns(**work)) {
            self.windows.at(work.window).prepared.store(false, Ordering::Relaxed);
            self.note_posted(*work, state.unclear);
        }
        body.suspect |= outcome == Committed::Unclear;
        if posted == 0 {
            drop(state);
            self.free_chain(slot);
        } else {
            state.stage = Stage::Posted;
            drop(state);
            body.outstanding.push_back(slot);
            match early {
                Early::Failed => self.chain_ended(index, &mut body, slot, false),
                Early::Reached(reached) if reached >= posted => {
                    self.chain_ended(index, &mut body, slot, true);
                }
                _ if body.life != Life::Live => self.lose_outstanding(index, &mut body),
                _ => self.revoke_bound(index, &mut body, &works[..posted]),
            }
        }
        for work in works[posted..].iter().filter(|work| self.concerns(**work)) {
            self.not_posted(index, &mut body, *work, op);
        }
        works.clear();
        self.works.lock().push(works);
        self.pump_soon(index, &mut body);
        drop(body);
        self.run_pumps();
        if let Some(op) = op {
            self.end_begin(op);
        }
        Ok(posted)
    }

    /// Revocations that came while a bind was in the application's hands are taken up now.
    fn revoke_bound(&self, index: u32, body: &mut PeerBody, works: &[Work]) {
        for work in works {
            let window = self.windows.at(work.window);
            if work.kind == Kind::Bind && self.concerns(*work) && window.revoke_waiter().is_some() {
                self.start_revoke(index, body, work.window);
            }
        }
    }

    /// A prepared work request that the application did not post.
    fn not_posted(&self, index: u32, body: &mut PeerBody, work: Work, op: Option<OpId>) {
        let window = self.windows.at(work.window);
        window.posted.fetch_sub(1, Ordering::Relaxed);
        window.prepared.store(false, Ordering::Relaxed);
        match work.kind {
            Kind::Bind => {
                self.never_bound(index, body, work.window, Outcome::failed(0, Status::NotPosted));
            }
            Kind::Invalidate => {
                window.invalidate.store(false, Ordering::Relaxed);
                window.set_state(State::Valid);
                if let Some(waiter) = op.and_then(|op| self.waiter_of(work.window, op)) {
                    self.unlink(work.window, waiter);
                    let grant = self.make_id(id::Kind::Grant, work.window, window.right().generation);
                    self.end_item(waiter, Outcome::failed(grant, Status::NotPosted));
                }
                if window.revoke_waiter().is_some() || body.life != Life::Live {
                    self.start_revoke(index, body, work.window);
                }
            }
        }
    }
}

/// How many of `n` work requests from `first` on were posted, given the post's `bad_wr`; `None`
/// if that is NULL. The application may have put its own requests before, between and after.
///
/// # Safety
/// The chain that was posted must still be in place.
pub unsafe fn posted_before(
    first: *const ibv_send_wr,
    n: usize,
    bad_wr: *const ibv_send_wr,
) -> Option<usize> {
    if bad_wr.is_null() {
        return None;
    }
    let ours = |wr: *const ibv_send_wr| (0..n).find(|at| first.wrapping_add(*at) == wr);
    let mut wr = bad_wr;
    while !wr.is_null() {
        if let Some(at) = ours(wr) {
            return Some(at);
        }
        // SAFETY: the caller vouches for the chain; `wr` is in it.
        wr = unsafe { (*wr).next };
    }
    Some(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_posted_follows_from_where_the_chain_broke() {
        let mut wrs: Vec<ibv_send_wr> = (0..5).map(|n| verbs::local_inv_wr(n, 0, 0)).collect();
        link(&mut wrs);
        let at = |n: usize| &wrs[n] as *const ibv_send_wr;
        // The application's, ours (2), the application's (2).
        let ours = at(1);
        // SAFETY: the chain is in place.
        let posted = |bad| unsafe { posted_before(ours, 2, bad) };
        assert_eq!(posted(at(0)), Some(0));
        assert_eq!(posted(at(1)), Some(0));
        assert_eq!(posted(at(2)), Some(1));
        assert_eq!(posted(at(3)), Some(2));
        assert_eq!(posted(std::ptr::null()), None);
    }
}
