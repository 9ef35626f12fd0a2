/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Every operation, at every length that a packet boundary makes special, by both ways to post. */
#include "kit.h"

#include <arpa/inet.h>

enum { ROOM = 16384, IMM = 0x12345678 };

struct stage {
	struct rc_device *device;
	struct ibv_pd *pd;
	struct ibv_cq *client_cq, *server_cq;
	struct ibv_qp *client, *server;
	struct rc_memory near, far;
	bool extended;
};

static const uint32_t lengths[] = { 0, 1, 1023, 1024, 1025, 5000 };
#define LENGTHS (sizeof(lengths) / sizeof(lengths[0]))

static void stage_open(struct stage *s, struct rc_device *device, bool extended)
{
	memset(s, 0, sizeof(*s));
	s->device = device;
	s->extended = extended;
	s->pd = ibv_alloc_pd(device->context);
	s->client_cq = kit_cq(device, 64);
	s->server_cq = kit_cq(device, 64);
	s->client = kit_qp(s->pd, s->client_cq, s->client_cq, NULL, extended ? 0x3ff : 0);
	s->server = kit_qp(s->pd, s->server_cq, s->server_cq, NULL, extended ? 0x3ff : 0);
	kit_connect(device, s->client, s->server);
	rc_memory_open(&s->near, s->pd, ROOM, KIT_ACCESS);
	rc_memory_open(&s->far, s->pd, ROOM, KIT_ACCESS);
}

static void stage_close(struct stage *s)
{
	RC_CHECK(kit_is_empty(s->client_cq));
	RC_CHECK(kit_is_empty(s->server_cq));
	RC_CHECK_EQ(0, ibv_destroy_qp(s->client));
	RC_CHECK_EQ(0, ibv_destroy_qp(s->server));
	RC_CHECK_EQ(0, ibv_destroy_cq(s->client_cq));
	RC_CHECK_EQ(0, ibv_destroy_cq(s->server_cq));
	rc_memory_close(&s->near);
	rc_memory_close(&s->far);
	RC_CHECK_EQ(0, ibv_dealloc_pd(s->pd));
}

