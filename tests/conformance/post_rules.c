/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Posting and completing: partial posts, send-queue slots, signaling, order. */
#include "scene.h"

#include <errno.h>
#include <string.h>

static struct ibv_send_wr server_send(struct ibv_sge *sge, struct scene *s)
{
	struct ibv_send_wr send = rc_wr_write(sge, &s->memory, 64, NULL, 0);

	send.opcode = IBV_WR_SEND;
	return send;
}

/* ibv_post_send stops at the first bad work request; those before it are posted. */
static void partial_post(const struct rc_device *device)
{
	struct scene s;
	struct ibv_sge sge[3];
	struct ibv_send_wr wr[3], *bad = NULL;
	struct rc_end *client = &s.rogue.pair.client;
	struct ibv_wc wc;
	int i;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	memset(s.rogue.far.at, 0x61, 64);
	for (i = 0; i < 3; i++) {
		wr[i] = rc_wr_write(&sge[i], &s.rogue.far, 64, s.rogue.block + i * 64, s.rogue.rkey);
		wr[i].wr_id = (uint64_t)i;
		if (i)
			wr[i - 1].next = &wr[i];
	}
	wr[1].num_sge = device->attr.max_sge + 1;
	RC_CHECK(ibv_post_send(client->qp, wr, &bad) != 0);
	RC_CHECK(bad == &wr[1]);
	wc = rc_wait(client->cq);
	RC_CHECK_EQ(0, wc.wr_id);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	rc_wait_nothing(client->cq, 20);
	RC_CHECK_EQ(0x61, s.rogue.block[0]);
	RC_CHECK_EQ(0, s.rogue.block[64]);
	RC_CHECK_EQ(0, s.rogue.block[128]);
	RC_CHECK_STATE(IBV_QPS_RTS, client->qp);
	expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	scene_close(&s);
	rc_ok("a post stops at its first bad work request, those before it are done, the QP lives");
}

static void full_send_queue(const struct rc_device *device)
{
	struct rc_options options = { .max_send_wr = 16 };
	struct scene s;
	struct ibv_sge sge;
	struct ibv_send_wr send, *bad;
	struct rc_end *server = &s.rogue.pair.server;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	unsigned int posted = 0;
	int error;

	scene_open(&s, device, &options);
	RC_CHECK_EQ(0, ibv_query_qp(server->qp, &attr, IBV_QP_CAP, &init));
	RC_CHECK(init.cap.max_send_wr >= 16);
	send = server_send(&sge, &s);
	/* Nobody receives: nothing completes, nothing comes back. */
	while ((error = ibv_post_send(server->qp, &send, &bad)) == 0)
		RC_CHECK(++posted < 4096);
	RC_CHECK(posted >= init.cap.max_send_wr);
	RC_CHECK_EQ(ENOMEM, error);
	RC_CHECK(bad == &send);
	expect_misuse(MWCTL_SIM_RULE_SQ_OVERFLOW);
	scene_close(&s);
	rc_ok("a full send queue refuses with ENOMEM, after at least the %u granted entries",
	      init.cap.max_send_wr);
}

/* Slots come back when a signaled completion is polled, for all before it as well. */
static void slots_return(const struct rc_device *device)
{
	struct rc_options options = { .max_send_wr = 16 };
	struct scene s;
	struct ibv_sge sge;
	struct ibv_send_wr wr, *bad;
	struct rc_end *client = &s.rogue.pair.client;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	unsigned int i, round;
	int error;

	scene_open(&s, device, &options);
	party_bind(&s.rogue, READ_WRITE);
	RC_CHECK_EQ(0, ibv_query_qp(client->qp, &attr, IBV_QP_CAP, &init));
	for (round = 0; round < 8; round++) {
		for (i = 1; i <= init.cap.max_send_wr; i++) {
			wr = rc_wr_write(&sge, &s.rogue.far, 64, s.rogue.block, s.rogue.rkey);
			wr.wr_id = i;
			wr.send_flags = i == init.cap.max_send_wr ? IBV_SEND_SIGNALED : 0;
			rc_post(client->qp, &wr);
		}
		struct ibv_wc wc = rc_wait(client->cq);

		RC_CHECK_EQ(init.cap.max_send_wr, wc.wr_id);
		RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	}
	rc_ok("one signaled completion polled gives back the slots of all before it");

	/* All unsignaled, all done: no completion, so no slot comes back by the standard. */
	for (i = 0; i < init.cap.max_send_wr; i++) {
		s.rogue.far.at[64 * i] = (uint8_t)(i + 1);
		wr = rc_wr_write(&sge, &s.rogue.far, 1, s.rogue.block + i, s.rogue.rkey);
		sge.addr += 64 * i;
		wr.send_flags = 0;
		rc_post(client->qp, &wr);
	}
	double deadline = rc_now() + RC_DEADLINE_S;

	while (((volatile uint8_t *)s.rogue.block)[init.cap.max_send_wr - 1] != (uint8_t)init.cap.max_send_wr)
		RC_CHECK(rc_now() < deadline);
	wr.next = NULL;
	if (on_rxe(&s)) {
		while ((error = ibv_post_send(client->qp, &wr, &bad)) != 0) {
			RC_CHECK_EQ(ENOMEM, error);
			RC_CHECK(rc_now() < deadline);
		}
		rc_deviation(device, "slots of unsignaled work requests come back without a polled completion");
	} else {
		rc_wait_nothing(client->cq, 20);
		RC_CHECK_EQ(ENOMEM, ibv_post_send(client->qp, &wr, &bad));
		expect_misuse(MWCTL_SIM_RULE_SQ_OVERFLOW);
		rc_ok("a send queue filled with unsignaled work requests never drains");
	}
	scene_close(&s);
}

