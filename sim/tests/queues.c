/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Queues and states: what waits, what is flushed, what is discarded, what overruns. */
#include "kit.h"

#include <poll.h>

enum { ROOM = 16384 };

struct stage {
	struct rc_device *device;
	struct ibv_pd *pd;
	struct ibv_cq *client_cq, *server_cq;
	struct ibv_srq *srq;
	struct ibv_qp *client, *server;
	struct rc_memory near, far;
};

static void stage_open(struct stage *s, struct rc_device *device, int server_cqe, bool shared)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 16, .max_sge = 2 } };

	memset(s, 0, sizeof(*s));
	s->device = device;
	s->pd = ibv_alloc_pd(device->context);
	s->client_cq = kit_cq(device, 64);
	s->server_cq = kit_cq(device, server_cqe);
	if (shared) {
		s->srq = ibv_create_srq(s->pd, &attr);
		RC_CHECK(s->srq != NULL);
	}
	s->client = kit_qp(s->pd, s->client_cq, s->client_cq, NULL, 0);
	s->server = kit_qp(s->pd, s->server_cq, s->server_cq, s->srq, 0);
	kit_connect(device, s->client, s->server);
	rc_memory_open(&s->near, s->pd, ROOM, KIT_ACCESS);
	rc_memory_open(&s->far, s->pd, ROOM, KIT_ACCESS);
}

static void stage_close(struct stage *s)
{
	RC_CHECK_EQ(0, ibv_destroy_qp(s->client));
	RC_CHECK_EQ(0, ibv_destroy_qp(s->server));
	if (s->srq)
		RC_CHECK_EQ(0, ibv_destroy_srq(s->srq));
	RC_CHECK_EQ(0, ibv_destroy_cq(s->client_cq));
	RC_CHECK_EQ(0, ibv_destroy_cq(s->server_cq));
	rc_memory_close(&s->near);
	rc_memory_close(&s->far);
	RC_CHECK_EQ(0, ibv_dealloc_pd(s->pd));
}

static struct ibv_send_wr send_wr(struct ibv_sge *sge, struct stage *s, uint64_t wr_id)
{
	struct ibv_send_wr wr = rc_wr_write(sge, &s->near, 64, NULL, 0);

	wr.opcode = IBV_WR_SEND;
	wr.wr_id = wr_id;
	return wr;
}

static void post_send(struct stage *s, struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = send_wr(&sge, s, wr_id);

	rc_post(qp, &wr);
}

static void post_recv(struct stage *s, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)s->far.at, 64, s->far.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (s->srq)
		RC_CHECK_EQ(0, ibv_post_srq_recv(s->srq, &wr, &bad));
	else
		RC_CHECK_EQ(0, ibv_post_recv(s->server, &wr, &bad));
}

static void expect(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = rc_wait(cq);

	RC_CHECK_EQ(wr_id, wc.wr_id);
	RC_CHECK_STATUS(status, wc.status);
}

