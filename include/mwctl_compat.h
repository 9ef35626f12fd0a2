/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * mwctl_compat.h: for a program that was written for memory windows of Type 1. With this header
 * before its other code, or the compiler's flag `-include mwctl_compat.h`, and with -lmwctl, its
 * ibv_alloc_mw, ibv_bind_mw, ibv_dealloc_mw and ibv_poll_cq work on pooled windows of Type 2:
 * a key is good for the client of the queue pair that it was bound on, and for no other.
 *
 * Every file that touches windows, regions, queue pairs or completion queues must see it: objects
 * that were made elsewhere are refused when they are needed for a bind.
 *
 * What stays as it was
 *
 *   ibv_bind_mw       posts before it returns, in the order of the program's own requests, and sets
 *                     mw->rkey; a bound window is bound again without more ado, and its old key
 *                     is dead when that bind completes; length 0 unbinds, also what is not bound
 *   completions       one with the program's wr_id and opcode IBV_WC_BIND_MW for each signaled bind
 *                     (or all, under sq_sig_all), in its place; none for an unsignaled one that
 *                     succeeds; an error as the device gives it, its queue pair then being in ERR
 *   return values     NULL with errno, or an errno value, which is also left in errno
 *   Type 2            what asks for IBV_MW_TYPE_2 gets the device's own window, untouched
 *
 * What is different
 *
 *   one client        The key works for the client of that queue pair alone. Others, also of the same
 *                     PD, get IBV_WC_REM_ACCESS_ERR.
 *   one queue pair    A bound window can't be bound on another queue pair before it was unbound:
 *                     EOPNOTSUPP.
 *   queues            ibv_create_cq and ibv_create_qp get twice the entries, and some: binding a bound
 *                     window takes two. Where the device has none left, ibv_bind_mw may say ENOMEM,
 *                     once in a while with the old right ended: mw->rkey is 0 then.
 *   the rkey          is another window's after each bind: its upper 24 bits change as well. It is 0
 *                     while the window is unbound.
 *   bad binds         to a range outside of the region, to one without MW_BIND, or with rights that
 *                     the region can't give are refused by ibv_bind_mw, and cost no queue pair.
 *   ends              A right ends with its queue pair. ibv_destroy_qp, a move to RESET and
 *                     ibv_dealloc_mw return once it is gone, and with EBUSY or ETIMEDOUT if that could
 *                     not be proved; ibv_dereg_mr says EBUSY while a window is bound.
 *   giving back       A client may end its own right by SEND_WITH_INV, as with any window of Type 2: let
 *                     ibv_poll_cq see the receive queue, too.
 *   refused           RC queue pairs of ibv_create_qp and queues of ibv_create_cq only, polled by
 *                     ibv_poll_cq; no on-demand or zero-based regions. EOPNOTSUPP
 *   wake-ups          A completion channel may wake the program for a completion that is the library's:
 *                     ibv_poll_cq then finds nothing.
 *   fork              A child that was forked after the first ibv_alloc_mw has no Type 1 windows: EPERM.
 *                     Its other calls are verbs' own.
 *   mr->rkey          of a region with IBV_ACCESS_REMOTE_* stays open, and a message says so. With
 *                     MWCTL_COMPAT_STRIP_REMOTE defined the flags are left out; for programs
 *                     that never hand out mr->rkey.
 *
 * These names become macros without arguments, so that a function's address, in a table or for a
 * std::unique_ptr, is ours as well. What a program looks up by dlsym is the original. With `-include`, a
 * feature macro such as _GNU_SOURCE in a file comes too late: give it to the compiler as well.
 */
#ifndef MWCTL_COMPAT_H
#define MWCTL_COMPAT_H

#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>

#include "mwctl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a refusal or a warning says, one text at a time, from any thread. It is valid during the call.
 * The function must call neither verbs nor this library. NULL: nobody is told, as at the start. */
void mwctl_compat_on_message(void (*on_message)(void *user, const char *text), void *user);

/* This thread's last such text, "" if there was none; valid until the next call on this thread. */
const char *mwctl_compat_error(void);

