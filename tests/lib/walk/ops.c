/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "walk/ops.h"
#include "walk/faults.h"

#include <string.h>

/* A call reads the clock so much later than the walk did. */
#define SLACK_NS 50000
/* A service thread that sleeps until a deadline wakes so much later at most: others take their turns, and
 * each look at the clock takes time. */
#define SLEEP_NS 5000000

static struct walk_op ops[WALK_OPS];
/* The step in which what ends now began; 0: this one. */
static uint64_t asked_at;

/* ---- results ---- */

static struct walk_peer *peer_asked(int server, const mwctl_request *asked)
{
	for (int p = 0; p < WALK_PEERS; p++)
		if (walk.server[server].peer[p].id.id == asked->peer.id)
			return &walk.server[server].peer[p];
	return NULL;
}

void walk_granted(int server, const mwctl_request *asked, const mwctl_result *result, uint64_t adopted,
		  bool late)
{
	struct walk_peer *peer = peer_asked(server, asked);
	struct walk_grant *grant = NULL;
	mwctl_grant_info info;
	/* A move's turn may come while its client leaves, or once it has left and nobody has said so yet. */
	bool excused = !peer || walk_hurt(peer) || (peer->leaving && (result->status == MWCTL_STATUS_PEER_LEAVING ||
								      result->status == MWCTL_STATUS_STALE_ID));

	/* Another thread takes its share of the time. */
	late |= walk.server[server].served;
	if (adopted && peer)
		grant = walk_find(peer->server, adopted);
	switch (result->status) {
	case MWCTL_STATUS_OK:
		WALK_AGREE(result->grant && result->rkey, "a grant without id or key");
		WALK_AGREE(!adopted || adopted == result->grant, "grant 0x%llx was reported as 0x%llx",
			   (unsigned long long)adopted, (unsigned long long)result->grant);
		if (adopted) {
			/* A revocation may have been faster. */
			if (grant && grant->standing == WALK_BINDING)
				grant->standing = grant->waits ? WALK_REVOKING : WALK_LIVE;
			return;
		}
		WALK_AGREE(peer != NULL, "a grant for a peer that was detached");
		walk_add(peer, asked, result->grant, result->rkey, WALK_LIVE);
		if (!asked_at)
			peer->stuck = false;
		return;
	case MWCTL_STATUS_TIMED_OUT:
		excused |= late || (peer && walk_pressed(peer));
		walk.counts.timed_out++;
		break;
	case MWCTL_STATUS_RANGE_UNCERTAIN:
		excused = true;
		break;
	case MWCTL_STATUS_POOL_EMPTY:
	case MWCTL_STATUS_DEVICE_LIMIT:
	case MWCTL_STATUS_KEYS_EXHAUSTED:
	case MWCTL_STATUS_NO_MEMORY:
	case MWCTL_STATUS_VERBS_ERROR:
		/* For a call that may not wait the pool may be empty at any time. */
		excused |= result->status == MWCTL_STATUS_POOL_EMPTY ? adopted == 0 :
				   walk.no_windows >= (asked_at ? asked_at : walk.step);
		break;
	default:
		break;
	}
	/* One that was revoked before it was bound. */
	excused |= adopted && (!grant || grant->due || grant->ending == walk.step);
	walk.counts.failed++;
	WALK_AGREE(excused, "a grant to server %d peer %d, which is well, failed: \"%s\" error %d",
		   peer->server, peer->index, mwctl_status_text(result->status), result->error);
	WALK_AGREE(!result->rkey, "a failed grant has rkey 0x%x", result->rkey);
	if (peer)
		peer->tainted |= result->status == MWCTL_STATUS_TIMED_OUT;
	if (result->grant && peer) {
		grant = walk_find(peer->server, result->grant);
		/* Bound and lost within one call: its peer's other grants may be that call's, too. */
		if (!grant && mwctl_grant_info_get(walk.server[server].house.ctx, result->grant, &info, sizeof(info)) ==
				      MWCTL_STATUS_OK)
			grant = walk_add(peer, asked, result->grant, info.rkey, WALK_LOOSE);
	}
	/* Still there until it is proved gone; on the books or ended already. */
	if (grant)
		grant->standing = WALK_LOOSE;
}

