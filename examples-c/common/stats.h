/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Figures from a handful of samples. */
#ifndef STATS_H
#define STATS_H

#include <stdlib.h>

static inline int stats_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Sorts the samples. */
static inline double stats_median(double *samples, size_t n)
{
	qsort(samples, n, sizeof(*samples), stats_compare);
	return n % 2 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
}

#endif
