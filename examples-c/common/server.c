/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "server.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "clock.h"
#include "report.h"

/* wr_ids of the server's own requests. */
enum { RECEIVE = 1, BIND = 2 };

#define PATIENCE (10 * NS_PER_S)

static bool uses_mwctl(const struct server *server)
{
	return server->method == METHOD_BATCH || server->method == METHOD_ONE_BY_ONE;
}

/* The library's share of a client's send queue: room for all its windows in one chain. */
static uint32_t budget(const struct server *server)
{
	return (uint32_t)server->windows;
}

/* ---- open and close ---- */

static void open_domain(struct server *server)
{
	const struct mwctl_domain_options options = {
		.reserve = (uint32_t)(SERVER_SEATS * server->windows),
	};
	const struct mwctl_register_options blocks = { .block_size = WRITER_TARGET_SIZE };
	struct mwctl_region_info info = { 0 };

	must(mwctl_domain_open(server->ctx, server->pd, &options, sizeof(options), &server->domain),
	     "mwctl_domain_open");
	must(mwctl_region_register(server->ctx, server->domain, SERVER_MEMORY, &blocks, sizeof(blocks),
				   &server->region),
	     "mwctl_region_register");
	must(mwctl_region_info_get(server->ctx, server->region, &info, sizeof(info)),
	     "mwctl_region_info_get");
	server->base = info.addr;
	server->memory = (uint8_t *)(uintptr_t)info.addr;
	must(mwctl_block_take(server->ctx, server->region, 1, &server->spare), "mwctl_block_take");
}

static void register_by_hand(struct server *server)
{
	int access = server->method == METHOD_TYPE1 ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND :
						      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

	server->mr = ibv_reg_mr(server->pd, server->memory, SERVER_MEMORY, access);
	if (!server->mr)
		die("ibv_reg_mr: %s", strerror(errno));
}

static void map_by_hand(struct server *server)
{
	server->memory = mmap(NULL, SERVER_MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			      -1, 0);
	if (server->memory == MAP_FAILED)
		die("mmap of %llu bytes: %s", SERVER_MEMORY, strerror(errno));
	server->base = (uintptr_t)server->memory;
	register_by_hand(server);
}

static void on_event(void *user, const struct mwctl_event *event)
{
	struct server *server = user;

	if (event->kind == MWCTL_EVENT_KIND_PEER_KILLED)
		atomic_fetch_add(&server->killed, 1);
}

void server_open(struct server *server, const struct rc_device *device, enum method method,
		 size_t windows)
{
	const struct mwctl_context_options options = { .on_event = on_event, .event_user = server };
	struct mwctl_capabilities capabilities = { 0 };
	int cqe = 0;
	size_t i;

	memset(server, 0, sizeof(*server));
	server->device = device;
	server->method = method;
	server->windows = windows;
	must(mwctl_context_open(device->verbs, &options, sizeof(options), &server->ctx),
	     "mwctl_context_open");
	must(mwctl_capabilities_get(server->ctx, &capabilities, sizeof(capabilities)),
	     "mwctl_capabilities_get");
	if (!capabilities.type2)
		skip("%s has no Type 2 memory windows", device->name);
	server->at_rest = capabilities.memory_at_rest;
	server->pd = ibv_alloc_pd(device->verbs);
	/* A receive and a bind of the server's own for each client, beside the library's. */
	for (i = 0; i < SERVER_SEATS; i++) {
		cqe += 2;
		must(mwctl_size_queues(budget(server), NULL, &cqe), "mwctl_size_queues");
	}
	server->cq = ibv_create_cq(device->verbs, cqe, NULL, NULL, 0);
	if (!server->pd || !server->cq)
		die("a PD and a CQ: %s", strerror(errno));
	if (uses_mwctl(server))
		open_domain(server);
	else
		map_by_hand(server);
}

