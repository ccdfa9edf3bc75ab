/*
 * base/slice.h
 *		How much a piece of work may take before others have their turn.
 */
#ifndef IDEMQ_BASE_SLICE_H
#define IDEMQ_BASE_SLICE_H

/* Of the background worker, for one chore of one queue: microseconds. */
#define SLICE_OF_CHORE INT64CONST(5000)
/* Of a session, for what a claim does for its queue before it claims. */
#define SLICE_OF_CALL INT64CONST(100000)
/* Of both: bytes of WAL. */
#define SLICE_BYTES (1024 * 1024)

typedef struct Slice
{
	int64 until;  /* mono */
	uint64 bytes; /* of WAL that this process will have written by then */
} Slice;

extern void idemq_slice_begin(Slice *slice, int64 time);
extern bool idemq_slice_is_over(const Slice *slice);

#endif
