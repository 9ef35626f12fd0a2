/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "walk/calls.h"
#include "walk/faults.h"
#include "walk/ops.h"

#include <string.h>

/* The clock that the library reads on the device in the process runs by itself only while it is
 * read: there a short wait is many polls. A real device gets enough time for anything that can end,
 * and not more for what waits for a chain in this very thread's hands. */
uint64_t walk_wait_us(bool in_vain)
{
	static const uint64_t some[] = {0, 300, 1000};

	return walk.sim ? some[walk_below(3)] : in_vain ? 200000 : 0;
}

/* … which has no company, whose deadline would be cut short with it. */
bool walk_fits_in(const struct walk_peer *peer, size_t n)
{
	return walk.sim || n == 1 || !walk_pressed(peer);
}

/* For calls that don't wait: over at once, soon, or long after. */
uint64_t walk_start_us(void)
{
	static const uint64_t some[] = {0, 20, 500, 60000000};

	return walk.sim ? some[walk_below(4)] : 10000000;
}

uint64_t walk_limit_us(uint64_t timeout_us, const struct walk_server *server)
{
	return timeout_us ? timeout_us : server->house.options.context.timeout_us;
}

int32_t walk_kill_or_not(void)
{
	return walk_chance(0.2) ? MWCTL_KILL_NEVER : MWCTL_KILL_ALLOWED;
}

bool walk_polls_itself(const struct walk_peer *peer)
{
	return peer->options.polling == MWCTL_POLLING_YOURS;
}

/* What a waiting call says that would wait for the thread it is on; then nothing has changed. */
static bool would_deadlock(mwctl_status status, bool some, bool all)
{
	if (status == MWCTL_STATUS_WOULD_DEADLOCK)
		WALK_AGREE(some, "WOULD_DEADLOCK, and nobody concerned polls by itself");
	else
		WALK_AGREE(!all, "expected WOULD_DEADLOCK, got \"%s\"", mwctl_status_text(status));
	return status == MWCTL_STATUS_WOULD_DEADLOCK;
}

mwctl_status walk_first_failure(const mwctl_result *results, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (results[i].status != MWCTL_STATUS_OK)
			return results[i].status;
	return MWCTL_STATUS_OK;
}

/* ---- grants ---- */

static size_t some_requests(int s, mwctl_request *asked)
{
	size_t n = walk_chance(0.6) ? 1 : 1 + walk_below(WALK_BATCH), got = 0;

	for (size_t i = 0; i < n; i++) {
		struct walk_peer *peer = walk_some_peer(s);

		if (walk_open_of(peer) < WALK_MOST_OPEN && walk_fits_in(peer, n))
			asked[got++] = walk_ask(peer);
	}
	return got;
}

static struct walk_peer *asked_peer(int s, const mwctl_request *asked)
{
	for (int p = 0; p < WALK_PEERS; p++)
		if (walk.server[s].peer[p].id.id == asked->peer.id)
			return &walk.server[s].peer[p];
	walk_differ("a request for no peer");
}

/* Refused as a whole: nothing was posted, and there must be a reason. */
static void grants_refused(int s, mwctl_status status, const mwctl_request *asked, size_t n)
{
	bool hurt = false;

	for (size_t i = 0; i < n; i++)
		hurt |= walk_hurt(asked_peer(s, &asked[i]));
	walk.counts.refused++;
	WALK_AGREE(hurt && (status == MWCTL_STATUS_PEER_DEAD || status == MWCTL_STATUS_VERBS_ERROR),
		   "grants on server %d were refused: \"%s\"", s, mwctl_status_text(status));
}