void server_close(struct server *server)
{
	if (uses_mwctl(server)) {
		must(mwctl_block_give(server->ctx, server->region, server->spare, 1),
		     "mwctl_block_give");
		must(mwctl_region_detach(server->ctx, server->region), "mwctl_region_detach");
		must(mwctl_domain_close(server->ctx, server->domain), "mwctl_domain_close");
	} else {
		if (ibv_dereg_mr(server->mr))
			die("ibv_dereg_mr: %s", strerror(errno));
		munmap(server->memory, SERVER_MEMORY);
	}
	must(mwctl_context_close(server->ctx), "mwctl_context_close");
	if (ibv_destroy_cq(server->cq) || ibv_dealloc_pd(server->pd))
		die("the server's CQ and PD can't be destroyed: %s", strerror(errno));
}

/* ---- the completion queue ---- */

static int poll_cq(struct server *server, int n, struct ibv_wc *wcs)
{
	if (uses_mwctl(server))
		return mwctl_poll_cq(server->ctx, server->cq, n, wcs);
	return ibv_poll_cq(server->cq, n, wcs);
}

static struct seat *seat_of(struct server *server, uint32_t qp_num)
{
	size_t i;

	for (i = 0; i < SERVER_SEATS; i++)
		if (server->seats[i].qp && server->seats[i].qp->qp_num == qp_num)
			return &server->seats[i];
	return NULL;
}

/* Polls once. True if a bind of the server's own has completed, with its status in *bind. */
static bool poll_once(struct server *server, enum ibv_wc_status *bind)
{
	struct ibv_wc wcs[16];
	bool bound = false;
	int i, n = poll_cq(server, 16, wcs);

	if (n < 0)
		die("polling the server's CQ failed");
	for (i = 0; i < n; i++) {
		struct seat *seat = seat_of(server, wcs[i].qp_num);

		/* Nobody sends anything: the receive of a seat completes when its queue pair dies. */
		if (seat && wcs[i].status != IBV_WC_SUCCESS)
			atomic_store(&seat->dead, true);
		if (wcs[i].wr_id == BIND) {
			*bind = wcs[i].status;
			bound = true;
		}
	}
	return bound;
}

void server_poll(struct server *server)
{
	enum ibv_wc_status bind;

	poll_once(server, &bind);
	if (uses_mwctl(server) && mwctl_next_timeout(server->ctx) == 0)
		must(mwctl_tick(server->ctx), "mwctl_tick");
}

/* ---- windows by libmwctl ---- */

void server_grant(struct server *server, size_t at, size_t n)
{
	struct seat *seat = &server->seats[at];
	struct mwctl_request *asked = calloc(n, sizeof(*asked));
	struct mwctl_result *results = calloc(n, sizeof(*results));
	size_t i;

	if (!asked || !results)
		die("out of memory");
	for (i = 0; i < n; i++) {
		asked[i].peer = seat->peer;
		asked[i].region = server->region;
		asked[i].addr = seat->base + i * WRITER_TARGET_SIZE;
		asked[i].length = WRITER_TARGET_SIZE;
		asked[i].access = IBV_ACCESS_REMOTE_WRITE;
	}
	must(mwctl_grant_batch(server->ctx, asked, n, 0, results), "mwctl_grant_batch");
	for (i = 0; i < n; i++) {
		seat->grants[i] = results[i].grant;
		seat->targets[i].addr = asked[i].addr;
		seat->targets[i].rkey = results[i].rkey;
	}
	seat->windows = n;
	free(asked);
	free(results);
}

static void attach(struct server *server, struct seat *seat)
{
	const struct mwctl_peer_options options = { .budget = budget(server) };

	must(mwctl_peer_attach(server->ctx, server->domain, seat->qp, &options, sizeof(options),
			       &seat->peer),
	     "mwctl_peer_attach");
}

static void note(struct revocation *revocation, int status, mwctl_proof proof)
{
	bool proved = status == MWCTL_STATUS_OK && proof != MWCTL_PROOF_NONE;

	revocation->windows++;
	revocation->proved += proved;
	if (proof >= 0 && proof < SERVER_PROOFS)
		revocation->proofs[proof]++;
	if (!proved && revocation->status == MWCTL_STATUS_OK)
		revocation->status = status == MWCTL_STATUS_OK ? MWCTL_STATUS_OPEN : status;
}

