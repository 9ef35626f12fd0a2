//! Runs send queues.
//!
//! A queue is run by whoever makes it runnable: the thread that posts to it, that posts the
//! receive it waits for, or that releases the fault which stops it. A thread that finds the
//! queue being run by another leaves the work to that one. So a single-threaded program is
//! deterministic, and threads that use different queue pairs run side by side.
//!
//! Nobody waits for a queue's execution while running another one: what a work request sets in
//! motion elsewhere (an error at the peer, a requester that can go on) is noted in `Work` and
//! done when the own execution is given up.

use crate::async_event;
use crate::counters;
use crate::cq::{Cqe, Slot};
use crate::fault::{self, Fault};
use crate::held;
use crate::model::{self, Profile};
use crate::mw::{self, Outcome};
use crate::object::Object;
use crate::qp::Qp;
use crate::rq::Rq;
use crate::scatter::Pieces;
use crate::sq::Wqe;
use crate::srq::Srq;
use crate::state;
use crate::timer;
use crate::transmit;
use std::sync::atomic::Ordering::*;
use verbs::*;

/// What is to be done once no execution is held.
pub struct Work {
    kicks: Vec<(&'static Qp, u32)>,
    kills: Vec<&'static Qp>,
}

impl Work {
    pub fn new() -> Self {
        Self { kicks: Vec::new(), kills: Vec::new() }
    }

    /// The QP's queue may have something to run.
    pub fn kick(&mut self, qp: &'static Qp, id: u32) {
        self.kicks.push((qp, id));
    }

    /// The QP is to go to the error state, as after a fatal error.
    pub fn kill(&mut self, qp: &'static Qp) {
        self.kills.push(qp);
    }

    /// Does it all. The caller holds no lock.
    pub fn finish(&mut self) {
        loop {
            if let Some(qp) = self.kills.pop() {
                if qp.fail(self) {
                    async_event::raise_qp(qp, IBV_EVENT_QP_FATAL);
                }
            } else if let Some((qp, id)) = self.kicks.pop() {
                if qp.live().id() == id {
                    run(qp, self);
                }
            } else {
                return;
            }
        }
    }
}

/// A step that is so much behind the latency model's clock was held up by something else.
const STUCK_NS: u64 = 1_000_000;

/// Where a requester waits for its peer.
#[derive(Clone, Copy)]
pub enum Room {
    Queue(&'static Qp),
    Shared(&'static Srq),
}

/// The execution of a send queue: where it is, and the requester's side of the connection.
#[derive(Default)]
pub struct Exec {
    /// The work request that is run, or is next.
    pub next: u64,
    pub current: Option<Wqe>,
    /// Bytes of it that have left.
    pub sent: u64,
    /// Its last packet has left.
    pub all_sent: bool,
    /// Its window is closed and waits for packets under way.
    pub closing: bool,
    /// What its last packet does beside placing its bytes is done.
    pub ended: bool,
    /// The held packet that has to be placed first.
    pub held: u64,
    /// The fault that stalls the queue.
    stalled: u64,
    /// When waiting for the peer ends in an error; 0: it does not, or has not begun.
    pub deadline: u64,
    pub room: Option<Room>,
    /// The end of the last step, by the latency model, and whether the next is charged already.
    clock: u64,
    charged: bool,
    /// For which of these the timer was set.
    timer: u64,
    /// Completions were made up to here.
    completed: u64,

    pub dest: u32,
    /// The destination's GID is this device's.
    pub dest_is_ours: bool,
    pub mtu: u64,
    pub psn: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub max_rd_atomic: u8,

    pub from: Pieces,
    pub to: Pieces,
}

/// How far a work request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Done(u32),
    /// It goes on when the queue is kicked.
    Parked,
    /// The queue pair's state changed.
    Interrupted,
}

impl Exec {
    /// Whether the next step's time has come; if not, the queue is kicked when it has.
    pub fn due(&mut self, qp: &'static Qp, cost: u64, not_before: u64) -> bool {
        if !model::timed() {
            self.charged = false;
            return true;
        }
        let now = timer::now();
        if !self.charged {
            let mut start = self.clock.max(not_before);
            // Small delays are caught up with; a queue that was stuck starts afresh.
            if now.saturating_sub(start) > STUCK_NS {
                start = now;
            }
            self.clock = start + cost;
            self.charged = true;
        }
        if now >= self.clock {
            self.charged = false;
            return true;
        }
        self.set_timer(qp);
        false
    }

