/*
 * base/backoff.h
 *		How long a failed job waits for its next attempt: arithmetic only.
 */
#ifndef IDEMQ_BASE_BACKOFF_H
#define IDEMQ_BASE_BACKOFF_H

extern int64 idemq_backoff(int64 base, double factor, int64 max, double jitter, int attempt,
						   double uniform);

#endif
