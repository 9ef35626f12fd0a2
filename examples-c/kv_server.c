/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A key-value server whose clients READ and WRITE its table by themselves; the server's CPU takes
 * no part. Every client has two windows: its own rows, to write, and the whole table, to read. The
 * operator kicks one client: both its windows are revoked, its next access is refused, and the
 * others go on.
 */
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/link.h"
#include "common/rdmacm/cm.h"
#include "common/record.h"
#include "common/report.h"
#include "mwctl.h"

#define CLIENTS 3
#define ROWS 64 /* of each client; a row's key is its number, its value a record */
#define TABLE_SIZE (CLIENTS * ROWS * sizeof(struct record))
#define ROWS_SIZE (ROWS * sizeof(struct record))
#define PORT 7471
#define TIME_LIMIT 120       /* seconds, whatever happens */
#define SOME 50              /* records: what counts as a client at work */
#define SETTLING (50 * NS_PER_MS) /* where memory is not at rest with the proof */

/* What the server and a client say to each other. */
enum what { WELCOME, STOP, STOPPED };
struct message {
	uint32_t what;
	uint32_t table_key, rows_key; /* WELCOME */
	uint64_t table, rows;
};
_Static_assert(sizeof(struct message) <= LINK_MESSAGE, "a message fits");

/* ---- the server ---- */

struct seat {
	struct link link;
	mwctl_peer peer;
	const struct record *rows;
	uint64_t newest; /* the highest sequence number seen in its rows */
	uint64_t mark;   /* the same when somebody was kicked */
	bool stopped, dead;
};

static struct server {
	mwctl_context *ctx;
	mwctl_domain domain;
	mwctl_region region;
	uint64_t table; /* its address, as clients name it */
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct seat seats[CLIENTS];
	bool at_rest;
} server;

static void server_open(struct ibv_context *device)
{
	mwctl_capabilities capabilities = { 0 };
	mwctl_region_info info = { 0 };
	int cqe = 0, k;

	must(mwctl_context_open(device, NULL, 0, &server.ctx), "mwctl_context_open");
	must(mwctl_capabilities_get(server.ctx, &capabilities, sizeof(capabilities)),
	     "mwctl_capabilities_get");
	if (!capabilities.type2)
		skip("the device has no Type 2 memory windows");
	server.at_rest = capabilities.memory_at_rest;
	for (k = 0; k < CLIENTS; k++)
		link_size(true, &cqe);
	server.pd = ibv_alloc_pd(device);
	server.cq = ibv_create_cq(device, cqe, NULL, NULL, 0);
	if (!server.pd || !server.cq)
		die("no PD or no CQ");
	must(mwctl_domain_open(server.ctx, server.pd, NULL, 0, &server.domain), "mwctl_domain_open");
	/* Zeroed, and closed to everybody who has no window. */
	must(mwctl_region_register(server.ctx, server.domain, TABLE_SIZE, NULL, 0, &server.region),
	     "mwctl_region_register");
	must(mwctl_region_info_get(server.ctx, server.region, &info, sizeof(info)),
	     "mwctl_region_info_get");
	server.table = info.addr;
}

/* Hands a connected client its two windows. The keys travel after both binds have completed. */
static void welcome(int k)
{
	struct seat *seat = &server.seats[k];
	mwctl_request asked[2];
	mwctl_result granted[2];
	struct message hello = { .what = WELCOME, .table = server.table };

	hello.rows = server.table + (uint64_t)k * ROWS_SIZE;
	seat->rows = (const struct record *)(uintptr_t)hello.rows;
	must(mwctl_peer_attach(server.ctx, server.domain, seat->link.qp, NULL, 0, &seat->peer),
	     "mwctl_peer_attach");
	asked[0] = (mwctl_request){ .peer = seat->peer, .region = server.region, .addr = hello.table,
				    .length = TABLE_SIZE, .access = IBV_ACCESS_REMOTE_READ };
	asked[1] = (mwctl_request){ .peer = seat->peer, .region = server.region, .addr = hello.rows,
				    .length = ROWS_SIZE, .access = IBV_ACCESS_REMOTE_WRITE };
	must(mwctl_grant_batch(server.ctx, asked, 2, 0, granted), "mwctl_grant_batch");
	hello.table_key = granted[0].rkey;
	hello.rows_key = granted[1].rkey;
	link_send(&seat->link, &hello, sizeof(hello));
}

