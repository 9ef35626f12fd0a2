/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The profiles differ where real devices do, and the latency model takes the time it says. */
#include "kit.h"

enum { ROOM = 8192 };

struct stage {
	struct rc_device device;
	struct rc_pair pair;
	struct rc_memory memory;
	struct ibv_mw *mw;
};

static void choose(enum mwctl_sim_profile profile, uint32_t max_mw)
{
	struct mwctl_sim_model model;

	RC_CHECK_EQ(0, mwctl_sim_model_get(&model, sizeof(model)));
	model.profile = profile;
	model.max_mw = max_mw;
	RC_CHECK_EQ(0, mwctl_sim_model_set(&model, sizeof(model)));
}

static void stage_open(struct stage *s, enum mwctl_sim_profile profile)
{
	memset(s, 0, sizeof(*s));
	choose(profile, 0);
	kit_open(&s->device);
	rc_pair_open(&s->pair, &s->device, NULL);
	rc_memory_open(&s->memory, s->pair.server.pd, ROOM, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	s->mw = ibv_alloc_mw(s->pair.server.pd, IBV_MW_TYPE_2);
}

static void stage_close(struct stage *s)
{
	if (s->mw)
		rc_mw_dealloc(s->mw);
	rc_memory_close(&s->memory);
	rc_pair_close(&s->pair);
	rc_device_close(&s->device);
	choose(MWCTL_SIM_PROFILE_STRICT, 0);
}

static enum ibv_wc_status bind(struct stage *s, size_t length)
{
	return rc_bind(&s->pair.server, s->mw, rc_key_step(s->mw->rkey, 1), s->memory.mr, s->memory.at,
		       length, IBV_ACCESS_REMOTE_WRITE);
}

static void strict(void)
{
	struct ibv_mw *mw[3];
	struct stage s;

	stage_open(&s, MWCTL_SIM_PROFILE_STRICT);
	RC_CHECK(s.device.attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	RC_CHECK(s.device.attr.max_mw >= 1000000);
	stage_close(&s);

	choose(MWCTL_SIM_PROFILE_STRICT, 2);
	kit_open(&s.device);
	rc_pair_open(&s.pair, &s.device, NULL);
	RC_CHECK_EQ(2, s.device.attr.max_mw);
	mw[0] = rc_mw_alloc(s.pair.server.pd, IBV_MW_TYPE_1);
	mw[1] = rc_mw_alloc(s.pair.server.pd, IBV_MW_TYPE_2);
	RC_CHECK(ibv_alloc_mw(s.pair.server.pd, IBV_MW_TYPE_2) == NULL);
	RC_CHECK_EQ(ENOMEM, errno);
	rc_mw_dealloc(mw[0]);
	mw[2] = rc_mw_alloc(s.pair.server.pd, IBV_MW_TYPE_2);
	rc_mw_dealloc(mw[1]);
	rc_mw_dealloc(mw[2]);
	rc_pair_close(&s.pair);
	rc_device_close(&s.device);
	choose(MWCTL_SIM_PROFILE_STRICT, 0);
	rc_ok("the limit of windows is the model's");
}

/* By the peer of a queue pair that the window is not bound to. A LOCAL_INV there is as wrong as ever. */
static void unpinned(void)
{
	struct rc_options options = { 0 };
	struct rc_pair other;
	struct stage s;
	uint32_t rkey;

	stage_open(&s, MWCTL_SIM_PROFILE_UNPINNED);
	options.server_pd = s.pair.server.pd;
	rc_pair_open(&other, &s.device, &options);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind(&s, ROOM));
	rkey = s.mw->rkey;
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_write(&s.pair.client, &s.memory, 64, s.memory.at, rkey));
	rc_post_recv(&other.server, &s.memory, 5);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send_with_inv(&other.client, &s.memory, 8, rkey));
	RC_CHECK_EQ(rkey, rc_wait(other.server.cq).invalidated_rkey);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind(&s, ROOM));
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_write(&s.pair.client, &s.memory, 64, s.memory.at, s.mw->rkey));
	RC_CHECK_EQ(MWCTL_SIM_RULE_NONE, kit_misuse());
	RC_CHECK_STATUS(IBV_WC_REM_ACCESS_ERR, rc_write(&s.pair.client, &s.memory, 64, s.memory.at, rkey));
	RC_CHECK_STATUS(IBV_WC_MW_BIND_ERR, rc_invalidate(&other.server, s.mw->rkey));
	RC_CHECK_EQ(MWCTL_SIM_RULE_INV_WRONG_QP, kit_misuse());
	rc_pair_close(&other);
	stage_close(&s);
	rc_ok("unpinned: a SEND_WITH_INV ends a window of another queue pair");
}

