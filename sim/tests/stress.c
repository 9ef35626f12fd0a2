/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Threads against each other: queue pairs that send to one another, invalidates and errors in
 * the middle of traffic, objects that go while others use them. Nothing may hang, nothing may
 * land after a proof, and every work request completes once.
 */
#include "kit.h"

#include <pthread.h>
#include <stdatomic.h>

static struct rc_device device;

static unsigned int scale(void)
{
	const char *text = getenv("MWCTL_TEST_ROUNDS");

	return text ? (unsigned int)strtoul(text, NULL, 10) : 1;
}

/* ---- two queue pairs that send to each other ---- */

struct side {
	struct rc_end *end;
	struct rc_memory out, in;
	unsigned int messages;
};

static void *talk(void *argument)
{
	struct side *side = argument;
	struct ibv_sge sge = { (uintptr_t)side->out.at, 3000, side->out.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED };
	unsigned int sent = 0, received = 0, posted = 0, in_flight = 0;
	double deadline = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;

	while (sent < side->messages || received < side->messages) {
		if (posted < side->messages && posted - received < 16) {
			rc_post_recv(side->end, &side->in, 2);
			posted++;
		}
		if (sent + in_flight < side->messages && in_flight < 16) {
			rc_post(side->end->qp, &wr);
			in_flight++;
		}
		while (ibv_poll_cq(side->end->cq, 1, &wc) == 1) {
			RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
			if (wc.wr_id == 1) {
				sent++;
				in_flight--;
			} else {
				received++;
			}
		}
		RC_CHECK(rc_now() < deadline);
	}
	return NULL;
}

static void each_other(void)
{
	struct side side[2] = { { .messages = 10000 * scale() }, { .messages = 10000 * scale() } };
	struct rc_pair pair;
	pthread_t thread[2];
	int i;

	rc_pair_open(&pair, &device, NULL);
	for (i = 0; i < 2; i++) {
		side[i].end = i ? &pair.client : &pair.server;
		rc_memory_open(&side[i].out, pair.server.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
		rc_memory_open(&side[i].in, pair.server.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	}
	for (i = 0; i < 2; i++)
		RC_CHECK_EQ(0, pthread_create(&thread[i], NULL, talk, &side[i]));
	for (i = 0; i < 2; i++) {
		RC_CHECK_EQ(0, pthread_join(thread[i], NULL));
		rc_memory_close(&side[i].out);
		rc_memory_close(&side[i].in);
	}
	rc_pair_close(&pair);
	rc_ok("two threads that send to each other, each waiting for the other's receives");
}

/* ---- one queue pair, posted to by many threads ---- */

struct poster {
	struct ibv_qp *qp;
	struct ibv_send_wr *wr;
	unsigned int posts;
};

static void *post_many(void *argument)
{
	struct poster *poster = argument;
	unsigned int i;

	for (i = 0; i < poster->posts; i++) {
		struct ibv_send_wr wr = *poster->wr, *bad;

		/* Full: somebody has to poll first. */
		while (ibv_post_send(poster->qp, &wr, &bad) == ENOMEM)
			sched_yield();
	}
	return NULL;
}

static void shared_queue(void)
{
	enum { THREADS = 3, POSTS = 20000 };
	struct ibv_sge sge;
	struct rc_memory memory;
	struct rc_pair pair;
	struct ibv_send_wr wr;
	struct poster poster = { .posts = POSTS };
	pthread_t thread[THREADS];
	struct mwctl_sim_misuse misuse;
	uint64_t *cell, polled = 0;
	int i;

	rc_pair_open(&pair, &device, NULL);
	rc_memory_open(&memory, pair.server.pd, 4096, KIT_ACCESS);
	cell = (uint64_t *)memory.at;
	sge = (struct ibv_sge){ (uintptr_t)(memory.at + 8), 8, memory.mr->lkey };
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &sge, .num_sge = 1,
				   .send_flags = IBV_SEND_SIGNALED };
	wr.wr.atomic.remote_addr = (uintptr_t)cell;
	wr.wr.atomic.rkey = memory.mr->rkey;
	wr.wr.atomic.compare_add = 1;
	poster.qp = pair.client.qp;
	poster.wr = &wr;
	for (i = 0; i < THREADS; i++)
		RC_CHECK_EQ(0, pthread_create(&thread[i], NULL, post_many, &poster));
	for (; polled < THREADS * POSTS; polled++)
		RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(pair.client.cq).status);
	for (i = 0; i < THREADS; i++)
		RC_CHECK_EQ(0, pthread_join(thread[i], NULL));
	RC_CHECK_EQ(THREADS * POSTS, *cell);
	RC_CHECK(kit_is_empty(pair.client.cq));
	/* The full queue was met on purpose. */
	while (mwctl_sim_misuse_next(&misuse, sizeof(misuse)))
		RC_CHECK_EQ(MWCTL_SIM_RULE_SQ_OVERFLOW, misuse.rule);
	rc_memory_close(&memory);
	rc_pair_close(&pair);
	rc_ok("one send queue under three threads: every work request runs once");
}

/* ---- errors, resets and deallocations in the middle of long writes ---- */

enum { LONG = 1 << 18 };

struct victim {
	struct rc_pair pair;
	struct rc_memory near, far;
	struct ibv_mw *mw;
	atomic_bool stop, running;
};

