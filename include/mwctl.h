/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Generated from src/capi by cbindgen; scripts/header.sh does it. */

#ifndef MWCTL_H
#define MWCTL_H

#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>

/*
 * mwctl.h: memory windows handed out, and taken back with proof.
 *
 * The calls that most programs need
 *
 *   mwctl_context_open       take an ibv_context under management
 *   mwctl_size_queues        before ibv_create_qp: what to add to its queues
 *   mwctl_domain_open        take an ibv_pd under management; fills a pool of windows
 *   mwctl_region_register    memory with no remote access of its own (or _attach: yours)
 *   mwctl_peer_attach        take an RC queue pair under management: one client
 *   mwctl_grant              a right to a range, for one client: id and rkey
 *   mwctl_revoke_batch       take rights back: after success they are gone, with proof
 *   mwctl_revoke_peer        all that one client holds
 *   mwctl_poll_cq            in place of ibv_poll_cq
 *   mwctl_check              may this client touch this range?
 *   mwctl_peer_detach        before ibv_destroy_qp
 *   mwctl_context_close      after mwctl_domain_close
 *
 * In a program that hands out mr->rkey these are enough, with mwctl_context_open, _size_queues,
 * _poll_cq and _context_close
 *
 *   mwctl_reg_mr             in place of ibv_reg_mr
 *   mwctl_rkey               in place of mr->rkey: a key for one client
 *   mwctl_revoke_qp          takes back all that one client holds
 *   mwctl_detach_qp          before ibv_destroy_qp
 *
 * How a program may post and poll
 *
 *   ibv_post_send            the library's own posts go between the program's; chains of both: *_prepare
 *   ibv_wr_start … complete  the queue pair declares its send_ops_flags; mwctl_put_wr
 *   ibv_poll_cq              mwctl_poll_cq stands in for it, or each completion goes to mwctl_take_wc
 *   ibv_start_poll … end     each completion goes to mwctl_take_ex
 *   completion channels      ibv_req_notify_cq as ever; see mwctl_poll_cq
 *   one CQ for many          queue pairs, PDs, sends and receives; of another device: no harm
 *   SRQ, parent domains      as ever; a parent domain is declared (mwctl_domain_options.aliases)
 *   librdmacm                queue pairs of rdma_create_qp are like any; detach before rdma_destroy_qp
 *   thread domains           and single-threaded CQs declare their thread (owner_thread)
 *
 * A loop need not know of the library: with mwctl_poll_cq none of its completions shows, so an unknown
 * opcode or a wr_id that is no pointer of the program's doesn't come, and one that stops at the first
 * error or the first empty poll loses nothing.
 *
 * Rules for all calls
 *
 *   Threads    Every call may be made from any thread at any time, but for mwctl_context_close.
 *   Waiting    Each call says whether it *never waits* (for the network or another thread) or
 *              *may wait*. A server can be written with the first kind alone, but for opening,
 *              attaching and closing, whose only waits are kernel calls.
 *   Ids        Domains, regions, peers, tokens and grants are numbers. A stale one is refused
 *              with STALE_ID; it never means something else. 0 names nothing.
 *   Sizes      Structs of options and answers go with their size: zero-fill them, set what you
 *              need, pass sizeof. A newer library reads an older program's struct, and the other
 *              way round as long as what is unknown is zero.
 *   Errors     An error leaves everything as it was, unless a call says otherwise. Nothing was
 *              posted on bad input.
 *   Time       Deadlines are in microseconds from now; 0 is the context's default.
 *   Fork       A forked child is refused with FORKED.
 *   wr_ids     Ours have bits 63 and 55 set, as no address of a user program has on x86-64 and
 *              AArch64. A completion is taken for ours only if its wr_id is one that is
 *              outstanding: with k outstanding, a random 64-bit number is by a chance of k/2^64,
 *              or below 2^-22 once more than 16,384 chains were given up with their queue pairs.
 *
 * What a proof says: no access with the key starts after it, and (where the device gives that,
 * mwctl_capabilities.memory_at_rest) no byte of host memory changes through it. What it does not
 * say: an operation that was under way may have landed wholly, in part or not at all, whatever
 * its initiator saw; data already read is gone; content is torn unless records carry a commit of
 * their own.
 */

#define MWCTL_VERSION_MAJOR 1
#define MWCTL_VERSION_MINOR 0
#define MWCTL_VERSION_PATCH 0
#define MWCTL_VERSION \
  (1000000 * MWCTL_VERSION_MAJOR + 1000 * MWCTL_VERSION_MINOR + MWCTL_VERSION_PATCH)


// What a call returns, and how a single grant or revocation ended.
enum mwctl_status
#ifdef __cplusplus
  : int32_t
#endif // __cplusplus
 {
  // Success.
  MWCTL_STATUS_OK = 0,
  // Not ended yet.
  MWCTL_STATUS_PENDING = 1,
  // An argument is NULL, or a combination of arguments makes no sense.
  MWCTL_STATUS_INVALID_ARGUMENT = 10,
  // An option struct has a size that this version does not know, or a non-zero tail.
  MWCTL_STATUS_OPTIONS_SIZE = 11,
  // A flag is set that this version does not know.
  MWCTL_STATUS_UNKNOWN_FLAGS = 12,
  // The range has length 0.
  MWCTL_STATUS_LENGTH_ZERO = 13,
  // The range is longer than one bind can cover (2 GiB).
  MWCTL_STATUS_LENGTH_TOO_LONG = 14,
  // The range is not inside the region, or it wraps around.
  MWCTL_STATUS_OUT_OF_RANGE = 15,
  // The object belongs to another protection domain.
  MWCTL_STATUS_FOREIGN_PD = 16,
  // The object belongs to another device context.
  MWCTL_STATUS_FOREIGN_CONTEXT = 17,
  // The id names nothing that lives: it was never issued, or what it named has ended.
  MWCTL_STATUS_STALE_ID = 18,
  // The device does not carry this right through a window.
  MWCTL_STATUS_ACCESS_UNSUPPORTED = 19,
  // The region's declared access flags do not allow this right.
  MWCTL_STATUS_ACCESS_MISSING_ON_REGION = 20,
  // The queue pair's access flags do not allow this right.
  MWCTL_STATUS_ACCESS_MISSING_ON_QP = 21,
  // A grant must carry at least one remote right.
  MWCTL_STATUS_ACCESS_NONE = 22,
  // The queue pair is not of type RC.
  MWCTL_STATUS_NOT_RC = 23,
  // The queue pair is not in RTS.
  MWCTL_STATUS_NOT_CONNECTED = 24,
  // The queue pair's state does not allow this.
  MWCTL_STATUS_QP_STATE = 25,
  // The budget exceeds what the queue pair was created with.
  MWCTL_STATUS_BUDGET_TOO_LARGE = 26,
  // An extended queue pair must declare its send_ops_flags.
  MWCTL_STATUS_QP_UNDECLARED = 27,
  // The queue pair was created without BIND_MW and LOCAL_INV.
  MWCTL_STATUS_QP_WITHOUT_WINDOW_OPS = 28,
  // Already attached.
  MWCTL_STATUS_ALREADY_ATTACHED = 29,
  // The completion queue is in use with the other polling mode.
  MWCTL_STATUS_POLLING_MODE = 30,
  // The memory region has remote access flags: its own rkey stays open whatever is revoked.
  MWCTL_STATUS_PARENT_OPEN = 31,
  // The memory region was not registered with MW_BIND.
  MWCTL_STATUS_PARENT_NOT_BINDABLE = 32,
  // This kind of memory (zero-based or on-demand) is not supported.
  MWCTL_STATUS_MEMORY_KIND = 33,
  // The grants of one prepared chain must belong to one peer.
  MWCTL_STATUS_MIXED_PEERS = 34,
  // An id is named twice in one call.
  MWCTL_STATUS_DUPLICATE = 35,
  // The range is not made of whole blocks that were taken.
  MWCTL_STATUS_BLOCK_NOT_TAKEN = 36,
  // The verbs object is not under management.
  MWCTL_STATUS_NOT_ATTACHED = 37,
  // The device does not support Type 2 memory windows.
  MWCTL_STATUS_UNSUPPORTED = 40,
  // Out of memory.
  MWCTL_STATUS_NO_MEMORY = 41,
  // The device allocates no more memory windows.
  MWCTL_STATUS_DEVICE_LIMIT = 42,
  // Every window's next key was used too recently and the device allocates no more windows.
  MWCTL_STATUS_KEYS_EXHAUSTED = 43,
  // No run of free blocks is long enough.
  MWCTL_STATUS_NO_BLOCKS = 44,
  // No window is ready now; a tick or a waiting call refills the pool.
  MWCTL_STATUS_POOL_EMPTY = 45,
  // The send-queue budget is in use now; try again after a completion.
  MWCTL_STATUS_QUEUE_FULL = 46,
  // More items than one chain or one table can hold.
  MWCTL_STATUS_TOO_MANY = 47,
  // Something that was opened under this object is still open.
  MWCTL_STATUS_BUSY = 60,
  // A revocation of this grant is under way already.
  MWCTL_STATUS_IN_PROGRESS = 61,
  // A waiting call on the thread that is declared to poll could never end.
  MWCTL_STATUS_WOULD_DEADLOCK = 62,
  // The queue pair is in an error state.
  MWCTL_STATUS_PEER_DEAD = 63,
  // The peer is being detached.
  MWCTL_STATUS_PEER_LEAVING = 64,
  // No open grant answers to this.
  MWCTL_STATUS_NO_GRANT = 65,
  // No peer uses this completion queue.
  MWCTL_STATUS_UNKNOWN_QUEUE = 67,
  // A right to part of the range was not proved gone: revoke that grant again.
  MWCTL_STATUS_RANGE_UNCERTAIN = 68,
  // The queue pair or its completion queue belongs to another thread.
  MWCTL_STATUS_WRONG_THREAD = 66,
  // The deadline passed; what the result's id names, if any, is open and must be revoked.
  MWCTL_STATUS_TIMED_OUT = 80,
  // Not proved: the right may still be usable.
  MWCTL_STATUS_OPEN = 81,
  // The bind completed with an error.
  MWCTL_STATUS_BIND_FAILED = 82,
  // The post failed.
  MWCTL_STATUS_POST_FAILED = 83,
  // The work request was not posted.
  MWCTL_STATUS_NOT_POSTED = 84,
  // A verbs call failed.
  MWCTL_STATUS_VERBS_ERROR = 85,
  // A forked child must not use the library.
  MWCTL_STATUS_FORKED = 90,
  // An internal error was caught; the context gives no more proofs.
  MWCTL_STATUS_POISONED = 91,
};
#ifndef __cplusplus
typedef int32_t mwctl_status;
#endif // __cplusplus

