/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What callers may do without harm: numbers out of all bounds, ids of another context, a call in a
 * forked child, completions offered in any order, waiting while others' deadlines pass. */
#include "trouble.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct house house, other;

/* No number of blocks is too large to be refused. */
static void block_counts(void)
{
	const size_t too_many[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2 + 1, (size_t)1 << 32, 5, 4};
	mwctl_region_info info;
	uint64_t addr = 0, at;

	house_open(&house, NULL);
	RC_CHECK_EQ(4, house.memory.blocks);
	HOUSE_OK(mwctl_block_take(house.ctx, house.region, 1, &addr));
	for (size_t i = 0; i < sizeof(too_many) / sizeof(too_many[0]); i++) {
		HOUSE_STATUS(MWCTL_STATUS_NO_BLOCKS, mwctl_block_take(house.ctx, house.region, too_many[i], &at));
		RC_CHECK(mwctl_block_give(house.ctx, house.region, addr, too_many[i]) != MWCTL_STATUS_OK);
	}
	HOUSE_OK(mwctl_region_info_get(house.ctx, house.region, &info, sizeof(info)));
	RC_CHECK_EQ(1, info.blocks_taken);
	HOUSE_OK(mwctl_block_take(house.ctx, house.region, 3, &at));
	HOUSE_OK(mwctl_block_give(house.ctx, house.region, at, 3));
	HOUSE_OK(mwctl_block_give(house.ctx, house.region, addr, 1));
	house_close(&house);
	house_ok("a count of blocks beyond all bounds is refused, and nothing else happens");
}

/* None of `from`'s ids means anything in `in`, whatever lives there. */
static void check_foreign(struct house *in, const struct house *from, const mwctl_result *foreign)
{
	mwctl_request ask = house_ask(in, 0, 0, 64, HOUSE_WRITE);
	mwctl_region_info region;
	mwctl_domain_info domain;
	mwctl_grant_info grant;
	mwctl_peer_info peer;
	mwctl_result out;
	size_t n;

	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_domain_info_get(in->ctx, from->domain, &domain, sizeof(domain)));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_region_info_get(in->ctx, from->region, &region, sizeof(region)));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_peer_info_get(in->ctx, from->client[0].peer, &peer, sizeof(peer)));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant_info_get(in->ctx, foreign->grant, &grant, sizeof(grant)));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_revoke(in->ctx, foreign->grant, 0, NULL));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_revoke_peer(in->ctx, from->client[0].peer, 0, 0, &n));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_peer_detach(in->ctx, from->client[0].peer, 0));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_region_detach(in->ctx, from->region));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_domain_close(in->ctx, from->domain));
	ask.peer = from->client[0].peer;
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant(in->ctx, &ask, 0, &out));
	ask = house_ask(in, 0, 0, 64, HOUSE_WRITE);
	ask.region = from->region;
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant(in->ctx, &ask, 0, &out));
}

/* Two contexts side by side, with the same objects made in the same order. */
static void ids_of_another_context(void)
{
	mwctl_result ours, theirs;

	house_open(&house, NULL);
	house_open(&other, NULL);
	ours = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	theirs = house_grant(&other, 0, 0, 4096, HOUSE_WRITE);
	check_foreign(&house, &other, &theirs);
	check_foreign(&other, &house, &ours);
	HOUSE_WRITE_LANDS(&house, 0, 0, ours.rkey, 0x11);
	HOUSE_WRITE_LANDS(&other, 0, 0, theirs.rkey, 0x12);
	HOUSE_OK(mwctl_revoke(house.ctx, ours.grant, 0, NULL));
	HOUSE_WRITE_LANDS(&other, 0, 0, theirs.rkey, 0x13);
	HOUSE_WRITE_FAILS(&house, 0, 0, ours.rkey, 0x14);
	house_close(&other);
	house_close(&house);
	house_ok("ids of one context mean nothing in another");
}

