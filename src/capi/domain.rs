//! Domains.

use super::types::*;
use super::{answer, array, enter, options, out};
use crate::device::Pd;
use crate::domain::{DEFAULT_RESERVE, DomainOptions};
use crate::status::Status;

/// Takes a protection domain under management and allocates its reserve of windows. The
/// application keeps the PD, and must not deallocate it before mwctl_domain_close. `size` is
/// sizeof *opts; opts may be NULL with size 0. FOREIGN_CONTEXT: the PD is another device context's.
/// UNSUPPORTED: the device has no Type 2 windows. DEVICE_LIMIT: it allocates fewer than the reserve.
/// May wait (a kernel call a window).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_domain_open(
    ctx: *mut mwctl_context,
    pd: *mut verbs::ibv_pd,
    opts: *const mwctl_domain_options,
    size: usize,
    domain: *mut mwctl_domain,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's pointers, as documented.
        let (opts, place) = unsafe { (options(opts, size)?, out(domain)?) };
        let pd = std::ptr::NonNull::new(pd).ok_or(Status::InvalidArgument)?;
        // SAFETY: as documented.
        let (pd, aliases) = unsafe { (Pd::new(pd), array(opts.aliases, opts.n_aliases)?) };
        let most = if opts.limit == 0 { u32::MAX } else { opts.limit };
        let reserve = if opts.reserve == 0 { DEFAULT_RESERVE.min(most) } else { opts.reserve };
        if reserve > most {
            return Err(Status::InvalidArgument);
        }
        let core_opts = DomainOptions { reserve, limit: opts.limit, key_distance: opts.key_distance };
        *place = mwctl_domain { id: core.domain_open(pd, aliases, core_opts)? };
        Ok(())
    })
}

/// Ends the management of a PD and deallocates its windows. Refused with BUSY while a peer or
/// region of it is attached; mwctl_domain_grants lists what is still open. VERBS_ERROR: a window can't
/// be deallocated; the call can be repeated.
/// May wait (a kernel call a window).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_domain_close(ctx: *mut mwctl_context, domain: mwctl_domain) -> Status {
    enter(ctx, |core| core.domain_close(domain.id))
}

/// Has at least `windows` windows ready for the next grants, so that calls that never wait find
/// them. KEYS_EXHAUSTED or DEVICE_LIMIT if the device allocates no more.
/// May wait (a kernel call a window).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_domain_reserve(
    ctx: *mut mwctl_context,
    domain: mwctl_domain,
    windows: u32,
) -> Status {
    enter(ctx, |core| core.refill(core.domain(domain.id)?.0, windows as usize))
}

/// The windows of a domain. `size` is sizeof *info.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_domain_info_get(
    ctx: *mut mwctl_context,
    domain: mwctl_domain,
    info: *mut mwctl_domain_info,
    size: usize,
) -> Status {
    enter(ctx, |core| {
        let figures = core.pool_figures(domain.id)?;
        let value = mwctl_domain_info {
            windows: figures.windows as u64,
            ready: figures.ready as u64,
            resting: figures.resting as u64,
            grants: figures.grants,
            key_distance: figures.key_distance,
        };
        // SAFETY: as documented.
        unsafe { answer(info, size, value) }
    })
}
