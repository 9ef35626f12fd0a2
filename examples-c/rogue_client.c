/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A server with 64 MiB of memory and four clients that write records into blocks of their own as
 * fast as they can. One of them goes bad; the server notices, takes its windows back, and shows
 * that it stays out while the others keep writing. The same with three other ways to stop it.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/cost.h"
#include "common/hammer.h"
#include "common/report.h"
#include "common/scanner.h"
#include "common/server.h"
#include "common/stats.h"
#include "common/writer.h"
#include "mwctl_sim.h"

#define BAD (SERVER_SEATS - 1) /* the seat of the client that goes bad */
#define TICK (10 * NS_PER_MS)
#define SPAN (100 * NS_PER_MS) /* throughput is told in records per this */
#define SETTLING (50 * NS_PER_MS)
#define PATIENCE (10 * NS_PER_S)
#define MAX_ROUNDS 15
#define MAX_SAMPLES 20000

struct options {
	double seconds;
	size_t windows, rounds;
	bool quick, hammer;
	uint64_t attempts;
};

/* What one round showed. Throughput is the good clients', in records per 100 ms. */
struct outcome {
	double proof_us, noticed_ms, rebuilt_ms;
	double before, lowest_before, during, after;
	double pause_before_ms, pause_during_ms;
	struct revocation revocation;
	enum ibv_wc_status next_write;
	uint64_t changed_early, changed_late;
};

static const struct {
	const char *name, *short_name, *torn_down;
} methods[] = {
	[METHOD_BATCH] = { "Type 2 windows, revoked in one batch", "Type 2, one batch",
			   "its windows" },
	[METHOD_ONE_BY_ONE] = { "Type 2 windows, revoked one by one", "Type 2, one by one",
				"its windows" },
	[METHOD_TYPE1] = { "Type 1 windows, by hand", "Type 1, by hand", "its windows" },
	[METHOD_RESTART] = { "the region's own key: close everything and restart",
			     "close and restart", "4 QPs and the MR" },
};
#define METHODS (sizeof(methods) / sizeof(methods[0]))

static struct server server;
static struct writer writers[SERVER_SEATS];

/* ---- the good clients' throughput over time ---- */

static struct {
	uint64_t ns[MAX_SAMPLES], records[MAX_SAMPLES];
	size_t n;
} series;

static void sample(void)
{
	size_t i;

	if (series.n == MAX_SAMPLES)
		die("too many samples");
	series.records[series.n] = 0;
	for (i = 0; i < SERVER_SEATS; i++)
		if (i != BAD)
			series.records[series.n] += atomic_load(&writers[i].landed);
	series.ns[series.n++] = clock_ns();
}

static void tick(void)
{
	clock_sleep_until(clock_ns() + TICK);
	sample();
}

/* Records landed until then, by interpolation. */
static double records_at(uint64_t ns)
{
	size_t i;

	for (i = 1; i + 1 < series.n && series.ns[i] < ns; i++)
		;
	return (double)series.records[i - 1] +
	       ((double)ns - (double)series.ns[i - 1]) *
		       ((double)series.records[i] - (double)series.records[i - 1]) /
		       (double)(series.ns[i] - series.ns[i - 1]);
}

static double per_span(uint64_t from, uint64_t to)
{
	return (records_at(to) - records_at(from)) * (double)SPAN / (double)(to - from);
}

static double lowest_span(uint64_t from, uint64_t to)
{
	double lowest = per_span(from, to);

	for (; from + SPAN <= to; from += TICK)
		if (per_span(from, from + SPAN) < lowest)
			lowest = per_span(from, from + SPAN);
	return lowest;
}

/* The longest pause of a good client since this was called last, in ms. */
static double longest_pause(void)
{
	unsigned long long longest = 0;
	size_t i;

	for (i = 0; i < SERVER_SEATS; i++) {
		unsigned long long pause = atomic_exchange(&writers[i].longest_pause, 0);

		if (i != BAD && pause > longest)
			longest = pause;
	}
	return (double)longest / 1e6;
}

/* ---- one round: before, the bad client, after ---- */

static void wait_for_verdict(const struct scanner *scanner, const char *what)
{
	uint64_t deadline = clock_ns() + PATIENCE;

	while (atomic_load(&scanner->culprit) == -1) {
		if (clock_ns() > deadline)
			die("the server does not notice %s", what);
		tick();
	}
	demand(atomic_load(&scanner->culprit) == BAD, "the server stopped client %d, not client %d",
	       atomic_load(&scanner->culprit), BAD);
}

