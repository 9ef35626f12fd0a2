/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program for Type 1 windows, built twice: as it is, and with `-include mwctl_compat.h` and no other
 * change. Both must pass. What the second alone promises is under MWCTL_COMPAT_H.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rc_pair.h"

#define BLOCK 4096
#define BLOCKS 4
#define REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
#define ENTRIES 32
#define CQE 128

struct scene {
	struct rc_device device;
	struct ibv_pd *pd, *client_pd;
	struct rc_memory memory, local;
	struct rc_options options;
	struct rc_pair pair[2];
	struct ibv_mw *mw;
};

static void open_scene(struct scene *s, int sq_sig_all)
{
	memset(s, 0, sizeof(*s));
	rc_device_open(&s->device);
	if (!(s->device.attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW))
		rc_skip("%s has no Type 1 windows", s->device.label);
	s->pd = ibv_alloc_pd(s->device.context);
	s->client_pd = ibv_alloc_pd(s->device.context);
	RC_CHECK(s->pd && s->client_pd);
	rc_memory_open(&s->memory, s->pd, BLOCK * BLOCKS, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	rc_memory_open(&s->local, s->client_pd, BLOCK, IBV_ACCESS_LOCAL_WRITE);
	s->options = (struct rc_options){.server_pd = s->pd,
					 .client_pd = s->client_pd,
					 .max_send_wr = ENTRIES,
					 .max_recv_wr = 256,
					 .cqe = CQE,
					 .sq_sig_all = sq_sig_all};
	for (int i = 0; i < 2; i++)
		rc_pair_open(&s->pair[i], &s->device, &s->options);
	s->mw = ibv_alloc_mw(s->pd, IBV_MW_TYPE_1);
	if (!s->mw && errno == EOPNOTSUPP)
		rc_skip("%s has no windows", s->device.label);
	RC_CHECK(s->mw && s->mw->pd == s->pd && s->mw->context == s->device.context &&
		 s->mw->type == IBV_MW_TYPE_1);
}

static void close_scene(struct scene *s)
{
	struct mwctl_sim_misuse misuse;

	RC_CHECK_EQ(0, ibv_dealloc_mw(s->mw));
	for (int i = 0; i < 2; i++)
		rc_pair_close(&s->pair[i]);
	rc_memory_close(&s->local);
	rc_memory_close(&s->memory);
	RC_CHECK_EQ(0, ibv_dealloc_pd(s->client_pd));
	if (ibv_dealloc_pd(s->pd))
		RC_FAIL("ibv_dealloc_pd: %s", strerror(errno));
	rc_device_close(&s->device);
	if (mwctl_sim_present() && mwctl_sim_misuse_next(&misuse, sizeof(misuse)))
		RC_FAIL("misuse of the device: %s", misuse.text);
}

/* A client that did what it may not has lost its queue pair: it comes back with a new one. */
static void come_back(struct scene *s, int client)
{
	rc_pair_close(&s->pair[client]);
	rc_pair_open(&s->pair[client], &s->device, &s->options);
}

static uint8_t *block(struct scene *s, int number)
{
	return s->memory.at + number * BLOCK;
}

static int post_bind(struct scene *s, int client, int number, size_t length, unsigned int access, uint64_t wr_id,
		     unsigned int flags)
{
	/* Commas within the call, as where a program writes its request in place. */
	return ibv_bind_mw(s->pair[client].server.qp, s->mw,
			   &(struct ibv_mw_bind){.wr_id = wr_id,
						 .send_flags = flags,
						 .bind_info = {.mr = s->memory.mr,
							       .addr = (uintptr_t)block(s, number),
							       .length = length,
							       .mw_access_flags = access}});
}

static void await(struct scene *s, int client, uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = rc_wait(s->pair[client].server.cq);

	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	RC_CHECK_EQ(wr_id, wc.wr_id);
	RC_CHECK_EQ(opcode, wc.opcode);
	RC_CHECK_EQ(s->pair[client].server.qp->qp_num, wc.qp_num);
}

static void await_bind(struct scene *s, int client, uint64_t wr_id)
{
	await(s, client, wr_id, IBV_WC_BIND_MW);
}

/* A signaled bind, waited for; returns the key. */
static uint32_t bind(struct scene *s, int client, int number, unsigned int access)
{
	static uint64_t wr_id = 1000;
	uint32_t rkey;

	RC_CHECK_EQ(0, post_bind(s, client, number, BLOCK, access, ++wr_id, IBV_SEND_SIGNALED));
	rkey = s->mw->rkey;
	await_bind(s, client, wr_id);
	RC_CHECK_EQ(rkey, s->mw->rkey);
	return rkey;
}

static void nothing_more(struct scene *s, int client)
{
	rc_wait_nothing(s->pair[client].server.cq, 20);
}

static enum ibv_wc_status write_to(struct scene *s, int client, int number, uint32_t rkey, int byte)
{
	memset(s->local.at, byte, 64);
	return rc_write(&s->pair[client].client, &s->local, 64, block(s, number), rkey);
}

static void lands(struct scene *s, int client, int number, uint32_t rkey)
{
	static uint8_t byte;

	byte = byte % 200 + 1;
	RC_CHECK_STATUS(IBV_WC_SUCCESS, write_to(s, client, number, rkey, byte));
	RC_CHECK_EQ(byte, *block(s, number));
}

static void denied(struct scene *s, int client, int number, uint32_t rkey)
{
	uint8_t before = *block(s, number);

	RC_CHECK_STATUS(IBV_WC_REM_ACCESS_ERR, write_to(s, client, number, rkey, 201));
	RC_CHECK_EQ(before, *block(s, number));
	come_back(s, client);
}

static void test_bind(void)
{
	struct scene s;
	uint32_t first, second;

	open_scene(&s, 0);
	first = s.mw->rkey;
	RC_CHECK(bind(&s, 0, 0, REMOTE) != first);
	lands(&s, 0, 0, s.mw->rkey);
	RC_CHECK_STATUS(IBV_WC_SUCCESS,
			rc_read(&s.pair[0].client, &s.local, 64, block(&s, 0), s.mw->rkey));
	rc_ok("a bind sets the key at once and completes under its number");

	first = s.mw->rkey;
	second = bind(&s, 0, 1, REMOTE);
	RC_CHECK(first != second);
	lands(&s, 0, 1, second);
	denied(&s, 0, 0, first);
	rc_ok("a bound window is bound again: the new key works, the old one is dead");

	first = bind(&s, 0, 2, IBV_ACCESS_REMOTE_READ);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_read(&s.pair[0].client, &s.local, 64, block(&s, 2), first));
	denied(&s, 0, 2, first);
	rc_ok("the right to read is none to write");
	close_scene(&s);
}

