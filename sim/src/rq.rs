//! Receive queues: a queue pair's own, and the responder's state beside it.

use crate::counters;
use crate::cq::{Cqe, Slot};
use crate::engine::Work;
use crate::misuse::{self, Rule};
use crate::object::Object;
use crate::qp::Qp;
use crate::scatter::Sge;
use libc::c_int;
use std::sync::atomic::Ordering::*;
use verbs::*;

/// Requesters that wait for this queue to have a receive, or for its QP to be ready.
#[derive(Default)]
pub struct Waiters(Vec<(&'static Qp, u32)>);

impl Waiters {
    /// Each QP waits in one place at most, and is in the list once.
    pub fn add(&mut self, qp: &'static Qp) -> bool {
        if qp.waits.swap(true, AcqRel) {
            return false;
        }
        self.0.push((qp, qp.live().id()));
        true
    }

    pub fn kick_all(&mut self, work: &mut Work) {
        for (qp, id) in self.0.drain(..) {
            qp.waits.store(false, Release);
            work.kick(qp, id);
        }
    }

    pub fn remove(&mut self, qp: &Qp) {
        self.0.retain(|(q, _)| !std::ptr::eq(*q, qp));
    }
}

/// A ring of posted receives. Its entries are copied out when they are consumed, so that only
/// the count of those not yet polled limits it.
#[derive(Default)]
pub struct Ring {
    entries: Vec<(u64, u32)>,
    sges: Vec<Sge>,
    capacity: u64,
    pub max_sge: u32,
    head: u64,
    tail: u64,
}

impl Ring {
    pub fn new(capacity: u32, max_sge: u32) -> Self {
        Self {
            entries: Vec::with_capacity(capacity as usize),
            sges: Vec::with_capacity(capacity as usize * max_sge as usize),
            capacity: u64::from(capacity),
            max_sge,
            head: 0,
            tail: 0,
        }
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    pub fn tail(&self) -> u64 {
        self.tail
    }

    pub fn len(&self) -> u64 {
        self.tail - self.head
    }

    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Appends a receive. The caller has seen that there is room.
    ///
    /// # Safety
    /// `wr.sg_list` has `num_sge` elements, and those are no more than `max_sge`.
    pub unsafe fn push(&mut self, wr: &ibv_recv_wr) {
        let slot = (self.tail % self.capacity) as usize;
        let width = self.max_sge as usize;
        if slot == self.entries.len() {
            self.entries.push((0, 0));
            self.sges.resize((slot + 1) * width, Sge::default());
        }
        self.entries[slot] = (wr.wr_id, wr.num_sge as u32);
        for i in 0..wr.num_sge as usize {
            // SAFETY: by the contract.
            let s = unsafe { &*wr.sg_list.add(i) };
            self.sges[slot * width + i] = Sge { addr: s.addr, length: s.length, lkey: s.lkey };
        }
        self.tail += 1;
    }

    /// Takes the oldest receive: its wr_id and running number. Its list goes to `sges`.
    pub fn pop(&mut self, sges: &mut Vec<Sge>) -> Option<(u64, u64)> {
        if self.is_empty() {
            return None;
        }
        let slot = (self.head % self.capacity) as usize;
        let (wr_id, n) = self.entries[slot];
        let from = slot * self.max_sge as usize;
        sges.clear();
        sges.extend_from_slice(&self.sges[from..from + n as usize]);
        self.head += 1;
        Some((wr_id, self.head - 1))
    }
}

/// Checks a list of receives one by one and hands them to `push`; stops at the first bad one, as
/// verbs defines it.
///
/// # Safety
/// `wr` is a list of receives, `bad` writable.
pub unsafe fn each_receive(
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    mut push: impl FnMut(&ibv_recv_wr) -> Result<(), c_int>,
) -> Result<(), c_int> {
    while !wr.is_null() {
        if let Err(e) = push(unsafe { &*wr }) {
            unsafe { *bad = wr };
            return Err(e);
        }
        counters::bump(counters::RECV_WRS);
        wr = unsafe { (*wr).next };
    }
    Ok(())
}

/// The receive that a message is going into.
pub struct Current {
    pub wr_id: u64,
    pub slot: Slot,
    pub room: u64,
    pub filled: u64,
}

/// The responder's half of a queue pair.
#[derive(Default)]
pub struct Rq {
    pub ring: Ring,
    pub current: Option<Current>,
    pub sges: Vec<Sge>,
    pub waiters: Waiters,
    /// Remote rights that the QP grants at all, whatever a key says.
    pub access: u32,
    /// The queue pair that it is connected to.
    pub peer: u32,
    /// The next packet's number.
    pub psn: u32,
    pub rnr_timer: u8,
    pub max_rd_atomic: u8,
    /// A packet arrived since the QP became ready.
    pub established: bool,
}

impl Rq {
    /// Whether a message could be received, without taking a receive.
    pub fn has_receive(&self, qp: &Qp) -> bool {
        self.current.is_some()
            || match qp.srq.get() {
                Some(srq) => srq.has_receive(),
                None => !self.ring.is_empty(),
            }
    }

    /// Takes a receive for the message that begins. False: the receiver is not ready.
    pub fn take_receive(&mut self, qp: &Qp) -> bool {
        let taken = match qp.srq.get() {
            Some(srq) => srq.take(&mut self.sges).map(|wr_id| (wr_id, Slot::SharedReceive)),
            None => self.ring.pop(&mut self.sges).map(|(wr_id, n)| (wr_id, Slot::Receive(n))),
        };
        let Some((wr_id, slot)) = taken else {
            return false;
        };
        self.current = Some(Current {
            wr_id,
            slot,
            room: self.sges.iter().map(|s| u64::from(s.length)).sum(),
            filled: 0,
        });
        true
    }

    /// Makes `from` wait until there is a receive. True if it did not wait there already.
    pub fn wait_for_receive(&mut self, qp: &'static Qp, from: &'static Qp, work: &mut Work) -> bool {
        match qp.srq.get() {
            Some(srq) => srq.wait(from, work),
            None => self.waiters.add(from),
        }
    }

    /// Completes the current receive.
    pub fn complete(&mut self, qp: &'static Qp, status: u32, fill: impl FnOnce(&mut Cqe), work: &mut Work) {
        if let Some(current) = self.current.take() {
            let mut cqe = Cqe::new(qp, current.wr_id, status, IBV_WC_RECV, current.slot);
            cqe.byte_len = current.filled as u32;
            fill(&mut cqe);
            qp.deliver(cqe, work);
        }
    }

    /// The QP is in error: every receive is completed as flushed.
    pub fn flush(&mut self, qp: &'static Qp, work: &mut Work) {
        self.complete(qp, IBV_WC_WR_FLUSH_ERR, |_| {}, work);
        let mut sges = std::mem::take(&mut self.sges);
        while let Some((wr_id, n)) = self.ring.pop(&mut sges) {
            let slot = Slot::Receive(n);
            let cqe = Cqe::new(qp, wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, slot);
            qp.deliver(cqe, work);
        }
        self.sges = sges;
        self.kick_waiters(qp, work);
    }

    fn kick_waiters(&mut self, qp: &Qp, work: &mut Work) {
        self.waiters.kick_all(work);
        if let Some(srq) = qp.srq.get() {
            srq.kick_waiters(work);
        }
    }

    /// Forgets everything posted, without completions.
    pub fn discard(&mut self, qp: &Qp, work: &mut Work) {
        if let Some(current) = self.current.take() {
            qp.give_slot_back(current.slot);
        }
        self.ring.head = self.ring.tail;
        qp.rq_slots.restart(self.ring.tail);
        self.established = false;
        self.kick_waiters(qp, work);
    }
}

/// Posts receives on a queue pair's own queue.
///
/// # Safety
/// `wr` is a list of receives, `bad` writable.
pub unsafe fn post(
    qp: &'static Qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    work: &mut Work,
) -> Result<(), c_int> {
    let mut rq = qp.rq.lock();
    let state = qp.state();
    if !crate::state::takes_receives(state) || qp.srq.get().is_some() {
        unsafe { *bad = wr };
        return Err(libc::EINVAL);
    }
    let ring = &mut rq.ring;
    let pushed = |wr: &ibv_recv_wr| {
        if wr.num_sge < 0 || wr.num_sge as u32 > ring.max_sge {
            return Err(libc::EINVAL);
        }
        if qp.rq_slots.taken(ring.tail) >= ring.capacity {
            misuse::report(
                Rule::RqOverflow,
                qp.number(),
                0,
                format_args!("a receive was posted to a full queue of {}", ring.capacity),
            );
            return Err(libc::ENOMEM);
        }
        // SAFETY: the caller's work request, its number of elements checked above.
        unsafe { ring.push(wr) };
        Ok(())
    };
    let r = unsafe { each_receive(wr, bad, pushed) };
    // Read again: the QP may have gone to error since, and its flush waits for this lock.
    if qp.state() == IBV_QPS_ERR {
        if qp.promises_flushes() {
            rq.flush(qp, work);
        } else if state == IBV_QPS_ERR {
            rq.ring.head = rq.ring.tail;
        }
    } else {
        rq.waiters.kick_all(work);
    }
    r
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(wr_id: u64, sge: &mut ibv_sge) -> ibv_recv_wr {
        ibv_recv_wr { wr_id, next: std::ptr::null_mut(), sg_list: sge, num_sge: 1 }
    }

    #[test]
    fn the_ring_turns() {
        let mut ring = Ring::new(2, 1);
        let mut sges = Vec::new();
        let mut sge = ibv_sge { addr: 0, length: 4, lkey: 9 };
        for i in 0..7u64 {
            sge.addr = 100 + i;
            unsafe { ring.push(&receive(i, &mut sge)) };
            assert_eq!(ring.len(), 1);
            assert_eq!(ring.pop(&mut sges), Some((i, i)));
            assert_eq!(sges.len(), 1);
            assert_eq!((sges[0].addr, sges[0].lkey), (100 + i, 9));
        }
        assert_eq!(ring.pop(&mut sges), None);
    }
}