static void signaling(const struct rc_device *device)
{
	struct rc_options all = { .sq_sig_all = 1 };
	struct scene s;
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	wr = rc_wr_write(&sge, &s.rogue.far, 64, s.rogue.block, s.rogue.rkey);
	wr.send_flags = 0;
	rc_post(s.rogue.pair.client.qp, &wr);
	rc_wait_nothing(s.rogue.pair.client.cq, 50);
	wr = rc_wr_invalidate(s.rogue.rkey);
	wr.send_flags = 0;
	rc_post(s.rogue.pair.server.qp, &wr);
	rc_wait_nothing(s.rogue.pair.server.cq, 50);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	scene_close(&s);
	rc_ok("an unsignaled work request that succeeds leaves no completion");

	scene_open(&s, device, &all);
	party_bind(&s.rogue, READ_WRITE);
	wr = rc_wr_invalidate(s.rogue.rkey);
	wr.wr_id = 5;
	wr.send_flags = 0;
	rc_post(s.rogue.pair.server.qp, &wr);
	wc = rc_wait(s.rogue.pair.server.cq);
	RC_CHECK_EQ(5, wc.wr_id);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	scene_close(&s);
	rc_ok("on a QP made with sq_sig_all each one leaves a completion");

	scene_open(&s, device, NULL);
	wr = rc_wr_bind(s.rogue.mw, rc_key_step(s.rogue.mw->rkey, 1), s.memory.mr, s.rogue.block, 0,
			READ_WRITE);
	wr.wr_id = 6;
	wr.send_flags = 0;
	rc_post(s.rogue.pair.server.qp, &wr);
	wc = rc_wait(s.rogue.pair.server.cq);
	RC_CHECK_EQ(6, wc.wr_id);
	RC_CHECK_EQ(s.rogue.pair.server.qp->qp_num, wc.qp_num);
	expect_local_failure(&s, s.rogue.pair.server.qp, IBV_WC_MW_BIND_ERR, wc.status);
	scene_close(&s);
	rc_ok("an unsignaled work request that fails leaves a completion");
}

/* The rkey travels in a SEND behind its bind: whoever receives it can use it at once. */
static void bind_then_send(const struct rc_device *device)
{
	struct scene s;
	struct ibv_sge sge;
	struct ibv_send_wr bind, send;
	struct rc_end *server = &s.rogue.pair.server, *client = &s.rogue.pair.client;
	struct ibv_wc wc;
	uint32_t rkey;
	int i;

	scene_open(&s, device, NULL);
	for (i = 0; i < 50; i++) {
		rkey = rc_key_step(s.rogue.mw->rkey, 1);
		rc_post_recv(client, &s.rogue.far, 7);
		bind = rc_wr_bind(s.rogue.mw, rkey, s.memory.mr, s.rogue.block, BLOCK, READ_WRITE);
		bind.send_flags = 0;
		send = server_send(&sge, &s);
		send.wr_id = 8;
		bind.next = &send;
		rc_post(server->qp, &bind);
		s.rogue.mw->rkey = rkey;
		wc = rc_wait(client->cq);
		RC_CHECK_EQ(7, wc.wr_id);
		RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
		expect_lands(&s.rogue, s.rogue.block, 64, rkey);
		wc = rc_wait(server->cq);
		RC_CHECK_EQ(8, wc.wr_id);
		RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
		RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_invalidate(server, rkey));
	}
	expect_denied(&s.rogue, s.rogue.block, 64, rkey);
	scene_close(&s);
	rc_ok("a bind and a SEND behind it on the same QP are ordered");
}

