//! Grants: a right to a range, handed to one peer.

use std::sync::atomic::Ordering;

use crate::chain::{Kind, MAX_CHAIN, Work};
use crate::context::Context;
use crate::id;
use crate::op::{Callback, Kill, Outcome};
use crate::peer::{Life, PeerBody};
use crate::region::RegionFacts;
use crate::stats::count;
use crate::status::{Result, Status};
use crate::time::now_ns;
use crate::window::{MAX_ITEMS, OpId, Right, State, Waiter};

/// A right that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub peer: u64,
    pub region: u64,
    pub addr: u64,
    pub length: u64,
    pub access: u32,
}

/// What a caller hands in as a request.
pub trait Asked: Copy {
    fn request(&self) -> Result<Request>;
}

impl Asked for Request {
    fn request(&self) -> Result<Request> {
        Ok(*self)
    }
}

/// A request whose parts were found good.
#[derive(Clone, Copy)]
pub struct Checked {
    pub request: Request,
    pub peer: u32,
    pub region: u32,
    pub facts: RegionFacts,
}

impl Context {
    /// Whether this thread may make a grant; nothing is changed.
    pub fn check_request(&self, request: &Request, may_wait: bool) -> Result<Checked> {
        self.check_request_by(request, |body| match may_wait {
            true => self.check_may_wait(body),
            false => self.check_thread(body),
        })
    }

    /// The same for one that was begun before: its turn may come on any thread, and waits for the
    /// owner of the queue pair if need be.
    pub fn check_begun(&self, request: &Request) -> Result<Checked> {
        self.check_request_by(request, |_| Ok(()))
    }

    fn check_request_by(
        &self,
        request: &Request,
        may_ask: impl FnOnce(&PeerBody) -> Result<()>,
    ) -> Result<Checked> {
        let (peer, slot) = self.peer(request.peer)?;
        let (region, facts) = self.region_facts(request.region)?;
        facts.check(request.addr, request.length, request.access)?;
        if request.access & !self.capabilities.rights != 0 {
            return Err(Status::AccessUnsupported);
        }
        let mut body = slot.body.lock();
        self.peer(request.peer)?;
        if body.domain != facts.domain {
            return Err(Status::ForeignPd);
        }
        self.check_peer(peer, &mut body, request.access)?;
        may_ask(&body)?;
        Ok(Checked { request: *request, peer, region, facts })
    }

    fn check_peer(&self, index: u32, body: &mut PeerBody, access: u32) -> Result<()> {
        if body.life == Life::Connecting || body.suspect {
            self.refresh(index, body)?;
        }
        match body.life {
            Life::Unused => return Err(Status::StaleId),
            Life::Dead | Life::Gone => return Err(Status::PeerDead),
            _ => {}
        }
        if body.leaving {
            return Err(Status::PeerLeaving);
        }
        if access & !body.access != 0 {
            // The application may have changed them.
            self.refresh(index, body)?;
        }
        if access & !body.access != 0 {
            return Err(Status::AccessMissingOnQp);
        }
        Ok(())
    }

    /// Takes a window for the request and enters the grant into the tables; its bind is not
    /// posted. The peer's lock is held.
    pub fn place(&self, checked: &Checked, body: &mut PeerBody) -> Result<(u32, u64, u32)> {
        let request = &checked.request;
        self.peer(request.peer)?;
        self.check_peer(checked.peer, body, request.access)?;
        self.place_at(checked, body)
    }

    /// The same for a peer that was looked at.
    pub fn place_at(&self, checked: &Checked, body: &mut PeerBody) -> Result<(u32, u64, u32)> {
        let request = &checked.request;
        let region = self.regions.at(checked.region);
        let alive = region.body.read();
        self.region(request.region)?;
        if alive.as_ref().is_none_or(|known| known.closing) {
            return Err(Status::StaleId);
        }
        self.check_certain(checked)?;
        let (index, rkey) = self.take_window(checked.facts.domain).ok_or(Status::PoolEmpty)?;
        let generation = self.windows.at(index).right().generation;
        let right = Right {
            state: State::Binding,
            confirmed: false,
            generation,
            rkey,
            peer: checked.peer,
            region: checked.region,
            access: request.access,
            addr: request.addr,
            length: request.length,
        };
        self.enter(checked.peer, body, index, &right);
        count(&self.counters.grants);
        Ok((index, self.make_id(id::Kind::Grant, index, generation), rkey))
    }

