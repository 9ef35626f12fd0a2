/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What hangs, panics or corrupts on some real device is reported by the rule it breaks, and
 * then ends as the standard says. What breaks no rule is not reported.
 */
#include "kit.h"

#include <pthread.h>

enum { ROOM = 8192 };

struct stage {
	struct rc_pair pair, other;
	struct rc_memory memory;
	struct ibv_mw *mw;
};

static void stage_open(struct stage *s, struct rc_device *device)
{
	struct rc_options options = { 0 };

	rc_pair_open(&s->pair, device, NULL);
	options.server_pd = s->pair.server.pd;
	rc_pair_open(&s->other, device, &options);
	rc_memory_open(&s->memory, s->pair.server.pd, ROOM, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	s->mw = rc_mw_alloc(s->pair.server.pd, IBV_MW_TYPE_2);
	RC_CHECK_EQ(MWCTL_SIM_RULE_NONE, kit_misuse());
}

static void stage_close(struct stage *s)
{
	if (s->mw)
		rc_mw_dealloc(s->mw);
	rc_memory_close(&s->memory);
	rc_pair_close(&s->other);
	rc_pair_close(&s->pair);
	RC_CHECK_EQ(MWCTL_SIM_RULE_NONE, kit_misuse());
}

static enum ibv_wc_status bind(struct stage *s, struct rc_end *end, uint32_t rkey)
{
	return rc_bind(end, s->mw, rkey, s->memory.mr, s->memory.at, ROOM, IBV_ACCESS_REMOTE_WRITE);
}

static void invalidates(struct rc_device *device)
{
	struct stage s;
	uint32_t rkey;

	stage_open(&s, device);
	RC_CHECK_STATUS(IBV_WC_MW_BIND_ERR, rc_invalidate(&s.pair.server, s.mw->rkey));
	RC_CHECK_EQ(MWCTL_SIM_RULE_INV_NOT_BOUND, kit_misuse());
	RC_CHECK_STATE(IBV_QPS_ERR, s.pair.server.qp);
	stage_close(&s);

	stage_open(&s, device);
	rkey = rc_key_step(s.mw->rkey, 1);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind(&s, &s.pair.server, rkey));
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_invalidate(&s.pair.server, rkey));
	RC_CHECK_STATUS(IBV_WC_MW_BIND_ERR, rc_invalidate(&s.pair.server, rkey));
	RC_CHECK_EQ(MWCTL_SIM_RULE_INV_NOT_BOUND, kit_misuse());
	stage_close(&s);

	stage_open(&s, device);
	RC_CHECK_STATUS(IBV_WC_MW_BIND_ERR, rc_invalidate(&s.pair.server, s.memory.mr->rkey));
	RC_CHECK_EQ(MWCTL_SIM_RULE_INV_NOT_BOUND, kit_misuse());
	stage_close(&s);

	stage_open(&s, device);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind(&s, &s.pair.server, rc_key_step(s.mw->rkey, 1)));
	RC_CHECK_STATUS(IBV_WC_MW_BIND_ERR, rc_invalidate(&s.other.server, s.mw->rkey));
	RC_CHECK_EQ(MWCTL_SIM_RULE_INV_WRONG_QP, kit_misuse());
	/* The window is none the worse. */
	RC_CHECK_STATUS(IBV_WC_SUCCESS,
			rc_write(&s.pair.client, &s.memory, 64, s.memory.at + 4096, s.mw->rkey));
	stage_close(&s);

	/* By the peer: both ends fail, and the receive says so. */
	stage_open(&s, device);
	rc_post_recv(&s.pair.server, &s.memory, 5);
	RC_CHECK_STATUS(IBV_WC_REM_ACCESS_ERR,
			rc_send_with_inv(&s.pair.client, &s.memory, 8, s.mw->rkey));
	RC_CHECK_EQ(MWCTL_SIM_RULE_INV_NOT_BOUND, kit_misuse());
	RC_CHECK_STATE(IBV_QPS_ERR, s.pair.server.qp);
	RC_CHECK(rc_wait(s.pair.server.cq).status != IBV_WC_SUCCESS);
	stage_close(&s);
	rc_ok("invalidates of what is not bound, or not bound there");
}

