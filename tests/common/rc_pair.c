/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "rc_pair.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>

/* ---- checks ---- */

static void line(const char *prefix, const char *format, va_list args)
{
	flockfile(stdout);
	fputs(prefix, stdout);
	vprintf(format, args);
	putchar('\n');
	fflush(stdout);
	funlockfile(stdout);
}

void rc_fail_at(const char *file, int at, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fflush(stdout);
	fprintf(stderr, "%s:%d: ", file, at);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	exit(1);
}

void rc_skip(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	line("skipped: ", format, args);
	va_end(args);
	exit(RC_EXIT_SKIP);
}

void rc_ok(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	line("ok ", format, args);
	va_end(args);
}

void rc_note(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	line("note ", format, args);
	va_end(args);
}

void rc_deviation(const struct rc_device *device, const char *format, ...)
{
	char prefix[sizeof(device->label) + 16];
	va_list args;

	snprintf(prefix, sizeof(prefix), "deviation %s: ", device->label);
	va_start(args, format);
	line(prefix, format, args);
	va_end(args);
}

void rc_check_eq_at(long long expected, long long got, const char *what, const char *file, int at)
{
	if (expected != got)
		rc_fail_at(file, at, "%s: expected %lld (0x%llx), got %lld (0x%llx)", what, expected,
			   (unsigned long long)expected, got, (unsigned long long)got);
}

void rc_check_status_at(enum ibv_wc_status expected, enum ibv_wc_status got, const char *what,
			const char *file, int at)
{
	if (expected != got)
		rc_fail_at(file, at, "%s: expected status %d (%s), got %d (%s)", what, expected,
			   ibv_wc_status_str(expected), got, ibv_wc_status_str(got));
}

static const char *state_name(enum ibv_qp_state state)
{
	static const char *const names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };

	return (unsigned int)state < sizeof(names) / sizeof(names[0]) ? names[state] : "unknown";
}

void rc_check_state_at(enum ibv_qp_state expected, enum ibv_qp_state got, const char *what,
		       const char *file, int at)
{
	if (expected != got)
		rc_fail_at(file, at, "%s: expected state %s, got %s", what, state_name(expected),
			   state_name(got));
}

void rc_check_memory_at(const void *expected, const void *got, size_t length, const char *what,
			const char *file, int at)
{
	const uint8_t *want = expected, *have = got;
	size_t i;

	for (i = 0; i < length; i++)
		if (want[i] != have[i])
			rc_fail_at(file, at, "%s: byte %zu of %zu: expected 0x%02x, got 0x%02x", what, i,
				   length, want[i], have[i]);
}

/* ---- time ---- */

double rc_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void rc_pause(int milliseconds)
{
	struct timespec pause = { milliseconds / 1000, (milliseconds % 1000) * 1000000L };

	nanosleep(&pause, NULL);
}

/* ---- the device ---- */

static bool gid_is_ipv4(const union ibv_gid *gid)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	return memcmp(gid->raw, mapped, sizeof(mapped)) == 0;
}

static void choose_gid(struct rc_device *device)
{
	struct ibv_gid_entry entry;
	int i, best = -1;

	for (i = 0; i < device->port_attr.gid_tbl_len; i++) {
		if (ibv_query_gid_ex(device->context, device->port, (uint32_t)i, &entry, 0))
			continue;
		if (entry.gid_type != IBV_GID_TYPE_ROCE_V2)
			continue;
		if (best < 0 || gid_is_ipv4(&entry.gid))
			best = i;
		if (gid_is_ipv4(&entry.gid))
			break;
	}
	device->gid_index = best < 0 ? 0 : best;
	if (ibv_query_gid(device->context, device->port, device->gid_index, &device->gid))
		RC_FAIL("ibv_query_gid(%d): %s", device->gid_index, strerror(errno));
}

static bool open_active(struct rc_device *device, struct ibv_device *candidate)
{
	device->context = ibv_open_device(candidate);
	if (!device->context)
		return false;
	if (ibv_query_device(device->context, &device->attr) == 0)
		for (device->port = 1; device->port <= device->attr.phys_port_cnt; device->port++)
			if (ibv_query_port(device->context, device->port, &device->port_attr) == 0 &&
			    device->port_attr.state == IBV_PORT_ACTIVE)
				return true;
	ibv_close_device(device->context);
	return false;
}

/* The one place that knows how to tell the devices apart. */
static void identify(struct rc_device *device, const char *name)
{
	struct utsname kernel;

	if (mwctl_sim_present()) {
		device->kind = RC_DEVICE_SIM;
		snprintf(device->label, sizeof(device->label), "sim");
	} else if (device->attr.vendor_id == 0xffffff || strncmp(name, "rxe", 3) == 0) {
		device->kind = RC_DEVICE_RXE;
		uname(&kernel);
		snprintf(device->label, sizeof(device->label), "rxe (Linux %s)", kernel.release);
	} else {
		device->kind = RC_DEVICE_OTHER;
		snprintf(device->label, sizeof(device->label), "%s", name);
	}
}

