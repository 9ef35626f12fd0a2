//! Operations: a grant or revocation of any number of items that ends exactly once.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::grant::Request;
use crate::status::{Proof, Status};
use crate::time::now_ns;
use crate::window::{NONE, OP_GENERATIONS, Waiter};

/// How one item ended.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The grant's id. After a failed grant 0, or an id that must still be revoked.
    pub grant: u64,
    /// The key to hand to the peer; 0 unless `status` is a success of a grant.
    pub rkey: u32,
    pub status: Status,
    /// For a revocation, what shows that the right is gone.
    pub proof: Proof,
    /// For a failed verbs call, its errno value; else 0.
    pub error: i32,
}

impl Outcome {
    pub const PENDING: Outcome = Outcome::failed(0, Status::Pending);

    pub const fn failed(grant: u64, status: Status) -> Outcome {
        Outcome { grant, rkey: 0, status, proof: Proof::None, error: 0 }
    }

    pub const fn granted(grant: u64, rkey: u32) -> Outcome {
        Outcome { grant, rkey, status: Status::Ok, proof: Proof::None, error: 0 }
    }

    pub const fn revoked(grant: u64, proof: Proof) -> Outcome {
        Outcome { grant, rkey: 0, status: Status::Ok, proof, error: 0 }
    }
}

/// Called once with the operation's outcome: two words of the caller's, the call's status and
/// each item's outcome.
#[derive(Clone, Copy)]
pub struct Callback {
    pub call: fn(usize, usize, Status, &[Outcome]),
    pub words: [usize; 2],
}

/// So long before the deadline threads of the application are woken for the last time to look into queues
/// that only they may poll.
const LAST_LOOK_NS: u64 = 2_000_000;

/// Who can look for a peer's completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// The CQ on which they come, if it is ours to poll.
    pub ours: Option<u32>,
    /// Only certain threads of the application may poll it.
    pub theirs: bool,
}

/// What the deadline may do to a QP whose LOCAL_INV does not complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kill {
    /// Move it to ERR, if its CQ has been looked into when the request had had its time.
    #[default]
    IfPolled,
    Never,
    /// The application is about to destroy it: move it to ERR.
    Always,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    #[default]
    Idle,
    Active,
    /// All items ended; the waiting call or the callback has not taken it yet.
    Done,
}

#[derive(Clone, Copy)]
pub struct Item {
    pub window: u32,
    pub generation: u32,
    /// A grant of the library's own: not among the outcomes that are told.
    pub hidden: bool,
    /// An older revocation that waits for the same window.
    pub behind: Option<Waiter>,
    pub done: bool,
}

#[derive(Default)]
pub struct OpBody {
    pub phase: Phase,
    /// Which use of the slot this is: waiters of an earlier one mean nothing.
    generation: u32,
    begun: u64,
    pub deadline: u64,
    pub kill: Kill,
    pub items: Vec<Item>,
    pub outcomes: Vec<Outcome>,
    pub remaining: usize,
    pub callback: Option<Callback>,
    /// The peers that have work in line for it, in order; neighbours differ.
    pub peers: Vec<u32>,
    /// Indexes of the CQs on which its completions come.
    pub queues: Vec<u32>,
    /// Some come on CQs into which only certain threads of the application may look.
    looks: bool,
    /// Of a transfer: the rights to hand out. Their items come first, then as many revocations,
    /// whose proofs they wait for.
    pub moves: Vec<Request>,
    /// When all items have ended, this peer is to be taken off the books.
    pub detaches: Option<u64>,
}

#[derive(Default)]
pub struct Op {
    pub body: Mutex<OpBody>,
    /// 1 once `Done`: looked at by waiting calls without the lock.
    done: AtomicU32,
}

