/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "walk/traffic.h"
#include "walk/faults.h"
#include "walk/ops.h"
#include "walk/threads.h"

#include <string.h>

#define MOST_BYTES 4096
#define TICK_NS 10000
#define ALL_RIGHTS (HOUSE_RW | (uint32_t)IBV_ACCESS_REMOTE_ATOMIC)

/* ---- clients ---- */

static uint32_t right_for(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
		return HOUSE_WRITE;
	case IBV_WR_RDMA_READ:
		return HOUSE_READ;
	default:
		return (uint32_t)IBV_ACCESS_REMOTE_ATOMIC;
	}
}

static void fill(uint8_t *at, uint64_t length)
{
	uint64_t bits = 0;

	for (uint64_t i = 0; i < length; i++) {
		if (i % 8 == 0)
			bits = walk_random();
		at[i] = (uint8_t)(bits >> (i % 8 * 8));
	}
}

/* The model's memory after an access that succeeded. */
static void landed(const struct walk_peer *peer, enum ibv_wr_opcode opcode, uint64_t addr, uint64_t length,
		   uint64_t added)
{
	const uint8_t *local = peer->client->local.at;
	struct walk_region *region = walk_region_at(peer->server, addr);
	uint8_t *shadow = region->shadow + (addr - region->addr);
	uint64_t value;

	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
		memcpy(shadow, local, length);
		walk.counts.landed++;
		break;
	case IBV_WR_RDMA_READ:
		WALK_AGREE(memcmp(shadow, local, length) == 0, "a READ returned other bytes than are there");
		walk.counts.reads++;
		break;
	default:
		WALK_AGREE(memcmp(shadow, local, 8) == 0, "an atomic returned another value than was there");
		memcpy(&value, shadow, 8);
		value += added;
		memcpy(shadow, &value, 8);
		walk.counts.atomics++;
	}
}

static enum ibv_wc_status run(struct walk_peer *peer, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t addr,
			      uint64_t length, uint64_t added)
{
	struct rc_end *end = &peer->client->pair.client;
	struct rc_memory *local = &peer->client->local;
	void *remote = (void *)(uintptr_t)addr;

	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
		return rc_write(end, local, length, remote, rkey);
	case IBV_WR_RDMA_READ:
		return rc_read(end, local, length, remote, rkey);
	default:
		return rc_fetch_add(end, local, remote, rkey, added);
	}
}

void walk_access(struct walk_peer *peer, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t addr,
		 uint64_t length)
{
	enum walk_access expected = walk_expect(peer, rkey, addr, length, right_for(opcode));
	uint64_t added = walk_random();
	enum ibv_wc_status status;

	/* A real requester asks a dead peer for seconds. */
	if (!walk.sim && peer->dead)
		return;
	if (opcode == IBV_WR_RDMA_WRITE)
		fill(peer->client->local.at, length);
	walk_say(" server %d peer %d opcode %d rkey 0x%x 0x%llx+%llu:", peer->server, peer->index, opcode, rkey,
		 (unsigned long long)addr, (unsigned long long)length);
	status = run(peer, opcode, rkey, addr, length, added);
	walk_say(" %s", ibv_wc_status_str(status));
	if (status == IBV_WC_SUCCESS) {
		WALK_AGREE(expected != WALK_NO, "an access with rkey 0x%x succeeded that must not", rkey);
		landed(peer, opcode, addr, length, added);
	} else {
		/* A refusal comes from a queue pair that lives: there the key must work. */
		WALK_AGREE(expected != WALK_YES || (walk_hurt(peer) && status != IBV_WC_REM_ACCESS_ERR),
			   "an access with rkey 0x%x failed that must not: %s", rkey, ibv_wc_status_str(status));
		walk.counts.denied++;
		peer->dead = true;
	}
	walk.counts.unknown += expected == WALK_MAYBE;
	walk_agree_bytes(addr, length);
}