enum mwctl_event_kind
#ifdef __cplusplus
  : int32_t
#endif // __cplusplus
 {
  // The library moved the peer's QP to ERR: a revocation, or its detach, missed the deadline. Only
  // the application can tell the other side. The peer's other rights are of no use any more, and
  // stay on the books until they are revoked or the peer is detached.
  MWCTL_EVENT_KIND_PEER_KILLED = 1,
  // The peer's QP was found in an error state: by a completion of ours, or by a look at it. An
  // error that the application offered leads to that look at the next grant or revocation.
  MWCTL_EVENT_KIND_PEER_DEAD = 2,
  // The peer ended a grant of its own by SEND_WITH_INV.
  MWCTL_EVENT_KIND_PEER_INVALIDATED = 3,
  // A peer ended another peer's grant by SEND_WITH_INV: `peer` is the one that did, 0 if the queue
  // pair is no attached peer's.
  MWCTL_EVENT_KIND_FOREIGN_INVALIDATION = 4,
};
#ifndef __cplusplus
typedef int32_t mwctl_event_kind;
#endif // __cplusplus

// What shows that a right is gone.
enum mwctl_proof
#ifdef __cplusplus
  : int32_t
#endif // __cplusplus
 {
  // No proof.
  MWCTL_PROOF_NONE = 0,
  // The LOCAL_INV completed.
  MWCTL_PROOF_INVALIDATED = 1,
  // The window was deallocated.
  MWCTL_PROOF_DEALLOCATED = 2,
  // The queue pair was in ERR and the window was deallocated.
  MWCTL_PROOF_QP_FENCED = 3,
  // A SEND_WITH_INV for the key was received.
  MWCTL_PROOF_PEER_INVALIDATED = 4,
  // The bind was never posted.
  MWCTL_PROOF_NEVER_BOUND = 5,
};
#ifndef __cplusplus
typedef int32_t mwctl_proof;
#endif // __cplusplus

// Who polls a queue pair's completion queues, the one for sends and the one for receives: a client's
// SEND_WITH_INV shows in the latter alone. If the library doesn't get to see it, a revocation
// invalidates a second time, which costs the queue pair, and on rxe of Linux 6.1 the kernel.
enum mwctl_polling
#ifdef __cplusplus
  : int32_t
#endif // __cplusplus
 {
  // Everyone polls them through mwctl_poll_cq. A waiting call may poll as well and keeps
  // the application's completions for its next mwctl_poll_cq.
  MWCTL_POLLING_OURS = 0,
  // The application polls and offers each completion to mwctl_take_wc, of both queues before it
  // revokes; the library never polls.
  MWCTL_POLLING_YOURS = 1,
};
#ifndef __cplusplus
typedef int32_t mwctl_polling;
#endif // __cplusplus

// What the deadline of a revocation may do to a queue pair whose LOCAL_INV does not complete.
enum mwctl_kill
#ifdef __cplusplus
  : int32_t
#endif // __cplusplus
 {
  // Move it to ERR and deallocate, provided that its CQ was found empty by a poll that began in the
  // second half of the time from the post to the deadline, and a millisecond or more behind the post.
  // The library polls at the deadline itself where it may; who else must is said at mwctl_cq_empty and
  // owner_thread. Without such a look: reported as open, save where the provider refuses the LOCAL_INV
  // and all else that would tell of the bind before it.
  MWCTL_KILL_ALLOWED = 0,
  // Never touch it: report the grant as still open instead.
  MWCTL_KILL_NEVER = 1,
};
#ifndef __cplusplus
typedef int32_t mwctl_kill;
#endif // __cplusplus

// What a key is.
enum mwctl_key_kind
#ifdef __cplusplus
  : int32_t
#endif // __cplusplus
 {
  // No window or region under this context's management has it.
  MWCTL_KEY_KIND_NOT_OURS = 0,
  // The rkey of an open grant.
  MWCTL_KEY_KIND_GRANT = 1,
  // It was handed out, and its grant has ended: it opens nothing.
  MWCTL_KEY_KIND_ENDED = 2,
  // One of a window's 256 keys, never handed out: it opens nothing.
  MWCTL_KEY_KIND_UNUSED = 3,
  // The rkey of a whole region that was registered with REMOTE_* flags: no revocation closes it.
  MWCTL_KEY_KIND_PARENT_RKEY = 4,
  // The lkey of a region without REMOTE_* flags: it opens nothing to clients.
  MWCTL_KEY_KIND_LKEY = 5,
};
#ifndef __cplusplus
typedef int32_t mwctl_key_kind;
#endif // __cplusplus

// A device context under management; see mwctl_context_open.
typedef struct mwctl_context mwctl_context;

// Gets a line for the log: 0 error, 1 warning. The text is valid during the call.
// It may come from any thread that is inside the library, and must not call back into it.
typedef void (*mwctl_log_fn)(void *user, int32_t severity, const char *text);

// Something that no call of the application's asked for.
typedef struct mwctl_event {
  mwctl_event_kind kind;
  // 0 where no QP is concerned.
  uint32_t qp_num;
  uint64_t peer;
  // 0 where no grant is concerned.
  uint64_t grant;
} mwctl_event;

// Hears of what no call asked for. Called with no lock held, from mwctl_poll_cq, mwctl_take_wc,
// mwctl_cq_empty, mwctl_tick, the waiting calls and the service thread; it may call back into the
// library.
typedef void (*mwctl_event_fn)(void *user, const struct mwctl_event *event);

