/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * mwctl_sim.h: the extra calls of the RDMA device in the process.
 *
 * The device is a libibverbs.so.1 of its own, in the folder lib/mwctl-sim. A program
 * built against plain -libverbs runs on it with LD_LIBRARY_PATH set to that folder and
 * on the real library without. Every call here is declared weak, so that one binary
 * serves both: ask mwctl_sim_present() before using any other.
 *
 * Any thread may make any of these calls at any time. None waits for anything but short
 * locks, with one exception that is said where it applies. None keeps a pointer it was given.
 * A structure goes along with its size as the caller knows it.
 *
 * How the device works. One device, "mwsim0", one port; both ends of every connection are in
 * this process, and are found by destination QP number and GID (index 0 link-local, index 1
 * IPv4, both RoCE v2). RC queue pairs only. A work request is run by the thread that posts it,
 * or by the one that posts the receive it waits for, or releases the fault that stops it; if
 * another thread is running the queue already, by that one. So a program of one thread is
 * deterministic: what ibv_post_send returns from has happened, unless something stops it. Only
 * where time has to pass (a latency model, a receiver-not-ready or transport timer) does a
 * thread of the device's own start, with all signals blocked.
 *
 * A message is cut in packets at the path MTU and each is checked by itself. A packet that was
 * let in by a key is placed before the key's invalidate completes, before ibv_dealloc_mw and
 * ibv_dereg_mr return; nothing is let in afterwards.
 */
#ifndef MWCTL_SIM_H
#define MWCTL_SIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MWCTL_SIM_WEAK __attribute__((weak))

/* The device's version, 1000000 * major + 1000 * minor + patch: that of the library it comes with. */
uint32_t mwctl_sim_version(void) MWCTL_SIM_WEAK;

/* 1 on the device in the process, 0 on any other. */
static inline int mwctl_sim_present(void) { return mwctl_sim_version != NULL; }

/*
 * ---- counters: what the device has seen since it was loaded or last reset ----
 *
 * Of the whole process, all contexts together. A value read while other threads work may be
 * one that never was at one instant; each field by itself is exact once they rest.
 */

#define MWCTL_SIM_OPCODES 16

struct mwctl_sim_counters {
	uint64_t posts;                           /* doorbells: ibv_post_send, ibv_wr_complete, ibv_bind_mw */
	uint64_t send_wrs[MWCTL_SIM_OPCODES];     /* work requests accepted, by enum ibv_wr_opcode */
	uint64_t recv_wrs;
	uint64_t polls;                           /* ibv_poll_cq calls and extended polls */
	uint64_t completions;                     /* completions written to completion queues */
	uint64_t error_completions;               /* of these, with a status other than success */
	uint64_t flushed;                         /* of these, IBV_WC_WR_FLUSH_ERR */
	uint64_t packets;                         /* request packets that reached a responder, again each
						     time one is sent again */
	uint64_t packets_denied;                  /* refused: a key, a range, a right, a receive that does not fit */
	uint64_t bytes_written;                   /* landed by RDMA WRITE and atomics */
	uint64_t bytes_read;                      /* returned by RDMA READ and atomics */
	uint64_t rnr_naks;                        /* requesters that began to wait for a receive */
	uint64_t async_events;                    /* raised, whether anybody takes them or not */
	uint64_t mw_allocated;
	uint64_t mw_deallocated;
	uint64_t mw_binds;                        /* that took effect, of both types; unbinding Type 1 too */
	uint64_t mw_invalidates;                  /* LOCAL_INV and SEND_WITH_INV that took effect */
	uint64_t qp_modifies;
	uint64_t qp_queries;
	uint64_t mr_registered;
	uint64_t mr_deregistered;
	uint64_t misuse;                          /* broken rules, see mwctl_sim_misuse_next */
	uint64_t unsupported_calls;               /* libibverbs calls that the device does not do */
	uint64_t faults_hit;
};

/* Fills in the first `size` bytes at most. 0, or EINVAL for NULL. */
int mwctl_sim_counters_get(struct mwctl_sim_counters *out, size_t size) MWCTL_SIM_WEAK;
void mwctl_sim_counters_reset(void) MWCTL_SIM_WEAK;

/*
 * ---- misuse: what would hang, panic or silently corrupt on some real device ----
 *
 * A broken rule is noted, and the operation then ends as the standard says: mostly with an
 * error status and the QP in ERR. Up to 4096 reports are kept until they are taken; the counter
 * goes on. A test that takes none of them at its end has broken no rule.
 */

