/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Many threads grant, use and revoke while peers come and go. Takes the seconds to run as its
 * argument. */
#include "house.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS = 8, STEADY = 4, GUESTS = 2 };

static struct house house;
static atomic_bool stop;
static atomic_long grants, refused, batches, callbacks, started, visits, writes;
/* A guest's peer id, 0 while it is away. */
static _Atomic uint64_t guest[GUESTS];

static void on_done(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	(void)user;
	(void)results;
	RC_CHECK(n == 0 || status != MWCTL_STATUS_PENDING);
	atomic_fetch_add(&callbacks, 1);
}

static unsigned int next(unsigned int *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

/* What a call may answer about a peer that comes and goes. */
static bool gone(mwctl_status status)
{
	return status == MWCTL_STATUS_STALE_ID || status == MWCTL_STATUS_PEER_LEAVING ||
	       status == MWCTL_STATUS_PEER_DEAD || status == MWCTL_STATUS_BIND_FAILED;
}

static void guest_work(unsigned int *random)
{
	mwctl_request ask = house_ask(&house, 0, (next(random) % 1000) * 64, 64, HOUSE_WRITE);
	mwctl_result result;
	mwctl_status status;
	uint64_t found;
	size_t n;

	ask.peer.id = atomic_load(&guest[next(random) % GUESTS]);
	if (!ask.peer.id)
		return;
	status = mwctl_grant(house.ctx, &ask, 0, &result);
	if (status != MWCTL_STATUS_OK) {
		RC_CHECK(gone(status));
		atomic_fetch_add(&refused, 1);
		return;
	}
	atomic_fetch_add(&grants, 1);
	status = mwctl_peer_grants(house.ctx, ask.peer, &found, 1, &n);
	RC_CHECK(status == MWCTL_STATUS_OK || gone(status));
	status = mwctl_revoke(house.ctx, result.grant, 0, NULL);
	RC_CHECK(status == MWCTL_STATUS_OK || gone(status));
}

static void *work(void *user)
{
	int me = (int)(intptr_t)user, client = me % STEADY;
	unsigned int random = me * 7919 + 1;
	uint64_t base = (uint64_t)me << 16;

	while (!atomic_load(&stop)) {
		mwctl_request ask[16];
		mwctl_result result[16];
		uint64_t ids[16], found;
		int n = 1 + next(&random) % 16;

		for (int i = 0; i < n; i++)
			ask[i] = house_ask(&house, client, base + i * 64, 64, HOUSE_WRITE);
		HOUSE_OK(mwctl_grant_batch(house.ctx, ask, n, 0, result));
		for (int i = 0; i < n; i++) {
			ids[i] = result[i].grant;
			HOUSE_OK(mwctl_check(house.ctx, house.domain,
					     house.client[client].pair.server.qp->qp_num, ask[i].addr, 64,
					     HOUSE_WRITE, &found));
			RC_CHECK_EQ(ids[i], found);
		}
		/* One thread a client writes; its local memory is its own. */
		if (me < STEADY) {
			HOUSE_WRITE_LANDS(&house, client, base, result[0].rkey, (uint8_t)(random | 1));
			atomic_fetch_add(&writes, 1);
		}
		if (next(&random) % 4 == 0) {
			HOUSE_OK(mwctl_revoke_start(house.ctx, ids, n, 0, MWCTL_KILL_ALLOWED, on_done, NULL));
			atomic_fetch_add(&started, 1);
		} else {
			HOUSE_OK(mwctl_revoke_batch(house.ctx, ids, n, 0, MWCTL_KILL_ALLOWED, result));
			for (int i = 0; i < n; i++)
				RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, result[i].proof);
			HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_revoke(house.ctx, ids[0], 0, NULL));
		}
		atomic_fetch_add(&grants, n);
		atomic_fetch_add(&batches, 1);
		guest_work(&random);
		if (me == 0)
			HOUSE_OK(mwctl_tick(house.ctx));
	}
	return NULL;
}

/* Guests attach, are given rights by everybody, and leave. */
static void *come_and_go(void *user)
{
	(void)user;
	while (!atomic_load(&stop)) {
		for (int i = 0; i < GUESTS; i++) {
			struct house_client *it = &house.client[STEADY + i];

			if (it->peer.id) {
				atomic_store(&guest[i], 0);
				HOUSE_OK(mwctl_peer_detach(house.ctx, it->peer, 0));
				rc_pair_close(&it->pair);
				it->peer.id = 0;
			} else {
				house_join(&house, STEADY + i);
				atomic_store(&guest[i], it->peer.id);
				atomic_fetch_add(&visits, 1);
			}
		}
		sched_yield();
	}
	return NULL;
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 2, until;
	struct house_options options = {.clients = STEADY + GUESTS, .context.timeout_us = 60000000};
	pthread_t thread[WORKERS + 1];
	struct ibv_wc wc;

	house_open(&house, &options);
	for (int i = 0; i < GUESTS; i++)
		atomic_store(&guest[i], house.client[STEADY + i].peer.id);
	for (int i = 0; i < WORKERS; i++)
		RC_CHECK_EQ(0, pthread_create(&thread[i], NULL, work, (void *)(intptr_t)i));
	RC_CHECK_EQ(0, pthread_create(&thread[WORKERS], NULL, come_and_go, NULL));
	for (until = rc_now() + seconds; rc_now() < until;)
		rc_pause(10);
	atomic_store(&stop, true);
	for (int i = 0; i <= WORKERS; i++)
		pthread_join(thread[i], NULL);
	until = rc_now() + RC_DEADLINE_S;
	while (callbacks < started) {
		for (int i = 0; i < STEADY; i++)
			RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, house.client[i].pair.server.cq, 1, &wc));
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < until);
	}
	RC_CHECK_EQ(started, callbacks);
	RC_CHECK(batches > 0 && writes > 0 && visits > 0);
	house_ok("%ld grants in %ld batches, %ld callbacks for %ld calls, %ld visits, %ld refused, %ld writes",
		 grants, batches, callbacks, started, visits, refused, writes);
	house_close(&house);
	return 0;
}
