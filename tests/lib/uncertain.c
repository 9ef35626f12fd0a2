/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A right that was not proved gone: its memory goes to nobody else, its key can be found, and
 * what is said of its queue pair is true. */
#include "trouble.h"

#include <errno.h>
#include <stdio.h>

static struct house house;
static int killed;

static void on_event(void *user, const mwctl_event *event)
{
	(void)user;
	killed += event->kind == MWCTL_EVENT_KIND_PEER_KILLED;
}

static void rejoin(int client)
{
	house_leave(&house, client);
	house_join(&house, client);
}

/* Client 1 asks for memory in every way there is, and gets none of [offset, offset + 4096). */
static void check_withheld(uint64_t offset)
{
	mwctl_request all = house_ask(&house, 1, offset, 4096, HOUSE_WRITE);
	mwctl_request parts[] = {all, house_ask(&house, 1, offset - 64, 65, HOUSE_READ),
				 house_ask(&house, 1, offset + 4095, 64, HOUSE_WRITE),
				 house_ask(&house, 1, offset + 2048, 1, HOUSE_RW)};
	mwctl_result other = house_grant(&house, 1, 1 << 20, 64, HOUSE_WRITE), out[4], moved[2] = {{0}};
	uint64_t binds = house_stats(&house).binds_posted;
	mwctl_move step = {.grant = other.grant, .to = all};
	struct heard heard = {0};
	struct ibv_send_wr wr;
	mwctl_token token;

	for (int i = 0; i < 4; i++) {
		HOUSE_STATUS(MWCTL_STATUS_RANGE_UNCERTAIN, mwctl_grant(house.ctx, &parts[i], 0, out));
		RC_CHECK_EQ(0, out[0].grant);
		RC_CHECK_EQ(0, out[0].rkey);
	}
	HOUSE_STATUS(MWCTL_STATUS_RANGE_UNCERTAIN, mwctl_grant_prepare(house.ctx, &all, 1, &wr, out, &token));
	HOUSE_STATUS(MWCTL_STATUS_RANGE_UNCERTAIN, mwctl_grant_batch(house.ctx, parts, 4, 0, out));
	HOUSE_OK(mwctl_grant_start(house.ctx, &all, 1, 0, heard_done, &heard));
	heard_await(&house, &heard);
	RC_CHECK_EQ(MWCTL_STATUS_RANGE_UNCERTAIN, heard.status);
	HOUSE_STATUS(MWCTL_STATUS_RANGE_UNCERTAIN,
		     mwctl_transfer(house.ctx, &step, 1, 0, MWCTL_KILL_ALLOWED, moved));
	RC_CHECK_EQ(0, moved[0].rkey);
	/* The other half may have taken place. */
	if (moved[1].proof == MWCTL_PROOF_NONE)
		HOUSE_OK(mwctl_revoke(house.ctx, other.grant, 0, NULL));
	RC_CHECK_EQ(binds, house_stats(&house).binds_posted);
	RC_CHECK_EQ(0, house_peer(&house, 1).grants);
	HOUSE_STATUS(MWCTL_STATUS_BUSY, mwctl_region_detach(house.ctx, house.region));

	/* What is beside it is free. */
	for (int side = 0; side < 2; side++) {
		uint64_t at = side ? offset + 4096 : offset - 4096;

		out[0] = house_grant(&house, 1, at, 4096, HOUSE_WRITE);
		HOUSE_WRITE_LANDS(&house, 1, at, out[0].rkey, 0x11);
		HOUSE_OK(mwctl_revoke(house.ctx, out[0].grant, 0, NULL));
	}
}

/* … and once the old right is proved gone, the memory can be had. */
static void check_free_again(uint64_t offset, const mwctl_result *old)
{
	mwctl_result next = house_grant(&house, 1, offset, 4096, HOUSE_WRITE);

	HOUSE_WRITE_LANDS(&house, 1, offset, next.rkey, 0x21);
	HOUSE_WRITE_FAILS(&house, 0, offset, old->rkey, 0x22);
	HOUSE_WRITE_LANDS(&house, 1, offset, next.rkey, 0x23);
	HOUSE_OK(mwctl_revoke(house.ctx, next.grant, 0, NULL));
	rejoin(0);
}

