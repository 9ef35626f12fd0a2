/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The QP's access flags: a gate of their own, for all windows of that QP at once. */
#include "scene.h"

static void set_access(struct ibv_qp *qp, unsigned int access)
{
	struct ibv_qp_attr attr = { .qp_access_flags = access };

	RC_CHECK_EQ(0, ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS));
}

static void cleared_in_rts(const struct rc_device *device)
{
	struct scene s;
	struct ibv_mw *second;
	uint32_t rkey;
	int i;

	for (i = 0; i < 2; i++) {
		scene_open(&s, device, NULL);
		party_bind(&s.rogue, READ_WRITE);
		party_bind(&s.control, READ_WRITE);
		second = rc_mw_alloc(s.pd, IBV_MW_TYPE_2);
		rkey = rc_key_step(second->rkey, 1);
		RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&s.rogue.pair.server, second, rkey, s.memory.mr,
							s.memory.at + BLOCK, BLOCK, READ_WRITE));
		expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
		expect_lands(&s.rogue, s.memory.at + BLOCK, 64, rkey);
		set_access(s.rogue.pair.server.qp, 0);
		RC_CHECK_STATE(IBV_QPS_RTS, s.rogue.pair.server.qp);
		s.memory.at[0] = s.memory.at[BLOCK] = 0x31;
		s.rogue.far.at[0] = 0x32;
		/* One try a connection, since it kills it: both windows, one after the other. */
		RC_CHECK_STATUS(IBV_WC_REM_INV_REQ_ERR,
				rc_write(&s.rogue.pair.client, &s.rogue.far, 64,
					 i ? s.memory.at + BLOCK : s.memory.at, i ? rkey : s.rogue.rkey));
		RC_CHECK_EQ(0x31, s.memory.at[0]);
		RC_CHECK_EQ(0x31, s.memory.at[BLOCK]);
		rc_await_state(s.rogue.pair.client.qp, IBV_QPS_ERR);
		rc_await_state(s.rogue.pair.server.qp, IBV_QPS_ERR);
		expect_lands(&s.control, s.control.block, 64, s.control.rkey);
		rc_mw_dealloc(second);
		scene_close(&s);
	}
	rc_ok("access flags cleared in RTS close all windows of the QP with REM_INV_REQ_ERR, of no other QP");
}

/* Write taken away, read left. */
static void each_flag_its_own(const struct rc_device *device)
{
	struct scene s;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, ALL_RIGHTS);
	set_access(s.rogue.pair.server.qp, IBV_ACCESS_REMOTE_READ);
	s.rogue.block[0] = 0x41;
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_read(&s.rogue.pair.client, &s.rogue.far, 64, s.rogue.block,
						s.rogue.rkey));
	RC_CHECK_EQ(0x41, s.rogue.far.at[0]);
	s.rogue.far.at[0] = 0x42;
	RC_CHECK_STATUS(IBV_WC_REM_INV_REQ_ERR, rc_write(&s.rogue.pair.client, &s.rogue.far, 64,
							 s.rogue.block, s.rogue.rkey));
	RC_CHECK_EQ(0x41, s.rogue.block[0]);
	scene_close(&s);

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, ALL_RIGHTS);
	set_access(s.rogue.pair.server.qp, READ_WRITE);
	expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	s.rogue.block[0] = 0x43;
	RC_CHECK_STATUS(IBV_WC_REM_INV_REQ_ERR, rc_fetch_add(&s.rogue.pair.client, &s.rogue.far,
							     s.rogue.block, s.rogue.rkey, 1));
	RC_CHECK_EQ(0x43, s.rogue.block[0]);
	scene_close(&s);
	rc_ok("each access flag of the QP is a gate of its own");
}

static void opened_again(const struct rc_device *device)
{
	struct scene s;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	set_access(s.rogue.pair.server.qp, 0);
	set_access(s.rogue.pair.server.qp, READ_WRITE);
	expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	party_invalidate(&s.rogue);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	scene_close(&s);
	rc_ok("access flags set again open the windows again: closing them revokes nothing");
}

/* They say what is let in; the window says where. */
static void not_enough_alone(const struct rc_device *device)
{
	struct scene s;

	scene_open(&s, device, NULL);
	set_access(s.rogue.pair.server.qp, ALL_RIGHTS);
	party_bind(&s.rogue, IBV_ACCESS_REMOTE_READ);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	scene_close(&s);
	rc_ok("access flags of the QP add nothing to a window's rights");
}

int main(void)
{
	struct rc_device device;

	rc_device_open(&device);
	cleared_in_rts(&device);
	each_flag_its_own(&device);
	opened_again(&device);
	not_enough_alone(&device);
	rc_device_close(&device);
	return 0;
}