// Options of mwctl_context_open. All zero is the default.
typedef struct mwctl_context_options {
  // The deadline of calls that name none, in microseconds; 0: one second.
  uint64_t timeout_us;
  // May be NULL: then nothing is logged. The library prints nothing by itself.
  mwctl_log_fn log;
  void *log_user;
  // May be NULL.
  mwctl_event_fn on_event;
  void *event_user;
} mwctl_context_options;

// What was tried out on the device when the context was opened.
typedef struct mwctl_capabilities {
  // 1 if Type 2 windows can be allocated.
  uint32_t type2;
  // The device's own limit on windows.
  uint32_t max_mw;
  // IBV_ACCESS_REMOTE_* that a window carries on this device.
  uint32_t rights;
  // 1: once a revocation is proved, the host's memory is at rest (but see the regions' own). 0: what is proved is that
  // no access starts; a byte of one under way may still change a moment later (soft-RoCE).
  uint32_t memory_at_rest;
  // Bytes that one grant may cover.
  uint64_t max_length;
} mwctl_capabilities;

// Counters of a context since it was opened.
typedef struct mwctl_stats {
  // Grants handed out.
  uint64_t grants;
  // Revocations proved by a completed LOCAL_INV.
  uint64_t proved_invalidated;
  // Revocations proved by deallocation.
  uint64_t proved_deallocated;
  // Revocations proved by deallocation with the QP in ERR.
  uint64_t proved_qp_fenced;
  // Grants ended by the peer's SEND_WITH_INV.
  uint64_t proved_peer_invalidated;
  // Grants whose bind was never posted.
  uint64_t proved_never_bound;
  // Results that reported a right as still open.
  uint64_t reported_open;
  // `ibv_post_send` calls of ours.
  uint64_t posts;
  // Binds that we posted or saw committed.
  uint64_t binds_posted;
  // LOCAL_INVs that we posted or saw committed.
  uint64_t invalidates_posted;
  // Completions of ours, successful.
  uint64_t completions;
  // Completions of ours with an error.
  uint64_t error_completions;
  // Completions of chains that were given up with their QP.
  uint64_t late_completions;
  // Posts that were refused, in part or as a whole.
  uint64_t post_errors;
  // Windows allocated.
  uint64_t windows_allocated;
  // Windows deallocated.
  uint64_t windows_deallocated;
  // Queue pairs that we moved to ERR.
  uint64_t peers_killed;
  // Grants of another client ended by a peer's SEND_WITH_INV.
  uint64_t foreign_invalidations;
  // Application completions kept for its next poll.
  uint64_t completions_kept;
  // Grants refused because no window was ready.
  uint64_t pool_misses;
  // Binds whose key had been used before on its window.
  uint64_t keys_reused;
  // The smallest number of grants between two uses of one rkey; 0 while none came round.
  uint64_t smallest_key_distance;
  // The shortest time between two uses of one rkey, in nanoseconds; 0 while none came round.
  uint64_t smallest_key_age_ns;
  // Deallocated windows whose used keys are no longer remembered: should the device hand out
  // their numbers again, the distance is not kept for them.
  uint64_t keys_forgotten;
} mwctl_stats;

// Options of mwctl_domain_open. All zero is the default.
typedef struct mwctl_domain_options {
  // Windows to have ready; allocated at once. 0: 64, or the limit. Once a grant leaves less than a
  // quarter of them ready, or finds none, the event fd asks for mwctl_tick, which allocates up to
  // the reserve again: 64 at most a tick, and it asks for the next. Besides ticks, and those of the
  // service thread, only waiting calls that find none allocate, and mwctl_domain_reserve: without
  // any, POOL_EMPTY stays until a grant has ended whose window may be bound again.
  uint32_t reserve;
  // Windows at most, no fewer than the reserve; 0: as many as the device allocates.
  uint32_t limit;
  // Grants of other windows before an rkey may be used again; 0: 1,000,000. UINT64_MAX: never
  // while a client stays attached that was attached when it was last in use.
  uint64_t key_distance;
  // Parent domains of the PD, for whose queue pairs and regions it stands.
  struct ibv_pd *const *aliases;
  size_t n_aliases;
} mwctl_domain_options;

// A protection domain under management. Ids are plain numbers: copy them freely; a stale one is
// refused with STALE_ID. 0 names nothing.
typedef struct mwctl_domain {
  uint64_t id;
} mwctl_domain;

// The windows of a domain.
typedef struct mwctl_domain_info {
  // Windows allocated, bound or not.
  uint64_t windows;
  // Of these, ready for the next grants.
  uint64_t ready;
  // Of these, waiting until their next key may be used again.
  uint64_t resting;
  // Grants so far.
  uint64_t grants;
  uint64_t key_distance;
} mwctl_domain_info;

// Options of mwctl_region_register. All zero is the default.
typedef struct mwctl_register_options {
  // 1: on huge pages if there are any; mwctl_region_info says what came of it.
  uint32_t huge_pages;
  uint32_t reserved;
  // Bytes of a block; 0: 2 MiB. What is left of a region behind its last whole block belongs to
  // none: a region shorter than a block has no blocks, and is granted by ranges.
  uint64_t block_size;
} mwctl_register_options;

// A memory region under management.
typedef struct mwctl_region {
  uint64_t id;
} mwctl_region;

// Options of mwctl_region_attach: struct ibv_mr carries neither the iova nor the flags, so the
// application declares both.
typedef struct mwctl_attach_options {
  // The iova it was registered with; the address unless ibv_reg_mr_iova was used.
  uint64_t iova;
  // The IBV_ACCESS_* flags it was registered with.
  uint32_t access;
  // 1: the region has REMOTE_* flags and the application knows that its own rkey stays open
  // whatever is revoked here. Otherwise such a region is refused with PARENT_OPEN.
  uint32_t allow_open_parent;
  // Bytes of a block; 0: 2 MiB. What is left of a region behind its last whole block belongs to
  // none: a region shorter than a block has no blocks, and is granted by ranges.
  uint64_t block_size;
  // 1: a device's memory, or another device's by dmabuf. Proofs for it, and for a region with
  // RELAXED_ORDERING, say that access has stopped and no more.
  uint32_t device_memory;
  uint32_t reserved;
} mwctl_attach_options;

// A region, and how its blocks stand.
typedef struct mwctl_region_info {
  // Where clients see it: the iova. For a region registered here also the address.
  uint64_t addr;
  uint64_t length;
  uint32_t access;
  uint32_t lkey;
  // 1 if it is on huge pages that this library mapped.
  uint32_t huge_pages;
  // 1 if the region's own rkey is open.
  uint32_t parent_open;
  // As mwctl_capabilities.memory_at_rest, for this region.
  uint32_t memory_at_rest;
  uint32_t reserved;
  uint64_t block_size;
  uint64_t blocks;
  uint64_t blocks_taken;
  // Given back while a right was still open: not handed out before it is proved gone.
  uint64_t blocks_quarantined;
  struct ibv_mr *mr;
} mwctl_region_info;

// Options of mwctl_peer_attach. All zero is the default.
typedef struct mwctl_peer_options {
  // Send-queue entries, and completion-queue entries, that the library may use at a time; 0:
  // 16. What to add before ibv_create_qp: mwctl_size_queues.
  uint32_t budget;
  // enum mwctl_polling.
  int32_t polling;
  // For polling YOURS: the thread that polls, as pthread_self() returns it. A waiting call on
  // that thread that waits for a completion is refused with WOULD_DEADLOCK. 0: the owner_thread, if
  // that is declared.
  uint64_t polling_thread;
  // For a queue pair or CQ whose provider's locks are off (a thread domain, a single-threaded
  // CQ): the thread that posts and polls, as pthread_self() returns it. Others are refused with
  // WRONG_THREAD, or what they ask for waits for the owner: below. At a deadline that another
  // thread keeps, the service thread, the owner's own looks count: the event fd asks for them in
  // the second half of the time, as told at mwctl_cq_empty. 0: any thread may.
  uint64_t owner_thread;
  // 1: what other threads ask for is posted by the owner's next mwctl_tick, mwctl_poll_cq or
  // mwctl_take_wc; the event fd tells it.
  uint32_t queue_for_owner;
  // For a queue pair of ibv_create_qp_ex with send_ops_flags: 1, and the flags below.
  uint32_t declares_send_ops;
  // The send_ops_flags that it was created with, as they were in struct ibv_qp_init_attr_ex.
  // IBV_QP_EX_WITH_BIND_MW and IBV_QP_EX_WITH_LOCAL_INV must be among them: a queue pair created
  // without has a send queue too small for them. Read if declares_send_ops is 1.
  uint64_t send_ops_flags;
} mwctl_peer_options;

