/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Work requests chained with the application's own: prepare, commit, abort, whatever the post did. */
#include "trouble.h"

#include <string.h>

static struct house house;

struct ended {
	int calls;
	mwctl_status status;
	mwctl_result last;
};

static void on_done(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct ended *ended = user;

	ended->calls++;
	ended->status = status;
	if (n)
		ended->last = results[n - 1];
}

/* Polls as the application does until its completion `wr_id` comes; no other may. */
static void await_wr(uint64_t wr_id)
{
	struct ibv_cq *cq = house.client[0].pair.server.cq;
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;

	for (;;) {
		int n = mwctl_poll_cq(house.ctx, cq, 1, &wc);

		RC_CHECK(n >= 0);
		if (n == 1) {
			RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
			RC_CHECK_EQ(wr_id, wc.wr_id);
			return;
		}
		RC_CHECK(rc_now() < limit);
	}
}

static void await_calls(struct ended *ended, int calls)
{
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;

	while (ended->calls < calls) {
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, &wc));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(calls, ended->calls);
}

/* bind + SEND with the key inside: one post. */
static void bind_and_send(void)
{
	struct house_client *it = &house.client[0];
	mwctl_request ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	struct rc_memory message;
	struct ibv_send_wr bind, send, *bad = NULL;
	struct ibv_sge sge;
	mwctl_grant_info info;
	mwctl_result grant;
	mwctl_token token;
	uint32_t key;
	size_t posted;

	rc_memory_open(&message, house.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &bind, &grant, &token));
	memcpy(message.at, &grant.rkey, sizeof(grant.rkey));
	sge = (struct ibv_sge){.addr = (uintptr_t)message.at, .length = 4, .lkey = message.mr->lkey};
	send = (struct ibv_send_wr){.wr_id = 77, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED};
	bind.next = &send;
	rc_post_recv(&it->pair.client, &it->local, 5);
	HOUSE_OK(mwctl_commit(house.ctx, token, ibv_post_send(it->pair.server.qp, &bind, &bad), bad, &posted));
	RC_CHECK_EQ(1, posted);
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_commit(house.ctx, token, 0, NULL, NULL));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_abort(house.ctx, token));
	await_wr(77);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(it->pair.client.cq).status);
	memcpy(&key, it->local.at, sizeof(key));
	RC_CHECK_EQ(grant.rkey, key);
	HOUSE_OK(mwctl_find_rkey(house.ctx, key, &info, sizeof(info)));
	RC_CHECK_EQ(grant.grant, info.grant);
	HOUSE_WRITE_LANDS(&house, 0, 0, key, 0x21);
	/* A later completion of ours confirms it. */
	mwctl_result next = house_grant(&house, 0, 4096, 64, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_info_get(house.ctx, grant.grant, &info, sizeof(info)));
	RC_CHECK_EQ(1, info.confirmed);
	HOUSE_OK(mwctl_revoke(house.ctx, next.grant, 0, NULL));
	HOUSE_OK(mwctl_revoke(house.ctx, grant.grant, 0, NULL));
	HOUSE_WRITE_FAILS(&house, 0, 0, key, 0x22);
	rc_memory_close(&message);
	house_leave(&house, 0);
	house_join(&house, 0);
	house_ok("bind + SEND in one post, the key in the message");
}

/* One bind alone asks for no completion; the application may ask for it. */
static void confirmed_when_asked(void)
{
	struct house_client *it = &house.client[0];
	mwctl_request ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	uint32_t used = house_peer(&house, 0).used;
	struct ibv_send_wr bind, *bad = NULL;
	mwctl_grant_info info;
	mwctl_result grant;
	mwctl_token token;
	struct ibv_wc wc;
	double limit = rc_now() + RC_DEADLINE_S;

	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &bind, &grant, &token));
	RC_CHECK_EQ(0, bind.send_flags & IBV_SEND_SIGNALED);
	bind.send_flags |= IBV_SEND_SIGNALED;
	HOUSE_OK(mwctl_commit(house.ctx, token, ibv_post_send(it->pair.server.qp, &bind, &bad), bad, NULL));
	do {
		RC_CHECK(rc_now() < limit);
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, it->pair.server.cq, 1, &wc));
		HOUSE_OK(mwctl_grant_info_get(house.ctx, grant.grant, &info, sizeof(info)));
	} while (!info.confirmed);
	RC_CHECK_EQ(used, house_peer(&house, 0).used);
	/* Nothing is outstanding: a queue that gets stuck now keeps no window. */
	trouble_block(&house, 0);
	HOUSE_OK(mwctl_peer_stuck(house.ctx, it->peer));
	mwctl_result out;
	HOUSE_OK(mwctl_revoke(house.ctx, grant.grant, 0, &out));
	RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, out.proof);
	RC_CHECK_STATE(IBV_QPS_RTS, it->pair.server.qp);
	trouble_unblock(&house, 0);
	HOUSE_WRITE_FAILS(&house, 0, 0, grant.rkey, 0x25);
	house_leave(&house, 0);
	house_join(&house, 0);
	house_ok("a bind that the application posts signaled is confirmed by its own completion");
}

