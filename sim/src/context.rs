//! An opened device.

use crate::async_event::{Event, Subject};
use crate::guard::{guard, guard_int, guard_ptr};
use crate::limits::Limits;
use crate::misuse::{self, Rule};
use crate::model::{self, Profile};
use crate::notify::Notifier;
use crate::object::Live;
use crate::{async_event, counters, cq, device, ext, mr, mw, pd, post, qp, srq};
use libc::{c_char, c_int, c_void};
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::mem::{size_of, MaybeUninit};
use std::ptr::addr_of;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use verbs::*;

const MAGIC: u32 = 0x6374_7831;

/// How many of a kind there are, and how many there may be.
pub struct Quota {
    used: AtomicU32,
    limit: u32,
}

impl Quota {
    fn new(limit: u32) -> Self {
        Self { used: AtomicU32::new(0), limit }
    }

    /// ENOMEM at the limit.
    pub fn take(&self) -> Result<(), c_int> {
        self.used
            .fetch_update(AcqRel, Acquire, |n| (n < self.limit).then_some(n + 1))
            .map(drop)
            .map_err(|_| libc::ENOMEM)
    }

    pub fn give(&self) {
        self.used.fetch_sub(1, AcqRel);
    }
}

/// The application's `ibv_context` lies inside `base`, at its end.
#[repr(C)]
pub struct Context {
    base: UnsafeCell<verbs_context>,
    live: Live,
    pub events: Notifier<Event>,
    pub profile: Profile,
    pub limits: Limits,
    pub qps: Quota,
    pub cqs: Quota,
    pub mrs: Quota,
    pub mws: Quota,
    pub pds: Quota,
    pub srqs: Quota,
}

// SAFETY: `base` is written once, before anybody else knows the context; the rest is Sync.
unsafe impl Sync for Context {}
// SAFETY: as above.
unsafe impl Send for Context {}

/// All contexts that are open.
static OPEN: Mutex<Vec<&'static Context>> = Mutex::new(Vec::new());

/// Those that were closed: kept, so that a late use is told from a wild pointer.
static CLOSED: Mutex<Vec<&'static Context>> = Mutex::new(Vec::new());

/// A fatal error was ordered: objects are no longer made, and destroying them is faked.
static FATAL: AtomicBool = AtomicBool::new(false);

pub fn is_fatal() -> bool {
    FATAL.load(Acquire)
}

/// What a call that makes something answers after a fatal error.
pub fn refuse_if_fatal() -> Result<(), c_int> {
    if is_fatal() {
        return Err(libc::EIO);
    }
    Ok(())
}

pub fn strike_fatal() {
    FATAL.store(true, Release);
    for context in OPEN.lock().iter() {
        async_event::raise(context, Subject::Port(0), IBV_EVENT_DEVICE_FATAL);
    }
}

/// The device comes back. What it had kept although its destruction was reported done is gone.
pub fn recover() {
    if FATAL.swap(false, AcqRel) {
        qp::drop_zombies();
        mw::drop_zombies();
        mr::drop_zombies();
    }
}

fn offset_of_context() -> usize {
    let room = MaybeUninit::<verbs_context>::uninit();
    let start = room.as_ptr();
    // SAFETY: both pointers are into `room`, and nothing of it is read.
    unsafe { addr_of!((*start).context).cast::<u8>().offset_from(start.cast()) as usize }
}

impl Context {
    /// # Safety
    /// `c` is NULL or was opened on this device.
    pub unsafe fn get(c: *mut ibv_context) -> Result<&'static Self, c_int> {
        if c.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the application's context is inside one of ours, and those are never freed.
        let context = unsafe { &*c.cast::<u8>().sub(offset_of_context()).cast::<Self>() };
        if context.live.is(MAGIC) {
            return Ok(context);
        }
        misuse::report(
            Rule::UseAfterFree,
            0,
            0,
            format_args!("the context at {c:p} was used after it was closed"),
        );
        Err(libc::EINVAL)
    }

    pub fn as_c(&self) -> *mut ibv_context {
        self.base.get().cast::<u8>().wrapping_add(offset_of_context()).cast()
    }
}