void walk_revoked(int server, uint64_t id, const mwctl_result *result, bool late)
{
	struct walk_grant *grant = walk_find(server, id);
	struct walk_peer *peer = grant ? walk_peer_of(grant) : NULL;
	mwctl_grant_info info;
	mwctl_status now;

	/* Whichever operation's deadline came first; and another thread takes its share of the time. */
	late |= walk.server[server].served || (grant && grant->due && walk_now() >= grant->due);
	switch (result->status) {
	case MWCTL_STATUS_OK:
		WALK_AGREE(result->grant == id, "the revocation of 0x%llx names 0x%llx", (unsigned long long)id,
			   (unsigned long long)result->grant);
		WALK_AGREE(result->proof > MWCTL_PROOF_NONE && result->proof <= MWCTL_PROOF_NEVER_BOUND,
			   "grant 0x%llx was revoked without a proof", (unsigned long long)id);
		walk.counts.revocations++;
		if (!grant)
			return;
		WALK_AGREE(!walk.fatal || (result->proof != MWCTL_PROOF_DEALLOCATED && result->proof != MWCTL_PROOF_QP_FENCED),
			   "grant 0x%llx is proved gone by a device that fakes success: \"%s\"",
			   (unsigned long long)id, mwctl_proof_text(result->proof));
		WALK_AGREE(late || walk_pressed(peer) || peer->stuck || grant->stuck || result->proof == MWCTL_PROOF_INVALIDATED ||
				   result->proof == MWCTL_PROOF_NEVER_BOUND,
			   "a revocation of server %d peer %d, which is well, is proved by \"%s\"", server,
			   grant->peer, mwctl_proof_text(result->proof));
		walk_end(grant, result->proof);
		return;
	case MWCTL_STATUS_STALE_ID:
		now = mwctl_grant_info_get(walk.server[server].house.ctx, id, &info, sizeof(info));
		WALK_AGREE(now == MWCTL_STATUS_STALE_ID, "grant 0x%llx is open and was called stale",
			   (unsigned long long)id);
		WALK_AGREE(!grant || walk_may_end(grant), "grant 0x%llx ended and nobody was told",
			   (unsigned long long)id);
		if (grant)
			walk_end(grant, MWCTL_PROOF_NONE);
		return;
	case MWCTL_STATUS_OPEN:
		walk.counts.left_open++;
		if (!grant)
			return;
		WALK_AGREE(late || walk_pressed(peer) || grant->standing == WALK_PREPARED || grant->in_hand,
			   "grant 0x%llx of server %d peer %d, which is well, was reported open",
			   (unsigned long long)id, server, grant->peer);
		grant->due = 1;
		/* What is in the application's hands still is what it was. */
		if (grant->standing != WALK_PREPARED && !grant->in_hand)
			grant->standing = WALK_LOOSE;
		peer->tainted = true;
		return;
	case MWCTL_STATUS_NOT_POSTED:
		/* A prepared one that was dropped: the grant goes on. */
		return;
	default:
		walk_differ("the revocation of 0x%llx ended with \"%s\" error %d", (unsigned long long)id,
			    mwctl_status_text(result->status), result->error);
	}
}

void walk_certainty_agrees(const mwctl_result *granted, bool uncertain)
{
	WALK_AGREE(granted->status != MWCTL_STATUS_OK || !uncertain, "memory was granted that was reported open");
	WALK_AGREE(granted->status != MWCTL_STATUS_RANGE_UNCERTAIN || uncertain,
		   "memory was refused that is not uncertain");
}

/* How often the library reported something open. */
static uint64_t left_open(int server)
{
	return house_stats(&walk.server[server].house).reported_open;
}