/* The context behind a device's windows, opened if it is not, for mwctl_stats_get, mwctl_check,
 * mwctl_revoke_qp and the like. It is closed by ibv_close_device and not by mwctl_context_close, which
 * says BUSY. NULL with errno: EBUSY if the program has opened one itself. */
mwctl_context *mwctl_compat_context(struct ibv_context *device);

/* What stands behind the macros below. */
struct ibv_mw *mwctl_compat_alloc_mw(struct ibv_pd *pd, unsigned int type);
int mwctl_compat_dealloc_mw(struct ibv_mw *mw);
int mwctl_compat_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int mwctl_compat_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
struct ibv_mr *mwctl_compat_reg_mr(struct ibv_pd *pd, void *addr, size_t length, unsigned int access);
struct ibv_mr *mwctl_compat_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
					unsigned int access);
int mwctl_compat_dereg_mr(struct ibv_mr *mr);
struct ibv_cq *mwctl_compat_create_cq(struct ibv_context *device, int cqe, void *cq_context,
				      struct ibv_comp_channel *channel, int comp_vector);
int mwctl_compat_resize_cq(struct ibv_cq *cq, int cqe);
int mwctl_compat_destroy_cq(struct ibv_cq *cq);
struct ibv_qp *mwctl_compat_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int mwctl_compat_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
int mwctl_compat_destroy_qp(struct ibv_qp *qp);
int mwctl_compat_dealloc_pd(struct ibv_pd *pd);
int mwctl_compat_close_device(struct ibv_context *device);

static inline unsigned int ibv_mwctl_access(unsigned int access)
{
#ifdef MWCTL_COMPAT_STRIP_REMOTE
	const unsigned int remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				    IBV_ACCESS_REMOTE_ATOMIC;

	return access & ~remote;
#else
	return access;
#endif
}

#ifdef __cplusplus
#define IBV_MWCTL_UNSIGNED(access) static_cast<unsigned int>(access)
#else
#define IBV_MWCTL_UNSIGNED(access) ((unsigned int)(access))
#endif

/* Of the very types of what they replace: a program may take their addresses. */
static inline struct ibv_mr *ibv_mwctl_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return mwctl_compat_reg_mr(pd, addr, length, ibv_mwctl_access(IBV_MWCTL_UNSIGNED(access)));
}

static inline struct ibv_mr *ibv_mwctl_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
						   int access)
{
	return mwctl_compat_reg_mr_iova(pd, addr, length, iova, ibv_mwctl_access(IBV_MWCTL_UNSIGNED(access)));
}

static inline struct ibv_mr *ibv_mwctl_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
						    unsigned int access)
{
	return mwctl_compat_reg_mr_iova(pd, addr, length, iova, ibv_mwctl_access(access));
}

static inline struct ibv_mw *ibv_mwctl_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	return mwctl_compat_alloc_mw(pd, IBV_MWCTL_UNSIGNED(type));
}

#undef IBV_MWCTL_UNSIGNED

#ifdef __cplusplus
}
#endif

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#define ibv_reg_mr ibv_mwctl_reg_mr
#define ibv_reg_mr_iova ibv_mwctl_reg_mr_iova
#define ibv_reg_mr_iova2 ibv_mwctl_reg_mr_iova2
#define ibv_dereg_mr mwctl_compat_dereg_mr
#define ibv_alloc_mw ibv_mwctl_alloc_mw
#define ibv_dealloc_mw mwctl_compat_dealloc_mw
#define ibv_bind_mw mwctl_compat_bind_mw
#define ibv_poll_cq mwctl_compat_poll_cq
#define ibv_create_cq mwctl_compat_create_cq
#define ibv_resize_cq mwctl_compat_resize_cq
#define ibv_destroy_cq mwctl_compat_destroy_cq
#define ibv_create_qp mwctl_compat_create_qp
#define ibv_modify_qp mwctl_compat_modify_qp
#define ibv_destroy_qp mwctl_compat_destroy_qp
#define ibv_dealloc_pd mwctl_compat_dealloc_pd
#define ibv_close_device mwctl_compat_close_device

#endif
