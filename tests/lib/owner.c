/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A queue pair whose provider's locks are off is posted to, and its queue is polled, by its owner
 * alone, whatever other threads ask for. Every post and poll, the library's own as well, is looked
 * at on its way to the provider. */
#include "trouble.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Client 0's queue pair belongs to the main thread, client 1's to everybody. */
enum { OWNED, FREE };

static struct house house;
static mwctl_result held, other;

/* Stands before the provider's own functions. */
static struct {
	int (*post)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
	int (*poll)(struct ibv_cq *, int, struct ibv_wc *);
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	pthread_t owner;
	atomic_long posts, polls;    /* of the owned ones, by the owner */
	atomic_long strange;         /* … and by other threads */
} seen;

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	if (qp == seen.qp)
		atomic_fetch_add(pthread_equal(seen.owner, pthread_self()) ? &seen.posts : &seen.strange, 1);
	return seen.post(qp, wr, bad);
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	if (cq == seen.cq)
		atomic_fetch_add(pthread_equal(seen.owner, pthread_self()) ? &seen.polls : &seen.strange, 1);
	return seen.poll(cq, n, wc);
}

static void open_house(bool queue, int polling, uint32_t budget)
{
	struct house_options options = {.peer.polling = polling, .peer.budget = budget};
	struct ibv_context_ops *ops;

	house_open(&house, &options);
	house_leave(&house, OWNED);
	house.options.peer.owner_thread = (uint64_t)pthread_self();
	house.options.peer.queue_for_owner = queue;
	house_join(&house, OWNED);
	ops = &house.device.context->ops;
	seen.post = ops->post_send;
	seen.poll = ops->poll_cq;
	seen.qp = house.client[OWNED].pair.server.qp;
	seen.cq = house.client[OWNED].pair.server.cq;
	seen.owner = pthread_self();
	seen.posts = seen.polls = seen.strange = 0;
	ops->post_send = post_send;
	ops->poll_cq = poll_cq;
}

static void close_house(void)
{
	RC_CHECK_EQ(0, seen.strange);
	house.device.context->ops.post_send = seen.post;
	house.device.context->ops.poll_cq = seen.poll;
	house_close(&house);
}

/* Another thread's work, while the owner does nothing. */
static void elsewhere(void *(*run)(void *), void *with)
{
	pthread_t thread;

	RC_CHECK_EQ(0, pthread_create(&thread, NULL, run, with));
	RC_CHECK_EQ(0, pthread_join(thread, NULL));
	RC_CHECK_EQ(0, seen.strange);
}

static atomic_bool done;

/* … while the owner polls and ticks. */
static void beside(void *(*run)(void *), void *with)
{
	double limit = rc_now() + RC_DEADLINE_S;
	pthread_t thread;
	struct ibv_wc wc;

	atomic_store(&done, false);
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, run, with));
	while (!atomic_load(&done)) {
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, seen.cq, 1, &wc));
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(0, pthread_join(thread, NULL));
	RC_CHECK_EQ(0, seen.strange);
}

