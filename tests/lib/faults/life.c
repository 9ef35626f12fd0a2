/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "faults/life.h"

#include <errno.h>
#include <string.h>

#include "house.h"

struct fc_failing fc_failing;

bool fc_fails(enum fc_made call)
{
	struct fc_failing *f = &fc_failing;

	if (f->call != call || (f->hits && !f->always))
		return false;
	if (f->skip > 0) {
		f->skip--;
		return false;
	}
	f->hits++;
	return true;
}

/* ---- the server, opened step by step ---- */

static struct {
	struct rc_device device;
	struct ibv_pd *pd, *client_pd;
	struct rc_pair pair;
	mwctl_context *ctx;
	mwctl_domain domain;
	mwctl_region region;
	mwctl_peer peer;
} it;

enum { WINDOWS = 3, LENGTH = 65536 };

static mwctl_status open_context(void)
{
	mwctl_status status = mwctl_context_open(it.device.context, NULL, 0, &it.ctx);

	RC_CHECK((status == MWCTL_STATUS_OK) == (it.ctx != NULL));
	return status;
}

static mwctl_status open_domain(void)
{
	mwctl_domain_options options = {.reserve = WINDOWS};

	return mwctl_domain_open(it.ctx, it.pd, &options, sizeof(options), &it.domain);
}

static mwctl_status reserve(void)
{
	return mwctl_domain_reserve(it.ctx, it.domain, 2 * WINDOWS);
}

static mwctl_status register_region(void)
{
	return mwctl_region_register(it.ctx, it.domain, LENGTH, NULL, 0, &it.region);
}

static mwctl_status attach_peer(void)
{
	return mwctl_peer_attach(it.ctx, it.domain, it.pair.server.qp, NULL, 0, &it.peer);
}

static mwctl_status detach_peer(void)
{
	return mwctl_peer_detach(it.ctx, it.peer, 0);
}

static mwctl_status detach_region(void)
{
	return mwctl_region_detach(it.ctx, it.region);
}

static mwctl_status close_domain(void)
{
	return mwctl_domain_close(it.ctx, it.domain);
}

static mwctl_status close_context(void)
{
	return mwctl_context_close(it.ctx);
}

/* In this order; each but the last few opens what the later ones need. */
static mwctl_status (*const steps[])(void) = {open_context, open_domain,   reserve,      register_region, attach_peer,
					      detach_peer,  detach_region, close_domain, close_context};
enum { STEPS = sizeof(steps) / sizeof(steps[0]) };

/* ---- what fails in them ---- */

static const struct {
	const char *name;
	int step;
	uint32_t order;            /* enum mwctl_sim_fault_kind, or … */
	enum fc_made made;
} pairs[] = {
	{"context_open: query_device", 0, 0, FC_QUERY_DEVICE},
	{"context_open: alloc_pd", 0, 0, FC_ALLOC_PD},
	{"context_open: alloc_mw", 0, MWCTL_SIM_FAIL_ALLOC_MW, 0},
	{"context_open: dealloc_mw", 0, MWCTL_SIM_FAIL_DEALLOC_MW, 0},
	{"context_open: dealloc_pd", 0, 0, FC_DEALLOC_PD},
	{"domain_open: alloc_mw", 1, MWCTL_SIM_FAIL_ALLOC_MW, 0},
	{"domain_reserve: alloc_mw", 2, MWCTL_SIM_FAIL_ALLOC_MW, 0},
	{"region_register: reg_mr", 3, MWCTL_SIM_FAIL_REG_MR, 0},
	{"peer_attach: query_qp", 4, MWCTL_SIM_FAIL_QUERY_QP, 0},
	{"region_detach: dereg_mr", 6, MWCTL_SIM_FAIL_DEREG_MR, 0},
	{"domain_close: dealloc_mw", 7, MWCTL_SIM_FAIL_DEALLOC_MW, 0},
};

int fc_life_pairs(void)
{
	return sizeof(pairs) / sizeof(pairs[0]);
}

const char *fc_life_name(int pair)
{
	return pairs[pair].name;
}

