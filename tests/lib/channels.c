/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Completion channels. A program arms a queue, polls it until it is empty, and sleeps: on the
 * channel alone, or on the channel and the event fd. Nothing that the library does with the queue
 * meanwhile may cost it a wake-up.
 */
#include "house.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define LINES 4
#define ROUNDS 400

static struct house house;

/* A client whose queue pair at the server has queues with channels. */
struct line {
	struct ibv_qp *qp;
	struct rc_end client;
	mwctl_peer peer;
};

struct queue {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	int solicited_only;
};

struct heard {
	atomic_int calls;
	int good;
};

static void on_done(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct heard *heard = user;

	(void)results;
	heard->good += status == MWCTL_STATUS_OK && n > 0;
	atomic_fetch_add(&heard->calls, 1);
}

static void arm(struct queue *queue)
{
	RC_CHECK_EQ(0, ibv_req_notify_cq(queue->cq, queue->solicited_only));
}

static void queue_open(struct queue *queue, int solicited_only)
{
	queue->channel = ibv_create_comp_channel(house.device.context);
	RC_CHECK(queue->channel);
	RC_CHECK_EQ(0, fcntl(queue->channel->fd, F_SETFL, O_NONBLOCK));
	queue->cq = ibv_create_cq(house.device.context, 512, NULL, queue->channel, 0);
	RC_CHECK(queue->cq);
	queue->solicited_only = solicited_only;
	arm(queue);
}

static void queue_close(struct queue *queue)
{
	HOUSE_OK(mwctl_cq_gone(house.ctx, queue->cq));
	RC_CHECK_EQ(0, ibv_destroy_cq(queue->cq));
	RC_CHECK_EQ(0, ibv_destroy_comp_channel(queue->channel));
}

/* Takes the events and arms the queue again. */
static int take_events(struct queue *queue)
{
	struct ibv_cq *cq;
	void *context;
	int n = 0;

	while (!ibv_get_cq_event(queue->channel, &cq, &context)) {
		RC_CHECK(cq == queue->cq);
		ibv_ack_cq_events(cq, 1);
		n++;
	}
	if (n)
		arm(queue);
	return n;
}

static bool readable(int fd, int milliseconds)
{
	struct pollfd poller = {.fd = fd, .events = POLLIN};

	return poll(&poller, 1, milliseconds) > 0;
}

static void line_open(struct line *line, struct ibv_cq *send_cq, struct ibv_cq *recv_cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = send_cq,
		.recv_cq = recv_cq,
		.cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};

	HOUSE_OK(mwctl_size_queues(0, &init.cap, NULL));
	line->qp = ibv_create_qp(house.pd, &init);
	RC_CHECK(line->qp);
	line->client = (struct rc_end){.pd = house.client_pd,
				       .cq = ibv_create_cq(house.device.context, 64, NULL, NULL, 0)};
	RC_CHECK(line->client.cq);
	line->client.qp = rc_qp_create(house.client_pd, line->client.cq, NULL);
	rc_qp_connect(&house.device, line->qp, line->client.qp->qp_num, NULL);
	rc_qp_connect(&house.device, line->client.qp, line->qp->qp_num, NULL);
	HOUSE_OK(mwctl_peer_attach(house.ctx, house.domain, line->qp, NULL, 0, &line->peer));
}

static void line_close(struct line *line)
{
	HOUSE_OK(mwctl_peer_detach(house.ctx, line->peer, 0));
	RC_CHECK_EQ(0, ibv_destroy_qp(line->qp));
	RC_CHECK_EQ(0, ibv_destroy_qp(line->client.qp));
	RC_CHECK_EQ(0, ibv_destroy_cq(line->client.cq));
}

static mwctl_request ask_for(struct line *line, uint64_t offset)
{
	return (mwctl_request){.peer = line->peer,
			       .region = house.region,
			       .addr = house.memory.addr + offset,
			       .length = 64,
			       .access = HOUSE_WRITE};
}