static void aborted(void)
{
	mwctl_request ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	mwctl_peer_info before = house_peer(&house, 0), after;
	mwctl_result grant, held = house_grant(&house, 0, 8192, 64, HOUSE_WRITE);
	struct ended ended = {0};
	struct ibv_send_wr wr[2];
	mwctl_token token;
	mwctl_grant_info info;

	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, wr, &grant, &token));
	HOUSE_OK(mwctl_abort(house.ctx, token));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant_info_get(house.ctx, grant.grant, &info, sizeof(info)));
	HOUSE_OK(mwctl_revoke_prepare(house.ctx, &held.grant, 1, 0, 0, on_done, &ended, wr, &token));
	HOUSE_STATUS(MWCTL_STATUS_IN_PROGRESS,
		     mwctl_revoke_prepare(house.ctx, &held.grant, 1, 0, 0, on_done, &ended, wr + 1, &token));
	HOUSE_OK(mwctl_abort(house.ctx, token));
	await_calls(&ended, 1);
	RC_CHECK_EQ(MWCTL_STATUS_NOT_POSTED, ended.status);
	HOUSE_WRITE_LANDS(&house, 0, 8192, held.rkey, 0x23);
	HOUSE_OK(mwctl_regrant_prepare(house.ctx, held.grant, &ask, 0, on_done, &ended, wr, &grant, &token));
	HOUSE_OK(mwctl_abort(house.ctx, token));
	await_calls(&ended, 2);
	HOUSE_WRITE_LANDS(&house, 0, 8192, held.rkey, 0x24);
	HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 0, NULL));
	after = house_peer(&house, 0);
	RC_CHECK_EQ(before.grants, after.grants);
	RC_CHECK_EQ(before.used, after.used);
	house_ok("a dropped chain leaves nothing behind");
}

/* The post stops at an application's request, or at one of ours. */
static void cut(int at)
{
	struct house_client *it = &house.client[0];
	mwctl_request ask[2] = {house_ask(&house, 0, 0, 64, HOUSE_WRITE),
				house_ask(&house, 0, 64, 64, HOUSE_WRITE)};
	struct ibv_send_wr wr[2], mine[2], *chain[4] = {&mine[0], &wr[0], &wr[1], &mine[1]}, *bad = NULL;
	mwctl_result grant[2];
	mwctl_token token;
	mwctl_grant_info info;
	size_t posted;
	int ours = at <= 1 ? 0 : at == 2 ? 1 : 2, ret;

	HOUSE_OK(mwctl_grant_prepare(house.ctx, ask, 2, wr, grant, &token));
	memset(mine, 0, sizeof(mine));
	for (int i = 0; i < 2; i++)
		mine[i] = (struct ibv_send_wr){.wr_id = 100 + i, .opcode = IBV_WR_RDMA_WRITE,
					       .send_flags = IBV_SEND_SIGNALED};
	/* A request that no provider accepts: more entries than the queue pair has. */
	static struct ibv_sge many[1000];
	struct ibv_send_wr broken = {.sg_list = many, .num_sge = 1000, .opcode = IBV_WR_RDMA_WRITE};
	for (int i = 0; i < 3; i++)
		chain[i]->next = i + 1 == at ? &broken : chain[i + 1];
	broken.next = chain[at];
	chain[3]->next = NULL;
	/* Zero-length writes to nowhere are legal: they touch no memory and need no key. */
	ret = ibv_post_send(it->pair.server.qp, at == 0 ? &broken : chain[0], &bad);
	RC_CHECK(ret != 0);
	RC_CHECK(bad == &broken);
	HOUSE_OK(mwctl_commit(house.ctx, token, ret, bad, &posted));
	RC_CHECK_EQ(ours, posted);
	if (at > 0)
		await_wr(100);
	for (int i = 0; i < 2; i++) {
		mwctl_status status = mwctl_grant_info_get(house.ctx, grant[i].grant, &info, sizeof(info));

		RC_CHECK_EQ(i < ours ? MWCTL_STATUS_OK : MWCTL_STATUS_STALE_ID, status);
		if (i < ours) {
			HOUSE_OK(mwctl_revoke(house.ctx, grant[i].grant, 0, NULL));
		}
	}
	RC_CHECK_EQ(0, house_peer(&house, 0).grants);
	RC_CHECK_EQ(0, house_peer(&house, 0).used);
	house_ok("a post cut at request %d: %d of ours count", at, ours);
}

