/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* CRC-32C, eight bytes a step. */
#ifndef CRC_H
#define CRC_H

#include <stddef.h>
#include <stdint.h>

/* Fills the tables; once, before any thread uses crc32c. */
void crc32c_init(void);

uint32_t crc32c(const void *data, size_t length);

#endif
