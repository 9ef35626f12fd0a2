/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Loops as applications have them: one that aborts on an opcode it does not know, one that takes
 * wr_id for a pointer, one that stops at the first empty poll, one that polls no more after the first
 * error. With mwctl_poll_cq in the place of ibv_poll_cq each is safe.
 */
#include "house.h"

#include <stdatomic.h>
#include <string.h>

#define ROUNDS 60
#define OPS 4096

static struct house house;

/* What the application's wr_ids point to. */
struct op {
	uint64_t magic;
	enum ibv_wc_opcode opcode;
	int completions;
};

#define MAGIC 0x6d61676963ull

static struct op ops[OPS];
static int posted, seen;

struct heard {
	atomic_int calls;
	mwctl_status status;
	mwctl_result last;
};

static void on_done(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct heard *heard = user;

	heard->status = status;
	if (n)
		heard->last = results[n - 1];
	atomic_fetch_add(&heard->calls, 1);
}

static struct op *op_of(enum ibv_wc_opcode opcode)
{
	RC_CHECK(posted < OPS);
	ops[posted] = (struct op){.magic = MAGIC, .opcode = opcode};
	return &ops[posted++];
}

static void own_write(int client)
{
	struct ibv_send_wr wr = {.wr_id = (uintptr_t)op_of(IBV_WC_RDMA_WRITE),
				 .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED};

	rc_post(house.client[client].pair.server.qp, &wr);
}

static void own_receive(int client)
{
	struct ibv_recv_wr wr = {.wr_id = (uintptr_t)op_of(IBV_WC_RECV)}, *bad;

	RC_CHECK_EQ(0, ibv_post_recv(house.client[client].pair.server.qp, &wr, &bad));
}

/* A message that the client has no receive for: what comes behind it stays outstanding. */
static void block(int client)
{
	struct ibv_send_wr wr = {.wr_id = (uintptr_t)op_of(IBV_WC_SEND),
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED};

	rc_post(house.client[client].pair.server.qp, &wr);
}

/* ---- the loops: each looks once, and returns what ibv_poll_cq would have told it ---- */

typedef int (*look_fn)(struct ibv_cq *cq);

/* An address nobody posted would be followed all the same. */
static void follow(const struct ibv_wc *wc)
{
	struct op *op = (struct op *)(uintptr_t)wc->wr_id;

	RC_CHECK_EQ(MAGIC, op->magic);
	RC_CHECK_EQ(0, op->completions++);
	seen++;
}

static int look_pointers(struct ibv_cq *cq)
{
	struct ibv_wc wc[16];
	int n = mwctl_poll_cq(house.ctx, cq, 16, wc);

	for (int i = 0; i < n; i++)
		follow(&wc[i]);
	return n;
}

static int look_opcodes(struct ibv_cq *cq)
{
	struct ibv_wc wc[4];
	int n = mwctl_poll_cq(house.ctx, cq, 4, wc);

	for (int i = 0; i < n; i++) {
		if (wc[i].status == IBV_WC_SUCCESS)
			switch (wc[i].opcode) {
			case IBV_WC_RDMA_WRITE:
			case IBV_WC_RECV:
				RC_CHECK_EQ(((struct op *)(uintptr_t)wc[i].wr_id)->opcode, wc[i].opcode);
				break;
			default:
				RC_FAIL("an opcode that no application knows: %d", (int)wc[i].opcode);
			}
		follow(&wc[i]);
	}
	return n;
}

/* Takes one at a time and an empty poll for the end. */
static int look_until_empty(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n, all = 0;

	while ((n = mwctl_poll_cq(house.ctx, cq, 1, &wc)) > 0) {
		follow(&wc);
		all++;
	}
	RC_CHECK_EQ(0, n);
	return all;
}

/* ---- what happens under them ---- */

static void await(look_fn look, struct ibv_cq *cq, struct heard *heard, int calls)
{
	double limit = rc_now() + RC_DEADLINE_S;

	while (seen < posted || heard->calls < calls) {
		RC_CHECK(look(cq) >= 0);
		HOUSE_OK(mwctl_tick(house.ctx));
		if (rc_now() > limit)
			RC_FAIL("%d of %d completions, %d of %d calls", seen, posted, heard->calls, calls);
	}
}

