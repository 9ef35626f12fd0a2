/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* walk/chains.h: prepared chains in the application's hands: committed, dropped, cut. */
#ifndef WALK_CHAINS_H
#define WALK_CHAINS_H

#include "walk/model.h"

void walk_prepare(void);
/* One chain that is in hand comes to its end; NULL: anybody's. */
void walk_finish_chain(struct walk_peer *peer);
/* All of a peer's. */
void walk_chains_finish(struct walk_peer *peer);

#endif
