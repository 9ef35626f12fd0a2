/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* faults/check.h: what came of a combination, against what may. */
#ifndef FAULTS_CHECK_H
#define FAULTS_CHECK_H

#include "faults/scene.h"

/* A result that nobody wrote. */
#define FC_UNWRITTEN MWCTL_STATUS_PENDING

/* What is asked for and what came back, of one case. */
struct fc_playing {
	const struct fc_case *c;
	int works;                          /* of the victim, at the front of what follows */
	int n;
	int owner[FC_KEYS];
	uint64_t id[FC_KEYS];               /* of what is revoked */
	mwctl_request ask[FC_KEYS];         /* of what is granted */
	mwctl_result result[FC_KEYS];
	enum fc_outcome outcome[FC_KEYS];
	bool itemized;                      /* the call gives a result for each */
	mwctl_status status;
	struct fc_heard heard;
	struct fc_heard before;             /* the operation that was under way */
	bool begun;
	bool refused;                       /* as a whole, before anything was done */
	bool early;
	uint64_t fault[4];
	enum fc_call faulted[4];
	int faults;
	uint64_t fatal;
	bool held_by_rnr;
	/* Prepared chains. */
	struct ibv_send_wr wr[FC_SLOTS];
	struct ibv_send_wr app;
	mwctl_token token;
	int killed_before;
	uint64_t modifies;
};
extern struct fc_playing fc_playing;

/* Whether an item is a grant; otherwise it is revoked. */
bool fc_grants_at(int item);
/* Whether the grant is on the books. */
bool fc_is_live(uint64_t id);
/* The other half of a transfer: the victim's comes first among the items, whichever way it goes. */
int fc_partner(int item);
/* The results of a transfer, to the items. */
void fc_take_moved(const mwctl_result *results);

/* Gathers each item's result and outcome. */
void fc_collect(const struct fc_case *c);
/* Outcomes, the status of the whole, the time, the books and the queue pair. */
void fc_check(const struct fc_case *c);

#endif
