/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "faults_play.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct house *const house = &fc_scene.house;

/* What is asked for and what came back, of one case. */
static struct play {
	const struct fc_case *c;
	int works;                          /* of the victim, at the front of what follows */
	int n;
	int owner[FC_KEYS];
	uint64_t id[FC_KEYS];               /* of what is revoked */
	mwctl_request ask[FC_KEYS];         /* of what is granted */
	mwctl_result result[FC_KEYS];
	enum fc_outcome outcome[FC_KEYS];
	bool itemized;                      /* the call gives a result for each */
	mwctl_status status;
	struct fc_heard heard;
	struct fc_heard before;             /* the operation that was under way */
	bool begun;
	bool refused;                       /* as a whole, before anything was done */
	bool early;
	uint64_t fault[4];
	enum fc_call faulted[4];
	int faults;
	uint64_t fatal;
	bool held_by_rnr;
	/* Prepared chains. */
	struct ibv_send_wr wr[FC_SLOTS];
	struct ibv_send_wr app;
	mwctl_token token;
	int killed_before;
	uint64_t modifies;
} play;

static uint32_t victim_qpn(void)
{
	return house->client[FC_VICTIM].pair.server.qp->qp_num;
}

static mwctl_peer victim_peer(void)
{
	return house->client[FC_VICTIM].peer;
}

/* ---- faults ---- */

static uint64_t order(struct mwctl_sim_fault fault)
{
	uint64_t id;

	RC_CHECK_EQ(0, mwctl_sim_fault_order(&fault, sizeof(fault), &id));
	return id;
}

static void arm(struct mwctl_sim_fault fault, enum fc_call call)
{
	play.faulted[play.faults] = call;
	play.fault[play.faults++] = order(fault);
}

static void stall_at(int work)
{
	arm((struct mwctl_sim_fault){.kind = MWCTL_SIM_STALL_SQ, .qp_num = victim_qpn(), .skip = work,
				     .count = 1}, FC_CALL_NONE);
}

static void strike_fatal(bool told)
{
	struct ibv_async_event event = {.event_type = IBV_EVENT_DEVICE_FATAL};

	fc_hooks.fatal = true;
	play.fatal = order((struct mwctl_sim_fault){.kind = MWCTL_SIM_DEVICE_FATAL});
	if (told) {
		HOUSE_OK(mwctl_take_async_event(house->ctx, &event));
		fc_scene.spoiled = true;
	}
}

/* The application fails the queue pair by itself. */
static void fail_victim(bool told)
{
	struct ibv_async_event event = {.element.qp = house->client[FC_VICTIM].pair.server.qp,
					.event_type = IBV_EVENT_QP_FATAL};

	rc_qp_modify(house->client[FC_VICTIM].pair.server.qp, IBV_QPS_ERR);
	if (told)
		HOUSE_OK(mwctl_take_async_event(house->ctx, &event));
}

static void reset_victim(void)
{
	rc_qp_modify(house->client[FC_VICTIM].pair.server.qp, IBV_QPS_RESET);
	fc_scene.client[FC_VICTIM].wiped = true;
}

static void post_unreceived(void)
{
	struct ibv_send_wr wr = fc_app_wr(FC_VICTIM), *bad = NULL;

	wr.opcode = IBV_WR_SEND;
	RC_CHECK_EQ(0, ibv_post_send(house->client[FC_VICTIM].pair.server.qp, &wr, &bad));
	fc_scene.client[FC_VICTIM].posted++;
	play.held_by_rnr = true;
}

static void arm_fault(const struct fc_case *c)
{
	struct mwctl_sim_fault fault = {.qp_num = victim_qpn(),
					.skip = c->nth,
					.count = c->always ? 0 : 1,
					.error = c->error,
					.position = c->position};

	switch (c->fault) {
	case FC_POST_FAIL:
		if (c->error == -1) {
			fc_hooks.minus_one = c->os_error;
			fc_hooks.post_skip = c->nth;
			fc_hooks.post_always = c->always;
			return;
		}
		fault.kind = MWCTL_SIM_FAIL_POST;
		break;
	case FC_POST_CUT:
		fault.kind = MWCTL_SIM_CUT_POST;
		break;
	case FC_POST_UNCLEAR:
		fault.kind = MWCTL_SIM_POST_NO_BAD_WR;
		break;
	case FC_POST_ROOM_MID:
		fault.kind = MWCTL_SIM_FAIL_POST;
		fault.error = ENOMEM;
		fault.count = 0;
		break;
	case FC_WC_LOST:
		fault.kind = MWCTL_SIM_LOSE_COMPLETION;
		break;
	case FC_WC_LATE:
	case FC_WC_LATE_MID:
		fault.kind = MWCTL_SIM_DELAY_COMPLETION;
		break;
	case FC_WC_ERROR:
		fault.kind = MWCTL_SIM_FAIL_WR;
		break;
	case FC_QP_KILL:
		fault.kind = MWCTL_SIM_KILL_QP;
		break;
	case FC_SQ_STALL:
	case FC_SQ_STALL_MID:
		stall_at(c->nth);
		return;
	case FC_SQ_STUCK:
		stall_at(0);
		HOUSE_OK(mwctl_peer_stuck(house->ctx, victim_peer()));
		return;
	case FC_QP_ERR_AFTER:
	case FC_QP_RESET_AFTER:
	case FC_QP_SQD_AFTER:
		stall_at(0);
		return;
	case FC_SQ_RNR:
	case FC_SQ_RNR_MID:
		post_unreceived();
		return;
	case FC_QP_ERR_BEFORE:
	case FC_QP_ERR_TOLD:
		fail_victim(c->fault == FC_QP_ERR_TOLD);
		return;
	case FC_QP_RESET_BEFORE:
		reset_victim();
		return;
	case FC_QP_SQD_BEFORE:
		rc_qp_modify(house->client[FC_VICTIM].pair.server.qp, IBV_QPS_SQD);
		return;
	case FC_POLL_FAIL:
		fc_hooks.poll_fails = true;
		fc_hooks.poll_skip = c->nth;
		fc_hooks.poll_always = c->always;
		return;
	case FC_FATAL:
		strike_fatal(false);
		return;
	case FC_FATAL_STALL:
	case FC_FATAL_STALL_TOLD:
		stall_at(0);
		strike_fatal(c->fault == FC_FATAL_STALL_TOLD);
		return;
	case FC_FATAL_ERR:
		fail_victim(false);
		strike_fatal(false);
		return;
	default:
		return;
	}
	arm(fault, FC_CALL_NONE);
}

