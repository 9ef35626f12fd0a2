/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * walk/ops.h: operations under way, each of which must end exactly once, and what their results
 * mean for the model.
 */
#ifndef WALK_OPS_H
#define WALK_OPS_H

#include "walk/model.h"

#define WALK_OPS 64
#define WALK_BATCH 8

enum walk_kind { WALK_GRANTS, WALK_REVOKES, WALK_DETACH, WALK_MOVES };

struct walk_op {
	bool active;
	bool awaits;                   /* its grants know that it waits for them */
	enum walk_kind kind;
	int server;
	uint64_t step;                 /* when it began */
	uint64_t timeout_us;
	uint64_t soonest, latest;      /* its deadline lies between the two */
	int calls;
	mwctl_status status;
	size_t n;
	uint64_t ids[WALK_OPEN];       /* the grants to end */
	mwctl_request asked[WALK_BATCH];
	uint64_t begun[WALK_BATCH];    /* the grants that were found for them; 0: none yet */
	bool uncertain[WALK_BATCH];    /* their memory was reported open as they were asked for; of moves,
					* at some time since */
	uint64_t left_open;            /* what the library had reported open by then */
	const struct walk_peer *peer;  /* the one that leaves */
};

/* NULL: enough are under way. */
struct walk_op *walk_op_begin(enum walk_kind kind, int server, uint64_t timeout_us);
/* The call that starts it returned. */
void walk_op_started(struct walk_op *op);
/* … or the chain that carries it was committed or dropped. */
void walk_op_committed(struct walk_op *op);
/* … or was refused: it never began. */
void walk_op_drop(struct walk_op *op);
void walk_op_done(void *user, mwctl_status status, const mwctl_result *results, size_t n);
/* Before the call: the operation is for the end of this grant, or of all that are open and that `which`
 * picks. */
void walk_op_names(struct walk_op *op, const struct walk_grant *grant);
void walk_op_names_all(struct walk_op *op, bool (*which)(const struct walk_grant *, const void *),
		       const void *what);
/* After it: the operation waits for them, unless it has ended already. */
void walk_op_awaits(struct walk_op *op);
int walk_ops_active(void);
/* Says which are. */
void walk_ops_say(void);
/* Called after a tick or poll that began at `now`: nothing is left whose deadline had passed. */
void walk_ops_agree(int server, uint64_t now);
/* Whether some are under way that were given no more time than this. */
bool walk_ops_soon(int server, uint64_t timeout_us);
/* Some memory of the server is uncertain: moves that are under way may be refused for that. */
void walk_ops_note_uncertain(int server);
/* Whether the very same right is asked for already: nobody could tell which of them began. */
bool walk_ops_ask_for(int server, const mwctl_request *asked);
/* Whether some operation asked for this grant. */
bool walk_ops_adopt(const struct walk_peer *peer, const mwctl_request *asked, uint64_t id);

/* ---- results ---- */

/* A grant that a call asked for has ended so. `adopted`: the id that was found for it;
 * `late`: its deadline may have passed for no fault of the library. */
void walk_granted(int server, const mwctl_request *asked, const mwctl_result *result, uint64_t adopted,
		  bool late);
/* Uncertain memory is not granted, other memory is not refused for that: of a right that is entered as
 * the call begins. */
void walk_certainty_agrees(const mwctl_result *granted, bool uncertain);
/* … of one that is entered later, once another is gone; `before`: as it stood before the call. */
void walk_certainty_of_late(int server, const mwctl_request *asked, const mwctl_result *granted, bool before);
/* Moves have ended so: `results` are the new grants', then the revocations of `ids`. */
void walk_moved(int server, const uint64_t *ids, const mwctl_request *asked, const uint64_t *begun,
		const mwctl_result *results, size_t n, bool late);
/* A revocation of a grant has ended so. */
void walk_revoked(int server, uint64_t id, const mwctl_result *result, bool late);

#endif
