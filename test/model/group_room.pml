/*
 * group_room.pml
 *		src/shared/groups/group_room.c with txn/pending_group_room.c and job/group_room.c: a transaction
 *		may add a job to a group only if the limit then holds, and no entry is left when all have ended.
 *
 * One group with a limit of 2 and one job.  Two sessions enqueue twice, the first also inside a
 * savepoint; a third ends the job, and enqueues two jobs at once, or one by the room of the job that it
 * has ended, or none; a fourth adds a job without asking.  Each commits or rolls back.  The second may
 * have added a job before it knew of the limit: that is not noted, and is counted when it asks.
 *
 * The model leaves out other groups, which share only the locks of partitions; the size of the table;
 * and enqueues of more than two jobs.  Everything that happens while a partition's lock is held is one
 * step here, and so is taking a snapshot.
 *
 * Mutants: SNAPSHOT_FIRST (the snapshot is taken before the room), SPLIT (the sum is read, then the room
 * added), GIVE_FIRST (room is given back before the commit is visible), OWN_SEEN (the snapshot shows what
 * the counting transaction has done), GIVE_ALL (a refused enqueue gives back all room that its
 * transaction has), KEEPS_REFUSED (it gives nothing back), KEEPS (an abort gives nothing back),
 * KEEPS_SAVEPOINT (nor does a rollback to a savepoint), NO_ROOM (an enqueue compares, but takes nothing),
 * OPEN_ONLY (the committed jobs are not counted), NOT_CORRECTED (what was not noted is not counted),
 * NOT_OWN (only whether it fits is asked then, and nothing is corrected).
 */
#define LIMIT 2
#define TXNS 4
#define ENDER 2
#define LATE 1
#define UNASKED 3

short committed = 1;		/* unfinished jobs of the group, as any latest snapshot shows them */
short added[TXNS];			/* by each transaction, less what it has ended */
short noted[TXNS];			/* what it knows of that */
short granted[TXNS];		/* the most that it was allowed to have added */
bool misses[TXNS];			/* it has not noted all */
short unasked_of[TXNS];		/* jobs that it has added, and had no room for when it committed */
bool visible[TXNS];
byte room[TXNS];
short sum = 0;				/* in the entry */
byte ended = 0;

/*
 * What the limit holds for: what is committed, but for jobs added unasked that became visible after this
 * enqueue began to ask, and what open transactions have added, if they were allowed to; and the new jobs.
 */
inline check_limit(me, jobs)
{
	total = committed - (visible[UNASKED] && !saw_unasked -> 1 : 0) - (visible[LATE] && !saw_late -> unasked_of[LATE] : 0);
	i = 0;
	do
	:: i < UNASKED ->
		if
		:: i != me && !visible[i] && added[i] > 0 -> total = total + (added[i] < granted[i] -> added[i] : granted[i])
		:: else
		fi;
		i++
	:: else -> break
	od;
	total = total + (added[me] + jobs > 0 -> added[me] + jobs : 0);
	assert(total <= LIMIT);
	total = 0; i = 0
}

inline take_snapshot(me)
{
	d_step {
#ifdef OPEN_ONLY
		count = 0;
#else
		count = committed;
#endif
#ifdef OWN_SEEN
		count = count + added[me];
#endif
	}
}

/* ask_correct: sets no_room unless the group has room for the jobs, as the transaction itself sees it. */
inline correct(me, jobs)
{
	d_step {
		no_room = committed + added[me] + jobs > LIMIT;
#ifndef NOT_OWN
		if
		:: !no_room -> noted[me] = (committed <= LIMIT + 1 -> added[me] : committed + added[me] - (LIMIT + 1))
		:: else
		fi
#endif
	}
}

