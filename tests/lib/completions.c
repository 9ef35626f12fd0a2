/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The application's completions: never lost, reordered or misread, in both polling modes. */
#include "house.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct house house;

struct heard {
	atomic_int calls;
	mwctl_status status;
	size_t n;
};

static void on_done(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct heard *heard = user;

	(void)results;
	heard->status = status;
	heard->n = n;
	atomic_fetch_add(&heard->calls, 1);
}

/* A zero-length write of the application's own, signaled. */
static void own_write(int client, uint64_t wr_id)
{
	struct ibv_send_wr wr = {.wr_id = wr_id, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};

	rc_post(house.client[client].pair.server.qp, &wr);
}

/* Waiting calls poll and keep what is the application's; the event fd says so. */
static void kept_back(void)
{
	struct ibv_cq *cq = house.client[0].pair.server.cq;
	struct pollfd fd = {.fd = mwctl_event_fd(house.ctx), .events = POLLIN};
	mwctl_result grant[8];
	struct ibv_wc wc[16];
	double limit = rc_now() + RC_DEADLINE_S;
	int n = 0;

	for (int i = 0; i < 8; i++) {
		own_write(0, 1000 + i);
		grant[i] = house_grant(&house, 0, i * 64, 64, HOUSE_WRITE);
	}
	RC_CHECK(house_stats(&house).completions_kept >= 7);
	RC_CHECK_EQ(1, poll(&fd, 1, 0));
	RC_CHECK_EQ(0, mwctl_next_timeout(house.ctx));
	for (int i = 0; i < 3; i++)
		own_write(0, 1008 + i);
	while (n < 11) {
		int got = mwctl_poll_cq(house.ctx, cq, 3, wc + n);

		RC_CHECK(got >= 0 && got <= 3);
		n += got;
		RC_CHECK(rc_now() < limit);
	}
	for (int i = 0; i < 11; i++) {
		RC_CHECK_EQ(1000 + i, wc[i].wr_id);
		RC_CHECK_STATUS(IBV_WC_SUCCESS, wc[i].status);
	}
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(0, poll(&fd, 1, 0));
	for (int i = 0; i < 8; i++)
		HOUSE_OK(mwctl_revoke(house.ctx, grant[i].grant, 0, NULL));
	RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, cq, 3, wc));
	house_ok("completions kept by waiting calls come out first and in order");
}

/* A full array of ours is not taken for an empty queue. */
static void not_empty_yet(void)
{
	struct ibv_cq *cq = house.client[0].pair.server.cq;
	mwctl_request ask[16];
	struct heard heard = {0};
	struct ibv_wc wc;
	double limit = rc_now() + RC_DEADLINE_S;
	int n;

	for (int i = 0; i < 4; i++) {
		ask[0] = house_ask(&house, 0, i * 64, 64, HOUSE_WRITE);
		HOUSE_OK(mwctl_grant_start(house.ctx, ask, 1, 0, on_done, &heard));
	}
	own_write(0, 2000);
	while (!(n = mwctl_poll_cq(house.ctx, cq, 1, &wc)))
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(1, n);
	RC_CHECK_EQ(2000, wc.wr_id);
	/* In the order of the send queue: all four binds came before. */
	RC_CHECK_EQ(4, heard.calls);
	HOUSE_OK(mwctl_revoke_peer_start(house.ctx, house.client[0].peer, 0, MWCTL_KILL_ALLOWED, on_done, &heard));
	while (heard.calls < 5) {
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, cq, 1, &wc));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(4, heard.n);
	house_ok("asynchronous calls end in one callback each, driven by the application's polls");
}

