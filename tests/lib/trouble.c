/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "trouble.h"

#include <string.h>

#define BLOCKER 500

void heard_done(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct heard *heard = user;
	size_t room = sizeof(heard->results) / sizeof(heard->results[0]);

	heard->at = rc_now();
	heard->status = status;
	heard->n = n;
	if (n)
		memcpy(heard->results, results, (n < room ? n : room) * sizeof(*results));
	atomic_fetch_add(&heard->calls, 1);
}

static void poll_all(struct house *house)
{
	struct ibv_wc wc;

	for (int i = 0; i < house->clients; i++)
		RC_CHECK_EQ(0, mwctl_poll_cq(house->ctx, house->client[i].pair.server.cq, 1, &wc));
}

void heard_await(struct house *house, struct heard *heard)
{
	double limit = rc_now() + RC_DEADLINE_S;

	while (!atomic_load(&heard->calls)) {
		poll_all(house);
		HOUSE_OK(mwctl_tick(house->ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(1, heard->calls);
}

void trouble_await_end(struct house *house, uint64_t grant)
{
	double limit = rc_now() + RC_DEADLINE_S;
	mwctl_grant_info info;

	while (mwctl_grant_info_get(house->ctx, grant, &info, sizeof(info)) == MWCTL_STATUS_OK) {
		poll_all(house);
		RC_CHECK(rc_now() < limit);
	}
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant_info_get(house->ctx, grant, &info, sizeof(info)));
}

void trouble_block(struct house *house, int client)
{
	/* Without data there is no memory that has to outlive it. */
	struct ibv_send_wr send = {.wr_id = BLOCKER, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};

	rc_post(house->client[client].pair.server.qp, &send);
}

void trouble_unblock(struct house *house, int client)
{
	struct house_client *it = &house->client[client];
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;

	rc_post_recv(&it->pair.client, &it->local, 6);
	while (!mwctl_poll_cq(house->ctx, it->pair.server.cq, 1, &wc))
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(BLOCKER, wc.wr_id);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(it->pair.client.cq).status);
}

uint64_t trouble_order(uint32_t kind, const struct ibv_qp *qp, uint64_t count, int error)
{
	struct mwctl_sim_fault fault = {.kind = kind, .qp_num = qp ? qp->qp_num : 0, .count = count,
					.error = error};
	uint64_t id;

	RC_CHECK_EQ(0, mwctl_sim_fault_order(&fault, sizeof(fault), &id));
	return id;
}

void trouble_release(uint64_t id)
{
	RC_CHECK_EQ(0, mwctl_sim_fault_release(id));
}
