/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A revocation ends, with proof, though the queue pair is dead or its send queue stuck. */
#include "trouble.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static struct house house;
static int killed, dead, invalidated, foreign;

static void on_event(void *user, const mwctl_event *event)
{
	(void)user;
	killed += event->kind == MWCTL_EVENT_KIND_PEER_KILLED;
	dead += event->kind == MWCTL_EVENT_KIND_PEER_DEAD;
	invalidated += event->kind == MWCTL_EVENT_KIND_PEER_INVALIDATED;
	foreign += event->kind == MWCTL_EVENT_KIND_FOREIGN_INVALIDATION;
}

static void rejoin(int client)
{
	house_leave(&house, client);
	house_join(&house, client);
}

/* The client's queue pair died by its own fault, and ours with it. */
static void dead_qp(void)
{
	mwctl_result a = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	mwctl_result b = house_grant(&house, 0, 4096, 4096, HOUSE_WRITE);
	mwctl_result good = house_grant(&house, 1, 8192, 4096, HOUSE_WRITE);
	uint64_t ids[2] = {a.grant, b.grant};
	mwctl_result out[2];

	RC_CHECK(house_write(&house, 0, 4096, a.rkey, 1) != IBV_WC_SUCCESS || house.device.kind == RC_DEVICE_RXE);
	if (house.device.kind == RC_DEVICE_RXE)
		rc_qp_modify(house.client[0].pair.server.qp, IBV_QPS_ERR);
	rc_await_state(house.client[0].pair.server.qp, IBV_QPS_ERR);
	HOUSE_OK(mwctl_revoke_batch(house.ctx, ids, 2, 0, MWCTL_KILL_ALLOWED, out));
	for (int i = 0; i < 2; i++)
		RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, out[i].proof);
	RC_CHECK_EQ(2, house_peer(&house, 0).life);
	HOUSE_WRITE_LANDS(&house, 1, 8192, good.rkey, 0x41);
	HOUSE_OK(mwctl_revoke(house.ctx, good.grant, 0, NULL));
	rejoin(0);
	house_ok("grants of a dead queue pair end by deallocation, proof QP_FENCED");
}

/* A SEND that the peer never receives stands in front of everything else. */
static struct rc_memory blocker;

static void post_blocking_send(void)
{
	struct ibv_sge sge = {.addr = (uintptr_t)blocker.at, .length = 16, .lkey = blocker.mr->lkey};
	struct ibv_send_wr send = {.wr_id = 500, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED};

	rc_post(house.client[0].pair.server.qp, &send);
}

/* Bytes that a client which writes on and on changes after the proof. */
static void check_at_rest(uint64_t offset)
{
	mwctl_capabilities caps;
	uint8_t before[64];

	HOUSE_OK(mwctl_capabilities_get(house.ctx, &caps, sizeof(caps)));
	if (!caps.memory_at_rest)
		rc_pause(50);
	memcpy(before, house_at(&house, offset), sizeof(before));
	rc_pause(20);
	RC_CHECK_MEMORY(before, house_at(&house, offset), sizeof(before));
}

/* A client that writes on and on with its key until it is refused. */
struct hammer {
	uint32_t rkey;
	atomic_long landed;
	atomic_int refused;
};

static void *hammer(void *user)
{
	struct hammer *it = user;
	double limit = rc_now() + RC_DEADLINE_S;

	while (rc_now() < limit) {
		if (house_write(&house, 0, 0, it->rkey, (uint8_t)(it->landed | 1)) != IBV_WC_SUCCESS) {
			atomic_store(&it->refused, 1);
			break;
		}
		atomic_fetch_add(&it->landed, 1);
	}
	return NULL;
}

/* The LOCAL_INV is behind the SEND: the deadline ends it, at the price of the queue pair. */
static void stuck_behind(void)
{
	mwctl_result held = house_grant(&house, 0, 0, 4096, HOUSE_WRITE), out;
	mwctl_result good = house_grant(&house, 1, 8192, 4096, HOUSE_WRITE);
	int before = killed;

	struct hammer client = {.rkey = held.rkey};
	pthread_t thread;
	double limit = rc_now() + RC_DEADLINE_S;

	post_blocking_send();
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, hammer, &client));
	while (client.landed < 3)
		RC_CHECK(rc_now() < limit);
	HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 50000, &out));
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, out.proof);
	RC_CHECK_EQ(before + 1, killed);
	check_at_rest(0);
	pthread_join(thread, NULL);
	RC_CHECK_EQ(1, client.refused);
	printf("%ld writes landed before\n", (long)client.landed);
	HOUSE_WRITE_LANDS(&house, 1, 8192, good.rkey, 0x53);
	HOUSE_OK(mwctl_revoke(house.ctx, good.grant, 0, NULL));
	rejoin(0);
	house_ok("a LOCAL_INV behind a stuck SEND: the deadline fences the queue pair");
}

