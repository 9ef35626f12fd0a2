/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program and a library of different releases. It is built against this release's header, and
 * with GROWN against a next release's, in which mwctl_domain_options and mwctl_domain_info have
 * a field `grown` more, at the end. Either must run with either library. With NEW_CALL it calls
 * a function that only the next release has.
 *
 *   growth MAJOR.MINOR.PATCH      the version of the library that it should meet
 */
#include <infiniband/verbs.h>
#include <mwctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD UINT64_C(0x5ca1ab1e5ca1ab1e)

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

struct guarded {
	mwctl_domain_info info;
	uint64_t guard;
};

/* The answer as this program knows it, and nothing behind it was written. */
static mwctl_domain_info ask(mwctl_context *ctx, mwctl_domain domain)
{
	struct guarded place;

	memset(&place, 0xff, sizeof(place));
	place.guard = GUARD;
	CHECK(mwctl_domain_info_get(ctx, domain, &place.info, sizeof(place.info)) == MWCTL_STATUS_OK);
	CHECK(place.guard == GUARD);
	CHECK(place.info.windows >= 4);
	CHECK(place.info.key_distance == 5000);
	return place.info;
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *device;
	struct ibv_pd *pd;
	mwctl_context *ctx;
	mwctl_domain domain;
	mwctl_domain_options opts;
	char version[32];

	CHECK(argc == 2);
	snprintf(version, sizeof(version), "%u.%u.%u", mwctl_version() / 1000000,
		 mwctl_version() / 1000 % 1000, mwctl_version() % 1000);
	CHECK(!strcmp(version, argv[1]));
	CHECK(list && list[0]);
	device = ibv_open_device(list[0]);
	CHECK(device);
	pd = ibv_alloc_pd(device);
	CHECK(pd);
	CHECK(mwctl_context_open(device, NULL, 0, &ctx) == MWCTL_STATUS_OK);

	memset(&opts, 0, sizeof(opts));
	opts.reserve = 4;
	opts.key_distance = 5000;
	CHECK(mwctl_domain_open(ctx, pd, &opts, sizeof(opts), &domain) == MWCTL_STATUS_OK);
	ask(ctx, domain);
#ifdef GROWN
	CHECK(ask(ctx, domain).grown == 0);
#endif
	CHECK(mwctl_domain_close(ctx, domain) == MWCTL_STATUS_OK);

#ifdef GROWN
	opts.grown = 7;
	if (mwctl_version() >= MWCTL_VERSION) {
		CHECK(mwctl_domain_open(ctx, pd, &opts, sizeof(opts), &domain) == MWCTL_STATUS_OK);
		CHECK(ask(ctx, domain).grown == 7);
#ifdef NEW_CALL
		CHECK(mwctl_domain_grown(ctx, domain) == 7);
#endif
	} else {
		/* What it does not know must not be ignored, and leaves nothing behind. */
		CHECK(mwctl_domain_open(ctx, pd, &opts, sizeof(opts), &domain) == MWCTL_STATUS_OPTIONS_SIZE);
		opts.grown = 0;
		CHECK(mwctl_domain_open(ctx, pd, &opts, sizeof(opts), &domain) == MWCTL_STATUS_OK);
		CHECK(ask(ctx, domain).grown == 0);
	}
	CHECK(mwctl_domain_close(ctx, domain) == MWCTL_STATUS_OK);
#endif
	CHECK(mwctl_context_close(ctx) == MWCTL_STATUS_OK);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(device));
	ibv_free_device_list(list);
	return 0;
}
