/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What a Type 2 window admits: its rights, its range, its QP, its PD; nothing else. */
#include "scene.h"

#include <errno.h>
#include <string.h>

static const struct {
	unsigned int flag;
	const char *name;
} rights[] = {
	{ IBV_ACCESS_REMOTE_READ, "read" },
	{ IBV_ACCESS_REMOTE_WRITE, "write" },
	{ IBV_ACCESS_REMOTE_ATOMIC, "atomic" },
};

#define RIGHTS (sizeof(rights) / sizeof(rights[0]))

static enum ibv_wc_status use(struct party *party, unsigned int right)
{
	struct rc_end *client = &party->pair.client;

	switch (right) {
	case IBV_ACCESS_REMOTE_READ:
		return rc_read(client, &party->far, 64, party->block, party->rkey);
	case IBV_ACCESS_REMOTE_WRITE:
		return rc_write(client, &party->far, 64, party->block, party->rkey);
	default:
		return rc_fetch_add(client, &party->far, party->block, party->rkey, 1);
	}
}

/* The far side and the block differ, so that each of the three operations shows. */
static void check_effect(struct party *party, unsigned int right, bool admitted)
{
	uint8_t zero[64] = { 0 }, ones[64];
	uint64_t word;

	memset(ones, 1, sizeof(ones));
	switch (right) {
	case IBV_ACCESS_REMOTE_READ:
		RC_CHECK_MEMORY(admitted ? zero : ones, party->far.at, sizeof(ones));
		RC_CHECK_MEMORY(zero, party->block, sizeof(ones));
		break;
	case IBV_ACCESS_REMOTE_WRITE:
		RC_CHECK_MEMORY(admitted ? ones : zero, party->block, sizeof(ones));
		break;
	default:
		memcpy(&word, party->block, sizeof(word));
		RC_CHECK_EQ(admitted ? 1 : 0, word);
		RC_CHECK_MEMORY(zero + 8, party->block + 8, sizeof(zero) - 8);
	}
}

/* Each right opens its own operation and no other. */
static void rights_are_separate(const struct rc_device *device)
{
	unsigned int access;
	size_t i;

	for (access = 1; access < 1u << RIGHTS; access++) {
		unsigned int flags = 0;

		for (i = 0; i < RIGHTS; i++)
			if (access & 1u << i)
				flags |= rights[i].flag;
		for (i = 0; i < RIGHTS; i++) {
			bool admitted = flags & rights[i].flag;
			struct scene s;

			if (rights[i].flag == IBV_ACCESS_REMOTE_ATOMIC &&
			    device->attr.atomic_cap == IBV_ATOMIC_NONE)
				continue;
			scene_open(&s, device, NULL);
			party_bind(&s.rogue, flags);
			memset(s.rogue.far.at, 1, 64);
			RC_CHECK_STATUS(admitted ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR,
					use(&s.rogue, rights[i].flag));
			check_effect(&s.rogue, rights[i].flag, admitted);
			if (!admitted) {
				rc_await_state(s.rogue.pair.client.qp, IBV_QPS_ERR);
				rc_await_state(s.rogue.pair.server.qp, IBV_QPS_ERR);
			}
			scene_close(&s);
		}
	}
	for (i = 0; i < RIGHTS; i++)
		rc_ok("the right to %s admits that operation, the other rights do not", rights[i].name);
}

/* Outside of the window, inside of the region: the block after it, the one before it, and a
 * range that crosses the end. */
static void bounds(const struct rc_device *device)
{
	static const struct {
		ptrdiff_t offset;
		size_t length;
		const char *name;
	} cases[] = {
		{ BLOCK, 64, "a write after the window's end" },
		{ -64, 64, "a write before the window's start" },
		{ BLOCK - 32, 64, "a write across the window's end" },
		{ -32, 64, "a write across the window's start" },
	};
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct scene s;
		uint8_t *at;

		scene_open(&s, device, NULL);
		/* The control's block has neighbours on both sides. */
		party_bind(&s.control, READ_WRITE);
		at = s.control.block + cases[i].offset;
		if (on_rxe(&s)) {
			expect_lands(&s.control, at, cases[i].length, s.control.rkey);
			rc_deviation(device, "%s lands: only the region's bounds are enforced", cases[i].name);
		} else {
			expect_lands(&s.control, s.control.block, BLOCK, s.control.rkey);
			expect_denied(&s.control, at, cases[i].length, s.control.rkey);
			rc_ok("%s is denied", cases[i].name);
		}
		scene_close(&s);
	}
}

