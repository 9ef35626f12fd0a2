/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The leaders. They know plain verbs and a key for each replica, and nothing of libmwctl. */
#ifndef LEADER_H
#define LEADER_H

#include <stdatomic.h>

#include "log.h"

struct leader {
	int term;
	struct link links[REPLICAS];
	struct message permits[REPLICAS];
	struct ibv_pd *pd;
	struct ibv_cq *cqs[REPLICAS];
	struct ibv_mr *mr; /* of entry */
	struct record entry;
	enum ibv_wc_status ends[REPLICAS]; /* SUCCESS while it may write there */
	_Atomic uint64_t committed;        /* the last entry that a majority has */
};

/* All but the links, which are the caller's to make. */
void leader_open(struct leader *leader, struct ibv_context *device, int term);
void leader_close(struct leader *leader);

/* The old one leads, the new one takes over and the old one is not asked. Demands what must come
 * of it. */
void leaders_run(struct leader leaders[LEADERS]);

#endif