enum mwctl_sim_rule {
	MWCTL_SIM_RULE_NONE = 0,
	MWCTL_SIM_RULE_INV_NOT_BOUND = 1,       /* LOCAL_INV or SEND_WITH_INV of a window that is not bound */
	MWCTL_SIM_RULE_INV_WRONG_QP = 2,        /* invalidate of a window bound to another QP */
	MWCTL_SIM_RULE_BIND_VALID = 3,          /* bind of a window that is bound already */
	MWCTL_SIM_RULE_BIND_STALE_KEY = 4,      /* bind whose mw->rkey is not the window's current key */
	MWCTL_SIM_RULE_BIND_SAME_KEY = 5,       /* bind that does not change the key bits: it succeeds here */
	MWCTL_SIM_RULE_BIND_TWICE_IN_POST = 6,  /* two binds of one window in one post */
	MWCTL_SIM_RULE_BIND_NULL_MR = 7,        /* the post fails with EINVAL, an unbind of Type 1 too */
	MWCTL_SIM_RULE_BIND_DIRTY_WR = 8,       /* bind with num_sge or imm_data other than 0: EINVAL, but on mlx5 */
	MWCTL_SIM_RULE_SEND_OPS_FLAGS = 9,      /* operation the extended QP was not created for */
	MWCTL_SIM_RULE_SQ_OVERFLOW = 10,        /* more send work requests than the queue has free slots: ENOMEM */
	MWCTL_SIM_RULE_RQ_OVERFLOW = 11,        /* the same of receives, also of a shared queue */
	MWCTL_SIM_RULE_CQ_OVERRUN = 12,         /* a completion for a full CQ: it and its QPs fail */
	MWCTL_SIM_RULE_DESTROY_QP_BOUND = 13,   /* QP destroyed with a Type 2 window bound to it */
	MWCTL_SIM_RULE_DEREG_MR_BOUND = 14,     /* MR deregistered with a window bound to it: EBUSY, rxe EINVAL */
	MWCTL_SIM_RULE_DEALLOC_INV_POSTED = 15, /* window deallocated with its LOCAL_INV outstanding on a live QP */
	MWCTL_SIM_RULE_USE_AFTER_FREE = 16,     /* an object that was destroyed: EINVAL. Noticed until a good
						   many others of its kind were destroyed after it */
	MWCTL_SIM_RULE_WRONG_THREAD = 17,       /* a queue whose locks are off, used by two threads at once; or
						   used by its own thread between ibv_wr_start and
						   ibv_wr_complete, ibv_start_poll and ibv_end_poll */
	MWCTL_SIM_RULE_DESTROY_BUSY = 18        /* PD, TD, CQ, SRQ or channel destroyed while in use: EBUSY; a
						   context closed with objects in it, which go with it */
};

struct mwctl_sim_misuse {
	uint32_t rule;     /* enum mwctl_sim_rule */
	uint32_t qp_num;   /* 0 where no QP is concerned */
	uint32_t rkey;     /* 0 where no key is concerned */
	uint32_t reserved;
	char text[168];    /* one sentence, NUL-terminated */
};

/* Takes the oldest broken rule not yet taken. 1 with the first `size` bytes of *out filled in,
 * 0 when there is none. */
int mwctl_sim_misuse_next(struct mwctl_sim_misuse *out, size_t size) MWCTL_SIM_WEAK;

/*
 * ---- faults to order ----
 *
 * An ordered fault waits for events of its kind. It lets the first `skip` pass and then strikes
 * `count` times. Of several that fit an event, the one ordered first strikes. What a fault holds
 * back (a completion, a packet, a queue) it holds until it is released, also when it has struck
 * as often as ordered.
 */

enum mwctl_sim_fault_kind {
	MWCTL_SIM_FAIL_POST = 1,        /* ibv_post_send returns `error`, *bad_wr = the first, nothing queued */
	MWCTL_SIM_CUT_POST = 2,         /* … stops at work request `position` (0-based); those before are queued */
	MWCTL_SIM_POST_NO_BAD_WR = 3,   /* … returns `error` with *bad_wr == NULL and all is queued */
	MWCTL_SIM_LOSE_COMPLETION = 4,  /* the completion is never delivered; its slots never return */
	MWCTL_SIM_DELAY_COMPLETION = 5, /* the completion, and all of that QP's later ones, sends and receives,
					   wait for release; then they come in their order */
	MWCTL_SIM_HOLD_PACKET = 6,      /* an admitted packet of an RDMA WRITE (key checked) is placed only after
					   release. `qp_num` is its sender's or its receiver's. What closes
					   its key waits for it: a LOCAL_INV in its queue, but ibv_dealloc_mw
					   and ibv_dereg_mr in the calling thread */
	MWCTL_SIM_STALL_SQ = 7,         /* the send queue stops before its next work request until release */
	MWCTL_SIM_KILL_QP = 8,          /* the QP goes to ERR, as after a fatal error (IBV_EVENT_QP_FATAL), at the
					   next post, whose work requests are flushed */
	MWCTL_SIM_FAIL_ALLOC_MW = 9,    /* NULL with errno = `error` */
	MWCTL_SIM_FAIL_DEALLOC_MW = 10, /* returns `error`, the window stays */
	MWCTL_SIM_FAIL_MODIFY_QP = 11,  /* returns `error`, nothing changes */
	MWCTL_SIM_FAIL_QUERY_QP = 12,
	MWCTL_SIM_FAIL_REG_MR = 13,     /* NULL with errno = `error` */
	MWCTL_SIM_FAIL_DEREG_MR = 14,   /* returns `error`, the region stays */
	MWCTL_SIM_DEVICE_FATAL = 15,    /* strikes when it is ordered, on all open contexts:
					   IBV_EVENT_DEVICE_FATAL. Then everything that makes an object fails
					   with EIO, and so does ibv_query_qp; what destroys an object or
					   modifies a QP returns 0 and changes nothing in the device: windows
					   and regions stay open, traffic goes on. At the release the device
					   recovers, and forgets what was said to be destroyed */
	MWCTL_SIM_FAIL_WR = 16          /* the work request at `position` of the post is not run and completes with
					   status `error`, QP to ERR */
};