/* Posts what `wr` says, by the extended calls if the queue pair is extended. */
static void post(struct stage *s, struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_data_buf buffers[4];
	int i;

	RC_CHECK_EQ(s->extended, ex != NULL);
	if (!ex) {
		rc_post(qp, wr);
		return;
	}
	ibv_wr_start(ex);
	ex->wr_id = wr->wr_id;
	ex->wr_flags = wr->send_flags;
	switch (wr->opcode) {
	case IBV_WR_SEND: ibv_wr_send(ex); break;
	case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(ex, wr->imm_data); break;
	case IBV_WR_SEND_WITH_INV: ibv_wr_send_inv(ex, wr->invalidate_rkey); break;
	case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr); break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		ibv_wr_rdma_write_imm(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
		break;
	case IBV_WR_RDMA_READ: ibv_wr_rdma_read(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr); break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		ibv_wr_atomic_cmp_swp(ex, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
				      wr->wr.atomic.compare_add, wr->wr.atomic.swap);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		ibv_wr_atomic_fetch_add(ex, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
					wr->wr.atomic.compare_add);
		break;
	case IBV_WR_BIND_MW:
		ibv_wr_bind_mw(ex, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
		break;
	case IBV_WR_LOCAL_INV: ibv_wr_local_inv(ex, wr->invalidate_rkey); break;
	default: RC_FAIL("opcode %d", wr->opcode);
	}
	if (wr->send_flags & IBV_SEND_INLINE) {
		for (i = 0; i < wr->num_sge; i++)
			buffers[i] = (struct ibv_data_buf){ (void *)(uintptr_t)wr->sg_list[i].addr,
							    wr->sg_list[i].length };
		if (wr->num_sge == 1)
			ibv_wr_set_inline_data(ex, buffers[0].addr, buffers[0].length);
		else
			ibv_wr_set_inline_data_list(ex, (size_t)wr->num_sge, buffers);
	} else if (wr->num_sge == 1) {
		ibv_wr_set_sge(ex, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
	} else if (wr->num_sge > 1) {
		ibv_wr_set_sge_list(ex, (size_t)wr->num_sge, wr->sg_list);
	}
	RC_CHECK_EQ(0, ibv_wr_complete(ex));
}

/* `length` bytes at `at`, in three uneven elements that leave gaps between them. */
static int cut(struct ibv_sge *sge, const struct rc_memory *memory, uint32_t length)
{
	uint32_t parts[3] = { length / 7, length / 2, 0 };
	uint64_t at = (uintptr_t)memory->at;
	int i;

	parts[2] = length - parts[0] - parts[1];
	for (i = 0; i < 3; i++) {
		sge[i] = (struct ibv_sge){ at, parts[i], memory->mr->lkey };
		at += parts[i] + 5;
	}
	return 3;
}

/* Byte `i` of what three elements hold. */
static uint8_t *byte_of(struct ibv_sge *sge, uint32_t i)
{
	int k = 0;

	while (i >= sge[k].length)
		i -= sge[k++].length;
	return (uint8_t *)(uintptr_t)sge[k].addr + i;
}

static void fill(struct stage *s)
{
	static uint8_t seed;
	size_t i;

	seed += 37;
	for (i = 0; i < ROOM; i++)
		s->near.at[i] = (uint8_t)(seed + i * 13 + i / 256);
	memset(s->far.at, 0, ROOM);
}

static void expect(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = rc_wait(cq);

	RC_CHECK_EQ(wr_id, wc.wr_id);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	RC_CHECK_EQ(opcode, wc.opcode);
}

static void sends(struct stage *s)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM };
	struct ibv_sge from[3], to[3];
	struct ibv_recv_wr recv = { .wr_id = 9, .sg_list = to, .num_sge = 3 }, *bad;
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	size_t i, op, in_line;
	uint32_t n, b;

	for (op = 0; op < 2; op++)
		for (i = 0; i < LENGTHS; i++)
			for (in_line = 0; in_line < 2; in_line++) {
				n = lengths[i];
				if (in_line && n > 128)
					continue;
				fill(s);
				cut(from, &s->near, n);
				cut(to, &s->far, n + 200);
				RC_CHECK_EQ(0, ibv_post_recv(s->server, &recv, &bad));
				wr = (struct ibv_send_wr){
					.wr_id = 1, .opcode = ops[op], .sg_list = from, .num_sge = 3,
					.send_flags = IBV_SEND_SIGNALED | (in_line ? IBV_SEND_INLINE : 0),
					.imm_data = htonl(IMM),
				};
				post(s, s->client, &wr);
				wc = rc_wait(s->server_cq);
				RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
				RC_CHECK_EQ(9, wc.wr_id);
				RC_CHECK_EQ(IBV_WC_RECV, wc.opcode);
				RC_CHECK_EQ(n, wc.byte_len);
				RC_CHECK_EQ(s->client->qp_num, wc.src_qp);
				RC_CHECK_EQ(op ? IBV_WC_WITH_IMM : 0, wc.wc_flags);
				if (op)
					RC_CHECK_EQ(IMM, ntohl(wc.imm_data));
				expect(s->client_cq, 1, IBV_WC_SEND);
				for (b = 0; b < n; b++)
					RC_CHECK_EQ(*byte_of(from, b), *byte_of(to, b));
				RC_CHECK_EQ(0, *byte_of(to, n));
			}
	rc_ok("SEND and SEND_WITH_IMM, gathered, scattered and inline");
}

