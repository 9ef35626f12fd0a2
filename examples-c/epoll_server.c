/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A server with one thread and one epoll loop that never waits anywhere else: once it is set up it
 * calls what never waits alone. It sleeps on the completion channel, libmwctl's event fd, the
 * device's asynchronous events, a timer, and a descriptor by which clients arrive.
 *
 * Each client gets a block and counts in it by RDMA WRITE. One is kicked out in the middle of
 * that; one never posts a receive, so that the server's send queue to it is stuck and taking its
 * right back lasts until the deadline. The others must notice nothing of either.
 *
 * The clients are threads of this process. Arriving stands for what rdma_cm or a socket would do.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/counter.h"
#include "common/rc.h"
#include "common/report.h"
#include "mwctl.h"

#define GOOD 3
enum { KICKED = GOOD, STUCK, CLIENTS };

#define BLOCK 4096ull
#define BUDGET 4
#define WRITES 100          /* of each client, before something happens and after */
#define STUCK_MS 100        /* the deadline for the stuck client */
#define LIMIT_US 10000000   /* and for all others */
#define AUDIT_MS 10
#define PATIENCE (60 * NS_PER_S)

static struct rc_device device;
static struct counter clients[CLIENTS];
static atomic_size_t arrived;
static int arrivals; /* an eventfd */

static void arrive(void)
{
	uint64_t one = 1;

	atomic_fetch_add(&arrived, 1);
	if (write(arrivals, &one, sizeof(one)) != sizeof(one))
		die("an eventfd can't be written: %s", strerror(errno));
}

/* ---- the server ---- */

struct seat {
	enum { ABSENT, GRANTING, OPEN, LEAVING, GONE } state;
	struct ibv_qp *qp;
	struct mwctl_peer peer;
	uint64_t addr;
	volatile uint64_t *count; /* what its client writes */
	uint64_t count_before;    /* when something began, or a right was proved gone */
	bool revoked, at_rest;
	mwctl_proof proof;
	uint64_t revoke_began, revoke_ended;
	struct counter_message sent[2];
	struct counter_message received;
};

static struct server {
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *messages; /* over the seats */
	struct mwctl_context *ctx;
	struct mwctl_domain domain;
	struct mwctl_region region;
	bool memory_at_rest;
	int epoll, timer;
	size_t admitted, gone;
	enum { COUNTING, KICKING, STOPPING } phase;
	unsigned int killed; /* queue pairs that libmwctl moved to ERR */
	uint64_t wakeups, begun;
	struct seat seats[CLIENTS];
} server;

enum { SENT = 1, RECEIVED };
#define WR_ID(what, seat) ((uint64_t)(what) << 32 | (uint64_t)((seat) - server.seats))

static void on_event(void *user, const struct mwctl_event *event)
{
	(void)user;
	server.killed += event->kind == MWCTL_EVENT_KIND_PEER_KILLED;
}

static void watch(int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	if (fd < 0 || fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) ||
	    epoll_ctl(server.epoll, EPOLL_CTL_ADD, fd, &event))
		die("a descriptor can't be watched: %s", strerror(errno));
}

static void open_verbs(void)
{
	int cqe = 0;
	size_t i;

	for (i = 0; i < CLIENTS; i++) {
		cqe += 3; /* two messages out, one in */
		must(mwctl_size_queues(BUDGET, NULL, &cqe), "mwctl_size_queues");
	}
	server.pd = ibv_alloc_pd(device.verbs);
	server.channel = ibv_create_comp_channel(device.verbs);
	server.cq = ibv_create_cq(device.verbs, cqe, NULL, server.channel, 0);
	if (!server.pd || !server.channel || !server.cq)
		die("a PD, a channel and a CQ: %s", strerror(errno));
	server.messages = ibv_reg_mr(server.pd, server.seats, sizeof(server.seats),
				     IBV_ACCESS_LOCAL_WRITE);
	if (!server.messages || ibv_req_notify_cq(server.cq, 0))
		die("messages and notification: %s", strerror(errno));
}

static void open_mwctl(void)
{
	const struct mwctl_context_options options = { .timeout_us = LIMIT_US, .on_event = on_event };
	const struct mwctl_register_options blocks = { .block_size = BLOCK };
	struct mwctl_capabilities capabilities = { 0 };

	must(mwctl_context_open(device.verbs, &options, sizeof(options), &server.ctx),
	     "mwctl_context_open");
	must(mwctl_capabilities_get(server.ctx, &capabilities, sizeof(capabilities)),
	     "mwctl_capabilities_get");
	if (!capabilities.type2)
		skip("%s has no Type 2 memory windows", device.name);
	server.memory_at_rest = capabilities.memory_at_rest;
	/* Calls that never wait allocate no windows: the reserve of 64 is enough for one a client. */
	must(mwctl_domain_open(server.ctx, server.pd, NULL, 0, &server.domain), "mwctl_domain_open");
	must(mwctl_region_register(server.ctx, server.domain, CLIENTS * BLOCK, &blocks, sizeof(blocks),
				   &server.region),
	     "mwctl_region_register");
}

