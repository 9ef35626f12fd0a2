//! Faults to order.

use crate::context;
use crate::counters;
use crate::engine::Work;
use crate::guard::{guard, guard_int};
use crate::held;
use crate::model;
use libc::{c_int, size_t};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// `enum mwctl_sim_fault_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Fault {
    FailPost = 1,
    CutPost = 2,
    PostNoBadWr = 3,
    LoseCompletion = 4,
    DelayCompletion = 5,
    HoldPacket = 6,
    StallSq = 7,
    KillQp = 8,
    AllocMw = 9,
    DeallocMw = 10,
    ModifyQp = 11,
    QueryQp = 12,
    RegMr = 13,
    DeregMr = 14,
    DeviceFatal = 15,
    FailWr = 16,
}

const LAST: u32 = Fault::FailWr as u32;

/// `struct mwctl_sim_fault`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Order {
    pub kind: u32,
    pub qp_num: u32,
    pub skip: u64,
    pub count: u64,
    pub error: i32,
    pub position: u32,
    pub random: u64,
}

/// A fault that was not released.
struct Ordered {
    id: u64,
    order: Order,
    passed: u64,
    hits: u64,
}

impl Ordered {
    /// Whether it may still strike.
    fn is_armed(&self) -> bool {
        self.order.kind != Fault::DeviceFatal as u32
            && (self.order.count == 0 || self.hits < self.order.count)
    }
}

#[derive(Default)]
struct Faults {
    ordered: Vec<Ordered>,
    /// How often those struck that were released.
    past: BTreeMap<u64, u64>,
    last_id: u64,
}

/// One strike of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    pub id: u64,
    pub error: c_int,
    pub position: u32,
}

static FAULTS: Mutex<Faults> = Mutex::new(Faults { ordered: Vec::new(), past: BTreeMap::new(), last_id: 0 });
/// A bit for each kind of which some fault is armed: without faults, events pass by one load.
static ARMED: AtomicU32 = AtomicU32::new(0);

fn show_armed(faults: &Faults) {
    let armed = faults.ordered.iter().filter(|f| f.is_armed()).fold(0, |bits, f| bits | 1 << f.order.kind);
    ARMED.store(armed, Release);
}

/// Whether anything of this kind may strike.
pub fn is_armed(kind: Fault) -> bool {
    ARMED.load(Acquire) & 1 << kind as u32 != 0
}

/// An event of this kind happens, at one of these QPs: does a fault strike?
pub fn strike(kind: Fault, qps: &[u32]) -> Option<Hit> {
    if !is_armed(kind) {
        return None;
    }
    let mut faults = FAULTS.lock();
    let mut hit = None;
    for f in faults.ordered.iter_mut() {
        let o = f.order;
        let here = o.qp_num == 0 || qps.contains(&o.qp_num);
        if o.kind != kind as u32 || !here || !f.is_armed() {
            continue;
        }
        if f.passed < o.skip {
            f.passed += 1;
            continue;
        }
        if o.random != 0 && model::random() >> 32 >= o.random {
            continue;
        }
        f.hits += 1;
        hit = Some(Hit { id: f.id, error: o.error, position: o.position });
        break;
    }
    if hit.is_some() {
        counters::bump(counters::FAULTS_HIT);
        show_armed(&faults);
    }
    hit
}

/// Whether a fault that struck still holds what it struck. Whoever gives it something to hold
/// asks afterwards: it may have been released in between.
pub fn holds(id: u64) -> bool {
    FAULTS.lock().ordered.iter().any(|f| f.id == id)
}

fn order(order: Order) -> Result<u64, c_int> {
    if order.kind == 0 || order.kind > LAST {
        return Err(libc::EINVAL);
    }
    let mut faults = FAULTS.lock();
    faults.last_id += 1;
    let id = faults.last_id;
    let fatal = order.kind == Fault::DeviceFatal as u32;
    faults.ordered.push(Ordered { id, order, passed: 0, hits: u64::from(fatal) });
    if fatal {
        counters::bump(counters::FAULTS_HIT);
        drop(faults);
        context::strike_fatal();
        return Ok(id);
    }
    show_armed(&faults);
    Ok(id)
}

