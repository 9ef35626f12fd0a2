/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A client ends another client's right by SEND_WITH_INV. The standard refuses that; some devices do
 * it. Then the victim's grant ends, the doer is named, and nothing is invalidated a second time. */
#include "trouble.h"

#include <stdio.h>
#include <string.h>

enum { VICTIM, DOER };

static struct house house;
static struct rc_memory inbox;
static mwctl_event events[8];
static int events_n;

static void on_event(void *user, const mwctl_event *event)
{
	(void)user;
	RC_CHECK(events_n < 8);
	events[events_n++] = *event;
}

static void choose(uint32_t profile)
{
	struct mwctl_sim_model model;

	if (!mwctl_sim_present())
		return;
	RC_CHECK_EQ(0, mwctl_sim_model_get(&model, sizeof(model)));
	model.profile = profile;
	RC_CHECK_EQ(0, mwctl_sim_model_set(&model, sizeof(model)));
}

static void open_house(void)
{
	struct house_options options = {.context.on_event = on_event, .peer.budget = 4};

	house_open(&house, &options);
	rc_memory_open(&inbox, house.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	events_n = 0;
}

static void close_house(void)
{
	rc_memory_close(&inbox);
	house_close(&house);
}

static struct ibv_wc next_wc(int client)
{
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;
	int n;

	while (!(n = mwctl_poll_cq(house.ctx, house.client[client].pair.server.cq, 1, &wc)))
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(1, n);
	return wc;
}

static enum ibv_wc_status end_by_message(int client, uint32_t rkey)
{
	struct house_client *it = &house.client[client];

	rc_post_recv(&it->pair.server, &inbox, 9);
	return rc_send_with_inv(&it->pair.client, &it->local, 8, rkey);
}

/* The one event, and whom it names. */
static void check_told(const mwctl_result *grant, uint64_t peer, const struct ibv_qp *qp)
{
	RC_CHECK_EQ(1, events_n);
	RC_CHECK_EQ(MWCTL_EVENT_KIND_FOREIGN_INVALIDATION, events[0].kind);
	RC_CHECK_EQ(grant->grant, events[0].grant);
	RC_CHECK_EQ(peer, events[0].peer);
	RC_CHECK_EQ(qp->qp_num, events[0].qp_num);
	RC_CHECK_EQ(1, house_stats(&house).foreign_invalidations);
}

static void check_off_the_books(const mwctl_result *grant, uint64_t offset)
{
	mwctl_grant_info info;

	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant_info_get(house.ctx, grant->grant, &info, sizeof(info)));
	HOUSE_STATUS(MWCTL_STATUS_NO_GRANT, mwctl_find_rkey(house.ctx, grant->rkey, &info, sizeof(info)));
	HOUSE_STATUS(MWCTL_STATUS_NO_GRANT,
		     mwctl_check(house.ctx, house.domain, house.client[VICTIM].pair.server.qp->qp_num,
				 house.memory.addr + offset, 1, HOUSE_WRITE, NULL));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_revoke(house.ctx, grant->grant, 0, NULL));
}

/* The memory and the windows go round among the clients as before. */
static void check_granted_again(void)
{
	for (int round = 0; round < 200; round++) {
		mwctl_result next = house_grant(&house, round % 2, 0, 4096, HOUSE_WRITE), out;

		HOUSE_WRITE_LANDS(&house, round % 2, 0, next.rkey, (uint8_t)(round | 1));
		HOUSE_OK(mwctl_revoke(house.ctx, next.grant, 0, &out));
		RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out.proof);
	}
}

static void polled_first(void)
{
	uint64_t invalidates;
	mwctl_result victim, control, own, next;
	struct ibv_wc wc;
	size_t n;

	open_house();
	victim = house_grant(&house, VICTIM, 0, 4096, HOUSE_WRITE);
	control = house_grant(&house, VICTIM, 65536, 4096, HOUSE_WRITE);
	own = house_grant(&house, DOER, 131072, 4096, HOUSE_WRITE);
	HOUSE_WRITE_LANDS(&house, VICTIM, 0, victim.rkey, 0x11);
	HOUSE_WRITE_FAILS(&house, DOER, 0, victim.rkey, 0x12);
	/* That cost the doer its connection. */
	HOUSE_OK(mwctl_revoke(house.ctx, own.grant, 0, NULL));
	house_leave(&house, DOER);
	house_join(&house, DOER);
	own = house_grant(&house, DOER, 131072, 4096, HOUSE_WRITE);
	events_n = 0;
	invalidates = house_stats(&house).invalidates_posted;

	RC_CHECK_STATUS(IBV_WC_SUCCESS, end_by_message(DOER, victim.rkey));
	wc = next_wc(DOER);
	RC_CHECK_EQ(9, wc.wr_id);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	RC_CHECK_EQ(victim.rkey, wc.invalidated_rkey);
	check_told(&victim, house.client[DOER].peer.id, house.client[DOER].pair.server.qp);
	check_off_the_books(&victim, 0);
	RC_CHECK_EQ(1, house_peer(&house, VICTIM).grants);
	RC_CHECK_EQ(1, house_peer(&house, DOER).grants);
	HOUSE_WRITE_LANDS(&house, VICTIM, 65536, control.rkey, 0x13);
	HOUSE_WRITE_LANDS(&house, DOER, 131072, own.rkey, 0x14);
	RC_CHECK_EQ(invalidates, house_stats(&house).invalidates_posted);
	check_granted_again();
	next = house_grant(&house, DOER, 0, 4096, HOUSE_WRITE);
	HOUSE_WRITE_LANDS(&house, DOER, 0, next.rkey, 0x15);
	HOUSE_WRITE_FAILS(&house, VICTIM, 0, victim.rkey, 0x16);
	HOUSE_WRITE_LANDS(&house, DOER, 0, next.rkey, 0x17);
	invalidates = house_stats(&house).invalidates_posted;
	HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[DOER].peer, 0, MWCTL_KILL_ALLOWED, &n));
	RC_CHECK_EQ(2, n);
	RC_CHECK_EQ(invalidates + 2, house_stats(&house).invalidates_posted);
	close_house();
	house_ok("another client's SEND_WITH_INV: the grant ends, the doer is named, no LOCAL_INV follows");
}

