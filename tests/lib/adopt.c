/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The short calls for programs that hand out mr->rkey: what they open, whom they keep out, and that
 * an object at another's address is not taken for it. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "house.h"

#define LENGTH 65536
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
#define TRIES 64

struct adopted {
	struct rc_device device;
	mwctl_context *ctx;
	struct ibv_pd *pd, *client_pd;
	uint8_t *memory;
	struct ibv_mr *mr;
	struct rc_options rc;
	struct rc_pair pair[2];
	struct rc_memory local;
};

static void open_pair(struct adopted *it, int client)
{
	rc_pair_open(&it->pair[client], &it->device, &it->rc);
}

static void open_all(struct adopted *it)
{
	struct ibv_qp_cap cap = {.max_send_wr = 64};
	int cqe = 256;

	memset(it, 0, sizeof(*it));
	rc_device_open(&it->device);
	it->pd = ibv_alloc_pd(it->device.context);
	it->client_pd = ibv_alloc_pd(it->device.context);
	it->memory = aligned_alloc(4096, LENGTH);
	RC_CHECK(it->pd && it->client_pd && it->memory);
	memset(it->memory, 0, LENGTH);
	HOUSE_OK(mwctl_context_open(it->device.context, NULL, 0, &it->ctx));
	HOUSE_OK(mwctl_size_queues(0, &cap, &cqe));
	it->rc = (struct rc_options){.server_pd = it->pd,
				     .client_pd = it->client_pd,
				     .max_send_wr = cap.max_send_wr,
				     .cqe = cqe};
	open_pair(it, 0);
	open_pair(it, 1);
	rc_memory_open(&it->local, it->client_pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	it->mr = mwctl_reg_mr(it->ctx, it->pd, it->memory, LENGTH, ACCESS);
	if (!it->mr && errno == EOPNOTSUPP)
		rc_skip("%s has no windows of Type 2", it->device.label);
	RC_CHECK(it->mr != NULL);
}

/* In the order of a program that ends: queue pairs, then everything else. */
static void close_all(struct adopted *it)
{
	for (int i = 0; i < 2; i++) {
		HOUSE_OK(mwctl_detach_qp(it->ctx, it->pair[i].server.qp));
		rc_pair_close(&it->pair[i]);
	}
	HOUSE_OK(mwctl_context_close(it->ctx));
	RC_CHECK_EQ(0, ibv_dereg_mr(it->mr));
	rc_memory_close(&it->local);
	RC_CHECK_EQ(0, ibv_dealloc_pd(it->client_pd));
	RC_CHECK_EQ(0, ibv_dealloc_pd(it->pd));
	rc_device_close(&it->device);
	free(it->memory);
	house_check_misuse();
}

static uint32_t key_for(struct adopted *it, int client, uint64_t offset, uint64_t length, uint32_t access)
{
	uint64_t grant = 0;
	uint32_t rkey = 0;

	HOUSE_OK(mwctl_rkey(it->ctx, it->pair[client].server.qp, it->mr, (uintptr_t)it->memory + offset,
			    length, access, &rkey, &grant));
	RC_CHECK(grant != 0);
	return rkey;
}

static enum ibv_wc_status write_with(struct adopted *it, int client, uint64_t offset, uint32_t rkey, int byte)
{
	memset(it->local.at, byte, 64);
	return rc_write(&it->pair[client].client, &it->local, 64, it->memory + offset, rkey);
}

static void lands(struct adopted *it, int client, uint64_t offset, uint32_t rkey, int byte)
{
	RC_CHECK_STATUS(IBV_WC_SUCCESS, write_with(it, client, offset, rkey, byte));
	RC_CHECK_EQ(byte, it->memory[offset]);
}

/* The client's queue pair is of no use afterwards: it gets a new one, as a client that comes back. */
static void refused(struct adopted *it, int client, uint64_t offset, uint32_t rkey, int byte)
{
	uint8_t before = it->memory[offset];

	RC_CHECK(write_with(it, client, offset, rkey, byte) != IBV_WC_SUCCESS);
	RC_CHECK_EQ(before, it->memory[offset]);
	HOUSE_OK(mwctl_detach_qp(it->ctx, it->pair[client].server.qp));
	rc_pair_close(&it->pair[client]);
	open_pair(it, client);
}

static void test_keys(void)
{
	struct adopted it;
	uint32_t rkey, other;
	size_t n = 77;

	open_all(&it);
	rkey = key_for(&it, 0, 0, 4096, IBV_ACCESS_REMOTE_WRITE);
	other = key_for(&it, 1, 4096, 4096, 0);
	lands(&it, 0, 64, rkey, 1);
	lands(&it, 1, 4096, other, 2);
	RC_CHECK_STATUS(IBV_WC_SUCCESS,
			rc_read(&it.pair[1].client, &it.local, 64, it.memory + 4096, other));
	house_ok("a key in place of mr->rkey; no access named: all that the region was registered for");

	refused(&it, 1, 0, rkey, 3);
	lands(&it, 0, 128, rkey, 4);
	house_ok("another client can't use it, and the one it was made for still can");

	refused(&it, 1, 0, it.mr->rkey, 5);
	lands(&it, 0, 192, rkey, 6);
	house_ok("mr->rkey opens nothing");

	key_for(&it, 0, 8192, 64, 0);
	HOUSE_OK(mwctl_revoke_qp(it.ctx, it.pair[0].server.qp, 0, MWCTL_KILL_ALLOWED, &n));
	RC_CHECK_EQ(2, n);
	other = key_for(&it, 1, 4096, 4096, 0);
	refused(&it, 0, 0, rkey, 7);
	lands(&it, 1, 4096, other, 8);
	HOUSE_OK(mwctl_revoke_qp(it.ctx, it.pair[0].server.qp, 0, MWCTL_KILL_ALLOWED, &n));
	RC_CHECK_EQ(0, n);
	house_ok("all that one client holds is taken back, and the other goes on");
	close_all(&it);
}

/* What a queue pair of ibv_create_qp_ex was created for can't be asked: it must be declared. */
static void refuse_extended(struct adopted *it)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = it->pair[0].server.cq,
		.recv_cq = it->pair[0].server.cq,
		.cap = {.max_send_wr = 64, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = it->pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW,
	};
	mwctl_peer_options options = {.declares_send_ops = 1, .send_ops_flags = init.send_ops_flags};
	struct ibv_qp *qp = ibv_create_qp_ex(it->device.context, &init);
	mwctl_domain domain;
	mwctl_peer peer;
	uint32_t rkey;

	if (!qp) {
		rc_note("the device has no extended queue pairs");
		return;
	}
	rc_qp_connect(&it->device, qp, qp->qp_num, &it->rc);
	HOUSE_STATUS(MWCTL_STATUS_QP_UNDECLARED,
		     mwctl_rkey(it->ctx, qp, it->mr, (uintptr_t)it->memory, 64, 0, &rkey, NULL));
	HOUSE_OK(mwctl_domain_of(it->ctx, it->pd, &domain));
	HOUSE_OK(mwctl_peer_attach(it->ctx, domain, qp, &options, sizeof(options), &peer));
	HOUSE_OK(mwctl_rkey(it->ctx, qp, it->mr, (uintptr_t)it->memory, 64, 0, &rkey, NULL));
	HOUSE_OK(mwctl_detach_qp(it->ctx, qp));
	RC_CHECK_EQ(0, ibv_destroy_qp(qp));
}

