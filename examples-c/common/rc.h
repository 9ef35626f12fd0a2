/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A device, and RC queue pairs whose two ends live in one process. */
#ifndef RC_H
#define RC_H

#include <stdbool.h>
#include <stdint.h>
#include <infiniband/verbs.h>

struct rc_device {
	struct ibv_context *verbs;
	char name[64];
	uint8_t port;
	int gid_index;
	union ibv_gid gid;
	uint16_t lid;
	enum ibv_mtu mtu;
	bool in_process; /* the device is libmwctl's, of mwctl_sim.h */
	bool rxe;        /* soft-RoCE, which checks less than a window promises */
};

/* The first device with an active port, or the one named by MWCTL_DEVICE; exits with 77 if there
 * is none. Where the port has a RoCE v2 address for IPv4 that is used, else GID index 0. */
void rc_open(struct rc_device *device);
void rc_close(struct rc_device *device);

/* One line that says what the figures were measured on. */
void rc_describe(const struct rc_device *device);

/* A queue pair with one CQ for both directions, in state INIT. `access`: what the other side may
 * do to this one, IBV_ACCESS_REMOTE_*. */
struct ibv_qp *rc_qp(const struct rc_device *device, struct ibv_pd *pd, struct ibv_cq *cq,
		     const struct ibv_qp_cap *cap, int access);

/* Takes two queue pairs from INIT to RTS. */
void rc_connect(const struct rc_device *device, struct ibv_qp *one, struct ibv_qp *other);

#endif
