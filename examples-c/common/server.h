/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The server: 64 MiB of memory, a seat for each client with blocks of its own, and four ways to
 * let a client write to them and to stop it.
 */
#ifndef SERVER_H
#define SERVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mwctl.h"
#include "rc.h"
#include "writer.h"

#define SERVER_MEMORY (64ull << 20)
#define SERVER_SEATS 4
#define SERVER_MAX_WINDOWS 1000
#define SERVER_PROOFS 6

enum method {
	METHOD_BATCH,      /* Type 2 windows, all of a client's revoked in one call */
	METHOD_ONE_BY_ONE, /* Type 2 windows, a call each */
	METHOD_TYPE1,      /* Type 1 windows, by hand: a zero-length bind each, without libmwctl */
	METHOD_RESTART     /* the region's own key for everybody: close everything and start again */
};

struct seat {
	struct writer *writer;
	struct ibv_qp *qp;
	atomic_bool dead; /* a completion with an error was seen */
	uint64_t base;    /* its first byte, as its client addresses it */
	uint8_t *memory;  /* the same byte, as the server sees it */
	struct writer_target targets[SERVER_MAX_WINDOWS];
	struct mwctl_peer peer;
	uint64_t grants[SERVER_MAX_WINDOWS];
	struct ibv_mw *mws[SERVER_MAX_WINDOWS];
	size_t windows; /* open ones */
};

struct server {
	const struct rc_device *device;
	enum method method;
	size_t windows; /* of a client */
	bool at_rest;   /* once a right is gone, memory is at rest */
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr; /* by hand */
	uint8_t *memory;
	uint64_t base;
	struct mwctl_context *ctx;
	struct mwctl_domain domain;
	struct mwctl_region region;
	struct seat seats[SERVER_SEATS];
	uint64_t spare;     /* a block that nobody was given */
	atomic_uint killed; /* queue pairs that libmwctl moved to ERR at a deadline */
};

struct revocation {
	uint64_t decided_ns, proved_ns, rebuilt_ns;
	size_t windows, proved;
	size_t proofs[SERVER_PROOFS]; /* how many windows by enum mwctl_proof */
	int status;                   /* the first that is no success */
};

void server_open(struct server *server, const struct rc_device *device, enum method method,
		 size_t windows);
void server_close(struct server *server);

/* Connects a client and gives it its windows. */
void server_admit(struct server *server, size_t seat, struct writer *writer);

/* With libmwctl: hands out the first n of a client's windows anew; it holds none. */
void server_grant(struct server *server, size_t seat, size_t n);

/* With libmwctl: a new queue pair for a client that has lost its own, and no windows. */
void server_reconnect(struct server *server, size_t seat);

/* Takes back what a client holds. METHOD_RESTART: closes everything, which is the proof, calls
 * `closed`, then builds it up again for the other clients, which go on writing. */
void server_revoke(struct server *server, size_t seat, void (*closed)(void *), void *argument,
		   struct revocation *revocation);

/* Takes a client's seat away: its windows, its blocks, its queue pair. */
void server_dismiss(struct server *server, size_t seat);

/* Looks after the completion queue and what is due; marks the seats of dead queue pairs. */
void server_poll(struct server *server);

/* Bytes of one seat. */
static inline size_t server_seat_size(const struct server *server)
{
	return server->windows * WRITER_TARGET_SIZE;
}

#endif