static void arm_call(const struct fc_case *c)
{
	static const uint32_t kinds[FC_CALLS] = {
		[FC_ALLOC_MW] = MWCTL_SIM_FAIL_ALLOC_MW,
		[FC_DEALLOC_MW] = MWCTL_SIM_FAIL_DEALLOC_MW,
		[FC_MODIFY_QP] = MWCTL_SIM_FAIL_MODIFY_QP,
		[FC_QUERY_QP] = MWCTL_SIM_FAIL_QUERY_QP,
	};

	if (c->call)
		arm((struct mwctl_sim_fault){.kind = kinds[c->call], .skip = c->call_nth,
					     .count = c->call_always ? 0 : 1, .error = c->call_error}, c->call);
}

/* The second half of a fault that comes between the post and its completion. */
static void strike_amid(const struct fc_case *c)
{
	switch (c->fault) {
	case FC_QP_ERR_AFTER:
		fail_victim(false);
		break;
	case FC_QP_RESET_AFTER:
		reset_victim();
		break;
	case FC_QP_SQD_AFTER:
		rc_qp_modify(house->client[FC_VICTIM].pair.server.qp, IBV_QPS_SQD);
		break;
	default:
		return;
	}
	RC_CHECK_EQ(0, mwctl_sim_fault_release(play.fault[0]));
}

static void receive_at_last(void)
{
	struct ibv_recv_wr wr = {0}, *bad;

	if (play.held_by_rnr)
		RC_CHECK_EQ(0, ibv_post_recv(house->client[FC_VICTIM].pair.client.qp, &wr, &bad));
	play.held_by_rnr = false;
}

/* What holds something back lets go of it. */
static void release_amid(const struct fc_case *c)
{
	if (c->fault == FC_WC_LATE_MID || c->fault == FC_SQ_STALL_MID)
		RC_CHECK_EQ(0, mwctl_sim_fault_release(play.fault[0]));
	if (c->fault == FC_SQ_RNR_MID)
		receive_at_last();
	if (c->fault == FC_POST_ROOM_MID) {
		RC_CHECK_EQ(0, mwctl_sim_fault_release(play.fault[0]));
		RC_CHECK(fc_app_post(FC_VICTIM));
	}
}

static bool is_released_amid(enum fc_fault fault)
{
	return fault == FC_POST_ROOM_MID || fault == FC_WC_LATE_MID || fault == FC_SQ_STALL_MID || fault == FC_SQ_RNR_MID;
}

/* Every fault that was ordered has struck, or the case shows nothing. */
static void check_struck(const struct fc_case *c)
{
	/* Nothing may be posted, then. */
	if (c->fault == FC_SQ_STUCK)
		return;
	/* Which thread deallocates, and when, is open while two are at it. */
	for (int i = 0; i < play.faults; i++)
		if (mwctl_sim_fault_hits(play.fault[i]) == 0 &&
		    !(play.faulted[i] && c->drive == FC_WAIT_YOURS))
			RC_FAIL("the fault never struck");
	if ((c->fault == FC_POST_FAIL && c->error == -1) ||
	    (c->fault == FC_POLL_FAIL && c->drive != FC_LOOP_DEAF))
		RC_CHECK(fc_hooks.struck);
}

static void end_faults(const struct fc_case *c)
{
	/* A device that comes back after a fatal error has done nothing of what it said: the
	 * application trusts none of its queue pairs. */
	if (fc_hooks.fatal) {
		RC_CHECK_EQ(0, mwctl_sim_fault_release(play.fatal));
		if (c->fault != FC_FATAL)
			fail_victim(false);
	}
	mwctl_sim_faults_clear();
	fc_hooks = (struct fc_hooks){.faked = fc_hooks.faked};
	receive_at_last();
	if ((c->fault == FC_QP_SQD_BEFORE || c->fault == FC_QP_SQD_AFTER) && fc_state(FC_VICTIM) == IBV_QPS_SQD)
		rc_qp_modify(house->client[FC_VICTIM].pair.server.qp, IBV_QPS_RTS);
}

/* ---- the application's loop on a thread of its own ---- */

static struct {
	pthread_t thread;
	int waiter;
	int stop;
	bool released;
	bool passed;
} loop;

static bool sleeps(int stat)
{
	char text[256];
	ssize_t n = pread(stat, text, sizeof(text) - 1, 0);
	const char *state;

	RC_CHECK(n > 0);
	text[n] = 0;
	state = strrchr(text, ')');
	return state && state[1] == ' ' && state[2] == 'S';
}

/* Polls all the time. The deadline comes when the waiting thread sleeps and there is nothing to
 * poll: as late as can be for what is about to complete. */
