/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What replicas and leaders agree on. */
#ifndef LOG_H
#define LOG_H

#include <stdint.h>

#include "../common/link.h"
#include "../common/record.h"

#define REPLICAS 3
#define MAJORITY 2
#define OLD 0 /* the two leaders; a leader's number is its term, and signs its entries */
#define NEW 1
#define LEADERS 2
#define ENTRIES 8192 /* of a log; an entry's number is its place, the first is 1 */
#define LOG_SIZE (ENTRIES * sizeof(struct record))
#define SOME 50 /* entries: what counts as a leader at work */
#define PORT 7472

/* A leader asks for the right to a replica's log, and says at its end what it appended. */
enum what { ASK, PERMIT, DONE };

struct message {
	uint32_t what;
	uint32_t key;         /* PERMIT: the key of the leader's window */
	uint64_t log;         /* and where it begins */
	uint64_t first, last; /* DONE: the entries appended. PERMIT: the last one there is */
};
_Static_assert(sizeof(struct message) <= LINK_MESSAGE, "a message fits");

#endif
