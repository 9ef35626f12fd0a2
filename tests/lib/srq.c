/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Clients that give a right back by SEND_WITH_INV, received through one shared receive queue, with
 * completion queues of every layout and both polling modes. */
#include "trouble.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { CLIENTS = 3, RECEIVES = 32, ROUNDS = 100 };

enum layout {
	OWN,         /* each client's queue pair has a completion queue of its own */
	ONE,         /* one for all, for sends and receives */
	SEPARATE     /* one for all sends, one for all receives */
};
static const char *const layouts[] = {"a queue each", "one queue for all", "one queue for sends, one for receives"};

static struct house house;
static struct ibv_srq *srq;
static struct ibv_cq *sends, *receives;
static struct rc_memory inbox;
static uint64_t next_receive;

/* What the application's polls brought, in order. */
static struct ibv_wc got[RECEIVES];
static int got_n;

static mwctl_event events[8];
static int events_n;

static void on_event(void *user, const mwctl_event *event)
{
	(void)user;
	RC_CHECK(events_n < 8);
	events[events_n++] = *event;
}

static void post_receives(int n)
{
	struct ibv_sge sge = {.addr = (uintptr_t)inbox.at, .length = 4096, .lkey = inbox.mr->lkey};

	while (n--) {
		struct ibv_recv_wr wr = {.wr_id = ++next_receive, .sg_list = &sge, .num_sge = 1}, *bad;

		RC_CHECK_EQ(0, ibv_post_srq_recv(srq, &wr, &bad));
	}
}

static void poll_queue(struct ibv_cq *cq)
{
	bool yours = house.options.peer.polling == MWCTL_POLLING_YOURS;
	struct ibv_wc wc;
	int n, ours = 0;

	while ((n = yours ? ibv_poll_cq(cq, 1, &wc) : mwctl_poll_cq(house.ctx, cq, 1, &wc)) == 1) {
		if (yours)
			ours = mwctl_take_wc(house.ctx, cq, &wc);
		RC_CHECK(ours >= 0 && got_n < RECEIVES);
		if (!ours)
			got[got_n++] = wc;
	}
	RC_CHECK_EQ(0, n);
	if (yours)
		HOUSE_OK(mwctl_cq_empty(house.ctx, cq));
}

/* Receives first, as a server in mode YOURS must before it revokes. */
static void poll_all(void)
{
	for (int i = 0; i < CLIENTS; i++) {
		struct ibv_qp *qp = house.client[i].pair.server.qp;

		if (qp->recv_cq != qp->send_cq)
			poll_queue(qp->recv_cq);
		poll_queue(qp->send_cq);
	}
}

static void await_got(int n)
{
	double limit = rc_now() + RC_DEADLINE_S;

	while (got_n < n) {
		poll_all();
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(n, got_n);
}

static void await_call(struct heard *heard)
{
	double limit = rc_now() + RC_DEADLINE_S;

	while (!atomic_load(&heard->calls)) {
		poll_all();
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(1, heard->calls);
}

/* Without a call that waits: the application alone polls in mode YOURS. */
static mwctl_result grant(int client, uint64_t offset)
{
	mwctl_request ask = house_ask(&house, client, offset, 4096, HOUSE_WRITE);
	struct heard heard = {0};

	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, heard_done, &heard));
	await_call(&heard);
	HOUSE_OK(heard.status);
	return heard.results[0];
}

static mwctl_result revoke(uint64_t grant)
{
	struct heard heard = {0};

	HOUSE_OK(mwctl_revoke_start(house.ctx, &grant, 1, 0, MWCTL_KILL_ALLOWED, heard_done, &heard));
	await_call(&heard);
	return heard.results[0];
}

static void rejoin(int client)
{
	struct heard heard = {0};

	HOUSE_OK(mwctl_peer_detach_start(house.ctx, house.client[client].peer, 0, heard_done, &heard));
	await_call(&heard);
	HOUSE_OK(heard.status);
	rc_pair_close(&house.client[client].pair);
	house_join(&house, client);
}

static struct ibv_cq *make_cq(void)
{
	struct ibv_cq *cq = ibv_create_cq(house.device.context, 256, NULL, NULL, 0);

	RC_CHECK(cq);
	return cq;
}