static void test_unbind(void)
{
	struct scene s;
	uint32_t rkey;

	open_scene(&s, 0);
	RC_CHECK_EQ(0, post_bind(&s, 0, 0, 0, 0, 1, IBV_SEND_SIGNALED));
	await_bind(&s, 0, 1);
	RC_CHECK_EQ(0, post_bind(&s, 0, 0, 0, 0, 2, 0));
	nothing_more(&s, 0);
	rc_ok("length 0 for a window that is not bound: a completion if it was asked for");

	rkey = bind(&s, 0, 0, REMOTE);
	lands(&s, 0, 0, rkey);
	RC_CHECK_EQ(0, post_bind(&s, 0, 0, 0, 0, 3, IBV_SEND_SIGNALED));
	await_bind(&s, 0, 3);
	denied(&s, 0, 0, rkey);
	rc_ok("length 0 unbinds");

	rkey = bind(&s, 0, 1, REMOTE);
	RC_CHECK_EQ(0, post_bind(&s, 0, 0, 0, 0, 4, 0));
	RC_CHECK_EQ(0, post_bind(&s, 0, 2, BLOCK, REMOTE, 5, IBV_SEND_SIGNALED));
	await_bind(&s, 0, 5);
	nothing_more(&s, 0);
	lands(&s, 0, 2, s.mw->rkey);
	denied(&s, 0, 1, rkey);
	rc_ok("an unbind that asks for no completion, and a bind behind it");
	close_scene(&s);
}

static void test_dealloc(void)
{
	struct scene s;
	uint32_t rkey;

	open_scene(&s, 0);
	rkey = bind(&s, 0, 0, REMOTE);
	lands(&s, 0, 0, rkey);
	RC_CHECK_EQ(0, ibv_dealloc_mw(s.mw));
	denied(&s, 0, 0, rkey);

	s.mw = ibv_alloc_mw(s.pd, IBV_MW_TYPE_1);
	RC_CHECK(s.mw != NULL);
	RC_CHECK_EQ(0, post_bind(&s, 0, 0, BLOCK, REMOTE, 6, 0));
	rkey = s.mw->rkey;
	RC_CHECK_EQ(0, post_bind(&s, 0, 1, BLOCK, REMOTE, 7, 0));
	RC_CHECK_EQ(0, post_bind(&s, 0, 2, BLOCK, REMOTE, 8, IBV_SEND_SIGNALED));
	await_bind(&s, 0, 8);
	RC_CHECK_EQ(0, ibv_dealloc_mw(s.mw));
	nothing_more(&s, 0);
	denied(&s, 0, 0, rkey);
	s.mw = ibv_alloc_mw(s.pd, IBV_MW_TYPE_1);
	RC_CHECK(s.mw != NULL);
	close_scene(&s);
	rc_ok("a bound window is deallocated: its key is dead when the call returns");
}

/* Binds of all kinds between the server's own SENDs: what was asked for completes, in order, and
 * nothing else. */
