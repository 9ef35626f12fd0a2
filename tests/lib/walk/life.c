/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "walk/life.h"
#include "walk/chains.h"
#include "walk/faults.h"
#include "walk/ops.h"
#include "walk/threads.h"
#include "walk/traffic.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define HOUSE_BYTES (48 << 10)
#define BLOCKS 48
#define WAIT_US 1000
#define LETTER 64
#define ROUNDS 64                  /* after which only deadlines end what is under way */
#define LONG_NS UINT64_C(61000000000)

/* ---- servers ---- */

static void on_event(void *user, const mwctl_event *event)
{
	struct walk_server *server = user;
	struct walk_peer *peer = NULL;

	for (int p = 0; p < WALK_PEERS; p++)
		if (server->peer[p].id.id == event->peer)
			peer = &server->peer[p];
	switch (event->kind) {
	case MWCTL_EVENT_KIND_PEER_KILLED:
		server->killed++;
		walk.counts.kills++;
		WALK_AGREE(!peer || walk_hurt(peer) || peer->leaving,
			   "server %d peer %d, which is well, was killed", peer->server, peer->index);
		if (peer)
			peer->dead = true;
		break;
	case MWCTL_EVENT_KIND_PEER_DEAD:
		server->found_dead++;
		WALK_AGREE(!peer || walk_hurt(peer) || peer->leaving,
			   "server %d peer %d, which is well, was called dead", peer->server, peer->index);
		if (peer)
			peer->dead = true;
		break;
	case MWCTL_EVENT_KIND_PEER_INVALIDATED:
		server->self_ended++;
		break;
	default:
		walk_differ("an event of kind %d: nobody ended another one's grant", event->kind);
	}
}

static void open_region(struct walk_server *server, int which)
{
	struct walk_region *region = &server->region[which];
	mwctl_region_info info;

	HOUSE_OK(mwctl_region_info_get(server->house.ctx, region->id, &info, sizeof(info)));
	region->addr = info.addr;
	region->length = info.length;
	region->blocks = info.blocks;
	region->shadow = calloc(1, info.length);
	RC_CHECK(region->shadow != NULL);
}

static void open_server(int s)
{
	struct walk_server *server = &walk.server[s];
	mwctl_register_options blocks = {.block_size = WALK_BLOCK};
	struct house_options options = {
		.length = HOUSE_BYTES,
		.domain = {.reserve = 32},
		.context = {.timeout_us = walk.sim ? WAIT_US : 5000000, .on_event = on_event,
			    .event_user = server},
		.rc = {.max_send_wr = 256, .cqe = 1024},
	};
	int flags;

	/* One server's keys come round, the other's pool grows instead. */
	if (s == 1)
		options.domain.key_distance = 2000;
	server->key_distance = s == 1 ? 2000 : 1000000;
	options.clients = WALK_PEERS;
	for (int p = 0; p < WALK_PEERS; p++)
		server->peer[p] = (struct walk_peer){.server = s, .index = p, .client = &server->house.client[p]};
	house_open(&server->house, &options);
	flags = fcntl(server->house.device.context->async_fd, F_GETFL);
	RC_CHECK_EQ(0, fcntl(server->house.device.context->async_fd, F_SETFL, flags | O_NONBLOCK));
	server->region[0].id = server->house.region;
	HOUSE_OK(mwctl_region_register(server->house.ctx, server->house.domain, BLOCKS * WALK_BLOCK, &blocks,
				       sizeof(blocks), &server->region[1].id));
	for (int r = 0; r < WALK_REGIONS; r++)
		open_region(server, r);
	rc_memory_open(&server->letters, server->house.pd, LETTER, IBV_ACCESS_LOCAL_WRITE);
	for (int p = 0; p < WALK_PEERS; p++) {
		/* The house's clients are all alike; these are not. */
		house_leave(&server->house, p);
		walk_join(&server->peer[p]);
	}
}

void walk_open_servers(void)
{
	for (int s = 0; s < WALK_SERVERS; s++)
		open_server(s);
}

static void close_server(struct walk_server *server)
{
	mwctl_stats stats;

	HOUSE_OK(mwctl_region_detach(server->house.ctx, server->region[1].id));
	for (int r = 0; r < WALK_REGIONS; r++)
		free(server->region[r].shadow);
	rc_memory_close(&server->letters);
	stats = house_stats(&server->house);
	WALK_AGREE(stats.peers_killed == server->killed, "%llu peers were killed and %llu events told",
		   (unsigned long long)stats.peers_killed, (unsigned long long)server->killed);
	house_close(&server->house);
}

