//! Completion queues.

use crate::async_event::{self, Acks, Subject};
use crate::channel::Channel;
use crate::context::{self, Context};
use crate::counters;
use crate::cq_ex;
use crate::engine::Work;
use crate::guard::{guard, guard_int, guard_ptr};
use crate::misuse::{self, Rule};
use crate::model::{self, Profile};
use crate::object::{self, Live, Object, Pool, Ref, Users};
use crate::owner_lock::OwnerLock;
use crate::pd::Pd;
use crate::qp::Qp;
use libc::{c_int, c_void};
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use verbs::*;

/// The queue slot that a completion gives back when it is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// So many send work requests, the last of which has this running number.
    Send {
        number: u64,
        slots: u64,
    },
    /// The receive of this running number.
    Receive(u64),
    SharedReceive,
    /// It was given back already.
    None,
}

/// One completion.
#[derive(Clone, Copy)]
pub struct Cqe {
    pub qp: &'static Qp,
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub byte_len: u32,
    /// As in the work request: immediate data in network byte order, or the invalidated rkey.
    pub imm: u32,
    pub wc_flags: u32,
    pub src_qp: u32,
    pub slot: Slot,
    pub solicited: bool,
    /// Clock, if the queue was made to read it.
    pub time: u64,
}

impl Cqe {
    pub fn new(qp: &'static Qp, wr_id: u64, status: u32, opcode: u32, slot: Slot) -> Self {
        Self {
            qp,
            wr_id,
            status,
            opcode,
            byte_len: 0,
            imm: 0,
            wc_flags: 0,
            src_qp: 0,
            slot,
            solicited: false,
            time: 0,
        }
    }
}

#[repr(C)]
pub struct Cq {
    pub base: UnsafeCell<ibv_cq_ex>,
    live: Live,
    context: Ref<Context>,
    channel: Ref<Channel>,
    parent: Ref<Pd>,
    ring: Mutex<Ring>,
    pub users: Users,
    pub event_acks: Acks,
    pub async_acks: Acks,
    qps: Mutex<Vec<&'static Qp>>,
    /// Held by whoever polls; from `ibv_start_poll` to `ibv_end_poll` too.
    pub poll_lock: OwnerLock,
    pub current: UnsafeCell<Option<Cqe>>,
    timestamps: AtomicBool,
}

// SAFETY: `base` is written at creation, and with `current` under `poll_lock`.
unsafe impl Sync for Cq {}

#[derive(Default)]
struct Ring {
    entries: VecDeque<Cqe>,
    capacity: usize,
    overrun: bool,
    armed: Armed,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Armed {
    #[default]
    No,
    Solicited,
    Any,
}

impl Object for Cq {
    type C = ibv_cq;
    const MAGIC: u32 = 0x6371_3031;
    const NAME: &'static str = "completion queue";

    fn live(&self) -> &Live {
        &self.live
    }
}

static POOL: Pool<Cq> = Pool::new(64);
static NEXT_HANDLE: AtomicU32 = AtomicU32::new(1);
/// Completions delivered, a running number that makes timestamps differ.
static LAST_TIME: AtomicU64 = AtomicU64::new(0);

impl Cq {
    fn fresh() -> Self {
        Self {
            // SAFETY: pointers, numbers and optional functions.
            base: UnsafeCell::new(unsafe { std::mem::zeroed() }),
            live: Live::new(),
            context: Ref::empty(),
            channel: Ref::empty(),
            parent: Ref::empty(),
            ring: Mutex::new(Ring::default()),
            users: Users::new(),
            event_acks: Acks::new(),
            async_acks: Acks::new(),
            qps: Mutex::new(Vec::new()),
            poll_lock: OwnerLock::new(),
            current: UnsafeCell::new(None),
            timestamps: AtomicBool::new(false),
        }
    }

    pub fn context(&self) -> &'static Context {
        self.context.get().expect("a completion queue has a context")
    }

    pub fn attach(&self, qp: &'static Qp) {
        self.qps.lock().push(qp);
    }

    /// The QP goes: its completions with it.
    pub fn detach(&self, qp: &Qp) {
        let mut qps = self.qps.lock();
        if let Some(i) = qps.iter().position(|q| std::ptr::eq(*q, qp)) {
            qps.swap_remove(i);
        }
        // One that uses the queue both ways is in the list twice.
        if !qps.iter().any(|q| std::ptr::eq(*q, qp)) {
            drop(qps);
            self.forget(qp);
        }
    }

    /// Drops the QP's completions, as if they had been polled.
    pub fn forget(&self, qp: &Qp) {
        let mut ring = self.ring.lock();
        if ring.entries.is_empty() {
            return;
        }
        ring.entries.retain(|e| {
            let theirs = std::ptr::eq(e.qp, qp);
            if theirs {
                qp.give_slot_back(e.slot);
            }
            !theirs
        });
    }

