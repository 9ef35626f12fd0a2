/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "link.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "mwctl.h"
#include "report.h"

#define REMOTE (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)

struct ibv_qp_cap link_size(bool windows, int *cqe)
{
	struct ibv_qp_cap cap = {
		.max_send_wr = LINK_REQUESTS,
		.max_recv_wr = LINK_RECEIVES,
		.max_send_sge = 1,
		.max_recv_sge = 1,
		.max_inline_data = LINK_MESSAGE,
	};

	*cqe += LINK_REQUESTS + LINK_RECEIVES;
	if (windows)
		must(mwctl_size_queues(0, &cap, cqe), "mwctl_size_queues");
	return cap;
}

static void post_receive(struct link *link, size_t slot)
{
	struct ibv_sge sge = { (uintptr_t)link->in[slot], LINK_MESSAGE, link->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = LINK_RECEIVE + slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	int error = ibv_post_recv(link->qp, &wr, &bad);

	if (error)
		die("ibv_post_recv: %s", strerror(error));
}

void link_prepare(struct link *link, struct ibv_qp *qp, struct ibv_pd *pd)
{
	size_t slot;

	memset(link, 0, sizeof(*link));
	link->qp = qp;
	link->cq = qp->send_cq;
	link->in = calloc(LINK_RECEIVES, LINK_MESSAGE);
	if (!link->in)
		die("out of memory");
	link->mr = ibv_reg_mr(pd, link->in, LINK_RECEIVES * LINK_MESSAGE, IBV_ACCESS_LOCAL_WRITE);
	if (!link->mr)
		die("ibv_reg_mr: %s", strerror(errno));
	for (slot = 0; slot < LINK_RECEIVES; slot++)
		post_receive(link, slot);
}

void link_pair(const struct rc_device *device, struct link *server, struct ibv_pd *server_pd,
	       struct ibv_cq *server_cq, struct link *client, struct ibv_pd *client_pd,
	       struct ibv_cq *client_cq)
{
	int cqe = 0;
	struct ibv_qp_cap managed = link_size(true, &cqe), plain = link_size(false, &cqe);

	link_prepare(server, rc_qp(device, server_pd, server_cq, &managed, REMOTE), server_pd);
	link_prepare(client, rc_qp(device, client_pd, client_cq, &plain, 0), client_pd);
	rc_connect(device, server->qp, client->qp);
}

void link_close(struct link *link)
{
	/* librdmacm's own queue pair went with its id. */
	if (link->qp && ibv_destroy_qp(link->qp))
		die("ibv_destroy_qp: %s", strerror(errno));
	if (ibv_dereg_mr(link->mr))
		die("ibv_dereg_mr: %s", strerror(errno));
	free(link->in);
	memset(link, 0, sizeof(*link));
}

static void post(struct link *link, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	int error;

	wr->num_sge = 1;
	wr->send_flags |= IBV_SEND_SIGNALED;
	error = ibv_post_send(link->qp, wr, &bad);
	if (error)
		die("ibv_post_send: %s", strerror(error));
}

void link_send(struct link *link, const void *message, size_t size)
{
	struct ibv_sge sge = { .addr = (uintptr_t)message, .length = (uint32_t)size };
	struct ibv_send_wr wr = {
		.wr_id = LINK_SEND,
		.sg_list = &sge,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_INLINE, /* `message` may go as soon as this returns */
	};

	post(link, &wr);
	link->sends++;
}

bool link_received(struct link *link, const struct ibv_wc *wc, void *message, size_t size)
{
	size_t slot = wc->wr_id - LINK_RECEIVE;

	if (wc->status != IBV_WC_SUCCESS || slot >= LINK_RECEIVES)
		return false;
	memcpy(message, link->in[slot], size);
	post_receive(link, slot);
	return true;
}

void link_begin(struct link *link, enum ibv_wr_opcode opcode, const struct ibv_sge *local,
		uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = *local;
	struct ibv_send_wr wr = {
		.wr_id = LINK_ACCESS,
		.sg_list = &sge,
		.opcode = opcode,
		.wr.rdma = { .remote_addr = addr, .rkey = rkey },
	};

	link->under_way = true;
	post(link, &wr);
}

/* Takes one completion off the queue. */
static void poll_once(struct link *link)
{
	struct ibv_wc wc;
	int n = ibv_poll_cq(link->cq, 1, &wc);

	if (n < 0)
		die("ibv_poll_cq: %s", strerror(-n));
	if (n == 0) {
		sched_yield(); /* the other side may want this CPU */
		return;
	}
	if (wc.wr_id == LINK_ACCESS) {
		link->under_way = false;
		link->status = wc.status;
	} else if (wc.wr_id == LINK_SEND) {
		link->sends--;
	} else if (link->messages < LINK_RECEIVES &&
		   link_received(link, &wc, link->inbox[link->messages], LINK_MESSAGE)) {
		link->messages++;
	}
}

enum ibv_wc_status link_end(struct link *link)
{
	while (link->under_way)
		poll_once(link);
	return link->status;
}

enum ibv_wc_status link_access(struct link *link, enum ibv_wr_opcode opcode,
			       const struct ibv_sge *local, uint64_t addr, uint32_t rkey)
{
	link_begin(link, opcode, local, addr, rkey);
	return link_end(link);
}

bool link_poll(struct link *link, void *message, size_t size)
{
	if (link->messages == 0)
		poll_once(link);
	if (link->messages == 0)
		return false;
	memcpy(message, link->inbox[0], size);
	link->messages--;
	memmove(link->inbox[0], link->inbox[1], link->messages * LINK_MESSAGE);
	return true;
}

void link_wait(struct link *link, void *message, size_t size)
{
	while (!link_poll(link, message, size))
		;
}

void link_drain(struct link *link)
{
	while (link->sends > 0)
		poll_once(link);
}
