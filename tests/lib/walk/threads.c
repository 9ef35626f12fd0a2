/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "walk/threads.h"
#include "walk/calls.h"
#include "walk/faults.h"
#include "walk/ops.h"
#include "walk/traffic.h"

#include <string.h>

/* A deadline that a real device's walk waits for. A device that is a program can lose the processor, and
 * a queue pair that has then done nothing for so long is rightly called stuck. */
#define SOON_US 200000

/* ---- the service thread ---- */

static void begin(struct walk_server *server)
{
	walk_say(" service begins on server %d", (int)(server - walk.server));
	HOUSE_OK(mwctl_service_start(server->house.ctx));
	server->service = walk_thread_begun();
	server->served = true;
	HOUSE_STATUS(MWCTL_STATUS_ALREADY_ATTACHED, mwctl_service_start(server->house.ctx));
}

void walk_service_end(struct walk_server *server)
{
	if (server->served) {
		walk_threads_run();
		walk_thread_ends(server->service);
	}
	HOUSE_OK(mwctl_service_stop(server->house.ctx));
	if (server->served)
		walk_thread_ended(server->service);
	server->served = false;
}

/* Nobody polls or ticks: what is under way ends by the thread alone, at its deadline or before. Meanwhile
 * this thread only looks whether it has. */
static void served_a_while(struct walk_server *server)
{
	int s = (int)(server - walk.server);
	double limit = rc_now() + RC_DEADLINE_S;

	for (int i = 0; i < 3; i++)
		walk_revoke_start_within(s, SOON_US);
	begin(server);
	while (walk_ops_soon(s, SOON_US))
		WALK_AGREE(rc_now() < limit, "the service thread does not keep a deadline");
	walk_service_end(server);
}

void walk_service(void)
{
	struct walk_server *server = &walk.server[walk_below(WALK_SERVERS)];

	if (!walk.sim) {
		if (walk_chance(0.25))
			served_a_while(server);
		return;
	}
	if (!server->served) {
		begin(server);
		return;
	}
	walk_say(" service ends on server %d", (int)(server - walk.server));
	walk_service_end(server);
	/* Without one nothing happens. */
	HOUSE_OK(mwctl_service_stop(server->house.ctx));
}

void walk_threads_agree(void)
{
	uint64_t now = walk_now();

	walk_threads_run();
	for (int s = 0; s < WALK_SERVERS; s++)
		if (walk.server[s].served)
			walk_ops_agree(s, now);
}

/* ---- calls by another thread ---- */

struct errand {
	struct walk_peer *peer;
	mwctl_context *ctx;
	mwctl_request asked;
	mwctl_move move;
	uint64_t what, grant;
	struct walk_op *op;
	mwctl_status status;
	mwctl_result results[2];
};

static int strangers;

int walk_strangers(void)
{
	return strangers;
}

static void refused_later(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	(void)user;
	strangers--;
	WALK_AGREE(n == 1 && status == results[0].status &&
			   (status == MWCTL_STATUS_WRONG_THREAD || status == MWCTL_STATUS_STALE_ID),
		   "a revocation by a thread that does not own the queue ended with \"%s\"", mwctl_status_text(status));
}

static void not_called(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	(void)user;
	(void)results;
	(void)n;
	walk_differ("a call that was refused ended: \"%s\"", mwctl_status_text(status));
}

#define STRANGE_CALLS 11

static void call_as_stranger(void *with)
{
	struct errand *it = with;
	struct ibv_send_wr wr[2];
	mwctl_token token = {0};
	size_t n;

	switch (it->what) {
	case 0:
		it->status = mwctl_grant(it->ctx, &it->asked, 0, it->results);
		return;
	case 1:
		it->status = mwctl_grant_start(it->ctx, &it->asked, 1, 0, not_called, NULL);
		return;
	case 2:
		it->status = mwctl_grant_prepare(it->ctx, &it->asked, 1, wr, it->results, &token);
		return;
	case 3:
		it->status = mwctl_regrant(it->ctx, it->grant, &it->asked, 0, it->results);
		return;
	case 4:
		it->status = mwctl_revoke(it->ctx, it->grant, 0, it->results);
		return;
	case 5:
		it->status = mwctl_revoke_prepare(it->ctx, &it->grant, 1, 0, 0, not_called, NULL, wr, &token);
		return;
	case 6:
		it->status = mwctl_revoke_peer(it->ctx, it->peer->id, 0, 0, &n);
		return;
	case 7:
		it->status = mwctl_revoke_peer_start(it->ctx, it->peer->id, 0, 0, not_called, NULL);
		return;
	case 8:
		it->status = mwctl_transfer(it->ctx, &it->move, 1, 0, 0, it->results);
		return;
	case 9:
		it->status = mwctl_peer_detach(it->ctx, it->peer->id, 0);
		return;
	default:
		it->status = mwctl_peer_detach_start(it->ctx, it->peer->id, 0, not_called, NULL);
	}
}

