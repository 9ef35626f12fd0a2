/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What is said of a post against what is seen of it: an error that does not say what was queued
 * proves nothing, and a completion that came outweighs an abort. */
#include "trouble.h"

#include <errno.h>

static struct house house;

static void rejoin(void)
{
	house_leave(&house, 0);
	house_join(&house, 0);
}

/* A completion of the library's that is later than all before on client 0's queue pair. */
static void later_completion(void)
{
	mwctl_result other = house_grant(&house, 0, 1 << 20, 4096, HOUSE_WRITE);

	HOUSE_WRITE_LANDS(&house, 0, 1 << 20, other.rkey, 0x11);
	HOUSE_OK(mwctl_tick(house.ctx));
}

/* The provider reports an error and no bad_wr; nothing was queued. A completion behind it shows that
 * nothing is under way any more: what is right in either case follows, and the queue pair lives on. */
static void unclear_revocation(void)
{
	mwctl_result held = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	mwctl_result good = house_grant(&house, 1, 65536, 4096, HOUSE_WRITE);
	struct heard heard = {0};
	struct ibv_send_wr wr;
	mwctl_token token;

	HOUSE_OK(mwctl_revoke_prepare(house.ctx, &held.grant, 1, 1000000, MWCTL_KILL_ALLOWED, heard_done, &heard, &wr,
				      &token));
	HOUSE_OK(mwctl_commit(house.ctx, token, EIO, NULL, NULL));
	HOUSE_WRITE_LANDS(&house, 0, 0, held.rkey, 0x12);
	RC_CHECK_EQ(0, heard.calls);
	later_completion();
	heard_await(&house, &heard);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, heard.results[0].proof);
	RC_CHECK_EQ(0, house_peer(&house, 0).used);
	RC_CHECK_STATE(IBV_QPS_RTS, house.client[0].pair.server.qp);
	HOUSE_WRITE_LANDS(&house, 1, 65536, good.rkey, 0x13);
	HOUSE_WRITE_FAILS(&house, 0, 0, held.rkey, 0x14);
	HOUSE_OK(mwctl_revoke(house.ctx, good.grant, 0, NULL));
	rejoin();
	house_check_misuse();
	house_ok("a LOCAL_INV that may not be posted is not proved by a later completion");
}

/* The application says that it did not post, after its post's completion was taken in. */
static void abort_after_the_completion(void)
{
	struct house_client *it = &house.client[0];
	struct ibv_send_wr wr, *bad = NULL, own = {.wr_id = 900, .opcode = IBV_WR_RDMA_WRITE,
						   .send_flags = IBV_SEND_SIGNALED};
	uint32_t budget = house_peer(&house, 0).budget;
	double limit = rc_now() + RC_DEADLINE_S;
	mwctl_request ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	mwctl_grant_info info;
	mwctl_result grant, out;
	mwctl_token token;
	struct ibv_wc wc;

	/* A budget of one: each bind is signaled. */
	RC_CHECK_EQ(1, budget);
	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &wr, &grant, &token));
	wr.next = &own;
	RC_CHECK_EQ(0, ibv_post_send(it->pair.server.qp, &wr, &bad));
	while (!mwctl_poll_cq(house.ctx, it->pair.server.cq, 1, &wc))
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(900, wc.wr_id);
	HOUSE_OK(mwctl_abort(house.ctx, token));
	HOUSE_WRITE_LANDS(&house, 0, 0, grant.rkey, 0x31);
	/* So it must be on the books, and its window not in the next hands. */
	HOUSE_OK(mwctl_grant_info_get(house.ctx, grant.grant, &info, sizeof(info)));
	RC_CHECK_EQ(grant.rkey, info.rkey);
	RC_CHECK_EQ(1, house_peer(&house, 0).grants);
	HOUSE_OK(mwctl_revoke(house.ctx, grant.grant, 0, &out));
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out.proof);
	RC_CHECK_EQ(0, house_peer(&house, 0).used);
	HOUSE_WRITE_FAILS(&house, 0, 0, grant.rkey, 0x32);
	rejoin();
	house_check_misuse();
	house_ok("an abort after the completion was seen: the grant stays, and can be revoked");
}

/* The same for a bind, which was queued or not: it is not confirmed, and its revocation invalidates
 * nothing that may not be bound. */
