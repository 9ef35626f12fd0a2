/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What windows cost an RPC server: the server of examples-c/rpc_server.c, the same with one open key
 * for everybody, and the same with two regions registered for each request.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../examples-c/common/rpc.h"
#include "common/scene.h"

#define SIZE 4096 /* bytes of arguments, and of results */
#define ROUNDS 9

/* ---- what both methods without windows share ---- */

static void plain_open(struct rpc_server *server)
{
	server->memory = aligned_alloc(4096, RPC_MEMORY);
	if (!server->memory)
		die("out of memory");
	memset(server->memory, 0, RPC_MEMORY);
	server->base = (uintptr_t)server->memory;
}

static void plain_close(struct rpc_server *server)
{
	free(server->memory);
}

static void plain_size(struct ibv_qp_cap *cap, int *cqe)
{
	(void)cap;
	(void)cqe;
}

static void plain_admit(struct rpc_connection *connection)
{
	struct rpc_server *server = connection->server;

	connection->base = server->base + (uint64_t)(connection - server->connections) * RPC_BLOCK;
}

static void plain_dismiss(struct rpc_connection *connection)
{
	(void)connection;
}

static int plain_poll(struct rpc_server *server, int n, struct ibv_wc *wcs)
{
	return ibv_poll_cq(server->cq, n, wcs);
}

static uint32_t size_of(const struct rpc_slot *slot, int range)
{
	return range == RPC_ARGS ? slot->request.args_size : slot->request.results_size;
}

static void begin(struct rpc_slot *slot, int range, uint32_t rkey, struct rpc_reply *reply)
{
	slot->open++;
	reply->ranges[range] = (struct rpc_range){ slot->addr[range], rkey, size_of(slot, range) };
}

/* ---- one key, open for everybody, always ---- */

