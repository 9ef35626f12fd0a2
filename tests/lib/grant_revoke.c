/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A right is handed out, holds for its client alone, and is gone once its revocation ended. */
#include "house.h"

#include <stdlib.h>
#include <string.h>

static void one_right(struct house *house)
{
	mwctl_result alice = house_grant(house, 0, 0, 4096, HOUSE_RW);
	mwctl_result bob = house_grant(house, 1, 8192, 4096, HOUSE_WRITE);
	mwctl_result gone;

	HOUSE_WRITE_LANDS(house, 0, 0, alice.rkey, 0x11);
	HOUSE_WRITE_LANDS(house, 1, 8192, bob.rkey, 0x22);
	HOUSE_OK(mwctl_revoke(house->ctx, alice.grant, 0, &gone));
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, gone.proof);
	RC_CHECK_EQ(alice.grant, gone.grant);
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_revoke(house->ctx, alice.grant, 0, &gone));
	RC_CHECK_STATE(IBV_QPS_RTS, house->client[0].pair.server.qp);
	HOUSE_WRITE_FAILS(house, 0, 0, alice.rkey, 0x33);
	HOUSE_WRITE_LANDS(house, 1, 8192, bob.rkey, 0x44);
	house_ok("a revoked key is refused, the other client writes on");
	HOUSE_OK(mwctl_revoke(house->ctx, bob.grant, 0, NULL));
	HOUSE_WRITE_FAILS(house, 1, 8192, bob.rkey, 0x55);
	for (int i = 0; i < 2; i++) {
		house_leave(house, i);
		house_join(house, i);
	}
}

static void foreign_key(struct house *house)
{
	mwctl_result alice = house_grant(house, 0, 0, 4096, HOUSE_RW);

	HOUSE_WRITE_FAILS(house, 1, 0, alice.rkey, 0x66);
	HOUSE_WRITE_LANDS(house, 0, 0, alice.rkey, 0x67);
	house_ok("another client's key is refused");
	house_leave(house, 1);
	house_join(house, 1);
	HOUSE_OK(mwctl_revoke(house->ctx, alice.grant, 0, NULL));
}

static void batch(struct house *house, int n)
{
	mwctl_request *ask = calloc(n, sizeof(*ask));
	mwctl_result *got = calloc(n, sizeof(*got));
	uint64_t *ids = calloc(n, sizeof(*ids));
	mwctl_stats before, after;
	uint32_t budget = house_peer(house, 0).budget;
	uint64_t chains = 0;

	for (int i = 0; i < n; i++)
		ask[i] = house_ask(house, i % 2, i * 256, 256, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_batch(house->ctx, ask, n, 0, got));
	for (int i = 0; i < n; i++) {
		HOUSE_WRITE_LANDS(house, i % 2, i * 256, got[i].rkey, (uint8_t)(i | 1));
		ids[i] = got[i].grant;
	}
	for (int client = 0; client < 2; client++)
		chains += ((n + !client) / 2 + budget - 1) / budget;
	before = house_stats(house);
	HOUSE_OK(mwctl_revoke_batch(house->ctx, ids, n, 0, MWCTL_KILL_ALLOWED, got));
	after = house_stats(house);
	for (int i = 0; i < n; i++) {
		RC_CHECK_EQ(MWCTL_STATUS_OK, got[i].status);
		RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, got[i].proof);
		RC_CHECK_EQ(ids[i], got[i].grant);
	}
	RC_CHECK_EQ(n, after.invalidates_posted - before.invalidates_posted);
	RC_CHECK_EQ(chains, after.posts - before.posts);
	RC_CHECK_EQ(chains, after.completions - before.completions);
	house_ok("%d rights of 2 clients: %llu posts, as many signaled completions", n,
		 (unsigned long long)chains);
	free(ask);
	free(got);
	free(ids);
}