static void unclear_grant(bool queued)
{
	mwctl_request ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	mwctl_result good = house_grant(&house, 1, 65536, 4096, HOUSE_WRITE), grant, out;
	mwctl_grant_info info;
	struct ibv_send_wr wr;
	mwctl_token token;

	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &wr, &grant, &token));
	if (queued)
		rc_post(house.client[0].pair.server.qp, &wr);
	HOUSE_OK(mwctl_commit(house.ctx, token, EIO, NULL, NULL));
	later_completion();
	RC_CHECK_EQ(0, house_peer(&house, 0).used);
	HOUSE_OK(mwctl_grant_info_get(house.ctx, grant.grant, &info, sizeof(info)));
	RC_CHECK_EQ(0, info.confirmed);
	/* A client may be able to use it. */
	HOUSE_OK(mwctl_check(house.ctx, house.domain, info.qp_num, info.addr, info.length, HOUSE_WRITE, NULL));
	if (queued)
		HOUSE_WRITE_LANDS(&house, 0, 0, grant.rkey, 0x20);
	HOUSE_OK(mwctl_revoke(house.ctx, grant.grant, 200000, &out));
	RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, out.proof);
	RC_CHECK_STATE(IBV_QPS_RTS, house.client[0].pair.server.qp);
	house_check_misuse();
	HOUSE_WRITE_FAILS(&house, 0, 0, grant.rkey, 0x21);
	HOUSE_WRITE_LANDS(&house, 1, 65536, good.rkey, 0x22);
	HOUSE_OK(mwctl_revoke(house.ctx, good.grant, 0, NULL));
	rejoin();
	house_ok("a bind that %s, says nobody, is neither confirmed nor invalidated",
		 queued ? "was posted" : "was not posted");
}

/* A chain that lost the request that asks for a completion, behind one that asks for none: the entries
 * of both come back though nothing else is posted. */
static void cut_behind_unsignaled(void)
{
	struct house_client *it = &house.client[0];
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_send_wr wrs[5], *bad = NULL;
	mwctl_request ask[5];
	mwctl_result first[2], cut[3], all[5];
	mwctl_token token;
	struct ibv_wc wc;
	size_t posted;

	for (int i = 0; i < 5; i++)
		ask[i] = house_ask(&house, 0, i * 4096, 4096, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_prepare(house.ctx, ask, 2, wrs, first, &token));
	HOUSE_OK(mwctl_commit(house.ctx, token, ibv_post_send(it->pair.server.qp, wrs, &bad), bad, NULL));
	HOUSE_OK(mwctl_grant_prepare(house.ctx, ask + 2, 3, wrs, cut, &token));
	wrs[1].next = NULL;
	RC_CHECK_EQ(0, ibv_post_send(it->pair.server.qp, wrs, &bad));
	wrs[1].next = &wrs[2];
	HOUSE_OK(mwctl_commit(house.ctx, token, ENOMEM, &wrs[2], &posted));
	RC_CHECK_EQ(2, posted);
	while (house_peer(&house, 0).used) {
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, it->pair.server.cq, 1, &wc));
		RC_CHECK(rc_now() < limit);
	}
	for (int i = 0; i < 2; i++) {
		HOUSE_WRITE_LANDS(&house, 0, i * 4096, first[i].rkey, 0x41);
		HOUSE_WRITE_LANDS(&house, 0, (i + 2) * 4096, cut[i].rkey, 0x42);
	}
	HOUSE_OK(mwctl_revoke_peer(house.ctx, it->peer, 0, MWCTL_KILL_NEVER, NULL));
	HOUSE_OK(mwctl_grant_prepare(house.ctx, ask, 5, wrs, all, &token));
	HOUSE_OK(mwctl_abort(house.ctx, token));
	HOUSE_WRITE_FAILS(&house, 0, 0, first[0].rkey, 0x43);
	rejoin();
	house_check_misuse();
	house_ok("entries of a chain that lost its completion come back, and those before it");
}

static int killed;

static void on_event(void *user, const mwctl_event *event)
{
	(void)user;
	killed += event->kind == MWCTL_EVENT_KIND_PEER_KILLED;
}

/* The library's own post of a bind ends with an error that does not say where, and it is revoked before
 * anybody has polled: the queue pair is not ended for that, its completion tells. */