void walk_certainty_of_late(int server, const mwctl_request *asked, const mwctl_result *granted, bool before)
{
	/* The right is bound somewhere within the call: what is so after it and was so before was so then. */
	WALK_AGREE(granted->status != MWCTL_STATUS_OK || !walk_uncertain_on(server, asked),
		   "memory was granted that was reported open");
	/* What became so within the call may have been proved gone by its end. */
	WALK_AGREE(granted->status != MWCTL_STATUS_RANGE_UNCERTAIN || before || walk_uncertain(server, asked) ||
			   left_open(server) > walk.server[server].left_open || walk.no_dealloc == walk.step,
		   "memory was refused that is not uncertain");
}

void walk_moved(int server, const uint64_t *ids, const mwctl_request *asked, const uint64_t *begun,
		const mwctl_result *results, size_t n, bool late)
{
	bool waited[WALK_BATCH];

	late |= walk.server[server].served;
	for (size_t i = 0; i < n; i++) {
		const struct walk_grant *grant = walk_find(server, ids[i]);

		/* What is in hand, or waits behind it, may take up all of the time. */
		waited[i] = late || !grant || walk_pressed(walk_peer_of(grant));
		walk_revoked(server, ids[i], &results[n + i], late);
	}
	for (size_t i = 0; i < n; i++) {
		const mwctl_result *granted = &results[i], *ended = &results[n + i];
		const struct walk_peer *peer = peer_asked(server, &asked[i]);
		uint64_t id = begun ? begun[i] : 0;

		WALK_AGREE(granted->status == MWCTL_STATUS_NOT_POSTED || ended->status == MWCTL_STATUS_OK,
			   "the successor of 0x%llx: \"%s\", and it is not gone: \"%s\"",
			   (unsigned long long)ids[i], mwctl_status_text(granted->status),
			   mwctl_status_text(ended->status));
		if (granted->status != MWCTL_STATUS_NOT_POSTED || id) {
			walk_granted(server, &asked[i], granted, id, late);
			continue;
		}
		WALK_AGREE(ended->status != MWCTL_STATUS_OK || waited[i] || !peer || walk_hurt(peer),
			   "0x%llx is proved gone, and server %d peer %d, which is well, did not get its right",
			   (unsigned long long)ids[i], server, peer->index);
		WALK_AGREE(!granted->grant && !granted->rkey, "a right that was not posted has id 0x%llx, rkey 0x%x",
			   (unsigned long long)granted->grant, granted->rkey);
		walk.counts.failed++;
	}
	walk.counts.moves += n;
}

/* ---- operations ---- */

struct walk_op *walk_op_begin(enum walk_kind kind, int server, uint64_t timeout_us)
{
	for (int i = 0; i < WALK_OPS; i++)
		if (!ops[i].active) {
			ops[i].active = true;
			ops[i].kind = kind;
			ops[i].server = server;
			ops[i].step = walk.step;
			ops[i].timeout_us = timeout_us;
			ops[i].soonest = walk_now() + timeout_us * 1000;
			ops[i].latest = UINT64_MAX;
			ops[i].calls = 0;
			ops[i].status = MWCTL_STATUS_PENDING;
			ops[i].n = 0;
			ops[i].peer = NULL;
			ops[i].awaits = false;
			ops[i].left_open = left_open(server);
			memset(ops[i].begun, 0, sizeof(ops[i].begun));
			memset(ops[i].uncertain, 0, sizeof(ops[i].uncertain));
			return &ops[i];
		}
	return NULL;
}

void walk_op_started(struct walk_op *op)
{
	op->latest = walk_now() + op->timeout_us * 1000;
}

void walk_op_committed(struct walk_op *op)
{
	uint64_t now = walk_now(), deadline = op->soonest + SLACK_NS;

	op->latest = now > deadline ? now : deadline;
}

void walk_op_names(struct walk_op *op, const struct walk_grant *grant)
{
	op->ids[op->n++] = grant->id;
}

void walk_op_names_all(struct walk_op *op, bool (*which)(const struct walk_grant *, const void *),
		       const void *what)
{
	struct walk_server *server = &walk.server[op->server];

	for (int i = 0; i < server->n_open; i++)
		if (which(server->open[i], what))
			walk_op_names(op, server->open[i]);
}

