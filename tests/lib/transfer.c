/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Ranges move from one client to another: never held by both, and by nobody without proof. */
#include "house.h"

#include <string.h>

static struct house house;
static struct rc_memory blocker;

struct heard {
	int calls;
	mwctl_status status;
	mwctl_result results[8];
	size_t n;
};

static void on_done(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct heard *heard = user;

	heard->calls++;
	heard->status = status;
	heard->n = n;
	memcpy(heard->results, results, n * sizeof(*results));
}

static mwctl_move move(uint64_t grant, int to, uint64_t offset)
{
	return (mwctl_move){.grant = grant, .to = house_ask(&house, to, offset, 4096, HOUSE_WRITE)};
}

static void new_leader(void)
{
	mwctl_move steps[3];
	mwctl_result old[3], out[6];
	mwctl_stats before;

	for (int i = 0; i < 3; i++) {
		old[i] = house_grant(&house, 0, i * 4096, 4096, HOUSE_WRITE);
		HOUSE_WRITE_LANDS(&house, 0, i * 4096, old[i].rkey, 0x10);
		steps[i] = move(old[i].grant, 1, i * 4096);
	}
	before = house_stats(&house);
	HOUSE_OK(mwctl_transfer(house.ctx, steps, 3, 0, MWCTL_KILL_ALLOWED, out));
	RC_CHECK_EQ(3, house_stats(&house).invalidates_posted - before.invalidates_posted);
	for (int i = 0; i < 3; i++) {
		RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out[3 + i].proof);
		RC_CHECK_EQ(old[i].grant, out[3 + i].grant);
		HOUSE_WRITE_LANDS(&house, 1, i * 4096, out[i].rkey, 0x20);
	}
	RC_CHECK_EQ(0, house_peer(&house, 0).grants);
	RC_CHECK_EQ(3, house_peer(&house, 1).grants);
	HOUSE_WRITE_FAILS(&house, 0, 0, old[0].rkey, 0x30);
	HOUSE_WRITE_LANDS(&house, 1, 0, out[0].rkey, 0x31);
	HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[1].peer, 0, 0, NULL));
	house_leave(&house, 0);
	house_join(&house, 0);
	house_ok("three ranges move to a new leader");
}

static void from_the_dead(void)
{
	mwctl_result old = house_grant(&house, 0, 0, 4096, HOUSE_WRITE), out[2];
	mwctl_move step = move(old.grant, 1, 0);

	rc_qp_modify(house.client[0].pair.server.qp, IBV_QPS_ERR);
	HOUSE_OK(mwctl_transfer(house.ctx, &step, 1, 0, MWCTL_KILL_ALLOWED, out));
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, out[1].proof);
	HOUSE_WRITE_LANDS(&house, 1, 0, out[0].rkey, 0x41);
	HOUSE_OK(mwctl_revoke(house.ctx, out[0].grant, 0, NULL));
	house_leave(&house, 0);
	house_join(&house, 0);
	house_ok("the old leader is dead: fenced, then handed over");
}

/* No proof, no successor. */
static void no_proof(void)
{
	struct house_client *it = &house.client[0];
	mwctl_result old = house_grant(&house, 0, 0, 4096, HOUSE_WRITE), out[2];
	mwctl_move step = move(old.grant, 1, 0);
	struct ibv_sge sge = {.addr = (uintptr_t)blocker.at, .length = 16, .lkey = blocker.mr->lkey};
	struct ibv_send_wr send = {.wr_id = 500, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED};

	rc_post(it->pair.server.qp, &send);
	HOUSE_STATUS(MWCTL_STATUS_NOT_POSTED,
		     mwctl_transfer(house.ctx, &step, 1, 50000, MWCTL_KILL_NEVER, out));
	RC_CHECK_EQ(MWCTL_STATUS_OPEN, out[1].status);
	RC_CHECK_EQ(0, out[0].grant);
	RC_CHECK_EQ(0, house_peer(&house, 1).grants);
	HOUSE_WRITE_LANDS(&house, 0, 0, old.rkey, 0x51);
	HOUSE_OK(mwctl_peer_detach(house.ctx, it->peer, 50000));
	rc_pair_close(&it->pair);
	house_join(&house, 0);
	house_ok("without a proof the new client gets nothing");
}

static void bad_moves(void)
{
	mwctl_result old = house_grant(&house, 0, 0, 4096, HOUSE_WRITE), out[4];
	mwctl_move steps[2] = {move(old.grant, 1, 0), move(old.grant, 1, 4096)};
	mwctl_stats before = house_stats(&house);

	HOUSE_STATUS(MWCTL_STATUS_DUPLICATE, mwctl_transfer(house.ctx, steps, 2, 0, 0, out));
	steps[1].grant ^= 1ull << 30;
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_transfer(house.ctx, steps, 2, 0, 0, out));
	steps[1] = move(old.grant, 1, house.memory.length);
	HOUSE_STATUS(MWCTL_STATUS_OUT_OF_RANGE, mwctl_transfer(house.ctx, steps + 1, 1, 0, 0, out));
	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT, mwctl_transfer(house.ctx, NULL, 1, 0, 0, out));
	HOUSE_OK(mwctl_transfer(house.ctx, NULL, 0, 0, 0, NULL));
	RC_CHECK_EQ(before.posts, house_stats(&house).posts);
	HOUSE_WRITE_LANDS(&house, 0, 0, old.rkey, 0x61);
	HOUSE_OK(mwctl_revoke(house.ctx, old.grant, 0, NULL));
	house_ok("bad moves are refused before anything is posted");
}

static void asynchronous(void)
{
	mwctl_result old[2];
	mwctl_move steps[2];
	struct heard heard = {0};
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;

	for (int i = 0; i < 2; i++) {
		old[i] = house_grant(&house, i, i * 4096, 4096, HOUSE_WRITE);
		steps[i] = move(old[i].grant, !i, i * 4096);
	}
	HOUSE_OK(mwctl_transfer_start(house.ctx, steps, 2, 0, MWCTL_KILL_ALLOWED, on_done, &heard));
	while (!heard.calls) {
		for (int i = 0; i < 2; i++)
			RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, house.client[i].pair.server.cq, 1, &wc));
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(1, heard.calls);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(4, heard.n);
	for (int i = 0; i < 2; i++)
		HOUSE_WRITE_LANDS(&house, !i, i * 4096, heard.results[i].rkey, 0x71);
	for (int i = 0; i < 2; i++)
		HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[i].peer, 0, 0, NULL));
	house_ok("two clients change places, by callback");
}

int main(void)
{
	house_open(&house, NULL);
	rc_memory_open(&blocker, house.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	new_leader();
	from_the_dead();
	no_proof();
	bad_moves();
	asynchronous();
	rc_memory_close(&blocker);
	house_close(&house);
	return 0;
}