/* The same, but the queue pair must live. */
static void stuck_and_spared(void)
{
	struct house_client *it = &house.client[0];
	mwctl_result a = house_grant(&house, 0, 0, 4096, HOUSE_WRITE), out;
	mwctl_result b = house_grant(&house, 0, 4096, 4096, HOUSE_WRITE);
	mwctl_grant_info info;
	uint64_t addr;
	struct ibv_wc wc;
	double limit = rc_now() + RC_DEADLINE_S;
	int before = killed, n;

	post_blocking_send();
	HOUSE_STATUS(MWCTL_STATUS_OPEN,
		     mwctl_revoke_batch(house.ctx, &a.grant, 1, 50000, MWCTL_KILL_NEVER, &out));
	RC_CHECK_EQ(a.grant, out.grant);
	RC_CHECK_EQ(MWCTL_PROOF_NONE, out.proof);
	HOUSE_WRITE_LANDS(&house, 0, 0, a.rkey, 0x61);
	HOUSE_STATUS(MWCTL_STATUS_BUSY, mwctl_region_detach(house.ctx, house.region));
	/* Its block stays out of use. */
	HOUSE_OK(mwctl_block_take(house.ctx, house.region, 1, &addr));
	RC_CHECK(addr != house.memory.addr);
	HOUSE_OK(mwctl_block_give(house.ctx, house.region, addr, 1));
	house_ok("spared: reported open, the memory stays out of use");

	/* The queue is known to be stuck now: nothing more is posted behind. */
	n = (int)house_stats(&house).posts;
	HOUSE_OK(mwctl_revoke(house.ctx, b.grant, 50000, &out));
	RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, out.proof);
	RC_CHECK_EQ(n, house_stats(&house).posts);
	RC_CHECK_EQ(before, killed);
	RC_CHECK_STATE(IBV_QPS_RTS, it->pair.server.qp);
	check_at_rest(4096);
	house_ok("known to be stuck: deallocated at once, the queue pair lives");

	/* The peer receives at last: the queue pair answers, the first revocation ends. */
	rc_post_recv(&it->pair.client, &it->local, 6);
	do {
		RC_CHECK(rc_now() < limit);
		n = mwctl_poll_cq(house.ctx, it->pair.server.cq, 1, &wc);
		RC_CHECK(n >= 0);
	} while (!n);
	RC_CHECK_EQ(500, wc.wr_id);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(it->pair.client.cq).status);
	while (mwctl_grant_info_get(house.ctx, a.grant, &info, sizeof(info)) == MWCTL_STATUS_OK) {
		RC_CHECK(rc_now() < limit);
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, it->pair.server.cq, 1, &wc));
	}
	RC_CHECK_STATE(IBV_QPS_RTS, it->pair.server.qp);
	out = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	HOUSE_WRITE_LANDS(&house, 0, 0, out.rkey, 0x63);
	HOUSE_OK(mwctl_revoke(house.ctx, out.grant, 0, NULL));
	HOUSE_WRITE_FAILS(&house, 0, 0, a.rkey, 0x64);
	rejoin(0);
	house_ok("once the peer receives, the queue pair answers and the open grant is gone");
}

/* The application knows that its send queue is stuck, and says so beforehand. */
static void declared_stuck(void)
{
	struct house_client *it = &house.client[0];
	mwctl_result a = house_grant(&house, 0, 0, 4096, HOUSE_WRITE), out;
	mwctl_stats before;
	struct ibv_wc wc;
	double limit = rc_now() + RC_DEADLINE_S;

	post_blocking_send();
	HOUSE_OK(mwctl_peer_stuck(house.ctx, it->peer));
	before = house_stats(&house);
	HOUSE_OK(mwctl_revoke(house.ctx, a.grant, 50000, &out));
	RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, out.proof);
	RC_CHECK_EQ(before.posts, house_stats(&house).posts);
	check_at_rest(0);
	RC_CHECK_STATE(IBV_QPS_RTS, it->pair.server.qp);
	rc_post_recv(&it->pair.client, &it->local, 6);
	while (!mwctl_poll_cq(house.ctx, it->pair.server.cq, 1, &wc))
		RC_CHECK(rc_now() < limit);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(it->pair.client.cq).status);
	out = house_grant(&house, 0, 4096, 64, HOUSE_WRITE);
	HOUSE_OK(mwctl_revoke(house.ctx, out.grant, 0, &out));
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out.proof);
	HOUSE_WRITE_FAILS(&house, 0, 0, a.rkey, 0x65);
	rejoin(0);
	house_ok("declared stuck: deallocated without a post, the queue pair lives and answers");
}

