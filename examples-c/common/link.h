/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One end of an RC connection, with short messages both ways: what a server and its clients have to
 * say to each other before, and between, one-sided accesses. Both ends in one process are made
 * here; between processes rdmacm/cm.h makes them.
 */
#ifndef LINK_H
#define LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>

#include "rc.h"

#define LINK_MESSAGE 64 /* bytes at most; a SEND carries them inline */
#define LINK_RECEIVES 4 /* messages that may be on their way to one end */
#define LINK_REQUESTS 8 /* an end's own work requests at a time */

/* wr_ids. What the program posts by itself may have any from LINK_OWN on. */
enum { LINK_SEND = 1, LINK_ACCESS, LINK_RECEIVE, LINK_OWN = LINK_RECEIVE + LINK_RECEIVES };

struct rdma_cm_id;

struct link {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct rdma_cm_id *id; /* NULL if both ends are in this process */
	struct ibv_mr *mr;     /* of the receives */
	uint8_t (*in)[LINK_MESSAGE];

	/* For link_access and what follows it there, alone: */
	uint8_t inbox[LINK_RECEIVES][LINK_MESSAGE];
	unsigned int messages, sends;
	bool under_way;
	enum ibv_wc_status status;
};

/* What one end needs of its queues; *cqe grows by its share of a CQ. With `windows`, room for
 * libmwctl's work requests (its default budget) is in it. */
struct ibv_qp_cap link_size(bool windows, int *cqe);

/* Memory for the messages, and the first receives: before the other side can send. */
void link_prepare(struct link *link, struct ibv_qp *qp, struct ibv_pd *pd);

/* Both ends in this process. Each has its PD and CQ; only the server has windows. */
void link_pair(const struct rc_device *device, struct link *server, struct ibv_pd *server_pd,
	       struct ibv_cq *server_cq, struct link *client, struct ibv_pd *client_pd,
	       struct ibv_cq *client_cq);

/* After mwctl_peer_detach, if libmwctl manages it. Links between processes: cm_close. */
void link_close(struct link *link);

/* Never waits. If the connection is gone the message is lost, as one on its way would be. */
void link_send(struct link *link, const void *message, size_t size);

/* For who polls by himself: if this completion brought a message, copies it out and makes room for
 * the next. */
bool link_received(struct link *link, const struct ibv_wc *wc, void *message, size_t size);

/* For an end that does one thing at a time and whose CQ is its own. link_access is a READ or WRITE
 * and waits for its end; link_begin and link_end are its halves. */
enum ibv_wc_status link_access(struct link *link, enum ibv_wr_opcode opcode,
			       const struct ibv_sge *local, uint64_t addr, uint32_t rkey);
void link_begin(struct link *link, enum ibv_wr_opcode opcode, const struct ibv_sge *local,
		uint64_t addr, uint32_t rkey);
enum ibv_wc_status link_end(struct link *link);
/* True if there was a message. */
bool link_poll(struct link *link, void *message, size_t size);
/* Waits for one. */
void link_wait(struct link *link, void *message, size_t size);
/* Waits until what was sent has arrived: before the end that sent it hangs up. */
void link_drain(struct link *link);

#endif
