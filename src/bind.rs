//! Binds that are posted at once, in the application's place: what a program that calls
//! `ibv_bind_mw` expects of a window.

use std::sync::atomic::Ordering;

use crate::chain::{Kind, Told, Work};
use crate::context::Context;
use crate::device::{Errno, Posted, Qp};
use crate::grant::{Checked, Request};
use crate::id;
use crate::op::{Kill, Outcome};
use crate::peer::{Life, PeerBody};
use crate::post::Manner;
use crate::region::{RIGHTS, RegionFacts};
use crate::stats::count;
use crate::status::{Result, Status};
use crate::window::{NONE, OpId, Right, State};

/// The application's own request.
#[derive(Clone, Copy)]
pub struct Ask {
    pub wr_id: u64,
    pub signaled: bool,
    /// Flags that its first work request takes over.
    pub first: u32,
}

/// What is to be bound.
#[derive(Clone, Copy)]
pub struct Span {
    pub region: u64,
    pub addr: u64,
    /// 0: nothing; the window is only unbound.
    pub length: u64,
    pub access: u32,
}

/// How such a bind ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The new grant and its key.
    To(u64, u32),
    Unbound,
    /// Not posted, for want of room; nothing has changed.
    NoRoom,
    /// The provider refused it; nothing has changed.
    Refused(Errno),
    /// Likewise, but what was bound before is being unbound.
    Lost(Errno),
    /// The provider reported an error and not whether it was posted: this grant may be open.
    Unclear(Errno, u64),
}

/// Polls for room in the send queue before a bind is refused.
const TRIES: usize = 2000;

impl RegionFacts {
    /// Whether a device would bind a window to this. No right at all is none that verbs forbids.
    pub fn check_bind(&self, span: &Span) -> Result<()> {
        if span.access == 0 {
            self.check(span.addr, span.length, verbs::IBV_ACCESS_REMOTE_READ)
        } else {
            self.check(span.addr, span.length, span.access)
        }
    }
}

impl Context {
    /// Whether all requests of a peer's queue pair ask for a completion.
    pub fn signals_all(&self, peer: u64) -> bool {
        self.peer(peer).is_ok_and(|(_, slot)| slot.body.lock().signal_all)
    }

    /// Posts what binds a window to `span` instead of `old`, in one chain: nothing waits in line, so
    /// that requests of the application's keep their order with it. May make a kernel call.
    pub fn bind_now(&self, peer: u64, old: Option<u64>, span: &Span, ask: Ask) -> Result<Bound> {
        if span.access & !RIGHTS & !verbs::IBV_ACCESS_LOCAL_WRITE != 0 {
            return Err(Status::UnknownFlags);
        }
        let span = Span { access: span.access & RIGHTS, ..*span };
        if span.access & !self.capabilities.rights != 0 {
            return Err(Status::AccessUnsupported);
        }
        let (_, facts) = self.region_facts(span.region)?;
        if span.length > 0 {
            facts.check_bind(&span)?;
        }
        // Windows of a queue pair that died wait for somebody to deallocate them.
        while self.run_fence() {}
        let (index, slot) = self.peer(peer)?;
        let queue = slot.body.lock().send_queue;
        let mut tries = 0;
        loop {
            // Who polls nothing shall find the queue full in the end.
            if self.queues.at(queue).keeps_many() {
                return Ok(Bound::NoRoom);
            }
            if old.is_some() {
                // The client may have given the right back.
                self.look_for_news(index);
            }
            match self.bind_once(peer, old, &span, ask) {
                Err(Status::PoolEmpty) => self.grow(facts.domain, 1, u64::MAX)?,
                Ok(Bound::NoRoom) if tries < TRIES => {
                    tries += 1;
                    self.poll_for_us(queue);
                    self.run_pumps();
                }
                other => return other,
            }
        }
    }

