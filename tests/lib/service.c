/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The service thread keeps deadlines for a program without a loop; a queue pair whose locks are
 * off is touched by its owner alone. */
#include "house.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

static struct house house;
static struct rc_memory blocker;

struct heard {
	atomic_int calls;
	atomic_int status;
	atomic_int proof;
	pthread_t thread;
};

static void on_done(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct heard *heard = user;

	heard->status = status;
	heard->proof = n ? results[0].proof : -1;
	heard->thread = pthread_self();
	atomic_fetch_add(&heard->calls, 1);
}

static void await_call(struct heard *heard)
{
	double limit = rc_now() + RC_DEADLINE_S;

	while (!atomic_load(&heard->calls)) {
		RC_CHECK(rc_now() < limit);
		rc_pause(1);
	}
}

static void block(int client)
{
	struct ibv_sge sge = {.addr = (uintptr_t)blocker.at, .length = 16, .lkey = blocker.mr->lkey};
	struct ibv_send_wr send = {.wr_id = 500, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED};

	rc_post(house.client[client].pair.server.qp, &send);
}

static void stop_inside(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	HOUSE_STATUS(MWCTL_STATUS_WOULD_DEADLOCK, mwctl_service_stop(house.ctx));
	on_done(user, status, results, n);
}

/* Nobody calls: the deadline passes all the same. */
static void without_a_loop(void)
{
	mwctl_result held = house_grant(&house, 0, 0, 64, HOUSE_WRITE), good = house_grant(&house, 1, 64, 64, HOUSE_WRITE);
	struct heard heard = {0}, again = {0};

	HOUSE_OK(mwctl_service_start(house.ctx));
	HOUSE_STATUS(MWCTL_STATUS_ALREADY_ATTACHED, mwctl_service_start(house.ctx));
	block(0);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &held.grant, 1, 30000, MWCTL_KILL_ALLOWED, on_done, &heard));
	await_call(&heard);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, heard.proof);
	RC_CHECK(!pthread_equal(pthread_self(), heard.thread));
	HOUSE_WRITE_FAILS(&house, 0, 0, held.rkey, 0x11);
	HOUSE_WRITE_LANDS(&house, 1, 64, good.rkey, 0x12);
	/* A dead peer's grants need nobody's polls. */
	held = house_grant(&house, 1, 128, 64, HOUSE_WRITE);
	rc_qp_modify(house.client[1].pair.server.qp, IBV_QPS_ERR);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &held.grant, 1, 30000, MWCTL_KILL_ALLOWED, stop_inside, &again));
	await_call(&again);
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, again.proof);
	HOUSE_OK(mwctl_service_stop(house.ctx));
	HOUSE_OK(mwctl_service_stop(house.ctx));
	for (int i = 0; i < 2; i++) {
		house_leave(&house, i);
		house_join(&house, i);
	}
	house_ok("deadlines hold with the service thread and no loop");
}

/* What makes the event fd readable may be for the application's threads: it stays so until one of them
 * ticks, whatever the service thread does. */
static void event_fd_is_the_programs(void)
{
	mwctl_result held = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	struct pollfd event = {.fd = mwctl_event_fd(house.ctx), .events = POLLIN};
	struct heard heard = {0};

	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(0, poll(&event, 1, 0));
	HOUSE_OK(mwctl_service_start(house.ctx));
	rc_qp_modify(house.client[0].pair.server.qp, IBV_QPS_ERR);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &held.grant, 1, 30000, MWCTL_KILL_ALLOWED, on_done, &heard));
	await_call(&heard);
	HOUSE_OK(mwctl_service_stop(house.ctx));
	RC_CHECK_EQ(1, poll(&event, 1, 0));
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(0, poll(&event, 1, 0));
	house_leave(&house, 0);
	house_join(&house, 0);
	house_ok("the event fd is the program's, with the service thread as well");
}

static struct {
	atomic_bool inside, go_on, out;
	atomic_int begun;
} stopping;

/* A callback that takes its time, on the service thread. */
static void linger(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	atomic_store(&stopping.inside, true);
	while (!atomic_load(&stopping.go_on))
		rc_pause(1);
	HOUSE_STATUS(MWCTL_STATUS_WOULD_DEADLOCK, mwctl_service_stop(house.ctx));
	on_done(user, status, results, n);
	atomic_store(&stopping.out, true);
}