void walk_close_servers(void)
{
	struct mwctl_sim_counters counters;

	walk_quiesce();
	for (int s = 0; s < WALK_SERVERS; s++)
		for (int p = 0; p < WALK_PEERS; p++)
			walk_leave(&walk.server[s].peer[p]);
	for (int s = 0; s < WALK_SERVERS; s++)
		walk_service_end(&walk.server[s]);
	for (int s = 0; s < WALK_SERVERS; s++)
		close_server(&walk.server[s]);
	if (!walk.sim)
		return;
	RC_CHECK_EQ(0, mwctl_sim_counters_get(&counters, sizeof(counters)));
	/* Deallocations that the device faked are not in its count; the PDs are free all the same. */
	if (!walk.counts.fatal)
		RC_CHECK_EQ(counters.mw_allocated, counters.mw_deallocated);
	RC_CHECK_EQ(counters.mr_registered, counters.mr_deregistered);
	RC_CHECK_EQ(0, counters.misuse);
}

/* ---- clients ---- */

void walk_join(struct walk_peer *peer)
{
	static const uint32_t budgets[] = {1, 2, 5, 16, 64};
	struct walk_server *server = &walk.server[peer->server];
	struct walk_peer fresh = {.server = peer->server, .index = peer->index, .client = peer->client};

	fresh.options.budget = budgets[walk_below(5)];
	/* One client's queue is polled by the application alone. */
	if (peer->server == 1 && peer->index == WALK_PEERS - 1) {
		fresh.options.polling = MWCTL_POLLING_YOURS;
		fresh.options.polling_thread = (uint64_t)pthread_self();
	}
	/* Some have queues that are this thread's alone. */
	else if (walk_chance(0.2)) {
		fresh.options.owner_thread = (uint64_t)pthread_self();
		fresh.options.queue_for_owner = walk_chance(0.5);
	}
	server->house.options.peer = fresh.options;
	server->house.options.rc.sq_sig_all = walk_chance(0.2);
	house_join(&server->house, peer->index);
	fresh.id = peer->client->peer;
	fresh.qp_num = peer->client->pair.server.qp->qp_num;
	*peer = fresh;
	walk.counts.joins++;
}

static bool is_of(const struct walk_grant *grant, const void *what)
{
	const struct walk_peer *peer = what;

	return grant->peer == peer->index;
}

/* Nothing that the peer held is open, and nothing answers to its id. */
static void is_off_the_books(struct walk_peer *peer)
{
	struct walk_server *server = &walk.server[peer->server];
	mwctl_peer_info info;

	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_peer_info_get(server->house.ctx, peer->id, &info, sizeof(info)));
	for (int i = server->n_open - 1; i >= 0; i--)
		if (server->open[i]->peer == peer->index)
			walk_end(server->open[i], MWCTL_PROOF_NONE);
	peer->id.id = 0;
	peer->client->peer.id = 0;
}

static mwctl_status detach_by_callback(struct walk_peer *peer)
{
	struct walk_server *server = &walk.server[peer->server];
	uint64_t timeout = walk.sim ? WAIT_US : 5000000;
	struct walk_op *op = walk_op_begin(WALK_DETACH, peer->server, timeout);
	double limit = rc_now() + RC_DEADLINE_S;

	if (!op)
		return MWCTL_STATUS_BUSY;
	op->peer = peer;
	walk_op_names_all(op, is_of, peer);
	HOUSE_OK(mwctl_peer_detach_start(server->house.ctx, peer->id, timeout, walk_op_done, op));
	walk_op_started(op);
	walk_op_awaits(op);
	while (op->active) {
		/* Polled or not, it ends. */
		if (walk_chance(0.5))
			walk_poll(peer, 4);
		walk_tick(peer->server);
		WALK_AGREE(rc_now() < limit, "mwctl_peer_detach_start does not end");
	}
	return op->status;
}