static enum ibv_wr_opcode some_opcode(uint32_t access)
{
	static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						     IBV_WR_ATOMIC_FETCH_AND_ADD};
	enum ibv_wr_opcode opcode;

	do {
		opcode = opcodes[walk_below(3)];
	} while (!(right_for(opcode) & access));
	return opcode;
}

/* A part of a range that the operation can touch; 0: there is none. */
static uint64_t some_part(enum ibv_wr_opcode opcode, uint64_t *addr, uint64_t length)
{
	uint64_t end = *addr + length;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		uint64_t first = (*addr + 7) & ~UINT64_C(7);

		if (first + 8 > end)
			return 0;
		*addr = first + 8 * walk_below((end - first) / 8);
		return 8;
	}
	*addr += walk_below(length);
	length = 1 + walk_below(end - *addr);
	return length < MOST_BYTES ? length : MOST_BYTES;
}

/* Whoever held the key last, if it is still there, tries it. */
static void try_by_holder(const struct walk_key *key)
{
	for (int p = 0; p < WALK_PEERS; p++) {
		struct walk_peer *peer = &walk.server[key->server].peer[p];

		if (peer->id.id == key->peer && !peer->dead)
			walk_access(peer, some_opcode(ALL_RIGHTS), key->rkey, (key->addr + 7) & ~UINT64_C(7), 8);
	}
}

/* What begins to work works; what has ended is tried sometimes only, for it costs the client. */
void walk_try_keys(void)
{
	for (int s = 0; s < WALK_SERVERS; s++) {
		struct walk_server *server = &walk.server[s];

		for (int i = 0; i < server->n_open; i++) {
			struct walk_grant *grant = server->open[i];
			struct walk_peer *peer = walk_peer_of(grant);
			uint64_t addr = grant->addr, length;
			enum ibv_wr_opcode opcode;

			if (grant->tried || walk_expect(peer, grant->rkey, addr, 1, 0) != WALK_YES)
				continue;
			grant->tried = true;
			opcode = some_opcode(grant->access);
			length = some_part(opcode, &addr, grant->length);
			if (length > 8)
				length = 8;
			if (length)
				walk_access(peer, opcode, grant->rkey, addr, length);
		}
		for (int i = 0; i < server->n_ended; i++) {
			const struct walk_key *key = walk_key_of(server->ended[i]);

			if (walk_chance(0.03) && !key->grant)
				try_by_holder(key);
		}
		server->n_ended = 0;
	}
}

void walk_use_key(void)
{
	struct walk_peer *peer = walk_some_peer(-1);
	const struct walk_grant *grant = walk_some_grant(peer);
	enum ibv_wr_opcode opcode;
	uint64_t addr, length;

	/* Mostly keys that work: one that does not costs the client its connection. */
	for (int i = 0; i < 4 && (!grant || walk_expect(peer, grant->rkey, grant->addr, 1, 0) != WALK_YES); i++) {
		peer = walk_some_peer(-1);
		grant = walk_some_grant(peer);
	}
	if (!grant)
		return;
	if (walk_expect(peer, grant->rkey, grant->addr, 1, 0) != WALK_YES && walk_chance(0.9))
		return;
	opcode = some_opcode(grant->access);
	addr = grant->addr;
	length = some_part(opcode, &addr, grant->length);
	walk_say(" use");
	if (length)
		walk_access(peer, opcode, grant->rkey, addr, length);
}

/* A key of the past: mostly of late, and mostly of this server. */
static const struct walk_key *old_key(const struct walk_peer *peer)
{
	const struct walk_key *key = NULL;

	for (int i = 0; walk.n_keys && i < 8; i++) {
		uint64_t back = walk_chance(0.7) ? 200 : walk.n_keys;

		key = &walk.keys[walk.n_keys - 1 - walk_below(back < walk.n_keys ? back : walk.n_keys)];
		if (!key->grant && (key->server == peer->server || i > 4))
			break;
	}
	return key;
}

