/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What must not suffer from another's trouble: a deadline while somebody else's windows are deallocated
 * by slow kernel calls, and a queue pair that is well, or that may not be touched.
 */
#include "trouble.h"

#include <errno.h>
#include <string.h>

#define MANY 400
#define SLOW_NS 200000
#define AT 4096ul

static struct house house;

static struct ibv_qp *qp(int client)
{
	return house.client[client].pair.server.qp;
}

static void slow_kernel(uint32_t ns)
{
	struct mwctl_sim_model model;

	RC_CHECK_EQ(0, mwctl_sim_model_get(&model, sizeof(model)));
	model.kernel_call_ns = ns;
	RC_CHECK_EQ(0, mwctl_sim_model_set(&model, sizeof(model)));
}

static mwctl_request asked[MANY];
static mwctl_result held_by_one[MANY];
static uint64_t ids[MANY];

static void ask_many(void)
{
	for (unsigned long i = 0; i < MANY; i++)
		asked[i] = house_ask(&house, 0, AT * i, AT, HOUSE_WRITE);
}

static void hold_many(void)
{
	ask_many();
	HOUSE_OK(mwctl_grant_batch(house.ctx, asked, MANY, 0, held_by_one));
	for (int i = 0; i < MANY; i++)
		ids[i] = held_by_one[i].grant;
}

/* 400 windows to deallocate take 80 ms; the deadline of another client's revocation is in the midst. The
 * service thread keeps it, or a loop that ticks, or a waiting call of its own, which keeps a third's by the
 * way. */
static void deadline_beside_deallocations(bool service, bool waits)
{
	struct house_options options = {.clients = 3, .domain.reserve = MANY + 8};
	struct heard many = {0}, one = {0}, third = {0};
	mwctl_result stuck, other, out;
	double limit;

	house_open(&house, &options);
	hold_many();
	stuck = house_grant(&house, 1, AT * MANY, AT, HOUSE_WRITE);
	other = house_grant(&house, 2, AT * (MANY + 1), AT, HOUSE_WRITE);
	trouble_block(&house, 1);
	trouble_block(&house, 2);
	HOUSE_OK(mwctl_peer_stuck(house.ctx, house.client[0].peer));
	if (service)
		HOUSE_OK(mwctl_service_start(house.ctx));
	slow_kernel(SLOW_NS);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &other.grant, 1, 5000, MWCTL_KILL_NEVER, heard_done, &third));
	if (!waits)
		HOUSE_OK(mwctl_revoke_start(house.ctx, &stuck.grant, 1, 10000, MWCTL_KILL_NEVER, heard_done, &one));
	HOUSE_OK(mwctl_revoke_start(house.ctx, ids, MANY, 2000000, MWCTL_KILL_NEVER, heard_done, &many));
	if (waits) {
		HOUSE_STATUS(MWCTL_STATUS_OPEN, mwctl_revoke_batch(house.ctx, &stuck.grant, 1, 10000, MWCTL_KILL_NEVER, &out));
		one.at = rc_now();
	}
	for (limit = rc_now() + RC_DEADLINE_S;
	     !atomic_load(&many.calls) || !atomic_load(&third.calls) || (!waits && !atomic_load(&one.calls));) {
		RC_CHECK(rc_now() < limit);
		if (service)
			rc_pause(1);
		else
			HOUSE_OK(mwctl_tick(house.ctx));
	}
	HOUSE_OK(mwctl_service_stop(house.ctx));
	slow_kernel(0);
	if (!waits)
		RC_CHECK_EQ(MWCTL_STATUS_OPEN, one.status);
	RC_CHECK_EQ(MWCTL_STATUS_OK, many.status);
	RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, many.results[0].proof);
	/* The one did not wait for the many. */
	RC_CHECK(one.at < many.at);
	RC_CHECK_EQ(MWCTL_STATUS_OPEN, third.status);
	RC_CHECK(third.at < many.at);
	trouble_unblock(&house, 1);
	trouble_await_end(&house, stuck.grant);
	trouble_unblock(&house, 2);
	trouble_await_end(&house, other.grant);
	RC_CHECK_STATE(IBV_QPS_RTS, qp(0));
	RC_CHECK_STATE(IBV_QPS_RTS, qp(1));
	HOUSE_WRITE_FAILS(&house, 0, 0, held_by_one[0].rkey, 0x11);
	house_close(&house);
}