static void admit_bad(void)
{
	atomic_store(&writers[BAD].bad, false);
	server_admit(&server, BAD, &writers[BAD]);
	writer_go(&writers[BAD], server.seats[BAD].targets, server.windows);
	if (!writer_wait_landed(&writers[BAD], atomic_load(&writers[BAD].landed) + 1))
		die("client %d: its writes don't land", BAD);
}

static void check_good_clients(void)
{
	size_t i;

	for (i = 0; i < SERVER_SEATS; i++)
		if (i != BAD)
			demand(!writer_is_dead(&writers[i]), "good client %zu lost its connection: %s", i,
			       ibv_wc_status_str(writers[i].error));
}

static void run_round(const struct options *options, struct outcome *outcome)
{
	uint64_t phase = (uint64_t)(options->seconds * 1e9);
	const struct seat *seat = &server.seats[BAD];
	uint64_t begun, bad, decided, after, until;
	struct scanner scanner;
	unsigned int killed = atomic_load(&server.killed);
	bool settled = server.at_rest;

	memset(outcome, 0, sizeof(*outcome));
	series.n = 0;
	admit_bad();
	scanner_start(&scanner, &server);
	longest_pause();
	sample();
	begun = series.ns[0];
	/* At least until the scanner has been round: on a busy machine that may come late. */
	while (clock_ns() < begun + phase ||
	       (atomic_load(&scanner.good_records) == 0 && clock_ns() < begun + phase + PATIENCE))
		tick();
	outcome->pause_before_ms = longest_pause();
	demand(atomic_load(&scanner.culprit) == -1, "the server stopped a client without a reason");
	demand(atomic_load(&scanner.good_records) > 0, "the server saw no record");

	bad = clock_ns();
	atomic_store(&writers[BAD].bad, true);
	wait_for_verdict(&scanner, "bad checksums");
	outcome->revocation = scanner.revocation;
	decided = scanner.revocation.decided_ns;
	after = decided + SPAN > scanner.revocation.rebuilt_ns ? decided + SPAN :
								   scanner.revocation.rebuilt_ns;
	for (until = after + phase; clock_ns() < until;) {
		tick();
		if (!settled && clock_ns() > scanner.revocation.proved_ns + SETTLING) {
			outcome->changed_early = bytes_changed(&server, seat, scanner.snapshot);
			settled = true;
		}
		if (outcome->pause_during_ms == 0 && clock_ns() > after)
			outcome->pause_during_ms = longest_pause();
	}
	if (!writer_wait_dead(&writers[BAD]))
		demand(false, "the bad client was not refused");
	outcome->next_write = writers[BAD].error;
	check_good_clients();
	scanner_stop(&scanner);
	outcome->changed_late = bytes_changed(&server, seat, scanner.snapshot);

	outcome->noticed_ms = (double)(decided - bad) / 1e6;
	outcome->proof_us = (double)(scanner.revocation.proved_ns - decided) / 1e3;
	outcome->rebuilt_ms = (double)(scanner.revocation.rebuilt_ns - decided) / 1e6;
	outcome->before = per_span(begun, bad);
	outcome->lowest_before = lowest_span(begun, bad);
	outcome->during = per_span(decided, decided + SPAN);
	outcome->after = per_span(after, until);
	scanner_free(&scanner);
	server_dismiss(&server, BAD);

	demand(outcome->revocation.proved == server.windows, "%zu of %zu windows were proved gone: %s",
	       outcome->revocation.proved, server.windows,
	       mwctl_status_text(outcome->revocation.status));
	demand(outcome->changed_late == 0, "%llu bytes changed after the proof",
	       (unsigned long long)outcome->changed_late);
	demand(outcome->after > 0, "the good clients' records land no more");
	/* A queue pair that was killed at a deadline answers nothing; nor does one that is no more. */
	if (server.method != METHOD_RESTART && atomic_load(&server.killed) == killed)
		demand(outcome->next_write == IBV_WC_REM_ACCESS_ERR,
		       "the bad client's next write got %s", ibv_wc_status_str(outcome->next_write));
	demand(outcome->next_write != IBV_WC_SUCCESS, "the bad client's next write succeeded");
}