static void doubled_and_stale(struct house *house)
{
	mwctl_result a = house_grant(house, 0, 0, 64, HOUSE_WRITE);
	mwctl_result b = house_grant(house, 1, 64, 64, HOUSE_WRITE);
	uint64_t ids[5] = {a.grant, 0, a.grant, ~0ull, b.grant};
	mwctl_result out[5];

	HOUSE_STATUS(MWCTL_STATUS_STALE_ID,
		     mwctl_revoke_batch(house->ctx, ids, 5, 0, MWCTL_KILL_ALLOWED, out));
	RC_CHECK_EQ(MWCTL_STATUS_OK, out[0].status);
	RC_CHECK_EQ(MWCTL_STATUS_STALE_ID, out[1].status);
	RC_CHECK_EQ(MWCTL_STATUS_DUPLICATE, out[2].status);
	RC_CHECK_EQ(MWCTL_STATUS_STALE_ID, out[3].status);
	RC_CHECK_EQ(MWCTL_STATUS_OK, out[4].status);
	house_ok("a stale or doubled id keeps no other from ending");
}

static void whole_peer_and_range(struct house *house)
{
	size_t n = 99;
	mwctl_result mine[3], theirs;

	for (int i = 0; i < 3; i++)
		mine[i] = house_grant(house, 0, i * 4096, 4096, HOUSE_WRITE);
	theirs = house_grant(house, 1, 4096, 4096, HOUSE_WRITE);
	HOUSE_OK(mwctl_revoke_peer(house->ctx, house->client[0].peer, 0, MWCTL_KILL_ALLOWED, &n));
	RC_CHECK_EQ(3, n);
	RC_CHECK_EQ(0, house_peer(house, 0).grants);
	HOUSE_WRITE_LANDS(house, 1, 4096, theirs.rkey, 0x71);
	HOUSE_OK(mwctl_revoke_peer(house->ctx, house->client[0].peer, 0, MWCTL_KILL_ALLOWED, &n));
	RC_CHECK_EQ(0, n);
	house_ok("all that one client holds, and no other's");

	for (int i = 0; i < 3; i++)
		mine[i] = house_grant(house, 0, i * 4096, 4096, HOUSE_WRITE);
	HOUSE_OK(mwctl_revoke_range(house->ctx, house->region, house->memory.addr + 4095, 2, 0,
				    MWCTL_KILL_ALLOWED, &n));
	RC_CHECK_EQ(3, n);
	HOUSE_WRITE_LANDS(house, 0, 8192, mine[2].rkey, 0x72);
	house_ok("every right that touches a range, whoever holds it");
	HOUSE_WRITE_FAILS(house, 0, 4096, mine[1].rkey, 0x73);
	HOUSE_WRITE_FAILS(house, 1, 4096, theirs.rkey, 0x74);
	for (int i = 0; i < 2; i++) {
		house_leave(house, i);
		house_join(house, i);
	}
}

static void regrant(struct house *house)
{
	mwctl_result old = house_grant(house, 0, 0, 4096, HOUSE_RW);
	mwctl_request ask = house_ask(house, 0, 4096, 4096, HOUSE_WRITE);
	mwctl_result out[2];
	mwctl_stats before = house_stats(house);

	HOUSE_OK(mwctl_regrant(house->ctx, old.grant, &ask, 0, out));
	RC_CHECK_EQ(1, house_stats(house).posts - before.posts);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, out[0].proof);
	RC_CHECK(out[1].rkey != old.rkey && out[1].grant != old.grant);
	HOUSE_WRITE_LANDS(house, 0, 4096, out[1].rkey, 0x81);
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_regrant(house->ctx, old.grant, &ask, 0, out));
	HOUSE_WRITE_FAILS(house, 0, 0, old.rkey, 0x82);
	house_ok("a regrant ends the old right and begins the new one, in one post");
	house_leave(house, 0);
	house_join(house, 0);
}

/* Leaving with rights in hand: nothing stalls, nothing is left. */
static void leave_with_rights(struct house *house)
{
	for (int i = 0; i < 40; i++)
		house_grant(house, 0, i * 64, 64, HOUSE_RW);
	house_leave(house, 0);
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_peer_detach(house->ctx, house->client[0].peer, 0));
	house_join(house, 0);
	house_ok("a peer detached with 40 rights");
}

int main(void)
{
	struct house house;
	struct house_options tight = {.peer.budget = 1};

	house_open(&house, NULL);
	one_right(&house);
	foreign_key(&house);
	batch(&house, 2);
	batch(&house, 33);
	batch(&house, 1000);
	doubled_and_stale(&house);
	whole_peer_and_range(&house);
	regrant(&house);
	leave_with_rights(&house);
	house_close(&house);

	house_open(&house, &tight);
	batch(&house, 33);
	house_close(&house);
	return 0;
}