/* Ticks on the calling thread. */
static void tick_until(struct heard *heard)
{
	double limit = rc_now() + RC_DEADLINE_S;

	while (!atomic_load(&heard->calls)) {
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(1, heard->calls);
}

static void own_write(int client, uint64_t wr_id)
{
	struct ibv_send_wr wr = {.wr_id = wr_id, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};

	rc_post(house.client[client].pair.server.qp, &wr);
}

/* ---- refused ---- */

#define WRONG(call) HOUSE_STATUS(MWCTL_STATUS_WRONG_THREAD, call)

static void *ask_for_grants(void *nothing)
{
	mwctl_request ask[2] = {house_ask(&house, FREE, 65536, 64, HOUSE_WRITE),
				house_ask(&house, OWNED, 65536, 64, HOUSE_WRITE)};
	mwctl_move to = {.grant = other.grant, .to = ask[1]}, from = {.grant = held.grant, .to = ask[0]};
	struct heard moved = {0};
	struct ibv_send_wr wr[2];
	mwctl_result out[4];
	mwctl_token token;

	WRONG(mwctl_grant(house.ctx, &ask[1], 0, out));
	WRONG(mwctl_grant_batch(house.ctx, ask, 2, 0, out));
	WRONG(mwctl_grant_start(house.ctx, ask, 2, 0, heard_done, NULL));
	WRONG(mwctl_regrant(house.ctx, held.grant, &ask[1], 0, out));
	WRONG(mwctl_transfer(house.ctx, &to, 1, 0, MWCTL_KILL_ALLOWED, out));
	WRONG(mwctl_transfer_start(house.ctx, &to, 1, 0, MWCTL_KILL_ALLOWED, heard_done, NULL));
	WRONG(mwctl_transfer(house.ctx, &from, 1, 0, MWCTL_KILL_ALLOWED, out));
	HOUSE_OK(mwctl_transfer_start(house.ctx, &from, 1, 0, MWCTL_KILL_ALLOWED, heard_done, &moved));
	tick_until(&moved);
	RC_CHECK_EQ(MWCTL_STATUS_NOT_POSTED, moved.results[0].status);
	RC_CHECK_EQ(MWCTL_STATUS_WRONG_THREAD, moved.results[1].status);
	WRONG(mwctl_grant_prepare(house.ctx, &ask[1], 1, wr, out, &token));
	WRONG(mwctl_revoke_prepare(house.ctx, &held.grant, 1, 0, 0, NULL, NULL, wr, &token));
	WRONG(mwctl_regrant_prepare(house.ctx, held.grant, &ask[1], 0, NULL, NULL, wr, out, &token));
	return nothing;
}

static void *ask_for_ends(void *nothing)
{
	uint64_t both[2] = {other.grant, held.grant}, at = house.memory.addr;
	mwctl_peer peer = house.client[OWNED].peer;
	struct heard heard = {0}, ranged = {0};
	mwctl_result out[2];
	size_t n;

	WRONG(mwctl_revoke(house.ctx, held.grant, 0, NULL));
	WRONG(mwctl_revoke_batch(house.ctx, both, 2, 0, MWCTL_KILL_ALLOWED, out));
	HOUSE_OK(mwctl_revoke_start(house.ctx, &held.grant, 1, 0, MWCTL_KILL_ALLOWED, heard_done, &heard));
	tick_until(&heard);
	RC_CHECK_EQ(MWCTL_STATUS_WRONG_THREAD, heard.status);
	WRONG(mwctl_revoke_peer(house.ctx, peer, 0, MWCTL_KILL_ALLOWED, &n));
	WRONG(mwctl_revoke_peer_start(house.ctx, peer, 0, MWCTL_KILL_ALLOWED, heard_done, NULL));
	WRONG(mwctl_revoke_range(house.ctx, house.region, at, 64, 0, MWCTL_KILL_ALLOWED, &n));
	HOUSE_OK(mwctl_revoke_range_start(house.ctx, house.region, at, 64, 0, MWCTL_KILL_ALLOWED, heard_done, &ranged));
	tick_until(&ranged);
	RC_CHECK_EQ(MWCTL_STATUS_WRONG_THREAD, ranged.status);
	WRONG(mwctl_peer_detach(house.ctx, peer, 0));
	WRONG(mwctl_peer_detach_start(house.ctx, peer, 0, heard_done, NULL));
	RC_CHECK_EQ(0, house_peer(&house, OWNED).leaving);
	return nothing;
}

/* What touches neither the queue pair nor its queue is anybody's. */
static void *ask_questions(void *nothing)
{
	uint32_t qp = seen.qp->qp_num;
	mwctl_grant_info info;
	uint64_t grant;
	size_t n;

	HOUSE_OK(mwctl_check(house.ctx, house.domain, qp, house.memory.addr, 64, HOUSE_WRITE, &grant));
	RC_CHECK_EQ(held.grant, grant);
	HOUSE_OK(mwctl_find_rkey(house.ctx, held.rkey, &info, sizeof(info)));
	HOUSE_OK(mwctl_grant_info_get(house.ctx, held.grant, &info, sizeof(info)));
	HOUSE_OK(mwctl_peer_grants(house.ctx, house.client[OWNED].peer, &grant, 1, &n));
	HOUSE_OK(mwctl_range_grants(house.ctx, house.region, house.memory.addr, 64, &grant, 1, &n));
	HOUSE_OK(mwctl_domain_grants(house.ctx, house.domain, &grant, 1, &n));
	/* Nobody else can have looked. */
	WRONG(mwctl_cq_empty(house.ctx, seen.cq));
	HOUSE_STATUS(MWCTL_STATUS_BUSY, mwctl_cq_gone(house.ctx, seen.cq));
	HOUSE_OK(mwctl_tick(house.ctx));
	return nothing;
}

static void refused(void)
{
	uint64_t posts;

	open_house(false, MWCTL_POLLING_OURS, 0);
	held = house_grant(&house, OWNED, 0, 4096, HOUSE_WRITE);
	other = house_grant(&house, FREE, 8192, 4096, HOUSE_WRITE);
	posts = house_stats(&house).posts;
	elsewhere(ask_for_grants, NULL);
	elsewhere(ask_for_ends, NULL);
	elsewhere(ask_questions, NULL);
	RC_CHECK_EQ(posts, house_stats(&house).posts);
	RC_CHECK_EQ(1, house_peer(&house, OWNED).grants);
	RC_CHECK_EQ(1, house_peer(&house, FREE).grants);
	RC_CHECK_EQ(0, house_peer(&house, OWNED).used);
	HOUSE_WRITE_LANDS(&house, OWNED, 0, held.rkey, 0x11);
	HOUSE_WRITE_LANDS(&house, FREE, 8192, other.rkey, 0x12);
	/* The owner may. */
	HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 0, NULL));
	HOUSE_WRITE_FAILS(&house, OWNED, 0, held.rkey, 0x13);
	HOUSE_WRITE_LANDS(&house, FREE, 8192, other.rkey, 0x14);
	close_house();
	house_ok("every call of another thread that would post is refused");
}