static void open_house(enum layout layout, int polling)
{
	struct house_options options = {.clients = CLIENTS, .peer.polling = polling, .context.on_event = on_event};
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = RECEIVES, .max_sge = 1}};

	house_open(&house, &options);
	for (int i = 0; i < CLIENTS; i++)
		house_leave(&house, i);
	srq = ibv_create_srq(house.pd, &attr);
	RC_CHECK(srq);
	sends = layout == OWN ? NULL : make_cq();
	receives = layout == SEPARATE ? make_cq() : NULL;
	house.options.rc.send_cq = sends;
	house.options.rc.recv_cq = receives;
	house.options.rc.srq = srq;
	for (int i = 0; i < CLIENTS; i++)
		house_join(&house, i);
	rc_memory_open(&inbox, house.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	next_receive = 1000;
	got_n = events_n = 0;
	post_receives(RECEIVES / 2);
	poll_all();
}

static void close_house(void)
{
	for (int i = 0; i < CLIENTS; i++)
		house_leave(&house, i);
	for (int i = 0; i < 2; i++) {
		struct ibv_cq *cq = i ? receives : sends;

		if (cq) {
			HOUSE_OK(mwctl_cq_gone(house.ctx, cq));
			RC_CHECK_EQ(0, ibv_destroy_cq(cq));
		}
	}
	RC_CHECK_EQ(0, ibv_destroy_srq(srq));
	rc_memory_close(&inbox);
	house_close(&house);
}

static void check_lands(int client, uint64_t offset, const mwctl_result *right, uint8_t byte)
{
	HOUSE_WRITE_LANDS(&house, client, offset, right->rkey, byte);
}

static uint64_t offset_of(int client, int which)
{
	return (uint64_t)(client * 2 + which) * 65536;
}

/* Which client's queue pair a completion names. */
static int client_of(const struct ibv_wc *wc)
{
	for (int i = 0; i < CLIENTS; i++)
		if (house.client[i].pair.server.qp->qp_num == wc->qp_num)
			return i;
	RC_FAIL("a completion of queue pair 0x%x", wc->qp_num);
}

/* All clients speak before the server looks: an ordinary message each, then the one that gives a
 * right back. */
static void given_back(enum layout layout, int polling)
{
	mwctl_result key[CLIENTS], control[CLIENTS], next, out;
	int given[CLIENTS] = {0}, messages[CLIENTS] = {0};
	uint64_t invalidates;
	mwctl_grant_info info;
	uint64_t found;

	open_house(layout, polling);
	for (int i = 0; i < CLIENTS; i++) {
		key[i] = grant(i, offset_of(i, 0));
		control[i] = grant(i, offset_of(i, 1));
		check_lands(i, offset_of(i, 0), &key[i], 0x11);
	}
	RC_CHECK_EQ(0, got_n);
	invalidates = house_stats(&house).invalidates_posted;
	for (int i = CLIENTS - 1; i >= 0; i--) {
		struct house_client *it = &house.client[i];

		RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send(&it->pair.client, &it->local, 16));
		RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send_with_inv(&it->pair.client, &it->local, 24, key[i].rkey));
	}
	await_got(2 * CLIENTS);
	for (int n = 0; n < got_n; n++) {
		int i = client_of(&got[n]);

		RC_CHECK_STATUS(IBV_WC_SUCCESS, got[n].status);
		RC_CHECK_EQ(IBV_WC_RECV, got[n].opcode);
		/* The shared queue's receives, each once, in order where one queue has them all. */
		RC_CHECK(got[n].wr_id > 1000 && got[n].wr_id <= 1000 + 2 * CLIENTS);
		if (layout != OWN)
			RC_CHECK_EQ(1001 + n, got[n].wr_id);
		messages[i]++;
		if (got[n].byte_len == 24) {
			RC_CHECK_EQ(key[i].rkey, got[n].invalidated_rkey);
			given[i]++;
		}
	}
	RC_CHECK_EQ(CLIENTS, events_n);
	RC_CHECK_EQ(CLIENTS, house_stats(&house).proved_peer_invalidated);
	for (int i = 0; i < CLIENTS; i++) {
		int told = 0;

		RC_CHECK_EQ(2, messages[i]);
		RC_CHECK_EQ(1, given[i]);
		for (int e = 0; e < events_n; e++) {
			RC_CHECK_EQ(MWCTL_EVENT_KIND_PEER_INVALIDATED, events[e].kind);
			if (events[e].grant != key[i].grant)
				continue;
			RC_CHECK_EQ(house.client[i].peer.id, events[e].peer);
			RC_CHECK_EQ(house.client[i].pair.server.qp->qp_num, events[e].qp_num);
			told++;
		}
		RC_CHECK_EQ(1, told);
		HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant_info_get(house.ctx, key[i].grant, &info, sizeof(info)));
		HOUSE_STATUS(MWCTL_STATUS_NO_GRANT, mwctl_find_rkey(house.ctx, key[i].rkey, &info, sizeof(info)));
		HOUSE_STATUS(MWCTL_STATUS_NO_GRANT,
			     mwctl_check(house.ctx, house.domain, house.client[i].pair.server.qp->qp_num,
					 house.memory.addr + offset_of(i, 0), 1, HOUSE_WRITE, &found));
		RC_CHECK_EQ(1, house_peer(&house, i).grants);
		out = revoke(key[i].grant);
		RC_CHECK_EQ(MWCTL_STATUS_STALE_ID, out.status);
		check_lands(i, offset_of(i, 1), &control[i], 0x12);
	}
	RC_CHECK_EQ(invalidates, house_stats(&house).invalidates_posted);
	/* The memory goes to the next client; the old keys open nothing. */
	next = grant(CLIENTS - 1, offset_of(0, 0));
	check_lands(CLIENTS - 1, offset_of(0, 0), &next, 0x13);
	for (int i = 0; i < CLIENTS - 1; i++) {
		HOUSE_WRITE_FAILS(&house, i, offset_of(i, 0), key[i].rkey, 0x14);
		for (int n = i + 1; n < CLIENTS; n++)
			check_lands(n, offset_of(n, 1), &control[n], 0x15);
	}
	for (int i = 0; i < CLIENTS; i++) {
		out = revoke(control[i].grant);
		RC_CHECK_EQ(MWCTL_STATUS_OK, out.status);
		RC_CHECK_EQ(i < CLIENTS - 1 ? MWCTL_PROOF_QP_FENCED : MWCTL_PROOF_INVALIDATED, out.proof);
	}
	HOUSE_STATUS(MWCTL_STATUS_OK, revoke(next.grant).status);
	RC_CHECK_EQ(2 * CLIENTS, got_n);
	close_house();
	house_ok("%s, polling %s: each client gives its own right back, and no other's", layouts[layout],
		 polling == MWCTL_POLLING_YOURS ? "YOURS" : "OURS");
}

