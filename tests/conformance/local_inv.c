/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* LOCAL_INV: on the owner's QP, with the bound key, once per bind; then nothing gets in. */
#include "scene.h"

#include <string.h>

static void sends_nothing(const struct rc_device *device)
{
	struct scene s;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	rc_post_recv(&s.rogue.pair.client, &s.rogue.far, 1);
	party_invalidate(&s.rogue);
	rc_wait_nothing(s.rogue.pair.client.cq, 50);
	RC_CHECK_STATE(IBV_QPS_RTS, s.rogue.pair.client.qp);
	/* The receive was there to be taken. */
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send(&s.rogue.pair.server, &s.memory, 64));
	RC_CHECK_EQ(1, rc_wait(s.rogue.pair.client.cq).wr_id);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	scene_close(&s);
	rc_ok("LOCAL_INV tells the other side nothing: no completion, no change of state");
}

static void every_right_ends(const struct rc_device *device)
{
	struct scene s;
	struct rc_end *client = &s.rogue.pair.client;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, ALL_RIGHTS);
	party_invalidate(&s.rogue);
	memset(s.rogue.block, 3, 64);
	RC_CHECK_STATUS(IBV_WC_REM_ACCESS_ERR, rc_read(client, &s.rogue.far, 64, s.rogue.block, s.rogue.rkey));
	RC_CHECK_EQ(0, s.rogue.far.at[0]);
	scene_close(&s);

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, ALL_RIGHTS);
	party_invalidate(&s.rogue);
	RC_CHECK_STATUS(IBV_WC_REM_ACCESS_ERR, rc_fetch_add(client, &s.rogue.far, s.rogue.block, s.rogue.rkey, 1));
	RC_CHECK_EQ(0, s.rogue.block[0]);
	scene_close(&s);
	rc_ok("after LOCAL_INV a READ returns nothing and an atomic changes nothing");
}

/* A wrong key is an error, and takes nobody's right. */
static void wrong_key(const struct rc_device *device)
{
	struct scene s;
	uint32_t rkey;

	scene_open(&s, device, NULL);
	party_bind(&s.control, READ_WRITE);
	expect_local_failure(&s, s.rogue.pair.server.qp, IBV_WC_MW_BIND_ERR,
			     rc_invalidate(&s.rogue.pair.server, rc_key_step(s.control.rkey, 1)));
	expect_misuse(MWCTL_SIM_RULE_INV_NOT_BOUND);
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	scene_close(&s);

	/* An index that no window has. */
	scene_open(&s, device, NULL);
	rkey = s.control.mw->rkey;
	party_dealloc(&s.control);
	expect_local_failure(&s, s.rogue.pair.server.qp, IBV_WC_MW_BIND_ERR,
			     rc_invalidate(&s.rogue.pair.server, rkey));
	expect_misuse(MWCTL_SIM_RULE_INV_NOT_BOUND);
	scene_close(&s);
	rc_ok("LOCAL_INV with a key that is not a bound window's fails and kills the QP");
}

static void other_qp(const struct rc_device *device)
{
	struct scene s;
	enum ibv_wc_status status;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	party_bind(&s.control, READ_WRITE);
	status = rc_invalidate(&s.control.pair.server, s.rogue.rkey);
	if (on_rxe(&s)) {
		RC_CHECK_STATUS(IBV_WC_SUCCESS, status);
		expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
		rc_deviation(device, "LOCAL_INV on another QP than the bound one takes effect");
	} else {
		expect_local_failure(&s, s.control.pair.server.qp, IBV_WC_MW_BIND_ERR, status);
		expect_misuse(MWCTL_SIM_RULE_INV_WRONG_QP);
		expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
		rc_ok("LOCAL_INV on another QP than the bound one fails and kills that QP");
	}
	scene_close(&s);
}

