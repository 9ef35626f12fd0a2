// SPDX-License-Identifier: MIT OR Apache-2.0
// The same program, and with it the headers, as C++.
#include "consumer.c"
