/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* walk/threads.h: the service thread, calls by threads that don't own a queue, send queues called stuck. */
#ifndef WALK_THREADS_H
#define WALK_THREADS_H

#include "walk/model.h"

/* A server's service thread begins or ends. While it runs nobody ticks that server, and every deadline
 * is kept. On a real device: only while some operations come to theirs. */
void walk_service(void);
void walk_service_end(struct walk_server *server);
/* Another thread calls for a client whose queues are this thread's: refused, or put in line for it. */
void walk_elsewhere(void);
/* The application calls a send queue stuck: its windows are deallocated. */
void walk_stuck(void);
/* After each step: who is due runs, and what was due has ended. */
void walk_threads_agree(void);
/* Refusals that come by callback and have not come yet. */
int walk_strangers(void);

#endif
