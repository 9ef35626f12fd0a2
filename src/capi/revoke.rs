//! Revocations.

use std::ffi::c_void;

use super::types::*;
use super::{array, array_mut, enter};
use crate::op::{Callback, Kill, Outcome};
use crate::status::{Result, Status};

pub fn kill_of(kill: i32) -> Result<Kill> {
    const ALLOWED: i32 = mwctl_kill::Allowed as i32;
    const NEVER: i32 = mwctl_kill::Never as i32;
    match kill {
        ALLOWED => Ok(Kill::IfPolled),
        NEVER => Ok(Kill::Never),
        _ => Err(Status::UnknownFlags),
    }
}

/// The core's callback for one of the application's.
pub fn done(on_done: mwctl_done_fn, user: *mut c_void) -> Result<Callback> {
    let function = on_done.ok_or(Status::InvalidArgument)?;
    Ok(Callback { call: call_done, words: [function as usize, user as usize] })
}

fn call_done(function: usize, user: usize, status: Status, results: &[Outcome]) {
    // SAFETY: the word is the function pointer that `done` took apart.
    let function: mwctl_done_fn = unsafe { std::mem::transmute(function) };
    if let Some(function) = function {
        // SAFETY: the application's function, with what it was promised.
        unsafe { function(user as *mut c_void, status, results.as_ptr(), results.len()) }
    }
}

/// Takes one right back; at the deadline as KILL_ALLOWED below. After success the key is dead: no access
/// with it starts, and result says by what proof. OPEN: not proved; the grant stays on the books and its
/// memory out of use, and the call can be repeated. STALE_ID: nothing is open under this id any more, it
/// was revoked before or its client gave it back (an event says so). WOULD_DEADLOCK, WRONG_THREAD: not on
/// this thread, says mwctl_peer_options. result may be NULL. timeout_us 0: the context's default.
/// Verbs: IBV_WR_LOCAL_INV on the queue pair that the window is bound to. A client that goes on
/// using the key gets IBV_WC_REM_ACCESS_ERR, and both queue pairs go to ERR.
/// May wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_revoke(
    ctx: *mut mwctl_context,
    grant: u64,
    timeout_us: u64,
    result: *mut Outcome,
) -> Status {
    let n = usize::from(!result.is_null());
    enter(ctx, |core| {
        // SAFETY: one element or none.
        let places = unsafe { array_mut(result, n) }?;
        core.revoke(&[grant], timeout_us, Kill::IfPolled, places)
    })
}

/// Takes many rights back, of any number of clients: a chain of LOCAL_INVs a client, with one post
/// and one signaled completion, all clients' chains in flight together. `results` may be NULL or
/// has room for `n`, in order; a stale or doubled id has a status of its own there and does not
/// keep the others from ending. OPEN: not proved, as for mwctl_revoke. `kill`: enum mwctl_kill.
/// Returns the first status that is no success: of an item STALE_ID or DUPLICATE. WOULD_DEADLOCK,
/// WRONG_THREAD: not on this thread, says mwctl_peer_options. TOO_MANY: over 16,777,215. A client
/// that goes on writing can end the queue pair by that in the middle of its chain: the rest is then
/// proved by QP_FENCED.
/// May wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_revoke_batch(
    ctx: *mut mwctl_context,
    grants: *const u64,
    n: usize,
    timeout_us: u64,
    kill: i32,
    results: *mut Outcome,
) -> Status {
    let room = if results.is_null() { 0 } else { n };
    enter(ctx, |core| {
        // SAFETY: the caller's arrays, as documented.
        let (grants, places) = unsafe { (array(grants, n)?, array_mut(results, room)?) };
        core.revoke(grants, timeout_us, kill_of(kill)?, places)
    })
}

/// The same, ending in a callback. A right may be revoked again while that is under way: all end with the
/// same proof, and the nearest deadline that may, ends it.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_revoke_start(
    ctx: *mut mwctl_context,
    grants: *const u64,
    n: usize,
    timeout_us: u64,
    kill: i32,
    on_done: mwctl_done_fn,
    user: *mut c_void,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's array, as documented.
        let grants = unsafe { array(grants, n) }?;
        core.revoke_start(grants, timeout_us, kill_of(kill)?, done(on_done, user)?)
    })
}

/// Takes back all that one client holds, what is being granted included. *n, if not NULL, is the
/// number of grants that ended. OPEN: one was not proved gone, as for mwctl_revoke. WOULD_DEADLOCK,
/// WRONG_THREAD: not on this thread, says mwctl_peer_options; mwctl_revoke_peer_start is the way there.
/// The queue pair stays attached and can be granted to again.
/// May wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_revoke_peer(
    ctx: *mut mwctl_context,
    peer: mwctl_peer,
    timeout_us: u64,
    kill: i32,
    n: *mut usize,
) -> Status {
    enter(ctx, |core| {
        let ended = core.revoke_peer(peer.id, timeout_us, kill_of(kill)?)?;
        // SAFETY: the caller's pointer or NULL.
        if let Some(place) = unsafe { n.as_mut() } {
            *place = ended;
        }
        Ok(())
    })
}

/// The same, ending in a callback with a result for each grant.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_revoke_peer_start(
    ctx: *mut mwctl_context,
    peer: mwctl_peer,
    timeout_us: u64,
    kill: i32,
    on_done: mwctl_done_fn,
    user: *mut c_void,
) -> Status {
    enter(ctx, |core| core.revoke_peer_start(peer.id, timeout_us, kill_of(kill)?, done(on_done, user)?))
}

/// Takes back every right of any client that touches the range. *n, if not NULL, is the number of
/// grants that ended. OPEN: one was not proved gone, as for mwctl_revoke. WOULD_DEADLOCK, WRONG_THREAD:
/// not on this thread, says mwctl_peer_options. LENGTH_ZERO, OUT_OF_RANGE: it is no range of the region.
/// May wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_revoke_range(
    ctx: *mut mwctl_context,
    region: mwctl_region,
    addr: u64,
    length: u64,
    timeout_us: u64,
    kill: i32,
    n: *mut usize,
) -> Status {
    enter(ctx, |core| {
        let ended = core.revoke_range(region.id, addr, length, timeout_us, kill_of(kill)?)?;
        // SAFETY: the caller's pointer or NULL.
        if let Some(place) = unsafe { n.as_mut() } {
            *place = ended;
        }
        Ok(())
    })
}

/// The same, ending in a callback with a result for each grant.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_revoke_range_start(
    ctx: *mut mwctl_context,
    region: mwctl_region,
    addr: u64,
    length: u64,
    timeout_us: u64,
    kill: i32,
    on_done: mwctl_done_fn,
    user: *mut c_void,
) -> Status {
    enter(ctx, |core| {
        let callback = done(on_done, user)?;
        core.revoke_range_start(region.id, addr, length, timeout_us, kill_of(kill)?, callback)
    })
}