static void unclear_and_not_polled(void)
{
	mwctl_request ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	struct heard granted = {0}, revoked = {0};
	uint64_t fault, grant;
	size_t n;

	fault = trouble_order(MWCTL_SIM_POST_NO_BAD_WR, house.client[0].pair.server.qp, 1, EIO);
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, heard_done, &granted));
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(fault));
	HOUSE_OK(mwctl_peer_grants(house.ctx, house.client[0].peer, &grant, 1, &n));
	RC_CHECK_EQ(1, n);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &grant, 1, 0, MWCTL_KILL_ALLOWED, heard_done, &revoked));
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(0, revoked.calls);
	heard_await(&house, &revoked);
	RC_CHECK_EQ(1, granted.calls);
	RC_CHECK_EQ(MWCTL_STATUS_OK, granted.status);
	RC_CHECK_EQ(MWCTL_STATUS_OK, revoked.status);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, revoked.results[0].proof);
	RC_CHECK_EQ(0, killed);
	RC_CHECK_STATE(IBV_QPS_RTS, house.client[0].pair.server.qp);
	HOUSE_WRITE_FAILS(&house, 0, 0, granted.results[0].rkey, 0x41);
	rejoin();
	house_check_misuse();
	house_ok("a bind that may not be posted, revoked before its queue was polled, costs no queue pair");
}

/* Bound, seen to be, and revoked, all before the application says that it posted. */
static void revoked_before_the_commit(void)
{
	mwctl_request ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	struct ibv_send_wr wr, *bad = NULL;
	struct heard heard = {0};
	mwctl_result grant;
	mwctl_token token;
	double limit = rc_now() + RC_DEADLINE_S;
	uint64_t seen = house_stats(&house).error_completions;
	struct ibv_sge sge = {0};
	struct ibv_send_wr own = {.wr_id = 901, .sg_list = &sge, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED};
	struct ibv_wc wc;
	int ret;

	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &wr, &grant, &token));
	/* The application's own, behind it: with its completion the bind's has been seen. */
	own.num_sge = 0;
	wr.next = &own;
	ret = ibv_post_send(house.client[0].pair.server.qp, &wr, &bad);
	while (!mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, &wc))
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(901, wc.wr_id);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &grant.grant, 1, 1000000, MWCTL_KILL_NEVER, heard_done, &heard));
	HOUSE_OK(mwctl_commit(house.ctx, token, ret, bad, NULL));
	heard_await(&house, &heard);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, heard.results[0].proof);
	RC_CHECK_EQ(seen, house_stats(&house).error_completions);
	house_ok("revoked between the completion and the commit: the LOCAL_INV follows the commit");
}

/* A bind of the library's own and its LOCAL_INV go out in one post of unclear outcome, and its completion
 * is lost. What was posted behind completes: nothing is under way, and the right is proved gone. */
static void unclear_bind_and_its_end(void)
{
	mwctl_request ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	struct ibv_qp *qp = house.client[0].pair.server.qp;
	struct heard granted = {0}, ended = {0};
	uint64_t full, unclear, lost;

	full = trouble_order(MWCTL_SIM_FAIL_POST, qp, 1, ENOMEM);
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, heard_done, &granted));
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(full));
	unclear = trouble_order(MWCTL_SIM_POST_NO_BAD_WR, qp, 1, EIO);
	lost = trouble_order(MWCTL_SIM_LOSE_COMPLETION, qp, 1, 0);
	HOUSE_OK(mwctl_revoke_range_start(house.ctx, house.region, ask.addr, ask.length, 0, MWCTL_KILL_NEVER, heard_done,
					  &ended));
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(unclear));
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(lost));
	later_completion();
	heard_await(&house, &granted);
	RC_CHECK_EQ(MWCTL_STATUS_BIND_FAILED, granted.status);
	heard_await(&house, &ended);
	HOUSE_OK(ended.status);
	RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, ended.results[0].proof);
	RC_CHECK_STATE(IBV_QPS_RTS, qp);
	rejoin();
	house_ok("a bind and its LOCAL_INV that may not be posted are proved gone behind a later completion");
}

static void take_one(void)
{
	struct ibv_cq *cq = house.client[0].pair.server.cq;
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;

	while (ibv_poll_cq(cq, 1, &wc) != 1)
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(1, mwctl_take_wc(house.ctx, cq, &wc));
	HOUSE_OK(mwctl_tick(house.ctx));
}

/* A LOCAL_INV waits in line when the post of its bind has an unclear outcome. There is room for it before
 * anything tells whether there is a bind: it is not posted until then. */
