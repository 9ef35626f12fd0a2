/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Each fault strikes when it is ordered to, and lets go when it is released. */
#define _GNU_SOURCE
#include "kit.h"

#include <poll.h>
#include <pthread.h>

enum { ROOM = 8192 };

struct stage {
	struct rc_pair pair;
	struct rc_memory near, far;
	struct ibv_mw *mw;
	uint32_t rkey;
};

static void stage_open(struct stage *s, struct rc_device *device)
{
	rc_pair_open(&s->pair, device, NULL);
	rc_memory_open(&s->near, s->pair.client.pd, ROOM, IBV_ACCESS_LOCAL_WRITE);
	rc_memory_open(&s->far, s->pair.server.pd, ROOM, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	s->mw = rc_mw_alloc(s->pair.server.pd, IBV_MW_TYPE_2);
	s->rkey = rc_key_step(s->mw->rkey, 1);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&s->pair.server, s->mw, s->rkey, s->far.mr, s->far.at, ROOM,
						IBV_ACCESS_REMOTE_WRITE));
}

static void stage_close(struct stage *s)
{
	if (s->mw)
		rc_mw_dealloc(s->mw);
	rc_memory_close(&s->near);
	rc_memory_close(&s->far);
	rc_pair_close(&s->pair);
}

static struct ibv_send_wr write_wr(struct stage *s, struct ibv_sge *sge, uint64_t wr_id, size_t at)
{
	struct ibv_send_wr wr = rc_wr_write(sge, &s->near, 1, s->far.at + at, s->rkey);

	wr.wr_id = wr_id;
	return wr;
}

static void expect(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = rc_wait(cq);

	RC_CHECK_EQ(wr_id, wc.wr_id);
	RC_CHECK_STATUS(status, wc.status);
}

static void posts(struct rc_device *device)
{
	struct stage s;
	struct ibv_sge sge[3];
	struct ibv_send_wr wr[3], *bad;
	uint32_t qpn;
	uint64_t id;
	int i;

	stage_open(&s, device);
	qpn = s.pair.client.qp->qp_num;
	memset(s.near.at, 1, ROOM);
	for (i = 0; i < 3; i++) {
		wr[i] = write_wr(&s, &sge[i], (uint64_t)i, (size_t)i);
		wr[i].next = i < 2 ? &wr[i + 1] : NULL;
	}

	id = kit_fault(MWCTL_SIM_FAIL_POST, qpn, 1, -ENOMEM, 0);
	bad = NULL;
	RC_CHECK_EQ(-ENOMEM, ibv_post_send(s.pair.client.qp, wr, &bad));
	RC_CHECK(bad == &wr[0]);
	RC_CHECK(kit_is_empty(s.pair.client.cq));
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(id));

	kit_fault(MWCTL_SIM_CUT_POST, qpn, 1, ENOMEM, 2);
	RC_CHECK_EQ(ENOMEM, ibv_post_send(s.pair.client.qp, wr, &bad));
	RC_CHECK(bad == &wr[2]);
	expect(s.pair.client.cq, 0, IBV_WC_SUCCESS);
	expect(s.pair.client.cq, 1, IBV_WC_SUCCESS);
	RC_CHECK(kit_is_empty(s.pair.client.cq));
	RC_CHECK_EQ(0, s.far.at[2]);

	kit_fault(MWCTL_SIM_POST_NO_BAD_WR, qpn, 1, EINVAL, 0);
	bad = &wr[1];
	RC_CHECK_EQ(EINVAL, ibv_post_send(s.pair.client.qp, wr, &bad));
	RC_CHECK(bad == NULL);
	for (i = 0; i < 3; i++)
		expect(s.pair.client.cq, (uint64_t)i, IBV_WC_SUCCESS);
	RC_CHECK_EQ(1, s.far.at[2]);

	kit_fault(MWCTL_SIM_FAIL_WR, qpn, 1, IBV_WC_GENERAL_ERR, 1);
	RC_CHECK_EQ(0, ibv_post_send(s.pair.client.qp, wr, &bad));
	expect(s.pair.client.cq, 0, IBV_WC_SUCCESS);
	expect(s.pair.client.cq, 1, IBV_WC_GENERAL_ERR);
	expect(s.pair.client.cq, 2, IBV_WC_WR_FLUSH_ERR);
	RC_CHECK_STATE(IBV_QPS_ERR, s.pair.client.qp);
	RC_CHECK_STATE(IBV_QPS_RTS, s.pair.server.qp);
	mwctl_sim_faults_clear();
	stage_close(&s);
	rc_ok("posts that fail, are cut, or fail and are queued all the same");
}

