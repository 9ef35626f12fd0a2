//! Shared receive queues.

use crate::async_event::{self, Acks, Subject};
use crate::context::{self, Context};
use crate::counters;
use crate::engine::Work;
use crate::guard::{guard, guard_int, guard_ptr};
use crate::misuse::{self, Rule};
use crate::model;
use crate::object::{self, Live, Object, Pool, Ref, Users};
use crate::pd::Pd;
use crate::qp::Qp;
use crate::rq::{each_receive, Ring, Waiters};
use crate::scatter::Sge;
use libc::c_int;
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use verbs::*;

#[repr(C)]
pub struct Srq {
    base: UnsafeCell<ibv_srq>,
    live: Live,
    pd: Ref<Pd>,
    queue: Mutex<Queue>,
    /// Receives whose completions were polled.
    freed: AtomicU64,
    pub users: Users,
    pub acks: Acks,
}

// SAFETY: `base` is written before the application knows the object.
unsafe impl Sync for Srq {}

#[derive(Default)]
struct Queue {
    ring: Ring,
    /// Below so many receives an event is raised, once; 0: never.
    limit: u32,
    waiters: Waiters,
}

impl Object for Srq {
    type C = ibv_srq;
    const MAGIC: u32 = 0x7372_3031;
    const NAME: &'static str = "shared receive queue";

    fn live(&self) -> &Live {
        &self.live
    }
}

static POOL: Pool<Srq> = Pool::new(16);
static NEXT_HANDLE: AtomicU32 = AtomicU32::new(1);

const SRQ_MAX_WR: c_int = 1;
const SRQ_LIMIT: c_int = 2;

impl Srq {
    fn fresh() -> Self {
        Self {
            // SAFETY: pointers and numbers.
            base: UnsafeCell::new(unsafe { std::mem::zeroed() }),
            live: Live::new(),
            pd: Ref::empty(),
            queue: Mutex::new(Queue::default()),
            freed: AtomicU64::new(0),
            users: Users::new(),
            acks: Acks::new(),
        }
    }

    fn context(&self) -> &'static Context {
        self.pd.get().expect("a shared receive queue has a domain").context()
    }

    pub fn has_receive(&self) -> bool {
        !self.queue.lock().ring.is_empty()
    }

    pub fn give_slot_back(&self) {
        self.freed.fetch_add(1, AcqRel);
    }

    /// Takes the oldest receive: its wr_id; its list goes to `sges`.
    pub fn take(&'static self, sges: &mut Vec<Sge>) -> Option<u64> {
        let mut queue = self.queue.lock();
        let (wr_id, _) = queue.ring.pop(sges)?;
        if queue.ring.len() < u64::from(queue.limit) {
            queue.limit = 0;
            drop(queue);
            let event = IBV_EVENT_SRQ_LIMIT_REACHED;
            async_event::raise(self.context(), Subject::Srq(self), event);
        }
        Some(wr_id)
    }

    /// Makes a requester wait for a receive. True if it did not wait already.
    pub fn wait(&self, from: &'static Qp, work: &mut Work) -> bool {
        let mut queue = self.queue.lock();
        // One may have been posted since the requester looked.
        if !queue.ring.is_empty() {
            work.kick(from, from.live().id());
        }
        queue.waiters.add(from)
    }

    pub fn leave(&self, from: &Qp) {
        self.queue.lock().waiters.remove(from);
    }

    pub fn kick_waiters(&self, work: &mut Work) {
        self.queue.lock().waiters.kick_all(work);
    }
}

fn make(pd: *mut ibv_pd, srq_context: *mut libc::c_void, attr: &ibv_srq_attr) -> Result<*mut ibv_srq, c_int> {
    // SAFETY: a domain of the caller.
    let pd = unsafe { object::get::<Pd>(pd)? };
    model::kernel_call();
    context::refuse_if_fatal()?;
    let limits = &pd.context().limits;
    if attr.max_wr == 0 || attr.max_wr > limits.max_srq_wr || attr.max_sge > limits.max_sge {
        return Err(libc::EINVAL);
    }
    pd.context().srqs.take()?;
    let srq = POOL.take(Srq::fresh);
    srq.pd.set(Some(pd));
    *srq.queue.lock() = Queue { ring: Ring::new(attr.max_wr, attr.max_sge), ..Queue::default() };
    srq.freed.store(0, Release);
    srq.users.open();
    srq.acks.open();
    pd.users.enter();
    // SAFETY: nobody else uses the object yet.
    unsafe {
        let base = &mut *srq.base.get();
        *base = std::mem::zeroed();
        base.context = pd.context().as_c();
        base.srq_context = srq_context;
        base.pd = pd.as_c();
        base.handle = NEXT_HANDLE.fetch_add(1, Relaxed);
    }
    srq.live.begin(Srq::MAGIC);
    Ok(srq.as_c())
}

