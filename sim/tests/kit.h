/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * kit.h: what the device's own tests add to rc_pair.h: queue pairs of every shape, ordered
 * faults, and the list of broken rules. These programs run on the device in the process only.
 */
#ifndef KIT_H
#define KIT_H

#include "rc_pair.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KIT_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | \
		    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)

/* Opens the device; a program that is not on the device in the process ends with 77. */
static inline void kit_open(struct rc_device *device)
{
	if (!mwctl_sim_present())
		rc_skip("needs the device in the process");
	rc_device_open(device);
}

/* A queue pair with every cap at 16 or 4; extended if `send_ops` is not 0. */
static inline struct ibv_qp *kit_qp(struct ibv_pd *pd, struct ibv_cq *send_cq, struct ibv_cq *recv_cq,
				    struct ibv_srq *srq, uint64_t send_ops)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = send_cq,
		.recv_cq = recv_cq,
		.srq = srq,
		.cap = { 16, 16, 4, 4, 128 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (send_ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.pd = pd,
		.send_ops_flags = send_ops,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(pd->context, &init);

	if (!qp)
		RC_FAIL("ibv_create_qp_ex: %s", strerror(errno));
	return qp;
}

static inline void kit_connect(const struct rc_device *device, struct ibv_qp *a, struct ibv_qp *b)
{
	rc_qp_connect(device, a, b->qp_num, NULL);
	rc_qp_connect(device, b, a->qp_num, NULL);
}

static inline struct ibv_cq *kit_cq(const struct rc_device *device, int cqe)
{
	struct ibv_cq *cq = ibv_create_cq(device->context, cqe, NULL, NULL, 0);

	if (!cq)
		RC_FAIL("ibv_create_cq: %s", strerror(errno));
	return cq;
}

/* Orders a fault that strikes `count` times at this queue pair (0: at any). */
static inline uint64_t kit_fault(enum mwctl_sim_fault_kind kind, uint32_t qp_num, uint64_t count,
				 int error, uint32_t position)
{
	struct mwctl_sim_fault fault = {
		.kind = kind,
		.qp_num = qp_num,
		.count = count,
		.error = error,
		.position = position,
	};
	uint64_t id = 0;

	RC_CHECK_EQ(0, mwctl_sim_fault_order(&fault, sizeof(fault), &id));
	RC_CHECK(id != 0);
	return id;
}

/* The oldest broken rule not yet taken. */
static inline uint32_t kit_misuse(void)
{
	struct mwctl_sim_misuse misuse;

	if (!mwctl_sim_misuse_next(&misuse, sizeof(misuse)))
		return MWCTL_SIM_RULE_NONE;
	RC_CHECK(misuse.text[0] != 0 && memchr(misuse.text, 0, sizeof(misuse.text)) != NULL);
	return misuse.rule;
}

static inline struct mwctl_sim_counters kit_counters(void)
{
	struct mwctl_sim_counters counters;

	RC_CHECK_EQ(0, mwctl_sim_counters_get(&counters, sizeof(counters)));
	return counters;
}

/* Posts one work request and gives what the call returned. */
static inline int kit_try(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	int error = ibv_post_send(qp, wr, &bad);

	RC_CHECK(error == 0 || bad == wr);
	return error;
}

static inline bool kit_is_empty(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	return ibv_poll_cq(cq, 1, &wc) == 0;
}

#endif