static void writes(struct stage *s)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM };
	struct ibv_sge from[3];
	struct ibv_recv_wr recv = { .wr_id = 9 }, *bad;
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	size_t i, op;
	uint32_t n, b;

	for (op = 0; op < 2; op++)
		for (i = 0; i < LENGTHS; i++) {
			n = lengths[i];
			fill(s);
			cut(from, &s->near, n);
			if (op)
				RC_CHECK_EQ(0, ibv_post_recv(s->server, &recv, &bad));
			wr = (struct ibv_send_wr){
				.wr_id = 2, .opcode = ops[op], .sg_list = from, .num_sge = 3,
				.send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(IMM),
				.wr.rdma = { (uintptr_t)s->far.at + 3, s->far.mr->rkey },
			};
			post(s, s->client, &wr);
			expect(s->client_cq, 2, IBV_WC_RDMA_WRITE);
			for (b = 0; b < n; b++)
				RC_CHECK_EQ(*byte_of(from, b), s->far.at[3 + b]);
			RC_CHECK_EQ(0, s->far.at[2]);
			RC_CHECK_EQ(0, s->far.at[3 + n]);
			if (!op)
				continue;
			wc = rc_wait(s->server_cq);
			RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
			RC_CHECK_EQ(IBV_WC_RECV_RDMA_WITH_IMM, wc.opcode);
			RC_CHECK_EQ(n, wc.byte_len);
			RC_CHECK_EQ(IBV_WC_WITH_IMM, wc.wc_flags);
			RC_CHECK_EQ(IMM, ntohl(wc.imm_data));
		}
	rc_ok("RDMA_WRITE and RDMA_WRITE_WITH_IMM");
}

static void reads(struct stage *s)
{
	struct ibv_sge to[3];
	struct ibv_send_wr wr;
	size_t i;
	uint32_t n, b;

	for (i = 0; i < LENGTHS; i++) {
		n = lengths[i];
		fill(s);
		cut(to, &s->far, n);
		wr = (struct ibv_send_wr){
			.wr_id = 3, .opcode = IBV_WR_RDMA_READ, .sg_list = to, .num_sge = 3,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { (uintptr_t)s->near.at + 7, s->near.mr->rkey },
		};
		post(s, s->client, &wr);
		expect(s->client_cq, 3, IBV_WC_RDMA_READ);
		for (b = 0; b < n; b++)
			RC_CHECK_EQ(s->near.at[7 + b], *byte_of(to, b));
	}
	rc_ok("RDMA_READ");
}

static void atomics(struct stage *s)
{
	uint64_t *cell = (uint64_t *)s->far.at, *result = (uint64_t *)s->near.at;
	struct ibv_sge sge = { (uintptr_t)s->near.at, 8, s->near.mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 4, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.wr.atomic = { .remote_addr = (uintptr_t)cell, .rkey = s->far.mr->rkey },
	};

	*cell = UINT64_MAX;
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	wr.wr.atomic.compare_add = 3;
	post(s, s->client, &wr);
	expect(s->client_cq, 4, IBV_WC_FETCH_ADD);
	RC_CHECK(*result == UINT64_MAX);
	RC_CHECK_EQ(2, *cell);

	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr.wr.atomic.compare_add = 2;
	wr.wr.atomic.swap = 50;
	post(s, s->client, &wr);
	expect(s->client_cq, 4, IBV_WC_COMP_SWAP);
	RC_CHECK_EQ(2, *result);
	RC_CHECK_EQ(50, *cell);

	post(s, s->client, &wr);
	expect(s->client_cq, 4, IBV_WC_COMP_SWAP);
	RC_CHECK_EQ(50, *result);
	RC_CHECK_EQ(50, *cell);
	rc_ok("FETCH_AND_ADD and CMP_AND_SWP");
}

