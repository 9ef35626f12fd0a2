//! `ibv_post_send`, `ibv_post_recv` and `ibv_bind_mw`.

use crate::async_event;
use crate::counters;
use crate::engine::{self, Work};
use crate::fault::{self, Fault};
use crate::guard::guard;
use crate::misuse::{self, Rule};
use crate::model::{self, Profile};
use crate::mw::{self, Mw};
use crate::object;
use crate::owner_lock::Held;
use crate::qp::Qp;
use crate::rq;
use crate::sq::{self, Data, Sq, Wqe};
use crate::state;
use crate::timer;
use libc::c_int;
use std::sync::atomic::{AtomicU64, Ordering::*};
use verbs::*;

/// The largest bind of mlx5.
const MLX5_MAX_BIND: u64 = 1 << 31;

/// What faults do to one post.
struct Struck {
    /// Stops before the work request of this position with this error.
    cut: Option<(u32, c_int)>,
    /// All is queued, and then this error is returned without a bad work request.
    silent_error: Option<c_int>,
    /// The work request at this position fails with this status.
    fail_wr: Option<(u32, u32)>,
}

impl Struck {
    fn none() -> Self {
        Self { cut: None, silent_error: None, fail_wr: None }
    }

    fn at(qp: &'static Qp, work: &mut Work) -> Self {
        let here = [qp.number()];
        let mut struck = Self::none();
        if fault::strike(Fault::KillQp, &here).is_some() && qp.fail(work) {
            async_event::raise_qp(qp, IBV_EVENT_QP_FATAL);
        }
        if let Some(hit) = fault::strike(Fault::FailPost, &here) {
            struck.cut = Some((0, hit.error));
        } else if let Some(hit) = fault::strike(Fault::CutPost, &here) {
            struck.cut = Some((hit.position, hit.error));
        }
        struck.silent_error = fault::strike(Fault::PostNoBadWr, &here).map(|h| h.error);
        struck.fail_wr = fault::strike(Fault::FailWr, &here).map(|h| (h.position, h.error as u32));
        struck
    }
}

/// One call that posts: what its work requests have in common.
pub struct Post {
    qp: &'static Qp,
    /// A running number, to notice two binds of one window in one post.
    number: u64,
    not_before: u64,
    state: u32,
    position: u32,
    struck: Struck,
    /// How many were added, by opcode.
    added: [u64; counters::OPCODES],
}

impl Post {
    /// Begins a post: a doorbell. EINVAL in a state that takes no sends.
    pub fn begin(qp: &'static Qp, work: &mut Work) -> Result<Self, c_int> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        counters::bump(counters::POSTS);
        let struck = Struck::at(qp, work);
        let state = qp.state();
        if !state::takes_sends(state) {
            return Err(libc::EINVAL);
        }
        Ok(Self {
            qp,
            number: NEXT.fetch_add(1, Relaxed),
            not_before: match model::timed() {
                true => timer::now() + model::doorbell_ns(),
                false => 0,
            },
            state,
            position: 0,
            struck,
            added: [0; counters::OPCODES],
        })
    }

    /// The error that a fault returns for the whole, although all is queued.
    pub fn silent_error(&self) -> Option<c_int> {
        self.struck.silent_error
    }

    /// Appends one work request to the queue, or says why not.
    ///
    /// # Safety
    /// The data is readable.
    pub unsafe fn add(&mut self, queue: &mut Sq, mut wqe: Wqe, data: Data) -> Result<(), c_int> {
        let qp = self.qp;
        let position = self.position;
        self.position += 1;
        if let Some((cut, error)) = self.struck.cut {
            if cut == position {
                return Err(error);
            }
        }
        check(qp, queue, &wqe, &data)?;
        wqe.signaled = wqe.flags & IBV_SEND_SIGNALED != 0 || qp.sig_all.load(Relaxed);
        wqe.not_before = self.not_before;
        wqe.silent = self.state == IBV_QPS_ERR && !qp.promises_flushes();
        if let Some((at, status)) = self.struck.fail_wr {
            if at == position {
                wqe.fail_with = Some(status);
            }
        }
        if qp.send_ops.load(Relaxed) & 1 << wqe.opcode == 0 {
            misuse::report(
                Rule::SendOpsFlags,
                qp.number(),
                0,
                format_args!(
                    "opcode {} was posted to an extended QP that was not created for it",
                    wqe.opcode
                ),
            );
            wqe.fail_with = Some(IBV_WC_LOC_QP_OP_ERR);
        }
        match wqe.opcode {
            IBV_WR_LOCAL_INV => {
                wqe.invalidates = mw::of_rkey(wqe.imm);
                if let Some((mw, _)) = wqe.invalidates {
                    mw.invalidates_posted.fetch_add(1, AcqRel);
                }
            }
            IBV_WR_BIND_MW => self.note_bind(&wqe),
            _ => {}
        }
        self.added[wqe.opcode as usize % counters::OPCODES] += 1;
        // SAFETY: by the contract; the limits are checked.
        unsafe { queue.push(wqe, data) };
        Ok(())
    }

