/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What a question to the table costs: mwctl_check and mwctl_find_rkey. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/scene.h"

#define QUESTIONS 65536 /* asked over and over, in random order */
#define LOOKUPS 1000000
#define ROUNDS 5
#define THREADS 2

enum kind { CHECK_HIT, CHECK_MISS, RKEY_HIT, RKEY_MISS, KINDS };

static const char *const names[KINDS] = {
	"mwctl_check, granted",
	"mwctl_check, another client's",
	"mwctl_find_rkey, open",
	"mwctl_find_rkey, old key bits",
};

struct question {
	uint64_t addr;
	uint32_t qp_num, rkey;
};

struct run {
	const struct scene *scene;
	const struct question *questions;
	enum kind kind;
	pthread_barrier_t *start;
	uint64_t ns;
	size_t first, wrong;
};

static uint64_t next_random(void)
{
	static uint64_t state = 0x9e3779b97f4a7c15ull;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static struct question *make_questions(const struct scene *scene, enum kind kind)
{
	struct question *questions = calloc(QUESTIONS, sizeof(*questions));
	size_t i, total = scene->n_peers * scene->windows;

	if (!questions)
		die("out of memory");
	for (i = 0; i < QUESTIONS; i++) {
		size_t window = next_random() % total, peer = window / scene->windows;

		if (kind == CHECK_MISS)
			peer = (peer + 1 + next_random() % (scene->n_peers - 1)) % scene->n_peers;
		questions[i].addr = scene->requests[window].addr;
		questions[i].qp_num = scene->qps[peer]->qp_num;
		questions[i].rkey = scene->results[window].rkey ^ (kind == RKEY_MISS ? 1 : 0);
	}
	return questions;
}

/* A lookup never waits: the thread's own time is its price, whatever else runs on the machine. */
static uint64_t cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static mwctl_status ask(const struct run *run, const struct question *question)
{
	struct mwctl_grant_info info;

	if (run->kind == CHECK_HIT || run->kind == CHECK_MISS)
		return mwctl_check(run->scene->ctx, run->scene->domain, question->qp_num, question->addr,
				   SCENE_GRANT, IBV_ACCESS_REMOTE_WRITE, NULL);
	return mwctl_find_rkey(run->scene->ctx, question->rkey, &info, sizeof(info));
}

static void *look_up(void *argument)
{
	struct run *run = argument;
	mwctl_status expected = run->kind == CHECK_HIT || run->kind == RKEY_HIT ? MWCTL_STATUS_OK :
										  MWCTL_STATUS_NO_GRANT;
	uint64_t begun;
	size_t i;

	pthread_barrier_wait(run->start);
	begun = cpu_ns();
	for (i = 0; i < LOOKUPS; i++)
		run->wrong += ask(run, &run->questions[(run->first + i) % QUESTIONS]) != expected;
	run->ns = cpu_ns() - begun;
	return NULL;
}

/* ns for a lookup, by each of `threads` at a time. */
static double measure(const struct scene *scene, const struct question *questions, enum kind kind,
		      size_t threads)
{
	struct run runs[THREADS];
	pthread_t ids[THREADS];
	pthread_barrier_t start;
	double samples[ROUNDS];
	size_t round, i;

	for (round = 0; round < ROUNDS; round++) {
		pthread_barrier_init(&start, NULL, (unsigned int)threads);
		samples[round] = 0;
		for (i = 0; i < threads; i++) {
			runs[i] = (struct run){ scene, questions, kind, &start, 0,
						i * QUESTIONS / THREADS, 0 };
			if (pthread_create(&ids[i], NULL, look_up, &runs[i]))
				die("pthread_create failed");
		}
		for (i = 0; i < threads; i++) {
			pthread_join(ids[i], NULL);
			demand(runs[i].wrong == 0, "%s: %zu wrong answers", names[kind], runs[i].wrong);
			samples[round] += (double)runs[i].ns / LOOKUPS / (double)threads;
		}
		pthread_barrier_destroy(&start);
	}
	return stats_median(samples, ROUNDS);
}

static void run_size(const struct rc_device *device, size_t peers, size_t windows)
{
	const struct scene_options options = { .peers = peers, .windows = (uint32_t)windows };
	struct scene scene;
	enum kind kind;

	scene_open(&scene, device, &options);
	scene_grant(&scene);
	for (kind = 0; kind < KINDS; kind++) {
		struct question *questions = make_questions(&scene, kind);
		double alone = measure(&scene, questions, kind, 1);
		double together = measure(&scene, questions, kind, THREADS);

		printf("  %-30s   %9zu   %7zu   %8.0f ns   %8.0f ns\n", names[kind], peers * windows, peers,
		       alone, together);
		free(questions);
	}
	scene_close(&scene);
}

int main(int argc, char **argv)
{
	struct rc_device device;
	size_t most;

	setvbuf(stdout, NULL, _IOLBF, 0);
	rc_open(&device);
	rc_describe(&device);
	most = scene_windows_at_most(&device, 1000000);
	printf("\nA question to the table (medians of %d runs of %d, random order)\n\n"
	       "  question                            grants   clients    one thread   two, each\n",
	       ROUNDS, LOOKUPS);
	run_size(&device, 10, 100);
	if (most < 1000000)
		printf("  (the device has %zu windows at most)\n", most);
	run_size(&device, 1000, most < 1000000 ? most / 2000 : 1000);
	scene_repeat(&device, argc, argv);
	rc_close(&device);
	return demands_failed() ? 1 : 0;
}