/* A waiting call for another client finds the message; the application gets it at its next poll. */
static void found_by_a_waiting_call(void)
{
	struct house_client *it = &house.client[0];
	mwctl_result key, control, next;

	open_house(ONE, MWCTL_POLLING_OURS);
	key = grant(0, 0);
	control = grant(0, 65536);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send_with_inv(&it->pair.client, &it->local, 24, key.rkey));
	next = house_grant(&house, 1, 131072, 4096, HOUSE_WRITE);
	RC_CHECK_EQ(1, events_n);
	RC_CHECK_EQ(key.grant, events[0].grant);
	RC_CHECK_EQ(1, house_peer(&house, 0).grants);
	RC_CHECK_EQ(0, got_n);
	await_got(1);
	RC_CHECK_EQ(key.rkey, got[0].invalidated_rkey);
	RC_CHECK_EQ(1001, got[0].wr_id);
	check_lands(0, 65536, &control, 0x21);
	check_lands(1, 131072, &next, 0x22);
	HOUSE_WRITE_FAILS(&house, 0, 0, key.rkey, 0x23);
	check_lands(1, 131072, &next, 0x24);
	RC_CHECK_EQ(MWCTL_STATUS_OK, revoke(next.grant).status);
	RC_CHECK_EQ(MWCTL_STATUS_OK, revoke(control.grant).status);
	close_house();
	house_ok("a right given back is found by another client's waiting call, and the message kept");
}

static void async_events(void)
{
	struct ibv_async_event event = {.event_type = IBV_EVENT_SRQ_LIMIT_REACHED};
	mwctl_request ask;
	mwctl_result held;

	open_house(ONE, MWCTL_POLLING_OURS);
	held = grant(0, 0);
	event.element.srq = srq;
	HOUSE_OK(mwctl_take_async_event(house.ctx, &event));
	event.event_type = IBV_EVENT_SRQ_ERR;
	HOUSE_OK(mwctl_take_async_event(house.ctx, &event));
	check_lands(0, 0, &held, 0x31);
	RC_CHECK_EQ(1, house_peer(&house, 0).life);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, revoke(held.grant).proof);
	/* A queue pair on a shared receive queue says by this one that it is in ERR. */
	held = grant(1, 0);
	rc_qp_modify(house.client[0].pair.server.qp, IBV_QPS_ERR);
	event.event_type = IBV_EVENT_QP_LAST_WQE_REACHED;
	event.element.qp = house.client[0].pair.server.qp;
	HOUSE_OK(mwctl_take_async_event(house.ctx, &event));
	ask = house_ask(&house, 0, 65536, 64, HOUSE_WRITE);
	HOUSE_STATUS(MWCTL_STATUS_PEER_DEAD, mwctl_grant_start(house.ctx, &ask, 1, 0, heard_done, NULL));
	RC_CHECK_EQ(2, house_peer(&house, 0).life);
	check_lands(1, 0, &held, 0x32);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, revoke(held.grant).proof);
	close_house();
	house_ok("events of the shared receive queue are no client's; its last receive says that one is in ERR");
}

