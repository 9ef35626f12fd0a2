//! Transfers.

use std::ffi::c_void;

use super::revoke::{done, kill_of};
use super::types::*;
use super::{array, array_mut, enter};
use crate::grant::Asked;
use crate::op::Outcome;
use crate::status::{Result, Status};
use crate::transfer::Move;

unsafe fn moves(first: *const mwctl_move, n: usize) -> Result<Vec<Move>> {
    // SAFETY: the caller's array.
    let steps = unsafe { array(first, n) }?;
    steps.iter().map(|step| Ok(Move { grant: step.grant, request: step.to.request()? })).collect()
}

/// Moves rights from one client to another, for a new leader or a failover: each new right is
/// bound only after the proof that the grant in its place is gone, so that the two never hold it
/// together. `results`, which may be NULL, has room for 2n: the new grants in the order of the
/// moves, then the revocations. Without a proof (OPEN) the new client gets nothing (NOT_POSTED). Returns
/// the first status that is no success. A bad step is refused before anything is revoked: DUPLICATE if
/// a grant is named twice, a bad request as mwctl_request says. WOULD_DEADLOCK, WRONG_THREAD: not on this
/// thread, says mwctl_peer_options. TOO_MANY: over 8,388,607.
/// May wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_transfer(
    ctx: *mut mwctl_context,
    steps: *const mwctl_move,
    n: usize,
    timeout_us: u64,
    kill: i32,
    results: *mut Outcome,
) -> Status {
    let room = if results.is_null() { 0 } else { n.saturating_mul(2) };
    enter(ctx, |core| {
        // SAFETY: the caller's arrays, as documented.
        let (moves, places) = unsafe { (moves(steps, n)?, array_mut(results, room)?) };
        places.fill(Outcome::failed(0, Status::NotPosted));
        core.transfer(&moves, timeout_us, kill_of(kill)?, places)
    })
}

/// The same, ending in a callback with 2n results.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_transfer_start(
    ctx: *mut mwctl_context,
    steps: *const mwctl_move,
    n: usize,
    timeout_us: u64,
    kill: i32,
    on_done: mwctl_done_fn,
    user: *mut c_void,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's array, as documented.
        let moves = unsafe { moves(steps, n) }?;
        core.transfer_start(&moves, timeout_us, kill_of(kill)?, done(on_done, user)?)
    })
}
