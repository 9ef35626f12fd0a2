//! Work requests that go to the peer: cut in packets at the path's MTU, each answered in turn.

use crate::counters;
use crate::engine::{Answer, Exec, Room, Step, Work};
use crate::fault::{self, Fault};
use crate::held;
use crate::limits::MAX_MSG;
use crate::model::{self, Profile};
use crate::mw::{self, Outcome};
use crate::object::Object;
use crate::qp::{self, Qp};
use crate::rq::Rq;
use crate::scatter::{self, Asker};
use crate::sq::Wqe;
use crate::state;
use parking_lot::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering::*};
use verbs::*;

const PSN_MASK: u32 = 0xff_ffff;

fn next_psn(psn: u32) -> u32 {
    (psn + 1) & PSN_MASK
}

fn is_send(opcode: u32) -> bool {
    matches!(opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV)
}

fn is_atomic(opcode: u32) -> bool {
    matches!(opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD)
}

/// Whether the message ends in something at the peer that only its last packet does.
fn has_ending(opcode: u32) -> bool {
    is_send(opcode) || opcode == IBV_WR_RDMA_WRITE_WITH_IMM
}

/// Runs a work request as far as it goes.
pub fn run(qp: &'static Qp, x: &mut Exec, wqe: &Wqe, work: &mut Work) -> Step {
    if let Some(status) = unsound(x, wqe) {
        return Step::Done(status);
    }
    while !x.all_sent {
        if !matches!(qp.state(), IBV_QPS_RTS | IBV_QPS_SQD) {
            return Step::Interrupted;
        }
        if is_held(qp, x) || !x.due(qp, model::packet_ns(), 0) {
            return Step::Parked;
        }
        let answer = packet(qp, x, wqe, work);
        x.from.release(work);
        x.to.release(work);
        if let Some(step) = answer.into_step(qp, x) {
            return step;
        }
    }
    if is_held(qp, x) {
        return Step::Parked;
    }
    if has_ending(wqe.opcode) && !x.ended {
        if !matches!(qp.state(), IBV_QPS_RTS | IBV_QPS_SQD) {
            return Step::Interrupted;
        }
        let answer = ending(qp, x, wqe, work);
        if let Some(step) = answer.into_step(qp, x) {
            return step;
        }
        x.ended = true;
    }
    // The acknowledgement's way back.
    if !x.due(qp, model::packet_ns(), 0) {
        return Step::Parked;
    }
    Step::Done(IBV_WC_SUCCESS)
}

fn is_held(qp: &Qp, x: &mut Exec) -> bool {
    if x.held != 0 && qp.placed.load(Acquire) < x.held {
        return true;
    }
    x.held = 0;
    false
}

/// A work request that cannot be sent at all.
fn unsound(x: &Exec, wqe: &Wqe) -> Option<u32> {
    if wqe.length > MAX_MSG || (is_atomic(wqe.opcode) && wqe.length != 8) {
        return Some(IBV_WC_LOC_LEN_ERR);
    }
    let reads = wqe.opcode == IBV_WR_RDMA_READ || is_atomic(wqe.opcode);
    (reads && x.max_rd_atomic == 0).then_some(IBV_WC_LOC_QP_OP_ERR)
}

/// The peer with its responder locked, or how it answers instead.
fn reach(qp: &'static Qp, x: &mut Exec) -> Result<(&'static Qp, MutexGuard<'static, Rq>), Answer> {
    let found = qp::find(x.dest).filter(|_| x.dest_is_ours);
    let peer = found.ok_or(Answer::Silence)?;
    let mut rq = peer.rq.lock();
    match peer.state() {
        // It may have become another queue pair before the lock was ours.
        _ if peer.number() != x.dest => Err(Answer::Silence),
        IBV_QPS_INIT => {
            rq.waiters.add(qp);
            x.room = Some(Room::Queue(peer));
            Err(Answer::NotYet)
        }
        s if !state::responds(s) => Err(Answer::Silence),
        // Its acknowledgements would go to somebody else.
        _ if rq.peer != qp.number() => Err(Answer::Silence),
        _ => Ok((peer, rq)),
    }
}

/// No receive: the requester waits at the queue that has none.
fn not_ready(qp: &'static Qp, x: &mut Exec, peer: &'static Qp, rq: &mut Rq, work: &mut Work) -> Answer {
    if rq.wait_for_receive(peer, qp, work) {
        counters::bump(counters::RNR_NAKS);
    }
    x.room = Some(match peer.srq.get() {
        Some(srq) => Room::Shared(srq),
        None => Room::Queue(peer),
    });
    Answer::NotReady(rq.rnr_timer)
}