static void *run_loop(void *unused)
{
	char path[64];
	int stat, quiet = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", loop.waiter);
	stat = open(path, O_RDONLY | O_CLOEXEC);
	RC_CHECK(stat >= 0);
	while (!__atomic_load_n(&loop.stop, __ATOMIC_ACQUIRE)) {
		bool any = false;

		for (int i = 0; i < FC_CLIENTS; i++)
			any |= fc_poll_one(i);
		quiet = !any && sleeps(stat) ? quiet + 1 : 0;
		if (quiet == 4 && is_released_amid(play.c->fault) && !loop.released) {
			release_amid(play.c);
			loop.released = true;
			quiet = 0;
		} else if (quiet == 4 && !loop.passed) {
			fc_clock_pass(FC_DEADLINE_US * 1000ull);
			loop.passed = true;
		}
		sched_yield();
	}
	close(stat);
	return unused;
}

static void begin_wait(void)
{
	if (play.c->drive == FC_WAIT_OURS) {
		fc_clock.step = 10000;
		fc_clock.stepper = (int)syscall(SYS_gettid);
		return;
	}
	loop.waiter = (int)syscall(SYS_gettid);
	loop.stop = 0;
	loop.released = loop.passed = false;
	RC_CHECK_EQ(0, pthread_create(&loop.thread, NULL, run_loop, NULL));
}

static void end_wait(uint64_t begun)
{
	uint64_t lasted = fc_clock_now() - begun;

	if (play.c->drive == FC_WAIT_OURS) {
		fc_clock.stepper = 0;
		play.early = lasted < FC_DEADLINE_US * 1000ull;
		/* A handful of looks at the clock after the deadline, each of 10 us. */
		RC_CHECK(lasted < FC_DEADLINE_US * 1000ull + 40 * 10000);
		return;
	}
	__atomic_store_n(&loop.stop, 1, __ATOMIC_RELEASE);
	RC_CHECK_EQ(0, pthread_join(loop.thread, NULL));
	play.early = !loop.passed;
}

/* ---- by hand ---- */

static void run_by_hand(void)
{
	const struct fc_case *c = play.c;
	bool polls = c->drive != FC_LOOP_DEAF;
	struct ibv_wc wc;
	int64_t timeout;

	/* The victim's post comes after the old holder's proof. */
	if (c->op == FC_TRANSFER_IN_START)
		fc_rounds(polls);
	strike_amid(c);
	fc_rounds(polls);
	if (is_released_amid(c->fault)) {
		RC_CHECK_EQ(0, play.heard.calls);
		release_amid(c);
		fc_rounds(polls);
	}
	if (!play.heard.calls) {
		timeout = mwctl_next_timeout(house->ctx);
		RC_CHECK(timeout >= 0 && timeout <= FC_DEADLINE_US * 1000);
		fc_clock_pass(FC_DEADLINE_US * 1000 - 1000);
		fc_rounds(polls);
	}
	play.early = play.heard.calls != 0;
	if (play.early)
		return;
	fc_clock_pass(1000);
	/* One call has to do. */
	if (c->drive == FC_LOOP_OURS)
		(void)mwctl_poll_cq(house->ctx, house->client[FC_CONTROL].pair.server.cq, 1, &wc);
	else
		HOUSE_OK(mwctl_tick(house->ctx));
	if (!play.heard.calls)
		RC_FAIL("not ended by the first call after the deadline");
}

/* ---- operations ---- */

static void add_ids(int client, int n)
{
	for (int i = 0; i < n; i++) {
		play.owner[play.n] = client;
		play.id[play.n++] = fc_scene.client[client].grant[i].id;
	}
}

static void add_asks(int client, int n, int slot)
{
	for (int i = 0; i < n; i++) {
		play.owner[play.n] = client;
		play.ask[play.n++] = fc_ask(client, slot + i);
	}
}

static bool takes_others(enum fc_op op)
{
	return op == FC_GRANT_BATCH || op == FC_GRANT_START || op == FC_REVOKE_BATCH || op == FC_REVOKE_START ||
	       op == FC_REVOKE_RANGE || op == FC_REVOKE_RANGE_START;
}

static void cast(const struct fc_case *c)
{
	play.works = fc_works(c);
	if (fc_is_transfer(c->op)) {
		bool in = fc_grants(c->op);

		fc_make_grants(in ? 1 : FC_VICTIM, play.works);
		if (in)
			add_asks(FC_VICTIM, play.works, 0);
		add_ids(in ? 1 : FC_VICTIM, play.works);
		if (!in)
			add_asks(1, play.works, 0);
		return;
	}
	if (c->op == FC_REGRANT || c->op == FC_REGRANT_PREPARE) {
		fc_make_grants(FC_VICTIM, 1);
		add_ids(FC_VICTIM, 1);
		add_asks(FC_VICTIM, 1, 1);
		return;
	}
	if (fc_grants(c->op)) {
		add_asks(FC_VICTIM, play.works, 0);
		for (int i = 1; i < FC_CONTROL && takes_others(c->op); i++)
			add_asks(i, FC_OTHERS, 0);
		return;
	}
	fc_make_grants(FC_VICTIM, play.works);
	add_ids(FC_VICTIM, play.works);
	for (int i = 1; i < FC_CONTROL && takes_others(c->op); i++) {
		fc_make_grants(i, FC_OTHERS);
		add_ids(i, FC_OTHERS);
	}
}

static void begin_amid(const struct fc_case *c)
{
	play.before.calls = 0;
	HOUSE_OK(mwctl_revoke_start(house->ctx, play.id, play.n, 10 * FC_DEADLINE_US, c->kill, fc_on_done,
				    &play.before));
}

static void post_prepared(const struct fc_case *c)
{
	struct ibv_send_wr *bad = NULL;
	size_t posted = 99, expected = play.works;
	int ret;

	/* The application's own request behind ours. */
	play.app = fc_app_wr(FC_VICTIM);
	play.wr[play.works - 1].next = &play.app;
	ret = ibv_post_send(house->client[FC_VICTIM].pair.server.qp, play.wr, &bad);
	if (ret == 0 || !bad)
		fc_scene.client[FC_VICTIM].posted++;
	if (ret && bad)
		for (size_t i = 0; i < expected; i++)
			if (bad == &play.wr[i])
				expected = i;
	HOUSE_OK(mwctl_commit(house->ctx, play.token, ret, bad, &posted));
	RC_CHECK_EQ(expected, posted);
	for (int i = 0; i < play.works; i++)
		if (fc_work_grants(c, i))
			play.result[i].status = (size_t)i < posted ? MWCTL_STATUS_OK : MWCTL_STATUS_NOT_POSTED;
}