void rc_device_open(struct rc_device *device)
{
	const char *wanted = getenv("MWCTL_TEST_DEVICE");
	struct ibv_device **list;
	const char *name = NULL;
	int i, count = 0;

	memset(device, 0, sizeof(*device));
	list = ibv_get_device_list(&count);
	for (i = 0; list && i < count && !name; i++) {
		if (wanted && strcmp(ibv_get_device_name(list[i]), wanted) != 0)
			continue;
		if (open_active(device, list[i]))
			name = ibv_get_device_name(list[i]);
	}
	if (!name)
		rc_skip("no RDMA device with an active port");
	identify(device, name);
	choose_gid(device);
	ibv_free_device_list(list);
}

void rc_device_close(struct rc_device *device)
{
	RC_CHECK_EQ(0, ibv_close_device(device->context));
	device->context = NULL;
}

/* ---- memory ---- */

void rc_memory_open(struct rc_memory *memory, struct ibv_pd *pd, size_t length, int access)
{
	memory->length = length;
	memory->at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory->at == MAP_FAILED)
		RC_FAIL("mmap of %zu bytes: %s", length, strerror(errno));
	memory->mr = ibv_reg_mr(pd, memory->at, length, access);
	if (!memory->mr)
		RC_FAIL("ibv_reg_mr with access 0x%x: %s", access, strerror(errno));
}

void rc_memory_close(struct rc_memory *memory)
{
	if (memory->mr)
		RC_CHECK_EQ(0, ibv_dereg_mr(memory->mr));
	munmap(memory->at, memory->length);
	memset(memory, 0, sizeof(*memory));
}

/* ---- the pair ---- */

static const struct rc_options defaults;

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_cq *send_cq, struct ibv_cq *recv_cq,
				struct ibv_srq *srq, const struct rc_options *o)
{
	struct ibv_qp_init_attr init = {
		.send_cq = send_cq,
		.recv_cq = recv_cq,
		.srq = srq,
		.cap = {
			.max_send_wr = o->max_send_wr ? o->max_send_wr : 64,
			.max_recv_wr = o->max_recv_wr ? o->max_recv_wr : 64,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = o->sq_sig_all,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	if (!qp)
		RC_FAIL("ibv_create_qp: %s", strerror(errno));
	return qp;
}

struct ibv_qp *rc_qp_create(struct ibv_pd *pd, struct ibv_cq *cq, const struct rc_options *options)
{
	return create_qp(pd, cq, cq, NULL, options ? options : &defaults);
}

void rc_qp_connect(const struct rc_device *device, struct ibv_qp *qp, uint32_t peer_qp_num,
		   const struct rc_options *options)
{
	const struct rc_options *o = options ? options : &defaults;
	enum ibv_mtu mtu = o->path_mtu ? o->path_mtu : IBV_MTU_1024;
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT,
		.port_num = device->port,
		.qp_access_flags = o->qp_access ? o->qp_access :
			IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	};
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu < device->port_attr.active_mtu ? mtu : device->port_attr.active_mtu,
		.dest_qp_num = peer_qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 1,
		.ah_attr = {
			.port_num = device->port,
			.is_global = 1,
			.dlid = device->port_attr.lid,
			.grh = { .dgid = device->gid, .sgid_index = (uint8_t)device->gid_index, .hop_limit = 64 },
		},
	};
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		/* A dead peer costs two seconds. Not 7 retries: soft-RoCE takes that for ever. */
		.timeout = 16,
		.retry_cnt = 6,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};

	RC_CHECK_EQ(0, ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						IBV_QP_ACCESS_FLAGS));
	RC_CHECK_EQ(0, ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	RC_CHECK_EQ(0, ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC));
}