    /// Enters a right into the tables. The peer's lock is held.
    pub fn enter(&self, peer: u32, body: &mut PeerBody, index: u32, right: &Right) {
        let window = self.windows.at(index);
        window.set_right(right);
        window.set_bind_waiter(None);
        self.list(body, index);
        self.peers.at(peer).grid.insert(index, right.addr, right.length);
        self.regions.at(right.region).grid.insert(index, right.addr, right.length);
    }

    /// Memory in which a right could not be proved gone is not granted again.
    fn check_certain(&self, checked: &Checked) -> Result<()> {
        let region = self.regions.at(checked.region);
        if region.uncertain.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let (addr, length) = (checked.request.addr, checked.request.length);
        let mut free = true;
        region.grid.each_near(addr, length, |window| {
            let place = self.windows.at(window);
            let right = place.right();
            let touches =
                right.region == checked.region && right.overlaps(addr, length) && !self.is_hidden(window);
            free &= !(touches && place.uncertain.load(Ordering::Relaxed));
        });
        if free { Ok(()) } else { Err(Status::RangeUncertain) }
    }

    /// Begins an operation; `end_begin` must follow.
    pub fn begin_op(&self, timeout_us: u64, kill: Kill, callback: Option<Callback>) -> Result<OpId> {
        let index = self.ops.take().ok_or(Status::TooMany)?;
        let begun = now_ns();
        let deadline = self.deadline(begun, timeout_us);
        let waits = callback.is_none();
        let generation = self.ops.at(index).begin(begun, deadline, kill, callback);
        let op = OpId { index, generation };
        self.arm(deadline, waits);
        Ok(op)
    }

    /// All items of an operation are under way. Its deadline may have passed meanwhile and ended those
    /// that were there then: it counts for the others as well.
    pub fn end_begin(&self, op: OpId) {
        match self.op(op).release() {
            Ok(due) => self.arm(due, false),
            Err(end) => self.follow(op, end),
        }
    }

    /// A deadline is to be kept. Unless this thread waits for it by itself, whoever sleeps as
    /// `next_timeout` told before hears of one that is nearer.
    pub fn arm(&self, due: u64, waits: bool) {
        if self.next_deadline.fetch_min(due, Ordering::SeqCst) > due {
            self.wake_sleepers();
            if !waits {
                self.raise_fd();
            }
        }
    }

    /// Hands out rights; each request ends with an outcome of its own, in order. Bad requests are
    /// refused before anything is posted. May wait.
    pub fn grant<A: Asked>(&self, asked: &[A], timeout_us: u64, out: &mut [Outcome]) -> Result<()> {
        let op = self.begin_grants(asked, timeout_us, None)?;
        let mut status = Status::Ok;
        self.wait(op, |body, outcomes| {
            out[..outcomes.len()].copy_from_slice(outcomes);
            status = body.status();
        });
        if status == Status::Ok { Ok(()) } else { Err(status) }
    }

    /// The same, ending in a callback. Never waits.
    pub fn grant_start<A: Asked>(&self, asked: &[A], timeout_us: u64, callback: Callback) -> Result<()> {
        self.begin_grants(asked, timeout_us, Some(callback)).map(|_| ())
    }

    fn begin_grants<A: Asked>(
        &self,
        asked: &[A],
        timeout_us: u64,
        callback: Option<Callback>,
    ) -> Result<OpId> {
        let may_wait = callback.is_none();
        if asked.len() > MAX_ITEMS {
            return Err(Status::TooMany);
        }
        for one in asked {
            self.check_request(&one.request()?, may_wait)?;
        }
        let op = self.begin_op(timeout_us, Kill::Never, callback)?;
        for (at, one) in asked.iter().enumerate() {
            let queued =
                one.request().and_then(|request| self.begin_grant(op, &request, may_wait, asked.len() - at));
            if let Err(status) = queued {
                self.op(op).add_ended(Outcome::failed(0, status));
            }
        }
        self.pump_peers(op);
        self.end_begin(op);
        Ok(op)
    }

