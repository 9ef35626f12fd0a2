//! What faults hold back until they are released: packets, completions, send queues.

use crate::cq::{Cq, Cqe};
use crate::engine::Work;
use crate::keys::Admitted;
use crate::object::Object;
use crate::qp::Qp;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// An admitted packet whose bytes are not placed yet. It no longer needs its sender, as a packet
/// that left the wire does not.
struct Packet {
    fault: u64,
    number: u64,
    key: Admitted,
    to: u64,
    bytes: Vec<u8>,
    sender: (&'static Qp, u32),
}

struct Stalled {
    fault: u64,
    qp: (&'static Qp, u32),
}

/// Completions of one QP that wait, in their order.
#[derive(Default)]
pub struct Delay {
    waiting: Vec<(&'static Cq, Cqe)>,
}

static PACKETS: Mutex<Vec<Packet>> = Mutex::new(Vec::new());
static STALLED: Mutex<Vec<Stalled>> = Mutex::new(Vec::new());
/// The faults that delay completions, and whose.
static DELAYED: Mutex<Vec<Stalled>> = Mutex::new(Vec::new());
static NEXT_PACKET: AtomicU64 = AtomicU64::new(1);

/// Keeps a packet back. The sender goes on when its `placed` reaches the number returned.
pub fn keep_packet(fault: u64, key: Admitted, to: u64, bytes: Vec<u8>, sender: &'static Qp) -> u64 {
    let number = NEXT_PACKET.fetch_add(1, Relaxed);
    PACKETS.lock().push(Packet { fault, number, key, to, bytes, sender: (sender, sender.live().id()) });
    number
}

pub fn keep_queue(fault: u64, qp: &'static Qp) {
    STALLED.lock().push(Stalled { fault, qp: (qp, qp.live().id()) });
}

/// Starts to delay a QP's completions.
pub fn start_delay(fault: u64, qp: &'static Qp, delay: &mut Option<Delay>) {
    *delay = Some(Delay::default());
    DELAYED.lock().push(Stalled { fault, qp: (qp, qp.live().id()) });
}

impl Delay {
    pub fn add(&mut self, cq: &'static Cq, cqe: Cqe) {
        self.waiting.push((cq, cqe));
    }
}

/// Takes out what `which` picks.
fn drain<T>(from: &Mutex<Vec<T>>, which: impl Fn(&T) -> bool) -> Vec<T> {
    let mut all = from.lock();
    let (out, rest) = all.drain(..).partition(which);
    *all = rest;
    out
}

/// Lets go of everything that this fault holds.
pub fn release(fault: u64, work: &mut Work) {
    for packet in drain(&PACKETS, |p| p.fault == fault) {
        // SAFETY: the packet was admitted by a key that cannot be closed before it is placed, so
        // the memory behind it is still registered.
        unsafe {
            std::ptr::copy_nonoverlapping(packet.bytes.as_ptr(), packet.to as *mut u8, packet.bytes.len())
        };
        crate::counters::add(crate::counters::BYTES_WRITTEN, packet.bytes.len() as u64);
        packet.key.leave(work);
        let (qp, id) = packet.sender;
        qp.placed.fetch_max(packet.number, AcqRel);
        work.kick(qp, id);
    }
    for stalled in drain(&STALLED, |s| s.fault == fault) {
        work.kick(stalled.qp.0, stalled.qp.1);
    }
    for delayed in drain(&DELAYED, |d| d.fault == fault) {
        let (qp, id) = delayed.qp;
        let mut delay = qp.delay.lock();
        // Delivered under the lock, so that later completions stay behind these.
        if let Some(d) = delay.take() {
            qp.is_delayed.store(false, Release);
            for (cq, cqe) in d.waiting {
                if qp.is(id) {
                    cq.push(cqe, work);
                }
            }
        }
    }
}
