/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "cost.h"

#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "mwctl_sim.h"
#include "report.h"
#include "server.h"
#include "stats.h"

#define MOST 1000
#define MAX_ROUNDS 31

struct counts {
	uint64_t posts, completions;         /* as the library counts its own */
	uint64_t device_posts, device_completions; /* as the device in the process sees all */
};

static struct counts count(const struct server *server)
{
	struct mwctl_sim_counters device = { 0 };
	struct mwctl_stats stats = { 0 };

	must(mwctl_stats_get(server->ctx, &stats, sizeof(stats)), "mwctl_stats_get");
	if (mwctl_sim_present())
		mwctl_sim_counters_get(&device, sizeof(device));
	return (struct counts){ stats.posts, stats.completions, device.posts, device.completions };
}

/* Revokes n windows of the only client; returns the time in ns. */
static uint64_t revoke(struct server *server, size_t n, bool batched, struct counts *spent)
{
	static struct mwctl_result results[MOST];
	struct seat *seat = &server->seats[0];
	struct counts before, after;
	uint64_t begun, ended;
	size_t i, proved = 0;

	server_grant(server, 0, n);
	before = count(server);
	begun = clock_ns();
	if (batched)
		mwctl_revoke_batch(server->ctx, seat->grants, n, 0, MWCTL_KILL_NEVER, results);
	else
		for (i = 0; i < n; i++)
			mwctl_revoke(server->ctx, seat->grants[i], 0, &results[i]);
	ended = clock_ns();
	after = count(server);
	for (i = 0; i < n; i++)
		proved += results[i].status == MWCTL_STATUS_OK &&
			  results[i].proof == MWCTL_PROOF_INVALIDATED;
	demand(proved == n, "%zu of %zu windows were proved invalidated", proved, n);
	*spent = (struct counts){ after.posts - before.posts, after.completions - before.completions,
				  after.device_posts - before.device_posts,
				  after.device_completions - before.device_completions };
	return ended - begun;
}

/* The median per window in µs, and the counts of the last round. */
static double measure(struct server *server, size_t n, bool batched, size_t rounds,
		      struct counts *spent)
{
	double samples[MAX_ROUNDS];
	size_t round;

	for (round = 0; round < rounds; round++) {
		samples[round] = (double)revoke(server, n, batched, spent) / (double)n / 1e3;
		if (!batched)
			continue;
		demand(spent->posts == 1 && spent->completions == 1,
		       "a chain of %zu took %llu posts and %llu signaled completions", n,
		       (unsigned long long)spent->posts, (unsigned long long)spent->completions);
		if (mwctl_sim_present())
			demand(spent->device_posts == 1 && spent->device_completions == 1,
			       "for a chain of %zu the device saw %llu posts and %llu completions", n,
			       (unsigned long long)spent->device_posts,
			       (unsigned long long)spent->device_completions);
	}
	return stats_median(samples, rounds);
}

void cost_run(const struct rc_device *device, bool quick)
{
	static const size_t sizes[] = { 1, 10, 100, MOST };
	static const size_t rounds[] = { 31, 31, 15, 7 }, quick_rounds[] = { 15, 31, 5, 3 };
	static struct server server;
	static struct writer writer;
	double batched, single;
	struct counts spent;
	size_t i;

	server_open(&server, device, METHOD_BATCH, MOST);
	writer_open(&writer, device, 0);
	server_admit(&server, 0, &writer);
	must(mwctl_revoke_peer(server.ctx, server.seats[0].peer, 0, MWCTL_KILL_NEVER, NULL),
	     "mwctl_revoke_peer");
	printf("\nRevoking windows of one idle client (medians; a chain: one mwctl_revoke_batch)\n\n"
	       "  windows    batched, each    one by one, each    ratio    posts a chain    signaled "
	       "completions\n");
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		size_t n = quick ? quick_rounds[i] : rounds[i];

		/* Fewer rounds of what takes longer. */
		single = measure(&server, sizes[i], false, (n + 2) / 3, &spent);
		batched = measure(&server, sizes[i], true, n, &spent);
		printf("  %7zu    %10.2f µs    %13.2f µs    %5.1f    %13llu    %20llu\n", sizes[i], batched,
		       single, single / batched, (unsigned long long)spent.posts,
		       (unsigned long long)spent.completions);
		/* In the process a doorbell costs nothing that a batch could save. */
		if (sizes[i] == 10 && !device->in_process)
			demand(single >= 2 * batched, "a batch of ten is %.1f times cheaper, not twice",
			       single / batched);
	}
	server_dismiss(&server, 0);
	writer_close(&writer);
	server_close(&server);
}