fn release(id: u64, work: &mut Work) -> Result<(), c_int> {
    let recovers = {
        let mut faults = FAULTS.lock();
        let place = faults.ordered.iter().position(|f| f.id == id).ok_or(libc::ENOENT)?;
        let released = faults.ordered.remove(place);
        faults.past.insert(id, released.hits);
        show_armed(&faults);
        let fatal = |f: &Ordered| f.order.kind == Fault::DeviceFatal as u32;
        fatal(&released) && !faults.ordered.iter().any(fatal)
    };
    if recovers {
        context::recover();
    }
    held::release(id, work);
    Ok(())
}

/// # Safety
/// `fault` is readable for `size` bytes, `id` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn mwctl_sim_fault_order(fault: *const Order, size: size_t, id: *mut u64) -> c_int {
    guard_int(|| {
        if fault.is_null() || size < std::mem::size_of::<Order>() {
            return Err(libc::EINVAL);
        }
        // SAFETY: at least a whole order is there.
        let new = order(unsafe { fault.read_unaligned() })?;
        if !id.is_null() {
            unsafe { *id = new };
        }
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn mwctl_sim_fault_release(id: u64) -> c_int {
    guard_int(|| {
        let mut work = Work::new();
        let r = release(id, &mut work);
        work.finish();
        r
    })
}

#[no_mangle]
pub extern "C" fn mwctl_sim_fault_hits(id: u64) -> u64 {
    let faults = FAULTS.lock();
    let ordered = faults.ordered.iter().find(|f| f.id == id).map(|f| f.hits);
    ordered.or_else(|| faults.past.get(&id).copied()).unwrap_or(0)
}

#[no_mangle]
pub extern "C" fn mwctl_sim_faults_clear() {
    guard((), || {
        let ids: Vec<u64> = FAULTS.lock().ordered.iter().map(|f| f.id).collect();
        let mut work = Work::new();
        for id in ids {
            // One that somebody else released meanwhile is released.
            let _ = release(id, &mut work);
        }
        work.finish();
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(kind: Fault, qp_num: u32, skip: u64, count: u64) -> u64 {
        order(Order { kind: kind as u32, qp_num, skip, count, error: libc::ENOMEM, position: 3, random: 0 })
            .unwrap()
    }

    // The faults are the process's: each test uses a kind of its own.

    #[test]
    fn it_strikes_after_the_skipped_ones_as_often_as_ordered() {
        let id = ordered(Fault::FailPost, 0x77_0001, 1, 2);
        let strikes: Vec<bool> = (0..5).map(|_| strike(Fault::FailPost, &[0x77_0001]).is_some()).collect();
        assert_eq!(strikes, [false, true, true, false, false]);
        assert_eq!(mwctl_sim_fault_hits(id), 2);
        assert!(!is_armed(Fault::FailPost));
        assert!(holds(id));
        assert_eq!(mwctl_sim_fault_release(id), 0);
        assert!(!holds(id));
        assert_eq!(mwctl_sim_fault_release(id), libc::ENOENT);
        assert_eq!(mwctl_sim_fault_hits(id), 2);
    }

    #[test]
    fn other_queue_pairs_pass() {
        let id = ordered(Fault::CutPost, 0x77_0002, 0, 0);
        assert_eq!(strike(Fault::CutPost, &[0x77_0003]), None);
        let hit = strike(Fault::CutPost, &[0x77_0003, 0x77_0002]).unwrap();
        assert_eq!((hit.id, hit.error, hit.position), (id, libc::ENOMEM, 3));
        assert_eq!(mwctl_sim_fault_release(id), 0);
        assert_eq!(strike(Fault::CutPost, &[0x77_0002]), None);
    }

    #[test]
    fn an_unknown_kind_is_refused() {
        for kind in [0, LAST + 1, 99] {
            let new = Order { kind, qp_num: 0, skip: 0, count: 0, error: 0, position: 0, random: 0 };
            assert_eq!(order(new), Err(libc::EINVAL));
        }
    }
}