static bool gives_pointer(int pair)
{
	return pairs[pair].made == FC_ALLOC_PD || pairs[pair].order == MWCTL_SIM_FAIL_ALLOC_MW ||
	       pairs[pair].order == MWCTL_SIM_FAIL_REG_MR;
}

int fc_life_errors(int pair, const int **errors)
{
	static const int all[] = {ENOMEM, EINVAL, EIO, EAGAIN, ENOSPC, EBUSY, -EIO, -1};

	*errors = all;
	return gives_pointer(pair) ? 6 : 8;
}

/* An error that says what it is; the operation then has not happened. */
static bool is_documented(int step, mwctl_status status)
{
	switch (status) {
	case MWCTL_STATUS_VERBS_ERROR:
		return true;
	case MWCTL_STATUS_DEVICE_LIMIT:
	case MWCTL_STATUS_KEYS_EXHAUSTED:
		return step == 1 || step == 2;
	case MWCTL_STATUS_NO_MEMORY:
		return step == 1 || step == 2 || step == 3;
	default:
		return false;
	}
}

static int64_t windows(void)
{
	struct mwctl_sim_counters now;

	RC_CHECK_EQ(0, mwctl_sim_counters_get(&now, sizeof(now)));
	return (int64_t)(now.mw_allocated - now.mw_deallocated);
}

/* With a capability that was not seen the context may open and say so; then it is opened anew. */
static void check_context(int step, mwctl_status status)
{
	mwctl_capabilities caps;

	if (step != 0 || status != MWCTL_STATUS_OK)
		return;
	HOUSE_OK(mwctl_capabilities_get(it.ctx, &caps, sizeof(caps)));
	if (!caps.type2) {
		HOUSE_STATUS(MWCTL_STATUS_UNSUPPORTED, open_domain());
		HOUSE_OK(close_context());
		HOUSE_OK(open_context());
	}
}

bool fc_life_play(int pair, int nth, int error, bool always, int *status)
{
	struct mwctl_sim_fault fault = {.kind = pairs[pair].order, .skip = (uint64_t)nth, .count = always ? 0 : 1,
					.error = error};
	int failing = pairs[pair].step;
	int64_t before;
	uint64_t hits, id = 0;

	memset(&it, 0, sizeof(it));
	rc_device_open(&it.device);
	it.pd = ibv_alloc_pd(it.device.context);
	it.client_pd = ibv_alloc_pd(it.device.context);
	rc_pair_open(&it.pair, &it.device, &(struct rc_options){.server_pd = it.pd, .client_pd = it.client_pd});
	for (int step = 0; step < failing; step++)
		HOUSE_OK(steps[step]());
	before = windows();
	if (fault.kind)
		RC_CHECK_EQ(0, mwctl_sim_fault_order(&fault, sizeof(fault), &id));
	else
		fc_failing = (struct fc_failing){pairs[pair].made, nth, always, error, 0};
	*status = steps[failing]();
	hits = id ? mwctl_sim_fault_hits(id) : (uint64_t)fc_failing.hits;
	mwctl_sim_faults_clear();
	fc_failing.call = FC_MADE_NONE;
	if (*status != MWCTL_STATUS_OK) {
		RC_CHECK(hits > 0);
		if (!is_documented(failing, *status))
			RC_FAIL("\"%s\" is no outcome of this call", mwctl_status_text(*status));
		/* Opening leaves nothing behind, but for what could not be deallocated. */
		if (failing < 2 && fault.kind != MWCTL_SIM_FAIL_DEALLOC_MW && pairs[pair].made != FC_DEALLOC_PD)
			RC_CHECK_EQ(before, windows());
		/* It can be repeated. */
		HOUSE_OK(steps[failing]());
	}
	check_context(failing, *status);
	for (int step = failing + 1; step < STEPS; step++)
		HOUSE_OK(steps[step]());
	if (pairs[pair].order != MWCTL_SIM_FAIL_DEALLOC_MW || failing != 0)
		RC_CHECK_EQ(0, windows());
	rc_pair_close(&it.pair);
	RC_CHECK_EQ(0, ibv_dealloc_pd(it.client_pd));
	RC_CHECK_EQ(0, ibv_dealloc_pd(it.pd));
	house_check_misuse();
	return hits > 0;
}
