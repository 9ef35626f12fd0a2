/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An RPC by SEND, for calls whose arguments and results are too large for a message. A reply names
 * two ranges of the server's memory, open for this one request: the client writes its arguments
 * into one and reads the results out of the other. How such rights begin and end is in struct
 * rpc_rights: rpc_windows.c has it with memory windows.
 */
#ifndef RPC_H
#define RPC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mwctl.h"
#include "rc.h"

#define RPC_CONNECTIONS 8
#define RPC_MOST 65536 /* bytes of arguments, and of results */
#define RPC_RECEIVES 4 /* messages that a client may have under way */
#define RPC_REPLIES 4

enum rpc_kind {
	RPC_CALL,      /* ends the request before it and begins one of these sizes */
	RPC_GIVE_BACK, /* says nothing: it travels as SEND_WITH_INV */
	RPC_FINISH,    /* ends the last request */
	RPC_CANCEL     /* ends it, too, and its arguments are void */
};

enum rpc_status { RPC_OK, RPC_TOO_LARGE };

struct rpc_message {
	uint32_t kind, id;
	uint32_t args_size, results_size; /* of the request that begins */
	uint32_t args_crc;                /* of the arguments written for the request that ends */
};

struct rpc_range {
	uint64_t addr;
	uint32_t rkey, size;
};

enum { RPC_ARGS, RPC_RESULTS, RPC_RANGES };

struct rpc_reply {
	uint32_t status, id;
	struct rpc_range ranges[RPC_RANGES];
};

struct rpc_slot;
struct rpc_rights;

/* A right of a request. */
struct rpc_right {
	struct rpc_slot *slot;
	uint64_t grant; /* by windows; 0 while there is none */
	struct ibv_mr *mr; /* by a region for each request */
};

/* The memory of a request. A connection has two: the arguments of one are looked at, once no right
 * to them is left, while the next request runs. */
struct rpc_slot {
	struct rpc_connection *connection;
	uint64_t addr[RPC_RANGES];
	uint8_t *memory[RPC_RANGES];
	struct rpc_message request;
	struct rpc_right rights[RPC_RANGES];
	unsigned int open; /* rights */
	bool busy, ended, void_args;
	uint32_t args_crc; /* as its client says */
};

struct rpc_connection {
	struct rpc_server *server;
	struct ibv_qp *qp;
	struct mwctl_peer peer;
	uint64_t base;
	struct rpc_slot slots[2];
	struct rpc_slot *current; /* NULL between requests */
	struct rpc_message waiting; /* a message that can't be answered yet */
	bool has_waiting, dead;
	unsigned int replies, replies_sent; /* posted, and completed */
};

struct rpc_server {
	const struct rc_device *device;
	const struct rpc_rights *rights;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *messages_mr;
	struct rpc_message (*messages)[RPC_RECEIVES];
	struct rpc_reply (*replies)[RPC_REPLIES];
	struct rpc_connection connections[RPC_CONNECTIONS];
	uint8_t *memory;
	uint64_t base; /* its first byte, as clients address it */
	struct mwctl_context *ctx;
	struct mwctl_domain domain;
	struct mwctl_region region;
	struct ibv_mr *mr;
	/* Counted: replies posted, calls of ibv_post_send, arguments accepted and refused. */
	uint64_t answered, posts, accepted, refused;
};

/* Bytes of one connection, and of the server. */
#define RPC_BLOCK (2ull * RPC_RANGES * RPC_MOST)
#define RPC_MEMORY (RPC_CONNECTIONS * RPC_BLOCK)

struct rpc_rights {
	/* Sets memory and base. */
	void (*open)(struct rpc_server *server);
	void (*close)(struct rpc_server *server);
	/* What to add to the queues for one connection. */
	void (*size)(struct ibv_qp_cap *cap, int *cqe);
	void (*admit)(struct rpc_connection *connection);
	/* All rights of the connection end; its queue pair is destroyed afterwards. */
	void (*dismiss)(struct rpc_connection *connection);
	/*
	 * Ends the rights of `last`, begins those of `next` and puts them into the reply, and posts the
	 * reply; both may be NULL. False: not now, and nothing has changed. rpc_right_gone tells of
	 * each right that ended, then or later.
	 */
	bool (*answer)(struct rpc_connection *connection, struct rpc_slot *last, struct rpc_slot *next,
		       struct rpc_reply *reply, struct ibv_send_wr *send);
	int (*poll)(struct rpc_server *server, int n, struct ibv_wc *wcs);
};

extern const struct rpc_rights rpc_windows;

void rpc_server_open(struct rpc_server *server, const struct rc_device *device,
		     const struct rpc_rights *rights);
void rpc_server_close(struct rpc_server *server);

/* Takes what has come, and answers what can be answered. False if there was nothing. */
bool rpc_serve_once(struct rpc_server *server);
/* Whether requests that their clients have ended wait for a proof. */
bool rpc_proofs_due(const struct rpc_server *server);
/* Serves until *running is 0 and no proof is due. */
void rpc_serve(struct rpc_server *server, const atomic_int *running);

/* Ends a connection, whatever became of it. */
void rpc_dismiss(struct rpc_server *server, size_t at);

/* For struct rpc_rights: no access to this range starts any more. */
void rpc_right_gone(struct rpc_right *right);
/* Posts a chain that has the reply in it; returns what ibv_post_send did. */
int rpc_post(struct rpc_connection *connection, struct ibv_send_wr *first, struct ibv_send_wr **bad);

/* ---- the client ---- */

struct rpc_client {
	const struct rc_device *device;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct rpc_memory {
		struct rpc_message message;
		struct rpc_reply reply;
		uint8_t data[RPC_RANGES][RPC_MOST];
	} *memory;
	bool gives_back; /* by SEND_WITH_INV: then the server has nothing to invalidate */
	struct rpc_server *same_thread; /* a server that this client has to run while it waits, or NULL */
	struct rpc_reply request; /* the open one */
	uint32_t id, args_crc;
};

void rpc_client_open(struct rpc_client *client, const struct rc_device *device);
void rpc_client_close(struct rpc_client *client);

/* A queue pair at each end, connected. */
void rpc_connect(struct rpc_server *server, size_t at, struct rpc_client *client);

/* Sends a message and waits for the reply. False if the connection is lost. */
bool rpc_call(struct rpc_client *client, enum rpc_kind kind, uint32_t args_size,
	      uint32_t results_size);

/* Writes arguments made of `id`, or reads the results. The completion's status. */
enum ibv_wc_status rpc_write_args(struct rpc_client *client, const struct rpc_range *range, uint32_t id);
enum ibv_wc_status rpc_read_results(struct rpc_client *client, const struct rpc_range *range);

/* A whole request. False if the connection is lost or the results are wrong. */
bool rpc_request(struct rpc_client *client, uint32_t args_size, uint32_t results_size);

/* The bytes that both ends can compute. */
void rpc_fill(uint8_t *data, uint32_t size, uint32_t id);

#endif
