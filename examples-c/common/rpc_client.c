/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "rpc.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "crc.h"
#include "report.h"

enum { SEND = 1, RECEIVE = 2, DATA = 3 };

#define PATIENCE (60 * NS_PER_S)

void rpc_client_open(struct rpc_client *client, const struct rc_device *device)
{
	memset(client, 0, sizeof(*client));
	client->device = device;
	client->memory = calloc(1, sizeof(*client->memory));
	client->pd = ibv_alloc_pd(device->verbs);
	client->cq = ibv_create_cq(device->verbs, 4, NULL, NULL, 0);
	if (!client->memory || !client->pd || !client->cq)
		die("a client's memory, PD and CQ: %s", strerror(errno));
	client->mr = ibv_reg_mr(client->pd, client->memory, sizeof(*client->memory),
				IBV_ACCESS_LOCAL_WRITE);
	if (!client->mr)
		die("ibv_reg_mr: %s", strerror(errno));
}

static void disconnect(struct rpc_client *client)
{
	struct ibv_wc wc;

	if (client->qp && ibv_destroy_qp(client->qp))
		die("ibv_destroy_qp: %s", strerror(errno));
	client->qp = NULL;
	while (ibv_poll_cq(client->cq, 1, &wc) > 0)
		;
}

void rpc_client_close(struct rpc_client *client)
{
	disconnect(client);
	if (ibv_dereg_mr(client->mr) || ibv_destroy_cq(client->cq) || ibv_dealloc_pd(client->pd))
		die("a client's verbs objects can't be destroyed: %s", strerror(errno));
	free(client->memory);
}

/* Waits until each of the n requests has completed: the first status that is no success. */
static enum ibv_wc_status await(struct rpc_client *client, int n)
{
	uint64_t deadline = clock_ns() + PATIENCE;
	struct ibv_wc wc;
	int got;

	while (n > 0) {
		got = ibv_poll_cq(client->cq, 1, &wc);
		if (got < 0)
			die("ibv_poll_cq failed");
		if (got > 0 && wc.status != IBV_WC_SUCCESS)
			return wc.status; /* the others are flushed */
		n -= got;
		if (got == 0) {
			if (clock_ns() > deadline)
				die("a client waits for ever");
			if (client->same_thread)
				rpc_serve_once(client->same_thread);
			else
				sched_yield();
		}
	}
	return IBV_WC_SUCCESS;
}

/* Posts one request, signaled, with one piece of memory. */
static bool post(struct rpc_client *client, struct ibv_send_wr *wr, void *at, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)at, .length = length, .lkey = client->mr->lkey };
	struct ibv_send_wr *bad;

	wr->sg_list = &sge;
	wr->num_sge = 1;
	wr->send_flags |= IBV_SEND_SIGNALED;
	return !ibv_post_send(client->qp, wr, &bad);
}

static bool post_message(struct rpc_client *client, struct rpc_message message, uint32_t invalidate)
{
	struct ibv_send_wr wr = {
		.wr_id = SEND,
		.opcode = invalidate ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND,
		.invalidate_rkey = invalidate,
	};

	client->memory->message = message;
	return post(client, &wr, &client->memory->message, sizeof(message));
}

bool rpc_call(struct rpc_client *client, enum rpc_kind kind, uint32_t args_size,
	      uint32_t results_size)
{
	struct rpc_memory *memory = client->memory;
	struct rpc_message message = {
		.kind = kind,
		.id = ++client->id,
		.args_size = args_size,
		.results_size = results_size,
		.args_crc = client->args_crc,
	};
	struct ibv_sge sge = {
		.addr = (uintptr_t)&memory->reply,
		.length = sizeof(memory->reply),
		.lkey = client->mr->lkey,
	};
	struct ibv_recv_wr receive = { .wr_id = RECEIVE, .sg_list = &sge, .num_sge = 1 }, *bad;
	uint32_t keys[RPC_RANGES] = { 0 };

	/* One SEND takes back one window: the results' goes ahead. */
	if (client->gives_back && client->request.ranges[RPC_ARGS].rkey) {
		keys[RPC_ARGS] = client->request.ranges[RPC_ARGS].rkey;
		keys[RPC_RESULTS] = client->request.ranges[RPC_RESULTS].rkey;
		if (!post_message(client, (struct rpc_message){ .kind = RPC_GIVE_BACK },
				  keys[RPC_RESULTS]) ||
		    await(client, 1) != IBV_WC_SUCCESS)
			return false;
	}
	client->request = (struct rpc_reply){ 0 };
	if (ibv_post_recv(client->qp, &receive, &bad) ||
	    !post_message(client, message, keys[RPC_ARGS]) || await(client, 2) != IBV_WC_SUCCESS)
		return false;
	client->request = memory->reply;
	return memory->reply.id == message.id && memory->reply.status == RPC_OK;
}

static enum ibv_wc_status move_data(struct rpc_client *client, enum ibv_wr_opcode opcode,
				    const struct rpc_range *range, uint8_t *data)
{
	struct ibv_send_wr wr = {
		.wr_id = DATA,
		.opcode = opcode,
		.wr.rdma = { .remote_addr = range->addr, .rkey = range->rkey },
	};

	if (!post(client, &wr, data, range->size))
		return IBV_WC_WR_FLUSH_ERR;
	return await(client, 1);
}

enum ibv_wc_status rpc_write_args(struct rpc_client *client, const struct rpc_range *range, uint32_t id)
{
	uint8_t *data = client->memory->data[RPC_ARGS];

	rpc_fill(data, range->size, id);
	client->args_crc = crc32c(data, range->size);
	return move_data(client, IBV_WR_RDMA_WRITE, range, data);
}

enum ibv_wc_status rpc_read_results(struct rpc_client *client, const struct rpc_range *range)
{
	return move_data(client, IBV_WR_RDMA_READ, range, client->memory->data[RPC_RESULTS]);
}

bool rpc_request(struct rpc_client *client, uint32_t args_size, uint32_t results_size)
{
	uint8_t *results = client->memory->data[RPC_RESULTS];
	uint32_t i, wrong = 0;

	if (!rpc_call(client, RPC_CALL, args_size, results_size) ||
	    rpc_write_args(client, &client->request.ranges[RPC_ARGS], client->id) != IBV_WC_SUCCESS ||
	    rpc_read_results(client, &client->request.ranges[RPC_RESULTS]) != IBV_WC_SUCCESS)
		return false;
	for (i = 0; i < results_size; i++)
		wrong += results[i] != (uint8_t)(client->id * 31 + i * 7);
	return demand(wrong == 0, "request %u: %u bytes of the results are wrong", client->id, wrong);
}
