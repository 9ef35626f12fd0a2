/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A server that posts by ibv_wr_start … ibv_wr_complete and polls by ibv_start_poll … ibv_end_poll:
 * chains with its own requests, their commit and abort, and nothing of the library's in between. */
#include "house.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#define SEND_ID 77
#define SEND_QUEUE 32

static struct house house;

/* A client whose server end is extended. */
static struct {
	struct ibv_cq_ex *cq;
	struct ibv_qp *qp;
	struct ibv_qp_ex *qpx;
	struct rc_end client;
	struct rc_memory mail;     /* the server's messages, and where the client receives them */
	struct rc_memory into;
	mwctl_peer peer;
} it;

static int done_calls;
static mwctl_result done_result;

static void on_done(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	(void)user;
	RC_CHECK_EQ(MWCTL_STATUS_OK, status);
	RC_CHECK_EQ(1, n);
	done_result = results[0];
	done_calls++;
}

static bool create(void)
{
	struct ibv_cq_init_attr_ex cq = {.cqe = 128,
					 .wc_flags = IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_IMM |
						     IBV_WC_EX_WITH_BYTE_LEN};
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = house.pd,
		.cap = {.max_send_wr = SEND_QUEUE, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV};

	it.cq = ibv_create_cq_ex(house.device.context, &cq);
	if (!it.cq)
		return false;
	init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(it.cq);
	it.qp = ibv_create_qp_ex(house.device.context, &init);
	if (!it.qp) {
		ibv_destroy_cq(ibv_cq_ex_to_cq(it.cq));
		return false;
	}
	it.qpx = ibv_qp_to_qp_ex(it.qp);
	it.client.cq = ibv_create_cq(house.device.context, 128, NULL, NULL, 0);
	RC_CHECK(it.qpx && it.client.cq);
	return true;
}

static void join(void)
{
	mwctl_peer_options options = {.polling = MWCTL_POLLING_YOURS, .declares_send_ops = 1,
				      .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_BIND_MW |
							IBV_QP_EX_WITH_LOCAL_INV};

	it.client.qp = rc_qp_create(house.client_pd, it.client.cq, NULL);
	rc_qp_connect(&house.device, it.qp, it.client.qp->qp_num, NULL);
	rc_qp_connect(&house.device, it.client.qp, it.qp->qp_num, NULL);
	HOUSE_OK(mwctl_peer_attach(house.ctx, house.domain, it.qp, &options, sizeof(options), &it.peer));
}

/* Polls one batch by the extended interface. Returns how many completions were the application's;
 * the last one's wr_id in *wr_id. */
static int poll_batch(uint64_t *wr_id, enum ibv_wc_status *status)
{
	struct ibv_poll_cq_attr attr = {0};
	int theirs = 0, ret = ibv_start_poll(it.cq, &attr);
	uint64_t posts = house_stats(&house).posts;
	int calls = done_calls;

	if (ret == ENOENT) {
		HOUSE_OK(mwctl_cq_empty(house.ctx, ibv_cq_ex_to_cq(it.cq)));
		return 0;
	}
	RC_CHECK_EQ(0, ret);
	do {
		int ours = mwctl_take_ex(house.ctx, it.cq);

		RC_CHECK(ours == 0 || ours == 1);
		if (!ours) {
			*wr_id = it.cq->wr_id;
			*status = it.cq->status;
			theirs++;
		}
		/* rxe's ibv_next_poll counts the end of the queue as one more completion at ibv_end_poll. */
		ret = house.device.kind == RC_DEVICE_RXE ? ENOENT : ibv_next_poll(it.cq);
	} while (!ret);
	RC_CHECK_EQ(ENOENT, ret);
	/* In between nothing was posted, nobody called back. */
	RC_CHECK_EQ(posts, house_stats(&house).posts);
	RC_CHECK_EQ(calls, done_calls);
	ibv_end_poll(it.cq);
	HOUSE_OK(mwctl_tick(house.ctx));
	return theirs;
}

static void await_own(uint64_t wr_id)
{
	double limit = rc_now() + RC_DEADLINE_S;
	enum ibv_wc_status status = IBV_WC_GENERAL_ERR;
	uint64_t got = 0;

	while (!poll_batch(&got, &status))
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(wr_id, got);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, status);
}