/* ---- on the device in the process alone: a second invalidate of one bind ---- */

/* The client's came second, or ours: a rule that one of the two broke knowingly. */
static int take_misuse(void)
{
	struct mwctl_sim_misuse misuse;
	int n = 0;

	while (mwctl_sim_misuse_next(&misuse, sizeof(misuse))) {
		if (misuse.rule != MWCTL_SIM_RULE_INV_NOT_BOUND)
			RC_FAIL("misuse of the device: %s", misuse.text);
		n++;
	}
	return n;
}

/* The message is there, and the server revokes without having looked. */
static void given_back_unseen(enum layout layout)
{
	struct house_client *it = &house.client[0];
	mwctl_result key, control, out;
	uint64_t invalidates;

	open_house(layout, MWCTL_POLLING_OURS);
	it = &house.client[0];
	key = grant(0, 0);
	control = grant(0, 65536);
	invalidates = house_stats(&house).invalidates_posted;
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send_with_inv(&it->pair.client, &it->local, 24, key.rkey));
	HOUSE_OK(mwctl_revoke(house.ctx, key.grant, 0, &out));
	RC_CHECK_EQ(MWCTL_PROOF_PEER_INVALIDATED, out.proof);
	RC_CHECK_EQ(invalidates, house_stats(&house).invalidates_posted);
	RC_CHECK_EQ(0, take_misuse());
	await_got(1);
	RC_CHECK_EQ(key.rkey, got[0].invalidated_rkey);
	check_lands(0, 65536, &control, 0x41);
	HOUSE_WRITE_FAILS(&house, 0, 0, key.rkey, 0x42);
	RC_CHECK_EQ(MWCTL_STATUS_OK, revoke(control.grant).status);
	close_house();
	house_ok("%s: a revocation looks at the receives first, and posts no second invalidate", layouts[layout]);
}

/* Ours was first: the client that comes after it loses its connection, and nobody else anything. */
static void revoked_before(int polling)
{
	struct house_client *it = &house.client[0];
	mwctl_result key, control[2], out;

	open_house(ONE, polling);
	key = grant(0, 0);
	control[0] = grant(0, 65536);
	control[1] = grant(1, 131072);
	out = revoke(key.grant);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out.proof);
	RC_CHECK(rc_send_with_inv(&it->pair.client, &it->local, 24, key.rkey) != IBV_WC_SUCCESS);
	RC_CHECK_EQ(1, take_misuse());
	await_got(1);
	RC_CHECK(got[0].status != IBV_WC_SUCCESS);
	RC_CHECK_EQ(0, house_stats(&house).proved_peer_invalidated);
	out = revoke(control[0].grant);
	RC_CHECK_EQ(MWCTL_STATUS_OK, out.status);
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, out.proof);
	check_lands(1, 131072, &control[1], 0x51);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, revoke(control[1].grant).proof);
	close_house();
	house_ok("given back after the revocation: the client's own queue pair dies, no other");
}

/* Ours is posted and does not get its turn; the client's comes, and is seen. Then ours must fail: it
 * is no proof, and the fence is. */
static void crossed(int polling)
{
	struct house_client *it = &house.client[0];
	mwctl_result key, control[2];
	struct heard heard = {0};
	mwctl_grant_info info;
	uint64_t stall;

	open_house(SEPARATE, polling);
	key = grant(0, 0);
	control[0] = grant(0, 65536);
	control[1] = grant(1, 131072);
	stall = trouble_order(MWCTL_SIM_STALL_SQ, it->pair.server.qp, 1, 0);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &key.grant, 1, 0, MWCTL_KILL_ALLOWED, heard_done, &heard));
	check_lands(0, 0, &key, 0x71);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send_with_inv(&it->pair.client, &it->local, 24, key.rkey));
	await_got(1);
	RC_CHECK_EQ(1, events_n);
	RC_CHECK_EQ(0, heard.calls);
	HOUSE_OK(mwctl_grant_info_get(house.ctx, key.grant, &info, sizeof(info)));
	trouble_release(stall);
	await_call(&heard);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, heard.results[0].proof);
	RC_CHECK_EQ(1, take_misuse());
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, revoke(control[0].grant).proof);
	check_lands(1, 131072, &control[1], 0x72);
	HOUSE_WRITE_FAILS(&house, 0, 0, key.rkey, 0x73);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, revoke(control[1].grant).proof);
	close_house();
	house_ok("given back with our LOCAL_INV posted, polling %s: the fence is the proof",
		 polling == MWCTL_POLLING_YOURS ? "YOURS" : "OURS");
}