/* A zero-length write of the application's own, signaled. */
static void own_write(struct line *line, uint64_t wr_id)
{
	struct ibv_send_wr wr = {.wr_id = wr_id, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};

	rc_post(line->qp, &wr);
}

static void post_receive(struct line *line, uint64_t wr_id)
{
	struct ibv_recv_wr wr = {.wr_id = wr_id}, *bad;

	RC_CHECK_EQ(0, ibv_post_recv(line->qp, &wr, &bad));
}

/* The client sends an empty message; its own completion is waited for. */
static void client_send(struct line *line, unsigned int flags, uint32_t invalidate)
{
	struct ibv_send_wr wr = {.opcode = invalidate ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED | flags,
				 .invalidate_rkey = invalidate};

	rc_post(line->client.qp, &wr);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(line->client.cq).status);
}

/* ---- asleep on the channel alone, while other threads wait in the library ---- */

struct sleeper {
	struct queue *queue;
	atomic_bool stop;
	atomic_uint_fast64_t seen;
};

static void drain(struct sleeper *sleeper)
{
	struct ibv_wc wc[3];
	int n;

	while ((n = mwctl_poll_cq(house.ctx, sleeper->queue->cq, 3, wc)) > 0)
		for (int i = 0; i < n; i++) {
			RC_CHECK_STATUS(IBV_WC_SUCCESS, wc[i].status);
			RC_CHECK_EQ(sleeper->seen, wc[i].wr_id);
			atomic_fetch_add(&sleeper->seen, 1);
		}
	RC_CHECK_EQ(0, n);
}

static void *sleep_on_channel(void *user)
{
	struct sleeper *sleeper = user;

	while (!atomic_load(&sleeper->stop)) {
		if (!readable(sleeper->queue->channel->fd, RC_DEADLINE_S * 1000))
			RC_FAIL("no event, and %d completions seen", (int)sleeper->seen);
		take_events(sleeper->queue);
		drain(sleeper);
	}
	return NULL;
}

static void await_seen(struct sleeper *sleeper, uint64_t n)
{
	double limit = rc_now() + RC_DEADLINE_S;

	while (atomic_load(&sleeper->seen) < n)
		if (rc_now() > limit)
			RC_FAIL("asleep with %d of %d completions", (int)sleeper->seen, (int)n);
}

/* One completion of the application's: a write, or the receive of a solicited message. */
static void own_completion(struct line *line, int solicited_only, uint64_t wr_id)
{
	if (!solicited_only)
		return own_write(line, wr_id);
	post_receive(line, wr_id);
	client_send(line, IBV_SEND_SOLICITED, 0);
}

/* Waiting calls take the application's completions off the queue and keep them: whoever sleeps
 * must get to know of each. */
static void channel_alone(int solicited_only)
{
	struct sleeper sleeper = {.seen = 0};
	struct queue queue;
	struct line line;
	pthread_t thread;
	uint64_t n = 0, kept = house_stats(&house).completions_kept;

	queue_open(&queue, solicited_only);
	line_open(&line, queue.cq, queue.cq);
	sleeper.queue = &queue;
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, sleep_on_channel, &sleeper));
	for (int round = 0; round < ROUNDS; round++) {
		mwctl_request ask = ask_for(&line, 0);
		mwctl_result grant;

		own_completion(&line, solicited_only, n++);
		HOUSE_OK(mwctl_grant(house.ctx, &ask, 0, &grant));
		own_completion(&line, solicited_only, n++);
		HOUSE_OK(mwctl_revoke(house.ctx, grant.grant, 0, NULL));
		/* Each now and then with nothing behind it that would wake the sleeper. */
		if (round % 4 == 0)
			await_seen(&sleeper, n);
	}
	await_seen(&sleeper, n);
	atomic_store(&sleeper.stop, true);
	own_completion(&line, solicited_only, n++);
	pthread_join(thread, NULL);
	RC_CHECK(house_stats(&house).completions_kept > kept);
	line_close(&line);
	queue_close(&queue);
	house_ok("asleep on the channel alone%s: %d completions, none missed",
		 solicited_only ? ", for solicited ones" : "", 2 * ROUNDS);
}

