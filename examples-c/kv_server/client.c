/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "client.h"

#include <stdio.h>

#include "../common/rdmacm/cm.h"
#include "../common/report.h"

#define TRIES 1000

void client_open(struct client *client, struct ibv_context *device, uint32_t me)
{
	int cqe = 0;

	client->me = me;
	link_size(false, &cqe);
	client->pd = ibv_alloc_pd(device);
	client->cq = ibv_create_cq(device, cqe, NULL, NULL, 0);
	if (!client->pd || !client->cq)
		die("no PD or no CQ");
	client->mr = ibv_reg_mr(client->pd, &client->row, sizeof(client->row), IBV_ACCESS_LOCAL_WRITE);
	if (!client->mr)
		die("ibv_reg_mr failed");
}

static enum ibv_wc_status put(struct client *client, const struct message *keys, uint64_t sequence)
{
	const struct record *out = &client->row.out;
	struct ibv_sge from = { (uintptr_t)out, sizeof(*out), client->mr->lkey };

	record_fill(&client->row.out, client->me, sequence, true);
	return link_access(&client->link, IBV_WR_RDMA_WRITE, &from,
			   keys->rows + sequence % ROWS * sizeof(*out), keys->rows_key);
}

/* Into row.in. A READ may see half of somebody's WRITE: the checksum tells, and it reads again. Not
 * for ever, for the writer may have been kicked in the middle: such a row has no value. */
static enum ibv_wc_status get(struct client *client, const struct message *keys, uint64_t row)
{
	const struct record *in = &client->row.in;
	struct ibv_sge to = { (uintptr_t)in, sizeof(*in), client->mr->lkey };
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	int tries;

	for (tries = 0; tries < TRIES; tries++) {
		status = link_access(&client->link, IBV_WR_RDMA_READ, &to,
				     keys->table + row * sizeof(*in), keys->table_key);
		if (status != IBV_WC_SUCCESS)
			return status;
		if (in->sequence == 0 || record_is_good(in, (uint32_t)(row / ROWS)))
			break;
		client->torn++;
	}
	client->read++;
	return status;
}

/* Writes a row, reads it back, and reads somebody else's. */
static enum ibv_wc_status work(struct client *client, const struct message *keys)
{
	uint64_t sequence = client->written + 1, own = client->me * ROWS + sequence % ROWS;
	enum ibv_wc_status status = put(client, keys, sequence);

	if (status != IBV_WC_SUCCESS)
		return status;
	client->written = sequence;
	status = get(client, keys, own);
	if (status != IBV_WC_SUCCESS)
		return status;
	demand(client->row.in.sequence == sequence && record_is_good(&client->row.in, client->me),
	       "client %u: wrote record %llu and reads another or half of it: %llu", client->me,
	       (unsigned long long)sequence, (unsigned long long)client->row.in.sequence);
	return get(client, keys, (own + ROWS) % (CLIENTS * ROWS));
}

static void *client_main(void *argument)
{
	struct client *client = argument;
	struct message keys, message = { 0 };

	link_wait(&client->link, &keys, sizeof(keys));
	while (!link_poll(&client->link, &message, sizeof(message))) {
		client->end = work(client, &keys);
		if (client->end != IBV_WC_SUCCESS)
			return NULL; /* kicked: the connection is gone, too */
	}
	message.what = STOPPED;
	link_send(&client->link, &message, sizeof(message));
	link_drain(&client->link);
	return NULL;
}

void client_start(struct client *client)
{
	if (pthread_create(&client->thread, NULL, client_main, client))
		die("pthread_create failed");
}

void client_join(struct client *client)
{
	pthread_join(client->thread, NULL);
	printf("client %u: %llu records written, %llu read (%llu torn ones again), then %s\n", client->me,
	       (unsigned long long)client->written, (unsigned long long)client->read,
	       (unsigned long long)client->torn,
	       client->end == IBV_WC_SUCCESS ? "asked to stop" : ibv_wc_status_str(client->end));
	demand(client->written >= SOME, "client %u wrote next to nothing", client->me);
	demand(client->end == (client->me == KICKED ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS),
	       "client %u ended with: %s", client->me, ibv_wc_status_str(client->end));
}

void client_close(struct client *client)
{
	cm_close(&client->link);
	if (ibv_dereg_mr(client->mr) || ibv_destroy_cq(client->cq) || ibv_dealloc_pd(client->pd))
		die("client %u's objects can't be destroyed", client->me);
}