/* A pool of 64 windows, and 400 rights asked for at once: a window takes 200 us to allocate. */
static void allocations_until_the_deadline(void)
{
	struct house_options options = {.clients = 1};
	static mwctl_result got[MANY];
	uint64_t allocated;
	int granted = 0;

	house_open(&house, &options);
	allocated = house_stats(&house).windows_allocated;
	ask_many();
	slow_kernel(SLOW_NS);
	HOUSE_STATUS(MWCTL_STATUS_TIMED_OUT, mwctl_grant_batch(house.ctx, asked, MANY, 10000, got));
	slow_kernel(0);
	/* Some 50 would be in time. */
	RC_CHECK(house_stats(&house).windows_allocated < allocated + MANY / 2);
	for (int i = 0; i < MANY; i++) {
		if (got[i].status != MWCTL_STATUS_OK)
			RC_CHECK_EQ(MWCTL_STATUS_TIMED_OUT, got[i].status);
		granted += got[i].status == MWCTL_STATUS_OK;
		if (got[i].grant)
			HOUSE_OK(mwctl_revoke(house.ctx, got[i].grant, 0, NULL));
	}
	RC_CHECK(granted < MANY);
	HOUSE_OK(mwctl_grant_batch(house.ctx, asked, MANY, 0, got));
	HOUSE_WRITE_LANDS(&house, 0, AT * (MANY - 1), got[MANY - 1].rkey, 0x15);
	house_close(&house);
}

static mwctl_stats at_the_end;

static void note_stats(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	at_the_end = house_stats(&house);
	heard_done(user, status, results, n);
}

/* One window of one client is deallocated between those of another: that is told when it is done. */
static void told_beside_deallocations(void)
{
	struct house_options options = {.domain.reserve = MANY + 8};
	struct heard many = {0}, one = {0};
	mwctl_result other;

	house_open(&house, &options);
	hold_many();
	other = house_grant(&house, 1, AT * MANY, AT, HOUSE_WRITE);
	for (int c = 0; c < 2; c++)
		HOUSE_OK(mwctl_peer_stuck(house.ctx, house.client[c].peer));
	HOUSE_OK(mwctl_revoke_start(house.ctx, ids, MANY, 0, MWCTL_KILL_NEVER, heard_done, &many));
	HOUSE_OK(mwctl_revoke_start(house.ctx, &other.grant, 1, 0, MWCTL_KILL_NEVER, note_stats, &one));
	slow_kernel(SLOW_NS);
	while (!many.calls)
		HOUSE_OK(mwctl_tick(house.ctx));
	slow_kernel(0);
	HOUSE_OK(one.status);
	HOUSE_OK(many.status);
	RC_CHECK(at_the_end.windows_deallocated < MANY / 2);
	house_close(&house);
}

/* The new rights of a transfer need windows, too. */
static void deadline_beside_allocations(void)
{
	struct house_options options = {.clients = 3, .domain.reserve = MANY + 1};
	static mwctl_result got[MANY];
	static mwctl_move moves[MANY];
	struct heard many = {0}, one = {0};
	mwctl_result stuck, stale;
	uint64_t allocated;

	house_open(&house, &options);
	ask_many();
	stale = house_grant(&house, 1, 0, AT, HOUSE_WRITE);
	HOUSE_OK(mwctl_revoke(house.ctx, stale.grant, 0, NULL));
	stuck = house_grant(&house, 1, AT * MANY, AT, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_batch(house.ctx, asked, MANY, 0, got));
	for (unsigned long i = 0; i < MANY; i++)
		moves[i] = (mwctl_move){.grant = got[i].grant, .to = house_ask(&house, 2, AT * i, AT, HOUSE_WRITE)};
	trouble_block(&house, 1);
	/* The old rights' windows do not come back. */
	HOUSE_OK(mwctl_peer_stuck(house.ctx, house.client[0].peer));
	HOUSE_OK(mwctl_transfer_start(house.ctx, moves, MANY, 5000000, MWCTL_KILL_NEVER, heard_done, &many));
	/* Waiting calls deallocate what is in line; windows that nobody waits for are the tick's. */
	while (house_stats(&house).windows_deallocated < MANY)
		HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_revoke(house.ctx, stale.grant, 0, NULL));
	allocated = house_stats(&house).windows_allocated;
	HOUSE_OK(mwctl_revoke_start(house.ctx, &stuck.grant, 1, 10000, MWCTL_KILL_NEVER, note_stats, &one));
	slow_kernel(SLOW_NS);
	while (!one.calls)
		HOUSE_OK(mwctl_tick(house.ctx));
	slow_kernel(0);
	RC_CHECK_EQ(MWCTL_STATUS_OPEN, one.status);
	RC_CHECK(at_the_end.windows_allocated < allocated + MANY / 2);
	heard_await(&house, &many);
	HOUSE_OK(many.status);
	trouble_unblock(&house, 1);
	trouble_await_end(&house, stuck.grant);
	house_close(&house);
}

