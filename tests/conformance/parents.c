/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What a window asks of the region under it, and what the region leaves open beside it. */
#include "scene.h"

#include <errno.h>
#include <string.h>

/* Binds the rogue's window to `mr`; it must fail, kill the QP, and leave the window FREE. */
static void expect_bind_fails(struct scene *s, struct ibv_mr *mr, const void *at, size_t length,
			      unsigned int access)
{
	uint32_t rkey = rc_key_step(s->rogue.mw->rkey, 1);
	enum ibv_wc_status status;

	status = rc_bind(&s->rogue.pair.server, s->rogue.mw, rkey, mr, at, length, access);
	expect_local_failure(s, s->rogue.pair.server.qp, IBV_WC_MW_BIND_ERR, status);
	/* FREE still: it can be bound on the control's QP, with its key unchanged by the failure. */
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&s->control.pair.server, s->rogue.mw, rkey, s->memory.mr,
						s->rogue.block, BLOCK, READ_WRITE));
	expect_lands(&s->control, s->rogue.block, 64, rkey);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_invalidate(&s->control.pair.server, rkey));
	expect_denied(&s->control, s->rogue.block, 64, rkey);
}

static void bad_ranges(const struct rc_device *device)
{
	static const struct {
		ptrdiff_t offset;
		size_t length;
		const char *name;
	} cases[] = {
		{ 0, 0, "a length of 0" },
		{ -1, BLOCK, "a range that starts before the region" },
		{ 3 * BLOCK + 1, BLOCK, "a range that ends behind the region" },
		{ 4 * BLOCK, 1, "a range behind the region" },
	};
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct scene s;

		scene_open(&s, device, NULL);
		expect_bind_fails(&s, s.memory.mr, s.memory.at + cases[i].offset, cases[i].length, READ_WRITE);
		scene_close(&s);
		rc_ok("a bind of %s fails and kills the QP", cases[i].name);
	}
}

/* Address plus length comes round to below the region's end. */
static void wrapping_range(const struct rc_device *device)
{
	struct scene s;
	enum ibv_wc_status status;
	uint32_t rkey;
	size_t length;

	scene_open(&s, device, NULL);
	rkey = rc_key_step(s.rogue.mw->rkey, 1);
	length = (size_t)0 - (uintptr_t)s.rogue.block + 64;
	status = rc_bind(&s.rogue.pair.server, s.rogue.mw, rkey, s.memory.mr, s.rogue.block, length,
			 READ_WRITE);
	if (on_rxe(&s)) {
		RC_CHECK_STATUS(IBV_WC_SUCCESS, status);
		rc_deviation(device, "a bind of a range that wraps round the address space succeeds");
	} else {
		expect_local_failure(&s, s.rogue.pair.server.qp, IBV_WC_MW_BIND_ERR, status);
		rc_ok("a bind of a range that wraps round the address space fails and kills the QP");
	}
	scene_close(&s);
}

static void prerequisites(const struct rc_device *device)
{
	static const struct {
		int region;
		unsigned int window;
		bool bindable;
		const char *name;
	} cases[] = {
		{ IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, false, "any right without the region's MW_BIND" },
		{ IBV_ACCESS_MW_BIND, IBV_ACCESS_REMOTE_WRITE, false, "write without the region's LOCAL_WRITE" },
		{ IBV_ACCESS_MW_BIND, IBV_ACCESS_REMOTE_ATOMIC, false, "atomic without the region's LOCAL_WRITE" },
		{ IBV_ACCESS_MW_BIND, IBV_ACCESS_REMOTE_READ, true, "read on a region with MW_BIND alone" },
		{ IBV_ACCESS_MW_BIND | IBV_ACCESS_LOCAL_WRITE, ALL_RIGHTS, true,
		  "all rights on a region with LOCAL_WRITE and MW_BIND" },
	};
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct rc_memory region;
		struct scene s;

		scene_open(&s, device, NULL);
		rc_memory_open(&region, s.pd, BLOCK, cases[i].region);
		if (cases[i].bindable) {
			uint32_t rkey = rc_key_step(s.rogue.mw->rkey, 1);

			RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&s.rogue.pair.server, s.rogue.mw, rkey, region.mr,
								region.at, BLOCK, cases[i].window));
			region.at[0] = 0x77;
			RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_read(&s.rogue.pair.client, &s.rogue.far, 64, region.at,
								rkey));
			RC_CHECK_EQ(0x77, s.rogue.far.at[0]);
			party_dealloc(&s.rogue);
			rc_ok("a bind of %s succeeds", cases[i].name);
		} else {
			expect_bind_fails(&s, region.mr, region.at, BLOCK, cases[i].window);
			rc_ok("a bind of %s fails and kills the QP", cases[i].name);
		}
		rc_memory_close(&region);
		scene_close(&s);
	}
}