    /// One request of an operation; `more` are to come, this one included.
    fn begin_grant(&self, op: OpId, request: &Request, may_wait: bool, more: usize) -> Result<()> {
        let checked = self.check_request(request, may_wait)?;
        loop {
            match self.queue_grant(op, &checked) {
                Err(Status::PoolEmpty) if may_wait => {
                    self.grow(checked.facts.domain, more, self.op(op).deadline())?;
                }
                other => return other,
            }
        }
    }

    fn queue_grant(&self, op: OpId, checked: &Checked) -> Result<()> {
        let mut body = self.peers.at(checked.peer).body.lock();
        let (window, grant, _) = self.place(checked, &mut body)?;
        let generation = self.windows.at(window).right().generation;
        let item = self.op(op).add_item(window, generation, grant);
        self.op(op).add_peer(checked.peer);
        self.op(op).add_watch(body.watch());
        self.push_bind(Waiter { op, item }, window, &mut body);
        Ok(())
    }

    /// The same for an item that is there already.
    pub fn queue_bind(&self, waiter: Waiter, checked: &Checked, body: &mut PeerBody) -> Result<()> {
        let (window, grant, _) = self.place(checked, body)?;
        let generation = self.windows.at(window).right().generation;
        if self.op(waiter.op).set_window(waiter.op.generation, waiter.item, window, generation, grant) {
            self.push_bind(waiter, window, body);
        } else {
            // Its operation has ended meanwhile.
            self.never_bound(checked.peer, body, window, Outcome::failed(0, Status::NotPosted));
        }
        Ok(())
    }

    pub fn push_bind(&self, waiter: Waiter, window: u32, body: &mut PeerBody) {
        self.windows.at(window).set_bind_waiter(Some(waiter));
        body.pending.push_back(self.work(window, Kind::Bind));
    }

    /// Binds for the application to post in a chain of its own, all for one peer. Each outcome
    /// carries id and rkey at once: the key may travel in a later SEND of the same queue pair,
    /// and in no other way before the grant is confirmed. Never waits.
    pub fn grant_prepare<A: Asked>(
        &self,
        asked: &[A],
        wrs: &mut [verbs::ibv_send_wr],
        out: &mut [Outcome],
    ) -> Result<u64> {
        let first = asked.first().ok_or(Status::InvalidArgument)?.request()?;
        for one in asked {
            let request = one.request()?;
            if request.peer != first.peer {
                return Err(Status::MixedPeers);
            }
            self.check_request(&request, false)?;
        }
        let (index, slot) = self.peer(first.peer)?;
        self.with_works(|works| {
            let mut body = slot.body.lock();
            let prepared = self
                .place_all(asked, &mut body, &mut out[..], works)
                .and_then(|()| self.prepare_chain(index, &mut body, works, false, None, wrs));
            if let Err(status) = prepared {
                for work in works.iter() {
                    self.never_bound(index, &mut body, work.window, Outcome::failed(0, Status::NotPosted));
                }
                out.fill(Outcome::failed(0, status));
                if status == Status::QueueFull {
                    self.ask_for_room(index, &mut body);
                }
            }
            prepared
        })
    }

    /// Takes a window for each request into `works`, as far as it gets. The peer's lock is held.
    fn place_all<A: Asked>(
        &self,
        asked: &[A],
        body: &mut PeerBody,
        out: &mut [Outcome],
        works: &mut Vec<Work>,
    ) -> Result<()> {
        self.check_room(body, asked.len())?;
        for (one, outcome) in asked.iter().zip(out) {
            let request = one.request()?;
            let (region, facts) = self.region_facts(request.region)?;
            let (peer, _) = self.peer(request.peer)?;
            let (window, grant, rkey) = self.place(&Checked { request, peer, region, facts }, body)?;
            self.windows.at(window).prepared.store(true, Ordering::Relaxed);
            *outcome = Outcome::granted(grant, rkey);
            works.push(self.work(window, Kind::Bind));
        }
        Ok(())
    }

    /// Whether a chain of `n` can ever, and can now, go into our share of the send queue.
    pub fn check_room(&self, body: &PeerBody, n: usize) -> Result<()> {
        if n > MAX_CHAIN || n > body.budget as usize {
            return Err(Status::TooMany);
        }
        if n > (body.budget - body.used) as usize {
            return Err(Status::QueueFull);
        }
        Ok(())
    }
}