static void await_done(int calls)
{
	double limit = rc_now() + RC_DEADLINE_S;
	enum ibv_wc_status status;
	uint64_t got;

	while (done_calls < calls) {
		RC_CHECK_EQ(0, poll_batch(&got, &status));
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(calls, done_calls);
}

static mwctl_request ask(uint64_t offset)
{
	mwctl_request request = house_ask(&house, 0, offset, 4096, HOUSE_WRITE);

	request.peer = it.peer;
	return request;
}

/* A message that carries the key, in the batch that is begun. */
static void put_send(uint32_t rkey)
{
	memcpy(it.mail.at, &rkey, sizeof(rkey));
	it.qpx->wr_id = SEND_ID;
	it.qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(it.qpx);
	ibv_wr_set_sge(it.qpx, it.mail.mr->lkey, (uintptr_t)it.mail.at, sizeof(rkey));
}

static uint32_t received_key(void)
{
	struct ibv_wc wc = rc_wait(it.client.cq);
	uint32_t rkey;

	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	memcpy(&rkey, it.into.at, sizeof(rkey));
	return rkey;
}

static enum ibv_wc_status write_by(uint32_t rkey, uint64_t offset, uint8_t byte)
{
	memset(house.client[0].local.at, byte, 64);
	return rc_write(&it.client, &house.client[0].local, 64, house_at(&house, offset), rkey);
}

/* Bind and message in one batch; then LOCAL_INV in another. */
static void chained(void)
{
	mwctl_request asked = ask(0);
	struct ibv_send_wr wrs[2];
	mwctl_result granted;
	mwctl_token token;
	size_t posted = 0;
	uint32_t rkey;
	int calls = done_calls;

	rc_post_recv(&it.client, &it.into, 1);
	HOUSE_OK(mwctl_grant_prepare(house.ctx, &asked, 1, wrs, &granted, &token));
	ibv_wr_start(it.qpx);
	mwctl_put_wr(it.qpx, wrs, 1);
	put_send(granted.rkey);
	HOUSE_OK(mwctl_commit_ex(house.ctx, token, ibv_wr_complete(it.qpx), &posted));
	RC_CHECK_EQ(1, posted);
	await_own(SEND_ID);
	rkey = received_key();
	RC_CHECK_EQ(granted.rkey, rkey);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, write_by(rkey, 0, 0x31));
	RC_CHECK_EQ(0x31, *house_at(&house, 0));

	HOUSE_OK(mwctl_revoke_prepare(house.ctx, &granted.grant, 1, 0, MWCTL_KILL_NEVER, on_done, NULL, wrs,
				      &token));
	ibv_wr_start(it.qpx);
	mwctl_put_wr(it.qpx, wrs, 1);
	HOUSE_OK(mwctl_commit_ex(house.ctx, token, ibv_wr_complete(it.qpx), &posted));
	RC_CHECK_EQ(1, posted);
	await_done(calls + 1);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, done_result.proof);
	house_ok("bind and message, then the LOCAL_INV, in batches of the extended interface");

	/* The library's own posts on such a queue pair, polled likewise. */
	HOUSE_OK(mwctl_grant_start(house.ctx, &asked, 1, 0, on_done, NULL));
	await_done(calls + 2);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, write_by(done_result.rkey, 0, 0x32));
	granted = done_result;
	HOUSE_OK(mwctl_revoke_start(house.ctx, &granted.grant, 1, 0, MWCTL_KILL_NEVER, on_done, NULL));
	await_done(calls + 3);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, done_result.proof);
	RC_CHECK(write_by(granted.rkey, 0, 0x33) != IBV_WC_SUCCESS);
	RC_CHECK_EQ(0x32, *house_at(&house, 0));
	house_ok("asynchronous calls whose completions are taken within a batch");
}

static void rejoin(void)
{
	struct ibv_poll_cq_attr attr = {0};

	HOUSE_OK(mwctl_peer_detach(house.ctx, it.peer, 0));
	RC_CHECK_EQ(0, ibv_destroy_qp(it.client.qp));
	rc_qp_modify(it.qp, IBV_QPS_RESET);
	while (!ibv_start_poll(it.cq, &attr)) {
		RC_CHECK(mwctl_take_ex(house.ctx, it.cq) >= 0);
		ibv_end_poll(it.cq);
	}
	join();
}

/* A batch that is thrown away, and one that the provider refuses. */
static void not_posted(void)
{
	mwctl_request asked = ask(0);
	struct ibv_send_wr wrs[2];
	mwctl_result granted, kept;
	mwctl_grant_info info;
	mwctl_token token;
	size_t posted = 1;
	int ret, calls = done_calls;

	HOUSE_OK(mwctl_grant_prepare(house.ctx, &asked, 1, wrs, &granted, &token));
	ibv_wr_start(it.qpx);
	mwctl_put_wr(it.qpx, wrs, 1);
	put_send(granted.rkey);
	ibv_wr_abort(it.qpx);
	HOUSE_OK(mwctl_abort(house.ctx, token));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant_info_get(house.ctx, granted.grant, &info, sizeof(info)));

	/* More inline data than the queue pair takes: nothing of the batch is posted, and what lived lives
	 * on. */
	HOUSE_OK(mwctl_grant_start(house.ctx, &asked, 1, 0, on_done, NULL));
	await_done(calls + 1);
	kept = done_result;
	asked = ask(8192);
	HOUSE_OK(mwctl_grant_prepare(house.ctx, &asked, 1, wrs, &granted, &token));
	ibv_wr_start(it.qpx);
	mwctl_put_wr(it.qpx, wrs, 1);
	ibv_wr_send(it.qpx);
	ibv_wr_set_inline_data(it.qpx, it.mail.at, it.mail.length);
	ret = ibv_wr_complete(it.qpx);
	RC_CHECK(ret != 0);
	HOUSE_OK(mwctl_commit_ex(house.ctx, token, ret, &posted));
	RC_CHECK_EQ(0, posted);
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant_info_get(house.ctx, granted.grant, &info, sizeof(info)));
	RC_CHECK_STATUS(IBV_WC_SUCCESS, write_by(kept.rkey, 0, 0x41));
	RC_CHECK(write_by(granted.rkey, 8192, 0x42) != IBV_WC_SUCCESS);
	RC_CHECK_EQ(0, *house_at(&house, 8192));
	rejoin();
	house_ok("a batch that was aborted, and one that was refused: nothing of it is granted");
}