/* Some kernels panic on it: shown on the device in the process alone. */
static void not_bound(const struct rc_device *device)
{
	struct scene s;

	if (!mwctl_sim_present()) {
		rc_note("LOCAL_INV of a window that is not bound is tried on the sim only");
		return;
	}
	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	party_invalidate(&s.rogue);
	expect_local_failure(&s, s.rogue.pair.server.qp, IBV_WC_MW_BIND_ERR,
			     rc_invalidate(&s.rogue.pair.server, s.rogue.rkey));
	expect_misuse(MWCTL_SIM_RULE_INV_NOT_BOUND);
	scene_close(&s);
	rc_ok("a second LOCAL_INV after one bind fails, kills the QP and is reported");
}

/* One post, one signaled completion, and all of them are invalid. */
static void chain(const struct rc_device *device)
{
	enum { COUNT = 32 };
	struct ibv_mw *mw[COUNT];
	struct ibv_send_wr wr[COUNT];
	uint32_t rkey[COUNT];
	struct scene s;
	struct rc_end *server = &s.rogue.pair.server;
	struct ibv_wc wc;
	int i;

	scene_open(&s, device, NULL);
	party_bind(&s.control, READ_WRITE);
	for (i = 0; i < COUNT; i++) {
		mw[i] = rc_mw_alloc(s.pd, IBV_MW_TYPE_2);
		rkey[i] = rc_key_step(mw[i]->rkey, 1);
		wr[i] = rc_wr_bind(mw[i], rkey[i], s.memory.mr, s.rogue.block + i * 64, 64, READ_WRITE);
		wr[i].send_flags = i == COUNT - 1 ? IBV_SEND_SIGNALED : 0;
		wr[i].wr_id = (uint64_t)i;
		if (i)
			wr[i - 1].next = &wr[i];
	}
	rc_post(server->qp, wr);
	wc = rc_wait(server->cq);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	RC_CHECK_EQ(COUNT - 1, wc.wr_id);
	for (i = 0; i < COUNT; i++)
		expect_lands(&s.rogue, s.rogue.block + i * 64, 64, rkey[i]);

	for (i = 0; i < COUNT; i++) {
		wr[i] = rc_wr_invalidate(rkey[i]);
		wr[i].send_flags = i == COUNT - 1 ? IBV_SEND_SIGNALED : 0;
		wr[i].wr_id = (uint64_t)i;
		if (i)
			wr[i - 1].next = &wr[i];
	}
	rc_post(server->qp, wr);
	wc = rc_wait(server->cq);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	RC_CHECK_EQ(COUNT - 1, wc.wr_id);
	rc_wait_nothing(server->cq, 20);
	for (i = 0; i < COUNT; i++) {
		expect_denied(&s.rogue, s.rogue.block + i * 64, 64, rkey[i]);
		/* The windows are FREE: the pair may go through RESET. */
		rc_pair_reconnect(&s.rogue.pair, NULL);
	}
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	for (i = 0; i < COUNT; i++)
		rc_mw_dealloc(mw[i]);
	scene_close(&s);
	rc_ok("a chain of binds or invalidates is proved by the one completion of its last");
}

/* A write and an invalidate from the same client's view: what the client had completed stays. */
static void completed_data_stays(const struct rc_device *device)
{
	struct scene s;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	memset(s.rogue.far.at, 0x5c, BLOCK);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_write(&s.rogue.pair.client, &s.rogue.far, BLOCK, s.rogue.block,
						 s.rogue.rkey));
	party_invalidate(&s.rogue);
	RC_CHECK_MEMORY(s.rogue.far.at, s.rogue.block, BLOCK);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	scene_close(&s);
	rc_ok("what was written before the invalidate stays written");
}

int main(void)
{
	struct rc_device device;

	rc_device_open(&device);
	sends_nothing(&device);
	every_right_ends(&device);
	wrong_key(&device);
	other_qp(&device);
	not_bound(&device);
	chain(&device);
	completed_data_stays(&device);
	rc_device_close(&device);
	return 0;
}
