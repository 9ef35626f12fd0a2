//! Verbs calls with C's semantics and one kind of error: a positive errno value.
//!
//! Calls marked *never waits* stay in the provider's user-space part. The others are kernel
//! calls: they can't be interrupted, and a driver's own limit for one may be a minute.

use crate::errno::{checked, checked_ptr};
use crate::*;
use libc::{c_int, c_uint, c_void};
use std::ffi::CStr;
use std::fmt;
use std::mem::zeroed;
use std::ptr::{null_mut, NonNull};

/// A post that a provider refused.
pub struct PostError<T> {
    /// Positive.
    pub errno: c_int,
    /// The first work request that was *not* queued; all before it were. NULL when the provider
    /// did not say: then any number of them may be queued, also all (rxe does that).
    pub bad_wr: *mut T,
}

// Not derived: that would ask the same of the work request, of which this is a pointer only.
impl<T> Clone for PostError<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for PostError<T> {}
impl<T> PartialEq for PostError<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.errno, self.bad_wr) == (other.errno, other.bad_wr)
    }
}
impl<T> Eq for PostError<T> {}
impl<T> fmt::Debug for PostError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}, bad_wr {:p}", self.errno, self.bad_wr)
    }
}

// ---- memory windows ----

/// Allocates a window, unbound. The kernel picks the rkey's upper 24 bits.
///
/// Capability bits are no promise: some providers set them and have no `alloc_mw`
/// (EOPNOTSUPP here), and one allocates windows that can't be bound.
#[inline]
pub unsafe fn alloc_mw(pd: *mut ibv_pd, mw_type: u32) -> Result<NonNull<ibv_mw>, c_int> {
    let alloc = unsafe { (*(*pd).context).ops.alloc_mw }.ok_or(libc::EOPNOTSUPP)?;
    checked_ptr(|| unsafe { alloc(pd, mw_type) })
}

/// Frees a window. A bound one is unbound at once, whatever the state of its QP.
#[inline]
pub unsafe fn dealloc_mw(mw: *mut ibv_mw) -> Result<(), c_int> {
    let dealloc = unsafe { (*(*mw).context).ops.dealloc_mw }.ok_or(libc::EOPNOTSUPP)?;
    checked(|| unsafe { dealloc(mw) })
}

/// Binds a Type 1 window, or unbinds it with length 0; it takes a slot of the QP's send queue.
/// *Never waits.*
///
/// EINVAL for a Type 2 window: that one is bound by a work request, see [`bind_wr`]. On success
/// the provider has changed `mw->rkey` at post time already; undo that if the completion is an
/// error.
pub unsafe fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> Result<(), c_int> {
    let (window, info) = unsafe { (&*mw, &(*bind).bind_info) };
    if window.type_ != IBV_MW_TYPE_1 || (info.mr.is_null() && (info.addr | info.length) != 0) {
        return Err(libc::EINVAL);
    }
    if !info.mr.is_null() && window.pd != unsafe { (*info.mr).pd } {
        return Err(libc::EPERM);
    }
    let op = unsafe { (*window.context).ops.bind_mw }.ok_or(libc::EOPNOTSUPP)?;
    checked(|| unsafe { op(qp, mw, bind) })
}

/// The same key with its low 8 bits, the ones that the caller picks, one further, modulo 256.
pub const fn inc_rkey(rkey: u32) -> u32 {
    with_key_bits(rkey, (rkey as u8).wrapping_add(1))
}

/// The same key with these low 8 bits.
pub const fn with_key_bits(rkey: u32, bits: u8) -> u32 {
    (rkey & !0xff) | bits as u32
}

// ---- posting and polling ----

/// Posts a chain of send work requests. *Never waits.*
///
/// It stops at the first bad one; those before it are posted. Never call it between
/// `ibv_wr_start` and `ibv_wr_complete` of the same QP: the send queue's lock is held there.
#[inline]
pub unsafe fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr) -> Result<(), PostError<ibv_send_wr>> {
    let mut bad_wr = null_mut();
    let post = unsafe { (*(*qp).context).ops.post_send };
    let post = post.ok_or(PostError { errno: libc::EOPNOTSUPP, bad_wr: wr })?;
    checked(|| unsafe { post(qp, wr, &mut bad_wr) }).map_err(|errno| PostError { errno, bad_wr })
}

/// Posts a chain of receive work requests. *Never waits.*
#[inline]
pub unsafe fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr) -> Result<(), PostError<ibv_recv_wr>> {
    let mut bad_wr = null_mut();
    let post = unsafe { (*(*qp).context).ops.post_recv };
    let post = post.ok_or(PostError { errno: libc::EOPNOTSUPP, bad_wr: wr })?;
    checked(|| unsafe { post(qp, wr, &mut bad_wr) }).map_err(|errno| PostError { errno, bad_wr })
}