static void *poll_elsewhere(void *nothing)
{
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc = {.wr_id = 5};

	RC_CHECK(mwctl_poll_cq(house.ctx, seen.cq, 1, &wc) < 0);
	RC_CHECK_EQ(5, wc.wr_id);
	own_write(FREE, 901);
	while (!mwctl_poll_cq(house.ctx, house.client[FREE].pair.server.cq, 1, &wc))
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(901, wc.wr_id);
	return nothing;
}

static void check_wr(uint64_t wr_id)
{
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;
	int n;

	while (!(n = mwctl_poll_cq(house.ctx, seen.cq, 1, &wc)))
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(1, n);
	RC_CHECK_EQ(wr_id, wc.wr_id);
}

/* Neither what is on the queue nor what is kept for the application. */
static void polled(bool queue)
{
	open_house(queue, MWCTL_POLLING_OURS, 0);
	own_write(OWNED, 900);
	elsewhere(poll_elsewhere, NULL);
	check_wr(900);
	own_write(OWNED, 902);
	held = house_grant(&house, OWNED, 0, 64, HOUSE_WRITE);
	RC_CHECK_EQ(1, house_stats(&house).completions_kept);
	elsewhere(poll_elsewhere, NULL);
	check_wr(902);
	/* Once no client uses it, it is the application's alone. */
	HOUSE_OK(mwctl_peer_detach(house.ctx, house.client[OWNED].peer, 0));
	own_write(OWNED, 903);
	check_wr(903);
	rc_pair_close(&house.client[OWNED].pair);
	house.client[OWNED].peer.id = 0;
	close_house();
	house_ok("another thread's mwctl_poll_cq is refused%s", queue ? ", also where other calls wait for the owner" : "");
}

/* ---- what is due, on whichever thread ---- */

static void *tick_for(void *heard)
{
	for (int i = 0; i < 100; i++)
		HOUSE_OK(mwctl_tick(house.ctx));
	if (heard)
		tick_until(heard);
	return NULL;
}