static void revoke_batch(struct server *server, struct seat *seat, struct revocation *revocation)
{
	static struct mwctl_result results[SERVER_MAX_WINDOWS];
	size_t i;

	mwctl_revoke_batch(server->ctx, seat->grants, seat->windows, 0, MWCTL_KILL_ALLOWED, results);
	revocation->proved_ns = clock_ns();
	for (i = 0; i < seat->windows; i++)
		note(revocation, results[i].status, results[i].proof);
}

static void revoke_one_by_one(struct server *server, struct seat *seat,
			      struct revocation *revocation)
{
	size_t i;

	for (i = 0; i < seat->windows; i++) {
		struct mwctl_result result = { 0 };
		mwctl_status status = mwctl_revoke(server->ctx, seat->grants[i], 0, &result);

		note(revocation, status, result.proof);
	}
	revocation->proved_ns = clock_ns();
}

/* ---- Type 1 windows by hand ---- */

/* False if the queue pair is dead. */
static bool bind_and_wait(struct server *server, struct seat *seat, size_t at, uint64_t length)
{
	struct ibv_mw_bind bind = {
		.wr_id = BIND,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = {
			.mr = server->mr,
			.addr = seat->base + at * WRITER_TARGET_SIZE,
			.length = length,
			.mw_access_flags = length ? IBV_ACCESS_REMOTE_WRITE : 0,
		},
	};
	uint64_t deadline = clock_ns() + PATIENCE;
	enum ibv_wc_status status;

	if (ibv_bind_mw(seat->qp, seat->mws[at], &bind))
		return false;
	while (!poll_once(server, &status))
		if (clock_ns() > deadline)
			die("a Type 1 bind does not complete");
	return status == IBV_WC_SUCCESS;
}

static void dealloc_mw(struct seat *seat, size_t at)
{
	int error = seat->mws[at] ? ibv_dealloc_mw(seat->mws[at]) : 0;

	if (error)
		die("ibv_dealloc_mw: %s", strerror(error));
	seat->mws[at] = NULL;
}

static void bind_type1(struct server *server, struct seat *seat)
{
	size_t i;

	for (i = 0; i < server->windows; i++) {
		seat->mws[i] = ibv_alloc_mw(server->pd, IBV_MW_TYPE_1);
		if (!seat->mws[i])
			die("ibv_alloc_mw of Type 1: %s", strerror(errno));
		if (!bind_and_wait(server, seat, i, WRITER_TARGET_SIZE))
			die("a Type 1 window can't be bound");
		seat->targets[i].addr = seat->base + i * WRITER_TARGET_SIZE;
		seat->targets[i].rkey = seat->mws[i]->rkey;
	}
}

/* A client that goes on writing kills the queue pair half-way: the rest is deallocated. */
static void revoke_type1(struct server *server, struct seat *seat, struct revocation *revocation)
{
	bool alive = true;
	size_t i;

	for (i = 0; i < seat->windows; i++) {
		alive = alive && bind_and_wait(server, seat, i, 0);
		if (!alive)
			dealloc_mw(seat, i);
		note(revocation, MWCTL_STATUS_OK,
		     alive ? MWCTL_PROOF_INVALIDATED : MWCTL_PROOF_DEALLOCATED);
	}
	revocation->proved_ns = clock_ns();
}

/* ---- clients ---- */

static void connect_seat(struct server *server, struct seat *seat)
{
	struct ibv_qp_cap cap = {
		.max_send_wr = 1,
		.max_recv_wr = 1,
		.max_send_sge = 1,
		.max_recv_sge = 1,
	};
	struct ibv_recv_wr receive = { .wr_id = RECEIVE }, *bad;
	int error;

	must(mwctl_size_queues(budget(server), &cap, NULL), "mwctl_size_queues");
	atomic_store(&seat->dead, false);
	seat->qp = rc_qp(server->device, server->pd, server->cq, &cap, IBV_ACCESS_REMOTE_WRITE);
	writer_connect(seat->writer, seat->qp);
	error = ibv_post_recv(seat->qp, &receive, &bad);
	if (error)
		die("ibv_post_recv: %s", strerror(error));
}

/* Blocks of the client's own, wiped: what another client left there is none of its business. */
static void take_memory(struct server *server, struct seat *seat, size_t at)
{
	if (uses_mwctl(server))
		must(mwctl_block_take(server->ctx, server->region, server->windows, &seat->base),
		     "mwctl_block_take");
	else
		seat->base = server->base + at * server_seat_size(server);
	seat->memory = server->memory + (seat->base - server->base);
	memset(seat->memory, 0, server_seat_size(server));
}

