//! Grants.

use std::ffi::c_void;

use super::revoke::done;
use super::types::*;
use super::{array, array_mut, enter, out};
use crate::grant::{Asked, Request};
use crate::op::Outcome;
use crate::status::{Result, Status};

impl Asked for mwctl_request {
    fn request(&self) -> Result<Request> {
        if self.reserved != 0 {
            return Err(Status::UnknownFlags);
        }
        Ok(Request {
            peer: self.peer.id,
            region: self.region.id,
            addr: self.addr,
            length: self.length,
            access: self.access,
        })
    }
}

/// Hands one right to one client: binds a window of the pool to its queue pair and returns once
/// the bind has completed. *result has the grant's id and the rkey for the client; on an error
/// its status, and an id only if something is still open under it (TIMED_OUT: revoke it).
/// WOULD_DEADLOCK, WRONG_THREAD: not on this thread, says mwctl_peer_options. A bad request is refused
/// as mwctl_request says. DEVICE_LIMIT, KEYS_EXHAUSTED: no window is to be had. POST_FAILED, BIND_FAILED,
/// NOT_POSTED: there is no right; mostly the queue pair is in error then.
/// Verbs: IBV_WR_BIND_MW on the peer's own queue pair; the rkey's low 8 bits change at each bind.
/// May wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_grant(
    ctx: *mut mwctl_context,
    asked: *const mwctl_request,
    timeout_us: u64,
    result: *mut Outcome,
) -> Status {
    // SAFETY: one element each.
    unsafe { mwctl_grant_batch(ctx, asked, 1, timeout_us, result) }
}

/// Hands out many rights, to any number of clients: one post and one signaled completion for each
/// client's share, as far as its budget goes. Bad requests are refused before anything is posted.
/// `results` has room for `n`, in the order of the requests; those that failed afterwards have a
/// status of their own, as of mwctl_grant (TIMED_OUT, DEVICE_LIMIT, KEYS_EXHAUSTED, POST_FAILED,
/// BIND_FAILED, NOT_POSTED). Returns the first status that is no success.
/// WOULD_DEADLOCK, WRONG_THREAD: not on this thread, says mwctl_peer_options. TOO_MANY: over 16,777,215.
/// May wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_grant_batch(
    ctx: *mut mwctl_context,
    asked: *const mwctl_request,
    n: usize,
    timeout_us: u64,
    results: *mut Outcome,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's arrays, as documented.
        let (places, asked) = unsafe { (array_mut(results, n)?, array(asked, n)?) };
        places.fill(Outcome::failed(0, Status::NotPosted));
        core.grant(asked, timeout_us, places)
    })
}

/// The same, ending in a callback. POOL_EMPTY in a result means that no window was ready: reserve
/// more, or let mwctl_tick refill the pool (mwctl_domain_options.reserve).
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_grant_start(
    ctx: *mut mwctl_context,
    asked: *const mwctl_request,
    n: usize,
    timeout_us: u64,
    on_done: mwctl_done_fn,
    user: *mut c_void,
) -> Status {
    // SAFETY: the caller's array, as documented.
    enter(ctx, |core| core.grant_start(unsafe { array(asked, n) }?, timeout_us, done(on_done, user)?))
}

/// Ends a grant and hands out its successor to the same client, in one post: the new right, with
/// a new id and rkey, begins only after the old one is gone. results[0] is the revocation's,
/// results[1] the new grant's. IN_PROGRESS: the grant is being revoked. MIXED_PEERS: it is not the
/// request's client's. OPEN, NOT_POSTED: the old right was not proved gone, and there is no new one.
/// Otherwise the new grant's as of mwctl_grant (TIMED_OUT, BIND_FAILED and the like).
/// WOULD_DEADLOCK, WRONG_THREAD: not on this thread, says mwctl_peer_options.
/// May wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_regrant(
    ctx: *mut mwctl_context,
    grant: u64,
    asked: *const mwctl_request,
    timeout_us: u64,
    results: *mut Outcome,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's pointers; an array of two.
        let (asked, places) = unsafe { (out(asked.cast_mut())?, out(results.cast::<[Outcome; 2]>())?) };
        *places = [Outcome::failed(grant, Status::NotPosted), Outcome::failed(0, Status::NotPosted)];
        core.regrant(grant, &asked.request()?, timeout_us, places)
    })
}
