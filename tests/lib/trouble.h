/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * trouble.h: send queues that stop, faults to order, and who hears of an end.
 */
#ifndef TROUBLE_H
#define TROUBLE_H

#include "house.h"

#include <stdatomic.h>

/* The user pointer of heard_done. Zero-filled to begin with. */
struct heard {
	atomic_int calls;
	mwctl_status status;
	size_t n;
	mwctl_result results[4];
	double at;                 /* when, by rc_now() */
};
void heard_done(void *user, mwctl_status status, const mwctl_result *results, size_t n);
/* Polls every client's queue, where nothing of the application's may come, and ticks until the
 * one call. */
void heard_await(struct house *house, struct heard *heard);
/* Polls likewise until the grant has ended. */
void trouble_await_end(struct house *house, uint64_t grant);

/* A SEND that the client does not receive stands in front of all else in the server's queue. */
void trouble_block(struct house *house, int client);
/* The client receives it. What comes before the SEND's own completion must be the library's. */
void trouble_unblock(struct house *house, int client);

/* On the device in the process alone. `qp` NULL: any; `count` 0: until the release. */
uint64_t trouble_order(uint32_t kind, const struct ibv_qp *qp, uint64_t count, int error);
void trouble_release(uint64_t id);

#endif