/* A context that was closed, and one opened in its place. */
static void ids_of_an_earlier_context(void)
{
	mwctl_result old, now;
	struct house before;

	house_open(&house, NULL);
	old = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	before = house;
	house_close(&house);
	house_open(&house, NULL);
	now = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	check_foreign(&house, &before, &old);
	HOUSE_WRITE_LANDS(&house, 0, 0, now.rkey, 0x21);
	HOUSE_OK(mwctl_revoke(house.ctx, now.grant, 0, NULL));
	HOUSE_WRITE_FAILS(&house, 0, 0, now.rkey, 0x22);
	house_close(&house);
	house_ok("ids of a context that was closed mean nothing in the next");
}

/* One region has one set of books. */
static void attached_twice(void)
{
	const uint32_t access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
	mwctl_attach_options options = {.access = access, .block_size = 4096};
	struct rc_memory memory;
	mwctl_region first, second;

	house_open(&house, NULL);
	rc_memory_open(&memory, house.pd, 65536, (int)access);
	options.iova = (uintptr_t)memory.at;
	HOUSE_OK(mwctl_region_attach(house.ctx, house.domain, memory.mr, &options, sizeof(options), &first));
	HOUSE_STATUS(MWCTL_STATUS_ALREADY_ATTACHED,
		     mwctl_region_attach(house.ctx, house.domain, memory.mr, &options, sizeof(options), &second));
	/* The library's own is on the books as well. */
	options.iova = house.memory.addr;
	options.access = house.memory.access;
	HOUSE_STATUS(MWCTL_STATUS_ALREADY_ATTACHED,
		     mwctl_region_attach(house.ctx, house.domain, house.memory.mr, &options, sizeof(options), &second));
	options.iova = (uintptr_t)memory.at;
	options.access = access;
	HOUSE_OK(mwctl_region_detach(house.ctx, first));
	HOUSE_OK(mwctl_region_attach(house.ctx, house.domain, memory.mr, &options, sizeof(options), &second));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_region_detach(house.ctx, first));
	HOUSE_OK(mwctl_region_detach(house.ctx, second));
	rc_memory_close(&memory);
	house_close(&house);
	house_ok("a memory region is attached once at a time");
}

/* A child may not even begin. */
static void open_in_a_child(void)
{
	mwctl_context *ctx = NULL;
	struct rc_device second;
	mwctl_result grant;
	int status;
	pid_t child;

	house_open(&house, NULL);
	rc_device_open(&second);
	grant = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	fflush(stdout);
	child = fork();
	RC_CHECK(child >= 0);
	if (!child)
		_exit(mwctl_context_open(second.context, NULL, 0, &ctx) != MWCTL_STATUS_FORKED ? 1 : ctx ? 2 : 0);
	RC_CHECK_EQ(child, waitpid(child, &status, 0));
	RC_CHECK(WIFEXITED(status));
	RC_CHECK_EQ(0, WEXITSTATUS(status));
	HOUSE_WRITE_LANDS(&house, 0, 0, grant.rkey, 0x31);
	HOUSE_OK(mwctl_context_open(second.context, NULL, 0, &ctx));
	HOUSE_OK(mwctl_context_close(ctx));
	HOUSE_OK(mwctl_revoke(house.ctx, grant.grant, 0, NULL));
	HOUSE_WRITE_FAILS(&house, 0, 0, grant.rkey, 0x32);
	rc_device_close(&second);
	house_close(&house);
	house_ok("a forked child opens no context, and its parent's goes on");
}

/* Whoever waits for a callback gets it, though nobody ticks any more. */
static void due_at_close(void)
{
	struct heard heard = {0};
	mwctl_result grant;

	house_open(&house, &(struct house_options){.clients = 1});
	grant = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	HOUSE_OK(mwctl_revoke(house.ctx, grant.grant, 0, NULL));
	house_leave(&house, 0);
	rc_memory_close(&house.client[0].local);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &grant.grant, 1, 0, MWCTL_KILL_ALLOWED, heard_done, &heard));
	HOUSE_OK(mwctl_region_detach(house.ctx, house.region));
	HOUSE_OK(mwctl_domain_close(house.ctx, house.domain));
	HOUSE_OK(mwctl_context_close(house.ctx));
	RC_CHECK_EQ(1, heard.calls);
	RC_CHECK_EQ(MWCTL_STATUS_STALE_ID, heard.status);
	RC_CHECK_EQ(0, ibv_dealloc_pd(house.client_pd));
	RC_CHECK_EQ(0, ibv_dealloc_pd(house.pd));
	rc_device_close(&house.device);
	house_check_misuse();
	house_ok("a callback that is due comes before the context is gone");
}

