/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Two calls at once, met in the middle: what one of them does in the other's system or verbs call
 * is neither lost nor done twice. */
#define _GNU_SOURCE
#include "trouble.h"

#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct house house;

/* What to do once, before this descriptor is read from. */
static struct {
	atomic_int fd;
	void (*run)(void);
} at_read = {.fd = -1};

/* Stands in for libc's, in the library as well. */
ssize_t read(int fd, void *buf, size_t count)
{
	int armed = fd;

	if (fd >= 0 && atomic_compare_exchange_strong(&at_read.fd, &armed, -1))
		at_read.run();
	return syscall(SYS_read, fd, buf, count);
}

static mwctl_result held;
static pthread_t thread;
static atomic_bool revoked;

static void *revoke_held(void *nothing)
{
	(void)nothing;
	HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 0, NULL));
	atomic_store(&revoked, true);
	return NULL;
}

/* Another thread's waiting call keeps a completion of the application's. It either gets through, or
 * waits for whoever reads: a moment tells. */
static void keep_a_completion(void)
{
	double limit = rc_now() + 0.2;

	RC_CHECK_EQ(0, pthread_create(&thread, NULL, revoke_held, NULL));
	while (!atomic_load(&revoked) && rc_now() < limit)
		rc_pause(1);
}

static void raised_while_lowered(void)
{
	struct pollfd fd = {.events = POLLIN};
	struct house_client *it = &house.client[0];
	struct rc_memory inbox;
	mwctl_result gone;
	struct ibv_wc wc;
	struct heard heard = {0};

	house_open(&house, &(struct house_options){.clients = 1});
	fd.fd = mwctl_event_fd(house.ctx);
	rc_memory_open(&inbox, house.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	gone = house_grant(&house, 0, 65536, 64, HOUSE_WRITE);
	HOUSE_OK(mwctl_revoke(house.ctx, gone.grant, 0, NULL));
	held = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(0, poll(&fd, 1, 0));
	rc_post_recv(&it->pair.server, &inbox, 5);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send(&it->pair.client, &it->local, 8));

	/* Something else is due, which raises the descriptor; the tick lowers it. */
	HOUSE_OK(mwctl_revoke_start(house.ctx, &gone.grant, 1, 0, MWCTL_KILL_ALLOWED, heard_done, &heard));
	RC_CHECK_EQ(1, poll(&fd, 1, 0));
	at_read.run = keep_a_completion;
	atomic_store(&at_read.fd, fd.fd);
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(-1, atomic_load(&at_read.fd));
	RC_CHECK_EQ(0, pthread_join(thread, NULL));
	RC_CHECK_EQ(1, heard.calls);
	RC_CHECK(house_stats(&house).completions_kept > 0);
	RC_CHECK_EQ(1, poll(&fd, 1, 0));
	RC_CHECK_EQ(0, mwctl_next_timeout(house.ctx));
	RC_CHECK_EQ(1, mwctl_poll_cq(house.ctx, it->pair.server.cq, 1, &wc));
	RC_CHECK_EQ(5, wc.wr_id);
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(0, poll(&fd, 1, 0));
	rc_memory_close(&inbox);
	house_close(&house);
	house_ok("the event fd is raised while it is being lowered, and stays readable");
}

/* A domain of its own, and what happens while its windows are deallocated. */
static struct {
	int (*real)(struct ibv_mw *);
	void (*run)(void);
	struct ibv_pd *pd;
	struct rc_pair pair;
	mwctl_domain domain;
	mwctl_status status;
} closing;

static int dealloc_mw(struct ibv_mw *mw)
{
	void (*run)(void) = closing.run;

	closing.run = NULL;
	if (run)
		run();
	return closing.real(mw);
}

static void attach_peer(void)
{
	mwctl_peer peer;

	closing.status = mwctl_peer_attach(house.ctx, closing.domain, closing.pair.server.qp, NULL, 0, &peer);
}

static void register_region(void)
{
	mwctl_region region;

	closing.status = mwctl_region_register(house.ctx, closing.domain, 4096, NULL, 0, &region);
}

static void close_again(void)
{
	closing.status = mwctl_domain_close(house.ctx, closing.domain);
}

