/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "walk/agree.h"
#include "walk/faults.h"
#include "walk/model.h"
#include "walk/ops.h"

#include <string.h>

static const char *const standings[] = {"prepared", "binding", "live", "revoking", "loose"};

static void info_agrees(struct walk_grant *grant, const mwctl_grant_info *info)
{
	const struct walk_peer *peer = walk_peer_of(grant);

	WALK_AGREE(info->grant == grant->id && info->peer.id == peer->id.id && info->addr == grant->addr &&
			   info->length == grant->length && info->rkey == grant->rkey &&
			   info->access == grant->access && info->qp_num == peer->qp_num,
		   "grant 0x%llx: expected peer 0x%llx QP %u 0x%llx+%llu rkey 0x%x access 0x%x, got "
		   "peer 0x%llx QP %u 0x%llx+%llu rkey 0x%x access 0x%x",
		   (unsigned long long)grant->id, (unsigned long long)peer->id.id, peer->qp_num,
		   (unsigned long long)grant->addr, (unsigned long long)grant->length, grant->rkey,
		   grant->access, (unsigned long long)info->peer.id, info->qp_num,
		   (unsigned long long)info->addr, (unsigned long long)info->length, info->rkey,
		   info->access);
	/* A bind that the application posted is confirmed by a later completion of ours. */
	if (grant->standing == WALK_BINDING && info->confirmed && !info->revoking && !info->uncertain)
		grant->standing = WALK_LIVE;
	grant->confirmed = info->confirmed;
	if (info->uncertain && !grant->uncertain)
		grant->uncertain_step = walk.step;
	grant->uncertain = info->uncertain;
	if (info->uncertain)
		walk.server[grant->server].uncertain_step = walk.step;
	/* What is in hand may be revoked, and that may come to its deadline. */
	WALK_AGREE(!info->uncertain || grant->due || walk_may_end(grant), "grant 0x%llx of server %d peer %d, %s, is uncertain",
		   (unsigned long long)grant->id, grant->server, grant->peer, standings[grant->standing]);
	switch (grant->standing) {
	case WALK_PREPARED:
		WALK_AGREE(!info->confirmed, "grant 0x%llx is confirmed and not posted",
			   (unsigned long long)grant->id);
		break;
	case WALK_LIVE:
		WALK_AGREE(info->confirmed && info->revoking == grant->in_hand,
			   "live grant 0x%llx: confirmed %u revoking %u uncertain %u",
			   (unsigned long long)grant->id, info->confirmed, info->revoking, info->uncertain);
		break;
	default:
		break;
	}
}

/* An open grant that the library names and the model does not know. */
static void unknown_grant(struct walk_peer *peer, uint64_t id)
{
	struct walk_server *server = &walk.server[peer->server];
	mwctl_grant_info info;
	mwctl_request asked;
	bool adopted;

	HOUSE_OK(mwctl_grant_info_get(server->house.ctx, id, &info, sizeof(info)));
	asked = (mwctl_request){.peer = peer->id, .addr = info.addr, .length = info.length,
				.access = info.access, .region = server->region[0].id};
	if (walk_region_at(peer->server, info.addr) == &server->region[1])
		asked.region = server->region[1].id;
	adopted = walk_ops_adopt(peer, &asked, id);
	WALK_AGREE(adopted || walk_hurt(peer), "server %d peer %d: grant 0x%llx is open and nobody asked for it",
		   peer->server, peer->index, (unsigned long long)id);
	walk_add(peer, &asked, id, info.rkey, adopted ? WALK_BINDING : WALK_LOOSE);
}

void walk_agree_peer(struct walk_peer *peer)
{
	struct walk_server *server = &walk.server[peer->server];
	mwctl_context *ctx = server->house.ctx;
	uint64_t ids[WALK_OPEN];
	size_t n = 0;

	if (!peer->id.id)
		return;
	HOUSE_OK(mwctl_peer_grants(ctx, peer->id, ids, WALK_OPEN, &n));
	WALK_AGREE(n <= WALK_OPEN, "server %d peer %d has %zu grants", peer->server, peer->index, n);
	for (size_t i = 0; i < n; i++)
		if (!walk_find(peer->server, ids[i]))
			unknown_grant(peer, ids[i]);
	for (int i = server->n_open - 1; i >= 0; i--) {
		struct walk_grant *grant = server->open[i];
		mwctl_grant_info info;
		mwctl_status status;
		bool listed = false;

		if (grant->peer != peer->index)
			continue;
		for (size_t k = 0; k < n; k++)
			listed |= ids[k] == grant->id;
		status = mwctl_grant_info_get(ctx, grant->id, &info, sizeof(info));
		WALK_AGREE(listed == (status == MWCTL_STATUS_OK),
			   "grant 0x%llx: mwctl_peer_grants %s it, mwctl_grant_info_get says \"%s\"",
			   (unsigned long long)grant->id, listed ? "lists" : "does not list",
			   mwctl_status_text(status));
		if (listed) {
			info_agrees(grant, &info);
			continue;
		}
		WALK_AGREE(walk_may_end(grant), "grant 0x%llx of server %d peer %d, %s, ended and nobody was told",
			   (unsigned long long)grant->id, grant->server, grant->peer,
			   standings[grant->standing]);
		walk.counts.loose_ended++;
		walk_end(grant, MWCTL_PROOF_NONE);
	}
}

