/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef HAMMER_H
#define HAMMER_H

#include <stddef.h>
#include <stdint.h>

#include "rc.h"

/* Clients that write without a pause across revocations, until so many writes were attempted;
 * demands that no byte changes after a proof. */
void hammer_run(const struct rc_device *device, size_t windows, uint64_t attempts);

#endif
