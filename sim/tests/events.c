/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Completion channels, extended completion queues, asynchronous events, descriptors. */
#define _GNU_SOURCE
#include "kit.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

struct stage {
	struct rc_device *device;
	struct ibv_pd *pd;
	struct ibv_qp *client, *server;
	struct rc_memory memory;
};

static void stage_open(struct stage *s, struct rc_device *device, struct ibv_cq *client_cq,
		       struct ibv_cq *server_cq)
{
	s->device = device;
	s->pd = ibv_alloc_pd(device->context);
	s->client = kit_qp(s->pd, client_cq, client_cq, NULL, 0);
	s->server = kit_qp(s->pd, server_cq, server_cq, NULL, 0);
	kit_connect(device, s->client, s->server);
	rc_memory_open(&s->memory, s->pd, 4096, KIT_ACCESS);
}

static void stage_close(struct stage *s)
{
	RC_CHECK_EQ(0, ibv_destroy_qp(s->client));
	RC_CHECK_EQ(0, ibv_destroy_qp(s->server));
	rc_memory_close(&s->memory);
	RC_CHECK_EQ(0, ibv_dealloc_pd(s->pd));
}

/* One message from the client to the server. */
static void send_one(struct stage *s, unsigned int flags)
{
	struct ibv_sge sge = { (uintptr_t)s->memory.at, 8, s->memory.mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_send_wr wr = { .wr_id = 2, .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1,
				  .send_flags = flags };

	RC_CHECK_EQ(0, ibv_post_recv(s->server, &recv, &bad));
	rc_post(s->client, &wr);
}

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static int drain(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n = 0;

	while (ibv_poll_cq(cq, 1, &wc) == 1)
		n++;
	return n;
}

static void *wait_event(void *channel)
{
	struct ibv_cq *cq = NULL;
	void *context;

	RC_CHECK_EQ(0, ibv_get_cq_event(channel, &cq, &context));
	return cq;
}

static void channels(struct rc_device *device)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(device->context);
	struct ibv_cq *client_cq = kit_cq(device, 64), *cq;
	struct ibv_cq *server_cq = ibv_create_cq(device->context, 64, &channel, channel, 0);
	struct stage s;
	pthread_t waiter;
	void *context, *got;
	int i;

	RC_CHECK(channel != NULL && server_cq != NULL);
	RC_CHECK_EQ(1, channel->refcnt);
	stage_open(&s, device, client_cq, server_cq);
	RC_CHECK_EQ(0, fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	RC_CHECK_EQ(-1, ibv_get_cq_event(channel, &cq, &context));
	RC_CHECK_EQ(EAGAIN, errno);

	/* No event without asking, one for each time it was asked for. */
	send_one(&s, 0);
	RC_CHECK(!readable(channel->fd));
	RC_CHECK_EQ(0, ibv_req_notify_cq(server_cq, 0));
	RC_CHECK(!readable(channel->fd));
	for (i = 0; i < 3; i++)
		send_one(&s, 0);
	RC_CHECK(readable(channel->fd));
	RC_CHECK_EQ(0, ibv_get_cq_event(channel, &cq, &context));
	RC_CHECK(cq == server_cq && context == &channel);
	RC_CHECK(!readable(channel->fd));
	ibv_ack_cq_events(cq, 1);
	RC_CHECK_EQ(1, cq->comp_events_completed);
	RC_CHECK_EQ(4, drain(server_cq));

	/* For solicited ones and errors only. */
	RC_CHECK_EQ(0, ibv_req_notify_cq(server_cq, 1));
	send_one(&s, 0);
	RC_CHECK(!readable(channel->fd));
	send_one(&s, IBV_SEND_SOLICITED);
	RC_CHECK(readable(channel->fd));
	RC_CHECK_EQ(0, ibv_get_cq_event(channel, &cq, &context));
	ibv_ack_cq_events(cq, 1);

	/* A thread that waits is woken. */
	RC_CHECK_EQ(0, fcntl(channel->fd, F_SETFL, 0));
	RC_CHECK_EQ(0, ibv_req_notify_cq(server_cq, 0));
	RC_CHECK_EQ(0, pthread_create(&waiter, NULL, wait_event, channel));
	send_one(&s, 0);
	RC_CHECK_EQ(0, pthread_join(waiter, &got));
	RC_CHECK(got == server_cq);
	ibv_ack_cq_events(server_cq, 1);

	/* An event nobody took goes with its queue. */
	RC_CHECK_EQ(0, ibv_req_notify_cq(server_cq, 0));
	send_one(&s, 0);
	RC_CHECK(readable(channel->fd));
	RC_CHECK_EQ(EBUSY, ibv_destroy_comp_channel(channel));
	RC_CHECK_EQ(MWCTL_SIM_RULE_DESTROY_BUSY, kit_misuse());
	stage_close(&s);
	RC_CHECK_EQ(0, ibv_destroy_cq(server_cq));
	RC_CHECK(!readable(channel->fd));
	RC_CHECK_EQ(0, ibv_destroy_cq(client_cq));
	RC_CHECK_EQ(0, ibv_destroy_comp_channel(channel));
	rc_ok("completion events come once for each time they are asked for");
}

static void *destroy_qp(void *qp)
{
	RC_CHECK_EQ(0, ibv_destroy_qp(qp));
	return NULL;
}

/* Destroying waits until what was taken is acknowledged. */
static void acknowledged(struct rc_device *device)
{
	struct ibv_cq *cq = kit_cq(device, 64);
	struct ibv_async_event event;
	struct stage s;
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	pthread_t destroyer;

	stage_open(&s, device, cq, cq);
	wr = rc_wr_write(&sge, &s.memory, 8, s.memory.at, s.memory.mr->rkey + 1);
	rc_post(s.client, &wr);
	RC_CHECK_EQ(0, ibv_get_async_event(device->context, &event));
	RC_CHECK_EQ(IBV_EVENT_QP_ACCESS_ERR, event.event_type);
	RC_CHECK(event.element.qp == s.server);
	RC_CHECK_EQ(0, pthread_create(&destroyer, NULL, destroy_qp, s.server));
	/* Nothing tells when the thread has begun to wait; it must not have ended. */
	rc_pause(20);
	RC_CHECK_EQ(EBUSY, pthread_tryjoin_np(destroyer, NULL));
	ibv_ack_async_event(&event);
	RC_CHECK_EQ(0, pthread_join(destroyer, NULL));
	s.server = kit_qp(s.pd, cq, cq, NULL, 0);
	stage_close(&s);
	RC_CHECK_EQ(0, ibv_destroy_cq(cq));
	rc_ok("a queue pair is destroyed only when its events are acknowledged");
}

static void extended_polling(struct rc_device *device)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 64,
		.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
	};
	struct ibv_cq_ex *ex = ibv_create_cq_ex(device->context, &attr);
	struct ibv_poll_cq_attr poll_attr = { 0 };
	struct ibv_cq *cq = ibv_cq_ex_to_cq(ex);
	struct ibv_wc wc;
	struct stage s;
	uint64_t time;

	RC_CHECK(ex != NULL);
	RC_CHECK(ex->read_imm_data == NULL);
	stage_open(&s, device, cq, cq);
	RC_CHECK_EQ(ENOENT, ibv_start_poll(ex, &poll_attr));
	send_one(&s, IBV_SEND_SIGNALED);
	RC_CHECK_EQ(0, ibv_start_poll(ex, &poll_attr));
	RC_CHECK_EQ(1, ex->wr_id);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, ex->status);
	RC_CHECK_EQ(IBV_WC_RECV, ibv_wc_read_opcode(ex));
	RC_CHECK_EQ(8, ibv_wc_read_byte_len(ex));
	RC_CHECK_EQ(s.server->qp_num, ibv_wc_read_qp_num(ex));
	RC_CHECK_EQ(s.client->qp_num, ibv_wc_read_src_qp(ex));
	time = ibv_wc_read_completion_ts(ex);
	/* The queue is held: on a real device this would wait for itself. */
	RC_CHECK_EQ(-1, ibv_poll_cq(cq, 1, &wc));
	RC_CHECK_EQ(MWCTL_SIM_RULE_WRONG_THREAD, kit_misuse());
	RC_CHECK_EQ(0, ibv_next_poll(ex));
	RC_CHECK_EQ(2, ex->wr_id);
	RC_CHECK_EQ(IBV_WC_SEND, ibv_wc_read_opcode(ex));
	RC_CHECK(ibv_wc_read_completion_ts(ex) >= time);
	RC_CHECK_EQ(ENOENT, ibv_next_poll(ex));
	ibv_end_poll(ex);
	send_one(&s, IBV_SEND_SIGNALED);
	RC_CHECK_EQ(2, drain(cq));
	stage_close(&s);
	RC_CHECK_EQ(0, ibv_destroy_cq(cq));
	rc_ok("extended polling shows each completion, and holds the queue meanwhile");
}

