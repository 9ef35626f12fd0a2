/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A client gives its right back by SEND_WITH_INV at an awkward moment: the grant ends there and
 * then, and no LOCAL_INV follows it to a window that is no longer bound. */
#include "trouble.h"

#include <string.h>

static struct house house;
static struct rc_memory inbox, outbox;
static int invalidated, foreign;

static void on_event(void *user, const mwctl_event *event)
{
	(void)user;
	invalidated += event->kind == MWCTL_EVENT_KIND_PEER_INVALIDATED;
	foreign += event->kind == MWCTL_EVENT_KIND_FOREIGN_INVALIDATION;
}

/* The next completion of the application's on client 0's queue. */
static struct ibv_wc next_wc(void)
{
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;
	int n;

	while (!(n = mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, &wc)))
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(1, n);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	return wc;
}

/* A grant whose bind went out in front of the SEND that carries its key, as servers do it: in
 * use, and unconfirmed. */
static mwctl_result unconfirmed(uint64_t offset)
{
	struct house_client *it = &house.client[0];
	mwctl_request ask = house_ask(&house, 0, offset, 4096, HOUSE_WRITE);
	struct ibv_sge sge = {.addr = (uintptr_t)outbox.at, .length = 4, .lkey = outbox.mr->lkey};
	struct ibv_send_wr send = {.wr_id = 77, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr bind, *bad = NULL;
	mwctl_grant_info info;
	mwctl_result grant;
	mwctl_token token;
	uint32_t key;

	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &bind, &grant, &token));
	memcpy(outbox.at, &grant.rkey, sizeof(grant.rkey));
	bind.next = &send;
	rc_post_recv(&it->pair.client, &it->local, 5);
	HOUSE_OK(mwctl_commit(house.ctx, token, ibv_post_send(it->pair.server.qp, &bind, &bad), bad, NULL));
	RC_CHECK_EQ(77, next_wc().wr_id);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(it->pair.client.cq).status);
	memcpy(&key, it->local.at, sizeof(key));
	RC_CHECK_EQ(grant.rkey, key);
	HOUSE_OK(mwctl_grant_info_get(house.ctx, grant.grant, &info, sizeof(info)));
	RC_CHECK_EQ(0, info.confirmed);
	HOUSE_WRITE_LANDS(&house, 0, offset, key, 0x11);
	return grant;
}

/* The client has done its work; the server sees the message. */
static void give_back(const mwctl_result *grant)
{
	struct house_client *it = &house.client[0];
	int before = invalidated;
	struct ibv_wc wc;

	rc_post_recv(&it->pair.server, &inbox, 9);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send_with_inv(&it->pair.client, &it->local, 8, grant->rkey));
	wc = next_wc();
	RC_CHECK_EQ(9, wc.wr_id);
	RC_CHECK_EQ(grant->rkey, wc.invalidated_rkey);
	RC_CHECK_EQ(before + 1, invalidated);
	RC_CHECK_EQ(0, foreign);
}

/* The grant is off the books, nothing was posted for it, and its key is dead; the queue pair
 * lives, with every other right on it. Checked in this order: a LOCAL_INV after all would be the
 * end of a kernel. */
static void check_ended(const mwctl_result *grant, const mwctl_result *other)
{
	uint64_t before = house_stats(&house).invalidates_posted;
	mwctl_grant_info info;
	mwctl_result next, out;
	size_t n;

	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant_info_get(house.ctx, grant->grant, &info, sizeof(info)));
	HOUSE_STATUS(MWCTL_STATUS_NO_GRANT, mwctl_find_rkey(house.ctx, grant->rkey, &info, sizeof(info)));
	RC_CHECK_EQ(1, house_peer(&house, 0).grants);
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_revoke(house.ctx, grant->grant, 0, NULL));
	HOUSE_WRITE_LANDS(&house, 0, 65536, other->rkey, 0x12);
	next = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	HOUSE_WRITE_LANDS(&house, 0, 0, next.rkey, 0x13);
	HOUSE_OK(mwctl_revoke(house.ctx, next.grant, 0, &out));
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out.proof);
	RC_CHECK_EQ(before + 1, house_stats(&house).invalidates_posted);
	HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[0].peer, 0, MWCTL_KILL_ALLOWED, &n));
	RC_CHECK_EQ(1, n);
	RC_CHECK_EQ(before + 2, house_stats(&house).invalidates_posted);
	RC_CHECK_STATE(IBV_QPS_RTS, house.client[0].pair.server.qp);
	HOUSE_WRITE_FAILS(&house, 0, 0, grant->rkey, 0x14);
	house_leave(&house, 0);
	house_join(&house, 0);
	house_check_misuse();
}