static void our_wr_ids(void)
{
	mwctl_request ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);
	struct ibv_cq *cq = house.client[0].pair.server.cq;
	struct ibv_send_wr wr;
	struct ibv_wc wc = {.status = IBV_WC_SUCCESS};
	mwctl_result result;
	mwctl_token token;

	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &wr, &result, &token));
	RC_CHECK((wr.wr_id >> 63 & 1) && (wr.wr_id >> 55 & 1));
	wc.wr_id = wr.wr_id;
	HOUSE_OK(mwctl_abort(house.ctx, token));
	RC_CHECK_EQ(0, mwctl_take_wc(house.ctx, cq, &wc));
	for (uint64_t id = 0; id < 1000; id++) {
		wc.wr_id = id * 0x9e3779b97f4a7c15u;
		RC_CHECK_EQ(0, mwctl_take_wc(house.ctx, cq, &wc));
	}
	RC_CHECK(mwctl_take_wc(house.ctx, NULL, &wc) < 0);
	wc.wr_id = (uintptr_t)&wc;
	RC_CHECK_EQ(0, mwctl_take_wc(house.ctx, cq, &wc));
	house_ok("a wr_id is ours only while it is outstanding");
}

struct poller {
	atomic_bool stop;
	atomic_int theirs;
	atomic_int misread;
};

static void *poll_loop(void *user)
{
	struct poller *poller = user;
	struct ibv_wc wc[4];

	while (!atomic_load(&poller->stop))
		for (int client = 0; client < 2; client++) {
			struct ibv_cq *cq = house.client[client].pair.server.cq;
			int n = ibv_poll_cq(cq, 4, wc);

			for (int i = 0; i < n; i++)
				if (!mwctl_take_wc(house.ctx, cq, &wc[i])) {
					atomic_fetch_add(&poller->theirs, 1);
					if (wc[i].status != IBV_WC_SUCCESS || wc[i].wr_id < 3000 || wc[i].wr_id > 4000)
						atomic_fetch_add(&poller->misread, 1);
				}
		}
	return NULL;
}

/* The application polls on a thread of its own; waiting calls wait for that. */
static void yours(void)
{
	struct house_options options = {.peer.polling = MWCTL_POLLING_YOURS};
	struct poller poller = {0};
	pthread_t thread;
	mwctl_result result;
	uint64_t ids[50];
	mwctl_request ask;

	house_open(&house, &options);
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, poll_loop, &poller));
	for (int i = 0; i < 50; i++) {
		own_write(i % 2, 3000 + i);
		ids[i] = house_grant(&house, i % 2, i * 64, 64, HOUSE_WRITE).grant;
	}
	HOUSE_OK(mwctl_revoke_batch(house.ctx, ids, 50, 0, MWCTL_KILL_ALLOWED, NULL));
	result = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	HOUSE_WRITE_LANDS(&house, 0, 0, result.rkey, 0x19);
	for (int i = 0; i < 2; i++)
		HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[i].peer, 0, MWCTL_KILL_ALLOWED, NULL));
	RC_CHECK_EQ(50, poller.theirs);
	RC_CHECK_EQ(0, poller.misread);
	RC_CHECK_EQ(0, house_stats(&house).completions_kept);
	atomic_store(&poller.stop, true);
	pthread_join(thread, NULL);

	/* The thread that polls, declared as such or as the queues' owner, can't wait for itself. */
	for (int i = 0; i < 2; i++)
		house_leave(&house, i);
	house.options.peer.polling_thread = (uint64_t)pthread_self();
	house_join(&house, 0);
	house.options.peer.polling_thread = 0;
	house.options.peer.owner_thread = (uint64_t)pthread_self();
	house_join(&house, 1);
	for (int i = 0; i < 2; i++) {
		ask = house_ask(&house, i, 0, 64, HOUSE_WRITE);
		HOUSE_STATUS(MWCTL_STATUS_WOULD_DEADLOCK, mwctl_grant(house.ctx, &ask, 0, &result));
		HOUSE_STATUS(MWCTL_STATUS_WOULD_DEADLOCK,
			     mwctl_revoke_peer(house.ctx, house.client[i].peer, 0, MWCTL_KILL_ALLOWED, NULL));
		HOUSE_STATUS(MWCTL_STATUS_WOULD_DEADLOCK, mwctl_peer_detach(house.ctx, house.client[i].peer, 0));
		RC_CHECK_EQ(0, house_peer(&house, i).leaving);
	}
	for (int i = 0; i < 2; i++) {
		struct heard heard = {0};
		struct ibv_cq *cq = house.client[i].pair.server.cq;
		double limit = rc_now() + RC_DEADLINE_S;
		struct ibv_wc wc;

		HOUSE_OK(mwctl_peer_detach_start(house.ctx, house.client[i].peer, 0, on_done, &heard));
		while (!heard.calls) {
			if (ibv_poll_cq(cq, 1, &wc))
				RC_CHECK_EQ(1, mwctl_take_wc(house.ctx, cq, &wc));
			HOUSE_OK(mwctl_tick(house.ctx));
			RC_CHECK(rc_now() < limit);
		}
		RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
		HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_peer_detach(house.ctx, house.client[i].peer, 0));
		rc_pair_close(&house.client[i].pair);
		house.client[i].peer.id = 0;
	}
	house_close(&house);
	house_ok("an application that polls by itself, on the declared thread or another");
}