    /// Every kick before the time asks for it, and one timer is enough.
    fn set_timer(&mut self, qp: &'static Qp) {
        if self.timer != self.clock {
            self.timer = self.clock;
            timer::at(self.clock, qp, qp.live().id());
        }
    }

    /// The execution of this QP is given up for good, or begins anew: nothing posted is left.
    pub fn discard(&mut self, qp: &'static Qp) {
        let sq = qp.sq.lock();
        if let Some(wqe) = self.current.take() {
            wqe.settle();
            self.next += 1;
        }
        for n in self.next..sq.tail() {
            if let Some(wqe) = sq.get(n) {
                wqe.settle();
            }
        }
        self.next = sq.tail();
        self.completed = self.next;
        qp.sq_slots.restart(self.next);
        drop(sq);
        self.leave_room(qp);
        self.forget_progress();
        self.stalled = 0;
    }

    fn forget_progress(&mut self) {
        self.sent = 0;
        self.all_sent = false;
        self.closing = false;
        self.ended = false;
        self.held = 0;
        self.deadline = 0;
        self.charged = false;
    }

    fn leave_room(&mut self, qp: &'static Qp) {
        match self.room.take() {
            Some(Room::Queue(peer)) => peer.rq.lock().waiters.remove(qp),
            Some(Room::Shared(srq)) => srq.leave(qp),
            None => return,
        }
        qp.waits.store(false, Release);
    }