/* The ordinary pattern: the key in a SEND, the answer by SEND_WITH_INV, no completion of the
 * library's in between. */
static void while_unconfirmed(void)
{
	mwctl_result other = house_grant(&house, 0, 65536, 4096, HOUSE_WRITE), grant = unconfirmed(0);
	uint64_t before = house_stats(&house).proved_peer_invalidated;

	give_back(&grant);
	RC_CHECK_EQ(before + 1, house_stats(&house).proved_peer_invalidated);
	check_ended(&grant, &other);
	house_ok("given back before the bind was confirmed: the grant ends, no LOCAL_INV");
}

/* A LOCAL_INV waits in line for the budget when the client gives the right back. */
static void while_revoking(void)
{
	mwctl_result other = house_grant(&house, 0, 65536, 4096, HOUSE_WRITE), grant = unconfirmed(0), in_hand[16];
	uint32_t rest = house_peer(&house, 0).budget - house_peer(&house, 0).used;
	uint64_t before = house_stats(&house).invalidates_posted;
	mwctl_request ask[16];
	struct ibv_send_wr wr[16];
	struct heard heard = {0};
	mwctl_token token;

	RC_CHECK(rest > 0 && rest <= 16);
	for (uint32_t i = 0; i < rest; i++)
		ask[i] = house_ask(&house, 0, 131072 + i * 64, 64, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_prepare(house.ctx, ask, rest, wr, in_hand, &token));
	HOUSE_OK(mwctl_revoke_start(house.ctx, &grant.grant, 1, 0, MWCTL_KILL_NEVER, heard_done, &heard));
	RC_CHECK_EQ(before, house_stats(&house).invalidates_posted);
	give_back(&grant);
	RC_CHECK_EQ(1, heard.calls);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(MWCTL_PROOF_PEER_INVALIDATED, heard.results[0].proof);
	HOUSE_OK(mwctl_abort(house.ctx, token));
	RC_CHECK_EQ(before, house_stats(&house).invalidates_posted);
	check_ended(&grant, &other);
	house_ok("given back with a LOCAL_INV in line: the revocation ends with it, nothing is posted");
}

/* The LOCAL_INV is in the application's hands, and is not posted after all. */
static void while_prepared(bool cut)
{
	static struct ibv_sge many[1000];
	struct ibv_send_wr broken = {.sg_list = many, .num_sge = 1000, .opcode = IBV_WR_RDMA_WRITE};
	mwctl_result other = house_grant(&house, 0, 65536, 4096, HOUSE_WRITE);
	mwctl_result grant = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	struct ibv_send_wr wr, *bad = NULL;
	struct heard heard = {0};
	mwctl_token token;
	size_t posted;
	int ret;

	HOUSE_WRITE_LANDS(&house, 0, 0, grant.rkey, 0x21);
	HOUSE_OK(mwctl_revoke_prepare(house.ctx, &grant.grant, 1, 0, MWCTL_KILL_ALLOWED, heard_done, &heard, &wr,
				      &token));
	give_back(&grant);
	if (cut) {
		broken.next = &wr;
		ret = ibv_post_send(house.client[0].pair.server.qp, &broken, &bad);
		RC_CHECK(ret != 0 && bad == &broken);
		HOUSE_OK(mwctl_commit(house.ctx, token, ret, bad, &posted));
		RC_CHECK_EQ(0, posted);
	} else {
		HOUSE_OK(mwctl_abort(house.ctx, token));
	}
	heard_await(&house, &heard);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(MWCTL_PROOF_PEER_INVALIDATED, heard.results[0].proof);
	check_ended(&grant, &other);
	house_ok("given back with a LOCAL_INV prepared, then %s: it is over", cut ? "a post that was cut" : "an abort");
}

/* Between the application's post and its commit: the key that the device bound is the window's, and
 * the window's next bind goes out from there. */
