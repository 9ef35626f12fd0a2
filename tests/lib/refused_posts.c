/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Posts that the provider refuses, or cuts: no successor before its predecessor is gone, no queue
 * pair ended that was to be spared, nothing on the wire, and no completion that never comes. */
#include "trouble.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct house house;
static int killed;

static void on_event(void *user, const mwctl_event *event)
{
	(void)user;
	killed += event->kind == MWCTL_EVENT_KIND_PEER_KILLED;
}

static struct ibv_qp *server_qp(int client)
{
	return house.client[client].pair.server.qp;
}

/* The next post of client 0's is cut at this request. */
static uint64_t cut_next(uint32_t position, int error)
{
	struct mwctl_sim_fault fault = {.kind = MWCTL_SIM_CUT_POST, .qp_num = server_qp(0)->qp_num, .count = 1,
					.error = error, .position = position};
	uint64_t id;

	RC_CHECK_EQ(0, mwctl_sim_fault_order(&fault, sizeof(fault), &id));
	return id;
}

static uint64_t writes_posted(void)
{
	struct mwctl_sim_counters counters;

	RC_CHECK_EQ(0, mwctl_sim_counters_get(&counters, sizeof(counters)));
	return counters.send_wrs[IBV_WR_RDMA_WRITE] + counters.send_wrs[IBV_WR_SEND] +
	       counters.send_wrs[IBV_WR_RDMA_READ];
}

static void check_spared(void)
{
	RC_CHECK_EQ(0, killed);
	RC_CHECK_EQ(0, house_stats(&house).peers_killed);
	RC_CHECK_STATE(IBV_QPS_RTS, server_qp(0));
	house_check_misuse();
}

/* The old right can't be ended, so the new one does not begin. */
static void successor_waits(void)
{
	uint64_t refuse, keep;
	mwctl_result old, out[2];
	mwctl_request ask;
	size_t n;

	house_open(&house, &(struct house_options){.clients = 1, .context.on_event = on_event});
	old = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	ask = house_ask(&house, 0, 8192, 4096, HOUSE_WRITE);
	refuse = trouble_order(MWCTL_SIM_FAIL_POST, server_qp(0), 1, EINVAL);
	keep = trouble_order(MWCTL_SIM_FAIL_DEALLOC_MW, NULL, 1, EIO);
	HOUSE_STATUS(MWCTL_STATUS_OPEN, mwctl_regrant(house.ctx, old.grant, &ask, 300000, out));
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(refuse));
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(keep));
	RC_CHECK_EQ(MWCTL_STATUS_OPEN, out[0].status);
	RC_CHECK_EQ(MWCTL_STATUS_NOT_POSTED, out[1].status);
	RC_CHECK_EQ(0, out[1].rkey);
	HOUSE_OK(mwctl_range_grants(house.ctx, house.region, ask.addr, ask.length, NULL, 0, &n));
	RC_CHECK_EQ(0, n);
	HOUSE_WRITE_LANDS(&house, 0, 0, old.rkey, 0x11);
	check_spared();
	HOUSE_OK(mwctl_revoke(house.ctx, old.grant, 0, &out[0]));
	RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, out[0].proof);
	out[1] = house_grant(&house, 0, 8192, 4096, HOUSE_WRITE);
	HOUSE_WRITE_LANDS(&house, 0, 8192, out[1].rkey, 0x12);
	HOUSE_OK(mwctl_revoke(house.ctx, out[1].grant, 0, NULL));
	HOUSE_WRITE_FAILS(&house, 0, 0, old.rkey, 0x13);
	house_close(&house);
	house_ok("a regrant whose LOCAL_INV is refused: the new right does not begin beside the old one");
}

/* Prepares and posts one bind, which asks for no completion. */
static void commit_one(const mwctl_request *ask, mwctl_result *grant)
{
	struct ibv_send_wr wr;
	mwctl_token token;

	HOUSE_OK(mwctl_grant_prepare(house.ctx, ask, 1, &wr, grant, &token));
	rc_post(server_qp(0), &wr);
	HOUSE_OK(mwctl_commit(house.ctx, token, 0, NULL, NULL));
}

/* The bind is out, unconfirmed, and asks for no completion; its LOCAL_INV is refused once. One is had
 * behind the bind, and then it is tried again. */
