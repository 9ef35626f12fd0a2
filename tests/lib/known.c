/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the questions say of a right while the device is still taking it away. */
#include "trouble.h"

#include <pthread.h>
#include <string.h>

static struct house house;
static mwctl_result right, out;

static void *revoke(void *unused)
{
	(void)unused;
	HOUSE_OK(mwctl_revoke(house.ctx, right.grant, 0, &out));
	return NULL;
}

static mwctl_key_info explained(uint32_t key)
{
	mwctl_key_info info;

	HOUSE_OK(mwctl_explain_key(house.ctx, key, &info, sizeof(info)));
	return info;
}

/* The deallocation waits for a packet that the key let in. */
int main(void)
{
	struct mwctl_sim_fault hold = {.kind = MWCTL_SIM_HOLD_PACKET, .count = 1};
	struct house_client *it = &house.client[0];
	uint64_t fault, before, found = 0;
	mwctl_grant_info info;
	struct ibv_send_wr wr;
	pthread_t thread;
	struct ibv_sge sge;
	double limit;

	if (!mwctl_sim_present())
		rc_skip("needs a deallocation that lasts");
	house_open(&house, NULL);
	right = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	memset(it->local.at, 0x11, 64);
	RC_CHECK_EQ(0, mwctl_sim_fault_order(&hold, sizeof(hold), &fault));
	wr = rc_wr_write(&sge, &it->local, 64, house_at(&house, 0), right.rkey);
	rc_post(it->pair.client.qp, &wr);
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(fault));
	before = house_stats(&house).windows_deallocated;
	HOUSE_OK(mwctl_peer_stuck(house.ctx, it->peer));
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, revoke, NULL));
	limit = rc_now() + RC_DEADLINE_S;
	do {
		RC_CHECK(rc_now() < limit);
		HOUSE_OK(mwctl_grant_info_get(house.ctx, right.grant, &info, sizeof(info)));
	} while (!info.revoking);
	/* It can't be over: the call gets time to come to the device. */
	for (int looks = 0; looks < 20; looks++) {
		HOUSE_OK(mwctl_find_rkey(house.ctx, right.rkey, &info, sizeof(info)));
		RC_CHECK_EQ(right.grant, info.grant);
		RC_CHECK_EQ(MWCTL_KEY_KIND_GRANT, explained(right.rkey).kind);
		HOUSE_OK(mwctl_check(house.ctx, house.domain, it->pair.server.qp->qp_num, house.memory.addr, 64,
				     HOUSE_WRITE, &found));
		RC_CHECK_EQ(right.grant, found);
		rc_pause(5);
	}
	RC_CHECK_EQ(before, house_stats(&house).windows_deallocated);
	RC_CHECK_EQ(0, *house_at(&house, 0));
	trouble_release(fault);
	RC_CHECK_EQ(0, pthread_join(thread, NULL));
	RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, out.proof);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(it->pair.client.cq).status);
	RC_CHECK_EQ(0x11, *house_at(&house, 0));
	HOUSE_STATUS(MWCTL_STATUS_NO_GRANT, mwctl_find_rkey(house.ctx, right.rkey, &info, sizeof(info)));
	RC_CHECK_EQ(MWCTL_KEY_KIND_ENDED, explained(right.rkey).kind);
	HOUSE_WRITE_FAILS(&house, 0, 0, right.rkey, 0x12);
	house_close(&house);
	house_ok("a key is a live one until the device has let go of it");
	return 0;
}
