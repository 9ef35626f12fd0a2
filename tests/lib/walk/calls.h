/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* walk/calls.h: grants and revocations, waiting and asynchronous, one and many. */
#ifndef WALK_CALLS_H
#define WALK_CALLS_H

#include "walk/model.h"

#define WALK_MOST_OPEN 40          /* grants of a client before it gets no more */

void walk_grant(void);             /* one, or a batch for several clients */
void walk_grant_start(void);
void walk_regrant(void);
void walk_revoke(void);            /* one, or a batch with stale and doubled ids in it */
void walk_revoke_start(void);
void walk_revoke_start_within(int server, uint64_t timeout_us);
void walk_revoke_peer(void);
void walk_revoke_range(void);
void walk_bad_call(void);          /* refused, and nothing changes */

/* ---- what calls are made with, and what they may say ---- */

uint64_t walk_wait_us(bool in_vain); /* a timeout for calls that wait */
/* Whether a call that waits may be made of it and n - 1 others. */
bool walk_fits_in(const struct walk_peer *peer, size_t n);
uint64_t walk_start_us(void);      /* … and for those that don't: over at once, soon, or long after */
uint64_t walk_limit_us(uint64_t timeout_us, const struct walk_server *server);
int32_t walk_kill_or_not(void);
bool walk_polls_itself(const struct walk_peer *peer);
mwctl_status walk_first_failure(const mwctl_result *results, size_t n);
/* An id of the past that was the server's; 0: none was found. */
uint64_t walk_stale_id(int server);

#endif
