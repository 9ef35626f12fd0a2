/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The table's questions, the blocks and the keys. */
#include "house.h"

#include <stdlib.h>
#include <string.h>

static struct house house;

static void questions(void)
{
	uint64_t at = house.memory.addr, found, ids[8];
	mwctl_result a = house_grant(&house, 0, 4096, 4096, HOUSE_WRITE);
	mwctl_result wide = house_grant(&house, 0, 0, 1 << 20, HOUSE_READ);
	mwctl_result b = house_grant(&house, 1, 4096, 100, HOUSE_RW);
	uint32_t qp = house.client[0].pair.server.qp->qp_num;
	mwctl_grant_info info;
	size_t n;

#define MAY(offset, length, access) mwctl_check(house.ctx, house.domain, qp, at + (offset), length, access, &found)
	HOUSE_OK(MAY(4096, 4096, HOUSE_WRITE));
	RC_CHECK_EQ(a.grant, found);
	HOUSE_OK(MAY(8191, 1, HOUSE_WRITE));
	HOUSE_STATUS(MWCTL_STATUS_NO_GRANT, MAY(8191, 2, HOUSE_WRITE));
	HOUSE_STATUS(MWCTL_STATUS_NO_GRANT, MAY(4095, 1, HOUSE_WRITE));
	HOUSE_OK(MAY(4095, 2, HOUSE_READ));
	RC_CHECK_EQ(wide.grant, found);
	HOUSE_STATUS(MWCTL_STATUS_NO_GRANT, MAY(4096, 1, HOUSE_RW));
	HOUSE_STATUS(MWCTL_STATUS_LENGTH_ZERO, MAY(4096, 0, HOUSE_WRITE));
	HOUSE_STATUS(MWCTL_STATUS_NO_GRANT, MAY(-1ull - at, 2, HOUSE_READ));
	HOUSE_STATUS(MWCTL_STATUS_UNKNOWN_FLAGS, MAY(0, 1, IBV_ACCESS_LOCAL_WRITE));
	HOUSE_STATUS(MWCTL_STATUS_NO_GRANT,
		     mwctl_check(house.ctx, house.domain, 0xffffff, at, 1, HOUSE_READ, NULL));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID,
		     mwctl_check(house.ctx, (mwctl_domain){0}, qp, at, 1, HOUSE_READ, NULL));
	house_ok("who may touch what");

	HOUSE_OK(mwctl_find_rkey(house.ctx, b.rkey, &info, sizeof(info)));
	RC_CHECK_EQ(b.grant, info.grant);
	RC_CHECK_EQ(house.client[1].peer.id, info.peer.id);
	RC_CHECK_EQ(house.client[1].pair.server.qp->qp_num, info.qp_num);
	RC_CHECK_EQ(at + 4096, info.addr);
	RC_CHECK_EQ(100, info.length);
	RC_CHECK_EQ(HOUSE_RW, info.access);
	RC_CHECK_EQ(1, info.confirmed);
	HOUSE_STATUS(MWCTL_STATUS_NO_GRANT, mwctl_find_rkey(house.ctx, b.rkey ^ 1, &info, sizeof(info)));
	HOUSE_STATUS(MWCTL_STATUS_NO_GRANT, mwctl_find_rkey(house.ctx, 0, &info, sizeof(info)));
	HOUSE_OK(mwctl_range_grants(house.ctx, house.region, at + 4150, 1, ids, 8, &n));
	RC_CHECK_EQ(3, n);
	HOUSE_OK(mwctl_range_grants(house.ctx, house.region, at + 4196, 1, ids, 1, &n));
	RC_CHECK_EQ(2, n);
	HOUSE_OK(mwctl_range_grants(house.ctx, house.region, at, house.memory.length, NULL, 0, &n));
	RC_CHECK_EQ(3, n);
	HOUSE_OK(mwctl_peer_grants(house.ctx, house.client[0].peer, ids, 8, &n));
	RC_CHECK_EQ(2, n);
	RC_CHECK((ids[0] == a.grant && ids[1] == wide.grant) || (ids[1] == a.grant && ids[0] == wide.grant));
	for (int i = 0; i < 2; i++)
		HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[i].peer, 0, 0, NULL));
	HOUSE_STATUS(MWCTL_STATUS_NO_GRANT, MAY(4096, 4096, HOUSE_WRITE));
	HOUSE_STATUS(MWCTL_STATUS_NO_GRANT, mwctl_find_rkey(house.ctx, b.rkey, &info, sizeof(info)));
	house_ok("which grant a key is, and what lies in a range");
}

