/*
 * unfinished.pml
 *		src/shared/counts/unfinished.c with txn/pending_queues.c and job/room.c: a transaction gets
 *		room for a new job only if the limit then holds, and the count is right when all have ended.
 *
 * One queue has a limit of 2, and one job.  Two sessions enqueue, the first also inside a savepoint.  A
 * third ends the job, and enqueues with its room.  A fourth adds a job without asking, or commits a
 * prepared transaction that has added one, which makes the count void.  Each session commits or rolls
 * back.  The first session that asks counts the jobs; one count may be cancelled.
 *
 * The model leaves out enqueues of more than one job, lower bounds, lives of a queue state, and the
 * timeout of waiting sessions.  Everything that happens while the lock is held is one step here; the
 * lock is held from setting is_counted until the snapshot is taken.
 *
 * Mutants: SPLIT (room is compared in one step and taken in another), GIVE_FIRST (room is given back
 * before the commit is visible), NO_ASKING (a commit does not check whether the snapshot saw it),
 * NOT_MEANWHILE (jobs that are committed during a count are not added), FLAG_LATE (is_counted is set
 * after the snapshot), OWN_SEEN (the snapshot counts as having seen the counting transaction),
 * NO_PRE_COMMIT (jobs that are added without asking take no room), KEEPS (an abort does not give room
 * back), KEEPS_SAVEPOINT (a rollback to a savepoint does not give room back), NOT_VOID (a count
 * continues despite COMMIT PREPARED), NO_CANCEL (a cancelled count leaves the others waiting).
 */
#define LIMIT 2
#define TXNS 4
#define ENDER 2
#define UNASKED 3

#define UNKNOWN 0
#define COUNTING 1
#define KNOWN 2

short committed = 1;			/* unfinished jobs, as any latest snapshot shows them */
short added[TXNS];			/* by each transaction, less those that it has ended */
bool visible[TXNS];
bool paid[TXNS];			/* its commit has been applied to the count */
byte room[TXNS];
bool early = false;			/* UNASKED began its commit before any session asked, or was prepared */

bool locked = false;
bool is_counted = false;
byte state = UNKNOWN;
bool is_void = false;
bool saw[TXNS];
short jobs = 0;
byte taken = 0;

bool cancelled = false;
byte ended = 0;

/*
 * The number that must not exceed the limit: committed jobs, and those added by open transactions that
 * ask.  Jobs that were added without asking before any session asked do not count until their commit
 * has been applied to the count.
 */
inline check_limit(me)
{
	sum = committed - (early && visible[UNASKED] && !paid[UNASKED] && !saw[UNASKED] -> 1 : 0);
	i = 0;
	do
	:: i < UNASKED ->
		if
		:: !visible[i] && added[i] > 0 -> sum = sum + added[i]
		:: else
		fi;
		i++
	:: else -> break
	od;
	/* Includes the new job. */
	assert(sum + (added[me] >= 0 -> 1 : 0) <= LIMIT);
	sum = 0; i = 0
}

/* room_count; the snapshot does not show the changes of this transaction. */
inline count_jobs(me)
{
	atomic {
		!locked ->
		if
		:: state == UNKNOWN -> locked = true; counts = true
		:: else
		fi
	};
	if
	:: counts ->
#ifndef FLAG_LATE
		is_counted = true;
#endif
		d_step {
			i = 0;
			do
			:: i < TXNS -> saw[i] = visible[i]; i++
			:: else -> break
			od;
			i = 0;
#ifdef OWN_SEEN
			saw[me] = true;
#endif
			found = committed; jobs = 0; is_void = false; state = COUNTING
		};
#ifdef FLAG_LATE
		is_counted = true;
#endif
		locked = false;
		if
		:: atomic { !cancelled -> cancelled = true };
#ifndef NO_CANCEL
			atomic { !locked -> state = UNKNOWN }
#endif
		:: atomic {
				!locked ->
#ifndef NOT_VOID
				state = (is_void -> UNKNOWN : KNOWN);
#else
				state = KNOWN;
#endif
				jobs = jobs + found
			}
		fi;
		atomic { found = 0; counts = false }
	:: else
	fi
}

