/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* walk/faults.h: faults that the walk orders from the device in the process. */
#ifndef WALK_FAULTS_H
#define WALK_FAULTS_H

#include "walk/model.h"

/* Orders one, at random; or lets go of one that holds something. */
void walk_fault_order(void);
void walk_fault_release_some(void);
void walk_faults_release(const struct walk_peer *peer);   /* NULL: all */
/* The queue pair is about to be destroyed. */
void walk_faults_forget(const struct walk_peer *peer);
/* Those that struck as often as ordered are forgotten. */
void walk_faults_tidy(void);
bool walk_fault_armed(enum mwctl_sim_fault_kind kind);
/* Completions of the queue pair that were swallowed so far. */
uint64_t walk_fault_lost(const struct walk_peer *peer);

/* Whether what was ordered at the queue pair, or at any, may strike still. */
bool walk_fault_at(const struct walk_peer *peer, enum mwctl_sim_fault_kind kind);

/* A packet that was let in and is not placed yet: no proof before it is. */
void walk_fault_held_packet(void);
/* A device that fakes success. */
void walk_fault_fatal(void);

#endif