/* A line behind the budget goes on with the owner; deadlines hold without. */
static void in_line(void)
{
	struct heard heard[3] = {{0}}, late = {0};
	mwctl_request ask[3];
	uint64_t ids[3];
	size_t n;

	open_house(false, MWCTL_POLLING_OURS, 1);
	for (int i = 0; i < 3; i++) {
		ask[i] = house_ask(&house, OWNED, (uint64_t)i * 4096, 64, HOUSE_WRITE);
		HOUSE_OK(mwctl_grant_start(house.ctx, &ask[i], 1, 0, heard_done, &heard[i]));
	}
	RC_CHECK_EQ(1, seen.posts);
	elsewhere(tick_for, NULL);
	RC_CHECK_EQ(1, seen.posts);
	for (int i = 0; i < 3; i++) {
		heard_await(&house, &heard[i]);
		RC_CHECK_EQ(MWCTL_STATUS_OK, heard[i].status);
	}
	RC_CHECK_EQ(3, seen.posts);
	HOUSE_OK(mwctl_peer_grants(house.ctx, house.client[OWNED].peer, ids, 3, &n));
	RC_CHECK_EQ(3, n);
	/* One LOCAL_INV out, whose completion nobody polls; two that wait. */
	HOUSE_OK(mwctl_revoke_start(house.ctx, ids, 3, 10000, MWCTL_KILL_ALLOWED, heard_done, &late));
	RC_CHECK_EQ(4, seen.posts);
	elsewhere(tick_for, &late);
	RC_CHECK_EQ(4, seen.posts);
	RC_CHECK_EQ(MWCTL_STATUS_OPEN, late.status);
	RC_CHECK_STATE(IBV_QPS_RTS, seen.qp);
	RC_CHECK_EQ(1, house_peer(&house, OWNED).grants);
	trouble_await_end(&house, late.results[0].grant);
	close_house();
	house_ok("another thread's tick keeps the deadlines, and neither posts nor polls");
}

static void service(void)
{
	mwctl_request ask;
	mwctl_move step;

	open_house(false, MWCTL_POLLING_OURS, 4);
	HOUSE_OK(mwctl_service_start(house.ctx));
	for (int i = 0; i < 200; i++) {
		struct heard moved = {0}, granted = {0};

		/* The owner hands its own client what another holds: whoever sees the proof. */
		other = house_grant(&house, FREE, 8192, 64, HOUSE_WRITE);
		step = (mwctl_move){other.grant, house_ask(&house, OWNED, 8192, 64, HOUSE_WRITE)};
		ask = house_ask(&house, OWNED, 65536, 64, HOUSE_WRITE);
		HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, heard_done, &granted));
		HOUSE_OK(mwctl_transfer_start(house.ctx, &step, 1, 0, MWCTL_KILL_ALLOWED, heard_done, &moved));
		heard_await(&house, &granted);
		heard_await(&house, &moved);
		RC_CHECK_EQ(MWCTL_STATUS_OK, granted.status);
		RC_CHECK_EQ(MWCTL_STATUS_OK, moved.status);
		HOUSE_WRITE_LANDS(&house, OWNED, 8192, moved.results[0].rkey, (uint8_t)(i | 1));
		HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[OWNED].peer, 0, MWCTL_KILL_ALLOWED, NULL));
	}
	HOUSE_OK(mwctl_service_stop(house.ctx));
	close_house();
	house_ok("beside a service thread the owner's calls end well, and that thread neither posts nor polls");
}

static void *poll_free(void *grant)
{
	double limit = rc_now() + RC_DEADLINE_S;
	mwctl_grant_info info;
	struct ibv_wc wc;

	while (mwctl_grant_info_get(house.ctx, *(uint64_t *)grant, &info, sizeof(info)) == MWCTL_STATUS_OK) {
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, house.client[FREE].pair.server.cq, 1, &wc));
		RC_CHECK(rc_now() < limit);
	}
	return NULL;
}

/* The owner moves a right to its client, and another thread takes in the proof that the old one is
 * gone: the new one's turn comes there, its post with the owner. */
static void proved_elsewhere(void)
{
	struct heard moved = {0};
	mwctl_move step;

	open_house(false, MWCTL_POLLING_OURS, 0);
	other = house_grant(&house, FREE, 8192, 64, HOUSE_WRITE);
	step = (mwctl_move){other.grant, house_ask(&house, OWNED, 8192, 64, HOUSE_WRITE)};
	HOUSE_OK(mwctl_transfer_start(house.ctx, &step, 1, 0, MWCTL_KILL_ALLOWED, heard_done, &moved));
	elsewhere(poll_free, &other.grant);
	RC_CHECK_EQ(0, seen.posts);
	RC_CHECK_EQ(0, moved.calls);
	heard_await(&house, &moved);
	RC_CHECK_EQ(MWCTL_STATUS_OK, moved.status);
	RC_CHECK_EQ(1, seen.posts);
	HOUSE_WRITE_LANDS(&house, OWNED, 8192, moved.results[0].rkey, 0x22);
	HOUSE_WRITE_FAILS(&house, FREE, 8192, other.rkey, 0x23);
	close_house();
	house_ok("a transfer whose proof another thread sees goes on with the owner");
}

