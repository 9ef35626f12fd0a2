/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A forked child is refused by every call, sees none of the library's memory, and harms nothing by
 * its end. scripts/check-header.sh demands that each function of the header that takes a context is
 * called here. */
#include "trouble.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct house house;
static mwctl_result held, prepared;
static mwctl_token token;
static int in_child;

/* Asked by the leak sanitizer at exit: a child has the service thread's memory, and not the thread. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
	return in_child;
}

static void never(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	(void)user;
	(void)status;
	(void)results;
	(void)n;
	RC_FAIL("a callback in a forked child");
}

#define FORKED(call) HOUSE_STATUS(MWCTL_STATUS_FORKED, call)

/* With arguments that are good in the parent. */
static void call_everything(mwctl_context *ctx)
{
	mwctl_request ask = house_ask(&house, 0, 4096, 64, HOUSE_WRITE);
	mwctl_move step = {.grant = held.grant, .to = ask};
	struct ibv_async_event event = {.event_type = IBV_EVENT_DEVICE_FATAL};
	struct ibv_cq *cq = house.client[0].pair.server.cq;
	struct ibv_qp *qp = house.client[0].pair.server.qp;
	mwctl_peer peer = house.client[0].peer, new_peer;
	mwctl_attach_options attach = {.iova = house.memory.addr, .access = house.memory.access};
	mwctl_capabilities capabilities;
	mwctl_region_info region_info;
	mwctl_domain_info domain_info;
	mwctl_peer_info peer_info;
	mwctl_grant_info grant_info;
	mwctl_key_info key_info;
	mwctl_region region;
	mwctl_domain domain;
	struct ibv_wc wc = {.status = IBV_WC_SUCCESS};
	struct ibv_send_wr wr[2];
	mwctl_result out[2];
	mwctl_token new_token;
	mwctl_stats stats;
	uint64_t at = house.memory.addr, id;
	uint32_t rkey;
	size_t n;

	FORKED(mwctl_capabilities_get(ctx, &capabilities, sizeof(capabilities)));
	FORKED(mwctl_stats_get(ctx, &stats, sizeof(stats)));
	RC_CHECK_EQ(-1, mwctl_event_fd(ctx));
	RC_CHECK_EQ(-1, mwctl_next_timeout(ctx));
	FORKED(mwctl_tick(ctx));
	FORKED(mwctl_service_start(ctx));
	FORKED(mwctl_service_stop(ctx));
	FORKED(mwctl_domain_open(ctx, house.pd, NULL, 0, &domain));
	FORKED(mwctl_domain_close(ctx, house.domain));
	FORKED(mwctl_domain_reserve(ctx, house.domain, 1000));
	FORKED(mwctl_domain_info_get(ctx, house.domain, &domain_info, sizeof(domain_info)));
	FORKED(mwctl_domain_grants(ctx, house.domain, &id, 1, &n));
	FORKED(mwctl_region_register(ctx, house.domain, 4096, NULL, 0, &region));
	FORKED(mwctl_region_attach(ctx, house.domain, house.memory.mr, &attach, sizeof(attach), &region));
	FORKED(mwctl_region_detach(ctx, house.region));
	FORKED(mwctl_region_info_get(ctx, house.region, &region_info, sizeof(region_info)));
	FORKED(mwctl_block_take(ctx, house.region, 1, &id));
	FORKED(mwctl_block_give(ctx, house.region, at, 1));
	FORKED(mwctl_peer_attach(ctx, house.domain, qp, NULL, 0, &new_peer));
	FORKED(mwctl_peer_stuck(ctx, peer));
	FORKED(mwctl_peer_detach(ctx, peer, 0));
	FORKED(mwctl_peer_detach_start(ctx, peer, 0, never, NULL));
	FORKED(mwctl_peer_gone(ctx, peer, 0));
	FORKED(mwctl_peer_info_get(ctx, peer, &peer_info, sizeof(peer_info)));
	FORKED(mwctl_peer_grants(ctx, peer, &id, 1, &n));
	FORKED(mwctl_grant(ctx, &ask, 0, out));
	FORKED(mwctl_grant_batch(ctx, &ask, 1, 0, out));
	FORKED(mwctl_grant_start(ctx, &ask, 1, 0, never, NULL));
	FORKED(mwctl_regrant(ctx, held.grant, &ask, 0, out));
	FORKED(mwctl_revoke(ctx, held.grant, 0, out));
	FORKED(mwctl_revoke_batch(ctx, &held.grant, 1, 0, MWCTL_KILL_ALLOWED, out));
	FORKED(mwctl_revoke_start(ctx, &held.grant, 1, 0, MWCTL_KILL_ALLOWED, never, NULL));
	FORKED(mwctl_revoke_peer(ctx, peer, 0, MWCTL_KILL_ALLOWED, &n));
	FORKED(mwctl_revoke_peer_start(ctx, peer, 0, MWCTL_KILL_ALLOWED, never, NULL));
	FORKED(mwctl_revoke_range(ctx, house.region, at, 4096, 0, MWCTL_KILL_ALLOWED, &n));
	FORKED(mwctl_revoke_range_start(ctx, house.region, at, 4096, 0, MWCTL_KILL_ALLOWED, never, NULL));
	FORKED(mwctl_transfer(ctx, &step, 1, 0, MWCTL_KILL_ALLOWED, out));
	FORKED(mwctl_transfer_start(ctx, &step, 1, 0, MWCTL_KILL_ALLOWED, never, NULL));
	FORKED(mwctl_grant_prepare(ctx, &ask, 1, wr, out, &new_token));
	FORKED(mwctl_revoke_prepare(ctx, &held.grant, 1, 0, MWCTL_KILL_ALLOWED, never, NULL, wr, &new_token));
	FORKED(mwctl_regrant_prepare(ctx, held.grant, &ask, 0, never, NULL, wr, out, &new_token));
	FORKED(mwctl_commit(ctx, token, 0, NULL, &n));
	FORKED(mwctl_commit_ex(ctx, token, 0, &n));
	FORKED(mwctl_abort(ctx, token));
	RC_CHECK(mwctl_poll_cq(ctx, cq, 1, &wc) < 0);
	RC_CHECK_EQ(-MWCTL_STATUS_FORKED, mwctl_take_wc(ctx, cq, &wc));
	RC_CHECK_EQ(-MWCTL_STATUS_FORKED, mwctl_take_ex(ctx, (struct ibv_cq_ex *)cq));
	FORKED(mwctl_cq_gone(ctx, cq));
	FORKED(mwctl_cq_empty(ctx, cq));
	FORKED(mwctl_take_async_event(ctx, &event));
	FORKED(mwctl_check(ctx, house.domain, qp->qp_num, at, 64, HOUSE_WRITE, &id));
	FORKED(mwctl_find_rkey(ctx, held.rkey, &grant_info, sizeof(grant_info)));
	FORKED(mwctl_explain_key(ctx, held.rkey, &key_info, sizeof(key_info)));
	FORKED(mwctl_grant_info_get(ctx, held.grant, &grant_info, sizeof(grant_info)));
	FORKED(mwctl_range_grants(ctx, house.region, at, 4096, &id, 1, &n));
	RC_CHECK(NULL == mwctl_reg_mr(ctx, house.pd, &wc, sizeof(wc), IBV_ACCESS_LOCAL_WRITE));
	RC_CHECK_EQ(EPERM, errno);
	RC_CHECK_EQ(EPERM, mwctl_dereg_mr(ctx, house.memory.mr));
	FORKED(mwctl_rkey(ctx, qp, house.memory.mr, at, 64, HOUSE_WRITE, &rkey, &id));
	FORKED(mwctl_revoke_qp(ctx, qp, 0, MWCTL_KILL_ALLOWED, &n));
	FORKED(mwctl_detach_qp(ctx, qp));
	FORKED(mwctl_detach_pd(ctx, house.pd));
	FORKED(mwctl_peer_of(ctx, qp, &new_peer));
	FORKED(mwctl_domain_of(ctx, house.pd, &domain));
	FORKED(mwctl_region_of(ctx, house.memory.mr, &region));
	FORKED(mwctl_context_close(ctx));
}

