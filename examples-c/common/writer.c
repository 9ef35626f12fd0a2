/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "writer.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "report.h"

#define PATIENCE (10 * NS_PER_S)

/* ---- the thread ---- */

static void post_chain(struct writer *writer, unsigned int slot)
{
	struct record *records = writer->records + slot * WRITER_CHAIN;
	struct ibv_send_wr wrs[WRITER_CHAIN], *bad_wr;
	struct ibv_sge sges[WRITER_CHAIN];
	bool good = !atomic_load(&writer->bad);
	int i, error;

	memset(wrs, 0, sizeof(wrs));
	for (i = 0; i < WRITER_CHAIN; i++) {
		uint64_t sequence = ++writer->sequence;
		const struct writer_target *target =
			&writer->targets[writer_target_of(sequence, writer->n_targets)];

		record_fill(&records[i], writer->number, sequence, good);
		sges[i] = (struct ibv_sge){ .addr = (uintptr_t)&records[i],
					    .length = RECORD_SIZE,
					    .lkey = writer->mr->lkey };
		wrs[i].wr_id = sequence;
		wrs[i].next = i + 1 < WRITER_CHAIN ? &wrs[i + 1] : NULL;
		wrs[i].sg_list = &sges[i];
		wrs[i].num_sge = 1;
		wrs[i].opcode = IBV_WR_RDMA_WRITE;
		wrs[i].wr.rdma.remote_addr =
			target->addr + writer_slot_of(sequence, writer->n_targets) * RECORD_SIZE;
		wrs[i].wr.rdma.rkey = target->rkey;
	}
	/* One completion gives back the send-queue slots of the whole chain. */
	wrs[WRITER_CHAIN - 1].send_flags = IBV_SEND_SIGNALED;
	error = ibv_post_send(writer->qp, wrs, &bad_wr);
	if (error)
		die("client %u: ibv_post_send: %s", writer->number, strerror(abs(error)));
	atomic_fetch_add(&writer->posted, WRITER_CHAIN);
}

static void count_landed(struct writer *writer)
{
	uint64_t now = clock_ns(), pause = now - writer->last_ns;
	uint64_t landed = atomic_fetch_add(&writer->landed, WRITER_CHAIN) + WRITER_CHAIN;

	if (writer->last_ns && pause > atomic_load(&writer->longest_pause))
		atomic_store(&writer->longest_pause, pause);
	writer->last_ns = now;
	if (landed >= atomic_load(&writer->awaited)) {
		atomic_store(&writer->awaited, UINT64_MAX);
		pthread_mutex_lock(&writer->lock);
		pthread_cond_broadcast(&writer->changed);
		pthread_mutex_unlock(&writer->lock);
	}
}

/* Returns the state in which it ends. */
static enum writer_state write_until_told(struct writer *writer, enum ibv_wc_status *error)
{
	unsigned int next = 0, under_way = 0;
	struct ibv_wc wcs[WRITER_DEPTH];
	int i, n;

	for (;;) {
		bool stop = atomic_load(&writer->stop);

		if (stop && (under_way == 0 || atomic_load(&writer->drop)))
			return WRITER_IDLE;
		for (; !stop && under_way < WRITER_DEPTH; under_way++)
			post_chain(writer, next++ % WRITER_DEPTH);
		n = ibv_poll_cq(writer->cq, WRITER_DEPTH, wcs);
		if (n < 0)
			die("client %u: ibv_poll_cq failed", writer->number);
		if (n == 0)
			sched_yield();
		for (i = 0; i < n; i++) {
			if (wcs[i].qp_num != writer->qp->qp_num)
				continue; /* left over from the queue pair before */
			if (wcs[i].status != IBV_WC_SUCCESS) {
				*error = wcs[i].status;
				return WRITER_DEAD;
			}
			under_way--;
			atomic_store(&writer->acknowledged, wcs[i].wr_id);
			count_landed(writer);
		}
	}
}

static void *run(void *argument)
{
	struct writer *writer = argument;
	enum ibv_wc_status error;
	enum writer_state state;

	/* It stands for another machine: it must not take the server's CPU time. */
	setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10);
	pthread_mutex_lock(&writer->lock);
	for (;;) {
		while (!writer->go && !writer->quit)
			pthread_cond_wait(&writer->changed, &writer->lock);
		if (writer->quit)
			break;
		writer->go = false;
		pthread_mutex_unlock(&writer->lock);
		error = IBV_WC_SUCCESS;
		state = write_until_told(writer, &error);
		pthread_mutex_lock(&writer->lock);
		writer->state = state;
		writer->error = error;
		pthread_cond_broadcast(&writer->changed);
	}
	pthread_mutex_unlock(&writer->lock);
	return NULL;
}

/* ---- what others call ---- */