static void *write_for_ever(void *argument)
{
	struct victim *v = argument;
	struct ibv_sge sge;
	struct ibv_wc wc;
	uint8_t fill = 0;

	while (!atomic_load(&v->stop)) {
		struct ibv_send_wr wr = rc_wr_write(&sge, &v->near, LONG, v->far.at, v->mw->rkey);
		struct ibv_send_wr *bad;

		memset(v->near.at, ++fill, LONG);
		if (ibv_post_send(v->pair.client.qp, &wr, &bad))
			break;
		atomic_store(&v->running, true);
		wc = rc_wait(v->pair.client.cq);
		if (wc.status != IBV_WC_SUCCESS)
			break;
	}
	return NULL;
}

enum end { BY_INVALIDATE, BY_DEALLOC, BY_ERR_AND_DEALLOC, BY_RESET_AND_DEALLOC, BY_DESTROY, ENDS };

static void one_victim(enum end end, uint8_t *proof)
{
	struct victim v = { 0 };
	pthread_t writer;

	rc_pair_open(&v.pair, &device, NULL);
	rc_memory_open(&v.near, v.pair.client.pd, LONG, IBV_ACCESS_LOCAL_WRITE);
	rc_memory_open(&v.far, v.pair.server.pd, LONG, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	v.mw = rc_mw_alloc(v.pair.server.pd, IBV_MW_TYPE_2);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&v.pair.server, v.mw, rc_key_step(v.mw->rkey, 1), v.far.mr,
						v.far.at, LONG, IBV_ACCESS_REMOTE_WRITE));
	RC_CHECK_EQ(0, pthread_create(&writer, NULL, write_for_ever, &v));
	while (!atomic_load(&v.running))
		sched_yield();
	switch (end) {
	case BY_INVALIDATE:
		RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_invalidate(&v.pair.server, v.mw->rkey));
		break;
	case BY_ERR_AND_DEALLOC:
		rc_qp_modify(v.pair.server.qp, IBV_QPS_ERR);
		break;
	case BY_RESET_AND_DEALLOC:
		rc_qp_modify(v.pair.server.qp, IBV_QPS_RESET);
		break;
	case BY_DESTROY:
		RC_CHECK_EQ(0, ibv_destroy_qp(v.pair.server.qp));
		RC_CHECK_EQ(MWCTL_SIM_RULE_DESTROY_QP_BOUND, kit_misuse());
		break;
	default:
		RC_CHECK_EQ(0, ibv_dealloc_mw(v.mw));
	}
	memcpy(proof, v.far.at, LONG);
	RC_CHECK_EQ(0, pthread_join(writer, NULL));
	RC_CHECK(memcmp(proof, v.far.at, LONG) == 0);
	RC_CHECK_STATE(IBV_QPS_ERR, v.pair.client.qp);
	if (end == BY_DESTROY)
		v.pair.server.qp = rc_qp_create(v.pair.server.pd, v.pair.server.cq, NULL);
	if (end != BY_DEALLOC)
		rc_mw_dealloc(v.mw);
	rc_memory_close(&v.near);
	rc_memory_close(&v.far);
	rc_pair_close(&v.pair);
}

static void victims(void)
{
	uint8_t *proof = malloc(LONG);
	unsigned int i, n = 40 * scale();

	RC_CHECK(proof != NULL);
	for (i = 0; i < n; i++)
		one_victim((enum end)(i % ENDS), proof);
	free(proof);
	rc_ok("%u writes cut by invalidate, deallocation, ERR, RESET and destruction: nothing lands later", n);
}

/* ---- both ends fail at once ---- */

struct saboteur {
	struct rc_end *end;
	struct rc_memory *memory;
};

static void *bad_write(void *argument)
{
	struct saboteur *saboteur = argument;
	struct ibv_sge sge;
	struct ibv_send_wr wr = rc_wr_write(&sge, saboteur->memory, 8, saboteur->memory->at + 8, 0x12345678);

	rc_post(saboteur->end->qp, &wr);
	return NULL;
}

static void both_fail(void)
{
	unsigned int i, n = 2000 * scale(), denied = 0;
	struct rc_memory memory;
	struct rc_pair pair;
	pthread_t thread;
	int k;

	rc_pair_open(&pair, &device, NULL);
	rc_memory_open(&memory, pair.server.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	for (i = 0; i < n; i++) {
		struct saboteur saboteurs[2] = { { &pair.server, &memory }, { &pair.client, &memory } };

		RC_CHECK_EQ(0, pthread_create(&thread, NULL, bad_write, &saboteurs[1]));
		bad_write(&saboteurs[0]);
		RC_CHECK_EQ(0, pthread_join(thread, NULL));
		for (k = 0; k < 2; k++) {
			enum ibv_wc_status status = rc_wait(saboteurs[k].end->cq).status;

			/* Denied, or flushed by the other's, or too late for an answer. */
			RC_CHECK(status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_WR_FLUSH_ERR ||
				 status == IBV_WC_RETRY_EXC_ERR);
			denied += status == IBV_WC_REM_ACCESS_ERR;
			RC_CHECK(kit_is_empty(saboteurs[k].end->cq));
			rc_await_state(saboteurs[k].end->qp, IBV_QPS_ERR);
		}
		RC_CHECK(denied > i);
		rc_pair_reconnect(&pair, NULL);
	}
	rc_memory_close(&memory);
	rc_pair_close(&pair);
	rc_ok("both ends of a connection that fail at the same time");
}

int main(void)
{
	kit_open(&device);
	each_other();
	shared_queue();
	victims();
	both_fail();
	RC_CHECK_EQ(MWCTL_SIM_RULE_NONE, kit_misuse());
	rc_device_close(&device);
	return 0;
}
