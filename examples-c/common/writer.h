/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A client: a thread with a PD, an MR and a queue pair of its own that writes records by RDMA
 * WRITE as fast as it can, with a bounded queue. It knows what it was told: addresses and keys.
 */
#ifndef WRITER_H
#define WRITER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"
#include "record.h"

/* Records to a target. */
#define WRITER_SLOTS 64
#define WRITER_TARGET_SIZE (WRITER_SLOTS * RECORD_SIZE)
/* Records to a post, of which the last is signaled; posts under way at a time. */
#define WRITER_CHAIN 8
#define WRITER_DEPTH 4

struct writer_target {
	uint64_t addr;
	uint32_t rkey;
};

enum writer_state { WRITER_IDLE, WRITER_WRITING, WRITER_DEAD };

struct writer {
	const struct rc_device *device;
	uint32_t number;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	struct record *records; /* WRITER_DEPTH * WRITER_CHAIN */
	pthread_t thread;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* Under the lock: */
	enum writer_state state;
	bool go, quit;
	const struct writer_target *targets;
	size_t n_targets;
	enum ibv_wc_status error; /* of the first write that failed on this queue pair */

	atomic_bool stop, drop;
	atomic_bool bad; /* write records with wrong checksums */
	atomic_ullong posted, landed;
	atomic_ullong acknowledged;  /* the sequence number of the last record that landed */
	atomic_ullong awaited;       /* `landed` from which on somebody wants to be woken */
	atomic_ullong longest_pause; /* between two completions, in ns; anybody may set it to 0 */
	/* The thread's own: */
	uint64_t sequence, last_ns;
};

void writer_open(struct writer *writer, const struct rc_device *device, uint32_t number);
void writer_close(struct writer *writer);

/* A new queue pair in place of the old one, connected to the server's, which is in INIT. */
void writer_connect(struct writer *writer, struct ibv_qp *server);
void writer_disconnect(struct writer *writer);

/* Begins to write round all targets; they must stay in place until it has stopped or died. */
void writer_go(struct writer *writer, const struct writer_target *targets, size_t n);

/* Stops; what is under way completes first. False if the queue pair died meanwhile or before. */
bool writer_stop(struct writer *writer);

/* Stops at once: the connection is lost anyway. */
void writer_drop(struct writer *writer);

/* False after 10 seconds in vain. */
bool writer_wait_dead(struct writer *writer);

/* Until so many records have landed since the writer was opened; false if it died before. */
bool writer_wait_landed(struct writer *writer, uint64_t landed);

bool writer_is_dead(struct writer *writer);

/* Where record `sequence` goes among n targets: the target, and the slot in it. */
static inline size_t writer_target_of(uint64_t sequence, size_t n)
{
	return sequence % n;
}

static inline size_t writer_slot_of(uint64_t sequence, size_t n)
{
	return sequence / n % WRITER_SLOTS;
}

#endif
