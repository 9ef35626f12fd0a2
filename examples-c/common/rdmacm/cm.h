/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Links between processes, made by librdmacm in its synchronous form: each call returns when its
 * step is done. Only programs that connect this way need the library. The device in the process
 * has no rdma_cm: on it these calls end the program with 77.
 */
#ifndef CM_H
#define CM_H

#include <stdbool.h>
#include <stdint.h>
#include <rdma/rdma_cma.h>

#include "../link.h"

/* Addresses are IPv4 ones, as numbers. */

/* ---- the server ---- */

/* Listens. id->verbs is the device with that address. */
struct rdma_cm_id *cm_listen(const char *address, uint16_t port);
/* The next client that asks, and the number it gave for itself. */
struct rdma_cm_id *cm_request(struct rdma_cm_id *listener, uint32_t *who);
/* Makes the queue pair and lets the client in. Room for windows is in it. */
void cm_accept(struct rdma_cm_id *id, struct link *link, struct ibv_pd *pd, struct ibv_cq *cq);

/* ---- a client ---- */

/* Finds the way. id->verbs is the device that leads there. `from` may be NULL. */
struct rdma_cm_id *cm_resolve(const char *from, const char *to, uint16_t port);
/* Connects. `who` is what the server's cm_request hears. */
void cm_connect(struct rdma_cm_id *id, struct link *link, struct ibv_pd *pd, struct ibv_cq *cq,
		uint32_t who);

/* ---- both ---- */

/* Whether the other side has hung up, or its process has ended, which no completion tells. What it sent
 * before is in the CQ by then. Never waits; false for a link within this process. */
bool cm_hung_up(struct link *link);

/* Ends a link, however it was made; after mwctl_peer_detach. One by librdmacm is disconnected, which
 * moves its queue pair to ERR, and both are destroyed. */
void cm_close(struct link *link);

#endif
