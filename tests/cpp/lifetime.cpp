// SPDX-License-Identifier: MIT OR Apache-2.0
// A right ends with its handle, and with nothing else.
#include "house.hpp"

#include <sys/wait.h>
#include <unistd.h>

using std::chrono::microseconds;

static void destroyed(house &h)
{
	mwctl::grant control = h.grant(1, 8192);
	std::uint32_t key;
	std::uint64_t id;
	{
		mwctl::grant right = h.grant(0, 0);
		key = right.rkey();
		id = right.id();
		RC_CHECK(right && key != 0 && id != 0);
		RC_CHECK_EQ(h.region.addr(), right.addr());
		RC_CHECK_EQ(4096, right.length());
		RC_CHECK(right.rights() == mwctl::access::write);
		LANDS(h, 0, 0, key, 0x11);
	}
	RC_CHECK(!h.is_open(id));
	RC_CHECK_STATE(IBV_QPS_RTS, h.clients[0].pair.server.qp);
	REFUSED(h, 0, 0, key, 0x12);
	LANDS(h, 1, 8192, control.rkey(), 0x13);
	h.rejoin(0);
	ok("a destroyed grant is gone, another is not");
}

static void revoked(house &h)
{
	mwctl::grant right = h.grant(0, 0), again = h.grant(0, 4096);
	std::uint32_t key = right.rkey();
	std::uint64_t id = again.id();
	auto proof = right.revoke();

	OK(proof);
	RC_CHECK(*proof == mwctl::proof::invalidated);
	RC_CHECK(!right && right.rkey() == 0);
	STATUS(invalid_argument, right.revoke());
	OK(h.ctx.revoke(mwctl::span<const std::uint64_t>(&id, 1)));
	STATUS(stale_id, again.revoke());
	RC_CHECK(!again);
	REFUSED(h, 0, 0, key, 0x21);
	h.rejoin(0);
	ok("a revoked grant's handle is empty, and so is one that others revoked");
}

static void moved(house &h)
{
	mwctl::grant first = h.grant(0, 0);
	std::uint32_t key = first.rkey();
	std::uint64_t id = first.id();
	auto before = h.ctx.stats();
	{
		mwctl::grant second(std::move(first));
		RC_CHECK(!first && first.id() == 0 && first.rkey() == 0);
		RC_CHECK_EQ(id, second.id());
		first = std::move(second);
	}
	RC_CHECK_EQ(id, first.id());
	mwctl::grant &itself = first;
	first = std::move(itself);
	RC_CHECK_EQ(id, first.id());
	RC_CHECK_EQ(key, first.rkey());
	LANDS(h, 0, 0, key, 0x31);
	RC_CHECK_EQ(before->invalidates_posted, h.ctx.stats()->invalidates_posted);
	ok("a grant that was moved from, or onto itself, revokes nothing");

	mwctl::grant other = h.grant(1, 8192);
	std::uint64_t kept = other.id();
	first = std::move(other);
	RC_CHECK(!h.is_open(id));
	RC_CHECK(h.is_open(kept));
	LANDS(h, 1, 8192, first.rkey(), 0x32);
	REFUSED(h, 0, 0, key, 0x33);
	h.rejoin(0);
	ok("a grant that is assigned to ends first");

	std::uint64_t released = first.release();
	std::uint32_t its = first.rkey();
	RC_CHECK_EQ(kept, released);
	RC_CHECK(!first);
	first = mwctl::grant();
	LANDS(h, 1, 8192, its, 0x34);
	first = house::must(mwctl::grant::adopt(h.ctx, released));
	RC_CHECK_EQ(its, first.rkey());
	RC_CHECK_EQ(h.region.addr() + 8192, first.addr());
	first = mwctl::grant();
	REFUSED(h, 1, 8192, its, 0x35);
	h.rejoin(1);
	STATUS(stale_id, mwctl::grant::adopt(h.ctx, released));
	ok("a released grant stays open, an adopted one ends");
}

static void queued(house &h)
{
	mwctl::grant control = h.grant(1, 8192);
	std::uint32_t key;
	std::uint64_t id;
	{
		mwctl::grant right = h.grant(0, 0, mwctl::queued);
		RC_CHECK(right.at_end() == mwctl::ending::queue);
		key = right.rkey();
		id = right.id();
		LANDS(h, 0, 0, key, 0x41);
	}
	h.poll_until([&] { return !h.is_open(id); });
	REFUSED(h, 0, 0, key, 0x42);
	LANDS(h, 1, 8192, control.rkey(), 0x43);
	h.rejoin(0);
	ok("a queued revocation ends once somebody polls");
}

