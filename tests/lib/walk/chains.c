/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "walk/chains.h"
#include "walk/faults.h"
#include "walk/ops.h"
#include "walk/traffic.h"

#include <string.h>

#define CHAINS 32
#define MOST_OURS 3
#define MOST_SGE 64            /* more than any queue pair of the walk takes */

enum what { BINDS, INVALIDATES, BOTH };

struct chain {
	bool used;
	enum what what;
	struct walk_peer *peer;
	mwctl_token token;
	size_t n;
	struct ibv_send_wr wr[MOST_OURS];
	uint64_t ids[MOST_OURS];       /* the grants that begin or end, by request */
	struct walk_op *op;            /* hears of the end; NULL: nobody does */
};

static struct chain chains[CHAINS];

static struct chain *spare(void)
{
	for (int i = 0; i < CHAINS; i++)
		if (!chains[i].used)
			return &chains[i];
	return NULL;
}

/* ---- prepare ---- */

/* A refusal must have a reason that can be seen. What waited in line may have gone out just before it. */
static void refused(struct walk_peer *peer, mwctl_status status, size_t n, size_t windows,
		    const mwctl_domain_info *pool, bool uncertain)
{
	mwctl_peer_info now = house_peer(&walk.server[peer->server].house, peer->index);

	switch (status) {
	case MWCTL_STATUS_QUEUE_FULL:
		WALK_AGREE(now.budget - now.used < n, "QUEUE_FULL for %zu with %u of %u entries used", n,
			   now.used, now.budget);
		return;
	case MWCTL_STATUS_TOO_MANY:
		WALK_AGREE(now.budget < n, "TOO_MANY for %zu with a budget of %u", n, now.budget);
		return;
	case MWCTL_STATUS_POOL_EMPTY:
		WALK_AGREE(pool->ready < windows, "POOL_EMPTY for %zu with %llu windows ready", windows,
			   (unsigned long long)pool->ready);
		return;
	case MWCTL_STATUS_RANGE_UNCERTAIN:
		WALK_AGREE(uncertain, "memory was refused that is not uncertain");
		return;
	default:
		WALK_AGREE(walk_hurt(peer), "a prepare for server %d peer %d, which is well: %s", peer->server,
			   peer->index, mwctl_status_text(status));
	}
}

static bool prepare_binds(struct chain *chain)
{
	struct walk_peer *peer = chain->peer;
	struct walk_server *server = &walk.server[peer->server];
	mwctl_request asked[MOST_OURS];
	mwctl_result results[MOST_OURS];
	mwctl_domain_info pool;
	mwctl_status status;
	bool uncertain = false;

	for (size_t i = 0; i < chain->n; i++) {
		asked[i] = walk_ask(peer);
		uncertain |= walk_uncertain(peer->server, &asked[i]);
	}
	HOUSE_OK(mwctl_domain_info_get(server->house.ctx, server->house.domain, &pool, sizeof(pool)));
	status = mwctl_grant_prepare(server->house.ctx, asked, chain->n, chain->wr, results, &chain->token);
	walk_say(" %zu binds: %s", chain->n, mwctl_status_text(status));
	if (status != MWCTL_STATUS_OK) {
		refused(peer, status, chain->n, chain->n, &pool, uncertain);
		return false;
	}
	WALK_AGREE(!uncertain, "memory was prepared for a grant that was reported open");
	for (size_t i = 0; i < chain->n; i++) {
		walk_add(peer, &asked[i], results[i].grant, results[i].rkey, WALK_PREPARED);
		chain->ids[i] = results[i].grant;
		walk_say(" 0x%llx", (unsigned long long)results[i].grant);
	}
	return true;
}

/* Grants that can be put into a chain: whoever has a revocation under way is IN_PROGRESS. */
static bool can_end(const struct walk_grant *grant)
{
	return grant->standing == WALK_LIVE && !grant->waits && !grant->in_hand;
}

static void in_progress(struct walk_peer *peer, const uint64_t *ids, size_t n)
{
	bool some = false;

	for (size_t i = 0; i < n; i++) {
		const struct walk_grant *grant = walk_find(peer->server, ids[i]);

		some |= !grant || !can_end(grant);
	}
	WALK_AGREE(some, "IN_PROGRESS or STALE_ID, and nothing is");
}

