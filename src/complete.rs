//! Completions: which are ours, and what follows from them.

use std::sync::atomic::Ordering;

use crate::chain::{Chain, Early, Kind, Stage, Work, WrId};
use crate::context::Context;
use crate::device::{AsyncEvent, Completion};
use crate::event::{Event, EventKind};
use crate::id;
use crate::op::{Follows, Outcome};
use crate::peer::{Life, PeerBody};
use crate::stats::count;
use crate::status::{Proof, Status};
use crate::time::now_ns;
use crate::window::{AHEAD, Left, NONE, OpId, State, Waiter};

/// Chains that were given up and whose completions are still told apart.
const DROPPED: usize = 1 << 14;

/// Whose a completion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Ours,
    Theirs,
    /// Ours, and the application's by this number: it posted a bind.
    Told(u64),
}

impl Taken {
    /// What the application gets to see of it.
    pub fn tell(self, wc: &mut verbs::ibv_wc) {
        if let Taken::Told(wr_id) = self {
            wc.wr_id = wr_id;
            wc.opcode = verbs::IBV_WC_BIND_MW;
        }
    }
}

impl Context {
    /// Whether the completion is ours. The application's are looked at, too: what they say of a
    /// QP or a key is taken to heart. What there is room for now goes out by `run_pumps`; with `later`
    /// nothing is posted here, and the next tick is called for.
    pub fn take(&self, seen: &Completion, later: bool) -> Taken {
        let ours = self.wr_ids.parse(seen.wr_id).and_then(|id| {
            let chain = self.chains.get(id.slot)?;
            chain.is_generation(id.generation).then_some((id, chain))
        });
        match ours {
            Some((id, chain)) => self.take_ours(id, chain, seen.success, later),
            None if self.is_forgotten(seen.wr_id) => {
                count(&self.counters.late_completions);
                Taken::Ours
            }
            None => {
                self.observe(seen);
                Taken::Theirs
            }
        }
    }

    /// A completion of a chain that was given up so long ago that its number is in use again.
    fn is_forgotten(&self, wr_id: u64) -> bool {
        self.forgets_chains.load(Ordering::Acquire)
            && self.wr_ids.parse(wr_id).is_some_and(|id| (id.slot as usize) < self.chains.len())
    }

    fn take_ours(&self, id: WrId, chain: &Chain, success: bool, later: bool) -> Taken {
        let WrId { slot, generation, position } = id;
        let index = chain.peer.load(Ordering::Acquire);
        let Some(peer) = self.peers.get(index) else { return Taken::Theirs };
        let mut body = peer.body.lock();
        let mut state = chain.body.lock();
        if !chain.is_generation(generation) || position as usize >= state.posted {
            return Taken::Theirs;
        }
        let last = position as usize + 1 == state.posted;
        let told = state.told.filter(|told| last && (told.signaled || !success));
        let ours = told.map_or(Taken::Ours, |told| Taken::Told(told.wr_id));
        state.seen_of_asked += 1;
        match state.stage {
            Stage::Idle => return Taken::Theirs,
            Stage::Dropped => {
                count(&self.counters.late_completions);
                if state.holds != Some(peer.generation.load(Ordering::Acquire)) {
                    return ours;
                }
                if !success {
                    body.suspect |= body.given_up > 0;
                    return ours;
                }
                if last {
                    state.holds = None;
                    let works = std::mem::take(&mut state.works);
                    let back = (state.posted as u32).min(body.given_up);
                    drop(state);
                    if body.life == Life::Live {
                        self.settle_given_up(index, &mut body, &works);
                    }
                    if back > 0 {
                        body.given_up -= back;
                        body.used -= back;
                        self.pump_soon(index, &mut body);
                        if later {
                            self.raise();
                        }
                    }
                }
                return ours;
            }
            Stage::Prepared => {
                let reached = position as usize + 1;
                state.early = match state.early {
                    Early::Failed => Early::Failed,
                    _ if !success => Early::Failed,
                    Early::Reached(before) => Early::Reached(before.max(reached)),
                    Early::Nothing => Early::Reached(reached),
                };
                return ours;
            }
            // The last one speaks for the chain.
            Stage::Posted if success && !last => return ours,
            Stage::Posted => {}
        }
        drop(state);
        count(if success { &self.counters.completions } else { &self.counters.error_completions });
        self.chain_ended(index, &mut body, slot, success);
        if later || !body.pending.is_empty() {
            self.pump_soon(index, &mut body);
        } else {
            self.pump(index, &mut body);
        }
        if later {
            self.raise();
        }
        ours
    }