static void revoke_as_stranger(void *with)
{
	struct errand *it = with;

	it->status = mwctl_revoke_start(it->ctx, &it->grant, 1, 0, 0, refused_later, NULL);
}

/* A call that never waits may have to wait for a lock: what it writes to is there until it returns. */
static void call_elsewhere(void (*call)(void *), struct errand *it)
{
	walk_call_elsewhere(call, it);
	while (walk_is_elsewhere())
		walk_threads_run();
}

/* Nothing may come of it. */
static void strange(struct errand *it)
{
	const struct walk_grant *grant = walk_find(it->peer->server, it->grant);
	bool busy = grant->standing != WALK_LIVE || grant->waits || grant->in_hand;

	it->what = walk_below(STRANGE_CALLS + 1);
	walk_say(" call %d by a stranger", (int)it->what);
	if (it->what == STRANGE_CALLS) {
		call_elsewhere(revoke_as_stranger, it);
		HOUSE_OK(it->status);
		strangers++;
		return;
	}
	call_elsewhere(call_as_stranger, it);
	WALK_AGREE(it->status == MWCTL_STATUS_WRONG_THREAD ||
			   (it->what == 5 && busy && it->status == MWCTL_STATUS_IN_PROGRESS) ||
			   (walk_hurt(it->peer) && (it->status == MWCTL_STATUS_PEER_DEAD ||
						    it->status == MWCTL_STATUS_VERBS_ERROR)),
		   "call %d by a thread that does not own the queue: \"%s\"", (int)it->what,
		   mwctl_status_text(it->status));
}

static void call_for_owner(void *with)
{
	struct errand *it = with;
	uint64_t timeout = it->op ? it->op->timeout_us : 0;

	switch (it->what) {
	case 0:
		it->status = mwctl_grant_start(it->ctx, &it->asked, 1, timeout, walk_op_done, it->op);
		return;
	case 1:
		it->status = mwctl_revoke_start(it->ctx, &it->grant, 1, timeout, 0, walk_op_done, it->op);
		return;
	default:
		it->status = mwctl_grant(it->ctx, &it->asked, 1000000, it->results);
	}
}

/* It waits, and the owner posts and polls for it. */
static void wait_elsewhere(struct errand *it, bool uncertain)
{
	struct walk_peer *peer = it->peer;

	walk_call_elsewhere(call_for_owner, it);
	while (walk_is_elsewhere()) {
		walk_tick(peer->server);
		walk_poll(peer, 4);
		walk_pass(1000);
		walk_threads_run();
	}
	walk_say(": %s", mwctl_status_text(it->status));
	if (it->results[0].status == MWCTL_STATUS_NOT_POSTED) {
		WALK_AGREE(walk_hurt(peer), "a grant by another thread was refused: \"%s\"",
			   mwctl_status_text(it->status));
		return;
	}
	walk_certainty_agrees(it->results, uncertain);
	walk_granted(peer->server, &it->asked, it->results, 0, false);
}