/* The victim's half of a transfer comes first among the items, in whichever direction. */
static int partner(int item)
{
	return item < play.works ? item + play.works : item - play.works;
}

static size_t moves(mwctl_move *to)
{
	for (int i = 0; i < play.works; i++) {
		bool in = fc_grants(play.c->op);

		to[i] = (mwctl_move){.grant = play.id[in ? partner(i) : i], .to = play.ask[in ? i : partner(i)]};
	}
	return (size_t)play.works;
}

/* The new grants, then the revocations. */
static void take_moved(const mwctl_result *results)
{
	int granted = fc_grants(play.c->op) ? 0 : play.works;

	for (int i = 0; i < play.works; i++) {
		play.result[granted + i] = results[i];
		play.result[partner(granted) + i] = results[play.works + i];
	}
}

static void start(const struct fc_case *c)
{
	mwctl_move move[FC_SLOTS];
	mwctl_context *ctx = house->ctx;
	struct fc_heard *heard = &play.heard;
	mwctl_request range = fc_ask(FC_VICTIM, 0);
	uint64_t us = FC_DEADLINE_US;
	mwctl_result held;

	switch (c->op) {
	case FC_GRANT_START:
		play.status = mwctl_grant_start(ctx, play.ask, play.n, us, fc_on_done, heard);
		break;
	case FC_REVOKE_START:
		play.status = mwctl_revoke_start(ctx, play.id, play.n, us, c->kill, fc_on_done, heard);
		break;
	case FC_REVOKE_PEER_START:
		play.status = mwctl_revoke_peer_start(ctx, victim_peer(), us, c->kill, fc_on_done, heard);
		break;
	case FC_REVOKE_RANGE_START:
		play.status = mwctl_revoke_range_start(ctx, fc_scene.region, range.addr, FC_CONTROL * FC_BLOCK, us,
						       c->kill, fc_on_done, heard);
		break;
	case FC_TRANSFER_START:
	case FC_TRANSFER_IN_START:
		play.status = mwctl_transfer_start(ctx, move, moves(move), us, c->kill, fc_on_done, heard);
		break;
	case FC_DETACH_AMID:
		begin_amid(c);
		play.status = mwctl_peer_detach_start(ctx, victim_peer(), us, fc_on_done, heard);
		break;
	case FC_DETACH_PREPARED:
		range = fc_ask(FC_VICTIM, FC_SLOTS);
		HOUSE_OK(mwctl_grant_prepare(ctx, &range, 1, play.wr, &held, &play.token));
		play.status = mwctl_peer_detach_start(ctx, victim_peer(), us, fc_on_done, heard);
		break;
	case FC_DETACH_START:
		play.status = mwctl_peer_detach_start(ctx, victim_peer(), us, fc_on_done, heard);
		break;
	case FC_GRANT_PREPARE:
		play.status = mwctl_grant_prepare(ctx, play.ask, play.works, play.wr, play.result, &play.token);
		break;
	case FC_REVOKE_PREPARE:
		play.status = mwctl_revoke_prepare(ctx, play.id, play.works, us, c->kill, fc_on_done, heard, play.wr,
						   &play.token);
		break;
	case FC_REGRANT_PREPARE:
		play.status = mwctl_regrant_prepare(ctx, play.id[0], &play.ask[1], us, fc_on_done, heard, play.wr,
						    &play.result[1], &play.token);
		break;
	default:
		RC_FAIL("%s does not end in a callback", fc_op_name(c->op));
	}
	play.begun = play.status == MWCTL_STATUS_OK;
	if (play.begun && fc_is_prepared(c->op))
		post_prepared(c);
}

/* Every result that nobody wrote says so. */
#define UNWRITTEN MWCTL_STATUS_PENDING

static void wait_for(const struct fc_case *c)
{
	mwctl_context *ctx = house->ctx;
	mwctl_request range = fc_ask(FC_VICTIM, 0);
	uint64_t us = FC_DEADLINE_US;
	mwctl_result moved[2 * FC_SLOTS];
	mwctl_move move[FC_SLOTS];
	size_t n = 0;

	for (int i = 0; i < 2 * FC_SLOTS; i++)
		moved[i] = (mwctl_result){.status = UNWRITTEN};
	switch (c->op) {
	case FC_GRANT:
		play.status = mwctl_grant(ctx, &play.ask[0], us, &play.result[0]);
		break;
	case FC_GRANT_BATCH:
		play.status = mwctl_grant_batch(ctx, play.ask, play.n, us, play.result);
		break;
	case FC_REVOKE:
		play.status = mwctl_revoke(ctx, play.id[0], us, &play.result[0]);
		break;
	case FC_REVOKE_BATCH:
		play.status = mwctl_revoke_batch(ctx, play.id, play.n, us, c->kill, play.result);
		break;
	case FC_REVOKE_PEER:
		play.status = mwctl_revoke_peer(ctx, victim_peer(), us, c->kill, &n);
		break;
	case FC_REVOKE_RANGE:
		play.status = mwctl_revoke_range(ctx, fc_scene.region, range.addr, FC_CONTROL * FC_BLOCK, us, c->kill,
						 &n);
		break;
	case FC_REGRANT:
		play.status = mwctl_regrant(ctx, play.id[0], &play.ask[1], us, play.result);
		break;
	case FC_TRANSFER:
	case FC_TRANSFER_IN:
		play.status = mwctl_transfer(ctx, move, moves(move), us, c->kill, moved);
		take_moved(moved);
		break;
	case FC_DETACH:
		play.status = mwctl_peer_detach(ctx, victim_peer(), us);
		break;
	case FC_GONE:
	case FC_GONE_AMID:
		play.status = mwctl_peer_gone(ctx, victim_peer(), us);
		break;
	default:
		RC_FAIL("%s does not wait", fc_op_name(c->op));
	}
	if ((c->op == FC_REVOKE_PEER || c->op == FC_REVOKE_RANGE) && play.status == MWCTL_STATUS_OK)
		RC_CHECK_EQ(play.n, n);
}