static void completions(struct rc_device *device)
{
	struct stage s;
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	uint32_t qpn;
	uint64_t id;
	unsigned int i;

	stage_open(&s, device);
	qpn = s.pair.client.qp->qp_num;
	kit_fault(MWCTL_SIM_LOSE_COMPLETION, qpn, 1, 0, 0);
	s.near.at[0] = 7;
	wr = write_wr(&s, &sge, 1, 0);
	rc_post(s.pair.client.qp, &wr);
	RC_CHECK_EQ(7, s.far.at[0]);
	RC_CHECK(kit_is_empty(s.pair.client.cq));
	/* Its slot is lost: of the 64, 63 are left. */
	wr.send_flags = 0;
	for (i = 0; i < 63; i++)
		rc_post(s.pair.client.qp, &wr);
	RC_CHECK_EQ(ENOMEM, kit_try(s.pair.client.qp, &wr));
	RC_CHECK_EQ(MWCTL_SIM_RULE_SQ_OVERFLOW, kit_misuse());
	stage_close(&s);

	stage_open(&s, device);
	qpn = s.pair.client.qp->qp_num;
	id = kit_fault(MWCTL_SIM_DELAY_COMPLETION, qpn, 1, 0, 0);
	for (i = 0; i < 3; i++) {
		wr = write_wr(&s, &sge, i, i);
		rc_post(s.pair.client.qp, &wr);
	}
	RC_CHECK(kit_is_empty(s.pair.client.cq));
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(id));
	RC_CHECK_EQ(0, mwctl_sim_fault_release(id));
	for (i = 0; i < 3; i++)
		expect(s.pair.client.cq, i, IBV_WC_SUCCESS);
	RC_CHECK_EQ(ENOENT, mwctl_sim_fault_release(id));
	rc_post(s.pair.client.qp, &wr);
	expect(s.pair.client.cq, 2, IBV_WC_SUCCESS);
	stage_close(&s);
	rc_ok("completions that are lost, or late and in order");
}

static void *dealloc(void *mw)
{
	RC_CHECK_EQ(0, ibv_dealloc_mw(mw));
	return NULL;
}