static void rxe(void)
{
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	struct stage s;
	int i;

	stage_open(&s, MWCTL_SIM_PROFILE_RXE);
	RC_CHECK_EQ(524287, s.device.attr.max_mw);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind(&s, 4096));
	RC_CHECK_EQ(EINVAL, ibv_dereg_mr(s.memory.mr));
	RC_CHECK_EQ(MWCTL_SIM_RULE_DEREG_MR_BOUND, kit_misuse());
	/* Slots come back by themselves. */
	for (i = 0; i < 1000; i++) {
		struct ibv_sge sge;

		wr = rc_wr_write(&sge, &s.memory, 8, s.memory.at + 8, s.mw->rkey);
		wr.send_flags = 0;
		rc_post(s.pair.client.qp, &wr);
	}
	/* An error completion shows its opcode. */
	wr = rc_wr_invalidate(rc_key_step(s.mw->rkey, 1));
	rc_post(s.pair.server.qp, &wr);
	wc = rc_wait(s.pair.server.cq);
	RC_CHECK_STATUS(IBV_WC_LOC_QP_OP_ERR, wc.status);
	RC_CHECK_EQ(IBV_WC_LOCAL_INV, wc.opcode);
	RC_CHECK_EQ(MWCTL_SIM_RULE_INV_NOT_BOUND, kit_misuse());
	stage_close(&s);
	rc_ok("rxe: its limit, its statuses, slots without polling");
}

static void mlx5(void)
{
	struct ibv_send_wr wr, *bad;
	struct stage s;

	stage_open(&s, MWCTL_SIM_PROFILE_MLX5);
	wr = rc_wr_bind(s.mw, rc_key_step(s.mw->rkey, 1), s.memory.mr, s.memory.at, (size_t)2 << 30,
			IBV_ACCESS_REMOTE_WRITE);
	wr.bind_mw.bind_info.length++;
	RC_CHECK_EQ(EOPNOTSUPP, ibv_post_send(s.pair.server.qp, &wr, &bad));
	RC_CHECK(bad == &wr);
	/* A failed bind that was not signaled says nothing; what is posted afterwards neither. */
	wr = rc_wr_bind(s.mw, rc_key_step(s.mw->rkey, 1), s.memory.mr, s.memory.at, ROOM + 1,
			IBV_ACCESS_REMOTE_WRITE);
	wr.send_flags = 0;
	rc_post(s.pair.server.qp, &wr);
	RC_CHECK_STATE(IBV_QPS_ERR, s.pair.server.qp);
	RC_CHECK(kit_is_empty(s.pair.server.cq));
	wr = rc_wr_invalidate(s.mw->rkey);
	rc_post(s.pair.server.qp, &wr);
	RC_CHECK(kit_is_empty(s.pair.server.cq));
	stage_close(&s);
	rc_ok("mlx5: no bind over 2 GiB, silence about unsignaled binds and on a dead queue pair");
}

