/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "walk/faults.h"
#include "walk/calls.h"
#include "walk/ops.h"
#include "walk/traffic.h"
#include "walk/transfer.h"

#include <errno.h>
#include <string.h>

#define MOST_FAULTS 64

struct ordered {
	uint64_t id;
	uint32_t kind;
	uint32_t qp_num;               /* 0: any */
	uint64_t count;
	bool released;
};

static struct ordered ordered[MOST_FAULTS];
static int n_ordered;

static const struct {
	uint32_t kind;
	const char *name;
	bool global;
} kinds[] = {
	{MWCTL_SIM_FAIL_POST, "fail post", false},
	{MWCTL_SIM_CUT_POST, "cut post", false},
	{MWCTL_SIM_POST_NO_BAD_WR, "post without bad_wr", false},
	{MWCTL_SIM_LOSE_COMPLETION, "lose completion", false},
	{MWCTL_SIM_DELAY_COMPLETION, "delay completion", false},
	{MWCTL_SIM_STALL_SQ, "stall", false},
	{MWCTL_SIM_KILL_QP, "kill", false},
	{MWCTL_SIM_FAIL_WR, "fail request", false},
	{MWCTL_SIM_FAIL_MODIFY_QP, "fail modify", false},
	{MWCTL_SIM_FAIL_QUERY_QP, "fail query", false},
	{MWCTL_SIM_FAIL_ALLOC_MW, "fail alloc", true},
	{MWCTL_SIM_FAIL_DEALLOC_MW, "fail dealloc", true},
};

static uint64_t order(struct mwctl_sim_fault fault)
{
	uint64_t id = 0;

	RC_CHECK_EQ(0, mwctl_sim_fault_order(&fault, sizeof(fault), &id));
	walk.counts.faults++;
	return id;
}

static void forget(int at)
{
	ordered[at] = ordered[--n_ordered];
}

/* Whoever's windows are deallocated may be left with some. */
static void taint_stuck(void)
{
	for (int s = 0; s < WALK_SERVERS; s++) {
		struct walk_server *server = &walk.server[s];

		for (int p = 0; p < WALK_PEERS; p++)
			server->peer[p].tainted |= server->peer[p].stuck;
		/* What was put in line for it then may still wait there. */
		for (int i = 0; i < server->n_open; i++)
			walk_peer_of(server->open[i])->tainted |= server->open[i]->stuck;
	}
}

void walk_fault_order(void)
{
	static const int errors[] = {ENOMEM, EAGAIN, EINVAL, EIO, -ENOMEM, -EINVAL, -1};
	static const int kernel_errors[] = {ENOMEM, EIO, EBUSY};
	size_t which = walk_below(sizeof(kinds) / sizeof(kinds[0]));
	struct walk_peer *peer = walk_some_peer(-1);
	struct mwctl_sim_fault fault = {
		.kind = kinds[which].kind,
		.count = 1 + walk_below(2),
		.skip = walk_chance(0.3) ? walk_below(3) : 0,
		.error = errors[walk_below(7)],
		.position = (uint32_t)walk_below(4),
	};

	if (n_ordered == MOST_FAULTS || !peer->id.id)
		return;
	switch (fault.kind) {
	case MWCTL_SIM_FAIL_WR:
		fault.error = walk_chance(0.5) ? IBV_WC_MW_BIND_ERR : IBV_WC_LOC_QP_OP_ERR;
		break;
	case MWCTL_SIM_FAIL_MODIFY_QP:
	case MWCTL_SIM_FAIL_QUERY_QP:
	case MWCTL_SIM_FAIL_ALLOC_MW:
	case MWCTL_SIM_FAIL_DEALLOC_MW:
		fault.error = kernel_errors[walk_below(3)];
		break;
	default:
		break;
	}
	if (!kinds[which].global) {
		fault.qp_num = peer->qp_num;
		peer->tainted = true;
		peer->cut |= fault.kind == MWCTL_SIM_CUT_POST;
	}
	walk_say(" [%s, server %d peer %d, skip %llu count %llu error %d position %u]", kinds[which].name,
		 peer->server, peer->index, (unsigned long long)fault.skip, (unsigned long long)fault.count,
		 fault.error, fault.position);
	if (fault.kind == MWCTL_SIM_FAIL_ALLOC_MW || fault.kind == MWCTL_SIM_FAIL_DEALLOC_MW)
		taint_stuck();
	ordered[n_ordered] = (struct ordered){.kind = fault.kind, .qp_num = fault.qp_num, .count = fault.count};
	ordered[n_ordered++].id = order(fault);
}

/* What was swallowed stays swallowed: a loss is remembered as long as the queue pair lives. */
static void let_go(int at)
{
	if (!ordered[at].released) {
		walk_say(" [release %u of QP %u]", ordered[at].kind, ordered[at].qp_num);
		RC_CHECK_EQ(0, mwctl_sim_fault_release(ordered[at].id));
		ordered[at].released = true;
	}
	if (ordered[at].kind != MWCTL_SIM_LOSE_COMPLETION)
		forget(at);
}

void walk_fault_release_some(void)
{
	if (n_ordered)
		let_go((int)walk_below((uint64_t)n_ordered));
}

void walk_faults_release(const struct walk_peer *peer)
{
	for (int i = n_ordered - 1; i >= 0; i--)
		if (!peer || ordered[i].qp_num == peer->qp_num)
			let_go(i);
}

void walk_faults_forget(const struct walk_peer *peer)
{
	walk_faults_release(peer);
	for (int i = n_ordered - 1; i >= 0; i--)
		if (ordered[i].qp_num == peer->qp_num)
			forget(i);
}

void walk_faults_tidy(void)
{
	for (int i = n_ordered - 1; i >= 0; i--)
		if (!ordered[i].qp_num && mwctl_sim_fault_hits(ordered[i].id) == ordered[i].count)
			let_go(i);
}