void rc_qp_modify(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	RC_CHECK_EQ(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

enum ibv_qp_state rc_qp_state(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	RC_CHECK_EQ(0, ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

void rc_await_state_at(struct ibv_qp *qp, enum ibv_qp_state state, const char *file, int at)
{
	double deadline = rc_now() + RC_DEADLINE_S;
	enum ibv_qp_state got;

	while ((got = rc_qp_state(qp)) != state) {
		if (rc_now() > deadline)
			rc_fail_at(file, at, "the QP stays in %s, expected %s", state_name(got),
				   state_name(state));
		rc_pause(1);
	}
}

static struct ibv_cq *create_cq(const struct rc_device *device, const struct rc_options *o)
{
	struct ibv_cq *cq = ibv_create_cq(device->context, o->cqe ? o->cqe : 256, NULL, NULL, 0);

	if (!cq)
		RC_FAIL("ibv_create_cq: %s", strerror(errno));
	return cq;
}

void rc_pair_open(struct rc_pair *pair, const struct rc_device *device,
		  const struct rc_options *options)
{
	const struct rc_options *o = options ? options : &defaults;
	struct rc_end *server = &pair->server, *client = &pair->client;

	memset(pair, 0, sizeof(*pair));
	pair->device = device;
	server->owns_pd = !o->server_pd;
	server->pd = o->server_pd ? o->server_pd : ibv_alloc_pd(device->context);
	if (!server->pd)
		RC_FAIL("ibv_alloc_pd: %s", strerror(errno));
	client->pd = o->client_pd ? o->client_pd : server->pd;
	server->owns_cq = !o->send_cq;
	client->owns_cq = true;
	server->cq = o->send_cq ? o->send_cq : create_cq(device, o);
	client->cq = create_cq(device, o);
	server->qp = create_qp(server->pd, server->cq, o->recv_cq ? o->recv_cq : server->cq, o->srq, o);
	client->qp = rc_qp_create(client->pd, client->cq, o);
	rc_qp_connect(device, server->qp, client->qp->qp_num, o);
	rc_qp_connect(device, client->qp, server->qp->qp_num, o);
}

void rc_pair_close(struct rc_pair *pair)
{
	/* NULL: the test has destroyed it. */
	if (pair->client.qp)
		RC_CHECK_EQ(0, ibv_destroy_qp(pair->client.qp));
	if (pair->server.qp)
		RC_CHECK_EQ(0, ibv_destroy_qp(pair->server.qp));
	RC_CHECK_EQ(0, ibv_destroy_cq(pair->client.cq));
	if (pair->server.owns_cq)
		RC_CHECK_EQ(0, ibv_destroy_cq(pair->server.cq));
	if (pair->server.owns_pd)
		RC_CHECK_EQ(0, ibv_dealloc_pd(pair->server.pd));
	memset(pair, 0, sizeof(*pair));
}

static void drop_completions(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
}

void rc_pair_reconnect(struct rc_pair *pair, const struct rc_options *options)
{
	rc_qp_modify(pair->client.qp, IBV_QPS_RESET);
	rc_qp_modify(pair->server.qp, IBV_QPS_RESET);
	drop_completions(pair->client.cq);
	drop_completions(pair->server.cq);
	rc_qp_connect(pair->device, pair->server.qp, pair->client.qp->qp_num, options);
	rc_qp_connect(pair->device, pair->client.qp, pair->server.qp->qp_num, options);
}

/* ---- work requests ---- */

void rc_post_at(struct ibv_qp *qp, struct ibv_send_wr *wr, const char *file, int at)
{
	struct ibv_send_wr *bad = NULL;
	int error = ibv_post_send(qp, wr, &bad);

	if (error)
		rc_fail_at(file, at, "ibv_post_send: error %d (%s)", error, strerror(error));
}

void rc_post_recv_at(struct rc_end *end, const struct rc_memory *memory, uint64_t wr_id,
		     const char *file, int at)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)memory->at,
		.length = (uint32_t)memory->length,
		.lkey = memory->mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	int error = ibv_post_recv(end->qp, &wr, &bad);

	if (error)
		rc_fail_at(file, at, "ibv_post_recv: error %d (%s)", error, strerror(error));
}

struct ibv_wc rc_wait_at(struct ibv_cq *cq, const char *file, int at)
{
	double deadline = rc_now() + RC_DEADLINE_S;
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		if (rc_now() > deadline)
			rc_fail_at(file, at, "no completion within %d s", RC_DEADLINE_S);
	if (n < 0)
		rc_fail_at(file, at, "ibv_poll_cq: %d", n);
	return wc;
}

void rc_wait_nothing_at(struct ibv_cq *cq, int milliseconds, const char *file, int at)
{
	double until = rc_now() + milliseconds / 1e3;
	struct ibv_wc wc;

	do {
		if (ibv_poll_cq(cq, 1, &wc) != 0)
			rc_fail_at(file, at, "expected no completion, got wr_id 0x%llx with status %s",
				   (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	} while (rc_now() < until);
}

static struct ibv_sge sge_of(const struct rc_memory *memory, size_t length)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)memory->at,
		.length = (uint32_t)length,
		.lkey = memory->mr->lkey,
	};

	return sge;
}

/* Waits for the one work request just posted; an earlier one's completion is a bug in the test. */
static enum ibv_wc_status run(struct rc_end *end, struct ibv_send_wr *wr, const char *file, int at)
{
	static uint64_t last = UINT64_C(0x7465737400000000);
	struct ibv_wc wc;

	wr->wr_id = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
	rc_post_at(end->qp, wr, file, at);
	wc = rc_wait_at(end->cq, file, at);
	rc_check_eq_at((long long)wr->wr_id, (long long)wc.wr_id, "wr_id", file, at);
	rc_check_eq_at(end->qp->qp_num, wc.qp_num, "qp_num", file, at);
	return wc.status;
}

struct ibv_send_wr rc_wr_write(struct ibv_sge *sge, const struct rc_memory *from, size_t length,
			       const void *remote, uint32_t rkey)
{
	struct ibv_send_wr wr = {
		.sg_list = sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)remote, .rkey = rkey },
	};

	*sge = sge_of(from, length);
	return wr;
}