/* ---- a client that writes where it was given nothing ---- */

/* True if the writes landed. */
static bool write_at(uint64_t addr)
{
	static struct writer_target target;
	struct writer *writer = &writers[BAD];
	uint64_t landed = atomic_load(&writer->landed);

	target.addr = addr;
	target.rkey = server.seats[BAD].targets[0].rkey;
	writer_go(writer, &target, 1);
	return writer_wait_landed(writer, landed + 1);
}

static void run_foreign(void)
{
	uint8_t *spare = server.memory + (server.spare - server.base);
	struct scanner scanner;
	mwctl_status status;
	size_t i, touched = 0;
	bool landed;

	admit_bad();
	scanner_start(&scanner, &server);
	if (!writer_stop(&writers[BAD]))
		die("client %d: lost its connection", BAD);
	printf("\nThen the client writes at addresses that aren't its own\n");
	status = mwctl_check(server.ctx, server.domain, server.seats[BAD].qp->qp_num, server.spare,
			     RECORD_SIZE, IBV_ACCESS_REMOTE_WRITE, NULL);
	printf("  mwctl_check of such an address:   %s\n", mwctl_status_text(status));
	demand(status == MWCTL_STATUS_NO_GRANT, "mwctl_check allows an address that was not granted");

	landed = write_at(server.spare);
	for (i = 0; i < WRITER_TARGET_SIZE; i++)
		touched += spare[i] != 0;
	if (landed && server.device->rxe) {
		printf("  outside its windows:              landed (%zu bytes): soft-RoCE checks the "
		       "region's bounds, not the window's\n",
		       touched);
		if (!writer_stop(&writers[BAD]))
			die("client %d: lost its connection", BAD);
		landed = write_at(server.base + SERVER_MEMORY);
		printf("  outside the region:               ");
	} else {
		demand(touched == 0, "%zu bytes outside its windows changed", touched);
		printf("  outside its windows:              ");
	}
	if (demand(!landed && writer_wait_dead(&writers[BAD]), "the write landed"))
		printf("%s\n", ibv_wc_status_str(writers[BAD].error));
	wait_for_verdict(&scanner, "a dead queue pair");
	scanner_stop(&scanner);
	printf("  its windows, on a dead queue pair: %zu of %zu proved gone in %.1f µs (",
	       scanner.revocation.proved, server.windows,
	       (double)(scanner.revocation.proved_ns - scanner.revocation.decided_ns) / 1e3);
	printf("%s)\n", scanner.revocation.proofs[MWCTL_PROOF_QP_FENCED] == server.windows ?
				mwctl_proof_text(MWCTL_PROOF_QP_FENCED) :
				"by several proofs");
	demand(scanner.revocation.proved == server.windows, "not all were proved gone");
	check_good_clients();
	scanner_free(&scanner);
	server_dismiss(&server, BAD);
}

/* ---- a method ---- */

static double median_of(const struct outcome *outcomes, size_t n, size_t offset)
{
	double samples[MAX_ROUNDS];
	size_t i;

	for (i = 0; i < n; i++)
		memcpy(&samples[i], (const char *)&outcomes[i] + offset, sizeof(double));
	return stats_median(samples, n);
}

#define MEDIAN(outcomes, n, field) median_of(outcomes, n, offsetof(struct outcome, field))

static void print_proofs(const struct outcome *outcomes, size_t n, enum method method)
{
	size_t i, proof, total;

	for (proof = 0; proof < SERVER_PROOFS; proof++) {
		for (i = 0, total = 0; i < n; i++)
			total += outcomes[i].revocation.proofs[proof];
		if (total == 0)
			continue;
		if (method == METHOD_TYPE1 && proof == MWCTL_PROOF_INVALIDATED)
			printf("    %5zu: the zero-length bind completed\n", total);
		else
			printf("    %5zu: %s\n", total, mwctl_proof_text((int32_t)proof));
	}
}