static void tried_again(void)
{
	mwctl_result grant, out;
	mwctl_request ask;
	uint64_t refuse;

	house_open(&house, &(struct house_options){.clients = 1, .context.on_event = on_event});
	ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	commit_one(&ask, &grant);
	refuse = trouble_order(MWCTL_SIM_FAIL_POST, server_qp(0), 1, EINVAL);
	HOUSE_OK(mwctl_revoke_batch(house.ctx, &grant.grant, 1, 5000000, MWCTL_KILL_ALLOWED, &out));
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(refuse));
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out.proof);
	RC_CHECK_EQ(0, house_peer(&house, 0).used);
	check_spared();
	HOUSE_WRITE_FAILS(&house, 0, 0, grant.rkey, 0x23);
	house_close(&house);
	house_ok("a LOCAL_INV that is refused behind a silent bind is tried again");
}

/* The same, and what would bring the completion is refused as well. */
static void spared_with_a_bind_out(void)
{
	mwctl_result grant, other, out;
	mwctl_request ask;
	uint64_t refuse;

	house_open(&house, &(struct house_options){.clients = 1, .context.on_event = on_event});
	other = house_grant(&house, 0, 65536, 4096, HOUSE_WRITE);
	ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	commit_one(&ask, &grant);
	refuse = trouble_order(MWCTL_SIM_FAIL_POST, server_qp(0), 2, EINVAL);
	HOUSE_STATUS(MWCTL_STATUS_OPEN,
		     mwctl_revoke_batch(house.ctx, &grant.grant, 1, 300000, MWCTL_KILL_NEVER, &out));
	RC_CHECK_EQ(2, mwctl_sim_fault_hits(refuse));
	RC_CHECK_EQ(MWCTL_PROOF_NONE, out.proof);
	check_spared();
	HOUSE_WRITE_LANDS(&house, 0, 65536, other.rkey, 0x21);
	/* With leave it ends. */
	HOUSE_OK(mwctl_revoke_batch(house.ctx, &grant.grant, 1, 300000, MWCTL_KILL_ALLOWED, &out));
	RC_CHECK(out.proof != MWCTL_PROOF_NONE);
	HOUSE_WRITE_FAILS(&house, 0, 0, grant.rkey, 0x22);
	killed = 0;
	house_close(&house);
	house_ok("KILL_NEVER, a bind out and its LOCAL_INV refused: the queue pair is spared");
}

/* What was posted of a cut chain asked for no completion: one must be had without a word to a client
 * whose queue pair lets nothing in. */
static void cut_off(int error)
{
	struct ibv_qp_attr closed = {.qp_access_flags = 0};
	mwctl_request ask[4];
	mwctl_result out[4];
	uint64_t ids[4], writes, cut;
	double begin;

	house_open(&house, &(struct house_options){.clients = 1, .context.on_event = on_event});
	RC_CHECK_EQ(0, ibv_modify_qp(house.client[0].pair.client.qp, &closed, IBV_QP_ACCESS_FLAGS));
	for (int i = 0; i < 4; i++)
		ask[i] = house_ask(&house, 0, (uint64_t)i * 4096, 4096, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_batch(house.ctx, ask, 4, 0, out));
	for (int i = 0; i < 4; i++)
		ids[i] = out[i].grant;
	HOUSE_WRITE_LANDS(&house, 0, 0, out[0].rkey, 0x31);
	writes = writes_posted();
	cut = cut_next(3, error);
	begin = rc_now();
	HOUSE_OK(mwctl_revoke_batch(house.ctx, ids, 4, 5000000, MWCTL_KILL_ALLOWED, out));
	/* Not by the deadline. */
	RC_CHECK(rc_now() - begin < 5);
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(cut));
	for (int i = 0; i < 3; i++)
		RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out[i].proof);
	RC_CHECK(out[3].proof == MWCTL_PROOF_INVALIDATED || out[3].proof == MWCTL_PROOF_DEALLOCATED);
	RC_CHECK_EQ(writes, writes_posted());
	check_spared();
	RC_CHECK_EQ(0, house_peer(&house, 0).used);
	out[1] = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	HOUSE_WRITE_LANDS(&house, 0, 0, out[1].rkey, 0x32);
	HOUSE_OK(mwctl_revoke(house.ctx, out[1].grant, 0, NULL));
	HOUSE_WRITE_FAILS(&house, 0, 0, out[1].rkey, 0x33);
	house_close(&house);
	house_ok("a chain cut by %s: its completion is had without a request to the client", strerror(error));
}

