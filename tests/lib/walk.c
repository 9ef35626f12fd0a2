/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A random walk: two servers, four clients each, and a model of who may do what. Grants,
 * revocations, prepared chains, traffic with current, stale and foreign keys, clients that die
 * and come back, and faults of the device; after each step the library, the keys and the bytes
 * agree with the model.
 *
 *   walk [--steps N] [--seed N] [--faults RATE] [--lag NS] [--threads] [--without KIND]... [--trace] [--quiet]
 *
 * With --threads the servers' service threads begin and end, what they serve nobody ticks, and other
 * threads call for clients whose queues are this one's alone. That takes its time: without, the walk
 * goes through more steps a second.
 *
 * On the device in the process a seed gives the same walk each time: the device draws from the
 * same seed, and the clock and the entropy that the library reads are this program's. Not so with
 * --lag: then that device begins what was posted so many nanoseconds behind the post, by the real clock,
 * and is walked on as a real one is, without ordered faults.
 */
#include "walk/calls.h"
#include "walk/chains.h"
#include "walk/clock.h"
#include "walk/faults.h"
#include "walk/life.h"
#include "walk/ops.h"
#include "walk/threads.h"
#include "walk/traffic.h"
#include "walk/transfer.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/time.h>
#include <unistd.h>

#define LOOK_AT_ALL 4096           /* steps between two looks at every key that ever was */
#define STUCK_S 30                 /* a step that takes so long hangs */

/* ---- steps ---- */

static void poll_some(void)
{
	struct walk_peer *peer = walk_some_peer(-1);

	walk_say(" poll server %d peer %d", peer->server, peer->index);
	walk_poll(peer, 1 + (int)walk_below(8));
}

static void poll_all(void)
{
	walk_say(" poll all");
	for (int s = 0; s < WALK_SERVERS; s++)
		for (int p = 0; p < WALK_PEERS; p++)
			walk_poll_dry(&walk.server[s].peer[p]);
}

static void tick(void)
{
	int s = (int)walk_below(WALK_SERVERS);

	walk_say(" tick %d", s);
	walk_tick(s);
}

static void leave_and_join(void)
{
	struct walk_peer *peer = walk_some_peer(-1);

	/* Mostly those that are of no use any more. */
	for (int i = 0; i < 16 && !peer->dead; i++)
		peer = walk_some_peer(-1);
	if (!peer->dead && walk_chance(0.8))
		return;
	walk_leave(peer);
	walk_join(peer);
}

static void finish_chain(void)
{
	walk_finish_chain(NULL);
}

static struct kind {
	const char *name;
	void (*take)(void);
	unsigned int weight;
	bool faulty;               /* only on the device in the process, and with faults */
	bool sim;                  /* only on the device in the process */
	bool threads;              /* there only with --threads */
} kinds[] = {
	{"grant", walk_grant, 14, false, false, false},
	{"grant-start", walk_grant_start, 8, false, false, false},
	{"regrant", walk_regrant, 5, false, false, false},
	{"revoke", walk_revoke, 8, false, false, false},
	{"revoke-start", walk_revoke_start, 5, false, false, false},
	{"revoke-peer", walk_revoke_peer, 1, false, false, false},
	{"revoke-range", walk_revoke_range, 2, false, false, false},
	{"transfer", walk_transfer, 6, false, false, false},
	{"prepare", walk_prepare, 7, false, false, false},
	{"finish", finish_chain, 8, false, false, false},
	{"use", walk_use_key, 20, false, false, false},
	{"misuse", walk_misuse_key, 2, false, false, false},
	{"give-back", walk_give_key_back, 1, false, false, false},
	{"app", walk_app_work, 6, false, false, false},
	{"poll", poll_some, 7, false, false, false},
	{"poll-all", poll_all, 1, false, false, false},
	{"tick", tick, 4, false, false, false},
	{"leave", leave_and_join, 4, false, false, false},
	{"blocks", walk_blocks, 3, false, false, false},
	{"bad-call", walk_bad_call, 1, false, false, false},
	{"stuck", walk_stuck, 1, false, false, false},
	{"service", walk_service, 2, false, false, true},
	{"elsewhere", walk_elsewhere, 4, false, false, true},
	{"held-packet", walk_fault_held_packet, 1, false, true, false},
	{"fatal", walk_fault_fatal, 1, true, true, false},
};