/* mw->rkey is read at post time: the second bind carries a key that the first made stale. */
static void two_binds_in_one_post(const struct rc_device *device)
{
	struct scene s;
	struct ibv_send_wr first, second;
	struct rc_end *server = &s.rogue.pair.server;
	struct ibv_wc wc;

	scene_open(&s, device, NULL);
	first = rc_wr_bind(s.rogue.mw, rc_key_step(s.rogue.mw->rkey, 1), s.memory.mr, s.rogue.block, BLOCK,
			   READ_WRITE);
	second = rc_wr_bind(s.rogue.mw, rc_key_step(s.rogue.mw->rkey, 2), s.memory.mr, s.rogue.block, BLOCK,
			    READ_WRITE);
	first.wr_id = 1;
	first.next = &second;
	second.wr_id = 2;
	rc_post(server->qp, &first);
	wc = rc_wait(server->cq);
	RC_CHECK_EQ(1, wc.wr_id);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	wc = rc_wait(server->cq);
	RC_CHECK_EQ(2, wc.wr_id);
	expect_local_failure(&s, server->qp, IBV_WC_MW_BIND_ERR, wc.status);
	expect_misuse(MWCTL_SIM_RULE_BIND_TWICE_IN_POST);
	scene_close(&s);
	rc_ok("of two binds of one window in one post the second fails and kills the QP");
}

/* imm_data shares its place with invalidate_rkey: a work request used before carries it along. */
static void dirty_bind(const struct rc_device *device)
{
	struct scene s;
	struct ibv_sge sge = { 0 };
	struct ibv_send_wr wr, *bad = NULL;
	int dirty;

	for (dirty = 0; dirty < 2; dirty++) {
		scene_open(&s, device, NULL);
		wr = rc_wr_bind(s.rogue.mw, rc_key_step(s.rogue.mw->rkey, 1), s.memory.mr, s.rogue.block, BLOCK,
				READ_WRITE);
		if (dirty == 0) {
			wr.sg_list = &sge;
			wr.num_sge = 1;
		} else {
			wr.invalidate_rkey = s.rogue.mw->rkey;
		}
		RC_CHECK_EQ(EINVAL, ibv_post_send(s.rogue.pair.server.qp, &wr, &bad));
		RC_CHECK(bad == &wr);
		expect_misuse(MWCTL_SIM_RULE_BIND_DIRTY_WR);
		/* Nothing was queued: the same, clean, works. */
		RC_CHECK_STATE(IBV_QPS_RTS, s.rogue.pair.server.qp);
		party_bind(&s.rogue, READ_WRITE);
		expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
		scene_close(&s);
	}
	rc_ok("a bind with num_sge or imm_data other than 0 is refused at the post");
}

/* rxe and irdma follow the pointer: on the device in the process alone. */
static void null_region(const struct rc_device *device)
{
	struct scene s;
	struct ibv_send_wr wr, *bad = NULL;

	if (!mwctl_sim_present()) {
		rc_note("a bind without a region is tried on the sim only");
		return;
	}
	scene_open(&s, device, NULL);
	wr = rc_wr_bind(s.rogue.mw, rc_key_step(s.rogue.mw->rkey, 1), NULL, s.rogue.block, BLOCK, READ_WRITE);
	RC_CHECK_EQ(EINVAL, ibv_post_send(s.rogue.pair.server.qp, &wr, &bad));
	RC_CHECK(bad == &wr);
	expect_misuse(MWCTL_SIM_RULE_BIND_NULL_MR);
	scene_close(&s);
	rc_ok("a bind without a region is refused at the post and reported");
}

/* One completion a work request, in the order of the posts. */
static void in_order(const struct rc_device *device)
{
	struct scene s;
	struct ibv_sge sge[3];
	struct ibv_send_wr wr[5];
	struct rc_end *server = &s.rogue.pair.server;
	struct rc_memory open;
	uint32_t rkey;
	int i;

	scene_open(&s, device, NULL);
	rc_memory_open(&open, s.pd, BLOCK, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	rkey = rc_key_step(s.rogue.mw->rkey, 1);
	wr[0] = rc_wr_write(&sge[0], &s.memory, BLOCK, open.at, open.mr->rkey);
	wr[1] = rc_wr_bind(s.rogue.mw, rkey, s.memory.mr, s.rogue.block, BLOCK, READ_WRITE);
	wr[2] = rc_wr_write(&sge[1], &s.memory, 64, open.at, open.mr->rkey);
	wr[3] = rc_wr_invalidate(rkey);
	wr[4] = rc_wr_write(&sge[2], &s.memory, 64, open.at, open.mr->rkey);
	for (i = 0; i < 5; i++) {
		wr[i].wr_id = (uint64_t)i;
		wr[i].next = i < 4 ? &wr[i + 1] : NULL;
	}
	rc_post(server->qp, wr);
	for (i = 0; i < 5; i++) {
		struct ibv_wc wc = rc_wait(server->cq);

		RC_CHECK_EQ(i, wc.wr_id);
		RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	}
	expect_denied(&s.rogue, s.rogue.block, 64, rkey);
	party_dealloc(&s.rogue);
	rc_memory_close(&open);
	scene_close(&s);
	rc_ok("local and remote operations of one send queue complete in the order of their posts");
}

int main(void)
{
	struct rc_device device;

	rc_device_open(&device);
	partial_post(&device);
	full_send_queue(&device);
	slots_return(&device);
	signaling(&device);
	bind_then_send(&device);
	two_binds_in_one_post(&device);
	dirty_bind(&device);
	null_region(&device);
	in_order(&device);
	rc_device_close(&device);
	return 0;
}
