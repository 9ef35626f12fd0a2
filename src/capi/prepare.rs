//! Work requests for the application to chain with its own: prepare, then commit or abort.

use std::ffi::{c_int, c_void};

use super::revoke::{done, kill_of};
use super::types::*;
use super::{array, array_mut, enter, out};
use crate::grant::Asked;
use crate::op::Outcome;
use crate::post::{Committed, posted_before};
use crate::status::Status;

/// Binds for the application to post itself, for one client: fills wrs[0..n-1], linked by next,
/// the last one's next NULL for the application to continue. Each result has id and rkey at once;
/// the rkey may travel in a later SEND of the same chain and in no other way before the grant is
/// confirmed (mwctl_grant_info). wrs must stay in place until commit or abort, one of which must
/// follow. Takes n entries of the budget: QUEUE_FULL if they are in use, TOO_MANY if it is smaller;
/// POOL_EMPTY if no window is ready. They ask for a completion only when half of the budget is in use,
/// and are confirmed by that or by a later completion of the library's on this queue pair; the entries
/// stay in use until then. To have it at once, set IBV_SEND_SIGNALED in the last one's send_flags before
/// the post: its completion is the library's. MIXED_PEERS: more than one client. A bad request is refused
/// as mwctl_request says. WRONG_THREAD: not on this thread, says mwctl_peer_options.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_grant_prepare(
    ctx: *mut mwctl_context,
    asked: *const mwctl_request,
    n: usize,
    wrs: *mut verbs::ibv_send_wr,
    results: *mut Outcome,
    token: *mut mwctl_token,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's arrays, as documented.
        let (asked, wrs, results, place) =
            unsafe { (array(asked, n)?, array_mut(wrs, n)?, array_mut(results, n)?, out(token)?) };
        *place = mwctl_token { id: core.grant_prepare(asked, wrs, results)? };
        Ok(())
    })
}

/// LOCAL_INVs for the application to post itself, for grants of one client: fills wrs[0..n-1] as
/// above, the last one signaled. on_done, which may be NULL, hears of the proof after the commit.
/// Takes n entries of the budget: QUEUE_FULL, TOO_MANY as above. MIXED_PEERS; DUPLICATE; IN_PROGRESS: one
/// is being revoked, or its own chain awaits the commit; PEER_DEAD: mwctl_revoke_start needs no post.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_revoke_prepare(
    ctx: *mut mwctl_context,
    grants: *const u64,
    n: usize,
    timeout_us: u64,
    kill: i32,
    on_done: mwctl_done_fn,
    user: *mut c_void,
    wrs: *mut verbs::ibv_send_wr,
    token: *mut mwctl_token,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's arrays, as documented.
        let (grants, wrs, place) = unsafe { (array(grants, n)?, array_mut(wrs, n)?, out(token)?) };
        let callback = on_done.map(|_| done(on_done, user)).transpose()?;
        *place = mwctl_token { id: core.revoke_prepare(grants, timeout_us, kill_of(kill)?, callback, wrs)? };
        Ok(())
    })
}

/// A LOCAL_INV for a grant and a bind for its successor to the same client: fills wrs[0] and
/// wrs[1], to be posted in this order. *result is the new grant's. on_done, which may be NULL,
/// hears of the old one's proof. Takes 2 entries of the budget. Refused as the two above.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_regrant_prepare(
    ctx: *mut mwctl_context,
    grant: u64,
    asked: *const mwctl_request,
    timeout_us: u64,
    on_done: mwctl_done_fn,
    user: *mut c_void,
    wrs: *mut verbs::ibv_send_wr,
    result: *mut Outcome,
    token: *mut mwctl_token,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's pointers, as documented; wrs an array of two.
        let (asked, wrs, result, place) =
            unsafe { (out(asked.cast_mut())?, array_mut(wrs, 2)?, out(result)?, out(token)?) };
        let callback = on_done.map(|_| done(on_done, user)).transpose()?;
        let id = core.regrant_prepare(grant, &asked.request()?, timeout_us, callback, wrs, result)?;
        *place = mwctl_token { id };
        Ok(())
    })
}

/// Says how the post of a prepared chain went: `ret` is what ibv_post_send returned, `bad_wr`
/// what it set. The application's own requests may stand before, between and after ours; the
/// whole chain must still be in place. What was not posted ends: grants are void, revocations are
/// taken back, both with NOT_POSTED. *posted, if not NULL, is the number of our requests that
/// count as posted. Call it also when the post failed, and right after the post.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_commit(
    ctx: *mut mwctl_context,
    token: mwctl_token,
    ret: c_int,
    bad_wr: *const verbs::ibv_send_wr,
    posted: *mut usize,
) -> Status {
    enter(ctx, |core| {
        let (first, n) = core.prepared_wrs(token.id)?;
        let committed = match ret {
            0 => Committed::First(n),
            // SAFETY: the chain is in place, as documented.
            _ => unsafe { posted_before(first, n, bad_wr) }.map_or(Committed::Unclear, Committed::First),
        };
        let count = core.commit(token.id, committed)?;
        // SAFETY: the caller's pointer or NULL.
        if let Some(place) = unsafe { posted.as_mut() } {
            *place = count;
        }
        Ok(())
    })
}

/// Puts the `n` prepared work requests from `wr` on into a batch of the extended interface, between
/// ibv_wr_start and ibv_wr_complete, on the thread that began it. Prepare before ibv_wr_start and
/// commit after ibv_wr_complete, with mwctl_commit_ex; after ibv_wr_abort, mwctl_abort. Between the
/// two the send queue is locked: no other call of this library may be made on that thread. The
/// queue pair's send_ops_flags must have BIND_MW and LOCAL_INV, as declared at mwctl_peer_attach.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_put_wr(qp: *mut verbs::ibv_qp_ex, wr: *const verbs::ibv_send_wr, n: usize) {
    if let Some(qp) = std::ptr::NonNull::new(qp) {
        // SAFETY: as documented.
        unsafe { crate::device::put(qp, wr, n) };
    }
}

/// As mwctl_commit, for a chain that went out by the extended interface: `ret` is what
/// ibv_wr_complete returned. An error means that nothing of the batch was posted. On soft-RoCE only
/// ENOMEM and ENOSPC mean that; with another error all count as posted, as with an error of
/// ibv_post_send without a bad_wr.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_commit_ex(
    ctx: *mut mwctl_context,
    token: mwctl_token,
    ret: c_int,
    posted: *mut usize,
) -> Status {
    enter(ctx, |core| {
        let (_, n) = core.prepared_wrs(token.id)?;
        let outcome = Committed::batch(ret, n, core.capabilities.exact_batches);
        let count = core.commit(token.id, outcome)?;
        // SAFETY: the caller's pointer or NULL.
        if let Some(place) = unsafe { posted.as_mut() } {
            *place = count;
        }
        Ok(())
    })
}

/// The chain was not posted and will not be: as a commit of which nothing was posted.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_abort(ctx: *mut mwctl_context, token: mwctl_token) -> Status {
    enter(ctx, |core| core.commit(token.id, Committed::First(0)).map(|_| ()))
}
