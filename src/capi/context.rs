//! Contexts.

use std::ffi::{CString, c_char, c_int, c_void};

use std::sync::Arc;

use super::types::*;
use super::{answer, enter, enter_or, options, out};
use crate::context::{Context, ContextOptions, MAX_BIND, Severity};
use crate::device::Device;
use crate::event::Event;
use crate::fork;
use crate::stats::Stats;
use crate::status::{Proof, Result, Status};

/// A pointer of the application's, handed back to it and never followed.
#[derive(Clone, Copy)]
pub struct User(*mut c_void);
// SAFETY: handed back only.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

impl User {
    pub fn new(user: *mut c_void) -> User {
        User(user)
    }

    pub fn get(self) -> *mut c_void {
        self.0
    }
}

/// Takes a device context under management and tries out what it can do. The application keeps
/// it, and must not close it before mwctl_context_close. `size` is sizeof *opts; opts may be
/// NULL with size 0. On an error *ctx is NULL. One
/// context a device context: ALREADY_ATTACHED otherwise. VERBS_ERROR: the device can't be queried.
/// FORKED in a forked child.
/// May wait (a few kernel calls).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_context_open(
    device: *mut verbs::ibv_context,
    opts: *const mwctl_context_options,
    size: usize,
    ctx: *mut *mut mwctl_context,
) -> Status {
    get_ready();
    if fork::is_child() {
        return Status::Forked;
    }
    let open = || -> Result<()> {
        // SAFETY: the caller's pointers, as documented.
        let place = unsafe { out(ctx) }?;
        *place = std::ptr::null_mut();
        let device = std::ptr::NonNull::new(device).ok_or(Status::InvalidArgument)?;
        // SAFETY: as documented.
        let (opts, device) = unsafe { (options(opts, size)?, Device::new(device)) };
        *place = Arc::into_raw(Arc::new(Context::open(device, core_options(opts))?)).cast_mut().cast();
        Ok(())
    };
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(open)).map_or(Status::Poisoned, Status::from)
}

/// What must be there before a context is.
pub fn get_ready() {
    fork::arm();
    silence_panics();
}

/// A caught panic goes to the log, not to the host's stderr. The hook is the library's own: its std
/// is linked in.
fn silence_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

fn core_options(opts: mwctl_context_options) -> ContextOptions {
    let (log_user, event_user) = (User(opts.log_user), User(opts.event_user));
    let log = opts.log.map(|call| -> crate::context::Log {
        Box::new(move |severity: Severity, text: &str| {
            let text = CString::new(text).unwrap_or_default();
            // SAFETY: the application's function, with what it was promised.
            unsafe { call(log_user.get(), severity as i32, text.as_ptr()) }
        })
    });
    let on_event = opts.on_event.map(|call| -> crate::context::OnEvent {
        // SAFETY: the application's function, with what it was promised.
        Box::new(move |event: Event| unsafe { call(event_user.get(), &event) })
    });
    ContextOptions { timeout_us: opts.timeout_us, log, on_event }
}

/// Ends the management. Refused with BUSY while a domain is open: nothing is leaked silently. But what
/// the short calls (mwctl_reg_mr, mwctl_rkey) opened on the way is closed with it, once every queue
/// pair is detached and no right is open; ibv_dereg_mr is then the application's to call. Refused
/// with POISONED after an internal error: such a context stays as it is. WOULD_DEADLOCK from a
/// callback on the service thread. Callbacks that are due come during the call.
/// No other call on the context may be under way. NULL does nothing.
/// May wait (for the service thread, and the callback that it is in).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_context_close(ctx: *mut mwctl_context) -> Status {
    if ctx.is_null() {
        return Status::Ok;
    }
    let closed = enter(ctx, |core| {
        if crate::compat::owns(core) {
            return Err(Status::Busy);
        }
        let adopted = core.closable()?;
        core.service_stop()?;
        core.close_short(&adopted)?;
        // What has ended is heard of before the end.
        core.run_last_callbacks();
        core.check_closable()
    });
    if closed == Status::Ok {
        // SAFETY: made by mwctl_context_open, and not used after this.
        drop(unsafe { Arc::from_raw(ctx.cast::<Context>()) });
    }
    closed
}

/// What the device can do. `size` is sizeof *caps.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_capabilities_get(
    ctx: *mut mwctl_context,
    caps: *mut mwctl_capabilities,
    size: usize,
) -> Status {
    enter(ctx, |core| {
        let known = &core.capabilities;
        let value = mwctl_capabilities {
            type2: known.type2.into(),
            max_mw: known.max_mw,
            rights: known.rights,
            memory_at_rest: known.memory_at_rest.into(),
            max_length: MAX_BIND,
        };
        // SAFETY: as documented.
        unsafe { answer(caps, size, value) }
    })
}

/// Counters since the context was opened. `size` is sizeof *stats.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_stats_get(ctx: *mut mwctl_context, stats: *mut Stats, size: usize) -> Status {
    // SAFETY: as documented.
    enter(ctx, |core| unsafe { answer(stats, size, core.counters.read()) })
}

