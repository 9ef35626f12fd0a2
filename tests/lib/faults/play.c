/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "faults/play.h"

#include "faults/check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct house *const house = &fc_scene.house;

struct fc_playing fc_playing;
static struct fc_playing *const play = &fc_playing;

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
	play->faulted[play->faults] = call;
	play->fault[play->faults++] = order(fault);
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
	play->fatal = order((struct mwctl_sim_fault){.kind = MWCTL_SIM_DEVICE_FATAL});
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
	play->held_by_rnr = true;
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
	RC_CHECK_EQ(0, mwctl_sim_fault_release(play->fault[0]));
}

static void receive_at_last(void)
{
	struct ibv_recv_wr wr = {0}, *bad;

	if (play->held_by_rnr)
		RC_CHECK_EQ(0, ibv_post_recv(house->client[FC_VICTIM].pair.client.qp, &wr, &bad));
	play->held_by_rnr = false;
}

/* What holds something back lets go of it. */
static void release_amid(const struct fc_case *c)
{
	if (c->fault == FC_WC_LATE_MID || c->fault == FC_SQ_STALL_MID)
		RC_CHECK_EQ(0, mwctl_sim_fault_release(play->fault[0]));
	if (c->fault == FC_SQ_RNR_MID)
		receive_at_last();
	if (c->fault == FC_POST_ROOM_MID) {
		RC_CHECK_EQ(0, mwctl_sim_fault_release(play->fault[0]));
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
	for (int i = 0; i < play->faults; i++)
		if (mwctl_sim_fault_hits(play->fault[i]) == 0 &&
		    !(play->faulted[i] && c->drive == FC_WAIT_YOURS))
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
		RC_CHECK_EQ(0, mwctl_sim_fault_release(play->fatal));
		if (c->fault != FC_FATAL)
			fail_victim(false);
	}
	mwctl_sim_faults_clear();
	fc_hooks = (struct fc_hooks){0};
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
	bool near;
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
		if (quiet == 4 && is_released_amid(play->c->fault) && !loop.released) {
			release_amid(play->c);
			loop.released = true;
			quiet = 0;
		} else if (quiet == 4 && !loop.near) {
			fc_clock_pass(FC_DEADLINE_US * 1000ull - 1000);
			loop.near = true;
			quiet = 0;
		} else if (quiet == 4 && !loop.passed) {
			fc_clock_pass(1000);
			loop.passed = true;
		}
		sched_yield();
	}
	close(stat);
	return unused;
}

static void begin_wait(void)
{
	if (play->c->drive == FC_WAIT_OURS) {
		fc_clock.step = 10000;
		fc_clock.stepper = (int)syscall(SYS_gettid);
		return;
	}
	loop.waiter = (int)syscall(SYS_gettid);
	loop.stop = 0;
	loop.released = loop.near = loop.passed = false;
	RC_CHECK_EQ(0, pthread_create(&loop.thread, NULL, run_loop, NULL));
}

static void end_wait(uint64_t begun)
{
	uint64_t lasted = fc_clock_now() - begun;

	if (play->c->drive == FC_WAIT_OURS) {
		fc_clock.stepper = 0;
		play->early = lasted < FC_DEADLINE_US * 1000ull;
		/* A handful of looks at the clock after the deadline, each of 10 us. */
		RC_CHECK(lasted < FC_DEADLINE_US * 1000ull + 40 * 10000);
		return;
	}
	__atomic_store_n(&loop.stop, 1, __ATOMIC_RELEASE);
	RC_CHECK_EQ(0, pthread_join(loop.thread, NULL));
	play->early = !loop.passed;
}

/* ---- by hand ---- */

