//! When a send queue can't give the proof: deallocation, with the QP in ERR where a request for
//! the window may be under way.

use std::sync::atomic::Ordering;

use crate::context::{Context, Severity};
use crate::controls::broken;
use crate::device::{Errno, Qp};
use crate::event::{Event, EventKind};
use crate::id;
use crate::op::{Kill, Outcome, Phase};
use crate::peer::{Life, PeerBody};
use crate::stats::count;
use crate::status::{Proof, Status};
use crate::time::now_ns;
use crate::window::{Left, NONE, OpId, State, Waiter};

/// So long at least a request is given before it is missed: a look at its CQ just behind the post says
/// nothing.
const LEAST_NS: u64 = 1_000_000;

/// So long a thread deallocates before it looks at the deadlines again.
const PIECE_NS: u64 = 2_000_000;

/// A window in line for deallocation.
#[derive(Clone, Copy)]
pub struct Fence {
    window: u32,
    /// A request for it may be outstanding: the QP must be in ERR first.
    under_way: bool,
    /// The QP may be moved there.
    may_move: bool,
}

/// What a QP's state means for windows with a request outstanding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fenced {
    /// In ERR: nothing is executed any more.
    InErr,
    /// In a state in which it has no requests, or it no longer exists.
    Idle,
    /// It may still execute.
    No,
}

/// Whether the QP was moved to ERR just now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    No,
    /// The driver says that it did; where the QP is it does not say.
    Claimed,
    Seen,
}

impl Context {
    /// Puts a window in line for deallocation. The peer's lock is held.
    pub fn to_deallocate(&self, index: u32, body: &mut PeerBody, window_index: u32, may_move: bool) {
        let window = self.windows.at(window_index);
        // What the application may still post for it is taken up at the commit or abort.
        if window.state() == State::Deallocating || window.prepared.load(Ordering::Relaxed) {
            return;
        }
        let under_way = window.posted.load(Ordering::Relaxed) > 0;
        window.set_state(State::Deallocating);
        body.fence.push(Fence { window: window_index, under_way, may_move });
        if !body.fencing && body.fence.len() == 1 {
            self.to_fence.lock().push_back(index);
            self.raise();
        }
    }

    /// Deallocates what is in line, and keeps the deadlines of others meanwhile: it may be much. Kernel
    /// calls; no lock may be held, for it calls back.
    pub fn run_fences(&self) {
        while self.run_fence() {
            self.keep_up();
        }
    }

    /// The same for whoever is to return soon: what takes longer is the next tick's.
    pub fn run_fences_a_while(&self) {
        let until = now_ns() + PIECE_NS;
        while self.run_fence() {
            self.keep_up();
            if now_ns() >= until {
                break;
            }
        }
    }

    /// What need not wait for the rest of the deallocations.
    fn keep_up(&self) {
        if !self.keep_deadlines() {
            self.run_callbacks();
        }
    }

    /// Ends what is due, but for the deallocations that follow. Says whether there was anything.
    pub fn keep_deadlines(&self) -> bool {
        let due = self.is_due();
        if due {
            self.expire_due();
            self.run_callbacks();
        }
        due
    }

    /// Deallocates for so long as a deadline can wait, and says whether there was anything. Kernel calls;
    /// no lock may be held.
    pub fn run_fence(&self) -> bool {
        let Some(index) = ({ self.to_fence.lock().pop_front() }) else { return false };
        self.fence_peer(index);
        true
    }