/* A queue that nobody polled since the post never justifies the end of a queue pair. */
static void unpolled(void)
{
	struct house_options options = {.peer.polling = MWCTL_POLLING_YOURS};
	struct heard heard = {0};
	mwctl_request ask;
	mwctl_result result;
	struct ibv_wc wc;
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_cq *cq;

	house_open(&house, &options);
	cq = house.client[0].pair.server.cq;
	ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, on_done, &heard));
	while (!heard.calls) {
		if (ibv_poll_cq(cq, 1, &wc))
			RC_CHECK_EQ(1, mwctl_take_wc(house.ctx, cq, &wc));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_OK, mwctl_peer_grants(house.ctx, house.client[0].peer, &result.grant, 1, &heard.n));
	RC_CHECK_EQ(1, heard.n);
	HOUSE_STATUS(MWCTL_STATUS_OPEN,
		     mwctl_revoke_batch(house.ctx, &result.grant, 1, 20000, MWCTL_KILL_ALLOWED, NULL));
	RC_CHECK_STATE(IBV_QPS_RTS, house.client[0].pair.server.qp);
	/* It had completed all the time: the next poll ends it. */
	while (mwctl_peer_grants(house.ctx, house.client[0].peer, NULL, 0, &heard.n) == MWCTL_STATUS_OK && heard.n) {
		if (ibv_poll_cq(cq, 1, &wc))
			RC_CHECK_EQ(1, mwctl_take_wc(house.ctx, cq, &wc));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_STATE(IBV_QPS_RTS, house.client[0].pair.server.qp);
	house_close(&house);
	house_ok("a queue that nobody polled costs no queue pair");
}

/* Once the queue was seen empty, a missing completion is missing. */
static void seen_empty(void)
{
	struct house_options options = {.peer.polling = MWCTL_POLLING_YOURS};
	struct rc_memory blocker;
	struct ibv_sge sge;
	struct ibv_send_wr send = {.wr_id = 500, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED};
	struct heard heard = {0}, gone = {0};
	double limit = rc_now() + RC_DEADLINE_S;
	mwctl_request ask;
	uint64_t grant;
	struct ibv_wc wc;
	struct ibv_cq *cq;
	size_t n;

	house_open(&house, &options);
	rc_memory_open(&blocker, house.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	sge = (struct ibv_sge){.addr = (uintptr_t)blocker.at, .length = 16, .lkey = blocker.mr->lkey};
	cq = house.client[0].pair.server.cq;
	ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, on_done, &heard));
	while (!heard.calls) {
		if (ibv_poll_cq(cq, 1, &wc))
			RC_CHECK_EQ(1, mwctl_take_wc(house.ctx, cq, &wc));
		RC_CHECK(rc_now() < limit);
	}
	HOUSE_OK(mwctl_peer_grants(house.ctx, house.client[0].peer, &grant, 1, &n));
	rc_post(house.client[0].pair.server.qp, &send);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &grant, 1, 500000, MWCTL_KILL_ALLOWED, on_done, &gone));
	while (!gone.calls) {
		RC_CHECK_EQ(0, ibv_poll_cq(cq, 1, &wc));
		HOUSE_OK(mwctl_cq_empty(house.ctx, cq));
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_OK, gone.status);
	rc_await_state(house.client[0].pair.server.qp, IBV_QPS_ERR);
	house_leave(&house, 0);
	rc_memory_close(&blocker);
	house_close(&house);
	house_ok("a queue that was seen empty without the completion: the deadline fences");
}

