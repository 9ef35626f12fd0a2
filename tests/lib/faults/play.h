/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* faults/play.h: one combination, from a healthy server to a healthy server. */
#ifndef FAULTS_PLAY_H
#define FAULTS_PLAY_H

#include "faults/scene.h"

struct fc_report {
	unsigned int outcomes;     /* of the victim's items, enum fc_outcome */
	struct fc_seen seen;       /* during the operation */
};

/* Ends the process by a failed check where something is not as documented. */
void fc_play(const struct fc_case *c, struct fc_report *report);

#endif
