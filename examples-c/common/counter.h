/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A client that counts in a server's memory by RDMA WRITE, until it is told to stop, or can't. */
#ifndef COUNTER_H
#define COUNTER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "rc.h"

struct counter_message {
	enum { COUNTER_GO, COUNTER_STOP, COUNTER_BYE } kind;
	uint32_t rkey;
	uint64_t addr; /* of the eight bytes to count in */
};

struct counter {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp; /* in INIT: whoever lets the client in connects it */
	struct ibv_mr *mr;
	struct counter_memory {
		struct counter_message received[2], sent;
		uint64_t count;
	} memory;
	atomic_bool connected; /* set once it is */
	bool deaf;             /* receives its key and no more, and goes on counting */
	pthread_t thread;
	enum ibv_wc_status ended; /* how its last request did */
};

void counter_open(struct counter *client, const struct rc_device *device);
void counter_close(struct counter *client);

/* In a thread of its own: waits to be connected and told where, then counts. COUNTER_STOP is
 * answered by COUNTER_BYE. */
void counter_start(struct counter *client);
void counter_join(struct counter *client);

#endif