static void binds(struct rc_device *device)
{
	struct stage s;
	uint32_t rkey;

	stage_open(&s, device);
	rkey = s.mw->rkey;
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind(&s, &s.pair.server, rc_key_step(rkey, 1)));
	RC_CHECK_STATUS(IBV_WC_MW_BIND_ERR, bind(&s, &s.pair.server, rc_key_step(rkey, 2)));
	RC_CHECK_EQ(MWCTL_SIM_RULE_BIND_VALID, kit_misuse());
	/* It stays as it was bound. */
	RC_CHECK_STATE(IBV_QPS_ERR, s.pair.server.qp);
	stage_close(&s);

	stage_open(&s, device);
	rkey = s.mw->rkey;
	s.mw->rkey = rc_key_step(rkey, 9);
	RC_CHECK_STATUS(IBV_WC_MW_BIND_ERR, bind(&s, &s.pair.server, rc_key_step(rkey, 1)));
	RC_CHECK_EQ(MWCTL_SIM_RULE_BIND_STALE_KEY, kit_misuse());
	stage_close(&s);

	stage_open(&s, device);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind(&s, &s.pair.server, s.mw->rkey));
	RC_CHECK_EQ(MWCTL_SIM_RULE_BIND_SAME_KEY, kit_misuse());
	stage_close(&s);
	rc_ok("binds of a bound window, with a stale key, with an unchanged one");
}

static void lifetimes(struct rc_device *device)
{
	struct ibv_send_wr inv;
	struct stage s;
	uint64_t stall;

	/* A region under a window. */
	stage_open(&s, device);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind(&s, &s.pair.server, rc_key_step(s.mw->rkey, 1)));
	RC_CHECK_EQ(EBUSY, ibv_dereg_mr(s.memory.mr));
	RC_CHECK_EQ(MWCTL_SIM_RULE_DEREG_MR_BOUND, kit_misuse());
	/* A queue pair under a window; deallocation is what still works. */
	RC_CHECK_EQ(0, ibv_destroy_qp(s.pair.server.qp));
	RC_CHECK_EQ(MWCTL_SIM_RULE_DESTROY_QP_BOUND, kit_misuse());
	RC_CHECK_EQ(EBUSY, ibv_dereg_mr(s.memory.mr));
	RC_CHECK_EQ(MWCTL_SIM_RULE_DEREG_MR_BOUND, kit_misuse());
	rc_mw_dealloc(s.mw);
	s.mw = NULL;
	s.pair.server.qp = rc_qp_create(s.pair.server.pd, s.pair.server.cq, NULL);
	stage_close(&s);

	/* A window whose invalidate is still in a live queue. */
	stage_open(&s, device);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind(&s, &s.pair.server, rc_key_step(s.mw->rkey, 1)));
	stall = kit_fault(MWCTL_SIM_STALL_SQ, s.pair.server.qp->qp_num, 1, 0, 0);
	inv = rc_wr_invalidate(s.mw->rkey);
	rc_post(s.pair.server.qp, &inv);
	RC_CHECK_EQ(0, ibv_dealloc_mw(s.mw));
	RC_CHECK_EQ(MWCTL_SIM_RULE_DEALLOC_INV_POSTED, kit_misuse());
	RC_CHECK_EQ(EINVAL, ibv_dealloc_mw(s.mw));
	RC_CHECK_EQ(MWCTL_SIM_RULE_USE_AFTER_FREE, kit_misuse());
	s.mw = NULL;
	RC_CHECK_EQ(0, mwctl_sim_fault_release(stall));
	RC_CHECK_STATUS(IBV_WC_MW_BIND_ERR, rc_wait(s.pair.server.cq).status);
	RC_CHECK_EQ(MWCTL_SIM_RULE_INV_NOT_BOUND, kit_misuse());
	stage_close(&s);

	/* The same on a dead queue pair is in order. */
	stage_open(&s, device);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, bind(&s, &s.pair.server, rc_key_step(s.mw->rkey, 1)));
	rc_qp_modify(s.pair.server.qp, IBV_QPS_ERR);
	inv = rc_wr_invalidate(s.mw->rkey);
	rc_post(s.pair.server.qp, &inv);
	RC_CHECK_STATUS(IBV_WC_WR_FLUSH_ERR, rc_wait(s.pair.server.cq).status);
	rc_mw_dealloc(s.mw);
	s.mw = NULL;
	RC_CHECK_EQ(MWCTL_SIM_RULE_NONE, kit_misuse());
	stage_close(&s);
	rc_ok("objects destroyed under others, or used after that");
}

