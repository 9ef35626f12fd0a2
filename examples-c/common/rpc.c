/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The server's side, but for how rights begin and end. */
#include "rpc.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "crc.h"
#include "report.h"

/* wr_ids: what it was, and for a receive its connection and buffer. */
enum { REPLY = 1, MESSAGE = 2 };
#define WR_ID(what, at, buffer) ((uint64_t)(what) << 32 | (uint64_t)(at) << 16 | (buffer))

/* Requests of the server's own in a send queue. */
#define OWN_SENDS RPC_REPLIES

void rpc_server_open(struct rpc_server *server, const struct rc_device *device,
		     const struct rpc_rights *rights)
{
	int cqe = RPC_CONNECTIONS * (OWN_SENDS + RPC_RECEIVES);
	size_t i, size;
	char *messages;

	crc32c_init();
	memset(server, 0, sizeof(*server));
	server->device = device;
	server->rights = rights;
	for (i = 0; i < RPC_CONNECTIONS; i++)
		rights->size(NULL, &cqe);
	size = RPC_CONNECTIONS * (sizeof(*server->messages) + sizeof(*server->replies));
	messages = calloc(1, size);
	server->pd = ibv_alloc_pd(device->verbs);
	server->cq = ibv_create_cq(device->verbs, cqe, NULL, NULL, 0);
	if (!messages || !server->pd || !server->cq)
		die("memory, a PD and a CQ: %s", strerror(errno));
	server->messages = (void *)messages;
	server->replies = (void *)(messages + RPC_CONNECTIONS * sizeof(*server->messages));
	server->messages_mr = ibv_reg_mr(server->pd, messages, size, IBV_ACCESS_LOCAL_WRITE);
	if (!server->messages_mr)
		die("ibv_reg_mr: %s", strerror(errno));
	rights->open(server);
}

void rpc_server_close(struct rpc_server *server)
{
	size_t i;

	for (i = 0; i < RPC_CONNECTIONS; i++)
		if (server->connections[i].qp)
			rpc_dismiss(server, i);
	server->rights->close(server);
	if (ibv_dereg_mr(server->messages_mr) || ibv_destroy_cq(server->cq) ||
	    ibv_dealloc_pd(server->pd))
		die("the server's verbs objects can't be destroyed: %s", strerror(errno));
	free(server->messages);
}

/* ---- connections ---- */

static size_t number_of(const struct rpc_connection *connection)
{
	return (size_t)(connection - connection->server->connections);
}

static void post_receive(struct rpc_connection *connection, size_t buffer)
{
	struct rpc_server *server = connection->server;
	size_t at = number_of(connection);
	struct ibv_sge sge = {
		.addr = (uintptr_t)&server->messages[at][buffer],
		.length = sizeof(struct rpc_message),
		.lkey = server->messages_mr->lkey,
	};
	struct ibv_recv_wr receive = {
		.wr_id = WR_ID(MESSAGE, at, buffer),
		.sg_list = &sge,
		.num_sge = 1,
	}, *bad;

	if (ibv_post_recv(connection->qp, &receive, &bad))
		connection->dead = true;
}

static void make_slots(struct rpc_connection *connection)
{
	uint8_t *memory = connection->server->memory + (connection->base - connection->server->base);
	size_t i, range;

	for (i = 0; i < 2; i++) {
		struct rpc_slot *slot = &connection->slots[i];

		slot->connection = connection;
		for (range = 0; range < RPC_RANGES; range++) {
			size_t offset = (i * RPC_RANGES + range) * RPC_MOST;

			slot->addr[range] = connection->base + offset;
			slot->memory[range] = memory + offset;
			slot->rights[range].slot = slot;
		}
	}
}

