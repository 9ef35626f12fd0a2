//! `ibv_modify_qp` and `ibv_query_qp`.

use crate::context;
use crate::counters;
use crate::device;
use crate::engine::Work;
use crate::fault::{self, Fault};
use crate::guard::guard;
use crate::model;
use crate::object::{self, Object};
use crate::qp::Qp;
use crate::rq::Rq;
use crate::state;
use libc::c_int;
use std::sync::atomic::Ordering::*;
use verbs::*;

/// What was set, for who asks.
pub struct Attributes {
    attr: ibv_qp_attr,
    init: ibv_qp_init_attr,
}

// SAFETY: the pointers in it are the application's, only ever handed back.
unsafe impl Send for Attributes {}

impl Default for Attributes {
    fn default() -> Self {
        // SAFETY: pointers and numbers.
        unsafe { std::mem::zeroed() }
    }
}

impl Attributes {
    pub fn new(init: &ibv_qp_init_attr) -> Self {
        // SAFETY: plain C structures, of numbers and of pointers only handed back.
        let (mut attr, init): (ibv_qp_attr, _) = unsafe { (std::mem::zeroed(), std::ptr::read(init)) };
        attr.cap = init.cap;
        Self { attr, init }
    }
}

const ACCESS_KNOWN: u32 = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_MW_BIND;

/// The values of the attributes that are set.
fn check_values(qp: &Qp, a: &ibv_qp_attr, mask: u32) -> Result<(), c_int> {
    let set = |bit| mask & bit != 0;
    let max_rd = qp.context().limits.max_rd_atomic;
    let gid_known = |i: u8| device::gid(u32::from(i)).is_some();
    let wrong = (set(IBV_QP_PKEY_INDEX) && a.pkey_index != 0)
        || (set(IBV_QP_PORT) && a.port_num != device::PORT)
        || (set(IBV_QP_ACCESS_FLAGS) && a.qp_access_flags & !ACCESS_KNOWN != 0)
        || (set(IBV_QP_PATH_MTU) && !(1..=device::MTU_4096).contains(&{ a.path_mtu }))
        || (set(IBV_QP_MAX_DEST_RD_ATOMIC) && a.max_dest_rd_atomic > max_rd)
        || (set(IBV_QP_MAX_QP_RD_ATOMIC) && a.max_rd_atomic > max_rd)
        || (set(IBV_QP_MIN_RNR_TIMER) && a.min_rnr_timer > 31)
        || (set(IBV_QP_TIMEOUT) && a.timeout > 31)
        || (set(IBV_QP_RETRY_CNT) && a.retry_cnt > 7)
        || (set(IBV_QP_RNR_RETRY) && a.rnr_retry > 7)
        // On Ethernet every path has a global header.
        || (set(IBV_QP_AV)
            && (a.ah_attr.is_global == 0
                || a.ah_attr.port_num != device::PORT
                || !gid_known(a.ah_attr.grh.sgid_index)))
        || set(IBV_QP_ALT_PATH);
    if wrong {
        return Err(libc::EINVAL);
    }
    Ok(())
}

/// The responder's half of the attributes.
fn apply_to_responder(rq: &mut Rq, a: &ibv_qp_attr, mask: u32) {
    let set = |bit| mask & bit != 0;
    if set(IBV_QP_ACCESS_FLAGS) {
        rq.access = a.qp_access_flags;
    }
    if set(IBV_QP_RQ_PSN) {
        rq.psn = a.rq_psn & 0xff_ffff;
    }
    if set(IBV_QP_DEST_QPN) {
        rq.peer = a.dest_qp_num;
    }
    if set(IBV_QP_MIN_RNR_TIMER) {
        rq.rnr_timer = a.min_rnr_timer;
    }
    if set(IBV_QP_MAX_DEST_RD_ATOMIC) {
        rq.max_rd_atomic = a.max_dest_rd_atomic;
    }
}

const REQUESTER: u32 = IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_DEST_QPN
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC;

fn apply_to_requester(qp: &'static Qp, a: &ibv_qp_attr, mask: u32) {
    if mask & REQUESTER == 0 {
        return;
    }
    let set = |bit| mask & bit != 0;
    // The queue is idle or draining whenever one of these may be set.
    let mut x = qp.exec.lock();
    if set(IBV_QP_AV) {
        // SAFETY: every bit pattern is a GID.
        x.dest_is_ours = device::is_ours(unsafe { &a.ah_attr.grh.dgid.raw });
    }
    if set(IBV_QP_DEST_QPN) {
        x.dest = a.dest_qp_num;
    }
    if set(IBV_QP_PATH_MTU) {
        x.mtu = 128 << a.path_mtu;
    }
    if set(IBV_QP_TIMEOUT) {
        x.timeout = a.timeout;
    }
    if set(IBV_QP_RETRY_CNT) {
        x.retry_cnt = a.retry_cnt;
    }
    if set(IBV_QP_RNR_RETRY) {
        x.rnr_retry = a.rnr_retry;
    }
    if set(IBV_QP_SQ_PSN) {
        x.psn = a.sq_psn & 0xff_ffff;
    }
    if set(IBV_QP_MAX_QP_RD_ATOMIC) {
        x.max_rd_atomic = a.max_rd_atomic;
    }
}