static void destroy_busy(struct rc_device *device)
{
	struct ibv_pd *pd = ibv_alloc_pd(device->context);
	struct ibv_cq *cq = kit_cq(device, 8);
	struct ibv_qp *qp = kit_qp(pd, cq, cq, NULL, 0);

	RC_CHECK_EQ(EBUSY, ibv_destroy_cq(cq));
	RC_CHECK_EQ(MWCTL_SIM_RULE_DESTROY_BUSY, kit_misuse());
	RC_CHECK_EQ(EBUSY, ibv_dealloc_pd(pd));
	RC_CHECK_EQ(MWCTL_SIM_RULE_DESTROY_BUSY, kit_misuse());
	RC_CHECK_EQ(0, ibv_destroy_qp(qp));
	RC_CHECK_EQ(EINVAL, ibv_destroy_qp(qp));
	RC_CHECK_EQ(MWCTL_SIM_RULE_USE_AFTER_FREE, kit_misuse());
	RC_CHECK_EQ(0, ibv_destroy_cq(cq));
	RC_CHECK_EQ(0, ibv_dealloc_pd(pd));
	RC_CHECK(ibv_alloc_mw(pd, IBV_MW_TYPE_2) == NULL);
	RC_CHECK_EQ(MWCTL_SIM_RULE_USE_AFTER_FREE, kit_misuse());
	rc_ok("what is in use is not destroyed");
}

static void extended(struct rc_device *device)
{
	struct ibv_pd *pd = ibv_alloc_pd(device->context);
	struct ibv_cq *cq = kit_cq(device, 64);
	struct ibv_qp *a = kit_qp(pd, cq, cq, NULL, IBV_QP_EX_WITH_SEND);
	struct ibv_qp *b = kit_qp(pd, cq, cq, NULL, 0);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(a);
	struct ibv_mw *mw = rc_mw_alloc(pd, IBV_MW_TYPE_2);
	struct rc_memory memory;
	struct ibv_send_wr wr, *bad;

	RC_CHECK(ex != NULL && ibv_qp_to_qp_ex(b) == NULL);
	RC_CHECK(ex->wr_bind_mw == NULL && ex->wr_send != NULL);
	kit_connect(device, a, b);
	rc_memory_open(&memory, pd, ROOM, KIT_ACCESS);
	/* Between start and complete the queue is held: a real device would wait for ever. */
	wr = rc_wr_bind(mw, rc_key_step(mw->rkey, 1), memory.mr, memory.at, 64, IBV_ACCESS_REMOTE_READ);
	ibv_wr_start(ex);
	RC_CHECK_EQ(EDEADLK, ibv_post_send(a, &wr, &bad));
	RC_CHECK_EQ(MWCTL_SIM_RULE_WRONG_THREAD, kit_misuse());
	ibv_wr_abort(ex);
	/* The plain call takes what the queue was not sized for; mlx5 then overwrites its ring. */
	rc_post(a, &wr);
	RC_CHECK_EQ(MWCTL_SIM_RULE_SEND_OPS_FLAGS, kit_misuse());
	RC_CHECK_STATUS(IBV_WC_LOC_QP_OP_ERR, rc_wait(cq).status);
	RC_CHECK_STATE(IBV_QPS_ERR, a);
	rc_mw_dealloc(mw);
	rc_memory_close(&memory);
	RC_CHECK_EQ(0, ibv_destroy_qp(a));
	RC_CHECK_EQ(0, ibv_destroy_qp(b));
	RC_CHECK_EQ(0, ibv_destroy_cq(cq));
	RC_CHECK_EQ(0, ibv_dealloc_pd(pd));
	rc_ok("operations that an extended queue pair was not made for");
}

static void *post_elsewhere(void *qp)
{
	struct ibv_send_wr wr = { .wr_id = 3, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };

	rc_post((struct ibv_qp *)qp, &wr);
	return NULL;
}

