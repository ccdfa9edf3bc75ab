/*
 * base/pace.c
 *		How often this session does something for a queue that has no slot in shared
 *		memory, where a time would be kept otherwise.
 */
#include "postgres.h"

#include "base/base.h"

/*
 * Returns whether it is time to do it for a queue, and if so notes that it is done:
 * the next time is after interval, in microseconds.
 */
bool
idemq_pace_is_due(Pace *pace, int32 queue_id, int64 interval)
{
	int64 *next = &pace->next[queue_id % lengthof(pace->next)];
	int64 now = idemq_mono_now();

	if (now < *next)
		return false;
	*next = now + interval;
	return true;
}