static void test_order(int sq_sig_all)
{
	struct scene s;
	struct ibv_sge sge = {0};
	struct ibv_send_wr wr, *bad;
	uint64_t expected[ENTRIES];
	enum ibv_wc_opcode opcode[ENTRIES];
	unsigned int seed = 7;
	uint64_t wr_id = 1;

	open_scene(&s, sq_sig_all);
	for (int round = 0; round < 200; round++) {
		int n = 0, posts = 1 + (int)(rand_r(&seed) % 12);

		for (int i = 0; i < posts; i++, wr_id++) {
			/* The last one is signaled, so that the round has an end. */
			bool signaled = i + 1 == posts || rand_r(&seed) % 2;
			unsigned int flags = signaled ? IBV_SEND_SIGNALED : 0;
			int what = (int)(rand_r(&seed) % 4);

			if (what == 0) {
				rc_post_recv(&s.pair[0].client, &s.local, 1);
				sge = (struct ibv_sge){.addr = (uintptr_t)s.memory.at, .length = 8,
						       .lkey = s.memory.mr->lkey};
				wr = (struct ibv_send_wr){.wr_id = wr_id, .sg_list = &sge, .num_sge = 1,
							  .opcode = IBV_WR_SEND, .send_flags = flags};
				RC_CHECK_EQ(0, ibv_post_send(s.pair[0].server.qp, &wr, &bad));
			} else {
				if (what == 1)
					flags |= IBV_SEND_FENCE;
				RC_CHECK_EQ(0, post_bind(&s, 0, what - 1, what == 3 ? 0 : BLOCK,
							 what == 3 ? 0 : REMOTE, wr_id, flags));
			}
			if (signaled || sq_sig_all) {
				opcode[n] = what ? IBV_WC_BIND_MW : IBV_WC_SEND;
				expected[n++] = wr_id;
			}
		}
		for (int i = 0; i < n; i++)
			await(&s, 0, expected[i], opcode[i]);
		while (ibv_poll_cq(s.pair[0].client.cq, 1, &(struct ibv_wc){0}) > 0)
			;
	}
	nothing_more(&s, 0);
	lands(&s, 0, 0, bind(&s, 0, 0, REMOTE));
	close_scene(&s);
	rc_ok("binds between SENDs%s: what was asked for completes, in order, and nothing else",
	      sq_sig_all ? " under sq_sig_all" : "");
}

/* Nobody polls: in the end there is no room, and nothing is lost. */
static void test_full_queue(void)
{
	struct scene s;
	uint64_t posted = 0, most = CQE;
	int error = 0;

	open_scene(&s, 0);
#ifdef MWCTL_COMPAT_H
	most = 16 * CQE;
#else
	/* The device in the process calls it misuse. */
	if (mwctl_sim_present())
		most = ENTRIES;
#endif
	/* A device may have more room than was asked for. */
	while (posted < most &&
	       !(error = post_bind(&s, 0, (int)(posted % BLOCKS), BLOCK, REMOTE, posted, IBV_SEND_SIGNALED)))
		posted++;
	RC_CHECK(posted >= ENTRIES);
	if (error)
		RC_CHECK_EQ(ENOMEM, error);
#ifdef MWCTL_COMPAT_H
	else
		RC_FAIL("no end to the room");
#endif
	for (uint64_t i = 0; i < posted; i++)
		await_bind(&s, 0, i);
	nothing_more(&s, 0);
	lands(&s, 0, (int)((posted - 1) % BLOCKS), s.mw->rkey);
	/* And of those that ask for no completion any number, with one now and then. */
	for (uint64_t i = 1; i < 10 * ENTRIES; i++) {
		bool signaled = i % (ENTRIES / 2) == 0;

		RC_CHECK_EQ(0, post_bind(&s, 0, 0, BLOCK, REMOTE, i, signaled ? IBV_SEND_SIGNALED : 0));
		if (signaled)
			await_bind(&s, 0, i);
	}
	close_scene(&s);
	rc_ok("a full queue refuses with ENOMEM, and no completion is lost");
}

/* Whether what is posted on a queue pair in ERR is sure to complete: not so on mlx5. */
static bool flushes(const struct scene *s)
{
	struct mwctl_sim_model model;

	if (!mwctl_sim_present())
		return s->device.kind == RC_DEVICE_RXE;
	RC_CHECK_EQ(0, mwctl_sim_model_get(&model, sizeof(model)));
	return model.profile != MWCTL_SIM_PROFILE_MLX5;
}

static void test_dead_queue(void)
{
	struct scene s;
	struct ibv_wc wc;
	uint32_t rkey;

	open_scene(&s, 0);
	rkey = bind(&s, 0, 0, REMOTE);
	rc_qp_modify(s.pair[0].server.qp, IBV_QPS_ERR);
	RC_CHECK_EQ(0, post_bind(&s, 0, 1, BLOCK, REMOTE, 11, IBV_SEND_SIGNALED));
	RC_CHECK_EQ(0, post_bind(&s, 0, 2, BLOCK, REMOTE, 12, IBV_SEND_SIGNALED));
	for (uint64_t wr_id = 11; flushes(&s) && wr_id <= 12; wr_id++) {
		wc = rc_wait(s.pair[0].server.cq);
		RC_CHECK_EQ(wr_id, wc.wr_id);
		RC_CHECK_STATUS(IBV_WC_WR_FLUSH_ERR, wc.status);
	}
	/* An unbind of what is no longer bound, which asks for nothing. */
	RC_CHECK_EQ(0, post_bind(&s, 0, 0, 0, 0, 13, 0));
	if (flushes(&s)) {
		wc = rc_wait(s.pair[0].server.cq);
		RC_CHECK_EQ(13, wc.wr_id);
		RC_CHECK_STATUS(IBV_WC_WR_FLUSH_ERR, wc.status);
	}
	nothing_more(&s, 0);
	/* As Type 1 wants it after an error. */
	s.mw->rkey = rkey;
	come_back(&s, 0);
	lands(&s, 0, 0, bind(&s, 0, 0, REMOTE));
	close_scene(&s);
	rc_ok("binds on a queue pair in ERR are flushed under their numbers; the window lives on");
}