// An RC queue pair under management: one client.
typedef struct mwctl_peer {
  uint64_t id;
} mwctl_peer;

// How one item ended.
typedef struct mwctl_result {
  // The grant's id. After a failed grant 0, or an id that must still be revoked.
  uint64_t grant;
  // The key to hand to the peer; 0 unless `status` is a success of a grant.
  uint32_t rkey;
  mwctl_status status;
  // For a revocation, what shows that the right is gone.
  mwctl_proof proof;
  // For a failed verbs call, its errno value; else 0.
  int32_t error;
} mwctl_result;

// Hears how an asynchronous call ended. OK from that call means that it began; then this comes
// exactly once, never from inside that call. On any other status nothing began and it does not
// come. `n` may be 0. What it hears: the first status that is no success, and each item's
// result, valid during the call. Called with no lock held, from mwctl_poll_cq,
// mwctl_take_wc, mwctl_cq_empty, mwctl_tick, a waiting call or the service thread, on whichever thread
// that is, also before the call that began it has returned on another; it may call back into the
// library. Operations that wait for the same grants are called back in the order in which they began, if
// the same call finds them ended and no other thread calls back meanwhile: of a client, its detach comes
// last. An event that led to the end of a revocation or a detach, such as PEER_KILLED, is told before
// it; grants that were under way may end before the event. What comes due while callbacks run is called
// back by the next call, for which the event fd asks; calls made in callbacks call back themselves, one
// within the other up to 32 deep.
typedef void (*mwctl_done_fn)(void *user,
                              mwctl_status status,
                              const struct mwctl_result *results,
                              size_t n);

// A peer as it stands.
typedef struct mwctl_peer_info {
  uint32_t qp_num;
  // As far as the library has heard: 0 before RTS, 1 live, 2 the queue pair is in error, 3 gone.
  // A completion with an error, or an asynchronous event, that was offered makes it look at the
  // queue pair's state, but only at the next grant or revocation; it looks also where it moves
  // one to ERR.
  uint32_t life;
  // 1 once a detach has begun.
  uint32_t leaving;
  uint32_t budget;
  // Send-queue entries of the budget in use.
  uint32_t used;
  uint32_t reserved;
  // Open grants.
  uint64_t grants;
} mwctl_peer_info;

// A right that is asked for. Refused where the range is none (LENGTH_ZERO, LENGTH_TOO_LONG,
// OUT_OF_RANGE); where `access` is none (ACCESS_NONE, UNKNOWN_FLAGS), or more than device, region and
// queue pair allow (ACCESS_UNSUPPORTED, ACCESS_MISSING_ON_REGION, ACCESS_MISSING_ON_QP); where peer and
// region are of two domains (FOREIGN_PD); and while it can't be met: NOT_CONNECTED before RTS,
// PEER_DEAD, PEER_LEAVING, RANGE_UNCERTAIN.
typedef struct mwctl_request {
  struct mwctl_peer peer;
  struct mwctl_region region;
  // First byte, in the region's iova space: what the client will put into remote_addr.
  uint64_t addr;
  // Bytes; at least 1, at most 2 GiB.
  uint64_t length;
  // IBV_ACCESS_REMOTE_WRITE, _READ, _ATOMIC.
  uint32_t access;
  uint32_t reserved;
} mwctl_request;

// One step of mwctl_transfer.
typedef struct mwctl_move {
  // The grant to end.
  uint64_t grant;
  // The right to hand out once that is proved gone.
  struct mwctl_request to;
} mwctl_move;

// A prepared chain between prepare and commit or abort.
typedef struct mwctl_token {
  uint64_t id;
} mwctl_token;

// An open grant.
typedef struct mwctl_grant_info {
  uint64_t grant;
  struct mwctl_peer peer;
  uint64_t addr;
  uint64_t length;
  uint32_t rkey;
  uint32_t access;
  uint32_t qp_num;
  // 1 once the bind is known to have completed.
  uint32_t confirmed;
  // 1 while a revocation is under way.
  uint32_t revoking;
  // 1 after a revocation that gave no proof.
  uint32_t uncertain;
} mwctl_grant_info;

// What mwctl_explain_key found. What is not known is 0.
typedef struct mwctl_key_info {
  // enum mwctl_key_kind.
  int32_t kind;
  // The rights that it opens, or opened.
  uint32_t access;
  // An open grant, or the one that ended if it was its window's last: a stale id then.
  uint64_t grant;
  struct mwctl_peer peer;
  struct mwctl_region region;
  uint64_t addr;
  uint64_t length;
  uint32_t qp_num;
  uint32_t reserved;
} mwctl_key_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Takes a device context under management and tries out what it can do. The application keeps
// it, and must not close it before mwctl_context_close. `size` is sizeof *opts; opts may be
// NULL with size 0. On an error *ctx is NULL. One
// context a device context: ALREADY_ATTACHED otherwise. VERBS_ERROR: the device can't be queried.
// FORKED in a forked child.
// May wait (a few kernel calls).
mwctl_status mwctl_context_open(struct ibv_context *device,
                                const struct mwctl_context_options *opts,
                                size_t size,
                                struct mwctl_context **ctx);

// Ends the management. Refused with BUSY while a domain is open: nothing is leaked silently. But what
// the short calls (mwctl_reg_mr, mwctl_rkey) opened on the way is closed with it, once every queue
// pair is detached and no right is open; ibv_dereg_mr is then the application's to call. Refused
// with POISONED after an internal error: such a context stays as it is. WOULD_DEADLOCK from a
// callback on the service thread. Callbacks that are due come during the call.
// No other call on the context may be under way. NULL does nothing.
// May wait (for the service thread, and the callback that it is in).
mwctl_status mwctl_context_close(struct mwctl_context *ctx);

// What the device can do. `size` is sizeof *caps.
// Never waits.
mwctl_status mwctl_capabilities_get(struct mwctl_context *ctx,
                                    struct mwctl_capabilities *caps,
                                    size_t size);

// Counters since the context was opened. `size` is sizeof *stats.
// Never waits.
mwctl_status mwctl_stats_get(struct mwctl_context *ctx, struct mwctl_stats *stats, size_t size);

// What to add before ibv_create_qp and ibv_create_cq for one peer with this budget (0: 16): the
// budget to cap->max_send_wr, and to *cqe of the queue pair's send CQ. Every send-queue entry of
// ours may use one completion-queue entry, an error's included. Call it once for each peer of a
// shared CQ. Either pointer may be NULL. BUDGET_TOO_LARGE, and nothing added, if a sum exceeds INT_MAX
// or *cqe is negative.
// Never waits.
mwctl_status mwctl_size_queues(uint32_t budget,
                               struct ibv_qp_cap *cap,
                               int *cqe);

// A descriptor for poll or epoll, one a context: readable while mwctl_tick, or for polling OURS
// mwctl_poll_cq, has something to do, until mwctl_tick has run. It belongs to the context; -1 on an
// error. A program that makes asynchronous calls sleeps on this beside its completion channels, for
// no longer than mwctl_next_timeout: deallocations and deadlines make no completion. An asynchronous
// call with a deadline nearer than that makes it readable, too.
// Never waits.
int mwctl_event_fd(struct mwctl_context *ctx);

// Nanoseconds until mwctl_tick is due: 0 at once, -1 nothing is planned. For the timeout of the
// application's loop; the completions of a chain under way are not counted in. It may be earlier
// than needed, for an operation that has ended meanwhile, and never later. Round it up for a poll that
// counts in milliseconds.
// Never waits.
int64_t mwctl_next_timeout(struct mwctl_context *ctx);

// Does what is due: deallocations, deadlines, posts that found no room, the binds of transfers, refills of
// the pools (64 windows at most, see mwctl_domain_options.reserve), callbacks. To be called by a busy loop,
// too, whose queues don't run empty.
// Never waits for the network or another thread; makes kernel calls where something has to be
// allocated or deallocated.
mwctl_status mwctl_tick(struct mwctl_context *ctx);

