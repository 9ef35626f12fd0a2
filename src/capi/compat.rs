//! What mwctl_compat.h puts in place of verbs calls. That header, written by hand, is the reference.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::context::{User, get_ready};
use super::types::*;
use crate::compat::{self, Answer};
use crate::device::{Cq, Device, Errno, Mr, Pd, Qp};

type OnMessage = Option<unsafe extern "C" fn(user: *mut c_void, text: *const c_char)>;

/// Runs a call's body; a panic is caught.
fn caught<T>(body: impl FnOnce() -> Answer<T>) -> Answer<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        compat::say("internal error".into());
        Err(Errno(libc::EIO))
    })
}

/// 0 or an errno value, which is in errno as well.
fn number(body: impl FnOnce() -> Answer<()>) -> c_int {
    caught(body).err().map_or(0, |Errno(error)| {
        verbs::set_errno(error);
        error
    })
}

/// NULL with errno on an error.
fn pointer<T>(body: impl FnOnce() -> Answer<*mut T>) -> *mut T {
    caught(body).unwrap_or_else(|Errno(error)| {
        verbs::set_errno(error);
        null_mut()
    })
}

fn given<T>(object: *mut T) -> Answer<NonNull<T>> {
    NonNull::new(object).ok_or(Errno(libc::EINVAL))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_alloc_mw(
    pd: *mut verbs::ibv_pd,
    mw_type: c_uint,
) -> *mut verbs::ibv_mw {
    get_ready();
    // SAFETY: the caller's PD.
    pointer(|| compat::alloc_mw(unsafe { Pd::new(given(pd)?) }, mw_type).map(NonNull::as_ptr))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_dealloc_mw(mw: *mut verbs::ibv_mw) -> c_int {
    number(|| compat::dealloc_mw(given(mw)?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_bind_mw(
    qp: *mut verbs::ibv_qp,
    mw: *mut verbs::ibv_mw,
    bind: *mut verbs::ibv_mw_bind,
) -> c_int {
    // SAFETY: the caller's queue pair and request.
    number(|| compat::bind_mw(unsafe { Qp::new(given(qp)?) }, given(mw)?, unsafe { given(bind)?.as_mut() }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_poll_cq(
    cq: *mut verbs::ibv_cq,
    num_entries: c_int,
    wc: *mut verbs::ibv_wc,
) -> c_int {
    let room = usize::try_from(num_entries).unwrap_or(0);
    let polled = caught(|| {
        // SAFETY: the caller's queue and array.
        let (cq, place) = unsafe { (Cq::new(given(cq)?), super::array_mut(wc.cast(), room)) };
        compat::poll_cq(cq, place.map_err(crate::adopt::errno_of)?)
    });
    polled.map_or(-1, |n| n as c_int)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_reg_mr(
    pd: *mut verbs::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
) -> *mut verbs::ibv_mr {
    // SAFETY: the caller's, as below.
    unsafe { mwctl_compat_reg_mr_iova(pd, addr, length, addr as u64, access) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_reg_mr_iova(
    pd: *mut verbs::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut verbs::ibv_mr {
    // SAFETY: the caller's PD.
    pointer(|| compat::reg_mr(unsafe { Pd::new(given(pd)?) }, addr, length, iova, access).map(Mr::raw))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_dereg_mr(mr: *mut verbs::ibv_mr) -> c_int {
    // SAFETY: the caller's region.
    number(|| compat::dereg_mr(unsafe { Mr::new(given(mr)?) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_create_cq(
    device: *mut verbs::ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut verbs::ibv_comp_channel,
    comp_vector: c_int,
) -> *mut verbs::ibv_cq {
    // SAFETY: the caller's device.
    let device = || Ok(unsafe { Device::new(given(device)?) });
    pointer(|| compat::create_cq(device()?, cqe, cq_context, channel, comp_vector).map(Cq::raw))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_resize_cq(cq: *mut verbs::ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the caller's queue.
    number(|| compat::resize_cq(unsafe { Cq::new(given(cq)?) }, cqe))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_destroy_cq(cq: *mut verbs::ibv_cq) -> c_int {
    // SAFETY: the caller's queue.
    number(|| compat::destroy_cq(unsafe { Cq::new(given(cq)?) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_create_qp(
    pd: *mut verbs::ibv_pd,
    attr: *mut verbs::ibv_qp_init_attr,
) -> *mut verbs::ibv_qp {
    // SAFETY: the caller's PD and attributes.
    pointer(|| {
        compat::create_qp(unsafe { Pd::new(given(pd)?) }, unsafe { given(attr)?.as_mut() }).map(Qp::raw)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_modify_qp(
    qp: *mut verbs::ibv_qp,
    attr: *mut verbs::ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    // SAFETY: the caller's queue pair and attributes.
    let (qp, attr) = unsafe { (|| Ok(Qp::new(given(qp)?)), || Ok(given(attr)?.as_mut())) };
    number(|| compat::modify_qp(qp()?, attr()?, attr_mask as u32))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_destroy_qp(qp: *mut verbs::ibv_qp) -> c_int {
    // SAFETY: the caller's queue pair.
    number(|| compat::destroy_qp(unsafe { Qp::new(given(qp)?) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_dealloc_pd(pd: *mut verbs::ibv_pd) -> c_int {
    // SAFETY: the caller's PD.
    number(|| compat::dealloc_pd(unsafe { Pd::new(given(pd)?) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_close_device(device: *mut verbs::ibv_context) -> c_int {
    // SAFETY: the caller's device.
    number(|| compat::close_device(unsafe { Device::new(given(device)?) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_context(device: *mut verbs::ibv_context) -> *mut mwctl_context {
    get_ready();
    // SAFETY: the caller's device.
    let device = || Ok(unsafe { Device::new(given(device)?) });
    pointer(|| Ok(Arc::as_ptr(&compat::context_for(device()?)?).cast_mut().cast()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mwctl_compat_on_message(on_message: OnMessage, user: *mut c_void) {
    let user = User::new(user);
    compat::on_message(on_message.map(|call| -> compat::OnMessage {
        // SAFETY: the application's function, with what it was promised.
        Arc::new(move |text: &CStr| unsafe { call(user.get(), text.as_ptr()) })
    }));
}

#[unsafe(no_mangle)]
pub extern "C" fn mwctl_compat_error() -> *const c_char {
    compat::last_message()
}
