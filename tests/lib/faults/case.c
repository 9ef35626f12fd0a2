/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "faults/case.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mwctl.h"

static const char *const ops[FC_OPS] = {
	[FC_GRANT] = "grant",
	[FC_GRANT_BATCH] = "grant_batch",
	[FC_GRANT_START] = "grant_start",
	[FC_GRANT_PREPARE] = "grant_prepare",
	[FC_REVOKE] = "revoke",
	[FC_REVOKE_BATCH] = "revoke_batch",
	[FC_REVOKE_START] = "revoke_start",
	[FC_REVOKE_PREPARE] = "revoke_prepare",
	[FC_REVOKE_PEER] = "revoke_peer",
	[FC_REVOKE_PEER_START] = "revoke_peer_start",
	[FC_REVOKE_RANGE] = "revoke_range",
	[FC_REVOKE_RANGE_START] = "revoke_range_start",
	[FC_REGRANT] = "regrant",
	[FC_REGRANT_PREPARE] = "regrant_prepare",
	[FC_TRANSFER] = "transfer",
	[FC_TRANSFER_START] = "transfer_start",
	[FC_TRANSFER_IN] = "transfer_in",
	[FC_TRANSFER_IN_START] = "transfer_in_start",
	[FC_DETACH] = "peer_detach",
	[FC_DETACH_START] = "peer_detach_start",
	[FC_DETACH_AMID] = "detach_amid",
	[FC_DETACH_PREPARED] = "detach_prepared",
	[FC_GONE] = "peer_gone",
	[FC_GONE_AMID] = "gone_amid",
};

static const char *const drives[FC_DRIVES] = {"wait", "wait-yours", "loop", "loop-yours", "loop-deaf"};

static const char *const faults[FC_FAULTS] = {
	[FC_NONE] = "none",
	[FC_POST_FAIL] = "post-fails",
	[FC_POST_CUT] = "post-cut",
	[FC_POST_UNCLEAR] = "post-unclear",
	[FC_POST_ROOM_MID] = "post-no-room-a-while",
	[FC_WC_LOST] = "wc-lost",
	[FC_WC_LATE] = "wc-late",
	[FC_WC_LATE_MID] = "wc-late-in-time",
	[FC_WC_ERROR] = "wc-error",
	[FC_SQ_STALL] = "sq-stalled",
	[FC_SQ_STALL_MID] = "sq-stalled-a-while",
	[FC_SQ_STUCK] = "sq-known-stuck",
	[FC_SQ_RNR] = "sq-behind-send",
	[FC_SQ_RNR_MID] = "sq-behind-send-a-while",
	[FC_QP_KILL] = "qp-fails-at-post",
	[FC_QP_ERR_BEFORE] = "qp-err-before",
	[FC_QP_ERR_TOLD] = "qp-err-told",
	[FC_QP_ERR_AFTER] = "qp-err-after",
	[FC_QP_RESET_BEFORE] = "qp-reset-before",
	[FC_QP_RESET_AFTER] = "qp-reset-after",
	[FC_QP_SQD_BEFORE] = "qp-sqd-before",
	[FC_QP_SQD_AFTER] = "qp-sqd-after",
	[FC_POLL_FAIL] = "poll-fails",
	[FC_FATAL] = "fatal",
	[FC_FATAL_STALL] = "fatal+stalled",
	[FC_FATAL_STALL_TOLD] = "fatal+stalled-told",
	[FC_FATAL_ERR] = "fatal+err",
};

static const char *const calls[FC_CALLS] = {"none", "alloc_mw", "dealloc_mw", "modify_qp", "query_qp"};

const char *fc_op_name(enum fc_op op)
{
	return ops[op];
}

static bool is_soft(int error, int os_error)
{
	int code = error == -1 && os_error ? os_error : abs(error);

	return code == ENOMEM || code == EAGAIN;
}

void fc_row_name(const struct fc_case *c, char *to, size_t size)
{
	int n = snprintf(to, size, "%s", faults[c->fault]);

	if (c->fault == FC_POST_FAIL || c->fault == FC_POST_CUT)
		n += snprintf(to + n, size - n, ", %s%s", is_soft(c->error, c->os_error) ? "no room" : "refused",
			      c->always ? ", always" : "");
	else if (c->fault == FC_POLL_FAIL)
		n += snprintf(to + n, size - n, c->always ? ", always" : ", once");
	if (c->call == FC_ALLOC_MW)
		n += snprintf(to + n, size - n, " & alloc_mw, %s", is_soft(c->call_error, 0) ? "full" : "fails");
	else if (c->call)
		n += snprintf(to + n, size - n, " & %s", calls[c->call]);
	if (c->call && c->call_always)
		snprintf(to + n, size - n, ", always");
}

