/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Bad input of every kind has a status of its own; nothing is posted and the queue pair lives. */
#include "house.h"

#include <stdlib.h>
#include <string.h>

static struct house house;
static mwctl_request good;

static void refused(mwctl_status expected, mwctl_request ask, const char *what)
{
	mwctl_stats before = house_stats(&house);
	mwctl_result result;
	mwctl_result pair[2];
	struct ibv_send_wr wr;
	mwctl_token token;
	uint64_t held = 0;
	mwctl_request two[2] = {good, ask};

	HOUSE_STATUS(expected, mwctl_grant(house.ctx, &ask, 0, &result));
	RC_CHECK_EQ(0, result.grant);
	RC_CHECK_EQ(0, result.rkey);
	HOUSE_STATUS(expected, mwctl_grant_batch(house.ctx, two, 2, 0, pair));
	RC_CHECK_EQ(0, pair[0].grant);
	HOUSE_STATUS(expected, mwctl_grant_prepare(house.ctx, &ask, 1, &wr, &result, &token));
	RC_CHECK_EQ(before.posts, house_stats(&house).posts);
	RC_CHECK_EQ(before.grants, house_stats(&house).grants);
	RC_CHECK_EQ(held, house_peer(&house, 0).grants);
	RC_CHECK_STATE(IBV_QPS_RTS, house.client[0].pair.server.qp);
	house_ok("refused: %s", what);
}

static void requests(void)
{
	mwctl_request ask;
	uint64_t start = house.memory.addr, length = house.memory.length;

#define REFUSED(status, what, ...) \
	do { \
		ask = good; \
		__VA_ARGS__; \
		refused(MWCTL_STATUS_##status, ask, what); \
	} while (0)
	REFUSED(STALE_ID, "no peer", ask.peer.id = 0);
	REFUSED(STALE_ID, "a peer that never was", ask.peer.id ^= 1ull << 40);
	REFUSED(STALE_ID, "a region in place of a peer", ask.peer.id = house.region.id);
	REFUSED(STALE_ID, "no region", ask.region.id = 0);
	REFUSED(STALE_ID, "a domain in place of a region", ask.region.id = house.domain.id);
	REFUSED(LENGTH_ZERO, "length 0", ask.length = 0);
	REFUSED(OUT_OF_RANGE, "one byte before", ask.addr = start - 1);
	REFUSED(OUT_OF_RANGE, "one byte beyond", ask.addr = start + 1; ask.length = length);
	REFUSED(OUT_OF_RANGE, "just behind", ask.addr = start + length);
	REFUSED(OUT_OF_RANGE, "a range that wraps", ask.addr = start + 1; ask.length = ~0ull);
	REFUSED(OUT_OF_RANGE, "over 2 GiB in a small region", ask.length = (2ull << 30) + 1);
	REFUSED(ACCESS_NONE, "no right", ask.access = 0);
	REFUSED(UNKNOWN_FLAGS, "LOCAL_WRITE", ask.access |= IBV_ACCESS_LOCAL_WRITE);
	REFUSED(UNKNOWN_FLAGS, "MW_BIND", ask.access |= IBV_ACCESS_MW_BIND);
	REFUSED(UNKNOWN_FLAGS, "an unknown right", ask.access |= 1u << 29);
	REFUSED(UNKNOWN_FLAGS, "a reserved field", ask.reserved = 1);
}

static void null_pointers(void)
{
	mwctl_result result;
	mwctl_token token;
	struct ibv_send_wr wr;
	mwctl_context *second = NULL;
	uint64_t addr;

	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT, mwctl_grant(NULL, &good, 0, &result));
	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT, mwctl_grant(house.ctx, NULL, 0, &result));
	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT, mwctl_grant(house.ctx, &good, 0, NULL));
	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT, mwctl_revoke_batch(house.ctx, NULL, 3, 0, 0, NULL));
	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT, mwctl_revoke_start(house.ctx, NULL, 0, 0, 0, NULL, NULL));
	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT,
		     mwctl_grant_prepare(house.ctx, &good, 1, NULL, &result, &token));
	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT,
		     mwctl_grant_prepare(house.ctx, &good, 1, &wr, &result, NULL));
	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT,
		     mwctl_grant_prepare(house.ctx, &good, 0, &wr, &result, &token));
	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT, mwctl_block_take(house.ctx, house.region, 1, NULL));
	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT, mwctl_regrant(house.ctx, 1, &good, 0, NULL));
	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT, mwctl_context_open(NULL, NULL, 0, NULL));
	HOUSE_STATUS(MWCTL_STATUS_LENGTH_ZERO, mwctl_block_take(house.ctx, house.region, 0, &addr));
	HOUSE_OK(mwctl_context_close(NULL));
	HOUSE_STATUS(MWCTL_STATUS_ALREADY_ATTACHED,
		     mwctl_context_open(house.device.context, NULL, 0, &second));
	RC_CHECK(!second);
	RC_CHECK(mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, NULL) < 0);
	RC_CHECK(mwctl_poll_cq(house.ctx, NULL, 1, NULL) < 0);
	RC_CHECK(mwctl_take_wc(house.ctx, NULL, NULL) < 0);
	RC_CHECK_EQ(-1, mwctl_event_fd(NULL));
	HOUSE_OK(mwctl_grant_batch(house.ctx, NULL, 0, 0, NULL));
	HOUSE_OK(mwctl_revoke_batch(house.ctx, NULL, 0, 0, 0, NULL));
	HOUSE_STATUS(MWCTL_STATUS_UNKNOWN_FLAGS, mwctl_revoke_batch(house.ctx, NULL, 0, 0, 7, NULL));
	house_ok("NULL and empty arguments");
}