static void revoke_and_regrant(void)
{
	struct house_client *it = &house.client[0];
	mwctl_result held = house_grant(&house, 0, 0, 64, HOUSE_WRITE), next;
	mwctl_request ask = house_ask(&house, 0, 4096, 64, HOUSE_WRITE);
	struct ibv_send_wr wr[2], *bad = NULL;
	struct ended ended = {0};
	mwctl_token token;

	HOUSE_OK(mwctl_regrant_prepare(house.ctx, held.grant, &ask, 0, on_done, &ended, wr, &next, &token));
	HOUSE_OK(mwctl_commit(house.ctx, token, ibv_post_send(it->pair.server.qp, wr, &bad), bad, NULL));
	await_calls(&ended, 1);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, ended.last.proof);
	RC_CHECK_EQ(held.grant, ended.last.grant);
	HOUSE_WRITE_LANDS(&house, 0, 4096, next.rkey, 0x25);
	HOUSE_OK(mwctl_revoke_prepare(house.ctx, &next.grant, 1, 0, 0, on_done, &ended, wr, &token));
	HOUSE_OK(mwctl_commit(house.ctx, token, ibv_post_send(it->pair.server.qp, wr, &bad), bad, NULL));
	await_calls(&ended, 2);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, ended.last.proof);
	HOUSE_WRITE_FAILS(&house, 0, 4096, next.rkey, 0x26);
	house_leave(&house, 0);
	house_join(&house, 0);
	house_ok("a prepared regrant and a prepared revocation");
}

/* The post ends right behind the LOCAL_INV: it completes by itself, and the queue pair lives. */
static void cut_behind_the_invalidate(void)
{
	struct house_client *it = &house.client[0];
	mwctl_result held = house_grant(&house, 0, 0, 64, HOUSE_WRITE), next;
	mwctl_request ask = house_ask(&house, 0, 4096, 64, HOUSE_WRITE);
	static struct ibv_sge many[1000];
	struct ibv_send_wr wr[2], *bad = NULL;
	struct ibv_send_wr broken = {.sg_list = many, .num_sge = 1000, .opcode = IBV_WR_RDMA_WRITE};
	struct ended ended = {0};
	mwctl_token token;
	size_t posted;
	int ret;

	HOUSE_OK(mwctl_regrant_prepare(house.ctx, held.grant, &ask, 0, on_done, &ended, wr, &next, &token));
	wr[0].next = &broken;
	broken.next = &wr[1];
	ret = ibv_post_send(it->pair.server.qp, wr, &bad);
	RC_CHECK(ret != 0 && bad == &broken);
	HOUSE_OK(mwctl_commit(house.ctx, token, ret, bad, &posted));
	RC_CHECK_EQ(1, posted);
	await_calls(&ended, 1);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, ended.last.proof);
	RC_CHECK_EQ(0, house_peer(&house, 0).grants);
	RC_CHECK_EQ(0, house_peer(&house, 0).used);
	RC_CHECK_STATE(IBV_QPS_RTS, it->pair.server.qp);
	house_ok("a post cut right behind a LOCAL_INV");
}

/* Somebody else revokes while the chain is in the application's hands. */
static void revoked_meanwhile(void)
{
	struct house_client *it = &house.client[0];
	mwctl_request ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);
	struct ibv_send_wr wr, *bad = NULL;
	struct ended ended = {0};
	mwctl_result grant;
	mwctl_token token;

	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &wr, &grant, &token));
	HOUSE_OK(mwctl_revoke_start(house.ctx, &grant.grant, 1, 0, 0, on_done, &ended));
	HOUSE_OK(mwctl_commit(house.ctx, token, ibv_post_send(it->pair.server.qp, &wr, &bad), bad, NULL));
	await_calls(&ended, 1);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, ended.last.proof);

	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &wr, &grant, &token));
	HOUSE_OK(mwctl_revoke_start(house.ctx, &grant.grant, 1, 0, 0, on_done, &ended));
	HOUSE_OK(mwctl_abort(house.ctx, token));
	await_calls(&ended, 2);
	RC_CHECK_EQ(MWCTL_PROOF_NEVER_BOUND, ended.last.proof);
	RC_CHECK_EQ(0, house_peer(&house, 0).grants);
	house_ok("a revocation of what is prepared ends after the commit or abort");
}