/* A regrant in a chain of the application's own, unsignaled but for its write. */
static void own_chain(int client, uint64_t *grant, struct heard *heard)
{
	mwctl_request ask = house_ask(&house, client, 4096, 64, HOUSE_WRITE);
	struct ibv_send_wr wr[2], *bad = NULL, write = {.wr_id = (uintptr_t)op_of(IBV_WC_RDMA_WRITE),
							.opcode = IBV_WR_RDMA_WRITE,
							.send_flags = IBV_SEND_SIGNALED};
	mwctl_result next;
	mwctl_token token;
	int ret;

	HOUSE_OK(mwctl_regrant_prepare(house.ctx, *grant, &ask, 0, on_done, heard, wr, &next, &token));
	wr[1].next = &write;
	ret = ibv_post_send(house.client[client].pair.server.qp, wr, &bad);
	RC_CHECK_EQ(0, ret);
	HOUSE_OK(mwctl_commit(house.ctx, token, ret, bad, NULL));
	*grant = next.grant;
}

static void under(const char *what, look_fn look, int signal_all)
{
	struct house_options options = {.rc.sq_sig_all = signal_all};
	struct heard heard = {0};
	struct ibv_cq *cq;
	uint64_t grant;
	int calls = 0;

	posted = seen = 0;
	house_open(&house, &options);
	cq = house.client[0].pair.server.cq;
	for (int round = 0; round < ROUNDS; round++) {
		mwctl_request ask[4];

		for (int i = 0; i < 4; i++)
			ask[i] = house_ask(&house, 0, i * 64, 64, HOUSE_WRITE);
		own_write(0);
		HOUSE_OK(mwctl_grant_start(house.ctx, ask, 4, 0, on_done, &heard));
		own_write(0);
		RC_CHECK(look(cq) >= 0);
		HOUSE_OK(mwctl_revoke_peer_start(house.ctx, house.client[0].peer, 0, MWCTL_KILL_ALLOWED, on_done,
						 &heard));
		own_write(0);
		await(look, cq, &heard, calls += 2);
		RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
		/* A waiting call takes completions off the queue and keeps what is not ours. */
		own_write(0);
		grant = house_grant(&house, 0, 0, 64, HOUSE_WRITE).grant;
		own_chain(0, &grant, &heard);
		await(look, cq, &heard, calls += 1);
		HOUSE_OK(mwctl_revoke(house.ctx, grant, 0, NULL));
	}

	/* The queue pair dies with requests of both outstanding. What was posted before is flushed. */
	own_receive(0);
	house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	block(0);
	own_write(0);
	HOUSE_OK(mwctl_revoke_peer_start(house.ctx, house.client[0].peer, 0, MWCTL_KILL_ALLOWED, on_done, &heard));
	rc_qp_modify(house.client[0].pair.server.qp, IBV_QPS_ERR);
	await(look, cq, &heard, calls += 1);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	/* What still comes after the peer has left is ours all the same. */
	HOUSE_OK(mwctl_peer_detach(house.ctx, house.client[0].peer, 0));
	RC_CHECK_EQ(0, look(cq));
	rc_pair_close(&house.client[0].pair);
	house_join(&house, 0);
	house_close(&house);
	house_ok("a loop that %s%s", what, signal_all ? ", with a queue pair that signals all" : "");
}

/* Ours stand before the application's in the queue: no look may end in front of it. */
static void behind_ours(void)
{
	struct heard heard = {0};
	mwctl_request ask[8];
	struct ibv_cq *cq;
	double limit = rc_now() + RC_DEADLINE_S;

	posted = seen = 0;
	house_open(&house, NULL);
	cq = house.client[0].pair.server.cq;
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < 8; i++) {
			ask[i] = house_ask(&house, 0, i * 64, 64, HOUSE_WRITE);
			HOUSE_OK(mwctl_grant_start(house.ctx, &ask[i], 1, 0, on_done, &heard));
		}
		own_write(0);
		/* There all has completed by now. */
		if (mwctl_sim_present())
			RC_CHECK_EQ(1, look_until_empty(cq));
		while (seen < posted) {
			look_until_empty(cq);
			RC_CHECK(rc_now() < limit);
		}
		RC_CHECK_EQ(8 * (round + 1), heard.calls);
		HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[0].peer, 0, MWCTL_KILL_ALLOWED, NULL));
	}
	house_close(&house);
	house_ok("a loop that stops at the first empty poll finds what stands behind ours");
}