static void sizes(void)
{
	struct {
		mwctl_peer_options known;
		uint64_t later;
	} wide = {.later = 1};
	mwctl_domain domain;
	mwctl_peer peer;
	struct ibv_qp *qp = house.client[0].pair.server.qp;

	HOUSE_STATUS(MWCTL_STATUS_OPTIONS_SIZE,
		     mwctl_peer_attach(house.ctx, house.domain, qp, &wide.known, sizeof(wide), &peer));
	wide.later = 0;
	HOUSE_STATUS(MWCTL_STATUS_ALREADY_ATTACHED,
		     mwctl_peer_attach(house.ctx, house.domain, qp, &wide.known, sizeof(wide), &peer));
	HOUSE_STATUS(MWCTL_STATUS_OPTIONS_SIZE,
		     mwctl_peer_attach(house.ctx, house.domain, qp, &wide.known, 0, &peer));
	wide.known.polling = 9;
	HOUSE_STATUS(MWCTL_STATUS_UNKNOWN_FLAGS,
		     mwctl_peer_attach(house.ctx, house.domain, qp, &wide.known, sizeof(wide.known), &peer));
	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT,
		     mwctl_domain_open(house.ctx, NULL, NULL, 0, &domain));
	house_ok("option structs of other sizes");
}

static void peers(void)
{
	struct rc_pair pair;
	struct rc_options rc = {.server_pd = house.client_pd, .client_pd = house.client_pd};
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC,
					.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
						.max_recv_sge = 1}};
	mwctl_peer_options options = {0};
	struct ibv_qp *qp;
	mwctl_peer peer;

	rc_pair_open(&pair, &house.device, &rc);
	HOUSE_STATUS(MWCTL_STATUS_FOREIGN_PD,
		     mwctl_peer_attach(house.ctx, house.domain, pair.server.qp, NULL, 0, &peer));
	rc_pair_close(&pair);

	init.send_cq = init.recv_cq = house.client[0].pair.server.cq;
	qp = ibv_create_qp(house.pd, &init);
	RC_CHECK(qp);
	HOUSE_STATUS(MWCTL_STATUS_QP_STATE, mwctl_peer_attach(house.ctx, house.domain, qp, NULL, 0, &peer));
	RC_CHECK_EQ(0, ibv_destroy_qp(qp));

	init.cap.max_send_wr = 2;
	qp = ibv_create_qp(house.pd, &init);
	rc_qp_connect(&house.device, qp, qp->qp_num, NULL);
	options.budget = 1 << 20;
	HOUSE_STATUS(MWCTL_STATUS_BUDGET_TOO_LARGE,
		     mwctl_peer_attach(house.ctx, house.domain, qp, &options, sizeof(options), &peer));
	options.budget = 1;
	options.polling = MWCTL_POLLING_YOURS;
	HOUSE_STATUS(MWCTL_STATUS_POLLING_MODE,
		     mwctl_peer_attach(house.ctx, house.domain, qp, &options, sizeof(options), &peer));
	options.polling = MWCTL_POLLING_OURS;
	options.declares_send_ops = 1;
	HOUSE_STATUS(MWCTL_STATUS_QP_WITHOUT_WINDOW_OPS,
		     mwctl_peer_attach(house.ctx, house.domain, qp, &options, sizeof(options), &peer));
	RC_CHECK_EQ(0, ibv_destroy_qp(qp));
	house_ok("peers of a foreign PD, state, size, mode");
}

