/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The order of callbacks; callbacks that begin what ends at once, and callbacks that make calls that call
 * back: whatever they do, the call that called back returns, and the stack stays small. */
#include "trouble.h"

#include <poll.h>
#include <string.h>

#define ROUNDS 1000
#define MANY 2000
#define DEEPEST 32

static struct house house;
static uint64_t stale;
static atomic_int calls, granted;
static int limit;
static _Thread_local int depth;
static atomic_int deepest;

static void grant_one(mwctl_done_fn done)
{
	mwctl_request ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);

	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, done, NULL));
}

/* Only a tick makes windows. */
static void ask_again(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	(void)user;
	RC_CHECK_EQ(1, n);
	RC_CHECK(++calls < ROUNDS);
	if (status == MWCTL_STATUS_POOL_EMPTY) {
		grant_one(ask_again);
	} else {
		HOUSE_OK(status);
		RC_CHECK(results[0].rkey);
		granted++;
	}
}

static void no_window_ready(void)
{
	struct house_options options = {.clients = 1, .domain.reserve = 4};
	double end = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;

	house_open(&house, &options);
	for (int i = 0; i < 40; i++)
		grant_one(ask_again);
	while (granted < 40) {
		RC_CHECK(rc_now() < end);
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, &wc));
	}
	house_close(&house);
	house_ok("a callback that hears POOL_EMPTY may ask again: the tick returns, and the next has windows");
}

static void begin_stale(mwctl_done_fn done)
{
	HOUSE_OK(mwctl_revoke_start(house.ctx, &stale, 1, 0, MWCTL_KILL_NEVER, done, NULL));
}

/* For ever, as far as it goes. */
static void begin_another(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	(void)user, (void)results, (void)n;
	RC_CHECK_EQ(MWCTL_STATUS_STALE_ID, status);
	if (++calls < limit)
		begin_stale(begin_another);
}

static void one_call_returns(void)
{
	struct pollfd called = {.fd = mwctl_event_fd(house.ctx), .events = POLLIN};
	struct ibv_cq *cq = house.client[0].pair.server.cq;
	struct ibv_wc wc;

	calls = 0;
	limit = 4;
	begin_stale(begin_another);
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(1, calls);
	RC_CHECK_EQ(1, poll(&called, 1, 0));
	RC_CHECK_EQ(0, mwctl_next_timeout(house.ctx));
	RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, cq, 1, &wc));
	RC_CHECK_EQ(2, calls);
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_revoke(house.ctx, stale, 0, NULL));
	RC_CHECK_EQ(3, calls);
	RC_CHECK_EQ(1, poll(&called, 1, 0));
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(4, calls);
	RC_CHECK_EQ(0, poll(&called, 1, 0));
	house_ok("what a callback begins is called back by the next call, and the event fd asks for it");
}

static void call_within(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	(void)user, (void)results, (void)n;
	RC_CHECK_EQ(MWCTL_STATUS_STALE_ID, status);
	if (++depth > deepest)
		deepest = depth;
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_revoke(house.ctx, stale, 0, NULL));
	HOUSE_OK(mwctl_tick(house.ctx));
	depth--;
	calls++;
}

static void many_at_once(void)
{
	double end = rc_now() + RC_DEADLINE_S;

	calls = 0;
	for (int i = 0; i < MANY; i++)
		begin_stale(call_within);
	while (calls < MANY) {
		RC_CHECK(rc_now() < end);
		HOUSE_OK(mwctl_tick(house.ctx));
	}
	RC_CHECK_EQ(MANY, calls);
	RC_CHECK_EQ(DEEPEST, deepest);
	house_ok("callbacks that make calls of the library are nested %d deep and no more", deepest);
	/* The service thread's stack is the smaller one. */
	calls = 0;
	end = rc_now() + RC_DEADLINE_S;
	HOUSE_OK(mwctl_service_start(house.ctx));
	for (int i = 0; i < MANY; i++)
		begin_stale(call_within);
	while (calls < MANY) {
		RC_CHECK(rc_now() < end);
		rc_pause(1);
	}
	HOUSE_OK(mwctl_service_stop(house.ctx));
	RC_CHECK_EQ(MANY, calls);
	RC_CHECK_EQ(DEEPEST, deepest);
	house_ok("so they are on the service thread");
}