/* The same for grants: what was posted is granted, what was refused ends alone. */
static void cut_grants(void)
{
	mwctl_request ask[8];
	mwctl_result out[8];
	int failed = 0;

	house_open(&house, &(struct house_options){.clients = 1, .context.on_event = on_event});
	for (int i = 0; i < 8; i++)
		ask[i] = house_ask(&house, 0, (uint64_t)i * 4096, 4096, HOUSE_WRITE);
	cut_next(4, EINVAL);
	HOUSE_STATUS(MWCTL_STATUS_POST_FAILED, mwctl_grant_batch(house.ctx, ask, 8, 5000000, out));
	for (int i = 0; i < 8; i++) {
		if (i == 4) {
			RC_CHECK_EQ(MWCTL_STATUS_POST_FAILED, out[i].status);
			RC_CHECK_EQ(EINVAL, out[i].error);
			RC_CHECK_EQ(0, out[i].grant);
			failed++;
			continue;
		}
		HOUSE_OK(out[i].status);
		HOUSE_WRITE_LANDS(&house, 0, (uint64_t)i * 4096, out[i].rkey, (uint8_t)(0x40 + i));
	}
	RC_CHECK_EQ(1, failed);
	RC_CHECK_EQ(7, house_peer(&house, 0).grants);
	check_spared();
	HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[0].peer, 0, MWCTL_KILL_ALLOWED, NULL));
	HOUSE_WRITE_FAILS(&house, 0, 0, out[0].rkey, 0x4f);
	house_close(&house);
	house_ok("one of eight binds is refused: it ends alone");
}

/* The rest of a cut chain has ended at its deadline, and nothing follows: the LOCAL_INV in front has
 * taken place, and whoever asks must hear of it. */
static void nothing_follows(void)
{
	mwctl_result old, out[2];
	mwctl_request ask;
	double begin;

	house_open(&house, &(struct house_options){.clients = 1, .context.on_event = on_event});
	old = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	ask = house_ask(&house, 0, 8192, 4096, HOUSE_WRITE);
	cut_next(1, ENOMEM);
	RC_CHECK(mwctl_regrant(house.ctx, old.grant, &ask, 1, out) != MWCTL_STATUS_OK);
	begin = rc_now();
	if (out[0].status != MWCTL_STATUS_OK) {
		HOUSE_OK(mwctl_revoke(house.ctx, old.grant, 5000000, &out[0]));
		RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out[0].proof);
	}
	RC_CHECK(rc_now() - begin < 5);
	check_spared();
	HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[0].peer, 0, MWCTL_KILL_ALLOWED, NULL));
	RC_CHECK_EQ(0, house_peer(&house, 0).used);
	HOUSE_WRITE_FAILS(&house, 0, 0, old.rkey, 0x51);
	house_close(&house);
	house_ok("a cut chain whose rest has timed out costs no queue pair");
}

/* A queue pair that was to be ended and could not be: when its queue moves again, all of its budget
 * is there, and what completed late was the proof. */
static void budget_comes_back(void)
{
	uint64_t stall, refuse;
	mwctl_result held[2], out;
	struct ibv_wc wc;

	house_open(&house, &(struct house_options){.clients = 1, .peer.budget = 2, .context.on_event = on_event});
	for (int i = 0; i < 2; i++) {
		held[i] = house_grant(&house, 0, (uint64_t)i * 65536, 4096, HOUSE_WRITE);
		stall = trouble_order(MWCTL_SIM_STALL_SQ, server_qp(0), 1, 0);
		refuse = trouble_order(MWCTL_SIM_FAIL_MODIFY_QP, server_qp(0), 1, EIO);
		HOUSE_STATUS(MWCTL_STATUS_OPEN, mwctl_revoke(house.ctx, held[i].grant, 30000, &out));
		RC_CHECK_EQ(1, mwctl_sim_fault_hits(refuse));
		check_spared();
		HOUSE_WRITE_LANDS(&house, 0, (uint64_t)i * 65536, held[i].rkey, 0x61);
		trouble_release(stall);
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, &wc));
		RC_CHECK_EQ(0, house_peer(&house, 0).used);
		RC_CHECK_EQ(1, house_peer(&house, 0).life);
	}
	for (int i = 0; i < 2; i++) {
		out = house_grant(&house, 0, 131072, 4096, HOUSE_WRITE);
		HOUSE_WRITE_LANDS(&house, 0, 131072, out.rkey, (uint8_t)(0x62 + i));
		HOUSE_OK(mwctl_revoke(house.ctx, out.grant, 0, &out));
		RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out.proof);
	}
	check_spared();
	for (int i = 0; i < 2; i++) {
		mwctl_status status = mwctl_revoke(house.ctx, held[i].grant, 0, &out);

		RC_CHECK(status == MWCTL_STATUS_STALE_ID || status == MWCTL_STATUS_OK);
	}
	RC_CHECK_EQ(0, house_peer(&house, 0).grants);
	HOUSE_WRITE_FAILS(&house, 0, 0, held[0].rkey, 0x64);
	house_close(&house);
	house_ok("after a move to ERR that failed the budget comes back with the completions");
}

