//! Extended completion queues: polled in batches, each field read by a call.

use crate::context::Context;
use crate::counters;
use crate::cq::{self, Cq, Cqe, Request};
use crate::guard::guard;
use crate::model::Profile;
use crate::object::{self, Object};
use crate::pd::Pd;
use libc::{c_int, c_uint};
use verbs::*;

const WITH_BYTE_LEN: u64 = 1;
const WITH_IMM: u64 = 1 << 1;
const WITH_QP_NUM: u64 = 1 << 2;
const WITH_SRC_QP: u64 = 1 << 3;
const WITH_SLID: u64 = 1 << 4;
const WITH_SL: u64 = 1 << 5;
const WITH_DLID_PATH_BITS: u64 = 1 << 6;
const WITH_TIMESTAMP: u64 = 1 << 7;
const WITH_WALLCLOCK: u64 = 1 << 11;
const OFFERED: u64 = 0x7f | WITH_TIMESTAMP | WITH_WALLCLOCK;

const MASK_FLAGS: u32 = 1;
const MASK_PD: u32 = 1 << 1;
const SINGLE_THREADED: u32 = 1;

/// # Safety
/// `context` is open, `attr` readable.
pub unsafe fn create(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> Result<*mut ibv_cq_ex, c_int> {
    let context = unsafe { Context::get(context)? };
    if attr.is_null() {
        return Err(libc::EINVAL);
    }
    let a = unsafe { &*attr };
    if a.comp_mask & !(MASK_FLAGS | MASK_PD) != 0 {
        return Err(libc::EINVAL);
    }
    let flags = if a.comp_mask & MASK_FLAGS != 0 { a.flags } else { 0 };
    if a.wc_flags & !OFFERED != 0 || flags & !SINGLE_THREADED != 0 {
        counters::unsupported("ibv_create_cq_ex");
        return Err(libc::EOPNOTSUPP);
    }
    let parent = match a.comp_mask & MASK_PD {
        0 => None,
        _ => Some(unsafe { object::get::<Pd>(a.parent_domain)? }),
    };
    let wanted = a.wc_flags;
    let cq = cq::make(Request {
        context,
        cqe: a.cqe,
        cq_context: a.cq_context,
        channel: a.channel,
        comp_vector: a.comp_vector,
        parent,
        single_threaded: flags & SINGLE_THREADED != 0,
        timestamps: wanted & (WITH_TIMESTAMP | WITH_WALLCLOCK) != 0,
        extend: Some(&|base| install(base, wanted)),
    })?;
    Ok(cq.as_c().cast())
}

/// A field that was not asked for has no function, as on a real device.
fn install(base: &mut ibv_cq_ex, wanted: u64) {
    let asked = |flag| wanted & flag != 0;
    base.start_poll = Some(start_poll);
    base.next_poll = Some(next_poll);
    base.end_poll = Some(end_poll);
    base.read_opcode = Some(read_opcode);
    base.read_vendor_err = Some(read_vendor_err);
    base.read_wc_flags = Some(read_wc_flags);
    base.read_byte_len = asked(WITH_BYTE_LEN).then_some(read_byte_len as _);
    base.read_imm_data = asked(WITH_IMM).then_some(read_imm_data as _);
    base.read_qp_num = asked(WITH_QP_NUM).then_some(read_qp_num as _);
    base.read_src_qp = asked(WITH_SRC_QP).then_some(read_src_qp as _);
    base.read_slid = asked(WITH_SLID).then_some(read_slid as _);
    base.read_sl = asked(WITH_SL).then_some(read_sl as _);
    base.read_dlid_path_bits = asked(WITH_DLID_PATH_BITS).then_some(read_sl as _);
    base.read_completion_ts = asked(WITH_TIMESTAMP).then_some(read_time as _);
    base.read_completion_wallclock_ns = asked(WITH_WALLCLOCK).then_some(read_wallclock as _);
}

/// Shows the next completion; ENOENT when there is none.
fn show_next(cq: &Cq) -> c_int {
    let Some(cqe) = cq.pop() else {
        return libc::ENOENT;
    };
    // SAFETY: the caller has the poll lock, which guards both.
    unsafe {
        let base = &mut *cq.base.get();
        base.wr_id = cqe.wr_id;
        base.status = cqe.status as _;
        *cq.current.get() = Some(cqe);
    }
    0
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    guard(libc::EIO, || {
        let cq = match unsafe { object::get::<Cq>(cq.cast()) } {
            Ok(cq) => cq,
            Err(e) => return e,
        };
        if !attr.is_null() && unsafe { (*attr).comp_mask } != 0 {
            return libc::EINVAL;
        }
        counters::bump(counters::POLLS);
        if let Err(e) = cq.poll_lock.lock() {
            return e;
        }
        // Without a completion there is no batch, and no end_poll follows.
        let r = show_next(cq);
        if r != 0 {
            cq.poll_lock.unlock();
        }
        r
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    guard(libc::EIO, || match unsafe { object::get::<Cq>(cq.cast()) } {
        Ok(cq) => show_next(cq),
        Err(e) => e,
    })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    guard((), || {
        if let Ok(cq) = unsafe { object::get::<Cq>(cq.cast()) } {
            // SAFETY: the caller has the poll lock, by `start_poll`.
            unsafe { *cq.current.get() = None };
            cq.poll_lock.unlock();
        }
    })
}

/// The completion that is shown; its field is 0 outside a batch.
unsafe fn read<R: Default>(cq: *mut ibv_cq_ex, field: impl FnOnce(&Cqe) -> R) -> R {
    guard(R::default(), || {
        // SAFETY: read between `start_poll` and `end_poll`, by the thread that has the lock.
        unsafe { object::get::<Cq>(cq.cast()) }
            .ok()
            .and_then(|cq| unsafe { (*cq.current.get()).as_ref().map(field) })
            .unwrap_or_default()
    })
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> c_uint {
    unsafe {
        read(cq, |c| {
            let failed = c.status != IBV_WC_SUCCESS;
            match failed && c.qp.context().profile != Profile::Rxe {
                true => IBV_WC_SEND,
                false => c.opcode,
            }
        })
    }
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    unsafe { read(cq, cq::vendor_err) }
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    unsafe { read(cq, |c| c.wc_flags) }
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    unsafe { read(cq, |c| c.byte_len) }
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    unsafe { read(cq, |c| c.imm) }
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    unsafe { read(cq, |c| c.qp.number()) }
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    unsafe { read(cq, |c| c.src_qp) }
}

unsafe extern "C" fn read_slid(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_sl(_cq: *mut ibv_cq_ex) -> u8 {
    0
}

unsafe extern "C" fn read_time(cq: *mut ibv_cq_ex) -> u64 {
    unsafe { read(cq, |c| c.time) }
}

/// The completion's age, counted back from the wall clock.
unsafe extern "C" fn read_wallclock(cq: *mut ibv_cq_ex) -> u64 {
    let time = unsafe { read(cq, |c| c.time) };
    let age = crate::timer::now().saturating_sub(time);
    let wall =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    wall.saturating_sub(age)
}
