/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rc_pair.h: what the C tests share. A device, two connected RC queue pairs in one
 * process, one operation at a time with its completion status, and checks that say where
 * they failed. Plain libibverbs: the same binary runs on the device in the process and on
 * a real one.
 *
 * By convention the pair's server owns the memory and the windows, its client reads and
 * writes from afar. A failed check, a call that should not fail and does, and a completion
 * that does not come within RC_DEADLINE_S all end the process with exit status 1.
 */
#ifndef RC_PAIR_H
#define RC_PAIR_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mwctl_sim.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RC_DEADLINE_S 20
#define RC_EXIT_SKIP 77

/* ---- the device ---- */

enum rc_device_kind {
	RC_DEVICE_SIM,   /* the device in the process */
	RC_DEVICE_RXE,   /* Linux soft-RoCE */
	RC_DEVICE_OTHER
};

struct rc_device {
	struct ibv_context *context;
	enum rc_device_kind kind;
	char label[96];                /* "sim", "rxe (Linux 6.1.0)", "mlx5_0" */
	struct ibv_device_attr attr;
	struct ibv_port_attr port_attr;
	uint8_t port;
	int gid_index;                 /* RoCE v2 with an IPv4 address where there is one */
	union ibv_gid gid;
};

/*
 * Opens the device named by the environment variable MWCTL_TEST_DEVICE, or the first with
 * an active port. Without any the process ends with RC_EXIT_SKIP.
 */
void rc_device_open(struct rc_device *device);
void rc_device_close(struct rc_device *device);

