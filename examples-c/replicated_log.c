/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A log on three replicas, which the leader writes into by RDMA WRITE alone. Leadership is a right
 * to a replica's log: whoever holds it on a majority can commit, and a replica never lets two have
 * it. A new leader asks each replica; the replica transfers the right, which ends the old one with
 * proof first, and acknowledges with the new key. The old leader need not cooperate, or even know:
 * here it goes on writing until it is refused.
 *
 * Each replica has its own memory and decides for itself. For brevity one process plays all three,
 * and one both leaders.
 */
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/link.h"
#include "common/rdmacm/cm.h"
#include "common/record.h"
#include "common/report.h"
#include "mwctl.h"

#define REPLICAS 3
#define MAJORITY 2
#define LEADERS 2 /* a leader's number is its term */
#define ENTRIES 8192
#define LOG_SIZE (ENTRIES * sizeof(struct record))
#define SOME 50 /* entries that a leader commits before anything happens to it */
#define PORT 7472
#define TIME_LIMIT 120 /* seconds, whatever happens */
#define SETTLING (50 * NS_PER_MS) /* where memory is not at rest with the proof */

/* What leaders and replicas say to each other. An entry's number is its place in the log; the
 * first is 1. `last` is that of the last entry. */
enum what { ASK, PERMIT, DONE };
struct message {
	uint32_t what;
	uint32_t key;         /* PERMIT */
	uint64_t log;         /* PERMIT */
	uint64_t first, last; /* PERMIT: last alone. DONE: those the leader appended */
};
_Static_assert(sizeof(struct message) <= LINK_MESSAGE, "a message fits");

static uint64_t place(uint64_t log, uint64_t number)
{
	return log + (number - 1) * sizeof(struct record);
}

/* ---- the replicas ---- */

struct replica {
	mwctl_region region;
	const struct record *log;
	struct link links[LEADERS];
	mwctl_peer peers[LEADERS];
	uint64_t held;           /* the grant of the present leader; 0: there is none */
	uint64_t last;           /* what was in the log when it was last handed over */
	struct record *handed;   /* and its copy */
	bool dead[LEADERS];
	struct message done; /* what the new leader said last */
};

static struct {
	mwctl_context *ctx;
	mwctl_domain domain;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	bool at_rest;
	struct replica replicas[REPLICAS];
} house;

static void replicas_open(struct ibv_context *device)
{
	static struct record copies[REPLICAS][ENTRIES];
	mwctl_capabilities capabilities = { 0 };
	mwctl_region_info info = { 0 };
	int cqe = 0, r;

	must(mwctl_context_open(device, NULL, 0, &house.ctx), "mwctl_context_open");
	must(mwctl_capabilities_get(house.ctx, &capabilities, sizeof(capabilities)),
	     "mwctl_capabilities_get");
	if (!capabilities.type2)
		skip("the device has no Type 2 memory windows");
	house.at_rest = capabilities.memory_at_rest;
	for (r = 0; r < REPLICAS * LEADERS; r++)
		link_size(true, &cqe);
	house.pd = ibv_alloc_pd(device);
	house.cq = ibv_create_cq(device, cqe, NULL, NULL, 0);
	if (!house.pd || !house.cq)
		die("no PD or no CQ");
	must(mwctl_domain_open(house.ctx, house.pd, NULL, 0, &house.domain), "mwctl_domain_open");
	for (r = 0; r < REPLICAS; r++) {
		struct replica *replica = &house.replicas[r];

		must(mwctl_region_register(house.ctx, house.domain, LOG_SIZE, NULL, 0, &replica->region),
		     "mwctl_region_register");
		must(mwctl_region_info_get(house.ctx, replica->region, &info, sizeof(info)),
		     "mwctl_region_info_get");
		replica->log = (const struct record *)(uintptr_t)info.addr;
		replica->handed = copies[r];
	}
}

