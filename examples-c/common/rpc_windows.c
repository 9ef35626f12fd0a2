/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A window for each range of a request. What a reply needs goes into one chain, in front of the
 * reply: the LOCAL_INVs that take the last request's windows back and the binds of the next one's.
 * One post, one doorbell. A send queue works in order, so whoever has the reply has the new rights
 * and no longer the old ones.
 */
#include "rpc.h"

#include <errno.h>
#include <string.h>

#include "report.h"

#define WINDOWS_BUDGET 16 /* two chains of four, and room for a third */
#define PATIENCE_US 10000000 /* before a connection is given up for a proof */

static const uint32_t access_of[RPC_RANGES] = {
	[RPC_ARGS] = IBV_ACCESS_REMOTE_WRITE,
	[RPC_RESULTS] = IBV_ACCESS_REMOTE_READ,
};

static struct rpc_connection *connection_of(struct rpc_server *server, uint64_t peer)
{
	size_t i;

	for (i = 0; i < RPC_CONNECTIONS; i++)
		if (server->connections[i].qp && server->connections[i].peer.id == peer)
			return &server->connections[i];
	return NULL;
}

static void window_gone(struct rpc_right *right)
{
	right->grant = 0;
	rpc_right_gone(right);
}

/* What no call of ours asked for: a client that gave a window back, a queue pair that died. */
static void on_event(void *user, const struct mwctl_event *event)
{
	struct rpc_connection *connection = connection_of(user, event->peer);
	size_t i, k;

	if (!connection)
		return;
	if (event->kind == MWCTL_EVENT_KIND_PEER_DEAD || event->kind == MWCTL_EVENT_KIND_PEER_KILLED)
		connection->dead = true;
	if (event->kind != MWCTL_EVENT_KIND_PEER_INVALIDATED)
		return;
	for (i = 0; i < 2; i++)
		for (k = 0; k < RPC_RANGES; k++)
			if (connection->slots[i].rights[k].grant == event->grant)
				window_gone(&connection->slots[i].rights[k]);
}

/* How a LOCAL_INV of a chain ended. */
static void on_done(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct rpc_right *right = user;

	(void)results;
	(void)n;
	if (status == MWCTL_STATUS_OK)
		window_gone(right);
	else if (status != MWCTL_STATUS_NOT_POSTED)
		right->slot->connection->dead = true; /* no proof: rpc_dismiss ends it with the queue pair */
}

static void windows_open(struct rpc_server *server)
{
	const struct mwctl_context_options options = {
		.timeout_us = PATIENCE_US,
		.on_event = on_event,
		.event_user = server,
	};
	const struct mwctl_domain_options pool = { .reserve = RPC_CONNECTIONS * WINDOWS_BUDGET };
	const struct mwctl_register_options blocks = { .block_size = RPC_BLOCK };
	struct mwctl_capabilities capabilities = { 0 };
	struct mwctl_region_info info = { 0 };

	must(mwctl_context_open(server->device->verbs, &options, sizeof(options), &server->ctx),
	     "mwctl_context_open");
	must(mwctl_capabilities_get(server->ctx, &capabilities, sizeof(capabilities)),
	     "mwctl_capabilities_get");
	if (!capabilities.type2)
		skip("%s has no Type 2 memory windows", server->device->name);
	must(mwctl_domain_open(server->ctx, server->pd, &pool, sizeof(pool), &server->domain),
	     "mwctl_domain_open");
	must(mwctl_region_register(server->ctx, server->domain, RPC_MEMORY, &blocks, sizeof(blocks),
				   &server->region),
	     "mwctl_region_register");
	must(mwctl_region_info_get(server->ctx, server->region, &info, sizeof(info)),
	     "mwctl_region_info_get");
	server->base = info.addr;
	server->memory = (uint8_t *)(uintptr_t)info.addr;
}

static void windows_close(struct rpc_server *server)
{
	must(mwctl_region_detach(server->ctx, server->region), "mwctl_region_detach");
	must(mwctl_domain_close(server->ctx, server->domain), "mwctl_domain_close");
	must(mwctl_context_close(server->ctx), "mwctl_context_close");
}

static void windows_size(struct ibv_qp_cap *cap, int *cqe)
{
	must(mwctl_size_queues(WINDOWS_BUDGET, cap, cqe), "mwctl_size_queues");
}

static void windows_admit(struct rpc_connection *connection)
{
	const struct mwctl_peer_options options = { .budget = WINDOWS_BUDGET };
	struct rpc_server *server = connection->server;

	must(mwctl_peer_attach(server->ctx, server->domain, connection->qp, &options, sizeof(options),
			       &connection->peer),
	     "mwctl_peer_attach");
	must(mwctl_block_take(server->ctx, server->region, 1, &connection->base), "mwctl_block_take");
}

