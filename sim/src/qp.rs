//! Queue pairs: creating, destroying, and what both halves share.

use crate::async_event::{self, Acks, Subject};
use crate::context::{self, Context};
use crate::counters;
use crate::cq::{Cq, Cqe, Slot};
use crate::engine::{Exec, Work};
use crate::ext;
use crate::fault::{self, Fault};
use crate::guard::{guard_int, guard_ptr};
use crate::held::{self, Delay};
use crate::limits::Limits;
use crate::misuse::{self, Rule};
use crate::model::{self, Profile};
use crate::modify::Attributes;
use crate::object::{self, Live, Object, Pool, Ref};
use crate::owner_lock::OwnerLock;
use crate::pd::Pd;
use crate::rq::{Ring, Rq};
use crate::sq::{Sq, Wqe};
use crate::srq::Srq;
use crate::table::{Indices, Table};
use libc::c_int;
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use verbs::*;

/// Locks are taken in this order: `attributes`, `exec`, `sq` or `rq` (of whichever QP), then
/// those of other objects. Nobody waits for an `exec` lock while holding any but `attributes`.
#[repr(C)]
pub struct Qp {
    pub base: UnsafeCell<ibv_qp_ex>,
    live: Live,
    number: AtomicU32,
    state: AtomicU32,
    pd: Ref<Pd>,
    domain: AtomicU32,
    context: Ref<Context>,
    pub send_cq: Ref<Cq>,
    pub recv_cq: Ref<Cq>,
    pub srq: Ref<Srq>,
    pub sig_all: AtomicBool,

    pub sq: Mutex<Sq>,
    pub sq_slots: Slots,
    pub rq: Mutex<Rq>,
    pub rq_slots: Slots,

    /// The send queue's execution. Whoever has it runs the queue.
    pub exec: Mutex<Exec>,
    /// There is, or may be, something to run.
    pub pending: AtomicBool,
    /// An event was asked for when the queue is drained.
    pub tell_drained: AtomicBool,
    /// In the list of some queue's waiters.
    pub waits: AtomicBool,
    /// The last of its packets that was held and is placed.
    pub placed: AtomicU64,
    pub delay: Mutex<Option<Delay>>,
    pub is_delayed: AtomicBool,

    pub attributes: Mutex<Attributes>,
    /// Type 2 windows bound to it.
    pub windows: AtomicU32,
    pub acks: Acks,

    /// The operations that an extended QP was made for; all for one that is not extended.
    pub send_ops: AtomicU64,
    pub is_extended: AtomicBool,
    /// Its posts need `post_lock`: it is extended, or its locks are off.
    pub is_owned: AtomicBool,
    pub post_lock: OwnerLock,
    pub batch: UnsafeCell<ext::Batch>,
}

// SAFETY: `base` is the application's as verbs prescribes; `batch` is guarded by `post_lock`.
unsafe impl Sync for Qp {}

impl Object for Qp {
    type C = ibv_qp;
    const MAGIC: u32 = 0x7170_3031;
    const NAME: &'static str = "queue pair";

    fn live(&self) -> &Live {
        &self.live
    }
}

static POOL: Pool<Qp> = Pool::new(64);
/// Queue pairs whose destruction was faked.
static ZOMBIES: Mutex<Vec<&'static Qp>> = Mutex::new(Vec::new());

/// Which slots of a queue are taken, beside the running number of what was posted last.
pub struct Slots {
    /// What was posted before this was discarded.
    base: AtomicU64,
    given_back: AtomicU64,
}

impl Slots {
    const fn new() -> Self {
        Self { base: AtomicU64::new(0), given_back: AtomicU64::new(0) }
    }

    /// All that was posted up to `tail` is gone; its completions, polled later, do not count.
    pub fn restart(&self, tail: u64) {
        self.base.store(tail, Release);
        self.given_back.store(0, Release);
    }

    fn give_back(&self, number: u64, slots: u64) {
        if number >= self.base.load(Acquire) {
            self.given_back.fetch_add(slots, AcqRel);
        }
    }

    pub fn taken(&self, tail: u64) -> u64 {
        tail.saturating_sub(self.base.load(Acquire)).saturating_sub(self.given_back.load(Acquire))
    }
}

/// A place for a queue pair in the table of numbers.
#[derive(Default)]
struct Place(Ref<Qp>);

static TABLE: Table<Place> = Table::new();
/// 0 and 1 are special; a number that comes back soon would hide a stale connection.
static NUMBERS: Indices = Indices::new(0x11, 1 << 24, 4096);