static void test_reset(void)
{
	struct scene s;

	open_scene(&s, 0);
	bind(&s, 0, 0, REMOTE);
	rc_pair_reconnect(&s.pair[0], &s.options);
	lands(&s, 0, 1, bind(&s, 0, 1, REMOTE));
	close_scene(&s);
	rc_ok("a queue pair through RESET");
}

static void test_refusals(void)
{
	struct scene s;
	struct ibv_mw *type2;
	struct ibv_mw_bind bad = {.wr_id = 13, .bind_info = {.length = 64}};
	struct rc_memory foreign;

	open_scene(&s, 0);
	RC_CHECK_EQ(EINVAL, ibv_bind_mw(s.pair[0].server.qp, s.mw, &bad));
	rc_memory_open(&foreign, s.client_pd, BLOCK, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	bad.bind_info.mr = foreign.mr;
	bad.bind_info.addr = (uintptr_t)foreign.at;
	RC_CHECK_EQ(EPERM, ibv_bind_mw(s.pair[0].server.qp, s.mw, &bad));
	rc_memory_close(&foreign);
	type2 = ibv_alloc_mw(s.pd, IBV_MW_TYPE_2);
	if (type2) {
		RC_CHECK_EQ(EINVAL, ibv_bind_mw(s.pair[0].server.qp, type2, &bad));
		RC_CHECK_EQ(IBV_MW_TYPE_2, type2->type);
		RC_CHECK_EQ(0, ibv_dealloc_mw(type2));
	}
	bind(&s, 0, 0, REMOTE);
#ifndef MWCTL_COMPAT_H
	/* The device in the process calls it misuse. */
	if (!mwctl_sim_present())
#endif
		RC_CHECK(ibv_dereg_mr(s.memory.mr) != 0);
	lands(&s, 0, 0, s.mw->rkey);
	RC_CHECK_EQ(0, post_bind(&s, 0, 0, 0, 0, 14, IBV_SEND_SIGNALED));
	await_bind(&s, 0, 14);
	close_scene(&s);
	rc_ok("what verbs refuses is refused in the same way");
}

struct worker {
	struct scene scene; /* the shared objects, and a window of its own */
	int client;
};

static void *work(void *user)
{
	struct worker *it = user;
	struct scene *s = &it->scene;
	int client = it->client;

	for (int round = 0; round < 100; round++) {
		uint32_t rkey;

		s->mw = ibv_alloc_mw(s->pd, IBV_MW_TYPE_1);
		RC_CHECK(s->mw != NULL);
		RC_CHECK_EQ(0, post_bind(s, client, 2 * client, BLOCK, REMOTE, 1, 0));
		RC_CHECK_EQ(0, post_bind(s, client, 2 * client + 1, BLOCK, REMOTE, 2, IBV_SEND_SIGNALED));
		rkey = s->mw->rkey;
		await_bind(s, client, 2);
		memset(s->local.at, round + 1, 64);
		RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_write(&s->pair[client].client, &s->local, 64,
							 block(s, 2 * client + 1), rkey));
		RC_CHECK_EQ(round + 1, *block(s, 2 * client + 1));
		RC_CHECK_EQ(0, ibv_dealloc_mw(s->mw));
	}
	return NULL;
}

/* As large as the device has them: there is no more room then, and nothing to refuse. */
static void test_largest_queues(void)
{
	struct rc_device device;
	struct ibv_cq *cq;

	rc_device_open(&device);
	cq = ibv_create_cq(device.context, 16, NULL, NULL, 0);
	RC_CHECK(cq);
	RC_CHECK_EQ(0, ibv_resize_cq(cq, device.attr.max_cqe));
	RC_CHECK(cq->cqe >= device.attr.max_cqe);
	RC_CHECK(ibv_resize_cq(cq, -1));
	RC_CHECK_EQ(0, ibv_destroy_cq(cq));
	cq = ibv_create_cq(device.context, device.attr.max_cqe, NULL, NULL, 0);
	RC_CHECK(cq && cq->cqe >= device.attr.max_cqe);
	RC_CHECK_EQ(0, ibv_destroy_cq(cq));
	rc_device_close(&device);
	rc_ok("completion queues of the largest size");
}

static void test_threads(void)
{
	struct scene s;
	struct worker worker[2];
	pthread_t thread[2];

	open_scene(&s, 0);
	for (int i = 0; i < 2; i++) {
		worker[i] = (struct worker){.scene = s, .client = i};
		rc_memory_open(&worker[i].scene.local, s.client_pd, BLOCK, IBV_ACCESS_LOCAL_WRITE);
		RC_CHECK_EQ(0, pthread_create(&thread[i], NULL, work, &worker[i]));
	}
	for (int i = 0; i < 2; i++) {
		RC_CHECK_EQ(0, pthread_join(thread[i], NULL));
		rc_memory_close(&worker[i].scene.local);
	}
	close_scene(&s);
	rc_ok("two threads, each with windows of its own");
}

#ifdef MWCTL_COMPAT_H