static void by_memory(house &h)
{
	auto block = h.region.take_blocks(1);
	OK(block);
	RC_CHECK_EQ(h.region.block_size(), block->length());
	RC_CHECK_EQ(block->length(), block->bytes().size());
	std::uint64_t offset = block->addr() - h.region.addr();
	auto part = block->bytes().subspan(64, 4096);
	auto right = h.peer(0).grant(h.region, part, mwctl::access::write | mwctl::access::read);
	OK(right);
	RC_CHECK_EQ(block->addr() + 64, right->addr());
	LANDS(h, 0, offset + 64, right->rkey(), 0x51);
	RC_CHECK_EQ(0x51, std::to_integer<int>(part[0]));
	OK(h.peer(0).check(right->addr(), 64, mwctl::access::read));
	STATUS(no_grant, h.peer(1).check(right->addr(), 64, mwctl::access::read));
	STATUS(no_grant, h.domain.check(h.peer(0).qp_num(), right->addr() - 1, 64, mwctl::access::read));
	auto found = h.ctx.find_rkey(right->rkey());
	OK(found);
	RC_CHECK_EQ(right->id(), found->grant);
	std::byte elsewhere[64];
	STATUS(out_of_range, h.peer(0).grant(h.region, mwctl::span(elsewhere), mwctl::access::write));
	STATUS(out_of_range, h.peer(0).grant(h.region, mwctl::span(block->bytes().data(), std::size_t{16} << 20),
					     mwctl::access::write));
	std::uint64_t ids[2];
	auto n = h.region.grants(block->addr(), block->length(), ids);
	OK(n);
	RC_CHECK_EQ(1, *n);
	RC_CHECK_EQ(right->id(), ids[0]);
	RC_CHECK_EQ(1, *h.domain.grants());
	RC_CHECK_EQ(1, *h.peer(0).grants());

	// Given back with a right still in it: out of use until that is gone.
	*block = mwctl::block();
	RC_CHECK_EQ(1, h.region.info()->blocks_quarantined);
	OK(right->revoke());
	RC_CHECK_EQ(0, h.region.info()->blocks_quarantined);
	RC_CHECK_EQ(0, h.region.info()->blocks_taken);
	ok("a right to a span of memory, and what is known of it");
}

static void outlives(house &h)
{
	mwctl::grant right = h.grant(0, 0), control = h.grant(1, 8192);
	mwctl::grant late = h.grant(0, 4096, mwctl::queued);
	std::uint64_t id = right.id();

	h.leave(0);
	RC_CHECK(!h.is_open(id));
	right = mwctl::grant();
	late = mwctl::grant();
	RC_CHECK_EQ(0, unclosed().size());
	LANDS(h, 1, 8192, control.rkey(), 0x61);
	h.join(0);
	ok("a grant may outlive its peer");
}