/* A destroyed queue pair's completions are gone, those of others stay. */
static void completions_vanish(struct rc_device *device)
{
	struct ibv_cq *client_cq = kit_cq(device, 64), *server_cq = kit_cq(device, 64);
	struct stage s, other;
	struct ibv_wc wc;

	stage_open(&s, device, client_cq, server_cq);
	stage_open(&other, device, client_cq, server_cq);
	send_one(&s, IBV_SEND_SIGNALED);
	send_one(&other, IBV_SEND_SIGNALED);
	send_one(&s, IBV_SEND_SIGNALED);
	RC_CHECK_EQ(0, ibv_destroy_qp(s.server));
	RC_CHECK_EQ(1, ibv_poll_cq(server_cq, 1, &wc));
	RC_CHECK_EQ(other.server->qp_num, wc.qp_num);
	RC_CHECK(kit_is_empty(server_cq));
	RC_CHECK_EQ(3, drain(client_cq));
	s.server = kit_qp(s.pd, server_cq, server_cq, NULL, 0);
	stage_close(&s);
	stage_close(&other);
	RC_CHECK_EQ(0, ibv_destroy_cq(client_cq));
	RC_CHECK_EQ(0, ibv_destroy_cq(server_cq));
	rc_ok("the completions of a destroyed queue pair are gone");
}

int main(void)
{
	struct rc_device device;

	kit_open(&device);
	RC_CHECK(!readable(device.context->async_fd));
	channels(&device);
	acknowledged(&device);
	extended_polling(&device);
	completions_vanish(&device);
	RC_CHECK(!readable(device.context->async_fd));
	RC_CHECK_EQ(MWCTL_SIM_RULE_NONE, kit_misuse());
	rc_device_close(&device);
	return 0;
}