/* Leaving though the send queue is stuck. */
static void leave_stuck(void)
{
	for (int i = 0; i < 64; i++)
		house_grant(&house, 0, i * 64, 64, HOUSE_WRITE);
	post_blocking_send();
	HOUSE_OK(mwctl_peer_detach(house.ctx, house.client[0].peer, 50000));
	/* What was flushed comes after the detach, and is not taken for the application's. */
	double limit = rc_now() + 0.2;
	struct ibv_wc wc;

	while (rc_now() < limit)
		if (mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, &wc) == 1)
			RC_CHECK_EQ(500, wc.wr_id);
	limit = rc_now();
	RC_CHECK_EQ(0, ibv_destroy_qp(house.client[0].pair.server.qp));
	printf("ibv_destroy_qp after the detach, 64 windows bound before: %.1f ms\n", (rc_now() - limit) * 1e3);
	/* With a window still bound, some devices stall for most of a minute here. */
	RC_CHECK(rc_now() - limit < RC_DEADLINE_S);
	house.client[0].pair.server.qp = NULL;
	rc_pair_close(&house.client[0].pair);
	house_join(&house, 0);
	house_ok("a peer with a stuck send queue is detached at the deadline");
}

/* The queue pair is gone before the library hears of it. */
static void gone(void)
{
	mwctl_result held = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	mwctl_grant_info info;

	rc_qp_modify(house.client[0].pair.server.qp, IBV_QPS_RESET);
	HOUSE_OK(mwctl_peer_gone(house.ctx, house.client[0].peer, 0));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant_info_get(house.ctx, held.grant, &info, sizeof(info)));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_peer_gone(house.ctx, house.client[0].peer, 0));
	rc_pair_close(&house.client[0].pair);
	house_join(&house, 0);
	house_ok("a peer that is gone");
}

/* SEND_WITH_INV: the client gives its right back. */
static void by_the_peer(void)
{
	struct house_client *it = &house.client[0];
	mwctl_result a = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	mwctl_result b = house_grant(&house, 0, 64, 64, HOUSE_WRITE);
	mwctl_grant_info info;
	struct rc_memory into;
	struct ibv_wc wc;
	double limit = rc_now() + RC_DEADLINE_S;
	int before = invalidated;

	rc_memory_open(&into, house.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	rc_post_recv(&it->pair.server, &into, 9);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send_with_inv(&it->pair.client, &it->local, 8, a.rkey));
	while (!mwctl_poll_cq(house.ctx, it->pair.server.cq, 1, &wc))
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(9, wc.wr_id);
	RC_CHECK(wc.wc_flags & (house.device.kind == RC_DEVICE_RXE ? IBV_WC_IP_CSUM_OK : IBV_WC_WITH_INV));
	RC_CHECK_EQ(a.rkey, wc.invalidated_rkey);
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant_info_get(house.ctx, a.grant, &info, sizeof(info)));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_revoke(house.ctx, a.grant, 0, NULL));
	RC_CHECK_EQ(before + 1, invalidated);
	RC_CHECK_EQ(0, foreign);
	HOUSE_WRITE_LANDS(&house, 0, 64, b.rkey, 0x72);
	HOUSE_OK(mwctl_revoke(house.ctx, b.grant, 0, NULL));
	HOUSE_WRITE_FAILS(&house, 0, 0, a.rkey, 0x71);
	rc_memory_close(&into);
	rejoin(0);
	house_ok("a right that its peer gave back by SEND_WITH_INV");
}

/* The queue pair is in error, nobody polls, and the application has offered the event that says so: at
 * the deadline that is found out, and nothing needs to be moved to ERR. */
static void dead_and_not_polled(void)
{
	struct house_options options = {.clients = 1, .peer.polling = MWCTL_POLLING_YOURS};
	struct ibv_async_event event = {.event_type = IBV_EVENT_QP_FATAL};
	double limit = rc_now() + RC_DEADLINE_S;
	struct heard granted = {0}, heard = {0};
	mwctl_request ask;
	struct ibv_cq *cq;
	struct ibv_wc wc;

	house_open(&house, &options);
	cq = house.client[0].pair.server.cq;
	event.element.qp = house.client[0].pair.server.qp;
	ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, heard_done, &granted));
	while (!granted.calls) {
		if (ibv_poll_cq(cq, 1, &wc) == 1)
			RC_CHECK_EQ(1, mwctl_take_wc(house.ctx, cq, &wc));
		RC_CHECK(rc_now() < limit);
	}
	rc_qp_modify(event.element.qp, IBV_QPS_ERR);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &granted.results[0].grant, 1, 50000, MWCTL_KILL_NEVER, heard_done,
				    &heard));
	HOUSE_OK(mwctl_take_async_event(house.ctx, &event));
	while (!heard.calls) {
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, heard.results[0].proof);
	RC_CHECK_EQ(0, house_stats(&house).peers_killed);
	house_close(&house);
	house_ok("a queue pair in error, whose queue nobody polls: found out at the deadline");
}