/* In a thread domain there are no locks: a second thread in the middle of a batch corrupts it. */
static void two_threads(struct rc_device *device)
{
	struct ibv_td_init_attr td_attr = { 0 };
	struct ibv_td *td = ibv_alloc_td(device->context, &td_attr);
	struct ibv_pd *pd = ibv_alloc_pd(device->context);
	struct ibv_parent_domain_init_attr attr = { .pd = pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(device->context, &attr);
	struct ibv_cq *cq = kit_cq(device, 64);
	struct ibv_qp *a = kit_qp(parent, cq, cq, NULL, IBV_QP_EX_WITH_SEND);
	struct ibv_qp *b = kit_qp(pd, cq, cq, NULL, 0);
	struct ibv_recv_wr recv = { .wr_id = 4 }, *bad;
	double deadline = rc_now() + RC_DEADLINE_S;
	uint32_t rule;
	pthread_t thread;

	kit_connect(device, a, b);
	RC_CHECK_EQ(0, ibv_post_recv(b, &recv, &bad));
	ibv_wr_start(ibv_qp_to_qp_ex(a));
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, post_elsewhere, a));
	while ((rule = kit_misuse()) == MWCTL_SIM_RULE_NONE)
		RC_CHECK(rc_now() < deadline);
	RC_CHECK_EQ(MWCTL_SIM_RULE_WRONG_THREAD, rule);
	ibv_wr_abort(ibv_qp_to_qp_ex(a));
	RC_CHECK_EQ(0, pthread_join(thread, NULL));
	RC_CHECK_EQ(4, rc_wait(cq).wr_id);
	RC_CHECK_EQ(3, rc_wait(cq).wr_id);
	/* One after the other is in order. */
	RC_CHECK_EQ(0, ibv_post_recv(b, &recv, &bad));
	post_elsewhere(a);
	RC_CHECK_EQ(MWCTL_SIM_RULE_NONE, kit_misuse());
	RC_CHECK_EQ(0, ibv_destroy_qp(a));
	RC_CHECK_EQ(0, ibv_destroy_qp(b));
	RC_CHECK_EQ(0, ibv_destroy_cq(cq));
	RC_CHECK_EQ(0, ibv_dealloc_pd(parent));
	RC_CHECK_EQ(0, ibv_dealloc_pd(pd));
	RC_CHECK_EQ(0, ibv_dealloc_td(td));
	rc_ok("two threads at once in a thread domain");
}

/* A parent domain is its domain's second face; its thread domain takes the locks away. */
static void parent_domains(struct rc_device *device)
{
	struct ibv_td_init_attr td_attr = { 0 };
	struct ibv_td *td = ibv_alloc_td(device->context, &td_attr);
	struct ibv_pd *pd = ibv_alloc_pd(device->context);
	struct ibv_parent_domain_init_attr attr = { .pd = pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(device->context, &attr);
	struct rc_options options = { .server_pd = parent, .client_pd = pd };
	struct rc_memory memory;
	struct rc_pair pair;
	struct ibv_mw *mw;

	RC_CHECK(td != NULL && parent != NULL);
	RC_CHECK_EQ(EBUSY, ibv_dealloc_td(td));
	RC_CHECK_EQ(MWCTL_SIM_RULE_DESTROY_BUSY, kit_misuse());
	RC_CHECK_EQ(EBUSY, ibv_dealloc_pd(pd));
	RC_CHECK_EQ(MWCTL_SIM_RULE_DESTROY_BUSY, kit_misuse());
	rc_pair_open(&pair, device, &options);
	rc_memory_open(&memory, pd, ROOM, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	mw = rc_mw_alloc(pd, IBV_MW_TYPE_2);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&pair.server, mw, rc_key_step(mw->rkey, 1), memory.mr,
						memory.at, ROOM, IBV_ACCESS_REMOTE_WRITE));
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_write(&pair.client, &memory, 64, memory.at + 4096, mw->rkey));
	rc_mw_dealloc(mw);
	rc_memory_close(&memory);
	rc_pair_close(&pair);
	RC_CHECK_EQ(0, ibv_dealloc_pd(parent));
	RC_CHECK_EQ(0, ibv_dealloc_td(td));
	RC_CHECK_EQ(0, ibv_dealloc_pd(pd));
	rc_ok("a parent domain stands for its domain");
}

int main(void)
{
	struct rc_device device;
	struct ibv_context *context;
	struct ibv_device *same;

	kit_open(&device);
	invalidates(&device);
	binds(&device);
	lifetimes(&device);
	destroy_busy(&device);
	extended(&device);
	parent_domains(&device);
	two_threads(&device);
	/* What is left open goes with the device. */
	same = device.context->device;
	context = ibv_open_device(same);
	RC_CHECK(ibv_alloc_mw(ibv_alloc_pd(context), IBV_MW_TYPE_2) != NULL);
	RC_CHECK_EQ(0, ibv_close_device(context));
	RC_CHECK_EQ(MWCTL_SIM_RULE_DESTROY_BUSY, kit_misuse());
	RC_CHECK_EQ(EINVAL, ibv_close_device(context));
	RC_CHECK_EQ(MWCTL_SIM_RULE_USE_AFTER_FREE, kit_misuse());
	RC_CHECK_EQ(MWCTL_SIM_RULE_NONE, kit_misuse());
	rc_device_close(&device);
	return 0;
}
