/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Regions and queue pairs of other kinds: huge pages, an iova that is no address, a parent domain,
 * extended queue pairs, one completion queue for several clients. */
#define _GNU_SOURCE
#include "house.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mman.h>

static struct house house;

/* What to do once, inside the next ibv_dereg_mr; its error instead of the real call's if not 0. */
static int (*at_dereg)(void);

/* Stands in for libibverbs' own, in the library as well. */
int ibv_dereg_mr(struct ibv_mr *mr)
{
	static int (*real)(struct ibv_mr *);
	int (*run)(void) = at_dereg;
	int error = 0;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "ibv_dereg_mr");
	at_dereg = NULL;
	if (run)
		error = run();
	return error ? error : real(mr);
}

static void huge_pages(void)
{
	mwctl_register_options options = {.huge_pages = 1, .block_size = 1 << 20};
	mwctl_region region;
	mwctl_region_info info;
	mwctl_request ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	mwctl_result result;
	struct house_client *it = &house.client[0];

	HOUSE_OK(mwctl_region_register(house.ctx, house.domain, 3 << 20, &options, sizeof(options), &region));
	HOUSE_OK(mwctl_region_info_get(house.ctx, region, &info, sizeof(info)));
	RC_CHECK(info.huge_pages == 0 || info.huge_pages == 1);
	RC_CHECK_EQ(3 << 20, info.length);
	RC_CHECK_EQ(3, info.blocks);
	RC_CHECK_EQ(0, info.parent_open);
	RC_CHECK_EQ(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND, info.access);
	for (uint64_t at = 0; at < info.length; at += 4096)
		RC_CHECK_EQ(0, *((uint8_t *)(uintptr_t)info.addr + at));
	ask.region = region;
	ask.addr = info.addr + info.length - 64;
	ask.length = 64;
	HOUSE_OK(mwctl_grant(house.ctx, &ask, 0, &result));
	memset(it->local.at, 0x5a, 64);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_write(&it->pair.client, &it->local, 64,
						 (void *)(uintptr_t)ask.addr, result.rkey));
	RC_CHECK_EQ(0x5a, *(uint8_t *)(uintptr_t)ask.addr);
	HOUSE_OK(mwctl_revoke(house.ctx, result.grant, 0, NULL));
	HOUSE_OK(mwctl_region_detach(house.ctx, region));
	house_ok("huge pages %s: %s", info.huge_pages ? "taken" : "not to be had",
		 info.huge_pages ? "reported" : "ordinary ones instead, reported");
}

/* Clients see an iova that is not the address; ranges are in its space. */
static void other_iova(void)
{
	const uint64_t iova = 0x7000000000ull;
	size_t length = 1 << 20;
	uint8_t *at = aligned_alloc(4096, length);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
	struct ibv_mr *mr = ibv_reg_mr_iova(house.pd, at, length, iova, access);
	mwctl_attach_options options = {.iova = iova, .access = access};
	struct house_client *it = &house.client[0];
	mwctl_request ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);
	mwctl_region region;
	mwctl_result result;
	uint64_t found;

	RC_CHECK(at && mr);
	memset(at, 0, length);
	HOUSE_OK(mwctl_region_attach(house.ctx, house.domain, mr, &options, sizeof(options), &region));
	ask.region = region;
	ask.addr = (uintptr_t)at;
	HOUSE_STATUS(MWCTL_STATUS_OUT_OF_RANGE, mwctl_grant(house.ctx, &ask, 0, &result));
	ask.addr = iova + length - 64;
	HOUSE_OK(mwctl_grant(house.ctx, &ask, 0, &result));
	HOUSE_OK(mwctl_check(house.ctx, house.domain, it->pair.server.qp->qp_num, iova + length - 1, 1,
			     HOUSE_WRITE, &found));
	RC_CHECK_EQ(result.grant, found);
	memset(it->local.at, 0x6b, 64);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_write(&it->pair.client, &it->local, 64,
						 (void *)(uintptr_t)ask.addr, result.rkey));
	RC_CHECK_EQ(0x6b, at[length - 1]);
	HOUSE_OK(mwctl_revoke(house.ctx, result.grant, 0, NULL));
	memset(it->local.at, 0x6c, 64);
	RC_CHECK(rc_write(&it->pair.client, &it->local, 64, (void *)(uintptr_t)ask.addr, result.rkey) !=
		 IBV_WC_SUCCESS);
	RC_CHECK_EQ(0x6b, at[length - 1]);
	HOUSE_OK(mwctl_region_detach(house.ctx, region));
	RC_CHECK_EQ(0, ibv_dereg_mr(mr));
	free(at);
	house_leave(&house, 0);
	house_join(&house, 0);
	house_ok("a region whose iova is not its address");
}