/* The LOCAL_INV of a right whose bind is still under way is refused once: it goes out again when the bind
 * has completed. Before the deadline that is no reason to end the queue pair. */
static void refused_behind_a_bind(int32_t kill, bool asks_in_vain)
{
	struct heard grant = {0}, revoke = {0};
	mwctl_result other;
	mwctl_request ask;
	uint64_t id;
	size_t n;

	house_open(&house, NULL);
	other = house_grant(&house, 0, 2 * AT, AT, HOUSE_WRITE);
	trouble_block(&house, 0);
	ask = house_ask(&house, 0, 0, AT, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, heard_done, &grant));
	HOUSE_OK(mwctl_range_grants(house.ctx, house.region, ask.addr, ask.length, &id, 1, &n));
	RC_CHECK_EQ(1, n);
	trouble_order(MWCTL_SIM_FAIL_POST, qp(0), 1, EINVAL);
	if (asks_in_vain)
		trouble_order(MWCTL_SIM_FAIL_QUERY_QP, qp(0), 1, EIO);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &id, 1, 5000000, kill, heard_done, &revoke));
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_STATE(IBV_QPS_RTS, qp(0));
	trouble_unblock(&house, 0);
	if (!revoke.calls)
		heard_await(&house, &revoke);
	HOUSE_OK(revoke.status);
	RC_CHECK_EQ(1, grant.calls);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, revoke.results[0].proof);
	RC_CHECK_STATE(IBV_QPS_RTS, qp(0));
	RC_CHECK_EQ(0, house_stats(&house).peers_killed);
	HOUSE_WRITE_LANDS(&house, 0, 2 * AT, other.rkey, 0x21);
	mwctl_sim_faults_clear();
	house_close(&house);
}

/* A queue pair that could not be moved to ERR at the deadline goes on, and so does the LOCAL_INV: once
 * that has completed nothing is open, and the next revocation has nothing to end a queue pair for. */
static void moved_in_vain(bool unconfirmed)
{
	mwctl_result held = {0}, other, out;
	struct heard grant = {0};
	mwctl_grant_info info;
	mwctl_request ask;
	double limit;
	size_t n;

	house_open(&house, NULL);
	other = house_grant(&house, 0, 2 * AT, AT, HOUSE_WRITE);
	ask = house_ask(&house, 0, 0, AT, HOUSE_WRITE);
	if (!unconfirmed)
		held = house_grant(&house, 0, 0, AT, HOUSE_WRITE);
	trouble_block(&house, 0);
	if (unconfirmed) {
		HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, heard_done, &grant));
		HOUSE_OK(mwctl_range_grants(house.ctx, house.region, ask.addr, ask.length, &held.grant, 1, &n));
	}
	trouble_order(MWCTL_SIM_FAIL_MODIFY_QP, qp(0), 1, EIO);
	HOUSE_STATUS(MWCTL_STATUS_OPEN, mwctl_revoke(house.ctx, held.grant, 20000, &out));
	RC_CHECK_STATE(IBV_QPS_RTS, qp(0));
	HOUSE_OK(mwctl_grant_info_get(house.ctx, held.grant, &info, sizeof(info)));
	RC_CHECK_EQ(1, info.uncertain);
	trouble_unblock(&house, 0);
	for (limit = rc_now() + RC_DEADLINE_S;
	     mwctl_grant_info_get(house.ctx, held.grant, &info, sizeof(info)) == MWCTL_STATUS_OK;) {
		struct ibv_wc wc;

		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, &wc));
		RC_CHECK(rc_now() < limit);
	}
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_revoke(house.ctx, held.grant, 20000, &out));
	RC_CHECK_STATE(IBV_QPS_RTS, qp(0));
	RC_CHECK_EQ(0, house_stats(&house).peers_killed);
	RC_CHECK_EQ(0, house_peer(&house, 0).used);
	held = house_grant(&house, 0, 0, AT, HOUSE_WRITE);
	HOUSE_WRITE_LANDS(&house, 0, 0, held.rkey, 0x31);
	HOUSE_WRITE_LANDS(&house, 0, 2 * AT, other.rkey, 0x32);
	mwctl_sim_faults_clear();
	house_close(&house);
}

/* A queue pair that died without a word, on a device that completes nothing on it: its rights need no
 * leave to be proved gone. */
