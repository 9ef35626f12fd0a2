/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Its windows. */
#include "../../examples-c/common/rpc_windows.c"