static void share_key(struct server *server, struct seat *seat)
{
	size_t i;

	for (i = 0; i < server->windows; i++) {
		seat->targets[i].addr = seat->base + i * WRITER_TARGET_SIZE;
		seat->targets[i].rkey = server->mr->rkey;
	}
}

void server_admit(struct server *server, size_t at, struct writer *writer)
{
	struct seat *seat = &server->seats[at];

	seat->writer = writer;
	connect_seat(server, seat);
	take_memory(server, seat, at);
	switch (server->method) {
	case METHOD_BATCH:
	case METHOD_ONE_BY_ONE:
		attach(server, seat);
		server_grant(server, at, server->windows);
		break;
	case METHOD_TYPE1:
		bind_type1(server, seat);
		break;
	case METHOD_RESTART:
		share_key(server, seat);
		break;
	}
	seat->windows = server->windows;
}

static void destroy_qp(struct seat *seat)
{
	int error = ibv_destroy_qp(seat->qp);

	if (error)
		die("ibv_destroy_qp: %s", strerror(error));
	seat->qp = NULL;
}

static void restart(struct server *server, struct seat *bad, void (*closed)(void *), void *argument,
		    struct revocation *revocation)
{
	struct ibv_wc wcs[16];
	struct seat *seat;
	int error;

	for (seat = server->seats; seat < server->seats + SERVER_SEATS; seat++)
		if (seat->qp)
			destroy_qp(seat);
	error = ibv_dereg_mr(server->mr);
	if (error)
		die("ibv_dereg_mr: %s", strerror(error));
	revocation->proved_ns = clock_ns();
	revocation->windows = revocation->proved = bad->windows;
	closed(argument);
	while (ibv_poll_cq(server->cq, 16, wcs) > 0)
		;
	register_by_hand(server);
	for (seat = server->seats; seat < server->seats + SERVER_SEATS; seat++) {
		if (seat == bad || !seat->writer)
			continue;
		/* The best case: they are told at once, and need not run into a timeout. */
		writer_drop(seat->writer);
		connect_seat(server, seat);
		share_key(server, seat);
		writer_go(seat->writer, seat->targets, server->windows);
	}
	revocation->rebuilt_ns = clock_ns();
}

void server_revoke(struct server *server, size_t at, void (*closed)(void *), void *argument,
		   struct revocation *revocation)
{
	struct seat *seat = &server->seats[at];

	memset(revocation, 0, sizeof(*revocation));
	revocation->decided_ns = clock_ns();
	switch (server->method) {
	case METHOD_BATCH:
		revoke_batch(server, seat, revocation);
		break;
	case METHOD_ONE_BY_ONE:
		revoke_one_by_one(server, seat, revocation);
		break;
	case METHOD_TYPE1:
		revoke_type1(server, seat, revocation);
		break;
	case METHOD_RESTART:
		restart(server, seat, closed, argument, revocation);
		break;
	}
	if (server->method != METHOD_RESTART) {
		closed(argument);
		revocation->rebuilt_ns = revocation->proved_ns;
	}
	seat->windows = 0;
}

void server_reconnect(struct server *server, size_t at)
{
	struct seat *seat = &server->seats[at];

	must(mwctl_peer_detach(server->ctx, seat->peer, 0), "mwctl_peer_detach");
	destroy_qp(seat);
	connect_seat(server, seat);
	attach(server, seat);
}

void server_dismiss(struct server *server, size_t at)
{
	struct seat *seat = &server->seats[at];
	size_t i;

	if (uses_mwctl(server)) {
		must(mwctl_peer_detach(server->ctx, seat->peer, 0), "mwctl_peer_detach");
		must(mwctl_block_give(server->ctx, server->region, seat->base, server->windows),
		     "mwctl_block_give");
	}
	for (i = 0; server->method == METHOD_TYPE1 && i < server->windows; i++)
		dealloc_mw(seat, i);
	if (seat->qp)
		destroy_qp(seat);
	seat->writer = NULL;
	seat->windows = 0;
}
