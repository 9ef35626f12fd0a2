/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "crc.h"

#include <endian.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* Castagnoli's, bits reversed */

/* tables[k][b]: what byte b contributes with k bytes to follow it in the step. */
static uint32_t tables[8][256];

void crc32c_init(void)
{
	uint32_t byte, bit, k;

	for (byte = 0; byte < 256; byte++) {
		uint32_t crc = byte;

		for (bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
		tables[0][byte] = crc;
	}
	for (k = 1; k < 8; k++)
		for (byte = 0; byte < 256; byte++) {
			uint32_t before = tables[k - 1][byte];

			tables[k][byte] = before >> 8 ^ tables[0][before & 0xff];
		}
}

uint32_t crc32c(const void *data, size_t length)
{
	const uint8_t *at = data;
	uint32_t crc = ~0u;

	for (; length >= 8; at += 8, length -= 8) {
		uint64_t word;

		memcpy(&word, at, 8);
		word = le64toh(word) ^ crc;
		crc = tables[7][word & 0xff] ^ tables[6][word >> 8 & 0xff] ^
		      tables[5][word >> 16 & 0xff] ^ tables[4][word >> 24 & 0xff] ^
		      tables[3][word >> 32 & 0xff] ^ tables[2][word >> 40 & 0xff] ^
		      tables[1][word >> 48 & 0xff] ^ tables[0][word >> 56];
	}
	for (; length > 0; at++, length--)
		crc = crc >> 8 ^ tables[0][(crc ^ *at) & 0xff];
	return ~crc;
}
