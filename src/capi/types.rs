//! The structs of the C interface.

use std::ffi::{c_char, c_void};

use super::Plain;
use crate::event::Event;
use crate::op::Outcome;
use crate::stats::Stats;
use crate::status::Status;

/// A device context under management; see mwctl_context_open.
pub enum mwctl_context {}

/// A protection domain under management. Ids are plain numbers: copy them freely; a stale one is
/// refused with STALE_ID. 0 names nothing.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_domain {
    pub id: u64,
}

/// A memory region under management.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_region {
    pub id: u64,
}

/// An RC queue pair under management: one client.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_peer {
    pub id: u64,
}

/// A prepared chain between prepare and commit or abort.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_token {
    pub id: u64,
}

/// Gets a line for the log: 0 error, 1 warning. The text is valid during the call.
/// It may come from any thread that is inside the library, and must not call back into it.
pub type mwctl_log_fn = Option<unsafe extern "C" fn(user: *mut c_void, severity: i32, text: *const c_char)>;

/// Hears of what no call asked for. Called with no lock held, from mwctl_poll_cq, mwctl_take_wc,
/// mwctl_cq_empty, mwctl_tick, the waiting calls and the service thread; it may call back into the
/// library.
pub type mwctl_event_fn = Option<unsafe extern "C" fn(user: *mut c_void, event: *const Event)>;

/// Hears how an asynchronous call ended. OK from that call means that it began; then this comes
/// exactly once, never from inside that call. On any other status nothing began and it does not
/// come. `n` may be 0. What it hears: the first status that is no success, and each item's
/// result, valid during the call. Called with no lock held, from mwctl_poll_cq,
/// mwctl_take_wc, mwctl_cq_empty, mwctl_tick, a waiting call or the service thread, on whichever thread
/// that is, also before the call that began it has returned on another; it may call back into the
/// library. Operations that wait for the same grants are called back in the order in which they began, if
/// the same call finds them ended and no other thread calls back meanwhile: of a client, its detach comes
/// last. An event that led to the end of a revocation or a detach, such as PEER_KILLED, is told before
/// it; grants that were under way may end before the event. What comes due while callbacks run is called
/// back by the next call, for which the event fd asks; calls made in callbacks call back themselves, one
/// within the other up to 32 deep.
pub type mwctl_done_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, status: Status, results: *const Outcome, n: usize)>;

/// Options of mwctl_context_open. All zero is the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_context_options {
    /// The deadline of calls that name none, in microseconds; 0: one second.
    pub timeout_us: u64,
    /// May be NULL: then nothing is logged. The library prints nothing by itself.
    pub log: mwctl_log_fn,
    pub log_user: *mut c_void,
    /// May be NULL.
    pub on_event: mwctl_event_fn,
    pub event_user: *mut c_void,
}

/// What was tried out on the device when the context was opened.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_capabilities {
    /// 1 if Type 2 windows can be allocated.
    pub type2: u32,
    /// The device's own limit on windows.
    pub max_mw: u32,
    /// IBV_ACCESS_REMOTE_* that a window carries on this device.
    pub rights: u32,
    /// 1: once a revocation is proved, the host's memory is at rest (but see the regions' own). 0: what is proved is that
    /// no access starts; a byte of one under way may still change a moment later (soft-RoCE).
    pub memory_at_rest: u32,
    /// Bytes that one grant may cover.
    pub max_length: u64,
}

/// Options of mwctl_domain_open. All zero is the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_domain_options {
    /// Windows to have ready; allocated at once. 0: 64, or the limit. Once a grant leaves less than a
    /// quarter of them ready, or finds none, the event fd asks for mwctl_tick, which allocates up to
    /// the reserve again: 64 at most a tick, and it asks for the next. Besides ticks, and those of the
    /// service thread, only waiting calls that find none allocate, and mwctl_domain_reserve: without
    /// any, POOL_EMPTY stays until a grant has ended whose window may be bound again.
    pub reserve: u32,
    /// Windows at most, no fewer than the reserve; 0: as many as the device allocates.
    pub limit: u32,
    /// Grants of other windows before an rkey may be used again; 0: 1,000,000. UINT64_MAX: never
    /// while a client stays attached that was attached when it was last in use.
    pub key_distance: u64,
    /// Parent domains of the PD, for whose queue pairs and regions it stands.
    pub aliases: *const *mut verbs::ibv_pd,
    pub n_aliases: usize,
}

/// The windows of a domain.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_domain_info {
    /// Windows allocated, bound or not.
    pub windows: u64,
    /// Of these, ready for the next grants.
    pub ready: u64,
    /// Of these, waiting until their next key may be used again.
    pub resting: u64,
    /// Grants so far.
    pub grants: u64,
    pub key_distance: u64,
}

