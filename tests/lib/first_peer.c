/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A completion queue gets its first client while another thread is about to poll it. What a waiting call
 * keeps for the application then must come out of that poll, or of a later one if it had returned before. */
#include "house.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define MESSAGE 64
#define LOOKS 50 /* at a thread that sleeps, before it is taken for one that waits for us */

static struct house house;
static struct rc_memory mail;
static int (*poll_device)(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
static _Thread_local bool is_poller;
static atomic_bool polling, received, granted, was_there;
static atomic_int granter;

/* Whether the thread that attaches and grants has slept at this look. */
static bool granter_sleeps(void)
{
	char path[64], state = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", atomic_load(&granter));
	file = fopen(path, "r");
	if (!file)
		return false;
	if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	fclose(file);
	return state == 'S';
}

/* In place of the provider's: between the library's look at the queue and its poll of the device, the
 * other thread does all that it can. */
static int poll_late(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
	int slept = 0;

	if (is_poller && !atomic_exchange(&polling, true)) {
		while (!atomic_load(&granted) && slept < LOOKS) {
			rc_pause(1);
			slept = atomic_load(&granter) && granter_sleeps() ? slept + 1 : 0;
		}
		atomic_store(&was_there, atomic_load(&granted));
	}
	return poll_device(cq, num_entries, wc);
}

static void *grant_main(void *unused)
{
	struct house_client *client = &house.client[0];

	while (!atomic_load(&polling))
		sched_yield();
	atomic_store(&granter, (int)gettid());
	HOUSE_OK(mwctl_peer_attach(house.ctx, house.domain, client->pair.server.qp, NULL, 0, &client->peer));
	RC_CHECK_STATUS(IBV_WC_SUCCESS, rc_send(&client->pair.client, &client->local, MESSAGE));
	atomic_store(&received, true);
	/* Polls the queue and keeps the message for the application. */
	house_grant(&house, 0, 0, 64, HOUSE_WRITE);
	atomic_store(&granted, true);
	return unused;
}

static void poll_while_it_gets_its_first_client(void)
{
	struct ibv_cq *cq = house.client[0].pair.server.cq;
	pthread_t thread;
	struct ibv_wc wc;
	int n;

	HOUSE_OK(mwctl_peer_detach(house.ctx, house.client[0].peer, 0));
	RC_CHECK_EQ(0, mwctl_poll_cq(house.ctx, cq, 1, &wc));
	rc_post_recv(&house.client[0].pair.server, &mail, 5);
	poll_device = house.device.context->ops.poll_cq;
	house.device.context->ops.poll_cq = poll_late;
	is_poller = true;
	RC_CHECK_EQ(0, pthread_create(&thread, NULL, grant_main, NULL));
	n = mwctl_poll_cq(house.ctx, cq, 1, &wc);
	pthread_join(thread, NULL);
	house.device.context->ops.poll_cq = poll_device;
	RC_CHECK(atomic_load(&received));
	if (n == 0) {
		/* It may have seen the queue before the message came, and not with the message kept. */
		RC_CHECK(!atomic_load(&was_there));
		n = mwctl_poll_cq(house.ctx, cq, 1, &wc);
	}
	RC_CHECK_EQ(1, n);
	RC_CHECK_EQ(5, wc.wr_id);
	RC_CHECK_STATUS(IBV_WC_SUCCESS, wc.status);
	house_ok("a poll does not miss what is kept for it while its queue gets its first client");
}

int main(void)
{
	house_open(&house, &(struct house_options){.clients = 1});
	rc_memory_open(&mail, house.pd, MESSAGE, IBV_ACCESS_LOCAL_WRITE);
	poll_while_it_gets_its_first_client();
	rc_memory_close(&mail);
	house_close(&house);
	return 0;
}
