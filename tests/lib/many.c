/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Work on many grants grows with their number and no faster: deadlines hold, and calls that never
 * wait return. Each time is compared with that of granting as many, in the same run. */
#include "trouble.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define MANY 20000

static struct house house;
static mwctl_request ask[MANY];
static mwctl_result granted[MANY];
static mwctl_move steps[MANY];
static double granting;

static void grant_all(void)
{
	double begin = rc_now();

	for (int i = 0; i < MANY; i++)
		ask[i] = house_ask(&house, 0, (uint64_t)i * 64, 64, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_batch(house.ctx, ask, MANY, 0, granted));
	granting = rc_now() - begin;
	for (int i = 0; i < MANY; i++) {
		steps[i].grant = granted[i].grant;
		steps[i].to = house_ask(&house, house.clients - 1, (uint64_t)i * 64, 64, HOUSE_WRITE);
	}
}

static void check_time(const char *what, double took)
{
	printf("%s of %d: %.3f s; granting them took %.3f s\n", what, MANY, took, granting);
	RC_CHECK(took < 4 * granting);
}

/* The call only begins it: it must not look at each pair of moves. */
static void transfer_begins(void)
{
	struct heard heard = {0};
	double begin, took;

	grant_all();
	begin = rc_now();
	HOUSE_OK(mwctl_transfer_start(house.ctx, steps, MANY, 0, MWCTL_KILL_ALLOWED, heard_done, &heard));
	took = rc_now() - begin;
	heard_await(&house, &heard);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(2 * MANY, heard.n);
	RC_CHECK_EQ(0, house_peer(&house, 0).grants);
	RC_CHECK_EQ(MANY, house_peer(&house, 1).grants);
	check_time("the beginning of a transfer", took);
	HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[1].peer, 0, 0, NULL));
	house_ok("%d moves are begun in a time that grows with their number", MANY);
}

/* Each request is another client's than the one before: the lines are not looked through at each turn. */
static void grants_in_turns(void)
{
	double begin;

	grant_all();
	HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[0].peer, 0, 0, NULL));
	for (int i = 0; i < MANY; i++)
		ask[i] = house_ask(&house, i & 1, (uint64_t)i * 64, 64, HOUSE_WRITE);
	begin = rc_now();
	HOUSE_OK(mwctl_grant_batch(house.ctx, ask, MANY, 0, granted));
	check_time("grants to two clients in turns", rc_now() - begin);
	for (int client = 0; client < 2; client++) {
		RC_CHECK_EQ(MANY / 2, house_peer(&house, client).grants);
		HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[client].peer, 0, 0, NULL));
	}
	house_ok("%d grants to two clients in turns take a time that grows with their number", MANY);
}

/* All but a few wait in line behind a queue that has stopped. */
static void grants_end(void)
{
	struct heard heard = {0};
	double begin, started, deadline;
	uint64_t stall;

	grant_all();
	HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[0].peer, 0, 0, NULL));
	stall = trouble_order(MWCTL_SIM_STALL_SQ, house.client[0].pair.server.qp, 1, 0);
	HOUSE_OK(mwctl_domain_reserve(house.ctx, house.domain, MANY));
	begin = rc_now();
	HOUSE_OK(mwctl_grant_start(house.ctx, ask, MANY, 10000, heard_done, &heard));
	started = rc_now();
	deadline = begin + 0.01 > started ? begin + 0.01 : started;
	heard_await(&house, &heard);
	RC_CHECK_EQ(MWCTL_STATUS_TIMED_OUT, heard.status);
	check_time("the beginning of grants", started - begin);
	check_time("the end, at the deadline, of grants in line", heard.at - deadline);
	trouble_release(stall);
	HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[0].peer, 0, 0, NULL));
	house_ok("%d grants in line end at their deadline in a time that grows with their number", MANY);
}

