/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Transfers at their deadline: what did not get its turn in time is not bound any more, and what
 * waits for an operation that has ended never speaks to the next one. */
#define _GNU_SOURCE
#include "trouble.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct house house;

/* What to do once, at the library's next look at this queue pair. */
static struct {
	struct ibv_qp *_Atomic qp;
	void (*run)(uint64_t *grant);
	uint64_t *grant;
} at_query;

/* Stands in for libibverbs' own, in the library as well. */
int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init_attr)
{
	static int (*real)(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *);
	struct ibv_qp *armed = qp;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "ibv_query_qp");
	if (atomic_compare_exchange_strong(&at_query.qp, &armed, NULL))
		at_query.run(at_query.grant);
	return real(qp, attr, attr_mask, init_attr);
}

static mwctl_move move(const mwctl_result *old, int to, uint64_t offset)
{
	return (mwctl_move){.grant = old->grant, .to = house_ask(&house, to, offset, 4096, HOUSE_WRITE)};
}

/* One whole transfer from client 1 to client 3: both rules on the way, and the new right at the end. */
static void check_handover(const mwctl_result *old)
{
	mwctl_move step = move(old, 3, 8192);
	mwctl_result out[2];

	HOUSE_WRITE_LANDS(&house, 1, 8192, old->rkey, 0x31);
	HOUSE_OK(mwctl_transfer(house.ctx, &step, 1, 0, MWCTL_KILL_NEVER, out));
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out[1].proof);
	HOUSE_WRITE_FAILS(&house, 1, 8192, old->rkey, 0x32);
	HOUSE_WRITE_LANDS(&house, 3, 8192, out[0].rkey, 0x33);
	HOUSE_OK(mwctl_revoke(house.ctx, out[0].grant, 0, NULL));
	house_leave(&house, 1);
	house_join(&house, 1);
}

/* The proof comes, but the new right's turn only after the deadline. The next transfer, in the same
 * slot, must wait for a proof of its own. */
static void turn_too_late(void)
{
	mwctl_result first = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	mwctl_result second = house_grant(&house, 1, 8192, 4096, HOUSE_WRITE), out[2];
	mwctl_move step = move(&first, 2, 0);
	uint64_t stall;

	HOUSE_STATUS(MWCTL_STATUS_NOT_POSTED, mwctl_transfer(house.ctx, &step, 1, 1, MWCTL_KILL_NEVER, out));
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out[1].proof);
	RC_CHECK_EQ(0, out[0].grant);
	RC_CHECK_EQ(0, out[0].rkey);

	stall = trouble_order(MWCTL_SIM_STALL_SQ, house.client[1].pair.server.qp, 1, 0);
	step = move(&second, 3, 8192);
	HOUSE_STATUS(MWCTL_STATUS_NOT_POSTED, mwctl_transfer(house.ctx, &step, 1, 50000, MWCTL_KILL_NEVER, out));
	RC_CHECK_EQ(MWCTL_STATUS_OPEN, out[1].status);
	RC_CHECK_EQ(MWCTL_PROOF_NONE, out[1].proof);
	RC_CHECK_EQ(0, out[0].rkey);
	for (int client = 2; client < 4; client++)
		RC_CHECK_EQ(0, house_peer(&house, client).grants);
	HOUSE_WRITE_LANDS(&house, 1, 8192, second.rkey, 0x21);
	trouble_release(stall);
	trouble_await_end(&house, second.grant);
	second = house_grant(&house, 1, 8192, 4096, HOUSE_WRITE);
	check_handover(&second);
	house_check_misuse();
	house_ok("a turn that came too late is not taken in the next transfer");
}

static struct heard moved, revoked;

/* Ends the transfer, and begins the revocation of this grant, if any, in its slot. */
static void *tick_until_moved(void *grant)
{
	double limit = rc_now() + RC_DEADLINE_S;

	while (!atomic_load(&moved.calls)) {
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	if (grant)
		HOUSE_OK(mwctl_revoke_start(house.ctx, grant, 1, 50000, MWCTL_KILL_NEVER, heard_done, &revoked));
	return NULL;
}

/* Another thread lets the deadline pass, while this one is about to bind. */
static void let_it_pass(uint64_t *grant)
{
	pthread_t thread;

	RC_CHECK_EQ(0, pthread_create(&thread, NULL, tick_until_moved, grant));
	RC_CHECK_EQ(0, pthread_join(thread, NULL));
}

/* Client 0's range is to go to client 2. The proof is there, and the transfer ends NOT_POSTED
 * between the last look at it and the bind; the revocation of `next`, if any, comes after it. */
static void pass_while_binding(const mwctl_result *old, uint64_t *next)
{
	struct ibv_qp *qp = house.client[2].pair.server.qp;
	struct ibv_async_event event = {.event_type = IBV_EVENT_QP_ACCESS_ERR, .element.qp = qp};
	mwctl_move step = move(old, 2, 0);
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;

	memset(&moved, 0, sizeof(moved));
	HOUSE_OK(mwctl_transfer_start(house.ctx, &step, 1, 1000000, MWCTL_KILL_NEVER, heard_done, &moved));
	/* After an event like this one the queue pair is looked at before it is bound to. */
	HOUSE_OK(mwctl_take_async_event(house.ctx, &event));
	at_query.run = let_it_pass;
	at_query.grant = next;
	atomic_store(&at_query.qp, qp);
	while (!moved.calls) {
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, &wc));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK(atomic_load(&at_query.qp) == NULL);
	RC_CHECK_EQ(1, moved.calls);
	RC_CHECK_EQ(MWCTL_STATUS_NOT_POSTED, moved.results[0].status);
	RC_CHECK_EQ(0, moved.results[0].grant);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, moved.results[1].proof);
}