void walk_grant(void)
{
	int s = (int)walk_below(WALK_SERVERS);
	struct walk_server *server = &walk.server[s];
	mwctl_request asked[WALK_BATCH];
	mwctl_result results[WALK_BATCH];
	size_t n = some_requests(s, asked);
	mwctl_status status;
	bool yours = false, in_vain = false, uncertain[WALK_BATCH];

	if (!n)
		return;
	for (size_t i = 0; i < n; i++) {
		in_vain |= walk_pressed(asked_peer(s, &asked[i]));
		yours |= walk_polls_itself(asked_peer(s, &asked[i]));
		uncertain[i] = walk_uncertain(s, &asked[i]);
	}
	walk_say(" grant %zu on server %d, first to peer %d", n, s, asked_peer(s, &asked[0])->index);
	status = n == 1 ? mwctl_grant(server->house.ctx, asked, walk_wait_us(in_vain), results) :
			  mwctl_grant_batch(server->house.ctx, asked, n, walk_wait_us(in_vain), results);
	walk_say(": %s", mwctl_status_text(status));
	if (would_deadlock(status, yours, false))
		return;
	if (results[0].status == MWCTL_STATUS_NOT_POSTED) {
		grants_refused(s, status, asked, n);
		return;
	}
	WALK_AGREE(!yours, "a waiting grant to a client whose queue this thread polls: \"%s\"",
		   mwctl_status_text(status));
	WALK_AGREE(status == walk_first_failure(results, n), "mwctl_grant_batch returned \"%s\", its results say \"%s\"",
		   mwctl_status_text(status), mwctl_status_text(walk_first_failure(results, n)));
	for (size_t i = 0; i < n; i++) {
		walk_say(" 0x%llx 0x%x", (unsigned long long)results[i].grant, results[i].rkey);
		walk_certainty_agrees(&results[i], uncertain[i]);
		walk_granted(s, &asked[i], &results[i], 0, false);
	}
}

void walk_grant_start(void)
{
	int s = (int)walk_below(WALK_SERVERS);
	struct walk_server *server = &walk.server[s];
	uint64_t timeout = walk_start_us();
	struct walk_op *op = walk_op_begin(WALK_GRANTS, s, walk_limit_us(timeout, server));
	mwctl_status status;

	if (!op)
		return;
	op->n = some_requests(s, op->asked);
	if (!op->n) {
		walk_op_drop(op);
		return;
	}
	for (size_t i = 0; i < op->n; i++)
		op->uncertain[i] = walk_uncertain(s, &op->asked[i]);
	status = mwctl_grant_start(server->house.ctx, op->asked, op->n, timeout, walk_op_done, op);
	walk_say(" grant start %zu on server %d, first to peer %d, %llu us: %s", op->n, s,
		 asked_peer(s, &op->asked[0])->index, (unsigned long long)timeout, mwctl_status_text(status));
	if (status != MWCTL_STATUS_OK) {
		grants_refused(s, status, op->asked, op->n);
		walk_op_drop(op);
		return;
	}
	walk_op_started(op);
}

void walk_regrant(void)
{
	struct walk_peer *peer = walk_some_peer(-1);
	struct walk_server *server = &walk.server[peer->server];
	struct walk_grant *grant = walk_some_grant(peer);
	mwctl_request asked = walk_ask(peer);
	mwctl_result results[2];
	mwctl_status status;
	uint64_t id;
	bool well, uncertain = walk_uncertain(peer->server, &asked);

	if (!grant)
		return;
	id = grant->id;
	grant->ending = walk.step;
	well = grant->standing == WALK_LIVE && !grant->in_hand && !grant->waits && !walk_hurt(peer);
	walk_say(" regrant server %d peer %d 0x%llx", peer->server, peer->index, (unsigned long long)id);
	status = mwctl_regrant(server->house.ctx, id, &asked, walk_wait_us(walk_pressed(peer)), results);
	walk_say(": %s, %s (%s), %s 0x%llx", mwctl_status_text(status), mwctl_status_text(results[0].status),
		 mwctl_proof_text(results[0].proof), mwctl_status_text(results[1].status),
		 (unsigned long long)results[1].grant);
	if (would_deadlock(status, walk_polls_itself(peer), walk_polls_itself(peer) && !walk_hurt(peer)))
		return;
	if (results[0].status == MWCTL_STATUS_NOT_POSTED) {
		/* Nothing was begun. */
		WALK_AGREE(!well || walk_fault_armed(MWCTL_SIM_FAIL_ALLOC_MW) || walk.fatal ||
				   (uncertain && status == MWCTL_STATUS_RANGE_UNCERTAIN),
			   "a regrant was refused: \"%s\"",
			   mwctl_status_text(status));
		return;
	}
	WALK_AGREE(status == MWCTL_STATUS_OK ? walk_first_failure(results, 2) == status :
					       status == results[0].status || status == results[1].status,
		   "mwctl_regrant returned \"%s\", its results say \"%s\"",
		   mwctl_status_text(status), mwctl_status_text(walk_first_failure(results, 2)));
	WALK_AGREE(results[1].status != MWCTL_STATUS_OK || results[0].status == MWCTL_STATUS_OK,
		   "the successor of 0x%llx was granted, and it is not gone: \"%s\"", (unsigned long long)id,
		   mwctl_status_text(results[0].status));
	walk_revoked(peer->server, id, &results[0], false);
	/* Where the send queue can't be relied on it is a transfer: without a proof nothing is granted. */
	if (results[0].status != MWCTL_STATUS_OK && results[1].status == MWCTL_STATUS_NOT_POSTED)
		return;
	walk_granted(peer->server, &asked, &results[1], 0, false);
	walk_certainty_of_late(peer->server, &asked, &results[1], uncertain);
}

