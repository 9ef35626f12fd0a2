/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "faults/scene.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct fc_clock fc_clock;
struct fc_hooks fc_hooks;
struct fc_scene fc_scene;

static struct house *const house = &fc_scene.house;

/* ---- the clock ---- */

void fc_clock_hold(void)
{
	struct timespec now;

	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	fc_clock.now = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	fc_clock.held = true;
}

void fc_clock_pass(uint64_t ns)
{
	__atomic_fetch_add(&fc_clock.now, ns, __ATOMIC_SEQ_CST);
}

uint64_t fc_clock_now(void)
{
	return __atomic_load_n(&fc_clock.now, __ATOMIC_SEQ_CST);
}

/* ---- callbacks ---- */

void fc_on_done(void *user, mwctl_status status, const mwctl_result *results, size_t n)
{
	struct fc_heard *heard = user;

	heard->calls++;
	heard->status = status;
	heard->n = n < FC_KEYS ? n : FC_KEYS;
	memcpy(heard->results, results, heard->n * sizeof(*results));
}

static void on_event(void *user, const mwctl_event *event)
{
	(void)user;
	if (event->kind == MWCTL_EVENT_KIND_PEER_KILLED)
		fc_scene.killed++;
}

/* ---- the functions of the device's context ---- */

static struct ibv_context_ops real;

static bool is_victim(const struct ibv_qp *qp)
{
	return qp == house->client[FC_VICTIM].pair.server.qp;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fc_seen *seen = &fc_hooks.seen;
	int length = 0;

	if (!fc_hooks.counting || !is_victim(qp))
		return real.post_send(qp, wr, bad);
	for (struct ibv_send_wr *at = wr; at; at = at->next)
		length++;
	if (seen->posts < 16)
		seen->lengths[seen->posts] = length;
	seen->posts++;
	if (fc_hooks.minus_one) {
		int nth = seen->posts - 1;

		if (nth == fc_hooks.post_skip || (fc_hooks.post_always && nth > fc_hooks.post_skip)) {
			fc_hooks.struck = true;
			*bad = wr;
			errno = fc_hooks.minus_one;
			return -1;
		}
	}
	return real.post_send(qp, wr, bad);
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	if (fc_hooks.poll_fails && cq == house->client[FC_VICTIM].pair.server.cq) {
		if (fc_hooks.poll_skip > 0) {
			fc_hooks.poll_skip--;
		} else {
			fc_hooks.poll_fails = fc_hooks.poll_always;
			fc_hooks.struck = true;
			return -1;
		}
	}
	return real.poll_cq(cq, n, wc);
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	if (fc_hooks.counting)
		fc_hooks.seen.allocs++;
	return real.alloc_mw(pd, type);
}

static int dealloc_mw(struct ibv_mw *mw)
{
	if (fc_hooks.counting)
		fc_hooks.seen.deallocs++;
	return real.dealloc_mw(mw);
}

static void hook(struct ibv_context *context)
{
	real = context->ops;
	context->ops.post_send = post_send;
	context->ops.poll_cq = poll_cq;
	context->ops.alloc_mw = alloc_mw;
	context->ops.dealloc_mw = dealloc_mw;
}

/* ---- polling ---- */

static void take_app(int client, const struct ibv_wc *wc)
{
	struct fc_client *it = &fc_scene.client[client];

	RC_CHECK_EQ(it->done + 1, wc->wr_id);
	it->done++;
	if (wc->status != IBV_WC_SUCCESS)
		it->failed++;
}

bool fc_poll_one(int client)
{
	struct ibv_cq *cq = house->client[client].pair.server.cq;
	struct ibv_wc wc;
	int n;

	if (fc_scene.polling == MWCTL_POLLING_OURS) {
		n = mwctl_poll_cq(house->ctx, cq, 1, &wc);
		if (n <= 0) {
			RC_CHECK(n == 0 || fc_hooks.struck);
			return false;
		}
		take_app(client, &wc);
		return true;
	}
	n = ibv_poll_cq(cq, 1, &wc);
	RC_CHECK(n >= 0);
	if (n == 0) {
		mwctl_status status = mwctl_cq_empty(house->ctx, cq);

		RC_CHECK(status == MWCTL_STATUS_OK || status == MWCTL_STATUS_UNKNOWN_QUEUE);
		return false;
	}
	n = mwctl_take_wc(house->ctx, cq, &wc);
	RC_CHECK(n >= 0);
	if (n == 0)
		take_app(client, &wc);
	return true;
}

void fc_poll_all(void)
{
	for (int c = 0; c < FC_CLIENTS; c++)
		while (house->client[c].pair.server.cq && fc_poll_one(c))
			;
}

void fc_round(bool poll)
{
	if (poll)
		fc_poll_all();
	HOUSE_OK(mwctl_tick(house->ctx));
}

/* More than the chains that a budget of 1 makes of everything here. */
void fc_rounds(bool poll)
{
	for (int i = 0; i < 2 * FC_SLOTS + 4; i++)
		fc_round(poll);
}