/// Options of mwctl_region_register. All zero is the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_register_options {
    /// 1: on huge pages if there are any; mwctl_region_info says what came of it.
    pub huge_pages: u32,
    pub reserved: u32,
    /// Bytes of a block; 0: 2 MiB. What is left of a region behind its last whole block belongs to
    /// none: a region shorter than a block has no blocks, and is granted by ranges.
    pub block_size: u64,
}

/// Options of mwctl_region_attach: struct ibv_mr carries neither the iova nor the flags, so the
/// application declares both.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_attach_options {
    /// The iova it was registered with; the address unless ibv_reg_mr_iova was used.
    pub iova: u64,
    /// The IBV_ACCESS_* flags it was registered with.
    pub access: u32,
    /// 1: the region has REMOTE_* flags and the application knows that its own rkey stays open
    /// whatever is revoked here. Otherwise such a region is refused with PARENT_OPEN.
    pub allow_open_parent: u32,
    /// Bytes of a block; 0: 2 MiB. What is left of a region behind its last whole block belongs to
    /// none: a region shorter than a block has no blocks, and is granted by ranges.
    pub block_size: u64,
    /// 1: a device's memory, or another device's by dmabuf. Proofs for it, and for a region with
    /// RELAXED_ORDERING, say that access has stopped and no more.
    pub device_memory: u32,
    pub reserved: u32,
}

/// A region, and how its blocks stand.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_region_info {
    /// Where clients see it: the iova. For a region registered here also the address.
    pub addr: u64,
    pub length: u64,
    pub access: u32,
    pub lkey: u32,
    /// 1 if it is on huge pages that this library mapped.
    pub huge_pages: u32,
    /// 1 if the region's own rkey is open.
    pub parent_open: u32,
    /// As mwctl_capabilities.memory_at_rest, for this region.
    pub memory_at_rest: u32,
    pub reserved: u32,
    pub block_size: u64,
    pub blocks: u64,
    pub blocks_taken: u64,
    /// Given back while a right was still open: not handed out before it is proved gone.
    pub blocks_quarantined: u64,
    pub mr: *mut verbs::ibv_mr,
}

/// Who polls a queue pair's completion queues, the one for sends and the one for receives: a client's
/// SEND_WITH_INV shows in the latter alone. If the library doesn't get to see it, a revocation
/// invalidates a second time, which costs the queue pair, and on rxe of Linux 6.1 the kernel.
#[repr(i32)]
#[derive(Clone, Copy)]
pub enum mwctl_polling {
    /// Everyone polls them through mwctl_poll_cq. A waiting call may poll as well and keeps
    /// the application's completions for its next mwctl_poll_cq.
    Ours = 0,
    /// The application polls and offers each completion to mwctl_take_wc, of both queues before it
    /// revokes; the library never polls.
    Yours = 1,
}

/// Options of mwctl_peer_attach. All zero is the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_peer_options {
    /// Send-queue entries, and completion-queue entries, that the library may use at a time; 0:
    /// 16. What to add before ibv_create_qp: mwctl_size_queues.
    pub budget: u32,
    /// enum mwctl_polling.
    pub polling: i32,
    /// For polling YOURS: the thread that polls, as pthread_self() returns it. A waiting call on
    /// that thread that waits for a completion is refused with WOULD_DEADLOCK. 0: the owner_thread, if
    /// that is declared.
    pub polling_thread: u64,
    /// For a queue pair or CQ whose provider's locks are off (a thread domain, a single-threaded
    /// CQ): the thread that posts and polls, as pthread_self() returns it. Others are refused with
    /// WRONG_THREAD, or what they ask for waits for the owner: below. At a deadline that another
    /// thread keeps, the service thread, the owner's own looks count: the event fd asks for them in
    /// the second half of the time, as told at mwctl_cq_empty. 0: any thread may.
    pub owner_thread: u64,
    /// 1: what other threads ask for is posted by the owner's next mwctl_tick, mwctl_poll_cq or
    /// mwctl_take_wc; the event fd tells it.
    pub queue_for_owner: u32,
    /// For a queue pair of ibv_create_qp_ex with send_ops_flags: 1, and the flags below.
    pub declares_send_ops: u32,
    /// The send_ops_flags that it was created with, as they were in struct ibv_qp_init_attr_ex.
    /// IBV_QP_EX_WITH_BIND_MW and IBV_QP_EX_WITH_LOCAL_INV must be among them: a queue pair created
    /// without has a send queue too small for them. Read if declares_send_ops is 1.
    pub send_ops_flags: u64,
}

