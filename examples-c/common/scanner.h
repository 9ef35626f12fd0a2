/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The server's scanner: a thread that reads what the clients wrote, and stops a client whose
 * records are bad or whose queue pair has died.
 */
#ifndef SCANNER_H
#define SCANNER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "server.h"

/* A verdict needs so many bad records in one pass, and more of them than good ones: a good
 * client's are torn now and then, in the moment in which they land. */
#define SCANNER_STRIKES 16

struct scanner {
	struct server *server;
	pthread_t thread;
	atomic_bool stop;
	atomic_int culprit; /* the seat that was stopped; -1 so far. Set when all else is in place. */
	atomic_ullong good_records, bad_records;
	struct revocation revocation;
	uint8_t *snapshot;    /* of the culprit's seat, right after the proof */
	uint64_t snapshot_ns; /* when it was complete */
	/* The thread's own: */
	uint64_t *seen; /* for each record's place the last good sequence number */
	int watched;    /* a bit for each seat */
	size_t subject; /* the seat that is being stopped */
};

/* Begins to watch all seats. */
void scanner_start(struct scanner *scanner, struct server *server);

/* Ends the thread. The answers stay until scanner_free. */
void scanner_stop(struct scanner *scanner);
void scanner_free(struct scanner *scanner);

/* Bytes of a seat's memory that differ from a copy, which is brought up to date. */
uint64_t bytes_changed(const struct server *server, const struct seat *seat, uint8_t *copy);

#endif