/* ---- revocations ---- */

/* An id of the past that was the server's. */
uint64_t walk_stale_id(int s)
{
	for (int i = 0; walk.n_keys && i < 8; i++) {
		const struct walk_key *key = &walk.keys[walk_below(walk.n_keys)];

		if (!key->grant && key->server == s)
			return key->id;
	}
	return 0;
}

static size_t some_ids(int s, uint64_t *ids)
{
	size_t n = walk_chance(0.5) ? 1 : 1 + walk_below(WALK_BATCH), got = 0;

	for (size_t i = 0; i < n; i++) {
		const struct walk_grant *grant = walk_some_grant(walk_some_peer(s));

		if (walk_chance(0.05))
			ids[got++] = walk_stale_id(s);
		else if (grant && walk_fits_in(walk_peer_of(grant), n))
			ids[got++] = grant->id;
	}
	return got;
}

static bool named_before(const uint64_t *ids, size_t at)
{
	for (size_t i = 0; i < at; i++)
		if (ids[i] == ids[at])
			return true;
	return false;
}

static void batch_revoked(int s, const uint64_t *ids, const mwctl_result *results, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (!named_before(ids, i)) {
			walk_revoked(s, ids[i], &results[i], false);
			continue;
		}
		WALK_AGREE(results[i].status == MWCTL_STATUS_DUPLICATE || results[i].status == MWCTL_STATUS_STALE_ID,
			   "a doubled id: \"%s\"", mwctl_status_text(results[i].status));
	}
}

void walk_revoke(void)
{
	int s = (int)walk_below(WALK_SERVERS);
	struct walk_server *server = &walk.server[s];
	uint64_t ids[WALK_BATCH];
	mwctl_result results[WALK_BATCH];
	size_t n = some_ids(s, ids);
	bool some = false, all = false, in_vain = false;
	mwctl_status status;

	if (!n)
		return;
	for (size_t i = 0; i < n; i++) {
		struct walk_grant *grant = walk_find(s, ids[i]);

		if (grant)
			grant->ending = walk.step;
		/* A stale id's window may be anybody's by now. */
		some |= s == 1 && (!grant || walk_polls_itself(walk_peer_of(grant)));
		all |= grant && walk_polls_itself(walk_peer_of(grant));
		in_vain |= grant && walk_pressed(walk_peer_of(grant));
	}
	walk_say(" revoke %zu on server %d, first 0x%llx", n, s, (unsigned long long)ids[0]);
	if (n == 1 && walk_chance(0.5))
		status = mwctl_revoke(server->house.ctx, ids[0], walk_wait_us(in_vain), results);
	else
		status = mwctl_revoke_batch(server->house.ctx, ids, n, walk_wait_us(in_vain), walk_kill_or_not(), results);
	walk_say(": %s", mwctl_status_text(status));
	if (would_deadlock(status, some, all))
		return;
	WALK_AGREE(status == walk_first_failure(results, n), "mwctl_revoke_batch returned \"%s\", its results say \"%s\"",
		   mwctl_status_text(status), mwctl_status_text(walk_first_failure(results, n)));
	batch_revoked(s, ids, results, n);
}

void walk_revoke_start_within(int s, uint64_t timeout)
{
	struct walk_server *server = &walk.server[s];
	uint64_t ids[WALK_BATCH];
	size_t n = some_ids(s, ids), unique = 0;
	struct walk_op *op;
	mwctl_status status;

	/* Its results name grants, so each is named once here. */
	for (size_t i = 0; i < n; i++)
		if (!named_before(ids, i) && walk_find(s, ids[i]))
			ids[unique++] = ids[i];
	op = unique ? walk_op_begin(WALK_REVOKES, s, walk_limit_us(timeout, server)) : NULL;
	if (!op)
		return;
	for (size_t i = 0; i < unique; i++)
		walk_op_names(op, walk_find(s, ids[i]));
	status = mwctl_revoke_start(server->house.ctx, ids, unique, timeout, walk_kill_or_not(), walk_op_done, op);
	walk_say(" revoke start %zu on server %d, first 0x%llx, %llu us: %s", unique, s, (unsigned long long)ids[0],
		 (unsigned long long)timeout, mwctl_status_text(status));
	HOUSE_OK(status);
	walk_op_started(op);
	walk_op_awaits(op);
}