/* ---- the name of a combination, which replays it ---- */

void fc_spec(const struct fc_case *c, char *to, size_t size)
{
	snprintf(to, size, "%s,%s,%d,%d,%s,%d,%d,%d,%d,%d,%s,%d,%d,%d,%d", ops[c->op], drives[c->drive],
		 c->kill, c->budget, faults[c->fault], c->nth, c->position, c->error, c->os_error,
		 c->always, calls[c->call], c->call_nth, c->call_error, c->call_always, c->finish);
}

static bool find(const char *word, const char *const *names, int n, int *at)
{
	for (*at = 0; *at < n; ++*at)
		if (strcmp(names[*at], word) == 0)
			return true;
	return false;
}

bool fc_parse(const char *spec, struct fc_case *c)
{
	char words[15][32];
	int field = 0, used = 0, op, drive, fault, call;

	for (const char *at = spec; field < 15; field++) {
		if (sscanf(at, "%31[^,]%n", words[field], &used) != 1)
			return false;
		at += used;
		if (*at == ',')
			at++;
	}
	if (!find(words[0], ops, FC_OPS, &op) || !find(words[1], drives, FC_DRIVES, &drive) ||
	    !find(words[4], faults, FC_FAULTS, &fault) || !find(words[10], calls, FC_CALLS, &call))
		return false;
	*c = (struct fc_case){.op = op,
			      .drive = drive,
			      .kill = atoi(words[2]),
			      .budget = atoi(words[3]),
			      .fault = fault,
			      .nth = atoi(words[5]),
			      .position = atoi(words[6]),
			      .error = atoi(words[7]),
			      .os_error = atoi(words[8]),
			      .always = atoi(words[9]),
			      .call = call,
			      .call_nth = atoi(words[11]),
			      .call_error = atoi(words[12]),
			      .call_always = atoi(words[13]),
			      .finish = atoi(words[14])};
	return true;
}

/* ---- what the operations are ---- */

bool fc_waits(enum fc_op op)
{
	switch (op) {
	case FC_GRANT_START:
	case FC_GRANT_PREPARE:
	case FC_REVOKE_START:
	case FC_REVOKE_PREPARE:
	case FC_REVOKE_PEER_START:
	case FC_REVOKE_RANGE_START:
	case FC_REGRANT_PREPARE:
	case FC_TRANSFER_START:
	case FC_TRANSFER_IN_START:
	case FC_DETACH_START:
	case FC_DETACH_AMID:
	case FC_DETACH_PREPARED:
	case FC_GONE_AMID:
		return false;
	default:
		return true;
	}
}

bool fc_has_kill(enum fc_op op)
{
	switch (op) {
	case FC_REVOKE_BATCH:
	case FC_REVOKE_START:
	case FC_REVOKE_PREPARE:
	case FC_REVOKE_PEER:
	case FC_REVOKE_PEER_START:
	case FC_REVOKE_RANGE:
	case FC_REVOKE_RANGE_START:
	case FC_TRANSFER:
	case FC_TRANSFER_START:
	case FC_TRANSFER_IN:
	case FC_TRANSFER_IN_START:
	case FC_DETACH_AMID:
	case FC_GONE_AMID:
		return true;
	default:
		return false;
	}
}

bool fc_is_prepared(enum fc_op op)
{
	return op == FC_GRANT_PREPARE || op == FC_REVOKE_PREPARE || op == FC_REGRANT_PREPARE;
}

bool fc_is_transfer(enum fc_op op)
{
	return op >= FC_TRANSFER && op <= FC_TRANSFER_IN_START;
}

bool fc_is_detach(enum fc_op op)
{
	return op == FC_DETACH || op == FC_DETACH_START || op == FC_DETACH_AMID || op == FC_DETACH_PREPARED;
}

bool fc_is_gone(enum fc_op op)
{
	return op == FC_GONE || op == FC_GONE_AMID;
}

