/*
 * group_room.pml
 *		src/shared/groups/group_room.c with txn/pending_group_room.c and job/group_room.c: a transaction
 *		may add a job to a group only if the limit then holds, and no entry is left when all have ended.
 *
 * One group has a limit of 2, and one job.  Two sessions enqueue twice, the first also inside a
 * savepoint.  A third ends the job, and enqueues two jobs at once, or one job with the room of the job
 * that it has ended.  A fourth adds a job without asking.  Each session commits or rolls back.
 *
 * The model leaves out other groups, which share only the locks of partitions; the size of the table;
 * and enqueues of more than two jobs.  Everything that happens while a partition's lock is held is one
 * step here, and so is taking a snapshot.
 *
 * Mutants: SNAPSHOT_FIRST (the snapshot is taken before the room), SPLIT (the sum is read in one step,
 * and the room added in another), GIVE_FIRST (room is given back before the commit is visible),
 * OWN_SEEN (the snapshot shows the changes of the counting transaction), GIVE_ALL (a refused enqueue
 * gives back all room of its transaction), KEEPS_REFUSED (a refused enqueue gives no room back), KEEPS
 * (an abort gives no room back), KEEPS_SAVEPOINT (a rollback to a savepoint gives no room back), NO_ROOM
 * (an enqueue compares, but takes no room), OPEN_ONLY (the committed jobs are not counted).
 */
#define LIMIT 2
#define TXNS 4
#define ENDER 2
#define UNASKED 3

short committed = 1;		/* unfinished jobs of the group, as any latest snapshot shows them */
short added[TXNS];			/* by each transaction, less those that it has ended */
bool visible[TXNS];
byte room[TXNS];
short sum = 0;				/* in the entry */
byte ended = 0;

/*
 * The number that must not exceed the limit: committed jobs, except one that was added without asking
 * and that this snapshot does not show; those added by open transactions; and the new jobs.
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

/* idemq_group_rooms_for some jobs; sets takes to whether there is room. */
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
		/* Inside a savepoint, which is rolled back. */
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
		/* The transaction may use the room of the job that it has ended. */
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
