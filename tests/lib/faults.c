/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The table of faults: every verbs call that the library makes, every way in which it can fail,
 * against every operation, in every polling mode, with each kill option and several budgets.
 *
 * Nothing is picked: a healthy run of each operation shows how many posts, work requests and
 * kernel calls it makes, and each of them fails in turn. What may come of a combination follows
 * from rules (faults/case.c), never from what was seen before.
 *
 *   faults                    all of it
 *   faults --only SPEC        one combination, as a failure prints it
 *   faults --jobs N           on N processes
 *   faults --show N           at most so many failures in full; 60
 *   faults --list             the combinations, and runs none
 */
#define _GNU_SOURCE
#include "faults/life.h"
#include "faults/play.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- the clock, in place of the C library's for everything in this process ---- */

int clock_gettime(clockid_t clock, struct timespec *at)
{
	uint64_t now;

	if (clock != CLOCK_MONOTONIC || !fc_clock.held)
		return (int)syscall(SYS_clock_gettime, clock, at);
	if (fc_clock.stepper && fc_clock.stepper == (int)syscall(SYS_gettid))
		fc_clock_pass(fc_clock.step);
	now = fc_clock_now();
	at->tv_sec = (time_t)(now / 1000000000u);
	at->tv_nsec = (long)(now % 1000000000u);
	return 0;
}

/* ---- calls that the device has no order to fail, in place of libibverbs' ---- */

static void *behind(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	if (!found)
		RC_FAIL("no %s", name);
	return found;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	int (*real)(struct ibv_context *, struct ibv_device_attr *) = behind("ibv_query_device");

	if (!fc_fails(FC_QUERY_DEVICE))
		return real(context, attr);
	errno = fc_failing.error < 0 ? EIO : fc_failing.error;
	return fc_failing.error;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *(*real)(struct ibv_context *) = behind("ibv_alloc_pd");

	if (!fc_fails(FC_ALLOC_PD))
		return real(context);
	errno = fc_failing.error;
	return NULL;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	int (*real)(struct ibv_pd *) = behind("ibv_dealloc_pd");

	if (!fc_fails(FC_DEALLOC_PD))
		return real(pd);
	errno = fc_failing.error < 0 ? EIO : fc_failing.error;
	return fc_failing.error;
}

