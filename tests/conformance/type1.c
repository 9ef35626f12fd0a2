/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Type 1 windows: bound by ibv_bind_mw, belonging to a PD, changed by binding again. */
#include "scene.h"

#include <errno.h>
#include <string.h>

/* Binds by the call and waits. *rkey is what mw->rkey held right after the call. */
static enum ibv_wc_status bind1(struct rc_end *end, struct ibv_mw *mw, struct ibv_mr *mr, void *at,
				size_t length, unsigned int access, uint32_t *rkey)
{
	struct ibv_mw_bind bind = {
		.wr_id = 0x71,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = mr, .addr = (uintptr_t)at, .length = length, .mw_access_flags = access },
	};
	struct ibv_wc wc;

	RC_CHECK_EQ(0, ibv_bind_mw(end->qp, mw, &bind));
	*rkey = mw->rkey;
	wc = rc_wait(end->cq);
	RC_CHECK_EQ(0x71, wc.wr_id);
	return wc.status;
}

static void key_changes_at_post(const struct rc_device *device)
{
	struct scene s;
	struct ibv_mw *mw;
	uint32_t before, rkey;

	scene_open(&s, device, NULL);
	mw = rc_mw_alloc(s.pd, IBV_MW_TYPE_1);
	before = mw->rkey;
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind1(&s.rogue.pair.server, mw, s.memory.mr, s.rogue.block, BLOCK,
					      READ_WRITE, &rkey));
	RC_CHECK(rkey != before);
	RC_CHECK_EQ(before >> 8, rkey >> 8);
	RC_CHECK_EQ(rkey, mw->rkey);
	expect_lands(&s.rogue, s.rogue.block, 64, rkey);
	rc_mw_dealloc(mw);
	scene_close(&s);
	rc_ok("ibv_bind_mw gives the window a new key, in mw->rkey once the call returns");
}

static void any_qp_of_the_pd(const struct rc_device *device)
{
	struct scene s;
	struct ibv_mw *mw;
	uint32_t rkey;

	scene_open(&s, device, NULL);
	mw = rc_mw_alloc(s.pd, IBV_MW_TYPE_1);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind1(&s.rogue.pair.server, mw, s.memory.mr, s.rogue.block, BLOCK,
					      READ_WRITE, &rkey));
	expect_lands(&s.rogue, s.rogue.block, 64, rkey);
	expect_lands(&s.control, s.rogue.block, 64, rkey);
	rc_mw_dealloc(mw);
	scene_close(&s);
	rc_ok("any QP of the PD can use a Type 1 window");
}

static void not_another_pd(const struct rc_device *device)
{
	struct scene s;
	struct ibv_pd *pd = ibv_alloc_pd(device->context);
	struct rc_options foreign = { .server_pd = pd };
	struct party stranger = { 0 };
	struct ibv_mw *mw;
	uint32_t rkey;

	RC_CHECK(pd != NULL);
	scene_open(&s, device, NULL);
	rc_pair_open(&stranger.pair, device, &foreign);
	rc_memory_open(&stranger.far, pd, BLOCK, IBV_ACCESS_LOCAL_WRITE);
	mw = rc_mw_alloc(s.pd, IBV_MW_TYPE_1);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind1(&s.rogue.pair.server, mw, s.memory.mr, s.rogue.block, BLOCK,
					      READ_WRITE, &rkey));
	expect_denied(&stranger, s.rogue.block, 64, rkey);
	expect_lands(&s.rogue, s.rogue.block, 64, rkey);
	rc_mw_dealloc(mw);
	rc_memory_close(&stranger.far);
	rc_pair_close(&stranger.pair);
	scene_close(&s);
	RC_CHECK_EQ(0, ibv_dealloc_pd(pd));
	rc_ok("a QP of another PD can't use a Type 1 window");
}