void walk_revoke_start(void)
{
	walk_revoke_start_within((int)walk_below(WALK_SERVERS), walk_start_us());
}

struct range {
	uint64_t addr, length;
};

static bool touches(const struct walk_grant *grant, const void *what)
{
	const struct range *range = what;

	return grant->addr < range->addr + range->length && range->addr < grant->addr + grant->length;
}

static bool is_of(const struct walk_grant *grant, const void *what)
{
	const struct walk_peer *peer = what;

	return grant->peer == peer->index;
}

/* The open grants that a call concerns, as they stand before it. */
struct some {
	int server;
	size_t n;
	uint64_t id[WALK_OPEN];
	size_t loose;              /* so many may end before the call comes to them */
	bool excused;              /* not all of them can be ended now */
	bool yours;                /* the queue of one is polled by this thread alone */
};

static void gather(struct some *some, int s, bool (*which)(const struct walk_grant *, const void *),
		   const void *what)
{
	struct walk_server *server = &walk.server[s];

	some->server = s;
	some->n = some->loose = 0;
	some->excused = some->yours = false;
	for (int i = 0; i < server->n_open; i++) {
		struct walk_grant *grant = server->open[i];

		if (!which(grant, what))
			continue;
		grant->ending = walk.step;
		some->id[some->n++] = grant->id;
		some->loose += walk_may_end(grant);
		some->excused |= walk_pressed(walk_peer_of(grant)) || grant->standing == WALK_PREPARED ||
				 grant->in_hand;
		some->yours |= walk_polls_itself(walk_peer_of(grant));
	}
}

/* A waiting revocation of many whose results are only a number. */
static void many_revoked(const struct some *some, mwctl_status status, size_t told)
{
	walk_say(" %zu: %s", some->n, mwctl_status_text(status));
	if (would_deadlock(status, some->yours, some->yours))
		return;
	WALK_AGREE(status == MWCTL_STATUS_OK ? told <= some->n && told + some->loose >= some->n :
						 status == MWCTL_STATUS_OPEN && some->excused,
		   "a revocation of %zu grants: \"%s\", %zu", some->n, mwctl_status_text(status), told);
	for (size_t i = 0; i < some->n; i++) {
		struct walk_grant *grant = walk_find(some->server, some->id[i]);
		mwctl_grant_info info;
		mwctl_status now;

		/* Some callback came first. */
		if (!grant)
			continue;
		now = mwctl_grant_info_get(walk.server[some->server].house.ctx, grant->id, &info, sizeof(info));
		WALK_AGREE(status != MWCTL_STATUS_OK || now == MWCTL_STATUS_STALE_ID,
			   "grant 0x%llx is open after a revocation that succeeded", (unsigned long long)grant->id);
		if (now == MWCTL_STATUS_STALE_ID) {
			walk.counts.revocations++;
			walk_end(grant, MWCTL_PROOF_NONE);
			continue;
		}
		walk_peer_of(grant)->tainted = true;
		grant->due = 1;
		if (grant->standing != WALK_PREPARED && !grant->in_hand)
			grant->standing = WALK_LOOSE;
	}
}

void walk_revoke_peer(void)
{
	struct walk_peer *peer = walk_some_peer(-1);
	struct walk_server *server = &walk.server[peer->server];
	uint64_t timeout = walk_start_us();
	struct walk_op *op;
	struct some some;
	mwctl_status status;
	size_t n = 0;

	walk_say(" revoke peer %d of server %d", peer->index, peer->server);
	if (walk_chance(0.5)) {
		gather(&some, peer->server, is_of, peer);
		some.yours = walk_polls_itself(peer);
		status = mwctl_revoke_peer(server->house.ctx, peer->id, walk_wait_us(some.excused), walk_kill_or_not(), &n);
		many_revoked(&some, status, n);
		return;
	}
	op = walk_op_begin(WALK_REVOKES, peer->server, walk_limit_us(timeout, server));
	if (!op)
		return;
	walk_say(" start, %llu us", (unsigned long long)timeout);
	walk_op_names_all(op, is_of, peer);
	HOUSE_OK(mwctl_revoke_peer_start(server->house.ctx, peer->id, timeout, walk_kill_or_not(), walk_op_done, op));
	walk_op_started(op);
	walk_op_awaits(op);
}

