/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * When a completion counts as missing. A LOCAL_INV has its time, half of what there is until the deadline
 * and a millisecond at least; only a look into its CQ that began later says that it is stuck, and costs the
 * queue pair at the deadline. Where the library may not look itself, the application's threads are woken
 * in time to do so.
 */
#include "trouble.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000ull
#define TIMEOUT_US 30000
#define TIMEOUT (TIMEOUT_US * 1000ull)
#define QUEUE 64
#define CLIENT 0
#define OTHER 1
#define AT 4096

static struct house house;
static struct heard heard;
static mwctl_result held, other;
static char logged[256];

static void on_log(void *user, int32_t severity, const char *text)
{
	(void)user, (void)severity;
	strncpy(logged, text, sizeof(logged) - 1);
}

/* ---- the clock, in place of the C library's: it stands still between the calls of pass, or goes on by so
 * much at each look ---- */

static uint64_t clock_now, clock_step;

int clock_gettime(clockid_t clock, struct timespec *at)
{
	uint64_t now = __atomic_load_n(&clock_now, __ATOMIC_SEQ_CST);

	if (clock != CLOCK_MONOTONIC || !now)
		return (int)syscall(SYS_clock_gettime, clock, at);
	__atomic_fetch_add(&clock_now, clock_step, __ATOMIC_SEQ_CST);
	at->tv_sec = (time_t)(now / 1000000000u);
	at->tv_nsec = (long)(now % 1000000000u);
	return 0;
}

static void hold(void)
{
	struct timespec now;

	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	/* Never back, whatever was passed before. */
	clock_now = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + 3600 * 1000 * MS;
}

static void pass(uint64_t ns)
{
	__atomic_fetch_add(&clock_now, ns, __ATOMIC_SEQ_CST);
}

/* ---- a queue that is stuck, and a revocation behind it ---- */

static struct ibv_cq *cq(void)
{
	return house.client[CLIENT].pair.server.cq;
}

static struct ibv_qp *qp(void)
{
	return house.client[CLIENT].pair.server.qp;
}

static bool yours(void)
{
	return house.options.peer.polling == MWCTL_POLLING_YOURS;
}

/* One look of the application's loop; nothing has come. */
static void look(void)
{
	struct ibv_wc wc;

	if (!yours()) {
		RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, cq(), 1, &wc));
		return;
	}
	RC_CHECK_EQ(0, ibv_poll_cq(cq(), 1, &wc));
	HOUSE_OK(mwctl_cq_empty(house.ctx, cq()));
}

/* Polls once, whatever comes. */
static void collect(int client)
{
	struct ibv_cq *queue = house.client[client].pair.server.cq;
	struct ibv_wc wc;
	int n = yours() ? ibv_poll_cq(queue, 1, &wc) : mwctl_poll_cq(house.ctx, queue, 1, &wc);

	RC_CHECK(n >= 0);
	if (n && !(yours() && mwctl_take_wc(house.ctx, queue, &wc)))
		RC_CHECK_EQ(500, wc.wr_id);
}

static mwctl_result granted(int client, uint64_t offset)
{
	mwctl_request ask = house_ask(&house, client, offset, 4096, HOUSE_WRITE);
	struct heard done = {0};

	HOUSE_OK(mwctl_grant_start(house.ctx, &ask, 1, 0, heard_done, &done));
	while (!atomic_load(&done.calls)) {
		collect(client);
		HOUSE_OK(mwctl_tick(house.ctx));
	}
	HOUSE_OK(done.status);
	return done.results[0];
}

static void begin_within(enum mwctl_polling polling, bool owner, uint64_t timeout_us)
{
	struct house_options options = {.rc.cqe = QUEUE,
					.context.log = on_log,
					.peer = {.polling = polling,
						 .owner_thread = owner ? (uint64_t)pthread_self() : 0}};

	memset(&heard, 0, sizeof(heard));
	memset(logged, 0, sizeof(logged));
	house_open(&house, &options);
	held = granted(CLIENT, AT);
	other = granted(OTHER, 2 * AT);
	trouble_block(&house, CLIENT);
	hold();
	HOUSE_OK(mwctl_revoke_start(house.ctx, &held.grant, 1, timeout_us, MWCTL_KILL_ALLOWED, heard_done, &heard));
}

static void begin(enum mwctl_polling polling, bool owner)
{
	begin_within(polling, owner, TIMEOUT_US);
}

/* What stood in front goes; then the LOCAL_INV completes, with nobody to see it. */
static void unblock(void)
{
	rc_post_recv(&house.client[CLIENT].pair.client, &house.client[CLIENT].local, 6);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_wait(house.client[CLIENT].pair.client.cq).status);
}