static bool prepare_invalidates(struct chain *chain)
{
	static const uint64_t timeouts[] = {20, 500, 60000000};
	struct walk_peer *peer = chain->peer;
	struct walk_server *server = &walk.server[peer->server];
	/* On a real device a deadline that passed in hand would be the end of the client. */
	uint64_t timeout = walk.sim ? timeouts[walk_below(3)] : 60000000;
	mwctl_domain_info pool = {.ready = WALK_OPEN};
	mwctl_request asked = walk_ask(peer);
	mwctl_result result = {0};
	mwctl_done_fn done = NULL;
	size_t ends = chain->what == BOTH ? 1 : chain->n, n = 0;
	bool uncertain = chain->what == BOTH && walk_uncertain(peer->server, &asked);
	mwctl_status status;

	for (size_t i = 0; i < ends; i++) {
		const struct walk_grant *grant = walk_some_grant(peer);

		for (size_t k = 0; grant && k < n; k++)
			if (chain->ids[k] == grant->id)
				grant = NULL;
		if (grant && (can_end(grant) || walk_chance(0.1)))
			chain->ids[n++] = grant->id;
	}
	if (!n)
		return false;
	chain->n = chain->what == BOTH ? 2 : n;
	if (walk_chance(0.9)) {
		chain->op = walk_op_begin(WALK_REVOKES, peer->server, timeout);
		if (!chain->op)
			return false;
		for (size_t i = 0; i < n; i++)
			chain->op->ids[chain->op->n++] = chain->ids[i];
		done = walk_op_done;
	}
	HOUSE_OK(mwctl_domain_info_get(server->house.ctx, server->house.domain, &pool, sizeof(pool)));
	status = chain->what == BOTH ?
			 mwctl_regrant_prepare(server->house.ctx, chain->ids[0], &asked, timeout, done, chain->op,
					       chain->wr, &result, &chain->token) :
			 mwctl_revoke_prepare(server->house.ctx, chain->ids, n, timeout, 0, done, chain->op,
					      chain->wr, &chain->token);
	walk_say(" %s of 0x%llx %zu, %llu us: %s", chain->what == BOTH ? "regrant" : "invalidate",
		 (unsigned long long)chain->ids[0], n, (unsigned long long)timeout, mwctl_status_text(status));
	if (status != MWCTL_STATUS_OK) {
		if (chain->op)
			walk_op_drop(chain->op);
		/* What was under way may have ended by what the call found in the queue. */
		if (status == MWCTL_STATUS_IN_PROGRESS || status == MWCTL_STATUS_STALE_ID)
			in_progress(peer, chain->ids, n);
		else
			refused(peer, status, chain->n, chain->what == BOTH, &pool, uncertain);
		return false;
	}
	/* Or was proved gone by what the call found in the queue. */
	WALK_AGREE(!uncertain || !walk_uncertain(peer->server, &asked),
		   "memory was prepared for a grant that was reported open");
	for (size_t i = 0; i < n; i++) {
		struct walk_grant *grant = walk_find(peer->server, chain->ids[i]);

		WALK_AGREE(grant != NULL, "a stale grant was prepared for its end");
		grant->in_hand = true;
		if (!chain->op)
			grant->due = walk_now() + timeout * 1000;
	}
	if (chain->op)
		walk_op_awaits(chain->op);
	if (chain->what == BOTH) {
		walk_add(peer, &asked, result.grant, result.rkey, WALK_PREPARED);
		chain->ids[1] = result.grant;
	}
	return true;
}

void walk_prepare(void)
{
	struct walk_peer *peer = walk_some_peer(-1);
	struct chain *chain = spare();

	if (!chain || peer->tokens == 3)
		return;
	*chain = (struct chain){.peer = peer, .what = (enum what)walk_below(3), .n = 1 + walk_below(MOST_OURS)};
	walk_say(" prepare server %d peer %d", peer->server, peer->index);
	chain->used = chain->what == BINDS ? prepare_binds(chain) : prepare_invalidates(chain);
	peer->tokens += chain->used;
}

/* ---- commit and abort ---- */

static bool is_bind(const struct chain *chain, size_t at)
{
	return chain->what == BINDS || (chain->what == BOTH && at == 1);
}