void fc_until_end(const struct fc_heard *heard)
{
	fc_rounds(true);
	for (int i = 0; i < 3 && !heard->calls; i++) {
		fc_clock_pass(FC_DEADLINE_US * 1000ull - 1000);
		fc_rounds(true);
		fc_clock_pass(1000);
		fc_rounds(true);
	}
	RC_CHECK_EQ(1, heard->calls);
}

/* ---- the application's work ---- */

struct ibv_send_wr fc_app_wr(int client)
{
	return (struct ibv_send_wr){.wr_id = fc_scene.client[client].posted + 1,
				    .opcode = IBV_WR_RDMA_WRITE,
				    .send_flags = IBV_SEND_SIGNALED};
}

bool fc_app_post(int client)
{
	struct ibv_send_wr wr = fc_app_wr(client), *bad = NULL;

	if (real.post_send(house->client[client].pair.server.qp, &wr, &bad))
		return false;
	fc_scene.client[client].posted++;
	return true;
}

void fc_app_check(int client)
{
	struct fc_client *it = &fc_scene.client[client];

	if (it->wiped)
		it->done = it->posted;
	if (it->done != it->posted)
		RC_FAIL("client %d: %d of the application's %d completions came", client, (int)it->done,
			(int)it->posted);
}

/* ---- grants ---- */

mwctl_request fc_ask(int client, int slot)
{
	bool control = client == FC_CONTROL;
	uint64_t first = control ? house->memory.addr : fc_scene.memory.addr + (uint64_t)client * FC_BLOCK;

	return (mwctl_request){.peer = house->client[client].peer,
			       .region = control ? house->region : fc_scene.region,
			       .addr = first + (uint64_t)slot * 4096,
			       .length = 4096,
			       .access = HOUSE_WRITE};
}

void fc_note_key(int client, uint64_t id, uint32_t rkey, const mwctl_request *asked)
{
	struct fc_client *it = &fc_scene.client[client];

	RC_CHECK(it->keys < FC_KEYS);
	it->key[it->keys++] = (struct fc_grant){id, rkey, (uint8_t *)(uintptr_t)asked->addr};
}

void fc_make_grants(int client, int n)
{
	struct fc_client *it = &fc_scene.client[client];

	for (int i = 0; i < n; i++) {
		mwctl_request ask = fc_ask(client, i);
		struct fc_heard heard = {0};

		HOUSE_OK(mwctl_domain_reserve(house->ctx, house->domain, 1));
		HOUSE_OK(mwctl_grant_start(house->ctx, &ask, 1, FC_DEADLINE_US, fc_on_done, &heard));
		fc_until_end(&heard);
		HOUSE_OK(heard.status);
		fc_note_key(client, heard.results[0].grant, heard.results[0].rkey, &ask);
		it->grant[i] = it->key[it->keys - 1];
	}
	it->grants = n;
}

void fc_drain_pool(void)
{
	mwctl_domain_info info;

	for (;;) {
		mwctl_request ask = fc_ask(1, FC_SLOTS);
		struct fc_heard heard = {0};

		HOUSE_OK(mwctl_domain_info_get(house->ctx, house->domain, &info, sizeof(info)));
		if (info.ready == 0)
			return;
		HOUSE_OK(mwctl_grant_start(house->ctx, &ask, 1, FC_DEADLINE_US, fc_on_done, &heard));
		/* No tick: that would fill the pool again. */
		while (!heard.calls)
			fc_poll_all();
		HOUSE_OK(heard.status);
	}
}

void fc_revoke_rest(int client)
{
	struct fc_heard heard = {0};
	static uint64_t ids[1 << 16];
	size_t room = sizeof(ids) / sizeof(ids[0]), n = 0;

	HOUSE_OK(mwctl_peer_grants(house->ctx, house->client[client].peer, ids, room, &n));
	if (n == 0)
		return;
	RC_CHECK(n <= room);
	HOUSE_OK(mwctl_revoke_start(house->ctx, ids, n, FC_DEADLINE_US, MWCTL_KILL_ALLOWED, fc_on_done, &heard));
	fc_until_end(&heard);
	HOUSE_OK(heard.status);
	for (size_t i = 0; i < heard.n; i++)
		RC_CHECK(heard.results[i].proof != MWCTL_PROOF_NONE);
	HOUSE_OK(mwctl_peer_grants(house->ctx, house->client[client].peer, ids, room, &n));
	RC_CHECK_EQ(0, n);
}

/* ---- traffic ---- */

enum ibv_qp_state fc_state(int client)
{
	return rc_qp_state(house->client[client].pair.server.qp);
}

static void drop_client_completions(int client)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(house->client[client].pair.client.cq, 1, &wc) > 0)
		;
}

static enum ibv_wc_status write_byte(int client, const struct fc_grant *grant, uint8_t byte)
{
	struct house_client *it = &house->client[client];