/* Ends the process with RC_EXIT_SKIP. */
void rc_skip(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* ---- memory ---- */

struct rc_memory {
	uint8_t *at;       /* page-aligned, zero-filled */
	size_t length;
	struct ibv_mr *mr;
};

void rc_memory_open(struct rc_memory *memory, struct ibv_pd *pd, size_t length, int access);
void rc_memory_close(struct rc_memory *memory);

/* ---- the pair ---- */

struct rc_end {
	struct ibv_pd *pd;
	struct ibv_cq *cq;   /* its own, for sends and receives, unless the options say otherwise */
	struct ibv_qp *qp;
	bool owns_pd;
	bool owns_cq;
};

struct rc_pair {
	const struct rc_device *device;
	struct rc_end server;
	struct rc_end client;
};

/* Zero-filled means the defaults. */
struct rc_options {
	struct ibv_pd *server_pd;    /* NULL: one made for the pair, and for both ends */
	struct ibv_pd *client_pd;    /* NULL: the server's */
	uint32_t max_send_wr;        /* 64 */
	uint32_t max_recv_wr;        /* 64 */
	int cqe;                     /* 256 */
	int sq_sig_all;
	unsigned int qp_access;      /* 0: REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC */
	enum ibv_mtu path_mtu;       /* 0: 1024, or the port's if that is less */
	/* The server's alone. */
	struct ibv_cq *send_cq;      /* NULL: one made for the pair, for sends and receives */
	struct ibv_cq *recv_cq;      /* NULL: the same as for sends */
	struct ibv_srq *srq;         /* NULL: a receive queue of its own */
};

/* `options` may be NULL. Both ends are in RTS afterwards; a SEND without a receive waits for ever. */
void rc_pair_open(struct rc_pair *pair, const struct rc_device *device,
		  const struct rc_options *options);
/* Deallocate windows bound to the pair first: some devices stall on a bound one. */
void rc_pair_close(struct rc_pair *pair);
/* Both ends through RESET to RTS once more; outstanding work requests are discarded, what
 * the completion queues hold is dropped. `options` as in rc_pair_open. */
void rc_pair_reconnect(struct rc_pair *pair, const struct rc_options *options);

struct ibv_qp *rc_qp_create(struct ibv_pd *pd, struct ibv_cq *cq, const struct rc_options *options);
/* From RESET to RTS, towards the given peer. */
void rc_qp_connect(const struct rc_device *device, struct ibv_qp *qp, uint32_t peer_qp_num,
		   const struct rc_options *options);
void rc_qp_modify(struct ibv_qp *qp, enum ibv_qp_state state);
enum ibv_qp_state rc_qp_state(struct ibv_qp *qp);
/* Waits for the state; fails at the deadline. */
#define rc_await_state(qp, state) rc_await_state_at(qp, state, __FILE__, __LINE__)
void rc_await_state_at(struct ibv_qp *qp, enum ibv_qp_state state, const char *file, int line);

/* ---- work requests ---- */

/* Posts one work request and fails unless it is accepted. */
#define rc_post(qp, wr) rc_post_at(qp, wr, __FILE__, __LINE__)
void rc_post_at(struct ibv_qp *qp, struct ibv_send_wr *wr, const char *file, int line);
#define rc_post_recv(end, memory, wr_id) rc_post_recv_at(end, memory, wr_id, __FILE__, __LINE__)
void rc_post_recv_at(struct rc_end *end, const struct rc_memory *memory, uint64_t wr_id,
		     const char *file, int line);

/* The next completion of the queue; fails at the deadline. */
#define rc_wait(cq) rc_wait_at(cq, __FILE__, __LINE__)
struct ibv_wc rc_wait_at(struct ibv_cq *cq, const char *file, int line);
/* Asserts that nothing completes within `milliseconds`. */
#define rc_wait_nothing(cq, milliseconds) rc_wait_nothing_at(cq, milliseconds, __FILE__, __LINE__)
void rc_wait_nothing_at(struct ibv_cq *cq, int milliseconds, const char *file, int line);

/* Work requests ready to post, signaled, alone. `sge` must live as long as the post. */
struct ibv_send_wr rc_wr_write(struct ibv_sge *sge, const struct rc_memory *from, size_t length,
			       const void *remote, uint32_t rkey);
struct ibv_send_wr rc_wr_bind(struct ibv_mw *mw, uint32_t rkey, struct ibv_mr *mr,
			      const void *at, size_t length, unsigned int access);
struct ibv_send_wr rc_wr_invalidate(uint32_t rkey);

/* One operation: posted alone, signaled, waited for. Each gives its completion status. */
#define rc_write(end, from, length, remote, rkey) \
	rc_write_at(end, from, length, remote, rkey, __FILE__, __LINE__)
enum ibv_wc_status rc_write_at(struct rc_end *end, const struct rc_memory *from, size_t length,
			       const void *remote, uint32_t rkey, const char *file, int line);
#define rc_read(end, into, length, remote, rkey) \
	rc_read_at(end, into, length, remote, rkey, __FILE__, __LINE__)
enum ibv_wc_status rc_read_at(struct rc_end *end, const struct rc_memory *into, size_t length,
			      const void *remote, uint32_t rkey, const char *file, int line);
#define rc_fetch_add(end, into, remote, rkey, add) \
	rc_fetch_add_at(end, into, remote, rkey, add, __FILE__, __LINE__)
enum ibv_wc_status rc_fetch_add_at(struct rc_end *end, const struct rc_memory *into,
				   const void *remote, uint32_t rkey, uint64_t add,
				   const char *file, int line);
/* The rkey's 24 bits of index must be the window's; its low 8 bits are the caller's. Sets
 * mw->rkey when it succeeds. */
#define rc_bind(end, mw, rkey, mr, at, length, access) \
	rc_bind_at(end, mw, rkey, mr, at, length, access, __FILE__, __LINE__)
enum ibv_wc_status rc_bind_at(struct rc_end *end, struct ibv_mw *mw, uint32_t rkey,
			      struct ibv_mr *mr, const void *at, size_t length, unsigned int access,
			      const char *file, int line);
#define rc_invalidate(end, rkey) rc_invalidate_at(end, rkey, __FILE__, __LINE__)
enum ibv_wc_status rc_invalidate_at(struct rc_end *end, uint32_t rkey, const char *file, int line);
#define rc_send(end, from, length) rc_send_at(end, from, length, __FILE__, __LINE__)
enum ibv_wc_status rc_send_at(struct rc_end *end, const struct rc_memory *from, size_t length,
			      const char *file, int line);
#define rc_send_with_inv(end, from, length, rkey) \
	rc_send_with_inv_at(end, from, length, rkey, __FILE__, __LINE__)
enum ibv_wc_status rc_send_with_inv_at(struct rc_end *end, const struct rc_memory *from,
				       size_t length, uint32_t rkey, const char *file, int line);

struct ibv_mw *rc_mw_alloc(struct ibv_pd *pd, enum ibv_mw_type type);
void rc_mw_dealloc(struct ibv_mw *mw);
/* The rkey with its 8 key bits stepped by `steps`, modulo 256. */
uint32_t rc_key_step(uint32_t rkey, unsigned int steps);

/* ---- time ---- */

double rc_now(void);                  /* seconds, monotonic */
void rc_pause(int milliseconds);      /* between two looks at a condition */

/* ---- checks ---- */

#define RC_CHECK(condition) \
	((condition) ? (void)0 : rc_fail_at(__FILE__, __LINE__, "expected %s", #condition))
#define RC_CHECK_EQ(expected, got) \
	rc_check_eq_at((long long)(expected), (long long)(got), #got, __FILE__, __LINE__)
/* Names the two statuses. */
#define RC_CHECK_STATUS(expected, got) rc_check_status_at(expected, got, #got, __FILE__, __LINE__)
#define RC_CHECK_STATE(expected, qp) rc_check_state_at(expected, rc_qp_state(qp), #qp, __FILE__, __LINE__)
#define RC_CHECK_MEMORY(expected, got, length) \
	rc_check_memory_at(expected, got, length, #got, __FILE__, __LINE__)
#define RC_FAIL(...) rc_fail_at(__FILE__, __LINE__, __VA_ARGS__)

void rc_fail_at(const char *file, int line, const char *format, ...)
	__attribute__((noreturn, format(printf, 3, 4)));
void rc_check_eq_at(long long expected, long long got, const char *what, const char *file, int line);
void rc_check_status_at(enum ibv_wc_status expected, enum ibv_wc_status got, const char *what,
			const char *file, int line);
void rc_check_state_at(enum ibv_qp_state expected, enum ibv_qp_state got, const char *what,
		       const char *file, int line);
void rc_check_memory_at(const void *expected, const void *got, size_t length, const char *what,
			const char *file, int line);

/* One line a rule: "ok RULE", or "deviation DEVICE: WHAT". */
void rc_ok(const char *format, ...) __attribute__((format(printf, 1, 2)));
void rc_deviation(const struct rc_device *device, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void rc_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

#ifdef __cplusplus
}
#endif

#endif