static void open_key_open(struct rpc_server *server)
{
	plain_open(server);
	server->mr = ibv_reg_mr(server->pd, server->memory, RPC_MEMORY,
				IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	if (!server->mr)
		die("ibv_reg_mr: %s", strerror(errno));
}

static void open_key_close(struct rpc_server *server)
{
	if (ibv_dereg_mr(server->mr))
		die("ibv_dereg_mr: %s", strerror(errno));
	plain_close(server);
}

static bool open_key_answer(struct rpc_connection *connection, struct rpc_slot *last,
			    struct rpc_slot *next, struct rpc_reply *reply, struct ibv_send_wr *send)
{
	struct ibv_send_wr *bad;
	int range;

	for (range = 0; range < RPC_RANGES; range++) {
		if (next)
			begin(next, range, connection->server->mr->rkey, reply);
		if (last) /* in name alone: nothing keeps the client out */
			rpc_right_gone(&last->rights[range]);
	}
	rpc_post(connection, send, &bad);
	return true;
}

/* ---- two regions for each request ---- */

static void deregister(struct rpc_right *right)
{
	int error = right->mr ? ibv_dereg_mr(right->mr) : 0;

	if (error)
		die("ibv_dereg_mr: %s", strerror(error));
	right->mr = NULL;
}

static bool regions_answer(struct rpc_connection *connection, struct rpc_slot *last,
			   struct rpc_slot *next, struct rpc_reply *reply, struct ibv_send_wr *send)
{
	static const int access[RPC_RANGES] = {
		[RPC_ARGS] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
		[RPC_RESULTS] = IBV_ACCESS_REMOTE_READ,
	};
	struct ibv_send_wr *bad;
	int range;

	for (range = 0; range < RPC_RANGES; range++) {
		if (last) {
			deregister(&last->rights[range]);
			rpc_right_gone(&last->rights[range]);
		}
		if (next) {
			struct rpc_right *right = &next->rights[range];

			right->mr = ibv_reg_mr(connection->server->pd, next->memory[range],
					       size_of(next, range), access[range]);
			if (!right->mr)
				die("ibv_reg_mr: %s", strerror(errno));
			begin(next, range, right->mr->rkey, reply);
		}
	}
	rpc_post(connection, send, &bad);
	return true;
}

static void regions_dismiss(struct rpc_connection *connection)
{
	int i, range;

	for (i = 0; i < 2; i++)
		for (range = 0; range < RPC_RANGES; range++)
			deregister(&connection->slots[i].rights[range]);
}

static const struct rpc_rights open_key = {
	.open = open_key_open,
	.close = open_key_close,
	.size = plain_size,
	.admit = plain_admit,
	.dismiss = plain_dismiss,
	.answer = open_key_answer,
	.poll = plain_poll,
};

static const struct rpc_rights regions = {
	.open = plain_open,
	.close = plain_close,
	.size = plain_size,
	.admit = plain_admit,
	.dismiss = regions_dismiss,
	.answer = regions_answer,
	.poll = plain_poll,
};

/* ---- measuring ---- */

struct method {
	const char *name;
	const struct rpc_rights *rights;
	bool gives_back;
	unsigned int binds, invalidates; /* of a request */
};

static const struct method methods[] = {
	{ "windows, taken back by the next reply", &rpc_windows, false, RPC_RANGES, RPC_RANGES },
	{ "windows, given back by the client", &rpc_windows, true, RPC_RANGES, 0 },
	{ "no windows: mr->rkey open", &open_key, false, 0, 0 },
	{ "two regions registered a request", &regions, false, 0, 0 },
};

#define METHODS (sizeof(methods) / sizeof(methods[0]))

/* Seconds that the requests take: client and server take turns in one thread. */
static double run(struct rpc_server *server, struct rpc_client *client, unsigned int requests)
{
	uint64_t begun = clock_ns();
	unsigned int i;
	bool served = true;

	for (i = 0; i < requests && served; i++)
		served = rpc_request(client, SIZE, SIZE);
	demand(served && rpc_call(client, RPC_FINISH, 0, 0), "request %u failed", i);
	while (served && rpc_proofs_due(server))
		rpc_serve_once(server);
	return (double)(clock_ns() - begun) / NS_PER_S;
}

static struct mwctl_stats stats_of(const struct rpc_server *server)
{
	struct mwctl_stats stats = { 0 };

	if (server->ctx)
		must(mwctl_stats_get(server->ctx, &stats, sizeof(stats)), "mwctl_stats_get");
	return stats;
}

struct counts {
	uint64_t posts, binds, invalidates;
};

/* Requests per second. The counts are the same on every device and at any speed: they are demanded,
 * times never. */
static double measure(const struct rc_device *device, const struct method *method,
		      unsigned int requests, struct counts *counts)
{
	struct mwctl_stats before, after;
	struct rpc_client client;
	struct rpc_server server;
	double seconds;

	rpc_server_open(&server, device, method->rights);
	rpc_client_open(&client, device);
	rpc_connect(&server, 0, &client);
	client.gives_back = method->gives_back;
	client.same_thread = &server;
	before = stats_of(&server);
	seconds = run(&server, &client, requests);
	after = stats_of(&server);
	/* Our own posts, and the library's. The farewell is a reply as well, and a post. */
	counts->posts = server.posts + (after.posts - before.posts) - 1;
	counts->binds = after.binds_posted - before.binds_posted;
	counts->invalidates = after.invalidates_posted - before.invalidates_posted;
	demand(counts->posts == requests, "%s: %llu posts for %u requests", method->name,
	       (unsigned long long)counts->posts, requests);
	demand(counts->binds == requests * method->binds, "%s: %llu binds", method->name,
	       (unsigned long long)counts->binds);
	demand(counts->invalidates == requests * method->invalidates, "%s: %llu LOCAL_INVs", method->name,
	       (unsigned long long)counts->invalidates);
	demand(server.accepted == requests && server.refused == 0, "%s: arguments got lost", method->name);
	rpc_server_close(&server);
	rpc_client_close(&client);
	return requests / seconds;
}

/* The best run: whatever else the machine does only adds to its time. */
static double larger(double a, double b)
{
	return a > b ? a : b;
}

int main(int argc, char **argv)
{
	bool quick = argc == 2 && !strcmp(argv[1], "--short");
	unsigned int requests = quick ? 30 : 500;
	struct counts counts[METHODS];
	double best[METHODS] = { 0 };
	struct rc_device device;
	size_t i, round;

	if (argc > 1 && !quick) {
		fprintf(stderr, "usage: rpc [--short]\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	rc_open(&device);
	rc_describe(&device);
	if (device.in_process)
		printf("Between the methods its times say nothing: a post, a packet and a kernel call cost "
		       "nothing here.\n");
	printf("\nRequests of one client, %u bytes of arguments written and %u of results read in each\n"
	       "(best of %d runs of %u)\n\n"
	       "  method                                   requests/s   doorbells   binds   LOCAL_INVs\n",
	       SIZE, SIZE, ROUNDS, requests);
	/* In turn, so that what else the machine does meanwhile hits all of them. */
	for (round = 0; round < ROUNDS; round++)
		for (i = 0; i < METHODS; i++)
			best[i] = larger(best[i], measure(&device, &methods[i], requests, &counts[i]));
	for (i = 0; i < METHODS; i++)
		printf("  %-38s   %10.0f   %9.2f   %5.2f   %10.2f\n", methods[i].name,
		       best[i], (double)counts[i].posts / requests,
		       (double)counts[i].binds / requests, (double)counts[i].invalidates / requests);
	printf("\nDoorbells, binds and LOCAL_INVs are the server's for a request: its own calls of\n"
	       "ibv_post_send and libmwctl's.\n");
	scene_repeat(&device, argc, argv);
	rc_close(&device);
	return demands_failed() ? 1 : 0;
}
