/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An internal error does not cross the boundary: it is caught, the context gives no more proofs.
 * Needs the library built with the feature `controls` and MWCTL_BREAK=assertion. */
#include "trouble.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct house house;
static int lines;

static void on_log(void *user, int32_t severity, const char *text)
{
	(void)user;
	lines += severity == 0 && strstr(text, "broken on purpose") != NULL;
}

/* Waits for a proof, behind a SEND that the client does not receive yet. */
static void *wait_for_proof(void *grant)
{
	mwctl_result *held = grant;
	static mwctl_result out;

	HOUSE_STATUS(MWCTL_STATUS_POISONED,
		     mwctl_revoke_batch(house.ctx, &held->grant, 1, 2000000, MWCTL_KILL_NEVER, &out));
	RC_CHECK_EQ(MWCTL_STATUS_POISONED, out.status);
	RC_CHECK_EQ(MWCTL_PROOF_NONE, out.proof);
	return NULL;
}

/* The callback in which the internal error is met. */
static void run_into_it(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	mwctl_domain_info info;

	HOUSE_OK(status);
	RC_CHECK_EQ(1, n);
	RC_CHECK_EQ(MWCTL_PROOF_INVALIDATED, results[0].proof);
	HOUSE_STATUS(MWCTL_STATUS_POISONED, mwctl_domain_info_get(house.ctx, house.domain, &info, sizeof(info)));
	++*(int *)user;
}

int main(void)
{
	const char *broken = getenv("MWCTL_BREAK");
	struct house_options options = {.context.log = on_log};
	mwctl_result result, held, behind, two[2];
	struct heard heard = {0};
	int met = 0;
	double limit = rc_now() + RC_DEADLINE_S;
	mwctl_grant_info right;
	pthread_t thread;
	mwctl_request ask;
	struct ibv_wc wc;

	if (!broken || strcmp(broken, "assertion") != 0)
		rc_skip("run by scripts/check-controls.sh");
	house_open(&house, &options);
	held = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	for (uint64_t i = 0; i < 2; i++)
		two[i] = house_grant(&house, 0, 8192 + i * 64, 64, HOUSE_WRITE);
	behind = house_grant(&house, 1, 4096, 64, HOUSE_WRITE);
	trouble_block(&house, 1);
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, wait_for_proof, &behind));
	while (mwctl_grant_info_get(house.ctx, behind.grant, &right, sizeof(right)) == MWCTL_STATUS_OK && !right.revoking)
		RC_CHECK(rc_now() < limit);
	ask = house_ask(&house, 0, 64, 64, HOUSE_WRITE);
	HOUSE_OK(mwctl_revoke_start(house.ctx, &two[0].grant, 1, 0, MWCTL_KILL_NEVER, run_into_it, &met));
	HOUSE_OK(mwctl_revoke_start(house.ctx, &two[1].grant, 1, 0, MWCTL_KILL_NEVER, heard_done, &heard));
	while (mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, &wc) == 0 && !heard.calls)
		RC_CHECK(rc_now() < limit);
	RC_CHECK_EQ(1, met);
	RC_CHECK_EQ(1, lines);
	/* The same call called back for this one, which had ended before. */
	RC_CHECK_EQ(1, heard.calls);
	RC_CHECK_EQ(MWCTL_STATUS_POISONED, heard.status);
	RC_CHECK_EQ(1, heard.n);
	RC_CHECK_EQ(two[1].grant, heard.results[0].grant);
	RC_CHECK_EQ(MWCTL_STATUS_POISONED, heard.results[0].status);
	RC_CHECK_EQ(MWCTL_PROOF_NONE, heard.results[0].proof);
	HOUSE_STATUS(MWCTL_STATUS_POISONED, mwctl_grant(house.ctx, &ask, 0, &result));
	HOUSE_STATUS(MWCTL_STATUS_POISONED, mwctl_revoke(house.ctx, held.grant, 0, &result));
	HOUSE_STATUS(MWCTL_STATUS_POISONED, mwctl_tick(house.ctx));
	RC_CHECK(mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, &wc) < 0);
	RC_CHECK_EQ(-1, mwctl_event_fd(house.ctx));
	HOUSE_WRITE_LANDS(&house, 0, 0, held.rkey, 0x11);
	rc_post_recv(&house.client[1].pair.client, &house.client[1].local, 7);
	RC_CHECK_EQ(0, pthread_join(thread, NULL));
	house_ok("a caught internal error poisons the context, and nothing is reported proved");
	return 0;
}
