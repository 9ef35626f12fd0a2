/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Checksums as in the example programs. */
#include "../../examples-c/common/crc.c"