/// What to add before ibv_create_qp and ibv_create_cq for one peer with this budget (0: 16): the
/// budget to cap->max_send_wr, and to *cqe of the queue pair's send CQ. Every send-queue entry of
/// ours may use one completion-queue entry, an error's included. Call it once for each peer of a
/// shared CQ. Either pointer may be NULL. BUDGET_TOO_LARGE, and nothing added, if a sum exceeds INT_MAX
/// or *cqe is negative.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_size_queues(
    budget: u32,
    cap: *mut verbs::ibv_qp_cap,
    cqe: *mut c_int,
) -> Status {
    let budget = if budget == 0 { crate::peer::DEFAULT_BUDGET } else { budget };
    // SAFETY: the caller's pointers, as documented.
    let (cap, cqe) = unsafe { (cap.as_mut(), cqe.as_mut()) };
    let sum = |value: u32| value.checked_add(budget).filter(|sum| *sum <= i32::MAX as u32);
    let max_send_wr = cap.as_ref().map_or(Some(0), |cap| sum(cap.max_send_wr));
    let entries = cqe.as_ref().map_or(Some(0), |cqe| u32::try_from(**cqe).ok().and_then(sum));
    let (Some(max_send_wr), Some(entries)) = (max_send_wr, entries) else {
        return Status::BudgetTooLarge;
    };
    if let Some(cap) = cap {
        cap.max_send_wr = max_send_wr;
    }
    if let Some(cqe) = cqe {
        *cqe = entries as c_int;
    }
    Status::Ok
}

/// A descriptor for poll or epoll, one a context: readable while mwctl_tick, or for polling OURS
/// mwctl_poll_cq, has something to do, until mwctl_tick has run. It belongs to the context; -1 on an
/// error. A program that makes asynchronous calls sleeps on this beside its completion channels, for
/// no longer than mwctl_next_timeout: deallocations and deadlines make no completion. An asynchronous
/// call with a deadline nearer than that makes it readable, too.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_event_fd(ctx: *mut mwctl_context) -> c_int {
    enter_or(ctx, |_| -1, |core| core.event_fd())
}

/// Nanoseconds until mwctl_tick is due: 0 at once, -1 nothing is planned. For the timeout of the
/// application's loop; the completions of a chain under way are not counted in. It may be earlier
/// than needed, for an operation that has ended meanwhile, and never later. Round it up for a poll that
/// counts in milliseconds.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_next_timeout(ctx: *mut mwctl_context) -> i64 {
    enter_or(ctx, |_| -1, |core| core.next_timeout().map_or(-1, |ns| ns.min(i64::MAX as u64) as i64))
}

/// Does what is due: deallocations, deadlines, posts that found no room, the binds of transfers, refills of
/// the pools (64 windows at most, see mwctl_domain_options.reserve), callbacks. To be called by a busy loop,
/// too, whose queues don't run empty.
/// Never waits for the network or another thread; makes kernel calls where something has to be
/// allocated or deallocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_tick(ctx: *mut mwctl_context) -> Status {
    enter(ctx, |core| {
        core.tick();
        Ok(())
    })
}

/// Starts a thread that ticks when something is due, for a program without a loop: with it
/// deadlines hold though nobody calls. Callbacks may then come on that thread, which has all
/// signals blocked. A loop beside it ticks as ever when the event fd says so: what is for the owner
/// of a queue, or for whoever polls by himself, the thread can't do, and it leaves the event fd as it is.
/// ALREADY_ATTACHED if it runs; NO_MEMORY: no thread is to be had. Ends with mwctl_service_stop, or the context.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_service_start(ctx: *mut mwctl_context) -> Status {
    enter(ctx, |core| {
        // SAFETY: a context is the inside of an Arc, and lives during this call.
        let shared = unsafe {
            Arc::increment_strong_count(core);
            Arc::from_raw(core)
        };
        shared.service_start()
    })
}

/// Ends the thread and waits until it has. Nothing happens without one; from a callback on that
/// thread WOULD_DEADLOCK.
/// May wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_service_stop(ctx: *mut mwctl_context) -> Status {
    enter(ctx, |core| core.service_stop())
}

/// A sentence for a status, never NULL; static.
/// Never waits.
#[unsafe(no_mangle)]
pub extern "C" fn mwctl_status_text(status: i32) -> *const c_char {
    Status::text_of(status).unwrap_or(c"unknown status").as_ptr()
}

/// A sentence for a proof, never NULL; static.
/// Never waits.
#[unsafe(no_mangle)]
pub extern "C" fn mwctl_proof_text(proof: i32) -> *const c_char {
    Proof::text_of(proof).unwrap_or(c"unknown proof").as_ptr()
}

/// The version of the library that runs: 1000000 * major + 1000 * minor + patch. Compare with
/// MWCTL_VERSION, the header's.
/// Never waits.
#[unsafe(no_mangle)]
pub extern "C" fn mwctl_version() -> u32 {
    const fn number(digits: &str) -> u32 {
        let (bytes, mut at, mut value) = (digits.as_bytes(), 0, 0);
        while at < bytes.len() {
            value = value * 10 + (bytes[at] - b'0') as u32;
            at += 1;
        }
        value
    }
    const MAJOR: u32 = number(env!("CARGO_PKG_VERSION_MAJOR"));
    const MINOR: u32 = number(env!("CARGO_PKG_VERSION_MINOR"));
    MAJOR * 1_000_000 + MINOR * 1_000 + number(env!("CARGO_PKG_VERSION_PATCH"))
}
