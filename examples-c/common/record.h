/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the clients write: records that fit into one packet and carry a checksum, so that the
 * server can tell a whole one from a torn or a bad one without asking anybody.
 */
#ifndef RECORD_H
#define RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "crc.h"

#define RECORD_SIZE 256
#define RECORD_MAGIC 0x6d77726bu
#define RECORD_WORDS 59

struct record {
	uint64_t sequence; /* from 1; 0 in memory that was never written */
	uint32_t magic;
	uint32_t writer;
	uint32_t words[RECORD_WORDS];
	uint32_t crc; /* of all that stands before */
};

_Static_assert(sizeof(struct record) == RECORD_SIZE, "a record has no padding");

static inline void record_fill(struct record *record, uint32_t writer, uint64_t sequence, bool good)
{
	uint32_t word = (uint32_t)(sequence * 0x9e3779b97f4a7c15ull >> 32) ^ writer;
	size_t i;

	record->sequence = sequence;
	record->magic = RECORD_MAGIC;
	record->writer = writer;
	for (i = 0; i < RECORD_WORDS; i++) {
		word = word * 1664525u + 1013904223u;
		record->words[i] = word;
	}
	record->crc = crc32c(record, offsetof(struct record, crc)) ^ (good ? 0 : 0xbadbad00u);
}

static inline bool record_is_good(const struct record *record, uint32_t writer)
{
	return record->magic == RECORD_MAGIC && record->writer == writer &&
	       record->crc == crc32c(record, offsetof(struct record, crc));
}

#endif