static void run(const struct fc_case *c)
{
	uint64_t begun;

	for (int i = 0; i < FC_KEYS; i++)
		play.result[i] = (mwctl_result){.status = UNWRITTEN};
	if (fc_is_gone(c->op)) {
		if (c->op == FC_GONE_AMID)
			begin_amid(c);
		reset_victim();
	}
	arm_fault(c);
	fc_hooks.counting = true;
	arm_call(c);
	if (fc_waits(c->op) || c->op == FC_GONE_AMID) {
		begun = fc_clock_now();
		begin_wait();
		wait_for(c);
		end_wait(begun);
	} else {
		start(c);
		if (play.begun && c->op != FC_GRANT_PREPARE)
			run_by_hand();
		else
			play.early = true;
	}
	fc_hooks.counting = false;
}

/* ---- outcomes ---- */

enum fc_outcome fc_outcome_of(const mwctl_result *result, bool granted)
{
	switch (result->status) {
	case MWCTL_STATUS_OK:
		if (granted)
			return result->grant && result->rkey ? FC_GRANTED : FC_STRANGE;
		switch (result->proof) {
		case MWCTL_PROOF_INVALIDATED:
			return FC_INVALIDATED;
		case MWCTL_PROOF_DEALLOCATED:
			return FC_DEALLOCATED;
		case MWCTL_PROOF_QP_FENCED:
			return FC_FENCED;
		case MWCTL_PROOF_NEVER_BOUND:
			return FC_NEVER_BOUND;
		default:
			return FC_STRANGE;
		}
	case MWCTL_STATUS_OPEN:
		return granted || result->proof != MWCTL_PROOF_NONE ? FC_STRANGE : FC_OPEN;
	case MWCTL_STATUS_NOT_POSTED:
		return FC_NOT_POSTED;
	case MWCTL_STATUS_TIMED_OUT:
		return !granted ? FC_STRANGE : result->grant ? FC_TIMED_OUT : FC_TIMED_OUT_VOID;
	case MWCTL_STATUS_POST_FAILED:
		return granted ? FC_POST_FAILED : FC_STRANGE;
	case MWCTL_STATUS_BIND_FAILED:
		return granted ? FC_BIND_FAILED : FC_STRANGE;
	case MWCTL_STATUS_PEER_DEAD:
	case MWCTL_STATUS_NOT_CONNECTED:
	case MWCTL_STATUS_QP_STATE:
		return FC_REFUSED;
	case MWCTL_STATUS_DEVICE_LIMIT:
	case MWCTL_STATUS_KEYS_EXHAUSTED:
	case MWCTL_STATUS_NO_MEMORY:
	case MWCTL_STATUS_POOL_EMPTY:
	case MWCTL_STATUS_VERBS_ERROR:
		return granted ? FC_SHORT : FC_STRANGE;
	default:
		return FC_STRANGE;
	}
}

static bool is_live(uint64_t id)
{
	mwctl_grant_info info;
	mwctl_status status = mwctl_grant_info_get(house->ctx, id, &info, sizeof(info));

	RC_CHECK(status == MWCTL_STATUS_OK || status == MWCTL_STATUS_STALE_ID);
	return status == MWCTL_STATUS_OK;
}

static bool grants_at(int i)
{
	if (fc_is_transfer(play.c->op))
		return fc_grants(play.c->op) == (i < play.works);
	return i < play.works ? fc_work_grants(play.c, i) : fc_grants(play.c->op);
}

static const mwctl_result *result_of(const struct fc_heard *heard, uint64_t id)
{
	for (size_t i = 0; i < heard->n; i++)
		if (heard->results[i].grant == id)
			return &heard->results[i];
	return NULL;
}

static bool is_refused(const struct fc_case *c)
{
	if (play.begun || play.status == MWCTL_STATUS_OK || fc_is_detach(c->op) || fc_is_gone(c->op))
		return false;
	for (int i = 0; i < play.n && fc_waits(c->op); i++)
		if (play.result[i].status != UNWRITTEN && play.result[i].status != MWCTL_STATUS_NOT_POSTED)
			return false;
	return play.itemized;
}

static void collect(const struct fc_case *c)
{
	play.itemized = !(c->op == FC_REVOKE_PEER || c->op == FC_REVOKE_RANGE || c->op == FC_DETACH ||
			  c->op == FC_DETACH_START || c->op == FC_DETACH_PREPARED || c->op == FC_GONE);
	play.refused = is_refused(c);
	if (fc_is_transfer(c->op) && play.begun)
		take_moved(play.heard.results);
	for (int i = 0; i < play.n; i++) {
		bool granted = grants_at(i);
		mwctl_result *result = &play.result[i];

		if (play.refused) {
			*result = (mwctl_result){.status = granted ? play.status : MWCTL_STATUS_NOT_POSTED};
			play.outcome[i] = fc_outcome_of(result, granted);
			continue;
		}

		if (c->op == FC_GRANT_START && play.begun) {
			*result = play.heard.results[i];
		} else if (!granted && play.itemized && !fc_waits(c->op) && !fc_is_transfer(c->op)) {
			bool amid = c->op == FC_DETACH_AMID || c->op == FC_GONE_AMID;
			const mwctl_result *found = result_of(amid ? &play.before : &play.heard, play.id[i]);

			if (!found)
				RC_FAIL("item %d of %d has no result", i, play.n);
			*result = *found;
		}
		if (!play.itemized) {
			play.outcome[i] = is_live(play.id[i]) ? FC_OPEN : FC_PROVED;
			continue;
		}
		if (result->status == UNWRITTEN)
			result->status = play.status;
		play.outcome[i] = fc_outcome_of(result, granted);
		if (play.outcome[i] == FC_GRANTED && fc_is_prepared(c->op))
			play.outcome[i] = FC_COMMITTED;
		if (granted && result->grant && result->rkey)
			fc_note_key(play.owner[i], result->grant, result->rkey, &play.ask[i]);
	}
}

