/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* How a program says what went wrong. */
#ifndef REPORT_H
#define REPORT_H

#include <stdbool.h>

#define REPORT_FORMAT(at) __attribute__((format(printf, at, at + 1)))

/* The program can't go on: a setup that must succeed did not. Exits with 1. */
_Noreturn void die(const char *format, ...) REPORT_FORMAT(1);

/* The program can't run here, for instance for lack of a device. Exits with 77. */
_Noreturn void skip(const char *format, ...) REPORT_FORMAT(1);

/* What the program exists to show. If it does not hold, says so and goes on. Returns `holds`. */
bool demand(bool holds, const char *format, ...) REPORT_FORMAT(2);

/* Demands that did not hold so far. */
int demands_failed(void);

/* From now on the program has so many seconds; then it dies, wherever it is. */
void time_limit(unsigned int seconds);

/* Dies unless a libmwctl call returned MWCTL_STATUS_OK. */
void must(int status, const char *what);

#endif
