/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Older versions of libibverbs' symbols.
 *
 * The version map gives every symbol its default version. Where the real library has an older
 * one besides, for programs built for libibverbs 1.0 with other structures, it is bound here, to an
 * answer that counts the call and says "not supported". So both libraries have the same
 * symbols under the same versions, and a program linked against this one asks the real one for
 * the right version later.
 */
#include <stdint.h>

int libibverbs_old_errno(const char *name);
int libibverbs_old_minus_one(const char *name);
void *libibverbs_old_null(const char *name);
uint64_t libibverbs_old_zero(const char *name);
void libibverbs_old_nothing(const char *name);

#define BIND(name, node) __asm__(".symver old_" #name ", " #name "@" node)

#define OLD(type, answer, name)                                      \
	BIND(name, "IBVERBS_1.0");                                   \
	type old_##name(void);                                       \
	type old_##name(void)                                        \
	{                                                            \
		return libibverbs_old_##answer(#name "@IBVERBS_1.0"); \
	}

#define OLD_NOTHING(name, node)                             \
	BIND(name, node);                                   \
	void old_##name(void);                              \
	void old_##name(void)                               \
	{                                                   \
		libibverbs_old_nothing(#name "@" node);     \
	}

OLD_NOTHING(ibv_ack_async_event, "IBVERBS_1.0")
OLD_NOTHING(ibv_ack_cq_events, "IBVERBS_1.0")
OLD_NOTHING(ibv_free_device_list, "IBVERBS_1.0")
OLD_NOTHING(ibv_register_driver, "IBVERBS_1.1")

OLD(void *, null, ibv_alloc_pd)
OLD(void *, null, ibv_create_ah)
OLD(void *, null, ibv_create_cq)
OLD(void *, null, ibv_create_qp)
OLD(void *, null, ibv_create_srq)
OLD(void *, null, ibv_get_device_list)
OLD(void *, null, ibv_get_device_name)
OLD(void *, null, ibv_open_device)
OLD(void *, null, ibv_reg_mr)

OLD(uint64_t, zero, ibv_get_device_guid)

OLD(int, minus_one, ibv_get_async_event)
OLD(int, minus_one, ibv_get_cq_event)
OLD(int, minus_one, ibv_query_gid)
OLD(int, minus_one, ibv_query_pkey)

OLD(int, errno, ibv_attach_mcast)
OLD(int, errno, ibv_close_device)
OLD(int, errno, ibv_dealloc_pd)
OLD(int, errno, ibv_dereg_mr)
OLD(int, errno, ibv_destroy_ah)
OLD(int, errno, ibv_destroy_cq)
OLD(int, errno, ibv_destroy_qp)
OLD(int, errno, ibv_destroy_srq)
OLD(int, errno, ibv_detach_mcast)
OLD(int, errno, ibv_modify_qp)
OLD(int, errno, ibv_modify_srq)
OLD(int, errno, ibv_query_device)
OLD(int, errno, ibv_query_port)
OLD(int, errno, ibv_query_qp)
OLD(int, errno, ibv_query_srq)
OLD(int, errno, ibv_resize_cq)
