/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Heap allocations inside libmwctl while rights are handed out and taken back in a steady state.
 *
 * The program brings its own malloc and friends, in front of the C library's. They count while
 * the thread is inside one of the calls measured, apart by who calls them: the device's library
 * (libibverbs and its providers) or anybody else, which is libmwctl and what it uses.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/scene.h"

/* ---- the counting allocator ---- */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *old);

static _Thread_local struct {
	int inside;
	uint64_t library, device;
} tally;

/* Where the device's libraries lie. */
static struct {
	uintptr_t from, to;
} device_ranges[64];
static size_t n_device_ranges;

static void note(const void *caller)
{
	size_t i;

	if (!tally.inside)
		return;
	for (i = 0; i < n_device_ranges; i++)
		if ((uintptr_t)caller >= device_ranges[i].from &&
		    (uintptr_t)caller < device_ranges[i].to) {
			tally.device++;
			return;
		}
	tally.library++;
}

#define CALLER __builtin_return_address(0)

void *malloc(size_t size)
{
	note(CALLER);
	return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	note(CALLER);
	return __libc_calloc(n, size);
}

void *realloc(void *old, size_t size)
{
	note(CALLER);
	return __libc_realloc(old, size);
}

void *memalign(size_t alignment, size_t size)
{
	note(CALLER);
	return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
	note(CALLER);
	return __libc_memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
	void *got;

	note(CALLER);
	got = __libc_memalign(alignment, size);
	if (!got)
		return ENOMEM;
	*out = got;
	return 0;
}

/* Not counted by itself: what is freed was allocated, here or before. */
void free(void *old)
{
	__libc_free(old);
}

static int add_device_ranges(struct dl_phdr_info *info, size_t size, void *argument)
{
	int i;

	(void)size;
	(void)argument;
	if (!strstr(info->dlpi_name, "libibverbs") && !strstr(info->dlpi_name, "-rdmav"))
		return 0;
	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];

		if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_X))
			continue;
		if (n_device_ranges == sizeof(device_ranges) / sizeof(device_ranges[0]))
			die("too many libraries of the device");
		device_ranges[n_device_ranges].from = info->dlpi_addr + segment->p_vaddr;
		device_ranges[n_device_ranges].to =
			info->dlpi_addr + segment->p_vaddr + segment->p_memsz;
		n_device_ranges++;
	}
	return 0;
}

/* ---- the calls ---- */

#define WINDOWS 10 /* revoked at a time */
/* Keys may come back early, so that the warm-up sees every window come round. */
#define KEY_DISTANCE 16384
#define POOL 128

struct call {
	const char *name;
	uint64_t calls, library, device;
};

enum {
	GRANT_BATCH,
	REVOKE_BATCH,
	GRANT,
	REVOKE,
	REGRANT,
	REVOKE_PEER,
	REVOKE_RANGE,
	GRANT_START,
	REVOKE_START,
	GRANT_PREPARE,
	REVOKE_PREPARE,
	POLL_CQ,
	CHECK,
	CALLS
};

static struct call calls[CALLS] = {
	[GRANT_BATCH] = { .name = "mwctl_grant_batch of 10" },
	[REVOKE_BATCH] = { .name = "mwctl_revoke_batch of 10" },
	[GRANT] = { .name = "mwctl_grant" },
	[REVOKE] = { .name = "mwctl_revoke" },
	[REGRANT] = { .name = "mwctl_regrant" },
	[REVOKE_PEER] = { .name = "mwctl_revoke_peer with 10" },
	[REVOKE_RANGE] = { .name = "mwctl_revoke_range with 10" },
	[GRANT_START] = { .name = "mwctl_grant_start of 10" },
	[REVOKE_START] = { .name = "mwctl_revoke_start of 10" },
	[GRANT_PREPARE] = { .name = "mwctl_grant_prepare and commit" },
	[REVOKE_PREPARE] = { .name = "mwctl_revoke_prepare and commit" },
	[POLL_CQ] = { .name = "mwctl_poll_cq" },
	[CHECK] = { .name = "mwctl_check" },
};

