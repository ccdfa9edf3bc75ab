/*
 * txn/growing.c
 *		Growable arrays in TopTransactionContext, for the notes of a transaction.
 *
 * They are not freed: their owner forgets the pointer when the transaction ends.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "txn/txn.h"

/* Number of elements of a new array. */
#define FIRST_ROOM 8
/*
 * An array doubles up to this number of elements, then grows by this number, and finally by an
 * eighth.
 */
#define LARGE_STEP 8192

/*
 * Returns the array with room for wanted elements of that size; it may have moved.  An array that
 * does not exist yet is NULL, with *max 0. *max: the number of elements for which there is room.
 *
 * If there is no memory, raises an error, and the array and *max do not change.  So the caller
 * makes room first, then makes a change, and then notes the change.
 *
 * A large array grows by an eighth, so at most an eighth of it is unused, and adding elements one
 * by one takes linear time.
 */
void *
idemq_grow(void *array, int *max, int64 wanted, Size size)
{
	int64 most = Min((Size) PG_INT32_MAX, MaxAllocHugeSize / size);
	int64 room = *max;

	if (wanted <= room)
		return array;
	if (wanted > most)
		ereport(ERROR, errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				errmsg("transaction changes too many jobs"), errhint("Commit more often."));
	room += Max(Max(Min(room, LARGE_STEP), room / 8), FIRST_ROOM);
	room = Min(Max(room, wanted), most);
	if (array == NULL)
		array = MemoryContextAllocHuge(TopTransactionContext, room * size);
	else
		array = repalloc_huge(array, room * size);
	*max = (int) room;
	return array;
}