static void open_loop(void)
{
	const struct itimerspec audits = {
		.it_interval = { .tv_nsec = AUDIT_MS * NS_PER_MS },
		.it_value = { .tv_nsec = AUDIT_MS * NS_PER_MS },
	};

	server.epoll = epoll_create1(EPOLL_CLOEXEC);
	server.timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	if (server.epoll < 0 || server.timer < 0 || timerfd_settime(server.timer, 0, &audits, NULL))
		die("epoll and a timer: %s", strerror(errno));
	watch(server.channel->fd);
	watch(mwctl_event_fd(server.ctx));
	watch(device.verbs->async_fd);
	watch(server.timer);
	watch(arrivals);
	server.begun = clock_ns();
}

static void server_close(void)
{
	must(mwctl_region_detach(server.ctx, server.region), "mwctl_region_detach");
	must(mwctl_domain_close(server.ctx, server.domain), "mwctl_domain_close");
	must(mwctl_context_close(server.ctx), "mwctl_context_close");
	if (ibv_dereg_mr(server.messages) || ibv_destroy_cq(server.cq) ||
	    ibv_destroy_comp_channel(server.channel) || ibv_dealloc_pd(server.pd))
		die("the server's verbs objects can't be destroyed: %s", strerror(errno));
	close(server.epoll);
	close(server.timer);
}

/* ---- a seat, from its client's arrival to its end ---- */