/* Another thread waits for its own client while the owner's deadline passes. */
static void *wait_elsewhere(void *heard)
{
	double limit = rc_now() + RC_DEADLINE_S;

	while (!atomic_load(&((struct heard *)heard)->calls)) {
		mwctl_result next = house_grant(&house, FREE, 65536, 64, HOUSE_WRITE);

		HOUSE_OK(mwctl_revoke(house.ctx, next.grant, 0, NULL));
		RC_CHECK(rc_now() < limit);
	}
	return NULL;
}

static void deadline_elsewhere(void)
{
	struct heard heard = {0};

	open_house(false, MWCTL_POLLING_OURS, 0);
	held = house_grant(&house, OWNED, 0, 4096, HOUSE_WRITE);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &held.grant, 1, 10000, MWCTL_KILL_ALLOWED, heard_done, &heard));
	elsewhere(wait_elsewhere, &heard);
	RC_CHECK_EQ(MWCTL_STATUS_OPEN, heard.status);
	RC_CHECK_STATE(IBV_QPS_RTS, seen.qp);
	trouble_await_end(&house, held.grant);
	HOUSE_WRITE_FAILS(&house, OWNED, 0, held.rkey, 0x21);
	close_house();
	house_ok("a waiting call for another client leaves the owner's queue alone");
}

struct offered {
	struct ibv_wc wc;
	struct heard *heard;
};

static void *offer_elsewhere(void *user)
{
	struct offered *offered = user;

	RC_CHECK_EQ(1, mwctl_take_wc(house.ctx, seen.cq, &offered->wc));
	RC_CHECK_EQ(1, offered->heard->calls);
	return NULL;
}

/* The owner polls and hands the completion on; the line behind it waits for the owner. */
static void offered(void)
{
	struct heard heard[2] = {{0}};
	struct offered offered = {.heard = &heard[0]};
	double limit = rc_now() + RC_DEADLINE_S;
	mwctl_request ask;

	open_house(false, MWCTL_POLLING_YOURS, 1);
	for (int i = 0; i < 2; i++) {
		ask = house_ask(&house, OWNED, (uint64_t)i * 4096, 64, HOUSE_WRITE);
		HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, heard_done, &heard[i]));
	}
	offered.wc = rc_wait(seen.cq);
	elsewhere(offer_elsewhere, &offered);
	RC_CHECK_EQ(1, seen.posts);
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(2, seen.posts);
	offered.wc = rc_wait(seen.cq);
	RC_CHECK_EQ(1, mwctl_take_wc(house.ctx, seen.cq, &offered.wc));
	RC_CHECK_EQ(1, heard[1].calls);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard[1].status);
	heard[0].calls = 0;
	HOUSE_OK(mwctl_peer_detach_start(house.ctx, house.client[OWNED].peer, 0, heard_done, &heard[0]));
	while (!heard[0].calls) {
		if (ibv_poll_cq(seen.cq, 1, &offered.wc))
			RC_CHECK_EQ(1, mwctl_take_wc(house.ctx, seen.cq, &offered.wc));
		HOUSE_OK(mwctl_tick(house.ctx));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard[0].status);
	rc_pair_close(&house.client[OWNED].pair);
	house.client[OWNED].peer.id = 0;
	close_house();
	house_ok("a completion offered on another thread counts; what follows it is posted by the owner");
}

static void *abort_elsewhere(void *token)
{
	HOUSE_OK(mwctl_abort(house.ctx, *(mwctl_token *)token));
	return NULL;
}

static void *commit_elsewhere(void *token)
{
	HOUSE_OK(mwctl_commit(house.ctx, *(mwctl_token *)token, 0, NULL, NULL));
	return NULL;
}

