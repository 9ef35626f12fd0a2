/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "report.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "mwctl.h"

static atomic_int failed;

static void line(const char *prefix, const char *format, va_list args)
{
	fflush(stdout);
	flockfile(stderr);
	fputs(prefix, stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	funlockfile(stderr);
}

_Noreturn static void leave(int status)
{
	fflush(stdout);
	/* Other threads are in the middle of their work: no destructors under them. */
	_Exit(status);
}

void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	line("error: ", format, args);
	va_end(args);
	leave(1);
}

void skip(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	line("skipped: ", format, args);
	va_end(args);
	leave(77);
}

bool demand(bool holds, const char *format, ...)
{
	va_list args;

	if (holds)
		return true;
	va_start(args, format);
	line("FAILED: ", format, args);
	va_end(args);
	atomic_fetch_add(&failed, 1);
	return false;
}

int demands_failed(void)
{
	return atomic_load(&failed);
}

static void too_late(int signal)
{
	static const char text[] = "error: the time limit was reached\n";

	(void)signal;
	/* Of what there is in C, a signal handler may call little more than these. */
	_exit(write(STDERR_FILENO, text, sizeof(text) - 1) < 0 ? 2 : 1);
}

void time_limit(unsigned int seconds)
{
	signal(SIGALRM, too_late);
	alarm(seconds);
}

void must(int status, const char *what)
{
	if (status != MWCTL_STATUS_OK)
		die("%s: %s (%d)", what, mwctl_status_text(status), status);
}