fn open(device: *mut ibv_device) -> Result<*mut ibv_context, c_int> {
    model::load();
    refuse_if_fatal()?;
    if device != device::the_device() {
        return Err(libc::ENODEV);
    }
    let profile = model::profile();
    let limits = Limits::of(profile);
    let events = Notifier::new()?;
    let context: &'static Context = Box::leak(Box::new(Context {
        // SAFETY: numbers, pointers and optional functions, all of which may be zero.
        base: UnsafeCell::new(unsafe { std::mem::zeroed() }),
        live: Live::new(),
        events,
        profile,
        limits,
        qps: Quota::new(limits.max_qp),
        cqs: Quota::new(limits.max_cq),
        mrs: Quota::new(limits.max_mr),
        mws: Quota::new(limits.max_mw),
        pds: Quota::new(limits.max_pd),
        srqs: Quota::new(limits.max_srq),
    }));
    // SAFETY: nobody else knows the context yet.
    let base = unsafe { &mut *context.base.get() };
    base.sz = size_of::<verbs_context>();
    base.query_port = Some(device::query_port_full);
    base.query_device_ex = Some(device::query_device_ex);
    base.create_cq_ex = Some(cq::create_cq_ex);
    base.modify_cq = Some(cq::modify_cq);
    base.create_qp_ex = Some(ext::create_qp_ex);
    base.create_srq_ex = Some(srq::create_srq_ex);
    base.alloc_td = Some(pd::alloc_td);
    base.dealloc_td = Some(pd::dealloc_td);
    base.alloc_parent_domain = Some(pd::alloc_parent_domain);
    let c = &mut base.context;
    c.device = device;
    c.cmd_fd = -1;
    c.async_fd = context.events.fd();
    c.num_comp_vectors = 2;
    c.abi_compat = usize::MAX as *mut c_void;
    let ops = &mut c.ops;
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(srq::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    context.live.begin(MAGIC);
    OPEN.lock().push(context);
    Ok(context.as_c())
}

/// # Safety
/// `device` came from `ibv_get_device_list`.
#[no_mangle]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    guard_ptr(|| open(device))
}

/// Closes the device. As in the kernel, what is still open on it goes with it.
///
/// # Safety
/// `context` was opened on this device.
#[no_mangle]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    guard_int(|| {
        let context = unsafe { Context::get(context)? };
        let left = context.qps.used.load(Acquire)
            + context.cqs.used.load(Acquire)
            + context.mrs.used.load(Acquire)
            + context.mws.used.load(Acquire)
            + context.pds.used.load(Acquire)
            + context.srqs.used.load(Acquire);
        // What a dead device holds stays in it until it recovers.
        if left != 0 && !is_fatal() {
            misuse::report(
                Rule::DestroyBusy,
                0,
                0,
                format_args!("the device was closed with {left} objects still open on it"),
            );
            qp::destroy_all_of(context);
            mw::destroy_all_of(context);
            mr::destroy_all_of(context);
        }
        OPEN.lock().retain(|c| !std::ptr::eq(*c, context));
        CLOSED.lock().push(context);
        context.live.end();
        context.events.close();
        Ok(())
    })
}

// Fork: the device is the process, and a child that does not touch it does no harm.

#[no_mangle]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[no_mangle]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    const UNNEEDED: c_int = 2;
    UNNEEDED
}

#[no_mangle]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

#[no_mangle]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

// sysfs: the device has no files there.

#[no_mangle]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    b"/sys\0".as_ptr().cast()
}

/// # Safety
/// `dir` and `file` are strings; `buf` is not written.
#[no_mangle]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    _dir: *const c_char,
    file: *const c_char,
    _buf: *mut c_char,
    _size: usize,
) -> c_int {
    guard(-1, || {
        counters::unsupported("ibv_read_sysfs_file");
        // librdmacm asks for its kernel part first of all, by this call.
        // SAFETY: a NUL-terminated string of the caller.
        let name = (!file.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(file) });
        if name.is_some_and(|n| n.to_bytes().windows(7).any(|w| w == b"rdma_cm")) {
            eprintln!("mwctl-sim: rdma_cm needs the real device; connect queue pairs by ibv_modify_qp");
        }
        verbs::set_errno(libc::ENOENT);
        -1
    })
}

/// # Safety
/// Nothing is read or written.
#[no_mangle]
pub unsafe extern "C" fn ibv_read_ibdev_sysfs_file(
    _buf: *mut c_char,
    _size: usize,
    _device: *mut c_void,
    _format: *const c_char,
) -> c_int {
    counters::unsupported("ibv_read_ibdev_sysfs_file");
    verbs::set_errno(libc::ENOENT);
    -1
}