static void windows(struct stage *s)
{
	struct ibv_mw *mw = rc_mw_alloc(s->pd, IBV_MW_TYPE_2);
	struct ibv_recv_wr recv = { .wr_id = 9 }, *bad;
	struct ibv_sge sge = { (uintptr_t)s->near.at, 64, s->near.mr->lkey };
	struct ibv_send_wr wr;
	struct ibv_wc wc;
	uint32_t rkey;
	int by_peer;

	for (by_peer = 0; by_peer < 2; by_peer++) {
		fill(s);
		rkey = rc_key_step(mw->rkey, 1);
		wr = rc_wr_bind(mw, rkey, s->far.mr, s->far.at + 100, 64, IBV_ACCESS_REMOTE_WRITE);
		wr.wr_id = 5;
		post(s, s->server, &wr);
		expect(s->server_cq, 5, IBV_WC_BIND_MW);
		mw->rkey = rkey;

		wr = rc_wr_write(&sge, &s->near, 64, s->far.at + 100, rkey);
		wr.wr_id = 6;
		post(s, s->client, &wr);
		expect(s->client_cq, 6, IBV_WC_RDMA_WRITE);
		RC_CHECK_MEMORY(s->near.at, s->far.at + 100, 64);

		if (by_peer) {
			RC_CHECK_EQ(0, ibv_post_recv(s->server, &recv, &bad));
			wr = (struct ibv_send_wr){ .wr_id = 7, .opcode = IBV_WR_SEND_WITH_INV,
						   .send_flags = IBV_SEND_SIGNALED,
						   .invalidate_rkey = rkey };
			post(s, s->client, &wr);
			expect(s->client_cq, 7, IBV_WC_SEND);
			wc = rc_wait(s->server_cq);
			RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
			RC_CHECK_EQ(IBV_WC_WITH_INV, wc.wc_flags);
			RC_CHECK_EQ(rkey, wc.invalidated_rkey);
		} else {
			wr = rc_wr_invalidate(rkey);
			wr.wr_id = 8;
			post(s, s->server, &wr);
			expect(s->server_cq, 8, IBV_WC_LOCAL_INV);
		}
	}
	/* Both ends fail; that is the last of this stage's traffic. */
	wr = rc_wr_write(&sge, &s->near, 64, s->far.at + 100, rkey);
	post(s, s->client, &wr);
	RC_CHECK_STATUS(IBV_WC_REM_ACCESS_ERR, rc_wait(s->client_cq).status);
	RC_CHECK_STATE(IBV_QPS_ERR, s->server);
	rc_mw_dealloc(mw);
	rc_ok("BIND_MW, LOCAL_INV and SEND_WITH_INV");
}

/* An error within a batch takes all of it back. */
static void batches(struct rc_device *device)
{
	struct stage s;
	struct ibv_qp_ex *ex;
	int i;

	stage_open(&s, device, true);
	ex = ibv_qp_to_qp_ex(s.client);
	fill(&s);
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	for (i = 0; i < 17; i++) { /* one more than there are slots */
		ex->wr_id = (uint64_t)i;
		ibv_wr_rdma_write(ex, s.far.mr->rkey, (uintptr_t)s.far.at);
		ibv_wr_set_sge(ex, s.near.mr->lkey, (uintptr_t)s.near.at, 8);
	}
	RC_CHECK_EQ(ENOMEM, ibv_wr_complete(ex));
	RC_CHECK_EQ(MWCTL_SIM_RULE_SQ_OVERFLOW, kit_misuse());
	RC_CHECK(kit_is_empty(s.client_cq));
	RC_CHECK_EQ(0, s.far.at[0]);

	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, s.far.mr->rkey, (uintptr_t)s.far.at);
	ibv_wr_set_sge(ex, s.near.mr->lkey, (uintptr_t)s.near.at, 8);
	ibv_wr_abort(ex);
	RC_CHECK_EQ(0, s.far.at[0]);

	/* All sixteen slots are still there. */
	ibv_wr_start(ex);
	for (i = 0; i < 16; i++) {
		ex->wr_id = (uint64_t)i;
		ibv_wr_rdma_write(ex, s.far.mr->rkey, (uintptr_t)s.far.at + 8 * i);
		ibv_wr_set_sge(ex, s.near.mr->lkey, (uintptr_t)s.near.at, 8);
	}
	RC_CHECK_EQ(0, ibv_wr_complete(ex));
	for (i = 0; i < 16; i++)
		expect(s.client_cq, (uint64_t)i, IBV_WC_RDMA_WRITE);
	stage_close(&s);
	rc_ok("an extended batch is posted whole or not at all");
}

int main(void)
{
	struct rc_device device;
	struct stage s;
	int extended;

	kit_open(&device);
	for (extended = 0; extended < 2; extended++) {
		stage_open(&s, &device, extended);
		sends(&s);
		writes(&s);
		reads(&s);
		atomics(&s);
		windows(&s);
		stage_close(&s);
	}
	batches(&device);
	RC_CHECK_EQ(MWCTL_SIM_RULE_NONE, kit_misuse());
	rc_device_close(&device);
	return 0;
}
