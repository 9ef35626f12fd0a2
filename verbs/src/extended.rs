//! Inline calls of verbs.h that go through the extended context, the part that grew in front of
//! `ibv_context`.

use crate::errno::{checked, checked_ptr};
use crate::*;
use libc::{c_int, c_void};
use std::mem::{size_of, zeroed, MaybeUninit};
use std::ptr::{addr_of, NonNull};

/// `abi_compat` of a context that has the extended part.
pub const VERBS_ABI_IS_EXTENDED: usize = usize::MAX;

/// Where a member of `verbs_context` is.
macro_rules! offset {
    ($member:ident) => {{
        let room = MaybeUninit::<verbs_context>::uninit();
        let start = room.as_ptr();
        // SAFETY: both point into `room`, and nothing of it is read.
        unsafe { addr_of!((*start).$member).cast::<u8>().offset_from(start.cast()) as usize }
    }};
}

/// The structure around an `ibv_context`, if its library made one.
pub unsafe fn get_verbs_context(context: *mut ibv_context) -> Option<NonNull<verbs_context>> {
    if unsafe { (*context).abi_compat } as usize != VERBS_ABI_IS_EXTENDED {
        return None;
    }
    let before = offset!(context);
    let around = unsafe { context.cast::<u8>().sub(before) };
    NonNull::new(around.cast())
}

/// One function of the extended context. The structure grows at its front and `sz` counts from
/// there to the end, so an older library's lacks the foremost members.
macro_rules! extended_op {
    ($context:expr, $op:ident) => {{
        let needed = size_of::<verbs_context>() - offset!($op);
        // SAFETY: the caller's context is live, and `sz` says that it has the member.
        unsafe { get_verbs_context($context) }
            .map(|v| v.as_ptr())
            .filter(|&v| unsafe { (*v).sz } >= needed)
            .and_then(|v| unsafe { (*v).$op })
    }};
}

/// Device attributes with their extended part; from a provider that has none, the plain ones
/// with zeros behind them.
pub unsafe fn query_device_ex(context: *mut ibv_context) -> Result<ibv_device_attr_ex, c_int> {
    // SAFETY: a plain C struct of numbers.
    let mut attr: ibv_device_attr_ex = unsafe { zeroed() };
    let input = ibv_query_device_ex_input { comp_mask: 0 };
    if let Some(query) = extended_op!(context, query_device_ex) {
        let size = size_of::<ibv_device_attr_ex>();
        match checked(|| unsafe { query(context, &input, &mut attr, size) }) {
            Err(libc::EOPNOTSUPP | libc::ENOSYS) => attr = unsafe { zeroed() },
            other => return other.map(|()| attr),
        }
    }
    attr.orig_attr = unsafe { query_device(context)? };
    Ok(attr)
}

/// Port attributes, the full structure. The exported `ibv_query_port` fills a shorter, older
/// one: it serves libraries that lack the extended call.
pub unsafe fn query_port(context: *mut ibv_context, port: u8) -> Result<ibv_port_attr, c_int> {
    // SAFETY: a plain C struct of numbers.
    let mut attr: ibv_port_attr = unsafe { zeroed() };
    match extended_op!(context, query_port) {
        Some(query) => {
            let size = size_of::<ibv_port_attr>();
            checked(|| unsafe { query(context, port, &mut attr, size) })?;
        }
        None => {
            let old = (&mut attr as *mut ibv_port_attr).cast::<c_void>();
            checked(|| unsafe { exported::ibv_query_port(context, port, old) })?;
        }
    }
    Ok(attr)
}

