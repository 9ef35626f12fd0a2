// SPDX-License-Identifier: MIT OR Apache-2.0
// Prepared chains, and what ends in a callback.
#include "house.hpp"

#include <functional>

using mwctl::item;
using mwctl::span;
using mwctl::status;

static void await_wr(house &h, std::uint64_t wr_id)
{
	ibv_wc wc[1];
	double limit = rc_now() + RC_DEADLINE_S;
	for (;;) {
		int n = h.ctx.poll_cq(h.clients[0].pair.server.cq, wc);
		RC_CHECK(n >= 0);
		if (n == 1) {
			RC_CHECK_STATUS(IBV_WC_SUCCESS, wc[0].status);
			RC_CHECK_EQ(wr_id, wc[0].wr_id);
			return;
		}
		RC_CHECK(rc_now() < limit);
	}
}

// bind + SEND with the key inside: one post.
static void bind_and_send(house &h)
{
	rc_pair &pair = h.clients[0].pair;
	rc_memory message;
	mwctl::request asked[1] = {h.ask(0, 0, 4096)};
	ibv_send_wr bind[1], send{};
	std::uint32_t key;

	rc_memory_open(&message, h.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	auto chain = h.ctx.prepare_grants(asked, bind);
	OK(chain);
	RC_CHECK_EQ(1, chain->wrs().size());
	key = chain->grants()[0].rkey;
	std::memcpy(message.at, &key, sizeof(key));
	ibv_sge sge{reinterpret_cast<std::uintptr_t>(message.at), 4, message.mr->lkey};
	send.wr_id = 77;
	send.sg_list = &sge;
	send.num_sge = 1;
	send.opcode = IBV_WR_SEND;
	send.send_flags = IBV_SEND_SIGNALED;
	bind[0].next = &send;
	rc_post_recv(&pair.client, &h.clients[0].local, 5);
	mwctl::chain moved = std::move(*chain);
	RC_CHECK(!*chain && moved);
	auto posted = moved.post(pair.server.qp);
	OK(posted);
	RC_CHECK_EQ(1, *posted);
	RC_CHECK(!moved);
	STATUS(invalid_argument, moved.post(pair.server.qp));
	STATUS(stale_id, moved.commit(0, nullptr));
	STATUS(stale_id, moved.abort());
	await_wr(h, 77);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(pair.client.cq).status);
	std::memcpy(&key, h.clients[0].local.at, sizeof(key));
	mwctl::grant right = moved.grants().take(0);
	RC_CHECK_EQ(key, right.rkey());
	moved = mwctl::chain();
	LANDS(h, 0, 0, key, 0x21);
	right = mwctl::grant();
	REFUSED(h, 0, 0, key, 0x22);
	h.rejoin(0);
	rc_memory_close(&message);
	ok("bind + SEND in one post, and the right ends with its handle");
}

// A chain that is dropped was never posted.
static void aborted(house &h)
{
	mwctl::request asked[2] = {h.ask(0, 0, 4096), h.ask(0, 4096, 4096)};
	ibv_send_wr wrs[2];
	auto used = [&] { return h.peer(0).info()->used; };
	std::uint64_t id;
	{
		auto chain = h.ctx.prepare_grants(asked, wrs);
		OK(chain);
		id = chain->grants()[1].id;
		RC_CHECK(h.is_open(id));
		RC_CHECK_EQ(2, used());
		*chain = std::move(*chain);
		RC_CHECK_EQ(2, used());
	}
	RC_CHECK(!h.is_open(id));
	RC_CHECK_EQ(0, used());
	RC_CHECK_EQ(0, h.peer(0).info()->grants);

	mwctl::grant held = h.grant(0, 0);
	int heard = 0;
	status how = status::ok;
	auto hear = [&](status s, span<const item>) {
		heard++;
		how = s;
	};
	id = held.id();
	{
		auto chain = h.ctx.prepare_revocation(span<const std::uint64_t>(&id, 1), wrs, std::ref(hear));
		OK(chain);
		RC_CHECK(chain->grants().empty());
		STATUS(invalid_argument, h.ctx.prepare_revocation(span<const std::uint64_t>(&id, 1), {}, std::ref(hear)));
		STATUS(in_progress, h.ctx.prepare_revocation(span<const std::uint64_t>(&id, 1), wrs, std::ref(hear)));
	}
	h.poll_until([&] { return heard == 1; });
	RC_CHECK(how == status::not_posted);
	{
		auto chain = h.ctx.prepare_regrant(held, asked[1], wrs, std::ref(hear));
		OK(chain);
		OK(chain->abort());
		RC_CHECK_EQ(0, chain->grants().held());
		RC_CHECK(chain->grants()[0].status == status::not_posted);
	}
	h.poll_until([&] { return heard == 2; });
	LANDS(h, 0, 0, held.rkey(), 0x31);
	RC_CHECK_EQ(0, used());
	RC_CHECK_EQ(0, unclosed().size());
	ok("a dropped chain aborts and leaves nothing behind");
}