static mwctl_status take_off(struct walk_peer *peer, uint64_t how)
{
	struct walk_server *server = &walk.server[peer->server];
	mwctl_status status;

	peer->leaving = true;
	if (how == 0) {
		walk_say(" gone");
		rc_qp_modify(peer->client->pair.server.qp, IBV_QPS_RESET);
		/* What was posted is discarded without a word. */
		peer->sends.n = peer->recvs.n = 0;
		peer->tainted = true;
		return mwctl_peer_gone(server->house.ctx, peer->id, 0);
	}
	if (how == 1 || peer->options.polling == MWCTL_POLLING_YOURS) {
		walk_say(" detach start");
		return detach_by_callback(peer);
	}
	walk_say(" detach");
	status = mwctl_peer_detach(server->house.ctx, peer->id, 0);
	return status;
}

void walk_leave(struct walk_peer *peer)
{
	uint64_t how = walk_below(4);
	mwctl_status status;

	walk_say(" leave server %d peer %d%s%s:", peer->server, peer->index, peer->dead ? " dead" : "",
		 peer->tainted ? " tainted" : "");
	/* A chain in the application's hands comes to its end first. */
	walk_chains_finish(peer);
	if (how == 0)
		walk_faults_release(peer);
	status = take_off(peer, how);
	walk_say(" %s", mwctl_status_text(status));
	if (status != MWCTL_STATUS_OK) {
		WALK_AGREE(walk_hurt(peer), "the detach of server %d peer %d, which is well: %s", peer->server,
			   peer->index, mwctl_status_text(status));
		/* Each of its grants may have been reported open. */
		for (int i = 0; i < walk.server[peer->server].n_open; i++)
			if (walk.server[peer->server].open[i]->peer == peer->index)
				walk.server[peer->server].open[i]->standing = WALK_LOOSE;
		walk_agree_peer(peer);
		walk_faults_release(NULL);
		/* Kinds that fail a call may strike no more: now it must do. */
		status = take_off(peer, how);
		walk_say(" again: %s", mwctl_status_text(status));
		WALK_AGREE(status == MWCTL_STATUS_OK, "a detach without faults: %s", mwctl_status_text(status));
	}
	is_off_the_books(peer);
	walk_faults_release(peer);
	/* What waiting calls kept for the application comes out before its queue goes. */
	if (how == 0) {
		walk_poll_away(peer);
	} else {
		double limit = rc_now() + RC_DEADLINE_S;

		/* On a real device the last ones are on their way. */
		do {
			walk_poll_dry(peer);
		} while (!walk.sim && peer->sends.n && rc_now() < limit);
		/* Receives that no SEND has used stay posted in a queue pair that lives. */
		peer->recvs.n = 0;
		walk_app_agrees(peer);
	}
	if (walk_chance(0.5))
		HOUSE_OK(mwctl_cq_gone(walk.server[peer->server].house.ctx, peer->client->pair.server.cq));
	walk_faults_forget(peer);
	walk_async_events(peer->server);
	rc_pair_close(&peer->client->pair);
}

/* ---- blocks ---- */

static bool block_is_free(const struct walk_server *server, const struct walk_region *region, uint64_t block)
{
	uint64_t addr = region->addr + block * WALK_BLOCK;

	if (region->taken[block])
		return false;
	for (int i = 0; i < server->n_open; i++)
		if (server->open[i]->addr < addr + WALK_BLOCK &&
		    addr < server->open[i]->addr + server->open[i]->length)
			return false;
	return true;
}

static bool run_is_free(const struct walk_server *server, const struct walk_region *region, uint64_t first,
			uint64_t n)
{
	for (uint64_t i = first; i < first + n; i++)
		if (!block_is_free(server, region, i))
			return false;
	return true;
}

static void take_blocks(struct walk_server *server, struct walk_region *region)
{
	uint64_t n = 1 + walk_below(3), addr = 0, first;
	mwctl_status status = mwctl_block_take(server->house.ctx, region->id, n, &addr);

	walk_say(" take %llu: %s", (unsigned long long)n, mwctl_status_text(status));
	if (status == MWCTL_STATUS_NO_BLOCKS) {
		for (first = 0; first + n <= region->blocks; first++)
			WALK_AGREE(!run_is_free(server, region, first, n), "blocks %llu+%llu are free and were not found",
				   (unsigned long long)first, (unsigned long long)n);
		return;
	}
	WALK_AGREE(status == MWCTL_STATUS_OK, "mwctl_block_take: %s", mwctl_status_text(status));
	first = (addr - region->addr) / WALK_BLOCK;
	WALK_AGREE((addr - region->addr) % WALK_BLOCK == 0 && first + n <= region->blocks &&
			   run_is_free(server, region, first, n),
		   "blocks %llu+%llu were handed out and are taken or not proved empty", (unsigned long long)first,
		   (unsigned long long)n);
	memset(region->taken + first, 1, n);
	walk.counts.blocks++;
}