static double real_now(void)
{
	struct timespec now;

	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ---- the combinations ---- */

enum { CASES = 1 << 17 };

struct done {
	uint8_t state;             /* 0: not run, 1: as documented, 2: not */
	uint16_t outcomes;
	struct fc_seen seen;
};

/* Shared with the workers. */
static struct table {
	uint32_t next;
	uint32_t current[16];
	struct fc_case list[CASES];
	struct done done[CASES];
} *table;

static int cases;

static void add(struct fc_case c)
{
	RC_CHECK(cases < CASES);
	/* Each way to an end for each kind of case, spread over the rest. */
	c.finish = (c.nth + c.position + c.budget / 4 + c.kill + c.drive + c.call_nth + c.always + c.call_always +
		    (c.error != ENOMEM) + (c.call_error != ENOMEM)) % FC_FINISHES;
	table->list[cases++] = c;
}

static bool drive_fits(enum fc_op op, enum fc_drive drive)
{
	bool waits = fc_waits(op) || op == FC_GONE_AMID;

	return waits == (drive == FC_WAIT_OURS || drive == FC_WAIT_YOURS);
}

static bool fault_fits(const struct fc_case *c)
{
	bool loops = c->drive >= FC_LOOP_OURS;

	/* Nobody sees the old holder's proof, so nothing is posted that could fail. */
	if (c->op == FC_TRANSFER_IN_START && c->drive == FC_LOOP_DEAF &&
	    (c->fault == FC_SQ_STALL || c->fault == FC_FATAL_STALL || c->fault == FC_FATAL_STALL_TOLD ||
	     c->fault == FC_QP_ERR_AFTER || c->fault == FC_QP_RESET_AFTER || c->fault == FC_QP_SQD_AFTER))
		return false;
	switch (c->fault) {
	case FC_WC_LATE_MID:
	case FC_SQ_STALL_MID:
	case FC_SQ_RNR_MID:
		return (loops || c->drive == FC_WAIT_YOURS) && c->drive != FC_LOOP_DEAF && c->op != FC_GRANT_PREPARE;
	case FC_POST_ROOM_MID:
		return (loops || c->drive == FC_WAIT_YOURS) && c->drive != FC_LOOP_DEAF && !fc_is_prepared(c->op);
	case FC_QP_ERR_AFTER:
	case FC_QP_RESET_AFTER:
	case FC_QP_SQD_AFTER:
		return loops && c->op != FC_GRANT_PREPARE;
	case FC_POLL_FAIL:
		return (c->drive == FC_WAIT_OURS || c->drive == FC_LOOP_OURS) && c->op != FC_GRANT_PREPARE;
	/* A reset queue pair is detached by telling that it is gone. */
	case FC_QP_RESET_BEFORE:
		return !fc_is_detach(c->op);
	default:
		return true;
	}
}

/* What needs no count: once for each operation, drive, kill option and budget. */
static void add_plain(struct fc_case c)
{
	for (c.fault = 0; c.fault < FC_FAULTS; c.fault++) {
		switch (c.fault) {
		case FC_POST_FAIL:
		case FC_POST_CUT:
		case FC_POST_UNCLEAR:
		case FC_WC_LOST:
		case FC_WC_LATE:
		case FC_WC_LATE_MID:
		case FC_WC_ERROR:
		case FC_QP_KILL:
			continue;
		default:
			break;
		}
		/* Nothing is posted on a queue pair that is gone. */
		if (fc_is_gone(c.op) && c.fault != FC_NONE && c.fault != FC_FATAL)
			continue;
		if (c.op == FC_DETACH_PREPARED && c.fault != FC_NONE)
			continue;
		if (!fault_fits(&c))
			continue;
		c.always = c.fault == FC_POLL_FAIL;
		add(c);
		if (c.fault == FC_POLL_FAIL) {
			c.always = false;
			add(c);
		}
	}
}

static void for_each_config(void (*each)(struct fc_case c))
{
	static const int budgets[] = {1, 4, 64};

	for (size_t b = 0; b < sizeof(budgets) / sizeof(budgets[0]); b++)
		for (enum fc_drive drive = 0; drive < FC_DRIVES; drive++)
			for (enum fc_op op = 0; op < FC_OPS; op++)
				for (int kill = 0; kill <= (fc_has_kill(op) ? 1 : 0); kill++) {
					struct fc_case c = {.op = op, .drive = drive, .kill = kill,
							    .budget = budgets[b]};

					if (!drive_fits(op, drive))
						continue;
					if (op == FC_REGRANT_PREPARE && c.budget < 2)
						continue;
					each(c);
				}
}

static const struct {
	int error, os_error;
} post_errors[] = {{ENOMEM, 0}, {EINVAL, 0}, {EAGAIN, 0}, {EIO, 0}, {-ENOMEM, 0}, {-EINVAL, 0}, {-1, ENOMEM}, {-1, EIO}};

/* The codes by twos: with the middle budget all, with the others the first of each kind. */
static bool takes_error(const struct fc_case *c, size_t i)
{
	return c->budget == 4 || i < 2;
}

static void add_posts(struct fc_case c, const struct fc_seen *seen)
{
	const size_t n = sizeof(post_errors) / sizeof(post_errors[0]);

	for (c.nth = 0; c.nth < seen->posts && c.nth < 16; c.nth++) {
		c.position = 0;
		for (size_t i = 0; i < n; i++) {
			if (!takes_error(&c, i))
				continue;
			c.error = post_errors[i].error;
			c.os_error = post_errors[i].os_error;
			c.fault = FC_POST_FAIL;
			for (int always = 0; always < 2; always++) {
				c.always = always;
				add(c);
			}
			c.os_error = 0;
			c.always = false;
			c.fault = FC_POST_UNCLEAR;
			if (c.error > 0)
				add(c);
		}
		c.fault = FC_POST_CUT;
		for (c.position = 1; c.position < seen->lengths[c.nth]; c.position++)
			for (size_t i = 0; i < 2; i++) {
				c.error = post_errors[i].error;
				for (int always = 0; always < 2; always++) {
					c.always = always;
					add(c);
				}
			}
		c.error = c.position = 0;
		c.always = false;
		c.fault = FC_QP_KILL;
		add(c);
	}
}

static void add_completions(struct fc_case c, const struct fc_seen *seen)
{
	static const int statuses[] = {IBV_WC_LOC_QP_OP_ERR, IBV_WC_MW_BIND_ERR, IBV_WC_WR_FLUSH_ERR,
				       IBV_WC_GENERAL_ERR};

	for (c.nth = 0; c.nth < seen->posts && c.nth < 16; c.nth++) {
		int ours = seen->lengths[c.nth] - fc_is_prepared(c.op);

		for (c.fault = FC_WC_LOST; c.fault <= FC_WC_LATE_MID; c.fault++)
			if (fault_fits(&c) && !fc_is_prepared(c.op))
				add(c);
		c.fault = FC_WC_ERROR;
		for (c.position = 0; c.position < ours; c.position++)
			for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
				if (c.budget != 4 && i > 0)
					continue;
				c.error = statuses[i];
				add(c);
			}
		c.error = c.position = 0;
	}
	/* A chain of prepared binds may ask for no completion, one of LOCAL_INVs has one for each. */
	if (fc_is_prepared(c.op) && c.op != FC_GRANT_PREPARE)
		for (c.nth = 0; c.nth < fc_works(&c); c.nth++)
			for (c.fault = FC_WC_LOST; c.fault <= FC_WC_LATE_MID; c.fault++)
				if (fault_fits(&c))
					add(c);
}