    /// A posted chain's own completion came. On success everything that was certainly posted
    /// before it has succeeded as well: a send queue completes in order.
    pub fn chain_ended(&self, index: u32, body: &mut PeerBody, slot: u32, success: bool) {
        body.stuck = false;
        if !success {
            self.peer_lost(index, body, Life::Dead);
            return;
        }
        body.suspect = false;
        body.asking = false;
        // What was given up came before it.
        body.used -= std::mem::take(&mut body.given_up);
        let begun = self.chains.at(slot).body.lock().begun;
        while let Some(&earlier) = body.outstanding.front() {
            let (before, unclear) = {
                let state = self.chains.at(earlier).body.lock();
                (earlier != slot && state.committed < begun, state.unclear)
            };
            if !before {
                break;
            }
            body.outstanding.pop_front();
            if unclear {
                self.pass_by(index, body, earlier);
            } else {
                self.settle(index, body, earlier);
            }
        }
        if let Some(at) = body.outstanding.iter().position(|other| *other == slot) {
            body.outstanding.remove(at);
            self.settle(index, body, slot);
        }
    }

    /// All of a chain succeeded. Completions of its own may still come: its number is kept for them.
    fn settle(&self, index: u32, body: &mut PeerBody, slot: u32) {
        let (works, due) = {
            let mut state = self.chains.at(slot).body.lock();
            body.used -= state.posted as u32;
            (std::mem::take(&mut state.works), state.seen_of_asked < state.asked)
        };
        let mut now = None;
        for (at, work) in works.iter().enumerate() {
            if let Some(ahead) = works.get(at + AHEAD) {
                self.windows.at(ahead.window).prefetch();
            }
            if !self.concerns(*work) {
                continue;
            }
            self.windows.at(work.window).posted.fetch_sub(1, Ordering::Relaxed);
            match work.kind {
                Kind::Bind => {
                    self.bound(work.window);
                    let revoked = self.windows.at(work.window).revoke_waiter().is_some();
                    if revoked || self.is_hidden(work.window) {
                        // It could not begin before, or its LOCAL_INV was refused.
                        self.start_revoke(index, body, work.window);
                    }
                }
                Kind::Invalidate => {
                    let free = Left::Free(*now.get_or_insert_with(now_ns));
                    self.close_window(index, body, work.window, Proof::Invalidated, free);
                }
            }
        }
        self.chains.at(slot).body.lock().works = works;
        if due {
            self.drop_chain(slot);
        } else {
            self.free_chain(slot);
        }
    }

    /// What was posted behind a chain of unclear outcome has completed: so have its own requests, or they
    /// were never posted. A window that somebody waits for, or one of our own, is deallocated, which is right
    /// in either case; the right of a bind that the application posted stays, bound or not.
    fn pass_by(&self, index: u32, body: &mut PeerBody, slot: u32) {
        let works = {
            let mut state = self.chains.at(slot).body.lock();
            body.used -= state.posted as u32;
            std::mem::take(&mut state.works)
        };
        // All of them first: a window may have two requests in the chain.
        for work in works.iter().filter(|work| self.concerns(**work)) {
            self.windows.at(work.window).posted.fetch_sub(1, Ordering::Relaxed);
        }
        for work in &works {
            if !self.concerns(*work) {
                continue;
            }
            let window = self.windows.at(work.window);
            let granted = window.take_bind_waiter();
            if let Some(waiter) = granted {
                self.end_item(waiter, Outcome::failed(0, Status::BindFailed));
            }
            let stays = granted.is_none() && window.revoke_waiter().is_none() && !self.is_hidden(work.window);
            if work.kind == Kind::Invalidate || !stays {
                self.to_deallocate(index, body, work.window, false);
            }
        }
        self.chains.at(slot).body.lock().works = works;
        self.drop_chain(slot);
    }