/* What the library does not get to see can't be waited for, and a client's SEND_WITH_INV would go unseen. */
static void test_unseen_queue(void)
{
	struct ibv_cq_init_attr_ex init = {.cqe = 64, .wc_flags = IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_IMM};
	struct scene s;
	struct ibv_cq_ex *unseen;

	open_scene(&s, 0);
	unseen = ibv_create_cq_ex(s.device.context, &init);
	if (unseen) {
		rc_pair_close(&s.pair[1]);
		s.options.recv_cq = ibv_cq_ex_to_cq(unseen);
		rc_pair_open(&s.pair[1], &s.device, &s.options);
		RC_CHECK_EQ(EOPNOTSUPP, post_bind(&s, 1, 0, BLOCK, REMOTE, 1, IBV_SEND_SIGNALED));
		RC_CHECK(*mwctl_compat_error());
		rc_pair_close(&s.pair[1]);
		s.options.recv_cq = NULL;
		rc_pair_open(&s.pair[1], &s.device, &s.options);
		RC_CHECK_EQ(0, ibv_destroy_cq(ibv_cq_ex_to_cq(unseen)));
	}
	lands(&s, 1, 0, bind(&s, 1, 0, REMOTE));
	close_scene(&s);
	rc_ok("a queue pair is refused if one of its completion queues is polled otherwise");
}

static void test_pinned(void)
{
	struct scene s;
	mwctl_context *ctx;
	mwctl_domain domain;
	mwctl_stats stats;
	uint32_t rkey;

	open_scene(&s, 0);
	rkey = bind(&s, 0, 0, REMOTE);
	lands(&s, 0, 0, rkey);
	denied(&s, 1, 0, rkey);
	lands(&s, 0, 0, rkey);
	rc_ok("another queue pair of the PD can't use the key");

	RC_CHECK_EQ(EOPNOTSUPP, post_bind(&s, 1, 1, BLOCK, REMOTE, 20, IBV_SEND_SIGNALED));
	RC_CHECK_EQ(EOPNOTSUPP, errno);
	RC_CHECK(strstr(mwctl_compat_error(), "another queue pair"));
	lands(&s, 0, 0, rkey);
	RC_CHECK_EQ(0, post_bind(&s, 0, 0, 0, 0, 21, IBV_SEND_SIGNALED));
	await_bind(&s, 0, 21);
	rkey = bind(&s, 1, 1, REMOTE);
	lands(&s, 1, 1, rkey);
	rc_ok("a bound window is not bound on another queue pair, and one that was unbound is");

	ctx = mwctl_compat_context(s.device.context);
	RC_CHECK(ctx && !mwctl_domain_of(ctx, s.pd, &domain));
	RC_CHECK_EQ(MWCTL_STATUS_OK, mwctl_check(ctx, domain, s.pair[1].server.qp->qp_num,
						 (uintptr_t)block(&s, 1), 64, IBV_ACCESS_REMOTE_WRITE, NULL));
	RC_CHECK_EQ(MWCTL_STATUS_OK, mwctl_stats_get(ctx, &stats, sizeof(stats)));
	RC_CHECK(stats.proved_invalidated >= 1);
	RC_CHECK_EQ(MWCTL_STATUS_BUSY, mwctl_context_close(ctx));
	rc_ok("the library's own questions go on working beside");
	close_scene(&s);
}

static int messages;

static void on_message(void *user, const char *text)
{
	RC_CHECK(user == &messages && *text);
	messages++;
}

static void test_messages(void)
{
	struct scene s;
	struct rc_memory kept;
	struct ibv_mw_bind bind = {.wr_id = 30, .send_flags = IBV_SEND_SIGNALED};

	open_scene(&s, 0);
	mwctl_compat_on_message(on_message, &messages);
	kept = s.memory;
	rc_memory_open(&s.memory, s.pd, BLOCK,
		       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | IBV_ACCESS_REMOTE_WRITE);
	messages = 0;
	bind.bind_info = (struct ibv_mw_bind_info){s.memory.mr, (uintptr_t)s.memory.at, 64, REMOTE};
	RC_CHECK_EQ(0, ibv_bind_mw(s.pair[0].server.qp, s.mw, &bind));
	await_bind(&s, 0, 30);
	RC_CHECK_EQ(1, messages);
	RC_CHECK(strstr(mwctl_compat_error(), "remote access"));
	RC_CHECK_EQ(0, ibv_bind_mw(s.pair[0].server.qp, s.mw, &bind));
	await_bind(&s, 0, 30);
	RC_CHECK_EQ(1, messages);
	rc_ok("a region whose own key stays open is told of, once");

	bind.bind_info.addr += BLOCK;
	RC_CHECK_EQ(EINVAL, ibv_bind_mw(s.pair[0].server.qp, s.mw, &bind));
	RC_CHECK_EQ(2, messages);
	RC_CHECK_STATE(IBV_QPS_RTS, s.pair[0].server.qp);
	rc_ok("a range outside of the region is refused at once, and costs no queue pair");

	bind.bind_info.length = 0;
	RC_CHECK_EQ(0, ibv_bind_mw(s.pair[0].server.qp, s.mw, &bind));
	await_bind(&s, 0, 30);
	RC_CHECK_EQ(0, ibv_dealloc_mw(s.mw));
	s.mw = ibv_alloc_mw(s.pd, IBV_MW_TYPE_1);
	rc_memory_close(&s.memory);
	s.memory = kept;
	mwctl_compat_on_message(NULL, NULL);
	close_scene(&s);
}

