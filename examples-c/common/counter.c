/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "counter.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>

#include "clock.h"
#include "report.h"

#define PATIENCE (60 * NS_PER_S)

enum { RECEIVE = 1, REQUEST };

static struct ibv_sge piece(struct counter *client, void *at, uint32_t length)
{
	return (struct ibv_sge){ .addr = (uintptr_t)at, .length = length, .lkey = client->mr->lkey };
}

void counter_open(struct counter *client, const struct rc_device *device)
{
	const struct ibv_qp_cap cap = {
		.max_send_wr = 2,
		.max_recv_wr = 2,
		.max_send_sge = 1,
		.max_recv_sge = 1,
	};

	client->pd = ibv_alloc_pd(device->verbs);
	client->cq = ibv_create_cq(device->verbs, 4, NULL, NULL, 0);
	if (!client->pd || !client->cq)
		die("a client's PD and CQ: %s", strerror(errno));
	client->mr = ibv_reg_mr(client->pd, &client->memory, sizeof(client->memory),
				IBV_ACCESS_LOCAL_WRITE);
	if (!client->mr)
		die("ibv_reg_mr: %s", strerror(errno));
	client->qp = rc_qp(device, client->pd, client->cq, &cap, 0);
}

void counter_close(struct counter *client)
{
	if (ibv_destroy_qp(client->qp) || ibv_dereg_mr(client->mr) || ibv_destroy_cq(client->cq) ||
	    ibv_dealloc_pd(client->pd))
		die("a client's verbs objects can't be destroyed: %s", strerror(errno));
}

static void post_receives(struct counter *client)
{
	size_t i;

	for (i = 0; i < (client->deaf ? 1 : 2); i++) {
		struct ibv_sge sge = piece(client, &client->memory.received[i],
					   sizeof(struct counter_message));
		struct ibv_recv_wr wr = { .wr_id = RECEIVE, .sg_list = &sge, .num_sge = 1 }, *bad;

		if (ibv_post_recv(client->qp, &wr, &bad))
			die("a client can't post a receive");
	}
}

/* Posts a request and waits for it. Counts the messages that come meanwhile. */
static enum ibv_wc_status perform(struct counter *client, struct ibv_send_wr *wr, size_t *received)
{
	uint64_t deadline = clock_ns() + PATIENCE;
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	if (wr && ibv_post_send(client->qp, wr, &bad))
		return IBV_WC_WR_FLUSH_ERR;
	while (clock_ns() < deadline) {
		int n = ibv_poll_cq(client->cq, 1, &wc);

		if (n < 0)
			die("ibv_poll_cq failed");
		if (n > 0 && wc.status != IBV_WC_SUCCESS)
			return wc.status;
		if (n > 0 && wc.wr_id == REQUEST)
			return IBV_WC_SUCCESS;
		if (n > 0 && ++*received && !wr)
			return IBV_WC_SUCCESS;
		if (n == 0)
			sched_yield();
	}
	die("a client waits for ever");
}

/* Waits for its key, then counts until it is told to stop, or can't. */
static void *run(void *argument)
{
	struct counter *client = argument;
	struct counter_memory *memory = &client->memory;
	struct ibv_sge count = piece(client, &memory->count, sizeof(memory->count));
	struct ibv_sge bye = piece(client, &memory->sent, sizeof(memory->sent));
	struct ibv_send_wr write = {
		.wr_id = REQUEST,
		.sg_list = &count,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_send_wr send = {
		.wr_id = REQUEST,
		.sg_list = &bye,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};
	size_t received = 0;

	while (!atomic_load(&client->connected))
		sched_yield();
	client->ended = perform(client, NULL, &received);
	write.wr.rdma.remote_addr = memory->received[0].addr;
	write.wr.rdma.rkey = memory->received[0].rkey;
	while (client->ended == IBV_WC_SUCCESS && received < 2) {
		memory->count++;
		client->ended = perform(client, &write, &received);
	}
	memory->sent.kind = COUNTER_BYE;
	if (client->ended == IBV_WC_SUCCESS)
		client->ended = perform(client, &send, &received);
	return NULL;
}

void counter_start(struct counter *client)
{
	post_receives(client);
	if (pthread_create(&client->thread, NULL, run, client))
		die("pthread_create failed");
}

void counter_join(struct counter *client)
{
	pthread_join(client->thread, NULL);
}
