/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * mwctl_sim.h: the extra calls of the RDMA device in the process.
 *
 * The device is a libibverbs.so.1 of its own, in the folder lib/mwctl-sim. A program
 * built against plain -libverbs runs on it with LD_LIBRARY_PATH set to that folder and
 * on the real library without. Every call here is declared weak, so that one binary
 * serves both: ask mwctl_sim_present() before using any other.
 */
#ifndef MWCTL_SIM_H
#define MWCTL_SIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MWCTL_SIM_WEAK __attribute__((weak))

/* The device's version, as 1000000 * major + 1000 * minor + patch. */
uint32_t mwctl_sim_version(void) MWCTL_SIM_WEAK;

/* 1 on the device in the process, 0 on any other. */
static inline int mwctl_sim_present(void) { return mwctl_sim_version != NULL; }

/* ---- counters: what the device has seen since it was loaded or last reset ---- */

#define MWCTL_SIM_OPCODES 16

struct mwctl_sim_counters {
	uint64_t posts;                           /* ibv_post_send calls and extended posts: doorbells */
	uint64_t send_wrs[MWCTL_SIM_OPCODES];     /* work requests accepted, by enum ibv_wr_opcode */
	uint64_t recv_wrs;
	uint64_t polls;                           /* ibv_poll_cq calls and extended polls */
	uint64_t completions;                     /* completions written to completion queues */
	uint64_t error_completions;               /* of these, with a status other than success */
	uint64_t flushed;                         /* of these, IBV_WC_WR_FLUSH_ERR */
	uint64_t packets;                         /* request packets that reached a responder */
	uint64_t packets_denied;                  /* refused by a key, a range or a right */
	uint64_t bytes_written;                   /* landed by RDMA WRITE and atomics */
	uint64_t bytes_read;                      /* returned by RDMA READ and atomics */
	uint64_t rnr_naks;
	uint64_t async_events;
	uint64_t mw_allocated;
	uint64_t mw_deallocated;
	uint64_t mw_binds;
	uint64_t mw_invalidates;                  /* LOCAL_INV and SEND_WITH_INV that took effect */
	uint64_t qp_modifies;
	uint64_t qp_queries;
	uint64_t mr_registered;
	uint64_t mr_deregistered;
	uint64_t misuse;                          /* broken rules, see mwctl_sim_misuse_next */
	uint64_t unsupported_calls;               /* libibverbs calls that the device does not do */
	uint64_t faults_hit;
};

/* Copies at most `size` bytes. 0, or EINVAL. */
int mwctl_sim_counters_get(struct mwctl_sim_counters *out, size_t size) MWCTL_SIM_WEAK;
void mwctl_sim_counters_reset(void) MWCTL_SIM_WEAK;

/* ---- misuse: what would hang, panic or silently corrupt on some real device ---- */

enum mwctl_sim_rule {
	MWCTL_SIM_RULE_NONE = 0,
	MWCTL_SIM_RULE_INV_NOT_BOUND = 1,       /* LOCAL_INV or SEND_WITH_INV of a window that is not bound */
	MWCTL_SIM_RULE_INV_WRONG_QP = 2,        /* invalidate of a window bound to another QP */
	MWCTL_SIM_RULE_BIND_VALID = 3,          /* bind of a window that is bound already */
	MWCTL_SIM_RULE_BIND_STALE_KEY = 4,      /* bind whose mw->rkey is not the window's current key */
	MWCTL_SIM_RULE_BIND_SAME_KEY = 5,       /* bind that does not change the key bits */
	MWCTL_SIM_RULE_BIND_TWICE_IN_POST = 6,  /* two binds of one window in one post */
	MWCTL_SIM_RULE_BIND_NULL_MR = 7,
	MWCTL_SIM_RULE_BIND_DIRTY_WR = 8,       /* bind with num_sge or imm_data other than 0 */
	MWCTL_SIM_RULE_SEND_OPS_FLAGS = 9,      /* operation the extended QP was not created for */
	MWCTL_SIM_RULE_SQ_OVERFLOW = 10,        /* more send work requests than the queue holds */
	MWCTL_SIM_RULE_RQ_OVERFLOW = 11,
	MWCTL_SIM_RULE_CQ_OVERRUN = 12,
	MWCTL_SIM_RULE_DESTROY_QP_BOUND = 13,   /* QP destroyed with a Type 2 window bound to it */
	MWCTL_SIM_RULE_DEREG_MR_BOUND = 14,     /* MR deregistered with a window bound to it */
	MWCTL_SIM_RULE_DEALLOC_INV_POSTED = 15, /* window deallocated with its LOCAL_INV outstanding on a live QP */
	MWCTL_SIM_RULE_USE_AFTER_FREE = 16,     /* an object that was destroyed */
	MWCTL_SIM_RULE_WRONG_THREAD = 17,       /* an object whose locks are off, used by two threads at once */
	MWCTL_SIM_RULE_DESTROY_BUSY = 18        /* PD, CQ, SRQ or channel destroyed while in use */
};