/* Completions that a call took off the queue while it waited come with the next poll. */
static void test_kept(void)
{
	struct mwctl_sim_misuse misuse;
	struct scene s;

	open_scene(&s, 0);
	for (uint64_t i = 0; i < 8; i++)
		RC_CHECK_EQ(0, post_bind(&s, 0, 0, BLOCK, REMOTE, 40 + i, IBV_SEND_SIGNALED));
	RC_CHECK_EQ(0, ibv_dealloc_mw(s.mw));
	for (uint64_t i = 0; i < 8; i++)
		await_bind(&s, 0, 40 + i);
	nothing_more(&s, 0);
	s.mw = ibv_alloc_mw(s.pd, IBV_MW_TYPE_1);
	close_scene(&s);
	rc_ok("a window is deallocated behind binds that nobody has polled: none of them is lost");

	open_scene(&s, 0);
	for (int i = 0; i < 2; i++)
		rc_pair_close(&s.pair[i]);
	s.options.send_cq = ibv_create_cq(s.device.context, CQE, NULL, NULL, 0);
	RC_CHECK(s.options.send_cq);
	for (int i = 0; i < 2; i++)
		rc_pair_open(&s.pair[i], &s.device, &s.options);
	for (uint64_t i = 0; i < 8; i++)
		RC_CHECK_EQ(0, post_bind(&s, 0, 0, BLOCK, REMOTE, 40 + i, IBV_SEND_SIGNALED));
	RC_CHECK_EQ(0, ibv_dealloc_mw(s.mw));
	rc_pair_close(&s.pair[0]);
	RC_CHECK_EQ(EBUSY, ibv_destroy_cq(s.options.send_cq));
	if (mwctl_sim_present())
		RC_CHECK(mwctl_sim_misuse_next(&misuse, sizeof(misuse)));
	for (uint64_t i = 0; i < 8; i++)
		RC_CHECK_EQ(40 + i, rc_wait(s.options.send_cq).wr_id);
	rc_pair_open(&s.pair[0], &s.device, &s.options);
	s.mw = ibv_alloc_mw(s.pd, IBV_MW_TYPE_1);
	lands(&s, 0, 0, bind(&s, 0, 0, REMOTE));
	for (int i = 0; i < 2; i++)
		rc_pair_close(&s.pair[i]);
	RC_CHECK_EQ(0, ibv_destroy_cq(s.options.send_cq));
	s.options.send_cq = NULL;
	for (int i = 0; i < 2; i++)
		rc_pair_open(&s.pair[i], &s.device, &s.options);
	close_scene(&s);
	rc_ok("a completion queue that can't be destroyed keeps what is in it");
}

/* Not on soft-RoCE: a second invalidate brings its kernel down. */
static void test_given_back(void)
{
	struct scene s;
	uint32_t rkey;

	open_scene(&s, 0);
	rkey = bind(&s, 0, 0, REMOTE);
	rc_post_recv(&s.pair[0].server, &s.memory, 90);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send_with_inv(&s.pair[0].client, &s.local, 8, rkey));
	RC_CHECK_EQ(0, post_bind(&s, 0, 1, BLOCK, REMOTE, 91, IBV_SEND_SIGNALED));
	rkey = s.mw->rkey;
	await(&s, 0, 90, IBV_WC_RECV);
	await_bind(&s, 0, 91);
	RC_CHECK_STATE(IBV_QPS_RTS, s.pair[0].server.qp);
	lands(&s, 0, 1, rkey);
	close_scene(&s);
	rc_ok("a client gave its right back: the next bind invalidates nothing");
}

static uint64_t order(struct scene *s, uint32_t kind, uint32_t position, int error)
{
	struct mwctl_sim_fault fault = {.kind = kind,
					.qp_num = s->pair[0].server.qp->qp_num,
					.count = 1,
					.error = error,
					.position = position};
	uint64_t id;

	RC_CHECK_EQ(0, mwctl_sim_fault_order(&fault, sizeof(fault), &id));
	return id;
}

static void release(uint64_t id)
{
	RC_CHECK_EQ(1, mwctl_sim_fault_hits(id));
	RC_CHECK_EQ(0, mwctl_sim_fault_release(id));
}

/* No right is left on the window's PD. */
static void no_grants(struct scene *s)
{
	mwctl_context *ctx = mwctl_compat_context(s->device.context);
	mwctl_domain domain;
	size_t n;

	RC_CHECK_EQ(MWCTL_STATUS_OK, mwctl_domain_of(ctx, s->pd, &domain));
	RC_CHECK_EQ(MWCTL_STATUS_OK, mwctl_domain_grants(ctx, domain, NULL, 0, &n));
	RC_CHECK_EQ(0, n);
}

static void renew_window(struct scene *s)
{
	RC_CHECK_EQ(0, ibv_dealloc_mw(s->mw));
	no_grants(s);
	s->mw = ibv_alloc_mw(s->pd, IBV_MW_TYPE_1);
	RC_CHECK(s->mw != NULL);
}

