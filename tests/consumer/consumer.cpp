// SPDX-License-Identifier: MIT OR Apache-2.0
// The same program with mwctl.hpp's handles, after the C one as C++.
#define main in_c
#include "consumer.c"
#undef main

#include <mwctl.hpp>

static int in_cpp()
{
	ibv_context *device = open_device();
	ibv_pd *pd = ibv_alloc_pd(device), *client_pd = ibv_alloc_pd(device);
	ibv_qp_cap cap{};
	union ibv_gid gid;
	int cqe = 16;
	static std::uint8_t local[LENGTH];

	CHECK(pd && client_pd && !ibv_query_gid(device, 1, 0, &gid));
	cap.max_send_wr = cap.max_recv_wr = 4;
	cap.max_send_sge = cap.max_recv_sge = 1;
	CHECK(mwctl::size_queues(0, cap, cqe));
	ibv_cq *cq = ibv_create_cq(device, cqe, nullptr, nullptr, 0);
	ibv_cq *client_cq = ibv_create_cq(device, cqe, nullptr, nullptr, 0);
	CHECK(cq && client_cq);
	ibv_qp *qp = create_qp(pd, cq, &cap), *client = create_qp(client_pd, client_cq, &cap);
	connect_qp(qp, client->qp_num, &gid);
	connect_qp(client, qp->qp_num, &gid);
	ibv_mr *mr = ibv_reg_mr(client_pd, local, sizeof(local), IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	{
		auto ctx = mwctl::context::open(device);
		auto domain = ctx->open_domain(pd);
		auto region = domain->register_region(1 << 20);
		auto peer = domain->attach_peer(qp);
		auto bytes = region->bytes().subspan(0, LENGTH);
		std::uint32_t rkey;
		std::uint64_t addr;
		{
			auto right = peer->grant(*region, bytes, mwctl::access::write);
			CHECK(right);
			rkey = right->rkey();
			addr = right->addr();
			std::memset(local, 0x5a, sizeof(local));
			CHECK(write_remote(client, mr, addr, rkey) == IBV_WC_SUCCESS);
			CHECK(!std::memcmp(bytes.data(), local, LENGTH));
		}
		std::memset(local, 0xa5, sizeof(local));
		CHECK(write_remote(client, mr, addr, rkey) == IBV_WC_REM_ACCESS_ERR);
		for (std::byte byte : bytes)
			CHECK(byte == std::byte{0x5a});
		auto busy = ctx->close();
		CHECK(!busy && busy.error() == std::errc::device_or_resource_busy);
	}
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(client));
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(client_cq));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_dealloc_pd(client_pd) && !ibv_close_device(device));
	return 0;
}

int main()
{
	return in_c() || in_cpp();
}