void walk_op_awaits(struct walk_op *op)
{
	/* The service thread may have been faster. */
	if (!op->active)
		return;
	op->awaits = true;
	for (size_t i = 0; i < op->n; i++) {
		struct walk_grant *grant = walk_find(op->server, op->ids[i]);

		if (!grant)
			continue;
		grant->waits++;
		grant->stuck |= walk_peer_of(grant)->stuck;
		if (!grant->due || op->soonest < grant->due)
			grant->due = op->soonest;
		if (grant->standing == WALK_BINDING || (grant->standing == WALK_LIVE && !grant->in_hand))
			grant->standing = WALK_REVOKING;
	}
}

static void stop_waiting(struct walk_op *op)
{
	for (size_t i = 0; op->awaits && i < op->n; i++) {
		struct walk_grant *grant = walk_find(op->server, op->ids[i]);

		if (grant)
			grant->waits--;
	}
}

void walk_op_drop(struct walk_op *op)
{
	stop_waiting(op);
	op->active = false;
}

static bool is_for(const struct walk_op *op, uint64_t id)
{
	for (size_t i = 0; i < op->n; i++)
		if (op->ids[i] == id)
			return true;
	return false;
}

static bool has_requests(const struct walk_op *op)
{
	return op->kind == WALK_GRANTS || op->kind == WALK_MOVES;
}

static bool is_like(const mwctl_request *a, const mwctl_request *b)
{
	return a->peer.id == b->peer.id && a->region.id == b->region.id && a->addr == b->addr &&
	       a->length == b->length && a->access == b->access;
}

static bool is_stale(int server, uint64_t id)
{
	mwctl_grant_info info;

	return mwctl_grant_info_get(walk.server[server].house.ctx, id, &info, sizeof(info)) == MWCTL_STATUS_STALE_ID;
}

static void missing_has_ended(const struct walk_op *op, uint64_t id, const mwctl_result *results, size_t n)
{
	mwctl_grant_info info;

	for (size_t i = 0; i < n; i++)
		if (results[i].grant == id)
			return;
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID,
		     mwctl_grant_info_get(walk.server[op->server].house.ctx, id, &info, sizeof(info)));
}

bool walk_ops_ask_for(int server, const mwctl_request *asked)
{
	for (int i = 0; i < WALK_OPS; i++)
		for (size_t k = 0; ops[i].active && has_requests(&ops[i]) && ops[i].server == server && k < ops[i].n; k++)
			if (is_like(&ops[i].asked[k], asked))
				return true;
	return false;
}

void walk_op_done(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct walk_op *op = user;
	bool late = walk_now() >= op->soonest;
	uint64_t asked_before = asked_at;
	mwctl_status first = MWCTL_STATUS_OK;

	WALK_AGREE(op->active && op->calls == 0, "a second callback for an operation");
	asked_at = op->step;
	op->calls++;
	op->status = status;
	walk.counts.ops++;
	stop_waiting(op);
	/* What ended as the operation began, by completions that were due, is not among its results. */
	WALK_AGREE(op->kind == WALK_GRANTS  ? n == op->n :
		   op->kind == WALK_MOVES ? n == 2 * op->n :
					      n <= op->n,
		   "an operation of %zu items ended with %zu", op->n, n);
	for (size_t i = 0; n < op->n && i < op->n; i++)
		missing_has_ended(op, op->ids[i], results, n);
	for (size_t i = 0; i < n; i++) {
		if (first == MWCTL_STATUS_OK)
			first = results[i].status;
		if (op->kind == WALK_GRANTS) {
			walk_certainty_agrees(&results[i], op->uncertain[i]);
			walk_granted(op->server, &op->asked[i], &results[i], op->begun[i], late);
			continue;
		}
		if (op->kind == WALK_MOVES)
			continue;
		WALK_AGREE(is_for(op, results[i].grant), "a revocation ended for grant 0x%llx, which it was not for",
			   (unsigned long long)results[i].grant);
		walk_revoked(op->server, results[i].grant, &results[i], late);
	}
	if (op->kind == WALK_MOVES) {
		walk_moved(op->server, op->ids, op->asked, op->begun, results, op->n, late);
		for (size_t i = 0; i < op->n; i++)
			WALK_AGREE(results[i].status != MWCTL_STATUS_RANGE_UNCERTAIN || op->uncertain[i] ||
					   walk_uncertain(op->server, &op->asked[i]) || left_open(op->server) > op->left_open ||
					   walk.no_dealloc >= op->step,
				   "memory was refused that was not uncertain");
	}
	/* A client that leaves may also be held by a grant of the library's own, which no result tells: one
	 * that was made to bring the completion that a cut post lost. */
	if (op->kind == WALK_DETACH && op->peer->cut && first == MWCTL_STATUS_OK && status == MWCTL_STATUS_OPEN)
		first = status;
	WALK_AGREE(status == first, "an operation ended with \"%s\", its first result with \"%s\"",
		   mwctl_status_text(status), mwctl_status_text(first));
	asked_at = asked_before;
	__atomic_store_n(&op->active, false, __ATOMIC_RELEASE);
}