void walk_revoke_range(void)
{
	struct walk_peer *peer = walk_some_peer(-1);
	struct walk_server *server = &walk.server[peer->server];
	mwctl_request any = walk_ask(peer);
	struct range range = {any.addr, any.length};
	uint64_t timeout = walk_start_us();
	struct walk_op *op;
	struct some some;
	mwctl_status status;
	size_t n = 0;

	walk_say(" revoke range of server %d 0x%llx+%llu", peer->server, (unsigned long long)range.addr,
		 (unsigned long long)range.length);
	gather(&some, peer->server, touches, &range);
	if (walk_chance(0.5) && (walk.sim || !some.excused || some.n == 1)) {
		status = mwctl_revoke_range(server->house.ctx, any.region, range.addr, range.length, walk_wait_us(some.excused),
					    walk_kill_or_not(), &n);
		many_revoked(&some, status, n);
		return;
	}
	op = walk_op_begin(WALK_REVOKES, peer->server, walk_limit_us(timeout, server));
	if (!op)
		return;
	walk_say(" start, %llu us", (unsigned long long)timeout);
	walk_op_names_all(op, touches, &range);
	HOUSE_OK(mwctl_revoke_range_start(server->house.ctx, any.region, range.addr, range.length, timeout,
					  walk_kill_or_not(), walk_op_done, op));
	walk_op_started(op);
	walk_op_awaits(op);
}

/* ---- bad input ---- */

void walk_bad_call(void)
{
	struct walk_peer *peer = walk_some_peer(-1), *other = walk_some_peer(1 - peer->server);
	struct walk_server *server = &walk.server[peer->server];
	const struct walk_region *region = &server->region[0];
	mwctl_context *ctx = server->house.ctx;
	mwctl_request asked = walk_ask(peer);
	mwctl_result result[2];
	mwctl_token token = {0};
	uint64_t id = walk_stale_id(peer->server);
	struct ibv_send_wr wr;
	mwctl_status status;

	walk_say(" bad call on server %d", peer->server);
	switch (walk_below(8)) {
	case 0:
		asked.addr = region->addr + region->length - 1;
		asked.length = 2;
		asked.region = region->id;
		HOUSE_STATUS(MWCTL_STATUS_OUT_OF_RANGE, mwctl_grant(ctx, &asked, 0, result));
		return;
	case 1:
		asked.length = 0;
		HOUSE_STATUS(MWCTL_STATUS_LENGTH_ZERO, mwctl_grant_prepare(ctx, &asked, 1, &wr, result, &token));
		return;
	case 2:
		asked.access = 0;
		HOUSE_STATUS(MWCTL_STATUS_ACCESS_NONE, mwctl_grant(ctx, &asked, 0, result));
		return;
	case 3:
		asked.access = 1 << 20;
		HOUSE_STATUS(MWCTL_STATUS_UNKNOWN_FLAGS, mwctl_grant(ctx, &asked, 0, result));
		return;
	case 4:
		if (!id)
			return;
		status = mwctl_revoke_prepare(ctx, &id, 1, 0, 0, NULL, NULL, &wr, &token);
		HOUSE_STATUS(MWCTL_STATUS_STALE_ID, status);
		return;
	case 5:
		if (!id)
			return;
		status = mwctl_regrant(ctx, id, &asked, 0, result);
		WALK_AGREE(status == MWCTL_STATUS_STALE_ID || status == MWCTL_STATUS_WOULD_DEADLOCK || walk_hurt(peer),
			   "a regrant of a stale id: \"%s\"", mwctl_status_text(status));
		return;
	case 6:
		HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_commit(ctx, (mwctl_token){walk_random()}, 0, NULL, NULL));
		return;
	default:
		/* The other server's client is nobody here, unless the number is one of ours. */
		asked.peer = other->id;
		for (int p = 0; p < WALK_PEERS; p++)
			if (server->peer[p].id.id == asked.peer.id)
				return;
		HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant(ctx, &asked, 0, result));
	}
}