/// # Safety
/// `pd` came from this device, `attr` is readable.
#[no_mangle]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    guard_ptr(|| match unsafe { attr.as_ref() } {
        Some(a) => make(pd, a.srq_context, &a.attr),
        None => Err(libc::EINVAL),
    })
}

/// Basic ones only; verbs.h sends those to `ibv_create_srq` itself, but for a mask that it does
/// not know.
pub unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    _attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    guard_ptr(|| {
        counters::unsupported("ibv_create_srq_ex");
        Err(libc::EOPNOTSUPP)
    })
}

/// # Safety
/// `srq` came from this device, `attr` is readable.
#[no_mangle]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    guard_int(|| {
        let srq = unsafe { object::get::<Srq>(srq)? };
        model::kernel_call();
        let attr = unsafe { attr.as_ref() }.ok_or(libc::EINVAL)?;
        if mask & SRQ_MAX_WR != 0 {
            // Not offered: IBV_DEVICE_SRQ_RESIZE is not among the device's capabilities.
            return Err(libc::EOPNOTSUPP);
        }
        if mask & SRQ_LIMIT == 0 {
            return Err(libc::EINVAL);
        }
        let mut queue = srq.queue.lock();
        if u64::from(attr.srq_limit) > queue.ring.capacity() {
            return Err(libc::EINVAL);
        }
        queue.limit = attr.srq_limit;
        Ok(())
    })
}

/// # Safety
/// `srq` came from this device, `attr` is writable.
#[no_mangle]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    guard_int(|| {
        let srq = unsafe { object::get::<Srq>(srq)? };
        model::kernel_call();
        let attr = unsafe { attr.as_mut() }.ok_or(libc::EINVAL)?;
        let queue = srq.queue.lock();
        attr.max_wr = queue.ring.capacity() as u32;
        attr.max_sge = queue.ring.max_sge;
        attr.srq_limit = queue.limit;
        Ok(())
    })
}

/// # Safety
/// `srq` came from this device.
#[no_mangle]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    guard_int(|| {
        let srq = unsafe { object::get::<Srq>(srq)? };
        model::kernel_call();
        if context::is_fatal() {
            srq.live.end();
            return Ok(());
        }
        if !srq.users.close() {
            let n = srq.users.count();
            misuse::report(
                Rule::DestroyBusy,
                0,
                0,
                format_args!("a shared receive queue was destroyed with {n} queue pairs on it"),
            );
            return Err(libc::EBUSY);
        }
        srq.context().events.remove(|e| matches!(e.subject, Subject::Srq(other) if std::ptr::eq(other, srq)));
        // Acknowledging needs a living object.
        srq.acks.wait_all();
        if !srq.live.end() {
            return Err(libc::EINVAL);
        }
        *srq.queue.lock() = Queue::default();
        srq.context().srqs.give();
        if let Some(pd) = srq.pd.get() {
            pd.users.leave();
        }
        POOL.put(srq);
        Ok(())
    })
}

pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    guard(libc::EIO, || {
        let srq = match unsafe { object::get::<Srq>(srq) } {
            Ok(srq) => srq,
            Err(e) => {
                unsafe { *bad = wr };
                return e;
            }
        };
        let mut work = Work::new();
        let r = {
            let mut queue = srq.queue.lock();
            let ring = &mut queue.ring;
            let pushed = |wr: &ibv_recv_wr| {
                if wr.num_sge < 0 || wr.num_sge as u32 > ring.max_sge {
                    return Err(libc::EINVAL);
                }
                let used = ring.tail().saturating_sub(srq.freed.load(Acquire));
                if used >= ring.capacity() {
                    misuse::report(
                        Rule::RqOverflow,
                        0,
                        0,
                        format_args!("a receive was posted to a full shared queue"),
                    );
                    return Err(libc::ENOMEM);
                }
                // SAFETY: the caller's work request, its number of elements checked above.
                unsafe { ring.push(wr) };
                Ok(())
            };
            let r = unsafe { each_receive(wr, bad, pushed) };
            queue.waiters.kick_all(&mut work);
            r
        };
        work.finish();
        r.err().unwrap_or(0)
    })
}