static void test_refused_posts(void)
{
	struct scene s;
	uint32_t old, rkey;
	uint64_t fault;

	open_scene(&s, 0);
	old = bind(&s, 0, 0, REMOTE);
	fault = order(&s, MWCTL_SIM_FAIL_POST, 0, EINVAL);
	RC_CHECK_EQ(EINVAL, post_bind(&s, 0, 1, BLOCK, REMOTE, 60, IBV_SEND_SIGNALED));
	release(fault);
	RC_CHECK_EQ(old, s.mw->rkey);
	lands(&s, 0, 0, old);
	nothing_more(&s, 0);
	rkey = bind(&s, 0, 1, REMOTE);
	lands(&s, 0, 1, rkey);
	rc_ok("a post that is refused leaves the window as it was");

	fault = order(&s, MWCTL_SIM_CUT_POST, 1, ENOMEM);
	RC_CHECK_EQ(ENOMEM, post_bind(&s, 0, 2, BLOCK, REMOTE, 61, IBV_SEND_SIGNALED));
	release(fault);
	RC_CHECK(strstr(mwctl_compat_error(), "unbound"));
	RC_CHECK_EQ(0, s.mw->rkey);
	nothing_more(&s, 0);
	denied(&s, 0, 1, rkey);
	lands(&s, 0, 2, bind(&s, 0, 2, REMOTE));
	rc_ok("a post that is cut behind the end of the old right says so");

	RC_CHECK_EQ(0, post_bind(&s, 0, 0, 0, 0, 62, IBV_SEND_SIGNALED));
	await_bind(&s, 0, 62);
	fault = order(&s, MWCTL_SIM_CUT_POST, 1, ENOMEM);
	RC_CHECK_EQ(ENOMEM, post_bind(&s, 0, 0, 0, 0, 63, IBV_SEND_SIGNALED));
	release(fault);
	nothing_more(&s, 0);
	renew_window(&s);
	lands(&s, 0, 3, bind(&s, 0, 3, REMOTE));
	rc_ok("the same of an unbind of what is not bound");

	fault = order(&s, MWCTL_SIM_POST_NO_BAD_WR, 0, EIO);
	RC_CHECK_EQ(EIO, post_bind(&s, 0, 0, BLOCK, REMOTE, 64, IBV_SEND_SIGNALED));
	release(fault);
	await_bind(&s, 0, 64);
	renew_window(&s);
	lands(&s, 0, 0, bind(&s, 0, 0, REMOTE));
	close_scene(&s);
	rc_ok("a post of which the device does not say whether it was done");
}

static void test_failing_requests(void)
{
	struct scene s;
	struct ibv_wc wc;
	uint64_t fault;

	open_scene(&s, 0);
	for (uint32_t position = 0; position < 2; position++) {
		bind(&s, 0, 0, REMOTE);
		fault = order(&s, MWCTL_SIM_FAIL_WR, position, IBV_WC_MW_BIND_ERR);
		RC_CHECK_EQ(0, post_bind(&s, 0, 1, BLOCK, REMOTE, 70, 0));
		release(fault);
		wc = rc_wait(s.pair[0].server.cq);
		RC_CHECK_EQ(70, wc.wr_id);
		RC_CHECK_STATUS(position ? IBV_WC_MW_BIND_ERR : IBV_WC_WR_FLUSH_ERR, wc.status);
		nothing_more(&s, 0);
		renew_window(&s);
		come_back(&s, 0);
	}
	rc_ok("a bind that fails completes with an error under its number, once");

	fault = order(&s, MWCTL_SIM_LOSE_COMPLETION, 0, 0);
	RC_CHECK_EQ(0, post_bind(&s, 0, 1, BLOCK, REMOTE, 71, IBV_SEND_SIGNALED));
	renew_window(&s);
	release(fault);
	nothing_more(&s, 0);
	lands(&s, 0, 1, bind(&s, 0, 1, REMOTE));
	rc_ok("a completion that is lost keeps no window");

	fault = order(&s, MWCTL_SIM_STALL_SQ, 0, 0);
	RC_CHECK_EQ(0, post_bind(&s, 0, 2, BLOCK, REMOTE, 72, IBV_SEND_SIGNALED));
	RC_CHECK(ibv_dealloc_mw(s.mw) != 0);
	RC_CHECK_STATE(IBV_QPS_RTS, s.pair[0].server.qp);
	release(fault);
	await_bind(&s, 0, 72);
	renew_window(&s);
	lands(&s, 0, 0, bind(&s, 0, 0, REMOTE));
	rc_ok("a stuck send queue: the window is not deallocated unproved, and no queue pair is killed");

	fault = order(&s, MWCTL_SIM_STALL_SQ, 0, 0);
	RC_CHECK_EQ(0, post_bind(&s, 0, 2, BLOCK, REMOTE, 73, IBV_SEND_SIGNALED));
	RC_CHECK_EQ(0, ibv_destroy_qp(s.pair[0].server.qp));
	s.pair[0].server.qp = NULL;
	release(fault);
	no_grants(&s);
	come_back(&s, 0);
	lands(&s, 0, 0, bind(&s, 0, 0, REMOTE));
	close_scene(&s);
	rc_ok("a queue pair is destroyed with a bind under way");
}