/* What arrived, and who died. libmwctl's own completions are taken in on the way. */
static void poll_clients(void)
{
	struct ibv_wc wcs[16];
	struct message message;
	int i, k, n = mwctl_poll_cq(server.ctx, server.cq, 16, wcs);

	if (n < 0)
		die("mwctl_poll_cq failed");
	if (n == 0)
		sched_yield();
	for (i = 0; i < n; i++) {
		for (k = 0; k < CLIENTS && server.seats[k].link.qp->qp_num != wcs[i].qp_num; k++)
			;
		if (k == CLIENTS)
			continue;
		if (wcs[i].status != IBV_WC_SUCCESS)
			server.seats[k].dead = true;
		else if (link_received(&server.seats[k].link, &wcs[i], &message, sizeof(message)))
			server.seats[k].stopped |= message.what == STOPPED;
	}
}

/* Looks at one client's rows. A record that is being written has a wrong checksum for a moment. */
static void look(int k)
{
	struct seat *seat = &server.seats[k];
	struct record record;
	size_t row;

	for (row = 0; row < ROWS; row++) {
		memcpy(&record, &seat->rows[row], sizeof(record));
		if (record.sequence > seat->newest && record_is_good(&record, (uint32_t)k))
			seat->newest = record.sequence;
	}
}

static void wait_for_records(int k, uint64_t newest)
{
	while (server.seats[k].newest < newest) {
		if (server.seats[k].dead)
			die("client %d: lost its connection", k);
		poll_clients();
		look(k);
	}
}

static void kick(int k, struct record *copy)
{
	size_t ended = 0;

	must(mwctl_revoke_peer(server.ctx, server.seats[k].peer, 0, MWCTL_KILL_ALLOWED, &ended),
	     "mwctl_revoke_peer");
	demand(ended == 2, "%zu of client %d's 2 windows were revoked", ended, k);
	/* No access starts any more. Soft-RoCE may still be copying what had begun. */
	if (!server.at_rest)
		clock_sleep_until(clock_ns() + SETTLING);
	memcpy(copy, server.seats[k].rows, ROWS_SIZE);
	look(k);
	printf("server: client %d kicked after record %llu\n", k,
	       (unsigned long long)server.seats[k].newest);
}

static void serve(int kicked)
{
	static struct record copy[ROWS];
	const struct message stop = { .what = STOP };
	int k;

	for (k = 0; k < CLIENTS; k++)
		welcome(k);
	for (k = 0; k < CLIENTS; k++)
		wait_for_records(k, SOME);
	kick(kicked, copy);
	for (k = 0; k < CLIENTS; k++)
		server.seats[k].mark = server.seats[k].newest;
	/* The others go on: as many records again, and what they wrote is good. */
	for (k = 0; k < CLIENTS; k++)
		if (k != kicked)
			wait_for_records(k, server.seats[k].mark + SOME);
	/* The kicked one uses its old key, which costs it the connection, and nobody else theirs. */
	while (!server.seats[kicked].dead)
		poll_clients();
	demand(!memcmp(copy, server.seats[kicked].rows, ROWS_SIZE),
	       "rows of client %d changed after the proof", kicked);
	for (k = 0; k < CLIENTS; k++) {
		if (k == kicked)
			continue;
		link_send(&server.seats[k].link, &stop, sizeof(stop));
		while (!server.seats[k].stopped && !server.seats[k].dead)
			poll_clients();
		look(k);
		demand(!server.seats[k].dead, "client %d lost its connection", k);
		printf("server: client %d went on from record %llu to %llu\n", k,
		       (unsigned long long)server.seats[k].mark,
		       (unsigned long long)server.seats[k].newest);
	}
}

static void hang_up(struct link *link)
{
	if (link->id)
		cm_hang_up(link);
	link_close(link);
}

