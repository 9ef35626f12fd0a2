/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A server that polls by itself (MWCTL_POLLING_YOURS): one thread that sleeps in epoll on its
 * completion channel and on libmwctl's event fd. It calls ibv_poll_cq, offers each completion to
 * mwctl_take_wc, says mwctl_cq_empty when it found the queue empty, and ticks. Nothing that waits.
 *
 * A client's key travels in one chain with its bind: bind and SEND are one ibv_post_send. The
 * clients count in a block each by RDMA WRITE. One stops receiving and goes on writing, so that
 * the send queue to it is stuck; its right is taken back with a deadline of 50 ms, and its block goes
 * to a new client. The others write on, and their counters must show it.
 *
 * The clients are threads of this process.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/counter.h"
#include "common/rc.h"
#include "common/report.h"
#include "mwctl.h"

#define GOOD 2
enum { DEAF = GOOD, LATE, CLIENTS };

#define BLOCK 4096ull
#define BLOCKS (GOOD + 1) /* the late client gets the deaf one's, or none */
#define BUDGET 4
#define WRITES 100        /* of each client, before something happens and after */
#define DEADLINE_US 50000
#define TURNS 16          /* polls before a busy queue lets the loop go round */
#define LOOK_MS 5         /* how often the server looks at the counters */

static struct rc_device device;
static struct counter clients[CLIENTS];

struct seat {
	enum { ABSENT, OPEN, LEAVING, GONE } state;
	struct ibv_qp *qp;
	struct mwctl_peer peer;
	uint64_t addr;
	volatile uint64_t *count; /* what its client writes */
	uint64_t before;          /* when the revocation began, or the client was let in */
	struct counter_message sent[2];
	struct counter_message received;
};

static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *messages; /* over the seats */
static mwctl_context *ctx;
static mwctl_domain domain;
static mwctl_region region;
static struct seat seats[CLIENTS];
static enum { COUNTING, REVOKING, REVOKED, REPLACED, STOPPING } phase;
static mwctl_proof proof;
static unsigned int revocations;
static uint64_t meanwhile; /* the good clients' writes from the decision to the proof */

/* ---- letting in, taking back, letting go ---- */

static struct ibv_send_wr message(struct seat *seat, const struct counter_message *text, struct ibv_sge *sge)
{
	struct counter_message *place = &seat->sent[text->kind == COUNTER_STOP];

	*place = *text;
	*sge = (struct ibv_sge){ (uintptr_t)place, sizeof(*place), messages->lkey };
	return (struct ibv_send_wr){
		.wr_id = (uintptr_t)seat,
		.sg_list = sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};
}

