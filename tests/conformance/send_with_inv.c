/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* SEND_WITH_INV: what travels, and kills the receiver's window. */
#include "scene.h"

static void receiver_learns(const struct rc_device *device)
{
	struct scene s;
	struct rc_memory inbox;
	struct ibv_wc wc;

	scene_open(&s, device, NULL);
	rc_memory_open(&inbox, s.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	party_bind(&s.rogue, READ_WRITE);
	party_bind(&s.control, READ_WRITE);
	expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	rc_post_recv(&s.rogue.pair.server, &inbox, 9);
	RC_CHECK_STATUS(IBV_WC_SUCCESS,
			rc_send_with_inv(&s.rogue.pair.client, &s.rogue.far, 64, s.rogue.rkey));
	wc = rc_wait(s.rogue.pair.server.cq);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	RC_CHECK_EQ(9, wc.wr_id);
	RC_CHECK_EQ(IBV_WC_RECV, wc.opcode);
	/* rxe hands the kernel's own flag bits out: there the same bit means something else. */
	RC_CHECK(wc.wc_flags & (on_rxe(&s) ? IBV_WC_IP_CSUM_OK : IBV_WC_WITH_INV));
	if (!(wc.wc_flags & IBV_WC_WITH_INV))
		rc_deviation(device, "the receiver's completion carries IBV_WC_IP_CSUM_OK instead of IBV_WC_WITH_INV");
	RC_CHECK_EQ(s.rogue.rkey, wc.invalidated_rkey);
	RC_CHECK_EQ(64, wc.byte_len);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	rc_memory_close(&inbox);
	scene_close(&s);
	rc_ok("SEND_WITH_INV: the receiver's completion names the key, and the window is dead");
}

static void bound_again_afterwards(const struct rc_device *device)
{
	struct scene s;
	struct rc_memory inbox;
	uint32_t old;

	scene_open(&s, device, NULL);
	rc_memory_open(&inbox, s.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	party_bind(&s.rogue, READ_WRITE);
	old = s.rogue.rkey;
	rc_post_recv(&s.rogue.pair.server, &inbox, 9);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send_with_inv(&s.rogue.pair.client, &s.rogue.far, 8, old));
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(s.rogue.pair.server.cq).status);
	party_bind(&s.rogue, READ_WRITE);
	expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	expect_denied(&s.rogue, s.rogue.block, 64, old);
	rc_memory_close(&inbox);
	scene_close(&s);
	rc_ok("a window that the peer invalidated is FREE and can be bound again");
}

/* A plain SEND leaves the window and says nothing of a key. */
static void plain_send(const struct rc_device *device)
{
	struct scene s;
	struct rc_memory inbox;
	struct ibv_wc wc;

	scene_open(&s, device, NULL);
	rc_memory_open(&inbox, s.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	party_bind(&s.rogue, READ_WRITE);
	rc_post_recv(&s.rogue.pair.server, &inbox, 9);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send(&s.rogue.pair.client, &s.rogue.far, 64));
	wc = rc_wait(s.rogue.pair.server.cq);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	RC_CHECK_EQ(0, wc.wc_flags & (IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK));
	expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	rc_memory_close(&inbox);
	scene_close(&s);
	rc_ok("a plain SEND leaves the window as it is");
}

/* A client that learned another one's key. */
static void another_clients_window(const struct rc_device *device)
{
	struct scene s;
	struct rc_memory inbox;
	enum ibv_wc_status status;

	scene_open(&s, device, NULL);
	rc_memory_open(&inbox, s.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	party_bind(&s.rogue, READ_WRITE);
	party_bind(&s.control, READ_WRITE);
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	rc_post_recv(&s.rogue.pair.server, &inbox, 9);
	status = rc_send_with_inv(&s.rogue.pair.client, &s.rogue.far, 8, s.control.rkey);
	if (on_rxe(&s)) {
		RC_CHECK_STATUS(IBV_WC_SUCCESS, status);
		expect_denied(&s.control, s.control.block, 64, s.control.rkey);
		rc_deviation(device, "a client can invalidate another client's window if it knows the key");
	} else {
		RC_CHECK(status == IBV_WC_REM_INV_REQ_ERR || status == IBV_WC_REM_OP_ERR ||
			 status == IBV_WC_REM_ACCESS_ERR);
		rc_await_state(s.rogue.pair.client.qp, IBV_QPS_ERR);
		rc_await_state(s.rogue.pair.server.qp, IBV_QPS_ERR);
		expect_misuse(MWCTL_SIM_RULE_INV_WRONG_QP);
		expect_lands(&s.control, s.control.block, 64, s.control.rkey);
		rc_ok("SEND_WITH_INV of another client's window fails with \"%s\" and kills the connection",
		      ibv_wc_status_str(status));
	}
	rc_memory_close(&inbox);
	scene_close(&s);
}

/* Two of them for one window may panic a kernel. */
static void twice(const struct rc_device *device)
{
	struct scene s;
	struct rc_memory inbox;
	enum ibv_wc_status status;

	if (!mwctl_sim_present()) {
		rc_note("a second SEND_WITH_INV of one window is tried on the sim only");
		return;
	}
	scene_open(&s, device, NULL);
	rc_memory_open(&inbox, s.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	party_bind(&s.rogue, READ_WRITE);
	rc_post_recv(&s.rogue.pair.server, &inbox, 9);
	rc_post_recv(&s.rogue.pair.server, &inbox, 10);
	RC_CHECK_STATUS(IBV_WC_SUCCESS,
			rc_send_with_inv(&s.rogue.pair.client, &s.rogue.far, 8, s.rogue.rkey));
	status = rc_send_with_inv(&s.rogue.pair.client, &s.rogue.far, 8, s.rogue.rkey);
	RC_CHECK(status == IBV_WC_REM_INV_REQ_ERR || status == IBV_WC_REM_OP_ERR ||
		 status == IBV_WC_REM_ACCESS_ERR);
	rc_await_state(s.rogue.pair.server.qp, IBV_QPS_ERR);
	expect_misuse(MWCTL_SIM_RULE_INV_NOT_BOUND);
	rc_memory_close(&inbox);
	scene_close(&s);
	rc_ok("a second SEND_WITH_INV of one window fails with \"%s\" and is reported",
	      ibv_wc_status_str(status));
}

int main(void)
{
	struct rc_device device;

	rc_device_open(&device);
	receiver_learns(&device);
	bound_again_afterwards(&device);
	plain_send(&device);
	another_clients_window(&device);
	twice(&device);
	rc_device_close(&device);
	return 0;
}