static int events;

static void on_event(void *user, const mwctl_event *event)
{
	(void)user;
	(void)event;
	events++;
}

static uint64_t queries(void)
{
	struct mwctl_sim_counters counters = {0};

	if (mwctl_sim_present())
		RC_CHECK_EQ(0, mwctl_sim_counters_get(&counters, sizeof(counters)));
	return counters.qp_queries;
}

/* One loop polls two devices, which number their queue pairs and keys each by itself. */
static void another_device(void)
{
	struct house_options options = {.context.on_event = on_event};
	struct ibv_send_wr own = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, wr;
	struct ibv_wc wc = {.wr_id = 7, .status = IBV_WC_SUCCESS, .opcode = IBV_WC_RECV,
			    .wc_flags = IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK};
	double limit = rc_now() + RC_DEADLINE_S;
	struct rc_device second;
	struct rc_pair elsewhere;
	mwctl_result held, other, out;
	mwctl_grant_info info;
	mwctl_token token;
	mwctl_request ask;
	uint64_t before;

	house_open(&house, &options);
	rc_device_open(&second);
	rc_pair_open(&elsewhere, &second, NULL);
	held = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	other = house_grant(&house, 1, 65536, 4096, HOUSE_WRITE);
	events = 0;
	/* A message there gave back a key that happens to be one here. */
	wc.qp_num = house.client[0].pair.server.qp->qp_num;
	wc.invalidated_rkey = held.rkey;
	RC_CHECK(mwctl_take_wc(house.ctx, elsewhere.server.cq, &wc) <= 0);
	wc.qp_num = house.client[1].pair.server.qp->qp_num;
	RC_CHECK(mwctl_take_wc(house.ctx, elsewhere.server.cq, &wc) <= 0);
	RC_CHECK(mwctl_take_wc(house.ctx, NULL, &wc) <= 0);
	RC_CHECK_EQ(0, events);
	RC_CHECK_EQ(0, house_stats(&house).proved_peer_invalidated);
	HOUSE_OK(mwctl_grant_info_get(house.ctx, held.grant, &info, sizeof(info)));
	HOUSE_WRITE_LANDS(&house, 0, 0, held.rkey, 0x61);
	/* A queue pair died there whose number is a client's here. */
	before = queries();
	wc = (struct ibv_wc){.wr_id = 8, .status = IBV_WC_WR_FLUSH_ERR, .qp_num = wc.qp_num};
	RC_CHECK(mwctl_take_wc(house.ctx, elsewhere.server.cq, &wc) <= 0);
	out = house_grant(&house, 1, 131072, 64, HOUSE_WRITE);
	RC_CHECK_EQ(before, queries());
	/* One of its wr_ids is the number of a request of ours that is out. */
	ask = house_ask(&house, 0, 8192, 64, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &wr, &out, &token));
	own.wr_id = wr.wr_id;
	rc_post(elsewhere.server.qp, &own);
	while (!mwctl_poll_cq(house.ctx, elsewhere.server.cq, 1, &wc))
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(own.wr_id, wc.wr_id);
	RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, elsewhere.server.cq, 1, &wc));
	HOUSE_OK(mwctl_abort(house.ctx, token));
	HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 0, &out));
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out.proof);
	HOUSE_WRITE_LANDS(&house, 1, 65536, other.rkey, 0x62);
	HOUSE_WRITE_FAILS(&house, 0, 0, held.rkey, 0x63);
	HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[1].peer, 0, MWCTL_KILL_ALLOWED, NULL));
	rc_pair_close(&elsewhere);
	rc_device_close(&second);
	house_close(&house);
	house_ok("what comes from another device's queue says nothing here");
}

int main(void)
{
	house_open(&house, NULL);
	kept_back();
	not_empty_yet();
	our_wr_ids();
	house_close(&house);
	house_open(&house, &(struct house_options){.rc.sq_sig_all = 1});
	kept_back();
	not_empty_yet();
	house_close(&house);
	house_ok("the same with a queue pair that signals all");
	yours();
	unpolled();
	seen_empty();
	another_device();
	return 0;
}
