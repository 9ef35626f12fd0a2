/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An operation under way when its window is invalidated may have landed wholly, in part or
 * not at all. It is checked packet by packet: what landed is a prefix of whole packets. And
 * once the invalidate has completed, nothing changes any more.
 */
#include "scene.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 1 << 20, PACKET = 1024, ROUNDS = 40, SETTLE_MS = 50 };

struct result {
	enum ibv_wc_status status;   /* what the writer got */
	size_t landed;               /* the prefix, in bytes */
	size_t late;                 /* changed after the proof */
	bool flushed;                /* the proof was a deallocation */
};

static size_t prefix_of(const uint8_t *at, uint8_t fresh)
{
	size_t n = 0;

	while (n < LENGTH && at[n] == fresh)
		n++;
	return n;
}

struct writer {
	struct ibv_qp *qp;
	struct ibv_send_wr *wr;
};

/* Soft-RoCE sends from within the post: the server must not wait for that. */
static void *writer_run(void *argument)
{
	struct writer *writer = argument;

	rc_post(writer->qp, writer->wr);
	return NULL;
}

/* Posts the write, lets some of it land, invalidates, looks. */
static struct result round_of(struct scene *s, struct party *p, struct rc_memory *target,
			      struct rc_memory *source, uint8_t old, uint8_t fresh, uint8_t *proof)
{
	struct result result = { 0 };
	struct ibv_sge sge;
	struct ibv_send_wr write;
	struct writer writer = { .qp = p->pair.client.qp, .wr = &write };
	pthread_t thread;
	double deadline;
	size_t i, start;
	uint32_t rkey = rc_key_step(p->mw->rkey, 1);

	memset(target->at, old, LENGTH);
	memset(source->at, fresh, LENGTH);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&p->pair.server, p->mw, rkey, target->mr, target->at, LENGTH,
						READ_WRITE));
	p->rkey = rkey;
	write = rc_wr_write(&sge, source, LENGTH, target->at, rkey);
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, writer_run, &writer));
	/* From the first packet on, a different distance in each round. */
	start = (size_t)(fresh % 16) * (LENGTH / 20);
	deadline = rc_now() + RC_DEADLINE_S;
	while (((volatile uint8_t *)target->at)[start] != fresh)
		RC_CHECK(rc_now() < deadline);
	result.flushed = !party_revoke_under_fire(p);
	memcpy(proof, target->at, LENGTH);

	RC_CHECK_EQ(0, pthread_join(thread, NULL));
	result.status = rc_wait(p->pair.client.cq).status;
	if (s->device->kind == RC_DEVICE_RXE)
		rc_pause(SETTLE_MS);
	for (i = 0; i < LENGTH; i++)
		result.late += proof[i] != target->at[i];
	result.landed = prefix_of(target->at, fresh);
	for (i = result.landed; i < LENGTH; i++)
		RC_CHECK_EQ(old, target->at[i]);

	/* Later than that nothing changes, on no device. */
	memcpy(proof, target->at, LENGTH);
	rc_pause(5);
	RC_CHECK(memcmp(proof, target->at, LENGTH) == 0);
	return result;
}

/* Without a pace a device in the process is done before anyone looks. */
static void set_pace(void)
{
	struct mwctl_sim_model model;

	if (!mwctl_sim_present())
		return;
	RC_CHECK_EQ(0, mwctl_sim_model_get(&model, sizeof(model)));
	model.packet_ns = 10000;
	RC_CHECK_EQ(0, mwctl_sim_model_set(&model, sizeof(model)));
}

int main(void)
{
	struct rc_device device;
	struct rc_options options = { .path_mtu = IBV_MTU_1024 };
	struct rc_memory target, source;
	struct scene s;
	uint8_t *proof = malloc(LENGTH);
	unsigned int whole = 0, part = 0, flushed = 0;
	size_t late = 0;
	int i;

	RC_CHECK(proof != NULL);
	rc_device_open(&device);
	set_pace();
	scene_open(&s, &device, &options);
	rc_memory_open(&target, s.pd, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	rc_memory_open(&source, s.pd, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	for (i = 0; i < ROUNDS; i++) {
		struct result r = round_of(&s, &s.rogue, &target, &source, (uint8_t)(2 * i + 2),
					   (uint8_t)(2 * i + 3), proof);

		if (r.status == IBV_WC_SUCCESS) {
			RC_CHECK_EQ(LENGTH, r.landed);
			whole++;
		} else {
			RC_CHECK_STATUS(IBV_WC_REM_ACCESS_ERR, r.status);
			RC_CHECK_EQ(0, r.landed % PACKET);
			RC_CHECK(r.landed < LENGTH);
			part++;
			rc_await_state(s.rogue.pair.server.qp, IBV_QPS_ERR);
			rc_pair_reconnect(&s.rogue.pair, &options);
		}
		if (device.kind != RC_DEVICE_RXE)
			RC_CHECK_EQ(0, r.late);
		late += r.late;
		flushed += r.flushed;
	}
	rc_note("of %d writes of %d bytes cut by an invalidate: %u whole, %u torn", ROUNDS, LENGTH, whole, part);
	if (flushed)
		rc_deviation(&device, "%u of %d invalidates under fire came back flushed", flushed, ROUNDS);
	if (device.kind == RC_DEVICE_RXE)
		rc_deviation(&device, "%zu bytes changed in the first %d ms after the proof, none later", late,
			     SETTLE_MS);
	RC_CHECK(part > 0);
	party_bind(&s.rogue, READ_WRITE);
	expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	party_invalidate(&s.rogue);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	rc_memory_close(&source);
	rc_memory_close(&target);
	scene_close(&s);
	rc_device_close(&device);
	free(proof);
	rc_ok("an invalidate between two packets leaves a prefix of whole packets, and an error at the writer");
	rc_ok("a write that succeeded landed wholly");
	return 0;
}