static void batches(house &h)
{
	std::vector<mwctl::request> asked;
	for (std::uint64_t i = 0; i < 10; i++)
		asked.push_back(h.ask(static_cast<int>(i % 2), i * 4096, 4096));
	std::uint32_t key;
	{
		auto before = h.ctx.stats();
		auto batch = h.ctx.grant(asked);
		OK(batch);
		RC_CHECK_EQ(2, h.ctx.stats()->posts - before->posts);
		RC_CHECK_EQ(10, batch->size());
		RC_CHECK_EQ(10, batch->held());
		int at = 0;
		for (const mwctl::granted one : *batch) {
			LANDS(h, at % 2, static_cast<std::uint64_t>(at) * 4096, one.rkey, 0x71);
			RC_CHECK_EQ(asked[static_cast<std::size_t>(at)].addr, one.addr);
			at++;
		}
		RC_CHECK_EQ(10, at);
		mwctl::grant_batch moved = std::move(*batch);
		RC_CHECK_EQ(0, batch->size());
		mwctl::grant one = moved.take(3);
		RC_CHECK(one && !moved.take(3) && !moved.take(99));
		RC_CHECK_EQ(9, moved.held());
		OK(moved.revoke());
		RC_CHECK_EQ(0, moved.held());
		RC_CHECK(moved[0].proof == mwctl::proof::invalidated);
		RC_CHECK(h.is_open(one.id()));
		LANDS(h, 1, 3 * 4096, one.rkey(), 0x72);

		OK(moved.add(std::move(one)));
		RC_CHECK(!one);
		RC_CHECK_EQ(11, moved.size());
		for (int i = 0; i < 20; i++)
			OK(moved.add(h.grant(0, 0)));
		STATUS(invalid_argument, moved.add(mwctl::grant()));
		RC_CHECK_EQ(21, moved.held());
		key = moved[10].rkey;
		before = h.ctx.stats();
		moved = mwctl::grant_batch();
		RC_CHECK_EQ(21, h.ctx.stats()->proved_invalidated - before->proved_invalidated);
	}
	RC_CHECK_EQ(0, *h.domain.grants());
	REFUSED(h, 1, 3 * 4096, key, 0x73);
	h.rejoin(1);
	ok("a batch ends as one");

	for (std::size_t i = 0; i < asked.size(); i++)
		asked[i].peer = h.peer(static_cast<int>(i % 2)).native();
	{
		auto batch = house::must(h.ctx.grant(asked));
		std::uint64_t one[1] = {batch[4].id};
		mwctl::item out[1];
		mwctl::item too_many[2];
		STATUS(invalid_argument, h.ctx.revoke(one, too_many));
		OK(h.ctx.revoke(one, out));
		RC_CHECK(mwctl::proof_of(out[0]) == mwctl::proof::invalidated);
		STATUS(stale_id, batch.revoke());
		RC_CHECK_EQ(0, batch.held());
		RC_CHECK(batch[4].status == mwctl::status::stale_id && batch[5].status == mwctl::status::ok);
	}
	ok("one that others revoked keeps no other of a batch from ending");

	asked[1] = h.ask(1, 0, 0);
	auto bad = h.ctx.grant(asked);
	STATUS(length_zero, bad);
	RC_CHECK_EQ(0, bad->held());
	ok("nothing is left of a batch that was refused");
}

static void successors(house &h)
{
	mwctl::grant old = h.grant(0, 0);
	std::uint32_t key = old.rkey();
	mwctl::request to = old.request();
	to.addr += 4096;
	auto next = old.regrant(to);
	OK(next);
	RC_CHECK(!old && next->rkey() != key);
	LANDS(h, 0, 4096, next->rkey(), 0x81);
	RC_CHECK_EQ(1, *h.domain.grants());

	to.peer = h.peer(1).native();
	auto theirs = next->transfer(to);
	OK(theirs);
	RC_CHECK(!*next);
	LANDS(h, 1, 4096, theirs->rkey(), 0x82);
	REFUSED(h, 0, 0, key, 0x83);
	h.rejoin(0);

	// The bad request leaves the old right as it is.
	std::uint64_t id = theirs->id();
	to.length = 0;
	STATUS(length_zero, theirs->transfer(to));
	RC_CHECK_EQ(id, theirs->id());
	LANDS(h, 1, 4096, theirs->rkey(), 0x84);

	std::vector<mwctl::request> mine = {h.ask(0, 0, 4096), h.ask(0, 4096, 4096)};
	std::vector<mwctl::request> yours = {h.ask(1, 0, 4096), h.ask(1, 4096, 4096)};
	auto here = h.ctx.grant(mine);
	OK(here);
	key = (*here)[0].rkey;
	auto there = here->transfer(yours);
	OK(there);
	RC_CHECK_EQ(0, here->held());
	RC_CHECK_EQ(2, there->held());
	RC_CHECK((*here)[1].proof == mwctl::proof::invalidated);
	LANDS(h, 1, 0, (*there)[0].rkey, 0x85);
	REFUSED(h, 0, 0, key, 0x86);
	STATUS(invalid_argument, here->transfer(mine));
	STATUS(invalid_argument, there->transfer(mwctl::span<const mwctl::request>(mine.data(), 1)));
	RC_CHECK_EQ(2, there->held());
	h.rejoin(0);
	ok("successors: regrant and transfer");
}

