/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * faults/scene.h: the server and clients that a combination plays on, the application's own work
 * beside the library's, and a clock that moves only when it is told to.
 */
#ifndef FAULTS_SCENE_H
#define FAULTS_SCENE_H

#include "faults/case.h"
#include "house.h"

#define FC_CLIENTS 4
#define FC_VICTIM 0
#define FC_CONTROL 3           /* takes part in nothing; its key must always work */
#define FC_SLOTS 6             /* grants of the victim */
#define FC_OTHERS 2            /* grants of each other client that takes part */
#define FC_KEYS 32
#define FC_DEADLINE_US 2000    /* by the scene's clock */

/* ---- the clock ---- */

struct fc_clock {
	bool held;             /* it stands still */
	uint64_t now;          /* nanoseconds, while held */
	uint64_t step;         /* each look at it by `stepper` moves it on */
	int stepper;           /* a thread id; 0: nobody */
};
extern struct fc_clock fc_clock;

void fc_clock_hold(void);
void fc_clock_pass(uint64_t ns);
uint64_t fc_clock_now(void);

/* ---- who hears of an end ---- */

struct fc_heard {
	int calls;
	mwctl_status status;
	size_t n;
	mwctl_result results[FC_KEYS];
};
void fc_on_done(void *user, mwctl_status status, const mwctl_result *results, size_t n);

/* ---- what the library asks of verbs ---- */

struct fc_seen {
	int posts;                 /* on the victim's queue pair */
	int lengths[16];           /* of these, work requests */
	int allocs, deallocs, modifies, queries;
};

/* Failures that the device's own orders can't express. */
struct fc_hooks {
	bool counting;
	struct fc_seen seen;
	/* ibv_post_send on the victim returns -1 with this errno. */
	int minus_one;
	int post_skip;
	bool post_always;
	/* ibv_poll_cq returns -1. */
	bool poll_fails;
	int poll_skip;
	bool poll_always;
	bool struck;
	bool fatal;
};
extern struct fc_hooks fc_hooks;

/* ---- the scene ---- */

struct fc_grant {
	uint64_t id;
	uint32_t rkey;
	uint8_t *at;
};

struct fc_client {
	uint64_t posted;           /* application work requests, by wr_id 1, 2, … */
	uint64_t done;
	int failed;
	bool wiped;                /* a RESET took some away */
	struct fc_grant grant[FC_SLOTS];
	int grants;
	/* Every key that it was ever given. */
	struct fc_grant key[FC_KEYS];
	int keys;
};

struct fc_scene {
	struct house house;
	bool open;
	/* Made for each case; the control's grant lies in the house's own. */
	mwctl_region region;
	mwctl_region_info memory;
	int budget;
	int polling;
	bool spoiled;              /* the context knows of a fatal error: it can't serve another case */
	struct fc_client client[FC_CLIENTS];
	int killed;                /* PEER_KILLED events */
	uint8_t byte;
};
extern struct fc_scene fc_scene;

#define FC_BLOCK 32768

void fc_scene_open(const struct fc_case *c);
void fc_region_open(void);
void fc_region_close(void);
void fc_scene_close(void);
/* Windows that the device has and nobody knows of. */
int64_t fc_scene_leak(void);

/* One look at every completion queue, if wanted, and a tick. */
void fc_round(bool poll);
void fc_poll_all(void);
/* Polls one completion for the application that polls by itself; false: there was none. */
bool fc_poll_one(int client);
/* Rounds without the clock: everything that can happen at once. */
void fc_rounds(bool poll);
/* Rounds until the end, past the deadline if need be; fails if that does not come then. */
void fc_until_end(const struct fc_heard *heard);

/* An application's work request on the server's side: a write of nothing, signaled. */
bool fc_app_post(int client);
struct ibv_send_wr fc_app_wr(int client);
void fc_app_check(int client);

void fc_note_key(int client, uint64_t id, uint32_t rkey, const mwctl_request *asked);
/* Takes every window that is ready, so that the next grant has to allocate one. */
void fc_drain_pool(void);
void fc_make_grants(int client, int n);
/* Revokes all that the client holds; every one must be proved. */
void fc_revoke_rest(int client);
mwctl_request fc_ask(int client, int slot);

enum ibv_qp_state fc_state(int client);
/* The client's write with the key lands. */
void fc_lands(int client, const struct fc_grant *grant);
/* … does not land, on a live connection. */
void fc_dead(int client, const struct fc_grant *grant);

/* Off the books and the keys tried on a fresh connection; a new one takes its place. */
void fc_replace(int client);
void fc_try_keys(int client);
void fc_detach(int client, bool may_fail);
bool fc_is_attached(int client);

#endif
