/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What an access violation does: to both QPs, to what is queued, to the other windows. */
#include "scene.h"

#include <poll.h>

/* The next asynchronous event within `milliseconds`, or -1. */
static int next_event(const struct rc_device *device, int milliseconds, struct ibv_qp **qp)
{
	struct pollfd ready = { .fd = device->context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	if (poll(&ready, 1, milliseconds) <= 0)
		return -1;
	RC_CHECK_EQ(0, ibv_get_async_event(device->context, &event));
	*qp = event.element.qp;
	ibv_ack_async_event(&event);
	return event.event_type;
}

static void both_qps_die(const struct rc_device *device)
{
	struct scene s;
	struct ibv_wc wc;
	struct ibv_sge sge[3];
	struct ibv_send_wr wr[3];
	struct rc_end *client = &s.rogue.pair.client, *server = &s.rogue.pair.server;
	static const enum ibv_wc_status expected[] = { IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR };
	struct rc_memory inbox;
	int i, sends = 0;

	scene_open(&s, device, NULL);
	rc_memory_open(&inbox, s.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	party_bind(&s.rogue, READ_WRITE);
	rc_post_recv(server, &inbox, 21);
	rc_post_recv(client, &inbox, 22);

	/* Good, bad, good: the third never starts. */
	for (i = 0; i < 3; i++) {
		wr[i] = rc_wr_write(&sge[i], &s.rogue.far, 64, s.rogue.block + i * 64,
				    i == 1 ? rc_key_step(s.rogue.rkey, 1) : s.rogue.rkey);
		wr[i].wr_id = (uint64_t)i;
		if (i)
			wr[i - 1].next = &wr[i];
	}
	s.rogue.far.at[0] = 0x51;
	rc_post(client->qp, wr);
	/* The sends in their order; the receive, of another queue, anywhere between them. */
	for (i = 0; i < 4; i++) {
		wc = rc_wait(client->cq);
		RC_CHECK_EQ(client->qp->qp_num, wc.qp_num);
		if (wc.wr_id == 22) {
			RC_CHECK_STATUS(IBV_WC_WR_FLUSH_ERR, wc.status);
			continue;
		}
		RC_CHECK_EQ(sends, wc.wr_id);
		RC_CHECK_STATUS(expected[sends], wc.status);
		sends++;
	}
	RC_CHECK_EQ(3, sends);
	rc_await_state(client->qp, IBV_QPS_ERR);
	rc_await_state(server->qp, IBV_QPS_ERR);
	wc = rc_wait(server->cq);
	RC_CHECK_EQ(21, wc.wr_id);
	RC_CHECK_STATUS(IBV_WC_WR_FLUSH_ERR, wc.status);
	RC_CHECK_EQ(0x51, s.rogue.block[0]);
	RC_CHECK_EQ(0, s.rogue.block[64]);
	RC_CHECK_EQ(0, s.rogue.block[128]);
	rc_memory_close(&inbox);
	scene_close(&s);
	rc_ok("an access violation: REM_ACCESS_ERR, both QPs in ERR, what is queued on either flushes");
}

/* The price of using a revoked key: every other window of that QP goes with it. */
static void other_windows_go_too(const struct rc_device *device)
{
	struct scene s;
	struct ibv_mw *second;
	enum ibv_wc_status status;
	uint32_t rkey;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	party_bind(&s.control, READ_WRITE);
	second = rc_mw_alloc(s.pd, IBV_MW_TYPE_2);
	rkey = rc_key_step(second->rkey, 1);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&s.rogue.pair.server, second, rkey, s.memory.mr,
						s.memory.at + BLOCK, BLOCK, READ_WRITE));
	expect_lands(&s.rogue, s.memory.at + BLOCK, 64, rkey);
	party_invalidate(&s.rogue);
	expect_lands(&s.rogue, s.memory.at + BLOCK, 64, rkey);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	status = rc_write(&s.rogue.pair.client, &s.rogue.far, 64, s.memory.at + BLOCK, rkey);
	RC_CHECK_STATUS(IBV_WC_WR_FLUSH_ERR, status);
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	rc_mw_dealloc(second);
	scene_close(&s);
	rc_ok("a client that uses a revoked key loses its QP, with its other windows; other clients don't");
}

static void async_event(const struct rc_device *device)
{
	struct scene s;
	struct ibv_qp *qp = NULL;
	int event;

	scene_open(&s, device, NULL);
	while (next_event(device, 0, &qp) >= 0)
		;
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.mw->rkey);
	event = next_event(device, on_rxe(&s) ? 100 : RC_DEADLINE_S * 1000, &qp);
	if (on_rxe(&s) && event < 0) { /* newer ones raise it */
		rc_deviation(device, "an access violation raises no asynchronous event");
	} else {
		RC_CHECK_EQ(IBV_EVENT_QP_ACCESS_ERR, event);
		RC_CHECK(qp == s.rogue.pair.server.qp);
		rc_ok("an access violation raises IBV_EVENT_QP_ACCESS_ERR at the responder");
	}
	scene_close(&s);
}

/* Revoked, foreign, wrong right, never given: the client can't tell them apart. */
static void all_alike(const struct rc_device *device)
{
	struct scene s;

	scene_open(&s, device, NULL);
	expect_denied(&s.rogue, s.rogue.block, 64, UINT32_C(0x00ffff00));
	scene_close(&s);
	scene_open(&s, device, NULL);
	party_bind(&s.control, READ_WRITE);
	expect_denied(&s.rogue, s.control.block, 64, s.control.rkey);
	scene_close(&s);
	scene_open(&s, device, NULL);
	party_bind(&s.rogue, IBV_ACCESS_REMOTE_READ);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	scene_close(&s);
	rc_ok("a key that is unknown, foreign or of the wrong right: the same status each");
}

/* A denied write of several packets: refused by its first. */
static void long_write(const struct rc_device *device)
{
	struct scene s;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	party_invalidate(&s.rogue);
	expect_denied(&s.rogue, s.rogue.block, BLOCK, s.rogue.rkey);
	scene_close(&s);
	rc_ok("of a write of many packets that starts after the revocation nothing lands");
}

int main(void)
{
	struct rc_device device;

	rc_device_open(&device);
	both_qps_die(&device);
	other_windows_go_too(&device);
	async_event(&device);
	all_alike(&device);
	long_write(&device);
	rc_device_close(&device);
	return 0;
}