static void post_chain(struct ibv_send_wr *wr, mwctl_token token)
{
	struct ibv_send_wr *bad = NULL;
	int ret = ibv_post_send(house.client[0].pair.server.qp, wr, &bad);

	RC_CHECK_EQ(0, ret);
	HOUSE_OK(mwctl_commit(house.ctx, token, ret, bad, NULL));
}

static void collect(struct ibv_wc *wc, int n)
{
	for (int i = 0; i < n; i++) {
		wc[i] = rc_wait(house.client[0].pair.server.cq);
		RC_CHECK_STATUS(IBV_WC_SUCCESS, wc[i].status);
	}
}

/* Two threads that poll one queue offer what they got in any order. */
static void offered_in_any_order(int sq_sig_all)
{
	struct house_options options = {.clients = 1, .peer.polling = MWCTL_POLLING_YOURS,
					.rc.sq_sig_all = sq_sig_all};
	struct ibv_send_wr wr[3], own = {.wr_id = 700, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
	int n = sq_sig_all ? 7 : 4;
	mwctl_request ask[3];
	struct heard heard = {0};
	mwctl_result grant[3];
	struct ibv_wc wc[7];
	struct ibv_cq *cq;
	mwctl_token token;
	uint64_t ids[3];

	house_open(&house, &options);
	cq = house.client[0].pair.server.cq;
	for (int i = 0; i < 3; i++)
		ask[i] = house_ask(&house, 0, (uint64_t)i * 4096, 4096, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_prepare(house.ctx, ask, 3, wr, grant, &token));
	post_chain(wr, token);
	for (int i = 0; i < 3; i++)
		ids[i] = grant[i].grant;
	HOUSE_OK(mwctl_revoke_prepare(house.ctx, ids, 3, 0, MWCTL_KILL_ALLOWED, heard_done, &heard, wr, &token));
	post_chain(wr, token);
	rc_post(house.client[0].pair.server.qp, &own);
	collect(wc, n);
	RC_CHECK_EQ(700, wc[n - 1].wr_id);
	for (int i = n - 1; i >= 0; i--)
		RC_CHECK_EQ(i != n - 1, mwctl_take_wc(house.ctx, cq, &wc[i]));
	RC_CHECK_EQ(1, heard.calls);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	for (int i = 0; i < 3; i++)
		RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, heard.results[i].proof);
	RC_CHECK_EQ(0, house_peer(&house, 0).used);
	HOUSE_WRITE_FAILS(&house, 0, 0, grant[0].rkey, 0x41);
	house_close(&house);
	house_ok("completions offered in the reverse order: each is recognised%s",
		 sq_sig_all ? ", all of them signaled" : "");
}

/* A poll that found the queue empty may have begun before the post. */
static void seen_empty_once(void)
{
	struct house_options options = {.clients = 1, .peer.polling = MWCTL_POLLING_YOURS};
	double limit = rc_now() + RC_DEADLINE_S;
	struct heard heard = {0};
	mwctl_grant_info info;
	struct ibv_send_wr wr;
	mwctl_result grant;
	mwctl_request ask;
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	mwctl_token token;
	struct ibv_wc wc;

	house_open(&house, &options);
	qp = house.client[0].pair.server.qp;
	cq = house.client[0].pair.server.cq;
	ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &wr, &grant, &token));
	post_chain(&wr, token);
	RC_CHECK_EQ(0, ibv_poll_cq(cq, 1, &wc));
	HOUSE_OK(mwctl_revoke_start(house.ctx, &grant.grant, 1, 20000, MWCTL_KILL_ALLOWED, heard_done, &heard));
	HOUSE_OK(mwctl_cq_empty(house.ctx, cq));
	while (!heard.calls) {
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_OPEN, heard.status);
	RC_CHECK_STATE(IBV_QPS_RTS, qp);
	RC_CHECK_EQ(0, house_stats(&house).peers_killed);
	/* It had completed; the next poll finds it. */
	collect(&wc, 1);
	RC_CHECK_EQ(1, mwctl_take_wc(house.ctx, cq, &wc));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant_info_get(house.ctx, grant.grant, &info, sizeof(info)));
	RC_CHECK_STATE(IBV_QPS_RTS, qp);
	HOUSE_WRITE_FAILS(&house, 0, 0, grant.rkey, 0x51);
	house_close(&house);
	house_ok("a queue that was seen empty only once since the post costs no queue pair");
}