static void while_closing(void (*run)(void), const char *what)
{
	mwctl_domain next[2];
	mwctl_stats before;

	house_open(&house, &(struct house_options){.clients = 1});
	before = house_stats(&house);
	closing.pd = ibv_alloc_pd(house.device.context);
	RC_CHECK(closing.pd);
	rc_pair_open(&closing.pair, &house.device, &(struct rc_options){.server_pd = closing.pd});
	HOUSE_OK(mwctl_domain_open(house.ctx, closing.pd, NULL, 0, &closing.domain));
	closing.real = house.device.context->ops.dealloc_mw;
	house.device.context->ops.dealloc_mw = dealloc_mw;
	closing.status = MWCTL_STATUS_OK;
	closing.run = run;
	HOUSE_OK(mwctl_domain_close(house.ctx, closing.domain));
	house.device.context->ops.dealloc_mw = closing.real;
	RC_CHECK(!closing.run);
	RC_CHECK(closing.status == MWCTL_STATUS_STALE_ID || closing.status == MWCTL_STATUS_BUSY);
	RC_CHECK_EQ(house_stats(&house).windows_allocated - before.windows_allocated,
		    house_stats(&house).windows_deallocated - before.windows_deallocated);
	/* Its place is free once. */
	for (int i = 0; i < 2; i++)
		HOUSE_OK(mwctl_domain_open(house.ctx, closing.pd, NULL, 0, &next[i]));
	RC_CHECK(next[0].id != next[1].id);
	for (int i = 0; i < 2; i++)
		HOUSE_OK(mwctl_domain_close(house.ctx, next[i]));
	rc_pair_close(&closing.pair);
	RC_CHECK_EQ(0, ibv_dealloc_pd(closing.pd));
	house_close(&house);
	house_ok("a domain that is being closed: %s is refused", what);
}

/* ---- two threads detach one client ---- */

static struct {
	int (*real)(struct ibv_cq *, int, struct ibv_wc *);
	struct ibv_cq *_Atomic cq;       /* whose next poll lingers */
	atomic_bool inside, told;
	mwctl_move move;
	mwctl_status transfer, detach;
} leaving;

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct ibv_cq *armed = cq;
	int got;

	if (!atomic_compare_exchange_strong(&leaving.cq, &armed, NULL))
		return leaving.real(cq, n, wc);
	atomic_store(&leaving.inside, true);
	/* Whoever detaches either hears of the end, or waits for this: a moment tells. */
	for (double limit = rc_now() + 0.2; !atomic_load(&leaving.told) && rc_now() < limit;)
		rc_pause(1);
	got = leaving.real(cq, n, wc);
	atomic_store(&leaving.inside, false);
	return got;
}

static void *transfer(void *nothing)
{
	mwctl_result out[2];

	(void)nothing;
	leaving.transfer = mwctl_transfer(house.ctx, &leaving.move, 1, 0, MWCTL_KILL_NEVER, out);
	return NULL;
}

static void *detach_first(void *nothing)
{
	(void)nothing;
	leaving.detach = mwctl_peer_detach(house.ctx, house.client[0].peer, 0);
	return NULL;
}

/* The waiting call polls the first client's queue until the second's bind has completed. */
static void detached_by_two(void)
{
	mwctl_peer_info info;
	pthread_t waits, detaches;
	mwctl_result grant;

	house_open(&house, NULL);
	grant = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	leaving.move = (mwctl_move){.grant = grant.grant, .to = house_ask(&house, 1, 0, 4096, HOUSE_WRITE)};
	leaving.real = house.device.context->ops.poll_cq;
	house.device.context->ops.poll_cq = poll_cq;
	trouble_block(&house, 1);
	RC_CHECK_EQ(0, pthread_create(&waits, NULL, transfer, NULL));
	while (house_peer(&house, 0).grants)
		rc_pause(1);
	atomic_store(&leaving.cq, house.client[0].pair.server.cq);
	while (!atomic_load(&leaving.inside))
		rc_pause(1);
	RC_CHECK_EQ(0, pthread_create(&detaches, NULL, detach_first, NULL));
	while (mwctl_peer_info_get(house.ctx, house.client[0].peer, &info, sizeof(info)) == MWCTL_STATUS_OK)
		rc_pause(1);
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_peer_detach(house.ctx, house.client[0].peer, 0));
	RC_CHECK(!atomic_load(&leaving.inside));
	atomic_store(&leaving.told, true);
	RC_CHECK_EQ(0, pthread_join(detaches, NULL));
	HOUSE_OK(leaving.detach);
	rc_pair_close(&house.client[0].pair);
	house.client[0].peer.id = 0;
	rc_post_recv(&house.client[1].pair.client, &house.client[1].local, 6);
	RC_CHECK_EQ(0, pthread_join(waits, NULL));
	HOUSE_OK(leaving.transfer);
	house.device.context->ops.poll_cq = leaving.real;
	house_close(&house);
	house_ok("a client that another thread has detached: its queues are untouched once the id is refused");
}

int main(void)
{
	raised_while_lowered();
	while_closing(attach_peer, "a queue pair");
	while_closing(register_region, "a region");
	while_closing(close_again, "a second close");
	/* On rxe a bind behind a SEND that waits for its receive does not come through. */
	if (mwctl_sim_present())
		detached_by_two();
	return 0;
}
