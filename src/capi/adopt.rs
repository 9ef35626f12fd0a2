//! The short calls for programs that hand out mr->rkey.

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};

use super::revoke::kill_of;
use super::types::*;
use super::{enter, enter_or, out};
use crate::adopt::errno_of;
use crate::device::{Errno, Mr, Pd, Qp};
use crate::status::{Result, Status};

/// A verbs object of the caller's.
fn given<T>(object: *mut T) -> Result<NonNull<T>> {
    NonNull::new(object).ok_or(Status::InvalidArgument)
}

/// In place of ibv_reg_mr, for memory that clients reach by mwctl_rkey: the region gets no remote
/// access of its own, mr->rkey opens nothing. The IBV_ACCESS_REMOTE_* flags of `access` say what may
/// be granted on it. Opens the PD's domain, with its defaults, if none is open: before ibv_dealloc_pd
/// then comes mwctl_detach_pd or mwctl_context_close. NULL with errno on an error, as ibv_reg_mr.
/// May wait (registering pins the memory; a kernel call a window for the domain).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_reg_mr(
    ctx: *mut mwctl_context,
    pd: *mut verbs::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut verbs::ibv_mr {
    let made = enter_or(
        ctx,
        |status| Err(errno_of(status)),
        |core| {
            // SAFETY: the caller's PD.
            let pd = unsafe { Pd::new(given(pd).map_err(errno_of)?) };
            core.reg_mr(pd, addr, length, access as u32)
        },
    );
    made.map_or_else(
        |Errno(error)| {
            verbs::set_errno(error);
            null_mut()
        },
        Mr::raw,
    )
}

/// In place of ibv_dereg_mr for such a region; one that is not under management is deregistered as it
/// is. Revokes nothing: EBUSY while a right into the region may be open. 0 or an errno value, as
/// ibv_dereg_mr.
/// May wait (a kernel call).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_dereg_mr(ctx: *mut mwctl_context, mr: *mut verbs::ibv_mr) -> c_int {
    let ended = enter_or(
        ctx,
        |status| Err(errno_of(status)),
        // SAFETY: the caller's region.
        |core| core.dereg_mr(unsafe { Mr::new(given(mr).map_err(errno_of)?) }),
    );
    ended.err().map_or(0, |Errno(error)| error)
}

/// In place of mr->rkey: hands the client behind `qp` a right to `length` bytes from `addr` on, as it
/// will put it into remote_addr, and writes the key to send to *rkey. `access`: IBV_ACCESS_REMOTE_*,
/// or 0 for all that mwctl_reg_mr was told. The queue pair, in RTS, is attached with the defaults if
/// it was not: one of ibv_create_qp_ex, or whose completions are not polled by mwctl_poll_cq, must be
/// attached by mwctl_peer_attach before. *grant, which may be NULL, is for mwctl_revoke; 0 after an
/// error, or what must still be revoked. *rkey is 0 after an error. NOT_ATTACHED: the region is not
/// of mwctl_reg_mr or mwctl_region_attach. NOT_CONNECTED, or QP_STATE in RESET: the queue pair is not in
/// RTS yet. ACCESS_MISSING_ON_QP: its access flags don't allow it. Otherwise as mwctl_peer_attach and
/// mwctl_grant: BUDGET_TOO_LARGE, OUT_OF_RANGE, PEER_DEAD, TIMED_OUT and the like.
/// May wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_rkey(
    ctx: *mut mwctl_context,
    qp: *mut verbs::ibv_qp,
    mr: *mut verbs::ibv_mr,
    addr: u64,
    length: u64,
    access: u32,
    rkey: *mut u32,
    grant: *mut u64,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's objects and places.
        let (qp, mr, key, id) =
            unsafe { (Qp::new(given(qp)?), Mr::new(given(mr)?), out(rkey)?, grant.as_mut()) };
        let outcome = core.rkey(qp, mr, addr, length, access);
        *key = outcome.rkey;
        if let Some(place) = id {
            *place = outcome.grant;
        }
        if outcome.status == Status::Ok { Ok(()) } else { Err(outcome.status) }
    })
}

/// Takes back all that the client behind a queue pair holds, as mwctl_revoke_peer; `kill`: enum
/// mwctl_kill. *n, if not NULL, is the number of grants that ended: 0 for a queue pair that is not
/// under management, for there is no right on it. The client can be granted to again. OPEN,
/// WOULD_DEADLOCK, WRONG_THREAD: as mwctl_revoke_peer. FOREIGN_CONTEXT: another device context's.
/// May wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_revoke_qp(
    ctx: *mut mwctl_context,
    qp: *mut verbs::ibv_qp,
    timeout_us: u64,
    kill: i32,
    n: *mut usize,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's queue pair.
        let ended = core.revoke_qp(unsafe { Qp::new(given(qp)?) }, timeout_us, kill_of(kill)?)?;
        // SAFETY: the caller's pointer or NULL.
        if let Some(place) = unsafe { n.as_mut() } {
            *place = ended;
        }
        Ok(())
    })
}

/// Before ibv_destroy_qp, or a move to RESET: as mwctl_peer_detach, within the context's timeout. OK
/// for a queue pair that is not under management. OPEN, WOULD_DEADLOCK, WRONG_THREAD: as mwctl_peer_detach.
/// May wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_detach_qp(ctx: *mut mwctl_context, qp: *mut verbs::ibv_qp) -> Status {
    // SAFETY: the caller's queue pair.
    enter(ctx, |core| core.detach_qp(unsafe { Qp::new(given(qp)?) }))
}

/// Before ibv_dealloc_pd, where the context stays open: detaches the PD's regions of mwctl_reg_mr,
/// which are then for ibv_dereg_mr, and closes its domain. BUSY while a queue pair or another region
/// is attached, or a right open. OK for a PD that is not under management.
/// May wait (a kernel call a window).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_detach_pd(ctx: *mut mwctl_context, pd: *mut verbs::ibv_pd) -> Status {
    // SAFETY: the caller's PD.
    enter(ctx, |core| core.detach_pd(unsafe { Pd::new(given(pd)?) }))
}

/// The peer that a queue pair is attached as, for the calls that want one; NOT_ATTACHED if it isn't. A
/// queue pair at the address of one that was destroyed is not taken for that one.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_peer_of(
    ctx: *mut mwctl_context,
    qp: *mut verbs::ibv_qp,
    peer: *mut mwctl_peer,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's queue pair and place.
        let (qp, place) = unsafe { (Qp::new(given(qp)?), out(peer)?) };
        *place = mwctl_peer { id: core.peer_of(qp)? };
        Ok(())
    })
}

/// The domain that stands for a PD, likewise.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_domain_of(
    ctx: *mut mwctl_context,
    pd: *mut verbs::ibv_pd,
    domain: *mut mwctl_domain,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's PD and place.
        let (pd, place) = unsafe { (Pd::new(given(pd)?), out(domain)?) };
        *place = mwctl_domain { id: core.domain_of(pd)? };
        Ok(())
    })
}

/// The region that an MR is attached as, likewise.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_region_of(
    ctx: *mut mwctl_context,
    mr: *mut verbs::ibv_mr,
    region: *mut mwctl_region,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's region and place.
        let (mr, place) = unsafe { (Mr::new(given(mr)?), out(region)?) };
        *place = mwctl_region { id: core.region_of(mr)? };
        Ok(())
    })
}