    fn fence_peer(&self, index: u32) {
        let peer = self.peers.at(index);
        let (batch, qp) = {
            let mut body = peer.body.lock();
            if body.fencing || body.fence.is_empty() {
                return;
            }
            body.fencing = true;
            let qp = if body.life == Life::Gone { None } else { body.qp };
            (std::mem::take(&mut body.fence), qp)
        };
        let must_stop = batch.iter().any(|fence| fence.under_way && fence.may_move);
        let (fenced, moved) = match qp {
            None => (Fenced::Idle, Moved::No),
            Some(qp) => self.fence_qp(qp, must_stop),
        };
        let mut outcomes: Vec<(u32, std::result::Result<(), Errno>)> = Vec::with_capacity(batch.len());
        let until = now_ns() + PIECE_NS;
        for Fence { window, under_way, .. } in &batch {
            if !outcomes.is_empty() && now_ns() >= until {
                break;
            }
            let result = if *under_way && fenced == Fenced::No {
                Err(Errno(libc::EBUSY))
            } else if self.windows.at(*window).mw.load(Ordering::Acquire).is_null() {
                // Deallocated before, and not trusted then.
                Ok(())
            } else {
                self.dealloc_object(*window)
            };
            outcomes.push((*window, result));
        }
        let claims = moved == Moved::Claimed || outcomes.iter().any(|(_, result)| result.is_ok());
        let trusted = !claims || self.kernel_still_answers(index);
        let killed = moved == Moved::Seen || moved == Moved::Claimed && trusted;
        if killed {
            self.tell_killed(index);
        }
        let proof = if fenced == Fenced::InErr { Proof::QpFenced } else { Proof::Deallocated };
        let mut body = peer.body.lock();
        body.fence.splice(0..0, batch[outcomes.len()..].iter().copied());
        let found_dead = fenced == Fenced::InErr && moved == Moved::No;
        if killed {
            // The application has heard of it: no event says so again.
            body.told_dead = true;
        } else if found_dead && body.life != Life::Gone {
            // Before the ends that follow. A deadline may have given it up before it was found so.
            self.tell_dead(index, &mut body);
        }
        for (window, result) in outcomes {
            match result {
                Ok(()) if trusted => {
                    self.windows.at(window).posted.store(0, Ordering::Relaxed);
                    self.close_window(index, &mut body, window, proof, Left::Deallocated);
                }
                Ok(()) => self.report_open(window, libc::EIO),
                Err(error) => self.report_open(window, error.0),
            }
        }
        if (killed || found_dead) && matches!(body.life, Life::Live | Life::Connecting) {
            self.peer_lost(index, &mut body, Life::Dead);
        }
        let lives = must_stop && fenced == Fenced::No || moved == Moved::Claimed && !trusted;
        if lives && body.life == Life::Dead {
            // It could not be moved, or that was made up: it is to be asked before it is used again.
            body.life = Life::Live;
            body.suspect = true;
        }
        body.fencing = false;
        if !body.fence.is_empty() {
            self.to_fence.lock().push_back(index);
            self.raise();
        }
    }

    /// Finds out whether the QP still executes; if it must not, moves it to ERR.
    fn fence_qp(&self, qp: Qp, must_stop: bool) -> (Fenced, Moved) {
        match qp.query().map(|facts| facts.state) {
            Ok(verbs::IBV_QPS_ERR) => return (Fenced::InErr, Moved::No),
            Ok(verbs::IBV_QPS_RESET | verbs::IBV_QPS_INIT) => return (Fenced::Idle, Moved::No),
            _ if !must_stop || qp.move_to_err().is_err() => return (Fenced::No, Moved::No),
            _ => {}
        }
        // It may be made up: windows with a request outstanding are touched only if it isn't.
        match qp.query().map(|facts| facts.state) {
            Ok(verbs::IBV_QPS_ERR) => (Fenced::InErr, Moved::Seen),
            Err(_) if !self.fatal.load(Ordering::Acquire) => (Fenced::InErr, Moved::Claimed),
            _ => (Fenced::No, Moved::No),
        }
    }

    fn tell_killed(&self, index: u32) {
        count(&self.counters.peers_killed);
        let qp_num = self.peers.at(index).qp_num.load(Ordering::Acquire);
        self.event(Event { kind: EventKind::PeerKilled, qp_num, peer: self.peer_id(index), grant: 0 });
    }

    /// After a fatal event some drivers report success for destroying keys that live on; creating
    /// one is refused then. A window that can be allocated shows that the kernel still answers.
    fn kernel_still_answers(&self, peer: u32) -> bool {
        let domain = self.peers.at(peer).domain.load(Ordering::Acquire);
        match self.adopt_window(domain) {
            Ok(()) => true,
            // Full, which is an answer as well.
            Err(Status::DeviceLimit) => !self.fatal.load(Ordering::Acquire),
            Err(_) => false,
        }
    }

    /// A right that may still be usable: its window and memory stay out of use until a later
    /// revocation proves it gone. The peer's lock is held.
    fn report_open(&self, window_index: u32, error: i32) {
        let window = self.windows.at(window_index);
        window.set_state(State::Uncertain);
        self.mark_uncertain(window_index);
        // Its key may still work: let it be found, unless the device has given the number away.
        let number = window.device_rkey.load(Ordering::Acquire) >> 8;
        if self.rkeys.get(number).is_none() {
            self.rkeys.set(number, Some(window_index));
        }
        let grant = self.make_id(id::Kind::Grant, window_index, window.right().generation);
        let outcome = Outcome { error, ..Outcome::failed(grant, Status::Open) };
        self.end_revocations(window.swap_revoke_waiter(None), outcome);
        self.log(Severity::Error, format_args!("grant {grant:#x} could not be proved gone: errno {error}"));
    }

