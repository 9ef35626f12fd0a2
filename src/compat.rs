//! Programs written for Type 1 windows, changed over by `mwctl_compat.h`: what is known of their
//! verbs objects, in the whole process. Each call does what the verbs call of its name does.

use std::cell::{RefCell, UnsafeCell};
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};

use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::adopt::errno_of;
use crate::bind::{Ask, Bound, Span};
use crate::context::{Context, ContextOptions, Severity};
use crate::cq::Mode;
use crate::device::{Cq, Device, Errno, Mr, OwnMw, Pd, Qp};
use crate::domain::DomainOptions;
use crate::fork;
use crate::peer::PeerOptions;
use crate::region::{RIGHTS, RegionOptions};
use crate::status::Status;

pub type Answer<T> = std::result::Result<T, Errno>;

/// Hears a message.
pub type OnMessage = Arc<dyn Fn(&CStr) + Send + Sync>;

/// A window as the application sees it. The device's own windows come and go behind it.
#[repr(C)]
struct Window {
    /// First: its address is the application's handle.
    seen: UnsafeCell<verbs::ibv_mw>,
    ctx: Arc<Context>,
    domain: u64,
    body: Mutex<WindowBody>,
}

// SAFETY: `seen` is written under the body's lock, and read by the application as verbs has it: not
// during a call that may change it.
unsafe impl Sync for Window {}
// SAFETY: as above.
unsafe impl Send for Window {}

#[derive(Default)]
struct WindowBody {
    /// Its grants that are not known to have ended.
    held: Vec<u64>,
    /// The one that it is bound to.
    bound: Option<u64>,
    /// The region that it was last bound to.
    region: Option<u64>,
    gone: bool,
}

/// What an MR was registered with.
#[derive(Clone, Copy)]
struct Declared {
    iova: u64,
    access: u32,
}

#[derive(Default)]
struct Known {
    contexts: RwLock<Vec<(Device, Arc<Context>)>>,
    opening: Mutex<()>,
    windows: Mutex<HashMap<usize, Arc<Window>>>,
    regions: Mutex<HashMap<Mr, Declared>>,
    /// Send-queue entries of each.
    qps: Mutex<HashMap<Qp, u32>>,
    cqs: Mutex<HashSet<Cq>>,
    on_message: Mutex<Option<OnMessage>>,
}

static KNOWN: LazyLock<Known> = LazyLock::new(Known::default);