struct ibv_send_wr rc_wr_bind(struct ibv_mw *mw, uint32_t rkey, struct ibv_mr *mr,
			      const void *at, size_t length, unsigned int access)
{
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_BIND_MW,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_mw = {
			.mw = mw,
			.rkey = rkey,
			.bind_info = {
				.mr = mr,
				.addr = (uintptr_t)at,
				.length = length,
				.mw_access_flags = access,
			},
		},
	};

	return wr;
}

struct ibv_send_wr rc_wr_invalidate(uint32_t rkey)
{
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_LOCAL_INV,
		.send_flags = IBV_SEND_SIGNALED,
		.invalidate_rkey = rkey,
	};

	return wr;
}

enum ibv_wc_status rc_write_at(struct rc_end *end, const struct rc_memory *from, size_t length,
			       const void *remote, uint32_t rkey, const char *file, int source_line)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = rc_wr_write(&sge, from, length, remote, rkey);

	return run(end, &wr, file, source_line);
}

enum ibv_wc_status rc_read_at(struct rc_end *end, const struct rc_memory *into, size_t length,
			      const void *remote, uint32_t rkey, const char *file, int source_line)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = rc_wr_write(&sge, into, length, remote, rkey);

	wr.opcode = IBV_WR_RDMA_READ;
	return run(end, &wr, file, source_line);
}

enum ibv_wc_status rc_fetch_add_at(struct rc_end *end, const struct rc_memory *into,
				   const void *remote, uint32_t rkey, uint64_t add,
				   const char *file, int source_line)
{
	struct ibv_sge sge = sge_of(into, 8);
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.atomic = { .remote_addr = (uintptr_t)remote, .compare_add = add, .rkey = rkey },
	};

	return run(end, &wr, file, source_line);
}

/* A provider need not write the key back into the object, and the next bind must find the
 * current one there. */
enum ibv_wc_status rc_bind_at(struct rc_end *end, struct ibv_mw *mw, uint32_t rkey,
			      struct ibv_mr *mr, const void *at, size_t length, unsigned int access,
			      const char *file, int source_line)
{
	struct ibv_send_wr wr = rc_wr_bind(mw, rkey, mr, at, length, access);
	enum ibv_wc_status status = run(end, &wr, file, source_line);

	if (status == IBV_WC_SUCCESS)
		mw->rkey = rkey;
	return status;
}

enum ibv_wc_status rc_invalidate_at(struct rc_end *end, uint32_t rkey, const char *file, int source_line)
{
	struct ibv_send_wr wr = rc_wr_invalidate(rkey);

	return run(end, &wr, file, source_line);
}

enum ibv_wc_status rc_send_at(struct rc_end *end, const struct rc_memory *from, size_t length,
			      const char *file, int source_line)
{
	struct ibv_sge sge = sge_of(from, length);
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};

	return run(end, &wr, file, source_line);
}

enum ibv_wc_status rc_send_with_inv_at(struct rc_end *end, const struct rc_memory *from,
				       size_t length, uint32_t rkey, const char *file, int source_line)
{
	struct ibv_sge sge = sge_of(from, length);
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND_WITH_INV,
		.send_flags = IBV_SEND_SIGNALED,
		.invalidate_rkey = rkey,
	};

	return run(end, &wr, file, source_line);
}

struct ibv_mw *rc_mw_alloc(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, type);

	if (!mw && (errno == EOPNOTSUPP || errno == ENOSYS))
		rc_skip("the device allocates no memory windows");
	if (!mw)
		RC_FAIL("ibv_alloc_mw: %s", strerror(errno));
	return mw;
}

void rc_mw_dealloc(struct ibv_mw *mw)
{
	RC_CHECK_EQ(0, ibv_dealloc_mw(mw));
}

uint32_t rc_key_step(uint32_t rkey, unsigned int steps)
{
	return (rkey & ~UINT32_C(0xff)) | ((rkey + steps) & 0xff);
}