/* The LOCAL_INV did not complete, and the queue pair was to be spared. */
static void spared(void)
{
	mwctl_result old = house_grant(&house, 0, 65536, 4096, HOUSE_WRITE), out;

	trouble_block(&house, 0);
	HOUSE_STATUS(MWCTL_STATUS_OPEN, mwctl_revoke_batch(house.ctx, &old.grant, 1, 50000, MWCTL_KILL_NEVER, &out));
	check_withheld(65536);
	HOUSE_WRITE_LANDS(&house, 0, 65536, old.rkey, 0x31);
	trouble_unblock(&house, 0);
	trouble_await_end(&house, old.grant);
	check_free_again(65536, &old);
	house_check_misuse();
	house_ok("memory of a revocation that missed its deadline: withheld until the proof");
}

/* The deallocation failed. */
static void not_deallocated(void)
{
	mwctl_result old = house_grant(&house, 0, 65536, 4096, HOUSE_WRITE), out;
	uint64_t failing = trouble_order(MWCTL_SIM_FAIL_DEALLOC_MW, NULL, 0, EIO);
	mwctl_grant_info info;

	HOUSE_OK(mwctl_peer_stuck(house.ctx, house.client[0].peer));
	HOUSE_STATUS(MWCTL_STATUS_OPEN, mwctl_revoke(house.ctx, old.grant, 50000, &out));
	RC_CHECK_EQ(EIO, out.error);
	HOUSE_OK(mwctl_grant_info_get(house.ctx, old.grant, &info, sizeof(info)));
	RC_CHECK_EQ(1, info.uncertain);
	check_withheld(65536);
	HOUSE_WRITE_LANDS(&house, 0, 65536, old.rkey, 0x41);
	trouble_release(failing);
	HOUSE_OK(mwctl_revoke(house.ctx, old.grant, 0, &out));
	RC_CHECK_EQ(MWCTL_PROOF_DEALLOCATED, out.proof);
	check_free_again(65536, &old);
	house_check_misuse();
	house_ok("memory of a window that could not be deallocated: withheld until it is");
}

/* The driver pretends to deallocate. */
static void device_fatal(void)
{
	mwctl_result old = house_grant(&house, 0, 65536, 4096, HOUSE_WRITE), out;
	mwctl_grant_info info = {0};
	uint64_t fatal, id = 0;

	HOUSE_OK(mwctl_peer_stuck(house.ctx, house.client[0].peer));
	fatal = trouble_order(MWCTL_SIM_DEVICE_FATAL, NULL, 0, 0);
	HOUSE_STATUS(MWCTL_STATUS_OPEN, mwctl_revoke(house.ctx, old.grant, 50000, &out));
	RC_CHECK_EQ(MWCTL_PROOF_NONE, out.proof);
	/* The key works: whoever looks it up must see it. */
	HOUSE_WRITE_LANDS(&house, 0, 65536, old.rkey, 0x51);
	HOUSE_OK(mwctl_find_rkey(house.ctx, old.rkey, &info, sizeof(info)));
	RC_CHECK_EQ(old.grant, info.grant);
	RC_CHECK_EQ(1, info.uncertain);
	HOUSE_OK(mwctl_check(house.ctx, house.domain, house.client[0].pair.server.qp->qp_num,
			     house.memory.addr + 65536, 64, HOUSE_WRITE, &id));
	RC_CHECK_EQ(old.grant, id);
	trouble_release(fatal);
	HOUSE_OK(mwctl_revoke(house.ctx, old.grant, 0, &out));
	HOUSE_STATUS(MWCTL_STATUS_NO_GRANT, mwctl_find_rkey(house.ctx, old.rkey, &info, sizeof(info)));
	check_free_again(65536, &old);
	house_ok("a key that a fatal device leaves open can be found");
}

/* The driver pretends to move the queue pair to ERR: it lives on, and its LOCAL_INV with it. */
static void move_made_up(void)
{
	mwctl_result old = house_grant(&house, 0, 65536, 4096, HOUSE_WRITE), out;
	uint64_t fatal, killed = house_stats(&house).peers_killed;

	trouble_block(&house, 0);
	fatal = trouble_order(MWCTL_SIM_DEVICE_FATAL, NULL, 0, 0);
	HOUSE_STATUS(MWCTL_STATUS_OPEN, mwctl_revoke(house.ctx, old.grant, 50000, &out));
	RC_CHECK_EQ(MWCTL_PROOF_NONE, out.proof);
	RC_CHECK_EQ(1, house_peer(&house, 0).life);
	RC_CHECK_EQ(killed, house_stats(&house).peers_killed);
	HOUSE_WRITE_LANDS(&house, 0, 65536, old.rkey, 0x61);
	check_withheld(65536);
	trouble_release(fatal);
	/* The LOCAL_INV may still come: only ERR rules it out. */
	HOUSE_OK(mwctl_revoke(house.ctx, old.grant, 50000, &out));
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, out.proof);
	RC_CHECK_STATE(IBV_QPS_ERR, house.client[0].pair.server.qp);
	RC_CHECK_EQ(2, house_peer(&house, 0).life);
	rejoin(0);
	check_free_again(65536, &old);
	house_check_misuse();
	house_ok("a move to ERR that a fatal device made up: nothing is proved, and the peer not called dead");
}

