/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Every key that one client was ever given is kept and tried again: none opens anything. */
#include "house.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static long resident_kib(void)
{
	long pages = 0, resident = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	RC_CHECK(file && fscanf(file, "%ld %ld", &pages, &resident) == 2);
	fclose(file);
	return resident * 4;
}

/* A write with a stale key costs the client its connection: it comes back for the next one. */
static void reconnect(struct house *house)
{
	struct house_client *it = &house->client[0];
	struct rc_options rc = house->options.rc;

	HOUSE_OK(mwctl_peer_detach(house->ctx, it->peer, 0));
	rc_pair_reconnect(&it->pair, &rc);
	HOUSE_OK(mwctl_peer_attach(house->ctx, house->domain, it->pair.server.qp, &house->options.peer,
				   sizeof(house->options.peer), &it->peer));
}

/* `cycles` grants in a row on one queue pair, then each key once more while a grant covers the
 * same range; `tries` of them, spread evenly. */
static void cycle(const char *name, uint64_t distance, int cycles, int tries, bool may_repeat)
{
	struct house_options options = {.clients = 1, .domain.key_distance = distance};
	uint32_t *keys = calloc(cycles, sizeof(*keys)), *sorted = calloc(cycles, sizeof(*sorted));
	struct house house;
	mwctl_domain_info pool;
	mwctl_stats stats;
	int repeated = 0, tried = 0, opened = 0;
	long before;

	RC_CHECK(keys && sorted);
	house_open(&house, &options);
	before = resident_kib();
	for (int i = 0; i < cycles; i++) {
		mwctl_result result = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);

		keys[i] = result.rkey;
		HOUSE_OK(mwctl_revoke(house.ctx, result.grant, 0, NULL));
	}
	memcpy(sorted, keys, cycles * sizeof(*keys));
	qsort(sorted, cycles, sizeof(*sorted), by_number);
	for (int i = 1; i < cycles; i++)
		repeated += sorted[i] == sorted[i - 1];
	HOUSE_OK(mwctl_domain_info_get(house.ctx, house.domain, &pool, sizeof(pool)));
	stats = house_stats(&house);
	if (may_repeat)
		RC_CHECK(repeated > 0);
	else
		RC_CHECK_EQ(0, repeated);
	for (int n = 0; n < tries; n++) {
		uint32_t key = keys[(long long)n * cycles / tries];
		mwctl_result live = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);

		if (n % 64 == 0)
			HOUSE_WRITE_LANDS(&house, 0, 0, live.rkey, (uint8_t)(n / 64 | 1));
		/* The old key may be live again under a new grant where keys may repeat: that is
		 * what the control shows. */
		opened += house_write(&house, 0, 0, key, 0xee) == IBV_WC_SUCCESS;
		tried++;
		reconnect(&house);
	}
	if (!may_repeat) {
		RC_CHECK_EQ(0, opened);
		RC_CHECK(tries == 0 || *house_at(&house, 0) != 0xee);
	}
	house_ok("%s: %d cycles, %d stale keys tried, %d opened; %llu windows, smallest distance %llu, %ld KiB more memory",
		 name, cycles, tried, opened, (unsigned long long)pool.windows,
		 (unsigned long long)stats.smallest_key_distance, resident_kib() - before);
	house_close(&house);
	free(keys);
	free(sorted);
}

int main(void)
{
	bool sim = mwctl_sim_present();
	int cycles = sim ? 200000 : 2000, tries = sim ? 200000 : 40;

	cycle("default distance", 0, cycles, tries, false);
	cycle("never", UINT64_MAX, cycles, sim ? 20000 : 40, false);
	/* The control: with hardly any distance the same count of cycles does repeat keys. */
	cycle("distance 1", 1, 64 * 256 + 1000, 0, true);
	return 0;
}