static void key_agrees(int server, const struct walk_key *key)
{
	mwctl_grant_info info;
	mwctl_status status = mwctl_find_rkey(walk.server[server].house.ctx, key->rkey, &info, sizeof(info));
	const struct walk_grant *grant = key->grant;

	if (grant && grant->server == server) {
		/* What was deallocated without being believed has no number any more. */
		if (status == MWCTL_STATUS_NO_GRANT && walk_hurt(walk_peer_of(grant)) && walk_may_end(grant))
			return;
		WALK_AGREE(status == MWCTL_STATUS_OK && info.grant == grant->id,
			   "mwctl_find_rkey(0x%x): expected grant 0x%llx, got \"%s\" 0x%llx", key->rkey,
			   (unsigned long long)grant->id, mwctl_status_text(status),
			   status ? 0 : (unsigned long long)info.grant);
		return;
	}
	WALK_AGREE(status == MWCTL_STATUS_NO_GRANT,
		   "server %d: mwctl_find_rkey(0x%x): expected none, got \"%s\" 0x%llx", server, key->rkey,
		   mwctl_status_text(status), status ? 0 : (unsigned long long)info.grant);
}

static void dead_key_agrees(const struct walk_key *key)
{
	mwctl_grant_info info;

	for (int s = 0; s < WALK_SERVERS; s++)
		key_agrees(s, key);
	if (!key->grant)
		HOUSE_STATUS(MWCTL_STATUS_STALE_ID,
			     mwctl_grant_info_get(walk.server[key->server].house.ctx, key->id, &info,
						  sizeof(info)));
}

static bool covers(const struct walk_grant *grant, uint64_t addr, uint64_t length, uint32_t access)
{
	return addr >= grant->addr && addr + length <= grant->addr + grant->length &&
	       (grant->access & access) == access;
}

/* mwctl_check, at an open grant's edge or anywhere. */
static void check_agrees(struct walk_peer *peer)
{
	struct walk_server *server = &walk.server[peer->server];
	const struct walk_grant *near = walk_some_grant(peer), *got;
	mwctl_request any = walk_ask(peer);
	bool must = false, may = false;
	uint64_t id = 0;
	mwctl_status status;

	if (near && walk_chance(0.8)) {
		any.access = near->access;
		any.addr = near->addr + walk_below(near->length);
		any.length = 1 + walk_below(near->addr + near->length - any.addr + 1);
	}
	for (int i = 0; i < server->n_open; i++) {
		const struct walk_grant *grant = server->open[i];

		if (grant->peer != peer->index || !covers(grant, any.addr, any.length, any.access))
			continue;
		must |= grant->confirmed;
		may |= grant->standing != WALK_PREPARED;
	}
	status = mwctl_check(server->house.ctx, server->house.domain, peer->qp_num, any.addr, any.length,
			     any.access, &id);
	WALK_AGREE(status == MWCTL_STATUS_OK ? may : status == MWCTL_STATUS_NO_GRANT && !must,
		   "mwctl_check(server %d peer %d, 0x%llx+%llu, 0x%x): expected %s, got \"%s\"", peer->server,
		   peer->index, (unsigned long long)any.addr, (unsigned long long)any.length, any.access,
		   must ? "a grant" : may ? "anything" : "none", mwctl_status_text(status));
	if (status == MWCTL_STATUS_OK) {
		got = walk_find(peer->server, id);
		WALK_AGREE(got && got->peer == peer->index && got->standing != WALK_PREPARED &&
				   covers(got, any.addr, any.length, any.access),
			   "mwctl_check named grant 0x%llx, which does not cover 0x%llx+%llu",
			   (unsigned long long)id, (unsigned long long)any.addr,
			   (unsigned long long)any.length);
	}
}

