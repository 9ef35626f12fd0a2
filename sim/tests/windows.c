/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What a window may cover: zero-based ones, regions with an iova, Type 1 from bind to unbind. */
#include "kit.h"

enum { ROOM = 8192 };

struct stage {
	struct rc_pair pair;
	struct rc_memory near, far;
};

static void stage_open(struct stage *s, struct rc_device *device)
{
	rc_pair_open(&s->pair, device, NULL);
	rc_memory_open(&s->near, s->pair.client.pd, ROOM, IBV_ACCESS_LOCAL_WRITE);
	rc_memory_open(&s->far, s->pair.server.pd, ROOM, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	memset(s->near.at, 0x5a, ROOM);
}

static void stage_close(struct stage *s)
{
	rc_memory_close(&s->near);
	rc_memory_close(&s->far);
	rc_pair_close(&s->pair);
}

static enum ibv_wc_status write_to(struct stage *s, uint64_t addr, uint32_t rkey, uint32_t length)
{
	return rc_write(&s->pair.client, &s->near, length, (void *)(uintptr_t)addr, rkey);
}

static enum ibv_wc_status bind1(struct stage *s, struct ibv_mw *mw, struct ibv_mr *mr, uint64_t addr,
				uint64_t length, unsigned int access)
{
	struct ibv_mw_bind bind = { .wr_id = 77, .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { mr, addr, length, access } };
	uint32_t before = mw->rkey;
	struct ibv_wc wc;

	RC_CHECK_EQ(0, ibv_bind_mw(s->pair.server.qp, mw, &bind));
	RC_CHECK(mw->rkey == rc_key_step(before, 1));
	wc = rc_wait(s->pair.server.cq);
	RC_CHECK_EQ(77, wc.wr_id);
	return wc.status;
}

static void zero_based(struct rc_device *device)
{
	struct ibv_mw *mw;
	struct stage s;
	uint32_t rkey;

	stage_open(&s, device);
	mw = rc_mw_alloc(s.pair.server.pd, IBV_MW_TYPE_2);
	rkey = rc_key_step(mw->rkey, 1);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&s.pair.server, mw, rkey, s.far.mr, s.far.at + 1000, 100,
						IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED));
	RC_CHECK_STATUS(IBV_WC_SUCCESS, write_to(&s, 10, rkey, 90));
	RC_CHECK_EQ(0, s.far.at[1009]);
	RC_CHECK_EQ(0x5a, s.far.at[1010]);
	RC_CHECK_EQ(0x5a, s.far.at[1099]);
	RC_CHECK_EQ(0, s.far.at[1100]);
	RC_CHECK_STATUS(IBV_WC_REM_ACCESS_ERR, write_to(&s, 10, rkey, 91));
	rc_mw_dealloc(mw);
	stage_close(&s);
	rc_ok("a zero-based window is addressed from 0");
}

/* A bind, and an access, are checked against the iova, not the address. */
static void iova(struct rc_device *device)
{
	const uint64_t base = UINT64_C(0x7700000000);
	struct ibv_mw *mw;
	struct ibv_mr *mr;
	struct stage s;
	uint32_t rkey;

	stage_open(&s, device);
	mr = ibv_reg_mr_iova(s.pair.server.pd, s.far.at, ROOM, base, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	RC_CHECK(mr != NULL);
	mw = rc_mw_alloc(s.pair.server.pd, IBV_MW_TYPE_2);
	rkey = rc_key_step(mw->rkey, 1);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&s.pair.server, mw, rkey, mr, (void *)(uintptr_t)(base + 64), 64,
						IBV_ACCESS_REMOTE_WRITE));
	RC_CHECK_STATUS(IBV_WC_SUCCESS, write_to(&s, base + 64, rkey, 64));
	RC_CHECK_EQ(0, s.far.at[63]);
	RC_CHECK_EQ(0x5a, s.far.at[64]);
	RC_CHECK_EQ(0, s.far.at[128]);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_invalidate(&s.pair.server, rkey));
	RC_CHECK_STATUS(IBV_WC_MW_BIND_ERR, rc_bind(&s.pair.server, mw, rc_key_step(rkey, 1), mr, s.far.at, 64,
						    IBV_ACCESS_REMOTE_WRITE));
	rc_mw_dealloc(mw);
	RC_CHECK_EQ(0, ibv_dereg_mr(mr));
	stage_close(&s);
	rc_ok("a region with an iova is bound and reached by it");
}

