//! Questions to the table.

use std::ffi::c_char;

use super::types::*;
use super::{answer, array_mut, enter, out};
use crate::region::RIGHTS;
use crate::status::{Result, Status};
use crate::table::{GrantFacts, KeyFacts};
use crate::window::State;

/// Whether the client behind a queue pair holds one grant that covers the whole range with all
/// these rights and may be in use: from the post of its bind, confirmed or not, to the proof of its
/// end. OK and the grant's id in *grant (which may be NULL), or NO_GRANT if there is
/// none. LENGTH_ZERO, UNKNOWN_FLAGS: that is no question. Takes no lock.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_check(
    ctx: *mut mwctl_context,
    domain: mwctl_domain,
    qp_num: u32,
    addr: u64,
    length: u64,
    access: u32,
    grant: *mut u64,
) -> Status {
    enter(ctx, |core| {
        if access & !RIGHTS != 0 {
            return Err(Status::UnknownFlags);
        }
        let found = core.check(domain.id, qp_num, addr, length, access)?.ok_or(Status::NoGrant)?;
        // SAFETY: the caller's pointer or NULL.
        if let Some(place) = unsafe { grant.as_mut() } {
            *place = found;
        }
        Ok(())
    })
}

unsafe fn answer_grant(facts: GrantFacts, info: *mut mwctl_grant_info, size: usize) -> Result<()> {
    let right = facts.right;
    let value = mwctl_grant_info {
        grant: facts.grant,
        peer: mwctl_peer { id: facts.peer },
        addr: right.addr,
        length: right.length,
        rkey: right.rkey,
        access: right.access,
        qp_num: facts.qp_num,
        confirmed: right.confirmed.into(),
        revoking: matches!(right.state, State::Revoking | State::Invalidating | State::Deallocating).into(),
        uncertain: facts.uncertain.into(),
    };
    // SAFETY: as documented.
    unsafe { answer(info, size, value) }
}

/// The open grant whose rkey this is; NO_GRANT if there is none. `size` is sizeof *info. Takes no
/// lock.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_find_rkey(
    ctx: *mut mwctl_context,
    rkey: u32,
    info: *mut mwctl_grant_info,
    size: usize,
) -> Status {
    // SAFETY: as documented.
    enter(ctx, |core| unsafe { answer_grant(core.find_rkey(rkey).ok_or(Status::NoGrant)?, info, size) })
}

/// What a key is: a live grant's, one that was revoked, a region's own, or none of ours. For the log
/// line about a client that came with a strange key, and to find what an advertisement really
/// hands out. A sentence for the kind: mwctl_key_text. `size` is sizeof *info.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_explain_key(
    ctx: *mut mwctl_context,
    key: u32,
    info: *mut mwctl_key_info,
    size: usize,
) -> Status {
    // SAFETY: as documented.
    enter(ctx, |core| unsafe { answer(info, size, mwctl_key_info::from(core.explain_key(key))) })
}

/// A sentence for an enum mwctl_key_kind, never NULL; static.
/// Never waits.
#[unsafe(no_mangle)]
pub extern "C" fn mwctl_key_text(kind: i32) -> *const c_char {
    let text = match kind {
        0 => c"not a key of this context",
        1 => c"the rkey of a live grant",
        2 => c"the rkey of a grant that has ended",
        3 => c"a key of a window that was never handed out",
        4 => c"the rkey of a whole region, which no revocation closes",
        5 => c"the lkey of a region, which opens nothing to clients",
        _ => c"unknown kind of key",
    };
    text.as_ptr()
}

impl From<KeyFacts> for mwctl_key_info {
    fn from(facts: KeyFacts) -> Self {
        let (kind, grant, region) = match facts {
            KeyFacts::NotOurs => (mwctl_key_kind::NotOurs, None, None),
            KeyFacts::Grant(facts) => (mwctl_key_kind::Grant, Some(facts), None),
            KeyFacts::Ended(facts) => (mwctl_key_kind::Ended, facts, None),
            KeyFacts::Unused => (mwctl_key_kind::Unused, None, None),
            KeyFacts::ParentRkey(id, facts) => (mwctl_key_kind::ParentRkey, None, Some((id, facts))),
            KeyFacts::Lkey(id, facts) => (mwctl_key_kind::Lkey, None, Some((id, facts))),
        };
        // SAFETY: plain.
        let mut info: mwctl_key_info = unsafe { std::mem::zeroed() };
        info.kind = kind as i32;
        if let Some(GrantFacts { grant, peer, qp_num, right, .. }) = grant {
            info.grant = grant;
            info.peer = mwctl_peer { id: peer };
            info.qp_num = qp_num;
            (info.access, info.addr, info.length) = (right.access, right.addr, right.length);
        }
        if let Some((id, facts)) = region {
            info.region = mwctl_region { id };
            (info.access, info.addr, info.length) = (facts.access & RIGHTS, facts.addr, facts.length);
        }
        info
    }
}

/// A grant by its id; STALE_ID once it has ended. `size` is sizeof *info. Takes no lock.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_grant_info_get(
    ctx: *mut mwctl_context,
    grant: u64,
    info: *mut mwctl_grant_info,
    size: usize,
) -> Status {
    // SAFETY: as documented.
    enter(ctx, |core| unsafe { answer_grant(core.grant_facts(grant)?, info, size) })
}

/// The ids of a client's open grants: fills in as many as `room`, and sets *n to how many there
/// are.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_peer_grants(
    ctx: *mut mwctl_context,
    peer: mwctl_peer,
    grants: *mut u64,
    room: usize,
    n: *mut usize,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's pointers, as documented.
        let (grants, n) = unsafe { (array_mut(grants, room)?, out(n)?) };
        *n = core.peer_grants(peer.id, grants)?;
        Ok(())
    })
}

/// The ids of a domain's open grants, likewise: what is in the way of mwctl_domain_close. Walks
/// over all windows of the context.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_domain_grants(
    ctx: *mut mwctl_context,
    domain: mwctl_domain,
    grants: *mut u64,
    room: usize,
    n: *mut usize,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's pointers, as documented.
        let (grants, n) = unsafe { (array_mut(grants, room)?, out(n)?) };
        *n = core.domain_grants(domain.id, grants)?;
        Ok(())
    })
}

/// The ids of the open grants that touch a range, likewise.
/// Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_range_grants(
    ctx: *mut mwctl_context,
    region: mwctl_region,
    addr: u64,
    length: u64,
    grants: *mut u64,
    room: usize,
    n: *mut usize,
) -> Status {
    enter(ctx, |core| {
        // SAFETY: the caller's pointers, as documented.
        let (grants, n) = unsafe { (array_mut(grants, room)?, out(n)?) };
        *n = core.range_grants(region.id, addr, length, grants)?;
        Ok(())
    })
}