/// Sends the next packet.
fn packet(qp: &'static Qp, x: &mut Exec, wqe: &Wqe, work: &mut Work) -> Answer {
    let left = wqe.length - x.sent;
    let n = left.min(x.mtu);
    // The requester's own memory comes first: a packet that cannot be made is not sent.
    let receives = wqe.opcode == IBV_WR_RDMA_READ || is_atomic(wqe.opcode);
    let own = if receives { &mut x.to } else { &mut x.from };
    match wqe.inline {
        Some(data) => own.plain(data as u64 + x.sent, n, work),
        None => {
            let r = own.list(wqe.sges(), x.sent, n, qp.domain(), receives, work);
            if r.is_err() {
                return Answer::Local(IBV_WC_LOC_PROT_ERR);
            }
        }
    }
    let (peer, mut rq) = match reach(qp, x) {
        Ok(reached) => reached,
        Err(answer) => return answer,
    };
    if rq.psn != x.psn {
        // A packet out of sequence is not executed, and sending it again does not help.
        return Answer::Silence;
    }
    counters::bump(counters::PACKETS);
    if !rq.established {
        rq.established = true;
        if peer.state() == IBV_QPS_RTR && peer.context().profile != Profile::Rxe {
            crate::async_event::raise_qp(peer, IBV_EVENT_COMM_EST);
        }
    }
    let answer = match wqe.opcode {
        op if is_send(op) => send(qp, x, n, peer, &mut rq, work),
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => write(qp, x, wqe, n, peer, &mut rq, work),
        IBV_WR_RDMA_READ => read(x, wqe, n, peer, &mut rq, work),
        _ => atomic(x, wqe, peer, &mut rq, work),
    };
    if matches!(answer, Answer::Ack | Answer::Held(_)) {
        x.psn = next_psn(x.psn);
        rq.psn = next_psn(rq.psn);
        x.sent += n;
        x.all_sent = x.sent == wqe.length;
    }
    answer
}

fn send(qp: &'static Qp, x: &mut Exec, n: u64, peer: &'static Qp, rq: &mut Rq, work: &mut Work) -> Answer {
    if x.sent == 0 && rq.current.is_none() && !rq.take_receive(peer) {
        return not_ready(qp, x, peer, rq, work);
    }
    let Some(current) = rq.current.as_mut() else {
        // The receive of a message under way is gone, and with it the message.
        return Answer::Silence;
    };
    if current.room - current.filled < n {
        rq.complete(peer, IBV_WC_LOC_LEN_ERR, |_| {}, work);
        return Answer::refuse(IBV_WC_REM_INV_REQ_ERR, None, peer, rq, work);
    }
    let at = current.filled;
    let placed = x.to.list(&rq.sges, at, n, peer.domain(), true, work);
    if placed.is_err() {
        rq.complete(peer, IBV_WC_LOC_PROT_ERR, |_| {}, work);
        return Answer::refuse(IBV_WC_REM_OP_ERR, None, peer, rq, work);
    }
    // SAFETY: both ends are let in by their keys, or are inline data.
    unsafe { x.from.copy_to(&x.to) };
    if let Some(current) = rq.current.as_mut() {
        current.filled += n;
    }
    Answer::Ack
}

/// A packet that the queue pair's own flags refuse, whatever its key says.
fn gate_closed(peer: &'static Qp, rq: &mut Rq, work: &mut Work) -> Answer {
    let event = Some(IBV_EVENT_QP_REQ_ERR);
    Answer::refuse(IBV_WC_REM_INV_REQ_ERR, event, peer, rq, work)
}

fn access_denied(peer: &'static Qp, rq: &mut Rq, work: &mut Work) -> Answer {
    let event = Some(IBV_EVENT_QP_ACCESS_ERR);
    Answer::refuse(IBV_WC_REM_ACCESS_ERR, event, peer, rq, work)
}

fn asker(peer: &Qp) -> Asker {
    Asker { domain: peer.domain(), qp: peer.live().id() }
}

fn write(
    qp: &'static Qp,
    x: &mut Exec,
    wqe: &Wqe,
    n: u64,
    peer: &'static Qp,
    rq: &mut Rq,
    work: &mut Work,
) -> Answer {
    if rq.access & IBV_ACCESS_REMOTE_WRITE == 0 {
        return gate_closed(peer, rq, work);
    }
    let left = wqe.length - x.sent;
    let is_last = left == n;
    if is_last && wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM && !rq.has_receive(peer) {
        return not_ready(qp, x, peer, rq, work);
    }
    if n == 0 {
        return Answer::Ack; // nothing is accessed, so no key is looked at
    }
    // All that is still to come must be inside, so a message that ends outside does not begin.
    let at = wqe.remote_addr.wrapping_add(x.sent);
    let need = IBV_ACCESS_REMOTE_WRITE;
    let Ok((to, key)) = scatter::remote(wqe.rkey, at, left, need, asker(peer), work) else {
        return access_denied(peer, rq, work);
    };
    if let Some(hit) = fault::strike(Fault::HoldPacket, &[qp.number(), peer.number()]) {
        // SAFETY: let in above.
        let bytes = unsafe { x.from.bytes() };
        let number = held::keep_packet(hit.id, key, to, bytes, qp);
        if !fault::holds(hit.id) {
            held::release(hit.id, work);
        }
        return Answer::Held(number);
    }
    x.to.plain(to, n, work);
    // SAFETY: both ends are let in by their keys, or are inline data.
    unsafe { x.from.copy_to(&x.to) };
    key.leave(work);
    counters::add(counters::BYTES_WRITTEN, n);
    Answer::Ack
}