static void test_refusals(void)
{
	struct adopted it;
	struct ibv_mr *plain, *readable;
	struct ibv_qp *unconnected;
	uint64_t at, grant = 1;
	uint32_t rkey = 1;
	size_t n;

	open_all(&it);
	at = (uintptr_t)it.memory;
	errno = 0;
	RC_CHECK(!mwctl_reg_mr(it.ctx, it.pd, it.memory, LENGTH, IBV_ACCESS_REMOTE_WRITE));
	RC_CHECK_EQ(EINVAL, errno);
	RC_CHECK(!mwctl_reg_mr(it.ctx, NULL, it.memory, LENGTH, ACCESS));
	RC_CHECK_EQ(EINVAL, errno);
	RC_CHECK(!mwctl_reg_mr(NULL, it.pd, it.memory, LENGTH, ACCESS));
	RC_CHECK_EQ(EINVAL, errno);
	RC_CHECK(!mwctl_reg_mr(it.ctx, it.pd, it.memory, LENGTH, ACCESS | IBV_ACCESS_ZERO_BASED));
	RC_CHECK_EQ(EOPNOTSUPP, errno);
	RC_CHECK_EQ(EINVAL, mwctl_dereg_mr(it.ctx, NULL));
	house_ok("bad registrations: NULL and errno, as ibv_reg_mr");

	readable = mwctl_reg_mr(it.ctx, it.pd, it.memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	plain = ibv_reg_mr(it.pd, it.memory, 4096, IBV_ACCESS_LOCAL_WRITE);
	RC_CHECK(readable && plain);
	HOUSE_STATUS(MWCTL_STATUS_ACCESS_MISSING_ON_REGION,
		     mwctl_rkey(it.ctx, it.pair[0].server.qp, readable, at, 64, IBV_ACCESS_REMOTE_WRITE, &rkey,
				&grant));
	RC_CHECK(!rkey && !grant);
	HOUSE_OK(mwctl_rkey(it.ctx, it.pair[0].server.qp, readable, at, 64, 0, &rkey, NULL));
	RC_CHECK(rkey != 0);
	HOUSE_STATUS(MWCTL_STATUS_NOT_ATTACHED,
		     mwctl_rkey(it.ctx, it.pair[0].server.qp, plain, at, 64, HOUSE_WRITE, &rkey, NULL));
	HOUSE_STATUS(MWCTL_STATUS_OUT_OF_RANGE,
		     mwctl_rkey(it.ctx, it.pair[0].server.qp, it.mr, at + LENGTH, 1, 0, &rkey, NULL));
	HOUSE_STATUS(MWCTL_STATUS_LENGTH_ZERO,
		     mwctl_rkey(it.ctx, it.pair[0].server.qp, it.mr, at, 0, 0, &rkey, NULL));
	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT,
		     mwctl_rkey(it.ctx, it.pair[0].server.qp, it.mr, at, 64, 0, NULL, NULL));
	HOUSE_STATUS(MWCTL_STATUS_INVALID_ARGUMENT, mwctl_rkey(it.ctx, NULL, it.mr, at, 64, 0, &rkey, NULL));
	HOUSE_STATUS(MWCTL_STATUS_FOREIGN_PD,
		     mwctl_rkey(it.ctx, it.pair[1].client.qp, it.mr, at, 64, 0, &rkey, NULL));
	unconnected = rc_qp_create(it.pd, it.pair[0].server.cq, &it.rc);
	HOUSE_STATUS(MWCTL_STATUS_QP_STATE, mwctl_rkey(it.ctx, unconnected, it.mr, at, 64, 0, &rkey, NULL));
	RC_CHECK_EQ(0, ibv_destroy_qp(unconnected));
	refuse_extended(&it);
	house_ok("what can't be granted is refused, each with its status");

	RC_CHECK_EQ(EBUSY, mwctl_dereg_mr(it.ctx, readable));
	HOUSE_STATUS(MWCTL_STATUS_BUSY, mwctl_context_close(it.ctx));
	HOUSE_STATUS(MWCTL_STATUS_BUSY, mwctl_detach_pd(it.ctx, it.pd));
	HOUSE_OK(mwctl_revoke_qp(it.ctx, it.pair[0].server.qp, 0, MWCTL_KILL_ALLOWED, &n));
	RC_CHECK_EQ(1, n);
	RC_CHECK_EQ(0, mwctl_dereg_mr(it.ctx, readable));
	RC_CHECK_EQ(0, mwctl_dereg_mr(it.ctx, plain));
	house_ok("no region goes while a right into it is open, and nothing closes under a client");
	close_all(&it);
}

