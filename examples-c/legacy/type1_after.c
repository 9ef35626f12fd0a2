/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * type1: a server binds a memory window of Type 1 to one block after the other, sends its client the
 * key, and the client writes there. A second client has learned a key that is not meant for it. All
 * ends are in this process, over real queue pairs.
 *
 * diff type1_before.c type1_after.c shows what it takes to keep that one out.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rc.h"
#include "common/report.h"
#include "mwctl_compat.h"
#include "mwctl_sim.h"

#define CLIENTS 2
#define BLOCKS 8
#define WORDS 64 /* of a block */
#define ROUNDS 1000

/* Where the client may write, as the server sends it. */
struct note {
	uint64_t addr;
	uint32_t length;
	uint32_t rkey;
};

struct side {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static struct rc_device device;
static struct ibv_pd *pd, *client_pd;
static struct side server[CLIENTS], client[CLIENTS];
static uint64_t blocks[BLOCKS][WORDS], client_memory[WORDS];
static struct note notes[2]; /* as sent, as received */
static struct ibv_mr *mr, *client_mr, *note_mr, *client_note_mr;
static struct ibv_mw *window;

static enum ibv_wc_status await(struct ibv_cq *cq, uint64_t wr_id)
{
	struct ibv_wc wc;
	int n;

	do
		n = ibv_poll_cq(cq, 1, &wc);
	while (n == 0);
	if (n < 0)
		die("can't poll");
	if (wc.wr_id != wr_id)
		die("completion %" PRIu64 " came instead of %" PRIu64, wc.wr_id, wr_id);
	return wc.status;
}

static struct ibv_mr *registered(struct ibv_pd *of, void *at, size_t length, int access)
{
	struct ibv_mr *made = ibv_reg_mr(of, at, length, access);

	if (!made)
		die("ibv_reg_mr: %s", strerror(errno));
	return made;
}

static void open_side(struct side *it, struct ibv_pd *of)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = device.port};

	it->cq = ibv_create_cq(device.verbs, 32, NULL, NULL, 0);
	if (!it->cq)
		die("ibv_create_cq: %s", strerror(errno));
	init.send_cq = init.recv_cq = it->cq;
	init.cap = (struct ibv_qp_cap){.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1};
	it->qp = ibv_create_qp(of, &init);
	if (!it->qp)
		die("ibv_create_qp: %s", strerror(errno));
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	if (ibv_modify_qp(it->qp, &attr,
			  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("ibv_modify_qp: %s", strerror(errno));
}

static void close_side(struct side *it)
{
	if (ibv_destroy_qp(it->qp) || ibv_destroy_cq(it->cq))
		die("can't close: %s", strerror(errno));
}

/* The window to a block, or to nothing. The bind has no completion of its own unless asked for. */
static void bind(int number, size_t length, uint64_t wr_id, unsigned int flags)
{
	struct ibv_mw_bind bind = {
		.wr_id = wr_id,
		.send_flags = flags,
		.bind_info = {.mr = mr,
			      .addr = (uintptr_t)blocks[number],
			      .length = length,
			      .mw_access_flags = IBV_ACCESS_REMOTE_WRITE},
	};
	int error = ibv_bind_mw(server[0].qp, window, &bind);

	if (error)
		die("ibv_bind_mw: %s", strerror(error));
}

/* Behind the bind in the same send queue: the client can't have the key too early. */
static void send_note(int number)
{
	struct ibv_sge to = {.addr = (uintptr_t)&notes[1], .length = sizeof(notes[1]), .lkey = client_note_mr->lkey};
	struct ibv_sge from = {.addr = (uintptr_t)&notes[0], .length = sizeof(notes[0]), .lkey = note_mr->lkey};
	struct ibv_recv_wr recv = {.wr_id = 1, .sg_list = &to, .num_sge = 1}, *bad_recv;
	struct ibv_send_wr send = {.wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED}, *bad_send;

	notes[0] = (struct note){(uintptr_t)blocks[number], sizeof(blocks[number]), window->rkey};
	if (ibv_post_recv(client[0].qp, &recv, &bad_recv) || ibv_post_send(server[0].qp, &send, &bad_send))
		die("can't post: %s", strerror(errno));
	if (await(server[0].cq, 2) || await(client[0].cq, 1))
		die("the note did not arrive");
}

static enum ibv_wc_status write_by(struct side *it, uint64_t value)
{
	struct ibv_sge sge = {.addr = (uintptr_t)client_memory, .length = 8, .lkey = client_mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 3, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;

	client_memory[0] = value;
	wr.wr.rdma.remote_addr = notes[1].addr;
	wr.wr.rdma.rkey = notes[1].rkey;
	if (ibv_post_send(it->qp, &wr, &bad))
		die("ibv_post_send: %s", strerror(errno));
	return await(it->cq, 3);
}

int main(void)
{
	struct mwctl_sim_misuse misuse;
	enum ibv_wc_status status;
	int number = 0;

	rc_open(&device);
	pd = ibv_alloc_pd(device.verbs);
	client_pd = ibv_alloc_pd(device.verbs);
	if (!pd || !client_pd)
		die("ibv_alloc_pd: %s", strerror(errno));
	mr = registered(pd, blocks, sizeof(blocks), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	note_mr = registered(pd, &notes[0], sizeof(notes[0]), 0);
	client_mr = registered(client_pd, client_memory, sizeof(client_memory), 0);
	client_note_mr = registered(client_pd, &notes[1], sizeof(notes[1]), IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < CLIENTS; i++) {
		open_side(&server[i], pd);
		open_side(&client[i], client_pd);
		rc_connect(&device, server[i].qp, client[i].qp);
	}
	window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	if (!window)
		die("ibv_alloc_mw: %s", strerror(errno));

	for (uint64_t round = 1; round <= ROUNDS; round++) {
		number = (int)(round % BLOCKS);
		bind(number, sizeof(blocks[number]), 0, 0);
		send_note(number);
		if (write_by(&client[0], round) || blocks[number][0] != round)
			die("round %" PRIu64 " failed", round);
	}
	printf("%d rounds\n", ROUNDS);

	status = write_by(&client[1], 0);
	printf("a write by the other client: %s; the memory %s\n", ibv_wc_status_str(status),
	       blocks[number][0] == ROUNDS ? "is as it was" : "has changed");

	bind(number, 0, 4, IBV_SEND_SIGNALED);
	if (await(server[0].cq, 4))
		die("the window was not unbound");
	status = write_by(&client[0], 0);
	printf("a write after the unbind: %s\n", ibv_wc_status_str(status));

	if (ibv_dealloc_mw(window))
		die("can't deallocate the window: %s", strerror(errno));
	for (int i = 0; i < CLIENTS; i++) {
		close_side(&server[i]);
		close_side(&client[i]);
	}
	if (ibv_dereg_mr(mr) || ibv_dereg_mr(note_mr) || ibv_dereg_mr(client_mr) || ibv_dereg_mr(client_note_mr) ||
	    ibv_dealloc_pd(pd) || ibv_dealloc_pd(client_pd) || ibv_close_device(device.verbs))
		die("can't close: %s", strerror(errno));
	while (device.in_process && mwctl_sim_misuse_next(&misuse, sizeof(misuse)))
		demand(false, "a rule of verbs was broken: %s", misuse.text);
	return demands_failed() > 0;
}
