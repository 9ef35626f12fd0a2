//! Extended queue pairs: work requests posted by a call each, between a start and a complete.

use crate::context::Context;
use crate::counters;
use crate::engine::Work;
use crate::guard::{guard, guard_ptr};
use crate::object::{self, Object};
use crate::post::{run, Post};
use crate::qp::{self, Qp};
use crate::sq::{self, Data, Wqe};
use libc::{c_int, c_void};
use verbs::*;

const ATTR_PD: u32 = 1;
const ATTR_CREATE_FLAGS: u32 = 1 << 2;
const ATTR_SEND_OPS: u32 = 1 << 6;
/// The operations that there are functions for; the bits are those of the opcodes.
const OFFERED: u64 = 0x3ff;

/// The work requests of a batch. They are posted all together at its end, or not at all.
#[derive(Default)]
pub struct Batch {
    wqes: Vec<Staged>,
    error: Option<c_int>,
}

struct Staged {
    wqe: Wqe,
    data: StagedData,
}

enum StagedData {
    None,
    List(Vec<ibv_sge>),
    Inline(Vec<u8>),
}

pub unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    guard_ptr(|| {
        let context = unsafe { Context::get(context)? };
        let a = unsafe { attr.as_ref() }.ok_or(libc::EINVAL)?;
        if a.comp_mask & ATTR_PD == 0 {
            return Err(libc::EINVAL);
        }
        let send_ops = (a.comp_mask & ATTR_SEND_OPS != 0).then_some(a.send_ops_flags);
        let no_flags = a.comp_mask & ATTR_CREATE_FLAGS == 0 || a.create_flags == 0;
        let known = no_flags && a.comp_mask & !(ATTR_PD | ATTR_CREATE_FLAGS | ATTR_SEND_OPS) == 0;
        if !known || send_ops.unwrap_or(0) & !OFFERED != 0 {
            counters::unsupported("ibv_create_qp_ex");
            return Err(libc::EOPNOTSUPP);
        }
        // The plain structure is the head of the extended one.
        let request = qp::Request { pd: a.pd, attr: attr.cast(), send_ops };
        let qp = unsafe { qp::make(request)? };
        debug_assert!(std::ptr::eq(qp.context(), context));
        if let Some(ops) = send_ops {
            // SAFETY: nobody else uses the object yet.
            install(unsafe { &mut *qp.base.get() }, ops);
        }
        Ok(qp.as_c())
    })
}

/// An operation that was not asked for has no function, as on a real device.
fn install(base: &mut ibv_qp_ex, ops: u64) {
    let asked = |opcode: u32| ops & 1 << opcode != 0;
    base.wr_start = Some(start);
    base.wr_complete = Some(complete);
    base.wr_abort = Some(abort);
    base.wr_set_sge = Some(set_sge);
    base.wr_set_sge_list = Some(set_sge_list);
    base.wr_set_inline_data = Some(set_inline_data);
    base.wr_set_inline_data_list = Some(set_inline_data_list);
    base.wr_rdma_write = asked(IBV_WR_RDMA_WRITE).then_some(rdma_write as _);
    base.wr_rdma_write_imm = asked(IBV_WR_RDMA_WRITE_WITH_IMM).then_some(rdma_write_imm as _);
    base.wr_send = asked(IBV_WR_SEND).then_some(send as _);
    base.wr_send_imm = asked(IBV_WR_SEND_WITH_IMM).then_some(send_imm as _);
    base.wr_send_inv = asked(IBV_WR_SEND_WITH_INV).then_some(send_inv as _);
    base.wr_rdma_read = asked(IBV_WR_RDMA_READ).then_some(rdma_read as _);
    base.wr_atomic_cmp_swp = asked(IBV_WR_ATOMIC_CMP_AND_SWP).then_some(atomic_cmp_swp as _);
    base.wr_atomic_fetch_add = asked(IBV_WR_ATOMIC_FETCH_AND_ADD).then_some(atomic_fetch_add as _);
    base.wr_local_inv = asked(IBV_WR_LOCAL_INV).then_some(local_inv as _);
    base.wr_bind_mw = asked(IBV_WR_BIND_MW).then_some(bind_mw as _);
}