// What can't be closed stays, and is told.
static void left_open(house &h)
{
	mwctl::grant right = h.grant(0, 0);
	STATUS(busy, h.region.detach());
	STATUS(busy, h.domain.close());
	STATUS(busy, h.ctx.close());
	RC_CHECK(h.region && h.domain && h.ctx);
	LANDS(h, 0, 0, right.rkey(), 0x91);

	::mwctl_region region = h.region.native();
	h.region = mwctl::region();
	expect_unclosed(mwctl::kind::region, mwctl::status::busy);
	::mwctl_domain domain = h.domain.native();
	h.domain = mwctl::domain();
	expect_unclosed(mwctl::kind::domain, mwctl::status::busy);
	::mwctl_context *raw = h.ctx.native();
	h.ctx = mwctl::context();
	expect_unclosed(mwctl::kind::context, mwctl::status::busy);

	h.ctx = house::must(mwctl::context::adopt(raw));
	h.domain = house::must(mwctl::domain::adopt(h.ctx, domain));
	h.region = house::must(mwctl::region::adopt(h.domain, region));
	LANDS(h, 0, 0, right.rkey(), 0x92);
	OK(right.revoke());
	STATUS(stale_id, mwctl::region::adopt(h.domain, {~0ull}));
	STATUS(stale_id, mwctl::domain::adopt(h.ctx, {~0ull}));
	STATUS(stale_id, mwctl::peer::adopt(h.domain, {~0ull}));
	mwctl::peer again = house::must(mwctl::peer::adopt(h.domain, h.peer(0).release()));
	RC_CHECK_EQ(h.clients[0].pair.server.qp->qp_num, again.qp_num());
	h.peer(0) = std::move(again);
	ok("what a destructor can't close stays open, is told, and can be adopted");
}

// A revocation that gives no proof, by a stuck send queue whose queue pair must not be killed.
static void unproved()
{
	if (!mwctl_sim_present()) {
		rc_note("needs the device in the process: a revocation without a proof");
		return;
	}
	house h(mwctl::context_options().timeout(microseconds(50000)));
	mwctl_sim_fault stall{};
	std::uint64_t fault;
	stall.kind = MWCTL_SIM_STALL_SQ;
	stall.qp_num = h.peer(0).qp_num();
	mwctl::grant queued = h.grant(0, 4096, {microseconds(0), mwctl::ending::queue, mwctl::kill::never});
	mwctl::grant right = h.grant(0, 0, {microseconds(0), mwctl::ending::wait, mwctl::kill::never});
	std::uint64_t id = right.id(), other = queued.id();
	std::uint32_t key = right.rkey();
	RC_CHECK_EQ(0, mwctl_sim_fault_order(&stall, sizeof(stall), &fault));

	queued = mwctl::grant();
	STATUS(open, right.revoke(microseconds(1000), mwctl::kill::never));
	RC_CHECK_EQ(id, right.id());
	RC_CHECK_EQ(key, right.rkey());
	LANDS(h, 0, 0, key, 0xa1);
	right = mwctl::grant();
	h.poll_until([] { return unclosed().size() == 2; });
	RC_CHECK_EQ(id + other, unclosed()[0].id + unclosed()[1].id);
	RC_CHECK(unclosed()[0].context == h.ctx.native());
	expect_unclosed(mwctl::kind::grant, mwctl::status::open);
	expect_unclosed(mwctl::kind::grant, mwctl::status::open);
	RC_CHECK(h.is_open(id) && h.is_open(other));
	LANDS(h, 0, 0, key, 0xa2);
	STATUS(busy, h.region.detach());
	RC_CHECK_EQ(0, mwctl_sim_fault_release(fault));
	OK(h.peer(0).revoke_all());
	RC_CHECK(!h.is_open(id) && !h.is_open(other));
	REFUSED(h, 0, 0, key, 0xa3);
	h.rejoin(0);
	ok("a right without a proof is told of and stays on the books");
}

// The application's region, seen by clients at another address than its own.
static void attached_region(house &h)
{
	mwctl::attach_options with{};
	rc_memory memory;
	with.iova = std::uint64_t{1} << 40;
	with.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
	rc_memory_open(&memory, h.pd, 8192, static_cast<int>(with.access));
	ibv_mr *mr = ibv_reg_mr_iova(h.pd, memory.at, memory.length, with.iova, static_cast<int>(with.access));
	RC_CHECK(mr);
	{
		mwctl::region mine = house::must(h.domain.attach_region(mr, with));
		auto part = mwctl::span(memory.at + 4096, 64);
		mwctl::grant right = house::must(h.peer(0).grant(mine, part, mwctl::access::write));
		RC_CHECK_EQ(with.iova, mine.addr());
		RC_CHECK_EQ(with.iova + 4096, right.addr());
		RC_CHECK(static_cast<void *>(mine.bytes().data()) == memory.at);
		std::memset(h.clients[0].local.at, 0xb1, 64);
		RC_CHECK_STATUS(IBV_WC_SUCCESS,
				rc_write(&h.clients[0].pair.client, &h.clients[0].local, 64,
					 reinterpret_cast<void *>(right.addr()), right.rkey()));
		RC_CHECK_EQ(0xb1, part[63]);
	}
	RC_CHECK_EQ(0, ibv_dereg_mr(mr));
	rc_memory_close(&memory);
	ok("a span of an attached region is granted at its iova");
}