/* It was not missing: the queue pair lives, and the next poll finds the end. */
static void ends_late(void)
{
	mwctl_grant_info info;

	RC_CHECK_EQ(MWCTL_STATUS_OPEN, heard.status);
	RC_CHECK(strstr(logged, "nobody has seen the completion queue empty"));
	RC_CHECK_STATE(IBV_QPS_RTS, qp());
	RC_CHECK_EQ(0, house_stats(&house).peers_killed);
	while (mwctl_grant_info_get(house.ctx, held.grant, &info, sizeof(info)) == MWCTL_STATUS_OK)
		collect(CLIENT);
	HOUSE_WRITE_LANDS(&house, OTHER, 2 * AT, other.rkey, 0x11);
	HOUSE_WRITE_FAILS(&house, CLIENT, AT, held.rkey, 0x12);
}

/* It was missing. */
static void ends_fenced(void)
{
	RC_CHECK_EQ(MWCTL_STATUS_OK, heard.status);
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, heard.results[0].proof);
	RC_CHECK_EQ(1, house_stats(&house).peers_killed);
	rc_await_state(qp(), IBV_QPS_ERR);
	HOUSE_WRITE_LANDS(&house, OTHER, 2 * AT, other.rkey, 0x11);
	HOUSE_WRITE_FAILS(&house, CLIENT, AT, held.rkey, 0x12);
}

static void end(void)
{
	clock_now = 0;
	if (yours()) {
		for (int i = 0; i < house.clients; i++) {
			struct heard gone = {0};

			HOUSE_OK(mwctl_peer_detach_start(house.ctx, house.client[i].peer, 0, heard_done, &gone));
			while (!atomic_load(&gone.calls)) {
				collect(i);
				HOUSE_OK(mwctl_tick(house.ctx));
			}
			HOUSE_OK(gone.status);
			rc_pair_close(&house.client[i].pair);
			house.client[i].peer.id = 0;
		}
	}
	house_close(&house);
}

static void await_end(void)
{
	while (!atomic_load(&heard.calls))
		rc_pause(1);
}

/* ---- looks just behind the post ---- */

static void looked_too_soon(enum mwctl_polling polling)
{
	begin(polling, true);
	for (int i = 0; i < 4; i++)
		look();
	unblock();
	HOUSE_OK(mwctl_service_start(house.ctx));
	pass(TIMEOUT);
	await_end();
	HOUSE_OK(mwctl_service_stop(house.ctx));
	ends_late();
	end();
}

/* … and the same, but for a look when the LOCAL_INV has had its time. */
static void looked_in_time(enum mwctl_polling polling)
{
	begin(polling, true);
	look();
	pass(TIMEOUT / 2);
	look();
	look();
	HOUSE_OK(mwctl_service_start(house.ctx));
	pass(TIMEOUT / 2);
	await_end();
	HOUSE_OK(mwctl_service_stop(house.ctx));
	ends_fenced();
	end();
}

/* It was looked for in time, and was under way still; then it completed, and nobody has looked since. */
static void looked_long_ago(enum mwctl_polling polling)
{
	begin(polling, true);
	pass(2 * MS);
	for (int i = 0; i < 4; i++)
		look();
	unblock();
	HOUSE_OK(mwctl_service_start(house.ctx));
	pass(TIMEOUT - 2 * MS);
	await_end();
	HOUSE_OK(mwctl_service_stop(house.ctx));
	ends_late();
	end();
}

/* ---- completions offered instead of looks ---- */

static void offer(int n)
{
	struct ibv_wc wc = {.wr_id = 7, .status = IBV_WC_SUCCESS, .opcode = IBV_WC_RDMA_WRITE,
			    .qp_num = house.client[OTHER].pair.server.qp->qp_num};

	while (n--)
		RC_CHECK_EQ(0, mwctl_take_wc(house.ctx, cq(), &wc));
}

/* A queue that never runs empty: as many as it holds may have been taken off before the post and be
 * offered only behind it. */
static void offered(uint64_t before, bool killed)
{
	int turn = 2 * cq()->cqe + 1;

	offer(turn);
	pass(before);
	offer(turn);
	if (!killed)
		unblock();
	pass(TIMEOUT - before);
	offer(1);
	RC_CHECK_EQ(1, heard.calls);
	if (killed)
		ends_fenced();
	else
		ends_late();
	end();
}

static void offers(void)
{
	begin(MWCTL_POLLING_YOURS, false);
	offered(0, false);
	begin(MWCTL_POLLING_YOURS, false);
	pass(TIMEOUT / 2);
	/* The first turn ends here and begins another, which ends behind it. */
	offered(MS, true);
}

/* ---- loops that sleep until there is something to do ---- */