static void add_stalls(struct fc_case c, const struct fc_seen *seen)
{
	int works = 0;

	for (int i = 0; i < seen->posts && i < 16; i++)
		works += seen->lengths[i] - fc_is_prepared(c.op);
	/* The first is among the plain ones. */
	for (c.nth = 1; c.nth < works; c.nth++)
		for (int mid = 0; mid < 2; mid++) {
			c.fault = mid ? FC_SQ_STALL_MID : FC_SQ_STALL;
			if (fault_fits(&c))
				add(c);
		}
}

static void add_calls(struct fc_case c, const struct fc_seen *seen)
{
	static const int errors[] = {ENOMEM, EINVAL, -EIO, EAGAIN, -1};
	const int made[FC_CALLS] = {0, seen->allocs, seen->deallocs, seen->modifies, seen->queries};

	for (c.call = FC_CALL_NONE + 1; c.call < FC_CALLS; c.call++)
		for (c.call_nth = 0; c.call_nth < made[c.call]; c.call_nth++)
			for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
				if (c.budget != 4 && i > 1 - (c.budget == 1))
					continue;
				/* No kernel call that gives a pointer returns a number. */
				if (c.call == FC_ALLOC_MW && errors[i] < 0)
					continue;
				c.call_error = errors[i];
				for (int always = 0; always < 2; always++) {
					c.call_always = always;
					add(c);
				}
			}
}

/* What a first run showed to happen, to fail in turn. */
static void add_counted(int plain)
{
	for (int i = 0; i < plain; i++) {
		const struct fc_case c = table->list[i];
		const struct fc_seen *seen = &table->done[i].seen;

		if (table->done[i].state != 1 || c.op == FC_DETACH_PREPARED)
			continue;
		if (c.fault == FC_NONE && !fc_is_gone(c.op)) {
			add_posts(c, seen);
			add_completions(c, seen);
			add_stalls(c, seen);
		}
		if (c.fault == FC_NONE || c.fault == FC_SQ_STALL || c.fault == FC_QP_ERR_BEFORE)
			add_calls(c, seen);
	}
}

/* ---- workers ---- */

static void work(int me)
{
	uint32_t at, most = (uint32_t)cases;

	while ((at = __atomic_fetch_add(&table->next, 8, __ATOMIC_RELAXED)) < most)
		for (uint32_t i = at; i < at + 8 && i < most; i++) {
			struct fc_report report = {0};

			if (table->done[i].state)
				continue;
			__atomic_store_n(&table->current[me], i, __ATOMIC_RELEASE);
			table->done[i].state = 2;
			fc_play(&table->list[i], &report);
			table->done[i].outcomes = (uint16_t)report.outcomes;
			table->done[i].seen = report.seen;
			table->done[i].state = 1;
		}
	fc_scene_close();
}

struct worker {
	pid_t pid;
	int log;
};

static struct worker begin_worker(int me)
{
	struct worker worker = {.log = memfd_create("faults", MFD_CLOEXEC)};