impl Op {
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) != 0
    }

    /// Starts over. `remaining` begins at 1: the beginner's own hold, so that the operation can't
    /// end while items are still being added. Returns the generation.
    pub fn begin(&self, begun: u64, deadline: u64, kill: Kill, callback: Option<Callback>) -> u32 {
        let mut body = self.body.lock();
        body.phase = Phase::Active;
        body.generation = (body.generation + 1) % OP_GENERATIONS;
        body.begun = begun;
        body.deadline = deadline;
        body.kill = kill;
        body.callback = callback;
        body.remaining = 1;
        body.detaches = None;
        body.items.clear();
        body.outcomes.clear();
        body.peers.clear();
        body.queues.clear();
        body.looks = false;
        body.moves.clear();
        self.done.store(0, Ordering::Release);
        body.generation
    }

    pub fn add_item(&self, window: u32, generation: u32, grant: u64) -> u32 {
        let mut body = self.body.lock();
        body.items.push(Item { window, generation, hidden: false, behind: None, done: false });
        body.outcomes.push(Outcome { grant, ..Outcome::PENDING });
        body.remaining += 1;
        body.items.len() as u32 - 1
    }

    /// An item that ended before it began.
    pub fn add_ended(&self, outcome: Outcome) {
        let mut body = self.body.lock();
        body.items.push(Item { window: 0, generation: 0, hidden: false, behind: None, done: true });
        body.outcomes.push(outcome);
    }

    /// A revocation that waits for a window of this peer, and for what comes on its completion queue.
    /// `enlist` puts it before those that wait already and returns them.
    pub fn add_revocation(
        &self,
        item: Item,
        outcome: Outcome,
        peer: u32,
        watch: Watch,
        enlist: impl FnOnce(u32) -> Option<Waiter>,
    ) {
        let mut body = self.body.lock();
        let behind = enlist(body.items.len() as u32);
        body.items.push(Item { behind, ..item });
        body.outcomes.push(outcome);
        body.remaining += 1;
        body.add_peer(peer);
        body.add_watch(watch);
    }

    /// This peer has work in line for the operation.
    pub fn add_peer(&self, peer: u32) {
        self.body.lock().add_peer(peer);
    }

    pub fn add_watch(&self, watch: Watch) {
        self.body.lock().add_watch(watch);
    }

    pub fn deadline(&self) -> u64 {
        self.body.lock().deadline
    }

    /// One of the completion queues that it waits on.
    pub fn queue(&self, at: usize) -> Option<u32> {
        self.body.lock().queues.get(at).copied()
    }

    /// One of the peers that had work for it.
    pub fn peer(&self, at: usize) -> Option<u32> {
        self.body.lock().peers.get(at).copied()
    }

    /// Lets go of the beginner's hold. What follows if it was the last; else when something is to be done
    /// for it.
    pub fn release(&self) -> Result<u64, Follows> {
        let mut body = self.body.lock();
        body.remaining -= 1;
        match self.finish_if_last(&mut body) {
            Follows::Nothing => Ok(body.next_due(now_ns())),
            end => Err(end),
        }
    }

    /// Ends an item unless it has ended, and says what follows.
    pub fn end_item(&self, generation: u32, item: u32, outcome: Outcome) -> Follows {
        let mut body = self.body.lock();
        if body.generation != generation || !body.end(item, outcome) {
            return Follows::Nothing;
        }
        let moves = body.moves.len() as u32;
        if let Some(next) = item.checked_sub(moves).filter(|_| moves > 0) {
            if outcome.status == Status::Ok && !body.items[next as usize].done {
                return Follows::Bind(next);
            }
            body.end(next, Outcome::failed(0, Status::NotPosted));
        }
        self.finish_if_last(&mut body)
    }

    /// The grant of a transfer whose turn did not come in time.
    pub fn end_unplaced(&self, generation: u32, item: u32) -> Follows {
        let mut body = self.body.lock();
        let unplaced = body.items.get(item as usize).is_some_and(|entry| entry.window == NONE);
        if body.generation == generation && unplaced {
            body.end(item, Outcome::failed(0, Status::NotPosted));
            return self.finish_if_last(&mut body);
        }
        Follows::Nothing
    }

    /// Whose turn it is then is told here: a waiting call may give the slot to another operation as soon
    /// as the lock is free.
    fn finish_if_last(&self, body: &mut OpBody) -> Follows {
        if body.remaining > 0 || body.phase != Phase::Active {
            return Follows::Nothing;
        }
        body.phase = Phase::Done;
        self.done.store(1, Ordering::Release);
        if body.callback.is_some() { Follows::Call } else { Follows::Return }
    }

    /// What waits behind an item, if this is still the same operation.
    pub fn behind(&self, generation: u32, item: u32) -> Option<Waiter> {
        let body = self.body.lock();
        let known = body.generation == generation;
        known.then(|| body.items.get(item as usize).and_then(|entry| entry.behind)).flatten()
    }

    /// Says what waited behind it before.
    pub fn swap_behind(&self, generation: u32, item: u32, behind: Option<Waiter>) -> Option<Waiter> {
        let mut body = self.body.lock();
        if body.generation != generation {
            return None;
        }
        let entry = body.items.get_mut(item as usize)?;
        std::mem::replace(&mut entry.behind, behind)
    }

    /// The request of a transfer's grant that is still to be made.
    pub fn next_move(&self, generation: u32, item: u32) -> Option<Request> {
        let body = self.body.lock();
        let open = body.items.get(item as usize).is_some_and(|entry| !entry.done && entry.window == NONE);
        (body.generation == generation && open).then(|| body.moves.get(item as usize).copied()).flatten()
    }

    /// What an item waits for from now on. False if it has ended.
    pub fn set_window(
        &self,
        generation: u32,
        item: u32,
        window: u32,
        window_generation: u32,
        grant: u64,
    ) -> bool {
        let mut body = self.body.lock();
        if body.generation != generation {
            return false;
        }
        let at = item as usize;
        match body.items.get_mut(at) {
            Some(entry) if !entry.done => (entry.window, entry.generation) = (window, window_generation),
            _ => return false,
        }
        body.outcomes[at].grant = grant;
        true
    }
}