/// The queue pair of this number.
pub fn find(number: u32) -> Option<&'static Qp> {
    TABLE.get(number)?.0.get()
}

impl Qp {
    pub fn fresh() -> Self {
        Self {
            // SAFETY: pointers, numbers and optional functions.
            base: UnsafeCell::new(unsafe { std::mem::zeroed() }),
            live: Live::new(),
            number: AtomicU32::new(0),
            state: AtomicU32::new(IBV_QPS_RESET),
            pd: Ref::empty(),
            domain: AtomicU32::new(0),
            context: Ref::empty(),
            send_cq: Ref::empty(),
            recv_cq: Ref::empty(),
            srq: Ref::empty(),
            sig_all: AtomicBool::new(false),
            sq: Mutex::new(Sq::default()),
            sq_slots: Slots::new(),
            rq: Mutex::new(Rq::default()),
            rq_slots: Slots::new(),
            exec: Mutex::new(Exec::default()),
            pending: AtomicBool::new(false),
            tell_drained: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            placed: AtomicU64::new(0),
            delay: Mutex::new(None),
            is_delayed: AtomicBool::new(false),
            attributes: Mutex::new(Attributes::default()),
            windows: AtomicU32::new(0),
            acks: Acks::new(),
            send_ops: AtomicU64::new(u64::MAX),
            is_extended: AtomicBool::new(false),
            is_owned: AtomicBool::new(false),
            post_lock: OwnerLock::new(),
            batch: UnsafeCell::new(ext::Batch::default()),
        }
    }

    pub fn number(&self) -> u32 {
        self.number.load(Relaxed)
    }

    pub fn state(&self) -> u32 {
        self.state.load(Acquire)
    }

    /// The number of its protection domain.
    pub fn domain(&self) -> u32 {
        self.domain.load(Relaxed)
    }

    pub fn context(&self) -> &'static Context {
        self.context.get().expect("a queue pair has a context")
    }

    /// Whether it still is the object of this number.
    pub fn is(&self, id: u32) -> bool {
        self.alive() && self.live.id() == id
    }

    /// Whether what is posted in the error state is sure to be completed as flushed.
    pub fn promises_flushes(&self) -> bool {
        self.context().profile != Profile::Mlx5
    }

    /// Slots return at completion, not when it is polled.
    pub fn frees_at_completion(&self) -> bool {
        self.context().profile == Profile::Rxe
    }

    /// Moves to `to` if the state still is `from`.
    pub fn change_state(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, AcqRel, Acquire).is_ok()
    }

    /// A polled completion gives its queue slot back.
    pub fn give_slot_back(&self, slot: Slot) {
        match slot {
            Slot::Send { number, slots } => self.sq_slots.give_back(number, slots),
            Slot::Receive(number) => self.rq_slots.give_back(number, 1),
            Slot::SharedReceive => {
                if let Some(srq) = self.srq.get() {
                    srq.give_slot_back();
                }
            }
            Slot::None => {}
        }
    }

    /// Delivers a completion, unless a fault keeps it. One that is lost keeps its slots for ever.
    pub fn deliver(&'static self, mut cqe: Cqe, work: &mut Work) {
        let sends = matches!(cqe.slot, Slot::Send { .. });
        let cq = if sends { &self.send_cq } else { &self.recv_cq };
        let Some(cq) = cq.get() else {
            return;
        };
        if fault::strike(Fault::LoseCompletion, &[self.number()]).is_some() {
            return;
        }
        if self.frees_at_completion() {
            self.give_slot_back(cqe.slot);
            cqe.slot = Slot::None;
        }
        if self.is_delayed.load(Acquire) || fault::is_armed(Fault::DelayCompletion) {
            let mut delay = self.delay.lock();
            let mut struck = None;
            if delay.is_none() {
                struck = fault::strike(Fault::DelayCompletion, &[self.number()]);
                if let Some(hit) = struck {
                    held::start_delay(hit.id, self, &mut delay);
                    self.is_delayed.store(true, Release);
                }
            }
            if let Some(waiting) = delay.as_mut() {
                waiting.add(cq, cqe);
                drop(delay);
                if let Some(hit) = struck.filter(|hit| !fault::holds(hit.id)) {
                    held::release(hit.id, work);
                }
                return;
            }
        }
        cq.push(cqe, work);
    }

    /// The posted send work request of this running number.
    pub fn fetch(&self, number: u64) -> Option<Wqe> {
        self.sq.lock().get(number)
    }

    /// Moves to the error state. True if it was not there yet; then `flush_receives` follows.
    pub fn enter_error(&self) -> bool {
        loop {
            let from = self.state();
            if matches!(from, IBV_QPS_RESET | IBV_QPS_ERR) {
                return false;
            }
            if self.change_state(from, IBV_QPS_ERR) {
                return true;
            }
        }
    }

    /// In the error state: the receives are completed as flushed, and so will be the sends by
    /// whoever runs the queue next.
    pub fn flush_receives(&'static self, rq: &mut Rq, work: &mut Work) {
        rq.flush(self, work);
        if self.srq.get().is_some() {
            async_event::raise_qp(self, IBV_EVENT_QP_LAST_WQE_REACHED);
        }
        work.kick(self, self.live.id());
    }

    /// Fails as a whole. True if it had not failed yet.
    pub fn fail(&'static self, work: &mut Work) -> bool {
        let new = self.enter_error();
        // Packets that saw the old state are placed when the lock is free.
        let mut rq = self.rq.lock();
        if new {
            self.flush_receives(&mut rq, work);
        }
        new
    }
}