/* SEND_WITH_INV, seen by the extended interface. */
static void given_back(void)
{
	mwctl_request asked = ask(0);
	mwctl_grant_info info;
	struct ibv_sge sge = {.addr = (uintptr_t)it.mail.at, .length = 64, .lkey = it.mail.mr->lkey};
	struct ibv_recv_wr recv = {.wr_id = 9, .sg_list = &sge, .num_sge = 1}, *bad;
	int calls = done_calls;

	HOUSE_OK(mwctl_grant_start(house.ctx, &asked, 1, 0, on_done, NULL));
	await_done(calls + 1);
	RC_CHECK_EQ(0, ibv_post_recv(it.qp, &recv, &bad));
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send_with_inv(&it.client, &house.client[0].local, 8, done_result.rkey));
	await_own(9);
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID,
		     mwctl_grant_info_get(house.ctx, done_result.grant, &info, sizeof(info)));
	RC_CHECK_EQ(1, house_stats(&house).proved_peer_invalidated);
	RC_CHECK(write_by(done_result.rkey, 0, 0x51) != IBV_WC_SUCCESS);
	rejoin();
	house_ok("a right that its client gave back is seen within a batch");
}

/* The program's own requests fill the send queue. When they complete within a batch a tick is asked for,
 * and posts what waited. */
static void room_comes(void)
{
	struct pollfd event = {.fd = mwctl_event_fd(house.ctx), .events = POLLIN};
	struct ibv_send_wr send = {.wr_id = SEND_ID, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_poll_cq_attr attr = {0};
	struct mwctl_sim_misuse misuse;
	double limit = rc_now() + RC_DEADLINE_S;
	mwctl_request asked = ask(0);
	struct ibv_send_wr *bad;
	int calls = done_calls, sent = 0;

	while (!ibv_post_send(it.qp, &send, &bad))
		sent++;
	RC_CHECK(sent >= SEND_QUEUE && sent < 120);
	HOUSE_OK(mwctl_grant_start(house.ctx, &asked, 1, 0, on_done, NULL));
	RC_CHECK_EQ(1, house_stats(&house).post_errors);
	while (poll(&event, 1, 0))
		HOUSE_OK(mwctl_tick(house.ctx));
	while (mwctl_sim_present() && mwctl_sim_misuse_next(&misuse, sizeof(misuse)))
		RC_CHECK_EQ(MWCTL_SIM_RULE_SQ_OVERFLOW, misuse.rule);
	for (int i = 0; i < sent; i++) {
		rc_post_recv(&it.client, &it.into, 6);
		RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(it.client.cq).status);
	}
	while (sent) {
		RC_CHECK(rc_now() < limit);
		if (ibv_start_poll(it.cq, &attr))
			continue;
		RC_CHECK_EQ(0, mwctl_take_ex(house.ctx, it.cq));
		RC_CHECK_EQ(SEND_ID, it.cq->wr_id);
		ibv_end_poll(it.cq);
		sent--;
	}
	RC_CHECK_EQ(1, poll(&event, 1, 0));
	await_done(calls + 1);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &done_result.grant, 1, 0, MWCTL_KILL_ALLOWED, on_done, NULL));
	await_done(calls + 2);
	house_ok("a post that found no room goes out by the tick that completions of a batch ask for");
}

int main(void)
{
	house_open(&house, NULL);
	if (!create()) {
		house_close(&house);
		rc_skip("no extended queues on this device");
	}
	rc_memory_open(&it.mail, house.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	rc_memory_open(&it.into, house.client_pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	join();
	RC_CHECK(mwctl_take_ex(house.ctx, NULL) < 0);
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_commit_ex(house.ctx, (mwctl_token){0}, 0, NULL));
	chained();
	rejoin();
	not_posted();
	given_back();
	room_comes();
	HOUSE_OK(mwctl_peer_detach(house.ctx, it.peer, 0));
	RC_CHECK_EQ(0, ibv_destroy_qp(it.qp));
	RC_CHECK_EQ(0, ibv_destroy_qp(it.client.qp));
	RC_CHECK_EQ(0, ibv_destroy_cq(ibv_cq_ex_to_cq(it.cq)));
	RC_CHECK_EQ(0, ibv_destroy_cq(it.client.cq));
	rc_memory_close(&it.mail);
	rc_memory_close(&it.into);
	house_close(&house);
	return 0;
}
