/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * faults/life.h: the kernel calls behind opening and closing, each failing in turn.
 */
#ifndef FAULTS_LIFE_H
#define FAULTS_LIFE_H

#include <stdbool.h>
#include <stddef.h>

/* What the device has no order for fails in the test's own stand-ins. */
enum fc_made {
	FC_MADE_NONE,
	FC_QUERY_DEVICE,
	FC_ALLOC_PD,
	FC_DEALLOC_PD
};
extern struct fc_failing {
	enum fc_made call;
	int skip;
	bool always;
	int error;
	int hits;
} fc_failing;

/* Whether this call is to fail now. */
bool fc_fails(enum fc_made call);

/* How many pairs of an operation and a call there are. */
int fc_life_pairs(void);
const char *fc_life_name(int pair);
/* Errors of a pair. */
int fc_life_errors(int pair, const int **errors);
/* Plays one; false if the call is made less often than that, and then nothing failed. Ends the
 * process by a failed check where something is not as documented. *status: how it ended. */
bool fc_life_play(int pair, int nth, int error, bool always, int *status);

#endif
