/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The clients, each in a thread of its own. They know plain verbs and two keys: nothing of windows,
 * and nothing of libmwctl.
 */
#ifndef CLIENT_H
#define CLIENT_H

#include <pthread.h>

#include "table.h"

struct client {
	struct link link;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr; /* of row */
	struct {
		struct record out, in;
	} row;
	uint32_t me;
	uint64_t written, read, torn;
	enum ibv_wc_status end; /* SUCCESS if it was asked to stop */
	pthread_t thread;
};

/* All but the link, which is the caller's to make. */
void client_open(struct client *client, struct ibv_context *device, uint32_t me);
void client_start(struct client *client);
/* Waits until it has ended, and demands that it ended as it should. */
void client_join(struct client *client);
void client_close(struct client *client);

#endif
