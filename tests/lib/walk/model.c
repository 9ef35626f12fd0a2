/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "walk/model.h"
#include "walk/ops.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct walk walk;

/* ---- chance: splitmix64 ---- */

uint64_t walk_random(void)
{
	uint64_t z = (walk.random += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

uint64_t walk_below(uint64_t n)
{
	return walk_random() % n;
}

bool walk_chance(double p)
{
	return (double)(walk_random() >> 11) / (double)(UINT64_C(1) << 53) < p;
}

/* ---- the account ---- */

void walk_next_line(void)
{
	char *line = walk.trace[walk.step % WALK_TRACE];

	walk.said = snprintf(line, sizeof(walk.trace[0]), "%llu", (unsigned long long)walk.step);
}

void walk_say(const char *format, ...)
{
	char *line = walk.trace[walk.step % WALK_TRACE];
	int room = (int)sizeof(walk.trace[0]) - walk.said;
	va_list args;
	int n;

	if (room <= 1)
		return;
	va_start(args, format);
	n = vsnprintf(line + walk.said, (size_t)room, format, args);
	va_end(args);
	walk.said += n < room ? n : room - 1;
}

void walk_tell_trace(void)
{
	uint64_t first = walk.step >= WALK_TRACE ? walk.step - WALK_TRACE + 1 : 0;

	fflush(stdout);
	for (uint64_t at = first; at <= walk.step; at++)
		fprintf(stderr, "  %s\n", walk.trace[at % WALK_TRACE]);
	fprintf(stderr, "walk: seed %llu, step %llu\n", (unsigned long long)walk.seed,
		(unsigned long long)walk.step);
}

void walk_differ(const char *format, ...)
{
	va_list args;

	fflush(stdout);
	fprintf(stderr, "walk: disagreement: ");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

/* ---- the model ---- */

struct walk_peer *walk_some_peer(int server)
{
	if (server < 0)
		server = (int)walk_below(WALK_SERVERS);
	return &walk.server[server].peer[walk_below(WALK_PEERS)];
}

struct walk_peer *walk_peer_of(const struct walk_grant *grant)
{
	return &walk.server[grant->server].peer[grant->peer];
}

bool walk_hurt(const struct walk_peer *peer)
{
	return peer->tainted || peer->dead;
}

bool walk_pressed(const struct walk_peer *peer)
{
	return walk_hurt(peer) || peer->tokens;
}

int walk_open_of(const struct walk_peer *peer)
{
	const struct walk_server *server = &walk.server[peer->server];
	int n = 0;

	for (int i = 0; i < server->n_open; i++)
		n += server->open[i]->peer == peer->index;
	return n;
}

struct walk_grant *walk_find(int server, uint64_t id)
{
	struct walk_server *it = &walk.server[server];

	for (int i = 0; i < it->n_open; i++)
		if (it->open[i]->id == id)
			return it->open[i];
	return NULL;
}

struct walk_grant *walk_some_grant(const struct walk_peer *peer)
{
	struct walk_server *server = &walk.server[peer->server];
	int n = walk_open_of(peer), at;

	if (!n)
		return NULL;
	at = (int)walk_below((uint64_t)n);
	for (int i = 0; i < server->n_open; i++)
		if (server->open[i]->peer == peer->index && at-- == 0)
			return server->open[i];
	return NULL;
}

/* ---- keys: all that were ever handed out, in that order, and a table by value ---- */

static uint32_t *table;
static size_t table_size, keys_room;

static size_t table_at(uint32_t rkey)
{
	size_t at = (rkey * UINT32_C(0x9e3779b1)) & (table_size - 1);

	while (table[at] && walk.keys[table[at] - 1].rkey != rkey)
		at = (at + 1) & (table_size - 1);
	return at;
}

struct walk_key *walk_key_of(uint32_t rkey)
{
	size_t at;

	if (!table_size)
		return NULL;
	at = table_at(rkey);
	return table[at] ? &walk.keys[table[at] - 1] : NULL;
}

static void table_grow(void)
{
	free(table);
	table_size = table_size ? table_size * 2 : 4096;
	table = calloc(table_size, sizeof(*table));
	RC_CHECK(table != NULL);
	for (size_t i = 0; i < walk.n_keys; i++)
		table[table_at(walk.keys[i].rkey)] = (uint32_t)i + 1;
}

static struct walk_key *key_new(uint32_t rkey)
{
	if (walk.n_keys == keys_room) {
		keys_room = keys_room ? keys_room * 2 : 4096;
		walk.keys = realloc(walk.keys, keys_room * sizeof(*walk.keys));
		RC_CHECK(walk.keys != NULL);
	}
	walk.keys[walk.n_keys] = (struct walk_key){.rkey = rkey};
	walk.n_keys++;
	if (walk.n_keys * 2 > table_size)
		table_grow();
	else
		table[table_at(rkey)] = (uint32_t)walk.n_keys;
	return &walk.keys[walk.n_keys - 1];
}

static uint64_t grants_so_far(int server)
{
	mwctl_domain_info info;

	HOUSE_OK(mwctl_domain_info_get(walk.server[server].house.ctx, walk.server[server].house.domain,
				       &info, sizeof(info)));
	return info.grants;
}

/* Promise: a key that a peer held does not come back for its queue pair before so many grants. */
static void key_again(const struct walk_key *key, const struct walk_peer *peer)
{
	uint64_t since = grants_so_far(peer->server) - key->ended;

	walk.counts.keys_again++;
	WALK_AGREE(!key->grant, "rkey 0x%x was handed out while grant 0x%llx holds it", key->rkey,
		   (unsigned long long)key->id);
	if (key->server == peer->server && key->peer == peer->id.id)
		WALK_AGREE(since >= walk.server[peer->server].key_distance,
			   "rkey 0x%x came back for the same queue pair after %llu grants%s", key->rkey,
			   (unsigned long long)since, key->deallocated ? ", its window deallocated between" : "");
}

struct walk_grant *walk_add(struct walk_peer *peer, const mwctl_request *asked, uint64_t id,
			    uint32_t rkey, enum walk_standing standing)
{
	struct walk_server *server = &walk.server[peer->server];
	struct walk_key *key = walk_key_of(rkey);
	struct walk_grant *grant;

	WALK_AGREE(id && rkey, "a grant with id 0x%llx and rkey 0x%x", (unsigned long long)id, rkey);
	WALK_AGREE(!walk_find(peer->server, id), "grant id 0x%llx was handed out twice", (unsigned long long)id);
	WALK_AGREE(server->n_open < WALK_OPEN, "more grants are open than were asked for");
	grant = server->n_spare ? server->spare[--server->n_spare] : &server->slot[server->n_open];
	*grant = (struct walk_grant){.id = id, .rkey = rkey, .server = peer->server, .peer = peer->index,
				     .addr = asked->addr, .length = asked->length, .access = asked->access,
				     .standing = standing};
	grant->region = asked->region.id == server->region[1].id.id;
	server->open[server->n_open++] = grant;
	if (key)
		key_again(key, peer);
	else
		key = key_new(rkey);
	WALK_AGREE(key->id != id || key->server != peer->server, "grant id 0x%llx came back", (unsigned long long)id);
	*key = (struct walk_key){.rkey = rkey, .grant = grant, .id = id, .server = peer->server,
				 .region = grant->region, .addr = asked->addr, .length = asked->length,
				 .peer = peer->id.id};
	walk.counts.grants++;
	return grant;
}

void walk_end(struct walk_grant *grant, mwctl_proof proof)
{
	struct walk_server *server = &walk.server[grant->server];
	struct walk_key *key = walk_key_of(grant->rkey);
	mwctl_grant_info info;

	WALK_AGREE(mwctl_grant_info_get(server->house.ctx, grant->id, &info, sizeof(info)) ==
			   MWCTL_STATUS_STALE_ID,
		   "grant 0x%llx has ended and its id is not stale", (unsigned long long)grant->id);
	WALK_AGREE(key && key->grant == grant, "rkey 0x%x is another grant's", grant->rkey);
	key->grant = NULL;
	key->ended = grants_so_far(grant->server);
	key->deallocated = proof == MWCTL_PROOF_DEALLOCATED || proof == MWCTL_PROOF_QP_FENCED ||
			   proof == MWCTL_PROOF_NONE;
	for (int i = 0; i < server->n_open; i++)
		if (server->open[i] == grant) {
			server->open[i] = server->open[--server->n_open];
			break;
		}
	server->spare[server->n_spare++] = grant;
	if (server->n_ended < WALK_ENDED)
		server->ended[server->n_ended++] = grant->rkey;
	walk.counts.proofs[proof]++;
}

bool walk_may_end(const struct walk_grant *grant)
{
	if (grant->standing == WALK_LOOSE || grant->waits)
		return true;
	return walk_hurt(walk_peer_of(grant)) &&
	       (grant->standing == WALK_BINDING || grant->standing == WALK_REVOKING);
}

enum walk_access walk_expect(const struct walk_peer *peer, uint32_t rkey, uint64_t addr,
			     uint64_t length, uint32_t right)
{
	const struct walk_key *key = walk_key_of(rkey);
	const struct walk_grant *grant = key ? key->grant : NULL;

	if (!grant || peer->dead || walk_peer_of(grant) != peer || (grant->access & right) != right)
		return WALK_NO;
	if (addr < grant->addr || addr + length > grant->addr + grant->length)
		return WALK_NO;
	switch (grant->standing) {
	case WALK_PREPARED:
		return WALK_NO;
	case WALK_LIVE:
		return WALK_YES;
	case WALK_BINDING:
		/* On the device in the process a post has run when it returns. */
		return grant->posted && walk.sim && !walk_hurt(peer) ? WALK_YES : WALK_MAYBE;
	default:
		return WALK_MAYBE;
	}
}

struct walk_region *walk_region_at(int server, uint64_t addr)
{
	for (int i = 0; i < WALK_REGIONS; i++) {
		struct walk_region *region = &walk.server[server].region[i];

		if (addr >= region->addr && addr < region->addr + region->length)
			return region;
	}
	return NULL;
}

bool walk_touches(const struct walk_grant *grant, const mwctl_request *asked)
{
	return grant->addr < asked->addr + asked->length && asked->addr < grant->addr + grant->length;
}

bool walk_uncertain(int server, const mwctl_request *asked)
{
	const struct walk_server *it = &walk.server[server];

	for (int i = 0; i < it->n_open; i++) {
		mwctl_grant_info info;

		if (walk_touches(it->open[i], asked) &&
		    mwctl_grant_info_get(it->house.ctx, it->open[i]->id, &info, sizeof(info)) == MWCTL_STATUS_OK &&
		    info.uncertain)
			return true;
	}
	return false;
}

bool walk_uncertain_on(int server, const mwctl_request *asked)
{
	const struct walk_server *it = &walk.server[server];

	for (int i = 0; i < it->n_open; i++) {
		const struct walk_grant *grant = it->open[i];
		mwctl_grant_info info;

		if (grant->uncertain && grant->uncertain_step < walk.step && walk_touches(grant, asked) &&
		    mwctl_grant_info_get(it->house.ctx, grant->id, &info, sizeof(info)) == MWCTL_STATUS_OK &&
		    info.uncertain)
			return true;
	}
	return false;
}

/* Rights in all mixtures, lengths from a byte to some blocks, often aligned for atomics. */
mwctl_request walk_ask(const struct walk_peer *peer)
{
	static const uint64_t most[] = {64, 512, 4096, 40000};
	const struct walk_server *server = &walk.server[peer->server];
	const struct walk_region *region = &server->region[walk_chance(0.7)];
	uint64_t length = 1 + walk_below(most[walk_below(4)]);
	uint64_t offset = walk_below(region->length - length + 1);
	uint32_t access = HOUSE_WRITE;

	if (walk_chance(0.5)) {
		offset &= ~UINT64_C(7);
		access = (uint32_t)(1 + walk_below(7));
		access = (access & 1 ? HOUSE_WRITE : 0) | (access & 2 ? HOUSE_READ : 0) |
			 (access & 4 ? (uint32_t)IBV_ACCESS_REMOTE_ATOMIC : 0);
	}
	return (mwctl_request){.peer = peer->id, .region = region->id, .addr = region->addr + offset,
			       .length = length, .access = access};
}