/* ---- no poll any more after the first error ---- */

/* The client breaks its connection; the application sees one error and leaves the queue alone. */
static void see_an_error(int client)
{
	struct ibv_cq *cq = house.client[client].pair.server.cq;
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc = {0};
	mwctl_polling polling = house.options.peer.polling;

	own_receive(client);
	RC_CHECK(house_write(&house, client, 0, 0x12345, 0x31) != IBV_WC_SUCCESS);
	while (!wc.wr_id || wc.status == IBV_WC_SUCCESS) {
		int n = polling == MWCTL_POLLING_OURS ? mwctl_poll_cq(house.ctx, cq, 1, &wc) :
							ibv_poll_cq(cq, 1, &wc);

		if (n == 1 && polling == MWCTL_POLLING_YOURS && mwctl_take_wc(house.ctx, cq, &wc))
			wc.wr_id = 0;
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK(wc.wr_id == (uintptr_t)&ops[posted - 1]);
}

static void deaf(void)
{
	struct heard heard = {0};
	double limit = rc_now() + RC_DEADLINE_S;
	mwctl_result grants[3];

	posted = 0;
	house_open(&house, NULL);
	for (int i = 0; i < 3; i++)
		grants[i] = house_grant(&house, 0, i * 64, 64, HOUSE_WRITE);
	see_an_error(0);
	own_write(0);
	HOUSE_OK(mwctl_revoke(house.ctx, grants[0].grant, 0, NULL));
	HOUSE_OK(mwctl_revoke_start(house.ctx, &grants[1].grant, 1, 20000, MWCTL_KILL_ALLOWED, on_done, &heard));
	while (!heard.calls) {
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	HOUSE_OK(mwctl_peer_detach_start(house.ctx, house.client[0].peer, 20000, on_done, &heard));
	while (heard.calls < 2) {
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	/* What was kept for its next poll goes with the queue. */
	HOUSE_OK(mwctl_cq_gone(house.ctx, house.client[0].pair.server.cq));
	rc_pair_close(&house.client[0].pair);
	house.client[0].peer.id = 0;
	/* Another client's queue is polled as ever. */
	house_grant(&house, 1, 0, 64, HOUSE_WRITE);
	house_close(&house);
	house_ok("a loop that polls no more after the first error: revocations and the detach end");
}

static void deaf_by_itself(void)
{
	struct house_options options = {.peer.polling = MWCTL_POLLING_YOURS};
	struct heard heard = {0};
	double limit = rc_now() + RC_DEADLINE_S;
	mwctl_request ask;
	struct ibv_cq *cq;
	struct ibv_wc wc;

	posted = 0;
	house_open(&house, &options);
	cq = house.client[0].pair.server.cq;
	ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, on_done, &heard));
	while (!heard.calls) {
		if (ibv_poll_cq(cq, 1, &wc))
			RC_CHECK_EQ(1, mwctl_take_wc(house.ctx, cq, &wc));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	see_an_error(0);
	HOUSE_OK(mwctl_peer_detach(house.ctx, house.client[0].peer, 50000));
	rc_pair_close(&house.client[0].pair);
	house.client[0].peer.id = 0;
	house_close(&house);
	house_ok("the same with an application that polls by itself: the detach ends");
}

int main(void)
{
	for (int signal_all = 0; signal_all < 2; signal_all++) {
		under("aborts on an unknown opcode", look_opcodes, signal_all);
		under("takes wr_id for a pointer", look_pointers, signal_all);
		under("stops at the first empty poll", look_until_empty, signal_all);
	}
	behind_ours();
	deaf();
	deaf_by_itself();
	return 0;
}
