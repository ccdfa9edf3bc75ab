/*
 * shared/lease_beat.h
 *		What a worker says and hears of its lease: heartbeats, how far they reach, that it has
 *		ended, and cancels.
 */
#ifndef IDEMQ_SHARED_LEASE_BEAT_H
#define IDEMQ_SHARED_LEASE_BEAT_H

#include "shared/lease.h"

typedef enum LeaseBeat
{
	LEASE_BEAT_DONE,
	LEASE_BEAT_STALE,
	LEASE_BEAT_CANCELLED, /* an open transaction cancels the job */
	LEASE_BEAT_OVER,	  /* the attempt has run for as long as it may */
	LEASE_BEAT_UNKNOWN	  /* no entry: the row knows */
} LeaseBeat;

extern LeaseBeat idemq_lease_beat(int64 job_id, int64 token, int64 length);
extern void idemq_lease_hand_over(int64 job_id, int64 token, LeaseLoss loss);
extern bool idemq_lease_mark_cancel(int64 job_id, int64 token);
extern void idemq_lease_unmark_cancel(int64 job_id, int64 token);
extern bool idemq_lease_is_cancelled(int64 job_id, int64 token);

#endif