/* A LOCAL_INV whose completion is lost, and a queue pair that cannot be moved to ERR. */
static void leave_open(const mwctl_result *old)
{
	struct ibv_qp *qp = house.client[0].pair.server.qp;
	uint64_t lost = trouble_order(MWCTL_SIM_LOSE_COMPLETION, qp, 1, 0);
	uint64_t refused = trouble_order(MWCTL_SIM_FAIL_MODIFY_QP, qp, 0, EIO);
	mwctl_result out;

	HOUSE_STATUS(MWCTL_STATUS_OPEN, mwctl_revoke(house.ctx, old->grant, 50000, &out));
	HOUSE_OK(mwctl_tick(house.ctx));
	RC_CHECK(mwctl_sim_fault_hits(refused) > 0);
	RC_CHECK_STATE(IBV_QPS_RTS, qp);
	trouble_release(refused);
	trouble_release(lost);
}

/* Then nobody is told that it was. */
static void not_moved(void)
{
	mwctl_result old = house_grant(&house, 0, 65536, 4096, HOUSE_WRITE), out;
	mwctl_result other = house_grant(&house, 0, 131072, 4096, HOUSE_WRITE);
	uint64_t kills = house_stats(&house).peers_killed;
	int before = killed;

	leave_open(&old);
	RC_CHECK_EQ(before, killed);
	RC_CHECK_EQ(kills, house_stats(&house).peers_killed);
	RC_CHECK(house_peer(&house, 0).life != 2);
	HOUSE_WRITE_LANDS(&house, 0, 131072, other.rkey, 0x61);
	HOUSE_OK(mwctl_revoke(house.ctx, old.grant, 50000, &out));
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, out.proof);
	RC_CHECK_STATE(IBV_QPS_ERR, house.client[0].pair.server.qp);
	RC_CHECK_EQ(before + 1, killed);
	RC_CHECK_EQ(kills + 1, house_stats(&house).peers_killed);
	rejoin(0);
	house_check_misuse();
	house_ok("a queue pair is reported killed when it is, not when it could not be");
}

/* Each retry says anew whether the queue pair may be moved. */
static void retried_and_spared(void)
{
	mwctl_result old = house_grant(&house, 0, 65536, 4096, HOUSE_WRITE), out;
	mwctl_result other = house_grant(&house, 0, 131072, 4096, HOUSE_WRITE);

	leave_open(&old);
	HOUSE_STATUS(MWCTL_STATUS_OPEN, mwctl_revoke_batch(house.ctx, &old.grant, 1, 50000, MWCTL_KILL_NEVER, &out));
	RC_CHECK_EQ(MWCTL_PROOF_NONE, out.proof);
	RC_CHECK_STATE(IBV_QPS_RTS, house.client[0].pair.server.qp);
	HOUSE_WRITE_LANDS(&house, 0, 131072, other.rkey, 0x62);
	HOUSE_OK(mwctl_revoke_batch(house.ctx, &old.grant, 1, 50000, MWCTL_KILL_ALLOWED, &out));
	RC_CHECK_EQ(MWCTL_PROOF_QP_FENCED, out.proof);
	rejoin(0);
	house_check_misuse();
	house_ok("a retry with KILL_NEVER leaves the queue pair alone");
}

int main(void)
{
	struct house_options options = {.context.on_event = on_event};

	house_open(&house, &options);
	spared();
	if (mwctl_sim_present()) {
		not_deallocated();
		not_moved();
		retried_and_spared();
		device_fatal();
		move_made_up();
	} else {
		printf("skipped on %s: failures of deallocation, of a move to ERR, of the device\n",
		       house.device.label);
	}
	house_close(&house);
	return 0;
}
