/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * walk/model.h: what the random walk knows: two servers, their clients, who may do what, and
 * whether the library and the memory agree.
 */
#ifndef WALK_MODEL_H
#define WALK_MODEL_H

#include "house.h"
#include "walk/clock.h"

#define WALK_SERVERS 2
#define WALK_PEERS 4               /* a server */
#define WALK_REGIONS 2             /* a server: the house's, and one cut in blocks */
#define WALK_OPEN 768              /* grants that are open at a time, a server */
#define WALK_ENDED 64
#define WALK_BLOCK 2048
#define WALK_APP 8                 /* application requests under way, a queue */
#define WALK_TRACE 30              /* steps that are told after a disagreement */

/* How a grant stands. */
enum walk_standing {
	WALK_PREPARED,             /* its bind is in the application's hands: nothing works yet */
	WALK_BINDING,              /* its bind may have run */
	WALK_LIVE,                 /* works */
	WALK_REVOKING,             /* may work still */
	WALK_LOOSE,                /* not proved, or lost with its queue pair: may work, may end */
};

/* What an access with a key may come to. */
enum walk_access { WALK_NO, WALK_YES, WALK_MAYBE };

struct walk_grant {
	uint64_t id;
	uint32_t rkey;
	int server, peer, region;
	uint64_t addr, length;
	uint32_t access;
	enum walk_standing standing;
	int waits;                 /* operations that will report its end */
	uint64_t due;              /* the first of their deadlines; 0: none */
	uint64_t ending;           /* the last step in which a waiting call was to end it */
	bool stuck;                /* revoked while its client's queue was called stuck */
	bool tried;                /* its key was used since it works */
	bool posted;               /* a prepared bind that was posted */
	bool in_hand;              /* its LOCAL_INV is prepared */
	bool confirmed, uncertain; /* as the library said last */
	uint64_t uncertain_step;   /* since when */
};

/* A key that was ever handed out. */
struct walk_key {
	uint32_t rkey;
	struct walk_grant *grant;  /* NULL: nothing works with it */
	uint64_t id;               /* the last grant's */
	int server, region;
	uint64_t addr, length;
	uint64_t peer;             /* whose it was */
	uint64_t ended;            /* the domain's count of grants when it last ended */
	bool deallocated;          /* the window behind it may be another since */
};

struct walk_app {
	uint64_t wr_id[WALK_APP];  /* in the order of the posts */
	int n;
};

struct walk_peer {
	int server, index;
	struct house_client *client;
	mwctl_peer_options options;
	mwctl_peer id;
	uint32_t qp_num;
	bool cut;                  /* posts of it may have been cut */
	bool tainted;              /* a fault was ordered at it, or a deadline passed */
	bool dead;                 /* its queue pair is in error */
	bool leaving;
	bool stuck;                /* its send queue was called so, and nothing has surely come through since */
	struct walk_app sends, recvs;
	int lost;                  /* completions of its queue pair that faults may have swallowed */
	int tokens;
};

struct walk_region {
	mwctl_region id;
	uint64_t addr, length;
	uint8_t *shadow;
	uint64_t blocks;
	bool taken[256];
};

struct walk_server {
	struct house house;
	struct walk_region region[WALK_REGIONS];
	struct walk_peer peer[WALK_PEERS];
	struct walk_grant *open[WALK_OPEN];
	int n_open;
	uint32_t ended[WALK_ENDED];    /* keys that ended in this step */
	int n_ended;
	struct walk_grant slot[WALK_OPEN];
	struct walk_grant *spare[WALK_OPEN];
	int n_spare;
	struct rc_memory letters;  /* where the clients' SENDs go */
	uint64_t killed, found_dead, self_ended;
	uint64_t key_distance;
	bool served;               /* its service thread runs */
	int service;
	uint64_t uncertain_step;   /* the last one at whose end something was uncertain */
	uint64_t left_open;        /* how often it had reported something open at the last one's end */
};

struct walk_counts {
	uint64_t grants, revocations, proofs[8], left_open, timed_out, failed, refused;
	uint64_t prepared, committed, aborted, cut;
	uint64_t landed, denied, reads, atomics, torn, unknown, app, app_lost, invalidated;
	uint64_t joins, kills, moves, faults, fatal, ops, blocks, keys_again, loose_ended;
};

struct walk {
	struct walk_server server[WALK_SERVERS];
	bool sim;                  /* the device in the process, which runs what is posted at once */
	bool fatal;
	uint64_t step, seed;
	uint64_t no_windows;       /* the last step in which the device may have refused to make a window */
	uint64_t no_dealloc;       /* … in which a deallocation may have failed, or not have been believed */
	uint64_t random;
	double faults;
	struct walk_counts counts;
	struct walk_key *keys;
	size_t n_keys;
	uint64_t app_wr;
	char trace[WALK_TRACE][256];
	int said;
};

extern struct walk walk;

/* ---- chance ---- */

uint64_t walk_random(void);
uint64_t walk_below(uint64_t n);                      /* 0 to n - 1 */
bool walk_chance(double p);

/* ---- the account ---- */

/* Adds to the current step's line. */
void walk_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void walk_next_line(void);
void walk_tell_trace(void);
/* A disagreement: ends the process. */
_Noreturn void walk_differ(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define WALK_AGREE(condition, ...) ((condition) ? (void)0 : walk_differ(__VA_ARGS__))

/* ---- the model ---- */

struct walk_peer *walk_some_peer(int server);         /* server < 0: any */
struct walk_peer *walk_peer_of(const struct walk_grant *grant);
/* Anything may be wrong with its queue pair. */
bool walk_hurt(const struct walk_peer *peer);
/* … or chains in hand may take up its whole budget, so that nothing of ours can be posted. */
bool walk_pressed(const struct walk_peer *peer);
int walk_open_of(const struct walk_peer *peer);
struct walk_grant *walk_find(int server, uint64_t id);
/* A random open grant of the peer; NULL if there is none. */
struct walk_grant *walk_some_grant(const struct walk_peer *peer);
struct walk_grant *walk_add(struct walk_peer *peer, const mwctl_request *asked, uint64_t id,
			    uint32_t rkey, enum walk_standing standing);
/* It is gone: from here on its key must not work. */
void walk_end(struct walk_grant *grant, mwctl_proof proof);
/* Whether it may end without anybody being told first. */
bool walk_may_end(const struct walk_grant *grant);
struct walk_key *walk_key_of(uint32_t rkey);
enum walk_access walk_expect(const struct walk_peer *peer, uint32_t rkey, uint64_t addr,
			     uint64_t length, uint32_t right);
struct walk_region *walk_region_at(int server, uint64_t addr);
bool walk_touches(const struct walk_grant *grant, const mwctl_request *asked);
/* Whether memory of the request was reported open, so that it must not be granted: now, as the library
 * says; or at the end of the last step and, by the same grant, still. */
bool walk_uncertain(int server, const mwctl_request *asked);
bool walk_uncertain_on(int server, const mwctl_request *asked);
mwctl_request walk_ask(const struct walk_peer *peer);

/* ---- agreement ---- */

/* Everything that is open, each key of this moment and some old ones, some ranges. */
void walk_agree(void);
void walk_agree_peer(struct walk_peer *peer);
/* Who is called dead is dead: the device is asked. */
void walk_agree_life(const struct walk_peer *peer);
/* Every byte. */
void walk_agree_memory(void);
/* … and every key ever handed out. */
void walk_agree_fully(void);
/* The bytes of a range, wherever it lies. */
void walk_agree_bytes(uint64_t addr, uint64_t length);
void walk_agree_misuse(void);

#endif