static void unclear_bind_before_its_end(void)
{
	struct heard granted[3] = {0}, ended = {0};
	struct ibv_qp *qp = house.client[0].pair.server.qp;
	uint64_t unclear, stall, posted = house_stats(&house).invalidates_posted;
	mwctl_request ask;

	for (int i = 0; i < 3; i++) {
		ask = house_ask(&house, 0, (uint64_t)i * 4096, 4096, HOUSE_WRITE);
		HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, heard_done, &granted[i]));
	}
	HOUSE_OK(mwctl_revoke_range_start(house.ctx, house.region, ask.addr, ask.length, 0, MWCTL_KILL_NEVER, heard_done,
					  &ended));
	unclear = trouble_order(MWCTL_SIM_POST_NO_BAD_WR, qp, 1, EIO);
	stall = trouble_order(MWCTL_SIM_STALL_SQ, qp, 1, 0);
	take_one();
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(unclear));
	take_one();
	RC_CHECK_EQ(1, house_peer(&house, 0).used);
	RC_CHECK_EQ(posted, house_stats(&house).invalidates_posted);
	trouble_release(stall);
	take_one();
	HOUSE_OK(granted[2].status);
	RC_CHECK_EQ(posted + 1, house_stats(&house).invalidates_posted);
	take_one();
	RC_CHECK_EQ(1, ended.calls);
	HOUSE_OK(ended.status);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, ended.results[0].proof);
	rejoin();
	house_ok("a LOCAL_INV in line behind a bind that may not be posted waits until that is known");
}

/* The same for the grant of the library's own that brings the completion of a chain that was cut: nobody
 * waits for it, and it goes when it is known that nothing of it is under way. */
static void unclear_bind_of_our_own(void)
{
	struct ibv_qp *qp = house.client[0].pair.server.qp;
	struct mwctl_sim_fault lose = {.kind = MWCTL_SIM_LOSE_COMPLETION, .qp_num = qp->qp_num, .skip = 1, .count = 1};
	mwctl_request ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	mwctl_request two[] = {house_ask(&house, 0, 4096, 4096, HOUSE_WRITE), house_ask(&house, 0, 8192, 4096, HOUSE_WRITE)};
	uint64_t unclear, stall, posted = house_stats(&house).invalidates_posted, gone;
	struct heard before = {0}, behind = {0};
	struct ibv_send_wr wr[2];
	mwctl_result cut[2];
	mwctl_token token;

	stall = trouble_order(MWCTL_SIM_STALL_SQ, qp, 1, 0);
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, heard_done, &before));
	HOUSE_OK(mwctl_grant_prepare(house.ctx, two, 2, wr, cut, &token));
	wr[0].next = NULL;
	rc_post(qp, &wr[0]);
	unclear = trouble_order(MWCTL_SIM_POST_NO_BAD_WR, qp, 1, EIO);
	RC_CHECK_EQ(0, mwctl_sim_fault_order(&lose, sizeof(lose), NULL));
	HOUSE_OK(mwctl_commit(house.ctx, token, ENOMEM, &wr[1], NULL));
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(unclear));
	RC_CHECK_EQ(3, house_peer(&house, 0).used);
	trouble_release(stall);
	take_one();
	HOUSE_OK(before.status);
	RC_CHECK_EQ(2, house_peer(&house, 0).used);
	RC_CHECK_EQ(posted, house_stats(&house).invalidates_posted);
	gone = house_stats(&house).windows_deallocated;
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, heard_done, &behind));
	take_one();
	HOUSE_OK(behind.status);
	RC_CHECK_EQ(0, house_peer(&house, 0).used);
	RC_CHECK_EQ(gone + 1, house_stats(&house).windows_deallocated);
	HOUSE_WRITE_LANDS(&house, 0, 4096, cut[0].rkey, 0x51);
	rejoin();
	house_ok("a grant of the library's own that may not be posted goes when a later completion has come");
}

int main(void)
{
	struct house_options options = {.peer.budget = 1};

	house_open(&house, &options);
	abort_after_the_completion();
	house_close(&house);
	options.peer.budget = 5;
	house_open(&house, &options);
	cut_behind_unsignaled();
	house_close(&house);
	house_open(&house, NULL);
	unclear_revocation();
	if (mwctl_sim_present()) {
		unclear_grant(false);
		unclear_grant(true);
		unclear_bind_and_its_end();
	}
	house_close(&house);
	if (mwctl_sim_present()) {
		house_open(&house, &(struct house_options){.context.on_event = on_event});
		unclear_and_not_polled();
		house_close(&house);
		house_open(&house, &(struct house_options){.peer = {.budget = 2, .polling = MWCTL_POLLING_YOURS}});
		unclear_bind_before_its_end();
		house_close(&house);
		house_open(&house, &(struct house_options){.peer = {.budget = 3, .polling = MWCTL_POLLING_YOURS}});
		unclear_bind_of_our_own();
		house_close(&house);
	}
	house_open(&house, &(struct house_options){.rc.sq_sig_all = 1});
	revoked_before_the_commit();
	house_close(&house);
	return 0;
}
