/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "faults/check.h"

#include <string.h>

static struct house *const house = &fc_scene.house;
static struct fc_playing *const play = &fc_playing;

int fc_partner(int item)
{
	return item < play->works ? item + play->works : item - play->works;
}

/* The new grants come first, then the revocations. */
void fc_take_moved(const mwctl_result *results)
{
	int granted = fc_grants(play->c->op) ? 0 : play->works;

	for (int i = 0; i < play->works; i++) {
		play->result[granted + i] = results[i];
		play->result[fc_partner(granted) + i] = results[play->works + i];
	}
}

static enum fc_outcome outcome_of(const mwctl_result *result, bool granted)
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

bool fc_is_live(uint64_t id)
{
	mwctl_grant_info info;
	mwctl_status status = mwctl_grant_info_get(house->ctx, id, &info, sizeof(info));

	RC_CHECK(status == MWCTL_STATUS_OK || status == MWCTL_STATUS_STALE_ID);
	return status == MWCTL_STATUS_OK;
}

bool fc_grants_at(int i)
{
	if (fc_is_transfer(play->c->op))
		return fc_grants(play->c->op) == (i < play->works);
	return i < play->works ? fc_work_grants(play->c, i) : fc_grants(play->c->op);
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
	if (play->begun || play->status == MWCTL_STATUS_OK || fc_is_detach(c->op) || fc_is_gone(c->op))
		return false;
	for (int i = 0; i < play->n && fc_waits(c->op); i++)
		if (play->result[i].status != FC_UNWRITTEN && play->result[i].status != MWCTL_STATUS_NOT_POSTED)
			return false;
	return play->itemized;
}

