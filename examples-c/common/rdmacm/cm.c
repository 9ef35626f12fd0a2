/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "cm.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "../report.h"
#include "mwctl_sim.h"

#define RESOLVE_MS 5000
#define BACKLOG 16

static struct sockaddr_in parse(const char *address, uint16_t port)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port) };

	if (inet_pton(AF_INET, address, &in.sin_addr) != 1)
		die("%s is not an IPv4 address", address);
	return in;
}

/* Without an event channel the id is a synchronous one. */
static struct rdma_cm_id *new_id(void)
{
	struct rdma_cm_id *id;

	if (mwctl_sim_present())
		skip("rdma_cm needs a real device; the device in the process has none");
	if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP))
		die("rdma_create_id: %s", strerror(errno));
	return id;
}

struct rdma_cm_id *cm_listen(const char *address, uint16_t port)
{
	struct sockaddr_in at = parse(address, port);
	struct rdma_cm_id *id = new_id();

	if (rdma_bind_addr(id, (struct sockaddr *)&at))
		die("rdma_bind_addr %s: %s", address, strerror(errno));
	if (!id->verbs)
		die("no RDMA device has the address %s", address);
	if (rdma_listen(id, BACKLOG))
		die("rdma_listen: %s", strerror(errno));
	return id;
}

struct rdma_cm_id *cm_request(struct rdma_cm_id *listener, uint32_t *who)
{
	const struct rdma_conn_param *asked;
	struct rdma_cm_id *id;

	if (rdma_get_request(listener, &id))
		die("rdma_get_request: %s", strerror(errno));
	asked = &id->event->param.conn;
	/* The transport may pad what the client gave. */
	if (asked->private_data_len < sizeof(*who))
		die("a client does not say who it is");
	memcpy(who, asked->private_data, sizeof(*who));
	return id;
}

static void make_qp(struct rdma_cm_id *id, struct link *link, struct ibv_pd *pd, struct ibv_cq *cq,
		    bool windows)
{
	int cqe = 0;
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = link_size(windows, &cqe),
		.qp_type = IBV_QPT_RC,
	};

	if (rdma_create_qp(id, pd, &init))
		die("rdma_create_qp: %s", strerror(errno));
	link_prepare(link, id->qp, pd);
	link->id = id;
}

void cm_accept(struct rdma_cm_id *id, struct link *link, struct ibv_pd *pd, struct ibv_cq *cq)
{
	/* READs are let in, one at a time, by responder_resources. */
	struct rdma_conn_param param = { .responder_resources = 1, .rnr_retry_count = 7 };

	make_qp(id, link, pd, cq, true);
	if (rdma_accept(id, &param))
		die("rdma_accept: %s", strerror(errno));
}

struct rdma_cm_id *cm_resolve(const char *from, const char *to, uint16_t port)
{
	struct sockaddr_in source, target = parse(to, port);
	struct rdma_cm_id *id = new_id();

	if (from)
		source = parse(from, 0);
	if (rdma_resolve_addr(id, from ? (struct sockaddr *)&source : NULL, (struct sockaddr *)&target,
			      RESOLVE_MS) ||
	    rdma_resolve_route(id, RESOLVE_MS))
		die("no way to %s: %s", to, strerror(errno));
	return id;
}

void cm_connect(struct rdma_cm_id *id, struct link *link, struct ibv_pd *pd, struct ibv_cq *cq,
		uint32_t who)
{
	struct rdma_conn_param param = {
		.private_data = &who,
		.private_data_len = sizeof(who),
		.initiator_depth = 1,
		.retry_count = 6, /* seven stands for ever with soft-RoCE */
		.rnr_retry_count = 7,
	};

	make_qp(id, link, pd, cq, false);
	if (rdma_connect(id, &param))
		die("rdma_connect: %s", strerror(errno));
}

bool cm_hung_up(struct link *link)
{
	struct rdma_cm_event *event;
	struct pollfd ready;
	bool hung_up;

	if (!link->id)
		return false;
	/* A synchronous id has an event channel of its own. */
	ready = (struct pollfd){ .fd = link->id->channel->fd, .events = POLLIN };
	if (poll(&ready, 1, 0) != 1 || rdma_get_cm_event(link->id->channel, &event))
		return false;
	hung_up = event->event == RDMA_CM_EVENT_DISCONNECTED;
	rdma_ack_cm_event(event);
	return hung_up;
}

static void hang_up(struct link *link)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	/* A synchronous id would wait until the other side disconnects as well, which may be busy
	 * waiting for us on another connection. One with a channel does not. */
	if (!channel || rdma_migrate_id(link->id, channel))
		die("rdma_migrate_id: %s", strerror(errno));
	/* Fails if the other side was first, which is as good. */
	rdma_disconnect(link->id);
	rdma_destroy_qp(link->id);
	link->qp = NULL;
	if (rdma_destroy_id(link->id))
		die("rdma_destroy_id: %s", strerror(errno));
	link->id = NULL;
	rdma_destroy_event_channel(channel);
}

void cm_close(struct link *link)
{
	if (link->id)
		hang_up(link);
	link_close(link);
}