static void give_blocks(struct walk_server *server, struct walk_region *region)
{
	uint64_t n = 1 + walk_below(2), first = walk_below(region->blocks - n + 1);
	bool taken = true;
	mwctl_status status;

	for (uint64_t i = first; i < first + n; i++)
		taken &= region->taken[i];
	status = mwctl_block_give(server->house.ctx, region->id, region->addr + first * WALK_BLOCK, n);
	walk_say(" give %llu+%llu: %s", (unsigned long long)first, (unsigned long long)n, mwctl_status_text(status));
	WALK_AGREE(status == (taken ? MWCTL_STATUS_OK : MWCTL_STATUS_BLOCK_NOT_TAKEN), "mwctl_block_give: %s",
		   mwctl_status_text(status));
	if (taken)
		memset(region->taken + first, 0, n);
}

void walk_blocks(void)
{
	struct walk_server *server = &walk.server[walk_below(WALK_SERVERS)];
	struct walk_region *region = &server->region[1];
	mwctl_region_info info;
	uint64_t taken = 0, quarantined = 0;

	if (walk_chance(0.5))
		take_blocks(server, region);
	else
		for (int i = 0; i < 4; i++)
			give_blocks(server, region);
	HOUSE_OK(mwctl_region_info_get(server->house.ctx, region->id, &info, sizeof(info)));
	for (uint64_t i = 0; i < region->blocks; i++) {
		taken += region->taken[i];
		quarantined += !region->taken[i] && !block_is_free(server, region, i);
	}
	WALK_AGREE(info.blocks_taken == taken && info.blocks_quarantined == quarantined,
		   "blocks: expected %llu taken and %llu quarantined, got %llu and %llu", (unsigned long long)taken,
		   (unsigned long long)quarantined, (unsigned long long)info.blocks_taken,
		   (unsigned long long)info.blocks_quarantined);
}

/* ---- a look at everything ---- */

static bool one_round(void)
{
	for (int s = 0; s < WALK_SERVERS; s++) {
		for (int p = 0; p < WALK_PEERS; p++)
			walk_poll_dry(&walk.server[s].peer[p]);
		walk_tick(s);
	}
	return walk_ops_active() + walk_strangers();
}

static bool somebody_is_hurt(void)
{
	for (int s = 0; s < WALK_SERVERS; s++)
		for (int p = 0; p < WALK_PEERS; p++)
			if (walk_hurt(&walk.server[s].peer[p]))
				return true;
	return false;
}

void walk_quiesce(void)
{
	int rounds = 0;
	double limit = rc_now() + 10 * RC_DEADLINE_S;

	walk_say(" quiesce");
	for (int s = 0; s < WALK_SERVERS; s++)
		for (int p = 0; p < WALK_PEERS; p++)
			walk_chains_finish(&walk.server[s].peer[p]);
	walk_faults_release(NULL);
	while (one_round()) {
		WALK_AGREE(rc_now() < limit, "%d operations do not end", walk_ops_active());
		if (!walk.sim || ++rounds < ROUNDS)
			continue;
		/* What waits for a completion that was swallowed waits for its deadline. */
		walk_ops_say();
		WALK_AGREE(somebody_is_hurt(), "%d operations do not end, and all is well", walk_ops_active());
		walk_pass(LONG_NS);
		rounds = 0;
	}
	walk_agree();
	for (int s = 0; s < WALK_SERVERS; s++)
		for (int p = 0; p < WALK_PEERS; p++) {
			struct walk_peer *peer = &walk.server[s].peer[p];
			mwctl_peer_info info = house_peer(&walk.server[s].house, p);

			WALK_AGREE(info.grants == (uint64_t)walk_open_of(peer), "server %d peer %d: expected %d grants, got %llu",
				   s, p, walk_open_of(peer), (unsigned long long)info.grants);
			walk_agree_life(peer);
			if (walk_hurt(peer))
				continue;
			/* Chains without a completion of their own keep their entries until the next one. */
			WALK_AGREE(info.life == 1 && !info.leaving && info.used <= info.budget / 2 + 1,
				   "server %d peer %d: life %u, leaving %u, %u of %u entries in use", s, p, info.life,
				   info.leaving, info.used, info.budget);
		}
	walk_agree_fully();
}