/* Sets `status` to what a call of libmwctl returns, counted. */
#define COUNTED(which, status, call)                                     \
	do {                                                             \
		uint64_t library_before = tally.library;                 \
		uint64_t device_before = tally.device;                   \
                                                                         \
		tally.inside = 1;                                        \
		(status) = (call);                                       \
		tally.inside = 0;                                        \
		calls[which].calls++;                                    \
		calls[which].library += tally.library - library_before;  \
		calls[which].device += tally.device - device_before;     \
	} while (0)

#define MUST(which, call)                                \
	do {                                             \
		int status_;                             \
                                                         \
		COUNTED(which, status_, call);           \
		must(status_, calls[which].name);        \
	} while (0)

struct ended {
	int done;
	mwctl_status status;
	struct mwctl_result results[WINDOWS];
};

static void on_done(void *user, mwctl_status status, const struct mwctl_result *results, size_t n)
{
	struct ended *ended = user;

	ended->status = status;
	memcpy(ended->results, results, n * sizeof(*results));
	ended->done = 1;
}

static void poll_until(struct scene *scene, struct ended *ended)
{
	uint64_t deadline = clock_ns() + 10 * NS_PER_S;
	struct ibv_wc wcs[4];
	int n;

	while (!ended->done) {
		COUNTED(POLL_CQ, n, mwctl_poll_cq(scene->ctx, scene->cqs[0], 4, wcs));
		if (n < 0 || clock_ns() > deadline)
			die("an operation does not end");
	}
	must(ended->status, "an asynchronous operation");
}

static void keep_ids(struct scene *scene, const struct mwctl_result *results)
{
	size_t i;

	for (i = 0; i < WINDOWS; i++)
		scene->grants[i] = results[i].grant;
}

static void batches(struct scene *scene)
{
	mwctl_status status;

	MUST(GRANT_BATCH,
	     mwctl_grant_batch(scene->ctx, scene->requests, WINDOWS, 0, scene->results));
	keep_ids(scene, scene->results);
	COUNTED(CHECK, status,
		mwctl_check(scene->ctx, scene->domain, scene->qps[0]->qp_num, scene->base, SCENE_GRANT,
			    IBV_ACCESS_REMOTE_WRITE, NULL));
	must(status, "mwctl_check");
	MUST(REVOKE_BATCH, mwctl_revoke_batch(scene->ctx, scene->grants, WINDOWS, 0, MWCTL_KILL_NEVER,
					      scene->results));
}

static void singles(struct scene *scene)
{
	struct mwctl_result granted, regranted[2];

	MUST(GRANT, mwctl_grant(scene->ctx, &scene->requests[0], 0, &granted));
	MUST(REGRANT,
	     mwctl_regrant(scene->ctx, granted.grant, &scene->requests[1], 0, regranted));
	MUST(REVOKE, mwctl_revoke(scene->ctx, regranted[1].grant, 0, &granted));
}

static void peers_and_ranges(struct scene *scene)
{
	size_t n;

	MUST(GRANT_BATCH,
	     mwctl_grant_batch(scene->ctx, scene->requests, WINDOWS, 0, scene->results));
	MUST(REVOKE_PEER,
	     mwctl_revoke_peer(scene->ctx, scene->peers[0], 0, MWCTL_KILL_NEVER, &n));
	MUST(GRANT_BATCH,
	     mwctl_grant_batch(scene->ctx, scene->requests, WINDOWS, 0, scene->results));
	MUST(REVOKE_RANGE, mwctl_revoke_range(scene->ctx, scene->region, scene->base,
					      WINDOWS * SCENE_GRANT, 0, MWCTL_KILL_NEVER, &n));
}

static void asynchronous(struct scene *scene)
{
	struct ended granted = { 0 }, revoked = { 0 };

	MUST(GRANT_START, mwctl_grant_start(scene->ctx, scene->requests, WINDOWS, 0, on_done, &granted));
	poll_until(scene, &granted);
	keep_ids(scene, granted.results);
	MUST(REVOKE_START, mwctl_revoke_start(scene->ctx, scene->grants, WINDOWS, 0, MWCTL_KILL_NEVER,
					      on_done, &revoked));
	poll_until(scene, &revoked);
}

/* What an application does that chains our requests with its own. */
static mwctl_status post_and_commit(struct scene *scene, struct mwctl_token token,
				    struct ibv_send_wr *wrs)
{
	struct ibv_send_wr *bad = NULL;
	int error = ibv_post_send(scene->qps[0], wrs, &bad);

