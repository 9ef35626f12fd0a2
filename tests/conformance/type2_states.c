/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The states of a Type 2 window: FREE, bound to VALID, invalidated to FREE. */
#include "scene.h"

#include <errno.h>

static void bind_call_refused(const struct rc_device *device)
{
	struct scene s;
	struct ibv_mw_bind bind = { 0 };

	scene_open(&s, device, NULL);
	bind.bind_info = (struct ibv_mw_bind_info){
		.mr = s.memory.mr,
		.addr = (uintptr_t)s.rogue.block,
		.length = BLOCK,
		.mw_access_flags = READ_WRITE,
	};
	RC_CHECK_EQ(EINVAL, ibv_bind_mw(s.rogue.pair.server.qp, s.rogue.mw, &bind));
	RC_CHECK_STATE(IBV_QPS_RTS, s.rogue.pair.server.qp);
	scene_close(&s);
	rc_ok("ibv_bind_mw refuses a Type 2 window with EINVAL");
}

static void free_admits_nothing(const struct rc_device *device)
{
	struct scene s;

	scene_open(&s, device, NULL);
	party_bind(&s.control, READ_WRITE);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.mw->rkey);
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	scene_close(&s);
	rc_ok("the rkey of a window that was never bound admits nothing");
}

static void bind_invalidate(const struct rc_device *device)
{
	struct scene s;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	party_bind(&s.control, READ_WRITE);
	expect_lands(&s.rogue, s.rogue.block, BLOCK, s.rogue.rkey);
	expect_lands(&s.control, s.control.block, BLOCK, s.control.rkey);
	party_invalidate(&s.rogue);
	RC_CHECK_STATE(IBV_QPS_RTS, s.rogue.pair.server.qp);
	expect_denied(&s.rogue, s.rogue.block, BLOCK, s.rogue.rkey);
	expect_lands(&s.control, s.control.block, BLOCK, s.control.rkey);
	scene_close(&s);
	rc_ok("a bound window admits, an invalidated one does not, the others stay");
}

static void bind_again(const struct rc_device *device)
{
	struct scene s;
	uint32_t old;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	old = s.rogue.rkey;
	party_invalidate(&s.rogue);
	party_bind(&s.rogue, READ_WRITE);
	RC_CHECK(s.rogue.rkey != old);
	expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	expect_denied(&s.rogue, s.rogue.block, 64, old);
	scene_close(&s);
	rc_ok("an invalidated window can be bound again, and its old key stays dead");
}

/* The window goes on to another QP once it is invalidated, and is pinned to that one. */
static void bind_to_other_qp(const struct rc_device *device)
{
	struct scene s;
	struct party *rogue = &s.rogue, *control = &s.control;
	uint32_t rkey;

	scene_open(&s, device, NULL);
	party_bind(rogue, READ_WRITE);
	party_invalidate(rogue);
	rkey = rc_key_step(rogue->mw->rkey, 1);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&control->pair.server, rogue->mw, rkey, s.memory.mr,
						rogue->block, BLOCK, READ_WRITE));
	expect_lands(control, rogue->block, 64, rkey);
	expect_denied(rogue, rogue->block, 64, rkey);
	expect_lands(control, rogue->block, 64, rkey);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_invalidate(&control->pair.server, rkey));
	expect_denied(control, rogue->block, 64, rkey);
	scene_close(&s);
	rc_ok("a window is pinned to the QP it was bound on, until invalidated and bound on another");
}

static void bind_valid_fails(const struct rc_device *device)
{
	struct scene s;
	enum ibv_wc_status status;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	status = rc_bind(&s.rogue.pair.server, s.rogue.mw, rc_key_step(s.rogue.rkey, 1), s.memory.mr,
			 s.rogue.block, BLOCK, READ_WRITE);
	expect_local_failure(&s, s.rogue.pair.server.qp, IBV_WC_MW_BIND_ERR, status);
	expect_misuse(MWCTL_SIM_RULE_BIND_VALID);
	party_bind(&s.control, READ_WRITE);
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	scene_close(&s);
	rc_ok("binding a VALID window fails and kills the QP");
}

/* The bind must carry the window's current key in mw->rkey. */
static void bind_needs_current_key(const struct rc_device *device)
{
	struct scene s;
	enum ibv_wc_status status;
	uint32_t first;

	scene_open(&s, device, NULL);
	first = s.rogue.mw->rkey;
	party_bind(&s.rogue, READ_WRITE);
	party_invalidate(&s.rogue);
	s.rogue.mw->rkey = first;
	status = rc_bind(&s.rogue.pair.server, s.rogue.mw, rc_key_step(s.rogue.rkey, 1), s.memory.mr,
			 s.rogue.block, BLOCK, READ_WRITE);
	expect_local_failure(&s, s.rogue.pair.server.qp, IBV_WC_MW_BIND_ERR, status);
	expect_misuse(MWCTL_SIM_RULE_BIND_STALE_KEY);
	s.rogue.mw->rkey = s.rogue.rkey;
	scene_close(&s);
	rc_ok("a bind whose mw->rkey is not the current key fails and kills the QP");
}

/* Older kernels refuse it; where it succeeds, whoever kept the key is back in. */
static void same_key_again(const struct rc_device *device)
{
	struct scene s;
	enum ibv_wc_status status;
	uint32_t stale;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	stale = s.rogue.rkey;
	party_invalidate(&s.rogue);
	status = rc_bind(&s.rogue.pair.server, s.rogue.mw, stale, s.memory.mr, s.rogue.block, BLOCK,
			 READ_WRITE);
	expect_misuse(MWCTL_SIM_RULE_BIND_SAME_KEY);
	if (device->kind != RC_DEVICE_OTHER || status == IBV_WC_SUCCESS) {
		RC_CHECK_STATUS(IBV_WC_SUCCESS, status);
		expect_lands(&s.rogue, s.rogue.block, 64, stale);
		party_invalidate(&s.rogue);
		expect_denied(&s.rogue, s.rogue.block, 64, stale);
		rc_ok("a bind with unchanged key bits makes the stale key live again");
	} else {
		expect_local_failure(&s, s.rogue.pair.server.qp, IBV_WC_MW_BIND_ERR, status);
		rc_ok("a bind with unchanged key bits is refused");
	}
	scene_close(&s);
}

int main(void)
{
	struct rc_device device;

	rc_device_open(&device);
	bind_call_refused(&device);
	free_admits_nothing(&device);
	bind_invalidate(&device);
	bind_again(&device);
	bind_to_other_qp(&device);
	bind_valid_fails(&device);
	bind_needs_current_key(&device);
	same_key_again(&device);
	rc_device_close(&device);
	return 0;
}
