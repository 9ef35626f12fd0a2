/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "walk/transfer.h"
#include "walk/calls.h"
#include "walk/faults.h"
#include "walk/ops.h"

#include <string.h>

static bool asked_before(const mwctl_move *moves, size_t at)
{
	for (size_t i = 0; i < at; i++)
		if (memcmp(&moves[i].to, &moves[at].to, sizeof(moves[i].to)) == 0)
			return true;
	return false;
}

/* Several moves of grants of one server: mostly the right as it is, to whomever; sometimes another. */
static size_t some_moves(int s, mwctl_move *moves)
{
	size_t n = walk_chance(0.5) ? 1 : 1 + walk_below(WALK_BATCH), got = 0;

	for (size_t i = 0; i < n; i++) {
		const struct walk_grant *grant = walk_some_grant(walk_some_peer(s));
		struct walk_peer *to = walk_some_peer(s);
		bool named = false;

		for (size_t k = 0; grant && k < got; k++)
			named |= moves[k].grant == grant->id;
		if (!grant || named || walk_open_of(to) >= WALK_MOST_OPEN || !walk_fits_in(to, n) ||
		    !walk_fits_in(walk_peer_of(grant), n))
			continue;
		moves[got].grant = grant->id;
		moves[got].to = walk_ask(to);
		if (walk_chance(0.7)) {
			moves[got].to.region = walk.server[s].region[grant->region].id;
			moves[got].to.addr = grant->addr;
			moves[got].to.length = grant->length;
			moves[got].to.access = grant->access;
		}
		if (walk_ops_ask_for(s, &moves[got].to) || asked_before(moves, got))
			continue;
		got++;
	}
	return got;
}

/* What a call says of moves one of which is bad. */
static mwctl_status spoil(int s, mwctl_move *moves, size_t *n, int32_t *kill)
{
	struct walk_peer *other = walk_some_peer(1 - s);
	mwctl_move *bad = &moves[walk_below(*n)];
	uint64_t id = walk_stale_id(s);

	switch (walk_below(6)) {
	case 0:
		bad->to.length = 0;
		return MWCTL_STATUS_LENGTH_ZERO;
	case 1:
		bad->to.addr = walk.server[s].region[0].addr + walk.server[s].region[0].length - 1;
		bad->to.region = walk.server[s].region[0].id;
		bad->to.length = 2;
		return MWCTL_STATUS_OUT_OF_RANGE;
	case 2:
		*kill = 7;
		return MWCTL_STATUS_UNKNOWN_FLAGS;
	case 3:
		if (*n == WALK_BATCH)
			break;
		moves[*n] = *bad;
		++*n;
		return MWCTL_STATUS_DUPLICATE;
	case 4:
		if (!id)
			break;
		bad->grant = id;
		return MWCTL_STATUS_STALE_ID;
	default:
		/* The other server's client is nobody here, unless the number is one of ours. */
		for (int p = 0; p < WALK_PEERS; p++)
			if (walk.server[s].peer[p].id.id == other->id.id)
				return MWCTL_STATUS_OK;
		bad->to.peer = other->id;
		return MWCTL_STATUS_STALE_ID;
	}
	return MWCTL_STATUS_OK;
}

static struct walk_peer *receiver(int s, const mwctl_move *move)
{
	for (int p = 0; p < WALK_PEERS; p++)
		if (walk.server[s].peer[p].id.id == move->to.peer.id)
			return &walk.server[s].peer[p];
	return NULL;
}

/* Refused as a whole: nothing has changed, and there must be a reason. */
static void moves_refused(int s, mwctl_status status, mwctl_status bad, const mwctl_move *moves, size_t n)
{
	bool hurt = false;

	for (size_t i = 0; i < n; i++) {
		const struct walk_peer *to = receiver(s, &moves[i]);

		hurt |= !to || walk_hurt(to);
	}
	walk.counts.refused++;
	WALK_AGREE((bad != MWCTL_STATUS_OK && status == bad) ||
			   (hurt && (status == MWCTL_STATUS_PEER_DEAD || status == MWCTL_STATUS_VERBS_ERROR)),
		   "a transfer on server %d was refused: \"%s\"", s, mwctl_status_text(status));
}