static void run_by_hand(void)
{
	const struct fc_case *c = play->c;
	bool polls = c->drive != FC_LOOP_DEAF;
	struct ibv_wc wc;
	int64_t timeout;

	/* The victim's post comes after the old holder's proof. */
	if (c->op == FC_TRANSFER_IN_START)
		fc_rounds(polls);
	strike_amid(c);
	fc_rounds(polls);
	if (is_released_amid(c->fault)) {
		RC_CHECK_EQ(0, play->heard.calls);
		release_amid(c);
		fc_rounds(polls);
	}
	if (!play->heard.calls) {
		timeout = mwctl_next_timeout(house->ctx);
		RC_CHECK(timeout >= 0 && timeout <= FC_DEADLINE_US * 1000);
		fc_clock_pass(FC_DEADLINE_US * 1000 - 1000);
		fc_rounds(polls);
	}
	play->early = play->heard.calls != 0;
	if (play->early)
		return;
	fc_clock_pass(1000);
	/* One call has to do. */
	if (c->drive == FC_LOOP_OURS)
		(void)mwctl_poll_cq(house->ctx, house->client[FC_CONTROL].pair.server.cq, 1, &wc);
	else
		HOUSE_OK(mwctl_tick(house->ctx));
	if (!play->heard.calls)
		RC_FAIL("not ended by the first call after the deadline");
}

/* ---- operations ---- */

static void add_ids(int client, int n)
{
	for (int i = 0; i < n; i++) {
		play->owner[play->n] = client;
		play->id[play->n++] = fc_scene.client[client].grant[i].id;
	}
}

static void add_asks(int client, int n, int slot)
{
	for (int i = 0; i < n; i++) {
		play->owner[play->n] = client;
		play->ask[play->n++] = fc_ask(client, slot + i);
	}
}

static bool takes_others(enum fc_op op)
{
	return op == FC_GRANT_BATCH || op == FC_GRANT_START || op == FC_REVOKE_BATCH || op == FC_REVOKE_START ||
	       op == FC_REVOKE_RANGE || op == FC_REVOKE_RANGE_START;
}

static void cast(const struct fc_case *c)
{
	play->works = fc_works(c);
	if (fc_is_transfer(c->op)) {
		bool in = fc_grants(c->op);

		fc_make_grants(in ? 1 : FC_VICTIM, play->works);
		if (in)
			add_asks(FC_VICTIM, play->works, 0);
		add_ids(in ? 1 : FC_VICTIM, play->works);
		if (!in)
			add_asks(1, play->works, 0);
		return;
	}
	if (c->op == FC_REGRANT || c->op == FC_REGRANT_PREPARE) {
		fc_make_grants(FC_VICTIM, 1);
		add_ids(FC_VICTIM, 1);
		add_asks(FC_VICTIM, 1, 1);
		return;
	}
	if (fc_grants(c->op)) {
		add_asks(FC_VICTIM, play->works, 0);
		for (int i = 1; i < FC_CONTROL && takes_others(c->op); i++)
			add_asks(i, FC_OTHERS, 0);
		return;
	}
	fc_make_grants(FC_VICTIM, play->works);
	add_ids(FC_VICTIM, play->works);
	for (int i = 1; i < FC_CONTROL && takes_others(c->op); i++) {
		fc_make_grants(i, FC_OTHERS);
		add_ids(i, FC_OTHERS);
	}
}

static void begin_amid(const struct fc_case *c)
{
	play->before.calls = 0;
	HOUSE_OK(mwctl_revoke_start(house->ctx, play->id, play->n, 10 * FC_DEADLINE_US, c->kill, fc_on_done,
				    &play->before));
}

static void post_prepared(const struct fc_case *c)
{
	struct ibv_send_wr *bad = NULL;
	size_t posted = 99, expected = play->works;
	int ret;

	/* The application's own request behind ours. */
	play->app = fc_app_wr(FC_VICTIM);
	play->wr[play->works - 1].next = &play->app;
	ret = ibv_post_send(house->client[FC_VICTIM].pair.server.qp, play->wr, &bad);
	if (ret == 0 || !bad)
		fc_scene.client[FC_VICTIM].posted++;
	if (ret && bad)
		for (size_t i = 0; i < expected; i++)
			if (bad == &play->wr[i])
				expected = i;
	HOUSE_OK(mwctl_commit(house->ctx, play->token, ret, bad, &posted));
	RC_CHECK_EQ(expected, posted);
	for (int i = 0; i < play->works; i++)
		if (fc_work_grants(c, i))
			play->result[i].status = (size_t)i < posted ? MWCTL_STATUS_OK : MWCTL_STATUS_NOT_POSTED;
}

static size_t moves(mwctl_move *to)
{
	for (int i = 0; i < play->works; i++) {
		bool in = fc_grants(play->c->op);

		to[i] = (mwctl_move){.grant = play->id[in ? fc_partner(i) : i], .to = play->ask[in ? i : fc_partner(i)]};
	}
	return (size_t)play->works;
}

