/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Whether a revocation's price per window stays the same when there are many more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/scene.h"

#define WINDOWS 100 /* of a client */
#define DEMANDED 1.5
#define ROUNDS 9

/* On the device in the process all work is the process's own: its CPU time is the price, whatever
 * else runs on the machine. A real device works on its own time. */
static uint64_t price_ns(const struct rc_device *device)
{
	struct timespec now;

	if (!device->in_process)
		return clock_ns();
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* µs per window in the best round: whatever else runs on the machine only adds to it. */
static double measure(const struct rc_device *device, size_t peers)
{
	const struct scene_options options = { .peers = peers, .windows = WINDOWS };
	struct mwctl_stats before = { 0 }, after = { 0 };
	size_t i, round, total = peers * WINDOWS;
	struct scene scene;
	double best = 0;

	scene_open(&scene, device, &options);
	for (round = 0; round < ROUNDS; round++) {
		uint64_t begun;
		double each;

		scene_grant(&scene);
		must(mwctl_stats_get(scene.ctx, &before, sizeof(before)), "mwctl_stats_get");
		begun = price_ns(device);
		must(mwctl_revoke_batch(scene.ctx, scene.grants, total, 0, MWCTL_KILL_NEVER,
					scene.results),
		     "mwctl_revoke_batch");
		each = (double)(price_ns(device) - begun) / 1e3 / (double)total;
		if (round == 0 || each < best)
			best = each;
		must(mwctl_stats_get(scene.ctx, &after, sizeof(after)), "mwctl_stats_get");
		for (i = 0; i < total; i++)
			if (scene.results[i].proof != MWCTL_PROOF_INVALIDATED)
				die("window %zu: %s", i, mwctl_proof_text(scene.results[i].proof));
	}
	printf("  %9zu   %7zu   %12.2f µs   %12.1f ms   %7llu   %11llu\n", total, peers, best,
	       best * (double)total / 1e3, (unsigned long long)(after.posts - before.posts),
	       (unsigned long long)(after.completions - before.completions));
	scene_close(&scene);
	return best;
}

int main(int argc, char **argv)
{
	bool insist = argc == 2 && !strcmp(argv[1], "--assert");
	long clients = argc == 3 && !strcmp(argv[1], "--clients") ? atol(argv[2]) : 0;
	struct rc_device device;
	double few, many;
	bool pass;

	if (argc > 1 && !insist && clients < 1) {
		fprintf(stderr, "usage: scale [--assert | --clients N]\n\n"
				"--assert     exit with 1 if the ratio is missed\n"
				"--clients N  measure N clients alone, and compare nothing\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	rc_open(&device);
	rc_describe(&device);
	printf("\nAll windows revoked in one call (%s, best of %d rounds)\n\n"
	       "    windows   clients     each window       all together     posts   completions\n",
	       device.in_process ? "CPU time" : "time", ROUNDS);
	few = measure(&device, clients ? (size_t)clients : 10);
	if (clients) {
		printf("\n%ld windows revoked in all.\n", clients * WINDOWS * ROUNDS);
		scene_repeat(&device, argc, argv);
		rc_close(&device);
		return 0;
	}
	many = measure(&device, 1000);
	pass = many <= DEMANDED * few;
	printf("\n%s: a window costs %.2f times as much among a hundred times as many; demanded: at "
	       "most %.1f\n",
	       pass ? "PASS" : "FAIL", many / few, DEMANDED);
	scene_repeat(&device, argc, argv);
	rc_close(&device);
	return insist && !pass ? 1 : 0;
}
