/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Prints the version of the header, of the library and of the device in the process, a line each. */
#include <mwctl.h>
#include <mwctl_sim.h>
#include <stdio.h>

static void print(const char *what, uint32_t version)
{
	printf("%s %u.%u.%u\n", what, version / 1000000, version / 1000 % 1000, version % 1000);
}

int main(void)
{
	print("header", MWCTL_VERSION);
	print("library", mwctl_version());
	if (mwctl_sim_present())
		print("sim", mwctl_sim_version());
	return 0;
}