/* All of them in a queue that is stuck: what each costs at the deadline does not grow with the others. */
static void revocations_end(void)
{
	static uint64_t ids[MANY];
	struct heard heard = {0};
	double begin, started, deadline;

	grant_all();
	for (int i = 0; i < MANY; i++)
		ids[i] = granted[i].grant;
	trouble_block(&house, 0);
	begin = rc_now();
	HOUSE_OK(mwctl_revoke_start(house.ctx, ids, MANY, 200000, MWCTL_KILL_NEVER, heard_done, &heard));
	started = rc_now();
	deadline = begin + 0.2 > started ? begin + 0.2 : started;
	heard_await(&house, &heard);
	RC_CHECK_EQ(MWCTL_STATUS_OPEN, heard.status);
	check_time("the end, at the deadline, of revocations under way", heard.at - deadline);
	trouble_unblock(&house, 0);
	trouble_await_end(&house, ids[MANY - 1]);
	house_ok("%d revocations under way end at their deadline in a time that grows with their number", MANY);
}

#define PEERS 1000

static mwctl_status tick(void)
{
	return mwctl_tick(house.ctx);
}

static mwctl_status poll_other(void)
{
	struct ibv_wc wc;

	RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, house.client[1].pair.server.cq, 1, &wc));
	return MWCTL_STATUS_OK;
}

/* The best of some rounds of calls. */
static double time_of(mwctl_status (*call)(void))
{
	double best = 1e9;

	for (int round = 0; round < 20; round++) {
		double begin = rc_now();

		for (int i = 0; i < 50; i++)
			HOUSE_OK(call());
		if (rc_now() - begin < best)
			best = rc_now() - begin;
	}
	return best;
}

static void check_calls(const char *what, double few, double many)
{
	printf("50 %s: %.1f us with %d clients, %.1f us with %d more\n", what, few * 1e6, house.clients, many * 1e6,
	       PEERS);
	RC_CHECK(many < 4 * few);
}

/* One client's queue is full: that is the one that is tried again. */
static void others_go_on(void)
{
	static struct rc_pair pairs[PEERS];
	static mwctl_peer peers[PEERS];
	struct rc_options rc = {.server_pd = house.pd, .client_pd = house.client_pd, .cqe = 16};
	mwctl_result held = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	struct heard heard = {0};
	uint64_t full = trouble_order(MWCTL_SIM_FAIL_POST, house.client[0].pair.server.qp, 0, ENOMEM);
	double ticks, polls;

	HOUSE_OK(mwctl_revoke_start(house.ctx, &held.grant, 1, 0, MWCTL_KILL_NEVER, heard_done, &heard));
	ticks = time_of(tick);
	polls = time_of(poll_other);
	for (int i = 0; i < PEERS; i++) {
		rc_pair_open(&pairs[i], &house.device, &rc);
		HOUSE_OK(mwctl_peer_attach(house.ctx, house.domain, pairs[i].server.qp, NULL, 0, &peers[i]));
	}
	check_calls("ticks", ticks, time_of(tick));
	check_calls("polls", polls, time_of(poll_other));
	RC_CHECK_EQ(0, heard.calls);
	trouble_release(full);
	heard_await(&house, &heard);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	for (int i = 0; i < PEERS; i++) {
		HOUSE_OK(mwctl_peer_detach(house.ctx, peers[i], 0));
		rc_pair_close(&pairs[i]);
	}
	house_ok("what one client's full queue costs the others does not grow with their number");
}

int main(void)
{
	struct house_options options = {.peer.budget = 64, .domain.reserve = 2 * MANY,
					.context.timeout_us = 60000000};
	struct house_options few = {.context.timeout_us = 60000000};
	struct house_options large = {.peer.budget = MANY, .clients = 1, .domain.reserve = MANY,
				      .context.timeout_us = 60000000};

	if (!mwctl_sim_present())
		rc_skip("measures the library, not a device");
	house_open(&house, &options);
	grants_in_turns();
	transfer_begins();
	grants_end();
	house_close(&house);
	house_open(&house, &few);
	others_go_on();
	house_close(&house);
	house_open(&house, &large);
	revocations_end();
	house_close(&house);
	return 0;
}