/* Attached before RTS: no grant before the application has connected it. */
static void not_connected(void)
{
	struct rc_pair pair;
	struct rc_options rc = {.server_pd = house.pd, .client_pd = house.client_pd};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = house.device.port,
				   .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	mwctl_request ask = good;
	mwctl_result result;

	rc_pair_open(&pair, &house.device, &rc);
	rc_qp_modify(pair.server.qp, IBV_QPS_RESET);
	RC_CHECK_EQ(0, ibv_modify_qp(pair.server.qp, &attr,
				     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	HOUSE_OK(mwctl_peer_attach(house.ctx, house.domain, pair.server.qp, NULL, 0, &ask.peer));
	HOUSE_STATUS(MWCTL_STATUS_NOT_CONNECTED, mwctl_grant(house.ctx, &ask, 0, &result));
	HOUSE_OK(mwctl_peer_detach(house.ctx, ask.peer, 0));
	rc_pair_close(&pair);
	house_ok("a grant before RTS");
}


static void qp_rights(void)
{
	struct house_options narrow = {.clients = 1, .rc.qp_access = IBV_ACCESS_REMOTE_WRITE};
	struct house other;
	mwctl_request ask;
	mwctl_result result;

	house_open(&other, &narrow);
	ask = house_ask(&other, 0, 0, 64, HOUSE_RW);
	HOUSE_STATUS(MWCTL_STATUS_ACCESS_MISSING_ON_QP, mwctl_grant(other.ctx, &ask, 0, &result));
	RC_CHECK_STATE(IBV_QPS_RTS, other.client[0].pair.server.qp);
	result = house_grant(&other, 0, 0, 64, HOUSE_WRITE);
	HOUSE_WRITE_LANDS(&other, 0, 0, result.rkey, 0x30);
	house_close(&other);
	house_ok("a right that the queue pair lets nobody use");
}

static void regions(void)
{
	mwctl_attach_options options = {.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND};
	size_t length = 1 << 20;
	void *at = aligned_alloc(4096, length);
	struct ibv_mr *mr = ibv_reg_mr(house.pd, at, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mr *foreign = ibv_reg_mr(house.client_pd, at, length, IBV_ACCESS_MW_BIND);
	mwctl_region region;
	mwctl_request ask = good;
	mwctl_result result;

	RC_CHECK(mr && foreign);
	options.iova = (uintptr_t)at;
#define ATTACH(status, which) \
	HOUSE_STATUS(MWCTL_STATUS_##status, mwctl_region_attach(house.ctx, house.domain, which, &options, \
								sizeof(options), &region))
	ATTACH(FOREIGN_PD, foreign);
	options.access = IBV_ACCESS_LOCAL_WRITE;
	ATTACH(PARENT_NOT_BINDABLE, mr);
	options.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | IBV_ACCESS_REMOTE_READ;
	ATTACH(PARENT_OPEN, mr);
	options.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED;
	ATTACH(MEMORY_KIND, mr);
	options.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | IBV_ACCESS_ON_DEMAND;
	ATTACH(MEMORY_KIND, mr);
	options.access = IBV_ACCESS_MW_BIND;
	options.iova = ~0ull - 5;
	ATTACH(OUT_OF_RANGE, mr);
	options.iova = (uintptr_t)at;
	ATTACH(OK, mr);
	ask.region = region;
	ask.addr = options.iova;
	HOUSE_STATUS(MWCTL_STATUS_ACCESS_MISSING_ON_REGION, mwctl_grant(house.ctx, &ask, 0, &result));
	HOUSE_OK(mwctl_region_detach(house.ctx, region));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_grant(house.ctx, &ask, 0, &result));
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_region_detach(house.ctx, region));
	RC_CHECK_EQ(0, ibv_dereg_mr(foreign));
	RC_CHECK_EQ(0, ibv_dereg_mr(mr));
	free(at);
	house_ok("regions of a foreign PD, without MW_BIND, left open, of a kind that is refused");
}

static void still_open(void)
{
	mwctl_result held = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	uint64_t open;
	size_t n;

	HOUSE_STATUS(MWCTL_STATUS_BUSY, mwctl_region_detach(house.ctx, house.region));
	HOUSE_STATUS(MWCTL_STATUS_BUSY, mwctl_domain_close(house.ctx, house.domain));
	HOUSE_OK(mwctl_domain_grants(house.ctx, house.domain, &open, 1, &n));
	RC_CHECK_EQ(1, n);
	RC_CHECK_EQ(held.grant, open);
	HOUSE_STATUS(MWCTL_STATUS_BUSY, mwctl_context_close(house.ctx));
	HOUSE_WRITE_LANDS(&house, 0, 0, held.rkey, 0x31);
	HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 0, NULL));
	house_ok("nothing is closed over what is still open");
}

int main(void)
{
	house_open(&house, NULL);
	good = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	requests();
	null_pointers();
	sizes();
	peers();
	not_connected();
	qp_rights();
	regions();
	still_open();
	house_close(&house);
	return 0;
}