static const char *letters(unsigned int mask)
{
	static char text[2][20];
	static int which;
	char *to = text[which ^= 1];
	int n = 0;

	for (int i = 0; i < 16; i++)
		if (mask & 1u << i)
			to[n++] = FC_LETTERS[i];
	to[n] = 0;
	return to;
}

/* Those whom the fault does not concern: only what fails for the whole device touches them. */
static struct fc_case of_others(const struct fc_case *c)
{
	struct fc_case other = *c;

	other.fault = fc_is_fatal(c->fault) ? FC_FATAL : FC_NONE;
	if (c->call != FC_ALLOC_MW && c->call != FC_DEALLOC_MW)
		other.call = FC_CALL_NONE;
	return other;
}

static unsigned int allowed_of(const struct fc_case *c, int index)
{
	unsigned int allowed = fc_allowed(c, index);

	if (!play.itemized && allowed & FC_ANY_PROOF)
		allowed |= FC_PROVED;
	if (c->op == FC_GONE_AMID || c->op == FC_DETACH_PREPARED)
		allowed |= FC_INVALIDATED | FC_DEALLOCATED;
	return allowed;
}

/* Finds each item a work that it can be, where the order of the works is not known. */
static bool place(const struct fc_case *c, int item, int *item_at, bool *tried)
{
	for (int at = 0; at < play.works; at++) {
		if (tried[at] || !(play.outcome[item] & allowed_of(c, at)))
			continue;
		tried[at] = true;
		if (item_at[at] < 0 || place(c, item_at[at], item_at, tried)) {
			item_at[at] = item;
			return true;
		}
	}
	return false;
}

/* A grant may be refused as a whole where its peer is known to be dead, or no window is to be had. */
static void check_refusal(const struct fc_case *c)
{
	for (int i = 0; i < play.n; i++) {
		unsigned int right = c->call == FC_ALLOC_MW ? FC_SHORT : fc_fate(c, 0) == FC_LOST ? FC_REFUSED : 0;

		if (!grants_at(i))
			right = FC_NOT_POSTED;
		if (!(play.outcome[i] & right))
			RC_FAIL("refused: \"%s\"", mwctl_status_text(play.status));
	}
}

/* A transfer's other half: never two holders at a time, and nothing is given without a proof. */
static unsigned int allowed_of_partner(const struct fc_case *other, int item)
{
	const unsigned int late = FC_TIMED_OUT | FC_TIMED_OUT_VOID | FC_NOT_POSTED;

	if (fc_grants(other->op))
		return other->drive == FC_LOOP_DEAF ? FC_OPEN : FC_INVALIDATED;
	if (!(play.outcome[partner(item)] & FC_ANY_PROOF))
		return FC_NOT_POSTED;
	return FC_GRANTED | (play.early && other->drive != FC_LOOP_DEAF ? 0 : late);
}

static void check_outcomes(const struct fc_case *c)
{
	struct fc_case other = of_others(c);
	int item_at[FC_SLOTS] = {-1, -1, -1, -1, -1, -1};

	if (play.refused) {
		check_refusal(c);
		return;
	}
	for (int i = 0; i < play.n; i++) {
		bool victim = i < play.works, tried[FC_SLOTS] = {false}, right;
		int at = (i - play.works) % FC_OTHERS;
		unsigned int allowed = victim ? allowed_of(c, i) : allowed_of(&other, at);

		if (!victim && fc_is_transfer(c->op))
			allowed = allowed_of_partner(&other, i);
		if (!victim && !fc_is_ordered(c->op))
			allowed |= allowed_of(&other, 1 - at);
		if (victim && !fc_is_ordered(c->op))
			right = place(c, i, item_at, tried);
		else
			right = play.outcome[i] & allowed;
		if (!right)
			RC_FAIL("item %d of client %d: \"%s\" (%s, errno %d) where only %s is right", i, play.owner[i],
				mwctl_status_text(play.itemized ? play.result[i].status : play.status),
				letters(play.outcome[i]), play.result[i].error, letters(allowed));
	}
}

/* The status of the whole is the first that is no success; a success leaves nothing open. */
static void check_status(const struct fc_case *c)
{
	bool open = false;

	for (int i = 0; i < play.n; i++)
		open |= !!(play.outcome[i] & (FC_OPEN | FC_TIMED_OUT));
	if (play.begun && c->op != FC_GRANT_PREPARE && play.heard.calls != 1)
		RC_FAIL("%d callbacks", play.heard.calls);
	if (c->op == FC_DETACH_AMID || c->op == FC_GONE_AMID)
		RC_CHECK_EQ(1, play.before.calls);
	if (open && !fc_is_prepared(c->op))
		RC_CHECK(MWCTL_STATUS_OK != (play.begun ? play.heard.status : play.status));
	if (play.begun && c->op != FC_GRANT_PREPARE)
		for (size_t i = 0; i < play.heard.n; i++)
			if (play.heard.results[i].status != MWCTL_STATUS_OK) {
				RC_CHECK_EQ(play.heard.results[i].status, play.heard.status);
				break;
			}
}