    fn bind_once(&self, peer: u64, old: Option<u64>, span: &Span, ask: Ask) -> Result<Bound> {
        let (index, slot) = self.peer(peer)?;
        let mut body = slot.body.lock();
        self.peer(peer)?;
        if body.life == Life::Connecting || body.suspect {
            // What is posted on a QP in ERR is flushed, and the application hears of it.
            let _ = self.refresh(index, &mut body);
        }
        match body.life {
            Life::Connecting => return Err(Status::NotConnected),
            Life::Unused | Life::Gone => return Err(Status::StaleId),
            _ if body.leaving => return Err(Status::PeerLeaving),
            _ => {}
        }
        let qp = body.qp.ok_or(Status::StaleId)?;
        let old = match old {
            Some(grant) => self.replaceable(index, grant)?,
            None => None,
        };
        // On a queue pair in ERR the application hears of it all the same.
        let silent = !ask.signaled && !body.signal_all && body.life != Life::Dead;
        if span.length == 0 && old.is_none() && silent {
            return Ok(Bound::Unbound);
        }
        let need = 1 + u32::from(old.is_some() == (span.length > 0));
        if !body.pending.is_empty() || body.budget - body.used < need {
            return Ok(Bound::NoRoom);
        }
        if span.length == 0 && old.is_none() {
            return self.post_marker(index, &mut body, qp, span, ask);
        }
        let (region, facts) = self.region_facts(span.region)?;
        let mut works = Vec::with_capacity(2);
        let placed = if span.length > 0 {
            let request = Request {
                peer,
                region: span.region,
                addr: span.addr,
                length: span.length,
                access: span.access,
            };
            Some(self.place_at(&Checked { request, peer: index, region, facts }, &mut body)?)
        } else {
            None
        };
        if let Some(window) = old {
            self.begin_invalidate(window);
            works.push(self.work(window, Kind::Invalidate));
        }
        if let Some((window, _, _)) = placed {
            works.push(self.work(window, Kind::Bind));
        }
        let result = self.post_for(index, &mut body, qp, &works, ask);
        let posted = match result {
            Posted::All => {
                return Ok(placed.map_or(Bound::Unbound, |(_, grant, rkey)| Bound::To(grant, rkey)));
            }
            Posted::Unclear(error) => {
                return Ok(Bound::Unclear(error, placed.map_or(0, |(_, grant, _)| grant)));
            }
            Posted::Part(posted, error) => (posted, error),
        };
        if let Some((window, _, _)) = placed {
            let outcome = Outcome::failed(0, Status::NotPosted);
            self.never_bound(index, &mut body, window, outcome);
        }
        match (old, posted) {
            (Some(window), (0, error)) => {
                self.undo_invalidate(window);
                Ok(Bound::Refused(error))
            }
            (Some(_), (_, error)) => {
                // It asks for its completion by itself.
                self.pump(index, &mut body);
                Ok(Bound::Lost(error))
            }
            (None, (_, error)) => Ok(Bound::Refused(error)),
        }
    }

    /// The window of a grant that this peer's next bind takes the place of. None if it has ended, or
    /// somebody ends it already.
    fn replaceable(&self, index: u32, grant: u64) -> Result<Option<u32>> {
        let Some((window, generation)) = self.parse_id(id::Kind::Grant, grant) else { return Ok(None) };
        let Some(place) = self.windows.get(window) else { return Ok(None) };
        let right = place.right();
        if right.generation != generation || !right.state.is_open() {
            return Ok(None);
        }
        if right.peer != index {
            return Err(Status::MixedPeers);
        }
        if self.is_untouched(window) {
            return Ok(Some(window));
        }
        match right.state {
            State::Revoking | State::Invalidating | State::Deallocating => Ok(None),
            State::Binding if place.invalidate.load(Ordering::Relaxed) => Ok(None),
            _ => Err(Status::RangeUncertain),
        }
    }

    fn begin_invalidate(&self, window: u32) {
        let place = self.windows.at(window);
        if place.state() == State::Valid {
            place.set_state(State::Revoking);
        }
        place.invalidate.store(true, Ordering::Relaxed);
    }

    fn undo_invalidate(&self, window: u32) {
        let place = self.windows.at(window);
        place.invalidate.store(false, Ordering::Relaxed);
        if place.state() == State::Revoking {
            place.set_state(State::Valid);
        }
    }

    /// Posts works as one chain that stands for the application's request.
    fn post_for(&self, index: u32, body: &mut PeerBody, qp: Qp, works: &[Work], ask: Ask) -> Posted {
        let Some(slot) = self.chains.take() else { return Posted::Part(0, Errno(libc::ENOMEM)) };
        let signaled = ask.signaled || body.signal_all;
        // One that the application did not ask for at a time: its queue was sized for those that it did.
        let asks = signaled || !self.awaits_own(body);
        let told = Some(Told { wr_id: ask.wr_id, signaled });
        let result = self.post_in(slot, index, body, qp, works, Manner { asks, first: ask.first, told });
        if result != Posted::All {
            count(&self.counters.post_errors);
        }
        if matches!(result, Posted::Unclear(_)) {
            body.suspect = true;
        }
        result
    }

