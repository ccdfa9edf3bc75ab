/*
 * groups.pml
 *		src/shared/groups/groups.c and commit_window.c, with job/promote.c and txn/pending_groups.c: a
 *		group has one head at most, its first job by the snapshot that chose it, and is not forgotten.
 *
 * One group of three jobs, each of which is enqueued by a session of its own, and commits in any
 * order; a worker that completes the heads; two promoters: the background worker, which takes what is
 * marked, and a claim, which takes the group by its name, once.  One transaction aborts, of
 * an enqueue or a promoter.
 *
 * A commit window's least id is that of the writers in it: the C code's, of two generations, may be less.
 * Not in it: permits, rates, long names, a full table, entries that are idle, scans, changes by hand,
 * queues without a state in shared memory.
 *
 * Mutants: SNAPSHOT_FIRST (before the group is owned), RELEASE_FIRST (before the promotion is visible),
 * MARK_FIRST (before the commit), NO_AGAIN (a mark while there is a promoter is not kept), ABORT_DONE (an
 * promoter that aborts gives back a group that is done with), NO_COMMIT_WINDOW (a check does not ask for it),
 * LOW_WATER_FIRST (it reads the low-water mark before the commit window), LEAVE_FIRST (a writer leaves before it marks),
 * NO_LOWERED (what a mark has lowered while there is a promoter is not heeded).
 */
#define JOBS 3
#define KEEP 9
#define NOBODY 0
#define BIT(id) (1 << (id))

byte blocked = 0;			/* jobs, by id; as committed */
byte heads = 0;
byte made = 0;
byte done = 0;
byte ended = 0;				/* enqueues that are through */
byte commit_window = 0;			/* ids of writers in it */

byte promoter = NOBODY;		/* the entry: */
bool again = false;
bool waiting = false;
byte low_water = 0;				/* 0: none */
byte lowered = KEEP;

bool aborted = false;

#define MAY_ABORT :: atomic { !aborted -> aborted = true }
#define MIN(a, b) ((a) < (b) -> (a) : (b))
#define LEAST(set) ((set & 2) -> 1 : ((set & 4) -> 2 : ((set & 8) -> 3 : KEEP)))

/* idemq_group_mark */
inline mark(id)
{
	d_step {
		if
		:: promoter != NOBODY ->
#ifndef NO_AGAIN
			again = true;
#endif
			lowered = MIN(lowered, id)
		:: else ->
			low_water = MIN(low_water, id);
			waiting = true
		fi
	}
}

/* idemq_group_release */
inline release(me, to, wants)
{
	d_step {
		if
		:: promoter == me ->
			waiting = wants || again;
			again = false;
#ifdef NO_LOWERED
			low_water = to;
#else
			low_water = MIN(to, lowered);
#endif
			lowered = KEEP;
			promoter = NOBODY
		:: else
		fi
	}
}

proctype enqueuer(byte id)
{
	/* idemq_pending_groups_before_commit */
	commit_window = commit_window | BIT(id);
#ifdef MARK_FIRST
	mark(id);
#endif
	if
	:: atomic { blocked = blocked | BIT(id); made = made | BIT(id) };
#ifdef LEAVE_FIRST
		commit_window = commit_window & ~BIT(id);
#endif
#ifndef MARK_FIRST
		mark(id);
#endif
		commit_window = commit_window & ~BIT(id)
	MAY_ABORT;
		commit_window = commit_window & ~BIT(id)
	fi;
	ended++
}

/* Claims a head, and completes it. */
proctype finisher()
{
	do
	:: atomic { heads != 0 -> done = done | heads; heads = 0 };
		mark(KEEP)
	od
}

/* A check of a group that is owned, and the end of its transaction. */
inline check(me)
{
#ifndef SNAPSHOT_FIRST
	atomic { seen = blocked; seen_heads = heads };
#endif
	/* idemq_group_low_water */
#ifdef LOW_WATER_FIRST
	own = MIN(low_water, lowered);
	own = MIN(own, LEAST(commit_window));
#else
#ifdef NO_COMMIT_WINDOW
	least = KEEP;
#else
	least = LEAST(commit_window);
#endif
#ifdef NO_LOWERED
	own = MIN(low_water, least);
#else
	atomic { own = MIN(low_water, lowered); own = MIN(own, least) };
#endif
#endif
	/* None of the jobs that the snapshot shows is passed. */
	atomic { assert(seen_heads != 0 || own <= LEAST(seen)); least = 0; seen = seen & ~(BIT(own) - 1) };
	if
	:: seen_heads != 0 || seen == 0 ->
		/* Nothing is promoted: it is given back as it was taken. */
		release(me, taken, false)
	:: else ->
		least = LEAST(seen);
		if
		::
#ifdef RELEASE_FIRST
			release(me, least, false);
#endif
			atomic {
				assert(heads == 0);
				assert((blocked & BIT(least)) != 0);
				blocked = blocked & ~BIT(least);
				heads = heads | BIT(least)
			};
			release(me, least, false)
		MAY_ABORT;
#ifdef ABORT_DONE
			release(me, taken, false)
#else
			release(me, taken, true)
#endif
		fi
	fi;
	atomic { least = 0; own = 0; seen = 0; seen_heads = 0; taken = 0 }
}

#define LOCALS byte seen, seen_heads, own, least, taken

/* idemq_groups_take */
proctype worker()
{
	LOCALS;

	do
	:: waiting ->
#ifdef SNAPSHOT_FIRST
		atomic { seen = blocked; seen_heads = heads };
#endif
		if
		:: d_step { waiting && promoter == NOBODY -> waiting = false; promoter = 1; lowered = KEEP; taken = low_water };
			check(1)
		:: !waiting
		fi
	od
}

/* idemq_group_own */
proctype claimer()
{
	LOCALS;

#ifdef SNAPSHOT_FIRST
	atomic { seen = blocked; seen_heads = heads };
#endif
	if
	:: d_step { promoter == NOBODY -> waiting = false; promoter = 2; lowered = KEEP; taken = low_water };
		check(2)
	:: d_step { promoter != NOBODY -> again = true }
	fi
}

init
{
	atomic { run enqueuer(1); run enqueuer(2); run enqueuer(3); run finisher(); run worker(); run claimer() }
}

ltl nothing_forgotten { <> [] (ended == JOBS && done == made) }