// A child's copies of the handles end nothing.
static void forked(house &h)
{
	mwctl::grant right = h.grant(0, 0);
	pid_t child = fork();
	RC_CHECK(child >= 0);
	if (child == 0) {
		bool refused = right.revoke().code() == mwctl::status::forked;
		right = mwctl::grant();
		h.peer(0) = mwctl::peer();
		h.region = mwctl::region();
		h.domain = mwctl::domain();
		h.ctx = mwctl::context();
		_exit(refused && unclosed().empty() ? 0 : 1);
	}
	int ended = -1;
	RC_CHECK_EQ(child, waitpid(child, &ended, 0));
	RC_CHECK_EQ(0, ended);
	LANDS(h, 0, 0, right.rkey(), 0xb2);
	ok("in a forked child destructors do nothing");
}

static void after_close()
{
	mwctl::grant late, late_too;
	mwctl::grant_batch batch;
	mwctl::peer peer;
	mwctl::domain domain;
	mwctl::context ctx;
	{
		house h;
		late = h.grant(0, 0);
		late_too = h.grant(0, 0, mwctl::queued);
		OK(batch.add(h.grant(1, 0)));
		h.leave(0);
		h.leave(1);
		peer = std::move(h.clients[0].peer);
		domain = std::move(h.domain);
		OK(h.region.detach());
		h.region = house::must(domain.register_region(4096));
		ctx = std::move(h.ctx);
		RC_CHECK(!h.ctx);
		STATUS(invalid_argument, h.ctx.close());
		STATUS(invalid_argument, h.ctx.tick());
		RC_CHECK_EQ(-1, h.ctx.event_fd());
		RC_CHECK(!h.ctx.next_timeout());
		RC_CHECK(h.ctx.poll_cq(nullptr, {}) < 0);
		h.domain = std::move(domain);
		h.ctx = std::move(ctx);
	}
	STATUS(invalid_argument, late.revoke());
	STATUS(invalid_argument, late.info());
	STATUS(invalid_argument, batch.revoke());
	STATUS(invalid_argument, peer.info());
	STATUS(invalid_argument, domain.close());
	STATUS(invalid_argument, ctx.close());
	late = mwctl::grant();
	late_too = mwctl::grant();
	batch = mwctl::grant_batch();
	RC_CHECK_EQ(0, unclosed().size());
	ok("what outlives the context is refused, and its end does nothing");
}

// The one that the header describes: nothing is called but what must be, C++ ends it.
static void by_scope()
{
	rc_device device;
	rc_pair pair;
	rc_device_open(&device);
	rc_options options{};
	options.max_send_wr = 128;
	rc_pair_open(&pair, &device, &options);
	{
		auto ctx = mwctl::context::open(device.context);
		auto domain = ctx->open_domain(pair.server.pd);
		auto region = domain->register_region(64 << 20);
		auto client = domain->attach_peer(pair.server.qp);
		auto block = region->take_blocks(1);
		auto right = client->grant(*region, block->bytes(), mwctl::access::write);
		OK(right);
		STATUS(already_attached, mwctl::context::open(device.context));
	}
	RC_CHECK_EQ(0, unclosed().size());
	OK(mwctl::context::open(device.context));
	{
		// Nothing works without a context, and nothing happens.
		auto ctx = mwctl::context::open(nullptr);
		auto domain = ctx->open_domain(pair.server.pd);
		auto region = domain->register_region(64 << 20);
		auto client = domain->attach_peer(pair.server.qp);
		auto block = region->take_blocks(1);
		auto right = client->grant(*region, block->bytes(), mwctl::access::write);
		STATUS(invalid_argument, right);
		STATUS(invalid_argument, right->revoke());
	}
	RC_CHECK_EQ(0, unclosed().size());
	rc_pair_close(&pair);
	rc_device_close(&device);
	ok("a scope's end closes all of it");
}

int main()
{
	{
		house h;
		destroyed(h);
		revoked(h);
		moved(h);
		queued(h);
		by_memory(h);
		outlives(h);
		batches(h);
		successors(h);
		left_open(h);
		attached_region(h);
		forked(h);
	}
	unproved();
	after_close();
	by_scope();
	return 0;
}