/* What was said against what the tables, the queue pair and the memory say. */
static void check_books(const struct fc_case *c)
{
	uint64_t first = fc_ask(FC_VICTIM, 0).addr, taken, ids[FC_KEYS];
	size_t open = 0, listed = 0;
	bool fenced = false;

	/* What is left of binds that failed is deallocated by a tick. */
	fc_round(false);

	for (int i = 0; i < play.works; i++) {
		bool granted = grants_at(i);
		uint64_t id = granted ? play.result[i].grant : play.id[i];
		bool live = id && is_live(id);

		fenced |= play.outcome[i] == FC_FENCED;
		if (play.outcome[i] & (FC_ANY_PROOF | FC_NEVER_BOUND))
			RC_CHECK(!live);
		else if (play.outcome[i] & (FC_OPEN | FC_GRANTED | FC_TIMED_OUT))
			RC_CHECK(live);
		else if (play.outcome[i] == FC_COMMITTED)
			/* It ends with its queue pair. */
			RC_CHECK(live || fc_fate(c, i) > FC_LEFT);
		else if (granted)
			RC_CHECK(!live);
		else
			RC_CHECK(live == (play.outcome[i] == FC_NOT_POSTED));
		open += live;
	}
	HOUSE_OK(mwctl_range_grants(house->ctx, fc_scene.region, first, FC_BLOCK, ids, FC_KEYS, &listed));
	/* A bind that failed and whose window is not proved gone has no id to be told. */
	if (fc_is_fatal(c->fault) || c->call)
		RC_CHECK(listed >= open);
	else if (c->op != FC_DETACH_PREPARED)
		RC_CHECK_EQ(open, listed);
	/* Memory under an open right is nobody's. */
	HOUSE_OK(mwctl_block_give(house->ctx, fc_scene.region, first, 1));
	if (listed) {
		HOUSE_STATUS(MWCTL_STATUS_NO_BLOCKS, mwctl_block_take(house->ctx, fc_scene.region, 1, &taken));
		HOUSE_STATUS(MWCTL_STATUS_BUSY, mwctl_region_detach(house->ctx, fc_scene.region));
	} else {
		HOUSE_OK(mwctl_block_take(house->ctx, fc_scene.region, 1, &taken));
		RC_CHECK_EQ(first, taken);
	}
	if (fenced && !fc_hooks.fatal && c->call != FC_QUERY_QP)
		RC_CHECK_STATE(IBV_QPS_ERR, house->client[FC_VICTIM].pair.server.qp);
}

/* Who may have moved the queue pair to ERR. */
static void check_kills(const struct fc_case *c)
{
	int killed = fc_scene.killed - play.killed_before;
	bool silent = false;

	for (int i = 0; i < play.works; i++) {
		enum fc_fate fate = fc_fate(c, i);

		silent |= fate == FC_SILENT || fate == FC_LEFT || fate == FC_WIPED || fate == FC_BEHIND;
	}
	if (fc_is_gone(c->op)) {
		RC_CHECK_EQ(0, play.modifies);
	} else if (!fc_is_dead(c->fault)) {
		/* A revocation that was under way, or a chain in the application's hands, may take the
		 * whole budget. */
		if ((!fc_may_kill(c) || !silent || (fc_grants(c->op) && fc_works(c) != 2)) &&
		    c->op != FC_DETACH_PREPARED) {
			RC_CHECK_EQ(0, killed);
			RC_CHECK_EQ(0, play.modifies);
		}
		if (play.modifies)
			RC_CHECK_EQ(1, killed);
	}
}

static void check_time(const struct fc_case *c)
{
	const unsigned int late = FC_TIMED_OUT | FC_TIMED_OUT_VOID;
	bool excused = fc_is_fatal(c->fault) || c->call;

	if (c->op == FC_DETACH_PREPARED)
		return;
	if (fc_ends_early(c) && !play.early)
		RC_FAIL("ended by its deadline, and could have before");
	for (int i = 0; i < play.n && play.early; i++)
		if (play.outcome[i] & late || (play.outcome[i] == FC_OPEN && !excused))
			RC_FAIL("item %d was given up before the deadline", i);
}

/* ---- bringing it to an end ---- */

static bool is_usable(void)
{
	mwctl_peer_info info;

	HOUSE_OK(mwctl_peer_info_get(house->ctx, victim_peer(), &info, sizeof(info)));
	return info.life == 1 && !info.leaving && fc_state(FC_VICTIM) == IBV_QPS_RTS;
}

/* Proved keys are dead and the others alive, on the connection as it is. */
static void try_live(const struct fc_case *c)
{
	struct fc_client *it = &fc_scene.client[FC_VICTIM];
	int first = (c->nth + c->position + c->budget) % play.works;

	for (int i = 0; i < it->keys; i++)
		if (is_live(it->key[i].id))
			for (int k = 0; k < play.works; k++)
				if (play.outcome[k] & (FC_GRANTED | FC_NOT_POSTED | FC_COMMITTED) &&
				    (fc_fate(c, k) <= FC_LEFT || play.outcome[k] == FC_NOT_POSTED) &&
				    (play.id[k] == it->key[i].id || play.result[k].grant == it->key[i].id))
					fc_lands(FC_VICTIM, &it->key[i]);
	for (int n = 0; n < play.works; n++) {
		int i = (first + n) % play.works;

		if (grants_at(i) || !(play.outcome[i] & FC_ANY_PROOF))
			continue;
		for (int k = 0; k < it->keys; k++)
			if (it->key[k].id == play.id[i]) {
				fc_dead(FC_VICTIM, &it->key[k]);
				return;
			}
	}
}

