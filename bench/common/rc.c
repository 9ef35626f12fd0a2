/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Devices and queue pairs as in the example programs. */
#include "../../examples-c/common/rc.c"