/// Runs `body` on the batch of a queue pair whose lock the calling thread holds.
unsafe fn batch(qp: *mut ibv_qp_ex, body: impl FnOnce(&'static Qp, &mut Batch)) {
    guard((), || {
        let Ok(qp) = (unsafe { object::get::<Qp>(qp.cast()) }) else {
            return;
        };
        if qp.post_lock.is_mine() {
            // SAFETY: the lock guards the batch.
            body(qp, unsafe { &mut *qp.batch.get() });
        }
    })
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    guard((), || {
        let Ok(qp) = (unsafe { object::get::<Qp>(qp.cast()) }) else {
            return;
        };
        if let Err(e) = qp.post_lock.lock() {
            // A start within a batch: the batch fails.
            unsafe { (*qp.batch.get()).error = Some(e) };
            return;
        }
        // SAFETY: the lock guards the batch.
        let batch = unsafe { &mut *qp.batch.get() };
        batch.wqes.clear();
        batch.error = None;
    })
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    unsafe {
        batch(qp, |qp, batch| {
            batch.wqes.clear();
            qp.post_lock.unlock();
        })
    }
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    guard(libc::EIO, || {
        let qp = match unsafe { object::get::<Qp>(qp.cast()) } {
            Ok(qp) if qp.post_lock.is_mine() => qp,
            _ => return libc::EINVAL,
        };
        let mut work = Work::new();
        // SAFETY: the lock guards the batch.
        let r = post(qp, unsafe { &mut *qp.batch.get() }, &mut work);
        qp.post_lock.unlock();
        run(qp, &mut work);
        r.err().unwrap_or(0)
    })
}

/// Posts a batch: all of it, or after an error nothing.
fn post(qp: &'static Qp, batch: &mut Batch, work: &mut Work) -> Result<(), c_int> {
    let wqes = std::mem::take(&mut batch.wqes);
    if let Some(e) = batch.error.take() {
        return Err(e);
    }
    let mut post = Post::begin(qp, work)?;
    let mut queue = qp.sq.lock();
    let before = queue.tail();
    for staged in &wqes {
        let buffer;
        let data = match &staged.data {
            StagedData::None => Data::None,
            StagedData::List(list) => Data::List(list),
            StagedData::Inline(bytes) => {
                buffer = [ibv_data_buf { addr: bytes.as_ptr().cast_mut().cast(), length: bytes.len() }];
                Data::Inline(&buffer)
            }
        };
        // SAFETY: the data is the batch's own.
        if let Err(e) = unsafe { post.add(&mut queue, staged.wqe, data) } {
            queue.truncate(before);
            return Err(e);
        }
    }
    post.count();
    post.silent_error().map_or(Ok(()), Err)
}

/// Begins a work request with the `wr_id` and `wr_flags` that the application has set.
unsafe fn add(qp: *mut ibv_qp_ex, opcode: u32, fill: impl FnOnce(&mut Wqe)) {
    let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    unsafe {
        batch(qp, |_, batch| {
            let mut wqe = Wqe::new(wr_id, opcode, flags);
            fill(&mut wqe);
            batch.wqes.push(Staged { wqe, data: StagedData::None });
        })
    }
}

/// Gives the last work request its data.
unsafe fn set(qp: *mut ibv_qp_ex, data: StagedData) {
    unsafe {
        batch(qp, |_, batch| match batch.wqes.last_mut() {
            Some(last) => last.data = data,
            None => batch.error = Some(libc::EINVAL),
        })
    }
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    unsafe { add(qp, IBV_WR_RDMA_WRITE, |w| (w.rkey, w.remote_addr) = (rkey, addr)) }
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    unsafe { add(qp, IBV_WR_RDMA_WRITE_WITH_IMM, |w| (w.rkey, w.remote_addr, w.imm) = (rkey, addr, imm)) }
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    unsafe { add(qp, IBV_WR_RDMA_READ, |w| (w.rkey, w.remote_addr) = (rkey, addr)) }
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    unsafe { add(qp, IBV_WR_SEND, |_| {}) }
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    unsafe { add(qp, IBV_WR_SEND_WITH_IMM, |w| w.imm = imm) }
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    unsafe { add(qp, IBV_WR_SEND_WITH_INV, |w| w.imm = rkey) }
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    unsafe { add(qp, IBV_WR_LOCAL_INV, |w| w.imm = rkey) }
}

unsafe extern "C" fn atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, compare: u64, swap: u64) {
    unsafe {
        add(qp, IBV_WR_ATOMIC_CMP_AND_SWP, |w| {
            (w.rkey, w.remote_addr) = (rkey, addr);
            (w.compare_add, w.swap) = (compare, swap);
        })
    }
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, more: u64) {
    unsafe {
        add(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, |w| (w.rkey, w.remote_addr, w.compare_add) = (rkey, addr, more))
    }
}

unsafe extern "C" fn bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    unsafe {
        add(qp, IBV_WR_BIND_MW, |w| {
            w.bind = info.as_ref().map(|info| sq::bind_of(mw, rkey, info));
        })
    }
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let one = ibv_sge { addr, length, lkey };
    unsafe { set(qp, StagedData::List(vec![one])) }
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, n: usize, list: *const ibv_sge) {
    let list = match n {
        0 => Vec::new(),
        // SAFETY: the application's list has so many elements.
        _ => unsafe { std::slice::from_raw_parts(list, n) }
            .iter()
            .map(|s| ibv_sge { addr: s.addr, length: s.length, lkey: s.lkey })
            .collect(),
    };
    unsafe { set(qp, StagedData::List(list)) }
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    unsafe { set_inline_data_list(qp, 1, &buffer) }
}

unsafe extern "C" fn set_inline_data_list(qp: *mut ibv_qp_ex, n: usize, list: *const ibv_data_buf) {
    let mut bytes = Vec::new();
    for i in 0..n {
        // SAFETY: the application's list has `n` buffers.
        unsafe {
            let b = &*list.add(i);
            if b.length != 0 {
                bytes.extend_from_slice(std::slice::from_raw_parts(b.addr.cast(), b.length));
            }
        }
    }
    unsafe { set(qp, StagedData::Inline(bytes)) }
}