bool walk_fault_armed(enum mwctl_sim_fault_kind kind)
{
	for (int i = 0; i < n_ordered; i++)
		if (ordered[i].kind == (uint32_t)kind)
			return true;
	return false;
}

bool walk_fault_at(const struct walk_peer *peer, enum mwctl_sim_fault_kind kind)
{
	for (int i = 0; i < n_ordered; i++)
		if (ordered[i].kind == (uint32_t)kind && (!ordered[i].qp_num || ordered[i].qp_num == peer->qp_num))
			return true;
	return false;
}

uint64_t walk_fault_lost(const struct walk_peer *peer)
{
	uint64_t n = 0;

	for (int i = 0; i < n_ordered; i++)
		if (ordered[i].kind == MWCTL_SIM_LOSE_COMPLETION && ordered[i].qp_num == peer->qp_num)
			n += mwctl_sim_fault_hits(ordered[i].id);
	return n;
}

/* ---- whole scenes ---- */

void walk_fault_held_packet(void)
{
	struct walk_peer *peer = walk_some_peer(-1);
	struct walk_grant *grant = walk_some_grant(peer);
	struct walk_op *op;
	struct ibv_wc wc = {0};
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct walk_region *region;
	uint64_t id, length, whole, grant_id;
	int got;

	/* Nothing of ours is in the queue, so that the LOCAL_INV is posted at once. A deallocation would wait
	 * for the packet. */
	if (!grant || !(grant->access & HOUSE_WRITE) || peer->stuck || !walk_is_idle(peer, grant))
		return;
	grant_id = grant->id;
	op = walk_op_begin(WALK_REVOKES, peer->server, 60000000);
	if (!op)
		return;
	whole = length = grant->length < 3000 ? grant->length : 3000;
	region = walk_region_at(peer->server, grant->addr);
	walk_say(" held packet: server %d peer %d grant 0x%llx %llu bytes", peer->server, peer->index,
		 (unsigned long long)grant->id, (unsigned long long)length);
	id = order((struct mwctl_sim_fault){.kind = MWCTL_SIM_HOLD_PACKET, .qp_num = peer->qp_num, .count = 1});
	memset(peer->client->local.at, (int)walk_below(256), length);
	wr = rc_wr_write(&sge, &peer->client->local, length, (void *)(uintptr_t)grant->addr, grant->rkey);
	rc_post(peer->client->pair.client.qp, &wr);
	WALK_AGREE(ibv_poll_cq(peer->client->pair.client.cq, 1, &wc) == 0, "a held WRITE has completed");
	walk_agree_bytes(grant->addr, length);
	walk_op_names(op, grant);
	HOUSE_OK(mwctl_revoke_start(walk.server[peer->server].house.ctx, &grant_id, 1, 60000000, 0, walk_op_done,
				    op));
	walk_op_started(op);
	walk_op_awaits(op);
	walk_poll_dry(peer);
	walk_tick(peer->server);
	WALK_AGREE(op->active, "grant 0x%llx was reported gone before a packet under way was placed",
		   (unsigned long long)grant_id);
	RC_CHECK_EQ(0, mwctl_sim_fault_release(id));
	/* The packet that was let in lands; those after it are refused. */
	if (length > 1024)
		length = 1024;
	memcpy(region->shadow + (grant->addr - region->addr), peer->client->local.at, length);
	walk_agree_bytes(grant->addr, whole);
	got = ibv_poll_cq(peer->client->pair.client.cq, 1, &wc);
	WALK_AGREE(got == 1 && (wc.status == IBV_WC_SUCCESS) == (length == whole), "a WRITE of %llu bytes ended with %d",
		   (unsigned long long)whole, wc.status);
	peer->dead = length < whole;
	walk.counts.torn += length < whole;
	walk_poll_dry(peer);
	walk_tick(peer->server);
	WALK_AGREE(!op->active, "the revocation of 0x%llx did not end", (unsigned long long)grant_id);
}

/*
 * Nothing that a device says after a fatal event is believed. Its successes are made up: no queue pair
 * goes to ERR and no window is gone; of a queue pair's state it says nothing; it makes no more windows.
 * What was posted still runs. So whoever is well goes on as before, only a completion is a proof, and
 * nobody may be called dead that lives.
 */
void walk_fault_fatal(void)
{
	static void (*const steps[])(void) = {walk_revoke, walk_revoke_start, walk_revoke_peer, walk_grant, walk_regrant,
					      walk_transfer, walk_use_key, walk_use_key, walk_use_key};
	uint64_t id, n = 1 + walk_below(12);

	if (walk_chance(0.8))
		return;
	walk_say(" fatal:");
	id = order((struct mwctl_sim_fault){.kind = MWCTL_SIM_DEVICE_FATAL});
	walk.fatal = true;
	walk.no_windows = walk.no_dealloc = walk.step;
	walk.counts.fatal++;
	taint_stuck();
	for (int s = 0; s < WALK_SERVERS; s++)
		walk_async_events(s);
	for (uint64_t i = 0; i < n; i++) {
		struct walk_peer *peer = walk_some_peer(-1);

		steps[walk_below(sizeof(steps) / sizeof(steps[0]))]();
		if (walk_chance(0.5))
			walk_poll(peer, 8);
		if (walk_chance(0.3))
			walk_tick(peer->server);
		walk_agree();
	}
	RC_CHECK_EQ(0, mwctl_sim_fault_release(id));
	walk.fatal = false;
	walk_say(" recovered");
	for (int s = 0; s < WALK_SERVERS; s++)
		for (int p = 0; p < WALK_PEERS; p++)
			walk_agree_life(&walk.server[s].peer[p]);
}