/* ---- asleep on the channel and the event fd, with asynchronous calls ---- */

/* One round of a loop that sleeps, until the next deadline at most: how many completions of the
 * application's it has seen. */
static uint64_t sleep_once(struct queue *queue)
{
	struct pollfd fds[2] = {{.fd = queue->channel->fd, .events = POLLIN},
				{.fd = mwctl_event_fd(house.ctx), .events = POLLIN}};
	int64_t timeout = mwctl_next_timeout(house.ctx);
	struct ibv_wc wc[8];
	uint64_t seen = 0;
	int n;

	int milliseconds = RC_DEADLINE_S * 1000;

	if (timeout >= 0 && timeout < milliseconds * 1000000ll)
		milliseconds = (int)((timeout + 999999) / 1000000);
	/* A deadline that is further off than a test's patience must not be what wakes us. */
	RC_CHECK(poll(fds, 2, milliseconds) > 0 || milliseconds < RC_DEADLINE_S * 1000);
	take_events(queue);
	HOUSE_OK(mwctl_tick(house.ctx));
	while ((n = mwctl_poll_cq(house.ctx, queue->cq, 8, wc)) > 0)
		for (int i = 0; i < n; i++) {
			RC_CHECK_STATUS(IBV_WC_SUCCESS, wc[i].status);
			RC_CHECK(wc[i].wr_id == 7);
			seen++;
		}
	RC_CHECK_EQ(0, n);
	return seen;
}

static void quiet(struct queue *queue)
{
	/* What the last round left: events without completions. */
	HOUSE_OK(mwctl_tick(house.ctx));
	take_events(queue);
	RC_CHECK(!readable(queue->channel->fd, 0));
	RC_CHECK(!readable(mwctl_event_fd(house.ctx), 0));
}

static void many_on_one_queue(void)
{
	struct queue queue;
	struct line lines[LINES];
	struct heard heard = {0};
	uint64_t seen = 0, wanted = 0;
	int calls = 0;

	queue_open(&queue, 0);
	for (int i = 0; i < LINES; i++)
		line_open(&lines[i], queue.cq, queue.cq);
	for (int round = 0; round < ROUNDS / 8; round++) {
		for (int i = 0; i < LINES; i++) {
			mwctl_request ask = ask_for(&lines[i], i * 64);

			own_write(&lines[i], 7);
			HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 30000000, on_done, &heard));
			own_write(&lines[i], 7);
		}
		wanted += 2 * LINES, calls += LINES;
		while (seen < wanted || heard.calls < calls)
			seen += sleep_once(&queue);
		for (int i = 0; i < LINES; i++) {
			own_write(&lines[i], 7);
			HOUSE_OK(mwctl_revoke_peer_start(house.ctx, lines[i].peer, 30000000,
							 MWCTL_KILL_NEVER, on_done, &heard));
		}
		wanted += LINES, calls += LINES;
		while (seen < wanted || heard.calls < calls)
			seen += sleep_once(&queue);
	}
	RC_CHECK_EQ(calls, heard.good);
	quiet(&queue);
	/* A queue pair that has died, and may not even flush: its right ends all the same. */
	{
		mwctl_request ask = ask_for(&lines[0], 0);
		mwctl_result grant;

		HOUSE_OK(mwctl_grant(house.ctx, &ask, 0, &grant));
		rc_qp_modify(lines[0].qp, IBV_QPS_ERR);
		HOUSE_OK(mwctl_revoke_start(house.ctx, &grant.grant, 1, 100000, MWCTL_KILL_ALLOWED,
					    on_done, &heard));
		while (heard.calls < calls + 1)
			sleep_once(&queue);
		RC_CHECK_EQ(calls + 1, heard.good);
	}
	for (int i = 0; i < LINES; i++)
		line_close(&lines[i]);
	queue_close(&queue);
	house_ok("asleep on a channel for %d queue pairs and the event fd: all calls and completions end",
		 LINES);
}

