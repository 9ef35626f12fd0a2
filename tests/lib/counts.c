/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What is out is counted right, also when a client dies with requests out: windows, chains and
 * completions that come after the end. */
#include "trouble.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

static struct house house;
static int dead;

static void on_event(void *user, const mwctl_event *event)
{
	(void)user;
	dead += event->kind == MWCTL_EVENT_KIND_PEER_DEAD;
}

/* A bind that is posted and unconfirmed. */
static mwctl_result post_bind(int client, uint64_t offset)
{
	mwctl_request ask = house_ask(&house, client, offset, 4096, HOUSE_WRITE);
	struct ibv_send_wr wr, *bad = NULL;
	mwctl_result grant;
	mwctl_token token;
	int ret;

	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &wr, &grant, &token));
	ret = ibv_post_send(house.client[client].pair.server.qp, &wr, &bad);
	RC_CHECK_EQ(0, ret);
	HOUSE_OK(mwctl_commit(house.ctx, token, ret, bad, NULL));
	return grant;
}

/* Nobody polls, nothing is flushed to the library: it finds out when it is asked for a grant. */
static void die_unseen(int client)
{
	struct ibv_qp *qp = house.client[client].pair.server.qp;
	struct ibv_async_event event = {.event_type = IBV_EVENT_QP_ACCESS_ERR, .element.qp = qp};
	mwctl_request ask = house_ask(&house, client, 4096, 64, HOUSE_WRITE);
	mwctl_result out;

	rc_qp_modify(qp, IBV_QPS_ERR);
	HOUSE_OK(mwctl_take_async_event(house.ctx, &event));
	HOUSE_STATUS(MWCTL_STATUS_PEER_DEAD, mwctl_grant(house.ctx, &ask, 0, &out));
	RC_CHECK_EQ(0, out.grant);
	RC_CHECK_EQ(2, house_peer(&house, client).life);
}

static void rejoin(int client)
{
	house_leave(&house, client);
	house_join(&house, client);
}

/* How many grants go by before each window had its turn. */
static int whole_round(void)
{
	mwctl_domain_info info;

	HOUSE_OK(mwctl_domain_info_get(house.ctx, house.domain, &info, sizeof(info)));
	HOUSE_OK(mwctl_domain_reserve(house.ctx, house.domain, (uint32_t)info.ready + 8));
	return (int)info.windows + 16;
}

/* The windows of a client that died unseen come round again: a posted bind counts as posted. */
static void posted_is_posted(void)
{
	mwctl_result grant = post_bind(0, 0);
	int rounds;

	RC_CHECK(grant.rkey != 0);
	die_unseen(0);
	rejoin(0);
	rounds = whole_round();
	for (int i = 0; i < rounds; i++) {
		uint64_t found = 0;

		grant = post_bind(1, 65536);
		HOUSE_OK(mwctl_check(house.ctx, house.domain, house.client[1].pair.server.qp->qp_num,
				     house.memory.addr + 65536, 64, HOUSE_WRITE, &found));
		RC_CHECK_EQ(grant.grant, found);
		HOUSE_OK(mwctl_revoke(house.ctx, grant.grant, 0, &grant));
		RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, grant.proof);
	}
	HOUSE_WRITE_FAILS(&house, 1, 65536, grant.rkey, 0x11);
	rejoin(1);
	house_check_misuse();
	house_ok("a client died with a bind out: in the next hands its window's binds count");
}

static uint64_t binds_done(void)
{
	struct mwctl_sim_counters counters;

	RC_CHECK_EQ(0, mwctl_sim_counters_get(&counters, sizeof(counters)));
	return counters.mw_binds;
}

/* The same windows behind a stuck queue: what is posted is never said to be not bound. */
static void not_never_bound(void)
{
	mwctl_result grant = post_bind(0, 0), out;
	int rounds;

	die_unseen(0);
	rejoin(0);
	rounds = whole_round();
	for (int i = 0; i < rounds; i++) {
		uint64_t before = binds_done();
		uint64_t stall = trouble_order(MWCTL_SIM_STALL_SQ, house.client[1].pair.server.qp, 1, 0);

		grant = post_bind(1, 65536);
		HOUSE_OK(mwctl_peer_stuck(house.ctx, house.client[1].peer));
		HOUSE_STATUS(MWCTL_STATUS_OPEN,
			     mwctl_revoke_batch(house.ctx, &grant.grant, 1, 1000, MWCTL_KILL_NEVER, &out));
		RC_CHECK_EQ(MWCTL_PROOF_NONE, out.proof);
		RC_CHECK_EQ(before, binds_done());
		/* Open it was: the bind takes place after that answer. */
		trouble_release(stall);
		RC_CHECK_EQ(before + 1, binds_done());
		trouble_await_end(&house, grant.grant);
	}
	out = house_grant(&house, 1, 65536, 4096, HOUSE_WRITE);
	HOUSE_WRITE_LANDS(&house, 1, 65536, out.rkey, 0x12);
	HOUSE_WRITE_FAILS(&house, 1, 65536, grant.rkey, 0x13);
	rejoin(1);
	house_check_misuse();
	house_ok("… and behind a stuck queue no posted bind passes for one that never was");
}

