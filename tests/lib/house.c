/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "house.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void house_status_at(mwctl_status expected, mwctl_status got, const char *what, const char *file,
		     int line)
{
	if (expected != got)
		rc_fail_at(file, line, "%s: expected \"%s\", got \"%s\"", what,
			   mwctl_status_text(expected), mwctl_status_text(got));
}

void house_ok(const char *format, ...)
{
	va_list args;

	printf("ok ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
}

void house_join(struct house *house, int client)
{
	struct house_client *it = &house->client[client];
	struct rc_options rc = house->options.rc;
	struct ibv_qp_cap cap = {.max_send_wr = rc.max_send_wr ? rc.max_send_wr : 64};
	int cqe = rc.cqe ? rc.cqe : 256;

	rc.server_pd = house->pd;
	rc.client_pd = house->client_pd;
	if (!rc.max_send_wr) {
		HOUSE_OK(mwctl_size_queues(house->options.peer.budget, &cap, &cqe));
		rc.max_send_wr = cap.max_send_wr;
		rc.cqe = cqe;
	}
	rc_pair_open(&it->pair, &house->device, &rc);
	HOUSE_OK(mwctl_peer_attach(house->ctx, house->domain, it->pair.server.qp,
				   &house->options.peer, sizeof(house->options.peer), &it->peer));
}

void house_leave(struct house *house, int client)
{
	struct house_client *it = &house->client[client];

	HOUSE_OK(mwctl_peer_detach(house->ctx, it->peer, 0));
	rc_pair_close(&it->pair);
	it->peer.id = 0;
}

void house_open(struct house *house, const struct house_options *options)
{
	memset(house, 0, sizeof(*house));
	if (options)
		house->options = *options;
	if (!house->options.clients)
		house->options.clients = 2;
	if (!house->options.length)
		house->options.length = 8 << 20;
	if (!house->options.context.timeout_us)
		house->options.context.timeout_us = 5000000;
	rc_device_open(&house->device);
	house->pd = ibv_alloc_pd(house->device.context);
	house->client_pd = ibv_alloc_pd(house->device.context);
	RC_CHECK(house->pd && house->client_pd);
	HOUSE_OK(mwctl_context_open(house->device.context, &house->options.context,
				    sizeof(house->options.context), &house->ctx));
	HOUSE_OK(mwctl_domain_open(house->ctx, house->pd, &house->options.domain,
				   sizeof(house->options.domain), &house->domain));
	HOUSE_OK(mwctl_region_register(house->ctx, house->domain, house->options.length, NULL, 0,
				       &house->region));
	HOUSE_OK(mwctl_region_info_get(house->ctx, house->region, &house->memory,
				       sizeof(house->memory)));
	for (house->clients = 0; house->clients < house->options.clients; house->clients++) {
		house_join(house, house->clients);
		rc_memory_open(&house->client[house->clients].local, house->client_pd, 65536,
			       IBV_ACCESS_LOCAL_WRITE);
	}
}

void house_check_misuse(void)
{
	struct mwctl_sim_misuse misuse;

	if (mwctl_sim_present() && mwctl_sim_misuse_next(&misuse, sizeof(misuse)))
		RC_FAIL("misuse of the device: %s", misuse.text);
}

void house_close(struct house *house)
{
	mwctl_stats stats;

	for (int i = 0; i < house->clients; i++) {
		if (house->client[i].peer.id)
			house_leave(house, i);
		rc_memory_close(&house->client[i].local);
	}
	HOUSE_OK(mwctl_region_detach(house->ctx, house->region));
	HOUSE_OK(mwctl_domain_close(house->ctx, house->domain));
	stats = house_stats(house);
	RC_CHECK_EQ(stats.windows_allocated, stats.windows_deallocated);
	HOUSE_OK(mwctl_context_close(house->ctx));
	RC_CHECK_EQ(0, ibv_dealloc_pd(house->client_pd));
	RC_CHECK_EQ(0, ibv_dealloc_pd(house->pd));
	rc_device_close(&house->device);
	house_check_misuse();
}

mwctl_request house_ask(struct house *house, int client, uint64_t offset, uint64_t length,
			uint32_t access)
{
	return (mwctl_request){.peer = house->client[client].peer,
			       .region = house->region,
			       .addr = house->memory.addr + offset,
			       .length = length,
			       .access = access};
}

mwctl_result house_grant(struct house *house, int client, uint64_t offset, uint64_t length,
			 uint32_t access)
{
	mwctl_request ask = house_ask(house, client, offset, length, access);
	mwctl_result result;

	HOUSE_OK(mwctl_grant(house->ctx, &ask, 0, &result));
	RC_CHECK(result.grant != 0 && result.rkey != 0);
	return result;
}

uint8_t *house_at(struct house *house, uint64_t offset)
{
	return (uint8_t *)(uintptr_t)house->memory.addr + offset;
}

enum ibv_wc_status house_write(struct house *house, int client, uint64_t offset, uint32_t rkey,
			       uint8_t byte)
{
	struct house_client *it = &house->client[client];

	memset(it->local.at, byte, 64);
	return rc_write(&it->pair.client, &it->local, 64, house_at(house, offset), rkey);
}

mwctl_stats house_stats(struct house *house)
{
	mwctl_stats stats;

	HOUSE_OK(mwctl_stats_get(house->ctx, &stats, sizeof(stats)));
	return stats;
}

mwctl_peer_info house_peer(struct house *house, int client)
{
	mwctl_peer_info info;

	HOUSE_OK(mwctl_peer_info_get(house->ctx, house->client[client].peer, &info, sizeof(info)));
	return info;
}