struct mwctl_sim_misuse {
	uint32_t rule;     /* enum mwctl_sim_rule */
	uint32_t qp_num;   /* 0 where no QP is concerned */
	uint32_t rkey;     /* 0 where no key is concerned */
	uint32_t reserved;
	char text[168];    /* one sentence, NUL-terminated */
};

/* Takes the oldest broken rule not yet taken. 1 with *out filled, 0 when there is none. */
int mwctl_sim_misuse_next(struct mwctl_sim_misuse *out, size_t size) MWCTL_SIM_WEAK;

/* ---- faults to order ---- */

enum mwctl_sim_fault_kind {
	MWCTL_SIM_FAIL_POST = 1,        /* ibv_post_send returns `error`, *bad_wr = the first, nothing queued */
	MWCTL_SIM_CUT_POST = 2,         /* … stops at work request `position` (0-based); those before are queued */
	MWCTL_SIM_POST_NO_BAD_WR = 3,   /* … returns `error` with *bad_wr == NULL and all is queued */
	MWCTL_SIM_LOSE_COMPLETION = 4,  /* the completion is never delivered; its slots never return */
	MWCTL_SIM_DELAY_COMPLETION = 5, /* the completion, and all of that QP's later ones, wait for release */
	MWCTL_SIM_HOLD_PACKET = 6,      /* an admitted packet (key checked) is placed only after release */
	MWCTL_SIM_STALL_SQ = 7,         /* the send queue stops before its next work request until release */
	MWCTL_SIM_KILL_QP = 8,          /* the QP goes to ERR, as after a fatal error, at the next post */
	MWCTL_SIM_FAIL_ALLOC_MW = 9,    /* NULL with errno = `error` */
	MWCTL_SIM_FAIL_DEALLOC_MW = 10, /* returns `error`, the window stays */
	MWCTL_SIM_FAIL_MODIFY_QP = 11,
	MWCTL_SIM_FAIL_QUERY_QP = 12,
	MWCTL_SIM_FAIL_REG_MR = 13,
	MWCTL_SIM_FAIL_DEREG_MR = 14,
	MWCTL_SIM_DEVICE_FATAL = 15,    /* at once: IBV_EVENT_DEVICE_FATAL; destroy and modify fake success, windows stay */
	MWCTL_SIM_FAIL_WR = 16          /* the work request at `position` of the post completes with status `error`, QP to ERR */
};

struct mwctl_sim_fault {
	uint32_t kind;      /* enum mwctl_sim_fault_kind */
	uint32_t qp_num;    /* only this QP's events; 0: any */
	uint64_t skip;      /* let so many matching events pass first */
	uint64_t count;     /* then strike so many times; 0: until released */
	int32_t error;      /* errno value as returned (negative values and -1 are returned as they are), or ibv_wc_status */
	uint32_t position;
	uint64_t random;    /* strike with probability random / 2^32 from the seed; 0: always */
};

int mwctl_sim_fault_order(const struct mwctl_sim_fault *fault, size_t size, uint64_t *id) MWCTL_SIM_WEAK;
/* Ends a fault and lets go of what it holds. 0, or ENOENT. */
int mwctl_sim_fault_release(uint64_t id) MWCTL_SIM_WEAK;
/* How often it struck. */
uint64_t mwctl_sim_fault_hits(uint64_t id) MWCTL_SIM_WEAK;
void mwctl_sim_faults_clear(void) MWCTL_SIM_WEAK;

/* ---- the model: what costs how long, and what the device offers ---- */

enum mwctl_sim_profile {
	MWCTL_SIM_PROFILE_STRICT = 0,   /* what the standard says, Type 1 and 2B */
	MWCTL_SIM_PROFILE_RXE = 1,      /* rdma_rxe's limits and error statuses */
	MWCTL_SIM_PROFILE_MLX5 = 2,     /* slots return by signaled completions, no flushes promised, 2 GiB a bind */
	MWCTL_SIM_PROFILE_NO_MW = 3,    /* capability bits set, ibv_alloc_mw missing */
	MWCTL_SIM_PROFILE_MANA = 4      /* windows can be allocated, no bind succeeds */
};

struct mwctl_sim_model {
	uint64_t seed;            /* of everything random; environment MWCTL_SIM_SEED at load */
	uint32_t profile;         /* environment MWCTL_SIM_PROFILE (strict, rxe, mlx5, no-mw, mana) at load */
	uint32_t max_mw;          /* 0: the profile's */
	uint32_t doorbell_ns;     /* from a post to the start of its first work request */
	uint32_t wr_ns;           /* a work request's own time in its send queue */
	uint32_t packet_ns;       /* a packet's time on the wire, each way */
	uint32_t kernel_call_ns;  /* alloc, dealloc, modify, query, register */
};

int mwctl_sim_model_get(struct mwctl_sim_model *out, size_t size) MWCTL_SIM_WEAK;
/* Limits and profile count for devices opened afterwards, times and seed at once. 0, or EINVAL. */
int mwctl_sim_model_set(const struct mwctl_sim_model *model, size_t size) MWCTL_SIM_WEAK;

#ifdef __cplusplus
}
#endif
#endif
