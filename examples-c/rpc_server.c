/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An RPC server that opens two windows for each request: one that the client writes its arguments
 * into, one that it reads the results out of. A reply, the binds that it tells of and the LOCAL_INVs
 * that take the last request's windows back are one post (common/rpc_windows.c). A client may give
 * them back itself; a request that is cancelled loses them at once.
 *
 * Server and clients live in one process: a thread for each client, and the server on the first.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/report.h"
#include "common/rpc.h"

#define CLIENTS 3
#define SIZE 4096 /* of arguments, and of results */

/* A client's part in a scene. */
struct part {
	struct rpc_client client;
	pthread_t thread;
	atomic_int *running;
	int requests;
};

static struct rc_device device;
static struct rpc_server server;
static struct part parts[CLIENTS];

static void *finish(struct part *part)
{
	atomic_fetch_sub(part->running, 1);
	return NULL;
}

/* Every client's part in threads of their own, the server here until the last has ended. */
static void play(void *(*play_part[CLIENTS])(void *))
{
	atomic_int running = 0;
	size_t i;

	for (i = 0; i < CLIENTS; i++)
		if (play_part[i])
			atomic_fetch_add(&running, 1);
	for (i = 0; i < CLIENTS; i++) {
		parts[i].running = &running;
		if (play_part[i] && pthread_create(&parts[i].thread, NULL, play_part[i], &parts[i]))
			die("pthread_create failed");
	}
	rpc_serve(&server, &running);
	for (i = 0; i < CLIENTS; i++)
		if (play_part[i])
			pthread_join(parts[i].thread, NULL);
}

/* ---- requests, one after the other ---- */

static void *work(void *argument)
{
	struct part *part = argument;
	int i;

	for (i = 0; i < part->requests; i++)
		if (!demand(rpc_request(&part->client, SIZE, SIZE), "request %d failed", i))
			return finish(part);
	demand(rpc_call(&part->client, RPC_FINISH, 0, 0), "the last request can't be ended");
	return finish(part);
}

static void scene_requests(int requests, bool gives_back)
{
	void *(*all[CLIENTS])(void *) = { work, work, work };
	struct mwctl_stats before = { 0 }, after = { 0 };
	uint64_t posts = server.posts, answered = server.answered, accepted = server.accepted;
	uint64_t wanted = (uint64_t)requests * CLIENTS, windows = wanted * RPC_RANGES;
	size_t i;

	for (i = 0; i < CLIENTS; i++) {
		parts[i].requests = requests;
		parts[i].client.gives_back = gives_back;
	}
	must(mwctl_stats_get(server.ctx, &before, sizeof(before)), "mwctl_stats_get");
	play(all);
	must(mwctl_stats_get(server.ctx, &after, sizeof(after)), "mwctl_stats_get");
	posts = server.posts - posts + (after.posts - before.posts);
	answered = server.answered - answered;
	printf("  replies %llu, posts %llu, binds %llu, LOCAL_INVs %llu, given back %llu\n",
	       (unsigned long long)answered, (unsigned long long)posts,
	       (unsigned long long)(after.binds_posted - before.binds_posted),
	       (unsigned long long)(after.invalidates_posted - before.invalidates_posted),
	       (unsigned long long)(after.proved_peer_invalidated - before.proved_peer_invalidated));
	demand(answered == wanted + CLIENTS, "each request and each farewell has a reply");
	demand(posts == answered, "a reply with its binds and LOCAL_INVs is one post");
	demand(after.binds_posted - before.binds_posted == windows, "two binds a request");
	demand(after.invalidates_posted - before.invalidates_posted == (gives_back ? 0 : windows),
	       "a window that was not given back is invalidated once, one that was not at all");
	demand(server.accepted - accepted == wanted && server.refused == 0,
	       "the arguments of each request are what its client wrote");
}

/* ---- a request that is cancelled ---- */

static enum ibv_wc_status late_status = IBV_WC_SUCCESS;
static uint64_t late_addr;
static uint32_t untouched_id; /* whose arguments must be left there */

/* Half of a request: the arguments are written, and then its user loses interest. */
static struct rpc_range cancel_halfway(struct rpc_client *client)
{
	struct rpc_range args = { 0 };