	return mwctl_commit(scene->ctx, token, error, bad, NULL);
}

static void prepared(struct scene *scene)
{
	struct ended revoked = { 0 };
	struct ibv_send_wr wrs[WINDOWS];
	struct mwctl_token token;

	MUST(GRANT_PREPARE, mwctl_grant_prepare(scene->ctx, scene->requests, WINDOWS, wrs,
						scene->results, &token));
	MUST(GRANT_PREPARE, post_and_commit(scene, token, wrs));
	keep_ids(scene, scene->results);
	/* The library signals its share of unsignaled chains by itself: nothing to wait for here. */
	MUST(REVOKE_PREPARE, mwctl_revoke_prepare(scene->ctx, scene->grants, WINDOWS, 0,
						  MWCTL_KILL_NEVER, on_done, &revoked, wrs, &token));
	MUST(REVOKE_PREPARE, post_and_commit(scene, token, wrs));
	poll_until(scene, &revoked);
}

static void cycle(struct scene *scene)
{
	batches(scene);
	singles(scene);
	peers_and_ranges(scene);
	asynchronous(scene);
	prepared(scene);
}

/* The counters must count, and tell the two apart: a PD is the device's, a domain ours. */
static void control(struct scene *scene)
{
	uint64_t library = tally.library, device = tally.device;
	struct mwctl_domain domain;
	struct ibv_pd *pd;

	tally.inside = 1;
	pd = ibv_alloc_pd(scene->device->verbs);
	tally.inside = 0;
	if (!pd)
		die("ibv_alloc_pd: %s", strerror(errno));
	printf("  %-32s   %9d   %14llu   %15llu\n", "control: ibv_alloc_pd", 1,
	       (unsigned long long)(tally.library - library),
	       (unsigned long long)(tally.device - device));
	demand(tally.library == library && tally.device > device,
	       "ibv_alloc_pd is not counted as the device's");
	tally.inside = 1;
	must(mwctl_domain_open(scene->ctx, pd, NULL, 0, &domain), "mwctl_domain_open");
	tally.inside = 0;
	printf("  %-32s   %9d   %14llu\n", "control: mwctl_domain_open", 1,
	       (unsigned long long)(tally.library - library));
	demand(tally.library > library, "mwctl_domain_open is not counted");
	must(mwctl_domain_close(scene->ctx, domain), "mwctl_domain_close");
	if (ibv_dealloc_pd(pd))
		die("ibv_dealloc_pd: %s", strerror(errno));
}

static void report(void)
{
	size_t i;

	for (i = 0; i < CALLS; i++) {
		printf("  %-32s   %9llu   %14llu   %15llu\n", calls[i].name,
		       (unsigned long long)calls[i].calls, (unsigned long long)calls[i].library,
		       (unsigned long long)calls[i].device);
		demand(calls[i].library == 0, "%s allocated %llu times in %llu calls", calls[i].name,
		       (unsigned long long)calls[i].library, (unsigned long long)calls[i].calls);
	}
}

int main(int argc, char **argv)
{
	const struct scene_options options = {
		.peers = 1,
		.windows = 4 * WINDOWS,
		.reserve = POOL,
		.key_distance = KEY_DISTANCE,
	};
	struct rc_device device;
	struct scene scene;
	uint64_t warm;
	long cycles = 2000;

	if (argc == 2)
		cycles = atol(argv[1]);
	if (argc > 2 || cycles < 1) {
		fprintf(stderr, "usage: steady [CYCLES]\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	rc_open(&device);
	rc_describe(&device);
	dl_iterate_phdr(add_device_ranges, NULL);
	if (n_device_ranges == 0)
		die("libibverbs can't be told apart");
	scene_open(&scene, &device, &options);
	for (warm = 0; warm < 2ull * POOL * 256; warm += 5 * WINDOWS)
		cycle(&scene);
	for (warm = 0; warm < CALLS; warm++)
		calls[warm].calls = calls[warm].library = calls[warm].device = 0;
	while (cycles--)
		cycle(&scene);
	printf("\nHeap allocations in a steady state\n\n"
	       "  call                                   calls   in the library   in the device's\n");
	report();
	control(&scene);
	scene_repeat(&device, argc, argv);
	scene_close(&scene);
	rc_close(&device);
	return demands_failed() ? 1 : 0;
}
