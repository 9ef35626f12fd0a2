/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A LOCAL_INV waits behind everything before it in its send queue. */
#include "scene.h"

enum { WRITES = 20 };

/* A SEND that the peer does not receive, posted on the server's QP. */
static void block_send_queue(struct scene *s, struct ibv_sge *sge)
{
	struct ibv_send_wr send = rc_wr_write(sge, &s->memory, 64, NULL, 0);

	send.opcode = IBV_WR_SEND;
	send.wr_id = 1;
	rc_post(s->rogue.pair.server.qp, &send);
}

static void writes_land_meanwhile(const struct rc_device *device)
{
	struct scene s;
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	int i;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	party_bind(&s.control, READ_WRITE);
	block_send_queue(&s, &sge);
	wr = rc_wr_invalidate(s.rogue.rkey);
	wr.wr_id = 2;
	rc_post(s.rogue.pair.server.qp, &wr);
	for (i = 0; i < WRITES; i++)
		expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	rc_wait_nothing(s.rogue.pair.server.cq, 20);
	rc_ok("%d of %d writes land after a LOCAL_INV was posted behind a SEND that nobody receives", WRITES,
	      WRITES);

	/* Once the peer receives, all goes through in order, and only then is it proved. */
	rc_post_recv(&s.rogue.pair.client, &s.rogue.far, 3);
	wc = rc_wait(s.rogue.pair.server.cq);
	RC_CHECK_EQ(1, wc.wr_id);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	wc = rc_wait(s.rogue.pair.server.cq);
	RC_CHECK_EQ(2, wc.wr_id);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	wc = rc_wait(s.rogue.pair.client.cq);
	RC_CHECK_EQ(3, wc.wr_id);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	scene_close(&s);
	rc_ok("the LOCAL_INV completes after what was before it, and then nothing lands");
}

/* The same with the invalidate posted on another, empty send queue is no way out: see
 * local_inv. What gets past is the QP's move to ERR, and then deallocation. */
static void kill_and_dealloc_gets_past(const struct rc_device *device)
{
	struct scene s;
	struct ibv_sge sge;
	struct ibv_send_wr wr;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	party_bind(&s.control, READ_WRITE);
	block_send_queue(&s, &sge);
	wr = rc_wr_invalidate(s.rogue.rkey);
	rc_post(s.rogue.pair.server.qp, &wr);
	expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	rc_qp_modify(s.rogue.pair.server.qp, IBV_QPS_ERR);
	RC_CHECK_STATUS(IBV_WC_WR_FLUSH_ERR, rc_wait(s.rogue.pair.server.cq).status);
	RC_CHECK_STATUS(IBV_WC_WR_FLUSH_ERR, rc_wait(s.rogue.pair.server.cq).status);
	party_dealloc(&s.rogue);
	rc_pair_reconnect(&s.rogue.pair, NULL);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	scene_close(&s);
	rc_ok("past a stuck send queue: QP to ERR, then deallocation");
}

/* The server's own long READ before the LOCAL_INV: its completion comes first. */
static void order_of_completions(const struct rc_device *device)
{
	struct scene s;
	struct rc_memory target;
	struct ibv_sge sge;
	struct ibv_send_wr read, inv;
	struct ibv_wc wc;
	uint32_t key;

	scene_open(&s, device, NULL);
	rc_memory_open(&target, s.pd, BLOCK, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	key = target.mr->rkey;
	party_bind(&s.rogue, READ_WRITE);
	read = rc_wr_write(&sge, &s.memory, BLOCK, target.at, key);
	read.opcode = IBV_WR_RDMA_READ;
	read.wr_id = 1;
	inv = rc_wr_invalidate(s.rogue.rkey);
	inv.wr_id = 2;
	read.next = &inv;
	rc_post(s.rogue.pair.server.qp, &read);
	wc = rc_wait(s.rogue.pair.server.cq);
	RC_CHECK_EQ(1, wc.wr_id);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	wc = rc_wait(s.rogue.pair.server.cq);
	RC_CHECK_EQ(2, wc.wr_id);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	rc_memory_close(&target);
	scene_close(&s);
	rc_ok("a READ before a LOCAL_INV completes before it");
}

int main(void)
{
	struct rc_device device;

	rc_device_open(&device);
	writes_land_meanwhile(&device);
	kill_and_dealloc_gets_past(&device);
	order_of_completions(&device);
	rc_device_close(&device);
	return 0;
}
