/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program of somebody else's: built against the installed headers and libraries alone, as C and
 * as C++, and run on the device in the process. One client gets a right, uses it, loses it.
 */
#include <infiniband/verbs.h>
#include <mwctl.h>
#include <mwctl_sim.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef WITH_OTHER_RUST
#ifdef __cplusplus
extern "C"
#endif
uint32_t other_rust_sum(uint32_t n);
#endif

#define LENGTH 4096

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)
#define CHECK_OK(call) check_ok(call, #call)

static void check_ok(mwctl_status status, const char *call)
{
	if (status != MWCTL_STATUS_OK) {
		fprintf(stderr, "%s: %s\n", call, mwctl_status_text(status));
		exit(1);
	}
}

static struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *device;

	CHECK(list && list[0]);
	device = ibv_open_device(list[0]);
	CHECK(device);
	ibv_free_device_list(list);
	return device;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_cq *cq, const struct ibv_qp_cap *cap)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp *qp;

	memset(&init, 0, sizeof(init));
	init.send_cq = init.recv_cq = cq;
	init.qp_type = IBV_QPT_RC;
	init.cap = *cap;
	qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static void connect_qp(struct ibv_qp *qp, uint32_t peer, const union ibv_gid *gid)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 1;
	attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));

	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.dgid = *gid;
	attr.ah_attr.grh.hop_limit = 1;
	attr.ah_attr.port_num = 1;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				     IBV_QP_MIN_RNR_TIMER));

	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* The client writes its whole buffer to `addr`; how that ended. */
static enum ibv_wc_status write_remote(struct ibv_qp *qp, const struct ibv_mr *from, uint64_t addr,
				       uint32_t rkey)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr, *bad = NULL;
	struct ibv_wc wc;
	int n;

	memset(&sge, 0, sizeof(sge));
	sge.addr = (uintptr_t)from->addr;
	sge.length = LENGTH;
	sge.lkey = from->lkey;
	memset(&wr, 0, sizeof(wr));
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	do {
		n = ibv_poll_cq(qp->send_cq, 1, &wc);
	} while (n == 0);
	CHECK(n == 1);
	return wc.status;
}

int main(void)
{
	struct ibv_qp_cap cap;
	int cqe = 16;
	union ibv_gid gid;
	mwctl_context *ctx;
	mwctl_domain domain;
	mwctl_region region;
	mwctl_region_info memory;
	mwctl_peer peer;
	mwctl_request asked;
	mwctl_result result;
	static uint8_t local[LENGTH];

	if (!mwctl_sim_present()) {
		fprintf(stderr, "this program wants the device in the process\n");
		return 1;
	}
	CHECK(mwctl_version() == MWCTL_VERSION);
#ifdef WITH_OTHER_RUST
	CHECK(other_rust_sum(10) == 55);
#endif

	struct ibv_context *device = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(device);
	struct ibv_pd *client_pd = ibv_alloc_pd(device);
	CHECK(pd && client_pd && !ibv_query_gid(device, 1, 0, &gid));

	memset(&cap, 0, sizeof(cap));
	cap.max_send_wr = cap.max_recv_wr = 4;
	cap.max_send_sge = cap.max_recv_sge = 1;
	CHECK_OK(mwctl_size_queues(0, &cap, &cqe));
	struct ibv_cq *cq = ibv_create_cq(device, cqe, NULL, NULL, 0);
	struct ibv_cq *client_cq = ibv_create_cq(device, cqe, NULL, NULL, 0);
	CHECK(cq && client_cq);
	struct ibv_qp *qp = create_qp(pd, cq, &cap);
	struct ibv_qp *client = create_qp(client_pd, client_cq, &cap);
	connect_qp(qp, client->qp_num, &gid);
	connect_qp(client, qp->qp_num, &gid);
	memset(local, 0x5a, sizeof(local));
	struct ibv_mr *mr = ibv_reg_mr(client_pd, local, sizeof(local), IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);

	CHECK_OK(mwctl_context_open(device, NULL, 0, &ctx));
	CHECK_OK(mwctl_domain_open(ctx, pd, NULL, 0, &domain));
	CHECK_OK(mwctl_region_register(ctx, domain, 1 << 20, NULL, 0, &region));
	CHECK_OK(mwctl_region_info_get(ctx, region, &memory, sizeof(memory)));
	CHECK_OK(mwctl_peer_attach(ctx, domain, qp, NULL, 0, &peer));

	const uint8_t *at = (const uint8_t *)(uintptr_t)memory.addr;
	memset(&asked, 0, sizeof(asked));
	asked.peer = peer;
	asked.region = region;
	asked.addr = memory.addr;
	asked.length = LENGTH;
	asked.access = IBV_ACCESS_REMOTE_WRITE;
	CHECK_OK(mwctl_grant(ctx, &asked, 0, &result));
	CHECK(write_remote(client, mr, memory.addr, result.rkey) == IBV_WC_SUCCESS);
	CHECK(!memcmp(at, local, LENGTH));

	uint32_t rkey = result.rkey;
	CHECK_OK(mwctl_revoke(ctx, result.grant, 0, &result));
	CHECK(result.proof == MWCTL_PROOF_INVALIDATED);
	memset(local, 0xa5, sizeof(local));
	CHECK(write_remote(client, mr, memory.addr, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(at[0] == 0x5a && !memcmp(at, at + 1, LENGTH - 1));

	CHECK_OK(mwctl_peer_detach(ctx, peer, 0));
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(client));
	CHECK_OK(mwctl_region_detach(ctx, region));
	CHECK_OK(mwctl_domain_close(ctx, domain));
	CHECK_OK(mwctl_context_close(ctx));
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_cq(client_cq));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_dealloc_pd(client_pd));
	CHECK(!ibv_close_device(device));
	puts("ok: a write landed, and failed once its right was revoked");
	return 0;
}
