/*
 * group_room.pml
 *		src/shared/groups/group_room.c with txn/pending_group_room.c and job/group_room.c: room for a new
 *		job of a group is given only while the limit holds, and none is left when all have ended.
 *
 * One group with a limit of 2 and one job.  Two sessions enqueue twice, the first also inside a
 * savepoint; a third ends the job, and enqueues two jobs at once, or one by the room of the job that it
 * has ended; a fourth adds a job without asking.  Each commits or rolls back.
 *
 * Not in it: jobs that a transaction has added before it knew of the limit, which it counts itself; other groups, which share nothing but the locks of partitions; the size of the table; numbers
 * above two jobs.  Each step under a partition's lock is one step here, and so is a snapshot.
 *
 * Mutants: SNAPSHOT_FIRST (the snapshot is taken before the room), SPLIT (the sum is read, then the room
 * added), GIVE_FIRST (room is given back before the commit is visible), OWN_SEEN (the snapshot shows what
 * the counting transaction has done), GIVE_ALL (a refused enqueue gives back all room that its
 * transaction has), KEEPS_REFUSED (it gives nothing back), KEEPS (an abort gives nothing back),
 * KEEPS_SAVEPOINT (nor does a rollback to a savepoint), NO_ROOM (an enqueue compares, but takes nothing),
 * OPEN_ONLY (the committed jobs are not counted).
 */
#define LIMIT 2
#define TXNS 4
#define ENDER 2
#define UNASKED 3

short committed = 1;		/* unfinished jobs of the group, as any latest snapshot shows them */
short added[TXNS];			/* by each transaction, less what it has ended */
bool visible[TXNS];
byte room[TXNS];
short sum = 0;				/* of the entry */
byte ended = 0;

/*
 * What the limit holds for: what is committed, but for a job added unasked that this snapshot does not
 * show, and what open transactions have added; and the new jobs.
 */
inline check_limit(me, jobs)
{
	total = committed - (visible[UNASKED] && !saw_unasked -> 1 : 0);
	i = 0;
	do
	:: i < UNASKED ->
		if
		:: i != me && !visible[i] && added[i] > 0 -> total = total + added[i]
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
		saw_unasked = visible[UNASKED]
	}
}

/* idemq_group_room_for some jobs; takes says whether there is room. */
inline ask(me, jobs)
{
	lacks = (added[me] + jobs > room[me] -> added[me] + jobs - room[me] : 0);
	if
	:: lacks == 0 -> takes = true
	:: else ->
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
		atomic { count = 0; seen = 0; saw_unasked = false }
	fi;
	if
	:: takes -> added[me] = added[me] + jobs
	:: else
	fi;
	lacks = 0
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
		atomic { visible[me] = true; committed = committed + added[me] };
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
	bool takes = false, saw_unasked = false;
	short total = 0, count = 0, seen = 0, lacks = 0;
	byte i = 0;

	if
	:: me == 0 ->
		/* In a savepoint, which is rolled back. */
		ask(me, 1);
		added[me] = 0;
#ifdef KEEPS_SAVEPOINT
		room[me] = 0
#else
		give_back(me)
#endif
	:: else
	fi;
	ask(me, 1);
	ask(me, 1);
	end_transaction(me)
}

proctype ender()
{
	bool takes = false, saw_unasked = false;
	short total = 0, count = 0, seen = 0, lacks = 0;
	byte i = 0;

	added[ENDER] = -1;
	ask(ENDER, 2);
	if
	:: !takes ->
		ask(ENDER, 1);
		/* The room of the job that it has ended is its own. */
		assert(takes)
	:: else
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