/// Makes a QP with extended attributes. One made with `send_ops_flags` must be used for those
/// operations only, by `ibv_post_send` too.
pub unsafe fn create_qp_ex(
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<NonNull<ibv_qp>, c_int> {
    if attr.comp_mask == IBV_QP_INIT_ATTR_PD {
        // The plain structure is the head of the extended one.
        let pd = attr.pd;
        let plain = (attr as *mut ibv_qp_init_attr_ex).cast::<ibv_qp_init_attr>();
        return checked_ptr(|| unsafe { exported::ibv_create_qp(pd, plain) });
    }
    let create = extended_op!(context, create_qp_ex).ok_or(libc::EOPNOTSUPP)?;
    checked_ptr(|| unsafe { create(context, attr) })
}

pub unsafe fn create_cq_ex(
    context: *mut ibv_context,
    attr: &mut ibv_cq_init_attr_ex,
) -> Result<NonNull<ibv_cq_ex>, c_int> {
    let create = extended_op!(context, create_cq_ex).ok_or(libc::EOPNOTSUPP)?;
    checked_ptr(|| unsafe { create(context, attr) })
}

/// Allocates a thread domain: objects made in it have no locks, only one thread may use them.
pub unsafe fn alloc_td(context: *mut ibv_context) -> Result<NonNull<ibv_td>, c_int> {
    let alloc = extended_op!(context, alloc_td).ok_or(libc::EOPNOTSUPP)?;
    let mut attr = ibv_td_init_attr { comp_mask: 0 };
    checked_ptr(|| unsafe { alloc(context, &mut attr) })
}

pub unsafe fn dealloc_td(td: *mut ibv_td) -> Result<(), c_int> {
    let dealloc = extended_op!((*td).context, dealloc_td).ok_or(libc::EOPNOTSUPP)?;
    checked(|| unsafe { dealloc(td) })
}

/// Allocates a parent domain, a second face of a PD. `ibv_dealloc_pd` frees it. Verbs compares
/// PDs by pointer, so the two are told apart where they should not be.
pub unsafe fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: &mut ibv_parent_domain_init_attr,
) -> Result<NonNull<ibv_pd>, c_int> {
    let alloc = extended_op!(context, alloc_parent_domain).ok_or(libc::EOPNOTSUPP)?;
    checked_ptr(|| unsafe { alloc(context, attr) })
}

/// Puts a bind or a LOCAL_INV into the batch that `ibv_wr_start` began on this thread. A window's
/// `rkey` must be its current key, as for `ibv_post_send`.
pub unsafe fn wr_put(qp: NonNull<ibv_qp_ex>, wr: &ibv_send_wr) {
    let base = qp.as_ptr();
    unsafe {
        (*base).wr_id = wr.wr_id;
        (*base).wr_flags = wr.send_flags;
    }
    if wr.opcode == IBV_WR_BIND_MW {
        if let Some(bind_mw) = unsafe { (*base).wr_bind_mw } {
            let bind = unsafe { wr.bind_mw_tso_union.bind_mw };
            unsafe { bind_mw(base, bind.mw, bind.rkey, &bind.bind_info) };
        }
    } else if let Some(local_inv) = unsafe { (*base).wr_local_inv } {
        unsafe { local_inv(base, wr.imm_data_invalidated_rkey_union.invalidated_rkey) };
    }
}

/// The completion that `ibv_start_poll` or `ibv_next_poll` shows on this thread.
pub struct Shown {
    pub wr_id: u64,
    pub status: u32,
    /// 0 on an error, where it means nothing.
    pub opcode: u32,
    pub wc_flags: u32,
    /// What the queue was not made to tell is `None`.
    pub qp_num: Option<u32>,
    pub invalidated_rkey: Option<u32>,
}

pub unsafe fn shown(cq: NonNull<ibv_cq_ex>) -> Shown {
    let base = cq.as_ptr();
    let status = unsafe { (*base).status };
    let good = status == IBV_WC_SUCCESS;
    let read =
        |field: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>| field.map(|read| unsafe { read(base) });
    unsafe {
        Shown {
            wr_id: (*base).wr_id,
            status,
            opcode: if good { read((*base).read_opcode).unwrap_or(0) } else { 0 },
            wc_flags: if good { read((*base).read_wc_flags).unwrap_or(0) } else { 0 },
            qp_num: read((*base).read_qp_num),
            invalidated_rkey: if good { read((*base).read_imm_data) } else { None },
        }
    }
}