/* The same where the queue does not move: what was given up is in it still, and no more than the budget
 * is ever posted. */
static void budget_is_kept(void)
{
	struct mwctl_sim_counters before, after;
	mwctl_result held[4];
	mwctl_request ask[4];
	uint64_t stall, refuse;
	size_t n;

	house_open(&house, &(struct house_options){.clients = 1, .peer.budget = 4, .rc.max_send_wr = 64,
						   .rc.cqe = 64, .context.on_event = on_event});
	killed = 0;
	stall = trouble_order(MWCTL_SIM_STALL_SQ, server_qp(0), 0, 0);
	refuse = trouble_order(MWCTL_SIM_FAIL_MODIFY_QP, server_qp(0), 0, EIO);
	RC_CHECK_EQ(0, mwctl_sim_counters_get(&before, sizeof(before)));
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 4; i++)
			ask[i] = house_ask(&house, 0, 65536 * (round * 4 + i), 4096, HOUSE_WRITE);
		HOUSE_STATUS(MWCTL_STATUS_TIMED_OUT, mwctl_grant_batch(house.ctx, ask, 4, 20000, held));
		mwctl_revoke_peer(house.ctx, house.client[0].peer, 20000, MWCTL_KILL_ALLOWED, &n);
		RC_CHECK_EQ(4, house_peer(&house, 0).used);
	}
	RC_CHECK_EQ(0, mwctl_sim_counters_get(&after, sizeof(after)));
	RC_CHECK_EQ(4, after.send_wrs[IBV_WR_BIND_MW] - before.send_wrs[IBV_WR_BIND_MW]);
	RC_CHECK_EQ(before.send_wrs[IBV_WR_LOCAL_INV], after.send_wrs[IBV_WR_LOCAL_INV]);
	RC_CHECK(mwctl_sim_fault_hits(refuse) > 0);
	trouble_release(refuse);
	trouble_release(stall);
	held[0] = house_grant(&house, 0, 0x400000, 4096, HOUSE_WRITE);
	HOUSE_WRITE_LANDS(&house, 0, 0x400000, held[0].rkey, 0x71);
	RC_CHECK_EQ(0, house_peer(&house, 0).used);
	check_spared();
	HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[0].peer, 0, MWCTL_KILL_ALLOWED, &n));
	house_close(&house);
	house_ok("after a move to ERR that failed no more is posted than the budget allows");
}

/* A detach whose chain is cut needs a completion behind what was posted: it ends with that, too. */
static void detached_with_a_cut(uint32_t budget)
{
	mwctl_request ask[4];
	mwctl_result held[4];
	uint64_t cut;

	house_open(&house, &(struct house_options){.clients = 1, .peer.budget = budget});
	for (uint32_t i = 0; i < budget; i++)
		ask[i] = house_ask(&house, 0, 65536 * i, 4096, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_batch(house.ctx, ask, budget, 0, held));
	cut = cut_next(budget - 1, EINVAL);
	HOUSE_OK(mwctl_peer_detach(house.ctx, house.client[0].peer, 0));
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(cut));
	RC_CHECK_STATE(IBV_QPS_RTS, server_qp(0));
	rc_pair_close(&house.client[0].pair);
	house.client[0].peer.id = 0;
	house_close(&house);
	house_ok("a detach whose last post was cut, with a budget of %u", budget);
}

/* The application polls, and offers what it finds, until this has ended. */
static void offer_until(struct heard *heard)
{
	struct ibv_cq *cq = house.client[0].pair.server.cq;
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;

	while (!atomic_load(&heard->calls)) {
		if (ibv_poll_cq(cq, 1, &wc) == 1)
			RC_CHECK_EQ(1, mwctl_take_wc(house.ctx, cq, &wc));
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard->status);
}

