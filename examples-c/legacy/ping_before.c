/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * ping: a server tells its client where to write, the client writes and says so. Both ends are in
 * this process, over real queue pairs.
 *
 * The server and what it calls is what counts here: diff ping_before.c ping_after.c shows what it
 * takes to hand out a key of a memory window in place of mr->rkey.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rc.h"
#include "common/report.h"

#define ROUNDS 1000
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

/* Where the client may write, as the server sends it. */
struct note {
	uint64_t addr;
	uint32_t length;
	uint32_t rkey;
};

struct side {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint64_t memory[512];
};

static struct rc_device device;
static struct side server, client;

static struct ibv_wc await(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	do
		n = ibv_poll_cq(cq, 1, &wc);
	while (n == 0);
	if (n < 0)
		die("can't poll");
	return wc;
}

static void open_side(struct side *it, int access)
{
	struct ibv_qp_cap cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1};
	int cqe = 32;

	it->pd = ibv_alloc_pd(device.verbs);
	if (!it->pd)
		die("ibv_alloc_pd: %s", strerror(errno));
	it->cq = ibv_create_cq(device.verbs, cqe, NULL, NULL, 0);
	if (!it->cq)
		die("ibv_create_cq: %s", strerror(errno));
	it->qp = rc_qp(&device, it->pd, it->cq, &cap, IBV_ACCESS_REMOTE_WRITE);
	it->mr = ibv_reg_mr(it->pd, it->memory, sizeof(it->memory), access);
	if (!it->mr)
		die("ibv_reg_mr: %s", strerror(errno));
}

static void close_side(struct side *it)
{
	if (ibv_destroy_qp(it->qp) || ibv_destroy_cq(it->cq) || ibv_dereg_mr(it->mr) || ibv_dealloc_pd(it->pd))
		die("can't close: %s", strerror(errno));
}

static void post_recv(struct side *it, void *at, size_t length)
{
	struct ibv_sge sge = {.addr = (uintptr_t)at, .length = (uint32_t)length, .lkey = it->mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

	if (ibv_post_recv(it->qp, &wr, &bad))
		die("ibv_post_recv: %s", strerror(errno));
}

/* Sends `length` bytes or, with a note, writes them where it says. Returns the completion's status. */
static enum ibv_wc_status post_send(struct side *it, const void *at, size_t length, const struct note *to)
{
	struct ibv_sge sge = {.addr = (uintptr_t)at, .length = (uint32_t)length, .lkey = it->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;

	wr.opcode = to ? IBV_WR_RDMA_WRITE : IBV_WR_SEND;
	if (to) {
		wr.wr.rdma.remote_addr = to->addr;
		wr.wr.rdma.rkey = to->rkey;
	}
	if (ibv_post_send(it->qp, &wr, &bad))
		die("ibv_post_send: %s", strerror(errno));
	return await(it->cq).status;
}

/* The server says where to write, in a message. */
static void welcome(void)
{
	struct note *note = (struct note *)&server.memory[256];

	note->addr = (uintptr_t)server.memory;
	note->length = 64;
	note->rkey = server.mr->rkey;
	if (post_send(&server, note, sizeof(*note), NULL))
		die("the note was not sent");
}

static void ping(const struct note *note, uint64_t number)
{
	post_recv(&server, &server.memory[128], 8);
	client.memory[0] = number;
	if (post_send(&client, client.memory, 8, note) || post_send(&client, client.memory, 8, NULL))
		die("ping %" PRIu64 " failed", number);
	if (await(server.cq).status || server.memory[0] != number)
		die("ping %" PRIu64 " did not arrive", number);
}

static void goodbye(void)
{
	printf("%d pings\n", ROUNDS);
}

int main(void)
{
	struct note note;
	enum ibv_wc_status status;

	rc_open(&device);
	open_side(&server, ACCESS);
	open_side(&client, IBV_ACCESS_LOCAL_WRITE);
	rc_connect(&device, server.qp, client.qp);

	post_recv(&client, &client.memory[256], sizeof(note));
	welcome();
	if (await(client.cq).status)
		die("no note came");
	memcpy(&note, &client.memory[256], sizeof(note));
	for (uint64_t number = 1; number <= ROUNDS; number++)
		ping(&note, number);
	goodbye();

	/* The client goes on. */
	client.memory[0] = 0;
	status = post_send(&client, client.memory, 8, &note);
	printf("a write after the goodbye: %s; the memory %s\n", ibv_wc_status_str(status),
	       server.memory[0] == ROUNDS ? "is as it was" : "has changed");

	close_side(&server);
	close_side(&client);
	rc_close(&device);
	return demands_failed() > 0;
}
