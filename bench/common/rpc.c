/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The RPC server of the example. */
#include "../../examples-c/common/rpc.c"