static void *stop(void *nothing)
{
	atomic_fetch_add(&stopping.begun, 1);
	HOUSE_OK(mwctl_service_stop(house.ctx));
	RC_CHECK(atomic_load(&stopping.out));
	return nothing;
}

/* Whoever stops it waits until it has ended, also as the second to ask. */
static void stopped_by_two(void)
{
	struct heard heard = {0};
	pthread_t thread[2];
	double limit;

	HOUSE_OK(mwctl_service_start(house.ctx));
	HOUSE_OK(mwctl_revoke_start(house.ctx, NULL, 0, 0, MWCTL_KILL_ALLOWED, linger, &heard));
	for (limit = rc_now() + RC_DEADLINE_S; !atomic_load(&stopping.inside); rc_pause(1))
		RC_CHECK(rc_now() < limit);
	for (int i = 0; i < 2; i++)
		RC_CHECK_EQ(0, pthread_create(&thread[i], NULL, stop, NULL));
	while (atomic_load(&stopping.begun) < 2)
		rc_pause(1);
	/* A moment in which neither may come back. */
	rc_pause(50);
	atomic_store(&stopping.go_on, true);
	for (int i = 0; i < 2; i++)
		RC_CHECK_EQ(0, pthread_join(thread[i], NULL));
	RC_CHECK_EQ(1, heard.calls);
	HOUSE_OK(mwctl_service_stop(house.ctx));
	HOUSE_OK(mwctl_service_start(house.ctx));
	HOUSE_OK(mwctl_service_stop(house.ctx));
	house_ok("two threads stop the service thread: both wait until it has ended");
}

struct other {
	mwctl_status grant, revoke, start;
	mwctl_request ask;
	mwctl_result result;
	uint64_t held;
	struct heard heard;
	atomic_bool done;
};

static void *other_thread(void *user)
{
	struct other *other = user;

	other->grant = mwctl_grant(house.ctx, &other->ask, 0, &other->result);
	other->revoke = mwctl_revoke(house.ctx, other->held, 0, NULL);
	other->start = mwctl_revoke_start(house.ctx, &other->held, 1, 0, 0, on_done, &other->heard);
	atomic_store(&other->done, true);
	return NULL;
}

static void owners(bool queue)
{
	struct house_options options = {.clients = 1,
					.peer.owner_thread = (uint64_t)pthread_self(),
					.peer.queue_for_owner = queue};
	struct other other = {0};
	pthread_t thread;
	struct ibv_wc wc;
	double limit = rc_now() + RC_DEADLINE_S;

	house_open(&house, &options);
	other.held = house_grant(&house, 0, 0, 64, HOUSE_WRITE).grant;
	other.ask = house_ask(&house, 0, 64, 64, HOUSE_WRITE);
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, other_thread, &other));
	while (!atomic_load(&other.done)) {
		RC_CHECK(rc_now() < limit);
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, &wc));
		HOUSE_OK(mwctl_tick(house.ctx));
	}
	pthread_join(thread, NULL);
	if (queue) {
		RC_CHECK_EQ(MWCTL_STATUS_OK, other.grant);
		RC_CHECK_EQ(MWCTL_STATUS_OK, other.revoke);
		HOUSE_WRITE_LANDS(&house, 0, 64, other.result.rkey, 0x21);
		while (!other.heard.calls)
			HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK_EQ(MWCTL_STATUS_STALE_ID, other.heard.status);
		house_ok("another thread's requests are posted by the owner");
	} else {
		RC_CHECK_EQ(MWCTL_STATUS_WRONG_THREAD, other.grant);
		RC_CHECK_EQ(MWCTL_STATUS_WRONG_THREAD, other.revoke);
		RC_CHECK_EQ(MWCTL_STATUS_OK, other.start);
		while (!other.heard.calls)
			HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK_EQ(MWCTL_STATUS_WRONG_THREAD, other.heard.status);
		RC_CHECK_EQ(1, house_peer(&house, 0).grants);
		house_ok("another thread is refused");
	}
	house_close(&house);
}

int main(void)
{
	house_open(&house, NULL);
	rc_memory_open(&blocker, house.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	without_a_loop();
	event_fd_is_the_programs();
	stopped_by_two();
	HOUSE_OK(mwctl_service_start(house.ctx));
	rc_memory_close(&blocker);
	house_close(&house);
	house_ok("closing the context ends the service thread");
	owners(false);
	owners(true);
	return 0;
}
