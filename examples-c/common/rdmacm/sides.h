/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The three ways to run a program that is a server with its clients. */
#ifndef SIDES_H
#define SIDES_H

struct sides {
	const char *name;         /* the program's */
	const char *server, *clients;
	const char *outcome;      /* what exit status 0 says */
	void (*in_one_process)(void);
	void (*only_server)(const char *address);
	void (*only_clients)(const char *from, const char *to); /* `from` may be NULL */
};

/* Reads the command line, runs, and returns the exit status: 0 if all demands held. */
int sides_main(int argc, char **argv, const struct sides *sides);

#endif