static void test_lookups(void)
{
	struct adopted it;
	mwctl_domain domain;
	mwctl_region region;
	mwctl_region_info info;
	mwctl_peer peer;
	uint64_t grant;

	open_all(&it);
	HOUSE_STATUS(MWCTL_STATUS_NOT_ATTACHED, mwctl_peer_of(it.ctx, it.pair[0].server.qp, &peer));
	key_for(&it, 0, 0, 4096, HOUSE_WRITE);
	HOUSE_OK(mwctl_peer_of(it.ctx, it.pair[0].server.qp, &peer));
	HOUSE_OK(mwctl_domain_of(it.ctx, it.pd, &domain));
	HOUSE_OK(mwctl_region_of(it.ctx, it.mr, &region));
	HOUSE_STATUS(MWCTL_STATUS_NOT_ATTACHED, mwctl_domain_of(it.ctx, it.client_pd, &domain));
	HOUSE_STATUS(MWCTL_STATUS_NOT_ATTACHED, mwctl_region_of(it.ctx, it.local.mr, &region));
	HOUSE_OK(mwctl_domain_of(it.ctx, it.pd, &domain));
	HOUSE_OK(mwctl_region_of(it.ctx, it.mr, &region));
	HOUSE_OK(mwctl_check(it.ctx, domain, it.pair[0].server.qp->qp_num, (uintptr_t)it.memory, 64, HOUSE_WRITE,
			     &grant));
	HOUSE_OK(mwctl_region_info_get(it.ctx, region, &info, sizeof(info)));
	RC_CHECK(info.mr == it.mr && !info.parent_open);
	HOUSE_STATUS(MWCTL_STATUS_ALREADY_ATTACHED,
		     mwctl_peer_attach(it.ctx, domain, it.pair[0].server.qp, NULL, 0, &peer));
	HOUSE_OK(mwctl_detach_qp(it.ctx, it.pair[0].server.qp));
	HOUSE_STATUS(MWCTL_STATUS_NOT_ATTACHED, mwctl_peer_of(it.ctx, it.pair[0].server.qp, &peer));
	house_ok("ids of what the short calls attached, for all other calls");

	/* One that was attached by hand serves as well. */
	HOUSE_OK(mwctl_peer_attach(it.ctx, domain, it.pair[0].server.qp, NULL, 0, &peer));
	lands(&it, 0, 0, key_for(&it, 0, 0, 64, 0), 9);
	HOUSE_OK(mwctl_detach_qp(it.ctx, it.pair[0].server.qp));

	HOUSE_OK(mwctl_detach_pd(it.ctx, it.pd));
	HOUSE_STATUS(MWCTL_STATUS_NOT_ATTACHED, mwctl_domain_of(it.ctx, it.pd, &domain));
	HOUSE_STATUS(MWCTL_STATUS_NOT_ATTACHED, mwctl_region_of(it.ctx, it.mr, &region));
	RC_CHECK_EQ(0, ibv_dereg_mr(it.mr));
	it.mr = mwctl_reg_mr(it.ctx, it.pd, it.memory, LENGTH, ACCESS);
	RC_CHECK(it.mr != NULL);
	lands(&it, 0, 0, key_for(&it, 0, 0, 64, 0), 10);
	house_ok("a PD leaves the books and comes back");
	close_all(&it);
}