    /// All of a chain succeeded that was given up when its queue pair could not be moved to ERR: what
    /// was reported as open is open no more, or has no request outstanding.
    fn settle_given_up(&self, index: u32, body: &mut PeerBody, works: &[Work]) {
        for work in works {
            let window = self.windows.at(work.window);
            // One that was deallocated by a device that is not trusted stays for a later revocation.
            let there = !window.mw.load(Ordering::Acquire).is_null();
            if !there || !self.concerns(*work) || window.state() != State::Uncertain {
                continue;
            }
            if work.kind == Kind::Invalidate {
                self.close_window(index, body, work.window, Proof::Invalidated, Left::Free(now_ns()));
            } else {
                window.posted.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// A window's bind completed.
    fn bound(&self, index: u32) {
        let window = self.windows.at(index);
        if window.state() == State::Binding {
            let ends = window.invalidate.load(Ordering::Relaxed);
            window.set_state(if ends { State::Revoking } else { State::Valid });
        }
        window.unclear.store(false, Ordering::Relaxed);
        window.set_confirmed();
        if let Some(waiter) = window.take_bind_waiter() {
            let right = window.right();
            let grant = self.make_id(id::Kind::Grant, index, right.generation);
            self.end_item(waiter, Outcome::granted(grant, right.rkey));
        }
    }

    pub fn end_item(&self, waiter: Waiter, outcome: Outcome) {
        if outcome.status == Status::Open {
            count(&self.counters.reported_open);
        }
        let follows = self.op(waiter.op).end_item(waiter.op.generation, waiter.item, outcome);
        self.follow(waiter.op, follows);
    }

    pub fn follow(&self, op: OpId, follows: Follows) {
        match follows {
            Follows::Nothing => {}
            Follows::Return => self.wake_sleepers(),
            Follows::Call => {
                self.to_call.lock().push_back(op);
                self.raise();
            }
            Follows::Bind(item) => {
                self.to_bind.lock().push_back(Waiter { op, item });
                self.raise();
            }
        }
    }

    /// A right is gone: whoever waits is told, and the window is free again, or was deallocated.
    pub fn close_window(&self, index: u32, body: &mut PeerBody, window_index: u32, proof: Proof, left: Left) {
        let window = self.windows.at(window_index);
        let right = window.right();
        self.unlist(body, window_index);
        self.peers.at(index).grid.remove(window_index, right.addr, right.length);
        self.regions.at(right.region).grid.remove(window_index, right.addr, right.length);
        // Nor was one of our own counted among the grants.
        if !self.is_hidden(window_index) {
            count(match proof {
                Proof::Invalidated => &self.counters.proved_invalidated,
                Proof::Deallocated => &self.counters.proved_deallocated,
                Proof::QpFenced => &self.counters.proved_qp_fenced,
                Proof::PeerInvalidated => &self.counters.proved_peer_invalidated,
                Proof::NeverBound | Proof::None => &self.counters.proved_never_bound,
            });
        }
        let grant = self.make_id(id::Kind::Grant, window_index, right.generation);
        if let Some(waiter) = window.take_bind_waiter() {
            self.end_item(waiter, Outcome::failed(0, Status::BindFailed));
        }
        let waiter = window.swap_revoke_waiter(None);
        window.end_grant(match left {
            Left::Free(_) => State::Free,
            Left::Deallocated => State::Empty,
        });
        // Requests that are still out carry the old generation and are not counted here any more.
        window.posted.store(0, Ordering::Relaxed);
        window.prepared.store(false, Ordering::Relaxed);
        window.invalidate.store(false, Ordering::Relaxed);
        window.unclear.store(false, Ordering::Relaxed);
        body.hidden -= usize::from(window.hidden.swap(false, Ordering::Relaxed));
        if window.uncertain.swap(false, Ordering::Relaxed) {
            self.regions.at(right.region).uncertain.fetch_sub(1, Ordering::AcqRel);
        }
        match left {
            Left::Free(since) => self.give_window(window_index, since),
            Left::Deallocated => self.forget_window(window_index),
        }
        self.end_revocations(waiter, Outcome::revoked(grant, proof));
    }

    /// Tells the revocations that waited for a window, given the newest: in the order in which they began.
    pub fn end_revocations(&self, newest: Option<Waiter>, outcome: Outcome) {
        let Some(newest) = newest else { return };
        let mut at = self.op(newest.op).behind(newest.op.generation, newest.item);
        if at.is_none() {
            return self.end_item(newest, outcome);
        }
        let mut oldest = newest;
        while let Some(waiter) = at {
            at = self.op(waiter.op).swap_behind(waiter.op.generation, waiter.item, Some(oldest));
            oldest = waiter;
        }
        while oldest != newest {
            let next = self.op(oldest.op).behind(oldest.op.generation, oldest.item);
            self.end_item(oldest, outcome);
            oldest = next.unwrap_or(newest);
        }
        self.end_item(newest, outcome);
    }

    /// Puts a window on its peer's list.
    pub fn list(&self, body: &mut PeerBody, index: u32) {
        let window = self.windows.at(index);
        window.previous.store(NONE, Ordering::Relaxed);
        window.next.store(body.first_window, Ordering::Relaxed);
        if body.first_window != NONE {
            self.windows.at(body.first_window).previous.store(index, Ordering::Relaxed);
        }
        body.first_window = index;
        body.windows += 1;
    }

    fn unlist(&self, body: &mut PeerBody, index: u32) {
        let window = self.windows.at(index);
        let previous = window.previous.load(Ordering::Relaxed);
        let next = window.next.load(Ordering::Relaxed);
        match previous {
            NONE => body.first_window = next,
            _ => self.windows.at(previous).next.store(next, Ordering::Relaxed),
        }
        if next != NONE {
            self.windows.at(next).previous.store(previous, Ordering::Relaxed);
        }
        body.windows -= 1;
    }

    /// The QP is lost, or gone: nothing that was posted is known to have ended, nothing that
    /// waits can be posted. Windows of either kind are deallocated; grants that nobody revokes
    /// stay on the books.
    pub fn peer_lost(&self, index: u32, body: &mut PeerBody, life: Life) {
        let news = !matches!(body.life, Life::Dead | Life::Gone);
        if body.life != Life::Gone {
            body.life = life;
        }
        // Before the ends that follow: another thread may call back for them at once.
        if news && life == Life::Dead {
            self.tell_dead(index, body);
        }
        self.lose_outstanding(index, body);
        self.drop_pending(index, body, Outcome::failed(0, Status::PeerDead));
    }

    /// The QP is in error, and not by us: the application hears of that once.
    pub fn tell_dead(&self, index: u32, body: &mut PeerBody) {
        if !std::mem::replace(&mut body.told_dead, true) {
            let qp_num = self.peers.at(index).qp_num.load(Ordering::Acquire);
            self.event(Event { kind: EventKind::PeerDead, qp_num, peer: self.peer_id(index), grant: 0 });
        }
    }

    pub fn lose_outstanding(&self, index: u32, body: &mut PeerBody) {
        while let Some(slot) = body.outstanding.pop_front() {
            let works = {
                let mut state = self.chains.at(slot).body.lock();
                body.given_up += state.posted as u32;
                state.holds = Some(self.peers.at(index).generation.load(Ordering::Acquire));
                std::mem::take(&mut state.works)
            };
            for work in &works {
                let window = self.windows.at(work.window);
                if !self.concerns(*work) {
                    continue;
                }
                if let Some(waiter) = window.take_bind_waiter() {
                    self.end_item(waiter, Outcome::failed(0, Status::BindFailed));
                }
                self.to_deallocate(index, body, work.window, true);
            }
            self.chains.at(slot).body.lock().works = works;
            self.drop_chain(slot);
        }
    }

    /// Gives up the chains of a peer that goes; their completions may still come.
    pub fn drop_outstanding(&self, body: &mut PeerBody) {
        while let Some(slot) = body.outstanding.pop_front() {
            self.drop_chain(slot);
        }
    }

    pub fn free_chain(&self, slot: u32) {
        let chain = self.chains.at(slot);
        {
            let mut state = chain.body.lock();
            state.stage = Stage::Idle;
            state.told = None;
            state.holds = None;
            state.works.clear();
            chain.generation.fetch_add(1, Ordering::AcqRel);
        }
        self.chains.give(slot);
    }

    /// Keeps a chain's number for its late completions; the oldest such goes.
    pub fn drop_chain(&self, slot: u32) {
        self.chains.at(slot).body.lock().stage = Stage::Dropped;
        let mut dropped = self.dropped.lock();
        dropped.push_back(slot);
        if dropped.len() > DROPPED {
            if let Some(oldest) = dropped.pop_front() {
                drop(dropped);
                self.forgets_chains.store(true, Ordering::Release);
                self.free_chain(oldest);
            }
        }
    }

    /// What a completion of the application says.
    fn observe(&self, seen: &Completion) {
        if seen.success {
            if seen.flags & self.capabilities.invalidated_flags != 0 {
                if let Some(rkey) = seen.invalidated {
                    self.peer_invalidated(seen.qp_num, rkey);
                }
            }
        } else if let Some(index) = seen.qp_num.and_then(|number| self.qps.get(number)) {
            self.peers.at(index).body.lock().suspect = true;
        }
    }

    /// What an asynchronous event says.
    pub fn async_event(&self, event: AsyncEvent) {
        match event {
            AsyncEvent::QpError(number) => {
                if let Some(index) = self.qps.get(number) {
                    self.peers.at(index).body.lock().suspect = true;
                }
            }
            AsyncEvent::DeviceFatal => self.fatal.store(true, Ordering::Release),
            AsyncEvent::Other => {}
        }
    }

    /// A SEND_WITH_INV took a key away. Where the QP is not told, it is taken for the key's own.
    fn peer_invalidated(&self, qp_num: Option<u32>, rkey: u32) {
        let Some(index) = self.rkeys.get(rkey >> 8) else { return };
        let window = self.windows.at(index);
        let owner = window.peer();
        let Some(peer) = self.peers.get(owner) else { return };
        let mut body = peer.body.lock();
        let right = window.right();
        if right.peer != owner || right.rkey != rkey || !right.state.is_open() {
            return;
        }
        let grant = self.make_id(id::Kind::Grant, index, right.generation);
        let owner_qp = peer.qp_num.load(Ordering::Acquire);
        let qp_num = qp_num.unwrap_or(owner_qp);
        let foreign = owner_qp != qp_num;
        let by = if foreign { self.qps.get(qp_num) } else { Some(owner) };
        let kind = if foreign { EventKind::ForeignInvalidation } else { EventKind::PeerInvalidated };
        if foreign {
            count(&self.counters.foreign_invalidations);
        }
        // Once our LOCAL_INV is posted, it decides: after a peer's it fails, the QP dies, and
        // deallocation is the proof. A bind that the peer could use has completed.
        let in_hand = right.state == State::Invalidating && window.prepared.load(Ordering::Relaxed);
        if in_hand || matches!(right.state, State::Valid | State::Binding | State::Revoking) {
            // Its key was bound, whether or not the application has said so yet.
            window.device_rkey.store(right.rkey, Ordering::Release);
            self.bound(index);
            self.close_window(owner, &mut body, index, Proof::PeerInvalidated, Left::Free(now_ns()));
        }
        drop(body);
        self.event(Event { kind, qp_num, peer: by.map_or(0, |by| self.peer_id(by)), grant });
    }
}
