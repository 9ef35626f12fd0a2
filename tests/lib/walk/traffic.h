/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* walk/traffic.h: what clients do with keys, and what the application does beside the library. */
#ifndef WALK_TRAFFIC_H
#define WALK_TRAFFIC_H

#include "walk/model.h"

/* A client uses a key that it holds, within its range and rights. */
void walk_use_key(void);
/* … one that it does not hold, or not so. */
void walk_misuse_key(void);
/* One access; the model says what it must come to, the bytes must follow. */
void walk_access(struct walk_peer *peer, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t addr,
		 uint64_t length);
/* After a step: keys that it brought to life, and some that it ended. */
void walk_try_keys(void);
/* A client gives a key back by SEND_WITH_INV. */
void walk_give_key_back(void);

/* Work of the application on a server's queue pair. */
void walk_app_work(void);
/* A request of the application's that touches nothing. */
struct ibv_send_wr walk_app_request(void);
void walk_app_posted(struct walk_peer *peer, uint64_t wr_id);

/* Takes completions of a server's queue, as its polling mode has it. False: there were none. */
bool walk_poll(struct walk_peer *peer, int most);
void walk_poll_dry(struct walk_peer *peer);
/* Takes all that is left of the application's, in whatever order. */
void walk_poll_away(struct walk_peer *peer);
/* Makes sure that nothing of ours is in the send queue of a client that is well, and that the grant is
 * live and nobody's concern. False: it is otherwise. */
bool walk_is_idle(struct walk_peer *peer, const struct walk_grant *grant);
void walk_tick(int server);
void walk_async_events(int server);
/* Nothing of the application's may be left but what faults swallowed. */
void walk_app_agrees(struct walk_peer *peer);

#endif
