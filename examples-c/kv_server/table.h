/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the key-value server and its clients agree on. */
#ifndef TABLE_H
#define TABLE_H

#include <stdint.h>

#include "../common/link.h"
#include "../common/record.h"

#define CLIENTS 3
#define ROWS 64 /* of each client; a row's key is its number, its value a record */
#define ROWS_SIZE (ROWS * sizeof(struct record))
#define TABLE_SIZE (CLIENTS * ROWS_SIZE)
#define SOME 50  /* records: what counts as a client at work */
#define KICKED 1 /* whom the operator will kick */
#define PORT 7471

enum what { WELCOME, STOP, STOPPED };

struct message {
	uint32_t what;
	uint32_t table_key, rows_key; /* WELCOME: the keys of the client's two windows */
	uint64_t table, rows;         /* and where they begin */
};
_Static_assert(sizeof(struct message) <= LINK_MESSAGE, "a message fits");

#endif
