/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * No byte after the proof: clients on threads of their own write as fast as they can while
 * their windows are invalidated, round after round. MWCTL_TEST_ATTEMPTS says how many writes
 * altogether.
 */
#include "scene.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
	CLIENTS = 2,
	DEPTH = 16,        /* writes in flight a client */
	LENGTH = 2048,     /* of a write: two packets */
	PER_ROUND = 200,   /* writes that a client has posted at least before its window goes */
	SETTLE_MS = 50,
};

struct hammer {
	struct party *party;
	pthread_t thread;
	atomic_ulong posted;    /* in this round */
	atomic_bool proved;     /* the window is gone, says the server */
	atomic_bool done;       /* the client has met its error */
	unsigned long after;    /* posted after the proof */
	uint8_t proof[LENGTH];
	uint8_t settled[LENGTH];
	double proved_at;
};

/* Writes until it is denied. Each write has another content. */
static void *hammer_run(void *argument)
{
	struct hammer *h = argument;
	struct rc_end *client = &h->party->pair.client;
	unsigned long n = 0;
	unsigned int in_flight = 0;

	for (;;) {
		struct ibv_sge sge;
		struct ibv_send_wr wr;
		struct ibv_wc wc;

		while (in_flight < DEPTH) {
			/* The slot's last write has completed: its source may change. */
			uint8_t *slot = h->party->far.at + (n % DEPTH % (BLOCK / LENGTH)) * LENGTH;

			if (in_flight >= BLOCK / LENGTH)
				break;
			memset(slot, (int)(n % 251 + 1), LENGTH);
			wr = rc_wr_write(&sge, &h->party->far, LENGTH, h->party->block, h->party->rkey);
			sge.addr = (uintptr_t)slot;
			wr.wr_id = n++;
			rc_post(client->qp, &wr);
			in_flight++;
			atomic_fetch_add(&h->posted, 1);
			if (atomic_load(&h->proved))
				h->after++;
		}
		wc = rc_wait(client->cq);
		in_flight--;
		if (wc.status == IBV_WC_SUCCESS)
			continue;
		RC_CHECK_STATUS(IBV_WC_REM_ACCESS_ERR, wc.status);
		while (in_flight--)
			RC_CHECK_STATUS(IBV_WC_WR_FLUSH_ERR, rc_wait(client->cq).status);
		atomic_store(&h->done, true);
		return NULL;
	}
}

static void await_posted(struct hammer *h, unsigned long count)
{
	double deadline = rc_now() + RC_DEADLINE_S;

	while (atomic_load(&h->posted) < count)
		RC_CHECK(rc_now() < deadline);
}

static unsigned long attempts_wanted(const struct rc_device *device)
{
	const char *text = getenv("MWCTL_TEST_ATTEMPTS");

	if (text)
		return strtoul(text, NULL, 10);
	return device->kind == RC_DEVICE_SIM ? 1000000 : 20000;
}

int main(void)
{
	static struct hammer hammers[CLIENTS];
	struct rc_device device;
	struct scene s;
	unsigned long wanted, attempts = 0, after = 0, late = 0, rounds = 0, flushed = 0;
	int i, j;

	rc_device_open(&device);
	wanted = attempts_wanted(&device);
	scene_open(&s, &device, NULL);
	hammers[0].party = &s.rogue;
	hammers[1].party = &s.control;

	while (attempts < wanted) {
		for (i = 0; i < CLIENTS; i++) {
			struct hammer *h = &hammers[i];

			party_bind(h->party, READ_WRITE);
			atomic_store(&h->posted, 0);
			atomic_store(&h->proved, false);
			atomic_store(&h->done, false);
			h->after = 0;
			RC_CHECK_EQ(0, pthread_create(&h->thread, NULL, hammer_run, h));
		}
		for (i = 0; i < CLIENTS; i++) {
			struct hammer *h = &hammers[i];

			await_posted(h, PER_ROUND);
			flushed += !party_revoke_under_fire(h->party);
			memcpy(h->proof, h->party->block, LENGTH);
			atomic_store(&h->proved, true);
			h->proved_at = rc_now();
		}
		for (i = 0; i < CLIENTS; i++) {
			struct hammer *h = &hammers[i];

			if (device.kind == RC_DEVICE_RXE) {
				/* A packet let in before waits for the kernel's thread; behind it the denial does. */
				while (rc_now() < h->proved_at + SETTLE_MS / 1e3 || !atomic_load(&h->done)) {
					RC_CHECK(rc_now() < h->proved_at + RC_DEADLINE_S);
					rc_pause(1);
				}
				memcpy(h->settled, h->party->block, LENGTH);
				for (j = 0; j < LENGTH; j++)
					late += h->settled[j] != h->proof[j];
			} else {
				memcpy(h->settled, h->proof, LENGTH);
			}
			RC_CHECK_EQ(0, pthread_join(h->thread, NULL));
			RC_CHECK(atomic_load(&h->done));
			rc_await_state(h->party->pair.server.qp, IBV_QPS_ERR);
			RC_CHECK_MEMORY(h->settled, h->party->block, LENGTH);
			attempts += atomic_load(&h->posted);
			after += h->after;
			rc_pair_reconnect(&h->party->pair, NULL);
			RC_CHECK_MEMORY(h->settled, h->party->block, LENGTH);
		}
		rounds++;
	}
	rc_note("%lu writes, %lu invalidates under fire, %lu writes posted after the proof", attempts,
		rounds * CLIENTS, after);
	if (flushed)
		rc_deviation(&device, "%lu of these invalidates came back flushed", flushed);
	if (device.kind == RC_DEVICE_RXE)
		rc_deviation(&device, "%lu bytes changed in the first %d ms after the proof or before the denial, none later",
			     late, SETTLE_MS);
	else
		rc_ok("no byte changes after the proof of an invalidate");
	scene_close(&s);
	rc_device_close(&device);
	rc_ok("clients on other threads: each is denied once its window is invalidated");
	return 0;
}