/* ---- one queue for sends, another for receives ---- */

static struct {
	uint64_t grant;
	int n;
} given_back;

static void on_event(void *user, const mwctl_event *event)
{
	(void)user;
	if (event->kind != MWCTL_EVENT_KIND_PEER_INVALIDATED)
		return;
	given_back.grant = event->grant;
	given_back.n++;
}

static void two_queues(void)
{
	struct queue sends, receives;
	struct heard heard = {0};
	struct line line;
	mwctl_request ask;
	mwctl_result grant;
	struct ibv_wc wc;

	queue_open(&sends, 0);
	queue_open(&receives, 0);
	line_open(&line, sends.cq, receives.cq);
	ask = ask_for(&line, 0);
	post_receive(&line, 7);

	/* Ours complete where sends do. */
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 30000000, on_done, &heard));
	while (!heard.calls)
		RC_CHECK_EQ(0, sleep_once(&sends));
	RC_CHECK(!readable(receives.channel->fd, 0));
	HOUSE_OK(mwctl_revoke_peer(house.ctx, line.peer, 0, MWCTL_KILL_NEVER, NULL));

	/* A SEND_WITH_INV shows where receives do. */
	HOUSE_OK(mwctl_grant(house.ctx, &ask, 0, &grant));
	take_events(&sends);
	RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, sends.cq, 1, &wc));
	client_send(&line, 0, grant.rkey);
	RC_CHECK_EQ(1, sleep_once(&receives));
	RC_CHECK_EQ(1, given_back.n);
	RC_CHECK(given_back.grant == grant.grant);
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_revoke(house.ctx, grant.grant, 0, NULL));

	/* A revocation looks at the receives first and keeps what it finds there. */
	HOUSE_OK(mwctl_grant(house.ctx, &ask, 0, &grant));
	post_receive(&line, 7);
	client_send(&line, 0, 0);
	RC_CHECK(readable(receives.channel->fd, RC_DEADLINE_S * 1000));
	HOUSE_OK(mwctl_revoke(house.ctx, grant.grant, 0, NULL));
	RC_CHECK_EQ(1, sleep_once(&receives));
	line_close(&line);
	queue_close(&sends);
	queue_close(&receives);
	house_ok("a channel for sends and one for receives");
}

/* ---- solicited ones alone ---- */

/* Completions of ours are never solicited: whoever arms for those alone hears of an asynchronous
 * call at its deadline, which mwctl_next_timeout tells. */
static void solicited_only(void)
{
	struct heard heard = {0};
	struct queue queue;
	struct line line;
	mwctl_request ask;
	struct ibv_wc wc;

	queue_open(&queue, 1);
	line_open(&line, queue.cq, queue.cq);
	ask = ask_for(&line, 0);
	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 300000, on_done, &heard));
	while (!heard.calls) {
		RC_CHECK(!readable(queue.channel->fd, 0));
		RC_CHECK_EQ(0, sleep_once(&queue));
	}
	RC_CHECK_EQ(1, heard.good);
	post_receive(&line, 7);
	post_receive(&line, 7);
	client_send(&line, 0, 0);
	RC_CHECK_EQ(0, take_events(&queue));
	client_send(&line, IBV_SEND_SOLICITED, 0);
	RC_CHECK_EQ(2, sleep_once(&queue));
	RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, queue.cq, 1, &wc));
	line_close(&line);
	queue_close(&queue);
	house_ok("armed for solicited completions alone: asynchronous calls end at their deadline");
}

int main(void)
{
	house_open(&house, &(struct house_options){.context = {.on_event = on_event, .timeout_us = 30000000}});
	channel_alone(0);
	channel_alone(1);
	many_on_one_queue();
	two_queues();
	solicited_only();
	house_close(&house);
	return 0;
}