static void partly_outside(struct walk_peer *peer)
{
	const struct walk_grant *grant = walk_some_grant(peer);
	enum ibv_wr_opcode opcode;
	struct walk_region *region;
	uint64_t addr, length;

	if (!grant)
		return;
	region = walk_region_at(peer->server, grant->addr);
	opcode = some_opcode(grant->access);
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		addr = ((grant->addr + grant->length) & ~UINT64_C(7));
		length = 8;
	} else if (walk_chance(0.5) && grant->addr > region->addr) {
		addr = grant->addr - 1 - walk_below(grant->addr - region->addr < 64 ? grant->addr - region->addr : 64);
		if (addr < region->addr)
			addr = region->addr;
		length = grant->addr - addr + walk_below(64);
	} else {
		addr = grant->addr + walk_below(grant->length);
		length = grant->addr + grant->length - addr + 1 + walk_below(64);
	}
	if (length > MOST_BYTES) {
		addr += length - MOST_BYTES;
		length = MOST_BYTES;
	}
	if (length && addr + length <= region->addr + region->length)
		walk_access(peer, opcode, grant->rkey, addr, length);
}

void walk_misuse_key(void)
{
	struct walk_peer *peer = walk_some_peer(-1), *other;
	const struct walk_grant *grant;
	const struct walk_key *key;
	uint64_t addr, length, what = walk_below(4);
	enum ibv_wr_opcode opcode = some_opcode(ALL_RIGHTS);

	if (what == 0) {
		/* Soft-RoCE checks the region's bounds, not the window's. */
		walk_say(" outside");
		if (walk.sim)
			partly_outside(peer);
		return;
	}
	if (what == 1) {
		do {
			other = walk_some_peer(-1);
		} while (other == peer);
		grant = walk_some_grant(other);
		walk_say(" foreign");
		if (!grant)
			return;
		opcode = some_opcode(grant->access);
		addr = grant->addr;
		length = some_part(opcode, &addr, grant->length);
		if (length)
			walk_access(peer, opcode, grant->rkey, addr, length);
		return;
	}
	if (what == 2) {
		grant = walk_some_grant(peer);
		walk_say(" wrong right");
		if (!grant || grant->access == ALL_RIGHTS)
			return;
		opcode = some_opcode(~grant->access);
		addr = grant->addr;
		length = some_part(opcode, &addr, grant->length);
		if (length)
			walk_access(peer, opcode, grant->rkey, addr, length);
		return;
	}
	walk_say(" stale");
	key = old_key(peer);
	if (!key)
		return;
	addr = key->addr;
	length = some_part(opcode, &addr, key->length);
	if (length)
		walk_access(peer, opcode, key->rkey, addr, length);
}

void walk_give_key_back(void)
{
	struct walk_peer *peer = walk_some_peer(-1);
	struct walk_server *server = &walk.server[peer->server];
	struct walk_grant *grant;
	enum ibv_wc_status status;
	mwctl_grant_info info;
	uint64_t before = server->self_ended;
	double limit;

	walk_poll_dry(peer);
	grant = walk_some_grant(peer);
	/* A second invalidation would be misuse: only what is certainly bound, and nobody else's. */
	if (!grant || walk_hurt(peer) || grant->standing != WALK_LIVE || grant->waits || grant->in_hand ||
	    !peer->recvs.n)
		return;
	walk_say(" give back: server %d peer %d grant 0x%llx", peer->server, peer->index,
		 (unsigned long long)grant->id);
	status = rc_send_with_inv(&peer->client->pair.client, &peer->client->local, 16, grant->rkey);
	WALK_AGREE(status == IBV_WC_SUCCESS, "SEND_WITH_INV: %s", ibv_wc_status_str(status));
	limit = rc_now() + RC_DEADLINE_S;
	do {
		walk_poll_dry(peer);
	} while (!walk.sim && server->self_ended == before && rc_now() < limit);
	WALK_AGREE(server->self_ended == before + 1, "the end of grant 0x%llx by its peer was not told",
		   (unsigned long long)grant->id);
	WALK_AGREE(mwctl_grant_info_get(server->house.ctx, grant->id, &info, sizeof(info)) ==
			   MWCTL_STATUS_STALE_ID,
		   "grant 0x%llx is open though its peer ended it", (unsigned long long)grant->id);
	walk_end(grant, MWCTL_PROOF_PEER_INVALIDATED);
	walk.counts.invalidated++;
}

