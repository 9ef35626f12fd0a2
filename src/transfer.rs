//! Transfers: a right moves from one peer to another, with nothing in between. The new peer's bind
//! is posted only after the proof that the old one's right is gone.

use crate::context::Context;
use crate::grant::Request;
use crate::op::{Callback, Kill, Outcome};
use crate::status::{Result, Status};
use crate::time::now_ns;
use crate::window::{MAX_ITEMS, NONE, OpId, Waiter};

/// A grant to end, and the right to hand out in its place.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    pub grant: u64,
    pub request: Request,
}

impl Context {
    /// Outcomes: first the grants, then the revocations, each in the order of the moves. Bad input
    /// is refused before anything is posted. May wait.
    pub fn transfer(&self, moves: &[Move], timeout_us: u64, kill: Kill, out: &mut [Outcome]) -> Result<()> {
        let op = self.begin_transfer(moves, timeout_us, kill, None)?;
        self.wait_for_all(op, |outcomes| {
            let n = outcomes.len().min(out.len());
            out[..n].copy_from_slice(&outcomes[..n]);
        })
    }

    /// The same, ending in a callback. Never waits.
    pub fn transfer_start(
        &self,
        moves: &[Move],
        timeout_us: u64,
        kill: Kill,
        callback: Callback,
    ) -> Result<()> {
        self.begin_transfer(moves, timeout_us, kill, Some(callback)).map(|_| ())
    }

    fn begin_transfer(
        &self,
        moves: &[Move],
        timeout_us: u64,
        kill: Kill,
        callback: Option<Callback>,
    ) -> Result<OpId> {
        let may_wait = callback.is_none();
        if moves.len() > MAX_ITEMS / 2 {
            return Err(Status::TooMany);
        }
        for step in moves {
            self.check_request(&step.request, may_wait)?;
            self.grant_facts(step.grant)?;
            if may_wait {
                self.check_waiting_revoke(step.grant)?;
            }
        }
        let mut grants: Vec<u64> = moves.iter().map(|step| step.grant).collect();
        grants.sort_unstable();
        if grants.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Status::Duplicate);
        }
        let op = self.begin_op(timeout_us, kill, callback)?;
        self.op(op).body.lock().moves.extend(moves.iter().map(|step| step.request));
        for step in moves {
            if let Ok((_, slot)) = self.peer(step.request.peer) {
                self.op(op).add_watch(slot.body.lock().watch());
            }
            self.op(op).add_item(NONE, 0, 0);
        }
        for (at, step) in moves.iter().enumerate() {
            if let Err(status) = self.add_grant(op, step.grant) {
                self.op(op).add_ended(Outcome::failed(step.grant, status));
                self.end_item(Waiter { op, item: at as u32 }, Outcome::failed(0, Status::NotPosted));
            }
        }
        self.pump_peers(op);
        self.end_begin(op);
        Ok(op)
    }

    /// Posts the binds whose turn has come. No lock may be held. Without `may_allocate` a window
    /// that is not ready leaves the rest to the next tick or waiting call; so does, after an allocation,
    /// whatever else is due.
    pub fn run_transfers(&self, may_allocate: bool) {
        while let Some(waiter) = { self.to_bind.lock().pop_front() } {
            match self.bind_next(waiter) {
                Err(Status::PoolEmpty) if may_allocate => {
                    let grown = self.next_domain(waiter).and_then(|domain| self.grow(domain, 1, u64::MAX));
                    match grown {
                        Ok(()) => self.to_bind.lock().push_front(waiter),
                        Err(status) => self.end_item(waiter, Outcome::failed(0, status)),
                    }
                    if self.is_due() || self.has_callbacks() {
                        return self.raise();
                    }
                }
                Err(Status::PoolEmpty) => {
                    self.to_bind.lock().push_front(waiter);
                    return self.raise();
                }
                Err(status) => self.end_item(waiter, Outcome::failed(0, status)),
                Ok(()) => {}
            }
        }
    }

    fn next_domain(&self, waiter: Waiter) -> Result<u32> {
        let request =
            self.op(waiter.op).next_move(waiter.op.generation, waiter.item).ok_or(Status::StaleId)?;
        Ok(self.region_facts(request.region)?.1.domain)
    }

    fn bind_next(&self, waiter: Waiter) -> Result<()> {
        // One that has ended meanwhile, at its deadline, is not bound any more.
        let Some(request) = self.op(waiter.op).next_move(waiter.op.generation, waiter.item) else {
            return Ok(());
        };
        let checked = self.check_begun(&request)?;
        let mut body = self.peers.at(checked.peer).body.lock();
        self.queue_bind(waiter, &checked, &mut body)?;
        self.pump_soon(checked.peer, &mut body);
        drop(body);
        self.run_pumps();
        // Whoever ended the operation at its deadline may have come just before this.
        let due = self.op(waiter.op).body.lock().next_due(now_ns());
        self.arm(due, false);
        Ok(())
    }
}