/* The next event of the context is this one. */
static void expect_event(struct stage *s, enum ibv_event_type type, void *element)
{
	struct pollfd p = { .fd = s->device->context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	RC_CHECK_EQ(1, poll(&p, 1, RC_DEADLINE_S * 1000));
	RC_CHECK_EQ(0, ibv_get_async_event(s->device->context, &event));
	RC_CHECK_EQ(type, event.event_type);
	RC_CHECK((void *)event.element.qp == element);
	ibv_ack_async_event(&event);
}

static void expect_no_event(struct stage *s)
{
	struct pollfd p = { .fd = s->device->context->async_fd, .events = POLLIN };

	RC_CHECK_EQ(0, poll(&p, 1, 0));
}

static void sq_drained(struct rc_device *device)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct ibv_qp_init_attr init;
	struct stage s;

	stage_open(&s, device, 64, false);
	post_send(&s, s.client, 1);
	post_send(&s, s.client, 2);
	RC_CHECK_EQ(0, ibv_modify_qp(s.client, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	/* The first has begun and waits for a receive: the queue is draining. */
	RC_CHECK_EQ(0, ibv_query_qp(s.client, &attr, IBV_QP_STATE, &init));
	RC_CHECK_EQ(IBV_QPS_SQD, attr.qp_state);
	RC_CHECK_EQ(1, attr.sq_draining);
	expect_no_event(&s);
	post_recv(&s, 10);
	post_recv(&s, 11);
	expect(s.client_cq, 1, IBV_WC_SUCCESS);
	expect_event(&s, IBV_EVENT_SQ_DRAINED, s.client);
	RC_CHECK_EQ(0, ibv_query_qp(s.client, &attr, IBV_QP_STATE, &init));
	RC_CHECK_EQ(0, attr.sq_draining);
	/* What had not begun waits, and so does what is posted now. */
	post_send(&s, s.client, 3);
	RC_CHECK(kit_is_empty(s.client_cq));
	rc_qp_modify(s.client, IBV_QPS_RTS);
	expect(s.client_cq, 2, IBV_WC_SUCCESS);
	RC_CHECK(kit_is_empty(s.client_cq));
	post_recv(&s, 12);
	expect(s.client_cq, 3, IBV_WC_SUCCESS);
	expect_no_event(&s);
	stage_close(&s);
	rc_ok("SQD: what has begun is finished, the rest waits, the event comes in between");
}

static void reset_discards(struct rc_device *device)
{
	struct stage s;

	stage_open(&s, device, 64, false);
	post_send(&s, s.client, 1);
	post_send(&s, s.client, 2);
	post_recv(&s, 10);
	expect(s.client_cq, 1, IBV_WC_SUCCESS);
	expect(s.server_cq, 10, IBV_WC_SUCCESS);
	post_recv(&s, 11);
	expect(s.client_cq, 2, IBV_WC_SUCCESS);
	expect(s.server_cq, 11, IBV_WC_SUCCESS);
	post_send(&s, s.client, 3);
	rc_qp_modify(s.client, IBV_QPS_RESET);
	post_recv(&s, 12);
	rc_qp_modify(s.server, IBV_QPS_RESET);
	RC_CHECK(kit_is_empty(s.client_cq));
	RC_CHECK(kit_is_empty(s.server_cq));
	/* Up again it is as new, every slot free. */
	kit_connect(device, s.client, s.server);
	for (uint64_t i = 0; i < 16; i++) {
		post_recv(&s, 100 + i);
		post_send(&s, s.client, 200 + i);
	}
	for (uint64_t i = 0; i < 16; i++) {
		expect(s.server_cq, 100 + i, IBV_WC_SUCCESS);
		expect(s.client_cq, 200 + i, IBV_WC_SUCCESS);
	}
	stage_close(&s);
	rc_ok("RESET discards without completions");
}

static void error_flushes(struct rc_device *device)
{
	struct stage s;
	uint64_t i;

	stage_open(&s, device, 64, false);
	for (i = 0; i < 4; i++)
		post_send(&s, s.client, i);
	rc_qp_modify(s.client, IBV_QPS_ERR);
	for (i = 0; i < 4; i++)
		expect(s.client_cq, i, IBV_WC_WR_FLUSH_ERR);
	post_send(&s, s.client, 5);
	expect(s.client_cq, 5, IBV_WC_WR_FLUSH_ERR);
	/* The other side knows nothing of it. */
	post_recv(&s, 10);
	RC_CHECK_STATE(IBV_QPS_RTS, s.server);
	RC_CHECK(kit_is_empty(s.server_cq));
	rc_qp_modify(s.server, IBV_QPS_ERR);
	expect(s.server_cq, 10, IBV_WC_WR_FLUSH_ERR);
	post_recv(&s, 11);
	expect(s.server_cq, 11, IBV_WC_WR_FLUSH_ERR);
	stage_close(&s);
	rc_ok("ERR flushes what is posted, before and after");
}

static void not_connected(struct rc_device *device)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad;
	struct ibv_qp *qp;
	struct stage s;

	stage_open(&s, device, 64, false);
	qp = kit_qp(s.pd, s.client_cq, s.client_cq, NULL, 0);
	wr = send_wr(&sge, &s, 1);
	RC_CHECK_EQ(EINVAL, kit_try(qp, &wr));
	RC_CHECK_EQ(EINVAL, ibv_post_recv(qp, &recv, &bad));
	RC_CHECK(bad == &recv);
	RC_CHECK_EQ(0, ibv_destroy_qp(qp));

	/* Nobody there, or nobody that answers. */
	rc_qp_modify(s.server, IBV_QPS_ERR);
	post_send(&s, s.client, 2);
	expect(s.client_cq, 2, IBV_WC_RETRY_EXC_ERR);
	RC_CHECK_STATE(IBV_QPS_ERR, s.client);
	stage_close(&s);
	rc_ok("posting before RTS is refused; a peer that is gone costs the retries");
}

/* From RESET to RTS with a limited number of retries. */
static void connect_impatient(struct stage *s, uint8_t rnr_retry)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = s->server->qp_num,
		.ah_attr = { .port_num = 1, .is_global = 1,
			     .grh = { .dgid = s->device->gid, .sgid_index = 1 } },
	};
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7,
				   .rnr_retry = rnr_retry };

	RC_CHECK_EQ(0, ibv_modify_qp(s->client, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						       IBV_QP_ACCESS_FLAGS));
	RC_CHECK_EQ(0, ibv_modify_qp(s->client, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						      IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						      IBV_QP_MAX_DEST_RD_ATOMIC |
						      IBV_QP_MIN_RNR_TIMER));
	RC_CHECK_EQ(0, ibv_modify_qp(s->client, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						      IBV_QP_MAX_QP_RD_ATOMIC));
}