static void region_bounds(const struct rc_device *device)
{
	struct scene s;
	uint8_t *end;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	end = s.memory.at + s.memory.length;
	memset(end - 32, 5, 32);
	RC_CHECK_STATUS(IBV_WC_REM_ACCESS_ERR,
			rc_write(&s.rogue.pair.client, &s.rogue.far, 64, end - 32, s.rogue.rkey));
	RC_CHECK_EQ(5, end[-32]);
	RC_CHECK_EQ(5, end[-1]);
	rc_await_state(s.rogue.pair.server.qp, IBV_QPS_ERR);
	scene_close(&s);
	rc_ok("a write across the region's end is denied as a whole when it fits one packet");
}

static void other_qp(const struct rc_device *device)
{
	struct scene s;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	party_bind(&s.control, READ_WRITE);
	expect_denied(&s.rogue, s.control.block, 64, s.control.rkey);
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	scene_close(&s);
	rc_ok("another QP of the same PD can't use the key");
}

/* A window is bound on a QP of its own PD only. */
static void other_pd(const struct rc_device *device)
{
	struct scene s;
	struct ibv_pd *pd = ibv_alloc_pd(device->context);
	struct ibv_mw *mw;
	enum ibv_wc_status status;

	RC_CHECK(pd != NULL);
	scene_open(&s, device, NULL);
	mw = rc_mw_alloc(pd, IBV_MW_TYPE_2);
	status = rc_bind(&s.rogue.pair.server, mw, rc_key_step(mw->rkey, 1), s.memory.mr, s.rogue.block,
			 BLOCK, READ_WRITE);
	expect_local_failure(&s, s.rogue.pair.server.qp, IBV_WC_MW_BIND_ERR, status);
	rc_mw_dealloc(mw);
	scene_close(&s);
	RC_CHECK_EQ(0, ibv_dealloc_pd(pd));
	rc_ok("a window of another PD than the QP's can't be bound");
}

static void other_pd_region(const struct rc_device *device)
{
	struct scene s;
	struct ibv_pd *pd = ibv_alloc_pd(device->context);
	struct rc_memory foreign;
	enum ibv_wc_status status;
	uint32_t rkey;

	RC_CHECK(pd != NULL);
	scene_open(&s, device, NULL);
	rc_memory_open(&foreign, pd, BLOCK, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	rkey = rc_key_step(s.rogue.mw->rkey, 1);
	status = rc_bind(&s.rogue.pair.server, s.rogue.mw, rkey, foreign.mr, foreign.at, BLOCK, READ_WRITE);
	/* Some rxe kernels check it, some do not. */
	if (on_rxe(&s) && status == IBV_WC_SUCCESS) {
		expect_lands(&s.rogue, foreign.at, 64, rkey);
		rc_deviation(device, "a window opens a region of another PD");
	} else {
		expect_local_failure(&s, s.rogue.pair.server.qp, IBV_WC_MW_BIND_ERR, status);
		rc_ok("a window can't be bound to a region of another PD");
	}
	party_dealloc(&s.rogue);
	rc_memory_close(&foreign);
	scene_close(&s);
	RC_CHECK_EQ(0, ibv_dealloc_pd(pd));
}

int main(void)
{
	struct rc_device device;

	rc_device_open(&device);
	rights_are_separate(&device);
	bounds(&device);
	region_bounds(&device);
	other_qp(&device);
	other_pd(&device);
	other_pd_region(&device);
	rc_device_close(&device);
	return 0;
}