/* Links are up: the leaders' queue pairs are managed from here on, and have no right to anything. */
static void replicas_attach(void)
{
	int r, l;

	for (r = 0; r < REPLICAS; r++)
		for (l = 0; l < LEADERS; l++)
			must(mwctl_peer_attach(house.ctx, house.domain, house.replicas[r].links[l].qp, NULL,
					       0, &house.replicas[r].peers[l]),
			     "mwctl_peer_attach");
}

/* The last entry of an unbroken row of whole ones. What a cut write left behind does not count. */
static uint64_t last_whole(const struct replica *replica)
{
	struct record record;
	uint64_t number;

	for (number = 1; number <= ENTRIES; number++) {
		memcpy(&record, &replica->log[number - 1], sizeof(record));
		if (record.sequence != number || record.writer >= LEADERS ||
		    !record_is_good(&record, record.writer))
			break;
	}
	return number - 1;
}

static void hand_over(int r, int to)
{
	struct replica *replica = &house.replicas[r];
	struct message permit = { .what = PERMIT, .log = (uintptr_t)replica->log };
	mwctl_move move = {
		.grant = replica->held,
		.to = { .peer = replica->peers[to], .region = replica->region, .addr = permit.log,
			.length = LOG_SIZE, .access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE },
	};
	mwctl_result results[2] = { { 0 } };

	if (replica->held)
		/* results[1] is the old right's end. Without a proof of it there is no new one. */
		must(mwctl_transfer(house.ctx, &move, 1, 0, MWCTL_KILL_ALLOWED, results),
		     "mwctl_transfer");
	else
		must(mwctl_grant(house.ctx, &move.to, 0, results), "mwctl_grant");
	/* No access of the old leader starts any more. Soft-RoCE may still be copying one. */
	if (replica->held && !house.at_rest)
		clock_sleep_until(clock_ns() + SETTLING);
	printf("replica %d: leader %d; %s\n", r, to,
	       replica->held ? mwctl_proof_text(results[1].proof) : "nobody before");
	replica->held = results[0].grant;
	replica->last = last_whole(replica);
	memcpy(replica->handed, replica->log, LOG_SIZE);
	permit.key = results[0].rkey;
	permit.last = replica->last;
	link_send(&replica->links[to], &permit, sizeof(permit));
}

/* What must hold when the new leader has finished. */
static void check(int r)
{
	const struct replica *replica = &house.replicas[r];
	const struct message *done = &replica->done;
	struct record record;
	uint64_t number;

	demand(!memcmp(replica->log, replica->handed, replica->last * sizeof(record)),
	       "replica %d: entries from before the handover changed", r);
	demand(done->first > replica->last, "replica %d: the new leader went over old entries", r);
	for (number = done->first; number <= done->last; number++) {
		memcpy(&record, &replica->log[number - 1], sizeof(record));
		demand(record.sequence == number && record_is_good(&record, LEADERS - 1),
		       "replica %d: entry %llu is not the new leader's", r, (unsigned long long)number);
	}
	demand(last_whole(replica) == done->last, "replica %d: the log ends at %llu, not %llu", r,
	       (unsigned long long)last_whole(replica), (unsigned long long)done->last);
	printf("replica %d: %llu entries until the handover, then %llu to %llu of the new leader\n", r,
	       (unsigned long long)replica->last, (unsigned long long)done->first,
	       (unsigned long long)done->last);
}

static void on_completion(const struct ibv_wc *wc)
{
	struct message message;
	int r, l;

	for (r = 0; r < REPLICAS; r++)
		for (l = 0; l < LEADERS; l++) {
			struct replica *replica = &house.replicas[r];

			if (replica->links[l].qp->qp_num != wc->qp_num)
				continue;
			if (wc->status != IBV_WC_SUCCESS) {
				replica->dead[l] = true;
			} else if (link_received(&replica->links[l], wc, &message, sizeof(message))) {
				if (message.what == ASK)
					hand_over(r, l);
				else
					replica->done = message;
			}
			return;
		}
}

