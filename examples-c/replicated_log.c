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
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/rdmacm/cm.h"
#include "common/rdmacm/sides.h"
#include "common/report.h"
#include "mwctl.h"
#include "replicated_log/leader.h"
#include "replicated_log/log.h"

#define SETTLING (50 * NS_PER_MS) /* where memory is not at rest with the proof */

/* ---- the replicas ---- */

struct replica {
	mwctl_region region;
	const struct record *log;
	struct link links[LEADERS];
	mwctl_peer peers[LEADERS];
	uint64_t held;         /* the grant of the present leader; 0: there is none */
	uint64_t last;         /* the last entry when the log was last handed over */
	struct record *handed; /* and its copy as it was then */
	bool hung_up[LEADERS], dead[LEADERS];
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
	mwctl_status status = MWCTL_STATUS_STALE_ID;

	/* results[1] is the old right's end. Without a proof of it there is no new one. */
	if (replica->held)
		status = mwctl_transfer(house.ctx, &move, 1, 0, MWCTL_KILL_ALLOWED, results);
	/* Nobody had it, or the old leader has given it back, by a SEND_WITH_INV. */
	if (status == MWCTL_STATUS_STALE_ID)
		status = mwctl_grant(house.ctx, &move.to, 0, results);
	must(status, "the handover");
	/* No access of the old leader starts any more. Soft-RoCE may still be copying one. */
	if (replica->held && !house.at_rest)
		clock_sleep_until(clock_ns() + SETTLING);
	printf("replica %d: leader %d; %s\n", r, to,
	       results[1].proof ? mwctl_proof_text(results[1].proof) : "nobody before");
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
	/* It is a number from the network. */
	if (!demand(done->first >= 1 && done->last <= ENTRIES, "replica %d: there is no entry %llu to %llu", r,
		    (unsigned long long)done->first, (unsigned long long)done->last))
		return;
	for (number = done->first; number <= done->last; number++) {
		memcpy(&record, &replica->log[number - 1], sizeof(record));
		demand(record.sequence == number && record_is_good(&record, NEW),
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

/* Nothing has arrived. Who hung up before this was so has nothing more to say. */
static void look_for_the_dead(void)
{
	struct replica *replica;
	int l;

	for (replica = house.replicas; replica < house.replicas + REPLICAS; replica++)
		for (l = 0; l < LEADERS; l++) {
			replica->dead[l] |= replica->hung_up[l];
			replica->hung_up[l] |= cm_hung_up(&replica->links[l]);
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
		if (n == 0) {
			look_for_the_dead();
			sched_yield();
		}
		for (i = 0; i < n; i++)
			on_completion(&wcs[i]);
		if (replica->dead[NEW] && replica->done.what != DONE)
			die("replica %d: the new leader is gone", r);
		/* The old leader's late write costs it the connection, at this end as well. */
		if (replica->dead[OLD] && replica->done.what == DONE)
			check(r++);
	}
}

static void replicas_close(void)
{
	int r, l;

	for (r = 0; r < REPLICAS; r++) {
		for (l = 0; l < LEADERS; l++) {
			/* Revokes what is held. Before rdma_disconnect moves the queue pair to ERR. */
			must(mwctl_peer_detach(house.ctx, house.replicas[r].peers[l], 0),
			     "mwctl_peer_detach");
			cm_close(&house.replicas[r].links[l]);
		}
		must(mwctl_region_detach(house.ctx, house.replicas[r].region), "mwctl_region_detach");
	}
	must(mwctl_domain_close(house.ctx, house.domain), "mwctl_domain_close");
	must(mwctl_context_close(house.ctx), "mwctl_context_close");
	if (ibv_destroy_cq(house.cq) || ibv_dealloc_pd(house.pd))
		die("the replicas' CQ or PD can't be destroyed");
}

/* ---- three ways to run ---- */

static struct leader leaders[LEADERS];

static void leaders_close(void)
{
	int l;

	for (l = 0; l < LEADERS; l++)
		leader_close(&leaders[l]);
}

static void *leaders_main(void *unused)
{
	leaders_run(leaders);
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
	leaders_run(leaders);
	leaders_close();
}

int main(int argc, char **argv)
{
	static const struct sides sides = {
		.name = "replicated_log",
		.server = "the replicas",
		.clients = "their leaders",
		.outcome = "the leader changed, the old one was shut out and nothing committed was lost",
		.in_one_process = in_one_process,
		.only_server = only_replicas,
		.only_clients = only_leaders,
	};

	return sides_main(argc, argv, &sides);
}