/* ---- the application ---- */

struct ibv_send_wr walk_app_request(void)
{
	/* A WRITE of no bytes touches no memory and needs no key. */
	return (struct ibv_send_wr){.wr_id = ++walk.app_wr, .opcode = IBV_WR_RDMA_WRITE,
				    .send_flags = IBV_SEND_SIGNALED};
}

void walk_app_posted(struct walk_peer *peer, uint64_t wr_id)
{
	peer->sends.wr_id[peer->sends.n++] = wr_id;
}

static void post_receive(struct walk_peer *peer)
{
	if (peer->recvs.n == WALK_APP)
		return;
	walk_say(" receive");
	rc_post_recv(&peer->client->pair.server, &walk.server[peer->server].letters, ++walk.app_wr);
	peer->recvs.wr_id[peer->recvs.n++] = walk.app_wr;
}

static void send_letter(struct walk_peer *peer)
{
	enum ibv_wc_status status;

	/* One that nobody receives would wait; what faults hold back may have been received. */
	if (!peer->recvs.n || peer->tainted || (!walk.sim && peer->dead))
		return;
	walk_say(" letter");
	status = rc_send(&peer->client->pair.client, &peer->client->local, 16);
	if (status != IBV_WC_SUCCESS) {
		WALK_AGREE(walk_hurt(peer), "a SEND to server %d peer %d: %s", peer->server, peer->index,
			   ibv_wc_status_str(status));
		peer->dead = true;
	}
}

void walk_app_work(void)
{
	struct walk_peer *peer = walk_some_peer(-1);
	struct ibv_send_wr wr = walk_app_request(), *bad = &wr;
	int error;

	walk_say(" app server %d peer %d", peer->server, peer->index);
	switch (walk_below(4)) {
	case 0:
		post_receive(peer);
		return;
	case 1:
		/* What was delivered and not polled is no longer there to receive. */
		walk_poll_dry(peer);
		send_letter(peer);
		return;
	default:
		break;
	}
	if (peer->sends.n == WALK_APP || (!walk.sim && peer->dead))
		return;
	error = ibv_post_send(peer->client->pair.server.qp, &wr, &bad);
	walk_say(" write: %d", error);
	WALK_AGREE(!error || walk_hurt(peer), "ibv_post_send of the application's: %d", error);
	if (!error || !bad)
		walk_app_posted(peer, wr.wr_id);
}

/* A completion that came out: the application's, in the order of its posts. */
static void app_completion(struct walk_peer *peer, const struct ibv_wc *wc)
{
	struct walk_app *queues[] = {&peer->sends, &peer->recvs};

	WALK_AGREE(wc->qp_num == peer->qp_num, "a completion of QP %u came out of QP %u's queue", wc->qp_num,
		   peer->qp_num);
	for (int q = 0; q < 2; q++) {
		struct walk_app *app = queues[q];

		for (int i = 0; i < app->n; i++) {
			if (app->wr_id[i] != wc->wr_id)
				continue;
			WALK_AGREE(i == 0 || walk_fault_lost(peer), "application request %llu overtook %llu",
				   (unsigned long long)wc->wr_id, (unsigned long long)app->wr_id[0]);
			peer->lost += i;
			app->n -= i + 1;
			memmove(app->wr_id, app->wr_id + i + 1, (size_t)app->n * sizeof(app->wr_id[0]));
			walk.counts.app++;
			if (wc->status == IBV_WC_SUCCESS)
				return;
			WALK_AGREE(walk_hurt(peer), "the application's request on server %d peer %d: %s",
				   peer->server, peer->index, ibv_wc_status_str(wc->status));
			peer->dead = true;
			return;
		}
	}
	walk_differ("a completion of wr_id 0x%llx, status %d, which is none of the application's",
		    (unsigned long long)wc->wr_id, wc->status);
}