/* What was out ends when the death is found, not at its deadline. */
static void out_when_found_dead(void)
{
	mwctl_request ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);
	mwctl_result good = house_grant(&house, 1, 65536, 4096, HOUSE_WRITE);
	uint64_t lost = trouble_order(MWCTL_SIM_LOSE_COMPLETION, house.client[0].pair.server.qp, 1, 0);
	struct heard heard = {0};
	int before = dead;

	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 600000000, heard_done, &heard));
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(lost));
	trouble_release(lost);
	die_unseen(0);
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(before + 1, dead);
	RC_CHECK_EQ(1, heard.calls);
	RC_CHECK(heard.status != MWCTL_STATUS_OK);
	RC_CHECK_EQ(0, heard.results[0].rkey);
	HOUSE_WRITE_LANDS(&house, 1, 65536, good.rkey, 0x21);
	HOUSE_OK(mwctl_revoke(house.ctx, good.grant, 0, NULL));
	rejoin(0);
	house_ok("what a dead client has out ends when its death is found");
}

/* Clients come and go while nobody polls their queue, more chains than the library keeps numbers
 * of: all of their completions are still recognised, and the application's among them. */
static void late_ones(void)
{
	enum { CHAINS = 250, CLIENTS = 80 };
	struct rc_options rc = {.max_send_wr = CHAINS + 10};
	mwctl_peer_options options = {.budget = CHAINS};
	struct ibv_cq *cq = ibv_create_cq(house.device.context, CLIENTS * (CHAINS + 10), NULL, NULL, 0);
	struct heard heard = {0};
	uint64_t before = house_stats(&house).late_completions;
	struct ibv_qp *near[CLIENTS], *far[CLIENTS];
	int theirs = 0, n;
	struct ibv_wc wc[64];

	RC_CHECK(cq);
	for (int i = 0; i < CLIENTS; i++) {
		struct ibv_send_wr own = {.wr_id = (uint64_t)(1000 + i), .opcode = IBV_WR_RDMA_WRITE,
					  .send_flags = IBV_SEND_SIGNALED};
		mwctl_request ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);

		near[i] = rc_qp_create(house.pd, cq, &rc);
		far[i] = rc_qp_create(house.client_pd, house.client[0].pair.client.cq, &rc);
		rc_qp_connect(&house.device, near[i], far[i]->qp_num, &rc);
		rc_qp_connect(&house.device, far[i], near[i]->qp_num, &rc);
		HOUSE_OK(mwctl_peer_attach(house.ctx, house.domain, near[i], &options, sizeof(options), &ask.peer));
		HOUSE_OK(mwctl_domain_reserve(house.ctx, house.domain, CHAINS));
		for (int chain = 0; chain < CHAINS; chain++)
			HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 600000000, heard_done, &heard));
		rc_post(near[i], &own);
		rc_qp_modify(near[i], IBV_QPS_ERR);
		HOUSE_OK(mwctl_peer_gone(house.ctx, ask.peer, 0));
		HOUSE_OK(mwctl_tick(house.ctx));
	}
	RC_CHECK_EQ(CLIENTS * CHAINS, heard.calls);
	while ((n = mwctl_poll_cq(house.ctx, cq, 64, wc)) > 0)
		for (int i = 0; i < n; i++)
			RC_CHECK_EQ(1000 + theirs++, wc[i].wr_id);
	RC_CHECK_EQ(0, n);
	RC_CHECK_EQ(CLIENTS, theirs);
	RC_CHECK_EQ(CLIENTS * CHAINS, house_stats(&house).late_completions - before);
	/* A queue pair takes the completions that are still there with it: only now. */
	for (int i = 0; i < CLIENTS; i++) {
		RC_CHECK_EQ(0, ibv_destroy_qp(far[i]));
		RC_CHECK_EQ(0, ibv_destroy_qp(near[i]));
	}
	RC_CHECK_EQ(0, ibv_destroy_cq(cq));
	house_ok("%d completions after their clients' end: none is taken for the application's", CLIENTS * CHAINS);
}

static size_t heap(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

/* A server tries again and again to grant to a client whose queue does not move. */
static void tried_again(void)
{
	enum { TRIES = 20000 };
	mwctl_request ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	uint64_t stall = trouble_order(MWCTL_SIM_STALL_SQ, house.client[0].pair.server.qp, 1, 0);
	uint32_t budget = house_peer(&house, 0).budget;
	struct heard heard = {0};
	mwctl_result out;
	size_t before = 0;

	for (int i = 0; i < TRIES + 1000; i++) {
		if (i == 1000)
			before = heap();
		HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 1, heard_done, &heard));
		while (heard.calls <= i)
			HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(heard.status == MWCTL_STATUS_TIMED_OUT || heard.status == MWCTL_STATUS_POOL_EMPTY);
	}
	RC_CHECK(heap() < before + TRIES);
	/* Those that were posted are open; the others are not there any more. */
	RC_CHECK_EQ(budget, house_peer(&house, 0).grants);
	trouble_release(stall);
	out = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	HOUSE_WRITE_LANDS(&house, 0, 0, out.rkey, 0x31);
	HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[0].peer, 0, MWCTL_KILL_ALLOWED, NULL));
	HOUSE_WRITE_FAILS(&house, 0, 0, out.rkey, 0x32);
	rejoin(0);
	house_check_misuse();
	house_ok("%d grants that timed out behind a stuck queue leave nothing in its line", TRIES);
}

int main(void)
{
	struct house_options options = {.context.on_event = on_event};

	house_open(&house, &options);
	posted_is_posted();
	if (mwctl_sim_present()) {
		not_never_bound();
		out_when_found_dead();
		late_ones();
		tried_again();
	} else {
		printf("skipped on %s: what needs a stalled queue, a lost completion, or a long queue\n",
		       house.device.label);
	}
	house_close(&house);
	return 0;
}