/* What was admitted lands late, and whoever closes the window waits for it. */
static void held_packets(struct rc_device *device)
{
	struct stage s;
	struct ibv_sge sge;
	struct ibv_send_wr wr, inv;
	struct mwctl_sim_counters before;
	pthread_t thread;
	uint64_t id;
	int by_dealloc;

	for (by_dealloc = 0; by_dealloc < 2; by_dealloc++) {
		stage_open(&s, device);
		id = kit_fault(MWCTL_SIM_HOLD_PACKET, s.pair.client.qp->qp_num, 1, 0, 0);
		memset(s.near.at, 9, ROOM);
		wr = rc_wr_write(&sge, &s.near, 3000, s.far.at, s.rkey);
		wr.wr_id = 1;
		rc_post(s.pair.client.qp, &wr);
		RC_CHECK_EQ(1, mwctl_sim_fault_hits(id));
		RC_CHECK(kit_is_empty(s.pair.client.cq));
		RC_CHECK_EQ(0, s.far.at[0]);
		/* It left already: its source may change. */
		memset(s.near.at, 10, ROOM);
		before = kit_counters();
		if (by_dealloc) {
			RC_CHECK_EQ(0, pthread_create(&thread, NULL, dealloc, s.mw));
			s.mw = NULL;
			/* Nothing tells when it has begun to wait; it must not have ended. */
			rc_pause(20);
			RC_CHECK_EQ(EBUSY, pthread_tryjoin_np(thread, NULL));
			RC_CHECK_EQ(before.mw_deallocated, kit_counters().mw_deallocated);
		} else {
			inv = rc_wr_invalidate(s.rkey);
			inv.wr_id = 2;
			rc_post(s.pair.server.qp, &inv);
			RC_CHECK(kit_is_empty(s.pair.server.cq));
		}
		RC_CHECK_EQ(0, s.far.at[0]);
		RC_CHECK_EQ(0, mwctl_sim_fault_release(id));
		if (by_dealloc)
			RC_CHECK_EQ(0, pthread_join(thread, NULL));
		else
			expect(s.pair.server.cq, 2, IBV_WC_SUCCESS);
		RC_CHECK_EQ(9, s.far.at[0]);
		RC_CHECK_EQ(9, s.far.at[1023]);
		if (!by_dealloc) {
			/* The window was closed before the second packet. */
			RC_CHECK_EQ(0, s.far.at[1024]);
			expect(s.pair.client.cq, 1, IBV_WC_REM_ACCESS_ERR);
			RC_CHECK_STATE(IBV_QPS_ERR, s.pair.server.qp);
		}
		stage_close(&s);
	}
	rc_ok("a held packet lands when it is released; its window's end waits for that");
}

/* A QP that fails while its LOCAL_INV waits for a packet: the invalidate still ends, and as done. */
static void invalidate_outlives_its_qp(struct rc_device *device)
{
	struct stage s;
	struct ibv_sge sge;
	struct ibv_send_wr wr, inv;
	uint64_t id;

	stage_open(&s, device);
	id = kit_fault(MWCTL_SIM_HOLD_PACKET, s.pair.client.qp->qp_num, 1, 0, 0);
	wr = write_wr(&s, &sge, 1, 0);
	rc_post(s.pair.client.qp, &wr);
	inv = rc_wr_invalidate(s.rkey);
	inv.wr_id = 2;
	rc_post(s.pair.server.qp, &inv);
	inv.wr_id = 3;
	rc_post(s.pair.server.qp, &inv);
	rc_qp_modify(s.pair.server.qp, IBV_QPS_ERR);
	RC_CHECK(kit_is_empty(s.pair.server.cq));
	RC_CHECK_EQ(0, mwctl_sim_fault_release(id));
	expect(s.pair.server.cq, 2, IBV_WC_SUCCESS);
	expect(s.pair.server.cq, 3, IBV_WC_WR_FLUSH_ERR);
	stage_close(&s);
	rc_ok("an invalidate that has begun is finished although its queue pair fails");
}

