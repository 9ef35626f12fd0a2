/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An internal error does not cross the boundary: it is caught, the context gives no more proofs.
 * Needs the library built with the feature `controls` and MWCTL_BREAK=assertion. */
#include "house.h"

#include <stdlib.h>
#include <string.h>

static int lines;

static void on_log(void *user, int32_t severity, const char *text)
{
	(void)user;
	lines += severity == 0 && strstr(text, "broken on purpose") != NULL;
}

int main(void)
{
	const char *broken = getenv("MWCTL_BREAK");
	struct house_options options = {.context.log = on_log};
	struct house house;
	mwctl_domain_info info;
	mwctl_result result, held;
	mwctl_request ask;
	struct ibv_wc wc;

	if (!broken || strcmp(broken, "assertion") != 0)
		rc_skip("run by scripts/check-controls.sh");
	house_open(&house, &options);
	held = house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	ask = house_ask(&house, 0, 64, 64, HOUSE_WRITE);
	HOUSE_STATUS(MWCTL_STATUS_POISONED, mwctl_domain_info_get(house.ctx, house.domain, &info, sizeof(info)));
	RC_CHECK_EQ(1, lines);
	HOUSE_STATUS(MWCTL_STATUS_POISONED, mwctl_grant(house.ctx, &ask, 0, &result));
	HOUSE_STATUS(MWCTL_STATUS_POISONED, mwctl_revoke(house.ctx, held.grant, 0, &result));
	HOUSE_STATUS(MWCTL_STATUS_POISONED, mwctl_tick(house.ctx));
	RC_CHECK(mwctl_poll_cq(house.ctx, house.client[0].pair.server.cq, 1, &wc) < 0);
	RC_CHECK_EQ(-1, mwctl_event_fd(house.ctx));
	HOUSE_WRITE_LANDS(&house, 0, 0, held.rkey, 0x11);
	house_ok("a caught internal error poisons the context, and nothing is reported proved");
	return 0;
}
