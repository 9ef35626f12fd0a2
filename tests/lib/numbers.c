/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A device that hands out the number of a deallocated window at once: its keys keep their distance all
 * the same. */
#include "trouble.h"

#include <string.h>

#define DISTANCE 700
#define ROUNDS 1500

static struct house house;

/* Stands before the provider's own functions: the last window that was deallocated is the next one. */
static struct {
	struct ibv_mw *(*alloc)(struct ibv_pd *, enum ibv_mw_type);
	int (*dealloc)(struct ibv_mw *);
	struct ibv_mw *kept;
	uint32_t bound;        /* the key of the one window that is bound */
	long again;
} device;

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *mw = device.kept;

	device.kept = NULL;
	device.again += mw != NULL;
	return mw ? mw : device.alloc(pd, type);
}

/* What unbinds it here is not the library's to see. */
static int dealloc_mw(struct ibv_mw *mw)
{
	struct ibv_send_wr unbind = {.wr_id = 5, .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = device.bound}, *bad;

	if (device.kept || mw->rkey >> 8 != device.bound >> 8)
		return device.dealloc(mw);
	RC_CHECK_EQ(0, ibv_post_send(house.client[0].pair.server.qp, &unbind, &bad));
	mw->rkey = device.bound;
	device.kept = mw;
	return 0;
}

int main(void)
{
	struct house_options options = {.clients = 1, .domain.key_distance = DISTANCE, .rc.max_send_wr = 64};
	struct ibv_context_ops *ops;
	static uint32_t keys[ROUNDS];
	mwctl_result out;

	if (!mwctl_sim_present())
		rc_skip("needs a device whose windows' numbers come back at once");
	house_open(&house, &options);
	ops = &house.device.context->ops;
	device.alloc = ops->alloc_mw;
	device.dealloc = ops->dealloc_mw;
	ops->alloc_mw = alloc_mw;
	ops->dealloc_mw = dealloc_mw;
	for (int round = 0; round < ROUNDS; round++) {
		mwctl_result held = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
		uint64_t number = held.rkey >> 8;

		for (int before = round > DISTANCE ? round - DISTANCE : 0; before < round; before++)
			if (keys[before] == held.rkey)
				RC_FAIL("key %#x of window %#llx came back after %d grants", held.rkey,
					(unsigned long long)number, round - before);
		keys[round] = device.bound = held.rkey;
		if (round % 64 == 63)
			HOUSE_WRITE_LANDS(&house, 0, 0, held.rkey, (uint8_t)(round | 1));
		HOUSE_OK(mwctl_peer_stuck(house.ctx, house.client[0].peer));
		HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 0, &out));
		RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, out.proof);
	}
	RC_CHECK(device.again > ROUNDS / 2);
	ops->alloc_mw = device.alloc;
	ops->dealloc_mw = device.dealloc;
	if (device.kept)
		RC_CHECK_EQ(0, ibv_dealloc_mw(device.kept));
	house_close(&house);
	house_ok("numbers that come back at once: no key within %d grants", DISTANCE);
	return 0;
}