static void receiver_not_ready(struct rc_device *device)
{
	struct mwctl_sim_counters before, after;
	struct stage s;
	int retry;

	/* 0: at once. 3: after three receiver-not-ready timers, unless a receive comes. */
	for (retry = 0; retry <= 3; retry += 3) {
		stage_open(&s, device, 64, false);
		rc_qp_modify(s.client, IBV_QPS_RESET);
		connect_impatient(&s, (uint8_t)retry);
		before = kit_counters();
		post_send(&s, s.client, 1);
		expect(s.client_cq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
		RC_CHECK_STATE(IBV_QPS_ERR, s.client);
		RC_CHECK_STATE(IBV_QPS_RTS, s.server);
		after = kit_counters();
		RC_CHECK(after.rnr_naks > before.rnr_naks);
		stage_close(&s);
	}
	rc_ok("a receiver that is never ready: RNR_RETRY_EXC_ERR, the receiver lives");

	stage_open(&s, device, 64, false);
	post_send(&s, s.client, 1);
	RC_CHECK(kit_is_empty(s.client_cq));
	post_recv(&s, 10);
	expect(s.client_cq, 1, IBV_WC_SUCCESS);
	stage_close(&s);
	rc_ok("with rnr_retry 7 the requester waits for ever, and goes on at the receive");
}

static void bad_messages(struct rc_device *device)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct stage s;

	/* Longer than the receive. */
	stage_open(&s, device, 64, false);
	post_recv(&s, 10);
	wr = send_wr(&sge, &s, 1);
	sge.length = 65;
	rc_post(s.client, &wr);
	expect(s.client_cq, 1, IBV_WC_REM_INV_REQ_ERR);
	expect(s.server_cq, 10, IBV_WC_LOC_LEN_ERR);
	RC_CHECK_STATE(IBV_QPS_ERR, s.client);
	RC_CHECK_STATE(IBV_QPS_ERR, s.server);
	stage_close(&s);

	/* Into memory that the receiver's key does not open. */
	stage_open(&s, device, 64, false);
	{
		struct ibv_sge bad_sge = { (uintptr_t)s.far.at, 64, s.far.mr->lkey + 1 };
		struct ibv_recv_wr recv = { .wr_id = 10, .sg_list = &bad_sge, .num_sge = 1 }, *bad;

		RC_CHECK_EQ(0, ibv_post_recv(s.server, &recv, &bad));
	}
	post_send(&s, s.client, 1);
	expect(s.client_cq, 1, IBV_WC_REM_OP_ERR);
	expect(s.server_cq, 10, IBV_WC_LOC_PROT_ERR);
	stage_close(&s);

	/* From memory that the sender's key does not open: the peer never hears of it. */
	stage_open(&s, device, 64, false);
	wr = send_wr(&sge, &s, 1);
	sge.addr = (uintptr_t)s.near.at + ROOM - 8;
	rc_post(s.client, &wr);
	expect(s.client_cq, 1, IBV_WC_LOC_PROT_ERR);
	RC_CHECK_STATE(IBV_QPS_ERR, s.client);
	RC_CHECK_STATE(IBV_QPS_RTS, s.server);
	stage_close(&s);

	/* An atomic that is not aligned. */
	stage_open(&s, device, 64, false);
	wr = (struct ibv_send_wr){ .wr_id = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &sge,
				   .num_sge = 1, .send_flags = IBV_SEND_SIGNALED };
	sge = (struct ibv_sge){ (uintptr_t)s.near.at, 8, s.near.mr->lkey };
	wr.wr.atomic.remote_addr = (uintptr_t)s.far.at + 4;
	wr.wr.atomic.rkey = s.far.mr->rkey;
	wr.wr.atomic.compare_add = 1;
	rc_post(s.client, &wr);
	expect(s.client_cq, 1, IBV_WC_REM_INV_REQ_ERR);
	expect_event(&s, IBV_EVENT_QP_REQ_ERR, s.server);
	stage_close(&s);
	rc_ok("messages that do not fit, and memory that a key does not open, have their own statuses");
}

