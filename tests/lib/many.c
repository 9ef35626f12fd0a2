/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Work on many grants grows with their number and no faster: deadlines hold, and calls that never
 * wait return. Each time is compared with that of granting as many, in the same run. */
#include "trouble.h"

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

int main(void)
{
	struct house_options options = {.peer.budget = 64, .domain.reserve = 2 * MANY,
					.context.timeout_us = 60000000};
	struct house_options large = {.peer.budget = MANY, .clients = 1, .domain.reserve = MANY,
				      .context.timeout_us = 60000000};

	if (!mwctl_sim_present())
		rc_skip("measures the library, not a device");
	house_open(&house, &options);
	grants_in_turns();
	transfer_begins();
	grants_end();
	house_close(&house);
	house_open(&house, &large);
	revocations_end();
	house_close(&house);
	return 0;
}