/* A parent domain stands for its PD, if it was declared. */
static void parent_domain(void)
{
	struct ibv_parent_domain_init_attr attr = {.pd = house.pd};
	struct ibv_pd *parent = ibv_alloc_parent_domain(house.device.context, &attr);
	struct rc_options rc = {.server_pd = parent, .client_pd = house.client_pd};
	struct rc_pair pair;
	mwctl_peer peer;

	if (!parent) {
		house_ok("no parent domains on this device: not tried");
		return;
	}
	rc_pair_open(&pair, &house.device, &rc);
	HOUSE_STATUS(MWCTL_STATUS_FOREIGN_PD,
		     mwctl_peer_attach(house.ctx, house.domain, pair.server.qp, NULL, 0, &peer));
	rc_pair_close(&pair);
	RC_CHECK_EQ(0, ibv_dealloc_pd(parent));
	house_ok("a parent domain that was not declared is foreign");
}

static void extended(void)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = house.pd,
		.send_cq = house.client[0].pair.server.cq,
		.recv_cq = house.client[0].pair.server.cq,
		.cap = {.max_send_wr = 32, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV};
	mwctl_peer_options options = {.declares_send_ops = 1, .send_ops_flags = IBV_QP_EX_WITH_SEND};
	struct ibv_qp *qp = ibv_create_qp_ex(house.device.context, &init);
	mwctl_request ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);
	mwctl_result result;

	if (!qp) {
		house_ok("no extended queue pairs on this device: not tried");
		return;
	}
	rc_qp_connect(&house.device, qp, qp->qp_num, NULL);
	HOUSE_STATUS(MWCTL_STATUS_QP_UNDECLARED,
		     mwctl_peer_attach(house.ctx, house.domain, qp, NULL, 0, &ask.peer));
	HOUSE_STATUS(MWCTL_STATUS_QP_WITHOUT_WINDOW_OPS,
		     mwctl_peer_attach(house.ctx, house.domain, qp, &options, sizeof(options), &ask.peer));
	options.send_ops_flags = init.send_ops_flags;
	HOUSE_OK(mwctl_peer_attach(house.ctx, house.domain, qp, &options, sizeof(options), &ask.peer));
	HOUSE_OK(mwctl_grant(house.ctx, &ask, 0, &result));
	HOUSE_OK(mwctl_revoke(house.ctx, result.grant, 0, &result));
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, result.proof);
	HOUSE_OK(mwctl_peer_detach(house.ctx, ask.peer, 0));
	RC_CHECK_EQ(0, ibv_destroy_qp(qp));
	house_ok("an extended queue pair declares its operations");
}

/* Several clients on one completion queue, one of them in error: the others' completions go on. */
static void shared_queue(void)
{
	enum { CLIENTS = 4 };
	struct ibv_cq *cq = house.client[0].pair.server.cq;
	struct ibv_qp *qp[CLIENTS];
	mwctl_request ask[CLIENTS];
	mwctl_result result[CLIENTS];
	uint64_t ids[CLIENTS];
	mwctl_peer_options options = {.budget = 2};
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq,
					.cap = {.max_send_wr = 8, .max_recv_wr = 4, .max_send_sge = 1,
						.max_recv_sge = 1}};

	for (int i = 0; i < CLIENTS; i++) {
		qp[i] = ibv_create_qp(house.pd, &init);
		RC_CHECK(qp[i]);
		rc_qp_connect(&house.device, qp[i], qp[i]->qp_num, NULL);
		ask[i] = house_ask(&house, 0, i * 64, 64, HOUSE_RW);
		HOUSE_OK(mwctl_peer_attach(house.ctx, house.domain, qp[i], &options, sizeof(options),
					   &ask[i].peer));
	}
	HOUSE_OK(mwctl_grant_batch(house.ctx, ask, CLIENTS, 0, result));
	rc_qp_modify(qp[1], IBV_QPS_ERR);
	for (int i = 0; i < CLIENTS; i++)
		ids[i] = result[i].grant;
	HOUSE_OK(mwctl_revoke_batch(house.ctx, ids, CLIENTS, 0, MWCTL_KILL_ALLOWED, result));
	for (int i = 0; i < CLIENTS; i++) {
		RC_CHECK_EQ(i == 1 ? MWCTL_PROOF_QP_FENCED : MWCTL_PROOF_INVALIDATED, result[i].proof);
		HOUSE_OK(mwctl_peer_detach(house.ctx, ask[i].peer, 0));
		RC_CHECK_EQ(0, ibv_destroy_qp(qp[i]));
	}
	house_ok("%d clients on one completion queue, one of them in error", CLIENTS);
}

