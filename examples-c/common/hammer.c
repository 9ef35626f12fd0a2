/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "hammer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "report.h"
#include "scanner.h"
#include "server.h"

#define HAMMERS 3
#define WITNESS 3 /* the seat of the client whose rights stay */
/* Where memory is not at rest with the proof: the time that a write under way may take. */
#define SETTLING (50 * NS_PER_MS)

struct tally {
	uint64_t attempts, landed, with_old_keys, cycles, revoked, refused, others;
	uint64_t changed_open, changed_early, changed_late, witnessed;
	uint64_t proofs[SERVER_PROOFS];
};

struct hammer {
	struct server server;
	struct writer writers[SERVER_SEATS];
	uint8_t *copies[HAMMERS]; /* of each seat's memory */
	uint64_t random;
	struct tally tally;
};

static uint64_t next_random(struct hammer *hammer)
{
	hammer->random ^= hammer->random << 13;
	hammer->random ^= hammer->random >> 7;
	hammer->random ^= hammer->random << 17;
	return hammer->random;
}

struct copy {
	const struct server *server;
	const struct seat *seat;
	uint8_t *to;
};

static void take_copy(void *argument)
{
	struct copy *copy = argument;

	memcpy(copy->to, copy->seat->memory, server_seat_size(copy->server));
}

/* What was acknowledged before the revocation began must be in memory: a write that did not land
 * can't change a byte either, and the rest of this would show nothing. */
static void check_landed(const struct hammer *hammer, size_t k, uint64_t acknowledged)
{
	size_t n = hammer->server.windows;
	size_t at = writer_target_of(acknowledged, n) * WRITER_TARGET_SIZE +
		    writer_slot_of(acknowledged, n) * RECORD_SIZE;
	struct record record;

	memcpy(&record, hammer->copies[k] + at, sizeof(record));
	demand(record.sequence >= acknowledged && record.writer == k,
	       "client %zu: record %llu was acknowledged, in its place is %llu", k,
	       (unsigned long long)acknowledged, (unsigned long long)record.sequence);
}

static void revoke(struct hammer *hammer, size_t k)
{
	struct server *server = &hammer->server;
	struct seat *seat = &server->seats[k];
	struct copy copy = { server, seat, hammer->copies[k] };
	struct revocation revocation;
	uint64_t acknowledged;
	int proof;

	hammer->tally.changed_open += bytes_changed(server, seat, hammer->copies[k]);
	acknowledged = atomic_load(&hammer->writers[k].acknowledged);
	server_revoke(server, k, take_copy, &copy, &revocation);
	demand(revocation.proved == revocation.windows && revocation.windows == server->windows,
	       "client %zu: %zu of %zu windows proved: %s", k, revocation.proved, revocation.windows,
	       mwctl_status_text(revocation.status));
	hammer->tally.revoked += revocation.windows;
	for (proof = 0; proof < SERVER_PROOFS; proof++)
		hammer->tally.proofs[proof] += revocation.proofs[proof];
	check_landed(hammer, k, acknowledged);
}

static void expect_refusal(struct hammer *hammer, size_t k)
{
	struct writer *writer = &hammer->writers[k];

	if (!writer_wait_dead(writer))
		demand(false, "client %zu was not refused", k);
	else if (writer->error == IBV_WC_REM_ACCESS_ERR)
		hammer->tally.refused++;
	else
		hammer->tally.others++;
}

/* The keys of before, on a connection of today. */
static void write_with_old_keys(struct hammer *hammer, size_t k)
{
	struct writer *writer = &hammer->writers[k];
	uint64_t landed = atomic_load(&writer->landed), posted = atomic_load(&writer->posted);

	server_reconnect(&hammer->server, k);
	writer_go(writer, hammer->server.seats[k].targets, hammer->server.windows);
	expect_refusal(hammer, k);
	hammer->tally.with_old_keys += atomic_load(&writer->posted) - posted;
	demand(atomic_load(&writer->landed) == landed, "client %zu: writes with old keys landed", k);
}

static void cycle(struct hammer *hammer, uint64_t spread)
{
	struct server *server = &hammer->server;
	uint64_t witness = atomic_load(&hammer->writers[WITNESS].landed);
	size_t k;

	for (k = 0; k < HAMMERS; k++) {
		server_admit(server, k, &hammer->writers[k]);
		take_copy(&(struct copy){ server, &server->seats[k], hammer->copies[k] });
		writer_go(&hammer->writers[k], server->seats[k].targets, server->windows);
	}
	for (k = 0; k < HAMMERS; k++) {
		uint64_t wanted = atomic_load(&hammer->writers[k].landed) + 1 +
				  next_random(hammer) % spread;

		if (!writer_wait_landed(&hammer->writers[k], wanted))
			die("client %zu: its writes don't land while its windows are open", k);
	}
	for (k = 0; k < HAMMERS; k++)
		revoke(hammer, k);
	if (!server->at_rest)
		clock_sleep_until(clock_ns() + SETTLING);
	for (k = 0; k < HAMMERS; k++) {
		expect_refusal(hammer, k);
		if (!server->at_rest)
			hammer->tally.changed_early +=
				bytes_changed(server, &server->seats[k], hammer->copies[k]);
	}
	for (k = 0; k < HAMMERS; k++)
		write_with_old_keys(hammer, k);
	for (k = 0; k < HAMMERS; k++) {
		hammer->tally.changed_late +=
			bytes_changed(server, &server->seats[k], hammer->copies[k]);
		server_dismiss(server, k);
	}
	if (!writer_wait_landed(&hammer->writers[WITNESS], witness + 1))
		die("the writes of the client that kept its rights land no more");
	hammer->tally.cycles++;
}

