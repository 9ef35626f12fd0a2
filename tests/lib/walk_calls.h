/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* walk_calls.h: grants and revocations, waiting and asynchronous, one and many. */
#ifndef WALK_CALLS_H
#define WALK_CALLS_H

#include "walk_model.h"

void walk_grant(void);             /* one, or a batch for several clients */
void walk_grant_start(void);
void walk_regrant(void);
void walk_revoke(void);            /* one, or a batch with stale and doubled ids in it */
void walk_revoke_start(void);
void walk_revoke_peer(void);
void walk_revoke_range(void);
void walk_transfer(void);
void walk_bad_call(void);          /* refused, and nothing changes */

#endif