static void cq_overrun(struct rc_device *device)
{
	struct stage s;
	uint64_t i;

	stage_open(&s, device, 4, false);
	for (i = 0; i < 6; i++) {
		post_recv(&s, i);
		post_send(&s, s.client, i);
	}
	expect_event(&s, IBV_EVENT_CQ_ERR, s.server_cq);
	expect_event(&s, IBV_EVENT_QP_FATAL, s.server);
	RC_CHECK_EQ(MWCTL_SIM_RULE_CQ_OVERRUN, kit_misuse());
	RC_CHECK_STATE(IBV_QPS_ERR, s.server);
	for (i = 0; i < 4; i++)
		expect(s.server_cq, i, IBV_WC_SUCCESS);
	RC_CHECK(kit_is_empty(s.server_cq));
	stage_close(&s);
	rc_ok("a full completion queue: what is in it stays, it and its queue pairs fail");
}

static void shared_receives(struct rc_device *device)
{
	struct ibv_srq_attr attr = { .srq_limit = 2 };
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad;
	struct stage s;
	uint64_t i;

	stage_open(&s, device, 64, true);
	RC_CHECK_EQ(EINVAL, ibv_post_recv(s.server, &recv, &bad));
	RC_CHECK_EQ(0, ibv_modify_srq(s.srq, &attr, IBV_SRQ_LIMIT));
	for (i = 0; i < 3; i++)
		post_recv(&s, i);
	post_send(&s, s.client, 20);
	expect(s.client_cq, 20, IBV_WC_SUCCESS);
	expect_no_event(&s);
	post_send(&s, s.client, 21);
	expect(s.client_cq, 21, IBV_WC_SUCCESS);
	expect_event(&s, IBV_EVENT_SRQ_LIMIT_REACHED, s.srq);
	RC_CHECK_EQ(0, ibv_query_srq(s.srq, &attr));
	RC_CHECK_EQ(0, attr.srq_limit);
	RC_CHECK_EQ(16, attr.max_wr);
	post_send(&s, s.client, 22);
	expect(s.client_cq, 22, IBV_WC_SUCCESS);
	expect_no_event(&s);
	for (i = 0; i < 3; i++)
		expect(s.server_cq, i, IBV_WC_SUCCESS);
	/* Empty: the requester waits until somebody posts. */
	post_send(&s, s.client, 23);
	RC_CHECK(kit_is_empty(s.client_cq));
	post_recv(&s, 3);
	expect(s.client_cq, 23, IBV_WC_SUCCESS);
	expect(s.server_cq, 3, IBV_WC_SUCCESS);
	/* Sixteen at most are taken until their completions are polled. */
	for (i = 0; i < 16; i++)
		post_recv(&s, i);
	RC_CHECK_EQ(ENOMEM, ibv_post_srq_recv(s.srq, &recv, &bad));
	RC_CHECK_EQ(MWCTL_SIM_RULE_RQ_OVERFLOW, kit_misuse());
	RC_CHECK_EQ(EBUSY, ibv_destroy_srq(s.srq));
	RC_CHECK_EQ(MWCTL_SIM_RULE_DESTROY_BUSY, kit_misuse());
	rc_qp_modify(s.server, IBV_QPS_ERR);
	expect_event(&s, IBV_EVENT_QP_LAST_WQE_REACHED, s.server);
	RC_CHECK(kit_is_empty(s.server_cq));
	stage_close(&s);
	rc_ok("a shared receive queue: its limit, its waiting requesters, its last receive");
}