/* By a queue pair of the same protection domain that the library has never heard of. */
static void by_a_stranger(void)
{
	double limit = rc_now() + RC_DEADLINE_S;
	mwctl_result victim, control;
	struct rc_pair stranger;
	struct rc_options rc = {0};
	struct ibv_wc wc;

	open_house();
	rc.server_pd = house.pd;
	rc.client_pd = house.client_pd;
	rc_pair_open(&stranger, &house.device, &rc);
	victim = house_grant(&house, VICTIM, 0, 4096, HOUSE_WRITE);
	control = house_grant(&house, VICTIM, 65536, 4096, HOUSE_WRITE);
	rc_post_recv(&stranger.server, &inbox, 5);
	RC_CHECK_STATUS(IBV_WC_SUCCESS,
			rc_send_with_inv(&stranger.client, &house.client[DOER].local, 8, victim.rkey));
	while (!mwctl_poll_cq(house.ctx, stranger.server.cq, 1, &wc))
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(5, wc.wr_id);
	/* Nobody's name stands for it, and surely not the victim's. */
	check_told(&victim, 0, stranger.server.qp);
	check_off_the_books(&victim, 0);
	HOUSE_WRITE_LANDS(&house, VICTIM, 65536, control.rkey, 0x21);
	HOUSE_OK(mwctl_revoke(house.ctx, control.grant, 0, NULL));
	HOUSE_WRITE_FAILS(&house, VICTIM, 0, victim.rkey, 0x22);
	rc_pair_close(&stranger);
	close_house();
	house_ok("… by a queue pair that is not attached: no client is named");
}

/* ---- on the device in the process alone ---- */

static void refused_by_the_standard(void)
{
	struct mwctl_sim_misuse misuse;
	mwctl_result victim, out;
	uint64_t own;

	open_house();
	victim = house_grant(&house, VICTIM, 0, 4096, HOUSE_WRITE);
	own = house_grant(&house, DOER, 131072, 4096, HOUSE_WRITE).grant;
	RC_CHECK(end_by_message(DOER, victim.rkey) != IBV_WC_SUCCESS);
	RC_CHECK_EQ(1, mwctl_sim_misuse_next(&misuse, sizeof(misuse)));
	RC_CHECK_EQ(MWCTL_SIM_RULE_INV_WRONG_QP, misuse.rule);
	RC_CHECK(next_wc(DOER).status != IBV_WC_SUCCESS);
	RC_CHECK_EQ(0, house_stats(&house).foreign_invalidations);
	RC_CHECK_EQ(1, house_peer(&house, VICTIM).grants);
	HOUSE_WRITE_LANDS(&house, VICTIM, 0, victim.rkey, 0x31);
	HOUSE_OK(mwctl_revoke(house.ctx, own, 0, &out));
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, out.proof);
	for (int i = 0; i < events_n; i++)
		RC_CHECK(events[i].kind != MWCTL_EVENT_KIND_FOREIGN_INVALIDATION);
	HOUSE_OK(mwctl_revoke(house.ctx, victim.grant, 0, &out));
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out.proof);
	HOUSE_WRITE_FAILS(&house, VICTIM, 0, victim.rkey, 0x32);
	close_house();
	house_ok("a device that pins windows refuses it: the doer's queue pair dies, the grant lives");
}