bool fc_grants(enum fc_op op)
{
	return op <= FC_GRANT_PREPARE || op == FC_REGRANT || op == FC_REGRANT_PREPARE || op == FC_TRANSFER_IN ||
	       op == FC_TRANSFER_IN_START;
}

bool fc_is_fatal(enum fc_fault fault)
{
	return fault == FC_FATAL || fault == FC_FATAL_STALL || fault == FC_FATAL_STALL_TOLD ||
	       fault == FC_FATAL_ERR;
}

bool fc_is_dead(enum fc_fault fault)
{
	return fault == FC_WC_ERROR || fault == FC_QP_KILL || fault == FC_QP_ERR_BEFORE ||
	       fault == FC_QP_ERR_TOLD || fault == FC_QP_ERR_AFTER || fault == FC_FATAL_ERR;
}

bool fc_is_reset(enum fc_fault fault)
{
	return fault == FC_QP_RESET_BEFORE || fault == FC_QP_RESET_AFTER;
}

int fc_works(const struct fc_case *c)
{
	switch (c->op) {
	case FC_GRANT:
	case FC_REVOKE:
	case FC_TRANSFER_IN:
	case FC_TRANSFER_IN_START:
		return 1;
	case FC_REGRANT:
	case FC_REGRANT_PREPARE:
		return 2;
	case FC_GRANT_PREPARE:
	case FC_REVOKE_PREPARE:
		return c->budget < 3 ? c->budget : 3;
	default:
		return 6;
	}
}

bool fc_work_grants(const struct fc_case *c, int index)
{
	if (c->op == FC_REGRANT || c->op == FC_REGRANT_PREPARE)
		return index == 1;
	return fc_grants(c->op);
}

/* ---- what may come of it ---- */

static enum fc_fate from(int chain, int struck, enum fc_fate here, enum fc_fate later)
{
	return chain < struck ? FC_DONE : chain == struck ? here : later;
}

static enum fc_fate refused(const struct fc_case *c, int chain, int at)
{
	int cut = c->fault == FC_POST_CUT ? c->position : 0;

	if (fc_is_prepared(c->op)) {
		if (at >= cut)
			return FC_UNPOSTED;
		/* Each of a revocation asks for a completion. */
		return c->op == FC_GRANT_PREPARE ? FC_LEFT : FC_DONE;
	}
	if (chain < c->nth)
		return FC_DONE;
	if (is_soft(c->error, c->os_error))
		/* Cut further on, each attempt gets a little further; a thread that sleeps makes few. */
		return !c->always ? FC_DONE : cut == 0 ? FC_WAITS : c->drive == FC_WAIT_YOURS ? FC_TRIES : FC_DONE;
	/* The one that is refused ends; those before it and behind it go on, unless each post meets
	 * the same. */
	if (c->always)
		return cut == 0 ? FC_DROPPED : FC_EITHER;
	if (chain == c->nth && at == cut)
		return FC_DROPPED;
	/* A successor is not bound without its predecessor's LOCAL_INV. */
	return c->op == FC_REGRANT && chain == c->nth && cut == 0 && at == 1 ? FC_UNPOSTED : FC_DONE;
}

/* A post that fails for another reason than lack of room. */
bool fc_is_refused(const struct fc_case *c)
{
	return (c->fault == FC_POST_FAIL || c->fault == FC_POST_CUT) && !fc_is_prepared(c->op) &&
	       !is_soft(c->error, c->os_error);
}

/* Prepared chains that revoke have a completion for each work request, and the last may have to
 * speak for all. */
static enum fc_fate unheard(const struct fc_case *c, int index)
{
	int last = fc_works(c) - 1;

	if (c->fault == FC_WC_LOST && c->nth < last)
		return FC_DONE;
	return index < c->nth ? FC_LEFT : c->fault == FC_WC_LATE || index == last ? FC_SILENT : FC_LEFT;
}

static enum fc_fate fate_of_polled(const struct fc_case *c, int index)
{
	int works = fc_works(c);
	int length = fc_is_prepared(c->op) || c->budget > works ? works : c->budget;
	int chain = index / length, at = index % length;