    /// What was added stays: it counts.
    pub fn count(&self) {
        for (opcode, &n) in self.added.iter().enumerate().filter(|(_, &n)| n != 0) {
            counters::add(counters::SEND_WRS + opcode, n);
        }
    }

    fn note_bind(&self, wqe: &Wqe) {
        let Some((mw, _)) = wqe.bind.and_then(|b| b.window) else {
            return;
        };
        if mw.last_post.swap(self.number, Relaxed) == self.number {
            misuse::report(
                Rule::BindTwiceInPost,
                self.qp.number(),
                wqe.bind.map_or(0, |b| b.new_rkey),
                format_args!("two binds of one window in one post"),
            );
        }
    }
}

/// What the call itself refuses.
fn check(qp: &Qp, queue: &Sq, wqe: &Wqe, data: &Data) -> Result<(), c_int> {
    if qp.sq_slots.taken(queue.tail()) >= queue.capacity {
        misuse::report(
            Rule::SqOverflow,
            qp.number(),
            0,
            format_args!(
                "a work request was posted to a send queue whose {} slots were taken",
                queue.capacity
            ),
        );
        return Err(libc::ENOMEM);
    }
    let (elements, inline) = match data {
        Data::None => (0, 0),
        Data::List(list) => (list.len(), 0),
        Data::Inline(list) => (0, list.iter().map(|b| b.length).sum()),
        Data::InlineList(list) => (0, list.iter().map(|s| s.length as usize).sum()),
    };
    if elements > queue.max_sge as usize || inline > queue.max_inline as usize {
        return Err(libc::EINVAL);
    }
    let context = qp.context();
    if let Some(bind) = wqe.bind {
        if bind.null_region {
            misuse::report(
                Rule::BindNullMr,
                qp.number(),
                bind.new_rkey,
                format_args!("a bind without a memory region, which some drivers dereference"),
            );
            return Err(libc::EINVAL);
        }
        match context.profile {
            Profile::Mana => {
                counters::unsupported("bind");
                return Err(libc::EOPNOTSUPP);
            }
            Profile::Mlx5 if bind.length > MLX5_MAX_BIND => return Err(libc::EOPNOTSUPP),
            Profile::Mlx5 if bind.access & IBV_ACCESS_REMOTE_ATOMIC != 0 => return Err(libc::EINVAL),
            _ => {}
        }
    }
    Ok(())
}

/// A work request of verbs as the queue keeps it, and its data.
///
/// # Safety
/// `wr` is a work request of the application.
unsafe fn parse<'a>(qp: &Qp, wr: &'a ibv_send_wr) -> Result<(Wqe, Data<'a>), c_int> {
    let opcode = wr.opcode;
    let mut wqe = Wqe::new(wr.wr_id, opcode, wr.send_flags);
    // SAFETY: numbers, whichever member was set.
    wqe.imm = unsafe { wr.imm_data_invalidated_rkey_union.imm_data };
    match opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
            // SAFETY: the member of these opcodes.
            let rdma = unsafe { wr.wr.rdma };
            wqe.remote_addr = rdma.remote_addr;
            wqe.rkey = rdma.rkey;
        }
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: the member of these opcodes.
            let atomic = unsafe { wr.wr.atomic };
            wqe.remote_addr = atomic.remote_addr;
            wqe.rkey = atomic.rkey;
            wqe.compare_add = atomic.compare_add;
            wqe.swap = atomic.swap;
        }
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV => {}
        IBV_WR_LOCAL_INV => return Ok((wqe, Data::None)),
        IBV_WR_BIND_MW => {
            if wr.num_sge != 0 || wqe.imm != 0 {
                misuse::report(
                    Rule::BindDirtyWr,
                    qp.number(),
                    0,
                    format_args!("a bind with num_sge or imm_data other than 0"),
                );
                // mlx5 does not look at either.
                if qp.context().profile != Profile::Mlx5 {
                    return Err(libc::EINVAL);
                }
            }
            // SAFETY: the member of this opcode.
            let bind = unsafe { wr.bind_mw_tso_union.bind_mw };
            wqe.bind = Some(unsafe { sq::bind_of(bind.mw, bind.rkey, &bind.bind_info) });
            return Ok((wqe, Data::None));
        }
        _ => {
            counters::unsupported("ibv_post_send");
            return Err(libc::EOPNOTSUPP);
        }
    }
    if wr.num_sge < 0 {
        return Err(libc::EINVAL);
    }
    let list: &[ibv_sge] = match wr.num_sge {
        0 => &[],
        // SAFETY: the application's list has so many elements.
        n => unsafe { std::slice::from_raw_parts(wr.sg_list, n as usize) },
    };
    let receives = !matches!(
        opcode,
        IBV_WR_RDMA_WRITE
            | IBV_WR_RDMA_WRITE_WITH_IMM
            | IBV_WR_SEND
            | IBV_WR_SEND_WITH_IMM
            | IBV_WR_SEND_WITH_INV
    );
    if wqe.flags & IBV_SEND_INLINE == 0 {
        return Ok((wqe, Data::List(list)));
    }
    if receives {
        return Err(libc::EINVAL); // there is nothing to send, so nothing to send inline
    }
    Ok((wqe, Data::InlineList(list)))
}