static void queues(struct rc_device *device)
{
	struct ibv_async_event event;
	struct stage s;
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	uint64_t id;

	stage_open(&s, device);
	s.near.at[0] = 3;
	id = kit_fault(MWCTL_SIM_STALL_SQ, s.pair.client.qp->qp_num, 1, 0, 0);
	wr = write_wr(&s, &sge, 1, 0);
	rc_post(s.pair.client.qp, &wr);
	rc_post(s.pair.client.qp, &wr);
	RC_CHECK_EQ(0, s.far.at[0]);
	RC_CHECK(kit_is_empty(s.pair.client.cq));
	RC_CHECK_EQ(0, mwctl_sim_fault_release(id));
	expect(s.pair.client.cq, 1, IBV_WC_SUCCESS);
	expect(s.pair.client.cq, 1, IBV_WC_SUCCESS);
	RC_CHECK_EQ(3, s.far.at[0]);

	/* A stalled queue is flushed like any other. */
	id = kit_fault(MWCTL_SIM_STALL_SQ, s.pair.client.qp->qp_num, 0, 0, 0);
	rc_post(s.pair.client.qp, &wr);
	rc_qp_modify(s.pair.client.qp, IBV_QPS_ERR);
	expect(s.pair.client.cq, 1, IBV_WC_WR_FLUSH_ERR);
	RC_CHECK_EQ(0, mwctl_sim_fault_release(id));
	stage_close(&s);

	stage_open(&s, device);
	kit_fault(MWCTL_SIM_KILL_QP, s.pair.client.qp->qp_num, 1, 0, 0);
	wr = write_wr(&s, &sge, 1, 0);
	rc_post(s.pair.client.qp, &wr);
	expect(s.pair.client.cq, 1, IBV_WC_WR_FLUSH_ERR);
	RC_CHECK_STATE(IBV_QPS_ERR, s.pair.client.qp);
	RC_CHECK_EQ(0, ibv_get_async_event(device->context, &event));
	RC_CHECK_EQ(IBV_EVENT_QP_FATAL, event.event_type);
	RC_CHECK(event.element.qp == s.pair.client.qp);
	ibv_ack_async_event(&event);
	stage_close(&s);
	rc_ok("send queues that stall, queue pairs that die");
}

static void calls(struct rc_device *device)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct stage s;
	uint32_t qpn;

	stage_open(&s, device);
	qpn = s.pair.server.qp->qp_num;
	kit_fault(MWCTL_SIM_FAIL_ALLOC_MW, 0, 1, ENOMEM, 0);
	errno = 0;
	RC_CHECK(ibv_alloc_mw(s.pair.server.pd, IBV_MW_TYPE_2) == NULL);
	RC_CHECK_EQ(ENOMEM, errno);
	kit_fault(MWCTL_SIM_FAIL_DEALLOC_MW, 0, 2, EIO, 0);
	RC_CHECK_EQ(EIO, ibv_dealloc_mw(s.mw));
	RC_CHECK_EQ(EIO, ibv_dealloc_mw(s.mw));
	s.near.at[0] = 4;
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_write(&s.pair.client, &s.near, 1, s.far.at, s.rkey));
	RC_CHECK_EQ(4, s.far.at[0]);
	kit_fault(MWCTL_SIM_FAIL_MODIFY_QP, qpn, 1, EAGAIN, 0);
	RC_CHECK_EQ(EAGAIN, ibv_modify_qp(s.pair.server.qp, &attr, IBV_QP_STATE));
	RC_CHECK_STATE(IBV_QPS_RTS, s.pair.server.qp);
	kit_fault(MWCTL_SIM_FAIL_QUERY_QP, qpn, 1, EINTR, 0);
	RC_CHECK_EQ(EINTR, ibv_query_qp(s.pair.server.qp, &attr, IBV_QP_STATE, &init));
	RC_CHECK_STATE(IBV_QPS_RTS, s.pair.server.qp);
	kit_fault(MWCTL_SIM_FAIL_REG_MR, 0, 1, EFAULT, 0);
	RC_CHECK(ibv_reg_mr(s.pair.server.pd, s.far.at, 64, 0) == NULL);
	RC_CHECK_EQ(EFAULT, errno);
	RC_CHECK_EQ(0, ibv_dealloc_mw(s.mw));
	s.mw = NULL;
	kit_fault(MWCTL_SIM_FAIL_DEREG_MR, 0, 1, EBUSY, 0);
	RC_CHECK_EQ(EBUSY, ibv_dereg_mr(s.far.mr));
	stage_close(&s);
	mwctl_sim_faults_clear();
	rc_ok("calls that fail as ordered change nothing");
}

