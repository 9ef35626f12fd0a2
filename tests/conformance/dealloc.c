/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* ibv_dealloc_mw: ends a window without a send queue. */
#include "scene.h"

static void while_bound(const struct rc_device *device)
{
	struct scene s;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	party_bind(&s.control, READ_WRITE);
	expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	party_dealloc(&s.rogue);
	RC_CHECK_STATE(IBV_QPS_RTS, s.rogue.pair.server.qp);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	scene_close(&s);
	rc_ok("a bound window may be deallocated; its key is dead, the QP lives");
}

static void never_bound(const struct rc_device *device)
{
	struct scene s;

	scene_open(&s, device, NULL);
	party_dealloc(&s.rogue);
	party_bind(&s.control, READ_WRITE);
	party_invalidate(&s.control);
	party_dealloc(&s.control);
	expect_denied(&s.control, s.control.block, 64, s.control.rkey);
	scene_close(&s);
	rc_ok("a FREE window may be deallocated");
}

/* The region is free of it at once. */
static void frees_the_region(const struct rc_device *device)
{
	struct rc_memory region;
	struct scene s;

	scene_open(&s, device, NULL);
	rc_memory_open(&region, s.pd, BLOCK, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	RC_CHECK_STATUS(IBV_WC_SUCCESS,
			rc_bind(&s.rogue.pair.server, s.rogue.mw, rc_key_step(s.rogue.mw->rkey, 1), region.mr,
				region.at, BLOCK, READ_WRITE));
	party_dealloc(&s.rogue);
	rc_memory_close(&region);
	scene_close(&s);
	rc_ok("a deallocated window no longer holds its region");
}

/* The send queue is stuck behind a SEND that the peer never receives. */
static void needs_no_send_queue(const struct rc_device *device)
{
	struct scene s;
	struct rc_memory inbox;
	struct ibv_sge sge;
	struct ibv_send_wr send;

	scene_open(&s, device, NULL);
	rc_memory_open(&inbox, s.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	party_bind(&s.rogue, READ_WRITE);
	party_bind(&s.control, READ_WRITE);
	send = rc_wr_write(&sge, &s.memory, 64, NULL, 0);
	send.opcode = IBV_WR_SEND;
	rc_post(s.rogue.pair.server.qp, &send);
	expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	party_dealloc(&s.rogue);
	rc_wait_nothing(s.rogue.pair.server.cq, 20);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	rc_memory_close(&inbox);
	scene_close(&s);
	rc_ok("deallocation works past a stuck send queue");
}

/* The key of a deallocated window does not turn up in the next one. */
static void key_not_handed_on(const struct rc_device *device)
{
	struct scene s;
	struct ibv_mw *next;
	uint32_t old;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	old = s.rogue.rkey;
	party_dealloc(&s.rogue);
	next = rc_mw_alloc(s.pd, IBV_MW_TYPE_2);
	RC_CHECK(next->rkey != old);
	expect_denied(&s.rogue, s.rogue.block, 64, old);
	rc_mw_dealloc(next);
	scene_close(&s);
	rc_ok("the next window does not start with the deallocated one's key");
}

/* It must be allowed; rxe stalls for most of a minute: on the device in the process alone. */
static void qp_destroyed_first(const struct rc_device *device)
{
	struct rc_pair third;
	struct scene s;
	struct ibv_mw *mw;

	if (!mwctl_sim_present()) {
		rc_note("a QP with a bound window is destroyed on the sim only");
		return;
	}
	scene_open(&s, device, NULL);
	rc_pair_open(&third, device, &(struct rc_options){ .server_pd = s.pd });
	mw = rc_mw_alloc(s.pd, IBV_MW_TYPE_2);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&third.server, mw, rc_key_step(mw->rkey, 1), s.memory.mr,
						s.memory.at, BLOCK, READ_WRITE));
	rc_pair_close(&third);
	expect_misuse(MWCTL_SIM_RULE_DESTROY_QP_BOUND);
	rc_mw_dealloc(mw);
	scene_close(&s);
	rc_ok("a QP may be destroyed with a window bound to it, and that is reported");
}

int main(void)
{
	struct rc_device device;

	rc_device_open(&device);
	while_bound(&device);
	never_bound(&device);
	frees_the_region(&device);
	needs_no_send_queue(&device);
	key_not_handed_on(&device);
	qp_destroyed_first(&device);
	rc_device_close(&device);
	return 0;
}