/// What follows from the end of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    Nothing,
    /// The operation is done: the call that waits for it returns.
    Return,
    /// The operation is done: its callback is due.
    Call,
    /// The grant of this item is next.
    Bind(u32),
}

impl OpBody {
    pub fn generation(&self) -> u32 {
        self.generation
    }

    fn add_peer(&mut self, peer: u32) {
        if self.peers.last() != Some(&peer) {
            self.peers.push(peer);
        }
    }

    fn add_watch(&mut self, watch: Watch) {
        self.looks |= watch.theirs;
        if let Some(queue) = watch.ours {
            if self.queues.last() != Some(&queue) && !self.queues.contains(&queue) {
                self.queues.push(queue);
            }
        }
    }

    /// Whether the application should look into its queues, so that the deadline finds out what has
    /// completed.
    pub fn wants_look(&self, now: u64) -> bool {
        self.looks && now >= self.look_times()[0]
    }

    /// When something is to be done for it next: looks by whoever may, then what the deadline brings.
    pub fn next_due(&self, now: u64) -> u64 {
        if !self.looks || self.deadline == u64::MAX {
            return self.deadline;
        }
        self.look_times().into_iter().find(|look| now < *look).unwrap_or(self.deadline)
    }

    /// In the second half of its time, where a look counts, and more than are needed: who is woken may
    /// be late. The last is as late as it can be.
    fn look_times(&self) -> [u64; 4] {
        let eighth = self.deadline.saturating_sub(self.begun) / 8;
        [3 * eighth, 2 * eighth, eighth, eighth.min(LAST_LOOK_NS)].map(|ahead| self.deadline - ahead)
    }

    /// Takes the outcomes that are told.
    pub fn take_outcomes(&mut self) -> Vec<Outcome> {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        let mut at = 0;
        outcomes.retain(|_| {
            at += 1;
            !self.items[at - 1].hidden
        });
        outcomes
    }

    /// Ends an item. False if it had ended, or isn't there.
    fn end(&mut self, item: u32, outcome: Outcome) -> bool {
        match self.items.get_mut(item as usize) {
            Some(entry) if !entry.done => entry.done = true,
            _ => return false,
        }
        self.outcomes[item as usize] = outcome;
        self.remaining -= 1;
        true
    }

    /// Whatever the items came to, this is told of each.
    pub fn fail_all(&mut self, status: Status) {
        for outcome in &mut self.outcomes {
            *outcome = Outcome::failed(outcome.grant, status);
        }
    }

    /// The first outcome that is no success.
    pub fn status(&self) -> Status {
        let failed = self.outcomes.iter().find(|o| o.status != Status::Ok);
        failed.map_or(Status::Ok, |o| o.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARD: Callback = Callback { call: |_, _, _, _| {}, words: [0, 0] };

    #[test]
    fn the_end_says_whose_turn_it_is_also_if_the_slot_is_used_anew() {
        let op = Op::default();
        let granted = Outcome::granted(1, 2);
        for (callback, next, end) in
            [(None, Some(HEARD), Follows::Return), (Some(HEARD), None, Follows::Call)]
        {
            let generation = op.begin(0, 1, Kill::Never, callback);
            let item = op.add_item(0, 0, 1);
            assert!(op.release().is_ok());
            let said = op.end_item(generation, item, granted);
            op.begin(0, 1, Kill::Never, next);
            assert_eq!(said, end);
            // What comes late ends nothing.
            assert_eq!(op.end_item(generation, item, granted), Follows::Nothing);
            assert!(!op.is_done());
        }
    }

    #[test]
    fn the_hold_of_the_beginner_may_be_the_last() {
        let op = Op::default();
        op.begin(0, 1, Kill::Never, Some(HEARD));
        op.add_ended(Outcome::failed(1, Status::StaleId));
        assert_eq!(op.release(), Err(Follows::Call));
        assert!(op.is_done());
    }
}
