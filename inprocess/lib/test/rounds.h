// A clock and a seeded random generator for test programs of many rounds.
#pragma once
#include <stdint.h>
#include <time.h>

static inline double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
static inline uint64_t draw(uint64_t *x) {
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x * 0x2545f4914f6cdd1dull;
}
