/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "scene.h"

#include <errno.h>
#include <string.h>

static void party_open(struct party *party, struct scene *scene, unsigned int block,
		       const struct rc_options *options)
{
	struct rc_options own = { 0 };

	if (options)
		own = *options;
	own.server_pd = scene->pd;
	rc_pair_open(&party->pair, scene->device, &own);
	party->mw = rc_mw_alloc(scene->pd, IBV_MW_TYPE_2);
	party->rkey = party->mw->rkey;
	party->mr = scene->memory.mr;
	party->block = scene->memory.at + (size_t)block * BLOCK;
	rc_memory_open(&party->far, scene->pd, BLOCK, IBV_ACCESS_LOCAL_WRITE);
}

static void party_close(struct party *party)
{
	if (party->mw)
		rc_mw_dealloc(party->mw);
	rc_pair_close(&party->pair);
	rc_memory_close(&party->far);
}

/* The other profiles imitate devices that differ. */
static void require_strict_profile(void)
{
	struct mwctl_sim_model model;

	if (!mwctl_sim_present())
		return;
	RC_CHECK_EQ(0, mwctl_sim_model_get(&model, sizeof(model)));
	if (model.profile != MWCTL_SIM_PROFILE_STRICT)
		rc_skip("the rules are those of the sim's strict profile, not of profile %u", model.profile);
}

void scene_open(struct scene *scene, const struct rc_device *device, const struct rc_options *options)
{
	require_strict_profile();
	memset(scene, 0, sizeof(*scene));
	scene->device = device;
	scene->pd = ibv_alloc_pd(device->context);
	if (!scene->pd)
		RC_FAIL("ibv_alloc_pd: %s", strerror(errno));
	rc_memory_open(&scene->memory, scene->pd, 4 * BLOCK, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	party_open(&scene->rogue, scene, 0, options);
	party_open(&scene->control, scene, 2, options);
}

static void expect_no_misuse(void)
{
	struct mwctl_sim_misuse misuse;

	if (mwctl_sim_present() && mwctl_sim_misuse_next(&misuse, sizeof(misuse)))
		RC_FAIL("the test broke rule %u: %s", misuse.rule, misuse.text);
}

void scene_close(struct scene *scene)
{
	party_close(&scene->control);
	party_close(&scene->rogue);
	rc_memory_close(&scene->memory);
	RC_CHECK_EQ(0, ibv_dealloc_pd(scene->pd));
	expect_no_misuse();
}

void party_bind(struct party *party, unsigned int access)
{
	uint32_t rkey = rc_key_step(party->mw->rkey, 1);

	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&party->pair.server, party->mw, rkey, party->mr,
						party->block, BLOCK, access));
	party->rkey = rkey;
}

void party_invalidate(struct party *party)
{
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_invalidate(&party->pair.server, party->rkey));
}

bool party_revoke_under_fire(struct party *party)
{
	enum ibv_wc_status status = rc_invalidate(&party->pair.server, party->rkey);
	struct ibv_pd *pd = party->mw->pd;

	if (status == IBV_WC_SUCCESS)
		return true;
	if (party->pair.device->kind == RC_DEVICE_SIM)
		RC_CHECK_STATUS(IBV_WC_SUCCESS, status);
	RC_CHECK_STATUS(IBV_WC_WR_FLUSH_ERR, status);
	rc_await_state(party->pair.server.qp, IBV_QPS_ERR);
	rc_mw_dealloc(party->mw);
	party->mw = rc_mw_alloc(pd, IBV_MW_TYPE_2);
	return false;
}

void party_dealloc(struct party *party)
{
	rc_mw_dealloc(party->mw);
	party->mw = NULL;
}

static void fill(uint8_t *at, size_t length, uint8_t seed)
{
	size_t i;

	for (i = 0; i < length; i++)
		at[i] = (uint8_t)(seed + i * 7);
}

/* Another content for each write: a late one from before would show. */
static uint8_t next_seed(void)
{
	static uint8_t seed;

	return seed += 11;
}

void expect_lands_at(struct party *party, uint8_t *at, size_t length, uint32_t rkey,
		     const char *file, int line)
{
	enum ibv_wc_status status;

	fill(at, length, next_seed());
	fill(party->far.at, length, next_seed());
	status = rc_write_at(&party->pair.client, &party->far, length, at, rkey, file, line);
	rc_check_status_at(IBV_WC_SUCCESS, status, "the write", file, line);
	rc_check_memory_at(party->far.at, at, length, "the written block", file, line);
}

void expect_denied_at(struct party *party, uint8_t *at, size_t length, uint32_t rkey,
		      const char *file, int line)
{
	static uint8_t before[4 * BLOCK];
	enum ibv_wc_status status;

	RC_CHECK(length <= sizeof(before));
	fill(at, length, next_seed());
	memcpy(before, at, length);
	fill(party->far.at, length, next_seed());
	status = rc_write_at(&party->pair.client, &party->far, length, at, rkey, file, line);
	rc_check_status_at(IBV_WC_REM_ACCESS_ERR, status, "the write", file, line);
	rc_await_state_at(party->pair.client.qp, IBV_QPS_ERR, file, line);
	rc_await_state_at(party->pair.server.qp, IBV_QPS_ERR, file, line);
	rc_check_memory_at(before, at, length, "the block that must not change", file, line);
}

void expect_local_failure_at(const struct scene *scene, struct ibv_qp *qp, enum ibv_wc_status standard,
			     enum ibv_wc_status got, const char *file, int line)
{
	static uint32_t named;

	if (on_sim(scene))
		rc_check_status_at(standard, got, "the local operation", file, line);
	if (got == IBV_WC_SUCCESS)
		rc_fail_at(file, line, "expected the local operation to fail, it succeeded");
	if (on_rxe(scene) && got != IBV_WC_MW_BIND_ERR && got != IBV_WC_LOC_QP_OP_ERR &&
	    got != IBV_WC_WR_FLUSH_ERR)
		rc_fail_at(file, line, "status %d (%s) is none that rxe is known for", got,
			   ibv_wc_status_str(got));
	rc_await_state_at(qp, IBV_QPS_ERR, file, line);
	/* Named once a program. */
	if (got != standard && !(named & 1u << got))
		rc_deviation(scene->device, "a failed local operation completes with \"%s\", not \"%s\"",
			     ibv_wc_status_str(got), ibv_wc_status_str(standard));
	named |= 1u << got;
}

void expect_misuse_at(enum mwctl_sim_rule rule, const char *file, int line)
{
	struct mwctl_sim_misuse misuse;
	bool found = false;

	if (!mwctl_sim_present())
		return;
	while (mwctl_sim_misuse_next(&misuse, sizeof(misuse)))
		found = found || misuse.rule == (uint32_t)rule;
	if (!found)
		rc_fail_at(file, line, "expected the device to report broken rule %d", rule);
}