/// What a QP is made from.
pub struct Request {
    pub pd: *mut ibv_pd,
    pub attr: *mut ibv_qp_init_attr,
    /// The operations of an extended QP.
    pub send_ops: Option<u64>,
}

fn check_caps(cap: &ibv_qp_cap, limits: &Limits, shared: bool) -> Result<(), c_int> {
    let fits = cap.max_send_wr <= limits.max_qp_wr
        && cap.max_send_sge <= limits.max_sge
        && cap.max_inline_data <= limits.max_inline
        && (shared || (cap.max_recv_wr <= limits.max_qp_wr && cap.max_recv_sge <= limits.max_sge));
    if fits {
        return Ok(());
    }
    Err(libc::EINVAL)
}

/// # Safety
/// The request's pointers are the application's.
pub unsafe fn make(request: Request) -> Result<&'static Qp, c_int> {
    let pd = unsafe { object::get::<Pd>(request.pd)? };
    if request.attr.is_null() {
        return Err(libc::EINVAL);
    }
    let attr = unsafe { &mut *request.attr };
    model::kernel_call();
    context::refuse_if_fatal()?;
    let context = pd.context();
    if attr.qp_type != IBV_QPT_RC {
        counters::unsupported("ibv_create_qp");
        return Err(libc::EOPNOTSUPP);
    }
    let send_cq = unsafe { object::get::<Cq>(attr.send_cq)? };
    let recv_cq = unsafe { object::get::<Cq>(attr.recv_cq)? };
    let srq = match attr.srq.is_null() {
        true => None,
        false => Some(unsafe { object::get::<Srq>(attr.srq)? }),
    };
    for other in [send_cq.context(), recv_cq.context()] {
        if !std::ptr::eq(other, context) {
            return Err(libc::EINVAL);
        }
    }
    check_caps(&attr.cap, &context.limits, srq.is_some())?;
    if srq.is_some() {
        attr.cap.max_recv_wr = 0;
        attr.cap.max_recv_sge = 0;
    }
    context.qps.take()?;
    let Some(number) = NUMBERS.take() else {
        context.qps.give();
        return Err(libc::ENOMEM);
    };
    let cap = attr.cap;
    let qp = POOL.take(Qp::fresh);
    qp.number.store(number, Relaxed);
    qp.state.store(IBV_QPS_RESET, Release);
    qp.pd.set(Some(pd));
    qp.domain.store(pd.number(), Relaxed);
    qp.context.set(Some(context));
    qp.send_cq.set(Some(send_cq));
    qp.recv_cq.set(Some(recv_cq));
    qp.srq.set(srq);
    qp.sig_all.store(attr.sq_sig_all != 0, Relaxed);
    *qp.sq.lock() = Sq::new(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data);
    *qp.rq.lock() = Rq { ring: Ring::new(cap.max_recv_wr, cap.max_recv_sge), ..Rq::default() };
    qp.sq_slots.restart(0);
    qp.rq_slots.restart(0);
    *qp.exec.lock() = Exec::default();
    qp.pending.store(false, Release);
    qp.tell_drained.store(false, Release);
    qp.waits.store(false, Release);
    *qp.delay.lock() = None;
    qp.is_delayed.store(false, Release);
    *qp.attributes.lock() = Attributes::new(attr);
    qp.windows.store(0, Release);
    qp.acks.open();
    let unlocked = pd.is_unlocked();
    qp.post_lock.set_unlocked(unlocked);
    qp.is_owned.store(unlocked || request.send_ops.is_some(), Relaxed);
    qp.is_extended.store(request.send_ops.is_some(), Relaxed);
    qp.send_ops.store(request.send_ops.unwrap_or(u64::MAX), Relaxed);
    // SAFETY: nobody else uses the object yet.
    unsafe {
        let base = &mut *qp.base.get();
        *base = std::mem::zeroed();
        base.qp_base.context = context.as_c();
        base.qp_base.qp_context = attr.qp_context;
        base.qp_base.pd = request.pd;
        base.qp_base.send_cq = attr.send_cq;
        base.qp_base.recv_cq = attr.recv_cq;
        base.qp_base.srq = attr.srq;
        base.qp_base.handle = number;
        base.qp_base.qp_num = number;
        base.qp_base.state = IBV_QPS_RESET as _;
        base.qp_base.qp_type = IBV_QPT_RC as _;
    }
    // From here on the object's users know it. One that is being destroyed under our hands is
    // the application's race; it is not used after that by us.
    pd.users.enter();
    for cq in [send_cq, recv_cq] {
        cq.users.enter();
        cq.attach(qp);
    }
    if let Some(srq) = srq {
        srq.users.enter();
    }
    qp.live.begin(Qp::MAGIC);
    TABLE.entry(number).0.set(Some(qp));
    Ok(qp)
}

