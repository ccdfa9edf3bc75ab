/*
 * shared/processes/worker_tally.c
 *		Counts of what a background worker does, in its place on the board.
 *
 * Locks: none, atomics only.  Nothing here allocates or raises.
 */
#include "postgres.h"

#include "base/base.h"
#include "shared/processes/processes.h"

const char *const idemq_chore_names[] = {
	"discover", "follow", "promote", "reap",   "recover", "due",   "remind",
	"expire",	"handle", "tick",	 "notify", "count",	  "purge",
};

StaticAssertDecl(lengthof(idemq_chore_names) == CHORE_KINDS, "each chore has a name");

/* Begins the counts of a database that has got its place. */
void
idemq_tally_init(WorkerTally *tally)
{
	pg_atomic_init_u32(&tally->doing, 0);
	pg_atomic_init_u64(&tally->last_run, 0);
	for (int i = 0; i < CHORE_KINDS; i++)
	{
		pg_atomic_init_u64(&tally->chores[i].runs, 0);
		pg_atomic_init_u64(&tally->chores[i].failures, 0);
		pg_atomic_init_u64(&tally->chores[i].busy, 0);
	}
}

/* Notes that the worker begins a chore. */
void
idemq_tally_begin(WorkerTally *tally, ChoreKind kind)
{
	pg_atomic_write_u32(&tally->doing, (uint32) kind + 1);
}

/* Notes that it has ended, well or not, after so long. */
void
idemq_tally_end(WorkerTally *tally, ChoreKind kind, bool done, int64 usecs)
{
	pg_atomic_write_u32(&tally->doing, 0);
	pg_atomic_write_u64(&tally->last_run, (uint64) idemq_mono_now());
	pg_atomic_fetch_add_u64(&tally->chores[kind].runs, 1);
	if (!done)
		pg_atomic_fetch_add_u64(&tally->chores[kind].failures, 1);
	pg_atomic_fetch_add_u64(&tally->chores[kind].busy, (uint64) Max(usecs, 0));
}