// Starts a thread that ticks when something is due, for a program without a loop: with it
// deadlines hold though nobody calls. Callbacks may then come on that thread, which has all
// signals blocked. A loop beside it ticks as ever when the event fd says so: what is for the owner
// of a queue, or for whoever polls by himself, the thread can't do, and it leaves the event fd as it is.
// ALREADY_ATTACHED if it runs; NO_MEMORY: no thread is to be had. Ends with mwctl_service_stop, or the context.
// Never waits.
mwctl_status mwctl_service_start(struct mwctl_context *ctx);

// Ends the thread and waits until it has. Nothing happens without one; from a callback on that
// thread WOULD_DEADLOCK.
// May wait.
mwctl_status mwctl_service_stop(struct mwctl_context *ctx);

// A sentence for a status, never NULL; static.
// Never waits.
const char *mwctl_status_text(int32_t status);

// A sentence for a proof, never NULL; static.
// Never waits.
const char *mwctl_proof_text(int32_t proof);

// The version of the library that runs: 1000000 * major + 1000 * minor + patch. Compare with
// MWCTL_VERSION, the header's.
// Never waits.
uint32_t mwctl_version(void);

// Takes a protection domain under management and allocates its reserve of windows. The
// application keeps the PD, and must not deallocate it before mwctl_domain_close. `size` is
// sizeof *opts; opts may be NULL with size 0. FOREIGN_CONTEXT: the PD is another device context's.
// UNSUPPORTED: the device has no Type 2 windows. DEVICE_LIMIT: it allocates fewer than the reserve.
// May wait (a kernel call a window).
mwctl_status mwctl_domain_open(struct mwctl_context *ctx,
                               struct ibv_pd *pd,
                               const struct mwctl_domain_options *opts,
                               size_t size,
                               struct mwctl_domain *domain);

// Ends the management of a PD and deallocates its windows. Refused with BUSY while a peer or
// region of it is attached; mwctl_domain_grants lists what is still open. VERBS_ERROR: a window can't
// be deallocated; the call can be repeated.
// May wait (a kernel call a window).
mwctl_status mwctl_domain_close(struct mwctl_context *ctx,
                                struct mwctl_domain domain);

// Has at least `windows` windows ready for the next grants, so that calls that never wait find
// them. KEYS_EXHAUSTED or DEVICE_LIMIT if the device allocates no more.
// May wait (a kernel call a window).
mwctl_status mwctl_domain_reserve(struct mwctl_context *ctx,
                                  struct mwctl_domain domain,
                                  uint32_t windows);

// The windows of a domain. `size` is sizeof *info.
// Never waits.
mwctl_status mwctl_domain_info_get(struct mwctl_context *ctx,
                                   struct mwctl_domain domain,
                                   struct mwctl_domain_info *info,
                                   size_t size);

// Maps `length` bytes of zeroed memory and registers them with LOCAL_WRITE and MW_BIND alone:
// the region has no remote access of its own, and what a grant opens, its revocation closes. A
// forked child does not see the memory. `size` is sizeof *opts; opts may be NULL with size 0.
// LENGTH_ZERO; NO_MEMORY, also by RLIMIT_MEMLOCK; VERBS_ERROR: it can't be registered.
// TOO_MANY: more blocks than a region may have.
// May wait (registering pins the memory).
mwctl_status mwctl_region_register(struct mwctl_context *ctx,
                                   struct mwctl_domain domain,
                                   uint64_t length,
                                   const struct mwctl_register_options *opts,
                                   size_t size,
                                   struct mwctl_region *region);

// Takes the application's region under management. It stays the application's, which must not
// deregister it before mwctl_region_detach; ALREADY_ATTACHED if it is under management. iova and access
// of the options must be what it was registered with: struct ibv_mr carries neither, and a bind is
// checked against them. `size` is sizeof *opts. FOREIGN_PD: the MR is of another PD than the domain.
// By its access flags: PARENT_OPEN, PARENT_NOT_BINDABLE, MEMORY_KIND. OUT_OF_RANGE: it wraps around.
// TOO_MANY: more blocks than a region may have.
// Never waits.
mwctl_status mwctl_region_attach(struct mwctl_context *ctx,
                                 struct mwctl_domain domain,
                                 struct ibv_mr *mr,
                                 const struct mwctl_attach_options *opts,
                                 size_t size,
                                 struct mwctl_region *region);

// Ends the management of a region. Success means that ibv_dereg_mr is safe now; for a region of
// mwctl_region_register it is done and the memory unmapped. Refused with BUSY while a grant into
// it is open or uncertain. VERBS_ERROR: it can't be deregistered.
// May wait (deregistering is a kernel call).
mwctl_status mwctl_region_detach(struct mwctl_context *ctx, struct mwctl_region region);

// A region as it stands. `size` is sizeof *info.
// Never waits.
mwctl_status mwctl_region_info_get(struct mwctl_context *ctx,
                                   struct mwctl_region region,
                                   struct mwctl_region_info *info,
                                   size_t size);

// Takes `count` neighbouring blocks in which no right is open or uncertain; *addr is the first
// byte, in the region's iova space. NO_BLOCKS if there is no such run. LENGTH_ZERO: `count` is 0.
// Never waits.
mwctl_status mwctl_block_take(struct mwctl_context *ctx,
                              struct mwctl_region region,
                              size_t count,
                              uint64_t *addr);

// Gives `count` blocks back that were taken, from `addr` on. Where a right is still open or
// uncertain they stay out of use until it is proved gone. OUT_OF_RANGE, or BLOCK_NOT_TAKEN, if these
// are no such blocks: then none is given back.
// Never waits.
mwctl_status mwctl_block_give(struct mwctl_context *ctx,
                              struct mwctl_region region,
                              uint64_t addr,
                              size_t count);

// Takes an RC queue pair under management, in any state from INIT to RTS; grants need RTS. The
// application keeps the queue pair and its CQs, goes on posting and polling, and must call
// mwctl_peer_detach before it destroys the queue pair or moves it to RESET. `size` is
// sizeof *opts; opts may be NULL with size 0. FOREIGN_PD: the queue pair is of another PD than the
// domain, or of a parent domain that was not declared. NOT_RC. QP_STATE: RESET, or one behind RTS.
// ALREADY_ATTACHED. BUDGET_TOO_LARGE: see mwctl_size_queues. POLLING_MODE, WRONG_THREAD: a CQ of its is
// in use by a peer with another `polling`, or another owner_thread. Of ibv_create_qp_ex: QP_UNDECLARED
// without declares_send_ops, QP_WITHOUT_WINDOW_OPS if the flags lack the two. VERBS_ERROR: it can't be
// queried.
// May wait (queries the queue pair).
mwctl_status mwctl_peer_attach(struct mwctl_context *ctx,
                               struct mwctl_domain domain,
                               struct ibv_qp *qp,
                               const struct mwctl_peer_options *opts,
                               size_t size,
                               struct mwctl_peer *peer);

// The application has seen that the peer's send queue is stuck, behind a SEND that is never
// received for example. Until a completion of ours comes through again, revocations deallocate
// their windows at once, which needs no send queue and leaves the queue pair as it is, and post
// no LOCAL_INV behind. The library also finds out by itself, at the first deadline that passes.
// Not so for a window of which a request may be in the queue still, such as the bind of a grant that is not
// confirmed (mwctl_grant_info, mwctl_grant_prepare): that one waits for the queue or the deadline.
// Never waits.
mwctl_status mwctl_peer_stuck(struct mwctl_context *ctx,
                              struct mwctl_peer peer);

// Revokes all that the peer holds, then takes it off the books. After success the library
// touches neither the queue pair nor, on its behalf, its CQs again; completions of ours that
// still come are recognised and dropped. At its deadline it moves the queue pair to ERR, which
// the application is about to destroy anyway. On an error the peer stays, takes no new grants,
// and the call can be repeated: OPEN if a right was not proved gone, or a prepared chain awaits its
// commit. STALE_ID: another call has taken it off the books. WOULD_DEADLOCK,
// WRONG_THREAD: not on this thread, says mwctl_peer_options; mwctl_peer_detach_start is the way there.
// timeout_us 0: the context's default.
// May wait.
mwctl_status mwctl_peer_detach(struct mwctl_context *ctx,
                               struct mwctl_peer peer,
                               uint64_t timeout_us);