/* The bind asks for no completion and its LOCAL_INV is refused, but one that was posted behind will
 * tell. Nobody has looked for it: that costs no queue pair. */
static void told_by_a_later_one(void)
{
	struct heard granted = {0}, open = {0}, ended = {0};
	mwctl_request ask[2];
	mwctl_result first;
	uint64_t stall, refuse, ids[2];

	house_open(&house, &(struct house_options){.clients = 1, .peer.polling = MWCTL_POLLING_YOURS,
						   .context.on_event = on_event});
	for (int i = 0; i < 2; i++)
		ask[i] = house_ask(&house, 0, (uint64_t)i * 4096, 4096, HOUSE_WRITE);
	stall = trouble_order(MWCTL_SIM_STALL_SQ, server_qp(0), 1, 0);
	commit_one(&ask[0], &first);
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask[1], 1, 0, heard_done, &granted));
	refuse = trouble_order(MWCTL_SIM_FAIL_POST, server_qp(0), 1, EINVAL);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &first.grant, 1, 60000, MWCTL_KILL_ALLOWED, heard_done, &open));
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(refuse));
	while (!atomic_load(&open.calls))
		HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(MWCTL_STATUS_OPEN, open.status);
	check_spared();
	trouble_release(stall);
	offer_until(&granted);
	HOUSE_WRITE_LANDS(&house, 0, 0, first.rkey, 0x81);
	ids[0] = first.grant;
	ids[1] = granted.results[0].grant;
	HOUSE_OK(mwctl_revoke_start(house.ctx, ids, 2, 0, MWCTL_KILL_ALLOWED, heard_done, &ended));
	offer_until(&ended);
	for (int i = 0; i < 2; i++)
		RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, ended.results[i].proof);
	check_spared();
	HOUSE_WRITE_FAILS(&house, 0, 0, first.rkey, 0x82);
	house_close(&house);
	house_ok("a LOCAL_INV refused behind a silent bind: who has not looked at the next completion loses nothing");
}

/* The same, but the application looks, and finds that what would tell does not come. What is posted after
 * the look changes nothing of that. */
static void missed_by_a_later_one(void)
{
	struct heard granted = {0}, ended = {0};
	struct ibv_cq *cq;
	mwctl_request ask[3];
	mwctl_result first, last;
	struct ibv_wc wc;
	double look;

	house_open(&house, &(struct house_options){.clients = 1, .peer.polling = MWCTL_POLLING_YOURS,
						   .context.on_event = on_event});
	cq = house.client[0].pair.server.cq;
	for (int i = 0; i < 3; i++)
		ask[i] = house_ask(&house, 0, (uint64_t)i * 4096, 4096, HOUSE_WRITE);
	trouble_order(MWCTL_SIM_STALL_SQ, server_qp(0), 1, 0);
	commit_one(&ask[0], &first);
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask[1], 1, 0, heard_done, &granted));
	trouble_order(MWCTL_SIM_FAIL_POST, server_qp(0), 1, EINVAL);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &first.grant, 1, 400000, MWCTL_KILL_ALLOWED, heard_done, &ended));
	for (look = rc_now() + 0.3; rc_now() < look;) {
		RC_CHECK_EQ(0, ibv_poll_cq(cq, 1, &wc));
		HOUSE_OK(mwctl_cq_empty(house.ctx, cq));
	}
	commit_one(&ask[2], &last);
	while (!atomic_load(&ended.calls))
		HOUSE_OK(mwctl_tick(house.ctx));
	HOUSE_OK(ended.status);
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, ended.results[0].proof);
	RC_CHECK_EQ(1, killed);
	killed = 0;
	HOUSE_WRITE_FAILS(&house, 0, 0, first.rkey, 0x83);
	house_leave(&house, 0);
	house_close(&house);
	house_ok("a LOCAL_INV refused behind a silent bind: that the next completion is missed is no later post's matter");
}

int main(void)
{
	if (!mwctl_sim_present())
		rc_skip("needs posts that are refused and cut at will");
	successor_waits();
	tried_again();
	spared_with_a_bind_out();
	told_by_a_later_one();
	missed_by_a_later_one();
	cut_off(EINVAL);
	cut_off(ENOMEM);
	cut_grants();
	nothing_follows();
	budget_comes_back();
	budget_is_kept();
	detached_with_a_cut(2);
	detached_with_a_cut(4);
	return 0;
}