static void *gone_elsewhere(void *nothing)
{
	HOUSE_OK(mwctl_peer_gone(house.ctx, house.client[OWNED].peer, 0));
	return nothing;
}

/* What is said of a chain or of a queue pair's end touches nothing. */
static void told(void)
{
	mwctl_request ask;
	struct ibv_send_wr wr;
	mwctl_token token;
	mwctl_result out;
	long before;

	open_house(false, MWCTL_POLLING_OURS, 0);
	ask = house_ask(&house, OWNED, 65536, 64, HOUSE_WRITE);
	held = house_grant(&house, OWNED, 0, 4096, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &wr, &out, &token));
	elsewhere(abort_elsewhere, &token);
	RC_CHECK_EQ(1, house_peer(&house, OWNED).grants);
	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &wr, &out, &token));
	rc_post(seen.qp, &wr);
	elsewhere(commit_elsewhere, &token);
	HOUSE_WRITE_LANDS(&house, OWNED, 65536, out.rkey, 0x25);
	RC_CHECK_EQ(2, house_peer(&house, OWNED).grants);
	before = seen.posts + seen.polls;
	rc_qp_modify(seen.qp, IBV_QPS_RESET);
	elsewhere(gone_elsewhere, NULL);
	RC_CHECK_EQ(before, seen.posts + seen.polls);
	rc_pair_close(&house.client[OWNED].pair);
	house.client[OWNED].peer.id = 0;
	close_house();
	house_ok("a commit or abort, and that a queue pair is gone, may be said by any thread");
}

/* ---- queued for the owner ---- */

static void *ask_and_wait(void *nothing)
{
	mwctl_request ask[3];
	mwctl_result out[3], next[2], moved[2];
	struct heard heard[3] = {{0}};
	uint64_t ids[3];
	mwctl_move step;
	size_t n;

	for (int i = 0; i < 3; i++)
		ask[i] = house_ask(&house, OWNED, (uint64_t)i * 4096, 64, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant(house.ctx, &ask[0], 0, out));
	HOUSE_WRITE_LANDS(&house, OWNED, 0, out[0].rkey, 0x31);
	HOUSE_OK(mwctl_regrant(house.ctx, out[0].grant, &ask[1], 0, next));
	HOUSE_WRITE_LANDS(&house, OWNED, 4096, next[1].rkey, 0x32);
	HOUSE_OK(mwctl_revoke(house.ctx, next[1].grant, 0, NULL));
	HOUSE_OK(mwctl_grant_batch(house.ctx, ask, 3, 0, out));
	for (int i = 0; i < 3; i++)
		ids[i] = out[i].grant;
	HOUSE_OK(mwctl_revoke_batch(house.ctx, ids, 3, 0, MWCTL_KILL_ALLOWED, out));
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out[2].proof);

	step = (mwctl_move){other.grant, ask[0]};
	HOUSE_OK(mwctl_transfer(house.ctx, &step, 1, 0, MWCTL_KILL_ALLOWED, moved));
	step = (mwctl_move){moved[0].grant, house_ask(&house, FREE, 0, 64, HOUSE_WRITE)};
	HOUSE_OK(mwctl_transfer(house.ctx, &step, 1, 0, MWCTL_KILL_ALLOWED, moved));
	HOUSE_WRITE_LANDS(&house, FREE, 0, moved[0].rkey, 0x33);
	HOUSE_OK(mwctl_revoke(house.ctx, moved[0].grant, 0, NULL));

	HOUSE_OK(mwctl_grant_start(house.ctx, ask, 3, 0, heard_done, &heard[0]));
	tick_until(&heard[0]);
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard[0].status);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &heard[0].results[0].grant, 1, 0, MWCTL_KILL_ALLOWED, heard_done, &heard[1]));
	tick_until(&heard[1]);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, heard[1].results[0].proof);
	HOUSE_OK(mwctl_revoke_range(house.ctx, house.region, ask[1].addr, 1, 0, MWCTL_KILL_ALLOWED, &n));
	RC_CHECK_EQ(1, n);
	HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[OWNED].peer, 0, MWCTL_KILL_ALLOWED, &n));
	RC_CHECK_EQ(1, n);
	held = house_grant(&house, OWNED, 0, 4096, HOUSE_WRITE);
	atomic_store(&done, true);
	return nothing;
}