fn read(x: &mut Exec, wqe: &Wqe, n: u64, peer: &'static Qp, rq: &mut Rq, work: &mut Work) -> Answer {
    if rq.access & IBV_ACCESS_REMOTE_READ == 0 || rq.max_rd_atomic == 0 {
        return gate_closed(peer, rq, work);
    }
    if n == 0 {
        return Answer::Ack;
    }
    let left = wqe.length - x.sent;
    let at = wqe.remote_addr.wrapping_add(x.sent);
    let need = IBV_ACCESS_REMOTE_READ;
    let Ok((from, key)) = scatter::remote(wqe.rkey, at, left, need, asker(peer), work) else {
        return access_denied(peer, rq, work);
    };
    x.from.plain(from, n, work);
    // SAFETY: both ends are let in by their keys.
    unsafe { x.from.copy_to(&x.to) };
    key.leave(work);
    counters::add(counters::BYTES_READ, n);
    Answer::Ack
}

fn atomic(x: &mut Exec, wqe: &Wqe, peer: &'static Qp, rq: &mut Rq, work: &mut Work) -> Answer {
    let aligned = wqe.remote_addr % 8 == 0;
    if rq.access & IBV_ACCESS_REMOTE_ATOMIC == 0 || rq.max_rd_atomic == 0 || !aligned {
        return gate_closed(peer, rq, work);
    }
    let need = IBV_ACCESS_REMOTE_ATOMIC;
    let target = scatter::remote(wqe.rkey, wqe.remote_addr, 8, need, asker(peer), work);
    let Ok((at, key)) = target else {
        return access_denied(peer, rq, work);
    };
    // An iova may be aligned where the memory behind it is not.
    let before = if at % 8 == 0 {
        // SAFETY: eight aligned bytes of registered memory, let in above.
        let cell = unsafe { &*(at as *const AtomicU64) };
        match wqe.opcode {
            IBV_WR_ATOMIC_FETCH_AND_ADD => cell.fetch_add(wqe.compare_add, SeqCst),
            _ => {
                cell.compare_exchange(wqe.compare_add, wqe.swap, SeqCst, SeqCst).unwrap_or_else(|other| other)
            }
        }
    } else {
        key.leave(work);
        return gate_closed(peer, rq, work);
    };
    key.leave(work);
    x.from.plain(std::ptr::addr_of!(before) as u64, 8, work);
    // SAFETY: the result is a local, the list was let in by its keys.
    unsafe { x.from.copy_to(&x.to) };
    counters::add(counters::BYTES_WRITTEN, 8);
    counters::add(counters::BYTES_READ, 8);
    Answer::Ack
}

/// What the last packet does beside placing its bytes: invalidates, and completes a receive.
fn ending(qp: &'static Qp, x: &mut Exec, wqe: &Wqe, work: &mut Work) -> Answer {
    let (peer, mut rq) = match reach(qp, x) {
        Ok(reached) => reached,
        Err(answer) => return answer,
    };
    let writes = wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if writes && rq.current.is_none() && !rq.take_receive(peer) {
        return not_ready(qp, x, peer, &mut rq, work);
    }
    if wqe.opcode == IBV_WR_SEND_WITH_INV {
        match mw::invalidate(wqe.imm, peer, x.closing, qp) {
            Outcome::Done => {}
            Outcome::Wait => {
                x.closing = true;
                return Answer::Wait;
            }
            Outcome::Failed => {
                rq.complete(peer, IBV_WC_REM_INV_REQ_ERR, |_| {}, work);
                let event = Some(IBV_EVENT_QP_ACCESS_ERR);
                let status = IBV_WC_REM_ACCESS_ERR;
                return Answer::refuse(status, event, peer, &mut rq, work);
            }
        }
    }
    let fill = |cqe: &mut crate::cq::Cqe| {
        cqe.solicited = wqe.flags & IBV_SEND_SOLICITED != 0;
        cqe.src_qp = qp.number();
        cqe.imm = wqe.imm;
        cqe.wc_flags = match wqe.opcode {
            IBV_WR_SEND => 0,
            IBV_WR_SEND_WITH_INV => IBV_WC_WITH_INV,
            _ => IBV_WC_WITH_IMM,
        };
        if writes {
            cqe.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
            cqe.byte_len = wqe.length as u32;
        }
    };
    rq.complete(peer, IBV_WC_SUCCESS, fill, work);
    Answer::Ack
}
