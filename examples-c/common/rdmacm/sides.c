/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "sides.h"

#include <getopt.h>
#include <stdio.h>

#include "../crc.h"
#include "../report.h"
#include "mwctl_sim.h"

#define TIME_LIMIT 120 /* seconds, whatever happens */

static int usage(FILE *to, int status, const struct sides *sides)
{
	fprintf(to,
		"usage: %s                                     %s and %s in one process\n"
		"       %s --listen ADDRESS                    %s, by rdma_cm\n"
		"       %s --connect ADDRESS [--from ADDRESS]  %s, by rdma_cm\n\n"
		"Ends with 0 if %s; 77 if it can't run here.\n",
		sides->name, sides->server, sides->clients, sides->name, sides->server, sides->name,
		sides->clients, sides->outcome);
	return status;
}

/* The device in the process knows which rule of verbs was broken, if any. */
static void check_rules(void)
{
	struct mwctl_sim_misuse misuse;

	while (mwctl_sim_present() && mwctl_sim_misuse_next(&misuse, sizeof(misuse)))
		demand(false, "rule %u: %s", misuse.rule, misuse.text);
}

int sides_main(int argc, char **argv, const struct sides *sides)
{
	static const struct option longs[] = {
		{ "listen", required_argument, NULL, 'l' },
		{ "connect", required_argument, NULL, 'c' },
		{ "from", required_argument, NULL, 'f' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	const char *listen = NULL, *connect = NULL, *from = NULL;
	int which;

	while ((which = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (which) {
		case 'l':
			listen = optarg;
			break;
		case 'c':
			connect = optarg;
			break;
		case 'f':
			from = optarg;
			break;
		case 'h':
			return usage(stdout, 0, sides);
		default:
			return usage(stderr, 2, sides);
		}
	}
	if (optind < argc || (listen && connect) || (from && !connect))
		return usage(stderr, 2, sides);
	setvbuf(stdout, NULL, _IOLBF, 0);
	time_limit(TIME_LIMIT);
	crc32c_init();
	if (listen)
		sides->only_server(listen);
	else if (connect)
		sides->only_clients(from, connect);
	else
		sides->in_one_process();
	check_rules();
	return demands_failed() ? 1 : 0;
}