// A post that stops between two of ours: the first is in force, the second void.
static void cut(house &h)
{
	static ibv_sge many[1000];
	mwctl::request asked[2] = {h.ask(0, 0, 4096), h.ask(0, 4096, 4096)};
	ibv_send_wr wrs[2], broken{};
	auto chain = h.ctx.prepare_grants(asked, wrs);

	OK(chain);
	broken.sg_list = many;
	broken.num_sge = 1000;
	broken.opcode = IBV_WR_RDMA_WRITE;
	broken.next = &wrs[1];
	wrs[0].next = &broken;
	auto posted = chain->post(h.clients[0].pair.server.qp);
	STATUS(post_failed, posted);
	RC_CHECK(posted.verbs_errno() != 0);
	RC_CHECK_EQ(1, *posted);
	mwctl::grant_batch rights = std::move(chain->grants());
	RC_CHECK_EQ(1, rights.held());
	RC_CHECK(rights[1].id == 0 && rights[1].rkey == 0 && rights[1].status == status::not_posted);
	h.poll_until([&] { return h.ctx.find_grant(rights[0].id).code() == status::ok; });
	std::uint32_t key = rights[0].rkey;
	LANDS(h, 0, 0, key, 0x41);
	OK(rights.revoke());
	REFUSED(h, 0, 0, key, 0x42);
	h.rejoin(0);
	ok("of a cut post the first part is in force");
}

static void regrant_in_a_chain(house &h)
{
	mwctl::grant old = h.grant(0, 0);
	mwctl::request to = h.ask(0, 4096, 4096);
	ibv_send_wr wrs[2];
	mwctl::proof seen = mwctl::proof::none;
	auto hear = [&](status s, span<const item> items) {
		RC_CHECK(s == status::ok && items.size() == 1);
		seen = mwctl::proof_of(items[0]);
	};
	auto chain = h.ctx.prepare_regrant(old, to, wrs, std::ref(hear));

	OK(chain);
	OK(chain->post(h.clients[0].pair.server.qp));
	h.poll_until([&] { return seen != mwctl::proof::none; });
	RC_CHECK(seen == mwctl::proof::invalidated);
	STATUS(stale_id, old.revoke());
	std::uint32_t key = chain->grants()[0].rkey;
	LANDS(h, 0, 4096, key, 0x51);

	std::uint64_t id = chain->grants()[0].id;
	bool done = false;
	auto gone = h.ctx.prepare_revocation(
	    span<const std::uint64_t>(&id, 1), wrs, [&done](status s, span<const item>) { done = s == status::ok; });
	OK(gone);
	OK(gone->post(h.clients[0].pair.server.qp));
	h.poll_until([&] { return done; });
	REFUSED(h, 0, 4096, key, 0x52);
	*chain = mwctl::chain();
	RC_CHECK_EQ(0, unclosed().size());
	h.rejoin(0);
	ok("a regrant and a revocation within chains");
}

// Callables of every size: by pointer, inside the pointer, on the heap.
static int plain_calls;
static void plain(status s, span<const item>)
{
	plain_calls += s == status::ok;
}

