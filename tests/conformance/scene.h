/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * scene.h: what most rules are shown on. A server's region with two clients, each with a
 * queue pair, a Type 2 window and a block of its own. The rogue is the client that loses
 * its right; the control keeps it, so that a denial can't be mistaken for a dead device.
 */
#ifndef SCENE_H
#define SCENE_H

#include "rc_pair.h"

#define BLOCK 16384
#define READ_WRITE (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)
#define ALL_RIGHTS (READ_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

struct party {
	struct rc_pair pair;
	struct ibv_mw *mw;
	uint32_t rkey;         /* of the last successful bind */
	struct ibv_mr *mr;     /* the server's */
	uint8_t *block;        /* its BLOCK bytes of the server's region */
	struct rc_memory far;  /* the client's own BLOCK bytes */
};

struct scene {
	const struct rc_device *device;
	struct ibv_pd *pd;
	struct rc_memory memory;   /* LOCAL_WRITE | MW_BIND, four blocks: two of them are nobody's */
	struct party rogue;
	struct party control;
};

/* `options` is for the pairs and may be NULL; both are on the scene's PD. */
void scene_open(struct scene *scene, const struct rc_device *device, const struct rc_options *options);
/* On the device in the process it also asserts that every broken rule was an expected one. */
void scene_close(struct scene *scene);

/* Binds the party's window to its block, with the next key; the bind must succeed. */
void party_bind(struct party *party, unsigned int access);
/* Invalidates it by LOCAL_INV; that must succeed. */
void party_invalidate(struct party *party);
/*
 * The same while the client writes. It may be denied, and the server's QP dead of it, before
 * the invalidate's completion is written: rxe then flushes an invalidate that was done. That
 * proves nothing, so the window is deallocated and another one takes its place. True if the
 * invalidate itself was the proof.
 */
bool party_revoke_under_fire(struct party *party);
/* Takes the window away for good. */
void party_dealloc(struct party *party);

/* The party's client writes `length` bytes to `at` with `rkey`, and they land. */
#define expect_lands(party, at, length, rkey) expect_lands_at(party, at, length, rkey, __FILE__, __LINE__)
void expect_lands_at(struct party *party, uint8_t *at, size_t length, uint32_t rkey,
		     const char *file, int line);
/* The same write gets REM_ACCESS_ERR, changes nothing, and leaves both QPs in ERR. */
#define expect_denied(party, at, length, rkey) expect_denied_at(party, at, length, rkey, __FILE__, __LINE__)
void expect_denied_at(struct party *party, uint8_t *at, size_t length, uint32_t rkey,
		      const char *file, int line);

/* A local operation failed: any status but success, and the QP is in ERR. On the device in
 * the process the status must be the standard's, `standard`. */
#define expect_local_failure(scene, qp, standard, got) \
	expect_local_failure_at(scene, qp, standard, got, __FILE__, __LINE__)
void expect_local_failure_at(const struct scene *scene, struct ibv_qp *qp, enum ibv_wc_status standard,
			     enum ibv_wc_status got, const char *file, int line);

/* On the device in the process: this rule was reported broken since the last call. */
#define expect_misuse(rule) expect_misuse_at(rule, __FILE__, __LINE__)
void expect_misuse_at(enum mwctl_sim_rule rule, const char *file, int line);

static inline bool on_sim(const struct scene *scene) { return scene->device->kind == RC_DEVICE_SIM; }
static inline bool on_rxe(const struct scene *scene) { return scene->device->kind == RC_DEVICE_RXE; }

#endif