unsafe fn send(
    qp: &'static Qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
    work: &mut Work,
) -> Result<(), c_int> {
    let mut post = match Post::begin(qp, work) {
        Ok(post) => post,
        Err(e) => {
            unsafe { *bad = wr };
            return Err(e);
        }
    };
    let mut queue = qp.sq.lock();
    while let Some(one) = unsafe { wr.as_ref() } {
        let added =
            unsafe { parse(qp, one) }.and_then(|(wqe, data)| unsafe { post.add(&mut queue, wqe, data) });
        if let Err(e) = added {
            post.count();
            unsafe { *bad = wr };
            return Err(e);
        }
        wr = one.next;
    }
    post.count();
    match post.silent_error() {
        Some(e) => {
            unsafe { *bad = std::ptr::null_mut() };
            Err(e)
        }
        None => Ok(()),
    }
}

/// Posts one work request without data. The error inside is a fault's, returned although it is
/// queued.
///
/// # Safety
/// As `Post::add`.
unsafe fn post_one(qp: &'static Qp, wqe: Wqe, work: &mut Work) -> Result<Option<c_int>, c_int> {
    let mut post = Post::begin(qp, work)?;
    unsafe { post.add(&mut qp.sq.lock(), wqe, Data::None)? };
    post.count();
    Ok(post.silent_error())
}

/// Takes the lock of an extended or single-threaded QP for the time of a post.
fn own(qp: &Qp) -> Result<Option<Held<'_>>, c_int> {
    match qp.is_owned.load(Relaxed) {
        true => qp.post_lock.hold().map(Some),
        false => Ok(None),
    }
}

/// Runs what was posted, and what that sets in motion.
pub fn run(qp: &'static Qp, work: &mut Work) {
    engine::run(qp, work);
    work.finish();
}

pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    guard(libc::EIO, || {
        let owned = unsafe { object::get::<Qp>(qp) }.and_then(|qp| Ok((qp, own(qp)?)));
        let (qp, held) = match owned {
            Ok(owned) => owned,
            Err(e) => {
                unsafe { *bad = wr };
                return e;
            }
        };
        let mut work = Work::new();
        let r = unsafe { send(qp, wr, bad, &mut work) };
        drop(held);
        run(qp, &mut work);
        r.err().unwrap_or(0)
    })
}

pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    guard(libc::EIO, || {
        let qp = match unsafe { object::get::<Qp>(qp) } {
            Ok(qp) => qp,
            Err(e) => {
                unsafe { *bad = wr };
                return e;
            }
        };
        let mut work = Work::new();
        let r = unsafe { rq::post(qp, wr, bad, &mut work) };
        work.finish();
        r.err().unwrap_or(0)
    })
}

/// Binds a Type 1 window. verbs.h has checked the window's type and the domains' pointers.
///
/// # Safety
/// The pointers came from this device, `bind` is readable.
pub unsafe fn bind_type1(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    let result = (|| {
        let qp = unsafe { object::get::<Qp>(qp)? };
        let window = unsafe { object::get::<Mw>(mw)? };
        let bind = unsafe { bind.as_ref() }.ok_or(libc::EINVAL)?;
        if window.is_type2() {
            return Err(libc::EINVAL);
        }
        let old = unsafe { (*mw).rkey };
        let new = (old & !0xff) | (old.wrapping_add(1) & 0xff);
        let mut wqe = Wqe::new(bind.wr_id, IBV_WR_BIND_MW, bind.send_flags);
        let mut to = unsafe { sq::bind_of(mw, new, &bind.bind_info) };
        to.type1 = true;
        wqe.bind = Some(to);
        let held = own(qp)?;
        let mut work = Work::new();
        let r = unsafe { post_one(qp, wqe, &mut work) };
        if matches!(r, Ok(None)) {
            // The new key is the application's from the post on, whatever becomes of the bind.
            unsafe { (*mw).rkey = new };
        }
        drop(held);
        run(qp, &mut work);
        r?.map_or(Ok(()), Err)
    })();
    result.err().unwrap_or(0)
}
