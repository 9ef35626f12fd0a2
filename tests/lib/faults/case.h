/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * faults/case.h: one combination of the table of faults, its name, and what may come of it.
 *
 * Client 0 is the victim: faults of a queue pair are its own. Whoever else takes part must end as
 * if nothing had happened.
 */
#ifndef FAULTS_CASE_H
#define FAULTS_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Operations: the table's columns. */
enum fc_op {
	FC_GRANT,
	FC_GRANT_BATCH,
	FC_GRANT_START,
	FC_GRANT_PREPARE,
	FC_REVOKE,
	FC_REVOKE_BATCH,
	FC_REVOKE_START,
	FC_REVOKE_PREPARE,
	FC_REVOKE_PEER,
	FC_REVOKE_PEER_START,
	FC_REVOKE_RANGE,
	FC_REVOKE_RANGE_START,
	FC_REGRANT,
	FC_REGRANT_PREPARE,
	FC_TRANSFER,          /* from the victim to client 1 */
	FC_TRANSFER_START,
	FC_TRANSFER_IN,       /* from client 1 to the victim */
	FC_TRANSFER_IN_START,
	FC_DETACH,
	FC_DETACH_START,
	FC_DETACH_AMID,       /* with a revocation under way */
	FC_DETACH_PREPARED,   /* with a prepared chain in the application's hands */
	FC_GONE,
	FC_GONE_AMID,
	FC_OPS
};

/* Who drives: who polls, and who makes the time pass. */
enum fc_drive {
	FC_WAIT_OURS,    /* a waiting call that polls by itself */
	FC_WAIT_YOURS,   /* a waiting call, with the application's loop on another thread */
	FC_LOOP_OURS,    /* one thread: polls through the library, then ticks */
	FC_LOOP_YOURS,   /* one thread: polls by itself, offers what it gets, then ticks */
	FC_LOOP_DEAF,    /* ticks, and polls nothing before the operation has ended */
	FC_DRIVES
};

enum fc_fault {
	FC_NONE,
	FC_POST_FAIL,
	FC_POST_CUT,
	FC_POST_UNCLEAR,
	FC_POST_ROOM_MID,  /* no room, until the application's own work completes */
	FC_WC_LOST,
	FC_WC_LATE,        /* released after the end */
	FC_WC_LATE_MID,    /* released before the deadline */
	FC_WC_ERROR,
	FC_SQ_STALL,
	FC_SQ_STALL_MID,
	FC_SQ_STUCK,       /* stalled, and the application has said so */
	FC_SQ_RNR,         /* a SEND in front that the client does not receive */
	FC_SQ_RNR_MID,
	FC_QP_KILL,        /* fails at the post */
	FC_QP_ERR_BEFORE,
	FC_QP_ERR_TOLD,    /* and the asynchronous event was offered */
	FC_QP_ERR_AFTER,
	FC_QP_RESET_BEFORE,
	FC_QP_RESET_AFTER,
	FC_QP_SQD_BEFORE,
	FC_QP_SQD_AFTER,
	FC_POLL_FAIL,
	FC_FATAL,
	FC_FATAL_STALL,
	FC_FATAL_STALL_TOLD,
	FC_FATAL_ERR,
	FC_FAULTS
};

/* Kernel calls that fail on top of a fault. */
enum fc_call {
	FC_CALL_NONE,
	FC_ALLOC_MW,
	FC_DEALLOC_MW,
	FC_MODIFY_QP,
	FC_QUERY_QP,
	FC_CALLS
};

struct fc_case {
	enum fc_op op;
	enum fc_drive drive;
	int kill;          /* enum mwctl_kill */
	int budget;
	enum fc_fault fault;
	int nth;           /* the post, completion or work request that it strikes, from 0 */
	int position;      /* the work request within the post */
	int error;         /* errno as returned, or enum ibv_wc_status */
	int os_error;      /* errno itself, where -1 is returned */
	bool always;       /* from then on; otherwise once */
	enum fc_call call;
	int call_nth;
	int call_error;
	bool call_always;
	int finish;        /* how the victim is brought to an end: see fc_finish */
};