    /// Ends the operations whose deadline has passed, all deallocations included: not where one that waits
    /// is to return in time.
    pub fn expire_all(&self) {
        self.expire_due();
        // Last: what needs no kernel call waits for none.
        self.run_fences();
    }

    /// The same, but for the deallocations.
    fn expire_due(&self) {
        let now = now_ns();
        let mut due = Vec::new();
        let mut look = false;
        {
            let _nobody_looks = self.looking.lock();
            self.next_deadline.store(u64::MAX, Ordering::SeqCst);
            for index in 0..self.ops.len() as u32 {
                let body = self.ops.at(index).body.lock();
                if body.phase != Phase::Active {
                    continue;
                }
                if body.deadline <= now {
                    due.push(index);
                } else {
                    look |= body.wants_look(now);
                    self.next_deadline.fetch_min(body.next_due(now), Ordering::SeqCst);
                }
            }
        }
        if look {
            self.raise_fd();
        }
        for index in &due {
            self.expire_items(*index);
        }
    }

    /// The earliest deadline of an operation under way, for whoever sleeps until then.
    pub fn next_due(&self) -> u64 {
        let _not_while_it_is_made_anew = self.looking.lock();
        self.next_deadline.load(Ordering::Acquire)
    }

    /// Ends what an operation has left open; its own clients' windows come first.
    pub fn expire(&self, index: u32) {
        self.expire_items(index);
        let op = self.ops.at(index);
        let mut at = 0;
        while let Some(peer) = op.peer(at).filter(|_| !op.is_done()) {
            self.fence_peer(peer);
            self.keep_deadlines();
            at += 1;
        }
    }

    /// Climbs the ladder for each item that is open, but for the kernel calls.
    fn expire_items(&self, index: u32) {
        let (items, generation, kill, queues, deadline) = {
            let body = self.ops.at(index).body.lock();
            if body.phase != Phase::Active || body.deadline > now_ns() {
                return;
            }
            let open = body.items.iter().enumerate().filter(|(_, item)| !item.done);
            let items: Vec<_> = open.map(|(at, item)| (at as u32, item.window, item.generation)).collect();
            (items, body.generation(), body.kill, body.queues.clone(), body.deadline)
        };
        // What has completed by now is no reason for anything. Nothing is posted behind it: that could not
        // complete in time, and would cost the QP.
        for queue in queues {
            self.clear_for_us(queue);
        }
        let op = OpId { index, generation };
        for (item, window, generation) in items {
            self.expire_item(Waiter { op, item }, window, generation, kill, deadline);
        }
    }

    fn expire_item(&self, waiter: Waiter, window_index: u32, generation: u32, kill: Kill, deadline: u64) {
        if window_index == NONE {
            // The second half of a transfer, whose turn did not come in time.
            let follows = self.op(waiter.op).end_unplaced(waiter.op.generation, waiter.item);
            self.follow(waiter.op, follows);
            return;
        }
        if broken("ladder") {
            let grant = self.make_id(id::Kind::Grant, window_index, generation);
            self.end_item(waiter, Outcome::failed(grant, Status::Open));
            return;
        }
        let window = self.windows.at(window_index);
        let index = window.peer();
        let Some(peer) = self.peers.get(index) else { return };
        let mut body = peer.body.lock();
        let right = window.right();
        if right.generation != generation || right.peer != index {
            return;
        }
        if window.bind_waiter() == Some(waiter) {
            self.expire_bind(index, &mut body, window_index, deadline);
            return;
        }
        if self.waiter_of(window_index, waiter.op) != Some(waiter) {
            return;
        }
        // Once known that is not found out again for each of many.
        let overdue = !(kill == Kill::Never && body.stuck) && self.is_overdue(&body, window_index, deadline);
        let may_move = kill == Kill::Always || kill == Kill::IfPolled && overdue;
        // A queue pair that is in error already needs nobody's leave: asked once for each deadline.
        if body.suspect || !may_move && std::mem::replace(&mut body.asked_at, deadline) != deadline {
            let _ = self.refresh(index, &mut body);
            if window.right().generation != generation {
                return;
            }
        }
        let under_way = window.posted.load(Ordering::Relaxed) > 0;
        let in_hand = window.prepared.load(Ordering::Relaxed);
        // Its LOCAL_INV was refused, and no completion of its bind will bring another.
        let stranded = window.state() == State::Binding
            && under_way
            && !window.invalidate.load(Ordering::Relaxed)
            && !self.is_told_of(&body, window_index);
        match window.state() {
            State::Deallocating => {}
            State::Binding if !under_way && !in_hand => {
                self.never_bound(index, &mut body, window_index, Outcome::failed(0, Status::TimedOut));
            }
            State::Revoking if !under_way => {
                self.to_deallocate(index, &mut body, window_index, false);
            }
            _ if !in_hand && (may_move || kill == Kill::IfPolled && stranded) => {
                if body.life != Life::Gone {
                    body.life = Life::Dead;
                }
                self.peer_lost(index, &mut body, Life::Dead);
                if window.right().generation == generation {
                    self.to_deallocate(index, &mut body, window_index, true);
                }
            }
            _ => {
                body.stuck |= overdue;
                self.mark_uncertain(window_index);
                self.unlink(window_index, waiter);
                let grant = self.make_id(id::Kind::Grant, window_index, generation);
                self.end_item(waiter, Outcome::failed(grant, Status::Open));
                let why = match (in_hand, overdue || stranded) {
                    (true, _) => "its request is in a chain that was neither committed nor aborted",
                    (_, true) => "its request did not complete, and the queue pair may not be moved to ERR",
                    _ => "nobody has seen the completion queue empty in the second half of the time",
                };
                let qp_num = self.peers.at(index).qp_num.load(Ordering::Acquire);
                let text = format_args!("grant {grant:#x} of QP {qp_num:#x} is open at its deadline: {why}");
                self.log(Severity::Warning, text);
            }
        }
    }