    /// Whether a completion is due that the application doesn't hear of.
    fn awaits_own(&self, body: &PeerBody) -> bool {
        body.outstanding.iter().any(|slot| {
            let state = self.chains.at(*slot).body.lock();
            state.asked > 0 && !state.told.is_some_and(|told| told.signaled)
        })
    }

    /// Nothing is bound and nothing is to be, but a completion is asked for in this place of the send
    /// queue: a right under a key that nobody is told, and its end.
    fn post_marker(&self, index: u32, body: &mut PeerBody, qp: Qp, span: &Span, ask: Ask) -> Result<Bound> {
        let (region, facts) = self.region_facts(span.region)?;
        let alive = self.regions.at(region).body.read();
        self.region(span.region)?;
        let (window, rkey) = self.take_window(facts.domain).ok_or(Status::PoolEmpty)?;
        let place = self.windows.at(window);
        let right = Right {
            state: State::Binding,
            confirmed: false,
            generation: place.right().generation,
            rkey,
            peer: index,
            region,
            access: verbs::IBV_ACCESS_REMOTE_READ,
            addr: facts.addr,
            length: 1,
        };
        place.hidden.store(true, Ordering::Relaxed);
        body.hidden += 1;
        self.enter(index, body, window, &right);
        drop(alive);
        place.invalidate.store(true, Ordering::Relaxed);
        let works = [self.work(window, Kind::Bind), self.work(window, Kind::Invalidate)];
        match self.post_for(index, body, qp, &works, ask) {
            Posted::All => Ok(Bound::Unbound),
            Posted::Unclear(error) => Ok(Bound::Unclear(error, 0)),
            Posted::Part(0, error) => {
                self.never_bound(index, body, window, Outcome::failed(0, Status::NotPosted));
                Ok(Bound::Refused(error))
            }
            Posted::Part(_, error) => {
                body.pending.push_back(works[1]);
                self.retry_later(index, body);
                Ok(Bound::Refused(error))
            }
        }
    }

    /// Ends grants now: by deallocation, which needs no send queue, unless a request for the window is
    /// under way. May wait; moves no QP to ERR.
    pub fn end_now(&self, grants: &[u64]) -> Result<()> {
        let op = self.begin_op(0, Kill::Never, None)?;
        for grant in grants {
            match self.add_end(op, *grant) {
                // It has ended by itself.
                Ok(()) | Err(Status::StaleId) => {}
                Err(status) => self.op(op).add_ended(Outcome::failed(*grant, status)),
            }
        }
        self.pump_peers(op);
        self.end_begin(op);
        self.wait_for_all(op, |_| {})
    }

    fn add_end(&self, op: OpId, grant: u64) -> Result<()> {
        let (window, generation) = self.parse_id(id::Kind::Grant, grant).ok_or(Status::StaleId)?;
        let place = self.windows.get(window).ok_or(Status::StaleId)?;
        let owner = place.peer();
        if owner == NONE {
            return Err(Status::StaleId);
        }
        let peer = self.peers.get(owner).ok_or(Status::StaleId)?;
        let mut body = peer.body.lock();
        self.attach(op, owner, &mut body, window, Some(generation))?;
        if place.state() == State::Valid && place.posted.load(Ordering::Relaxed) == 0 {
            self.to_deallocate(owner, &mut body, window, false);
        } else {
            self.start_revoke(owner, &mut body, window);
        }
        Ok(())
    }

    /// Waits for the rights into a region that are being ended already. Busy if there is another. May
    /// wait.
    pub fn settle_region(&self, region: u64) -> Result<()> {
        let (index, facts) = self.region_facts(region)?;
        let mut found = Vec::new();
        self.regions.at(index).grid.each_near(facts.addr, facts.length, |window| {
            let right = self.windows.at(window).right();
            if right.region == index && right.state.is_open() {
                found.push((window, right.generation));
            }
        });
        found.sort_unstable();
        found.dedup();
        let ends = |window: u32| {
            let place = self.windows.at(window);
            place.invalidate.load(Ordering::Relaxed) || place.state() == State::Deallocating
        };
        if found.iter().any(|(window, _)| !ends(*window)) {
            return Err(Status::Busy);
        }
        let op = self.begin_op(0, Kill::Never, None)?;
        for (window, generation) in found {
            match self.add_window(op, window, generation) {
                Ok(()) | Err(Status::StaleId) => {}
                Err(status) => self.op(op).add_ended(Outcome::failed(0, status)),
            }
        }
        self.pump_peers(op);
        self.end_begin(op);
        self.wait_for_all(op, |_| {})
    }
}