static void rights_change_by_binding(const struct rc_device *device)
{
	struct scene s;
	struct ibv_mw *mw;
	uint32_t old, rkey;

	scene_open(&s, device, NULL);
	mw = rc_mw_alloc(s.pd, IBV_MW_TYPE_1);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind1(&s.rogue.pair.server, mw, s.memory.mr, s.rogue.block, BLOCK,
					      READ_WRITE, &old));
	expect_lands(&s.rogue, s.rogue.block, 64, old);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind1(&s.rogue.pair.server, mw, s.memory.mr, s.rogue.block, BLOCK,
					      IBV_ACCESS_REMOTE_READ, &rkey));
	RC_CHECK(rkey != old);
	RC_CHECK_STATUS(IBV_WC_SUCCESS,
			rc_read(&s.rogue.pair.client, &s.rogue.far, 64, s.rogue.block, rkey));
	expect_denied(&s.rogue, s.rogue.block, 64, rkey);
	expect_denied(&s.control, s.rogue.block, 64, old);
	rc_mw_dealloc(mw);
	scene_close(&s);
	rc_ok("a Type 1 window is bound again without an invalidate: new rights, old key dead");
}

static void zero_length_unbinds(const struct rc_device *device)
{
	struct scene s;
	struct ibv_mw *mw;
	uint32_t old, rkey;

	scene_open(&s, device, NULL);
	party_bind(&s.control, READ_WRITE);
	mw = rc_mw_alloc(s.pd, IBV_MW_TYPE_1);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind1(&s.rogue.pair.server, mw, s.memory.mr, s.rogue.block, BLOCK,
					      READ_WRITE, &old));
	expect_lands(&s.rogue, s.rogue.block, 64, old);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind1(&s.rogue.pair.server, mw, s.memory.mr, s.rogue.block, 0, 0,
					      &rkey));
	RC_CHECK(rkey != old);
	RC_CHECK_STATE(IBV_QPS_RTS, s.rogue.pair.server.qp);
	expect_denied(&s.rogue, s.rogue.block, 64, old);
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	rc_mw_dealloc(mw);
	scene_close(&s);
	rc_ok("a zero-length bind unbinds a Type 1 window");
}

static void rights_are_needed(const struct rc_device *device)
{
	struct ibv_mw_bind bind = { 0 };
	struct rc_memory closed;
	struct ibv_mw *mw;
	struct scene s;
	int error;

	scene_open(&s, device, NULL);
	rc_memory_open(&closed, s.pd, BLOCK, IBV_ACCESS_LOCAL_WRITE);
	mw = rc_mw_alloc(s.pd, IBV_MW_TYPE_1);
	bind.send_flags = IBV_SEND_SIGNALED;
	bind.bind_info = (struct ibv_mw_bind_info){
		.mr = closed.mr,
		.addr = (uintptr_t)closed.at,
		.length = BLOCK,
		.mw_access_flags = READ_WRITE,
	};
	error = ibv_bind_mw(s.rogue.pair.server.qp, mw, &bind);
	/* A provider may know by itself that the region does not allow it. */
	if (error == 0)
		expect_local_failure(&s, s.rogue.pair.server.qp, IBV_WC_MW_BIND_ERR,
				     rc_wait(s.rogue.pair.server.cq).status);
	rc_mw_dealloc(mw);
	rc_memory_close(&closed);
	scene_close(&s);
	rc_ok("a region without MW_BIND can't be bound to a Type 1 window");
}

static void local_inv_refused(const struct rc_device *device)
{
	struct scene s;
	struct ibv_mw *mw;
	uint32_t rkey;

	scene_open(&s, device, NULL);
	mw = rc_mw_alloc(s.pd, IBV_MW_TYPE_1);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind1(&s.rogue.pair.server, mw, s.memory.mr, s.rogue.block, BLOCK,
					      READ_WRITE, &rkey));
	expect_local_failure(&s, s.rogue.pair.server.qp, IBV_WC_MW_BIND_ERR,
			     rc_invalidate(&s.rogue.pair.server, rkey));
	expect_misuse(MWCTL_SIM_RULE_INV_NOT_BOUND);
	/* Nothing was invalidated: another QP of the PD still gets in. */
	expect_lands(&s.control, s.rogue.block, 64, rkey);
	rc_mw_dealloc(mw);
	expect_denied(&s.control, s.rogue.block, 64, rkey);
	scene_close(&s);
	rc_ok("LOCAL_INV of a Type 1 window fails and kills the QP, the window stays");
}

int main(void)
{
	struct rc_device device;

	rc_device_open(&device);
	if (!(device.attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW))
		rc_skip("%s has no Type 1 windows", device.label);
	key_changes_at_post(&device);
	any_qp_of_the_pd(&device);
	not_another_pd(&device);
	rights_change_by_binding(&device);
	zero_length_unbinds(&device);
	rights_are_needed(&device);
	local_inv_refused(&device);
	rc_device_close(&device);
	return 0;
}
