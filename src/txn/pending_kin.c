/*
 * txn/pending_kin.c
 *		Jobs with parents or children that this transaction's commit marks (shared/groups/kin.c):
 *		children that it blocks.
 *
 * They are marks like those of groups, which txn/pending_groups.c keeps, under a name that
 * no group has.  Parents that it ends are among its actions (txn/pending_action.c).
 */
#include "postgres.h"

#include "access/htup_details.h" /* varatt.h, which is part of postgres.h before 16 */

#include "txn/txn.h"

/* Notes that a job is to be marked after the commit. */
void
idemq_pending_kin_note(QueueSlot *slot, int32 queue_id, KinMark mark, int64 job_id)
{
	union
	{
		int32 header; /* for the alignment of a text */
		char bytes[VARHDRSZ + KIN_NAME];
	} name;

	SET_VARSIZE(name.bytes, VARHDRSZ + KIN_NAME);
	idemq_kin_name(name.bytes + VARHDRSZ, mark, job_id);
	idemq_pending_groups_note(slot, queue_id, PointerGetDatum(name.bytes), GROUP_KEEP_FLOOR);
}

/* Notes that a child is blocked by its parents, and to be looked at after the commit. */
void
idemq_pending_kin_note_blocked(QueueSlot *slot, int32 queue_id, int64 job_id)
{
	idemq_pending_kin_note(slot, queue_id, KIN_CHILD, job_id);
	idemq_pending_kin_note(slot, queue_id, KIN_FAILURE, job_id);
}