static void blocks(void)
{
	mwctl_region_info info;
	uint64_t at[4], more, first;
	mwctl_result held;

	for (int i = 0; i < 4; i++)
		HOUSE_OK(mwctl_block_take(house.ctx, house.region, 1, &at[i]));
	HOUSE_STATUS(MWCTL_STATUS_NO_BLOCKS, mwctl_block_take(house.ctx, house.region, 1, &more));
	held = house_grant(&house, 0, at[1] - house.memory.addr + 100, 64, HOUSE_WRITE);
	HOUSE_STATUS(MWCTL_STATUS_BLOCK_NOT_TAKEN, mwctl_block_give(house.ctx, house.region, at[0] + 1, 1));
	HOUSE_STATUS(MWCTL_STATUS_OUT_OF_RANGE, mwctl_block_give(house.ctx, house.region, at[3], 2));
	HOUSE_STATUS(MWCTL_STATUS_OUT_OF_RANGE, mwctl_block_give(house.ctx, house.region, at[0] - 1, 1));
	HOUSE_OK(mwctl_block_give(house.ctx, house.region, at[1], 1));
	HOUSE_STATUS(MWCTL_STATUS_BLOCK_NOT_TAKEN, mwctl_block_give(house.ctx, house.region, at[1], 1));
	HOUSE_STATUS(MWCTL_STATUS_NO_BLOCKS, mwctl_block_take(house.ctx, house.region, 1, &more));
	HOUSE_OK(mwctl_region_info_get(house.ctx, house.region, &info, sizeof(info)));
	RC_CHECK_EQ(4, info.blocks);
	RC_CHECK_EQ(3, info.blocks_taken);
	RC_CHECK_EQ(1, info.blocks_quarantined);
	HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 0, NULL));
	HOUSE_OK(mwctl_block_take(house.ctx, house.region, 1, &more));
	RC_CHECK_EQ(at[1], more);
	first = at[0];
	for (int i = 1; i < 4; i++)
		first = at[i] < first ? at[i] : first;
	HOUSE_OK(mwctl_block_give(house.ctx, house.region, first, 4));
	HOUSE_OK(mwctl_block_take(house.ctx, house.region, 4, &more));
	RC_CHECK_EQ(first, more);
	HOUSE_STATUS(MWCTL_STATUS_NO_BLOCKS, mwctl_block_take(house.ctx, house.region, 5, &more));
	/* Each is counted once, whatever lies in it. */
	house_grant(&house, 0, 64, 2 * info.block_size, HOUSE_WRITE);
	house_grant(&house, 1, info.block_size + 4096, 64, HOUSE_WRITE);
	house_grant(&house, 1, info.block_size + 4096, 4096, HOUSE_READ);
	HOUSE_OK(mwctl_block_give(house.ctx, house.region, first, 3));
	HOUSE_OK(mwctl_region_info_get(house.ctx, house.region, &info, sizeof(info)));
	RC_CHECK_EQ(1, info.blocks_taken);
	RC_CHECK_EQ(3, info.blocks_quarantined);
	for (int i = 0; i < 2; i++)
		HOUSE_OK(mwctl_revoke_peer(house.ctx, house.client[i].peer, 0, 0, NULL));
	HOUSE_OK(mwctl_region_info_get(house.ctx, house.region, &info, sizeof(info)));
	RC_CHECK_EQ(0, info.blocks_quarantined);
	HOUSE_OK(mwctl_block_give(house.ctx, house.region, first + 3 * info.block_size, 1));
	house_ok("a block with an open right is not handed out");
}

/* No window twice in a row, and no key before its distance. */
static void keys(void)
{
	struct house_options options = {.clients = 1, .domain.reserve = 8, .domain.key_distance = 2000};
	enum { ROUNDS = 6000 };
	uint32_t *used = calloc(ROUNDS, sizeof(*used));
	mwctl_domain_info pool;
	mwctl_stats stats;
	struct house own;

	house_open(&own, &options);
	for (int i = 0; i < ROUNDS; i++) {
		mwctl_result result = house_grant(&own, 0, 0, 64, HOUSE_WRITE);

		used[i] = result.rkey;
		RC_CHECK(i == 0 || used[i] >> 8 != used[i - 1] >> 8);
		for (int back = 1; back <= 2000 && back <= i; back++)
			RC_CHECK(used[i - back] != result.rkey);
		HOUSE_OK(mwctl_revoke(own.ctx, result.grant, 0, NULL));
	}
	HOUSE_OK(mwctl_domain_info_get(own.ctx, own.domain, &pool, sizeof(pool)));
	stats = house_stats(&own);
	RC_CHECK(stats.keys_reused > 0);
	RC_CHECK(stats.smallest_key_distance >= 2000);
	RC_CHECK_EQ(2000, pool.key_distance);
	RC_CHECK_EQ(ROUNDS, pool.grants);
	house_ok("%d grants: smallest distance %llu of 2000, %llu windows", ROUNDS,
		 (unsigned long long)stats.smallest_key_distance, (unsigned long long)pool.windows);
	house_close(&own);

	/* At the limit of windows a grant is refused rather than a key used too soon. */
	options.domain.limit = 8;
	house_open(&own, &options);
	for (int i = 0; i < 8 * 256; i++)
		HOUSE_OK(mwctl_revoke(own.ctx, house_grant(&own, 0, 0, 64, HOUSE_WRITE).grant, 0, NULL));
	mwctl_request ask = house_ask(&own, 0, 0, 64, HOUSE_WRITE);
	mwctl_result result;
	HOUSE_STATUS(MWCTL_STATUS_KEYS_EXHAUSTED, mwctl_grant(own.ctx, &ask, 0, &result));
	RC_CHECK_EQ(0, result.grant);
	RC_CHECK_STATE(IBV_QPS_RTS, own.client[0].pair.server.qp);
	house_close(&own);
	free(used);
	house_ok("a grant is refused rather than a key used too soon");
}