/// Takes up to `num_entries` completions, in order; fewer than asked for means that the queue
/// was seen empty. *Never waits.*
///
/// The one error is EIO: providers return small negative numbers of their own here. On a
/// completion that is no success only `wr_id`, `status`, `qp_num` and `vendor_err` are valid.
/// `wc` must have room for `num_entries`; never call it between `ibv_start_poll` and
/// `ibv_end_poll` of the same queue.
#[inline]
pub unsafe fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> Result<usize, c_int> {
    let poll = unsafe { (*(*cq).context).ops.poll_cq }.ok_or(libc::EOPNOTSUPP)?;
    usize::try_from(unsafe { poll(cq, num_entries, wc) }).map_err(|_| libc::EIO)
}

/// Arms the queue: its next completion puts an event on its channel. *Never waits.*
///
/// Completions that are there already raise none: poll again after arming.
#[inline]
pub unsafe fn req_notify_cq(cq: *mut ibv_cq, solicited_only: bool) -> Result<(), c_int> {
    let arm = unsafe { (*(*cq).context).ops.req_notify_cq }.ok_or(libc::EOPNOTSUPP)?;
    checked(|| unsafe { arm(cq, solicited_only.into()) })
}

// ---- QPs ----

/// The QP's attributes and those it was created with. `mask` is a hint: providers fill in more.
pub unsafe fn query_qp(qp: *mut ibv_qp, mask: u32) -> Result<(ibv_qp_attr, ibv_qp_init_attr), c_int> {
    // SAFETY: both are plain C structs of numbers and pointers.
    let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { zeroed() };
    checked(|| unsafe { exported::ibv_query_qp(qp, &mut attr, mask as c_int, &mut init) })?;
    Ok((attr, init))
}

/// Changes the attributes that `mask` names.
///
/// A move to RESET discards outstanding work requests without completions. A move to ERR tells
/// the peer nothing. After a device-fatal event some providers report a success that did not
/// happen.
pub unsafe fn modify_qp(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: u32) -> Result<(), c_int> {
    checked(|| unsafe { exported::ibv_modify_qp(qp, attr, mask as c_int) })
}

/// Moves a QP to ERR, from any state but RESET.
pub unsafe fn modify_qp_to_err(qp: *mut ibv_qp) -> Result<(), c_int> {
    // SAFETY: a plain C struct of numbers.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = IBV_QPS_ERR;
    unsafe { modify_qp(qp, &mut attr, IBV_QP_STATE) }
}

/// The extended face of a QP made by `ibv_create_qp_ex` with `send_ops_flags`; None for any
/// other QP. *Never waits.*
///
/// Which operations it was created for can't be queried, and its send queue is sized for those
/// alone.
pub unsafe fn qp_to_qp_ex(qp: *mut ibv_qp) -> Option<NonNull<ibv_qp_ex>> {
    NonNull::new(unsafe { exported::ibv_qp_to_qp_ex(qp) })
}

pub unsafe fn create_qp(pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr) -> Result<NonNull<ibv_qp>, c_int> {
    checked_ptr(|| unsafe { exported::ibv_create_qp(pd, attr) })
}

/// Waits until every asynchronous event of the QP is acknowledged. Take its windows off first:
/// on rxe it stalls for 50 s while a Type 2 window is bound to it.
pub unsafe fn destroy_qp(qp: *mut ibv_qp) -> Result<(), c_int> {
    checked(|| unsafe { exported::ibv_destroy_qp(qp) })
}

// ---- devices ----

pub unsafe fn query_device(context: *mut ibv_context) -> Result<ibv_device_attr, c_int> {
    // SAFETY: a plain C struct of numbers.
    let mut attr: ibv_device_attr = unsafe { zeroed() };
    checked(|| unsafe { exported::ibv_query_device(context, &mut attr) })?;
    Ok(attr)
}

pub unsafe fn close_device(context: *mut ibv_context) -> Result<(), c_int> {
    checked(|| unsafe { exported::ibv_close_device(context) })
}

/// The device's name, such as `mlx5_0`. It lives as long as the device.
pub unsafe fn get_device_name<'a>(device: *mut ibv_device) -> Option<&'a CStr> {
    let name = unsafe { exported::ibv_get_device_name(device) };
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
}

pub unsafe fn query_gid(context: *mut ibv_context, port: u8, index: c_int) -> Result<ibv_gid, c_int> {
    let mut gid = ibv_gid { raw: [0; 16] };
    checked(|| unsafe { exported::ibv_query_gid(context, port, index, &mut gid) })?;
    Ok(gid)
}

