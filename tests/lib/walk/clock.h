/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * walk/clock.h: the clock, the entropy and the threads of the process. On the device in the process
 * they are the walk's own, so that a seed gives the same walk each time: the clock moves by being
 * looked at, and of the threads one runs at a time, the others being asleep in the library. A thread
 * gets its turn once it was woken, or its time has come: one that nobody wakes sleeps on.
 */
#ifndef WALK_CLOCK_H
#define WALK_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/* From here on clock, entropy and threads are the walk's. */
void walk_clock_own(uint64_t seed);
double walk_real_seconds(void);
/* Nanoseconds of the clock that the library reads. */
uint64_t walk_now(void);
/* On the device in the process: so much passes. */
void walk_pass(uint64_t ns);

/* Each thread that is due runs until it sleeps again. */
void walk_threads_run(void);
/* A call has started a thread: waits until it sleeps, and gives its number. */
int walk_thread_begun(void);
/* The thread is about to end: it runs as it likes until it has, and then is forgotten. */
void walk_thread_ends(int thread);
void walk_thread_ended(int thread);

/* Has `call` made by another thread. When this returns, it has been made or that thread sleeps in it;
 * walk_threads_run lets it go on. */
void walk_call_elsewhere(void (*call)(void *), void *with);
bool walk_is_elsewhere(void);

#endif
