/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef COST_H
#define COST_H

#include <stdbool.h>

#include "rc.h"

/* What a revocation costs per window, in a batch and one by one, and by how many posts and
 * signaled completions. Prints a table; demands what it must show. */
void cost_run(const struct rc_device *device, bool quick);

#endif