/// Takes the next asynchronous event. It blocks unless the context's `async_fd` is non-blocking;
/// then EAGAIN says that there is none. Each event wants one [`ack_async_event`].
pub unsafe fn get_async_event(context: *mut ibv_context) -> Result<ibv_async_event, c_int> {
    // SAFETY: a plain C struct of a number and a union of pointers.
    let mut event: ibv_async_event = unsafe { zeroed() };
    checked(|| unsafe { exported::ibv_get_async_event(context, &mut event) })?;
    Ok(event)
}

/// Until every event of an object is acknowledged, destroying the object waits.
pub unsafe fn ack_async_event(event: &mut ibv_async_event) {
    unsafe { exported::ibv_ack_async_event(event) }
}

// ---- protection domains and regions ----

pub unsafe fn alloc_pd(context: *mut ibv_context) -> Result<NonNull<ibv_pd>, c_int> {
    checked_ptr(|| unsafe { exported::ibv_alloc_pd(context) })
}

pub unsafe fn dealloc_pd(pd: *mut ibv_pd) -> Result<(), c_int> {
    checked(|| unsafe { exported::ibv_dealloc_pd(pd) })
}

/// Registers memory whose iova is its address.
///
/// A window needs MW_BIND here, and LOCAL_WRITE for the right to write or for atomics. Any
/// REMOTE_* flag gives the region an rkey of its own, which no window's revocation closes.
pub unsafe fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: u32,
) -> Result<NonNull<ibv_mr>, c_int> {
    unsafe { reg_mr_iova(pd, addr, length, addr as u64, access) }
}

/// Registers memory under an iova.
///
/// verbs.h sends flags that are no compile-time constant through `ibv_reg_mr_iova2`, which also
/// drops optional flags that the kernel doesn't know; ours are never constant there.
pub unsafe fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> Result<NonNull<ibv_mr>, c_int> {
    checked_ptr(|| unsafe { exported::ibv_reg_mr_iova2(pd, addr, length, iova, access as c_uint) })
}

/// Fails with a window bound to the region (EINVAL on rxe, EBUSY on mlx4), or should.
pub unsafe fn dereg_mr(mr: *mut ibv_mr) -> Result<(), c_int> {
    checked(|| unsafe { exported::ibv_dereg_mr(mr) })
}

// ---- completion queues and shared receive queues ----

pub unsafe fn create_comp_channel(context: *mut ibv_context) -> Result<NonNull<ibv_comp_channel>, c_int> {
    checked_ptr(|| unsafe { exported::ibv_create_comp_channel(context) })
}

pub unsafe fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> Result<(), c_int> {
    checked(|| unsafe { exported::ibv_destroy_comp_channel(channel) })
}

/// `channel` may be NULL. The queue holds at least `cqe` entries.
pub unsafe fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> Result<NonNull<ibv_cq>, c_int> {
    checked_ptr(|| unsafe { exported::ibv_create_cq(context, cqe, cq_context, channel, comp_vector) })
}

/// A queue that holds more than `cqe` entries now can't be made smaller.
pub unsafe fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> Result<(), c_int> {
    checked(|| unsafe { exported::ibv_resize_cq(cq, cqe) })
}

pub unsafe fn destroy_cq(cq: *mut ibv_cq) -> Result<(), c_int> {
    checked(|| unsafe { exported::ibv_destroy_cq(cq) })
}

/// Takes the next completion event: the queue and the context it was created with. It blocks
/// unless the channel's fd is non-blocking. Each event wants acknowledging.
pub unsafe fn get_cq_event(channel: *mut ibv_comp_channel) -> Result<(*mut ibv_cq, *mut c_void), c_int> {
    let (mut cq, mut cq_context) = (null_mut(), null_mut());
    checked(|| unsafe { exported::ibv_get_cq_event(channel, &mut cq, &mut cq_context) })?;
    Ok((cq, cq_context))
}

pub unsafe fn ack_cq_events(cq: *mut ibv_cq, nevents: u32) {
    unsafe { exported::ibv_ack_cq_events(cq, nevents) }
}

pub unsafe fn create_srq(pd: *mut ibv_pd, attr: &mut ibv_srq_init_attr) -> Result<NonNull<ibv_srq>, c_int> {
    checked_ptr(|| unsafe { exported::ibv_create_srq(pd, attr) })
}

pub unsafe fn destroy_srq(srq: *mut ibv_srq) -> Result<(), c_int> {
    checked(|| unsafe { exported::ibv_destroy_srq(srq) })
}

/// Posts a chain of receive work requests to a shared receive queue. *Never waits.*
#[inline]
pub unsafe fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr) -> Result<(), PostError<ibv_recv_wr>> {
    let mut bad_wr = null_mut();
    let post = unsafe { (*(*srq).context).ops.post_srq_recv };
    let post = post.ok_or(PostError { errno: libc::EOPNOTSUPP, bad_wr: wr })?;
    checked(|| unsafe { post(srq, wr, &mut bad_wr) }).map_err(|errno| PostError { errno, bad_wr })
}