static void print_method(const struct outcome *outcomes, size_t n, enum method method)
{
	uint64_t early = 0, late = 0;
	size_t i, windows = outcomes[0].revocation.windows;
	double proof = MEDIAN(outcomes, n, proof_us);

	for (i = 0; i < n; i++) {
		early += outcomes[i].changed_early;
		late += outcomes[i].changed_late;
	}
	printf("\n%s (medians of %zu round%s)\n", methods[method].name, n, n == 1 ? "" : "s");
	printf("  noticed after                     %10.1f ms\n", MEDIAN(outcomes, n, noticed_ms));
	printf("  from decision to proof            %10.1f µs", proof);
	if (method == METHOD_RESTART)
		printf(", with everything closed\n");
	else
		printf(", %.2f µs a window\n", proof / (double)windows);
	print_proofs(outcomes, n, method);
	printf("  the bad client's next write       %s\n", ibv_wc_status_str(outcomes[0].next_write));
	if (server.at_rest)
		printf("  bytes changed after the proof     %10llu\n", (unsigned long long)late);
	else
		printf("  bytes changed after the proof     %10llu within 50 ms, %llu later\n",
		       (unsigned long long)early, (unsigned long long)late);
	printf("  good clients, records in 100 ms   %10.0f before (lowest %.0f), %.0f from the decision "
	       "on, %.0f after\n",
	       MEDIAN(outcomes, n, before), MEDIAN(outcomes, n, lowest_before),
	       MEDIAN(outcomes, n, during), MEDIAN(outcomes, n, after));
	printf("  a good client's longest pause     %10.1f ms before, %.1f ms meanwhile\n",
	       MEDIAN(outcomes, n, pause_before_ms), MEDIAN(outcomes, n, pause_during_ms));
	if (method == METHOD_RESTART)
		printf("  all good clients back after       %10.1f ms\n",
		       MEDIAN(outcomes, n, rebuilt_ms));
}

static void nothing(void *argument)
{
	(void)argument;
}

/* The first revocation pays for page faults and, in an emulated guest, for translating the code:
 * an idle client bears it. */
static void warm_up(void)
{
	struct revocation revocation;

	server_admit(&server, BAD, &writers[BAD]);
	server_revoke(&server, BAD, nothing, NULL, &revocation);
	demand(revocation.proved == server.windows, "%zu of an idle client's %zu windows were proved gone",
	       revocation.proved, server.windows);
	server_dismiss(&server, BAD);
}

static void run_method(const struct rc_device *device, enum method method,
		       const struct options *options, struct outcome *outcomes)
{
	size_t i;

	server_open(&server, device, method, options->windows);
	for (i = 0; i < SERVER_SEATS; i++) {
		writer_open(&writers[i], device, (uint32_t)i);
		if (i == BAD)
			continue;
		server_admit(&server, i, &writers[i]);
		writer_go(&writers[i], server.seats[i].targets, server.windows);
	}
	for (i = 0; i < SERVER_SEATS; i++)
		if (i != BAD && !writer_wait_landed(&writers[i], 1))
			die("client %zu: its writes don't land", i);
	warm_up();
	for (i = 0; i < options->rounds; i++)
		run_round(options, &outcomes[i]);
	print_method(outcomes, options->rounds, method);
	if (method == METHOD_BATCH)
		run_foreign();
	for (i = 0; i < SERVER_SEATS; i++)
		if (i != BAD) {
			writer_stop(&writers[i]);
			server_dismiss(&server, i);
		}
	for (i = 0; i < SERVER_SEATS; i++)
		writer_close(&writers[i]);
	server_close(&server);
}

static void print_table(struct outcome outcomes[METHODS][MAX_ROUNDS], size_t rounds)
{
	size_t method;

	printf("\nOne bad client of four (medians of %zu round%s; change: the good clients' records in "
	       "the 100 ms\nfrom the decision on, against before)\n\n",
	       rounds, rounds == 1 ? "" : "s");
	printf("  method               windows   time to proof    a window    change   longest pause   torn "
	       "down\n");
	for (method = 0; method < METHODS; method++) {
		const struct outcome *all = outcomes[method];
		double proof = MEDIAN(all, rounds, proof_us);
		double before = MEDIAN(all, rounds, before), during = MEDIAN(all, rounds, during);

		printf("  %-18s   ", methods[method].short_name);
		if (method == METHOD_RESTART)
			printf("%7s   %10.1f µs   %9s", "-", proof, "-");
		else
			printf("%7zu   %10.1f µs   %6.2f µs", all[0].revocation.windows, proof,
			       proof / (double)all[0].revocation.windows);
		printf("   %+6.0f %%   %10.1f ms   %s\n", 100 * (during - before) / before,
		       MEDIAN(all, rounds, pause_during_ms), methods[method].torn_down);
	}
	if (server.device->in_process)
		printf("\n  Here registering memory and connecting cost next to nothing: what a restart tears "
		       "down shows\n  on real verbs.\n");
}