static void type1(struct rc_device *device)
{
	struct mwctl_sim_counters before;
	struct ibv_mw *mw;
	struct stage s;
	uint32_t old;

	stage_open(&s, device);
	mw = rc_mw_alloc(s.pair.server.pd, IBV_MW_TYPE_1);
	before = kit_counters();
	RC_CHECK_STATUS(IBV_WC_SUCCESS,
			bind1(&s, mw, s.far.mr, (uintptr_t)s.far.at, 64, IBV_ACCESS_REMOTE_WRITE));
	RC_CHECK_STATUS(IBV_WC_SUCCESS, write_to(&s, (uintptr_t)s.far.at, mw->rkey, 64));
	/* Bound again as it is: the old key ends, the new one begins. */
	old = mw->rkey;
	RC_CHECK_STATUS(IBV_WC_SUCCESS,
			bind1(&s, mw, s.far.mr, (uintptr_t)s.far.at + 64, 64, IBV_ACCESS_REMOTE_WRITE));
	RC_CHECK_STATUS(IBV_WC_SUCCESS, write_to(&s, (uintptr_t)s.far.at + 64, mw->rkey, 64));
	RC_CHECK_EQ(EBUSY, ibv_dereg_mr(s.far.mr));
	RC_CHECK_EQ(MWCTL_SIM_RULE_DEREG_MR_BOUND, kit_misuse());
	/* No bytes, wherever: unbound. The region is free again. */
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind1(&s, mw, s.far.mr, 0, 0, 0));
	RC_CHECK_EQ(before.mw_binds + 3, kit_counters().mw_binds);
	RC_CHECK_STATUS(IBV_WC_REM_ACCESS_ERR, write_to(&s, (uintptr_t)s.far.at, old, 64));
	rc_memory_close(&s.far);
	rc_mw_dealloc(mw);
	stage_close(&s);

	stage_open(&s, device);
	mw = rc_mw_alloc(s.pair.server.pd, IBV_MW_TYPE_1);
	RC_CHECK_STATUS(IBV_WC_MW_BIND_ERR,
			bind1(&s, mw, s.far.mr, (uintptr_t)s.far.at, ROOM + 1, IBV_ACCESS_REMOTE_WRITE));
	RC_CHECK_STATE(IBV_QPS_ERR, s.pair.server.qp);
	rc_mw_dealloc(mw);
	stage_close(&s);
	rc_ok("a Type 1 window is bound, bound again and unbound");
}

static void registration(struct rc_device *device)
{
	struct stage s;

	stage_open(&s, device);
	RC_CHECK(ibv_reg_mr(s.pair.server.pd, s.far.at, ROOM, IBV_ACCESS_REMOTE_WRITE) == NULL);
	RC_CHECK_EQ(EINVAL, errno);
	RC_CHECK(ibv_reg_mr(s.pair.server.pd, s.far.at, 0, IBV_ACCESS_LOCAL_WRITE) == NULL);
	RC_CHECK_EQ(EINVAL, errno);
	RC_CHECK(ibv_reg_mr(s.pair.server.pd, s.far.at, ROOM, IBV_ACCESS_ON_DEMAND) == NULL);
	RC_CHECK_EQ(EOPNOTSUPP, errno);
	RC_CHECK(ibv_reg_mr(s.pair.server.pd, (void *)4096, ROOM, IBV_ACCESS_LOCAL_WRITE) == NULL);
	RC_CHECK_EQ(EFAULT, errno);
	stage_close(&s);
	rc_ok("regions that cannot be");
}

int main(void)
{
	struct rc_device device;

	kit_open(&device);
	zero_based(&device);
	iova(&device);
	type1(&device);
	registration(&device);
	RC_CHECK_EQ(MWCTL_SIM_RULE_NONE, kit_misuse());
	rc_device_close(&device);
	return 0;
}