/* A QP that is connected to itself. */
static void loop_back(struct rc_device *device)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct stage s;

	stage_open(&s, device, 64, false);
	rc_qp_modify(s.server, IBV_QPS_RESET);
	rc_qp_connect(device, s.server, s.server->qp_num, NULL);
	post_send(&s, s.server, 1);
	RC_CHECK(kit_is_empty(s.server_cq));
	post_recv(&s, 10);
	expect(s.server_cq, 10, IBV_WC_SUCCESS);
	expect(s.server_cq, 1, IBV_WC_SUCCESS);
	memset(s.near.at, 5, 64);
	wr = rc_wr_write(&sge, &s.near, 64, s.far.at, s.far.mr->rkey + 1);
	wr.wr_id = 2;
	rc_post(s.server, &wr);
	expect(s.server_cq, 2, IBV_WC_REM_ACCESS_ERR);
	RC_CHECK_STATE(IBV_QPS_ERR, s.server);
	stage_close(&s);
	rc_ok("a queue pair connected to itself");
}

/* Packets that are out of sequence are not taken. */
static void sequence(struct rc_device *device)
{
	struct stage s;

	stage_open(&s, device, 64, false);
	post_recv(&s, 10);
	post_send(&s, s.client, 1);
	expect(s.client_cq, 1, IBV_WC_SUCCESS);
	/* Only one side starts afresh. */
	rc_qp_modify(s.client, IBV_QPS_RESET);
	rc_qp_connect(device, s.client, s.server->qp_num, NULL);
	post_send(&s, s.client, 2);
	expect(s.client_cq, 2, IBV_WC_RETRY_EXC_ERR);
	stage_close(&s);

	/* Connected to somebody who is connected to somebody else. */
	stage_open(&s, device, 64, false);
	rc_qp_modify(s.server, IBV_QPS_RESET);
	rc_qp_connect(device, s.server, s.server->qp_num, NULL);
	post_send(&s, s.client, 3);
	expect(s.client_cq, 3, IBV_WC_RETRY_EXC_ERR);
	stage_close(&s);
	rc_ok("sequence numbers and both ends of a connection must agree");
}

int main(void)
{
	struct rc_device device;

	kit_open(&device);
	sq_drained(&device);
	reset_discards(&device);
	error_flushes(&device);
	not_connected(&device);
	receiver_not_ready(&device);
	bad_messages(&device);
	cq_overrun(&device);
	shared_receives(&device);
	loop_back(&device);
	sequence(&device);
	RC_CHECK_EQ(MWCTL_SIM_RULE_NONE, kit_misuse());
	rc_device_close(&device);
	return 0;
}
