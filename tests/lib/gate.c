/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A queue pair's own access flags are a gate that the program may open and shut while it is attached. */
#include "house.h"

static struct house house;

static void set_access(unsigned int access)
{
	struct ibv_qp_attr attr = {.qp_access_flags = access};

	RC_CHECK_EQ(0, ibv_modify_qp(house.client[0].pair.server.qp, &attr, IBV_QP_ACCESS_FLAGS));
}

int main(void)
{
	struct house_options options = {.clients = 1, .rc.qp_access = IBV_ACCESS_REMOTE_READ};
	mwctl_request ask;
	mwctl_result out;

	house_open(&house, &options);
	ask = house_ask(&house, 0, 0, 4096, HOUSE_WRITE);
	HOUSE_STATUS(MWCTL_STATUS_ACCESS_MISSING_ON_QP, mwctl_grant(house.ctx, &ask, 0, &out));
	set_access(IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	out = house_grant(&house, 0, 0, 4096, HOUSE_WRITE);
	HOUSE_WRITE_LANDS(&house, 0, 0, out.rkey, 0x11);
	HOUSE_OK(mwctl_revoke(house.ctx, out.grant, 0, NULL));
	house_close(&house);
	house_ok("a right that the queue pair lets in only now");
	return 0;
}