/* What asks nothing of a context is still there. */
static void call_the_rest(void)
{
	struct ibv_qp_cap cap = {.max_send_wr = 1};
	int cqe = 1;

	HOUSE_OK(mwctl_size_queues(4, &cap, &cqe));
	RC_CHECK_EQ(5, cap.max_send_wr);
	RC_CHECK_EQ(MWCTL_VERSION, mwctl_version());
	RC_CHECK(mwctl_status_text(MWCTL_STATUS_FORKED) && mwctl_proof_text(MWCTL_PROOF_NONE));
}

static int child_status(pid_t child)
{
	int status;

	RC_CHECK_EQ(child, waitpid(child, &status, 0));
	return status;
}

static pid_t begin_child(void)
{
	pid_t child;

	fflush(stdout);
	child = fork();
	RC_CHECK(child >= 0);
	in_child |= !child;
	return child;
}

/* A grandchild is one, too. */
static void refused(void)
{
	for (int generation = 1; generation <= 2; generation++) {
		pid_t child = begin_child();
		int status;

		if (!child && generation == 2) {
			child = begin_child();
			if (child)
				exit(WEXITSTATUS(child_status(child)));
		}
		if (!child) {
			call_everything(house.ctx);
			call_the_rest();
			exit(0);
		}
		status = child_status(child);
		RC_CHECK(WIFEXITED(status));
		RC_CHECK_EQ(0, WEXITSTATUS(status));
	}
	house_ok("a forked child, and its child, is refused by every call");
}

