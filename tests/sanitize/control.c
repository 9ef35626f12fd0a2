/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Breaks one rule of memory on purpose, so that scripts/sanitize.sh can tell a clean program from a
 * blind sanitizer. Each fault is met inside of a library, in its own code: what was built without
 * the sanitizer, or is hidden by a suppression, does not report it.
 *
 *   control FAULT
 *
 * Exit status 0: nobody stopped it. That is the failure.
 */
#include "house.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A race is only seen where nothing orders the two by chance: they go on until it is. */
#define RACE_S 20

static struct house house;
static void *both_write;
static struct ibv_mr *way_in[2];

static void for_two(void *(*work)(void *))
{
	pthread_t thread[2];

	for (intptr_t i = 0; i < 2; i++)
		RC_CHECK_EQ(0, pthread_create(&thread[i], NULL, work, (void *)i));
	for (int i = 0; i < 2; i++)
		RC_CHECK_EQ(0, pthread_join(thread[i], NULL));
}

/* A question whose answer is written to `found`. */
static void ask(uint64_t *found)
{
	HOUSE_OK(mwctl_check(house.ctx, house.domain, house.client[0].pair.server.qp->qp_num,
			     house.memory.addr, 64, HOUSE_WRITE, found));
}

static void *ask_on(void *me)
{
	(void)me;
	for (double until = rc_now() + RACE_S; rc_now() < until;)
		ask(both_write);
	return NULL;
}

/* The library answers two threads in one place. */
static void race_library(void)
{
	house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	both_write = malloc(sizeof(uint64_t));
	for_two(ask_on);
	free(both_write);
}

static void *write_to_it(void *user)
{
	intptr_t me = (intptr_t)user;
	struct house_client *it = &house.client[me];

	for (double until = rc_now() + RACE_S; rc_now() < until;)
		RC_CHECK_STATUS(IBV_WC_SUCCESS,
				rc_write(&it->pair.client, &it->local, 64, both_write, way_in[me]->rkey));
	return NULL;
}

/* The device places the packets of two clients in the same bytes. */
static void race_device(void)
{
	both_write = malloc(4096);
	for (int i = 0; i < 2; i++) {
		way_in[i] = ibv_reg_mr(house.pd, both_write, 4096,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		RC_CHECK(way_in[i]);
	}
	for_two(write_to_it);
	for (int i = 0; i < 2; i++)
		RC_CHECK_EQ(0, ibv_dereg_mr(way_in[i]));
	free(both_write);
}

/* once.rs */
void control_write_once(uint64_t value);

static void *write_once(void *me)
{
	for (double until = rc_now() + RACE_S; rc_now() < until;)
		control_write_once((uintptr_t)me);
	return NULL;
}

/* Two threads write what a OnceLock holds: the suppression of its making must not hide that. */
static void race_once(void)
{
	for_two(write_once);
}

static void freed_library(void)
{
	uint64_t *found = malloc(sizeof(*found));

	house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	free(found);
	ask(found);
}

static void freed_device(void)
{
	void *memory = malloc(4096);
	struct ibv_mr *mr = ibv_reg_mr(house.pd, memory, 4096,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

	RC_CHECK(mr);
	free(memory);
	rc_write(&house.client[0].pair.client, &house.client[0].local, 64, memory, mr->rkey);
	RC_CHECK_EQ(0, ibv_dereg_mr(mr));
}

/* A context that is not closed, and that nobody knows any more. */
static void leak_library(void)
{
	mwctl_context *lost;
	struct rc_device device;

	rc_device_open(&device);
	HOUSE_OK(mwctl_context_open(device.context, NULL, 0, &lost));
	lost = NULL;
	rc_device_close(&device);
}

static const struct {
	const char *name;
	void (*commit)(void);
} faults[] = {
	{"race-library", race_library}, {"race-device", race_device},     {"race-once", race_once},
	{"leak-library", leak_library}, {"freed-library", freed_library}, {"freed-device", freed_device},
};

int main(int argc, char **argv)
{
	struct house_options options = {.clients = 2};

	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		if (argc == 2 && strcmp(argv[1], faults[i].name) == 0) {
			house_open(&house, &options);
			faults[i].commit();
			house_close(&house);
			printf("%s: done, and nobody stopped it\n", argv[1]);
			return 0;
		}
	fprintf(stderr, "usage: control FAULT\nfaults:");
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		fprintf(stderr, " %s", faults[i].name);
	fputc('\n', stderr);
	return 2;
}