static void queued(struct errand *it)
{
	struct walk_peer *peer = it->peer;
	struct walk_server *server = &walk.server[peer->server];
	bool uncertain = walk_uncertain(peer->server, &it->asked);
	uint64_t timeout = walk_start_us();

	it->what = walk_below(walk.sim ? 3 : 2);
	walk_say(" call %d for the owner", (int)it->what);
	if (it->what == 2) {
		wait_elsewhere(it, uncertain);
		return;
	}
	it->op = walk_op_begin(it->what == 0 ? WALK_GRANTS : WALK_REVOKES, peer->server, walk_limit_us(timeout, server));
	if (!it->op)
		return;
	if (it->what == 1) {
		walk_op_names(it->op, walk_find(peer->server, it->grant));
	} else {
		it->op->n = 1;
		it->op->asked[0] = it->asked;
		it->op->uncertain[0] = uncertain;
	}
	call_elsewhere(call_for_owner, it);
	walk_say(", %llu us: %s", (unsigned long long)timeout, mwctl_status_text(it->status));
	if (it->status != MWCTL_STATUS_OK) {
		WALK_AGREE(walk_hurt(peer), "a call for the owner was refused: \"%s\"", mwctl_status_text(it->status));
		walk_op_drop(it->op);
		return;
	}
	walk_op_started(it->op);
	if (it->what == 1)
		walk_op_awaits(it->op);
}

void walk_elsewhere(void)
{
	struct walk_peer *peer = walk_some_peer(-1);
	const struct walk_grant *grant;
	struct errand it = {.peer = peer};

	for (int i = 0; i < 8 && !peer->options.owner_thread; i++)
		peer = walk_some_peer(-1);
	grant = walk_some_grant(peer);
	if (!peer->options.owner_thread || !grant)
		return;
	it.peer = peer;
	it.ctx = walk.server[peer->server].house.ctx;
	it.asked = walk_ask(peer);
	it.grant = grant->id;
	it.move = (mwctl_move){.grant = grant->id, .to = it.asked};
	walk_say(" elsewhere: server %d peer %d", peer->server, peer->index);
	if (peer->options.queue_for_owner)
		queued(&it);
	else
		strange(&it);
}

/* ---- a send queue that is called stuck ---- */

/* Until a completion of ours comes through, what is revoked is deallocated, and the client lives on. */
static void revoke_while_stuck(struct walk_peer *peer, struct walk_grant *grant)
{
	struct walk_server *server = &walk.server[peer->server];
	mwctl_request asked = walk_ask(peer);
	uint64_t id = grant->id;
	mwctl_result result;

	HOUSE_OK(mwctl_revoke(server->house.ctx, id, walk_wait_us(false), &result));
	WALK_AGREE(result.proof == MWCTL_PROOF_DEALLOCATED, "a stuck queue's grant 0x%llx is proved gone by \"%s\"",
		   (unsigned long long)id, mwctl_proof_text(result.proof));
	walk_revoked(peer->server, id, &result, false);
	WALK_AGREE(house_peer(&server->house, peer->index).life == 1, "server %d peer %d, which is well, was ended",
		   peer->server, peer->index);
	/* What is granted now comes through, and with it the queue is trusted again. */
	if (walk_uncertain(peer->server, &asked))
		return;
	HOUSE_OK(mwctl_grant(server->house.ctx, &asked, walk_wait_us(false), &result));
	walk_granted(peer->server, &asked, &result, 0, false);
	id = result.grant;
	HOUSE_OK(mwctl_revoke(server->house.ctx, id, walk_wait_us(false), &result));
	WALK_AGREE(result.proof == MWCTL_PROOF_INVALIDATED, "grant 0x%llx is proved gone by \"%s\"",
		   (unsigned long long)id, mwctl_proof_text(result.proof));
	walk_revoked(peer->server, id, &result, false);
}

void walk_stuck(void)
{
	struct walk_peer *peer = walk_some_peer(-1);
	struct walk_grant *grant = walk_some_grant(peer);

	if (!grant || walk_fault_armed(MWCTL_SIM_FAIL_ALLOC_MW) || walk_fault_armed(MWCTL_SIM_FAIL_DEALLOC_MW) ||
	    walk_polls_itself(peer) || !walk_is_idle(peer, grant))
		return;
	walk_say(" stuck: server %d peer %d grant 0x%llx", peer->server, peer->index, (unsigned long long)grant->id);
	HOUSE_OK(mwctl_peer_stuck(walk.server[peer->server].house.ctx, peer->id));
	peer->stuck = true;
	for (int i = 0; i < walk.server[peer->server].n_open; i++)
		if (walk_peer_of(walk.server[peer->server].open[i]) == peer)
			walk.server[peer->server].open[i]->stuck |= walk.server[peer->server].open[i]->waits > 0;
	if (walk_chance(0.7))
		revoke_while_stuck(peer, grant);
}
