/*
 * base/jitter.h
 *		Sleeps at random where another session may come in between, for tests: built
 *		with -DIDEMQ_JITTER alone (make chaos), nothing at all otherwise.
 *
 * It stands between what is visible and what shared memory knows of it.  No lock of ours
 * is held there; interrupts may be.
 */
#ifndef IDEMQ_BASE_JITTER_H
#define IDEMQ_BASE_JITTER_H

#ifdef IDEMQ_JITTER
#include "miscadmin.h"

/* Once in eight times, up to 2 ms; once in 128, up to 32 ms. */
static inline void
idemq_jitter(void)
{
	static uint32 state = 0;
	uint32 dice;

	if (state == 0)
		state = (uint32) MyProcPid * 2654435761u | 1;
	state = state * 1664525u + 1013904223u;
	dice = state >> 8;
	if (dice % 8 == 0)
		pg_usleep((dice >> 7) % (dice % 128 == 0 ? 32000 : 2000));
}
#else
#define idemq_jitter() ((void) 0)
#endif

#endif