static void *leave_elsewhere(void *nothing)
{
	HOUSE_OK(mwctl_peer_detach(house.ctx, house.client[OWNED].peer, 0));
	atomic_store(&done, true);
	return nothing;
}

static void queued(void)
{
	open_house(true, MWCTL_POLLING_OURS, 2);
	other = house_grant(&house, FREE, 0, 64, HOUSE_WRITE);
	beside(ask_and_wait, NULL);
	HOUSE_WRITE_LANDS(&house, OWNED, 0, held.rkey, 0x34);
	HOUSE_WRITE_FAILS(&house, OWNED, 0, held.rkey ^ 1, 0x35);
	beside(leave_elsewhere, NULL);
	rc_pair_close(&house.client[OWNED].pair);
	house.client[OWNED].peer.id = 0;
	close_house();
	house_ok("what another thread asks for waits for the owner: every call ends well");
}

static void *ask_with_deadline(void *heard)
{
	mwctl_request ask = house_ask(&house, OWNED, 0, 64, HOUSE_WRITE);
	mwctl_result out;

	HOUSE_STATUS(MWCTL_STATUS_TIMED_OUT, mwctl_grant(house.ctx, &ask, 20000, &out));
	RC_CHECK_EQ(0, out.grant);
	HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 20000, &out));
	RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, out.proof);
	return heard;
}

/* The owner is away: deadlines hold. */
static void owner_away(void)
{
	long posts;

	open_house(true, MWCTL_POLLING_OURS, 0);
	held = house_grant(&house, OWNED, 0, 4096, HOUSE_WRITE);
	other = house_grant(&house, OWNED, 8192, 4096, HOUSE_WRITE);
	posts = seen.posts;
	elsewhere(ask_with_deadline, NULL);
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(posts, seen.posts);
	RC_CHECK_STATE(IBV_QPS_RTS, seen.qp);
	HOUSE_WRITE_LANDS(&house, OWNED, 8192, other.rkey, 0x41);
	HOUSE_WRITE_FAILS(&house, OWNED, 0, held.rkey, 0x42);
	close_house();
	house_ok("what the owner does not get to by the deadline ends without a post");
}

/* One queue, one owner. */
static void attached(void)
{
	struct rc_options rc = {0};
	mwctl_peer_options options;
	struct ibv_qp *qp;
	mwctl_peer peer;

	open_house(false, MWCTL_POLLING_OURS, 0);
	qp = rc_qp_create(house.pd, seen.cq, &rc);
	rc_qp_connect(&house.device, qp, qp->qp_num, &rc);
	WRONG(mwctl_peer_attach(house.ctx, house.domain, qp, NULL, 0, &peer));
	options = house.options.peer;
	HOUSE_OK(mwctl_peer_attach(house.ctx, house.domain, qp, &options, sizeof(options), &peer));
	HOUSE_OK(mwctl_peer_detach(house.ctx, peer, 0));
	RC_CHECK_EQ(0, ibv_destroy_qp(qp));
	close_house();
	house_ok("clients on one completion queue have one owner");
}

/* ---- a queue pair and a completion queue that really have no locks ---- */

struct unlocked {
	mwctl_request ask;
	struct ibv_cq *cq;
	atomic_bool stop;
	atomic_long tries;
};

static void *meddle(void *user)
{
	struct unlocked *unlocked = user;
	mwctl_result out;
	struct ibv_wc wc;
	size_t n;

	while (!atomic_load(&unlocked->stop)) {
		WRONG(mwctl_grant(house.ctx, &unlocked->ask, 0, &out));
		WRONG(mwctl_revoke_peer(house.ctx, unlocked->ask.peer, 0, MWCTL_KILL_ALLOWED, &n));
		RC_CHECK(mwctl_poll_cq(house.ctx, unlocked->cq, 1, &wc) < 0);
		HOUSE_OK(mwctl_tick(house.ctx));
		atomic_fetch_add(&unlocked->tries, 1);
	}
	return NULL;
}