void writer_open(struct writer *writer, const struct rc_device *device, uint32_t number)
{
	size_t size = WRITER_DEPTH * WRITER_CHAIN * sizeof(struct record);
	pthread_condattr_t monotonic;
	int error;

	memset(writer, 0, sizeof(*writer));
	writer->device = device;
	writer->number = number;
	atomic_store(&writer->awaited, UINT64_MAX);
	writer->pd = ibv_alloc_pd(device->verbs);
	/* Every request may complete, for a failed one does though it is unsignaled. Twice the queue:
	 * the completions of a dead queue pair may lie there beside those of its successor. */
	writer->cq = ibv_create_cq(device->verbs, 2 * WRITER_DEPTH * WRITER_CHAIN, NULL, NULL, 0);
	writer->records = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
	if (!writer->pd || !writer->cq || !writer->records)
		die("client %u: a PD, a CQ and memory: %s", number, strerror(errno));
	writer->mr = ibv_reg_mr(writer->pd, writer->records, size, 0);
	if (!writer->mr)
		die("client %u: ibv_reg_mr: %s", number, strerror(errno));
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&writer->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	pthread_mutex_init(&writer->lock, NULL);
	error = pthread_create(&writer->thread, NULL, run, writer);
	if (error)
		die("pthread_create: %s", strerror(error));
}

void writer_close(struct writer *writer)
{
	pthread_mutex_lock(&writer->lock);
	writer->quit = true;
	pthread_cond_broadcast(&writer->changed);
	pthread_mutex_unlock(&writer->lock);
	pthread_join(writer->thread, NULL);
	writer_disconnect(writer);
	if (ibv_dereg_mr(writer->mr) || ibv_destroy_cq(writer->cq) || ibv_dealloc_pd(writer->pd))
		die("client %u: its verbs objects can't be destroyed", writer->number);
	free(writer->records);
	pthread_cond_destroy(&writer->changed);
	pthread_mutex_destroy(&writer->lock);
}

void writer_connect(struct writer *writer, struct ibv_qp *server)
{
	const struct ibv_qp_cap cap = {
		.max_send_wr = WRITER_DEPTH * WRITER_CHAIN,
		.max_recv_wr = 1,
		.max_send_sge = 1,
		.max_recv_sge = 1,
	};

	writer_disconnect(writer);
	writer->qp = rc_qp(writer->device, writer->pd, writer->cq, &cap, 0);
	rc_connect(writer->device, writer->qp, server);
}

void writer_disconnect(struct writer *writer)
{
	struct ibv_wc wcs[16];

	if (!writer->qp)
		return;
	if (ibv_destroy_qp(writer->qp))
		die("client %u: ibv_destroy_qp: %s", writer->number, strerror(errno));
	writer->qp = NULL;
	while (ibv_poll_cq(writer->cq, 16, wcs) > 0)
		;
	writer->state = WRITER_IDLE;
}

void writer_go(struct writer *writer, const struct writer_target *targets, size_t n)
{
	pthread_mutex_lock(&writer->lock);
	writer->targets = targets;
	writer->n_targets = n;
	writer->state = WRITER_WRITING;
	writer->go = true;
	atomic_store(&writer->stop, false);
	atomic_store(&writer->drop, false);
	pthread_cond_broadcast(&writer->changed);
	pthread_mutex_unlock(&writer->lock);
}

static bool stopped(struct writer *writer)
{
	bool alive;

	pthread_mutex_lock(&writer->lock);
	while (writer->state == WRITER_WRITING)
		pthread_cond_wait(&writer->changed, &writer->lock);
	alive = writer->state == WRITER_IDLE;
	pthread_mutex_unlock(&writer->lock);
	return alive;
}

bool writer_stop(struct writer *writer)
{
	atomic_store(&writer->stop, true);
	return stopped(writer);
}

void writer_drop(struct writer *writer)
{
	atomic_store(&writer->drop, true);
	atomic_store(&writer->stop, true);
	stopped(writer);
}

/* Waits on `changed`, the lock held; false at the deadline. */
static bool wait_change(struct writer *writer, uint64_t deadline)
{
	struct timespec until = { (time_t)(deadline / NS_PER_S), (long)(deadline % NS_PER_S) };

	return pthread_cond_timedwait(&writer->changed, &writer->lock, &until) == 0;
}

bool writer_wait_dead(struct writer *writer)
{
	uint64_t deadline = clock_ns() + PATIENCE;
	bool dead;

	pthread_mutex_lock(&writer->lock);
	while (writer->state != WRITER_DEAD && wait_change(writer, deadline))
		;
	dead = writer->state == WRITER_DEAD;
	pthread_mutex_unlock(&writer->lock);
	return dead;
}

bool writer_wait_landed(struct writer *writer, uint64_t landed)
{
	uint64_t deadline = clock_ns() + PATIENCE;

	pthread_mutex_lock(&writer->lock);
	atomic_store(&writer->awaited, landed);
	while (atomic_load(&writer->landed) < landed && writer->state == WRITER_WRITING &&
	       wait_change(writer, deadline))
		;
	pthread_mutex_unlock(&writer->lock);
	return atomic_load(&writer->landed) >= landed;
}

bool writer_is_dead(struct writer *writer)
{
	bool dead;

	pthread_mutex_lock(&writer->lock);
	dead = writer->state == WRITER_DEAD;
	pthread_mutex_unlock(&writer->lock);
	return dead;
}
