/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls that overlap: a deadline while another thread is in a kernel call, a domain that is closed while
 * another thread tops up its pool, a window that carries another right by the time its range is revoked. */
#define _GNU_SOURCE
#include "trouble.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>

static struct house house;

/* The next deallocation of a window stays in the kernel until it is let go. */
static struct {
	int (*dealloc)(struct ibv_mw *);
	atomic_bool armed, inside, go;
} kernel;

static int dealloc_mw(struct ibv_mw *mw)
{
	bool armed = true;

	if (atomic_compare_exchange_strong(&kernel.armed, &armed, false)) {
		kernel.inside = true;
		while (!kernel.go)
			sched_yield();
	}
	return kernel.dealloc(mw);
}

static void *tick_until_inside(void *nothing)
{
	(void)nothing;
	while (!kernel.inside)
		HOUSE_OK(mwctl_tick(house.ctx));
	return NULL;
}

/* Two revocations behind stopped send queues; the first one's deallocation takes for ever. */
static void deadline_beside_a_kernel_call(bool service)
{
	struct house_options options = {.clients = 2};
	struct heard first = {0}, second = {0};
	mwctl_result held[2];
	pthread_t thread;
	double limit;

	house_open(&house, &options);
	for (int i = 0; i < 2; i++) {
		held[i] = house_grant(&house, i, 65536 * i, 4096, HOUSE_WRITE);
		trouble_order(MWCTL_SIM_STALL_SQ, house.client[i].pair.server.qp, 0, 0);
	}
	kernel.dealloc = house.device.context->ops.dealloc_mw;
	house.device.context->ops.dealloc_mw = dealloc_mw;
	kernel.inside = kernel.go = false;
	kernel.armed = true;
	HOUSE_OK(mwctl_revoke_start(house.ctx, &held[0].grant, 1, 20000, MWCTL_KILL_ALLOWED, heard_done, &first));
	HOUSE_OK(mwctl_revoke_start(house.ctx, &held[1].grant, 1, 300000, MWCTL_KILL_NEVER, heard_done, &second));
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, tick_until_inside, NULL));
	limit = rc_now() + RC_DEADLINE_S;
	while (!kernel.inside)
		RC_CHECK(rc_now() < limit);
	RC_CHECK(mwctl_next_timeout(house.ctx) >= 0);
	if (service)
		HOUSE_OK(mwctl_service_start(house.ctx));
	while (!second.calls) {
		if (!service)
			HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_OPEN, second.status);
	RC_CHECK_EQ(0, first.calls);
	kernel.go = true;
	RC_CHECK_EQ(0, pthread_join(thread, NULL));
	while (!first.calls) {
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, first.results[0].proof);
	mwctl_sim_faults_clear();
	if (service)
		HOUSE_OK(mwctl_service_stop(house.ctx));
	house.device.context->ops.dealloc_mw = kernel.dealloc;
	house_close(&house);
	house_ok("a deadline is kept while another thread is in a kernel call%s", service ? ", by the service" : "");
}

/* The pool's next window stays in the kernel until the domain's closing was begun. */
static struct {
	struct ibv_mw *(*alloc)(struct ibv_pd *, enum ibv_mw_type);
	struct ibv_pd *pd;
	atomic_bool armed, inside, closing, closed;
} top_up;

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	bool armed = true;

	if (pd == top_up.pd && atomic_compare_exchange_strong(&top_up.armed, &armed, false)) {
		double closing;

		top_up.inside = true;
		while (!top_up.closing)
			sched_yield();
		/* A closing that does not wait for this is through by then. */
		closing = rc_now();
		while (!top_up.closed && rc_now() < closing + 0.2)
			sched_yield();
	}
	return top_up.alloc(pd, type);
}

static void *tick_once(void *nothing)
{
	(void)nothing;
	HOUSE_OK(mwctl_tick(house.ctx));
	return NULL;
}

/* A domain with a pool that the next tick tops up, and nothing open. */
static mwctl_domain used_domain(struct ibv_pd *pd)
{
	mwctl_domain_options options = {.reserve = 4};
	struct rc_options rc = {.server_pd = pd, .client_pd = house.client_pd};
	mwctl_region_info memory = {0};
	struct rc_pair pair;
	mwctl_request ask[4];
	mwctl_result held[4];
	mwctl_domain domain;
	mwctl_region region;
	mwctl_peer peer;

	HOUSE_OK(mwctl_domain_open(house.ctx, pd, &options, sizeof(options), &domain));
	HOUSE_OK(mwctl_region_register(house.ctx, domain, 65536, NULL, 0, &region));
	HOUSE_OK(mwctl_region_info_get(house.ctx, region, &memory, sizeof(memory)));
	rc_pair_open(&pair, &house.device, &rc);
	HOUSE_OK(mwctl_peer_attach(house.ctx, domain, pair.server.qp, NULL, 0, &peer));
	for (int i = 0; i < 4; i++)
		ask[i] = (mwctl_request){.peer = peer, .region = region, .addr = memory.addr + 4096 * i,
					 .length = 4096, .access = HOUSE_WRITE};
	HOUSE_OK(mwctl_grant_batch(house.ctx, ask, 4, 0, held));
	/* Its windows are deallocated: the pool has fewer than its reserve. */
	HOUSE_OK(mwctl_peer_stuck(house.ctx, peer));
	HOUSE_OK(mwctl_peer_detach(house.ctx, peer, 0));
	rc_pair_close(&pair);
	HOUSE_OK(mwctl_region_detach(house.ctx, region));
	return domain;
}