#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static void step(void)
{
	unsigned int total = 0, at;
	size_t kind = 0;

	walk_next_line();
	if (walk.faults > 0 && walk_chance(walk.faults))
		walk_fault_order();
	if (walk.faults > 0 && walk_chance(walk.faults))
		walk_fault_release_some();
	if (walk_fault_armed(MWCTL_SIM_FAIL_ALLOC_MW))
		walk.no_windows = walk.no_dealloc = walk.step;
	if (walk_fault_armed(MWCTL_SIM_FAIL_DEALLOC_MW))
		walk.no_dealloc = walk.step;
	for (size_t i = 0; i < KINDS; i++)
		total += kinds[i].weight;
	at = (unsigned int)walk_below(total);
	while (at >= kinds[kind].weight)
		at -= kinds[kind++].weight;
	kinds[kind].take();
	walk_threads_agree();
	walk_faults_tidy();
	walk_agree();
	walk_try_keys();
	walk_agree_memory();
	if (walk.step % LOOK_AT_ALL == LOOK_AT_ALL - 1)
		walk_quiesce();
}

/* ---- the end ---- */

static volatile bool told;

static void at_exit(void)
{
	if (!told)
		walk_tell_trace();
}

static void on_signal(int number)
{
	static volatile uint64_t seen = UINT64_MAX;

	if (number == SIGALRM && seen != walk.step) {
		seen = walk.step;
		return;
	}
	/* The process is lost either way; the account is worth the risk. */
	fprintf(stderr, "walk: %s\n", number == SIGALRM ? "a step hangs" : strsignal(number));
	walk_tell_trace();
	signal(number, SIG_DFL);
	if (number == SIGALRM)
		_exit(1);
	raise(number);
}

static void watch(void)
{
	struct itimerval every = {{STUCK_S, 0}, {STUCK_S, 0}};

	atexit(at_exit);
	signal(SIGALRM, on_signal);
	signal(SIGSEGV, on_signal);
	signal(SIGABRT, on_signal);
	setitimer(ITIMER_REAL, &every, NULL);
}

static void summary(uint64_t steps, double seconds)
{
	const struct walk_counts *c = &walk.counts;

	printf("walk: seed %" PRIu64 ", %" PRIu64 " steps, %.1f s, %.0f a second: %" PRIu64 " grants (%" PRIu64
	       " failed, %" PRIu64 " timed out), %" PRIu64 " revocations (%" PRIu64 " invalidated, %" PRIu64
	       " deallocated, %" PRIu64 " fenced, %" PRIu64 " by the peer, %" PRIu64 " never bound, %" PRIu64
	       " reported open), %" PRIu64 " moves, %" PRIu64 " chains (%" PRIu64 " aborted, %" PRIu64 " cut), %" PRIu64
	       " operations, traffic %" PRIu64 " written %" PRIu64 " read %" PRIu64 " atomic %" PRIu64
	       " denied %" PRIu64 " torn, %" PRIu64 " application completions (%" PRIu64 " swallowed by faults), %" PRIu64
	       " clients, %" PRIu64 " killed, %zu keys (%" PRIu64 " again), %" PRIu64 " faults\n",
	       walk.seed, steps, seconds, (double)steps / seconds, c->grants, c->failed, c->timed_out, c->revocations,
	       c->proofs[MWCTL_PROOF_INVALIDATED], c->proofs[MWCTL_PROOF_DEALLOCATED],
	       c->proofs[MWCTL_PROOF_QP_FENCED], c->proofs[MWCTL_PROOF_PEER_INVALIDATED],
	       c->proofs[MWCTL_PROOF_NEVER_BOUND], c->left_open, c->moves, c->prepared, c->aborted, c->cut, c->ops, c->landed,
	       c->reads, c->atomics, c->denied, c->torn, c->app, c->app_lost, c->joins, c->kills, walk.n_keys,
	       c->keys_again, c->faults);
}

