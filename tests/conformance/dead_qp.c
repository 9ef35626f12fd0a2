/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A QP in ERR: what it flushes is not done, and what still works. */
#include "scene.h"

/* Flushed is not invalidated: the window stays VALID in the device. */
static void flushed_is_not_invalidated(const struct rc_device *device)
{
	struct scene s;
	struct ibv_mw *mw;
	uint32_t rkey;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	rc_qp_modify(s.rogue.pair.server.qp, IBV_QPS_ERR);
	RC_CHECK_STATUS(IBV_WC_WR_FLUSH_ERR, rc_invalidate(&s.rogue.pair.server, s.rogue.rkey));
	RC_CHECK_STATUS(IBV_WC_WR_FLUSH_ERR,
			rc_bind(&s.rogue.pair.server, s.rogue.mw, rc_key_step(s.rogue.rkey, 1), s.memory.mr,
				s.rogue.block, BLOCK, READ_WRITE));

	/* A FREE window binds on the control's QP, this one does not. */
	mw = rc_mw_alloc(s.pd, IBV_MW_TYPE_2);
	rkey = rc_key_step(mw->rkey, 1);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_bind(&s.control.pair.server, mw, rkey, s.memory.mr,
						s.control.block, BLOCK, READ_WRITE));
	expect_lands(&s.control, s.control.block, 64, rkey);
	expect_local_failure(&s, s.control.pair.server.qp, IBV_WC_MW_BIND_ERR,
			     rc_bind(&s.control.pair.server, s.rogue.mw, rc_key_step(s.rogue.rkey, 1),
				     s.memory.mr, s.rogue.block, BLOCK, READ_WRITE));
	expect_misuse(MWCTL_SIM_RULE_BIND_VALID);
	rc_mw_dealloc(mw);
	scene_close(&s);
	rc_ok("on a QP in ERR a LOCAL_INV only flushes, and the window stays VALID");
}

/* Nor does it come to anything later: through RESET back to RTS the old key still opens. */
static void flushed_key_after_reset(const struct rc_device *device)
{
	struct scene s;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	rc_qp_modify(s.rogue.pair.server.qp, IBV_QPS_ERR);
	RC_CHECK_STATUS(IBV_WC_WR_FLUSH_ERR, rc_invalidate(&s.rogue.pair.server, s.rogue.rkey));
	rc_pair_reconnect(&s.rogue.pair, NULL);
	expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	party_dealloc(&s.rogue);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	scene_close(&s);
	rc_ok("a window outlives its QP's RESET: the old key opens again, until deallocated");
}

static void dealloc_works(const struct rc_device *device)
{
	struct scene s;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	party_bind(&s.control, READ_WRITE);
	rc_qp_modify(s.rogue.pair.server.qp, IBV_QPS_ERR);
	party_dealloc(&s.rogue);
	/* The same QP, connected again: the proof was no accident of its state. */
	rc_pair_reconnect(&s.rogue.pair, NULL);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	scene_close(&s);
	rc_ok("on a QP in ERR deallocation ends the window for good");
}

/* While the QP is in ERR nothing gets in by any of its windows. */
static void err_fences(const struct rc_device *device)
{
	struct scene s;
	enum ibv_wc_status status;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	party_bind(&s.control, READ_WRITE);
	expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	s.rogue.block[0] = 0x11;
	s.rogue.far.at[0] = 0x22;
	rc_qp_modify(s.rogue.pair.server.qp, IBV_QPS_ERR);
	status = rc_write(&s.rogue.pair.client, &s.rogue.far, 64, s.rogue.block, s.rogue.rkey);
	RC_CHECK(status != IBV_WC_SUCCESS);
	RC_CHECK_EQ(0x11, s.rogue.block[0]);
	expect_lands(&s.control, s.control.block, 64, s.control.rkey);
	scene_close(&s);
	rc_ok("a QP in ERR admits nothing; its client gets \"%s\"", ibv_wc_status_str(status));
}

/* Work posted before and after the move to ERR all comes back flushed, in order, signaled or not. */
static void everything_flushes(const struct rc_device *device)
{
	struct scene s;
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct rc_end *server = &s.rogue.pair.server;
	int i;

	scene_open(&s, device, NULL);
	wr = rc_wr_write(&sge, &s.memory, 64, NULL, 0);
	wr.opcode = IBV_WR_SEND;
	for (i = 0; i < 4; i++) {
		wr.wr_id = (uint64_t)i;
		wr.send_flags = i % 2 ? IBV_SEND_SIGNALED : 0;
		rc_post(server->qp, &wr);
	}
	rc_qp_modify(server->qp, IBV_QPS_ERR);
	wr.wr_id = 4;
	wr.send_flags = 0;
	rc_post(server->qp, &wr);
	for (i = 0; i < 5; i++) {
		struct ibv_wc wc = rc_wait(server->cq);

		RC_CHECK_EQ(i, wc.wr_id);
		RC_CHECK_STATUS(IBV_WC_WR_FLUSH_ERR, wc.status);
	}
	scene_close(&s);
	rc_ok("a QP in ERR flushes each work request in order, the unsignaled ones as well");
}

static void reset_discards(const struct rc_device *device)
{
	struct scene s;
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct rc_end *server = &s.rogue.pair.server;

	scene_open(&s, device, NULL);
	party_bind(&s.rogue, READ_WRITE);
	wr = rc_wr_write(&sge, &s.memory, 64, NULL, 0);
	wr.opcode = IBV_WR_SEND;
	rc_post(server->qp, &wr);
	wr = rc_wr_invalidate(s.rogue.rkey);
	rc_post(server->qp, &wr);
	rc_qp_modify(server->qp, IBV_QPS_RESET);
	rc_wait_nothing(server->cq, 50);
	rc_pair_reconnect(&s.rogue.pair, NULL);
	expect_lands(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	party_dealloc(&s.rogue);
	expect_denied(&s.rogue, s.rogue.block, 64, s.rogue.rkey);
	scene_close(&s);
	rc_ok("RESET discards what is outstanding without completions, a LOCAL_INV as well");
}

int main(void)
{
	struct rc_device device;

	rc_device_open(&device);
	flushed_is_not_invalidated(&device);
	flushed_key_after_reset(&device);
	dealloc_works(&device);
	err_fences(&device);
	everything_flushes(&device);
	reset_discards(&device);
	rc_device_close(&device);
	return 0;
}