/* Registered memory is the parent's alone. */
static void memory_not_inherited(void)
{
	pid_t child = begin_child();
	int status;

	if (!child) {
		signal(SIGSEGV, SIG_DFL);
		*(volatile uint8_t *)house_at(&house, 0) = 1;
		_exit(0);
	}
	status = child_status(child);
	/* The address sanitizer's handler would turn it into an exit. */
	RC_CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 0);
	house_ok("a forked child does not see the library's memory");
}

/* What was under way in the parent goes on. */
static void parent_goes_on(struct heard *heard, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	struct ibv_qp *qp = house.client[0].pair.server.qp;
	double limit = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;
	mwctl_result out;

	HOUSE_WRITE_LANDS(&house, 0, 0, held.rkey, 0x11);
	HOUSE_OK(mwctl_commit(house.ctx, token, ibv_post_send(qp, wr, &bad), bad, NULL));
	HOUSE_WRITE_LANDS(&house, 0, 65536, prepared.rkey, 0x12);
	while (!atomic_load(&heard->calls)) {
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, house.client[1].pair.server.cq, 1, &wc));
		RC_CHECK(rc_now() < limit);
	}
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard->status);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, heard->results[0].proof);
	out = house_grant(&house, 1, 131072, 4096, HOUSE_WRITE);
	HOUSE_WRITE_LANDS(&house, 1, 131072, out.rkey, 0x13);
	HOUSE_OK(mwctl_revoke(house.ctx, held.grant, 0, NULL));
	HOUSE_OK(mwctl_revoke(house.ctx, prepared.grant, 0, NULL));
	HOUSE_WRITE_FAILS(&house, 0, 0, held.rkey, 0x14);
	HOUSE_WRITE_LANDS(&house, 1, 131072, out.rkey, 0x15);
	HOUSE_OK(mwctl_revoke(house.ctx, out.grant, 0, NULL));
	RC_CHECK_EQ(1, heard->calls);
	HOUSE_STATUS(MWCTL_STATUS_ALREADY_ATTACHED, mwctl_service_start(house.ctx));
	HOUSE_OK(mwctl_service_stop(house.ctx));
	house_ok("the children's ends harm nothing: what was under way in the parent goes on");
}

int main(void)
{
	struct heard heard = {0};
	struct ibv_send_wr wr;
	mwctl_result other;
	mwctl_request ask;

	house_open(&house, NULL);
	HOUSE_OK(mwctl_service_start(house.ctx));
	held = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	other = house_grant(&house, 1, 8192, 4096, HOUSE_WRITE);
	ask = house_ask(&house, 0, 65536, 4096, HOUSE_WRITE);
	HOUSE_OK(mwctl_grant_prepare(house.ctx, &ask, 1, &wr, &prepared, &token));
	HOUSE_OK(mwctl_revoke_start(house.ctx, &other.grant, 1, 0, MWCTL_KILL_ALLOWED, heard_done, &heard));
	refused();
	memory_not_inherited();
	parent_goes_on(&heard, &wr);
	house_close(&house);
	return 0;
}