/* Whoever was told NOT_POSTED holds nothing. */
static void ended_while_binding(void)
{
	mwctl_result old = house_grant(&house, 0, 0, 4096, HOUSE_WRITE), next;
	uint64_t binds = house_stats(&house).binds_posted;

	pass_while_binding(&old, NULL);
	RC_CHECK_EQ(0, house_peer(&house, 2).grants);
	RC_CHECK_EQ(binds, house_stats(&house).binds_posted);
	RC_CHECK_EQ(0, house_peer(&house, 2).used);
	next = house_grant(&house, 2, 0, 4096, HOUSE_WRITE);
	HOUSE_WRITE_LANDS(&house, 2, 0, next.rkey, 0x41);
	HOUSE_OK(mwctl_revoke(house.ctx, next.grant, 0, NULL));
	HOUSE_WRITE_FAILS(&house, 0, 0, old.rkey, 0x42);
	house_leave(&house, 0);
	house_join(&house, 0);
	house_check_misuse();
	house_ok("a transfer that ends while its bind is being made: nothing is bound");
}

/* Another client's revocation has the slot by then: neither that bind nor its completion is a
 * proof of it. */
static void the_next_in_the_slot(void)
{
	mwctl_result old = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	mwctl_result held = house_grant(&house, 1, 8192, 4096, HOUSE_WRITE);
	uint64_t stall = trouble_order(MWCTL_SIM_STALL_SQ, house.client[1].pair.server.qp, 1, 0);
	struct ibv_wc wc;

	memset(&revoked, 0, sizeof(revoked));
	pass_while_binding(&old, &held.grant);
	RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, house.client[2].pair.server.cq, 1, &wc));
	heard_await(&house, &revoked);
	RC_CHECK_EQ(MWCTL_STATUS_OPEN, revoked.status);
	RC_CHECK_EQ(MWCTL_PROOF_NONE, revoked.results[0].proof);
	RC_CHECK_EQ(held.grant, revoked.results[0].grant);
	RC_CHECK_EQ(0, house_peer(&house, 2).grants);
	HOUSE_WRITE_LANDS(&house, 1, 8192, held.rkey, 0x51);
	trouble_release(stall);
	trouble_await_end(&house, held.grant);
	HOUSE_WRITE_FAILS(&house, 1, 8192, held.rkey, 0x52);
	for (int client = 0; client < 2; client++) {
		house_leave(&house, client);
		house_join(&house, client);
	}
	held = house_grant(&house, 1, 8192, 4096, HOUSE_WRITE);
	check_handover(&held);
	house_check_misuse();
	house_ok("what is left of an ended operation does not end the next one in its slot");
}

struct inside {
	uint64_t waited_for;
	int calls;
};

/* Called while the other call still waits: its grant has not been given up yet. */
static void on_done_inside(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct inside *inside = user;
	mwctl_grant_info info;

	(void)results;
	RC_CHECK_EQ(MWCTL_STATUS_OK, status);
	RC_CHECK_EQ(1, n);
	HOUSE_OK(mwctl_grant_info_get(house.ctx, inside->waited_for, &info, sizeof(info)));
	RC_CHECK_EQ(1, info.revoking);
	RC_CHECK_EQ(0, info.uncertain);
	inside->calls++;
}

/* A callback does not wait for another client's trouble. */
static void heard_while_waiting(void)
{
	mwctl_result stuck = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	mwctl_result other = house_grant(&house, 1, 8192, 4096, HOUSE_WRITE), out;
	struct inside inside = {.waited_for = stuck.grant};

	trouble_block(&house, 0);
	trouble_block(&house, 1);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &other.grant, 1, 20000, MWCTL_KILL_ALLOWED, on_done_inside,
				    &inside));
	HOUSE_STATUS(MWCTL_STATUS_OPEN, mwctl_revoke_batch(house.ctx, &stuck.grant, 1, 1000000,
							   MWCTL_KILL_NEVER, &out));
	RC_CHECK_EQ(1, inside.calls);
	trouble_unblock(&house, 0);
	HOUSE_OK(mwctl_revoke(house.ctx, stuck.grant, 0, &out));
	for (int client = 0; client < 2; client++) {
		house_leave(&house, client);
		house_join(&house, client);
	}
	house_check_misuse();
	house_ok("an operation that ends during another's long wait is told of at once");
}

int main(void)
{
	struct house_options options = {.clients = 4};

	house_open(&house, &options);
	ended_while_binding();
	heard_while_waiting();
	if (mwctl_sim_present()) {
		turn_too_late();
		the_next_in_the_slot();
	} else {
		printf("skipped on %s: what stalls a queue without a retry\n", house.device.label);
	}
	house_close(&house);
	return 0;
}