static void replicas_run(void)
{
	struct ibv_wc wcs[16];
	const struct replica *replica;
	int i, n, r = 0;

	while (r < REPLICAS) {
		replica = &house.replicas[r];
		n = mwctl_poll_cq(house.ctx, house.cq, 16, wcs);
		if (n < 0)
			die("mwctl_poll_cq failed");
		if (n == 0)
			sched_yield();
		for (i = 0; i < n; i++)
			on_completion(&wcs[i]);
		if (replica->dead[LEADERS - 1] && replica->done.what != DONE)
			die("replica %d: the new leader is gone", r);
		/* The old leader's late write costs it the connection, at this end as well. */
		if (replica->dead[0] && replica->done.what == DONE)
			check(r++);
	}
}

static void hang_up(struct link *link)
{
	if (link->id)
		cm_hang_up(link);
	link_close(link);
}

static void replicas_close(void)
{
	int r, l;

	for (r = 0; r < REPLICAS; r++) {
		for (l = 0; l < LEADERS; l++) {
			/* Revokes what is held. Before rdma_disconnect moves the queue pair to ERR. */
			must(mwctl_peer_detach(house.ctx, house.replicas[r].peers[l], 0),
			     "mwctl_peer_detach");
			hang_up(&house.replicas[r].links[l]);
		}
		must(mwctl_region_detach(house.ctx, house.replicas[r].region), "mwctl_region_detach");
	}
	must(mwctl_domain_close(house.ctx, house.domain), "mwctl_domain_close");
	must(mwctl_context_close(house.ctx), "mwctl_context_close");
	if (ibv_destroy_cq(house.cq) || ibv_dealloc_pd(house.pd))
		die("the replicas' CQ or PD can't be destroyed");
}

/* ---- the leaders: plain verbs ---- */

struct leader {
	int term;
	struct link links[REPLICAS];
	struct message permits[REPLICAS];
	struct ibv_pd *pd;
	struct ibv_cq *cqs[REPLICAS];
	struct ibv_mr *mr;
	struct record entry;
	enum ibv_wc_status ends[REPLICAS]; /* SUCCESS while it may write there */
	_Atomic uint64_t committed;        /* the last entry that a majority has */
};

static struct leader leaders[LEADERS];

static void leader_open(struct leader *leader, struct ibv_context *device, int term)
{
	int cqe = 0, r;

	link_size(false, &cqe);
	leader->term = term;
	leader->pd = ibv_alloc_pd(device);
	if (!leader->pd)
		die("no PD");
	leader->mr = ibv_reg_mr(leader->pd, &leader->entry, sizeof(leader->entry), IBV_ACCESS_LOCAL_WRITE);
	if (!leader->mr)
		die("ibv_reg_mr failed");
	for (r = 0; r < REPLICAS; r++) {
		leader->cqs[r] = ibv_create_cq(device, cqe, NULL, NULL, 0);
		if (!leader->cqs[r])
			die("no CQ");
	}
}

static struct ibv_sge entry_of(const struct leader *leader)
{
	return (struct ibv_sge){ (uintptr_t)&leader->entry, sizeof(leader->entry), leader->mr->lkey };
}

/* Writes leader->entry to every replica that still lets it. True if a majority has it then. */
static bool replicate(struct leader *leader, uint64_t number)
{
	struct ibv_sge entry = entry_of(leader);
	int r, n = 0;

	for (r = 0; r < REPLICAS; r++)
		if (leader->ends[r] == IBV_WC_SUCCESS)
			link_begin(&leader->links[r], IBV_WR_RDMA_WRITE, &entry,
				   place(leader->permits[r].log, number), leader->permits[r].key);
	for (r = 0; r < REPLICAS; r++) {
		if (leader->ends[r] != IBV_WC_SUCCESS)
			continue;
		leader->ends[r] = link_end(&leader->links[r]);
		n += leader->ends[r] == IBV_WC_SUCCESS;
	}
	if (n >= MAJORITY)
		atomic_store(&leader->committed, number);
	return n >= MAJORITY;
}

