/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "leader.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include "../common/rdmacm/cm.h"
#include "../common/report.h"

void leader_open(struct leader *leader, struct ibv_context *device, int term)
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

void leader_close(struct leader *leader)
{
	int r;

	for (r = 0; r < REPLICAS; r++) {
		cm_close(&leader->links[r]);
		if (ibv_destroy_cq(leader->cqs[r]))
			die("leader %d's CQ can't be destroyed", leader->term);
	}
	if (ibv_dereg_mr(leader->mr) || ibv_dealloc_pd(leader->pd))
		die("leader %d's memory can't be given back", leader->term);
}

static uint64_t place(const struct message *permit, uint64_t number)
{
	return permit->log + (number - 1) * sizeof(struct record);
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
				   place(&leader->permits[r], number), leader->permits[r].key);
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
					place(&permits[best], number), permits[best].key) ||
			    link_access(&leader->links[r], IBV_WR_RDMA_WRITE, &entry,
					place(&permits[r], number), permits[r].key))
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

void leaders_run(struct leader leaders[LEADERS])
{
	struct leader *old = &leaders[OLD], *new = &leaders[NEW];
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