static void own_key_of_the_region(const struct rc_device *device)
{
	struct rc_memory open;
	struct scene s;
	uint32_t rkey;

	scene_open(&s, device, NULL);
	/* Without any remote right the region's own key opens nothing. */
	expect_denied(&s.control, s.control.block, 64, s.memory.mr->rkey);

	rc_memory_open(&open, s.pd, BLOCK,
		       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | IBV_ACCESS_REMOTE_WRITE);
	rkey = rc_key_step(s.rogue.mw->rkey, 1);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&s.rogue.pair.server, s.rogue.mw, rkey, open.mr, open.at,
						BLOCK, READ_WRITE));
	expect_lands(&s.rogue, open.at, 64, rkey);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_invalidate(&s.rogue.pair.server, rkey));
	expect_lands(&s.rogue, open.at, 64, open.mr->rkey);
	expect_denied(&s.rogue, open.at, 64, rkey);
	party_dealloc(&s.rogue);
	rc_memory_close(&open);
	scene_close(&s);
	rc_ok("a region without remote rights has a key that admits nothing");
	rc_ok("a region with remote rights has a key that no window's revocation closes");
}

static void dereg_with_bound_window(const struct rc_device *device)
{
	struct rc_memory region;
	struct scene s;
	uint32_t rkey;
	int error;

	scene_open(&s, device, NULL);
	rc_memory_open(&region, s.pd, BLOCK, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	rkey = rc_key_step(s.rogue.mw->rkey, 1);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&s.rogue.pair.server, s.rogue.mw, rkey, region.mr, region.at,
						BLOCK, READ_WRITE));
	error = ibv_dereg_mr(region.mr);
	RC_CHECK_EQ(on_rxe(&s) ? EINVAL : EBUSY, error);
	expect_misuse(MWCTL_SIM_RULE_DEREG_MR_BOUND);
	if (error != EBUSY)
		rc_deviation(device, "ibv_dereg_mr with a bound window fails with error %d, not EBUSY", error);
	expect_lands(&s.rogue, region.at, 64, rkey);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_invalidate(&s.rogue.pair.server, rkey));
	rc_memory_close(&region);
	scene_close(&s);
	rc_ok("a region with a bound window can't be deregistered, one without can");
}

/* A bind is checked against the region's iova, and its accesses are relative to it. */
static void iova_counts(const struct rc_device *device)
{
	const uint64_t iova = UINT64_C(0x10000000);
	struct ibv_mr *mr;
	struct scene s;
	uint8_t *at;

	scene_open(&s, device, NULL);
	at = s.memory.at + BLOCK;
	mr = ibv_reg_mr_iova(s.pd, at, BLOCK, iova, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	if (!mr) {
		scene_close(&s);
		rc_note("regions with an iova of their own can't be registered here");
		return;
	}
	s.rogue.far.at[0] = 0x42;
	RC_CHECK_STATUS(IBV_WC_SUCCESS,
			rc_bind(&s.rogue.pair.server, s.rogue.mw, rc_key_step(s.rogue.mw->rkey, 1), mr,
				(void *)(uintptr_t)(iova + 64), 64, READ_WRITE));
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_write(&s.rogue.pair.client, &s.rogue.far, 64,
						 (void *)(uintptr_t)(iova + 64), s.rogue.mw->rkey));
	RC_CHECK_EQ(0x42, at[64]);
	RC_CHECK_EQ(0, at[0]);
	party_dealloc(&s.rogue);
	expect_local_failure(&s, s.control.pair.server.qp, IBV_WC_MW_BIND_ERR,
			     rc_bind(&s.control.pair.server, s.control.mw,
				     rc_key_step(s.control.mw->rkey, 1), mr, at, 64, READ_WRITE));
	RC_CHECK_EQ(0, ibv_dereg_mr(mr));
	scene_close(&s);
	rc_ok("a bind takes addresses of the region's iova, not of the process");
}

int main(void)
{
	struct rc_device device;

	rc_device_open(&device);
	bad_ranges(&device);
	wrapping_range(&device);
	prerequisites(&device);
	own_key_of_the_region(&device);
	dereg_with_bound_window(&device);
	iova_counts(&device);
	rc_device_close(&device);
	return 0;
}