static void fatal(struct rc_device *device)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;
	struct ibv_async_event event;
	struct stage s;
	uint64_t id;

	stage_open(&s, device);
	id = kit_fault(MWCTL_SIM_DEVICE_FATAL, 0, 0, 0, 0);
	RC_CHECK_EQ(0, ibv_get_async_event(device->context, &event));
	RC_CHECK_EQ(IBV_EVENT_DEVICE_FATAL, event.event_type);
	ibv_ack_async_event(&event);
	errno = 0;
	RC_CHECK(ibv_alloc_mw(s.pair.server.pd, IBV_MW_TYPE_2) == NULL);
	RC_CHECK_EQ(EIO, errno);
	RC_CHECK(ibv_alloc_pd(device->context) == NULL);
	/* Success is faked: the window is open as before. */
	RC_CHECK_EQ(0, ibv_modify_qp(s.pair.server.qp, &attr, IBV_QP_STATE));
	RC_CHECK_EQ(EIO, ibv_query_qp(s.pair.server.qp, &attr, IBV_QP_STATE, &init));
	RC_CHECK_EQ(0, ibv_dealloc_mw(s.mw));
	s.mw = NULL;
	s.near.at[0] = 0x77;
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_write(&s.pair.client, &s.near, 1, s.far.at, s.rkey));
	RC_CHECK_EQ(0x77, s.far.at[0]);
	/* Afterwards the device has forgotten what it pretended to have destroyed. */
	RC_CHECK_EQ(0, mwctl_sim_fault_release(id));
	RC_CHECK_STATE(IBV_QPS_RTS, s.pair.server.qp);
	RC_CHECK_STATUS(IBV_WC_REM_ACCESS_ERR, rc_write(&s.pair.client, &s.near, 1, s.far.at, s.rkey));
	stage_close(&s);
	rc_ok("after a fatal error nothing is made, destroying is faked, and windows stay open");
}

/* Probability follows the seed: the same seed, the same strikes. */
static void random_strikes(struct rc_device *device)
{
	struct mwctl_sim_fault fault = { .kind = MWCTL_SIM_FAIL_POST, .error = ENOMEM,
					 .random = UINT32_MAX / 2 };
	struct mwctl_sim_model model;
	struct stage s;
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	uint64_t seen[2] = { 0, 0 }, id;
	int round, i, n = 0;

	stage_open(&s, device);
	fault.qp_num = s.pair.client.qp->qp_num;
	for (round = 0; round < 2; round++) {
		RC_CHECK_EQ(0, mwctl_sim_model_get(&model, sizeof(model)));
		model.seed = 42;
		RC_CHECK_EQ(0, mwctl_sim_model_set(&model, sizeof(model)));
		RC_CHECK_EQ(0, mwctl_sim_fault_order(&fault, sizeof(fault), &id));
		for (i = 0; i < 60; i++) {
			wr = write_wr(&s, &sge, 1, 0);
			if (kit_try(s.pair.client.qp, &wr))
				seen[round] |= UINT64_C(1) << i;
			else
				expect(s.pair.client.cq, 1, IBV_WC_SUCCESS);
		}
		RC_CHECK_EQ(0, mwctl_sim_fault_release(id));
	}
	for (i = 0; i < 60; i++)
		n += (seen[0] >> i) & 1;
	RC_CHECK(n > 10 && n < 50);
	RC_CHECK(seen[0] == seen[1]);
	RC_CHECK_EQ(n, mwctl_sim_fault_hits(id));
	stage_close(&s);
	rc_ok("random strikes are the seed's");
}

int main(void)
{
	struct mwctl_sim_fault wrong = { .kind = 17 };
	struct rc_device device;

	kit_open(&device);
	RC_CHECK_EQ(EINVAL, mwctl_sim_fault_order(&wrong, sizeof(wrong), NULL));
	posts(&device);
	completions(&device);
	held_packets(&device);
	invalidate_outlives_its_qp(&device);
	queues(&device);
	calls(&device);
	fatal(&device);
	random_strikes(&device);
	RC_CHECK_EQ(MWCTL_SIM_RULE_NONE, kit_misuse());
	rc_device_close(&device);
	return 0;
}