	RC_CHECK(worker.log >= 0);
	fflush(stdout);
	table->current[me] = UINT32_MAX;
	worker.pid = fork();
	RC_CHECK(worker.pid >= 0);
	if (worker.pid == 0) {
		dup2(worker.log, STDERR_FILENO);
		work(me);
		exit(0);
	}
	return worker;
}

static int violations;
static int shown = 60;

static void show_violation(int me, const struct worker *worker, int status)
{
	char spec[256], text[1024];
	uint32_t at = table->current[me];
	ssize_t n = pread(worker->log, text, sizeof(text) - 1, 0);

	text[n > 0 ? n : 0] = 0;
	if (++violations > shown)
		return;
	fc_spec(at < CASES ? &table->list[at] : &(struct fc_case){0}, spec, sizeof(spec));
	printf("not as documented: %s", text[0] ? text : "no message\n");
	if (WIFSIGNALED(status))
		printf("  ended by signal %d\n", WTERMSIG(status));
	printf("  again: faults --only %s\n", spec);
	fflush(stdout);
}

/* Runs all that has not been run. A combination that fails ends its worker; another goes on. */
static void run_all(int jobs)
{
	struct worker workers[16];
	int running = 0;

	table->next = 0;
	for (int i = 0; i < jobs; i++, running++)
		workers[i] = begin_worker(i);
	while (running) {
		int status, me = 0;
		pid_t pid = waitpid(-1, &status, 0);

		if (pid < 0 && errno == EINTR)
			continue;
		RC_CHECK(pid > 0);
		while (workers[me].pid != pid)
			me++;
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
			running--;
			workers[me].pid = 0;
		} else {
			uint32_t at = table->current[me];

			show_violation(me, &workers[me], status);
			/* The rest of what it had taken. */
			if (at != UINT32_MAX && at < table->next && !(table->done[at].state == 1))
				__atomic_store_n(&table->next, at / 8 * 8 < table->next ? at / 8 * 8 : table->next,
						 __ATOMIC_RELAXED);
			close(workers[me].log);
			workers[me] = begin_worker(me);
			continue;
		}
		close(workers[me].log);
	}
}

/* ---- the table ---- */

static const char *const columns[FC_OPS] = {"grant", "g_bat", "g_sta", "g_pre", "revok", "r_bat", "r_sta", "r_pre",
					    "r_peer", "rp_st", "r_rng", "rr_st", "regra", "re_pr", "tran",
					    "t_sta", "t_in", "ti_st", "detac", "d_sta",
					    "d_amid", "d_pre", "gone", "g_amid"};

static void print_cell(unsigned int outcomes, bool bad)
{
	char text[20];
	int n = 0;

	for (int i = 0; i < 16; i++)
		if (outcomes & 1u << i)
			text[n++] = FC_LETTERS[i];
	if (bad)
		text[n++] = '!';
	if (n == 0)
		text[n++] = '.';
	text[n] = 0;
	printf(" %-6s", text);
}

static void print_table(void)
{
	static char names[512][64];
	static struct {
		unsigned int outcomes[FC_OPS];
		bool bad[FC_OPS];
	} rows[512];
	int n = 0;

	for (int i = 0; i < cases; i++) {
		char name[64];
		int row = 0;

		fc_row_name(&table->list[i], name, sizeof(name));
		while (row < n && strcmp(names[row], name) != 0)
			row++;
		if (row == n) {
			RC_CHECK(n < 512);
			strcpy(names[n++], name);
		}
		rows[row].outcomes[table->list[i].op] |= table->done[i].outcomes;
		rows[row].bad[table->list[i].op] |= table->done[i].state != 1;
	}
	printf("%-44s", "");
	for (int op = 0; op < FC_OPS; op++)
		printf(" %-6s", columns[op]);
	printf("\n");
	for (int row = 0; row < n; row++) {
		printf("%-44s", names[row]);
		for (int op = 0; op < FC_OPS; op++)
			print_cell(rows[row].outcomes[op], rows[row].bad[op]);
		printf("\n");
	}
	printf("G granted, I proved by LOCAL_INV, D by deallocation, F by the QP in ERR and deallocation, + proved,\n"
	       "O reported open, T timed out with an id, t never posted and timed out, P post failed, B bind failed,\n"
	       "X refused: the peer is dead, R no window, C committed, U not posted, ! not as documented\n");
}