struct asker {
	struct adopted *it;
	pthread_barrier_t *barrier;
	uint32_t rkey;
};

static void *ask(void *user)
{
	struct asker *me = user;

	pthread_barrier_wait(me->barrier);
	me->rkey = key_for(me->it, 0, 0, 4096, 0);
	return NULL;
}

/* Whoever comes first attaches the queue pair. */
static void test_threads(void)
{
	struct adopted it;
	size_t n;

	open_all(&it);
	for (int round = 0; round < 20; round++) {
		pthread_barrier_t barrier;
		struct asker asker[2];
		pthread_t thread[2];

		RC_CHECK_EQ(0, pthread_barrier_init(&barrier, NULL, 2));
		for (int i = 0; i < 2; i++) {
			asker[i] = (struct asker){&it, &barrier, 0};
			RC_CHECK_EQ(0, pthread_create(&thread[i], NULL, ask, &asker[i]));
		}
		for (int i = 0; i < 2; i++)
			RC_CHECK_EQ(0, pthread_join(thread[i], NULL));
		RC_CHECK_EQ(0, pthread_barrier_destroy(&barrier));
		lands(&it, 0, 0, asker[0].rkey, round + 1);
		lands(&it, 0, 64, asker[1].rkey, round + 1);
		HOUSE_OK(mwctl_revoke_qp(it.ctx, it.pair[0].server.qp, 0, MWCTL_KILL_ALLOWED, &n));
		RC_CHECK_EQ(2, n);
		HOUSE_OK(mwctl_detach_qp(it.ctx, it.pair[0].server.qp));
	}
	close_all(&it);
	house_ok("two threads ask for keys of a queue pair that neither has attached");
}

