/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What it costs to let a client in and to let it go: with a protection domain and a region of its own
 * (ibv_alloc_pd, ibv_reg_mr), and with a window into memory that is registered once
 * (mwctl_peer_attach, mwctl_grant). Its queue pair costs the same either way and is shown apart.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/scene.h"

#define CLIENTS 8 /* at a time */
#define LARGEST (16ull << 20)
#define BUDGET 4
#define LENGTHS 3
#define PASSES 5

/* In µs, the best of all clients so far: whatever else the machine does only adds to it. */
struct figures {
	double in, out, connect;
};

struct bench {
	const struct rc_device *device;
	struct ibv_pd *client_pd;
	struct ibv_cq *cq, *client_cq;
	uint8_t *memory;
	size_t rounds;
};

static double us_since(uint64_t begun)
{
	return (double)(clock_ns() - begun) / NS_PER_US;
}

static void better(double *best, double us)
{
	if (*best == 0 || us < *best)
		*best = us;
}

/* A connected pair; the µs that it took. */
static double connect_pair(const struct bench *bench, struct ibv_pd *pd, struct ibv_qp *pair[2])
{
	const struct ibv_qp_cap client = {
		.max_send_wr = 1,
		.max_recv_wr = 1,
		.max_send_sge = 1,
		.max_recv_sge = 1,
	};
	struct ibv_qp_cap server = client;
	uint64_t begun = clock_ns();

	must(mwctl_size_queues(BUDGET, &server, NULL), "mwctl_size_queues");
	pair[0] = rc_qp(bench->device, pd, bench->cq, &server,
			IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	pair[1] = rc_qp(bench->device, bench->client_pd, bench->client_cq, &client, 0);
	rc_connect(bench->device, pair[0], pair[1]);
	return us_since(begun);
}

static void destroy_pair(struct ibv_qp *pair[2])
{
	if (ibv_destroy_qp(pair[0]) || ibv_destroy_qp(pair[1]))
		die("ibv_destroy_qp: %s", strerror(errno));
}

static void regions(const struct bench *bench, uint64_t length, struct figures *best)
{
	struct ibv_qp *pairs[CLIENTS][2];
	struct ibv_pd *pds[CLIENTS];
	struct ibv_mr *mrs[CLIENTS];
	size_t round, i;
	uint64_t begun;

	for (round = 0; round < bench->rounds; round++) {
		for (i = 0; i < CLIENTS; i++) {
			begun = clock_ns();
			pds[i] = ibv_alloc_pd(bench->device->verbs);
			mrs[i] = pds[i] ? ibv_reg_mr(pds[i], bench->memory + i * LARGEST, length,
						     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
							     IBV_ACCESS_REMOTE_READ) :
					  NULL;
			if (!mrs[i])
				die("ibv_alloc_pd and ibv_reg_mr: %s", strerror(errno));
			better(&best->in, us_since(begun));
			better(&best->connect, connect_pair(bench, pds[i], pairs[i]));
		}
		for (i = 0; i < CLIENTS; i++) {
			destroy_pair(pairs[i]);
			begun = clock_ns();
			if (ibv_dereg_mr(mrs[i]) || ibv_dealloc_pd(pds[i]))
				die("ibv_dereg_mr and ibv_dealloc_pd: %s", strerror(errno));
			better(&best->out, us_since(begun));
		}
	}
}

static void windows(const struct bench *bench, uint64_t length, struct figures *best)
{
	const struct mwctl_attach_options memory = {
		.iova = (uintptr_t)bench->memory,
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND,
	};
	const struct mwctl_context_options patient = { .timeout_us = 30000000 };
	const struct mwctl_peer_options options = { .budget = BUDGET };
	const uint64_t wanted = bench->rounds * CLIENTS;
	struct ibv_pd *pd = ibv_alloc_pd(bench->device->verbs);
	struct mwctl_peer peers[CLIENTS];
	struct ibv_qp *pairs[CLIENTS][2];
	struct mwctl_stats stats = { 0 };
	struct mwctl_context *ctx;
	struct mwctl_domain domain;
	struct mwctl_region region;
	struct mwctl_result result;
	struct ibv_mr *mr;
	size_t round, i;
	uint64_t begun;

	mr = pd ? ibv_reg_mr(pd, bench->memory, CLIENTS * LARGEST, (int)memory.access) : NULL;
	if (!mr)
		die("ibv_alloc_pd and ibv_reg_mr: %s", strerror(errno));
	must(mwctl_context_open(bench->device->verbs, &patient, sizeof(patient), &ctx),
	     "mwctl_context_open");
	must(mwctl_domain_open(ctx, pd, NULL, 0, &domain), "mwctl_domain_open");
	must(mwctl_region_attach(ctx, domain, mr, &memory, sizeof(memory), &region), "mwctl_region_attach");
	for (round = 0; round < bench->rounds; round++) {
		for (i = 0; i < CLIENTS; i++) {
			struct mwctl_request ask = {
				.region = region,
				.addr = memory.iova + i * LARGEST,
				.length = length,
				.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
			};

			better(&best->connect, connect_pair(bench, pd, pairs[i]));
			begun = clock_ns();
			must(mwctl_peer_attach(ctx, domain, pairs[i][0], &options, sizeof(options), &peers[i]),
			     "mwctl_peer_attach");
			ask.peer = peers[i];
			must(mwctl_grant(ctx, &ask, 0, &result), "mwctl_grant");
			better(&best->in, us_since(begun));
		}
		for (i = 0; i < CLIENTS; i++) {
			begun = clock_ns();
			must(mwctl_peer_detach(ctx, peers[i], 0), "mwctl_peer_detach");
			better(&best->out, us_since(begun));
			destroy_pair(pairs[i]);
		}
	}
	must(mwctl_stats_get(ctx, &stats, sizeof(stats)), "mwctl_stats_get");
	demand(stats.binds_posted == wanted && stats.posts == 2 * wanted &&
		       stats.proved_invalidated == wanted,
	       "a client's window is one bind, one LOCAL_INV and two posts");
	must(mwctl_region_detach(ctx, region), "mwctl_region_detach");
	must(mwctl_domain_close(ctx, domain), "mwctl_domain_close");
	must(mwctl_context_close(ctx), "mwctl_context_close");
	if (ibv_dereg_mr(mr) || ibv_dealloc_pd(pd))
		die("ibv_dereg_mr and ibv_dealloc_pd: %s", strerror(errno));
}

static void print(const char *method, uint64_t length, const struct figures *best)
{
	printf("  %-28s   %8llu KiB   %9.1f µs   %9.1f µs   %11.1f µs\n", method,
	       (unsigned long long)(length >> 10), best->in, best->out, best->connect);
}

int main(int argc, char **argv)
{
	static const uint64_t lengths[LENGTHS] = { 64 << 10, 1 << 20, LARGEST };
	struct figures figures[LENGTHS][2] = { 0 };
	bool quick = argc == 2 && !strcmp(argv[1], "--short");
	struct bench bench = { .rounds = quick ? 1 : 5 };
	struct rc_device device;
	size_t pass, i;

	if (argc > 1 && !quick) {
		fprintf(stderr, "usage: accept [--short]\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	rc_open(&device);
	rc_describe(&device);
	scene_windows_at_most(&device, CLIENTS); /* skips where there are none */
	bench.device = &device;
	bench.client_pd = ibv_alloc_pd(device.verbs);
	bench.client_cq = ibv_create_cq(device.verbs, 16, NULL, NULL, 0);
	bench.cq = ibv_create_cq(device.verbs, CLIENTS * (BUDGET + 2), NULL, NULL, 0);
	bench.memory = aligned_alloc(4096, CLIENTS * LARGEST);
	if (!bench.client_pd || !bench.client_cq || !bench.cq || !bench.memory)
		die("a PD, CQs and memory: %s", strerror(errno));
	memset(bench.memory, 1, CLIENTS * LARGEST);
	/* In turn, so that what else the machine does meanwhile hits both methods. */
	for (pass = 0; pass < PASSES; pass++)
		for (i = 0; i < LENGTHS; i++) {
			regions(&bench, lengths[i], &figures[i][0]);
			windows(&bench, lengths[i], &figures[i][1]);
		}
	printf("\nLetting a client in and letting it go (best of %zu)\n\n"
	       "  method                               memory             in            out   its queue pairs\n",
	       PASSES * bench.rounds * CLIENTS);
	for (i = 0; i < LENGTHS; i++) {
		print("a PD and a region each", lengths[i], &figures[i][0]);
		print("a window each", lengths[i], &figures[i][1]);
	}
	scene_repeat(&device, argc, argv);
	if (ibv_destroy_cq(bench.cq) || ibv_destroy_cq(bench.client_cq) || ibv_dealloc_pd(bench.client_pd))
		die("verbs objects can't be destroyed: %s", strerror(errno));
	free(bench.memory);
	rc_close(&device);
	return demands_failed() ? 1 : 0;
}
