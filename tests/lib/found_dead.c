/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A queue pair that went to ERR by itself, and of which no completion told: whoever finds it so says so,
 * once. */
#include "trouble.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#define MANY 400

static struct house house;
static int killed, dead;
static uint64_t whose;

static void on_event(void *user, const mwctl_event *event)
{
	(void)user;
	killed += event->kind == MWCTL_EVENT_KIND_PEER_KILLED;
	dead += event->kind == MWCTL_EVENT_KIND_PEER_DEAD;
	whose = event->peer;
}

static void check_told_once(int as_killed, uint64_t other)
{
	mwctl_result out;

	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(as_killed, killed);
	RC_CHECK_EQ(!as_killed, dead);
	RC_CHECK_EQ(house.client[0].peer.id, whose);
	RC_CHECK_EQ(2, house_peer(&house, 0).life);
	/* What is found later is no news. */
	HOUSE_OK(mwctl_revoke(house.ctx, other, 0, &out));
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, out.proof);
	house_leave(&house, 0);
	RC_CHECK_EQ(1, killed + dead);
	killed = dead = 0;
	house_join(&house, 0);
}

/* Deallocation needs no request: the look shows it. */
static void by_a_deallocation(void)
{
	mwctl_result right = house_grant(&house, 0, 0, 4096, HOUSE_WRITE), out;
	uint64_t other = house_grant(&house, 0, 4096, 4096, HOUSE_WRITE).grant;

	rc_qp_modify(house.client[0].pair.server.qp, IBV_QPS_ERR);
	HOUSE_OK(mwctl_peer_stuck(house.ctx, house.client[0].peer));
	HOUSE_OK(mwctl_revoke(house.ctx, right.grant, 0, &out));
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, out.proof);
	check_told_once(0, other);
	house_ok("a dead client is told when its window is deallocated");
}

/* The LOCAL_INV is flushed without a completion, as by mlx5; `dies` or not, the deadline ends it. */
static void by_a_deadline(bool dies)
{
	mwctl_result right = house_grant(&house, 0, 0, 4096, HOUSE_WRITE), out;
	uint64_t other = house_grant(&house, 0, 4096, 4096, HOUSE_WRITE).grant, lost;
	struct ibv_qp *qp = house.client[0].pair.server.qp;

	if (dies)
		rc_qp_modify(qp, IBV_QPS_ERR);
	lost = trouble_order(MWCTL_SIM_LOSE_COMPLETION, qp, 0, 0);
	HOUSE_OK(mwctl_revoke(house.ctx, right.grant, 50000, &out));
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, out.proof);
	trouble_release(lost);
	check_told_once(!dies, other);
	house_ok("a client that %s is told at the deadline", dies ? "was dead" : "the deadline kills");
}

/* The provider takes no requests of a queue pair in error. */
static void by_a_post(void)
{
	uint64_t other = house_grant(&house, 0, 4096, 4096, HOUSE_WRITE).grant, fault;
	mwctl_request ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	struct ibv_qp *qp = house.client[0].pair.server.qp;
	mwctl_result out;

	rc_qp_modify(qp, IBV_QPS_ERR);
	fault = trouble_order(MWCTL_SIM_FAIL_POST, qp, 0, EINVAL);
	HOUSE_STATUS(MWCTL_STATUS_POST_FAILED, mwctl_grant(house.ctx, &ask, 0, &out));
	RC_CHECK_EQ(0, out.grant);
	trouble_release(fault);
	check_told_once(0, other);
	house_ok("a dead client is told when a post is refused");
}

static atomic_int ended, untold;
static atomic_bool ticking, over;

static void on_end(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	(void)user, (void)results;
	RC_CHECK_EQ(MWCTL_STATUS_BIND_FAILED, status);
	RC_CHECK_EQ(1, n);
	untold += !dead;
	ended++;
}

static void *tick_on(void *unused)
{
	for (; !over; ticking = true)
		HOUSE_OK(mwctl_tick(house.ctx));
	return unused;
}

/* Many grants end with the client while another thread calls back: the event comes before each. */
static void before_the_ends(void)
{
	struct house_options options = {.clients = 1, .context.on_event = on_event, .domain.reserve = MANY + 8,
					.peer.budget = MANY};
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc = {.wr_id = 1, .status = IBV_WC_WR_FLUSH_ERR};
	struct rc_pair *pair;
	mwctl_request ask;
	pthread_t ticks;

	house_open(&house, &options);
	pair = &house.client[0].pair;
	trouble_block(&house, 0);
	for (unsigned long i = 0; i < MANY; i++) {
		ask = house_ask(&house, 0, i * 64, 64, HOUSE_WRITE);
		HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, on_end, NULL));
	}
	rc_qp_modify(pair->server.qp, IBV_QPS_ERR);
	wc.qp_num = pair->server.qp->qp_num;
	RC_CHECK_EQ(0, mwctl_take_wc(house.ctx, pair->server.cq, &wc));
	RC_CHECK_EQ(0, pthread_create(&ticks, NULL, tick_on, NULL));
	while (!ticking)
		RC_CHECK(rc_now() < limit);
	/* This call looks at the queue pair, and calls nobody back. */
	HOUSE_STATUS(MWCTL_STATUS_PEER_DEAD, mwctl_grant_start(house.ctx, &ask, 1, 0, on_end, NULL));
	while (ended < MANY)
		RC_CHECK(rc_now() < limit);
	over = true;
	RC_CHECK_EQ(0, pthread_join(ticks, NULL));
	RC_CHECK_EQ(1, dead);
	RC_CHECK_EQ(0, untold);
	house_leave(&house, 0);
	house_close(&house);
	house_ok("that a client is dead is told before the ends that it leads to");
}

int main(void)
{
	struct house_options options = {.clients = 1, .context.on_event = on_event};

	house_open(&house, &options);
	by_a_deallocation();
	if (mwctl_sim_present()) {
		by_a_deadline(true);
		by_a_deadline(false);
		by_a_post();
	} else {
		printf("skipped on %s: completions that are lost\n", house.device.label);
	}
	house_close(&house);
	if (mwctl_sim_present())
		before_the_ends();
	return 0;
}
