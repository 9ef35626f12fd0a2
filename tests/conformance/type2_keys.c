/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* rkeys: 24 bits of index from the device, 8 bits from the caller, who alone keeps them apart. */
#include "scene.h"

static void caller_picks_key_bits(const struct rc_device *device)
{
	struct scene s;
	uint32_t rkey, index;

	scene_open(&s, device, NULL);
	index = s.rogue.mw->rkey >> 8;
	rkey = rc_key_step(s.rogue.mw->rkey, 0x5a);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&s.rogue.pair.server, s.rogue.mw, rkey, s.memory.mr,
						s.rogue.block, BLOCK, READ_WRITE));
	expect_lands(&s.rogue, s.rogue.block, 64, (index << 8) | (rkey & 0xff));
	expect_denied(&s.rogue, s.rogue.block, 64, rc_key_step(rkey, 1));
	scene_close(&s);
	rc_ok("the caller picks the 8 key bits of a bind, and only that key admits");
}

static void windows_have_own_index(const struct rc_device *device)
{
	struct ibv_mw *mw[64];
	struct ibv_pd *pd = ibv_alloc_pd(device->context);
	size_t i, j;

	RC_CHECK(pd != NULL);
	for (i = 0; i < 64; i++) {
		mw[i] = rc_mw_alloc(pd, IBV_MW_TYPE_2);
		for (j = 0; j < i; j++)
			RC_CHECK(mw[i]->rkey >> 8 != mw[j]->rkey >> 8);
	}
	for (i = 0; i < 64; i++)
		rc_mw_dealloc(mw[i]);
	RC_CHECK_EQ(0, ibv_dealloc_pd(pd));
	rc_ok("windows that live at the same time have different indices");
}

static void object_key_after_bind(const struct rc_device *device)
{
	struct scene s;
	struct ibv_send_wr wr;
	uint32_t before, rkey;

	scene_open(&s, device, NULL);
	before = s.rogue.mw->rkey;
	rkey = rc_key_step(before, 1);
	wr = rc_wr_bind(s.rogue.mw, rkey, s.memory.mr, s.rogue.block, BLOCK, READ_WRITE);
	rc_post(s.rogue.pair.server.qp, &wr);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(s.rogue.pair.server.cq).status);
	RC_CHECK(s.rogue.mw->rkey == before || s.rogue.mw->rkey == rkey);
	rc_note("after a bind by work request mw->rkey is %s",
		s.rogue.mw->rkey == rkey ? "updated" : "not updated");
	if (on_rxe(&s))
		RC_CHECK_EQ(before, s.rogue.mw->rkey);
	expect_lands(&s.rogue, s.rogue.block, 64, rkey);
	expect_denied(&s.rogue, s.rogue.block, 64, before);
	scene_close(&s);
	rc_ok("the bound key is the work request's, whatever mw->rkey says");
}

/* Why a key must not come back too soon. */
static void old_key_comes_back(const struct rc_device *device)
{
	struct scene s;
	uint32_t stale;
	int i;

	scene_open(&s, device, NULL);
	party_bind(&s.control, READ_WRITE);
	party_bind(&s.rogue, READ_WRITE);
	stale = s.rogue.rkey;
	expect_lands(&s.rogue, s.rogue.block, 64, stale);
	for (i = 0; i < 256; i++) {
		party_invalidate(&s.rogue);
		party_bind(&s.rogue, READ_WRITE);
		RC_CHECK((s.rogue.rkey == stale) == (i == 255));
	}
	expect_lands(&s.rogue, s.rogue.block, 64, stale);
	party_invalidate(&s.rogue);
	expect_denied(&s.rogue, s.rogue.block, 64, stale);
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	scene_close(&s);
	rc_ok("after 256 binds of one window its first key is valid again, and a stale write lands");
}

/* One bind short of the full circle: all 255 others are dead. */
static void no_other_key_lives(const struct rc_device *device)
{
	unsigned int step;

	for (step = 1; step < 256; step += 51) {
		struct scene s;

		scene_open(&s, device, NULL);
		party_bind(&s.rogue, READ_WRITE);
		expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
		expect_denied(&s.rogue, s.rogue.block, 64, rc_key_step(s.rogue.rkey, step));
		scene_close(&s);
	}
	rc_ok("a key with other key bits than the bound ones admits nothing");
}

int main(void)
{
	struct rc_device device;

	rc_device_open(&device);
	caller_picks_key_bits(&device);
	windows_have_own_index(&device);
	object_key_after_bind(&device);
	old_key_comes_back(&device);
	no_other_key_lives(&device);
	rc_device_close(&device);
	return 0;
}
