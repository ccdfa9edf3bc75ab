/*
 * txn/growing.c
 *		Arrays in TopTransactionContext that grow, for the notes of a transaction.
 *
 * Nobody frees them: their owner forgets the pointer when the transaction ends.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "txn/txn.h"

/* Elements of a new array. */
#define FIRST_ROOM 8
/* An array doubles until it has so many elements, then gets so many more, then an eighth. */
#define LARGE_STEP 8192

/*
 * Returns the array with room for wanted elements of that size; it may have moved.
 * NULL, with *max 0, is an array that does not exist yet.  *max: how many elements
 * there is room for.
 *
 * Raises an error when there is no memory: then the array and *max are as before.
 * So the caller makes room first, then does what it has to note, then notes it.
 *
 * A large array grows by an eighth, so that no more of it is empty, and adding
 * elements one by one takes linear time.
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