/// Keeps what was set, for `ibv_query_qp`.
fn remember(to: &mut ibv_qp_attr, a: &ibv_qp_attr, mask: u32) {
    macro_rules! keep {
        ($($bit:ident => $($field:ident),+;)*) => {
            $(if mask & $bit != 0 { $(to.$field = a.$field;)+ })*
        };
    }
    keep! {
        IBV_QP_ACCESS_FLAGS => qp_access_flags;
        IBV_QP_PKEY_INDEX => pkey_index;
        IBV_QP_PORT => port_num;
        IBV_QP_AV => ah_attr;
        IBV_QP_PATH_MTU => path_mtu;
        IBV_QP_TIMEOUT => timeout;
        IBV_QP_RETRY_CNT => retry_cnt;
        IBV_QP_RNR_RETRY => rnr_retry;
        IBV_QP_RQ_PSN => rq_psn;
        IBV_QP_MAX_QP_RD_ATOMIC => max_rd_atomic;
        IBV_QP_MIN_RNR_TIMER => min_rnr_timer;
        IBV_QP_SQ_PSN => sq_psn;
        IBV_QP_MAX_DEST_RD_ATOMIC => max_dest_rd_atomic;
        IBV_QP_PATH_MIG_STATE => path_mig_state;
        IBV_QP_DEST_QPN => dest_qp_num;
        IBV_QP_EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify;
    }
}

/// To RESET: what is posted is gone without completions, and nothing runs any more.
fn reset(qp: &'static Qp, kept: &mut Attributes, work: &mut Work) {
    loop {
        let from = qp.state();
        if qp.change_state(from, IBV_QPS_RESET) {
            break;
        }
    }
    qp.exec.lock().discard(qp);
    qp.rq.lock().discard(qp, work);
    if qp.context().profile == model::Profile::Mlx5 {
        // mlx5 cleans the completion queues as well.
        for cq in [qp.send_cq.get(), qp.recv_cq.get()].into_iter().flatten() {
            cq.forget(qp);
        }
    }
    let fresh = Attributes::new(&kept.init);
    kept.attr = fresh.attr;
}

fn modify(qp: &'static Qp, a: &ibv_qp_attr, mask: u32, work: &mut Work) -> Result<(), c_int> {
    let mut kept = qp.attributes.lock();
    loop {
        let from = qp.state();
        let wanted = a.qp_state;
        let to = state::next(from, mask, wanted, a.cur_qp_state).ok_or(libc::EINVAL)?;
        check_values(qp, a, mask)?;
        match to {
            IBV_QPS_RESET => {
                reset(qp, &mut kept, work);
                return Ok(());
            }
            IBV_QPS_ERR => {
                qp.fail(work);
                return Ok(());
            }
            _ => {}
        }
        if to == IBV_QPS_SQD && from != to {
            let asked = mask & IBV_QP_EN_SQD_ASYNC_NOTIFY != 0 && a.en_sqd_async_notify != 0;
            qp.tell_drained.store(asked, Release);
        }
        apply_to_requester(qp, a, mask);
        let mut rq = qp.rq.lock();
        apply_to_responder(&mut rq, a, mask);
        // Under the lock of the responder: no packet sees half of the change.
        if !qp.change_state(from, to) {
            continue; // it failed meanwhile
        }
        if from == IBV_QPS_INIT && to == IBV_QPS_RTR {
            // Requesters that were too early.
            rq.waiters.kick_all(work);
        }
        drop(rq);
        remember(&mut kept.attr, a, mask);
        work.kick(qp, qp.live().id());
        return Ok(());
    }
}

/// # Safety
/// `qp` came from this device, `attr` is readable.
#[no_mangle]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    guard(libc::EIO, || {
        let found = match unsafe { object::get::<Qp>(qp) } {
            Ok(qp) => qp,
            Err(e) => return e,
        };
        let Some(a) = (unsafe { attr.as_ref() }) else {
            return libc::EINVAL;
        };
        counters::bump(counters::QP_MODIFIES);
        model::kernel_call();
        if let Some(hit) = fault::strike(Fault::ModifyQp, &[found.number()]) {
            return hit.error;
        }
        let mask = mask as u32;
        if !context::is_fatal() {
            let mut work = Work::new();
            let r = modify(found, a, mask, &mut work);
            work.finish();
            if let Err(e) = r {
                return e;
            }
        }
        if mask & IBV_QP_STATE != 0 {
            unsafe { (*qp).state = a.qp_state };
        }
        0
    })
}

/// # Safety
/// `qp` came from this device; the two others are writable.
#[no_mangle]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    guard(libc::EIO, || {
        let found = match unsafe { object::get::<Qp>(qp) } {
            Ok(qp) => qp,
            Err(e) => return e,
        };
        counters::bump(counters::QP_QUERIES);
        model::kernel_call();
        if let Some(hit) = fault::strike(Fault::QueryQp, &[found.number()]) {
            return hit.error;
        }
        if context::is_fatal() {
            return libc::EIO;
        }
        let kept = found.attributes.lock();
        // SAFETY: plain C structures; the caller's places are writable.
        unsafe {
            let mut now = std::ptr::read(&kept.attr);
            now.qp_state = found.state() as _;
            now.cur_qp_state = now.qp_state;
            now.cap = kept.init.cap;
            if let Some(x) = found.exec.try_lock() {
                now.sq_draining = (found.state() == IBV_QPS_SQD && x.current.is_some()) as u8;
                now.sq_psn = x.psn;
            } else {
                now.sq_draining = (found.state() == IBV_QPS_SQD) as u8;
            }
            now.rq_psn = found.rq.lock().psn;
            if !attr.is_null() {
                attr.write(now);
                (*qp).state = (*attr).qp_state;
            }
            if !init.is_null() {
                init.write(std::ptr::read(&kept.init));
            }
        }
        0
    })
}

#[no_mangle]
pub extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: libc::c_uint, _flags: u32) -> c_int {
    // A copy makes no promise about the order of bytes within a packet.
    0
}