static void admit(struct seat *seat)
{
	const struct mwctl_peer_options options = {
		.budget = BUDGET,
		.polling = MWCTL_POLLING_YOURS,
		.polling_thread = (uint64_t)pthread_self(), /* a call that waits is refused here */
	};
	struct ibv_qp_cap cap = { .max_send_wr = 2, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 };
	struct counter *client = &clients[seat - seats];
	struct ibv_sge in = { (uintptr_t)&seat->received, sizeof(seat->received), messages->lkey }, out;
	struct ibv_recv_wr receive = { .wr_id = (uintptr_t)seat, .sg_list = &in, .num_sge = 1 }, *bad_receive;
	struct mwctl_request ask = { .region = region, .length = BLOCK, .access = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_send_wr bind, send, *bad = NULL;
	mwctl_result granted;
	mwctl_token token;
	int error;

	must(mwctl_size_queues(BUDGET, &cap, NULL), "mwctl_size_queues");
	seat->qp = rc_qp(&device, pd, cq, &cap, IBV_ACCESS_REMOTE_WRITE);
	rc_connect(&device, seat->qp, client->qp);
	if (ibv_post_recv(seat->qp, &receive, &bad_receive))
		die("the server can't post a receive");
	must(mwctl_peer_attach(ctx, domain, seat->qp, &options, sizeof(options), &seat->peer),
	     "mwctl_peer_attach");
	must(mwctl_block_take(ctx, region, 1, &ask.addr), "mwctl_block_take");
	seat->addr = ask.addr;
	seat->count = (uint64_t *)(uintptr_t)ask.addr;
	*seat->count = seat->before = 0;

	/* The key is known before the bind is posted; behind it in the chain it may already travel. */
	ask.peer = seat->peer;
	must(mwctl_grant_prepare(ctx, &ask, 1, &bind, &granted, &token), "mwctl_grant_prepare");
	send = message(seat,
		       &(struct counter_message){ .kind = COUNTER_GO, .rkey = granted.rkey, .addr = ask.addr },
		       &out);
	bind.next = &send;
	error = ibv_post_send(seat->qp, &bind, &bad);
	must(mwctl_commit(ctx, token, error, bad, NULL), "mwctl_commit");
	if (error)
		die("bind and key can't be posted: %s", strerror(error));
	seat->state = OPEN;
	atomic_store(&client->connected, true);
}

static void stop(struct seat *seat)
{
	struct ibv_sge sge;
	struct ibv_send_wr send = message(seat, &(struct counter_message){ .kind = COUNTER_STOP }, &sge), *bad;

	demand(!ibv_post_send(seat->qp, &send, &bad), "a message can't be sent");
}

static void on_detached(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct seat *seat = user;

	(void)results;
	(void)n;
	must(status, "mwctl_peer_detach_start");
	if (ibv_destroy_qp(seat->qp))
		die("ibv_destroy_qp: %s", strerror(errno));
	seat->state = GONE;
	if (seat != &seats[DEAF])
		must(mwctl_block_give(ctx, region, seat->addr, 1), "mwctl_block_give");
}

static void leave(struct seat *seat)
{
	if (seat->state != OPEN)
		return;
	seat->state = LEAVING;
	must(mwctl_peer_detach_start(ctx, seat->peer, 0, on_detached, seat), "mwctl_peer_detach_start");
}

static void take_back(struct seat *seat);

static void on_revoked(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct seat *seat = user;
	size_t i;

	if (status == MWCTL_STATUS_OPEN) {
		/* This thread got no processor in the second half of the time: once more. */
		take_back(seat);
		return;
	}
	must(status, "mwctl_revoke_peer_start");
	proof = n ? results[0].proof : MWCTL_PROOF_NONE;
	for (i = 0; i < GOOD; i++)
		meanwhile += *seats[i].count - seats[i].before;
	/* Proved: from here on the block may be anybody's. */
	must(mwctl_block_give(ctx, region, seat->addr, 1), "mwctl_block_give");
	leave(seat);
	phase = REVOKED;
}

static void take_back(struct seat *seat)
{
	revocations++;
	must(mwctl_revoke_peer_start(ctx, seat->peer, DEADLINE_US, MWCTL_KILL_ALLOWED, on_revoked, seat),
	     "mwctl_revoke_peer_start");
}

/* ---- the loop ---- */

static bool have_written(const struct seat *seat)
{
	return *seat->count >= seat->before + WRITES;
}

/* Looks at the counters, and decides. */
static void look(void)
{
	bool all = true;
	uint64_t addr;
	size_t i;

	for (i = 0; i < GOOD; i++)
		all &= have_written(&seats[i]);
	if (phase == COUNTING && all && have_written(&seats[DEAF])) {
		for (i = 0; i < GOOD; i++)
			seats[i].before = *seats[i].count;
		demand(mwctl_block_take(ctx, region, 1, &addr) == MWCTL_STATUS_NO_BLOCKS,
		       "a block is free while its client writes");
		stop(&seats[DEAF]); /* which it never receives */
		take_back(&seats[DEAF]);
		phase = REVOKING;
	} else if (phase == REVOKED) {
		admit(&seats[LATE]);
		demand(seats[LATE].addr == seats[DEAF].addr, "the late client has got another block");
		phase = REPLACED;
	} else if (phase == REPLACED && all && have_written(&seats[LATE])) {
		for (i = 0; i < CLIENTS; i++)
			if (i != DEAF)
				stop(&seats[i]);
		phase = STOPPING;
	}
}

static void handle(const struct ibv_wc *wc)
{
	struct seat *seat = (struct seat *)(uintptr_t)wc->wr_id;

	if (seat == &seats[DEAF]) /* flushed with its queue pair */
		return;
	if (!demand(wc->status == IBV_WC_SUCCESS, "a good client's connection broke: %s",
		    ibv_wc_status_str(wc->status)) ||
	    seat->received.kind == COUNTER_BYE)
		leave(seat);
}

/* Whether there may be more. */
static bool poll_queue(void)
{
	struct ibv_wc wc[8];
	int i, n = 0, turns;

	for (turns = 0; turns < TURNS && (n = ibv_poll_cq(cq, 8, wc)) > 0; turns++)
		for (i = 0; i < n; i++)
			if (mwctl_take_wc(ctx, cq, &wc[i]) <= 0) /* 0, or negative on an error */
				handle(&wc[i]);
	if (n < 0)
		die("ibv_poll_cq failed");
	/* By this the deadline tells a stuck queue from one that nobody looked at. UNKNOWN_QUEUE
	 * once the last client has left. */
	if (n == 0)
		mwctl_cq_empty(ctx, cq);
	return n > 0;
}

/* Armed first, then polled until it is empty: what comes afterwards is an event. */
static void take_channel(void)
{
	struct ibv_cq *from;
	void *context;

	while (!ibv_get_cq_event(channel, &from, &context)) {
		ibv_ack_cq_events(from, 1);
		if (ibv_req_notify_cq(from, 0))
			die("ibv_req_notify_cq failed");
	}
}

/* In milliseconds, as epoll wants it: until a tick is due, or the next look. */
static int timeout_ms(void)
{
	int64_t ns = mwctl_next_timeout(ctx);

	return ns < 0 || ns > LOOK_MS * (int64_t)NS_PER_MS ? LOOK_MS :
							     (int)((ns + NS_PER_MS - 1) / NS_PER_MS);
}

static void serve(int epoll)
{
	struct epoll_event event;
	bool more = false;
	size_t i, gone = 0;

	for (i = 0; i <= DEAF; i++)
		admit(&seats[i]);
	while (gone < CLIENTS) {
		/* Both descriptors lead to the same: the channel's events are taken, and all else
		 * is polled and ticked in every round. */
		if (epoll_wait(epoll, &event, 1, more ? 0 : timeout_ms()) < 0 && errno != EINTR)
			die("epoll_wait: %s", strerror(errno));
		take_channel();
		more = poll_queue();
		must(mwctl_tick(ctx), "mwctl_tick");
		look();
		for (gone = i = 0; i < CLIENTS; i++)
			gone += seats[i].state == GONE;
	}
}

/* ---- the beginning and the end ---- */

static int open_all(void)
{
	const struct mwctl_register_options blocks = { .block_size = BLOCK };
	struct epoll_event event = { .events = EPOLLIN };
	mwctl_status status;
	int i, cqe = 0, epoll = epoll_create1(EPOLL_CLOEXEC);

	for (i = 0; i < CLIENTS; i++) {
		cqe += 3; /* two messages out, one in */
		must(mwctl_size_queues(BUDGET, NULL, &cqe), "mwctl_size_queues");
	}
	pd = ibv_alloc_pd(device.verbs);
	channel = ibv_create_comp_channel(device.verbs);
	cq = ibv_create_cq(device.verbs, cqe, NULL, channel, 0);
	if (!pd || !channel || !cq || ibv_req_notify_cq(cq, 0))
		die("a PD, a channel and a CQ: %s", strerror(errno));
	messages = ibv_reg_mr(pd, seats, sizeof(seats), IBV_ACCESS_LOCAL_WRITE);
	if (!messages)
		die("ibv_reg_mr: %s", strerror(errno));
	must(mwctl_context_open(device.verbs, NULL, 0, &ctx), "mwctl_context_open");
	/* What is prepared allocates no windows: the reserve is enough for one a client. */
	status = mwctl_domain_open(ctx, pd, NULL, 0, &domain);
	if (status == MWCTL_STATUS_UNSUPPORTED)
		skip("%s has no Type 2 memory windows", device.name);
	must(status, "mwctl_domain_open");
	must(mwctl_region_register(ctx, domain, BLOCKS * BLOCK, &blocks, sizeof(blocks), &region),
	     "mwctl_region_register");
	if (epoll < 0 || fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) ||
	    epoll_ctl(epoll, EPOLL_CTL_ADD, channel->fd, &event) ||
	    epoll_ctl(epoll, EPOLL_CTL_ADD, mwctl_event_fd(ctx), &event))
		die("epoll: %s", strerror(errno));
	return epoll;
}