/* Asks for the right to write and waits for all the permits. A majority would do; with all of them
 * the old leader is shut out everywhere. */
static void take_over(struct leader *leader)
{
	const struct message ask = { .what = ASK };
	int r;

	for (r = 0; r < REPLICAS; r++)
		link_send(&leader->links[r], &ask, sizeof(ask));
	for (r = 0; r < REPLICAS; r++)
		link_wait(&leader->links[r], &leader->permits[r], sizeof(leader->permits[r]));
}

/* What any replica has, a majority may have: it is kept, and copied to those that lack it. Returns
 * the number of the last entry. */
static uint64_t catch_up(struct leader *leader)
{
	struct ibv_sge entry = entry_of(leader);
	struct message *permits = leader->permits;
	uint64_t number;
	int r, best = 0;

	for (r = 1; r < REPLICAS; r++)
		if (permits[r].last > permits[best].last)
			best = r;
	for (r = 0; r < REPLICAS; r++)
		for (number = permits[r].last + 1; number <= permits[best].last; number++)
			if (link_access(&leader->links[best], IBV_WR_RDMA_READ, &entry,
					place(permits[best].log, number), permits[best].key) ||
			    link_access(&leader->links[r], IBV_WR_RDMA_WRITE, &entry,
					place(permits[r].log, number), permits[r].key))
				die("leader %d: lost a replica while it catches up", leader->term);
	atomic_store(&leader->committed, permits[best].last);
	return permits[best].last;
}

/* The first leader writes, and never asks whether it still may. */
static void *old_leader_main(void *argument)
{
	struct leader *leader = argument;
	uint64_t number = 0;
	int r, left = REPLICAS;

	take_over(leader);
	while (left > 0) {
		/* What a majority does not have is tried again; the new leader's room stays free. */
		if (atomic_load(&leader->committed) == number && number < ENTRIES - 2 * SOME)
			number++;
		record_fill(&leader->entry, (uint32_t)leader->term, number, true);
		replicate(leader, number);
		for (r = 0, left = 0; r < REPLICAS; r++)
			left += leader->ends[r] == IBV_WC_SUCCESS;
	}
	return NULL;
}

static void leaders_run(void)
{
	struct leader *old = &leaders[0], *new = &leaders[1];
	struct message done = { .what = DONE };
	pthread_t thread;
	uint64_t number, kept;
	int r;

	if (pthread_create(&thread, NULL, old_leader_main, old))
		die("pthread_create failed");
	while (atomic_load(&old->committed) < SOME)
		sched_yield();
	take_over(new); /* the old one is in the middle of a write */
	kept = catch_up(new);
	for (number = kept + 1; number <= kept + SOME; number++) {
		record_fill(&new->entry, (uint32_t)new->term, number, true);
		if (!replicate(new, number))
			die("the new leader has no majority");
	}
	pthread_join(thread, NULL);
	printf("leaders: 0 committed %llu entries, 1 found %llu and went on to %llu\n",
	       (unsigned long long)atomic_load(&old->committed), (unsigned long long)kept,
	       (unsigned long long)atomic_load(&new->committed));
	demand(atomic_load(&old->committed) <= kept, "an entry that was committed is lost");
	for (r = 0; r < REPLICAS; r++) {
		demand(old->ends[r] == IBV_WC_REM_ACCESS_ERR, "replica %d refused the old leader with: %s",
		       r, ibv_wc_status_str(old->ends[r]));
		demand(new->ends[r] == IBV_WC_SUCCESS, "the new leader lost replica %d: %s", r,
		       ibv_wc_status_str(new->ends[r]));
	}
	done.first = kept + 1;
	done.last = kept + SOME;
	for (r = 0; r < REPLICAS; r++)
		link_send(&new->links[r], &done, sizeof(done));
	for (r = 0; r < REPLICAS; r++)
		link_drain(&new->links[r]);
}