static void callbacks(house &h)
{
	mwctl::grant a = h.grant(0, 0), b = h.grant(0, 4096), c = h.grant(1, 8192);
	int small = 0, large = 0;
	std::string words = "moved along";
	std::unique_ptr<int> owned(new int(7));
	std::uint32_t key = a.rkey();

	OK(a.revoke_start(plain));
	OK(b.revoke_start([&small](status s, span<const item> items) {
		small += s == status::ok && items.size() == 1;
	}));
	OK(c.revoke_start([&large, words, owned = std::move(owned)](status s, span<const item>) {
		large += s == status::ok && words == "moved along" && *owned == 7;
	}));
	h.poll_until([&] { return plain_calls == 1 && small == 1 && large == 1; });
	STATUS(stale_id, a.revoke());
	STATUS(stale_id, b.revoke());
	STATUS(stale_id, c.revoke());
	REFUSED(h, 0, 0, key, 0x61);
	h.rejoin(0);

	std::uint64_t none[1] = {0};
	OK(h.ctx.revoke_start(none, [&small](status s, span<const item>) { small += s == status::stale_id; }));
	h.poll_until([&] { return small == 2; });
	STATUS(invalid_argument, a.revoke_start([&small](status, span<const item>) { small = 99; }));
	STATUS(invalid_argument, mwctl::peer().detach_start([words](status, span<const item>) { RC_FAIL("heard"); }));
	std::function<void(status, span<const item>)> general = [&large](status, span<const item>) { large++; };
	OK(h.peer(1).revoke_all_start(std::ref(general)));
	h.poll_until([&] { return large == 2; });
	OK(h.region.revoke_start(h.region.addr(), 4096, std::move(general)));
	h.poll_until([&] { return large == 3; });
	RC_CHECK_EQ(2, small);
	ok("callbacks, heard once or never");
}

static void started(house &h)
{
	mwctl::request asked[3] = {h.ask(0, 0, 4096), h.ask(1, 4096, 4096), h.ask(1, 8192, 4096)};
	mwctl::request moved[3] = {h.ask(1, 0, 4096), h.ask(0, 4096, 4096), h.ask(0, 8192, 4096)};
	mwctl::grant_batch batch, old;
	int heard = 0;

	OK(h.ctx.grant_start(asked, [&](mwctl::result<mwctl::grant_batch> how) {
		OK(how);
		batch = std::move(*how);
		heard++;
	}));
	h.poll_until([&] { return heard == 1; });
	RC_CHECK_EQ(3, batch.held());
	std::uint32_t first = batch[0].rkey, third = batch[2].rkey;
	LANDS(h, 0, 0, first, 0x71);
	LANDS(h, 1, 8192, third, 0x72);

	STATUS(invalid_argument, batch.transfer_start(span<const mwctl::request>(moved, 2),
						      [](mwctl::result<mwctl::grant_batch>, mwctl::grant_batch) {}));
	moved[2].length = 0;
	STATUS(length_zero, batch.transfer_start(moved, [](mwctl::result<mwctl::grant_batch>, mwctl::grant_batch) {}));
	moved[2].length = 4096;
	RC_CHECK_EQ(3, batch.held());
	LANDS(h, 0, 0, first, 0x73);
	OK(batch.transfer_start(moved, [&](mwctl::result<mwctl::grant_batch> how, mwctl::grant_batch was) {
		OK(how);
		batch = std::move(*how);
		old = std::move(was);
		heard++;
	}));
	h.poll_until([&] { return heard == 2; });
	RC_CHECK_EQ(0, old.held());
	RC_CHECK(old[0].proof == mwctl::proof::invalidated);
	RC_CHECK_EQ(3, batch.held());
	LANDS(h, 1, 0, batch[0].rkey, 0x74);
	REFUSED(h, 0, 0, first, 0x75);
	h.rejoin(0);

	// Rights that the callback does not take end with it.
	OK(h.ctx.grant_start(
	    span<const mwctl::request>(&asked[1], 1),
	    [&](mwctl::result<mwctl::grant_batch> how) {
		    first = (*how)[0].rkey;
		    heard++;
	    },
	    mwctl::queued));
	h.poll_until([&] { return heard == 3 && h.peer(1).info()->grants == 1; });
	REFUSED(h, 1, 4096, first, 0x76);
	h.rejoin(1);

	int gone = 0;
	OK(h.peer(0).detach_start([&gone](status s, span<const item>) { gone += s == status::ok; }));
	h.poll_until([&] { return gone == 1; });
	STATUS(stale_id, h.peer(0).detach());
	rc_pair_close(&h.clients[0].pair);
	h.join(0);
	ok("grants, transfers and a detach that end in callbacks");
}

