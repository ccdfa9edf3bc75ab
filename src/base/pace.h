/*
 * base/pace.h
 *		How often this session does something for a queue that has no slot.
 */
#ifndef IDEMQ_BASE_PACE_H
#define IDEMQ_BASE_PACE_H

/* By queue, roughly: two that share an entry take turns. */
typedef struct Pace
{
	int64 next[64]; /* mono */
} Pace;

extern bool idemq_pace_is_due(Pace *pace, int32 queue_id, int64 interval);

#endif