static void leaders_close(void)
{
	int l, r;

	for (l = 0; l < LEADERS; l++) {
		for (r = 0; r < REPLICAS; r++) {
			hang_up(&leaders[l].links[r]);
			if (ibv_destroy_cq(leaders[l].cqs[r]))
				die("leader %d's CQ can't be destroyed", l);
		}
		if (ibv_dereg_mr(leaders[l].mr) || ibv_dealloc_pd(leaders[l].pd))
			die("leader %d's memory can't be given back", l);
	}
}

/* ---- three ways to run ---- */

static void *leaders_main(void *unused)
{
	leaders_run();
	return unused;
}

static void in_one_process(void)
{
	struct rc_device device;
	pthread_t thread;
	int l, r;

	rc_open(&device);
	replicas_open(device.verbs);
	for (l = 0; l < LEADERS; l++) {
		leader_open(&leaders[l], device.verbs, l);
		for (r = 0; r < REPLICAS; r++)
			link_pair(&device, &house.replicas[r].links[l], house.pd, house.cq,
				  &leaders[l].links[r], leaders[l].pd, leaders[l].cqs[r]);
	}
	replicas_attach();
	if (pthread_create(&thread, NULL, leaders_main, NULL))
		die("pthread_create failed");
	replicas_run();
	pthread_join(thread, NULL);
	leaders_close();
	replicas_close();
	rc_close(&device);
}

static void only_replicas(const char *address)
{
	struct rdma_cm_id *listener = cm_listen(address, PORT), *id;
	uint32_t who;
	int i;

	replicas_open(listener->verbs);
	for (i = 0; i < LEADERS * REPLICAS; i++) {
		struct link *link;

		id = cm_request(listener, &who);
		link = &house.replicas[who % REPLICAS].links[who / REPLICAS % LEADERS];
		if (who >= LEADERS * REPLICAS || link->qp)
			die("a leader asks for what there is not: %u", who);
		cm_accept(id, link, house.pd, house.cq);
	}
	replicas_attach();
	replicas_run();
	replicas_close();
	rdma_destroy_id(listener);
}

static void only_leaders(const char *from, const char *to)
{
	struct rdma_cm_id *id;
	int l, r;

	for (l = 0; l < LEADERS; l++)
		for (r = 0; r < REPLICAS; r++) {
			id = cm_resolve(from, to, PORT);
			if (r == 0)
				leader_open(&leaders[l], id->verbs, l);
			cm_connect(id, &leaders[l].links[r], leaders[l].pd, leaders[l].cqs[r],
				   (uint32_t)(l * REPLICAS + r));
		}
	leaders_run();
	leaders_close();
}

static void usage(FILE *to)
{
	fputs("usage: replicated_log                                     all in one process\n"
	      "       replicated_log --listen ADDRESS                    the replicas\n"
	      "       replicated_log --connect ADDRESS [--from ADDRESS]  the leaders\n\n"
	      "Ends with 0 if the leader changed, the old one was shut out, and nothing that it had\n"
	      "committed was lost; 77 if it can't run here.\n",
	      to);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "listen", required_argument, NULL, 'l' },
		{ "connect", required_argument, NULL, 'c' },
		{ "from", required_argument, NULL, 'f' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	const char *listen = NULL, *connect = NULL, *from = NULL;
	int which;

	while ((which = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (which) {
		case 'l': listen = optarg; break;
		case 'c': connect = optarg; break;
		case 'f': from = optarg; break;
		case 'h': usage(stdout); return 0;
		default: usage(stderr); return 2;
		}
	}
	if (optind < argc || (listen && connect) || (from && !connect)) {
		usage(stderr);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	time_limit(TIME_LIMIT);
	crc32c_init();
	if (listen)
		only_replicas(listen);
	else if (connect)
		only_leaders(from, connect);
	else
		in_one_process();
	return demands_failed() ? 1 : 0;
}
