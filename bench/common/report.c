/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Errors and demands as in the example programs. */
#include "../../examples-c/common/report.c"