static void dead_without_a_word(void)
{
	struct mwctl_sim_model model;
	mwctl_result held, out;

	RC_CHECK_EQ(0, mwctl_sim_model_get(&model, sizeof(model)));
	model.profile = MWCTL_SIM_PROFILE_MLX5;
	RC_CHECK_EQ(0, mwctl_sim_model_set(&model, sizeof(model)));
	house_open(&house, NULL);
	held = house_grant(&house, 0, 0, AT, HOUSE_WRITE);
	trouble_block(&house, 0);
	HOUSE_STATUS(MWCTL_STATUS_OPEN,
		     mwctl_revoke_batch(house.ctx, &held.grant, 1, 20000, MWCTL_KILL_NEVER, &out));
	/* It died only now. */
	rc_qp_modify(qp(0), IBV_QPS_ERR);
	HOUSE_OK(mwctl_revoke_batch(house.ctx, &held.grant, 1, 20000, MWCTL_KILL_NEVER, &out));
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, out.proof);
	held = house_grant(&house, 1, AT, AT, HOUSE_WRITE);
	rc_qp_modify(qp(1), IBV_QPS_ERR);
	HOUSE_OK(mwctl_revoke_batch(house.ctx, &held.grant, 1, 20000, MWCTL_KILL_NEVER, &out));
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, out.proof);
	RC_CHECK_EQ(0, house_stats(&house).peers_killed);
	house_close(&house);
	model.profile = MWCTL_SIM_PROFILE_STRICT;
	RC_CHECK_EQ(0, mwctl_sim_model_set(&model, sizeof(model)));
}

/* A queue that was made larger after the attach is looked through to its end: what a client gave back is
 * not invalidated a second time, and what has completed by the deadline is not missed. */
static void resized(bool gives_back)
{
	struct house_options options = {.clients = 1, .rc.cqe = 40, .rc.max_send_wr = 600};
	struct ibv_send_wr own = {.wr_id = 7, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
	struct heard heard = {0};
	mwctl_result held, out;
	struct ibv_wc wc;

	house_open(&house, &options);
	held = house_grant(&house, 0, 0, AT, HOUSE_WRITE);
	RC_CHECK_EQ(0, ibv_resize_cq(house.client[0].pair.server.cq, 1000));
	for (int i = 0; i < 500; i++)
		rc_post(qp(0), &own);
	if (gives_back) {
		rc_post_recv(&house.client[0].pair.server, &house.client[0].local, 7);
		RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send_with_inv(&house.client[0].pair.client, &house.client[0].local,
								 0, held.rkey));
		HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 0, &out));
		RC_CHECK_EQ(MWCTL_PROOF_PEER_INVALIDATED, out.proof);
	} else {
		HOUSE_OK(mwctl_revoke_start(house.ctx, &held.grant, 1, 5000, MWCTL_KILL_NEVER, heard_done, &heard));
		while (!heard.calls)
			HOUSE_OK(mwctl_tick(house.ctx));
		HOUSE_OK(heard.status);
		RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, heard.results[0].proof);
	}
	RC_CHECK_STATE(IBV_QPS_RTS, qp(0));
	for (int i = 0; i < 500 + gives_back; i++) {
		RC_CHECK_EQ(1, mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, &wc));
		RC_CHECK_EQ(7, wc.wr_id);
		RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	}
	house_close(&house);
}

int main(void)
{
	if (!mwctl_sim_present())
		rc_skip("orders faults, and slow kernel calls");
	deadline_beside_deallocations(true, false);
	deadline_beside_deallocations(false, false);
	deadline_beside_deallocations(false, true);
	told_beside_deallocations();
	house_ok("a deadline does not wait for another client's deallocations, nor does a callback");
	allocations_until_the_deadline();
	house_ok("a call that has to allocate does so until its deadline");
	deadline_beside_allocations();
	house_ok("a deadline does not wait for the windows of another's transfer");
	refused_behind_a_bind(MWCTL_KILL_ALLOWED, false);
	refused_behind_a_bind(MWCTL_KILL_NEVER, false);
	refused_behind_a_bind(MWCTL_KILL_ALLOWED, true);
	refused_behind_a_bind(MWCTL_KILL_NEVER, true);
	house_ok("a LOCAL_INV that is refused once behind its bind costs no queue pair");
	moved_in_vain(false);
	moved_in_vain(true);
	house_ok("a LOCAL_INV that completes after all ends what was reported open, and the queue pair lives");
	dead_without_a_word();
	house_ok("the deadline finds a queue pair dead that no completion tells of, with KILL_NEVER as well");
	resized(true);
	resized(false);
	house_ok("a queue that was made larger is looked through to its end");
	return 0;
}