/* The device tells when two threads are at one of them at once. */
static void in_a_thread_domain(void)
{
	struct ibv_td_init_attr td_attr = {0};
	struct ibv_cq_init_attr_ex cq_attr = {.cqe = 256, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
					      .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED};
	struct ibv_parent_domain_init_attr attr = {0};
	mwctl_domain_options domain_options = {.n_aliases = 1};
	mwctl_peer_options options = {.owner_thread = (uint64_t)pthread_self()};
	struct unlocked unlocked = {0};
	struct rc_options rc = {0};
	struct ibv_pd *pd, *parent;
	mwctl_region_info memory;
	struct ibv_cq_ex *cq_ex;
	mwctl_domain domain;
	struct rc_pair pair;
	struct ibv_td *td;
	pthread_t thread;
	mwctl_result out;

	house_open(&house, &(struct house_options){.clients = 1});
	td = ibv_alloc_td(house.device.context, &td_attr);
	cq_ex = td ? ibv_create_cq_ex(house.device.context, &cq_attr) : NULL;
	if (!cq_ex) {
		printf("skipped on %s: it offers no queues without locks\n", house.device.label);
		if (td)
			RC_CHECK_EQ(0, ibv_dealloc_td(td));
		house_close(&house);
		return;
	}
	pd = ibv_alloc_pd(house.device.context);
	attr = (struct ibv_parent_domain_init_attr){.pd = pd, .td = td};
	parent = ibv_alloc_parent_domain(house.device.context, &attr);
	RC_CHECK(pd && parent);
	rc = (struct rc_options){.server_pd = parent, .client_pd = house.client_pd,
				 .send_cq = ibv_cq_ex_to_cq(cq_ex)};
	rc_pair_open(&pair, &house.device, &rc);
	domain_options.aliases = &parent;
	HOUSE_OK(mwctl_domain_open(house.ctx, pd, &domain_options, sizeof(domain_options), &domain));
	HOUSE_OK(mwctl_region_register(house.ctx, domain, 1 << 20, NULL, 0, &unlocked.ask.region));
	HOUSE_OK(mwctl_region_info_get(house.ctx, unlocked.ask.region, &memory, sizeof(memory)));
	HOUSE_OK(mwctl_peer_attach(house.ctx, domain, pair.server.qp, &options, sizeof(options),
				   &unlocked.ask.peer));
	unlocked.ask.addr = memory.addr;
	unlocked.ask.length = 4096;
	unlocked.ask.access = HOUSE_WRITE;
	unlocked.cq = rc.send_cq;
	HOUSE_OK(mwctl_service_start(house.ctx));
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, meddle, &unlocked));
	for (int i = 0; i < 2000 || atomic_load(&unlocked.tries) < 100; i++) {
		HOUSE_OK(mwctl_grant(house.ctx, &unlocked.ask, 0, &out));
		if (i % 100 == 0)
			RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_write(&pair.client, &house.client[0].local, 64,
								 (void *)(uintptr_t)memory.addr, out.rkey));
		HOUSE_OK(mwctl_revoke(house.ctx, out.grant, 0, &out));
		RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out.proof);
	}
	atomic_store(&unlocked.stop, true);
	RC_CHECK_EQ(0, pthread_join(thread, NULL));
	HOUSE_OK(mwctl_service_stop(house.ctx));
	HOUSE_OK(mwctl_peer_detach(house.ctx, unlocked.ask.peer, 0));
	HOUSE_OK(mwctl_region_detach(house.ctx, unlocked.ask.region));
	HOUSE_OK(mwctl_domain_close(house.ctx, domain));
	rc_pair_close(&pair);
	RC_CHECK_EQ(0, ibv_destroy_cq(rc.send_cq));
	RC_CHECK_EQ(0, ibv_dealloc_pd(parent));
	RC_CHECK_EQ(0, ibv_dealloc_td(td));
	RC_CHECK_EQ(0, ibv_dealloc_pd(pd));
	house_close(&house);
	house_ok("a queue pair in a thread domain and a single-threaded queue, beside threads that meddle");
}

int main(void)
{
	refused();
	polled(false);
	polled(true);
	in_line();
	service();
	proved_elsewhere();
	deadline_elsewhere();
	offered();
	told();
	queued();
	owner_away();
	attached();
	in_a_thread_domain();
	return 0;
}