static void sleeping_loop(bool ticks_first)
{
	int rounds = 0;
	int64_t sleep;

	begin(MWCTL_POLLING_YOURS, false);
	look();
	while (!heard.calls) {
		if (ticks_first)
			HOUSE_OK(mwctl_tick(house.ctx));
		if (!heard.calls)
			look();
		if (!ticks_first)
			HOUSE_OK(mwctl_tick(house.ctx));
		sleep = mwctl_next_timeout(house.ctx);
		RC_CHECK(heard.calls || sleep >= 0);
		if (!heard.calls)
			pass((uint64_t)sleep);
		RC_CHECK(rounds++ < 12);
	}
	ends_fenced();
	end();
}

/* The service thread keeps the deadline, the owner sleeps on the event fd: it is asked in time for as many
 * looks as it takes, though it may be slow to come. */
static void sleeping_owner(enum mwctl_polling polling)
{
	struct pollfd event;

	begin(polling, true);
	event = (struct pollfd){.fd = mwctl_event_fd(house.ctx), .events = POLLIN};
	look();
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(0, poll(&event, 1, 0));
	HOUSE_OK(mwctl_service_start(house.ctx));
	pass(TIMEOUT / 8 * 5);
	for (int looks = yours() ? 2 : 1; looks; looks--) {
		RC_CHECK_EQ(1, poll(&event, 1, (int)(RC_DEADLINE_S * 1000)));
		RC_CHECK_EQ(0, heard.calls);
		look();
		HOUSE_OK(mwctl_tick(house.ctx));
		pass(TIMEOUT / 8);
	}
	pass(TIMEOUT / 8 * 2);
	await_end();
	HOUSE_OK(mwctl_service_stop(house.ctx));
	ends_fenced();
	end();
}

/* ---- two deadlines, of which the second passes while the first is attended to ---- */

static int (*real_dealloc)(struct ibv_mw *);

static int slow_dealloc(struct ibv_mw *mw)
{
	pass(MS);
	return real_dealloc(mw);
}

/* A waiting call ends at its deadline, by a kernel call in which another client's passes: that is the next
 * poll's at the latest. */
static void passes_meanwhile(void)
{
	struct ibv_context_ops *ops;
	struct heard second = {0};
	mwctl_result out;

	begin(MWCTL_POLLING_OURS, false);
	ops = &house.device.context->ops;
	trouble_block(&house, OTHER);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &other.grant, 1, TIMEOUT_US + 500, MWCTL_KILL_ALLOWED, heard_done, &second));
	real_dealloc = ops->dealloc_mw;
	ops->dealloc_mw = slow_dealloc;
	/* Small enough for many looks between the deadlines; large enough for soft-RoCE's own retries, which go
	 * by the real clock, to go on until then. */
	clock_step = 20000;
	HOUSE_OK(mwctl_revoke(house.ctx, held.grant, TIMEOUT_US, &out));
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, out.proof);
	RC_CHECK(house_stats(&house).peers_killed > 0);
	collect(CLIENT);
	RC_CHECK_EQ(1, second.calls);
	HOUSE_OK(second.status);
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, second.results[0].proof);
	RC_CHECK_EQ(1, heard.calls);
	clock_step = 0;
	ops->dealloc_mw = real_dealloc;
	end();
}

/* Without a deadline there is none to look before. */
static void endless(void)
{
	begin_within(MWCTL_POLLING_YOURS, false, UINT64_MAX);
	/* The grants' own deadlines go by. */
	pass(60000 * MS);
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK_EQ(-1, mwctl_next_timeout(house.ctx));
	unblock();
	while (!heard.calls) {
		collect(CLIENT);
		HOUSE_OK(mwctl_tick(house.ctx));
	}
	HOUSE_OK(heard.status);
	end();
}

int main(void)
{
	looked_too_soon(MWCTL_POLLING_OURS);
	looked_too_soon(MWCTL_POLLING_YOURS);
	house_ok("looks just behind the post cost no queue pair, on a thread that may not look itself");
	looked_in_time(MWCTL_POLLING_OURS);
	looked_in_time(MWCTL_POLLING_YOURS);
	house_ok("a look when the request has had its time tells that it is stuck");
	looked_long_ago(MWCTL_POLLING_OURS);
	looked_long_ago(MWCTL_POLLING_YOURS);
	house_ok("one long before the deadline does not");
	offers();
	house_ok("so do completions, when more were offered than the queue can have held");
	sleeping_loop(false);
	sleeping_loop(true);
	house_ok("a loop that sleeps until there is something to do is woken in time to look");
	sleeping_owner(MWCTL_POLLING_OURS);
	sleeping_owner(MWCTL_POLLING_YOURS);
	house_ok("and so is the owner of a queue, by the service thread");
	passes_meanwhile();
	house_ok("a deadline that passes while another is attended to is kept by the next poll");
	endless();
	house_ok("a revocation without a deadline plans nothing");
	return 0;
}