	switch (c->fault) {
	case FC_POST_FAIL:
	case FC_POST_CUT:
		return refused(c, chain, at);
	case FC_WC_LOST:
	case FC_WC_LATE:
		return fc_is_prepared(c->op) ? unheard(c, index) : from(chain, c->nth, FC_SILENT, FC_BEHIND);
	case FC_WC_ERROR:
		return from(chain, c->nth, at < c->position ? FC_MAYBE : FC_LOST, FC_LOST);
	case FC_SQ_STALL:
	case FC_FATAL_STALL:
	case FC_FATAL_STALL_TOLD:
		return from(chain, c->nth / length, FC_SILENT, FC_BEHIND);
	case FC_SQ_STUCK:
		/* Nothing more is posted to take a right away. */
		if (!fc_is_prepared(c->op) && !fc_work_grants(c, index))
			return FC_DROPPED;
		return c->op == FC_REGRANT ? FC_SILENT : from(chain, 0, FC_SILENT, FC_BEHIND);
	case FC_SQ_RNR:
	case FC_QP_SQD_BEFORE:
	case FC_QP_SQD_AFTER:
		return from(chain, 0, FC_SILENT, FC_BEHIND);
	case FC_QP_KILL:
		return from(chain, c->nth, FC_LOST, FC_LOST);
	case FC_QP_ERR_BEFORE:
	case FC_QP_ERR_TOLD:
	case FC_QP_ERR_AFTER:
	case FC_FATAL_ERR:
		return FC_LOST;
	case FC_QP_RESET_BEFORE:
		return fc_is_prepared(c->op) ? FC_UNPOSTED : FC_DROPPED;
	case FC_QP_RESET_AFTER:
		return from(chain, 0, FC_WIPED, FC_BEHIND);
	case FC_POLL_FAIL:
		return c->always ? from(chain, 0, FC_SILENT, FC_BEHIND) : FC_DONE;
	default:
		return FC_DONE;
	}
}

enum fc_fate fc_fate(const struct fc_case *c, int index)
{
	enum fc_fate fate = fate_of_polled(c, index);
	int works = fc_works(c);
	int length = fc_is_prepared(c->op) || c->budget > works ? works : c->budget;

	/* What is refused goes, and what of the rest is posted and seen in time depends on the room. */
	if (c->drive == FC_LOOP_DEAF && fc_is_refused(c))
		return FC_EITHER;
	/* Nobody sees the first chain's completion, so no other is posted. */
	if (c->drive == FC_LOOP_DEAF && index >= length && fate != FC_WAITS &&
	    !(fate == FC_DROPPED && (c->nth == 0 || c->fault == FC_QP_RESET_BEFORE)) && fate != FC_LOST)
		return FC_BEHIND;
	if (c->drive == FC_LOOP_DEAF && fate == FC_DONE)
		return FC_SILENT;
	return fate;
}

static bool is_polled(const struct fc_case *c)
{
	return c->drive != FC_LOOP_DEAF && !(c->fault == FC_POLL_FAIL && c->always);
}

bool fc_may_kill(const struct fc_case *c)
{
	if (fc_is_detach(c->op))
		return true;
	return c->kill == MWCTL_KILL_ALLOWED && is_polled(c);
}

static unsigned int allowed_grant(const struct fc_case *c, enum fc_fate fate)
{
	bool deaf = !is_polled(c);
	/* In a regrant the old right's deadline can end the queue pair, and the new one with it. */
	unsigned int with_old = c->op == FC_REGRANT && fc_may_kill(c) ? FC_BIND_FAILED | FC_REFUSED : 0;

	/* The old holder's completion is not seen, so it keeps what it has. */
	if (c->op == FC_TRANSFER_IN_START && c->drive == FC_LOOP_DEAF)
		return FC_NOT_POSTED;
	if (c->op == FC_GRANT_PREPARE || c->op == FC_REGRANT_PREPARE)
		return fate == FC_UNPOSTED ? FC_NOT_POSTED : FC_COMMITTED;
	switch (fate) {
	case FC_DONE:
		return FC_GRANTED;
	case FC_LEFT:
		return FC_GRANTED | FC_TIMED_OUT;
	case FC_DROPPED:
		return FC_POST_FAILED | FC_REFUSED;
	case FC_WAITS:
	case FC_BEHIND:
		return FC_TIMED_OUT_VOID | with_old;
	case FC_SILENT:
	case FC_WIPED:
		return FC_TIMED_OUT | with_old;
	case FC_LOST:
		return FC_BIND_FAILED | FC_REFUSED | (deaf ? FC_TIMED_OUT | FC_TIMED_OUT_VOID : 0);
	case FC_UNPOSTED:
		return FC_NOT_POSTED;
	case FC_EITHER:
		return FC_GRANTED | FC_POST_FAILED | FC_TIMED_OUT | FC_TIMED_OUT_VOID | FC_NOT_POSTED;
	case FC_TRIES:
		return FC_GRANTED | FC_TIMED_OUT | FC_TIMED_OUT_VOID | with_old;
	case FC_MAYBE:
		return FC_GRANTED | FC_BIND_FAILED | FC_REFUSED | (deaf ? FC_TIMED_OUT : 0);
	default:
		return 0;
	}
}