static void before_the_commit(void)
{
	struct house_client *it = &house.client[0];
	mwctl_result other = house_grant(&house, 0, 65536, 4096, HOUSE_WRITE), grant, next;
	mwctl_request ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, wr, *bad = NULL;
	mwctl_domain_info pool;
	mwctl_token token;
	uint64_t binds;
	int ret;

	/* Each window has its turn, and one after that. */
	HOUSE_OK(mwctl_domain_info_get(house.ctx, house.domain, &pool, sizeof(pool)));
	for (uint64_t round = 0; round < 2 * pool.windows; round++) {
		HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &wr, &grant, &token));
		/* Without its completion, only a message behind the bind tells that the key is good. */
		wr.next = &send;
		rc_post_recv(&it->pair.client, &it->local, 5);
		ret = ibv_post_send(it->pair.server.qp, &wr, &bad);
		RC_CHECK_EQ(0, ret);
		RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(it->pair.client.cq).status);
		HOUSE_WRITE_LANDS(&house, 0, 0, grant.rkey, (uint8_t)(round | 1));
		give_back(&grant);
		binds = house_stats(&house).binds_posted;
		HOUSE_OK(mwctl_commit(house.ctx, token, ret, bad, NULL));
		RC_CHECK_EQ(binds + 1, house_stats(&house).binds_posted);
		next = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
		HOUSE_OK(mwctl_revoke(house.ctx, next.grant, 0, NULL));
		house_check_misuse();
	}
	RC_CHECK_STATE(IBV_QPS_RTS, it->pair.server.qp);
	check_ended(&grant, &other);
	house_ok("given back before the commit of its bind: the window's next bind goes well");
}

enum { REGRANT, REVOKE_PREPARE, REGRANT_PREPARE };

/* The message is still in the receive queue, which is polled by mwctl_poll_cq: every call that posts a
 * LOCAL_INV, or hands one out, looks there first. */
static void before_it_is_seen(int how)
{
	static const char *const name[] = {"a regrant", "a prepared revocation", "a prepared regrant"};
	mwctl_result other = house_grant(&house, 0, 65536, 4096, HOUSE_WRITE), grant = unconfirmed(0), out[2];
	mwctl_request ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	struct house_client *it = &house.client[0];
	struct ibv_send_wr wr[2];
	int before = invalidated;
	mwctl_token token;
	mwctl_status status;

	rc_post_recv(&it->pair.server, &inbox, 9);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send_with_inv(&it->pair.client, &it->local, 8, grant.rkey));
	if (how == REGRANT)
		status = mwctl_regrant(house.ctx, grant.grant, &ask, 0, out);
	else if (how == REVOKE_PREPARE)
		status = mwctl_revoke_prepare(house.ctx, &grant.grant, 1, 0, MWCTL_KILL_ALLOWED, NULL, NULL, wr,
					      &token);
	else
		status = mwctl_regrant_prepare(house.ctx, grant.grant, &ask, 0, NULL, NULL, wr, out, &token);
	RC_CHECK_EQ(MWCTL_STATUS_STALE_ID, status);
	RC_CHECK_EQ(9, next_wc().wr_id);
	RC_CHECK_EQ(before + 1, invalidated);
	check_ended(&grant, &other);
	house_ok("given back, and the message not polled yet: %s finds it", name[how]);
}

/* The message is still in the receive queue when there is room for a LOCAL_INV that waits in line: it
 * is looked for first. The room comes with a completion, or with an abort. */