// The same, ending in a callback.
// Never waits.
mwctl_status mwctl_peer_detach_start(struct mwctl_context *ctx,
                                     struct mwctl_peer peer,
                                     uint64_t timeout_us,
                                     mwctl_done_fn on_done,
                                     void *user);

// The queue pair no longer exists, or was moved to RESET without a detach: it is never touched
// again, its windows are deallocated, the peer is off the books. OPEN: one can't be deallocated; the
// peer stays, and the call can be repeated.
// May wait (a kernel call a window).
mwctl_status mwctl_peer_gone(struct mwctl_context *ctx,
                             struct mwctl_peer peer,
                             uint64_t timeout_us);

// A peer as it stands. `size` is sizeof *info.
// Never waits.
mwctl_status mwctl_peer_info_get(struct mwctl_context *ctx,
                                 struct mwctl_peer peer,
                                 struct mwctl_peer_info *info,
                                 size_t size);

// Hands one right to one client: binds a window of the pool to its queue pair and returns once
// the bind has completed. *result has the grant's id and the rkey for the client; on an error
// its status, and an id only if something is still open under it (TIMED_OUT: revoke it).
// WOULD_DEADLOCK, WRONG_THREAD: not on this thread, says mwctl_peer_options. A bad request is refused
// as mwctl_request says. DEVICE_LIMIT, KEYS_EXHAUSTED: no window is to be had. POST_FAILED, BIND_FAILED,
// NOT_POSTED: there is no right; mostly the queue pair is in error then.
// Verbs: IBV_WR_BIND_MW on the peer's own queue pair; the rkey's low 8 bits change at each bind.
// May wait.
mwctl_status mwctl_grant(struct mwctl_context *ctx,
                         const struct mwctl_request *asked,
                         uint64_t timeout_us,
                         struct mwctl_result *result);

// Hands out many rights, to any number of clients: one post and one signaled completion for each
// client's share, as far as its budget goes. Bad requests are refused before anything is posted.
// `results` has room for `n`, in the order of the requests; those that failed afterwards have a
// status of their own, as of mwctl_grant (TIMED_OUT, DEVICE_LIMIT, KEYS_EXHAUSTED, POST_FAILED,
// BIND_FAILED, NOT_POSTED). Returns the first status that is no success.
// WOULD_DEADLOCK, WRONG_THREAD: not on this thread, says mwctl_peer_options. TOO_MANY: over 16,777,215.
// May wait.
mwctl_status mwctl_grant_batch(struct mwctl_context *ctx,
                               const struct mwctl_request *asked,
                               size_t n,
                               uint64_t timeout_us,
                               struct mwctl_result *results);

// The same, ending in a callback. POOL_EMPTY in a result means that no window was ready: reserve
// more, or let mwctl_tick refill the pool (mwctl_domain_options.reserve).
// Never waits.
mwctl_status mwctl_grant_start(struct mwctl_context *ctx,
                               const struct mwctl_request *asked,
                               size_t n,
                               uint64_t timeout_us,
                               mwctl_done_fn on_done,
                               void *user);

// Ends a grant and hands out its successor to the same client, in one post: the new right, with
// a new id and rkey, begins only after the old one is gone. results[0] is the revocation's,
// results[1] the new grant's. IN_PROGRESS: the grant is being revoked. MIXED_PEERS: it is not the
// request's client's. OPEN, NOT_POSTED: the old right was not proved gone, and there is no new one.
// Otherwise the new grant's as of mwctl_grant (TIMED_OUT, BIND_FAILED and the like).
// WOULD_DEADLOCK, WRONG_THREAD: not on this thread, says mwctl_peer_options.
// May wait.
mwctl_status mwctl_regrant(struct mwctl_context *ctx,
                           uint64_t grant,
                           const struct mwctl_request *asked,
                           uint64_t timeout_us,
                           struct mwctl_result *results);

// Takes one right back; at the deadline as KILL_ALLOWED below. After success the key is dead: no access
// with it starts, and result says by what proof. OPEN: not proved; the grant stays on the books and its
// memory out of use, and the call can be repeated. STALE_ID: nothing is open under this id any more, it
// was revoked before or its client gave it back (an event says so). WOULD_DEADLOCK, WRONG_THREAD: not on
// this thread, says mwctl_peer_options. result may be NULL. timeout_us 0: the context's default.
// Verbs: IBV_WR_LOCAL_INV on the queue pair that the window is bound to. A client that goes on
// using the key gets IBV_WC_REM_ACCESS_ERR, and both queue pairs go to ERR.
// May wait.
mwctl_status mwctl_revoke(struct mwctl_context *ctx,
                          uint64_t grant,
                          uint64_t timeout_us,
                          struct mwctl_result *result);

// Takes many rights back, of any number of clients: a chain of LOCAL_INVs a client, with one post
// and one signaled completion, all clients' chains in flight together. `results` may be NULL or
// has room for `n`, in order; a stale or doubled id has a status of its own there and does not
// keep the others from ending. OPEN: not proved, as for mwctl_revoke. `kill`: enum mwctl_kill.
// Returns the first status that is no success: of an item STALE_ID or DUPLICATE. WOULD_DEADLOCK,
// WRONG_THREAD: not on this thread, says mwctl_peer_options. TOO_MANY: over 16,777,215. A client
// that goes on writing can end the queue pair by that in the middle of its chain: the rest is then
// proved by QP_FENCED.
// May wait.
mwctl_status mwctl_revoke_batch(struct mwctl_context *ctx,
                                const uint64_t *grants,
                                size_t n,
                                uint64_t timeout_us,
                                int32_t kill,
                                struct mwctl_result *results);

// The same, ending in a callback. A right may be revoked again while that is under way: all end with the
// same proof, and the nearest deadline that may, ends it.
// Never waits.
mwctl_status mwctl_revoke_start(struct mwctl_context *ctx,
                                const uint64_t *grants,
                                size_t n,
                                uint64_t timeout_us,
                                int32_t kill,
                                mwctl_done_fn on_done,
                                void *user);

// Takes back all that one client holds, what is being granted included. *n, if not NULL, is the
// number of grants that ended. OPEN: one was not proved gone, as for mwctl_revoke. WOULD_DEADLOCK,
// WRONG_THREAD: not on this thread, says mwctl_peer_options; mwctl_revoke_peer_start is the way there.
// The queue pair stays attached and can be granted to again.
// May wait.
mwctl_status mwctl_revoke_peer(struct mwctl_context *ctx,
                               struct mwctl_peer peer,
                               uint64_t timeout_us,
                               int32_t kill,
                               size_t *n);

// The same, ending in a callback with a result for each grant.
// Never waits.
mwctl_status mwctl_revoke_peer_start(struct mwctl_context *ctx,
                                     struct mwctl_peer peer,
                                     uint64_t timeout_us,
                                     int32_t kill,
                                     mwctl_done_fn on_done,
                                     void *user);

// Takes back every right of any client that touches the range. *n, if not NULL, is the number of
// grants that ended. OPEN: one was not proved gone, as for mwctl_revoke. WOULD_DEADLOCK, WRONG_THREAD:
// not on this thread, says mwctl_peer_options. LENGTH_ZERO, OUT_OF_RANGE: it is no range of the region.
// May wait.
mwctl_status mwctl_revoke_range(struct mwctl_context *ctx,
                                struct mwctl_region region,
                                uint64_t addr,
                                uint64_t length,
                                uint64_t timeout_us,
                                int32_t kill,
                                size_t *n);

// The same, ending in a callback with a result for each grant.
// Never waits.
mwctl_status mwctl_revoke_range_start(struct mwctl_context *ctx,
                                      struct mwctl_region region,
                                      uint64_t addr,
                                      uint64_t length,
                                      uint64_t timeout_us,
                                      int32_t kill,
                                      mwctl_done_fn on_done,
                                      void *user);