/* ---- opening and closing ---- */

enum { LIFE_UNSTRUCK = 3, LIFE_SPREAD = 100 };

/* In a process of its own, whose exit status says how it went: the status of the call, shifted. */
static int play_life(int pair, int nth, int error, bool always)
{
	int status = 0;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	RC_CHECK(pid >= 0);
	if (pid == 0) {
		alarm(60);
		if (!fc_life_play(pair, nth, error, always, &status))
			_exit(LIFE_UNSTRUCK);
		_exit(LIFE_SPREAD + status);
	}
	RC_CHECK(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int life_total, life_failed;

/* Each code, once and from then on, at each call until there is none to fail. */
static void run_life_pair(int pair)
{
	bool seen[LIFE_SPREAD] = {false};
	const int *errors;
	int n = fc_life_errors(pair, &errors);

	for (int e = 0; e < 2 * n; e++)
		for (int nth = 0;; nth++) {
			int ended = play_life(pair, nth, errors[e / 2], e % 2);

			if (ended == LIFE_UNSTRUCK)
				break;
			life_total++;
			if (ended >= LIFE_SPREAD) {
				seen[ended - LIFE_SPREAD] = true;
				continue;
			}
			life_failed++;
			printf("not as documented: %s\n  again: faults --only life:%d,%d,%d,%d\n",
			       fc_life_name(pair), pair, nth, errors[e / 2], e % 2);
		}
	printf("%-30s", fc_life_name(pair));
	for (int i = 0, some = 0; i < LIFE_SPREAD; i++)
		if (seen[i])
			printf("%s%s", some++ ? ", or " : " ", mwctl_status_text(i));
	printf("\n");
}

static int run_only(const char *spec)
{
	struct fc_report report = {0};
	int pair, nth, error, always, ended;
	struct fc_case c;

	if (sscanf(spec, "life:%d,%d,%d,%d", &pair, &nth, &error, &always) == 4 && pair >= 0 &&
	    pair < fc_life_pairs()) {
		if (!fc_life_play(pair, nth, error, always, &ended))
			return fprintf(stderr, "there is no such call\n"), 2;
		printf("ok %s: %s\n", fc_life_name(pair), mwctl_status_text(ended));
		return 0;
	}
	if (!fc_parse(spec, &c)) {
		fprintf(stderr, "not a combination: %s\n", spec);
		return 2;
	}
	fc_play(&c, &report);
	fc_scene_close();
	print_cell(report.outcomes, false);
	printf("\nok %s\n", spec);
	return 0;
}

int main(int argc, char **argv)
{
	double begun = real_now();
	int jobs = 2, failed = 0, plain;
	bool list = false;

	if (!mwctl_sim_present())
		rc_skip("faults are ordered from the device in the process");
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
			return run_only(argv[++i]);
		else if (strcmp(argv[i], "--jobs") == 0 && i + 1 < argc)
			jobs = atoi(argv[++i]);
		else if (strcmp(argv[i], "--show") == 0 && i + 1 < argc)
			shown = atoi(argv[++i]);
		else if (strcmp(argv[i], "--list") == 0)
			list = true;
		else
			return fprintf(stderr, "usage: faults [--only SPEC] [--jobs N] [--show N] [--list]\n"), 2;
	}
	jobs = jobs < 1 ? 1 : jobs > 16 ? 16 : jobs;
	table = mmap(NULL, sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	RC_CHECK(table != MAP_FAILED);
	for_each_config(add_plain);
	plain = cases;
	run_all(jobs);
	add_counted(plain);
	if (list) {
		for (int i = 0; i < cases; i++) {
			char spec[256];

			fc_spec(&table->list[i], spec, sizeof(spec));
			printf("%s\n", spec);
		}
		return 0;
	}
	run_all(jobs);
	print_table();
	for (int pair = 0; pair < fc_life_pairs(); pair++)
		run_life_pair(pair);
	failed = life_failed;
	for (int i = 0; i < cases; i++)
		failed += table->done[i].state != 1;
	printf("%s %d combinations of a fault and an operation, %d not as documented, %.1f s\n",
	       failed ? "FAILED" : "ok", cases + life_total, failed, real_now() - begun);
	return failed ? 1 : 0;
}