static void start(const struct fc_case *c)
{
	mwctl_move move[FC_SLOTS];
	mwctl_context *ctx = house->ctx;
	struct fc_heard *heard = &play->heard;
	mwctl_request range = fc_ask(FC_VICTIM, 0);
	uint64_t us = FC_DEADLINE_US;
	mwctl_result held;

	switch (c->op) {
	case FC_GRANT_START:
		play->status = mwctl_grant_start(ctx, play->ask, play->n, us, fc_on_done, heard);
		break;
	case FC_REVOKE_START:
		play->status = mwctl_revoke_start(ctx, play->id, play->n, us, c->kill, fc_on_done, heard);
		break;
	case FC_REVOKE_PEER_START:
		play->status = mwctl_revoke_peer_start(ctx, victim_peer(), us, c->kill, fc_on_done, heard);
		break;
	case FC_REVOKE_RANGE_START:
		play->status = mwctl_revoke_range_start(ctx, fc_scene.region, range.addr, FC_CONTROL * FC_BLOCK, us,
						       c->kill, fc_on_done, heard);
		break;
	case FC_TRANSFER_START:
	case FC_TRANSFER_IN_START:
		play->status = mwctl_transfer_start(ctx, move, moves(move), us, c->kill, fc_on_done, heard);
		break;
	case FC_DETACH_AMID:
		begin_amid(c);
		play->status = mwctl_peer_detach_start(ctx, victim_peer(), us, fc_on_done, heard);
		break;
	case FC_DETACH_PREPARED:
		range = fc_ask(FC_VICTIM, FC_SLOTS);
		HOUSE_OK(mwctl_grant_prepare(ctx, &range, 1, play->wr, &held, &play->token));
		play->status = mwctl_peer_detach_start(ctx, victim_peer(), us, fc_on_done, heard);
		break;
	case FC_DETACH_START:
		play->status = mwctl_peer_detach_start(ctx, victim_peer(), us, fc_on_done, heard);
		break;
	case FC_GRANT_PREPARE:
		play->status = mwctl_grant_prepare(ctx, play->ask, play->works, play->wr, play->result, &play->token);
		break;
	case FC_REVOKE_PREPARE:
		play->status = mwctl_revoke_prepare(ctx, play->id, play->works, us, c->kill, fc_on_done, heard, play->wr,
						   &play->token);
		break;
	case FC_REGRANT_PREPARE:
		play->status = mwctl_regrant_prepare(ctx, play->id[0], &play->ask[1], us, fc_on_done, heard, play->wr,
						    &play->result[1], &play->token);
		break;
	default:
		RC_FAIL("%s does not end in a callback", fc_op_name(c->op));
	}
	play->begun = play->status == MWCTL_STATUS_OK;
	if (play->begun && fc_is_prepared(c->op))
		post_prepared(c);
}

static void wait_for(const struct fc_case *c)
{
	mwctl_context *ctx = house->ctx;
	mwctl_request range = fc_ask(FC_VICTIM, 0);
	uint64_t us = FC_DEADLINE_US;
	mwctl_result moved[2 * FC_SLOTS];
	mwctl_move move[FC_SLOTS];
	size_t n = 0;

	for (int i = 0; i < 2 * FC_SLOTS; i++)
		moved[i] = (mwctl_result){.status = FC_UNWRITTEN};
	switch (c->op) {
	case FC_GRANT:
		play->status = mwctl_grant(ctx, &play->ask[0], us, &play->result[0]);
		break;
	case FC_GRANT_BATCH:
		play->status = mwctl_grant_batch(ctx, play->ask, play->n, us, play->result);
		break;
	case FC_REVOKE:
		play->status = mwctl_revoke(ctx, play->id[0], us, &play->result[0]);
		break;
	case FC_REVOKE_BATCH:
		play->status = mwctl_revoke_batch(ctx, play->id, play->n, us, c->kill, play->result);
		break;
	case FC_REVOKE_PEER:
		play->status = mwctl_revoke_peer(ctx, victim_peer(), us, c->kill, &n);
		break;
	case FC_REVOKE_RANGE:
		play->status = mwctl_revoke_range(ctx, fc_scene.region, range.addr, FC_CONTROL * FC_BLOCK, us, c->kill,
						 &n);
		break;
	case FC_REGRANT:
		play->status = mwctl_regrant(ctx, play->id[0], &play->ask[1], us, play->result);
		break;
	case FC_TRANSFER:
	case FC_TRANSFER_IN:
		play->status = mwctl_transfer(ctx, move, moves(move), us, c->kill, moved);
		fc_take_moved(moved);
		break;
	case FC_DETACH:
		play->status = mwctl_peer_detach(ctx, victim_peer(), us);
		break;
	case FC_GONE:
	case FC_GONE_AMID:
		play->status = mwctl_peer_gone(ctx, victim_peer(), us);
		break;
	default:
		RC_FAIL("%s does not wait", fc_op_name(c->op));
	}
	if ((c->op == FC_REVOKE_PEER || c->op == FC_REVOKE_RANGE) && play->status == MWCTL_STATUS_OK)
		RC_CHECK_EQ(play->n, n);
}