static void domain_closed_beside_a_tick(void)
{
	struct house_options options = {.clients = 1};
	struct ibv_pd *pd;
	mwctl_domain domain;
	mwctl_stats before, after;
	pthread_t thread;
	double limit;

	house_open(&house, &options);
	pd = ibv_alloc_pd(house.device.context);
	domain = used_domain(pd);
	before = house_stats(&house);
	top_up.alloc = house.device.context->ops.alloc_mw;
	top_up.pd = pd;
	house.device.context->ops.alloc_mw = alloc_mw;
	top_up.armed = true;
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, tick_once, NULL));
	limit = rc_now() + RC_DEADLINE_S;
	while (!top_up.inside && rc_now() < limit)
		sched_yield();
	RC_CHECK(top_up.inside);
	top_up.closing = true;
	HOUSE_OK(mwctl_domain_close(house.ctx, domain));
	top_up.closed = true;
	RC_CHECK_EQ(0, pthread_join(thread, NULL));
	after = house_stats(&house);
	RC_CHECK(after.windows_allocated > before.windows_allocated);
	RC_CHECK_EQ(0, ibv_dealloc_pd(pd));
	house.device.context->ops.alloc_mw = top_up.alloc;
	house_close(&house);
	house_ok("a domain that is closed beside a tick leaves no window on its PD");
}

static atomic_bool enough;

static void *revoke_the_range(void *nothing)
{
	(void)nothing;
	while (!enough) {
		mwctl_status status = mwctl_revoke_range(house.ctx, house.region, house.memory.addr, 65536, 0,
							 MWCTL_KILL_NEVER, NULL);

		RC_CHECK(status == MWCTL_STATUS_OK);
	}
	return NULL;
}

/* One window for all: it carries a right in the range and one outside by turns. */
static void range_and_a_window_that_moves_on(void)
{
	struct house_options options = {.clients = 2, .domain.reserve = 1, .domain.limit = 1,
					.domain.key_distance = 1};
	pthread_t thread;

	house_open(&house, &options);
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, revoke_the_range, NULL));
	for (int round = 0; round < 50000; round++) {
		mwctl_request inside = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
		mwctl_result held;

		if (mwctl_grant(house.ctx, &inside, 0, &held) == MWCTL_STATUS_OK)
			mwctl_revoke(house.ctx, held.grant, 0, NULL);
		held = house_grant(&house, 1, 1 << 20, 4096, HOUSE_WRITE);
		HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 0, NULL));
	}
	enough = true;
	RC_CHECK_EQ(0, pthread_join(thread, NULL));
	house_close(&house);
	house_ok("a range's revocation ends no right outside of it");
}

static bool is_readable(void)
{
	struct pollfd fd = {.fd = mwctl_event_fd(house.ctx), .events = POLLIN};

	return poll(&fd, 1, 0) == 1;
}

/* Whoever sleeps as mwctl_next_timeout told hears of a nearer deadline that another thread brings. */
static void nearer_deadline(void)
{
	struct heard first = {0}, later = {0}, nearer = {0};
	double limit = rc_now() + RC_DEADLINE_S;
	mwctl_request ask;

	house_open(&house, &(struct house_options){.clients = 1});
	ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);
	trouble_order(MWCTL_SIM_STALL_SQ, house.client[0].pair.server.qp, 0, 0);
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(-1, mwctl_next_timeout(house.ctx));
	RC_CHECK(!is_readable());
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 10000000, heard_done, &first));
	RC_CHECK(is_readable());
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK(!is_readable());
	RC_CHECK(mwctl_next_timeout(house.ctx) > 1000000000);
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 12000000, heard_done, &later));
	RC_CHECK(!is_readable());
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 20000, heard_done, &nearer));
	RC_CHECK(is_readable());
	while (!nearer.calls) {
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_TIMED_OUT, nearer.status);
	RC_CHECK_EQ(0, first.calls + later.calls);
	mwctl_sim_faults_clear();
	house_close(&house);
	house_ok("the event fd tells of a deadline that is nearer than was told");
}

int main(void)
{
	if (!mwctl_sim_present())
		rc_skip("faults are ordered on the device in the process alone");
	deadline_beside_a_kernel_call(false);
	deadline_beside_a_kernel_call(true);
	domain_closed_beside_a_tick();
	range_and_a_window_that_moves_on();
	nearer_deadline();
	return 0;
}