static mwctl_key_info explain(uint32_t key)
{
	mwctl_key_info info;

	HOUSE_OK(mwctl_explain_key(house.ctx, key, &info, sizeof(info)));
	RC_CHECK(mwctl_key_text(info.kind) != NULL);
	return info;
}

static void explained(void)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | IBV_ACCESS_REMOTE_READ;
	mwctl_attach_options options = {.access = (uint32_t)access, .allow_open_parent = 1};
	mwctl_result held = house_grant(&house, 0, 4096, 64, HOUSE_WRITE);
	mwctl_key_info info = explain(held.rkey);
	struct rc_memory open;
	mwctl_region region;

	RC_CHECK_EQ(MWCTL_KEY_KIND_GRANT, info.kind);
	RC_CHECK_EQ(held.grant, info.grant);
	RC_CHECK_EQ(house.client[0].peer.id, info.peer.id);
	RC_CHECK_EQ(house.client[0].pair.server.qp->qp_num, info.qp_num);
	RC_CHECK_EQ(house.memory.addr + 4096, info.addr);
	RC_CHECK_EQ(64, info.length);
	RC_CHECK_EQ(HOUSE_WRITE, info.access);
	HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 0, NULL));
	info = explain(held.rkey);
	RC_CHECK_EQ(MWCTL_KEY_KIND_ENDED, info.kind);
	RC_CHECK_EQ(held.grant, info.grant);
	RC_CHECK_EQ(house.memory.addr + 4096, info.addr);
	RC_CHECK_EQ(0, info.qp_num);

	/* All 256 of a window: those it had are ended, the others unused. */
	int ended = 0, unused = 0;
	uint32_t key;

	for (uint32_t low = 0; low < 256; low++) {
		info = explain((held.rkey & ~0xffu) | low);
		ended += info.kind == MWCTL_KEY_KIND_ENDED;
		unused += info.kind == MWCTL_KEY_KIND_UNUSED;
	}
	RC_CHECK(ended >= 1 && unused > 128);
	RC_CHECK_EQ(256, ended + unused);

	info = explain(house.memory.lkey);
	RC_CHECK_EQ(MWCTL_KEY_KIND_LKEY, info.kind);
	RC_CHECK_EQ(house.region.id, info.region.id);
	RC_CHECK_EQ(0, info.access);
	rc_memory_open(&open, house.pd, 4096, access);
	RC_CHECK_EQ(MWCTL_KEY_KIND_NOT_OURS, explain(open.mr->rkey).kind);
	HOUSE_STATUS(MWCTL_STATUS_PARENT_OPEN,
		     mwctl_region_attach(house.ctx, house.domain, open.mr,
					 &(mwctl_attach_options){.iova = (uintptr_t)open.at,
								 .access = (uint32_t)access},
					 sizeof(options), &region));
	options.iova = (uintptr_t)open.at;
	HOUSE_OK(mwctl_region_attach(house.ctx, house.domain, open.mr, &options, sizeof(options), &region));
	info = explain(open.mr->rkey);
	RC_CHECK_EQ(MWCTL_KEY_KIND_PARENT_RKEY, info.kind);
	RC_CHECK_EQ(region.id, info.region.id);
	RC_CHECK_EQ(HOUSE_READ, info.access);
	HOUSE_OK(mwctl_region_detach(house.ctx, region));
	rc_memory_close(&open);

	/* A window that is deallocated is not forgotten at once. */
	held = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	key = held.rkey;
	HOUSE_OK(mwctl_peer_stuck(house.ctx, house.client[0].peer));
	HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 0, &held));
	RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, held.proof);
	RC_CHECK_EQ(MWCTL_KEY_KIND_ENDED, explain(key).kind);
	house_ok("a key is a live grant's, an ended one's, unused, a region's rkey or lkey, or not ours");
}

int main(void)
{
	house_open(&house, NULL);
	questions();
	blocks();
	explained();
	house_close(&house);
	keys();
	return 0;
}