/// A peer as it stands.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_peer_info {
    pub qp_num: u32,
    /// As far as the library has heard: 0 before RTS, 1 live, 2 the queue pair is in error, 3 gone.
    /// A completion with an error, or an asynchronous event, that was offered makes it look at the
    /// queue pair's state, but only at the next grant or revocation; it looks also where it moves
    /// one to ERR.
    pub life: u32,
    /// 1 once a detach has begun.
    pub leaving: u32,
    pub budget: u32,
    /// Send-queue entries of the budget in use.
    pub used: u32,
    pub reserved: u32,
    /// Open grants.
    pub grants: u64,
}

/// A right that is asked for. Refused where the range is none (LENGTH_ZERO, LENGTH_TOO_LONG,
/// OUT_OF_RANGE); where `access` is none (ACCESS_NONE, UNKNOWN_FLAGS), or more than device, region and
/// queue pair allow (ACCESS_UNSUPPORTED, ACCESS_MISSING_ON_REGION, ACCESS_MISSING_ON_QP); where peer and
/// region are of two domains (FOREIGN_PD); and while it can't be met: NOT_CONNECTED before RTS,
/// PEER_DEAD, PEER_LEAVING, RANGE_UNCERTAIN.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_request {
    pub peer: mwctl_peer,
    pub region: mwctl_region,
    /// First byte, in the region's iova space: what the client will put into remote_addr.
    pub addr: u64,
    /// Bytes; at least 1, at most 2 GiB.
    pub length: u64,
    /// IBV_ACCESS_REMOTE_WRITE, _READ, _ATOMIC.
    pub access: u32,
    pub reserved: u32,
}

/// One step of mwctl_transfer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_move {
    /// The grant to end.
    pub grant: u64,
    /// The right to hand out once that is proved gone.
    pub to: mwctl_request,
}

/// What the deadline of a revocation may do to a queue pair whose LOCAL_INV does not complete.
#[repr(i32)]
#[derive(Clone, Copy)]
pub enum mwctl_kill {
    /// Move it to ERR and deallocate, provided that its CQ was found empty by a poll that began in the
    /// second half of the time from the post to the deadline, and a millisecond or more behind the post.
    /// The library polls at the deadline itself where it may; who else must is said at mwctl_cq_empty and
    /// owner_thread. Without such a look: reported as open, save where the provider refuses the LOCAL_INV
    /// and all else that would tell of the bind before it.
    Allowed = 0,
    /// Never touch it: report the grant as still open instead.
    Never = 1,
}

/// An open grant.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_grant_info {
    pub grant: u64,
    pub peer: mwctl_peer,
    pub addr: u64,
    pub length: u64,
    pub rkey: u32,
    pub access: u32,
    pub qp_num: u32,
    /// 1 once the bind is known to have completed.
    pub confirmed: u32,
    /// 1 while a revocation is under way.
    pub revoking: u32,
    /// 1 after a revocation that gave no proof.
    pub uncertain: u32,
}

/// What a key is.
#[repr(i32)]
#[derive(Clone, Copy)]
pub enum mwctl_key_kind {
    /// No window or region under this context's management has it.
    NotOurs = 0,
    /// The rkey of an open grant.
    Grant = 1,
    /// It was handed out, and its grant has ended: it opens nothing.
    Ended = 2,
    /// One of a window's 256 keys, never handed out: it opens nothing.
    Unused = 3,
    /// The rkey of a whole region that was registered with REMOTE_* flags: no revocation closes it.
    ParentRkey = 4,
    /// The lkey of a region without REMOTE_* flags: it opens nothing to clients.
    Lkey = 5,
}

/// What mwctl_explain_key found. What is not known is 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mwctl_key_info {
    /// enum mwctl_key_kind.
    pub kind: i32,
    /// The rights that it opens, or opened.
    pub access: u32,
    /// An open grant, or the one that ended if it was its window's last: a stale id then.
    pub grant: u64,
    pub peer: mwctl_peer,
    pub region: mwctl_region,
    pub addr: u64,
    pub length: u64,
    pub qp_num: u32,
    pub reserved: u32,
}

// SAFETY: plain C structs of numbers and nullable pointers.
unsafe impl Plain for mwctl_key_info {}
unsafe impl Plain for mwctl_context_options {}
unsafe impl Plain for mwctl_capabilities {}
unsafe impl Plain for mwctl_domain_options {}
unsafe impl Plain for mwctl_domain_info {}
unsafe impl Plain for mwctl_register_options {}
unsafe impl Plain for mwctl_attach_options {}
unsafe impl Plain for mwctl_region_info {}
unsafe impl Plain for mwctl_peer_options {}
unsafe impl Plain for mwctl_peer_info {}
unsafe impl Plain for mwctl_grant_info {}
unsafe impl Plain for Stats {}
