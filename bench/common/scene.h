/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A server under libmwctl with any number of idle clients, connected inside the process. */
#ifndef SCENE_H
#define SCENE_H

#include <stddef.h>
#include <stdint.h>

#include "../../examples-c/common/clock.h"
#include "../../examples-c/common/rc.h"
#include "../../examples-c/common/report.h"
#include "../../examples-c/common/stats.h"
#include "mwctl.h"

/* Bytes of a grant. */
#define SCENE_GRANT 64

struct scene_options {
	size_t peers;
	uint32_t windows; /* of a peer; also its budget, so that one chain revokes them all */
	uint32_t reserve; /* windows in the pool; 0: peers * windows */
	uint64_t key_distance;
};

struct scene {
	const struct rc_device *device;
	size_t n_peers;
	uint32_t windows;
	struct ibv_pd *pd, *client_pd;
	struct ibv_cq **cqs, *client_cq;
	size_t n_cqs;
	struct ibv_qp **qps, **clients;
	struct mwctl_context *ctx;
	struct mwctl_domain domain;
	struct mwctl_region region;
	uint64_t base; /* the region's first byte */
	struct mwctl_peer *peers;
	struct mwctl_request *requests; /* for each window, peer after peer */
	struct mwctl_result *results;
	uint64_t *grants;
};

void scene_open(struct scene *scene, const struct rc_device *device,
		const struct scene_options *options);
void scene_close(struct scene *scene);

/* Windows that a scene may have on this device, at most `wanted`. */
size_t scene_windows_at_most(const struct rc_device *device, size_t wanted);

/* Grants every window to its peer: results and grants. */
void scene_grant(struct scene *scene);

/* Says how to get the table again. */
void scene_repeat(const struct rc_device *device, int argc, char **argv);

#endif
