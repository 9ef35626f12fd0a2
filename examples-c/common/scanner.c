/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "scanner.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "report.h"

#define PERIOD NS_PER_MS

uint64_t bytes_changed(const struct server *server, const struct seat *seat, uint8_t *copy)
{
	size_t i, size = server_seat_size(server);
	uint64_t changed = 0;

	for (i = 0; i < size; i += RECORD_SIZE) {
		size_t k;

		if (!memcmp(copy + i, seat->memory + i, RECORD_SIZE))
			continue;
		for (k = i; k < i + RECORD_SIZE; k++)
			changed += copy[k] != seat->memory[k];
		memcpy(copy + i, seat->memory + i, RECORD_SIZE);
	}
	return changed;
}

static void take_snapshot(void *argument)
{
	struct scanner *scanner = argument;
	const struct seat *seat = &scanner->server->seats[scanner->subject];

	memcpy(scanner->snapshot, seat->memory, server_seat_size(scanner->server));
	scanner->snapshot_ns = clock_ns();
}

/* Whether the records of a seat call for a verdict. */
static bool seat_is_bad(struct scanner *scanner, size_t at)
{
	const struct seat *seat = &scanner->server->seats[at];
	size_t i, places = scanner->server->windows * WRITER_SLOTS;
	uint64_t *seen = scanner->seen + at * places;
	unsigned int good = 0, bad = 0;

	for (i = 0; i < places; i++) {
		const uint8_t *place = seat->memory + i * RECORD_SIZE;
		struct record record;

		/* The device writes here at any time. */
		if (*(const volatile uint64_t *)place == seen[i])
			continue;
		memcpy(&record, place, sizeof(record));
		if (record_is_good(&record, seat->writer->number)) {
			seen[i] = record.sequence;
			good++;
		} else {
			bad++;
		}
	}
	atomic_fetch_add(&scanner->good_records, good);
	atomic_fetch_add(&scanner->bad_records, bad);
	return bad >= SCANNER_STRIKES && bad > good;
}

static void *run(void *argument)
{
	struct scanner *scanner = argument;
	struct server *server = scanner->server;
	size_t at;

	while (!atomic_load(&scanner->stop)) {
		server_poll(server);
		for (at = 0; at < SERVER_SEATS; at++) {
			if (!(scanner->watched & 1 << at))
				continue;
			if (!atomic_load(&server->seats[at].dead) && !seat_is_bad(scanner, at))
				continue;
			scanner->watched &= ~(1 << at);
			if (atomic_load(&scanner->culprit) != -1) {
				demand(false, "client %zu was stopped, too", at);
				continue;
			}
			scanner->subject = at;
			server_revoke(server, at, take_snapshot, scanner, &scanner->revocation);
			atomic_store(&scanner->culprit, (int)at);
		}
		clock_sleep_until(clock_ns() + PERIOD);
	}
	return NULL;
}

void scanner_start(struct scanner *scanner, struct server *server)
{
	int error;

	memset(scanner, 0, sizeof(*scanner));
	scanner->server = server;
	atomic_store(&scanner->culprit, -1);
	scanner->seen = calloc(SERVER_SEATS * server->windows * WRITER_SLOTS, sizeof(uint64_t));
	scanner->snapshot = malloc(server_seat_size(server));
	if (!scanner->seen || !scanner->snapshot)
		die("out of memory");
	scanner->watched = (1 << SERVER_SEATS) - 1;
	error = pthread_create(&scanner->thread, NULL, run, scanner);
	if (error)
		die("pthread_create: %s", strerror(error));
}

void scanner_stop(struct scanner *scanner)
{
	atomic_store(&scanner->stop, true);
	pthread_join(scanner->thread, NULL);
}

void scanner_free(struct scanner *scanner)
{
	free(scanner->seen);
	free(scanner->snapshot);
}