static void budget(void)
{
	mwctl_request ask[65];
	struct ibv_send_wr wr[65];
	mwctl_result grant[65];
	mwctl_token token, more;
	uint32_t n = house_peer(&house, 0).budget;

	for (uint32_t i = 0; i <= n; i++)
		ask[i] = house_ask(&house, 0, i * 64, 64, HOUSE_WRITE);
	HOUSE_STATUS(MWCTL_STATUS_TOO_MANY, mwctl_grant_prepare(house.ctx, ask, n + 1, wr, grant, &token));
	HOUSE_OK(mwctl_grant_prepare(house.ctx, ask, n, wr, grant, &token));
	HOUSE_STATUS(MWCTL_STATUS_QUEUE_FULL, mwctl_grant_prepare(house.ctx, ask, 1, wr + n, grant + n, &more));
	HOUSE_OK(mwctl_abort(house.ctx, token));
	ask[1] = house_ask(&house, 1, 0, 64, HOUSE_WRITE);
	HOUSE_STATUS(MWCTL_STATUS_MIXED_PEERS, mwctl_grant_prepare(house.ctx, ask, 2, wr, grant, &token));
	RC_CHECK_EQ(0, house_peer(&house, 0).used);
	house_ok("a chain beyond the budget, or for two clients");
}

/* Unsignaled chains for as long as one likes: their slots come back. */
static void endless(void)
{
	struct house_client *it = &house.client[0];
	mwctl_request ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);
	struct ibv_send_wr wr[2], *bad = NULL;
	struct ibv_wc wc;
	mwctl_result grant, next;
	mwctl_token token;
	double limit = rc_now() + RC_DEADLINE_S;

	grant = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	for (int i = 0; i < 300;) {
		mwctl_status status = mwctl_regrant_prepare(house.ctx, grant.grant, &ask, 0, NULL, NULL, wr,
							    &next, &token);
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, it->pair.server.cq, 1, &wc));
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
		if (status == MWCTL_STATUS_QUEUE_FULL || status == MWCTL_STATUS_POOL_EMPTY)
			continue;
		HOUSE_OK(status);
		HOUSE_OK(mwctl_commit(house.ctx, token, ibv_post_send(it->pair.server.qp, wr, &bad), bad, NULL));
		grant = next;
		i++;
	}
	HOUSE_WRITE_LANDS(&house, 0, 0, grant.rkey, 0x27);
	HOUSE_OK(mwctl_revoke(house.ctx, grant.grant, 0, NULL));
	RC_CHECK_EQ(0, house_peer(&house, 0).used);
	house_ok("300 regrants in a row by prepared chains");
}

/* Windows for two of three: nothing is handed out, and the results say so. */
static void short_of_windows(void)
{
	struct house_options options = {.clients = 1, .domain.reserve = 2, .domain.limit = 2};
	struct ibv_send_wr wr[3];
	mwctl_result results[3];
	mwctl_request ask[3];
	mwctl_token token;

	house_open(&house, &options);
	for (int i = 0; i < 3; i++)
		ask[i] = house_ask(&house, 0, 65536 * i, 4096, HOUSE_WRITE);
	HOUSE_STATUS(MWCTL_STATUS_POOL_EMPTY, mwctl_grant_prepare(house.ctx, ask, 3, wr, results, &token));
	for (int i = 0; i < 3; i++) {
		RC_CHECK_EQ(MWCTL_STATUS_POOL_EMPTY, results[i].status);
		RC_CHECK_EQ(0, results[i].rkey);
		RC_CHECK_EQ(0, results[i].grant);
	}
	house_close(&house);
	house_ok("a prepare that finds too few windows names neither a grant nor a key");
}

int main(void)
{
	house_open(&house, NULL);
	bind_and_send();
	confirmed_when_asked();
	aborted();
	for (int at = 0; at < 4; at++)
		cut(at);
	revoke_and_regrant();
	cut_behind_the_invalidate();
	revoked_meanwhile();
	budget();
	endless();
	house_close(&house);
	short_of_windows();
	return 0;
}