static mwctl_region leaving;

static void heard_nothing(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	(void)user, (void)status, (void)results, (void)n;
	RC_FAIL("nothing began");
}

/* Asked of a region that is being deregistered: answers at once, and hands out nothing. */
static int asked_meanwhile(void)
{
	mwctl_request ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);
	mwctl_region_info info;

	ask.region = leaving;
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_region_info_get(house.ctx, leaving, &info, sizeof(info)));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant_start(house.ctx, &ask, 1, 0, heard_nothing, NULL));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_region_detach(house.ctx, leaving));
	return 0;
}

static int refused_meanwhile(void)
{
	asked_meanwhile();
	return EBUSY;
}

static void leaves(void)
{
	mwctl_region_info info;
	mwctl_request ask = house_ask(&house, 0, 0, 64, HOUSE_WRITE);
	mwctl_result result;

	HOUSE_OK(mwctl_region_register(house.ctx, house.domain, 1 << 20, NULL, 0, &leaving));
	at_dereg = refused_meanwhile;
	HOUSE_STATUS(MWCTL_STATUS_VERBS_ERROR, mwctl_region_detach(house.ctx, leaving));
	HOUSE_OK(mwctl_region_info_get(house.ctx, leaving, &info, sizeof(info)));
	ask.region = leaving;
	ask.addr = info.addr;
	HOUSE_OK(mwctl_grant(house.ctx, &ask, 0, &result));
	HOUSE_STATUS(MWCTL_STATUS_BUSY, mwctl_region_detach(house.ctx, leaving));
	HOUSE_OK(mwctl_revoke(house.ctx, result.grant, 0, NULL));
	at_dereg = asked_meanwhile;
	HOUSE_OK(mwctl_region_detach(house.ctx, leaving));
	RC_CHECK(!at_dereg);
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_region_info_get(house.ctx, leaving, &info, sizeof(info)));
	house_ok("a region that is being deregistered keeps nobody waiting and grants nothing; refused, it stays");
}

/* More blocks than any server counts are refused before there is memory for them. */
static void tiny_blocks(void)
{
	const size_t length = (size_t)1 << 36;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
	mwctl_attach_options attach = {.access = access, .block_size = 1};
	mwctl_register_options options = {.block_size = 1};
	struct mwctl_sim_counters before, after;
	mwctl_region region;
	struct ibv_mr *mr;
	uint8_t *at;

	if (!mwctl_sim_present()) {
		house_ok("a region of 64 GiB is not tried on this device");
		return;
	}
	at = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	RC_CHECK(at != MAP_FAILED);
	mr = ibv_reg_mr(house.pd, at, length, access);
	RC_CHECK(mr);
	attach.iova = (uintptr_t)at;
	HOUSE_STATUS(MWCTL_STATUS_TOO_MANY,
		     mwctl_region_attach(house.ctx, house.domain, mr, &attach, sizeof(attach), &region));
	attach.block_size = 0;
	HOUSE_OK(mwctl_region_attach(house.ctx, house.domain, mr, &attach, sizeof(attach), &region));
	HOUSE_OK(mwctl_region_detach(house.ctx, region));
	RC_CHECK_EQ(0, ibv_dereg_mr(mr));
	RC_CHECK_EQ(0, munmap(at, length));
	RC_CHECK_EQ(0, mwctl_sim_counters_get(&before, sizeof(before)));
	HOUSE_STATUS(MWCTL_STATUS_TOO_MANY, mwctl_region_register(house.ctx, house.domain, 1 << 27, &options,
								  sizeof(options), &region));
	RC_CHECK_EQ(0, mwctl_sim_counters_get(&after, sizeof(after)));
	RC_CHECK_EQ(after.mr_registered - before.mr_registered, after.mr_deregistered - before.mr_deregistered);
	house_ok("more blocks than can be counted are refused");
}

int main(void)
{
	house_open(&house, NULL);
	huge_pages();
	other_iova();
	parent_domain();
	extended();
	shared_queue();
	tiny_blocks();
	leaves();
	house_close(&house);
	return 0;
}
