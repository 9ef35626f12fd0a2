/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "walk/clock.h"
#include "walk/model.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static bool is_own;

/* ---- the clock ---- */

/* Every look at the clock takes so long: a call with a deadline ends after so many looks. */
#define LOOK_NS 1000

static atomic_uint_fast64_t own_ns;

static long kernel(long number, ...)
{
	static long (*real)(long, ...);
	va_list args;
	long a[6];

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "syscall");
	va_start(args, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
	uint64_t now;

	if (!is_own)
		return (int)kernel(SYS_clock_gettime, (long)clock, at, 0L, 0L, 0L, 0L);
	now = atomic_fetch_add(&own_ns, LOOK_NS);
	at->tv_sec = (time_t)(now / 1000000000);
	at->tv_nsec = (long)(now % 1000000000);
	return 0;
}

static uint64_t kernel_ns(void)
{
	struct timespec now;

	kernel(SYS_clock_gettime, (long)CLOCK_MONOTONIC, &now, 0L, 0L, 0L, 0L);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t walk_now(void)
{
	return is_own ? atomic_load(&own_ns) : kernel_ns();
}

void walk_pass(uint64_t ns)
{
	if (is_own)
		atomic_fetch_add(&own_ns, ns);
}

double walk_real_seconds(void)
{
	return (double)kernel_ns() / 1e9;
}

/* ---- the entropy ---- */

static uint64_t entropy;

ssize_t getrandom(void *buffer, size_t length, unsigned int flags)
{
	if (!is_own)
		return kernel(SYS_getrandom, buffer, length, (long)flags, 0L, 0L, 0L);
	for (size_t i = 0; i < length; i++)
		((uint8_t *)buffer)[i] = (uint8_t)(entropy >> (i % 8 * 8));
	return (ssize_t)length;
}

void walk_clock_own(uint64_t seed)
{
	entropy = seed;
	is_own = true;
}

/* ---- the threads ---- */

#define THREADS 8
#define MAIN 0

enum rest { UNUSED, AWAKE, ASLEEP, FREE };

static struct thread {
	enum rest rest;
	const uint32_t *word;      /* what it sleeps on, and as what */
	uint32_t value;
	uint64_t until;
} threads[THREADS] = {[MAIN] = {.rest = AWAKE}};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
static int running = MAIN, newest = -1;
static __thread int self = -1;

static int enter(void)
{
	for (int i = MAIN + 1; i < THREADS; i++)
		if (threads[i].rest == UNUSED) {
			threads[i].rest = AWAKE;
			return i;
		}
	walk_differ("more threads than were asked for");
}

static bool is_woken(const struct thread *it)
{
	return __atomic_load_n(it->word, __ATOMIC_SEQ_CST) != it->value;
}

static bool is_due(const struct thread *it)
{
	return it->rest == ASLEEP && (is_woken(it) || it->until <= atomic_load(&own_ns));
}

static int some_due(void)
{
	for (int i = MAIN + 1; i < THREADS; i++)
		if (is_due(&threads[i]))
			return i;
	return MAIN;
}

/* The lock is held. Runs one thread until it sleeps. */
static void run(int which)
{
	running = which;
	pthread_cond_broadcast(&turn);
	while (running != MAIN)
		pthread_cond_wait(&turn, &lock);
}

static bool some_free(void)
{
	for (int i = MAIN + 1; i < THREADS; i++)
		if (threads[i].rest == FREE)
			return true;
	return false;
}

/* The first thread sleeps: the others go on, and if none is due time passes. False: its time came. */
static bool main_sleeps(const struct thread *it)
{
	while (!is_woken(it)) {
		uint64_t next = it->until;
		int due = some_due();

		if (next <= atomic_load(&own_ns))
			return false;
		if (due != MAIN) {
			run(due);
			atomic_fetch_add(&own_ns, LOOK_NS);
			continue;
		}
		if (some_free()) {
			pthread_cond_wait(&turn, &lock);
			continue;
		}
		for (int i = MAIN + 1; i < THREADS; i++)
			if (threads[i].rest == ASLEEP && threads[i].until < next)
				next = threads[i].until;
		if (next == UINT64_MAX)
			walk_differ("a call waits, and nobody is there to end that");
		atomic_store(&own_ns, next);
	}
	return true;
}

/* Another one sleeps, until it gets its turn; or, while it is free, until it is woken. */
static bool other_sleeps(struct thread *it, int number)
{
	bool woken;

	if (it->rest != FREE) {
		it->rest = ASLEEP;
		if (running == number)
			running = MAIN;
		pthread_cond_broadcast(&turn);
	}
	while (running != number && !(it->rest == FREE && is_woken(it)))
		pthread_cond_wait(&turn, &lock);
	if (it->rest == ASLEEP)
		it->rest = AWAKE;
	woken = is_woken(it);
	return woken;
}

static long futex_wait(const uint32_t *word, uint32_t value, const struct timespec *timeout)
{
	struct thread *it;
	bool woken;

	pthread_mutex_lock(&lock);
	if (self < 0) {
		self = newest = enter();
		pthread_cond_broadcast(&turn);
	}
	it = &threads[self];
	it->word = word;
	it->value = value;
	it->until = UINT64_MAX;
	if (timeout)
		it->until = atomic_load(&own_ns) + (uint64_t)timeout->tv_sec * 1000000000 + (uint64_t)timeout->tv_nsec;
	woken = self == MAIN ? main_sleeps(it) : other_sleeps(it, self);
	pthread_mutex_unlock(&lock);
	if (woken)
		return 0;
	errno = ETIMEDOUT;
	return -1;
}

long syscall(long number, ...)
{
	va_list args;
	long a[6], result;

	va_start(args, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if (is_own && number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT)
		return futex_wait((const uint32_t *)a[0], (uint32_t)a[2], (const struct timespec *)a[3]);
	result = kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (is_own && number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAKE) {
		int error = errno;

		/* One that is free sleeps here and not in the kernel. */
		pthread_mutex_lock(&lock);
		pthread_cond_broadcast(&turn);
		pthread_mutex_unlock(&lock);
		errno = error;
	}
	return result;
}

void walk_threads_run(void)
{
	if (!is_own)
		return;
	pthread_mutex_lock(&lock);
	for (int i = MAIN + 1; i < THREADS; i++)
		if (is_due(&threads[i]))
			run(i);
	pthread_mutex_unlock(&lock);
}

/* Whoever yields waits for another one. */
int sched_yield(void)
{
	static const uint32_t word;

	if (!is_own)
		return (int)kernel(SYS_sched_yield, 0L, 0L, 0L, 0L, 0L, 0L);
	if (self == MAIN) {
		walk_threads_run();
	} else if (self > MAIN) {
		pthread_mutex_lock(&lock);
		threads[self].word = &word;
		threads[self].value = 1;
		threads[self].until = atomic_load(&own_ns);
		other_sleeps(&threads[self], self);
		pthread_mutex_unlock(&lock);
	}
	return 0;
}

int walk_thread_begun(void)
{
	int begun;

	if (!is_own)
		return -1;
	pthread_mutex_lock(&lock);
	while (newest < 0 || threads[newest].rest != ASLEEP)
		pthread_cond_wait(&turn, &lock);
	begun = newest;
	newest = -1;
	pthread_mutex_unlock(&lock);
	return begun;
}

void walk_thread_ends(int thread)
{
	if (!is_own)
		return;
	pthread_mutex_lock(&lock);
	threads[thread].rest = FREE;
	pthread_cond_broadcast(&turn);
	pthread_mutex_unlock(&lock);
}

void walk_thread_ended(int thread)
{
	if (!is_own)
		return;
	pthread_mutex_lock(&lock);
	threads[thread].rest = UNUSED;
	pthread_mutex_unlock(&lock);
}

/* ---- calls by another thread ---- */

static void (*job)(void *);
static void *job_with;
static bool has_worker;
static int worker = -1;

/* It takes its turns like the library's threads, but sleeps on what it is to do. */
static void *work(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&lock);
	self = worker;
	for (;;) {
		while (!job)
			pthread_cond_wait(&turn, &lock);
		pthread_mutex_unlock(&lock);
		job(job_with);
		pthread_mutex_lock(&lock);
		job = NULL;
		running = MAIN;
		pthread_cond_broadcast(&turn);
	}
	return NULL;
}

static void hire(void)
{
	sigset_t all, old;
	pthread_t thread;

	worker = enter();
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, work, NULL));
	pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	has_worker = true;
}

void walk_call_elsewhere(void (*call)(void *), void *with)
{
	pthread_mutex_lock(&lock);
	if (!has_worker)
		hire();
	job = call;
	job_with = with;
	run(worker);
	pthread_mutex_unlock(&lock);
}

bool walk_is_elsewhere(void)
{
	bool busy;

	pthread_mutex_lock(&lock);
	busy = job != NULL;
	pthread_mutex_unlock(&lock);
	return busy;
}

__attribute__((constructor)) static void first(void)
{
	self = MAIN;
}