static _Noreturn void usage(void)
{
	fprintf(stderr, "usage: walk [--steps N] [--seed N] [--faults RATE] [--lag NS] [--threads] [--without KIND]... [--trace] [--quiet]\nkinds:");
	for (size_t i = 0; i < KINDS; i++)
		fprintf(stderr, " %s", kinds[i].name);
	fputc('\n', stderr);
	told = true;
	exit(2);
}

static const char *value_of(int argc, char **argv, int *at)
{
	if (*at + 1 >= argc)
		usage();
	return argv[++*at];
}

static void without(const char *name)
{
	for (size_t i = 0; i < KINDS; i++)
		if (strcmp(kinds[i].name, name) == 0) {
			kinds[i].weight = 0;
			return;
		}
	usage();
}

/* Which of several threads gets a lock also depends on where things lie. */
static void at_fixed_addresses(char **argv)
{
	int now = personality(0xffffffff);

	if (now != -1 && !(now & ADDR_NO_RANDOMIZE) && personality((unsigned long)now | ADDR_NO_RANDOMIZE) != -1)
		execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
	struct mwctl_sim_model model;
	uint64_t steps, chosen_steps = 0;
	bool trace = false, quiet = false, threads = false;
	double started, faults = -1;
	uint32_t lag = 0;

	walk.seed = (uint64_t)(walk_real_seconds() * 1e6);
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--steps") == 0)
			chosen_steps = strtoull(value_of(argc, argv, &i), NULL, 0);
		else if (strcmp(argv[i], "--seed") == 0)
			walk.seed = strtoull(value_of(argc, argv, &i), NULL, 0);
		else if (strcmp(argv[i], "--faults") == 0)
			faults = strtod(value_of(argc, argv, &i), NULL);
		else if (strcmp(argv[i], "--lag") == 0)
			lag = (uint32_t)strtoul(value_of(argc, argv, &i), NULL, 0);
		else if (strcmp(argv[i], "--without") == 0)
			without(value_of(argc, argv, &i));
		else if (strcmp(argv[i], "--threads") == 0)
			threads = true;
		else if (strcmp(argv[i], "--trace") == 0)
			trace = true;
		else if (strcmp(argv[i], "--quiet") == 0)
			quiet = true;
		else
			usage();
	}
	if (lag && !mwctl_sim_present())
		rc_skip("the device in the process alone can be told to take its time");
	walk.sim = mwctl_sim_present() && !lag;
	walk.faults = faults >= 0 ? faults : walk.sim ? 0.02 : 0;
	if (threads && walk.sim)
		at_fixed_addresses(argv);
	if (!walk.sim && walk.faults > 0)
		rc_skip("faults can be ordered of the device in the process alone");
	steps = chosen_steps ? chosen_steps : walk.sim ? 100000 : 2000;
	for (size_t i = 0; i < KINDS; i++)
		if ((kinds[i].threads && walk.sim && !threads) || (kinds[i].sim && !walk.sim) || (kinds[i].faulty && walk.faults == 0))
			kinds[i].weight = 0;
	walk.random = walk.seed;
	if (walk.sim)
		walk_clock_own(walk.seed);
	if (mwctl_sim_present()) {
		RC_CHECK_EQ(0, mwctl_sim_model_get(&model, sizeof(model)));
		model.seed = walk.seed;
		model.doorbell_ns = lag;
		RC_CHECK_EQ(0, mwctl_sim_model_set(&model, sizeof(model)));
	}
	if (!quiet) {
		printf("walk: seed %" PRIu64 "\n", walk.seed);
		fflush(stdout);
	}
	watch();
	walk_next_line();
	walk_open_servers();
	started = walk_real_seconds();
	for (walk.step = 1; walk.step <= steps; walk.step++) {
		step();
		if (trace)
			puts(walk.trace[walk.step % WALK_TRACE]);
	}
	walk_next_line();
	walk_close_servers();
	told = true;
	summary(steps, walk_real_seconds() - started);
	return 0;
}