    /// A right that was reported as not proved gone: its memory is not granted again before it is.
    fn mark_uncertain(&self, window_index: u32) {
        let window = self.windows.at(window_index);
        if !window.uncertain.swap(true, Ordering::Relaxed) {
            self.regions.at(window.right().region).uncertain.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn expire_bind(&self, index: u32, body: &mut PeerBody, window_index: u32, deadline: u64) {
        let window = self.windows.at(window_index);
        if window.posted.load(Ordering::Relaxed) == 0 {
            self.never_bound(index, body, window_index, Outcome::failed(0, Status::TimedOut));
            return;
        }
        body.stuck = body.stuck || self.is_overdue(body, window_index, deadline);
        if let Some(waiter) = window.take_bind_waiter() {
            let grant = self.make_id(id::Kind::Grant, window_index, window.right().generation);
            self.end_item(waiter, Outcome::failed(grant, Status::TimedOut));
        }
    }

    /// Whether a request for the window is outstanding although all completions that were there when it
    /// had had its time have been looked at. That is half of what there was until the deadline: it may
    /// have completed since an earlier look. Chains are in the order of their posts.
    fn is_overdue(&self, body: &PeerBody, window: u32, deadline: u64) -> bool {
        let queue = self.queues.at(body.send_queue);
        let time = |posted_at: u64| match broken("patience") {
            true => 0,
            false => LEAST_NS.max(deadline.saturating_sub(posted_at) / 2),
        };
        let mut carried = false;
        for slot in &body.outstanding {
            let state = self.chains.at(*slot).body.lock();
            if !queue.was_cleared_since(state.posted_at + time(state.posted_at)) {
                return false;
            }
            let carries = state.carries(window);
            carried |= carries;
            // What was posted behind that changes nothing.
            if carries && state.is_due() || carried && state.tells_of_others() {
                return true;
            }
        }
        false
    }

    /// Whether a completion will tell of a request for the window: that of the chain that it is in, or of
    /// one behind it.
    fn is_told_of(&self, body: &PeerBody, window: u32) -> bool {
        let mut carried = false;
        body.outstanding.iter().any(|slot| {
            let state = self.chains.at(*slot).body.lock();
            let carries = state.carries(window);
            carried |= carries;
            carries && state.is_due() || carried && state.tells_of_others()
        })
    }

    /// The revocation of this operation that waits for the window.
    pub fn waiter_of(&self, window: u32, op: OpId) -> Option<Waiter> {
        let mut next = self.windows.at(window).revoke_waiter();
        while let Some(at) = next {
            if at.op == op {
                return Some(at);
            }
            next = self.op(at.op).behind(at.op.generation, at.item);
        }
        None
    }

    /// Takes one revocation out of those that wait for the window. The peer's lock is held.
    pub fn unlink(&self, window_index: u32, waiter: Waiter) {
        let window = self.windows.at(window_index);
        let behind = self.op(waiter.op).behind(waiter.op.generation, waiter.item);
        let Some(first) = window.revoke_waiter() else { return };
        if first == waiter {
            window.swap_revoke_waiter(behind);
            return;
        }
        let mut at = first;
        while let Some(next) = self.op(at.op).behind(at.op.generation, at.item) {
            if next == waiter {
                self.op(at.op).swap_behind(at.op.generation, at.item, behind);
                return;
            }
            at = next;
        }
    }
}
