/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "scene.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A completion queue has its limit, too. */
#define ENTRIES_OF_A_CQ 16384

static void *room_for(size_t n, size_t size)
{
	void *room = calloc(n, size);

	if (!room)
		die("out of memory");
	return room;
}

size_t scene_windows_at_most(const struct rc_device *device, size_t wanted)
{
	struct mwctl_capabilities capabilities = { 0 };
	struct mwctl_context *ctx;

	must(mwctl_context_open(device->verbs, NULL, 0, &ctx), "mwctl_context_open");
	must(mwctl_capabilities_get(ctx, &capabilities, sizeof(capabilities)),
	     "mwctl_capabilities_get");
	must(mwctl_context_close(ctx), "mwctl_context_close");
	if (!capabilities.type2)
		skip("%s has no Type 2 memory windows", device->name);
	return wanted < capabilities.max_mw ? wanted : capabilities.max_mw;
}

static void connect_peer(struct scene *scene, size_t at)
{
	struct ibv_qp_cap server = { .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 };
	const struct ibv_qp_cap client = {
		.max_send_wr = 1,
		.max_recv_wr = 1,
		.max_send_sge = 1,
		.max_recv_sge = 1,
	};
	const struct mwctl_peer_options options = { .budget = scene->windows };
	size_t peers_of_a_cq = (scene->n_peers + scene->n_cqs - 1) / scene->n_cqs;

	must(mwctl_size_queues(scene->windows, &server, NULL), "mwctl_size_queues");
	scene->qps[at] = rc_qp(scene->device, scene->pd, scene->cqs[at / peers_of_a_cq], &server,
			       IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	scene->clients[at] = rc_qp(scene->device, scene->client_pd, scene->client_cq, &client, 0);
	rc_connect(scene->device, scene->qps[at], scene->clients[at]);
	must(mwctl_peer_attach(scene->ctx, scene->domain, scene->qps[at], &options, sizeof(options),
			       &scene->peers[at]),
	     "mwctl_peer_attach");
}

static void open_verbs(struct scene *scene)
{
	size_t i, peers;
	int cqe;

	scene->n_cqs = (scene->n_peers * scene->windows + ENTRIES_OF_A_CQ - 1) / ENTRIES_OF_A_CQ;
	if (scene->n_cqs > scene->n_peers)
		scene->n_cqs = scene->n_peers;
	peers = (scene->n_peers + scene->n_cqs - 1) / scene->n_cqs;
	scene->cqs = room_for(scene->n_cqs, sizeof(*scene->cqs));
	scene->pd = ibv_alloc_pd(scene->device->verbs);
	scene->client_pd = ibv_alloc_pd(scene->device->verbs);
	scene->client_cq = ibv_create_cq(scene->device->verbs, 16, NULL, NULL, 0);
	if (!scene->pd || !scene->client_pd || !scene->client_cq)
		die("PDs and a CQ: %s", strerror(errno));
	for (i = 0; i < scene->n_cqs; i++) {
		cqe = (int)(peers * scene->windows);
		scene->cqs[i] = ibv_create_cq(scene->device->verbs, cqe, NULL, NULL, 0);
		if (!scene->cqs[i])
			die("ibv_create_cq with %d entries: %s", cqe, strerror(errno));
	}
}

static void open_mwctl(struct scene *scene, const struct scene_options *options)
{
	const struct mwctl_context_options patient = { .timeout_us = 30000000 };
	const size_t total = scene->n_peers * scene->windows;
	const struct mwctl_domain_options pool = {
		.reserve = options->reserve ? options->reserve : (uint32_t)total,
		.key_distance = options->key_distance,
	};
	struct mwctl_region_info info = { 0 };

	must(mwctl_context_open(scene->device->verbs, &patient, sizeof(patient), &scene->ctx),
	     "mwctl_context_open");
	must(mwctl_domain_open(scene->ctx, scene->pd, &pool, sizeof(pool), &scene->domain),
	     "mwctl_domain_open");
	must(mwctl_region_register(scene->ctx, scene->domain, total * SCENE_GRANT, NULL, 0,
				   &scene->region),
	     "mwctl_region_register");
	must(mwctl_region_info_get(scene->ctx, scene->region, &info, sizeof(info)),
	     "mwctl_region_info_get");
	scene->base = info.addr;
}

void scene_open(struct scene *scene, const struct rc_device *device,
		const struct scene_options *options)
{
	size_t i, total = options->peers * options->windows;

	memset(scene, 0, sizeof(*scene));
	scene->device = device;
	scene->n_peers = options->peers;
	scene->windows = options->windows;
	scene->qps = room_for(scene->n_peers, sizeof(*scene->qps));
	scene->clients = room_for(scene->n_peers, sizeof(*scene->clients));
	scene->peers = room_for(scene->n_peers, sizeof(*scene->peers));
	scene->requests = room_for(total, sizeof(*scene->requests));
	scene->results = room_for(total, sizeof(*scene->results));
	scene->grants = room_for(total, sizeof(*scene->grants));
	open_verbs(scene);
	open_mwctl(scene, options);
	for (i = 0; i < scene->n_peers; i++)
		connect_peer(scene, i);
	for (i = 0; i < total; i++) {
		scene->requests[i].peer = scene->peers[i / scene->windows];
		scene->requests[i].region = scene->region;
		scene->requests[i].addr = scene->base + i * SCENE_GRANT;
		scene->requests[i].length = SCENE_GRANT;
		scene->requests[i].access = IBV_ACCESS_REMOTE_WRITE;
	}
}

void scene_grant(struct scene *scene)
{
	size_t i, total = scene->n_peers * scene->windows;

	must(mwctl_grant_batch(scene->ctx, scene->requests, total, 0, scene->results),
	     "mwctl_grant_batch");
	for (i = 0; i < total; i++)
		scene->grants[i] = scene->results[i].grant;
}

void scene_close(struct scene *scene)
{
	bool destroyed = true;
	size_t i;

	for (i = 0; i < scene->n_peers; i++) {
		must(mwctl_peer_detach(scene->ctx, scene->peers[i], 0), "mwctl_peer_detach");
		destroyed &= !ibv_destroy_qp(scene->qps[i]) && !ibv_destroy_qp(scene->clients[i]);
	}
	must(mwctl_region_detach(scene->ctx, scene->region), "mwctl_region_detach");
	must(mwctl_domain_close(scene->ctx, scene->domain), "mwctl_domain_close");
	must(mwctl_context_close(scene->ctx), "mwctl_context_close");
	for (i = 0; i < scene->n_cqs; i++)
		destroyed &= !ibv_destroy_cq(scene->cqs[i]);
	destroyed &= !ibv_destroy_cq(scene->client_cq);
	destroyed &= !ibv_dealloc_pd(scene->pd) && !ibv_dealloc_pd(scene->client_pd);
	if (!destroyed)
		die("a verbs object can't be destroyed: %s", strerror(errno));
	free(scene->cqs);
	free(scene->qps);
	free(scene->clients);
	free(scene->peers);
	free(scene->requests);
	free(scene->results);
	free(scene->grants);
}

void scene_repeat(const struct rc_device *device, int argc, char **argv)
{
	const char *path = getenv("LD_LIBRARY_PATH");
	int i;

	printf("\nAgain: ");
	if (device->in_process)
		printf("LD_LIBRARY_PATH=%s ", path ? path : "");
	else if (device->rxe)
		printf("scripts/rxe.sh -- ");
	for (i = 0; i < argc; i++)
		printf("%s%s", argv[i], i + 1 < argc ? " " : "\n");
}
