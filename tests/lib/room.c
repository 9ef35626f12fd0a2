/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Chains of the application's whose completions nobody asked for: the next one finds room in the end,
 * however long it is. */
#include "trouble.h"

#include <errno.h>
#include <stdio.h>

static struct house house;

static mwctl_request ask(int at)
{
	return house_ask(&house, 0, (uint64_t)at * 4096, 4096, HOUSE_WRITE);
}

static void commit(struct ibv_send_wr *wr, mwctl_token token)
{
	struct ibv_send_wr *bad = NULL;
	int ret = ibv_post_send(house.client[0].pair.server.qp, wr, &bad);

	RC_CHECK_EQ(0, ret);
	HOUSE_OK(mwctl_commit(house.ctx, token, ret, bad, NULL));
}

/* One bind, half of the budget. */
static mwctl_result one(void)
{
	mwctl_request asked = ask(0);
	struct ibv_send_wr wr;
	mwctl_result grant;
	mwctl_token token;

	HOUSE_OK(mwctl_grant_prepare(house.ctx, &asked, 1, &wr, &grant, &token));
	commit(&wr, token);
	RC_CHECK_EQ(1, house_peer(&house, 0).used);
	return grant;
}

static void poll(void)
{
	struct ibv_cq *cq = house.client[0].pair.server.cq;
	struct ibv_wc wc;

	if (house.options.peer.polling == MWCTL_POLLING_OURS) {
		RC_CHECK(mwctl_poll_cq(house.ctx, cq, 1, &wc) <= 0);
	} else {
		while (ibv_poll_cq(cq, 1, &wc) == 1)
			RC_CHECK_EQ(1, mwctl_take_wc(house.ctx, cq, &wc));
		HOUSE_OK(mwctl_cq_empty(house.ctx, cq));
	}
	HOUSE_OK(mwctl_tick(house.ctx));
}

/* Tries until there is room: the first time there is none. */
#define AWAIT_ROOM(call) \
	do { \
		double limit_ = rc_now() + RC_DEADLINE_S; \
		mwctl_status got_ = call; \
		RC_CHECK_EQ(MWCTL_STATUS_QUEUE_FULL, got_); \
		while (got_ == MWCTL_STATUS_QUEUE_FULL) { \
			RC_CHECK(rc_now() < limit_); \
			poll(); \
			got_ = call; \
		} \
		HOUSE_OK(got_); \
	} while (0)

static void end_all(void)
{
	struct heard heard = {0};

	HOUSE_OK(mwctl_revoke_peer_start(house.ctx, house.client[0].peer, 0, MWCTL_KILL_NEVER, heard_done, &heard));
	for (double limit = rc_now() + RC_DEADLINE_S; !heard.calls; poll())
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(0, house_peer(&house, 0).grants);
	RC_CHECK_EQ(0, house_peer(&house, 0).used);
}

static void for_grants(void)
{
	mwctl_request two[] = {ask(1), ask(2)};
	mwctl_result grants[2];
	struct ibv_send_wr wr[2];
	mwctl_token token;

	one();
	AWAIT_ROOM(mwctl_grant_prepare(house.ctx, two, 2, wr, grants, &token));
	commit(wr, token);
	HOUSE_WRITE_LANDS(&house, 0, 8192, grants[1].rkey, 0x11);
	end_all();
}

static void for_a_successor(void)
{
	mwctl_result old = one(), next;
	mwctl_request asked = ask(1);
	struct heard heard = {0};
	struct ibv_send_wr wr[2];
	mwctl_token token;

	AWAIT_ROOM(mwctl_regrant_prepare(house.ctx, old.grant, &asked, 0, heard_done, &heard, wr, &next, &token));
	commit(wr, token);
	while (!heard.calls)
		poll();
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	HOUSE_WRITE_LANDS(&house, 0, 4096, next.rkey, 0x12);
	end_all();
}