/* What a forked child of a server calls as it cleans up. Exit status 0: it harmed nobody. */
static int child_of(struct scene *s, struct ibv_pd *idle)
{
	struct mwctl_sim_counters before = {0}, after = {0};

	if (ibv_alloc_mw(s->pd, IBV_MW_TYPE_1) || errno != EPERM)
		return 1;
	if (ibv_dealloc_mw(s->mw) != EPERM || post_bind(s, 0, 0, 0, 0, 1, 0) != EPERM)
		return 2;
	if (!*mwctl_compat_error())
		return 3;
	if (mwctl_sim_present())
		mwctl_sim_counters_get(&before, sizeof(before));
	/* There is a region in it: refused, and the windows behind it are its parent's. */
	if (!ibv_dealloc_pd(idle))
		return 4;
	if (mwctl_sim_present())
		mwctl_sim_counters_get(&after, sizeof(after));
	if (after.mw_deallocated != before.mw_deallocated)
		return 5;
	ibv_close_device(s->device.context);
	return 0;
}

static void test_fork(void)
{
	struct scene s;
	struct rc_memory idle;
	struct ibv_pd *pd;
	struct ibv_mw *mw;
	uint32_t rkey;
	pid_t child;
	int status;

	open_scene(&s, 0);
	pd = ibv_alloc_pd(s.device.context);
	RC_CHECK(pd);
	rc_memory_open(&idle, pd, BLOCK, IBV_ACCESS_LOCAL_WRITE);
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	RC_CHECK(mw);
	RC_CHECK_EQ(0, ibv_dealloc_mw(mw));
	rkey = bind(&s, 0, 0, REMOTE);
	child = fork();
	RC_CHECK(child >= 0);
	if (child == 0) {
		alarm(RC_DEADLINE_S);
		_exit(child_of(&s, pd));
	}
	RC_CHECK_EQ(child, waitpid(child, &status, 0));
	RC_CHECK_EQ(0, status);
	lands(&s, 0, 0, rkey);
	lands(&s, 0, 1, bind(&s, 0, 1, REMOTE));
	rc_memory_close(&idle);
	RC_CHECK_EQ(0, ibv_dealloc_pd(pd));
	close_scene(&s);
	rc_ok("a forked child has no windows, and harms none of its parent's when it cleans up");
}

/* What a window was bound to last is not there any more: it is not bound, and may be unbound. */
static void test_unbind_without_region(int sq_sig_all)
{
	struct ibv_mw_bind unbind = {.wr_id = 7, .send_flags = IBV_SEND_SIGNALED}, bind;
	struct rc_memory gone;
	struct scene s;
	uint32_t rkey;

	open_scene(&s, sq_sig_all);
	rc_memory_open(&gone, s.pd, BLOCK, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	bind = (struct ibv_mw_bind){.wr_id = 6,
				    .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = {.mr = gone.mr,
						  .addr = (uintptr_t)gone.at,
						  .length = BLOCK,
						  .mw_access_flags = REMOTE}};
	RC_CHECK_EQ(0, ibv_bind_mw(s.pair[0].server.qp, s.mw, &bind));
	await_bind(&s, 0, 6);
	RC_CHECK(s.mw->rkey != 0);
	/* The right ends with its queue pair. */
	come_back(&s, 0);
	rc_memory_close(&gone);
	unbind.send_flags = 0;
	if (!sq_sig_all) {
		RC_CHECK_EQ(0, ibv_bind_mw(s.pair[0].server.qp, s.mw, &unbind));
		RC_CHECK_EQ(0, s.mw->rkey);
	} else {
		RC_CHECK_EQ(EOPNOTSUPP, ibv_bind_mw(s.pair[0].server.qp, s.mw, &unbind));
	}
	/* One that asks for a completion needs a region of the PD that the library knows. */
	unbind.send_flags = IBV_SEND_SIGNALED;
	RC_CHECK_EQ(EOPNOTSUPP, ibv_bind_mw(s.pair[0].server.qp, s.mw, &unbind));
	rkey = (post_bind(&s, 0, 0, BLOCK, REMOTE, 8, IBV_SEND_SIGNALED), s.mw->rkey);
	await_bind(&s, 0, 8);
	lands(&s, 0, 0, rkey);
	/* Now there is one. */
	RC_CHECK_EQ(0, post_bind(&s, 0, 0, 0, 0, 9, IBV_SEND_SIGNALED));
	await_bind(&s, 0, 9);
	RC_CHECK_EQ(0, ibv_bind_mw(s.pair[0].server.qp, s.mw, &unbind));
	await_bind(&s, 0, 7);
	close_scene(&s);
	rc_ok("an unbind of what is not bound when its last region is gone%s", sq_sig_all ? ", under sq_sig_all" : "");
}
#endif

int main(void)
{
	test_bind();
	test_unbind();
	test_dealloc();
	test_order(0);
	test_order(1);
	test_full_queue();
	test_dead_queue();
	test_reset();
	test_refusals();
	test_largest_queues();
	test_threads();
#ifdef MWCTL_COMPAT_H
	test_unseen_queue();
	test_pinned();
	test_messages();
	test_kept();
	test_fork();
	test_unbind_without_region(0);
	test_unbind_without_region(1);
	if (mwctl_sim_present()) {
		test_given_back();
		test_refused_posts();
		test_failing_requests();
	}
#endif
	return 0;
}