static void without_windows(void)
{
	struct mwctl_sim_counters before;
	struct ibv_send_wr wr, *bad;
	struct stage s;

	stage_open(&s, MWCTL_SIM_PROFILE_NO_MW);
	RC_CHECK(s.device.attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	RC_CHECK(s.mw == NULL);
	before = kit_counters();
	errno = 0;
	RC_CHECK(ibv_alloc_mw(s.pair.server.pd, IBV_MW_TYPE_2) == NULL);
	RC_CHECK_EQ(EOPNOTSUPP, errno);
	RC_CHECK_EQ(before.unsupported_calls + 1, kit_counters().unsupported_calls);
	stage_close(&s);

	stage_open(&s, MWCTL_SIM_PROFILE_MANA);
	RC_CHECK(s.mw != NULL);
	wr = rc_wr_bind(s.mw, rc_key_step(s.mw->rkey, 1), s.memory.mr, s.memory.at, 64, IBV_ACCESS_REMOTE_WRITE);
	RC_CHECK_EQ(EOPNOTSUPP, ibv_post_send(s.pair.server.qp, &wr, &bad));
	RC_CHECK_STATE(IBV_QPS_RTS, s.pair.server.qp);
	stage_close(&s);
	rc_ok("devices that promise windows and have none, or none that can be bound");
}

/* Times are lower bounds: a busy machine may take longer, never less. */
static void latency(void)
{
	struct mwctl_sim_model model, slow;
	struct ibv_sge sge;
	struct ibv_send_wr wr[4];
	struct stage s;
	double start, took;
	int i;

	stage_open(&s, MWCTL_SIM_PROFILE_STRICT);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind(&s, ROOM));
	RC_CHECK_EQ(0, mwctl_sim_model_get(&model, sizeof(model)));
	slow = model;
	slow.doorbell_ns = 3000000;
	slow.wr_ns = 1000000;
	slow.packet_ns = 2000000;
	slow.kernel_call_ns = 4000000;
	RC_CHECK_EQ(0, mwctl_sim_model_set(&slow, sizeof(slow)));

	/* The post returns at once; doorbell, work request, two packets, and the way back. */
	memset(s.memory.at, 0, ROOM);
	s.memory.at[1500] = 1;
	start = rc_now();
	wr[0] = rc_wr_write(&sge, &s.memory, 2000, s.memory.at + 4096, s.mw->rkey);
	rc_post(s.pair.client.qp, &wr[0]);
	RC_CHECK(kit_is_empty(s.pair.client.cq));
	RC_CHECK_EQ(0, s.memory.at[4096 + 1500]);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(s.pair.client.cq).status);
	took = rc_now() - start;
	RC_CHECK_EQ(1, s.memory.at[4096 + 1500]);
	RC_CHECK(took >= 0.010);

	/* One doorbell for four local work requests. */
	start = rc_now();
	for (i = 0; i < 4; i++) {
		wr[i] = i % 2 == 0 ? rc_wr_invalidate(s.mw->rkey) :
			rc_wr_bind(s.mw, rc_key_step(s.mw->rkey, 1), s.memory.mr, s.memory.at, ROOM,
				   IBV_ACCESS_REMOTE_WRITE);
		if (i % 2) {
			wr[i - 1].next = &wr[i];
			wr[i - 1].send_flags = 0;
			rc_post(s.pair.server.qp, &wr[i - 1]);
			s.mw->rkey = rc_key_step(s.mw->rkey, 1);
		}
	}
	for (i = 0; i < 2; i++)
		RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(s.pair.server.cq).status);
	RC_CHECK(rc_now() - start >= 0.007);

	start = rc_now();
	RC_CHECK_STATE(IBV_QPS_RTS, s.pair.server.qp);
	RC_CHECK(rc_now() - start >= 0.004);
	RC_CHECK_EQ(0, mwctl_sim_model_set(&model, sizeof(model)));
	stage_close(&s);
	rc_ok("the latency model: doorbell, work request, packets both ways, kernel calls");
}

int main(void)
{
	struct mwctl_sim_model model;

	if (!mwctl_sim_present())
		rc_skip("needs the device in the process");
	RC_CHECK_EQ(0, mwctl_sim_model_get(&model, sizeof(model)));
	model.profile = 6;
	RC_CHECK_EQ(EINVAL, mwctl_sim_model_set(&model, sizeof(model)));
	strict();
	rxe();
	mlx5();
	unpinned();
	without_windows();
	latency();
	RC_CHECK_EQ(MWCTL_SIM_RULE_NONE, kit_misuse());
	return 0;
}