static void run(const struct fc_case *c)
{
	uint64_t begun;

	for (int i = 0; i < FC_KEYS; i++)
		play->result[i] = (mwctl_result){.status = FC_UNWRITTEN};
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
		if (play->begun && c->op != FC_GRANT_PREPARE)
			run_by_hand();
		else
			play->early = true;
	}
	fc_hooks.counting = false;
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
	int first = (c->nth + c->position + c->budget) % play->works;

	for (int i = 0; i < it->keys; i++)
		if (fc_is_live(it->key[i].id))
			for (int k = 0; k < play->works; k++)
				if (play->outcome[k] & (FC_GRANTED | FC_NOT_POSTED | FC_COMMITTED) &&
				    (fc_fate(c, k) <= FC_LEFT || play->outcome[k] == FC_NOT_POSTED) &&
				    (play->id[k] == it->key[i].id || play->result[k].grant == it->key[i].id))
					fc_lands(FC_VICTIM, &it->key[i]);
	for (int n = 0; n < play->works; n++) {
		int i = (first + n) % play->works;

		if (fc_grants_at(i) || !(play->outcome[i] & FC_ANY_PROOF))
			continue;
		for (int k = 0; k < it->keys; k++)
			if (it->key[k].id == play->id[i]) {
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
	if (play->c->op != FC_DETACH_PREPARED)
		return;
	if (detached)
		HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_abort(house->ctx, play->token));
	else
		HOUSE_OK(mwctl_abort(house->ctx, play->token));
}

static void finish(const struct fc_case *c)
{
	bool reset = fc_is_reset(c->fault) || fc_is_gone(c->op);
	bool excused = fc_is_fatal(c->fault) || c->call;
	mwctl_peer_info info;

	if ((fc_is_detach(c->op) || fc_is_gone(c->op)) &&
	    (play->begun ? play->heard.status : play->status) == MWCTL_STATUS_OK) {
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
	if (play->begun && c->op != FC_GRANT_PREPARE)
		RC_CHECK_EQ(1, play->heard.calls);
	if (c->op == FC_DETACH_AMID || c->op == FC_GONE_AMID)
		RC_CHECK_EQ(1, play->before.calls);
}

void fc_play(const struct fc_case *c, struct fc_report *report)
{
	struct mwctl_sim_counters before, after;

	alarm(20);
	fc_scene_open(c);
	fc_playing = (struct fc_playing){.c = c};
	play->killed_before = fc_scene.killed;
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
	play->modifies = after.qp_modifies - before.qp_modifies -
			(fc_is_gone(c->op) || c->fault == FC_QP_ERR_BEFORE || c->fault == FC_QP_ERR_TOLD ||
			 c->fault == FC_QP_ERR_AFTER || c->fault == FC_QP_RESET_BEFORE ||
			 c->fault == FC_QP_RESET_AFTER || c->fault == FC_QP_SQD_BEFORE ||
			 c->fault == FC_QP_SQD_AFTER || c->fault == FC_FATAL_ERR);
	report->seen.modifies = (int)play->modifies;
	check_struck(c);
	for (int i = 0; i < FC_CONTROL; i++)
		(void)fc_app_post(i);
	fc_collect(c);
	report->outcomes = 0;
	for (int i = 0; i < play->works; i++)
		report->outcomes |= play->outcome[i];
	fc_check(c);
	finish(c);
	alarm(0);
}
