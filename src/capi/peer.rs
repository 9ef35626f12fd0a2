//! Peers.

use std::ffi::c_void;

use super::revoke::done;
use super::types::*;
use super::{answer, enter, options, out};
use crate::cq::Mode;
use crate::device::Qp;
use crate::peer::{Life, PeerOptions};
use crate::status::{Result, Status};

fn core_options(opts: &mwctl_peer_options) -> Result<PeerOptions> {
    const OURS: i32 = mwctl_polling::Ours as i32;
    const YOURS: i32 = mwctl_polling::Yours as i32;
    let mode = match opts.polling {
        OURS => Mode::Ours,
        YOURS => Mode::Yours,
        _ => return Err(Status::UnknownFlags),
    };
    if opts.declares_send_ops > 1 || opts.queue_for_owner > 1 {
        return Err(Status::UnknownFlags);
    }
    let send_ops_flags = (opts.declares_send_ops == 1).then_some(opts.send_ops_flags);
    Ok(PeerOptions {
        budget: opts.budget,
        mode,
        owner_thread: opts.owner_thread,
        queue_for_owner: opts.queue_for_owner == 1,
        send_ops_flags,
        polling_thread: opts.polling_thread,
    })
}

/// Takes an RC queue pair under management, in any state from INIT to RTS; grants need RTS. The
/// application keeps the queue pair and its CQs, goes on posting and polling, and must call
/// mwctl_peer_detach before it destroys the queue pair or moves it to RESET. `size` is
/// sizeof *opts; opts may be NULL with size 0. FOREIGN_PD: the queue pair is of another PD than the
/// domain, or of a parent domain that was not declared. NOT_RC. QP_STATE: RESET, or one behind RTS.
/// ALREADY_ATTACHED. BUDGET_TOO_LARGE: see mwctl_size_queues. POLLING_MODE, WRONG_THREAD: a CQ of its is
/// in use by a peer with another `polling`, or another owner_thread. Of ibv_create_qp_ex: QP_UNDECLARED
/// without declares_send_ops, QP_WITHOUT_WINDOW_OPS if the flags lack the two. VERBS_ERROR: it can't be
/// queried.
/// May wait (queries the queue pair).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_peer_attach(
    ctx: *mut mwctl_context,
    domain: mwctl_domain,
    qp: *mut verbs::ibv_qp,
    opts: *const mwctl_peer_options,
    size: usize,
    peer: *mut mwctl_peer,
) -> Status {
    enter(ctx, |core| {
        let qp = std::ptr::NonNull::new(qp).ok_or(Status::InvalidArgument)?;
        // SAFETY: the caller's pointers, as documented.
        let (qp, opts, place) = unsafe { (Qp::new(qp), options(opts, size)?, out(peer)?) };
        *place = mwctl_peer { id: core.peer_attach(domain.id, qp, core_options(&opts)?)? };
        Ok(())
    })
}

/// The application has seen that the peer's send queue is stuck, behind a SEND that is never
/// received for example. Until a completion of ours comes through again, revocations deallocate
/// their windows at once, which needs no send queue and leaves the queue pair as it is, and post
/// no LOCAL_INV behind. The library also finds out by itself, at the first deadline that passes.
/// Not so for a window of which a request may be in the queue still, such as the bind of a grant that is not
/// confirmed (mwctl_grant_info, mwctl_grant_prepare): that one waits for the queue or the deadline.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_peer_stuck(ctx: *mut mwctl_context, peer: mwctl_peer) -> Status {
    enter(ctx, |core| core.peer_stuck(peer.id))
}

/// Revokes all that the peer holds, then takes it off the books. After success the library
/// touches neither the queue pair nor, on its behalf, its CQs again; completions of ours that
/// still come are recognised and dropped. At its deadline it moves the queue pair to ERR, which
/// the application is about to destroy anyway. On an error the peer stays, takes no new grants,
/// and the call can be repeated: OPEN if a right was not proved gone, or a prepared chain awaits its
/// commit. STALE_ID: another call has taken it off the books. WOULD_DEADLOCK,
/// WRONG_THREAD: not on this thread, says mwctl_peer_options; mwctl_peer_detach_start is the way there.
/// timeout_us 0: the context's default.
/// May wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_peer_detach(
    ctx: *mut mwctl_context,
    peer: mwctl_peer,
    timeout_us: u64,
) -> Status {
    enter(ctx, |core| core.peer_detach(peer.id, timeout_us))
}

/// The same, ending in a callback.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_peer_detach_start(
    ctx: *mut mwctl_context,
    peer: mwctl_peer,
    timeout_us: u64,
    on_done: mwctl_done_fn,
    user: *mut c_void,
) -> Status {
    enter(ctx, |core| core.peer_detach_start(peer.id, timeout_us, done(on_done, user)?))
}

/// The queue pair no longer exists, or was moved to RESET without a detach: it is never touched
/// again, its windows are deallocated, the peer is off the books. OPEN: one can't be deallocated; the
/// peer stays, and the call can be repeated.
/// May wait (a kernel call a window).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_peer_gone(
    ctx: *mut mwctl_context,
    peer: mwctl_peer,
    timeout_us: u64,
) -> Status {
    enter(ctx, |core| core.peer_gone(peer.id, timeout_us))
}

/// A peer as it stands. `size` is sizeof *info.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_peer_info_get(
    ctx: *mut mwctl_context,
    peer: mwctl_peer,
    info: *mut mwctl_peer_info,
    size: usize,
) -> Status {
    enter(ctx, |core| {
        let facts = core.peer_facts(peer.id)?;
        let value = mwctl_peer_info {
            qp_num: facts.qp_num,
            life: match facts.life {
                Life::Unused | Life::Connecting => 0,
                Life::Live => 1,
                Life::Dead => 2,
                Life::Gone => 3,
            },
            leaving: facts.leaving.into(),
            budget: facts.budget,
            used: facts.used,
            reserved: 0,
            grants: facts.grants as u64,
        };
        // SAFETY: as documented.
        unsafe { answer(info, size, value) }
    })
}