/* idemq_room_for one job; sets takes to whether there is room. */
inline take_room(me)
{
	takes = false;
	if
	:: added[me] + 1 <= room[me] -> takes = true
	:: else ->
		do
		:: atomic { !locked && state == UNKNOWN -> skip }; count_jobs(me)
#ifdef SPLIT
		:: atomic { !locked && state == KNOWN && jobs + taken + 1 <= LIMIT -> skip };
			atomic { !locked -> taken++; room[me]++; takes = true; check_limit(me) }; break
#else
		:: atomic { !locked && state == KNOWN && jobs + taken + 1 <= LIMIT ->
				taken++; room[me]++; takes = true; check_limit(me) }; break
#endif
		:: atomic { !locked && state == KNOWN && jobs + taken + 1 > LIMIT -> break }
		od
	fi
}

inline give_back(me, count)
{
	atomic { !locked -> taken = taken - count; room[me] = room[me] - count }
}

/* The end of a transaction: txn/at_end.c. */
inline end_transaction(me)
{
	if
	:: true ->
		if
		:: added[me] > room[me] ->
			atomic {
				!locked ->
				if
				:: !is_counted -> early = true
#ifndef NO_PRE_COMMIT
				:: else -> taken = taken + added[me] - room[me]; room[me] = added[me]
#else
				:: else
#endif
				fi
			}
		:: else
		fi;
#ifdef GIVE_FIRST
		give_back(me, room[me]);
#endif
		atomic { visible[me] = true; committed = committed + added[me] };
		if
		:: room[me] > 0 || is_counted ->
			atomic {
				!locked ->
				taken = taken - room[me]; room[me] = 0;
				if
#ifdef NO_ASKING
				:: state != UNKNOWN -> jobs = jobs + added[me]
#else
#ifdef NOT_MEANWHILE
				:: state == KNOWN && !saw[me] -> jobs = jobs + added[me]
#else
				:: state != UNKNOWN && !saw[me] -> jobs = jobs + added[me]
#endif
#endif
				:: else
				fi;
				paid[me] = true
			}
		:: else -> paid[me] = true
		fi
	:: true ->
		added[me] = 0;
#ifndef KEEPS
		give_back(me, room[me])
#endif
	fi;
	ended++
}

proctype enqueuer(byte me)
{
	bool takes = false, counts = false;
	short sum = 0, found = 0;
	byte i = 0;

	take_room(me);
	if
	:: takes && me == 0 ->
		/* Inside a savepoint, which is rolled back; then once more. */
#ifndef KEEPS_SAVEPOINT
		give_back(me, 1);
#else
		room[me] = 0;
#endif
		take_room(me)
	:: else
	fi;
	if
	:: takes -> added[me]++
	:: else
	fi;
	takes = false;
	end_transaction(me)
}

proctype ender()
{
	bool takes = false, counts = false;
	short sum = 0, found = 0;
	byte i = 0;

	added[ENDER] = -1;
	take_room(ENDER);
	if
	:: takes -> added[ENDER]++
	:: else
	fi;
	takes = false;
	end_transaction(ENDER)
}

proctype unasked()
{
	added[UNASKED] = 1;
	if
	:: end_transaction(UNASKED)
	:: atomic { early = true; visible[UNASKED] = true; committed++ };
		/* COMMIT PREPARED of a transaction that was prepared before the limit was set. */
		atomic {
			!locked ->
			paid[UNASKED] = true;
			if
			:: state == COUNTING -> is_void = true
			:: else -> state = UNKNOWN
			fi
		};
		ended++
	fi
}

init
{
	atomic { run enqueuer(0); run enqueuer(1); run ender(); run unasked() };
	ended == TXNS;
	assert(taken == 0);
	assert(state != COUNTING);
	assert(state != KNOWN || jobs == committed)
}