static uint64_t sum_posted(struct hammer *hammer)
{
	uint64_t sum = 0;
	size_t k;

	for (k = 0; k < HAMMERS; k++)
		sum += atomic_load(&hammer->writers[k].posted);
	return sum;
}

static void report(const struct hammer *hammer)
{
	const struct tally *tally = &hammer->tally;
	int proof;

	printf("  %-58s %12llu\n", "writes attempted", (unsigned long long)tally->attempts);
	printf("  %-58s %12llu\n", "  of these acknowledged as landed, all before a proof",
	       (unsigned long long)tally->landed);
	printf("  %-58s %12llu\n", "  of these with old keys on a new connection",
	       (unsigned long long)tally->with_old_keys);
	printf("  %-58s %12llu\n", "windows revoked while their client wrote, all proved",
	       (unsigned long long)tally->revoked);
	for (proof = 0; proof < SERVER_PROOFS; proof++)
		if (tally->proofs[proof])
			printf("    %-56s %12llu\n", mwctl_proof_text(proof),
			       (unsigned long long)tally->proofs[proof]);
	printf("  %-58s %12llu\n", "connections that ended with IBV_WC_REM_ACCESS_ERR",
	       (unsigned long long)tally->refused);
	printf("  %-58s %12llu\n", "connections that ended otherwise", (unsigned long long)tally->others);
	printf("  %-58s %12u\n", "queue pairs killed at a deadline", atomic_load(&hammer->server.killed));
	printf("  %-58s %12llu\n", "bytes seen to change while the windows were open (control)",
	       (unsigned long long)tally->changed_open);
	if (!hammer->server.at_rest)
		printf("  %-58s %12llu\n", "bytes changed within 50 ms after the proof",
		       (unsigned long long)tally->changed_early);
	printf("  %-58s %12llu\n",
	       hammer->server.at_rest ? "bytes changed after the proof" :
					"bytes changed later than 50 ms after the proof",
	       (unsigned long long)tally->changed_late);
	printf("  %-58s %12llu\n", "records of a client that kept its rights (control)",
	       (unsigned long long)tally->witnessed);
}

void hammer_run(const struct rc_device *device, size_t windows, uint64_t attempts)
{
	static struct hammer hammer;
	struct tally *tally = &hammer.tally;
	uint64_t spread = attempts / 2000 + 1;
	size_t k;

	printf("\n%llu writes by %d clients across revocations of %zu windows each\n\n",
	       (unsigned long long)attempts, HAMMERS, windows);
	hammer.random = 0x9e3779b97f4a7c15ull;
	server_open(&hammer.server, device, METHOD_BATCH, windows);
	for (k = 0; k < SERVER_SEATS; k++)
		writer_open(&hammer.writers[k], device, (uint32_t)k);
	for (k = 0; k < HAMMERS; k++) {
		hammer.copies[k] = malloc(server_seat_size(&hammer.server));
		if (!hammer.copies[k])
			die("out of memory");
	}
	server_admit(&hammer.server, WITNESS, &hammer.writers[WITNESS]);
	writer_go(&hammer.writers[WITNESS], hammer.server.seats[WITNESS].targets, windows);
	while (sum_posted(&hammer) < attempts)
		cycle(&hammer, spread);
	demand(writer_stop(&hammer.writers[WITNESS]), "the client that kept its rights lost its link");
	tally->attempts = sum_posted(&hammer);
	for (k = 0; k < HAMMERS; k++)
		tally->landed += atomic_load(&hammer.writers[k].landed);
	tally->witnessed = atomic_load(&hammer.writers[WITNESS].landed);
	report(&hammer);
	demand(tally->changed_open > 0, "no byte was seen to change while the windows were open");
	demand(tally->changed_late == 0, "%llu bytes changed after the proof",
	       (unsigned long long)tally->changed_late);
	/* A queue pair that was killed at a deadline answers nothing. */
	demand(tally->others <= atomic_load(&hammer.server.killed),
	       "%llu connections ended with another error, %u queue pairs were killed",
	       (unsigned long long)tally->others, atomic_load(&hammer.server.killed));
	server_dismiss(&hammer.server, WITNESS);
	for (k = 0; k < SERVER_SEATS; k++)
		writer_close(&hammer.writers[k]);
	server_close(&hammer.server);
	for (k = 0; k < HAMMERS; k++)
		free(hammer.copies[k]);
}