    /// Waits for the peer: for ever, or until `limit` nanoseconds have passed since the first
    /// attempt, after which the work request fails with `status`.
    pub fn wait_for_peer(&mut self, qp: &'static Qp, limit: Option<u64>, status: u32) -> Step {
        let Some(limit) = limit else {
            return Step::Parked;
        };
        let now = timer::now();
        if self.deadline == 0 {
            self.deadline = now + limit;
            if limit != 0 {
                timer::at(self.deadline, qp, qp.live().id());
            }
        }
        if now >= self.deadline {
            return Step::Done(status);
        }
        Step::Parked
    }
}

/// Runs a send queue as far as it goes.
pub fn run(qp: &'static Qp, work: &mut Work) {
    qp.pending.store(true, SeqCst);
    // Whoever runs the queue looks at `pending` again after letting go of it, so what is posted
    // meanwhile by a thread that found it taken is not left behind.
    while qp.pending.load(SeqCst) {
        let Some(mut x) = qp.exec.try_lock() else {
            return;
        };
        while qp.pending.swap(false, SeqCst) {
            process(qp, &mut x, work);
        }
    }
}

fn process(qp: &'static Qp, x: &mut Exec, work: &mut Work) {
    loop {
        match qp.state() {
            IBV_QPS_RTS => {}
            IBV_QPS_SQD if x.current.is_some() => {}
            IBV_QPS_SQD => return tell_drained(qp),
            IBV_QPS_ERR => return flush(qp, x, work),
            _ => return,
        }
        if x.current.is_none() && !begin(qp, x) {
            return;
        }
        let Some(wqe) = x.current else { return };
        let step = match wqe.fail_with {
            Some(status) => Step::Done(status),
            None => execute(qp, x, &wqe, work),
        };
        match step {
            Step::Parked => return,
            Step::Interrupted => {}
            Step::Done(status) => complete(qp, x, &wqe, status, work),
        }
    }
}

/// Starts the next work request, if there is one and nothing stops the queue.
fn begin(qp: &'static Qp, x: &mut Exec) -> bool {
    let Some(wqe) = qp.fetch(x.next) else {
        return false;
    };
    if x.stalled != 0 {
        if fault::holds(x.stalled) {
            return false;
        }
        x.stalled = 0;
    } else if let Some(hit) = fault::strike(Fault::StallSq, &[qp.number()]) {
        x.stalled = hit.id;
        held::keep_queue(hit.id, qp);
        if fault::holds(hit.id) {
            return false;
        }
        x.stalled = 0;
    }
    if !x.due(qp, model::wr_ns(), wqe.not_before) {
        return false;
    }
    x.forget_progress();
    x.current = Some(wqe);
    true
}

fn execute(qp: &'static Qp, x: &mut Exec, wqe: &Wqe, work: &mut Work) -> Step {
    match wqe.opcode {
        IBV_WR_BIND_MW => {
            let Some(bind) = wqe.bind else {
                return Step::Done(IBV_WC_LOC_QP_OP_ERR);
            };
            match bind.run(qp) {
                Outcome::Done => Step::Done(IBV_WC_SUCCESS),
                Outcome::Wait => Step::Parked,
                Outcome::Failed => Step::Done(IBV_WC_MW_BIND_ERR),
            }
        }
        IBV_WR_LOCAL_INV => match mw::invalidate(wqe.imm, qp, x.closing, qp) {
            Outcome::Done => Step::Done(IBV_WC_SUCCESS),
            Outcome::Wait => {
                x.closing = true;
                Step::Parked
            }
            Outcome::Failed => Step::Done(match qp.context().profile {
                Profile::Rxe => IBV_WC_LOC_QP_OP_ERR,
                _ => IBV_WC_MW_BIND_ERR,
            }),
        },
        _ => transmit::run(qp, x, wqe, work),
    }
}

fn wc_opcode(opcode: u32) -> u32 {
    match opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => IBV_WC_RDMA_WRITE,
        IBV_WR_RDMA_READ => IBV_WC_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP => IBV_WC_COMP_SWAP,
        IBV_WR_ATOMIC_FETCH_AND_ADD => IBV_WC_FETCH_ADD,
        IBV_WR_LOCAL_INV => IBV_WC_LOCAL_INV,
        IBV_WR_BIND_MW => IBV_WC_BIND_MW,
        _ => IBV_WC_SEND,
    }
}

/// Completes the current work request.
fn complete(qp: &'static Qp, x: &mut Exec, wqe: &Wqe, status: u32, work: &mut Work) {
    // Whoever polls the error finds the queue pair in error, and the flushed ones behind it.
    let newly_failed = status != IBV_WC_SUCCESS && qp.enter_error();
    let profile = qp.context().profile;
    let failed_bind = status != IBV_WC_SUCCESS && wqe.opcode == IBV_WR_BIND_MW;
    // mlx5 says nothing of a failed bind that was not signaled.
    let told = match profile {
        Profile::Mlx5 if failed_bind => wqe.signaled,
        _ => wqe.signaled || status != IBV_WC_SUCCESS,
    };
    finish(qp, x, wqe, told.then_some(status), work);
    if newly_failed {
        qp.flush_receives(&mut qp.rq.lock(), work);
    }
}

/// Takes the current work request out of the queue.
fn finish(qp: &'static Qp, x: &mut Exec, wqe: &Wqe, told: Option<u32>, work: &mut Work) {
    let number = x.next;
    wqe.settle();
    x.current = None;
    x.next += 1;
    x.leave_room(qp);
    x.forget_progress();
    let slots = x.next - x.completed;
    let slot = Slot::Send { number, slots };
    match told {
        Some(status) => {
            x.completed = x.next;
            let mut cqe = Cqe::new(qp, wqe.wr_id, status, wc_opcode(wqe.opcode), slot);
            if matches!(
                wqe.opcode,
                IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
            ) {
                cqe.byte_len = wqe.length as u32;
            }
            qp.deliver(cqe, work);
        }
        None if qp.frees_at_completion() => {
            x.completed = x.next;
            qp.give_slot_back(slot);
        }
        None => {}
    }
}

/// The queue pair is in error: every send is completed as flushed.
fn flush(qp: &'static Qp, x: &mut Exec, work: &mut Work) {
    if let Some(wqe) = x.current.filter(|w| w.opcode == IBV_WR_LOCAL_INV && x.closing) {
        // Its window is closed already: what is left is to see the last packets placed.
        match execute(qp, x, &wqe, work) {
            Step::Done(status) => complete(qp, x, &wqe, status, work),
            Step::Parked | Step::Interrupted => return,
        }
    }
    x.leave_room(qp);
    while let Some(wqe) = x.current.take().or_else(|| qp.fetch(x.next)) {
        let told = (!wqe.silent).then_some(IBV_WC_WR_FLUSH_ERR);
        finish(qp, x, &wqe, told, work);
    }
}

fn tell_drained(qp: &'static Qp) {
    if qp.tell_drained.swap(false, AcqRel) {
        async_event::raise_qp(qp, IBV_EVENT_SQ_DRAINED);
    }
}

/// How a responder answers a packet.
pub enum Answer {
    /// Placed, or executed.
    Ack,
    /// Admitted; placed when the fault that holds it is released.
    Held(u64),
    /// No receive: try again.
    NotReady(u8),
    /// No answer: nobody is there, or somebody who may not answer.
    Silence,
    /// No answer yet: the peer is being set up.
    NotYet,
    /// Refused; the peer is in error.
    Nak(u32),
    /// Something is wrong on this side: the packet was not sent.
    Local(u32),
    /// The peer waits for packets under way.
    Wait,
}

impl Answer {
    /// Refuses a packet as the standard says: the responder goes to error.
    pub fn refuse(status: u32, event: Option<u32>, peer: &'static Qp, rq: &mut Rq, work: &mut Work) -> Self {
        counters::bump(counters::PACKETS_DENIED);
        if peer.enter_error() {
            peer.flush_receives(rq, work);
        }
        // rdma_rxe raises no event for it.
        if let Some(event) = event.filter(|_| peer.context().profile != Profile::Rxe) {
            async_event::raise_qp(peer, event);
        }
        Answer::Nak(status)
    }