void rpc_connect(struct rpc_server *server, size_t at, struct rpc_client *client)
{
	struct rpc_connection *connection = &server->connections[at];
	const struct ibv_qp_cap client_cap = {
		.max_send_wr = 2,
		.max_recv_wr = 1,
		.max_send_sge = 1,
		.max_recv_sge = 1,
	};
	struct ibv_qp_cap cap = {
		.max_send_wr = OWN_SENDS,
		.max_recv_wr = RPC_RECEIVES,
		.max_send_sge = 1,
		.max_recv_sge = 1,
	};
	size_t i;

	memset(connection, 0, sizeof(*connection));
	connection->server = server;
	server->rights->size(&cap, NULL);
	connection->qp = rc_qp(server->device, server->pd, server->cq, &cap,
			       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	client->qp = rc_qp(client->device, client->pd, client->cq, &client_cap, 0);
	rc_connect(server->device, connection->qp, client->qp);
	server->rights->admit(connection);
	make_slots(connection);
	for (i = 0; i < RPC_RECEIVES; i++)
		post_receive(connection, i);
}

void rpc_dismiss(struct rpc_server *server, size_t at)
{
	struct rpc_connection *connection = &server->connections[at];
	struct ibv_wc wcs[16];

	server->rights->dismiss(connection);
	if (ibv_destroy_qp(connection->qp))
		die("ibv_destroy_qp: %s", strerror(errno));
	connection->qp = NULL;
	/* What it left in the queue names a connection that the next one will have. */
	while (server->rights->poll(server, 16, wcs) > 0)
		;
}

/* ---- requests ---- */

/* A slot can be used again once no right to it is left and its client has ended it. */
static void retire(struct rpc_slot *slot)
{
	struct rpc_server *server = slot->connection->server;

	if (slot->open > 0 || !slot->ended || !slot->busy)
		return;
	slot->busy = false;
	if (slot->void_args)
		return;
	/* Only now can nobody change them any more. */
	if (crc32c(slot->memory[RPC_ARGS], slot->request.args_size) == slot->args_crc)
		server->accepted++;
	else
		server->refused++;
}

void rpc_right_gone(struct rpc_right *right)
{
	right->slot->open--;
	retire(right->slot);
}

int rpc_post(struct rpc_connection *connection, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	int error = ibv_post_send(connection->qp, first, bad);

	connection->server->posts++;
	connection->dead |= !demand(!error, "a reply can't be posted: %s", strerror(error));
	return error;
}

/* A slot for the request, with its results in place; NULL if it can't be had yet. */
static struct rpc_slot *begin(struct rpc_connection *connection, const struct rpc_message *message)
{
	struct rpc_slot *slot = &connection->slots[connection->current == &connection->slots[0]];

	if (slot->busy)
		return NULL;
	slot->request = *message;
	slot->ended = false;
	slot->void_args = false;
	rpc_fill(slot->memory[RPC_RESULTS], message->results_size, message->id);
	return slot;
}

/* False: not now. */
static bool answer(struct rpc_connection *connection, const struct rpc_message *message)
{
	struct rpc_server *server = connection->server;
	struct rpc_slot *last = connection->current, *next = NULL;
	size_t at = number_of(connection), buffer = connection->replies % RPC_REPLIES;
	struct rpc_reply *reply = &server->replies[at][buffer];
	struct ibv_sge sge = {
		.addr = (uintptr_t)reply,
		.length = sizeof(*reply),
		.lkey = server->messages_mr->lkey,
	};
	struct ibv_send_wr send = {
		.wr_id = WR_ID(REPLY, at, buffer),
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};
	bool fits = message->args_size - 1 < RPC_MOST && message->results_size - 1 < RPC_MOST;

	if (connection->replies - connection->replies_sent == RPC_REPLIES)
		return false;
	if (message->kind == RPC_CALL && fits && !(next = begin(connection, message)))
		return false;
	*reply = (struct rpc_reply){ .id = message->id };
	if (message->kind == RPC_CALL && !fits)
		reply->status = RPC_TOO_LARGE;
	if (next)
		next->busy = true;
	if (!server->rights->answer(connection, last, next, reply, &send)) {
		if (next)
			next->busy = false;
		return false;
	}
	connection->replies++;
	connection->current = next;
	server->answered++;
	if (last) {
		last->ended = true;
		last->void_args = message->kind == RPC_CANCEL;
		last->args_crc = message->args_crc;
		retire(last);
	}
	return true;
}

static void take_message(struct rpc_connection *connection, size_t buffer)
{
	struct rpc_message message = connection->server->messages[number_of(connection)][buffer];

	post_receive(connection, buffer);
	if (message.kind == RPC_GIVE_BACK)
		return;
	/* A client has one request at a time; whoever sends more breaks the rules. */
	if (connection->has_waiting || message.kind > RPC_CANCEL) {
		connection->dead = true;
		return;
	}
	connection->waiting = message;
	connection->has_waiting = true;
}

static bool poll_once(struct rpc_server *server)
{
	struct ibv_wc wcs[16];
	int i, n = server->rights->poll(server, 16, wcs);

	if (n < 0)
		die("polling the server's CQ failed");
	for (i = 0; i < n; i++) {
		struct rpc_connection *connection = &server->connections[wcs[i].wr_id >> 16 & 0xffff];

		if (wcs[i].status != IBV_WC_SUCCESS)
			connection->dead = true;
		else if (wcs[i].wr_id >> 32 == REPLY)
			connection->replies_sent++;
		else
			take_message(connection, wcs[i].wr_id & 0xffff);
	}
	return n > 0;
}

bool rpc_proofs_due(const struct rpc_server *server)
{
	size_t i, k;

	for (i = 0; i < RPC_CONNECTIONS; i++)
		for (k = 0; server->connections[i].qp && !server->connections[i].dead && k < 2; k++)
			if (server->connections[i].slots[k].busy && server->connections[i].slots[k].ended)
				return true;
	return false;
}

bool rpc_serve_once(struct rpc_server *server)
{
	bool something = poll_once(server);
	size_t i;

	for (i = 0; i < RPC_CONNECTIONS; i++) {
		struct rpc_connection *connection = &server->connections[i];

		if (connection->has_waiting && !connection->dead)
			connection->has_waiting = !answer(connection, &connection->waiting);
	}
	return something;
}

void rpc_serve(struct rpc_server *server, const atomic_int *running)
{
	while (atomic_load(running) > 0 || rpc_proofs_due(server))
		if (!rpc_serve_once(server))
			sched_yield();
}

/* ---- what both ends know ---- */

void rpc_fill(uint8_t *data, uint32_t size, uint32_t id)
{
	uint32_t i;

	for (i = 0; i < size; i++)
		data[i] = (uint8_t)(id * 31 + i * 7);
}