static void use_again(void)
{
	struct fc_client *it = &fc_scene.client[FC_VICTIM];
	mwctl_peer_info info;
	int fresh = it->keys;

	fc_make_grants(FC_VICTIM, 1);
	fc_lands(FC_VICTIM, &it->key[fresh]);
	fc_revoke_rest(FC_VICTIM);
	HOUSE_OK(mwctl_peer_info_get(house->ctx, victim_peer(), &info, sizeof(info)));
	RC_CHECK_EQ(0, info.used);
	fc_dead(FC_VICTIM, &it->key[fresh]);
}

static void finish_gone(void)
{
	fc_clock.step = 1000;
	fc_clock.stepper = (int)syscall(SYS_gettid);
	HOUSE_OK(mwctl_peer_gone(house->ctx, victim_peer(), FC_DEADLINE_US));
	fc_clock.stepper = 0;
	house->client[FC_VICTIM].peer.id = 0;
}

static void abort_prepared(bool detached)
{
	if (play.c->op != FC_DETACH_PREPARED)
		return;
	if (detached)
		HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_abort(house->ctx, play.token));
	else
		HOUSE_OK(mwctl_abort(house->ctx, play.token));
}

static void finish(const struct fc_case *c)
{
	bool reset = fc_is_reset(c->fault) || fc_is_gone(c->op);
	bool excused = fc_is_fatal(c->fault) || c->call;
	mwctl_peer_info info;

	if ((fc_is_detach(c->op) || fc_is_gone(c->op)) &&
	    (play.begun ? play.heard.status : play.status) == MWCTL_STATUS_OK) {
		/* Success means: off the books, at once. */
		HOUSE_STATUS(MWCTL_STATUS_STALE_ID,
			     mwctl_peer_info_get(house->ctx, victim_peer(), &info, sizeof(info)));
		house->client[FC_VICTIM].peer.id = 0;
		abort_prepared(true);
	} else {
		if (fc_is_detach(c->op) || fc_is_gone(c->op))
			HOUSE_OK(mwctl_peer_info_get(house->ctx, victim_peer(), &info, sizeof(info)));
		abort_prepared(false);
	}
	if (fc_is_attached(FC_VICTIM) && c->finish == FC_DETACH_FIRST && !reset)
		fc_detach(FC_VICTIM, excused);
	else if (fc_is_attached(FC_VICTIM) && c->finish == FC_RELEASE_FIRST && !fc_hooks.fatal &&
		 c->call != FC_QUERY_QP && fc_state(FC_VICTIM) == IBV_QPS_RTS)
		try_live(c);
	end_faults(c);
	fc_rounds(true);
	if (fc_is_attached(FC_VICTIM) && reset)
		finish_gone();
	if (fc_is_attached(FC_VICTIM) && c->finish == FC_RETRY && !fc_is_detach(c->op)) {
		fc_revoke_rest(FC_VICTIM);
		if (is_usable())
			use_again();
	}
	fc_rounds(true);
	fc_replace(FC_VICTIM);
	for (int i = 1; i < FC_CONTROL; i++) {
		fc_revoke_rest(i);
		RC_CHECK_STATE(IBV_QPS_RTS, house->client[i].pair.server.qp);
		RC_CHECK_EQ(0, house_peer(house, i).used);
		fc_app_check(i);
		fc_scene.client[i].keys = 0;
	}
	fc_lands(FC_CONTROL, &fc_scene.client[FC_CONTROL].key[0]);
	fc_region_close();
	house_check_misuse();
	RC_CHECK_EQ(0, fc_scene_leak());
	if (play.begun && c->op != FC_GRANT_PREPARE)
		RC_CHECK_EQ(1, play.heard.calls);
	if (c->op == FC_DETACH_AMID || c->op == FC_GONE_AMID)
		RC_CHECK_EQ(1, play.before.calls);
}

void fc_play(const struct fc_case *c, struct fc_report *report)
{
	struct mwctl_sim_counters before, after;

	alarm(20);
	fc_scene_open(c);
	memset(&play, 0, sizeof(play));
	play.c = c;
	play.killed_before = fc_scene.killed;
	fc_region_open();
	cast(c);
	HOUSE_OK(mwctl_domain_reserve(house->ctx, house->domain, 16));
	if (fc_waits(c->op) && (fc_grants(c->op) || c->op == FC_TRANSFER) && c->fault == FC_NONE)
		fc_drain_pool();
	for (int i = 0; i < FC_CONTROL; i++)
		RC_CHECK(fc_app_post(i));
	RC_CHECK_EQ(0, mwctl_sim_counters_get(&before, sizeof(before)));
	fc_hooks.seen = (struct fc_seen){0};
	run(c);
	RC_CHECK_EQ(0, mwctl_sim_counters_get(&after, sizeof(after)));
	fc_hooks.seen.modifies = (int)(after.qp_modifies - before.qp_modifies);
	fc_hooks.seen.queries = (int)(after.qp_queries - before.qp_queries);
	report->seen = fc_hooks.seen;
	/* What the case itself did. */
	play.modifies = after.qp_modifies - before.qp_modifies -
			(fc_is_gone(c->op) || c->fault == FC_QP_ERR_BEFORE || c->fault == FC_QP_ERR_TOLD ||
			 c->fault == FC_QP_ERR_AFTER || c->fault == FC_QP_RESET_BEFORE ||
			 c->fault == FC_QP_RESET_AFTER || c->fault == FC_QP_SQD_BEFORE ||
			 c->fault == FC_QP_SQD_AFTER || c->fault == FC_FATAL_ERR);
	report->seen.modifies = (int)play.modifies;
	check_struck(c);
	for (int i = 0; i < FC_CONTROL; i++)
		(void)fc_app_post(i);
	collect(c);
	report->outcomes = 0;
	for (int i = 0; i < play.works; i++)
		report->outcomes |= play.outcome[i];
	check_outcomes(c);
	check_status(c);
	check_time(c);
	check_books(c);
	check_kills(c);
	finish(c);
	alarm(0);
}
