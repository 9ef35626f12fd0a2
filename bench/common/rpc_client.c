/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Its clients. */
#include "../../examples-c/common/rpc_client.c"