struct mwctl_sim_fault {
	uint32_t kind;      /* enum mwctl_sim_fault_kind */
	uint32_t qp_num;    /* only this QP's events; 0: any, and for calls that concern no QP */
	uint64_t skip;      /* let so many matching events pass first */
	uint64_t count;     /* then strike so many times; 0: until released */
	int32_t error;      /* what the call returns, as it is (a driver may say -ENOMEM, or -1), or an
			       enum ibv_wc_status */
	uint32_t position;  /* of a work request in its post, from 0 */
	uint64_t random;    /* strike with probability random / 2^32 from the seed; 0: always */
};

/* 0 with *id, never 0, if `id` is not NULL; or EINVAL. */
int mwctl_sim_fault_order(const struct mwctl_sim_fault *fault, size_t size, uint64_t *id) MWCTL_SIM_WEAK;
/* Ends a fault and lets go of what it holds. 0, or ENOENT. */
int mwctl_sim_fault_release(uint64_t id) MWCTL_SIM_WEAK;
/* How often it struck, released or not; 0 for an id that never was. */
uint64_t mwctl_sim_fault_hits(uint64_t id) MWCTL_SIM_WEAK;
/* Releases all of them. */
void mwctl_sim_faults_clear(void) MWCTL_SIM_WEAK;

/*
 * ---- the model: what costs how long, and what the device offers ----
 *
 * All times are 0 unless the environment or mwctl_sim_model_set says otherwise: nothing sleeps.
 */

enum mwctl_sim_profile {
	/* What the standard says, Type 1 and 2B windows. An event for what a responder refuses; on an
	 * error completion only wr_id, status, qp_num and vendor_err mean anything, and the other
	 * fields mislead. */
	MWCTL_SIM_PROFILE_STRICT = 0,
	/* rdma_rxe's limits and error statuses; slots return at completion, signaled or not; no event
	 * for an access violation. Its laxness is not imitated. */
	MWCTL_SIM_PROFILE_RXE = 1,
	/* No completion for what is posted to a QP in error, nor for an unsignaled bind that fails;
	 * no bind over 2 GiB (EOPNOTSUPP) or with REMOTE_ATOMIC (EINVAL); RESET empties the CQs. */
	MWCTL_SIM_PROFILE_MLX5 = 2,
	/* Capability bits set, but ibv_alloc_mw answers EOPNOTSUPP. */
	MWCTL_SIM_PROFILE_NO_MW = 3,
	/* Windows can be allocated, every bind is refused with EOPNOTSUPP at the post. */
	MWCTL_SIM_PROFILE_MANA = 4,
	/* As strict, but a SEND_WITH_INV ends the window whose key it names, whatever queue pair that
	 * is bound to, as on rdma_rxe: a client can end another's right. */
	MWCTL_SIM_PROFILE_UNPINNED = 5
};

struct mwctl_sim_model {
	uint64_t seed;            /* of everything random (first keys, random faults); environment
				     MWCTL_SIM_SEED at load */
	uint32_t profile;         /* environment MWCTL_SIM_PROFILE (strict, rxe, mlx5, no-mw, mana,
				     unpinned) at load */
	uint32_t max_mw;          /* 0: the profile's */
	uint32_t doorbell_ns;     /* from a post to the start of its first work request; MWCTL_SIM_DOORBELL_NS */
	uint32_t wr_ns;           /* a work request's own time in its send queue; MWCTL_SIM_WR_NS */
	uint32_t packet_ns;       /* a packet's time on the wire, and once more for the answer to the last one
				     of a message; messages of a queue follow one another; MWCTL_SIM_PACKET_NS */
	uint32_t kernel_call_ns;  /* alloc, dealloc, modify, query, register; spent in the caller;
				     MWCTL_SIM_KERNEL_NS */
};

/* Fills in the first `size` bytes at most. 0, or EINVAL. */
int mwctl_sim_model_get(struct mwctl_sim_model *out, size_t size) MWCTL_SIM_WEAK;
/* Profile and limits count for contexts opened afterwards, times at once; the random sequence
 * starts anew from the seed. 0, or EINVAL for an unknown profile or too small a size. */
int mwctl_sim_model_set(const struct mwctl_sim_model *model, size_t size) MWCTL_SIM_WEAK;

#ifdef __cplusplus
}
#endif
#endif
