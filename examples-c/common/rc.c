/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "rc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "mwctl_sim.h"
#include "report.h"

static bool active_port(struct rc_device *device)
{
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	uint8_t number;

	if (ibv_query_device(device->verbs, &attr))
		return false;
	for (number = 1; number <= attr.phys_port_cnt; number++) {
		if (ibv_query_port(device->verbs, number, &port) || port.state != IBV_PORT_ACTIVE)
			continue;
		device->port = number;
		device->lid = port.lid;
		device->mtu = port.active_mtu;
		return true;
	}
	return false;
}

static bool is_ipv4(const union ibv_gid *gid)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	return memcmp(gid->raw, mapped, sizeof(mapped)) == 0;
}

static void choose_gid(struct rc_device *device)
{
	struct ibv_gid_entry entries[256];
	ssize_t i, n = ibv_query_gid_table(device->verbs, entries, 256, 0);

	for (i = 0; i < n; i++)
		if (entries[i].port_num == device->port &&
		    entries[i].gid_type == IBV_GID_TYPE_ROCE_V2 && is_ipv4(&entries[i].gid)) {
			device->gid_index = (int)entries[i].gid_index;
			break;
		}
	if (ibv_query_gid(device->verbs, device->port, device->gid_index, &device->gid))
		die("ibv_query_gid: %s", strerror(errno));
}

void rc_open(struct rc_device *device)
{
	const char *wanted = getenv("MWCTL_DEVICE");
	struct ibv_device **list;
	int i, n = 0;

	memset(device, 0, sizeof(*device));
	list = ibv_get_device_list(&n);
	for (i = 0; list && i < n; i++) {
		const char *name = ibv_get_device_name(list[i]);

		if (wanted && strcmp(wanted, name))
			continue;
		device->verbs = ibv_open_device(list[i]);
		if (!device->verbs)
			continue;
		if (active_port(device)) {
			snprintf(device->name, sizeof(device->name), "%s", name);
			break;
		}
		ibv_close_device(device->verbs);
		device->verbs = NULL;
	}
	if (list)
		ibv_free_device_list(list);
	if (!device->verbs)
		skip("no RDMA device with an active port%s%s", wanted ? " named " : "",
		     wanted ? wanted : "");
	device->in_process = mwctl_sim_present();
	device->rxe = !device->in_process && !strncmp(device->name, "rxe", 3);
	choose_gid(device);
}

void rc_close(struct rc_device *device)
{
	struct mwctl_sim_misuse misuse;

	while (device->in_process && mwctl_sim_misuse_next(&misuse, sizeof(misuse)))
		demand(false, "a rule of verbs was broken: %s", misuse.text);
	if (ibv_close_device(device->verbs))
		die("ibv_close_device: %s", strerror(errno));
	device->verbs = NULL;
}

void rc_describe(const struct rc_device *device)
{
	struct mwctl_sim_model model;
	struct utsname kernel;

	if (device->in_process) {
		memset(&model, 0, sizeof(model));
		mwctl_sim_model_get(&model, sizeof(model));
		printf("Device: %s, the device in the process. It adds %u ns a doorbell, %u ns a work request, "
		       "%u ns\na packet and %u ns a kernel call to what its code takes: figures carry over as "
		       "ratios at best.\n",
		       device->name, model.doorbell_ns, model.wr_ns, model.packet_ns,
		       model.kernel_call_ns);
		return;
	}
	uname(&kernel);
	printf("Device: %s, real verbs, Linux %s.%s\n", device->name, kernel.release,
	       device->rxe ? " Soft-RoCE moves the data with the CPU: from an\nemulated guest figures "
			     "carry over as ratios only." :
			     "");
}

struct ibv_qp *rc_qp(const struct rc_device *device, struct ibv_pd *pd, struct ibv_cq *cq,
		     const struct ibv_qp_cap *cap, int access)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = *cap,
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = device->port,
		.qp_access_flags = (unsigned int)access,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	int error;

	if (!qp)
		die("ibv_create_qp: %s", strerror(errno));
	error = ibv_modify_qp(qp, &attr,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (error)
		die("ibv_modify_qp to INIT: %s", strerror(error));
	return qp;
}

static void to_rts(const struct rc_device *device, struct ibv_qp *qp, uint32_t to)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = device->mtu,
		.dest_qp_num = to,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {
			.is_global = 1,
			.grh = { .dgid = device->gid,
				 .sgid_index = (uint8_t)device->gid_index,
				 .hop_limit = 64 },
			.dlid = device->lid,
			.port_num = device->port,
		},
	};
	int error;

	error = ibv_modify_qp(qp, &attr,
			      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (error)
		die("ibv_modify_qp to RTR: %s", strerror(error));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14; /* 67 ms, and six times more before a silent peer is given up */
	attr.retry_cnt = 6; /* seven stands for ever with soft-RoCE */
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	error = ibv_modify_qp(qp, &attr,
			      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	if (error)
		die("ibv_modify_qp to RTS: %s", strerror(error));
}

void rc_connect(const struct rc_device *device, struct ibv_qp *one, struct ibv_qp *other)
{
	to_rts(device, one, other->qp_num);
	to_rts(device, other, one->qp_num);
}