/* A program that only makes waiting calls keeps the deadlines of its asynchronous ones. */
static void deadlines_of_others(void)
{
	double limit = rc_now() + 5;
	struct heard heard = {0};
	mwctl_result held, next;

	house_open(&house, NULL);
	held = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	trouble_block(&house, 0);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &held.grant, 1, 10000, MWCTL_KILL_NEVER, heard_done, &heard));
	while (!heard.calls) {
		RC_CHECK(rc_now() < limit);
		next = house_grant(&house, 1, 65536, 4096, HOUSE_WRITE);
		HOUSE_OK(mwctl_revoke(house.ctx, next.grant, 0, NULL));
	}
	RC_CHECK_EQ(1, heard.calls);
	RC_CHECK_EQ(MWCTL_STATUS_OPEN, heard.status);
	trouble_unblock(&house, 0);
	trouble_await_end(&house, held.grant);
	HOUSE_WRITE_FAILS(&house, 0, 0, held.rkey, 0x61);
	house_close(&house);
	house_ok("waiting calls end what else is due");
}

static atomic_bool stop;

/* The loop of a server that knows of no deadlines: it ticks when the event fd says so. */
static void *loop(void *nothing)
{
	struct pollfd fd = {.fd = mwctl_event_fd(house.ctx), .events = POLLIN};

	(void)nothing;
	while (!atomic_load(&stop))
		if (poll(&fd, 1, 10) == 1)
			HOUSE_OK(mwctl_tick(house.ctx));
	return NULL;
}

/* … also one that is under way when the other deadline passes. */
static void deadline_during_a_wait(void)
{
	struct heard heard = {0};
	mwctl_result held[2], out;
	pthread_t thread;
	double begin;

	house_open(&house, NULL);
	for (int i = 0; i < 2; i++) {
		held[i] = house_grant(&house, i, (uint64_t)i * 65536, 4096, HOUSE_WRITE);
		trouble_block(&house, i);
	}
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, loop, NULL));
	begin = rc_now();
	HOUSE_OK(mwctl_revoke_start(house.ctx, &held[0].grant, 1, 10000, MWCTL_KILL_NEVER, heard_done, &heard));
	HOUSE_STATUS(MWCTL_STATUS_OPEN,
		     mwctl_revoke_batch(house.ctx, &held[1].grant, 1, 2000000, MWCTL_KILL_NEVER, &out));
	atomic_store(&stop, true);
	RC_CHECK_EQ(0, pthread_join(thread, NULL));
	RC_CHECK_EQ(1, heard.calls);
	RC_CHECK_EQ(MWCTL_STATUS_OPEN, heard.status);
	RC_CHECK(heard.at - begin < 1);
	for (int i = 0; i < 2; i++) {
		trouble_unblock(&house, i);
		trouble_await_end(&house, held[i].grant);
		HOUSE_WRITE_FAILS(&house, i, (uint64_t)i * 65536, held[i].rkey, 0x71);
	}
	house_close(&house);
	house_ok("a deadline that passes during another client's long wait raises the event fd");
}

int main(void)
{
	block_counts();
	ids_of_another_context();
	ids_of_an_earlier_context();
	attached_twice();
	open_in_a_child();
	due_at_close();
	offered_in_any_order(0);
	offered_in_any_order(1);
	seen_empty_once();
	deadlines_of_others();
	deadline_during_a_wait();
	return 0;
}