// Moves rights from one client to another, for a new leader or a failover: each new right is
// bound only after the proof that the grant in its place is gone, so that the two never hold it
// together. `results`, which may be NULL, has room for 2n: the new grants in the order of the
// moves, then the revocations. Without a proof (OPEN) the new client gets nothing (NOT_POSTED). Returns
// the first status that is no success. A bad step is refused before anything is revoked: DUPLICATE if
// a grant is named twice, a bad request as mwctl_request says. WOULD_DEADLOCK, WRONG_THREAD: not on this
// thread, says mwctl_peer_options. TOO_MANY: over 8,388,607.
// May wait.
mwctl_status mwctl_transfer(struct mwctl_context *ctx,
                            const struct mwctl_move *steps,
                            size_t n,
                            uint64_t timeout_us,
                            int32_t kill,
                            struct mwctl_result *results);

// The same, ending in a callback with 2n results.
// Never waits.
mwctl_status mwctl_transfer_start(struct mwctl_context *ctx,
                                  const struct mwctl_move *steps,
                                  size_t n,
                                  uint64_t timeout_us,
                                  int32_t kill,
                                  mwctl_done_fn on_done,
                                  void *user);

// Binds for the application to post itself, for one client: fills wrs[0..n-1], linked by next,
// the last one's next NULL for the application to continue. Each result has id and rkey at once;
// the rkey may travel in a later SEND of the same chain and in no other way before the grant is
// confirmed (mwctl_grant_info). wrs must stay in place until commit or abort, one of which must
// follow. Takes n entries of the budget: QUEUE_FULL if they are in use, TOO_MANY if it is smaller;
// POOL_EMPTY if no window is ready. They ask for a completion only when half of the budget is in use,
// and are confirmed by that or by a later completion of the library's on this queue pair; the entries
// stay in use until then. To have it at once, set IBV_SEND_SIGNALED in the last one's send_flags before
// the post: its completion is the library's. MIXED_PEERS: more than one client. A bad request is refused
// as mwctl_request says. WRONG_THREAD: not on this thread, says mwctl_peer_options.
// Never waits.
mwctl_status mwctl_grant_prepare(struct mwctl_context *ctx,
                                 const struct mwctl_request *asked,
                                 size_t n,
                                 struct ibv_send_wr *wrs,
                                 struct mwctl_result *results,
                                 struct mwctl_token *token);

// LOCAL_INVs for the application to post itself, for grants of one client: fills wrs[0..n-1] as
// above, the last one signaled. on_done, which may be NULL, hears of the proof after the commit.
// Takes n entries of the budget: QUEUE_FULL, TOO_MANY as above. MIXED_PEERS; DUPLICATE; IN_PROGRESS: one
// is being revoked, or its own chain awaits the commit; PEER_DEAD: mwctl_revoke_start needs no post.
// Never waits.
mwctl_status mwctl_revoke_prepare(struct mwctl_context *ctx,
                                  const uint64_t *grants,
                                  size_t n,
                                  uint64_t timeout_us,
                                  int32_t kill,
                                  mwctl_done_fn on_done,
                                  void *user,
                                  struct ibv_send_wr *wrs,
                                  struct mwctl_token *token);

// A LOCAL_INV for a grant and a bind for its successor to the same client: fills wrs[0] and
// wrs[1], to be posted in this order. *result is the new grant's. on_done, which may be NULL,
// hears of the old one's proof. Takes 2 entries of the budget. Refused as the two above.
// Never waits.
mwctl_status mwctl_regrant_prepare(struct mwctl_context *ctx,
                                   uint64_t grant,
                                   const struct mwctl_request *asked,
                                   uint64_t timeout_us,
                                   mwctl_done_fn on_done,
                                   void *user,
                                   struct ibv_send_wr *wrs,
                                   struct mwctl_result *result,
                                   struct mwctl_token *token);

// Says how the post of a prepared chain went: `ret` is what ibv_post_send returned, `bad_wr`
// what it set. The application's own requests may stand before, between and after ours; the
// whole chain must still be in place. What was not posted ends: grants are void, revocations are
// taken back, both with NOT_POSTED. *posted, if not NULL, is the number of our requests that
// count as posted. Call it also when the post failed, and right after the post.
// Never waits.
mwctl_status mwctl_commit(struct mwctl_context *ctx,
                          struct mwctl_token token,
                          int ret,
                          const struct ibv_send_wr *bad_wr,
                          size_t *posted);

// Puts the `n` prepared work requests from `wr` on into a batch of the extended interface, between
// ibv_wr_start and ibv_wr_complete, on the thread that began it. Prepare before ibv_wr_start and
// commit after ibv_wr_complete, with mwctl_commit_ex; after ibv_wr_abort, mwctl_abort. Between the
// two the send queue is locked: no other call of this library may be made on that thread. The
// queue pair's send_ops_flags must have BIND_MW and LOCAL_INV, as declared at mwctl_peer_attach.
// Never waits.
void mwctl_put_wr(struct ibv_qp_ex *qp, const struct ibv_send_wr *wr, size_t n);

// As mwctl_commit, for a chain that went out by the extended interface: `ret` is what
// ibv_wr_complete returned. An error means that nothing of the batch was posted. On soft-RoCE only
// ENOMEM and ENOSPC mean that; with another error all count as posted, as with an error of
// ibv_post_send without a bad_wr.
// Never waits.
mwctl_status mwctl_commit_ex(struct mwctl_context *ctx,
                             struct mwctl_token token,
                             int ret,
                             size_t *posted);

// The chain was not posted and will not be: as a commit of which nothing was posted.
// Never waits.
mwctl_status mwctl_abort(struct mwctl_context *ctx, struct mwctl_token token);

// Stands in for ibv_poll_cq, with the same arguments, results and order, for any CQ: the
// application's completions come out, ours are taken in. It returns 0 only when the queue was
// seen empty. Negative on an error, as ibv_poll_cq, and from a thread that does not own a queue
// with an owner_thread.
// With a completion channel as ever: ibv_req_notify_cq, then this until it returns 0, then sleep. No
// wake-up is lost, for what a waiting call kept comes out of this as well. Completions of ours are
// events, too, but never solicited ones: whoever arms for solicited ones alone hears of an
// asynchronous call no sooner than at its deadline.
// Never waits.
int mwctl_poll_cq(struct mwctl_context *ctx,
                  struct ibv_cq *cq,
                  int num_entries,
                  struct ibv_wc *wc);

// For an application that polls by itself: offers a completion. 1: it was ours, forget it. 0: it
// is the application's. Offer every one, also those with an error: what they say of a queue pair
// or a key is taken to heart. `cq` is the queue it came from; another device's is let pass, for its
// numbers mean other things. wc is read during the call alone.
// Negative on an error (minus the status), and then the completion is the application's: what it
// handles itself is all for which this returns <= 0.
// Never waits.
int mwctl_take_wc(struct mwctl_context *ctx, struct ibv_cq *cq, const struct ibv_wc *wc);

// The same for the extended interface: offers the completion that ibv_start_poll or ibv_next_poll
// shows, between those and ibv_end_poll, on the thread that polls. 1: it was ours. 0: it is the
// application's. Nothing is posted, polled or called back here: what follows from the completion
// is done by the next mwctl_tick, to be called after ibv_end_poll or when the event fd says so;
// other calls of this library but the questions wait until then, too. For polling YOURS. Make the
// queue with IBV_WC_EX_WITH_QP_NUM and IBV_WC_EX_WITH_IMM: without the first an error says of no
// queue pair that it is in error, and a SEND_WITH_INV is taken for the key's own client's; without
// the second a SEND_WITH_INV is not seen at all. Negative on an error, as mwctl_take_wc.
// Never waits.
int mwctl_take_ex(struct mwctl_context *ctx, struct ibv_cq_ex *cq);

// Before ibv_destroy_cq, after the last peer that used the queue was detached: drops completions
// that a waiting call of ours had kept for the application and that it will not poll any more.
// Without this, or polling by mwctl_poll_cq until it returns 0, a later queue at the same address
// would inherit them. BUSY while an attached peer uses the queue.
// Never waits.
mwctl_status mwctl_cq_gone(struct mwctl_context *ctx, struct ibv_cq *cq);

