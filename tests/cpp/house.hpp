// SPDX-License-Identifier: MIT OR Apache-2.0
//
// house.hpp: what the tests of mwctl.hpp share: a server under libmwctl with one region and two
// clients, each an RC queue pair of its own in this process.
#ifndef MWCTL_TESTS_HOUSE_HPP
#define MWCTL_TESTS_HOUSE_HPP

#include <mwctl.hpp>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "../common/rc_pair.h"

// A call that must succeed; names what came instead.
#define OK(call) check_status_at(mwctl::status::ok, (call).code(), #call, __FILE__, __LINE__)
#define STATUS(expected, call) check_status_at(mwctl::status::expected, (call).code(), #call, __FILE__, __LINE__)
#define LANDS(house, client, offset, rkey, byte) (house).lands(client, offset, rkey, byte, __FILE__, __LINE__)
#define REFUSED(house, client, offset, rkey, byte) (house).refused(client, offset, rkey, byte, __FILE__, __LINE__)

inline void check_status_at(mwctl::status expected, mwctl::status got, const char *what, const char *file, int line)
{
	if (expected != got)
		rc_fail_at(file, line, "%s: expected \"%s\", got \"%s\"", what, mwctl::text(expected),
			   mwctl::text(got));
}

inline void ok(const char *rule)
{
	std::printf("ok %s\n", rule);
	std::fflush(stdout);
}

// What destructors could not end, as the handler was told.
inline std::vector<mwctl::unclosed> &unclosed()
{
	static std::vector<mwctl::unclosed> told;
	return told;
}
inline void note_unclosed(const mwctl::unclosed &it) noexcept { unclosed().push_back(it); }

// The next report, which must be this one.
inline void expect_unclosed(mwctl::kind what, mwctl::status why)
{
	RC_CHECK(!unclosed().empty());
	mwctl::unclosed first = unclosed().front();
	unclosed().erase(unclosed().begin());
	RC_CHECK_EQ(what, first.what);
	check_status_at(why, first.why, "the report", __FILE__, __LINE__);
}

struct client {
	rc_pair pair;
	rc_memory local;
	mwctl::peer peer;
};

struct house {
	rc_device device;
	ibv_pd *pd;
	ibv_pd *client_pd;
	mwctl::context ctx;
	mwctl::domain domain;
	mwctl::region region;
	client clients[2];
	mwctl::peer_options peer_options{};

	explicit house(mwctl::context_options options = {}, mwctl::peer_options peers = {})
	    : peer_options(peers)
	{
		mwctl::on_unclosed(note_unclosed);
		rc_device_open(&device);
		pd = ibv_alloc_pd(device.context);
		client_pd = ibv_alloc_pd(device.context);
		RC_CHECK(pd && client_pd);
		if (!options.native().timeout_us)
			options.timeout(std::chrono::seconds(5));
		ctx = must(mwctl::context::open(device.context, options));
		domain = must(ctx.open_domain(pd));
		region = must(domain.register_region(8 << 20));
		for (int i = 0; i < 2; i++) {
			join(i);
			rc_memory_open(&clients[i].local, client_pd, 65536, IBV_ACCESS_LOCAL_WRITE);
		}
	}
	~house()
	{
		for (int i = 0; i < 2; i++) {
			if (clients[i].peer)
				leave(i);
			rc_memory_close(&clients[i].local);
		}
		OK(region.detach());
		OK(domain.close());
		auto stats = ctx.stats();
		RC_CHECK_EQ(stats->windows_allocated, stats->windows_deallocated);
		OK(ctx.close());
		RC_CHECK_EQ(0, ibv_dealloc_pd(client_pd));
		RC_CHECK_EQ(0, ibv_dealloc_pd(pd));
		rc_device_close(&device);
		RC_CHECK_EQ(0, unclosed().size());
		mwctl_sim_misuse misuse;
		if (mwctl_sim_present() && mwctl_sim_misuse_next(&misuse, sizeof(misuse)))
			RC_FAIL("misuse of the device: %s", misuse.text);
	}
	house(const house &) = delete;
	house &operator=(const house &) = delete;

	template <class T>
	static T must(mwctl::result<T> how)
	{
		OK(how);
		return std::move(*how);
	}

	void join(int i)
	{
		rc_options rc{};
		ibv_qp_cap cap{};
		int cqe = 256;
		cap.max_send_wr = 64;
		OK(mwctl::size_queues(peer_options.budget, cap, cqe));
		rc.server_pd = pd;
		rc.client_pd = client_pd;
		rc.max_send_wr = cap.max_send_wr;
		rc.cqe = cqe;
		rc_pair_open(&clients[i].pair, &device, &rc);
		clients[i].peer = must(domain.attach_peer(clients[i].pair.server.qp, peer_options));
	}
	void leave(int i)
	{
		OK(clients[i].peer.detach());
		RC_CHECK(!clients[i].peer);
		rc_pair_close(&clients[i].pair);
	}
	// After a refused access both queue pairs are in ERR.
	void rejoin(int i)
	{
		leave(i);
		join(i);
	}

	mwctl::peer &peer(int i) { return clients[i].peer; }
	mwctl::request ask(int i, std::uint64_t offset, std::uint64_t length)
	{
		return peer(i).ask(region, region.addr() + offset, length, mwctl::access::write);
	}
	mwctl::grant grant(int i, std::uint64_t offset, mwctl::grant_options with = {})
	{
		return must(peer(i).grant(ask(i, offset, 4096), with));
	}
	std::uint8_t *at(std::uint64_t offset) { return reinterpret_cast<std::uint8_t *>(region.bytes().data()) + offset; }

	ibv_wc_status write(int i, std::uint64_t offset, std::uint32_t rkey, std::uint8_t byte)
	{
		std::memset(clients[i].local.at, byte, 64);
		return rc_write(&clients[i].pair.client, &clients[i].local, 64, at(offset), rkey);
	}
	// The client writes 64 bytes, and they are there.
	void lands(int i, std::uint64_t offset, std::uint32_t rkey, std::uint8_t byte, const char *file, int line)
	{
		rc_check_status_at(IBV_WC_SUCCESS, write(i, offset, rkey, byte), "the write", file, line);
		rc_check_eq_at(byte, *at(offset), "the byte", file, line);
	}
	// The client's write fails, and the memory is as it was.
	void refused(int i, std::uint64_t offset, std::uint32_t rkey, std::uint8_t byte, const char *file, int line)
	{
		std::uint8_t before = *at(offset);
		if (write(i, offset, rkey, byte) == IBV_WC_SUCCESS)
			rc_fail_at(file, line, "a write that must fail succeeded");
		rc_check_eq_at(before, *at(offset), "the byte", file, line);
	}
	bool is_open(std::uint64_t id) { return static_cast<bool>(ctx.find_grant(id)); }
	// Polls as an application does until it is so.
	template <class Condition>
	void poll_until(Condition is_so)
	{
		double limit = rc_now() + RC_DEADLINE_S;
		ibv_wc wc[4];
		while (!is_so()) {
			for (client &it : clients)
				if (it.peer)
					RC_CHECK_EQ(0, ctx.poll_cq(it.pair.server.cq, wc));
			OK(ctx.tick());
			RC_CHECK(rc_now() < limit);
		}
	}
};

#endif