	drop_client_completions(client);
	memset(it->local.at, byte, 64);
	return rc_write(&it->pair.client, &it->local, 64, grant->at, grant->rkey);
}

void fc_lands(int client, const struct fc_grant *grant)
{
	fc_scene.byte++;
	RC_CHECK_STATUS(IBV_WC_SUCCESS, write_byte(client, grant, fc_scene.byte));
	RC_CHECK_EQ(fc_scene.byte, *grant->at);
}

void fc_dead(int client, const struct fc_grant *grant)
{
	uint8_t before = *grant->at;

	RC_CHECK_STATUS(IBV_WC_REM_ACCESS_ERR, write_byte(client, grant, (uint8_t)(before + 1)));
	RC_CHECK_EQ(before, *grant->at);
}

void fc_try_keys(int client)
{
	struct fc_client *it = &fc_scene.client[client];

	for (int i = 0; i < it->keys; i++) {
		rc_pair_reconnect(&house->client[client].pair, &house->options.rc);
		fc_dead(client, &it->key[i]);
	}
}

/* ---- coming and going ---- */

bool fc_is_attached(int client)
{
	return house->client[client].peer.id != 0;
}

void fc_detach(int client, bool may_fail)
{
	struct fc_heard heard = {0};
	mwctl_peer_info info;
	mwctl_peer peer = house->client[client].peer;

	HOUSE_OK(mwctl_peer_detach_start(house->ctx, peer, FC_DEADLINE_US, fc_on_done, &heard));
	fc_until_end(&heard);
	if (may_fail && heard.status == MWCTL_STATUS_OPEN)
		return;
	HOUSE_OK(heard.status);
	HOUSE_STATUS(MWCTL_STATUS_STALE_ID, mwctl_peer_info_get(house->ctx, peer, &info, sizeof(info)));
	house->client[client].peer.id = 0;
}

static void join(int client)
{
	struct fc_client *it = &fc_scene.client[client];

	house_join(house, client);
	memset(it, 0, sizeof(*it));
}

void fc_replace(int client)
{
	if (fc_is_attached(client))
		fc_detach(client, false);
	fc_poll_all();
	fc_app_check(client);
	fc_try_keys(client);
	rc_pair_close(&house->client[client].pair);
	join(client);
}

void fc_scene_open(const struct fc_case *c)
{
	struct house_options options = {
		.clients = FC_CLIENTS,
		.peer = {.budget = c->budget},
		.domain = {.reserve = 1},
		.context = {.timeout_us = FC_DEADLINE_US, .on_event = on_event},
	};
	int polling = c->drive == FC_WAIT_OURS || c->drive == FC_LOOP_OURS ? MWCTL_POLLING_OURS :
									     MWCTL_POLLING_YOURS;

	if (fc_scene.open && !fc_scene.spoiled && fc_scene.budget == c->budget && fc_scene.polling == polling)
		return;
	fc_scene_close();
	memset(&fc_scene, 0, sizeof(fc_scene));
	options.peer.polling = polling;
	fc_scene.budget = c->budget;
	fc_scene.polling = polling;
	fc_clock_hold();
	house_open(house, &options);
	hook(house->device.context);
	fc_scene.open = true;
	fc_make_grants(FC_CONTROL, 1);
	RC_CHECK_EQ(0, fc_scene_leak());
}

void fc_region_open(void)
{
	mwctl_register_options options = {.block_size = FC_BLOCK};
	uint64_t addr;

	HOUSE_OK(mwctl_region_register(house->ctx, house->domain, FC_CONTROL * FC_BLOCK, &options,
				       sizeof(options), &fc_scene.region));
	HOUSE_OK(mwctl_region_info_get(house->ctx, fc_scene.region, &fc_scene.memory, sizeof(fc_scene.memory)));
	/* One for each client but the control: none is left. */
	for (int i = 0; i < FC_CONTROL; i++)
		HOUSE_OK(mwctl_block_take(house->ctx, fc_scene.region, 1, &addr));
}

void fc_region_close(void)
{
	HOUSE_OK(mwctl_region_detach(house->ctx, fc_scene.region));
}

void fc_scene_close(void)
{
	if (!fc_scene.open)
		return;
	for (int i = 0; i < FC_CLIENTS; i++)
		if (fc_is_attached(i))
			fc_detach(i, false);
	for (int i = 0; i < FC_CLIENTS; i++)
		rc_pair_close(&house->client[i].pair);
	fc_scene.open = false;
	house_close(house);
	fc_hooks = (struct fc_hooks){0};
}

int64_t fc_scene_leak(void)
{
	struct mwctl_sim_counters device;
	mwctl_stats stats = house_stats(house);

	RC_CHECK_EQ(0, mwctl_sim_counters_get(&device, sizeof(device)));
	return (int64_t)(device.mw_allocated - device.mw_deallocated) -
	       (int64_t)(stats.windows_allocated - stats.windows_deallocated);
}