	if (!demand(rpc_call(client, RPC_CALL, SIZE, SIZE), "the request failed"))
		return args;
	args = client->request.ranges[RPC_ARGS];
	demand(rpc_write_args(client, &args, client->id) == IBV_WC_SUCCESS,
	       "before it is cancelled a request can be worked on");
	demand(rpc_call(client, RPC_CANCEL, 0, 0), "cancelling failed");
	return args;
}

/* Stops when told so, and keeps its connection. */
static void *heed(void *argument)
{
	struct part *part = argument;

	cancel_halfway(&part->client);
	demand(rpc_request(&part->client, SIZE, SIZE), "a client that stopped is not served");
	demand(rpc_call(&part->client, RPC_FINISH, 0, 0), "the last request can't be ended");
	return finish(part);
}

/* Has not heard of it: its next write uses a key that is gone. */
static void *come_late(void *argument)
{
	struct part *part = argument;
	struct rpc_range args = cancel_halfway(&part->client);

	late_addr = args.addr;
	untouched_id = part->client.id - 1; /* the cancellation was the last */
	if (args.rkey)
		late_status = rpc_write_args(&part->client, &args, untouched_id + 1);
	return finish(part);
}

static bool late_args_are(uint32_t id)
{
	uint8_t wanted[SIZE];

	rpc_fill(wanted, SIZE, id);
	return late_addr && !memcmp(server.memory + (late_addr - server.base), wanted, SIZE);
}

static void scene_cancel(void)
{
	void *(*well[CLIENTS])(void *) = { work, heed, NULL };
	void *(*ill[CLIENTS])(void *) = { work, NULL, come_late };
	void *(*again[CLIENTS])(void *) = { NULL, NULL, work };
	struct rpc_connection *late = &server.connections[2];
	uint64_t accepted = server.accepted;
	size_t i;

	for (i = 0; i < CLIENTS; i++)
		parts[i].client.gives_back = false;
	play(well);
	demand(!server.connections[0].dead && !server.connections[1].dead,
	       "a client that stops keeps its connection");
	demand(server.accepted - accepted == (uint64_t)parts[0].requests + 1,
	       "the arguments of the cancelled request are void, all others count");
	printf("  a client that stopped: its connection lives, its next request was served\n");

	accepted = server.accepted;
	play(ill);
	demand(late_status == IBV_WC_REM_ACCESS_ERR, "the late write ended with \"%s\"",
	       ibv_wc_status_str(late_status));
	demand(late_args_are(untouched_id), "the late write changed memory");
	demand(!server.connections[0].dead, "another client's connection broke");
	demand(server.accepted - accepted == (uint64_t)parts[0].requests,
	       "the other client was not served");
	printf("  a client that came late: its write ended with \"%s\" and changed nothing;\n"
	       "  another client's %d requests went on meanwhile\n",
	       ibv_wc_status_str(late_status), parts[0].requests);

	/* Its queue pairs are in ERR: the server's goes, and the client may come back. */
	rpc_dismiss(&server, 2);
	rpc_client_close(&parts[2].client);
	rpc_client_open(&parts[2].client, &device);
	rpc_connect(&server, 2, &parts[2].client);
	play(again);
	demand(!late->dead, "a client that came back is not served");
	printf("  its queue pairs were in ERR; with new ones it is served again\n");
}

int main(int argc, char **argv)
{
	bool quick = argc == 2 && !strcmp(argv[1], "--short");
	int requests = quick ? 30 : 1000;
	size_t i;

	if (argc > 1 && !quick) {
		fprintf(stderr, "usage: rpc_server [--short]\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	rc_open(&device);
	rc_describe(&device);
	rpc_server_open(&server, &device, &rpc_windows);
	for (i = 0; i < CLIENTS; i++) {
		rpc_client_open(&parts[i].client, &device);
		rpc_connect(&server, i, &parts[i].client);
	}
	printf("\n%d clients, %d requests each: the next reply takes the windows back\n", CLIENTS, requests);
	scene_requests(requests, false);
	printf("\nThe same, and the clients give them back by SEND_WITH_INV\n");
	scene_requests(requests, true);
	printf("\nA request is cancelled\n");
	scene_cancel();
	rpc_server_close(&server);
	for (i = 0; i < CLIENTS; i++)
		rpc_client_close(&parts[i].client);
	rc_close(&device);
	printf("\n%s\n", demands_failed() ? "FAILED" : "All as promised.");
	return demands_failed() ? 1 : 0;
}