static void server_close(void)
{
	int k;

	for (k = 0; k < CLIENTS; k++) {
		/* Before the queue pair is destroyed, or moved to ERR by rdma_disconnect. */
		must(mwctl_peer_detach(server.ctx, server.seats[k].peer, 0), "mwctl_peer_detach");
		hang_up(&server.seats[k].link);
	}
	must(mwctl_region_detach(server.ctx, server.region), "mwctl_region_detach");
	must(mwctl_domain_close(server.ctx, server.domain), "mwctl_domain_close");
	must(mwctl_context_close(server.ctx), "mwctl_context_close");
	if (ibv_destroy_cq(server.cq) || ibv_dealloc_pd(server.pd))
		die("the server's CQ or PD can't be destroyed");
}

/* ---- a client: plain verbs ---- */

static struct client {
	struct link link;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct { struct record out, in; } row;
	uint32_t me;
	uint64_t written, read, torn;
	enum ibv_wc_status end; /* SUCCESS if it was asked to stop */
	pthread_t thread;
} clients[CLIENTS];

static void client_open(struct client *client, struct ibv_context *device, uint32_t me)
{
	int cqe = 0;

	client->me = me;
	link_size(false, &cqe);
	client->pd = ibv_alloc_pd(device);
	client->cq = ibv_create_cq(device, cqe, NULL, NULL, 0);
	if (!client->pd || !client->cq)
		die("no PD or no CQ");
	client->mr = ibv_reg_mr(client->pd, &client->row, sizeof(client->row), IBV_ACCESS_LOCAL_WRITE);
	if (!client->mr)
		die("ibv_reg_mr failed");
}

static enum ibv_wc_status put(struct client *client, const struct message *keys, uint64_t sequence)
{
	struct ibv_sge from = { (uintptr_t)&client->row.out, sizeof(client->row.out), client->mr->lkey };
	uint64_t row = sequence % ROWS;

	record_fill(&client->row.out, client->me, sequence, true);
	return link_access(&client->link, IBV_WR_RDMA_WRITE, &from,
			   keys->rows + row * sizeof(struct record), keys->rows_key);
}

/* Into row.in. A READ may see half of somebody's WRITE; the checksum tells, and it reads again. */
static enum ibv_wc_status get(struct client *client, const struct message *keys, uint64_t row)
{
	struct ibv_sge to = { (uintptr_t)&client->row.in, sizeof(client->row.in), client->mr->lkey };
	enum ibv_wc_status status;

	for (;;) {
		status = link_access(&client->link, IBV_WR_RDMA_READ, &to,
				     keys->table + row * sizeof(struct record), keys->table_key);
		if (status != IBV_WC_SUCCESS || client->row.in.sequence == 0 ||
		    record_is_good(&client->row.in, (uint32_t)(row / ROWS)))
			return status;
		client->torn++;
	}
}

/* Writes a row, reads it back, reads somebody else's; until it is told to stop, or kicked. */
static void *client_main(void *argument)
{
	struct client *client = argument;
	struct message keys, message = { 0 };
	uint64_t own;

	link_wait(&client->link, &keys, sizeof(keys));
	while (!link_poll(&client->link, &message, sizeof(message))) {
		uint64_t sequence = client->written + 1;

		client->end = put(client, &keys, sequence);
		if (client->end != IBV_WC_SUCCESS)
			return NULL;
		client->written = sequence;
		own = client->me * ROWS + sequence % ROWS;
		client->end = get(client, &keys, own);
		if (client->end == IBV_WC_SUCCESS) {
			demand(client->row.in.sequence == sequence, "client %u: reads %llu, not the %llu it wrote",
			       client->me, (unsigned long long)client->row.in.sequence,
			       (unsigned long long)sequence);
			client->end = get(client, &keys, (own + ROWS) % (CLIENTS * ROWS));
		}
		if (client->end != IBV_WC_SUCCESS)
			return NULL;
		client->read += 2;
	}
	message.what = STOPPED;
	link_send(&client->link, &message, sizeof(message));
	link_drain(&client->link);
	return NULL;
}

static void clients_start(void)
{
	int k;

	for (k = 0; k < CLIENTS; k++)
		if (pthread_create(&clients[k].thread, NULL, client_main, &clients[k]))
			die("pthread_create failed");
}

