/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Revocations far larger than the send queues have room for, of clients that share a queue: one poll of
 * the application's posts a turn of them and comes back, however fast the device is, and a loop that
 * sleeps is woken for what is left. */
#include "trouble.h"

#include <poll.h>

#define CLIENTS 3
#define GRANTS 200
#define BUDGET 4
#define MOST (2 * CLIENTS * BUDGET)

static struct house house;
static struct heard heard[CLIENTS];
static uint64_t ids[CLIENTS][GRANTS];

static uint64_t posted(void)
{
	return house_stats(&house).invalidates_posted;
}

static void begin(void)
{
	for (int c = 0; c < CLIENTS; c++) {
		heard[c] = (struct heard){0};
		for (int i = 0; i < GRANTS; i++)
			ids[c][i] = house_grant(&house, c, (uint64_t)(c * GRANTS + i) * 64, 64, HOUSE_WRITE).grant;
	}
	for (int c = 0; c < CLIENTS; c++) {
		uint64_t before = posted();

		HOUSE_OK(mwctl_revoke_start(house.ctx, ids[c], GRANTS, 0, MWCTL_KILL_NEVER, heard_done, &heard[c]));
		RC_CHECK(posted() <= before + MOST);
	}
}

static bool ended(void)
{
	for (int c = 0; c < CLIENTS; c++)
		if (!atomic_load(&heard[c].calls))
			return false;
	return true;
}

static void check_proofs(void)
{
	for (int c = 0; c < CLIENTS; c++) {
		HOUSE_OK(heard[c].status);
		for (int i = 0; i < 4; i++)
			RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, heard[c].results[i].proof);
	}
}

/* What an application's loop does when it has nothing to do: it sleeps until there is. */
static void sleep_until_called(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	struct pollfd wakes[2] = {{.fd = mwctl_event_fd(house.ctx), .events = POLLIN},
				  {.fd = channel->fd, .events = POLLIN}};
	struct ibv_cq *of;
	void *context;

	RC_CHECK(poll(wakes, 2, (int)(RC_DEADLINE_S * 1000)) > 0);
	if (wakes[0].revents)
		HOUSE_OK(mwctl_tick(house.ctx));
	if (wakes[1].revents) {
		RC_CHECK_EQ(0, ibv_get_cq_event(channel, &of, &context));
		ibv_ack_cq_events(cq, 1);
	}
}

/* A look before one client's posts finds room for another's, whose turn is then the next call's: the
 * event fd asks for it. */
static void room_for_another(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	mwctl_request ask = house_ask(&house, 1, 0, 64, HOUSE_WRITE);
	struct pollfd called = {.fd = mwctl_event_fd(house.ctx), .events = POLLIN};
	struct pollfd completed = {.fd = channel->fd, .events = POLLIN};
	struct ibv_send_wr wr;
	mwctl_result in_hand;
	mwctl_token token;
	uint64_t before;

	for (int i = 0; i < 2 * BUDGET; i++)
		ids[0][i] = house_grant(&house, 0, 4096 + (uint64_t)i * 64, 64, HOUSE_WRITE).grant;
	heard[0] = (struct heard){0};
	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &wr, &in_hand, &token));
	RC_CHECK_EQ(0, ibv_req_notify_cq(cq, 0));
	before = posted();
	HOUSE_OK(mwctl_revoke_start(house.ctx, ids[0], 2 * BUDGET, 0, MWCTL_KILL_NEVER, heard_done, &heard[0]));
	RC_CHECK_EQ(before + BUDGET, posted());
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(0, poll(&called, 1, 0));
	RC_CHECK_EQ(1, poll(&completed, 1, (int)(RC_DEADLINE_S * 1000)));
	HOUSE_OK(mwctl_abort(house.ctx, token));
	RC_CHECK_EQ(1, poll(&called, 1, (int)(RC_DEADLINE_S * 1000)));
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(before + 2 * BUDGET, posted());
	heard_await(&house, &heard[0]);
	HOUSE_OK(heard[0].status);
	sleep_until_called(channel, cq);
}

/* What a look for room keeps for the application comes behind what its poll has brought already. */
static void in_order(struct ibv_cq *cq)
{
	struct house_client *it = &house.client[0];
	struct ibv_send_wr send = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	double limit = rc_now() + RC_DEADLINE_S;
	uint64_t kept = house_stats(&house).completions_kept;
	struct ibv_wc wc;

	heard[0] = (struct heard){0};
	for (int i = 0; i < 2 * BUDGET; i++)
		ids[0][i] = house_grant(&house, 0, 4096 + (uint64_t)i * 64, 64, HOUSE_WRITE).grant;
	HOUSE_OK(mwctl_revoke_start(house.ctx, ids[0], 2 * BUDGET, 0, MWCTL_KILL_NEVER, heard_done, &heard[0]));
	for (uint64_t i = 0; i < 4; i++) {
		rc_post_recv(&it->pair.client, &it->local, i);
		send.wr_id = 100 + i;
		rc_post(it->pair.server.qp, &send);
	}
	/* All have completed when the poll begins. */
	for (uint64_t i = 0; i < 4; i++)
		RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(it->pair.client.cq).status);
	for (uint64_t i = 0; i < 4; i++) {
		while (!mwctl_poll_cq(house.ctx, cq, 1, &wc))
			RC_CHECK(rc_now() < limit);
		RC_CHECK_EQ(100 + i, wc.wr_id);
	}
	if (mwctl_sim_present())
		RC_CHECK_EQ(kept + 3, house_stats(&house).completions_kept);
	heard_await(&house, &heard[0]);
	HOUSE_OK(heard[0].status);
}

int main(void)
{
	struct house_options options = {.clients = CLIENTS, .peer.budget = BUDGET};
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	uint64_t before;

	house_open(&house, &options);
	for (int c = 0; c < CLIENTS; c++)
		house_leave(&house, c);
	channel = ibv_create_comp_channel(house.device.context);
	RC_CHECK(channel);
	cq = ibv_create_cq(house.device.context, 256, NULL, channel, 0);
	RC_CHECK(cq);
	house.options.rc.send_cq = cq;
	for (int c = 0; c < CLIENTS; c++)
		house_join(&house, c);
	/* A queue that the application polls through the library. */
	RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, cq, 1, &wc));

	begin();
	while (!ended()) {
		before = posted();
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, cq, 1, &wc));
		RC_CHECK(posted() <= before + MOST);
	}
	check_proofs();
	house_ok("a poll, or another call that never waits, posts a turn of what waits in line, and returns");

	begin();
	for (;;) {
		RC_CHECK_EQ(0, ibv_req_notify_cq(cq, 0));
		before = posted();
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, cq, 1, &wc));
		RC_CHECK(posted() <= before + MOST);
		if (ended())
			break;
		before = posted();
		sleep_until_called(channel, cq);
		RC_CHECK(posted() <= before + MOST);
	}
	check_proofs();
	house_ok("so does a tick, and a loop that sleeps is woken for the next");

	room_for_another(channel, cq);
	house_ok("and for room that a look finds by the way");
	in_order(cq);
	house_ok("what such a look keeps for the application comes in order");

	for (int c = 0; c < CLIENTS; c++)
		house_leave(&house, c);
	RC_CHECK_EQ(0, ibv_destroy_cq(cq));
	RC_CHECK_EQ(0, ibv_destroy_comp_channel(channel));
	house_close(&house);
	return 0;
}