static void close_all(int epoll)
{
	must(mwctl_region_detach(ctx, region), "mwctl_region_detach");
	must(mwctl_domain_close(ctx, domain), "mwctl_domain_close");
	must(mwctl_context_close(ctx), "mwctl_context_close");
	if (ibv_dereg_mr(messages) || ibv_destroy_cq(cq) || ibv_destroy_comp_channel(channel) ||
	    ibv_dealloc_pd(pd) || close(epoll))
		die("the server's verbs objects can't be destroyed: %s", strerror(errno));
}

int main(void)
{
	struct ibv_qp_attr broken = { .qp_state = IBV_QPS_ERR };
	int epoll;
	size_t i;

	setvbuf(stdout, NULL, _IOLBF, 0);
	time_limit(60);
	rc_open(&device);
	rc_describe(&device);
	epoll = open_all();
	clients[DEAF].deaf = true;
	for (i = 0; i < CLIENTS; i++) {
		counter_open(&clients[i], &device);
		counter_start(&clients[i]);
	}
	serve(epoll);
	/* What a connection manager would tell the deaf client: the other end is gone. */
	if (ibv_modify_qp(clients[DEAF].qp, &broken, IBV_QP_STATE))
		die("ibv_modify_qp to ERR failed");
	for (i = 0; i < CLIENTS; i++) {
		counter_join(&clients[i]);
		demand((clients[i].ended == IBV_WC_SUCCESS) == (i != DEAF), "client %zu ended with \"%s\"", i,
		       ibv_wc_status_str(clients[i].ended));
	}
	demand(proof == MWCTL_PROOF_QP_FENCED || proof == MWCTL_PROOF_DEALLOCATED,
	       "the deaf client's right ended by: %s", mwctl_proof_text(proof));
	/* Nothing but its client's last word is in a block: no write of the deaf one came behind. */
	for (i = 0; i < CLIENTS; i++)
		demand(i == DEAF || *seats[i].count == clients[i].memory.count,
		       "client %zu's block has %llu, not its %llu", i, (unsigned long long)*seats[i].count,
		       (unsigned long long)clients[i].memory.count);
	printf("  the deaf client: %s, by %u revocation(s) of %d ms\n", mwctl_proof_text(proof), revocations,
	       DEADLINE_US / 1000);
	printf("  the good clients: %llu writes meanwhile, and on\n", (unsigned long long)meanwhile);
	printf("  the late client: %llu writes in the deaf one's block\n",
	       (unsigned long long)*seats[LATE].count);
	for (i = 0; i < CLIENTS; i++)
		counter_close(&clients[i]);
	close_all(epoll);
	rc_close(&device);
	printf("%s\n", demands_failed() ? "FAILED" : "All as promised.");
	return demands_failed() ? 1 : 0;
}