/// # Safety
/// `pd` came from this device, `attr` is readable and writable.
#[no_mangle]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    guard_ptr(|| {
        let request = Request { pd, attr, send_ops: None };
        Ok(unsafe { make(request)? }.as_c())
    })
}

/// Nothing of a QP runs any more, nobody finds it, and what was posted is gone without
/// completions.
fn silence(qp: &'static Qp, work: &mut Work) {
    TABLE.entry(qp.number()).0.set(None);
    // Packets in other threads see the state and stop; then their locks are free.
    qp.state.store(IBV_QPS_RESET, Release);
    qp.exec.lock().discard(qp);
    qp.rq.lock().discard(qp, work);
    *qp.delay.lock() = None;
}

/// Gives up what a silenced QP has.
fn retire(qp: &'static Qp) {
    *qp.exec.lock() = Exec::default();
    *qp.rq.lock() = Rq::default();
    for cq in [qp.send_cq.get(), qp.recv_cq.get()].into_iter().flatten() {
        cq.detach(qp);
        cq.users.leave();
    }
    *qp.sq.lock() = Sq::default();
    if let Some(srq) = qp.srq.get() {
        srq.users.leave();
    }
    if let Some(pd) = qp.pd.get() {
        pd.users.leave();
    }
    qp.context().qps.give();
    NUMBERS.put(qp.number());
    POOL.put(qp);
}

/// # Safety
/// `qp` came from this device.
#[no_mangle]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    guard_int(|| {
        let qp = unsafe { object::get::<Qp>(qp)? };
        model::kernel_call();
        if context::is_fatal() {
            if qp.live.end() {
                ZOMBIES.lock().push(qp);
            }
            return Ok(());
        }
        let windows = qp.windows.load(Acquire);
        if windows != 0 {
            misuse::report(
                Rule::DestroyQpBound,
                qp.number(),
                0,
                format_args!("a queue pair was destroyed with {windows} windows bound to it"),
            );
        }
        let mut work = Work::new();
        silence(qp, &mut work);
        work.finish();
        // No event is raised any more; acknowledging those that were taken needs a living object.
        qp.context().events.remove(|e| matches!(e.subject, Subject::Qp(other) if std::ptr::eq(other, qp)));
        qp.acks.wait_all();
        if !qp.live.end() {
            return Err(libc::EINVAL);
        }
        retire(qp);
        Ok(())
    })
}

pub fn destroy_all_of(context: &Context) {
    let mut work = Work::new();
    for number in 0..NUMBERS.high_water() {
        if let Some(qp) = find(number).filter(|qp| std::ptr::eq(qp.context(), context)) {
            if qp.live.end() {
                silence(qp, &mut work);
                retire(qp);
            }
        }
    }
    work.finish();
}

pub fn drop_zombies() {
    let zombies: Vec<_> = ZOMBIES.lock().drain(..).collect();
    let mut work = Work::new();
    for qp in zombies {
        silence(qp, &mut work);
        retire(qp);
    }
    work.finish();
}

/// # Safety
/// `qp` came from this device.
#[no_mangle]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    match unsafe { object::get::<Qp>(qp) } {
        Ok(found) if found.is_extended.load(Relaxed) => qp.cast(),
        _ => std::ptr::null_mut(),
    }
}