static void close_within(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	(void)user, (void)status, (void)results, (void)n;
	HOUSE_STATUS(MWCTL_STATUS_WOULD_DEADLOCK, mwctl_context_close(house.ctx));
	calls++;
}

static void all_before_the_end(void)
{
	double end = rc_now() + RC_DEADLINE_S;

	house_leave(&house, 0);
	rc_memory_close(&house.client[0].local);
	HOUSE_OK(mwctl_region_detach(house.ctx, house.region));
	HOUSE_OK(mwctl_domain_close(house.ctx, house.domain));
	calls = 0;
	HOUSE_OK(mwctl_service_start(house.ctx));
	begin_stale(close_within);
	while (!calls) {
		RC_CHECK(rc_now() < end);
		rc_pause(1);
	}
	HOUSE_OK(mwctl_service_stop(house.ctx));
	house_ok("the service thread can't close the context that it serves");
	calls = 0;
	limit = 100;
	begin_stale(begin_another);
	HOUSE_OK(mwctl_context_close(house.ctx));
	RC_CHECK_EQ(100, calls);
	RC_CHECK_EQ(0, ibv_dealloc_pd(house.client_pd));
	RC_CHECK_EQ(0, ibv_dealloc_pd(house.pd));
	rc_device_close(&house.device);
	house_check_misuse();
	house_ok("closing calls back until nothing is due");
}

/* ---- the order ---- */

static char order[8];

static void next(char what)
{
	size_t at = strlen(order);

	RC_CHECK(at + 1 < sizeof(order));
	order[at] = what;
}

static void on_event(void *user, const mwctl_event *event)
{
	(void)user;
	RC_CHECK_EQ(MWCTL_EVENT_KIND_PEER_KILLED, event->kind);
	RC_CHECK_EQ(house.client[0].peer.id, event->peer);
	next('k');
}

static void on_done(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	(void)results, (void)n;
	HOUSE_OK(status);
	next(*(char *)user);
}

/* A client is thrown out, and then it leaves: whoever frees what is kept of it in the callback of the
 * detach has heard all that is about it before. */
static void in_the_order_of_begin(bool stuck)
{
	struct house_options options = {.clients = 1, .context.on_event = on_event};
	uint64_t timeout = stuck ? 20000 : 0;
	double end = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;
	mwctl_result held;

	memset(order, 0, sizeof(order));
	house_open(&house, &options);
	held = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	trouble_block(&house, 0);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &held.grant, 1, timeout, MWCTL_KILL_ALLOWED, on_done, "1"));
	HOUSE_OK(mwctl_revoke_peer_start(house.ctx, house.client[0].peer, timeout, MWCTL_KILL_ALLOWED, on_done, "2"));
	HOUSE_OK(mwctl_revoke_start(house.ctx, &held.grant, 1, timeout, MWCTL_KILL_ALLOWED, on_done, "3"));
	HOUSE_OK(mwctl_peer_detach_start(house.ctx, house.client[0].peer, timeout, on_done, "d"));
	if (!stuck)
		trouble_unblock(&house, 0);
	while (!strchr(order, 'd')) {
		RC_CHECK(rc_now() < end);
		/* What stood in front is flushed. */
		RC_CHECK(mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, &wc) >= 0);
		HOUSE_OK(mwctl_tick(house.ctx));
	}
	if (strcmp(stuck ? "k123d" : "123d", order))
		RC_FAIL("the order was %s", order);
	house.client[0].peer.id = 0;
	rc_pair_close(&house.client[0].pair);
	house_close(&house);
	house_ok("%s: what ends at once is called back in the order of its beginning%s",
		 stuck ? "a stuck queue" : "a queue that runs", stuck ? ", the event before" : "");
}

int main(void)
{
	mwctl_result grant;

	in_the_order_of_begin(false);
	in_the_order_of_begin(true);
	no_window_ready();
	house_open(&house, &(struct house_options){.clients = 1});
	grant = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	stale = grant.grant;
	HOUSE_OK(mwctl_revoke(house.ctx, stale, 0, NULL));
	one_call_returns();
	many_at_once();
	all_before_the_end();
	return 0;
}