/* The server's queue pair is destroyed, and others are made until one lies where it lay. */
static void replace_qp(struct adopted *it)
{
	struct rc_pair *pair = &it->pair[0];
	struct ibv_qp *old = pair->server.qp, *made[TRIES];
	int n = 0;

	RC_CHECK_EQ(0, ibv_destroy_qp(old));
	do
		made[n] = rc_qp_create(it->pd, pair->server.cq, &it->rc);
	while (made[n++] != old && n < TRIES);
	pair->server.qp = made[--n];
	while (n-- > 0)
		RC_CHECK_EQ(0, ibv_destroy_qp(made[n]));
	rc_qp_modify(pair->client.qp, IBV_QPS_RESET);
	rc_qp_connect(&it->device, pair->server.qp, pair->client.qp->qp_num, &it->rc);
	rc_qp_connect(&it->device, pair->client.qp, pair->server.qp->qp_num, &it->rc);
	if (pair->server.qp != old)
		rc_note("no queue pair came to lie where the destroyed one was");
}

static void test_replaced_qp(void)
{
	struct adopted it;
	struct ibv_qp *old;
	mwctl_peer before, after;
	uint32_t old_number;

	open_all(&it);
	key_for(&it, 0, 0, 4096, 0);
	old = it.pair[0].server.qp;
	old_number = old->qp_num;
	HOUSE_OK(mwctl_peer_of(it.ctx, old, &before));
	/* Against the rules: no detach. Its right is revoked, for some kernels wait long for a bound one. */
	HOUSE_OK(mwctl_revoke_qp(it.ctx, old, 0, MWCTL_KILL_ALLOWED, NULL));
	replace_qp(&it);
	if (it.pair[0].server.qp->qp_num != old_number)
		HOUSE_STATUS(MWCTL_STATUS_NOT_ATTACHED, mwctl_peer_of(it.ctx, it.pair[0].server.qp, &after));
	lands(&it, 0, 0, key_for(&it, 0, 0, 4096, 0), 11);
	HOUSE_OK(mwctl_peer_of(it.ctx, it.pair[0].server.qp, &after));
	if (it.pair[0].server.qp == old && old->qp_num != old_number) {
		mwctl_peer_info info;

		RC_CHECK(after.id != before.id);
		HOUSE_STATUS(MWCTL_STATUS_STALE_ID,
			     mwctl_peer_info_get(it.ctx, before, &info, sizeof(info)));
	} else {
		HOUSE_OK(mwctl_peer_gone(it.ctx, before, 0));
	}
	close_all(&it);
	house_ok("a queue pair at the address of a destroyed one is not taken for it");
}

static void test_replaced_mr(void)
{
	struct adopted it;
	struct ibv_mr *old, *made[TRIES];
	mwctl_region region;
	uint32_t rkey, lkey, handle;
	int n = 0;

	open_all(&it);
	old = it.mr;
	lkey = old->lkey;
	handle = old->handle;
	/* Against the rules: behind the library's back. */
	RC_CHECK_EQ(0, ibv_dereg_mr(old));
	do
		made[n] = ibv_reg_mr(it.pd, it.memory, LENGTH, ACCESS);
	while (made[n] != old && ++n < TRIES);
	if (n < TRIES) {
		/* Where nothing tells the two apart, not even the key, they are one to the device as well. */
		if (made[n]->lkey == lkey && made[n]->handle == handle)
			rc_note("the region's successor has the same address, number and lkey");
		else
			HOUSE_STATUS(MWCTL_STATUS_NOT_ATTACHED,
				     mwctl_rkey(it.ctx, it.pair[0].server.qp, made[n], (uintptr_t)it.memory, 64, 0,
						&rkey, NULL));
		RC_CHECK_EQ(0, ibv_dereg_mr(made[n]));
	} else {
		rc_note("no region came to lie where the old one was");
	}
	while (n-- > 0)
		RC_CHECK_EQ(0, ibv_dereg_mr(made[n]));
	it.mr = mwctl_reg_mr(it.ctx, it.pd, it.memory, LENGTH, ACCESS);
	RC_CHECK(it.mr != NULL);
	lands(&it, 0, 0, key_for(&it, 0, 0, 64, 0), 12);
	HOUSE_OK(mwctl_region_of(it.ctx, it.mr, &region));
	HOUSE_OK(mwctl_detach_qp(it.ctx, it.pair[0].server.qp));
	RC_CHECK_EQ(0, mwctl_dereg_mr(it.ctx, it.mr));
	it.mr = mwctl_reg_mr(it.ctx, it.pd, it.memory, LENGTH, ACCESS);
	close_all(&it);
	house_ok("a region at the address of a deregistered one is not taken for it");
}

int main(void)
{
	test_keys();
	test_refusals();
	test_lookups();
	test_threads();
	test_replaced_qp();
	test_replaced_mr();
	return 0;
}
