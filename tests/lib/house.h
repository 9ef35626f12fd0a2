/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * house.h: what the library's tests share: a server under libmwctl with one region and any
 * number of clients, each an RC queue pair of its own in this process.
 */
#ifndef HOUSE_H
#define HOUSE_H

#include "../common/rc_pair.h"
#include "mwctl.h"

#define HOUSE_CLIENTS 8
#define HOUSE_WRITE ((uint32_t)IBV_ACCESS_REMOTE_WRITE)
#define HOUSE_READ ((uint32_t)IBV_ACCESS_REMOTE_READ)
#define HOUSE_RW (HOUSE_WRITE | HOUSE_READ)

struct house_client {
	struct rc_pair pair;
	mwctl_peer peer;
	struct rc_memory local;    /* the client's own */
};

/* Zero-filled means the defaults. */
struct house_options {
	int clients;                   /* 2 */
	uint64_t length;               /* 8 MiB */
	mwctl_peer_options peer;
	mwctl_domain_options domain;
	mwctl_context_options context;
	struct rc_options rc;
};

struct house {
	struct rc_device device;
	struct house_options options;
	struct ibv_pd *pd;
	struct ibv_pd *client_pd;
	mwctl_context *ctx;
	mwctl_domain domain;
	mwctl_region region;
	mwctl_region_info memory;
	int clients;
	struct house_client client[HOUSE_CLIENTS];
};

void house_open(struct house *house, const struct house_options *options);
/* Checks that every grant can be proved gone, that windows allocated == deallocated, and that
 * nothing was misused on the device in the process. */
void house_close(struct house *house);

/* A client's queue pairs made anew and attached. */
void house_join(struct house *house, int client);
/* A client detached and its queue pairs destroyed. */
void house_leave(struct house *house, int client);

mwctl_request house_ask(struct house *house, int client, uint64_t offset, uint64_t length,
			uint32_t access);
/* One waiting grant that must succeed. */
mwctl_result house_grant(struct house *house, int client, uint64_t offset, uint64_t length,
			 uint32_t access);
uint8_t *house_at(struct house *house, uint64_t offset);

/* The client writes `byte` to 64 bytes at the offset with the key; its completion's status. */
enum ibv_wc_status house_write(struct house *house, int client, uint64_t offset, uint32_t rkey,
			       uint8_t byte);
/* … and the memory must have changed. */
#define HOUSE_WRITE_LANDS(house, client, offset, rkey, byte) \
	do { \
		RC_CHECK_STATUS(IBV_WC_SUCCESS, house_write(house, client, offset, rkey, byte)); \
		RC_CHECK_EQ(byte, *house_at(house, offset)); \
	} while (0)
/* … and must be refused, with the memory as it was. */
#define HOUSE_WRITE_FAILS(house, client, offset, rkey, byte) \
	do { \
		uint8_t before_ = *house_at(house, offset); \
		enum ibv_wc_status got_ = house_write(house, client, offset, rkey, byte); \
		RC_CHECK(got_ != IBV_WC_SUCCESS); \
		RC_CHECK_EQ(before_, *house_at(house, offset)); \
	} while (0)

mwctl_stats house_stats(struct house *house);
mwctl_peer_info house_peer(struct house *house, int client);
void house_check_misuse(void);

#define HOUSE_OK(call) HOUSE_STATUS(MWCTL_STATUS_OK, call)
#define HOUSE_STATUS(expected, call) house_status_at(expected, call, #call, __FILE__, __LINE__)
void house_status_at(mwctl_status expected, mwctl_status got, const char *what, const char *file,
		     int line);

/* Prints "ok <rule>". */
void house_ok(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