static void events()
{
	std::vector<mwctl::event> seen;
	std::vector<std::string> lines;
	auto hear = [&seen](const mwctl::event &it) { seen.push_back(it); };
	auto log = [&lines](int severity, const char *text) { lines.push_back(std::to_string(severity) + text); };
	house h(mwctl::context_options().on_event(hear).log(log));
	std::uint32_t control = 0;
	mwctl::grant other = h.grant(1, 8192), right = h.grant(0, 0);

	control = other.rkey();
	rc_qp_modify(h.clients[0].pair.server.qp, IBV_QPS_ERR);
	ibv_async_event async{};
	async.event_type = IBV_EVENT_QP_FATAL;
	async.element.qp = h.clients[0].pair.server.qp;
	OK(h.ctx.take_async_event(async));
	STATUS(peer_dead, h.peer(0).grant(h.ask(0, 4096, 64)));
	h.poll_until([&] { return !seen.empty(); });
	RC_CHECK(seen[0].kind == mwctl::event_kind::peer_dead);
	RC_CHECK_EQ(h.peer(0).qp_num(), seen[0].qp_num);
	auto proof = right.revoke();
	OK(proof);
	RC_CHECK(*proof == mwctl::proof::qp_fenced || *proof == mwctl::proof::deallocated);
	LANDS(h, 1, 8192, control, 0x81);
	RC_CHECK(h.ctx.event_fd() >= 0);
	RC_CHECK(!lines.empty() && lines[0].size() > 1 && lines[0][0] == '1');
	h.rejoin(0);
	ok("events and the log go to the application's callables");
}

// The application polls by itself and offers what it gets.
static void polled_by_itself()
{
	mwctl::peer_options peers{};
	peers.polling = MWCTL_POLLING_YOURS;
	peers.polling_thread = static_cast<std::uint64_t>(pthread_self());
	house h({}, peers);
	ibv_cq *cq = h.clients[0].pair.server.cq;
	mwctl::request asked[1] = {h.ask(0, 0, 4096)};
	mwctl::grant right;
	auto poll = [&] {
		ibv_wc wc;
		while (ibv_poll_cq(cq, 1, &wc) == 1) {
			auto ours = h.ctx.take_wc(cq, wc);
			OK(ours);
			RC_CHECK(*ours);
		}
		OK(h.ctx.cq_empty(cq));
		OK(h.ctx.tick());
	};

	STATUS(would_deadlock, h.peer(0).grant(asked[0]));
	OK(h.ctx.grant_start(asked, [&](mwctl::result<mwctl::grant_batch> how) {
		OK(how);
		right = how->take(0);
	}));
	while (!right)
		poll();
	std::uint32_t key = right.rkey();
	LANDS(h, 0, 0, key, 0x91);
	STATUS(would_deadlock, right.revoke());
	RC_CHECK(right);
	// Waiting could not end on this thread: it is queued.
	right = mwctl::grant();
	while (h.peer(0).info()->grants)
		poll();
	RC_CHECK_EQ(0, unclosed().size());
	REFUSED(h, 0, 0, key, 0x92);
	for (int i = 0; i < 2; i++) {
		bool gone = false;
		OK(h.peer(i).detach_start([&gone](status s, span<const item>) { gone = s == status::ok; }));
		cq = h.clients[i].pair.server.cq;
		ibv_wc wc;
		double limit = rc_now() + RC_DEADLINE_S;
		while (!gone) {
			while (ibv_poll_cq(cq, 1, &wc) == 1)
				(void)h.ctx.take_wc(cq, wc);
			OK(h.ctx.tick());
			RC_CHECK(rc_now() < limit);
		}
		STATUS(stale_id, h.peer(i).detach());
		rc_pair_close(&h.clients[i].pair);
	}
	ok("a destructor on the polling thread queues what it can't wait for");
}