struct giver {
	uint32_t rkey;
	atomic_bool ready, go;
	enum ibv_wc_status status;
};

static void *give(void *user)
{
	struct house_client *it = &house.client[0];
	struct giver *giver = user;

	atomic_store(&giver->ready, true);
	while (!atomic_load(&giver->go))
		;
	giver->status = rc_send_with_inv(&it->pair.client, &it->local, 24, giver->rkey);
	return NULL;
}

/* Both at once: whoever wins, the right is proved gone, once. */
static void at_once(enum layout layout, int polling)
{
	int by_peer = 0, by_us = 0, fenced = 0;
	mwctl_result control;

	open_house(layout, polling);
	control = grant(1, 131072);
	for (int round = 0; round < ROUNDS; round++) {
		mwctl_result key = grant(0, 0);
		struct giver giver = {.rkey = key.rkey};
		struct heard heard = {0};
		pthread_t thread;
		double until;

		RC_CHECK_EQ(0, pthread_create(&thread, NULL, give, &giver));
		while (!atomic_load(&giver.ready))
			sched_yield();
		atomic_store(&giver.go, true);
		/* From far ahead to far behind. */
		for (until = rc_now() + round * 0.5e-6; rc_now() < until;)
			;
		if (round % 2)
			poll_all();
		HOUSE_OK(mwctl_revoke_start(house.ctx, &key.grant, 1, 0, MWCTL_KILL_ALLOWED, heard_done, &heard));
		await_call(&heard);
		RC_CHECK_EQ(0, pthread_join(thread, NULL));
		poll_all();
		if (heard.status == MWCTL_STATUS_STALE_ID) {
			RC_CHECK_EQ(1, events_n);
			by_peer++;
		} else {
			HOUSE_OK(heard.status);
			by_peer += heard.results[0].proof == MWCTL_PROOF_PEER_INVALIDATED;
			by_us += heard.results[0].proof == MWCTL_PROOF_INVALIDATED;
			fenced += heard.results[0].proof == MWCTL_PROOF_QP_FENCED;
		}
		RC_CHECK_EQ(0, house_peer(&house, 0).grants);
		if (rc_qp_state(house.client[0].pair.client.qp) == IBV_QPS_RTS)
			HOUSE_WRITE_FAILS(&house, 0, 0, key.rkey, 0x61);
		check_lands(1, 131072, &control, (uint8_t)round);
		RC_CHECK(take_misuse() <= 1);
		rejoin(0);
		post_receives(got_n);
		got_n = events_n = 0;
	}
	RC_CHECK_EQ(ROUNDS, by_peer + by_us + fenced);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, revoke(control.grant).proof);
	close_house();
	house_ok("%s, polling %s: at once with a revocation, %d times: a proof each time (%d the client's, %d ours, %d by the fence)",
		 layouts[layout], polling == MWCTL_POLLING_YOURS ? "YOURS" : "OURS", ROUNDS, by_peer, by_us, fenced);
}

int main(void)
{
	for (int layout = OWN; layout <= SEPARATE; layout++)
		for (int polling = MWCTL_POLLING_OURS; polling <= MWCTL_POLLING_YOURS; polling++)
			given_back(layout, polling);
	found_by_a_waiting_call();
	async_events();
	if (!mwctl_sim_present()) {
		printf("skipped on this device: a second invalidate of one bind, which may bring a kernel down\n");
		return 0;
	}
	for (int layout = OWN; layout <= SEPARATE; layout++)
		given_back_unseen(layout);
	revoked_before(MWCTL_POLLING_OURS);
	revoked_before(MWCTL_POLLING_YOURS);
	crossed(MWCTL_POLLING_OURS);
	crossed(MWCTL_POLLING_YOURS);
	for (int layout = OWN; layout <= SEPARATE; layout++)
		for (int polling = MWCTL_POLLING_OURS; polling <= MWCTL_POLLING_YOURS; polling++)
			at_once(layout, polling);
	return 0;
}