/* mwctl_range_grants: exactly the open ones that touch the range. */
static void range_agrees(int s)
{
	struct walk_server *server = &walk.server[s];
	struct walk_peer *peer = walk_some_peer(s);
	mwctl_request any = walk_ask(peer);
	uint64_t ids[WALK_OPEN];
	size_t n = 0, expected = 0;

	HOUSE_OK(mwctl_range_grants(server->house.ctx, any.region, any.addr, any.length, ids, WALK_OPEN, &n));
	for (int i = 0; i < server->n_open; i++) {
		const struct walk_grant *grant = server->open[i];
		bool touches = grant->addr < any.addr + any.length && any.addr < grant->addr + grant->length;
		bool listed = false;

		for (size_t k = 0; k < n; k++)
			listed |= ids[k] == grant->id;
		WALK_AGREE(touches == listed, "mwctl_range_grants(0x%llx+%llu): grant 0x%llx 0x%llx+%llu is %s",
			   (unsigned long long)any.addr, (unsigned long long)any.length,
			   (unsigned long long)grant->id, (unsigned long long)grant->addr,
			   (unsigned long long)grant->length, listed ? "listed" : "missing");
		expected += touches;
	}
	WALK_AGREE(n == expected, "mwctl_range_grants: expected %zu, got %zu", expected, n);
}

void walk_agree(void)
{
	for (int s = 0; s < WALK_SERVERS; s++) {
		struct walk_server *server = &walk.server[s];

		for (int p = 0; p < WALK_PEERS; p++)
			walk_agree_peer(&server->peer[p]);
		if (server->uncertain_step == walk.step)
			walk_ops_note_uncertain(s);
		server->left_open = house_stats(&server->house).reported_open;
		for (int i = 0; i < server->n_open; i++)
			key_agrees(s, walk_key_of(server->open[i]->rkey));
	}
	for (int i = 0; walk.n_keys && i < WALK_OLD_KEYS; i++)
		dead_key_agrees(&walk.keys[walk_below(walk.n_keys)]);
	for (int i = 0; i < WALK_QUESTIONS; i++) {
		check_agrees(walk_some_peer(-1));
		range_agrees((int)walk_below(WALK_SERVERS));
	}
	walk_agree_misuse();
}

void walk_agree_life(const struct walk_peer *peer)
{
	mwctl_peer_info info;
	bool in_error;

	if (!peer->id.id || walk_fault_at(peer, MWCTL_SIM_FAIL_QUERY_QP))
		return;
	HOUSE_OK(mwctl_peer_info_get(walk.server[peer->server].house.ctx, peer->id, &info, sizeof(info)));
	in_error = rc_qp_state(peer->client->pair.server.qp) == IBV_QPS_ERR;
	WALK_AGREE(in_error || (info.life == 1 && !peer->dead), "server %d peer %d is called dead (life %u), and its queue pair lives",
		   peer->server, peer->index, info.life);
	WALK_AGREE(!in_error || walk_hurt(peer), "the queue pair of server %d peer %d, which is well, is in error",
		   peer->server, peer->index);
}

void walk_agree_bytes(uint64_t addr, uint64_t length)
{
	for (int s = 0; s < WALK_SERVERS; s++)
		for (int r = 0; r < WALK_REGIONS; r++) {
			const struct walk_region *region = &walk.server[s].region[r];
			uint64_t from = addr > region->addr ? addr : region->addr;
			uint64_t to = addr + length;
			const uint8_t *is, *was;

			if (to > region->addr + region->length)
				to = region->addr + region->length;
			if (from >= to)
				continue;
			is = (const uint8_t *)(uintptr_t)from;
			was = region->shadow + (from - region->addr);
			if (memcmp(is, was, to - from) == 0)
				continue;
			for (uint64_t i = 0; i < to - from; i++)
				WALK_AGREE(is[i] == was[i],
					   "server %d region %d byte %llu: expected 0x%02x, got 0x%02x", s, r,
					   (unsigned long long)(from - region->addr + i), was[i], is[i]);
		}
}

void walk_agree_memory(void)
{
	for (int s = 0; s < WALK_SERVERS; s++)
		for (int r = 0; r < WALK_REGIONS; r++)
			walk_agree_bytes(walk.server[s].region[r].addr, walk.server[s].region[r].length);
}

void walk_agree_fully(void)
{
	walk_agree_memory();
	for (size_t i = 0; i < walk.n_keys; i++)
		dead_key_agrees(&walk.keys[i]);
}

void walk_agree_misuse(void)
{
	struct mwctl_sim_misuse misuse;

	if (walk.sim && mwctl_sim_misuse_next(&misuse, sizeof(misuse)))
		walk_differ("misuse of the device, rule %u, QP %u, rkey 0x%x: %s", misuse.rule, misuse.qp_num,
			    misuse.rkey, misuse.text);
}
