/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Requests that overtake each other: whatever the order, one LOCAL_INV a bind, and every
 * operation ends once. */
#include "house.h"

#include <stdio.h>
#include <string.h>

static struct house house;
static struct rc_memory blocker;

struct heard {
	int calls;
	mwctl_status status;
	mwctl_result last;
};

static void on_done(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct heard *heard = user;

	heard->calls++;
	heard->status = status;
	if (n)
		heard->last = results[n - 1];
}

static void await(struct heard *heard)
{
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;

	while (!heard->calls) {
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, &wc));
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(1, heard->calls);
}

static void block(void)
{
	struct ibv_sge sge = {.addr = (uintptr_t)blocker.at, .length = 16, .lkey = blocker.mr->lkey};
	struct ibv_send_wr send = {.wr_id = 500, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED};

	rc_post(house.client[0].pair.server.qp, &send);
}

static void unblock(void)
{
	struct house_client *it = &house.client[0];
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;

	rc_post_recv(&it->pair.client, &it->local, 6);
	while (!mwctl_poll_cq(house.ctx, it->pair.server.cq, 1, &wc))
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(500, wc.wr_id);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(it->pair.client.cq).status);
}

static uint64_t only_grant(void)
{
	uint64_t grant;
	size_t n;

	HOUSE_OK(mwctl_peer_grants(house.ctx, house.client[0].peer, &grant, 1, &n));
	RC_CHECK_EQ(1, n);
	return grant;
}

/* The bind is under way and two revocations come, with a budget that lets neither pass. */
static void revoked_twice_while_binding(void)
{
	mwctl_request ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);
	struct heard granted = {0}, first = {0}, second = {0};
	mwctl_stats before = house_stats(&house);
	uint64_t grant;

	block();
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, on_done, &granted));
	grant = only_grant();
	HOUSE_OK(mwctl_revoke_start(house.ctx, &grant, 1, 0, 0, on_done, &first));
	HOUSE_OK(mwctl_revoke_peer_start(house.ctx, house.client[0].peer, 0, 0, on_done, &second));
	unblock();
	await(&granted);
	await(&first);
	await(&second);
	RC_CHECK_EQ(MWCTL_STATUS_OK, granted.status);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, first.last.proof);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, second.last.proof);
	RC_CHECK_EQ(1, house_stats(&house).invalidates_posted - before.invalidates_posted);
	house_check_misuse();
	house_ok("two revocations of a grant that is being bound: one LOCAL_INV");
}

/* Everybody who asks while a revocation is under way is told so, or ends with it. */
static void claimed_already(void)
{
	mwctl_result held = house_grant(&house, 0, 0, 64, HOUSE_WRITE), out[2];
	mwctl_request ask = house_ask(&house, 0, 64, 64, HOUSE_WRITE);
	struct ibv_send_wr wr[2];
	struct heard heard = {0};
	mwctl_token token;

	block();
	HOUSE_OK(mwctl_revoke_start(house.ctx, &held.grant, 1, 0, 0, on_done, &heard));
	HOUSE_STATUS(MWCTL_STATUS_IN_PROGRESS, mwctl_regrant(house.ctx, held.grant, &ask, 0, out));
	RC_CHECK_EQ(0, out[1].grant);
	unblock();
	await(&heard);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, heard.last.proof);

	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, wr, out, &token));
	held = out[0];
	HOUSE_STATUS(MWCTL_STATUS_IN_PROGRESS, mwctl_regrant(house.ctx, held.grant, &ask, 0, out));
	HOUSE_OK(mwctl_abort(house.ctx, token));
	RC_CHECK_EQ(0, house_peer(&house, 0).grants);
	house_ok("a grant that is being ended, or is in the application's hands, is not regranted");
}

/* The send queue is stuck, a bind waits in line, and its revocation comes. */
static void stuck_with_a_bind_in_line(void)
{
	mwctl_request ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);
	struct heard granted[2] = {{0}}, gone = {0};
	uint64_t grants[2];
	size_t n;

	block();
	for (int i = 0; i < 2; i++)
		HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, on_done, &granted[i]));
	HOUSE_OK(mwctl_peer_stuck(house.ctx, house.client[0].peer));
	/* The budget is 1: the newer one, first in the list, waits in line. */
	HOUSE_OK(mwctl_peer_grants(house.ctx, house.client[0].peer, grants, 2, &n));
	RC_CHECK_EQ(2, n);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &grants[0], 1, 0, 0, on_done, &gone));
	await(&gone);
	RC_CHECK_EQ(MWCTL_PROOF_NEVER_BOUND, gone.last.proof);
	await(&granted[1]);
	RC_CHECK_EQ(MWCTL_STATUS_NOT_POSTED, granted[1].status);
	unblock();
	await(&granted[0]);
	RC_CHECK_EQ(MWCTL_STATUS_OK, granted[0].status);
	HOUSE_OK(mwctl_revoke(house.ctx, granted[0].last.grant, 0, NULL));
	house_check_misuse();
	house_ok("a bind that waits behind a stuck queue ends with its revocation");
}