static void for_revocations(void)
{
	mwctl_result old = one(), second;
	mwctl_request asked = ask(1);
	struct heard heard = {0};
	struct ibv_send_wr wr[2];
	uint64_t grants[2];
	mwctl_token token;

	/* Beyond half of the budget: this one's completion brings both back. */
	HOUSE_OK(mwctl_grant_prepare(house.ctx, &asked, 1, wr, &second, &token));
	commit(wr, token);
	while (house_peer(&house, 0).used)
		poll();
	one();
	grants[0] = old.grant;
	grants[1] = second.grant;
	AWAIT_ROOM(mwctl_revoke_prepare(house.ctx, grants, 2, 0, MWCTL_KILL_NEVER, heard_done, &heard, wr, &token));
	commit(wr, token);
	while (!heard.calls)
		poll();
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	end_all();
}

/* The client gave back what the entries in use were for. */
static void given_back(void)
{
	mwctl_request two[] = {ask(1), ask(2)};
	mwctl_result grants[2], old = one();
	struct rc_pair *pair = &house.client[0].pair;
	struct ibv_send_wr wr[2];
	struct ibv_recv_wr empty = {.wr_id = 1}, *bad;
	struct ibv_wc wc;
	mwctl_token token;

	RC_CHECK_EQ(0, ibv_post_recv(pair->server.qp, &empty, &bad));
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send_with_inv(&pair->client, &house.client[0].local, 0, old.rkey));
	for (double limit = rc_now() + RC_DEADLINE_S;;) {
		RC_CHECK(rc_now() < limit);
		if (house.options.peer.polling == MWCTL_POLLING_OURS) {
			if (mwctl_poll_cq(house.ctx, pair->server.cq, 1, &wc) == 1)
				break;
		} else if (ibv_poll_cq(pair->server.cq, 1, &wc) == 1) {
			RC_CHECK_EQ(0, mwctl_take_wc(house.ctx, pair->server.cq, &wc));
			break;
		}
	}
	RC_CHECK_EQ(IBV_WC_RECV, wc.opcode);
	RC_CHECK_EQ(0, house_peer(&house, 0).grants);
	AWAIT_ROOM(mwctl_grant_prepare(house.ctx, two, 2, wr, grants, &token));
	commit(wr, token);
	HOUSE_WRITE_LANDS(&house, 0, 4096, grants[0].rkey, 0x13);
	end_all();
}

/* What was to bring the entries back had an unclear outcome, and nothing comes of it: the next try brings
 * them. */
static void after_an_unclear_post(void)
{
	struct ibv_qp *qp = house.client[0].pair.server.qp;
	mwctl_result grants[5];
	mwctl_request asked[5];
	struct ibv_send_wr wr[5];
	mwctl_token token;
	uint64_t unclear;

	for (int i = 0; i < 5; i++)
		asked[i] = ask(i);
	HOUSE_OK(mwctl_grant_prepare(house.ctx, asked, 4, wr, grants, &token));
	commit(wr, token);
	unclear = trouble_order(MWCTL_SIM_POST_NO_BAD_WR, qp, 1, EIO);
	trouble_order(MWCTL_SIM_LOSE_COMPLETION, qp, 1, 0);
	AWAIT_ROOM(mwctl_grant_prepare(house.ctx, asked, 5, wr, grants, &token));
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(unclear));
	commit(wr, token);
	HOUSE_WRITE_LANDS(&house, 0, 4096, grants[1].rkey, 0x14);
	end_all();
}

static void check_counts(void)
{
	mwctl_stats stats = house_stats(&house);

	RC_CHECK_EQ(stats.grants, stats.proved_invalidated + stats.proved_deallocated + stats.proved_qp_fenced +
					  stats.proved_peer_invalidated + stats.proved_never_bound);
	RC_CHECK_EQ(1, stats.proved_peer_invalidated);
}

int main(void)
{
	for (int polling = MWCTL_POLLING_OURS; polling <= MWCTL_POLLING_YOURS; polling++) {
		struct house_options options = {.clients = 1, .peer = {.budget = 2, .polling = polling}};

		house_open(&house, &options);
		for_grants();
		for_a_successor();
		for_revocations();
		given_back();
		check_counts();
		house_close(&house);
		if (mwctl_sim_present()) {
			options.peer.budget = 8;
			house_open(&house, &options);
			after_an_unclear_post();
			house_close(&house);
		}
		house_ok("room for a chain behind those that asked for no completion, polling %s",
			 polling == MWCTL_POLLING_OURS ? "ours" : "yours");
	}
	return 0;
}