bool walk_poll(struct walk_peer *peer, int most)
{
	struct walk_server *server = &walk.server[peer->server];
	struct ibv_cq *cq = peer->client->pair.server.cq;
	uint64_t now = walk_now();
	struct ibv_wc wc[8];
	int n;

	if (peer->options.polling == MWCTL_POLLING_OURS) {
		n = mwctl_poll_cq(server->house.ctx, cq, most, wc);
		WALK_AGREE(n >= 0 && n <= most, "mwctl_poll_cq returned %d", n);
		for (int i = 0; i < n; i++)
			app_completion(peer, &wc[i]);
		walk_ops_agree(peer->server, now);
		return n > 0;
	}
	n = ibv_poll_cq(cq, most, wc);
	WALK_AGREE(n >= 0, "ibv_poll_cq returned %d", n);
	for (int i = 0; i < n; i++) {
		int ours = mwctl_take_wc(server->house.ctx, cq, &wc[i]);

		WALK_AGREE(ours == 0 || ours == 1, "mwctl_take_wc returned %d", ours);
		if (!ours)
			app_completion(peer, &wc[i]);
	}
	/* After a detach that began as this poll did nobody asks. */
	if (n < most && peer->id.id && !peer->leaving)
		HOUSE_OK(mwctl_cq_empty(server->house.ctx, cq));
	if (n)
		walk_ops_agree(peer->server, now);
	return n > 0;
}

void walk_poll_dry(struct walk_peer *peer)
{
	while (walk_poll(peer, 8))
		;
}

void walk_poll_away(struct walk_peer *peer)
{
	struct ibv_wc wc;

	while (mwctl_poll_cq(walk.server[peer->server].house.ctx, peer->client->pair.server.cq, 1, &wc) > 0)
		;
}

static bool is_untouched(const struct walk_grant *grant)
{
	return grant->standing == WALK_LIVE && !grant->waits && !grant->in_hand && !walk_pressed(walk_peer_of(grant));
}

bool walk_is_idle(struct walk_peer *peer, const struct walk_grant *grant)
{
	struct house *house = &walk.server[peer->server].house;
	uint64_t id = grant->id;

	if (!is_untouched(grant))
		return false;
	for (int i = 0; i < 64 && house_peer(house, peer->index).used; i++)
		walk_poll_dry(peer);
	return !house_peer(house, peer->index).used && walk_find(peer->server, id) == grant && is_untouched(grant);
}

void walk_async_events(int s)
{
	struct ibv_context *context = walk.server[s].house.device.context;
	struct ibv_async_event event;

	while (ibv_get_async_event(context, &event) == 0) {
		HOUSE_OK(mwctl_take_async_event(walk.server[s].house.ctx, &event));
		ibv_ack_async_event(&event);
	}
}

void walk_tick(int s)
{
	uint64_t now = walk_now();

	walk_async_events(s);
	if (!walk.server[s].served) {
		HOUSE_OK(mwctl_tick(walk.server[s].house.ctx));
		walk_ops_agree(s, now);
		return;
	}
	/* Its service thread does it, once it is due. */
	walk_pass(TICK_NS);
	walk_threads_agree();
}

void walk_app_agrees(struct walk_peer *peer)
{
	int left = peer->sends.n + peer->recvs.n;

	WALK_AGREE((uint64_t)(left + peer->lost) <= walk_fault_lost(peer),
		   "server %d peer %d: %d completions of the application's are lost, faults took %llu",
		   peer->server, peer->index, left + peer->lost, (unsigned long long)walk_fault_lost(peer));
	walk.counts.app_lost += (uint64_t)(left + peer->lost);
}