/* A regrant through a queue that can't be relied on goes by proof instead. */
static void regrant_when_stuck(void)
{
	mwctl_result held = house_grant(&house, 0, 0, 64, HOUSE_WRITE), out[2];
	mwctl_request ask = house_ask(&house, 0, 64, 64, HOUSE_WRITE);

	HOUSE_OK(mwctl_peer_stuck(house.ctx, house.client[0].peer));
	HOUSE_OK(mwctl_regrant(house.ctx, held.grant, &ask, 0, out));
	RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, out[0].proof);
	RC_CHECK_EQ(held.grant, out[0].grant);
	HOUSE_WRITE_LANDS(&house, 0, 64, out[1].rkey, 0x41);
	HOUSE_OK(mwctl_revoke(house.ctx, out[1].grant, 0, NULL));
	HOUSE_WRITE_FAILS(&house, 0, 0, held.rkey, 0x42);
	house_leave(&house, 0);
	house_join(&house, 0);
	house_ok("a regrant on a stuck queue waits for the old grant's proof");
}

/* The peer leaves while a LOCAL_INV for it is in the application's hands. */
static void leave_with_a_chain_in_hand(bool commit)
{
	struct house_client *it = &house.client[0];
	mwctl_result held = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	struct ibv_send_wr wr, *bad = NULL;
	struct heard heard = {0};
	mwctl_token token;

	HOUSE_OK(mwctl_revoke_prepare(house.ctx, &held.grant, 1, 0, 0, on_done, &heard, &wr, &token));
	HOUSE_STATUS(MWCTL_STATUS_OPEN, mwctl_peer_detach(house.ctx, it->peer, 20000));
	RC_CHECK_STATE(IBV_QPS_RTS, it->pair.server.qp);
	if (commit)
		HOUSE_OK(mwctl_commit(house.ctx, token, ibv_post_send(it->pair.server.qp, &wr, &bad), bad, NULL));
	else
		HOUSE_OK(mwctl_abort(house.ctx, token));
	await(&heard);
	RC_CHECK_EQ(commit ? MWCTL_STATUS_OK : MWCTL_STATUS_NOT_POSTED, heard.status);
	house_leave(&house, 0);
	house_join(&house, 0);
	house_check_misuse();
	house_ok("a peer with a chain in the application's hands leaves after the %s", commit ? "commit" : "abort");
}

/* The peer dies while a LOCAL_INV for it is in the application's hands. */
static void die_with_a_chain_in_hand(bool commit)
{
	struct house_client *it = &house.client[0];
	mwctl_result held = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	struct ibv_send_wr wr, *bad = NULL;
	struct heard heard = {0};
	mwctl_token token;

	HOUSE_OK(mwctl_revoke_prepare(house.ctx, &held.grant, 1, 0, 0, on_done, &heard, &wr, &token));
	rc_qp_modify(it->pair.server.qp, IBV_QPS_ERR);
	if (commit)
		HOUSE_OK(mwctl_commit(house.ctx, token, ibv_post_send(it->pair.server.qp, &wr, &bad), bad, NULL));
	else
		HOUSE_OK(mwctl_abort(house.ctx, token));
	await(&heard);
	if (commit)
		RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, heard.last.proof);
	house_leave(&house, 0);
	house_join(&house, 0);
	house_ok("a queue pair that dies with a chain in the application's hands, then %s", commit ? "commit" : "abort");
}

/* Completions kept for a queue that is destroyed don't come out of the next one. */
static void queue_gone(void)
{
	struct house_client *it = &house.client[0];
	struct ibv_send_wr wr = {.wr_id = 900, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_cq *cq = it->pair.server.cq;
	struct ibv_wc wc;

	rc_post(it->pair.server.qp, &wr);
	HOUSE_OK(mwctl_revoke(house.ctx, house_grant(&house, 0, 0, 64, HOUSE_WRITE).grant, 0, NULL));
	RC_CHECK_EQ(1, house_stats(&house).completions_kept > 0);
	HOUSE_STATUS(MWCTL_STATUS_BUSY, mwctl_cq_gone(house.ctx, cq));
	HOUSE_OK(mwctl_peer_detach(house.ctx, it->peer, 0));
	HOUSE_OK(mwctl_cq_gone(house.ctx, cq));
	HOUSE_OK(mwctl_cq_gone(house.ctx, cq));
	RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, cq, 1, &wc));
	HOUSE_STATUS(MWCTL_STATUS_UNKNOWN_QUEUE, mwctl_cq_empty(house.ctx, cq));
	rc_pair_close(&it->pair);
	house_join(&house, 0);
	RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, it->pair.server.cq, 1, &wc));
	house_ok("what was kept for a queue goes with it");
}

int main(void)
{
	struct house_options options = {.clients = 1, .peer.budget = 1};

	house_open(&house, &options);
	rc_memory_open(&blocker, house.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	/* rxe runs a bind again when a SEND before it is retried, and the queue pair dies of that. */
	if (house.device.kind == RC_DEVICE_RXE) {
		printf("deviation %s: no bind behind a SEND that is not received\n", house.device.label);
	} else {
		revoked_twice_while_binding();
		stuck_with_a_bind_in_line();
	}
	claimed_already();
	regrant_when_stuck();
	for (int commit = 0; commit < 2; commit++) {
		leave_with_a_chain_in_hand(commit);
		die_with_a_chain_in_hand(commit);
	}
	queue_gone();
	rc_memory_close(&blocker);
	house_close(&house);
	return 0;
}