/// What is known; nothing in a forked child, where a thread that is not there may hold the lock for
/// ever. The child's verbs calls are its own.
fn open<T>(book: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    (!fork::is_child()).then(|| book.lock())
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Entries of a send queue besides twice what the application asked for: a request for a
/// completion that it did not ask for.
const ROOM: u32 = 4;
/// Entries of a completion queue besides twice what the application asked for.
const ENTRIES: i32 = 64;
const RESERVE: u32 = 8;

// ---- messages ----

pub fn on_message(call: Option<OnMessage>) {
    *KNOWN.on_message.lock() = call;
}

/// Why this thread's last call was refused, or what it warned of.
pub fn last_message() -> *const libc::c_char {
    LAST.with_borrow(|text| text.as_ptr())
}

pub fn say(text: String) {
    let text = CString::new(text).unwrap_or_default();
    let call = open(&KNOWN.on_message).and_then(|call| call.clone());
    if let Some(call) = call {
        call(&text);
    }
    LAST.set(text);
}

fn refuse<T>(error: i32, text: &str) -> Answer<T> {
    say(text.to_string());
    Err(Errno(error))
}

fn refused<T>(call: &str, status: Status) -> Answer<T> {
    say(format!("{call}: {}", status.text().to_string_lossy()));
    Err(errno_of(status))
}

// ---- contexts ----

fn context_of(device: *mut verbs::ibv_context) -> Option<Arc<Context>> {
    if fork::is_child() {
        return None;
    }
    let contexts = KNOWN.contexts.read();
    contexts.iter().find(|(known, _)| known.raw() == device).map(|(_, ctx)| ctx.clone())
}

/// The device's context, opened if it is not. May wait.
pub fn context_for(device: Device) -> Answer<Arc<Context>> {
    let _one_at_a_time = KNOWN.opening.lock();
    if let Some(known) = context_of(device.raw()) {
        return Ok(known);
    }
    let log = |severity: Severity, text: &str| {
        if severity == Severity::Error {
            say(text.to_string());
        }
    };
    let options = ContextOptions { log: Some(Box::new(log)), ..ContextOptions::default() };
    match Context::open(device, options) {
        Ok(ctx) => {
            let ctx = Arc::new(ctx);
            KNOWN.contexts.write().push((device, ctx.clone()));
            Ok(ctx)
        }
        Err(Status::AlreadyAttached) => refuse(
            libc::EBUSY,
            "the device is under management by mwctl_context_open: use mwctl_compat_context instead",
        ),
        Err(status) => refused("ibv_alloc_mw", status),
    }
}

/// Whether this context is closed by `ibv_close_device` alone.
pub fn owns(ctx: &Context) -> bool {
    KNOWN.contexts.read().iter().any(|(_, known)| std::ptr::eq(&**known, ctx))
}

pub fn close_device(device: Device) -> Answer<()> {
    if fork::is_child() {
        return device.close();
    }
    let known = {
        let mut contexts = KNOWN.contexts.write();
        let at = contexts.iter().position(|(known, _)| *known == device);
        at.map(|at| contexts.swap_remove(at))
    };
    if let Some((_, ctx)) = &known {
        let _ = ctx.service_stop();
        KNOWN.windows.lock().retain(|_, window| !Arc::ptr_eq(&window.ctx, ctx));
    }
    drop(known);
    device.close()
}

pub fn dealloc_pd(pd: Pd) -> Answer<()> {
    if let Some(ctx) = context_of(pd.device()) {
        // SAFETY: read only; the PD of a window never changes.
        let used = |window: &Arc<Window>| unsafe { (*window.seen.get()).pd } == pd.raw();
        if KNOWN.windows.lock().values().any(used) {
            return refuse(libc::EBUSY, "ibv_dealloc_pd: the PD has memory windows");
        }
        if let Ok(domain) = ctx.domain_of(pd) {
            ctx.domain_close(domain).or_else(|status| refused("ibv_dealloc_pd", status))?;
        }
    }
    pd.dealloc()
}

// ---- regions ----

pub fn reg_mr(pd: Pd, addr: *mut libc::c_void, length: usize, iova: u64, access: u32) -> Answer<Mr> {
    let mr = pd.register_iova(addr, length, iova, access)?;
    open(&KNOWN.regions).map(|mut regions| regions.insert(mr, Declared { iova, access }));
    Ok(mr)
}

/// May wait for rights that are being ended.
pub fn dereg_mr(mr: Mr) -> Answer<()> {
    if let Some((ctx, region)) =
        context_of(mr.device()).and_then(|ctx| Some((ctx.clone(), ctx.region_of(mr).ok()?)))
    {
        let ended = ctx.settle_region(region).and_then(|()| ctx.region_detach(region));
        match ended {
            Ok(()) => {}
            Err(Status::Busy) => return refuse(libc::EBUSY, "ibv_dereg_mr: a window is bound to the region"),
            Err(status) => return refused("ibv_dereg_mr", status),
        }
    }
    let declared = open(&KNOWN.regions).and_then(|mut regions| regions.remove(&mr));
    mr.deregister().inspect_err(|_| {
        if let Some(declared) = declared {
            KNOWN.regions.lock().insert(mr, declared);
        }
    })
}

/// The region of an MR, attached if it is not.
fn region_for(ctx: &Context, domain: u64, mr: Mr) -> Answer<u64> {
    if let Ok(region) = ctx.region_of(mr) {
        return Ok(region);
    }
    let Some(declared) = KNOWN.regions.lock().get(&mr).copied() else {
        return refuse(
            libc::EOPNOTSUPP,
            "ibv_bind_mw: the region was not registered by ibv_reg_mr under mwctl_compat.h",
        );
    };
    let options = RegionOptions {
        iova: declared.iova,
        access: declared.access,
        block: 0,
        allow_open_parent: true,
        device_memory: false,
        short: false,
        grantable: RIGHTS,
    };
    match ctx.region_attach(domain, mr, options) {
        Ok(region) => {
            if declared.access & RIGHTS != 0 {
                say(format!(
                    "the region at {:#x} was registered with remote access: mr->rkey stays open whatever \
                     is unbound; MWCTL_COMPAT_STRIP_REMOTE takes the flags away",
                    declared.iova
                ));
            }
            Ok(region)
        }
        // Another thread was faster.
        Err(Status::AlreadyAttached) => ctx.region_of(mr).or_else(|_| {
            refuse(libc::EBUSY, "ibv_bind_mw: a region at this address was deregistered unseen")
        }),
        Err(status) => refused("ibv_bind_mw", status),
    }
}

// ---- queues ----

/// With room for the completions that the application doesn't ask for, and those of two requests
/// where it posts one.
fn with_room(cqe: i32) -> i32 {
    cqe.saturating_mul(2).saturating_add(ENTRIES)
}

fn scant(call: &str, cqe: i32) -> String {
    format!("{call}: the device has no room for the completions of more than {cqe} requests")
}

pub fn create_cq(
    device: Device,
    cqe: i32,
    context: *mut libc::c_void,
    channel: *mut verbs::ibv_comp_channel,
    vector: i32,
) -> Answer<Cq> {
    let create = |cqe| device.create_cq(cqe, context, channel, vector);
    let cq = if cqe > 0 { create(with_room(cqe)).or_else(|_| create(cqe))? } else { create(cqe)? };
    if cq.entries() < with_room(cqe).max(0) as u64 {
        say(scant("ibv_create_cq", cqe));
    }
    open(&KNOWN.cqs).map(|mut cqs| cqs.insert(cq));
    Ok(cq)
}

pub fn resize_cq(cq: Cq, cqe: i32) -> Answer<()> {
    if cqe <= 0 {
        return cq.resize(cqe);
    }
    cq.resize(with_room(cqe)).or_else(|_| {
        cq.resize(cqe)?;
        say(scant("ibv_resize_cq", cqe));
        Ok(())
    })
}

pub fn destroy_cq(cq: Cq) -> Answer<()> {
    let ctx = context_of(cq.device());
    // While a client uses it the device refuses.
    let kept = ctx.as_ref().and_then(|ctx| ctx.queues.forget(cq.raw()).ok()).unwrap_or_default();
    let known = open(&KNOWN.cqs).is_some_and(|mut cqs| cqs.remove(&cq));
    cq.destroy().inspect_err(|_| {
        if known {
            KNOWN.cqs.lock().insert(cq);
        }
        if let Some(ctx) = ctx {
            ctx.queues.remember(cq.raw(), kept);
        }
    })
}

/// As `ibv_poll_cq`. Never waits.
pub fn poll_cq(cq: Cq, out: &mut [MaybeUninit<verbs::ibv_wc>]) -> Answer<usize> {
    match context_of(cq.device()) {
        Some(ctx) => ctx.poll_cq(cq, out),
        None => cq.poll(out),
    }
}

pub fn create_qp(pd: Pd, attr: &mut verbs::ibv_qp_init_attr) -> Answer<Qp> {
    if attr.qp_type != verbs::IBV_QPT_RC {
        return pd.create_qp(attr);
    }
    // A bind of a bound window takes two entries, where Type 1 takes one.
    let asked = attr.cap.max_send_wr;
    let mut wider = *attr;
    wider.cap.max_send_wr = asked.saturating_mul(2).saturating_add(ROOM);
    let budget = wider.cap.max_send_wr;
    match pd.create_qp(&mut wider) {
        Ok(qp) => {
            attr.cap = wider.cap;
            attr.cap.max_send_wr = asked;
            open(&KNOWN.qps).map(|mut qps| qps.insert(qp, budget));
            Ok(qp)
        }
        Err(_) => {
            let qp = pd.create_qp(attr)?;
            say(format!(
                "ibv_create_qp: no queue of {budget} entries; where it is full of {asked}, a bind of a bound \
                 window needs two"
            ));
            open(&KNOWN.qps).map(|mut qps| qps.insert(qp, asked.max(1)));
            Ok(qp)
        }
    }
}

/// Before a QP is destroyed or reset: all rights on it end. May wait.
fn leave(qp: Qp, call: &str) -> Answer<()> {
    match context_of(qp.device()) {
        Some(ctx) => ctx.detach_qp(qp).or_else(|status| refused(call, status)),
        None => Ok(()),
    }
}

pub fn modify_qp(qp: Qp, attr: &mut verbs::ibv_qp_attr, mask: u32) -> Answer<()> {
    if mask & verbs::IBV_QP_STATE != 0 && attr.qp_state == verbs::IBV_QPS_RESET {
        leave(qp, "ibv_modify_qp")?;
    }
    qp.modify(attr, mask)
}

pub fn destroy_qp(qp: Qp) -> Answer<()> {
    leave(qp, "ibv_destroy_qp")?;
    let budget = open(&KNOWN.qps).and_then(|mut qps| qps.remove(&qp));
    qp.destroy().inspect_err(|_| {
        if let Some(budget) = budget {
            KNOWN.qps.lock().insert(qp, budget);
        }
    })
}

// ---- windows ----

/// The application's window at an address, if it is one of these. Refused in a forked child.
fn window_at(mw: NonNull<verbs::ibv_mw>, call: &str) -> Answer<Option<Arc<Window>>> {
    match open(&KNOWN.windows) {
        Some(windows) => Ok(windows.get(&(mw.as_ptr() as usize)).cloned()),
        // SAFETY: the application's window, ours or its own.
        None if unsafe { mw.as_ref() }.type_ == verbs::IBV_MW_TYPE_1 => refused(call, Status::Forked),
        None => Ok(None),
    }
}

/// May wait: a kernel call.
pub fn alloc_mw(pd: Pd, mw_type: u32) -> Answer<NonNull<verbs::ibv_mw>> {
    if mw_type != verbs::IBV_MW_TYPE_1 {
        let own = OwnMw::alloc(pd, mw_type)?;
        return NonNull::new(own.raw()).ok_or(Errno(libc::EIO));
    }
    if fork::is_child() {
        return refused("ibv_alloc_mw", Status::Forked);
    }
    // SAFETY: the device of a PD that lives, lives.
    let device = unsafe { Device::new(NonNull::new(pd.device()).ok_or(Errno(libc::EINVAL))?) };
    let ctx = context_for(device)?;
    let opened = ctx.domain_for(pd, DomainOptions { reserve: RESERVE, ..DomainOptions::default() });
    let domain = opened.or_else(|status| refused("ibv_alloc_mw", status))?;
    let taken = ctx.domain(domain).and_then(|(index, _)| ctx.refill(index, RESERVE as usize));
    taken.or_else(|status| refused("ibv_alloc_mw", status))?;
    let seen = verbs::ibv_mw {
        context: pd.device(),
        pd: pd.raw(),
        rkey: 0,
        handle: u32::MAX,
        type_: verbs::IBV_MW_TYPE_1,
    };
    let window = Arc::new(Window {
        seen: UnsafeCell::new(seen),
        ctx,
        domain,
        body: Mutex::new(WindowBody::default()),
    });
    let handle = NonNull::new(window.seen.get()).ok_or(Errno(libc::EIO))?;
    KNOWN.windows.lock().insert(handle.as_ptr() as usize, window);
    Ok(handle)
}

/// May wait for a request for the window that is under way.
pub fn dealloc_mw(mw: NonNull<verbs::ibv_mw>) -> Answer<()> {
    let Some(window) = window_at(mw, "ibv_dealloc_mw")? else {
        // SAFETY: the application's own window.
        return unsafe { OwnMw::new(mw) }.dealloc();
    };
    let held = {
        let mut body = window.body.lock();
        body.gone = true;
        body.held.clone()
    };
    if let Err(status) = window.ctx.end_now(&held) {
        window.body.lock().gone = false;
        return refused("ibv_dealloc_mw", status);
    }
    KNOWN.windows.lock().remove(&(mw.as_ptr() as usize));
    Ok(())
}

/// As `ibv_bind_mw`: posted when it returns, in the order of the application's own requests.
pub fn bind_mw(qp: Qp, mw: NonNull<verbs::ibv_mw>, bind: &mut verbs::ibv_mw_bind) -> Answer<()> {
    let Some(window) = window_at(mw, "ibv_bind_mw")? else {
        // SAFETY: the application's own window.
        return unsafe { OwnMw::new(mw) }.bind(qp, bind);
    };
    let info = &bind.bind_info;
    // SAFETY: the application's region, or NULL.
    let mr = NonNull::new(info.mr).map(|mr| unsafe { Mr::new(mr) });
    // SAFETY: only read; the application may not bind one window from two threads at once.
    let pd = unsafe { (*window.seen.get()).pd };
    match mr {
        None if info.addr != 0 || info.length != 0 => return Err(Errno(libc::EINVAL)),
        Some(mr) if mr.pd() != pd => return Err(Errno(libc::EPERM)),
        _ => {}
    }
    let peer = peer_for(&window, qp)?;
    let mut body = window.body.lock();
    if body.gone {
        return Err(Errno(libc::EINVAL));
    }
    let named = match mr {
        Some(mr) => Some(region_for(&window.ctx, window.domain, mr)?),
        None => {
            let last = body.region.filter(|region| window.ctx.region_facts(*region).is_ok());
            last.or_else(|| window.ctx.any_region(window.domain))
        }
    };
    let signaled = bind.send_flags & verbs::IBV_SEND_SIGNALED != 0;
    let Some(region) = named else {
        if signaled || window.ctx.signals_all(peer) {
            return refuse(
                libc::EOPNOTSUPP,
                "ibv_bind_mw: no region of the PD is known yet that could bring a completion",
            );
        }
        // Without a region there is no right: it ended with its queue pair, or the client gave it back.
        body.bound = None;
        // SAFETY: under the body's lock.
        unsafe { (*window.seen.get()).rkey = 0 };
        return Ok(());
    };
    let span = Span { region, addr: info.addr, length: info.length, access: info.mw_access_flags };
    let first = bind.send_flags & verbs::IBV_SEND_FENCE;
    let ask = Ask { wr_id: bind.wr_id, signaled, first };
    let done = window.ctx.bind_now(peer, body.bound, &span, ask);
    body.held.retain(|grant| window.ctx.grant_facts(*grant).is_ok());
    let (grant, rkey, answer) = match done {
        Ok(Bound::To(grant, rkey)) => (Some(grant), rkey, Ok(())),
        Ok(Bound::Unbound) => (None, 0, Ok(())),
        Ok(Bound::Lost(error)) => {
            say("ibv_bind_mw: the queue was full behind the end of the old right; the window is unbound"
                .into());
            (None, 0, Err(error))
        }
        Ok(Bound::Unclear(error, grant)) => {
            say("ibv_bind_mw: the device does not say whether it was posted".into());
            ((grant != 0).then_some(grant), 0, Err(error))
        }
        Ok(Bound::NoRoom) => return refuse(libc::ENOMEM, "ibv_bind_mw: the send queue has no room"),
        Ok(Bound::Refused(error)) => return Err(error),
        Err(Status::MixedPeers) => {
            return refuse(
                libc::EOPNOTSUPP,
                "ibv_bind_mw: the window is bound on another queue pair: unbind it there first",
            );
        }
        Err(Status::RangeUncertain) => {
            return refuse(libc::EBUSY, "ibv_bind_mw: a right to this memory was not proved gone");
        }
        Err(status) => return refused("ibv_bind_mw", status),
    };
    body.held.extend(grant);
    body.bound = grant;
    body.region = Some(region);
    // SAFETY: under the body's lock.
    unsafe { (*window.seen.get()).rkey = rkey };
    answer
}

/// The peer of a QP, attached if it is not.
fn peer_for(window: &Window, qp: Qp) -> Answer<u64> {
    if let Ok(peer) = window.ctx.peer_of(qp) {
        return Ok(peer);
    }
    let Some(budget) = KNOWN.qps.lock().get(&qp).copied() else {
        return refuse(
            libc::EOPNOTSUPP,
            "ibv_bind_mw: not an RC queue pair of ibv_create_qp under mwctl_compat.h",
        );
    };
    // The receive queue, too: a client's SEND_WITH_INV that nobody sees is followed by a LOCAL_INV of what
    // is not bound.
    let polled = {
        let cqs = KNOWN.cqs.lock();
        [qp.send_cq(), qp.recv_cq()].into_iter().flatten().all(|cq| cqs.contains(&cq))
    };
    if !polled {
        return refuse(
            libc::EOPNOTSUPP,
            "ibv_bind_mw: a completion queue is not one of ibv_create_cq under mwctl_compat.h",
        );
    }
    let options = PeerOptions { budget, mode: Mode::Ours, ..PeerOptions::default() };
    window.ctx.peer_for(qp, window.domain, options).or_else(|status| refused("ibv_bind_mw", status))
}