    /// What the answer means for the work request. None: go on with the next packet.
    pub fn into_step(self, qp: &'static Qp, x: &mut Exec) -> Option<Step> {
        Some(match self {
            Answer::Ack => {
                x.deadline = 0;
                return None;
            }
            Answer::Held(number) => {
                x.held = number;
                x.deadline = 0;
                return None;
            }
            Answer::NotReady(timer) => {
                let limit = match x.rnr_retry {
                    7 => None,
                    n => Some(u64::from(n) * state::rnr_timer_ns(timer)),
                };
                x.wait_for_peer(qp, limit, IBV_WC_RNR_RETRY_EXC_ERR)
            }
            Answer::NotYet => {
                let tries = u64::from(x.retry_cnt) + 1;
                let limit = state::timeout_ns(x.timeout).map(|t| t * tries);
                x.wait_for_peer(qp, limit, IBV_WC_RETRY_EXC_ERR)
            }
            Answer::Silence => Step::Done(IBV_WC_RETRY_EXC_ERR),
            Answer::Nak(status) | Answer::Local(status) => Step::Done(status),
            Answer::Wait => Step::Parked,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_is_kicked_too_early_asks_for_its_time_once() {
        let qp: &'static Qp = Box::leak(Box::new(Qp::fresh()));
        let mut exec = Exec { clock: timer::now() + 3_600_000_000_000, ..Exec::default() };
        for _ in 0..3 {
            exec.set_timer(qp);
        }
        assert_eq!(timer::planned(qp), 1);
        exec.clock += 1;
        exec.set_timer(qp);
        assert_eq!(timer::planned(qp), 2);
    }
}
