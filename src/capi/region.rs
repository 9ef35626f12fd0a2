//! Regions and their blocks.

use super::types::*;
use super::{answer, enter, options, out};
use crate::device::Mr;
use crate::region::{RIGHTS, RegionOptions};
use crate::status::{Result, Status};

fn flag(given: u32) -> Result<bool> {
    match given {
        0 | 1 => Ok(given == 1),
        _ => Err(Status::UnknownFlags),
    }
}

/// Maps `length` bytes of zeroed memory and registers them with LOCAL_WRITE and MW_BIND alone:
/// the region has no remote access of its own, and what a grant opens, its revocation closes. A
/// forked child does not see the memory. `size` is sizeof *opts; opts may be NULL with size 0.
/// LENGTH_ZERO; NO_MEMORY, also by RLIMIT_MEMLOCK; VERBS_ERROR: it can't be registered.
/// TOO_MANY: more blocks than a region may have.
/// May wait (registering pins the memory).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_region_register(
    ctx: *mut mwctl_context,
    domain: mwctl_domain,
    length: u64,
    opts: *const mwctl_register_options,
    size: usize,
    region: *mut mwctl_region,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's pointers, as documented.
        let (opts, place) = unsafe { (options(opts, size)?, out(region)?) };
        let huge = match (opts.huge_pages, opts.reserved) {
            (0 | 1, 0) => opts.huge_pages == 1,
            _ => return Err(Status::UnknownFlags),
        };
        *place = mwctl_region { id: core.region_register(domain.id, length, huge, opts.block_size)? };
        Ok(())
    })
}

/// Takes the application's region under management. It stays the application's, which must not
/// deregister it before mwctl_region_detach; ALREADY_ATTACHED if it is under management. iova and access
/// of the options must be what it was registered with: struct ibv_mr carries neither, and a bind is
/// checked against them. `size` is sizeof *opts. FOREIGN_PD: the MR is of another PD than the domain.
/// By its access flags: PARENT_OPEN, PARENT_NOT_BINDABLE, MEMORY_KIND. OUT_OF_RANGE: it wraps around.
/// TOO_MANY: more blocks than a region may have.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_region_attach(
    ctx: *mut mwctl_context,
    domain: mwctl_domain,
    mr: *mut verbs::ibv_mr,
    opts: *const mwctl_attach_options,
    size: usize,
    region: *mut mwctl_region,
) -> Status {
    enter(ctx, |core| {
        let mr = std::ptr::NonNull::new(mr).ok_or(Status::InvalidArgument)?;
        if opts.is_null() {
            return Err(Status::InvalidArgument);
        }
        // SAFETY: the caller's pointers, as documented.
        let (mr, opts, place) = unsafe { (Mr::new(mr), options(opts, size)?, out(region)?) };
        let declared = RegionOptions {
            iova: opts.iova,
            access: opts.access,
            block: opts.block_size,
            allow_open_parent: flag(opts.allow_open_parent)?,
            device_memory: flag(opts.device_memory)?,
            short: false,
            grantable: RIGHTS,
        };
        if opts.reserved != 0 {
            return Err(Status::UnknownFlags);
        }
        *place = mwctl_region { id: core.region_attach(domain.id, mr, declared)? };
        Ok(())
    })
}

/// Ends the management of a region. Success means that ibv_dereg_mr is safe now; for a region of
/// mwctl_region_register it is done and the memory unmapped. Refused with BUSY while a grant into
/// it is open or uncertain. VERBS_ERROR: it can't be deregistered.
/// May wait (deregistering is a kernel call).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_region_detach(ctx: *mut mwctl_context, region: mwctl_region) -> Status {
    enter(ctx, |core| core.region_detach(region.id))
}

/// A region as it stands. `size` is sizeof *info.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_region_info_get(
    ctx: *mut mwctl_context,
    region: mwctl_region,
    info: *mut mwctl_region_info,
    size: usize,
) -> Status {
    enter(ctx, |core| {
        let (_, facts) = core.region_facts(region.id)?;
        let blocks = core.block_figures(region.id)?;
        let value = mwctl_region_info {
            addr: facts.addr,
            length: facts.length,
            access: facts.access,
            lkey: facts.lkey,
            huge_pages: facts.huge_pages.into(),
            parent_open: facts.parent_open.into(),
            memory_at_rest: facts.at_rest.into(),
            reserved: 0,
            block_size: blocks.size,
            blocks: blocks.count as u64,
            blocks_taken: blocks.taken as u64,
            blocks_quarantined: blocks.quarantined as u64,
            mr: facts.mr.raw(),
        };
        // SAFETY: as documented.
        unsafe { answer(info, size, value) }
    })
}

/// Takes `count` neighbouring blocks in which no right is open or uncertain; *addr is the first
/// byte, in the region's iova space. NO_BLOCKS if there is no such run. LENGTH_ZERO: `count` is 0.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_block_take(
    ctx: *mut mwctl_context,
    region: mwctl_region,
    count: usize,
    addr: *mut u64,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: as documented.
        let place = unsafe { out(addr) }?;
        *place = core.block_take(region.id, count)?;
        Ok(())
    })
}

/// Gives `count` blocks back that were taken, from `addr` on. Where a right is still open or
/// uncertain they stay out of use until it is proved gone. OUT_OF_RANGE, or BLOCK_NOT_TAKEN, if these
/// are no such blocks: then none is given back.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_block_give(
    ctx: *mut mwctl_context,
    region: mwctl_region,
    addr: u64,
    count: usize,
) -> Status {
    enter(ctx, |core| core.block_give(region.id, addr, count))
}