static void windows_dismiss(struct rpc_connection *connection)
{
	struct rpc_server *server = connection->server;

	must(mwctl_peer_detach(server->ctx, connection->peer, 0), "mwctl_peer_detach");
	must(mwctl_block_give(server->ctx, server->region, connection->base, 1), "mwctl_block_give");
}

/* The requests of one answer. */
struct chain {
	struct ibv_send_wr wrs[2 * RPC_RANGES];
	struct mwctl_token tokens[RPC_RANGES];
	size_t wr_count, token_count;
};

/* Adds what ends `old` and begins `range` of the next request, either of which may be missing. */
static mwctl_status add(struct chain *chain, struct rpc_right *old, struct rpc_slot *next, int range,
			struct rpc_reply *reply)
{
	struct mwctl_context *ctx = (old ? old->slot : next)->connection->server->ctx;
	struct ibv_send_wr *wr = &chain->wrs[chain->wr_count];
	struct mwctl_token *token = &chain->tokens[chain->token_count];
	struct mwctl_request ask = { .access = access_of[range] };
	struct mwctl_result result;
	mwctl_status status;
	size_t wrs = 1;

	if (next) {
		ask.peer = next->connection->peer;
		ask.region = next->connection->server->region;
		ask.addr = next->addr[range];
		ask.length = range == RPC_ARGS ? next->request.args_size : next->request.results_size;
	}
	if (next && old) {
		status = mwctl_regrant_prepare(ctx, old->grant, &ask, 0, on_done, old, wr, &result, token);
		wrs = 2;
	} else if (next) {
		status = mwctl_grant_prepare(ctx, &ask, 1, wr, &result, token);
	} else {
		status = mwctl_revoke_prepare(ctx, &old->grant, 1, 0, MWCTL_KILL_ALLOWED, on_done, old, wr,
					      token);
	}
	if (status)
		return status;
	chain->wr_count += wrs;
	chain->token_count++;
	if (next) {
		/* The key may be told only behind its bind on this queue pair: the reply is. */
		next->rights[range].grant = result.grant;
		reply->ranges[range] = (struct rpc_range){ ask.addr, result.rkey, (uint32_t)ask.length };
	}
	return MWCTL_STATUS_OK;
}

static void drop(struct chain *chain, struct rpc_slot *next, struct mwctl_context *ctx)
{
	int range;

	while (chain->token_count > 0)
		must(mwctl_abort(ctx, chain->tokens[--chain->token_count]), "mwctl_abort");
	for (range = 0; next && range < RPC_RANGES; range++)
		next->rights[range].grant = 0;
}

/* Why an answer can't go out now. */
static void later(struct rpc_connection *connection, mwctl_status status)
{
	switch (status) {
	case MWCTL_STATUS_QUEUE_FULL: /* the next completions make room */
	case MWCTL_STATUS_STALE_ID:   /* given back: the event that says so is on its way */
		break;
	case MWCTL_STATUS_POOL_EMPTY: /* a tick allocates more windows */
		must(mwctl_tick(connection->server->ctx), "mwctl_tick");
		break;
	case MWCTL_STATUS_PEER_DEAD:
		connection->dead = true;
		break;
	default:
		must(status, "preparing a reply");
	}
}

static bool windows_answer(struct rpc_connection *connection, struct rpc_slot *last,
			   struct rpc_slot *next, struct rpc_reply *reply, struct ibv_send_wr *send)
{
	struct mwctl_context *ctx = connection->server->ctx;
	struct chain chain = { .wr_count = 0 };
	struct ibv_send_wr *bad = NULL;
	int range, error;
	size_t i;

	for (range = 0; range < RPC_RANGES; range++) {
		struct rpc_right *old = last && last->rights[range].grant ? &last->rights[range] : NULL;
		mwctl_status status = old || next ? add(&chain, old, next, range, reply) : MWCTL_STATUS_OK;

		if (status) {
			drop(&chain, next, ctx);
			later(connection, status);
			return false;
		}
	}
	for (i = 0; i < chain.wr_count; i++)
		chain.wrs[i].next = i + 1 < chain.wr_count ? &chain.wrs[i + 1] : send;
	if (next)
		next->open = RPC_RANGES;
	error = rpc_post(connection, chain.wr_count ? chain.wrs : send, &bad);
	for (i = 0; i < chain.token_count; i++)
		must(mwctl_commit(ctx, chain.tokens[i], error, bad, NULL), "mwctl_commit");
	return true;
}

static int windows_poll(struct rpc_server *server, int n, struct ibv_wc *wcs)
{
	if (mwctl_next_timeout(server->ctx) == 0)
		must(mwctl_tick(server->ctx), "mwctl_tick");
	return mwctl_poll_cq(server->ctx, server->cq, n, wcs);
}

const struct rpc_rights rpc_windows = {
	.open = windows_open,
	.close = windows_close,
	.size = windows_size,
	.admit = windows_admit,
	.dismiss = windows_dismiss,
	.answer = windows_answer,
	.poll = windows_poll,
};