static void send_message(struct seat *seat, const struct counter_message *message)
{
	struct counter_message *place = &seat->sent[message->kind == COUNTER_STOP];
	struct ibv_sge sge = { (uintptr_t)place, sizeof(*place), server.messages->lkey };
	struct ibv_send_wr wr = {
		.wr_id = WR_ID(SENT, seat),
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	*place = *message;
	demand(!ibv_post_send(seat->qp, &wr, &bad), "a message can't be sent");
}

static void on_detached(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct seat *seat = user;

	(void)results;
	(void)n;
	must(status, "mwctl_peer_detach_start");
	if (ibv_destroy_qp(seat->qp))
		die("ibv_destroy_qp: %s", strerror(errno));
	seat->qp = NULL;
	seat->state = GONE;
	server.gone++;
	must(mwctl_block_give(server.ctx, server.region, seat->addr, 1), "mwctl_block_give");
}

/* Takes back what the client holds and lets go of its queue pair. */
static void leave(struct seat *seat)
{
	if (seat->state >= LEAVING)
		return;
	seat->state = LEAVING;
	must(mwctl_peer_detach_start(server.ctx, seat->peer, 0, on_detached, seat),
	     "mwctl_peer_detach_start");
}

static void on_granted(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct seat *seat = user;

	if (!demand(status == MWCTL_STATUS_OK && n == 1, "a grant: %s", mwctl_status_text(status))) {
		leave(seat);
		return;
	}
	seat->state = OPEN;
	send_message(seat, &(struct counter_message){
				   .kind = COUNTER_GO,
				   .rkey = results[0].rkey,
				   .addr = seat->addr,
			   });
}

static void post_receive(struct seat *seat)
{
	struct ibv_sge sge = { (uintptr_t)&seat->received, sizeof(seat->received), server.messages->lkey };
	struct ibv_recv_wr wr = { .wr_id = WR_ID(RECEIVED, seat), .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(seat->qp, &wr, &bad))
		die("the server can't post a receive");
}

/* Connecting and attaching are kernel calls, and all the waiting there is. */
static void admit(struct seat *seat, struct counter *client)
{
	const struct mwctl_peer_options options = { .budget = BUDGET };
	struct ibv_qp_cap cap = {
		.max_send_wr = 2,
		.max_recv_wr = 1,
		.max_send_sge = 1,
		.max_recv_sge = 1,
	};
	struct mwctl_request ask = { .region = server.region, .length = BLOCK };

	must(mwctl_size_queues(BUDGET, &cap, NULL), "mwctl_size_queues");
	seat->qp = rc_qp(&device, server.pd, server.cq, &cap, IBV_ACCESS_REMOTE_WRITE);
	rc_connect(&device, seat->qp, client->qp);
	post_receive(seat);
	must(mwctl_peer_attach(server.ctx, server.domain, seat->qp, &options, sizeof(options),
			       &seat->peer),
	     "mwctl_peer_attach");
	must(mwctl_block_take(server.ctx, server.region, 1, &seat->addr), "mwctl_block_take");
	seat->count = (uint64_t *)(uintptr_t)seat->addr;
	seat->state = GRANTING;
	ask.peer = seat->peer;
	ask.addr = seat->addr;
	ask.access = IBV_ACCESS_REMOTE_WRITE;
	must(mwctl_grant_start(server.ctx, &ask, 1, 0, on_granted, seat), "mwctl_grant_start");
	atomic_store(&client->connected, true);
}

static void on_revoked(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct seat *seat = user;

	demand(status == MWCTL_STATUS_OK && n == 1, "a revocation: %s", mwctl_status_text(status));
	seat->revoked = true;
	seat->proof = n == 1 ? results[0].proof : MWCTL_PROOF_NONE;
	seat->revoke_ended = clock_ns();
	seat->count_before = *seat->count;
	seat->at_rest = server.memory_at_rest;
	if (seat == &server.seats[STUCK])
		leave(seat);
}

static void take_back(struct seat *seat, uint64_t timeout_us)
{
	seat->revoke_began = clock_ns();
	must(mwctl_revoke_peer_start(server.ctx, seat->peer, timeout_us, MWCTL_KILL_ALLOWED, on_revoked,
				     seat),
	     "mwctl_revoke_peer_start");
}

/* ---- what the loop hears ---- */

static void take_completion(const struct ibv_wc *wc)
{
	struct seat *seat = &server.seats[wc->wr_id & 0xffffffff];

	if (seat->state == GONE)
		return;
	if (wc->status != IBV_WC_SUCCESS) {
		/* One that broke the rules, or one that libmwctl gave up. */
		demand(seat >= &server.seats[KICKED], "a good client's connection broke: %s",
		       ibv_wc_status_str(wc->status));
		leave(seat);
	} else if (wc->wr_id >> 32 == RECEIVED) {
		demand(seat->received.kind == COUNTER_BYE, "a strange message");
		leave(seat);
	}
}

/* Armed first, then polled until it is empty: what comes afterwards is an event. */
static void take_channel(void)
{
	struct ibv_cq *cq;
	void *context;

	while (!ibv_get_cq_event(server.channel, &cq, &context)) {
		ibv_ack_cq_events(cq, 1);
		if (ibv_req_notify_cq(cq, 0))
			die("ibv_req_notify_cq failed");
	}
}

static void poll_all(void)
{
	struct ibv_wc wcs[8];
	int i, n;

	while ((n = mwctl_poll_cq(server.ctx, server.cq, 8, wcs)) > 0)
		for (i = 0; i < n; i++)
			take_completion(&wcs[i]);
	if (n < 0)
		die("mwctl_poll_cq failed");
}

static void take_async_events(void)
{
	struct ibv_async_event event;

	while (!ibv_get_async_event(device.verbs, &event)) {
		must(mwctl_take_async_event(server.ctx, &event), "mwctl_take_async_event");
		ibv_ack_async_event(&event);
	}
}

static void take_arrivals(void)
{
	while (server.admitted < atomic_load(&arrived)) {
		admit(&server.seats[server.admitted], &clients[server.admitted]);
		server.admitted++;
	}
}

/* Whether the first n clients have written so much since `count_before`. */
static bool have_written(size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (!server.seats[i].count ||
		    *server.seats[i].count < server.seats[i].count_before + WRITES)
			return false;
	return true;
}

static void note_counts(void)
{
	size_t i;

	for (i = 0; i < GOOD; i++)
		server.seats[i].count_before = *server.seats[i].count;
}

/* Looks at what the clients do, and decides. */
static void audit(void)
{
	struct seat *kicked = &server.seats[KICKED], *stuck = &server.seats[STUCK];
	size_t i;

	if (clock_ns() - server.begun > PATIENCE)
		die("the server waits for ever");
	switch (server.phase) {
	case COUNTING:
		if (stuck->state != OPEN || !have_written(GOOD + 1))
			break;
		note_counts();
		take_back(kicked, 0);
		take_back(stuck, STUCK_MS * 1000);
		server.phase = KICKING;
		break;
	case KICKING:
		/* Where the memory need not be at rest yet, from the next audit on. */
		if (kicked->revoked && !kicked->at_rest) {
			kicked->count_before = *kicked->count;
			kicked->at_rest = true;
		}
		if (kicked->state != GONE || stuck->state != GONE || !have_written(GOOD))
			break;
		for (i = 0; i < GOOD; i++)
			send_message(&server.seats[i], &(struct counter_message){ .kind = COUNTER_STOP });
		server.phase = STOPPING;
		break;
	case STOPPING:
		break;
	}
}

static void drain(int fd)
{
	uint64_t count;

	if (read(fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
		die("a descriptor can't be read: %s", strerror(errno));
}

/* In milliseconds, as epoll wants it. */
static int timeout_ms(void)
{
	int64_t ns = mwctl_next_timeout(server.ctx);

	return ns < 0 ? -1 : (int)((ns + NS_PER_MS - 1) / NS_PER_MS);
}

static void serve(void)
{
	struct epoll_event events[8];
	bool due;
	int i, n;

	while (server.gone < CLIENTS) {
		n = epoll_wait(server.epoll, events, 8, timeout_ms());
		if (n < 0 && errno != EINTR)
			die("epoll_wait: %s", strerror(errno));
		server.wakeups++;
		due = false;
		for (i = 0; i < n; i++) {
			int fd = events[i].data.fd;

			if (fd == server.channel->fd) {
				take_channel();
			} else if (fd == device.verbs->async_fd) {
				take_async_events();
			} else if (fd == server.timer) {
				drain(fd);
				audit();
			} else if (fd == arrivals) {
				drain(fd);
				take_arrivals();
			} else {
				due = true; /* libmwctl's own, readable until it is ticked */
			}
		}
		poll_all();
		/* Or the time has passed, whatever woke us. */
		if (due || mwctl_next_timeout(server.ctx) == 0)
			must(mwctl_tick(server.ctx), "mwctl_tick");
	}
}

static void judge(void)
{
	struct seat *kicked = &server.seats[KICKED], *stuck = &server.seats[STUCK];
	size_t i;

	for (i = 0; i < GOOD; i++)
		demand(clients[i].ended == IBV_WC_SUCCESS, "good client %zu ended with \"%s\"", i,
		       ibv_wc_status_str(clients[i].ended));
	demand(clients[KICKED].ended == IBV_WC_REM_ACCESS_ERR, "the kicked client ended with \"%s\"",
	       ibv_wc_status_str(clients[KICKED].ended));
	demand(kicked->proof != MWCTL_PROOF_NONE, "the kicked client's right is not proved gone");
	demand(*kicked->count == kicked->count_before, "the kicked client wrote after the proof");
	demand(stuck->proof == MWCTL_PROOF_QP_FENCED && server.killed == 1,
	       "the stuck client's right ended by: %s", mwctl_proof_text(stuck->proof));
	demand(stuck->revoke_ended - stuck->revoke_began >= STUCK_MS * NS_PER_MS,
	       "the stuck client was given up before the deadline");
	printf("  kicked: %s, after %.1f ms; its next write: %s\n", mwctl_proof_text(kicked->proof),
	       (double)(kicked->revoke_ended - kicked->revoke_began) / NS_PER_MS,
	       ibv_wc_status_str(clients[KICKED].ended));
	printf("  stuck: %s, after %.1f ms; its deadline was %d ms\n", mwctl_proof_text(stuck->proof),
	       (double)(stuck->revoke_ended - stuck->revoke_began) / NS_PER_MS, STUCK_MS);
	for (i = 0; i < GOOD; i++)
		printf("  good client %zu: %llu writes, %llu of them since\n", i,
		       (unsigned long long)*server.seats[i].count,
		       (unsigned long long)(*server.seats[i].count - server.seats[i].count_before));
	printf("  the server woke up %llu times\n", (unsigned long long)server.wakeups);
}

int main(void)
{
	size_t i;

	setvbuf(stdout, NULL, _IOLBF, 0);
	rc_open(&device);
	rc_describe(&device);
	arrivals = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	open_verbs();
	open_mwctl();
	open_loop();
	for (i = 0; i < CLIENTS; i++) {
		counter_open(&clients[i], &device);
		if (i != STUCK)
			counter_start(&clients[i]);
		arrive();
	}
	serve();
	for (i = 0; i < CLIENTS; i++) {
		if (i != STUCK)
			counter_join(&clients[i]);
		counter_close(&clients[i]);
	}
	judge();
	server_close();
	rc_close(&device);
	printf("%s\n", demands_failed() ? "FAILED" : "All as promised.");
	return demands_failed() ? 1 : 0;
}