enum fc_finish {
	FC_RETRY,          /* the fault ends, what is open is revoked, the peer is used again */
	FC_DETACH_FIRST,   /* detached while the fault lasts */
	FC_RELEASE_FIRST,  /* the fault ends, detached */
	FC_FINISHES
};

/* What became of one item: bits. */
enum fc_outcome {
	FC_GRANTED = 1 << 0,
	FC_INVALIDATED = 1 << 1,
	FC_DEALLOCATED = 1 << 2,
	FC_FENCED = 1 << 3,
	FC_NEVER_BOUND = 1 << 4,
	FC_PROVED = 1 << 5,        /* the call does not say by what */
	FC_OPEN = 1 << 6,
	FC_TIMED_OUT = 1 << 7,     /* with an id that must be revoked */
	FC_TIMED_OUT_VOID = 1 << 8,
	FC_POST_FAILED = 1 << 9,
	FC_BIND_FAILED = 1 << 10,
	FC_REFUSED = 1 << 11,      /* the peer is dead */
	FC_SHORT = 1 << 12,        /* no window to be had */
	FC_COMMITTED = 1 << 13,
	FC_NOT_POSTED = 1 << 14,
	FC_STRANGE = 1 << 15       /* nothing that the header says of this call */
};
#define FC_ANY_PROOF (FC_INVALIDATED | FC_DEALLOCATED | FC_FENCED | FC_PROVED)
#define FC_LETTERS "GIDFN+OTtPBXRCU?"

/* How far a work request of the victim gets. */
enum fc_fate {
	FC_DONE,
	FC_LEFT,       /* posted in front of the one that asked for a completion, which was not */
	FC_DROPPED,    /* not posted, and there is no use in trying again */
	FC_WAITS,      /* not posted; room in the queue never comes */
	FC_SILENT,     /* posted; no completion comes in time */
	FC_BEHIND,     /* not posted, behind silent ones that have the whole budget */
	FC_LOST,       /* its queue pair failed */
	FC_MAYBE,      /* its queue pair failed after it */
	FC_WIPED,      /* its queue pair was reset */
	FC_EITHER,     /* refused, or posted where a later post is cut */
	FC_TRIES,      /* posted bit by bit: it may get there before the deadline or not */
	FC_UNPOSTED    /* the application's own post left it out */
};

bool fc_is_refused(const struct fc_case *c);
const char *fc_op_name(enum fc_op op);
/* The row of the table. */
void fc_row_name(const struct fc_case *c, char *to, size_t size);
void fc_spec(const struct fc_case *c, char *to, size_t size);
bool fc_parse(const char *spec, struct fc_case *c);

bool fc_waits(enum fc_op op);           /* else it ends in a callback, or at once */
bool fc_has_kill(enum fc_op op);
bool fc_is_prepared(enum fc_op op);
bool fc_is_transfer(enum fc_op op);
bool fc_is_detach(enum fc_op op);
bool fc_is_gone(enum fc_op op);
bool fc_grants(enum fc_op op);
bool fc_is_fatal(enum fc_fault fault);
bool fc_is_dead(enum fc_fault fault);   /* the queue pair ends in ERR by the fault itself */
bool fc_is_reset(enum fc_fault fault);
/* Work requests of the victim, in the order of their posts. */
int fc_works(const struct fc_case *c);
/* … the `index`th grants; otherwise it revokes. */
bool fc_work_grants(const struct fc_case *c, int index);

enum fc_fate fc_fate(const struct fc_case *c, int index);
/* The outcomes that are right for the work. */
unsigned int fc_allowed(const struct fc_case *c, int index);
/* Whether the works are posted in the order of the grants, which the call does not say otherwise. */
bool fc_is_ordered(enum fc_op op);
/* Whether the deadline may move the victim to ERR. */
bool fc_may_kill(const struct fc_case *c);
/* Whether it ends by itself, without its deadline. */
bool fc_ends_early(const struct fc_case *c);

#endif
