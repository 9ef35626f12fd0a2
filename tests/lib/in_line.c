/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* LOCAL_INVs that still wait for room when the deadline comes, because nobody polled: they are not posted
 * in that moment, to cost a healthy queue pair; their windows are deallocated. */
#include "trouble.h"

static struct house house;

int main(void)
{
	struct house_options options = {.peer.budget = 1};
	struct heard heard = {0};
	mwctl_result first, second, other;
	uint64_t ids[2], stall;
	double limit;

	house_open(&house, &options);
	if (!mwctl_sim_present()) {
		house_close(&house);
		rc_skip("stalls a queue by order");
	}
	first = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	second = house_grant(&house, 0, 8192, 4096, HOUSE_WRITE);
	other = house_grant(&house, 1, 16384, 4096, HOUSE_WRITE);
	ids[0] = first.grant;
	ids[1] = second.grant;
	HOUSE_OK(mwctl_revoke_start(house.ctx, ids, 2, 20000, MWCTL_KILL_ALLOWED, heard_done, &heard));
	/* Whatever is posted from here on takes its time. */
	stall = trouble_order(MWCTL_SIM_STALL_SQ, house.client[0].pair.server.qp, 0, 0);
	for (limit = rc_now() + RC_DEADLINE_S; mwctl_next_timeout(house.ctx) > 0;)
		RC_CHECK(rc_now() < limit);
	while (!atomic_load(&heard.calls)) {
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, heard.results[0].proof);
	RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, heard.results[1].proof);
	RC_CHECK_STATE(IBV_QPS_RTS, house.client[0].pair.server.qp);
	RC_CHECK_EQ(0, house_stats(&house).peers_killed);
	trouble_release(stall);
	HOUSE_WRITE_LANDS(&house, 1, 16384, other.rkey, 0x11);
	HOUSE_WRITE_FAILS(&house, 0, 8192, second.rkey, 0x12);
	house_ok("what waits in line at the deadline is deallocated, and the queue pair lives");
	house_close(&house);
	return 0;
}
