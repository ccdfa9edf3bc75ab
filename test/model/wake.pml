/*
 * wake.pml
 *		src/shared/waiters/wake.c and src/api/wait.c: no signal is lost, and none that a waiter
 *		leaves unanswered.
 *
 * Two waiters of one queue, each of which waits, claims, and one of which waits again; two wakers,
 * one with two jobs and one signal, as after an abort, the other with one job.  What a waker commits
 * stands in its store buffer until its barrier, or until any time before.  One waiter is cancelled
 * or ended, at any step of its wait.
 *
 * Not in it: the worker's nets (DUE_SIGNAL), what comes due by time, waits for several queues or
 * a result, timeouts.
 *
 * Mutants: NO_BARRIER (waker's 2), CHECK_FIRST (waiter's 1 and 2 the other way round), LATCH_FIRST
 * (waker's 3 and 4), COUNT_LATE (waiter's 1), RESET_LATE (waiter's 4), NO_PASS (leave passes no
 * signal on), NOT_OWED (it passes on only what came after the last look), NO_NEXT_SIGNAL (a claim that
 * leaves a job wakes nobody).
 */
#define WAKERS 2
#define MADE 3
#define WAITERS 2

byte made = 0;				/* jobs that any snapshot sees: by all */
byte taken = 0;				/* of them: claimed */
bool buffered[WAKERS];		/* a commit that its processor alone knows */
byte count = 0;
bool bits[WAITERS];
bool latch[WAITERS];
byte sessions = WAITERS;	/* that wait, or will */
bool cancelled = false;

#define JOBS (made - taken)

/* wake_word(max 1), of one word, by whoever has passed its barrier. */
inline wake_one(i)
{
	if
	:: count == 0 -> skip
	:: else ->
		atomic { seen[0] = bits[0]; seen[1] = bits[1]; i = 0 }
		do
		:: i == WAITERS -> break
		:: i < WAITERS && !seen[i] -> i++
		:: i < WAITERS && seen[i] ->
#ifdef LATCH_FIRST
			latch[i] = true;
#endif
			if
			:: atomic { bits[i] -> bits[i] = false };
				atomic { assert(count > 0); count-- };
#ifndef LATCH_FIRST
				latch[i] = true;
#endif
				break
			:: atomic { !bits[i] -> i++ }
			fi
		od;
		atomic { seen[0] = false; seen[1] = false; i = 0 }
	fi
}

/* idemq_waiters_join; owes: whether a signal came that no check has followed. */
inline join(me, owes)
{
#ifndef COUNT_LATE
	count++;
#endif
	if
	:: atomic { bits[me] -> skip };
		count--
	:: atomic { !bits[me] -> bits[me] = true };
		owes = joined;
		joined = true
	fi;
#ifdef COUNT_LATE
	count++;
#endif
}

/* leave of api/wait.c. */
inline leave(me, i)
{
	if
	:: atomic { bits[me] -> bits[me] = false };
		count--;
#ifndef NOT_OWED
		pass = owed
#else
		pass = false
#endif
	:: atomic { !bits[me] -> pass = true }
	fi;
#ifndef NO_PASS
	if
	:: pass -> wake_one(i)
	:: else
	fi;
#endif
	atomic { pass = false; owed = false; joined = false; found = false }
}

/* At any step of a wait. */
#define CANCEL :: atomic { !cancelled -> cancelled = true }; goto gone

proctype waiter(byte me)
{
	byte i = 0;
	bool seen[WAITERS];
	bool owed = false, pass = false, joined = false, found = false;

again:
#ifdef CHECK_FIRST
	found = JOBS > 0;
#endif
	if
	:: !joined || !bits[me] -> join(me, owed)
	:: else -> goto sleeps
	fi;
	/* The check's transaction. */
	if
	:: skip
	CANCEL
	fi;
#ifndef CHECK_FIRST
	found = JOBS > 0;
#endif
	if
	:: owed = false
	CANCEL
	fi;
	if
	:: found ->
		found = false;
		leave(me, i);
		/* The client's claim: it takes one, or finds nothing. */
		atomic {
			if
			:: JOBS > 0 -> taken++
			:: else -> goto again
			fi
		};
#ifndef NO_NEXT_SIGNAL
		if
		:: JOBS > 0 -> wake_one(i)
		:: else
		fi;
#endif
		/* The client of one waits again, that of the other is at work for ever. */
		if
		:: me == 0 -> goto again
		:: else -> goto left
		fi
	:: else
	fi;
sleeps:
#ifdef RESET_LATE
	latch[me] = false;
#endif
end_asleep:
	if
	:: latch[me]
	:: atomic { !cancelled -> cancelled = true }; goto gone
	fi;
#ifndef RESET_LATE
	latch[me] = false;
#endif
	if
	:: goto again
	CANCEL
	fi;
gone:
	if
	:: joined -> leave(me, i)
	:: else
	fi;
left:
	sessions--
}

proctype waker(byte me)
{
	byte i = 0;
	bool seen[WAITERS];

	buffered[me] = true;
#ifndef NO_BARRIER
	/* pg_memory_barrier: the commit is there for all. */
	!buffered[me];
#endif
	wake_one(i)
}

/* Drains the store buffers, at any time. */
proctype memory()
{
	do
	:: atomic { buffered[0] -> buffered[0] = false; made = made + 2 }
	:: atomic { buffered[1] -> buffered[1] = false; made++ }
	:: made == MADE -> break
	od
}

init { atomic { run memory(); run waiter(0); run waiter(1); run waker(0); run waker(1) } }

ltl nothing_forgotten { <> (taken == MADE || sessions == 0) }