static void clients_join(int kicked)
{
	int k;

	for (k = 0; k < CLIENTS; k++) {
		struct client *client = &clients[k];

		pthread_join(client->thread, NULL);
		printf("client %d: %llu records written, %llu read (%llu torn ones again), then %s\n", k,
		       (unsigned long long)client->written, (unsigned long long)client->read,
		       (unsigned long long)client->torn,
		       client->end == IBV_WC_SUCCESS ? "asked to stop" : ibv_wc_status_str(client->end));
		demand(client->written >= SOME, "client %d wrote next to nothing", k);
		demand(client->end == (k == kicked ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS),
		       "client %d ended with: %s", k, ibv_wc_status_str(client->end));
	}
}

static void clients_close(void)
{
	int k;

	for (k = 0; k < CLIENTS; k++) {
		hang_up(&clients[k].link);
		if (ibv_dereg_mr(clients[k].mr) || ibv_destroy_cq(clients[k].cq) ||
		    ibv_dealloc_pd(clients[k].pd))
			die("client %d's objects can't be destroyed", k);
	}
}

/* ---- three ways to run ---- */

static void in_one_process(int kicked)
{
	struct rc_device device;
	int k;

	rc_open(&device);
	server_open(device.verbs);
	for (k = 0; k < CLIENTS; k++) {
		client_open(&clients[k], device.verbs, (uint32_t)k);
		link_pair(&device, &server.seats[k].link, server.pd, server.cq, &clients[k].link,
			  clients[k].pd, clients[k].cq);
	}
	clients_start();
	serve(kicked);
	clients_join(kicked);
	clients_close();
	server_close();
	rc_close(&device);
}

static void only_server(const char *address, int kicked)
{
	struct rdma_cm_id *listener = cm_listen(address, PORT), *id;
	uint32_t who;
	int k;

	server_open(listener->verbs);
	for (k = 0; k < CLIENTS; k++) {
		id = cm_request(listener, &who);
		if (who >= CLIENTS || server.seats[who].link.qp)
			die("a client says that it is number %u", who);
		cm_accept(id, &server.seats[who].link, server.pd, server.cq);
	}
	serve(kicked);
	server_close();
	rdma_destroy_id(listener);
}

static void only_clients(const char *from, const char *to, int kicked)
{
	struct rdma_cm_id *id;
	int k;

	for (k = 0; k < CLIENTS; k++) {
		id = cm_resolve(from, to, PORT);
		client_open(&clients[k], id->verbs, (uint32_t)k);
		cm_connect(id, &clients[k].link, clients[k].pd, clients[k].cq, (uint32_t)k);
	}
	clients_start();
	clients_join(kicked);
	clients_close();
}

static void usage(FILE *to)
{
	fprintf(to, "usage: kv_server [--kick N]                          server and clients in one process\n"
		    "       kv_server [--kick N] --listen ADDRESS         the server\n"
		    "       kv_server [--kick N] --connect ADDRESS [--from ADDRESS]   its %d clients\n\n"
		    "  --kick N   which client the operator kicks, 0 to %d (1); the same for both sides\n\n"
		    "Ends with 0 if that client, and no other, was shut out; 77 if it can't run here.\n",
		CLIENTS, CLIENTS - 1);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "listen", required_argument, NULL, 'l' }, { "connect", required_argument, NULL, 'c' },
		{ "from", required_argument, NULL, 'f' },   { "kick", required_argument, NULL, 'k' },
		{ "help", no_argument, NULL, 'h' },	    { NULL, 0, NULL, 0 },
	};
	const char *listen = NULL, *connect = NULL, *from = NULL;
	int which, kicked = 1;

	while ((which = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (which) {
		case 'l': listen = optarg; break;
		case 'c': connect = optarg; break;
		case 'f': from = optarg; break;
		case 'k': kicked = atoi(optarg); break;
		case 'h': usage(stdout); return 0;
		default: usage(stderr); return 2;
		}
	}
	if (optind < argc || (listen && connect) || (from && !connect) || kicked < 0 ||
	    kicked >= CLIENTS) {
		usage(stderr);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	time_limit(TIME_LIMIT);
	crc32c_init();
	if (listen)
		only_server(listen, kicked);
	else if (connect)
		only_clients(from, connect, kicked);
	else
		in_one_process(kicked);
	return demands_failed() ? 1 : 0;
}