/* With the queue pair its completion queue was destroyed: neither is touched. */
static void gone_with_its_queue(void)
{
	struct mwctl_sim_misuse misuse;
	struct house_client *it;
	struct ibv_wc wc;

	house_open(&house, &(struct house_options){.clients = 1});
	it = &house.client[0];
	house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, it->pair.server.cq, 1, &wc));
	RC_CHECK_EQ(0, ibv_destroy_qp(it->pair.server.qp));
	RC_CHECK_EQ(0, ibv_destroy_cq(it->pair.server.cq));
	RC_CHECK_EQ(1, mwctl_sim_misuse_next(&misuse, sizeof(misuse)));
	RC_CHECK_EQ(MWCTL_SIM_RULE_DESTROY_QP_BOUND, misuse.rule);
	HOUSE_OK(mwctl_peer_gone(house.ctx, it->peer, 0));
	house_check_misuse();
	it->peer.id = 0;
	RC_CHECK_EQ(0, ibv_destroy_qp(it->pair.client.qp));
	RC_CHECK_EQ(0, ibv_destroy_cq(it->pair.client.cq));
	house_close(&house);
	house_ok("a queue pair that is gone, and its completion queue with it");
}

/* What ends while another call waits is heard of then and there. */
static void heard_meanwhile(void)
{
	struct heard heard = {0};
	mwctl_result held, out;
	mwctl_request ask;
	uint64_t stall;
	double before;

	house_open(&house, NULL);
	held = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	ask = house_ask(&house, 1, 64, 64, HOUSE_WRITE);
	stall = trouble_order(MWCTL_SIM_STALL_SQ, house.client[1].pair.server.qp, 0, 0);
	HOUSE_OK(mwctl_peer_stuck(house.ctx, house.client[0].peer));
	HOUSE_OK(mwctl_revoke_start(house.ctx, &held.grant, 1, 0, MWCTL_KILL_NEVER, heard_done, &heard));
	before = rc_now();
	HOUSE_STATUS(MWCTL_STATUS_TIMED_OUT, mwctl_grant(house.ctx, &ask, 1000000, &out));
	RC_CHECK_EQ(1, heard.calls);
	RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, heard.results[0].proof);
	RC_CHECK(heard.at < before + 0.9);
	trouble_release(stall);
	HOUSE_OK(mwctl_revoke(house.ctx, out.grant, 0, NULL));
	house_close(&house);
	house_ok("an end by deallocation is heard of while another call waits");
}

/* A queue that was resized after the attach: as many as it holds now must be offered before a completion
 * counts as lost. */
static void resized(void)
{
	struct house_options options = {.clients = 1, .peer.polling = MWCTL_POLLING_YOURS, .rc.cqe = 16,
					.rc.max_send_wr = 64};
	struct ibv_wc wc, own = {.wr_id = 77, .status = IBV_WC_SUCCESS};
	struct heard granted = {0}, revoked = {0};
	double limit = rc_now() + RC_DEADLINE_S;
	mwctl_request ask;
	struct ibv_cq *cq;
	uint64_t delay;

	house_open(&house, &options);
	cq = house.client[0].pair.server.cq;
	ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, heard_done, &granted));
	while (!granted.calls)
		if (ibv_poll_cq(cq, 1, &wc) == 1)
			RC_CHECK_EQ(1, mwctl_take_wc(house.ctx, cq, &wc));
	RC_CHECK_EQ(0, ibv_resize_cq(cq, 256));
	delay = trouble_order(MWCTL_SIM_DELAY_COMPLETION, house.client[0].pair.server.qp, 0, 0);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &granted.results[0].grant, 1, 20000, MWCTL_KILL_ALLOWED, heard_done,
				    &revoked));
	for (int i = 0; i < 20; i++)
		RC_CHECK_EQ(0, mwctl_take_wc(house.ctx, cq, &own));
	while (!revoked.calls) {
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_OPEN, revoked.status);
	RC_CHECK_STATE(IBV_QPS_RTS, house.client[0].pair.server.qp);
	trouble_release(delay);
	house_close(&house);
	house_ok("a queue that was resized: its completions are not missed too soon");
}

int main(void)
{
	struct house_options options = {.context.on_event = on_event};

	house_open(&house, &options);
	rc_memory_open(&blocker, house.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	dead_qp();
	stuck_behind();
	stuck_and_spared();
	declared_stuck();
	leave_stuck();
	gone();
	by_the_peer();
	rc_memory_close(&blocker);
	house_close(&house);
	dead_and_not_polled();
	if (mwctl_sim_present()) {
		gone_with_its_queue();
		heard_meanwhile();
		resized();
	}
	return 0;
}