/* The device in the process notes every rule of verbs that was broken. */
static void check_rules(void)
{
	struct mwctl_sim_misuse misuse;

	if (!mwctl_sim_present())
		return;
	while (mwctl_sim_misuse_next(&misuse, sizeof(misuse)) == 1)
		demand(false, "a rule was broken: %s", misuse.text);
}

/* ---- the command line ---- */

static void usage(FILE *to, const struct options *options)
{
	fprintf(to,
		"usage: rogue_client [OPTION…]\n"
		"\n"
		"A server stops one bad client of four by taking its memory windows back, and by\n"
		"three other ways; then what a revocation costs. Exit status: 0 if all that was\n"
		"demanded holds, 1 if not, 77 if there is no device with memory windows.\n"
		"\n"
		"  --seconds S    each phase (before, after) lasts this long (%.1f)\n"
		"  --windows N    windows of a client, 1 to %d (%zu)\n"
		"  --rounds N     rounds of each method, 1 to %d (%zu)\n"
		"  --short        a quick run for CI: one round with short phases\n"
		"  --hammer[=N]   instead: N writes across revocations (1,000,000 on the device in\n"
		"                 the process, else 20,000), of which none may land after a proof\n"
		"  --help\n"
		"\n"
		"MWCTL_DEVICE names the RDMA device to use; else the first with an active port.\n",
		options->seconds, SERVER_MAX_WINDOWS, options->windows, MAX_ROUNDS, options->rounds);
}

static double number(const char *text, double least, double most, const struct options *options)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= least && value <= most)) {
		fprintf(stderr, "rogue_client: %s is not a number from %g to %g\n", text, least, most);
		usage(stderr, options);
		exit(2);
	}
	return value;
}

static void parse(int argc, char **argv, struct options *options)
{
	static const struct option longs[] = {
		{ "seconds", required_argument, NULL, 's' }, { "windows", required_argument, NULL, 'w' },
		{ "rounds", required_argument, NULL, 'r' },  { "short", no_argument, NULL, 'q' },
		{ "hammer", optional_argument, NULL, 'x' },  { "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	const struct options defaults = *options;
	int which;

	while ((which = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (which) {
		case 's':
			options->seconds = number(optarg, 0.2, 60, &defaults);
			break;
		case 'w':
			options->windows = (size_t)number(optarg, 1, SERVER_MAX_WINDOWS, &defaults);
			break;
		case 'r':
			options->rounds = (size_t)number(optarg, 1, MAX_ROUNDS, &defaults);
			break;
		case 'q':
			options->quick = true;
			options->seconds = 0.3;
			options->rounds = 1;
			break;
		case 'x':
			options->hammer = true;
			/* Both --hammer=N and --hammer N. */
			if (!optarg && optind < argc && argv[optind][0] != '-')
				optarg = argv[optind++];
			if (optarg)
				options->attempts = (uint64_t)number(optarg, 1, 1e12, &defaults);
			break;
		case 'h':
			usage(stdout, &defaults);
			exit(0);
		default:
			usage(stderr, &defaults);
			exit(2);
		}
	}
	if (optind < argc) {
		usage(stderr, &defaults);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	static struct outcome outcomes[METHODS][MAX_ROUNDS];
	struct options options = { .seconds = 0.5, .windows = 10, .rounds = 5 };
	struct rc_device device;
	size_t method;

	parse(argc, argv, &options);
	setvbuf(stdout, NULL, _IOLBF, 0);
	crc32c_init();
	rc_open(&device);
	rc_describe(&device);
	if (options.hammer) {
		if (!options.attempts)
			options.attempts = device.in_process ? 1000000 : 20000;
		hammer_run(&device, options.windows, options.attempts);
	} else {
		for (method = 0; method < METHODS; method++)
			run_method(&device, (enum method)method, &options, outcomes[method]);
		print_table(outcomes, options.rounds);
		cost_run(&device, options.quick);
	}
	rc_close(&device);
	check_rules();
	if (demands_failed())
		printf("\n%d demands failed.\n", demands_failed());
	else
		printf("\nAll that was demanded holds.\n");
	return demands_failed() ? 1 : 0;
}