static void before_room_comes(bool aborted)
{
	mwctl_result other = house_grant(&house, 0, 65536, 4096, HOUSE_WRITE), in_hand[2], grant[3];
	uint64_t before = house_stats(&house).invalidates_posted, ids[3];
	struct house_client *it = &house.client[0];
	struct ibv_send_wr wr[2];
	struct heard heard = {0};
	mwctl_request ask[2];
	int given = invalidated;
	mwctl_token token;
	struct ibv_wc wc;

	/* A queue that the application polls through the library. */
	RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, it->pair.server.cq, 1, &wc));
	for (int i = 0; i < 3; i++) {
		grant[i] = house_grant(&house, 0, (uint64_t)i * 8192, 4096, HOUSE_WRITE);
		ids[i] = grant[i].grant;
	}
	for (int i = 0; i < 2; i++)
		ask[i] = house_ask(&house, 0, 131072 + (uint64_t)i * 64, 64, HOUSE_WRITE);
	RC_CHECK_EQ(4, house_peer(&house, 0).budget - house_peer(&house, 0).used);
	HOUSE_OK(mwctl_grant_prepare(house.ctx, ask, 2, wr, in_hand, &token));
	HOUSE_OK(mwctl_revoke_start(house.ctx, ids, 3, 0, MWCTL_KILL_NEVER, heard_done, &heard));
	RC_CHECK_EQ(before + 2, house_stats(&house).invalidates_posted);
	rc_post_recv(&it->pair.server, &inbox, 9);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send_with_inv(&it->pair.client, &it->local, 8, grant[2].rkey));
	if (aborted)
		HOUSE_OK(mwctl_abort(house.ctx, token));
	RC_CHECK_EQ(9, next_wc().wr_id);
	heard_await(&house, &heard);
	if (!aborted)
		HOUSE_OK(mwctl_abort(house.ctx, token));
	RC_CHECK_EQ(given + 1, invalidated);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, heard.results[0].proof);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, heard.results[1].proof);
	RC_CHECK_EQ(MWCTL_PROOF_PEER_INVALIDATED, heard.results[2].proof);
	RC_CHECK_EQ(before + 2, house_stats(&house).invalidates_posted);
	check_ended(&grant[2], &other);
	house_ok("given back, not polled yet, and room comes with %s: no LOCAL_INV", aborted ? "an abort" : "a completion");
}

/* The program has not polled a single time when it takes back what the client gave back already. */
static void before_the_first_poll(bool detach, bool apart)
{
	struct house_options options = {.clients = 1, .context.on_event = on_event};
	struct ibv_cq *recv_cq = NULL;
	mwctl_result held, out;
	struct ibv_wc wc;

	house_open(&house, &options);
	if (apart) {
		recv_cq = ibv_create_cq(house.device.context, 64, NULL, NULL, 0);
		RC_CHECK(recv_cq);
		house_leave(&house, 0);
		house.options.rc.recv_cq = recv_cq;
		house_join(&house, 0);
	}
	rc_memory_open(&inbox, house.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	held = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	rc_post_recv(&house.client[0].pair.server, &inbox, 9);
	/* A queue for receives alone is left to a program that has never polled it through the library. */
	if (apart)
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, recv_cq, 1, &wc));
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send_with_inv(&house.client[0].pair.client, &house.client[0].local, 8,
							 held.rkey));
	if (detach) {
		HOUSE_OK(mwctl_peer_detach(house.ctx, house.client[0].peer, 0));
	} else {
		HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 0, &out));
		RC_CHECK_EQ(MWCTL_PROOF_PEER_INVALIDATED, out.proof);
	}
	RC_CHECK_EQ(0, house_stats(&house).invalidates_posted);
	RC_CHECK_STATE(IBV_QPS_RTS, house.client[0].pair.server.qp);
	/* Nothing of it is lost. */
	RC_CHECK_EQ(1, mwctl_poll_cq(house.ctx, apart ? recv_cq : house.client[0].pair.server.cq, 1, &wc));
	RC_CHECK_EQ(9, wc.wr_id);
	if (detach) {
		rc_pair_close(&house.client[0].pair);
		house.client[0].peer.id = 0;
	} else {
		house_leave(&house, 0);
	}
	if (apart)
		RC_CHECK_EQ(0, ibv_destroy_cq(recv_cq));
	rc_memory_close(&inbox);
	house_close(&house);
}

int main(void)
{
	struct house_options options = {.clients = 1, .peer.budget = 4, .context.on_event = on_event};

	house_open(&house, &options);
	rc_memory_open(&inbox, house.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	rc_memory_open(&outbox, house.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	while_unconfirmed();
	while_revoking();
	while_prepared(false);
	while_prepared(true);
	before_the_commit();
	before_it_is_seen(REGRANT);
	before_it_is_seen(REVOKE_PREPARE);
	before_it_is_seen(REGRANT_PREPARE);
	before_room_comes(false);
	before_room_comes(true);
	rc_memory_close(&outbox);
	rc_memory_close(&inbox);
	house_close(&house);
	before_the_first_poll(false, false);
	before_the_first_poll(false, true);
	before_the_first_poll(true, false);
	before_the_first_poll(true, true);
	house_ok("given back before the program's first poll: no LOCAL_INV");
	return 0;
}