static unsigned int allowed_revoke(const struct fc_case *c, enum fc_fate fate)
{
	bool kills = fc_may_kill(c);
	unsigned int deaf = is_polled(c) ? 0 : FC_OPEN;

	switch (fate) {
	case FC_DONE:
		return FC_INVALIDATED;
	case FC_LEFT:
		return FC_INVALIDATED | (kills ? FC_FENCED : FC_OPEN);
	case FC_DROPPED:
	case FC_WAITS:
		return FC_DEALLOCATED;
	case FC_SILENT:
		return kills ? FC_FENCED : FC_OPEN;
	case FC_BEHIND:
		return kills ? FC_FENCED | FC_DEALLOCATED : FC_DEALLOCATED;
	case FC_LOST:
		return FC_FENCED | FC_DEALLOCATED | deaf;
	case FC_MAYBE:
		return FC_INVALIDATED | FC_FENCED | FC_DEALLOCATED | deaf;
	case FC_WIPED:
		return FC_DEALLOCATED | FC_FENCED | (fc_is_detach(c->op) ? 0 : FC_OPEN);
	case FC_EITHER:
		return FC_INVALIDATED | FC_DEALLOCATED | FC_OPEN | (kills ? FC_FENCED : 0);
	case FC_TRIES:
		return FC_INVALIDATED | FC_DEALLOCATED | (kills ? FC_FENCED : FC_OPEN);
	case FC_UNPOSTED:
		return FC_NOT_POSTED;
	}
	return 0;
}

unsigned int fc_allowed(const struct fc_case *c, int index)
{
	enum fc_fate fate = fc_fate(c, index);
	const unsigned int by_deallocation = FC_DEALLOCATED | FC_FENCED;
	unsigned int mask;

	if (fc_work_grants(c, index)) {
		mask = allowed_grant(c, fate);
		/* Without a proof for the old right there is no new one. */
		if (c->op == FC_REGRANT && fc_fate(c, 0) != FC_DONE)
			mask |= FC_NOT_POSTED;
		return c->call == FC_ALLOC_MW ? mask | FC_SHORT : mask;
	}
	if (c->op == FC_REGRANT && c->call == FC_ALLOC_MW && c->fault == FC_NONE)
		return FC_INVALIDATED | FC_NOT_POSTED;
	/* The queue pair is gone before the call: nothing but deallocation is left. */
	mask = fc_is_gone(c->op) ? FC_DEALLOCATED : allowed_revoke(c, fate);
	/* A deallocation that may be made up, or that failed, proves nothing. */
	if (mask & by_deallocation) {
		if (fc_is_fatal(c->fault))
			mask = (mask & ~by_deallocation) | FC_OPEN;
		if (c->call == FC_DEALLOC_MW || c->call == FC_ALLOC_MW ||
		    (c->call == FC_MODIFY_QP && mask & FC_FENCED))
			mask |= FC_OPEN;
	}
	return mask;
}

bool fc_is_ordered(enum fc_op op)
{
	switch (op) {
	case FC_REVOKE_PEER:
	case FC_REVOKE_PEER_START:
	case FC_REVOKE_RANGE:
	case FC_REVOKE_RANGE_START:
	case FC_DETACH_START:
	case FC_DETACH:
	case FC_DETACH_PREPARED:
		return false;
	default:
		return true;
	}
}

bool fc_ends_early(const struct fc_case *c)
{
	if (fc_is_gone(c->op))
		return true;
	if (!is_polled(c))
		return false;
	for (int i = 0; i < fc_works(c); i++) {
		enum fc_fate fate = fc_fate(c, i);

		if (fate == FC_LEFT || fate == FC_EITHER || fate == FC_WAITS || fate == FC_SILENT || fate == FC_BEHIND ||
		    fate == FC_WIPED || fate == FC_TRIES)
			return false;
	}
	return true;
}