static void wait_for(int s, const mwctl_move *moves, size_t n, int32_t kill, mwctl_status bad)
{
	mwctl_context *ctx = walk.server[s].house.ctx;
	mwctl_result results[2 * WALK_BATCH];
	mwctl_request asked[WALK_BATCH];
	uint64_t ids[WALK_BATCH];
	bool yours = false, in_vain = false, uncertain[WALK_BATCH];
	mwctl_status status;

	for (size_t i = 0; i < n; i++) {
		const struct walk_peer *to = receiver(s, &moves[i]);
		struct walk_grant *grant = walk_find(s, moves[i].grant);

		if (grant)
			grant->ending = walk.step;
		/* A stale id's window may be anybody's by now. */
		yours |= (!to || walk_polls_itself(to)) ||
			 (grant ? walk_polls_itself(walk_peer_of(grant)) : s == 1);
		in_vain |= (to && walk_pressed(to)) || (grant && walk_pressed(walk_peer_of(grant)));
		uncertain[i] = walk_uncertain(s, &moves[i].to);
		asked[i] = moves[i].to;
		ids[i] = moves[i].grant;
	}
	status = mwctl_transfer(ctx, moves, n, walk_wait_us(in_vain), kill, results);
	walk_say(": %s", mwctl_status_text(status));
	if (status == MWCTL_STATUS_WOULD_DEADLOCK) {
		WALK_AGREE(yours, "WOULD_DEADLOCK, and nobody concerned polls by itself");
		return;
	}
	if (bad != MWCTL_STATUS_OK || (results[0].status == MWCTL_STATUS_NOT_POSTED &&
				       results[n].status == MWCTL_STATUS_NOT_POSTED && !results[n].grant)) {
		moves_refused(s, status, bad, moves, n);
		return;
	}
	WALK_AGREE(!yours, "a waiting transfer of a client whose queue this thread polls: \"%s\"",
		   mwctl_status_text(status));
	WALK_AGREE(status == walk_first_failure(results, 2 * n),
		   "mwctl_transfer returned \"%s\", its results say \"%s\"", mwctl_status_text(status),
		   mwctl_status_text(walk_first_failure(results, 2 * n)));
	walk_moved(s, ids, asked, NULL, results, n, false);
	for (size_t i = 0; i < n; i++)
		walk_certainty_of_late(s, &asked[i], &results[i], uncertain[i]);
}

static void start(int s, const mwctl_move *moves, size_t n, int32_t kill, mwctl_status bad)
{
	struct walk_server *server = &walk.server[s];
	uint64_t timeout = walk_start_us();
	struct walk_op *op = walk_op_begin(WALK_MOVES, s, walk_limit_us(timeout, server));
	mwctl_status status;

	if (!op)
		return;
	op->n = n;
	for (size_t i = 0; i < n; i++) {
		op->asked[i] = moves[i].to;
		op->ids[i] = moves[i].grant;
	}
	status = mwctl_transfer_start(server->house.ctx, moves, n, timeout, kill, walk_op_done, op);
	walk_say(" start, %llu us: %s", (unsigned long long)timeout, mwctl_status_text(status));
	if (bad != MWCTL_STATUS_OK || status != MWCTL_STATUS_OK) {
		moves_refused(s, status, bad, moves, n);
		walk_op_drop(op);
		return;
	}
	walk_op_started(op);
	walk_op_awaits(op);
}

void walk_transfer(void)
{
	int s = (int)walk_below(WALK_SERVERS);
	mwctl_move moves[WALK_BATCH];
	size_t n = some_moves(s, moves);
	int32_t kill = walk_kill_or_not();
	mwctl_status bad = MWCTL_STATUS_OK;

	if (!n)
		return;
	if (walk_chance(0.1))
		bad = spoil(s, moves, &n, &kill);
	walk_say(" transfer %zu on server %d, first 0x%llx", n, s, (unsigned long long)moves[0].grant);
	if (walk_chance(0.5))
		wait_for(s, moves, n, kill, bad);
	else
		start(s, moves, n, kill, bad);
}