void fc_collect(const struct fc_case *c)
{
	play->itemized = !(c->op == FC_REVOKE_PEER || c->op == FC_REVOKE_RANGE || c->op == FC_DETACH ||
			  c->op == FC_DETACH_START || c->op == FC_DETACH_PREPARED || c->op == FC_GONE);
	play->refused = is_refused(c);
	if (fc_is_transfer(c->op) && play->begun)
		fc_take_moved(play->heard.results);
	for (int i = 0; i < play->n; i++) {
		bool granted = fc_grants_at(i);
		mwctl_result *result = &play->result[i];

		if (play->refused) {
			*result = (mwctl_result){.status = granted ? play->status : MWCTL_STATUS_NOT_POSTED};
			play->outcome[i] = outcome_of(result, granted);
			continue;
		}

		if (c->op == FC_GRANT_START && play->begun) {
			*result = play->heard.results[i];
		} else if (!granted && play->itemized && !fc_waits(c->op) && !fc_is_transfer(c->op)) {
			bool amid = c->op == FC_DETACH_AMID || c->op == FC_GONE_AMID;
			const mwctl_result *found = result_of(amid ? &play->before : &play->heard, play->id[i]);

			if (!found)
				RC_FAIL("item %d of %d has no result", i, play->n);
			*result = *found;
		}
		if (!play->itemized) {
			play->outcome[i] = fc_is_live(play->id[i]) ? FC_OPEN : FC_PROVED;
			continue;
		}
		if (result->status == FC_UNWRITTEN)
			result->status = play->status;
		play->outcome[i] = outcome_of(result, granted);
		if (play->outcome[i] == FC_GRANTED && fc_is_prepared(c->op))
			play->outcome[i] = FC_COMMITTED;
		if (granted && result->grant && result->rkey)
			fc_note_key(play->owner[i], result->grant, result->rkey, &play->ask[i]);
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

	if (!play->itemized && allowed & FC_ANY_PROOF)
		allowed |= FC_PROVED;
	if (c->op == FC_GONE_AMID || c->op == FC_DETACH_PREPARED)
		allowed |= FC_INVALIDATED | FC_DEALLOCATED;
	return allowed;
}

/* Finds each item a work that it can be, where the order of the works is not known. */
static bool place(const struct fc_case *c, int item, int *item_at, bool *tried)
{
	for (int at = 0; at < play->works; at++) {
		if (tried[at] || !(play->outcome[item] & allowed_of(c, at)))
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
	for (int i = 0; i < play->n; i++) {
		unsigned int right = c->call == FC_ALLOC_MW ? FC_SHORT : fc_fate(c, 0) == FC_LOST ? FC_REFUSED : 0;

		if (!fc_grants_at(i))
			right = FC_NOT_POSTED;
		if (!(play->outcome[i] & right))
			RC_FAIL("refused: \"%s\"", mwctl_status_text(play->status));
	}
}

/* A transfer's other half: never two holders at a time, and nothing is given without a proof. */
static unsigned int allowed_of_partner(const struct fc_case *other, int item)
{
	const unsigned int late = FC_TIMED_OUT | FC_TIMED_OUT_VOID | FC_NOT_POSTED;

	if (fc_grants(other->op))
		return other->drive == FC_LOOP_DEAF ? FC_OPEN : FC_INVALIDATED;
	if (!(play->outcome[fc_partner(item)] & FC_ANY_PROOF))
		return FC_NOT_POSTED;
	return FC_GRANTED | (play->early && other->drive != FC_LOOP_DEAF ? 0 : late);
}

static void check_outcomes(const struct fc_case *c)
{
	struct fc_case other = of_others(c);
	int item_at[FC_SLOTS] = {-1, -1, -1, -1, -1, -1};

	if (play->refused) {
		check_refusal(c);
		return;
	}
	for (int i = 0; i < play->n; i++) {
		bool victim = i < play->works, tried[FC_SLOTS] = {false}, right;
		int at = (i - play->works) % FC_OTHERS;
		unsigned int allowed = victim ? allowed_of(c, i) : allowed_of(&other, at);

		if (!victim && fc_is_transfer(c->op))
			allowed = allowed_of_partner(&other, i);
		if (!victim && !fc_is_ordered(c->op))
			allowed |= allowed_of(&other, 1 - at);
		if (victim && !fc_is_ordered(c->op))
			right = place(c, i, item_at, tried);
		else
			right = play->outcome[i] & allowed;
		if (!right)
			RC_FAIL("item %d of client %d: \"%s\" (%s, errno %d) where only %s is right", i, play->owner[i],
				mwctl_status_text(play->itemized ? play->result[i].status : play->status),
				letters(play->outcome[i]), play->result[i].error, letters(allowed));
	}
}

/* The status of the whole is the first that is no success; a success leaves nothing open. */
static void check_status(const struct fc_case *c)
{
	bool open = false;

	for (int i = 0; i < play->n; i++)
		open |= !!(play->outcome[i] & (FC_OPEN | FC_TIMED_OUT));
	if (play->begun && c->op != FC_GRANT_PREPARE && play->heard.calls != 1)
		RC_FAIL("%d callbacks", play->heard.calls);
	if (c->op == FC_DETACH_AMID || c->op == FC_GONE_AMID)
		RC_CHECK_EQ(1, play->before.calls);
	if (open && !fc_is_prepared(c->op))
		RC_CHECK(MWCTL_STATUS_OK != (play->begun ? play->heard.status : play->status));
	if (play->begun && c->op != FC_GRANT_PREPARE)
		for (size_t i = 0; i < play->heard.n; i++)
			if (play->heard.results[i].status != MWCTL_STATUS_OK) {
				RC_CHECK_EQ(play->heard.results[i].status, play->heard.status);
				break;
			}
}

/* The queue pair's state was not to be had when it was asked before a right was reported as open, but when
 * the windows of others were deallocated: then that one's is as well. */
static bool is_found_dead_late(const struct fc_case *c, int client)
{
	mwctl_peer_info info;

	return c->call == FC_QUERY_QP && !c->call_always &&
	       mwctl_peer_info_get(house->ctx, house->client[client].peer, &info, sizeof(info)) == MWCTL_STATUS_OK &&
	       info.life == 2;
}

/* What was said against what the tables, the queue pair and the memory say. */
static void check_books(const struct fc_case *c)
{
	uint64_t first = fc_ask(FC_VICTIM, 0).addr, taken, ids[FC_KEYS];
	size_t open = 0, listed = 0;
	bool fenced = false;

	/* What is left of binds that failed is deallocated by a tick. */
	fc_round(false);

	for (int i = 0; i < play->works; i++) {
		bool granted = fc_grants_at(i);
		uint64_t id = granted ? play->result[i].grant : play->id[i];
		bool live = id && fc_is_live(id);

		fenced |= play->outcome[i] == FC_FENCED;
		if (play->outcome[i] & (FC_ANY_PROOF | FC_NEVER_BOUND))
			RC_CHECK(!live);
		else if (play->outcome[i] & (FC_OPEN | FC_GRANTED | FC_TIMED_OUT))
			RC_CHECK(live || (play->outcome[i] == FC_OPEN && is_found_dead_late(c, FC_VICTIM)));
		else if (play->outcome[i] == FC_COMMITTED)
			/* It ends with its queue pair. */
			RC_CHECK(live || fc_fate(c, i) > FC_LEFT);
		else if (granted)
			RC_CHECK(!live);
		else
			RC_CHECK(live == (play->outcome[i] == FC_NOT_POSTED));
		open += live;
	}
	HOUSE_OK(mwctl_range_grants(house->ctx, fc_scene.region, first, FC_BLOCK, ids, FC_KEYS, &listed));
	/* A bind that failed and whose window is not proved gone has no id to be told. */
	if (fc_is_fatal(c->fault) || c->call || (fc_is_refused(c) && (c->always || c->drive == FC_LOOP_DEAF)))
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
	int killed = fc_scene.killed - play->killed_before;
	bool silent = false;

	for (int i = 0; i < play->works; i++) {
		enum fc_fate fate = fc_fate(c, i);

		silent |= fate == FC_SILENT || fate == FC_EITHER || fate == FC_LEFT || fate == FC_WIPED || fate == FC_BEHIND;
	}
	if (fc_is_gone(c->op)) {
		RC_CHECK_EQ(0, play->modifies);
	} else if (!fc_is_dead(c->fault)) {
		/* A revocation that was under way, or a chain in the application's hands, may take the
		 * whole budget. */
		if ((!fc_may_kill(c) || !silent || (fc_grants(c->op) && fc_works(c) != 2)) &&
		    c->op != FC_DETACH_PREPARED) {
			RC_CHECK_EQ(0, killed);
			RC_CHECK_EQ(0, play->modifies);
		}
		/* The application hears of it exactly if it is so. */
		if (fc_hooks.fatal || c->call == FC_QUERY_QP)
			RC_CHECK(killed <= (play->modifies > 0));
		else
			RC_CHECK_EQ(fc_state(FC_VICTIM) == IBV_QPS_ERR, killed);
	}
}

static void check_time(const struct fc_case *c)
{
	const unsigned int late = FC_TIMED_OUT | FC_TIMED_OUT_VOID;
	bool excused = fc_is_fatal(c->fault) || c->call;

	if (c->op == FC_DETACH_PREPARED)
		return;
	if (fc_ends_early(c) && !play->early)
		RC_FAIL("ended by its deadline, and could have before");
	for (int i = 0; i < play->n && play->early; i++)
		if (play->outcome[i] & late || (play->outcome[i] == FC_OPEN && !excused))
			RC_FAIL("item %d was given up before the deadline", i);
}

void fc_check(const struct fc_case *c)
{
	check_outcomes(c);
	check_status(c);
	check_time(c);
	check_books(c);
	check_kills(c);
}
