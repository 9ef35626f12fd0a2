/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* walk/life.h: servers open and close, clients come and go, blocks are taken and given. */
#ifndef WALK_LIFE_H
#define WALK_LIFE_H

#include "walk/model.h"

void walk_open_servers(void);
/* Everything revoked and proved, nothing leaked. */
void walk_close_servers(void);

void walk_join(struct walk_peer *peer);
/* Takes the peer off the books, in one of several ways, and destroys its queue pairs. */
void walk_leave(struct walk_peer *peer);
/* Ends all that is under way and looks at everything. */
void walk_quiesce(void);

void walk_blocks(void);

#endif