/* The first `posted` of the chain's requests were posted, the others were not. */
static void settle(struct chain *chain, size_t posted)
{
	struct walk_peer *peer = chain->peer;

	for (size_t i = 0; i < chain->n; i++) {
		struct walk_grant *grant = walk_find(peer->server, chain->ids[i]);

		if (!grant)
			continue;
		if (is_bind(chain, i)) {
			if (i >= posted) {
				walk_end(grant, MWCTL_PROOF_NEVER_BOUND);
				continue;
			}
			grant->posted = true;
			grant->standing = walk_hurt(peer) ? WALK_LOOSE :
					  grant->waits	  ? WALK_REVOKING :
							    WALK_BINDING;
			continue;
		}
		grant->in_hand = false;
		if (i < posted)
			grant->standing = chain->op && !walk_hurt(peer) ? WALK_REVOKING : WALK_LOOSE;
		else if (grant->standing == WALK_LIVE && (grant->waits > (chain->op != NULL) || walk_hurt(peer)))
			/* Another revocation goes on, or the library gives a dead client's window up. */
			grant->standing = grant->waits ? WALK_REVOKING : WALK_LOOSE;
	}
	/* It hears of the end after this, however long the chain was in hand. */
	if (chain->op)
		walk_op_committed(chain->op);
	chain->used = false;
	peer->tokens--;
}

static void commit(struct chain *chain)
{
	static struct ibv_sge many[MOST_SGE];
	struct walk_peer *peer = chain->peer;
	struct walk_server *server = &walk.server[peer->server];
	struct ibv_send_wr *all[MOST_OURS + 3], *bad = NULL, mine[2];
	struct ibv_send_wr broken = {.sg_list = many, .num_sge = MOST_SGE, .opcode = IBV_WR_RDMA_WRITE};
	size_t n = 0, expected = 0, posted = 0, stop;
	int first = -1, ret;

	/* The application's own before and behind, and one in between that no provider takes. */
	if (peer->sends.n < WALK_APP - 2 && walk_chance(0.5)) {
		mine[0] = walk_app_request();
		all[n++] = &mine[0];
	}
	for (size_t i = 0; i < chain->n; i++) {
		if (first < 0)
			first = (int)n;
		all[n++] = &chain->wr[i];
	}
	if (peer->sends.n < WALK_APP - 2 && walk_chance(0.5)) {
		mine[1] = walk_app_request();
		all[n++] = &mine[1];
	}
	if (walk_chance(0.1)) {
		stop = walk_below(n + 1);
		memmove(all + stop + 1, all + stop, (n - stop) * sizeof(all[0]));
		all[stop] = &broken;
		n++;
		walk.counts.cut++;
	}
	for (size_t i = 0; i < n; i++)
		all[i]->next = i + 1 < n ? all[i + 1] : NULL;
	ret = ibv_post_send(peer->client->pair.server.qp, all[0], &bad);
	for (stop = 0; stop < n && !(ret && all[stop] == bad); stop++)
		;
	for (size_t i = 0; i < stop; i++) {
		if (all[i] == &mine[0] || all[i] == &mine[1])
			walk_app_posted(peer, all[i]->wr_id);
		else
			expected += all[i] != &broken;
	}
	walk_say(" commit of %zu, ret %d, %zu posted", chain->n, ret, expected);
	HOUSE_OK(mwctl_commit(server->house.ctx, chain->token, ret, bad, &posted));
	WALK_AGREE(posted == expected, "mwctl_commit: expected %zu posted, got %zu", expected, posted);
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_abort(server->house.ctx, chain->token));
	walk.counts.committed++;
	settle(chain, posted);
}

void walk_finish_chain(struct walk_peer *peer)
{
	struct chain *chain = NULL;
	int from = (int)walk_below(CHAINS);

	for (int i = 0; i < CHAINS && !chain; i++) {
		chain = &chains[(from + i) % CHAINS];
		if (!chain->used || (peer && chain->peer != peer))
			chain = NULL;
	}
	if (!chain)
		return;
	walk_say(" finish server %d peer %d", chain->peer->server, chain->peer->index);
	walk.counts.prepared++;
	if (walk_chance(0.7)) {
		commit(chain);
		return;
	}
	walk_say(" abort");
	HOUSE_OK(mwctl_abort(walk.server[chain->peer->server].house.ctx, chain->token));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID,
		     mwctl_commit(walk.server[chain->peer->server].house.ctx, chain->token, 0, NULL, NULL));
	walk.counts.aborted++;
	settle(chain, 0);
}

void walk_chains_finish(struct walk_peer *peer)
{
	while (peer->tokens)
		walk_finish_chain(peer);
}