// For an application that polls by itself: its last poll found the queue empty. Call it whenever a
// poll does, before the next tick; the queue of the sends is the one that counts. By it the deadline of a
// revocation tells a lost completion from one that nobody has polled: it takes two such calls in the
// second half of the time from the post to the deadline, and a millisecond or more behind the post (the
// poll before the first may have begun earlier). Without them, and without some four times as many
// completions offered in that time as the queue holds, no queue pair is moved to ERR, and the grant is
// reported as still open. For a loop that sleeps mwctl_next_timeout and the event fd come at five, six
// and seven eighths of the time and 2 ms before its end; one that is woken too late for two of them may
// revoke again. Does what is due besides, as mwctl_take_wc does: deadlines, callbacks, events. From the
// owner_thread alone, if that is declared: WRONG_THREAD otherwise. UNKNOWN_QUEUE if no attached peer
// uses the queue.
// Never waits.
mwctl_status mwctl_cq_empty(struct mwctl_context *ctx,
                            struct ibv_cq *cq);

// Offers an asynchronous event that ibv_get_async_event returned, before it is acknowledged. The
// event stays the application's; what it says of a queue pair or the device is taken to heart.
// Never waits.
mwctl_status mwctl_take_async_event(struct mwctl_context *ctx, const struct ibv_async_event *event);

// Whether the client behind a queue pair holds one grant that covers the whole range with all
// these rights and may be in use: from the post of its bind, confirmed or not, to the proof of its
// end. OK and the grant's id in *grant (which may be NULL), or NO_GRANT if there is
// none. LENGTH_ZERO, UNKNOWN_FLAGS: that is no question. Takes no lock.
// Never waits.
mwctl_status mwctl_check(struct mwctl_context *ctx,
                         struct mwctl_domain domain,
                         uint32_t qp_num,
                         uint64_t addr,
                         uint64_t length,
                         uint32_t access,
                         uint64_t *grant);

// The open grant whose rkey this is; NO_GRANT if there is none. `size` is sizeof *info. Takes no
// lock.
// Never waits.
mwctl_status mwctl_find_rkey(struct mwctl_context *ctx,
                             uint32_t rkey,
                             struct mwctl_grant_info *info,
                             size_t size);

// What a key is: a live grant's, one that was revoked, a region's own, or none of ours. For the log
// line about a client that came with a strange key, and to find what an advertisement really
// hands out. A sentence for the kind: mwctl_key_text. `size` is sizeof *info.
// Never waits.
mwctl_status mwctl_explain_key(struct mwctl_context *ctx,
                               uint32_t key,
                               struct mwctl_key_info *info,
                               size_t size);

// A sentence for an enum mwctl_key_kind, never NULL; static.
// Never waits.
const char *mwctl_key_text(int32_t kind);

// A grant by its id; STALE_ID once it has ended. `size` is sizeof *info. Takes no lock.
// Never waits.
mwctl_status mwctl_grant_info_get(struct mwctl_context *ctx,
                                  uint64_t grant,
                                  struct mwctl_grant_info *info,
                                  size_t size);

// The ids of a client's open grants: fills in as many as `room`, and sets *n to how many there
// are.
// Never waits.
mwctl_status mwctl_peer_grants(struct mwctl_context *ctx,
                               struct mwctl_peer peer,
                               uint64_t *grants,
                               size_t room,
                               size_t *n);

// The ids of a domain's open grants, likewise: what is in the way of mwctl_domain_close. Walks
// over all windows of the context.
// Never waits.
mwctl_status mwctl_domain_grants(struct mwctl_context *ctx,
                                 struct mwctl_domain domain,
                                 uint64_t *grants,
                                 size_t room,
                                 size_t *n);

// The ids of the open grants that touch a range, likewise.
// Never waits.
mwctl_status mwctl_range_grants(struct mwctl_context *ctx,
                                struct mwctl_region region,
                                uint64_t addr,
                                uint64_t length,
                                uint64_t *grants,
                                size_t room,
                                size_t *n);

// In place of ibv_reg_mr, for memory that clients reach by mwctl_rkey: the region gets no remote
// access of its own, mr->rkey opens nothing. The IBV_ACCESS_REMOTE_* flags of `access` say what may
// be granted on it. Opens the PD's domain, with its defaults, if none is open: before ibv_dealloc_pd
// then comes mwctl_detach_pd or mwctl_context_close. NULL with errno on an error, as ibv_reg_mr.
// May wait (registering pins the memory; a kernel call a window for the domain).
struct ibv_mr *mwctl_reg_mr(struct mwctl_context *ctx,
                            struct ibv_pd *pd,
                            void *addr,
                            size_t length,
                            int access);

// In place of ibv_dereg_mr for such a region; one that is not under management is deregistered as it
// is. Revokes nothing: EBUSY while a right into the region may be open. 0 or an errno value, as
// ibv_dereg_mr.
// May wait (a kernel call).
int mwctl_dereg_mr(struct mwctl_context *ctx,
                   struct ibv_mr *mr);

// In place of mr->rkey: hands the client behind `qp` a right to `length` bytes from `addr` on, as it
// will put it into remote_addr, and writes the key to send to *rkey. `access`: IBV_ACCESS_REMOTE_*,
// or 0 for all that mwctl_reg_mr was told. The queue pair, in RTS, is attached with the defaults if
// it was not: one of ibv_create_qp_ex, or whose completions are not polled by mwctl_poll_cq, must be
// attached by mwctl_peer_attach before. *grant, which may be NULL, is for mwctl_revoke; 0 after an
// error, or what must still be revoked. *rkey is 0 after an error. NOT_ATTACHED: the region is not
// of mwctl_reg_mr or mwctl_region_attach. NOT_CONNECTED, or QP_STATE in RESET: the queue pair is not in
// RTS yet. ACCESS_MISSING_ON_QP: its access flags don't allow it. Otherwise as mwctl_peer_attach and
// mwctl_grant: BUDGET_TOO_LARGE, OUT_OF_RANGE, PEER_DEAD, TIMED_OUT and the like.
// May wait.
mwctl_status mwctl_rkey(struct mwctl_context *ctx,
                        struct ibv_qp *qp,
                        struct ibv_mr *mr,
                        uint64_t addr,
                        uint64_t length,
                        uint32_t access,
                        uint32_t *rkey,
                        uint64_t *grant);

// Takes back all that the client behind a queue pair holds, as mwctl_revoke_peer; `kill`: enum
// mwctl_kill. *n, if not NULL, is the number of grants that ended: 0 for a queue pair that is not
// under management, for there is no right on it. The client can be granted to again. OPEN,
// WOULD_DEADLOCK, WRONG_THREAD: as mwctl_revoke_peer. FOREIGN_CONTEXT: another device context's.
// May wait.
mwctl_status mwctl_revoke_qp(struct mwctl_context *ctx,
                             struct ibv_qp *qp,
                             uint64_t timeout_us,
                             int32_t kill,
                             size_t *n);

// Before ibv_destroy_qp, or a move to RESET: as mwctl_peer_detach, within the context's timeout. OK
// for a queue pair that is not under management. OPEN, WOULD_DEADLOCK, WRONG_THREAD: as mwctl_peer_detach.
// May wait.
mwctl_status mwctl_detach_qp(struct mwctl_context *ctx,
                             struct ibv_qp *qp);

// Before ibv_dealloc_pd, where the context stays open: detaches the PD's regions of mwctl_reg_mr,
// which are then for ibv_dereg_mr, and closes its domain. BUSY while a queue pair or another region
// is attached, or a right open. OK for a PD that is not under management.
// May wait (a kernel call a window).
mwctl_status mwctl_detach_pd(struct mwctl_context *ctx, struct ibv_pd *pd);

// The peer that a queue pair is attached as, for the calls that want one; NOT_ATTACHED if it isn't. A
// queue pair at the address of one that was destroyed is not taken for that one.
// Never waits.
mwctl_status mwctl_peer_of(struct mwctl_context *ctx,
                           struct ibv_qp *qp,
                           struct mwctl_peer *peer);

// The domain that stands for a PD, likewise.
// Never waits.
mwctl_status mwctl_domain_of(struct mwctl_context *ctx,
                             struct ibv_pd *pd,
                             struct mwctl_domain *domain);

// The region that an MR is attached as, likewise.
// Never waits.
mwctl_status mwctl_region_of(struct mwctl_context *ctx,
                             struct ibv_mr *mr,
                             struct mwctl_region *region);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MWCTL_H */