    /// Delivers a completion.
    pub fn push(&'static self, mut cqe: Cqe, work: &mut Work) {
        let failed = cqe.status != IBV_WC_SUCCESS;
        if self.timestamps.load(Relaxed) {
            let now = crate::timer::now();
            cqe.time = LAST_TIME.fetch_max(now, Relaxed).max(now);
        }
        let mut ring = self.ring.lock();
        if ring.overrun {
            return;
        }
        if ring.entries.len() >= ring.capacity {
            ring.overrun = true;
            drop(ring);
            self.overrun(cqe.qp, work);
            return;
        }
        ring.entries.push_back(cqe);
        let notify = match ring.armed {
            Armed::No => false,
            Armed::Solicited => cqe.solicited || failed,
            Armed::Any => true,
        };
        if notify {
            ring.armed = Armed::No;
        }
        drop(ring);
        counters::bump(counters::COMPLETIONS);
        if failed {
            counters::bump(counters::ERROR_COMPLETIONS);
            if cqe.status == IBV_WC_WR_FLUSH_ERR {
                counters::bump(counters::FLUSHED);
            }
        }
        if notify {
            if let Some(channel) = self.channel.get() {
                channel.events.push(self);
            }
        }
    }

    /// The queue is full: it is of no use any more, and neither are its QPs.
    fn overrun(&'static self, qp: &'static Qp, work: &mut Work) {
        misuse::report(
            Rule::CqOverrun,
            qp.number(),
            0,
            format_args!("a completion found its completion queue full"),
        );
        async_event::raise(self.context(), Subject::Cq(self), IBV_EVENT_CQ_ERR);
        for &qp in self.qps.lock().iter() {
            work.kill(qp);
        }
    }

    /// Takes the oldest completion and gives its queue slot back.
    pub fn pop(&self) -> Option<Cqe> {
        let cqe = self.ring.lock().entries.pop_front()?;
        cqe.qp.give_slot_back(cqe.slot);
        Some(cqe)
    }
}

/// What a CQ is made from.
pub struct Request<'a> {
    pub context: &'static Context,
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub parent: Option<&'static Pd>,
    pub single_threaded: bool,
    pub timestamps: bool,
    /// Fills in the functions of an extended CQ.
    pub extend: Option<&'a dyn Fn(&mut ibv_cq_ex)>,
}

pub fn make(r: Request<'_>) -> Result<&'static Cq, c_int> {
    model::kernel_call();
    context::refuse_if_fatal()?;
    let context = r.context;
    // SAFETY: a channel of the caller.
    let channel = match r.channel.is_null() {
        true => None,
        false => Some(unsafe { object::get::<Channel>(r.channel)? }),
    };
    // SAFETY: an open context.
    let vectors = unsafe { (*context.as_c()).num_comp_vectors } as u32;
    if r.cqe == 0 || r.cqe > context.limits.max_cqe || r.comp_vector >= vectors {
        return Err(libc::EINVAL);
    }
    context.cqs.take()?;
    let cq = POOL.take(Cq::fresh);
    cq.context.set(Some(context));
    cq.channel.set(channel);
    cq.parent.set(r.parent);
    cq.users.open();
    cq.event_acks.open();
    cq.async_acks.open();
    cq.timestamps.store(r.timestamps, Relaxed);
    let unlocked = r.single_threaded || r.parent.is_some_and(Pd::is_unlocked);
    cq.poll_lock.set_unlocked(unlocked);
    *cq.ring.lock() = Ring {
        entries: VecDeque::with_capacity(r.cqe as usize),
        capacity: r.cqe as usize,
        ..Ring::default()
    };
    if let Some(channel) = channel {
        channel.enter();
    }
    if let Some(pd) = r.parent {
        pd.users.enter();
    }
    // SAFETY: nobody else uses the object yet.
    unsafe {
        *cq.current.get() = None;
        let base = &mut *cq.base.get();
        *base = std::mem::zeroed();
        base.context = context.as_c();
        base.channel = r.channel;
        base.cq_context = r.cq_context;
        base.handle = NEXT_HANDLE.fetch_add(1, Relaxed);
        base.cqe = r.cqe as c_int;
        if let Some(extend) = r.extend {
            extend(base);
        }
    }
    cq.live.begin(Cq::MAGIC);
    Ok(cq)
}

/// # Safety
/// `context` is open; `channel` is NULL or came from this device.
#[no_mangle]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    guard_ptr(|| {
        let cq = make(Request {
            context: unsafe { Context::get(context)? },
            cqe: cqe.max(0) as u32,
            cq_context,
            channel,
            comp_vector: comp_vector as u32,
            parent: None,
            single_threaded: false,
            timestamps: false,
            extend: None,
        })?;
        Ok(cq.as_c())
    })
}

pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    guard_ptr(|| unsafe { cq_ex::create(context, attr) })
}

pub unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    const MODERATE: u32 = 1;
    guard_int(|| {
        unsafe { object::get::<Cq>(cq)? };
        // Moderation only makes events later, which an application may not rely on: accepted.
        match attr.is_null() || unsafe { (*attr).attr_mask } & !MODERATE != 0 {
            true => Err(libc::EINVAL),
            false => Ok(()),
        }
    })
}

/// # Safety
/// `cq` came from this device.
#[no_mangle]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    guard_int(|| {
        let cq = unsafe { object::get::<Cq>(cq)? };
        model::kernel_call();
        context::refuse_if_fatal()?;
        if cqe <= 0 || cqe as u32 > cq.context().limits.max_cqe {
            return Err(libc::EINVAL);
        }
        let mut ring = cq.ring.lock();
        let wanted = cqe as usize;
        if ring.entries.len() > wanted {
            return Err(libc::EINVAL);
        }
        let more = wanted.saturating_sub(ring.entries.len());
        ring.entries.reserve(more);
        ring.capacity = wanted;
        unsafe { (*cq.base.get()).cqe = cqe };
        Ok(())
    })
}

/// # Safety
/// `cq` came from this device.
#[no_mangle]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    guard_int(|| {
        let cq = unsafe { object::get::<Cq>(cq)? };
        model::kernel_call();
        if context::is_fatal() {
            cq.live.end();
            return Ok(());
        }
        if !cq.users.close() {
            let n = cq.users.count();
            misuse::report(
                Rule::DestroyBusy,
                0,
                0,
                format_args!("a completion queue was destroyed with {n} queues using it"),
            );
            return Err(libc::EBUSY);
        }
        if !cq.alive() {
            return Err(libc::EINVAL);
        }
        if let Some(channel) = cq.channel.get() {
            channel.events.remove(|e| std::ptr::eq(*e, cq));
        }
        cq.context().events.remove(|e| matches!(e.subject, Subject::Cq(other) if std::ptr::eq(other, cq)));
        // Acknowledging needs a living object.
        cq.event_acks.wait_all();
        cq.async_acks.wait_all();
        if !cq.live.end() {
            return Err(libc::EINVAL);
        }
        if let Some(channel) = cq.channel.get() {
            channel.leave();
        }
        if let Some(pd) = cq.parent.get() {
            pd.users.leave();
        }
        *cq.ring.lock() = Ring::default();
        cq.context().cqs.give();
        POOL.put(cq);
        Ok(())
    })
}

fn fill(wc: &mut ibv_wc, cqe: &Cqe) {
    wc.wr_id = cqe.wr_id;
    wc.status = cqe.status as _;
    wc.qp_num = cqe.qp.number();
    wc.vendor_err = vendor_err(cqe);
    // On an error only the four fields above mean anything. rxe fills in the opcode all the
    // same; elsewhere it is left at a value that misleads whoever looks.
    let failed = cqe.status != IBV_WC_SUCCESS;
    let mute = failed && cqe.qp.context().profile != Profile::Rxe;
    wc.opcode = if mute { IBV_WC_SEND } else { cqe.opcode } as _;
    wc.byte_len = if failed { 0 } else { cqe.byte_len };
    wc.imm_data_invalidated_rkey_union.imm_data = cqe.imm;
    wc.src_qp = cqe.src_qp;
    wc.wc_flags = if failed { 0 } else { cqe.wc_flags };
    wc.pkey_index = 0;
    wc.slid = 0;
    wc.sl = 0;
    wc.dlid_path_bits = 0;
}

/// Something other than 0 for each error, as a real device has.
pub fn vendor_err(cqe: &Cqe) -> u32 {
    match cqe.status {
        IBV_WC_SUCCESS => 0,
        status => 0x100 + status,
    }
}

pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, max: c_int, wc: *mut ibv_wc) -> c_int {
    guard(-1, || {
        let Ok(cq) = (unsafe { object::get::<Cq>(cq) }) else {
            return -1;
        };
        counters::bump(counters::POLLS);
        let Ok(_held) = cq.poll_lock.hold() else {
            return -1;
        };
        let mut n = 0;
        while n < max {
            let Some(cqe) = cq.pop() else { break };
            // SAFETY: the caller has room for `max` completions.
            fill(unsafe { &mut *wc.add(n as usize) }, &cqe);
            n += 1;
        }
        n
    })
}

pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    guard_int(|| {
        let cq = unsafe { object::get::<Cq>(cq)? };
        let mut ring = cq.ring.lock();
        // Asking for more than was asked for before widens it, never the other way.
        if solicited_only == 0 {
            ring.armed = Armed::Any;
        } else if ring.armed == Armed::No {
            ring.armed = Armed::Solicited;
        }
        Ok(())
    })
}