/* A LOCAL_INV for the same grant waits in line for the budget. */
static void while_in_line(void)
{
	mwctl_result victim, control, in_hand[4];
	struct heard heard = {0};
	struct ibv_send_wr wr[4];
	mwctl_request ask[4];
	uint64_t invalidates;
	mwctl_token token;

	open_house();
	victim = house_grant(&house, VICTIM, 0, 4096, HOUSE_WRITE);
	control = house_grant(&house, VICTIM, 65536, 4096, HOUSE_WRITE);
	for (int i = 0; i < 4; i++)
		ask[i] = house_ask(&house, VICTIM, 131072 + (uint64_t)i * 64, 64, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_prepare(house.ctx, ask, 4, wr, in_hand, &token));
	invalidates = house_stats(&house).invalidates_posted;
	HOUSE_OK(mwctl_revoke_start(house.ctx, &victim.grant, 1, 0, MWCTL_KILL_NEVER, heard_done, &heard));
	RC_CHECK_STATUS(IBV_WC_SUCCESS, end_by_message(DOER, victim.rkey));
	RC_CHECK_EQ(9, next_wc(DOER).wr_id);
	RC_CHECK_EQ(1, heard.calls);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(MWCTL_PROOF_PEER_INVALIDATED, heard.results[0].proof);
	check_told(&victim, house.client[DOER].peer.id, house.client[DOER].pair.server.qp);
	HOUSE_OK(mwctl_abort(house.ctx, token));
	RC_CHECK_EQ(invalidates, house_stats(&house).invalidates_posted);
	check_off_the_books(&victim, 0);
	HOUSE_WRITE_LANDS(&house, VICTIM, 65536, control.rkey, 0x41);
	check_granted_again();
	HOUSE_WRITE_FAILS(&house, VICTIM, 0, victim.rkey, 0x42);
	HOUSE_OK(mwctl_revoke(house.ctx, control.grant, 0, NULL));
	close_house();
	house_ok("… with a LOCAL_INV in line: the revocation ends with it, nothing is posted");
}

/* What nobody has looked at yet can't be known: our LOCAL_INV fails then, and the fence proves. */
static void not_polled(bool posted)
{
	double limit = rc_now() + RC_DEADLINE_S;
	mwctl_result victim, control, own;
	struct mwctl_sim_misuse misuse;
	struct heard heard = {0};
	uint64_t stall = 0;
	struct ibv_qp *qp;
	struct ibv_wc wc;

	open_house();
	qp = house.client[VICTIM].pair.server.qp;
	victim = house_grant(&house, VICTIM, 0, 4096, HOUSE_WRITE);
	control = house_grant(&house, VICTIM, 65536, 4096, HOUSE_WRITE);
	own = house_grant(&house, DOER, 131072, 4096, HOUSE_WRITE);
	if (posted) {
		stall = trouble_order(MWCTL_SIM_STALL_SQ, qp, 1, 0);
		HOUSE_OK(mwctl_revoke_start(house.ctx, &victim.grant, 1, 0, MWCTL_KILL_ALLOWED, heard_done, &heard));
	}
	RC_CHECK_STATUS(IBV_WC_SUCCESS, end_by_message(DOER, victim.rkey));
	if (posted) {
		RC_CHECK_EQ(9, next_wc(DOER).wr_id);
		check_told(&victim, house.client[DOER].peer.id, house.client[DOER].pair.server.qp);
		RC_CHECK_EQ(0, heard.calls);
		trouble_release(stall);
	} else {
		HOUSE_OK(mwctl_revoke_start(house.ctx, &victim.grant, 1, 0, MWCTL_KILL_ALLOWED, heard_done, &heard));
	}
	while (!heard.calls) {
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, house.client[VICTIM].pair.server.cq, 1, &wc));
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, heard.results[0].proof);
	RC_CHECK_EQ(1, mwctl_sim_misuse_next(&misuse, sizeof(misuse)));
	RC_CHECK_EQ(MWCTL_SIM_RULE_INV_NOT_BOUND, misuse.rule);
	HOUSE_OK(mwctl_revoke(house.ctx, control.grant, 0, NULL));
	HOUSE_WRITE_LANDS(&house, DOER, 131072, own.rkey, 0x51);
	HOUSE_WRITE_FAILS(&house, VICTIM, 0, victim.rkey, 0x52);
	if (!posted) {
		RC_CHECK_EQ(9, next_wc(DOER).wr_id);
		RC_CHECK_EQ(0, house_stats(&house).foreign_invalidations);
	}
	close_house();
	house_ok("… %s: the victim's queue pair dies, and the fence is the proof",
		 posted ? "with a LOCAL_INV posted" : "before the revocation, and not polled");
}

int main(void)
{
	choose(MWCTL_SIM_PROFILE_STRICT);
	if (mwctl_sim_present()) {
		refused_by_the_standard();
		choose(MWCTL_SIM_PROFILE_UNPINNED);
	} else {
		rc_device_open(&house.device);
		if (house.device.kind != RC_DEVICE_RXE)
			rc_skip("not known to let a client end another's window");
		rc_device_close(&house.device);
	}
	polled_first();
	by_a_stranger();
	if (!mwctl_sim_present()) {
		printf("skipped on this device: a second invalidate of one bind, which may bring a kernel down\n");
		return 0;
	}
	while_in_line();
	not_polled(false);
	not_polled(true);
	return 0;
}
