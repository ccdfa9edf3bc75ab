/*
 * unfinished.pml
 *		src/shared/queue_states/unfinished.c with txn/pending_queues.c and job/room.c: room for a new job
 *		is given only while the limit holds, and what is counted is right when all have ended.
 *
 * One queue with a limit of 2 and one job.  Two sessions enqueue, the first also inside a savepoint; a
 * third ends the job, and enqueues by the room of it; a fourth adds a job without asking, or commits a
 * prepared transaction that has added one, which makes the count void.  Each commits or rolls back.  The
 * first that asks counts the jobs; one count may be cancelled.
 *
 * Not in it: numbers above one job, lower bounds, lives of a queue state, the patience of those that
 * wait.  Each step under the lock is one step here; the lock is held from is_counted to the snapshot.
 *
 * Mutants: SPLIT (the room is compared, then taken), GIVE_FIRST (room is given back before the commit is
 * visible), NO_ASKING (a commit does not ask whether the snapshot saw it), NOT_MEANWHILE (what commits
 * during a count is not added), FLAG_LATE (is_counted, after the snapshot), OWN_SEEN (the counting
 * transaction counts as seen), NO_PRE_COMMIT (jobs that are added without asking take no room), KEEPS
 * (an abort gives nothing back), KEEPS_SAVEPOINT (nor does a rollback to a savepoint), NOT_VOID (a count
 * goes on over COMMIT PREPARED), NO_CANCEL (a cancelled count leaves the others waiting).
 */
#define LIMIT 2
#define TXNS 4
#define ENDER 2
#define UNASKED 3

#define UNKNOWN 0
#define COUNTING 1
#define KNOWN 2

short committed = 1;			/* unfinished jobs, as any latest snapshot shows them */
short added[TXNS];			/* by each transaction, less what it has ended */
bool visible[TXNS];
bool paid[TXNS];			/* its commit is followed */
byte room[TXNS];
bool early = false;			/* UNASKED began its commit before anybody had asked, or was prepared */

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
 * What the limit holds for: what is committed, and what open transactions that ask have added.  What was
 * added unasked before anybody asked is as if it came later, until its commit is followed.
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
	/* And the new job. */
	assert(sum + (added[me] >= 0 -> 1 : 0) <= LIMIT);
	sum = 0; i = 0
}

/* room_count; the snapshot does not show what this transaction has done. */
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

/* idemq_room_for one job; takes says whether there is room. */
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
		/* In a savepoint, which is rolled back; then once more. */
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
		/* COMMIT PREPARED, of what was prepared before there was a limit. */
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
