/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A key-value server whose clients READ and WRITE its table by themselves; the server's CPU takes
 * no part. Every client has two windows: its own rows, to write, and the whole table, to read. The
 * operator kicks one client: both its windows are revoked, its next access is refused, and the
 * others go on.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/rdmacm/cm.h"
#include "common/rdmacm/sides.h"
#include "common/report.h"
#include "kv_server/client.h"
#include "kv_server/table.h"
#include "mwctl.h"

#define SETTLING (50 * NS_PER_MS) /* where memory is not at rest with the proof */

/* ---- the server ---- */

struct seat {
	struct link link;
	mwctl_peer peer;
	const struct record *rows;
	uint64_t newest; /* the highest sequence number seen in its rows */
	uint64_t mark;   /* the same once somebody was kicked */
	bool stopped, hung_up, dead;
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

/* Nothing has arrived. Who hung up before this was so has nothing more to say. */
static void look_for_the_dead(void)
{
	struct seat *seat;

	for (seat = server.seats; seat < server.seats + CLIENTS; seat++) {
		seat->dead |= seat->hung_up;
		seat->hung_up |= cm_hung_up(&seat->link);
	}
}

/* What arrived, and who died. libmwctl's own completions are taken in on the way. */
static void poll_clients(void)
{
	struct ibv_wc wcs[16];
	struct message message;
	int i, k, n = mwctl_poll_cq(server.ctx, server.cq, 16, wcs);

	if (n < 0)
		die("mwctl_poll_cq failed");
	if (n == 0) {
		look_for_the_dead();
		sched_yield();
	}
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

static void serve(void)
{
	static struct record copy[ROWS];
	const struct message stop = { .what = STOP };
	struct seat *seat;
	int k;

	for (k = 0; k < CLIENTS; k++)
		welcome(k);
	for (k = 0; k < CLIENTS; k++)
		wait_for_records(k, SOME);
	kick(KICKED, copy);
	/* It uses its old keys, which costs it its connection and changes nothing. */
	while (!server.seats[KICKED].dead && !memcmp(copy, server.seats[KICKED].rows, ROWS_SIZE))
		poll_clients();
	/* The others go on: as many good records again. */
	for (k = 0; k < CLIENTS; k++) {
		seat = &server.seats[k];
		if (k == KICKED)
			continue;
		look(k);
		seat->mark = seat->newest;
		wait_for_records(k, seat->mark + SOME);
		printf("server: client %d went on from record %llu to %llu\n", k,
		       (unsigned long long)seat->mark, (unsigned long long)seat->newest);
	}
	demand(!memcmp(copy, server.seats[KICKED].rows, ROWS_SIZE),
	       "rows of client %d changed after the proof", KICKED);
	for (k = 0; k < CLIENTS; k++) {
		seat = &server.seats[k];
		if (k == KICKED)
			continue;
		link_send(&seat->link, &stop, sizeof(stop));
		while (!seat->stopped && !seat->dead)
			poll_clients();
		demand(seat->stopped, "client %d lost its connection", k);
	}
}

static void server_close(void)
{
	int k;

	for (k = 0; k < CLIENTS; k++) {
		/* Before the queue pair is destroyed, or moved to ERR by rdma_disconnect. */
		must(mwctl_peer_detach(server.ctx, server.seats[k].peer, 0), "mwctl_peer_detach");
		cm_close(&server.seats[k].link);
	}
	must(mwctl_region_detach(server.ctx, server.region), "mwctl_region_detach");
	must(mwctl_domain_close(server.ctx, server.domain), "mwctl_domain_close");
	must(mwctl_context_close(server.ctx), "mwctl_context_close");
	if (ibv_destroy_cq(server.cq) || ibv_dealloc_pd(server.pd))
		die("the server's CQ or PD can't be destroyed");
}

/* ---- three ways to run ---- */

static struct client clients[CLIENTS];

static void clients_run(void (*meanwhile)(void))
{
	int k;

	for (k = 0; k < CLIENTS; k++)
		client_start(&clients[k]);
	if (meanwhile)
		meanwhile();
	for (k = 0; k < CLIENTS; k++)
		client_join(&clients[k]);
	for (k = 0; k < CLIENTS; k++)
		client_close(&clients[k]);
}

static void in_one_process(void)
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
	clients_run(serve);
	server_close();
	rc_close(&device);
}

static void only_server(const char *address)
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
	serve();
	server_close();
	rdma_destroy_id(listener);
}

static void only_clients(const char *from, const char *to)
{
	struct rdma_cm_id *id;
	int k;

	for (k = 0; k < CLIENTS; k++) {
		id = cm_resolve(from, to, PORT);
		client_open(&clients[k], id->verbs, (uint32_t)k);
		cm_connect(id, &clients[k].link, clients[k].pd, clients[k].cq, (uint32_t)k);
	}
	clients_run(NULL);
}

int main(int argc, char **argv)
{
	static const struct sides sides = {
		.name = "kv_server",
		.server = "the server",
		.clients = "its clients",
		.outcome = "the client that was kicked was shut out and the others went on",
		.in_one_process = in_one_process,
		.only_server = only_server,
		.only_clients = only_clients,
	};

	return sides_main(argc, argv, &sides);
}
