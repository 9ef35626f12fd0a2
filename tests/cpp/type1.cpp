// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A C++ program for Type 1 windows, changed over by mwctl_compat.h: its objects are held by
// std::unique_ptr, whose deleters are addresses of verbs' functions, and it calls verbs through a table.
#include <mwctl_compat.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "../common/rc_pair.h"

namespace {

template <auto F>
struct calls {
	template <class T>
	void operator()(T *object) const
	{
		RC_CHECK_EQ(0, F(object));
	}
};
using pd_owner = std::unique_ptr<ibv_pd, calls<&ibv_dealloc_pd>>;
using mr_owner = std::unique_ptr<ibv_mr, calls<&ibv_dereg_mr>>;
using cq_owner = std::unique_ptr<ibv_cq, calls<&ibv_destroy_cq>>;
using qp_owner = std::unique_ptr<ibv_qp, calls<&ibv_destroy_qp>>;
using mw_owner = std::unique_ptr<ibv_mw, calls<&ibv_dealloc_mw>>;

// Named as verbs names them, and of its types.
struct table {
	ibv_mr *(*ibv_reg_mr)(ibv_pd *, void *, std::size_t, int);
	ibv_mw *(*ibv_alloc_mw)(ibv_pd *, ibv_mw_type);
	int (*ibv_bind_mw)(ibv_qp *, ibv_mw *, ibv_mw_bind *);
	int (*ibv_poll_cq)(ibv_cq *, int, ibv_wc *);
};
const table verbs{ibv_reg_mr, ibv_alloc_mw, ibv_bind_mw, ibv_poll_cq};

ibv_wc next(ibv_cq *cq)
{
	const double limit = rc_now() + RC_DEADLINE_S;
	ibv_wc wc{};
	while (verbs.ibv_poll_cq(cq, 1, &wc) == 0)
		RC_CHECK(rc_now() < limit);
	return wc;
}

alignas(4096) std::uint8_t memory[4096];

struct scene {
	explicit scene(const rc_device &device) : pd(ibv_alloc_pd(device.context))
	{
		mr.reset(verbs.ibv_reg_mr(pd.get(), memory, sizeof(memory),
					  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
		cq.reset(ibv_create_cq(device.context, 64, nullptr, nullptr, 0));
		client_cq.reset(ibv_create_cq(device.context, 64, nullptr, nullptr, 0));
		RC_CHECK(pd && mr && cq && client_cq);
		rc_memory_open(&local, pd.get(), sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
		ibv_qp_init_attr init{};
		init.send_cq = init.recv_cq = cq.get();
		init.qp_type = IBV_QPT_RC;
		init.cap = {16, 16, 1, 1, 0};
		qp.reset(ibv_create_qp(pd.get(), &init));
		init.send_cq = init.recv_cq = client_cq.get();
		client.reset(ibv_create_qp(pd.get(), &init));
		RC_CHECK(qp && client);
		rc_qp_connect(&device, qp.get(), client->qp_num, nullptr);
		rc_qp_connect(&device, client.get(), qp->qp_num, nullptr);
	}
	~scene() { rc_memory_close(&local); }

	std::uint32_t bind(ibv_mw *mw)
	{
		ibv_mw_bind to{};
		to.wr_id = 7;
		to.send_flags = IBV_SEND_SIGNALED;
		to.bind_info.mr = mr.get();
		to.bind_info.addr = reinterpret_cast<std::uint64_t>(memory);
		to.bind_info.length = sizeof(memory);
		to.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
		RC_CHECK_EQ(0, verbs.ibv_bind_mw(qp.get(), mw, &to));
		const ibv_wc wc = next(cq.get());
		RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
		RC_CHECK_EQ(7, wc.wr_id);
		RC_CHECK_EQ(IBV_WC_BIND_MW, wc.opcode);
		return mw->rkey;
	}
	ibv_wc_status write(std::uint32_t rkey, std::uint8_t byte)
	{
		std::memset(local.at, byte, 64);
		rc_end end{pd.get(), client_cq.get(), client.get(), false, false};
		return rc_write(&end, &local, 64, memory, rkey);
	}

	pd_owner pd;
	mr_owner mr;
	rc_memory local{};
	cq_owner cq, client_cq;
	qp_owner qp, client;
};

} // namespace

int main()
{
	rc_device device{};
	rc_device_open(&device);
	{
		scene s(device);
		std::uint32_t rkey = 0;
		{
			mw_owner mw(verbs.ibv_alloc_mw(s.pd.get(), IBV_MW_TYPE_1));
			if (!mw && errno == EOPNOTSUPP)
				rc_skip("%s has no windows", device.label);
			RC_CHECK(mw);
			rkey = s.bind(mw.get());
			RC_CHECK_STATUS(IBV_WC_SUCCESS, s.write(rkey, 1));
			RC_CHECK_EQ(1, memory[0]);
		}
		RC_CHECK_STATUS(IBV_WC_REM_ACCESS_ERR, s.write(rkey, 2));
		RC_CHECK_EQ(1, memory[0]);
		rc_ok("a window whose owner is a unique_ptr ends with it, and its key");
	}
	rc_ok("queue pairs, regions and the PD end in the order of their owners");
	{
		scene s(device);
		mw_owner mw(verbs.ibv_alloc_mw(s.pd.get(), IBV_MW_TYPE_1));
		RC_CHECK(mw);
		RC_CHECK_STATUS(IBV_WC_SUCCESS, s.write(s.bind(mw.get()), 3));
		s.qp.reset();
	}
	rc_ok("a queue pair that goes first takes its rights along");
	RC_CHECK_EQ(0, ibv_close_device(device.context));
	mwctl_sim_misuse misuse;
	if (mwctl_sim_present() && mwctl_sim_misuse_next(&misuse, sizeof(misuse)))
		RC_FAIL("misuse of the device: %s", misuse.text);
	return 0;
}