/* idemq_group_rooms_for some jobs; sets takes to whether there is room. */
inline ask(me, jobs)
{
	no_room = false;
#ifndef NOT_CORRECTED
	if
	:: misses[me] -> correct(me, jobs)
	:: else
	fi;
#endif
	lacks = (noted[me] + jobs > room[me] -> noted[me] + jobs - room[me] : 0);
	if
	:: no_room -> takes = false
	:: !no_room && lacks == 0 -> takes = true
	:: else ->
		/* What comes without asking from here on may come after this enqueue. */
		atomic { saw_unasked = visible[UNASKED]; saw_late = visible[LATE] };
#ifdef SNAPSHOT_FIRST
		take_snapshot(me);
#endif
#ifdef SPLIT
		seen = sum + lacks;
		atomic { sum = sum + lacks; room[me] = room[me] + lacks };
#else
#ifdef NO_ROOM
		seen = sum + lacks; room[me] = room[me] + lacks;
#else
		atomic { sum = sum + lacks; room[me] = room[me] + lacks; seen = sum };
#endif
#endif
#ifndef SNAPSHOT_FIRST
		take_snapshot(me);
#endif
		if
		:: count + seen <= LIMIT -> atomic { takes = true; check_limit(me, jobs) }
		:: else ->
			takes = false;
#ifndef KEEPS_REFUSED
#ifdef GIVE_ALL
			atomic { sum = sum - room[me]; room[me] = 0 }
#else
			atomic { sum = sum - lacks; room[me] = room[me] - lacks }
#endif
#else
			room[me] = room[me] - lacks
#endif
		fi;
		atomic { count = 0; seen = 0; saw_unasked = false; saw_late = false }
	fi;
	if
	:: takes -> atomic { added[me] = added[me] + jobs; noted[me] = noted[me] + jobs; granted[me] = added[me] }
	:: else
	fi;
	lacks = 0; no_room = false
}

inline give_back(me)
{
#ifdef NO_ROOM
	room[me] = 0
#else
	atomic { sum = sum - room[me]; room[me] = 0 }
#endif
}

/* The end of a transaction: txn/at_end.c. */
inline end_transaction(me)
{
	takes = false;
	if
	:: true ->
#ifdef GIVE_FIRST
		give_back(me);
#endif
		atomic {
			visible[me] = true; committed = committed + added[me];
			unasked_of[me] = (added[me] > room[me] -> added[me] - room[me] : 0)
		};
		give_back(me)
	:: true ->
		added[me] = 0;
#ifndef KEEPS
		give_back(me)
#endif
	fi;
	ended++
}

proctype enqueuer(byte me)
{
	bool takes = false, no_room = false, saw_unasked = false, saw_late = false;
	short total = 0, count = 0, seen = 0, lacks = 0;
	byte i = 0;

	if
	:: me == 0 ->
		/* Inside a savepoint, which is rolled back. */
		ask(me, 1);
		atomic { added[me] = 0; noted[me] = 0; granted[me] = 0 };
#ifdef KEEPS_SAVEPOINT
		room[me] = 0
#else
		give_back(me)
#endif
	:: me == LATE -> atomic { added[me] = 1; misses[me] = true }
	:: me == LATE -> skip
	:: else
	fi;
	ask(me, 1);
	ask(me, 1);
	end_transaction(me)
}

proctype ender()
{
	bool takes = false, no_room = false, saw_unasked = false, saw_late = false;
	short total = 0, count = 0, seen = 0, lacks = 0;
	byte i = 0;

	atomic { added[ENDER] = -1; noted[ENDER] = -1 };
	if
	:: true ->
		ask(ENDER, 2);
		if
		:: !takes ->
			ask(ENDER, 1);
			/* The room of the job that it has ended is its own. */
			assert(takes)
		:: else
		fi
	:: true -> skip
	fi;
	end_transaction(ENDER)
}

proctype unasked()
{
	added[UNASKED] = 1;
	if
	:: true -> atomic { visible[UNASKED] = true; committed++ }
	:: true -> added[UNASKED] = 0
	fi;
	ended++
}

init
{
	atomic { run enqueuer(0); run enqueuer(1); run ender(); run unasked() };
	ended == TXNS;
	assert(sum == 0)
}