// Posted and polled by the extended interface.
static void extended(house &h)
{
	ibv_cq_init_attr_ex cq_attr{};
	ibv_qp_init_attr_ex init{};
	rc_end client{};
	ibv_send_wr wrs[1];

	cq_attr.cqe = 128;
	cq_attr.wc_flags = IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_IMM;
	ibv_cq_ex *cq = ibv_create_cq_ex(h.device.context, &cq_attr);
	if (!cq) {
		rc_note("no extended completion queues here");
		return;
	}
	init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
	init.qp_type = IBV_QPT_RC;
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.pd = h.pd;
	init.cap = {32, 16, 1, 1, 0};
	init.send_ops_flags = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
	ibv_qp *qp = ibv_create_qp_ex(h.device.context, &init);
	if (!qp) {
		RC_CHECK_EQ(0, ibv_destroy_cq(init.send_cq));
		rc_note("no extended queue pairs here");
		return;
	}
	ibv_qp_ex *qpx = ibv_qp_to_qp_ex(qp);
	client.cq = ibv_create_cq(h.device.context, 128, nullptr, nullptr, 0);
	RC_CHECK(client.cq);
	client.qp = rc_qp_create(h.client_pd, client.cq, nullptr);
	rc_qp_connect(&h.device, qp, client.qp->qp_num, nullptr);
	rc_qp_connect(&h.device, client.qp, qp->qp_num, nullptr);

	mwctl::peer_options options{};
	options.polling = MWCTL_POLLING_YOURS;
	options.declares_send_ops = 1;
	options.send_ops_flags = init.send_ops_flags;
	mwctl::peer peer = house::must(h.domain.attach_peer(qp, options));
	mwctl::request asked[1] = {peer.ask(h.region, h.region.addr(), 4096, mwctl::access::write)};
	auto poll = [&] {
		ibv_poll_cq_attr attr{};
		if (ibv_start_poll(cq, &attr))
			return;
		auto ours = h.ctx.take_ex(cq);
		ibv_end_poll(cq);
		OK(ours);
		RC_CHECK(*ours);
		OK(h.ctx.tick());
	};
	auto await = [&](auto is_so) {
		for (double limit = rc_now() + RC_DEADLINE_S; !is_so(); poll())
			RC_CHECK(rc_now() < limit);
	};
	auto write = [&](std::uint32_t rkey, std::uint8_t byte) {
		std::memset(h.clients[0].local.at, byte, 64);
		return rc_write(&client, &h.clients[0].local, 64, h.at(0), rkey);
	};

	auto chain = h.ctx.prepare_grants(asked, wrs);
	OK(chain);
	ibv_wr_start(qpx);
	chain->put(qpx);
	ibv_wr_abort(qpx);
	OK(chain->abort());
	RC_CHECK_EQ(0, peer.info()->grants);

	chain = h.ctx.prepare_grants(asked, wrs);
	OK(chain);
	ibv_wr_start(qpx);
	chain->put(qpx);
	auto posted = chain->commit_ex(ibv_wr_complete(qpx));
	OK(posted);
	RC_CHECK_EQ(1, *posted);
	// Its own completion is not asked for: an unsignaled bind runs before what follows it.
	std::uint32_t key = chain->grants()[0].rkey;
	std::uint64_t id = chain->grants()[0].id;
	auto seen = h.ctx.explain_key(key);
	OK(seen);
	RC_CHECK(mwctl::kind_of(*seen) == mwctl::key_kind::grant && seen->grant == id);
	await([&] { return write(key, 0xb1) == IBV_WC_SUCCESS; });
	RC_CHECK_EQ(0xb1, *h.at(0));

	bool gone = false;
	auto hear = [&gone](status s, span<const item>) { gone = s == status::ok; };
	ibv_send_wr inv[1];
	auto end = h.ctx.prepare_revocation(span<const std::uint64_t>(&id, 1), inv, hear);
	OK(end);
	ibv_wr_start(qpx);
	end->put(qpx);
	OK(end->commit_ex(ibv_wr_complete(qpx)));
	await([&] { return gone; });
	seen = h.ctx.explain_key(key);
	RC_CHECK(mwctl::kind_of(*seen) == mwctl::key_kind::ended);
	RC_CHECK(std::string(mwctl::text(mwctl::kind_of(*seen))) == mwctl_key_text(MWCTL_KEY_KIND_ENDED));
	RC_CHECK(write(key, 0xb2) != IBV_WC_SUCCESS);
	RC_CHECK_EQ(0xb1, *h.at(0));

	*chain = mwctl::chain();
	OK(peer.detach());
	RC_CHECK_EQ(0, ibv_destroy_qp(client.qp));
	RC_CHECK_EQ(0, ibv_destroy_cq(client.cq));
	RC_CHECK_EQ(0, ibv_destroy_qp(qp));
	RC_CHECK_EQ(0, ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	ok("a chain posted and polled by the extended interface");
}

int main()
{
	{
		house h;
		bind_and_send(h);
		aborted(h);
		cut(h);
		regrant_in_a_chain(h);
		callbacks(h);
		started(h);
		extended(h);
	}
	events();
	polled_by_itself();
	return 0;
}
