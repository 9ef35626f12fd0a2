/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* From when on a key rests, and what is told of it. */
#include "trouble.h"

#include <errno.h>
#include <stdio.h>

static void turn(struct house *house, int times)
{
	for (int i = 0; i < times; i++)
		HOUSE_OK(mwctl_revoke(house->ctx, house_grant(house, 0, 4096, 4096, HOUSE_WRITE).grant, 0, NULL));
}

/* A right that was held while many others came and went: its key rests from its end on. */
static void held_long(int distance)
{
	struct house_options options = {.clients = 1, .domain = {.key_distance = distance, .reserve = 1}};
	mwctl_result held;
	struct house house;
	int grants = 0;

	house_open(&house, &options);
	turn(&house, 15);
	held = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	turn(&house, 2 * distance);
	HOUSE_WRITE_LANDS(&house, 0, 0, held.rkey, 0x11);
	HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 0, NULL));
	for (; grants < 2 * distance; grants++) {
		mwctl_result live = house_grant(&house, 0, 4096, 4096, HOUSE_WRITE);

		RC_CHECK(live.rkey != held.rkey || grants >= distance);
		HOUSE_OK(mwctl_revoke(house.ctx, live.grant, 0, NULL));
	}
	RC_CHECK(house_stats(&house).smallest_key_distance >= (uint64_t)distance);
	house_close(&house);
	house_ok("a key that was held long does not come back before %d grants after its end", distance);
}

/* A window could not be deallocated when its domain was to be closed: its keys rest on. */
static void not_closed(void)
{
	struct house_options options = {.clients = 1, .domain = {.reserve = 1, .limit = 1}};
	mwctl_request ask;
	struct house house;
	mwctl_result out;
	uint64_t failing;

	house_open(&house, &options);
	turn(&house, 256);
	house_leave(&house, 0);
	HOUSE_OK(mwctl_region_detach(house.ctx, house.region));
	failing = trouble_order(MWCTL_SIM_FAIL_DEALLOC_MW, NULL, 0, EBUSY);
	HOUSE_STATUS(MWCTL_STATUS_VERBS_ERROR, mwctl_domain_close(house.ctx, house.domain));
	trouble_release(failing);
	HOUSE_OK(mwctl_region_register(house.ctx, house.domain, house.options.length, NULL, 0, &house.region));
	HOUSE_OK(mwctl_region_info_get(house.ctx, house.region, &house.memory, sizeof(house.memory)));
	house_join(&house, 0);
	ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	HOUSE_STATUS(MWCTL_STATUS_KEYS_EXHAUSTED, mwctl_grant(house.ctx, &ask, 0, &out));
	house_close(&house);
	house_ok("keys rest on when a domain could not be closed");
}

/* "Never" ends with the clients that may remember; what is told of it is true. */
static void told_of_never(void)
{
	struct house_options options = {.clients = 1,
					.domain = {.key_distance = UINT64_MAX, .reserve = 1, .limit = 1}};
	mwctl_key_info known;
	struct house house;
	mwctl_result first;

	house_open(&house, &options);
	first = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	HOUSE_OK(mwctl_revoke(house.ctx, first.grant, 0, NULL));
	turn(&house, 255);
	RC_CHECK_EQ(0, house_stats(&house).keys_reused);
	house_leave(&house, 0);
	house_join(&house, 0);
	turn(&house, 1);
	RC_CHECK_EQ(1, house_stats(&house).keys_reused);
	/* It is known to sixteen keys, on the safe side. */
	RC_CHECK(house_stats(&house).smallest_key_distance > 256 - 16);
	RC_CHECK(house_stats(&house).smallest_key_distance <= 256);
	turn(&house, 1);
	HOUSE_OK(mwctl_explain_key(house.ctx, first.rkey, &known, sizeof(known)));
	RC_CHECK_EQ(MWCTL_KEY_KIND_ENDED, known.kind);
	house_close(&house);
	house_ok("\"never\": keys that start over with new clients are counted as used again");
}

/* A limit below the default reserve. */
static void few_windows(void)
{
	struct house_options options = {.clients = 1, .domain.limit = 3};
	mwctl_domain_options more = {.reserve = 4, .limit = 3};
	mwctl_domain_info pool;
	struct house house;
	mwctl_domain domain;

	house_open(&house, &options);
	HOUSE_OK(mwctl_domain_info_get(house.ctx, house.domain, &pool, sizeof(pool)));
	RC_CHECK_EQ(3, pool.windows);
	turn(&house, 4);
	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT,
		     mwctl_domain_open(house.ctx, house.pd, &more, sizeof(more), &domain));
	house_close(&house);
	house_ok("a limit of three windows is a reserve of three");
}

int main(void)
{
	bool sim = mwctl_sim_present();

	held_long(sim ? 20000 : 2000);
	told_of_never();
	few_windows();
	if (sim)
		not_closed();
	else
		printf("skipped on a real device: a deallocation that fails\n");
	return 0;
}