int walk_ops_active(void)
{
	int n = 0;

	for (int i = 0; i < WALK_OPS; i++)
		n += ops[i].active;
	return n;
}

static const char *const names[] = {"grant", "revocation", "detach", "transfer"};

void walk_ops_say(void)
{
	for (int i = 0; i < WALK_OPS; i++)
		if (ops[i].active)
			walk_say(" {%s of step %llu on server %d, %llu us}", names[ops[i].kind],
				 (unsigned long long)ops[i].step, ops[i].server,
				 (unsigned long long)ops[i].timeout_us);
}

void walk_ops_agree(int server, uint64_t now)
{
	/* Another thread in the library may have begun to end them. */
	if (walk_is_elsewhere())
		return;
	if (walk.server[server].served)
		now = now > SLEEP_NS ? now - SLEEP_NS : 0;
	for (int i = 0; i < WALK_OPS; i++) {
		const struct walk_op *op = &ops[i];

		if (!op->active || op->server != server || op->latest > now)
			continue;
		walk_differ("the %s of step %llu, %zu items, %llu us, is %llu us past its deadline and has not ended",
			    names[op->kind], (unsigned long long)op->step, op->n,
			    (unsigned long long)op->timeout_us, (unsigned long long)(now - op->latest) / 1000);
	}
}

bool walk_ops_soon(int server, uint64_t timeout_us)
{
	for (int i = 0; i < WALK_OPS; i++)
		if (__atomic_load_n(&ops[i].active, __ATOMIC_ACQUIRE) && ops[i].server == server &&
		    ops[i].timeout_us <= timeout_us)
			return true;
	return false;
}

void walk_ops_note_uncertain(int server)
{
	for (int i = 0; i < WALK_OPS; i++)
		for (size_t k = 0; ops[i].active && ops[i].kind == WALK_MOVES && ops[i].server == server && k < ops[i].n; k++)
			ops[i].uncertain[k] |= walk_uncertain(server, &ops[i].asked[k]);
}

bool walk_ops_adopt(const struct walk_peer *peer, const mwctl_request *asked, uint64_t id)
{
	for (int i = 0; i < WALK_OPS; i++) {
		struct walk_op *op = &ops[i];

		if (!op->active || !has_requests(op) || op->server != peer->server)
			continue;
		for (size_t k = 0; k < op->n; k++) {
			if (op->begun[k] || !is_like(&op->asked[k], asked))
				continue;
			/* What takes another one's place begins after that has ended. */
			if (op->kind == WALK_MOVES && !is_stale(op->server, op->ids[k]))
				continue;
			WALK_AGREE(op->kind == WALK_GRANTS ? !op->uncertain[k] :
							     !walk_uncertain_on(op->server, asked),
				   "memory was granted that was reported open");
			op->begun[k] = id;
			walk_say(" (0x%llx)", (unsigned long long)id);
			return true;
		}
	}
	return false;
}
