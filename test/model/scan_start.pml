/*
 * scan_start.pml
 *		src/shared/queue_states/scan_start.c and read_ahead.c, with the scan of job/ready_scan.c: no job
 *		that can be claimed lies behind the scan start, or in a gap of the read-ahead buffer.
 *
 * Keys 1 to 4 of one priority: job A (key 1) is enqueued meanwhile, B (key 2, later 3) and C (key 4)
 * are there.  Two claimers claim, one twice and one once, and end what they get; B is ended as dead, and brought back under key
 * 3 by another session, or released by its claimer.  One transaction aborts, at any of its commits
 * (an error, a cancel, a session's end: the callbacks are the same).  A read-ahead buffer of three entries.  Then
 * one session claims until it finds nothing.
 *
 * The least key lowered since a claimer's read stands in place of the history: that lowered_since
 * answers no greater one is for the test of small inputs.  Not in it: priorities, queue states that are
 * lost, several entries of one key (whole_keys), a full lease table, isolation above READ COMMITTED,
 * the net of scans from the start.  A crash of the server leaves the scan start unset and no entry.
 *
 * Mutants: SNAPSHOT_FIRST (before the scan start is read), LOWER_EARLY (before the commit), NO_HISTORY
 * (an advance past what was lowered since), NO_CUT (a lowering leaves the read-ahead buffer), FILL_UNCUT (so does
 * an install), NO_PASSED_BY, ENTRY_LATE (a claim's abort lowers before its entry is gone),
 * NO_UNDO (it does not lower).
 */
#define KEYS 4
#define NEVER 5
#define A 0
#define B 1
#define C 2
#define JOB(key) (key == 1 -> A : (key == 4 -> C : B))
#define BIT(key) (1 << (key))
#define FROM(key) (62 & ~(BIT(key) - 1)) /* all keys from that one on */
#define READ_AHEAD_LENGTH 3
#define NOBODY 255

byte ready = BIT(2) | BIT(4);	/* keys of rows that are committed and can be claimed */
byte indexed = BIT(2) | BIT(4); /* entries of the index */
bool dead = false;				/* B's row */

byte scan_start = 1;
byte low[3];					/* the least key lowered since a claimer's read */
byte read_ahead_from = 1;
byte read_ahead = 0;					/* its entries */

bool leased[3];
byte finisher[3] = NOBODY;
byte passed_by[3];				/* the least key at which it was passed; 0: none */

bool aborted = false;			/* one is allowed */
byte running = 4;				/* writers and claimers that are at work */
bool through = false;

#define MAY_ABORT :: atomic { !aborted -> aborted = true }
#define COUNT(set) (((set) >> 1 & 1) + ((set) >> 2 & 1) + ((set) >> 3 & 1) + ((set) >> 4 & 1))
/* idemq_read_ahead_end */
#define END(from, set) ((set) >= 16 -> 5 : ((set) >= 8 -> 4 : ((set) >= 4 -> 3 : ((set) >= 2 -> 2 : (from)))))
#define SERVES(from, set) ((set) != 0 && scan_start >= (from))
#define AHEAD(from, set) (SERVES(from, set) -> COUNT((set) & FROM(scan_start)) : 0)

/* idemq_scan_start_lower; all of it under the queue state's lock. */
inline lower(key)
{
	d_step {
		if :: key < low[0] -> low[0] = key :: else fi;
		if :: key < low[1] -> low[1] = key :: else fi;
		if :: key < low[2] -> low[2] = key :: else fi;
#ifndef NO_CUT
		read_ahead = read_ahead & ~FROM(key);
#endif
		if :: key < scan_start -> scan_start = key :: else fi
	}
}

/* drop_lease of txn/pending.c: the entry goes, and what it turned away is lowered to. */
inline drop(j, passed)
{
	atomic { leased[j] = false; finisher[j] = NOBODY; passed = passed_by[j]; passed_by[j] = 0 };
#ifndef NO_PASSED_BY
	if
	:: passed != 0 -> lower(passed)
	:: else
	fi;
#endif
	passed = 0
}

/* idemq_scan_start_read */
inline read_scan_start()
{
	d_step {
		from = scan_start;
		low[me] = NEVER;
		view = 0;
		view_end = END(read_ahead_from, read_ahead);
		if
		:: SERVES(read_ahead_from, read_ahead) -> view = read_ahead & FROM(scan_start)
		:: else
		fi
	}
}

/* idemq_scan_start_advance */
inline advance()
{
	d_step {
		to = reach;
#ifndef NO_HISTORY
		if :: low[me] < to -> to = low[me] :: else fi;
#endif
		if :: scan_start < to -> scan_start = to :: else fi;
#ifndef FILL_UNCUT
		fill = fill & ~FROM(low[me]);
#endif
		/* idemq_read_ahead_install */
		if
		:: fill == 0
		:: fill != 0 && SERVES(read_ahead_from, read_ahead) && END(read_ahead_from, read_ahead) == fill_from ->
			read_ahead = read_ahead & FROM(scan_start);
			k = 1;
			do
			:: k > KEYS -> break
			:: k <= KEYS ->
				if
				:: (fill & BIT(k)) != 0 && COUNT(read_ahead) < READ_AHEAD_LENGTH -> read_ahead = read_ahead | BIT(k)
				:: else
				fi;
				k++
			od;
			read_ahead_from = scan_start
		:: else ->
			if
			:: AHEAD(fill_from, fill) > AHEAD(read_ahead_from, read_ahead) || !SERVES(read_ahead_from, read_ahead) ->
				read_ahead = fill;
				read_ahead_from = fill_from
			:: else
			fi
		fi;
		fill = 0; fill_from = 0; reach = 0; to = 0; k = 0; view = 0; view_end = 0; from = 0; snapshot = 0
	}
}

/*
 * A claim of one job: idemq_ready_scan with claim_consider of job/claim_from_queue.c, to the advance.  Its
 * row is written by then, not committed; got: its key, or 0.
 */
inline claim()
{
#ifdef SNAPSHOT_FIRST
	snapshot = ready;
	read_scan_start();
#else
	read_scan_start();
	snapshot = ready;
#endif
	atomic { k = from; got = 0; in_read_ahead = (view != 0) };
	do
	:: k > KEYS -> reach = NEVER; break
	:: k <= KEYS && in_read_ahead && (view & FROM(k)) == 0 -> in_read_ahead = false
	:: k <= KEYS && in_read_ahead && (view & FROM(k)) != 0 && (view & BIT(k)) == 0 -> k++
	:: k <= KEYS && !in_read_ahead && (indexed & BIT(k)) == 0 -> k++
	:: k <= KEYS && ((in_read_ahead && (view & BIT(k)) != 0) || (!in_read_ahead && (indexed & BIT(k)) != 0)) ->
		/* idemq_ready_job */
		if
		:: atomic { leased[JOB(k)] && finisher[JOB(k)] == NOBODY -> k++ }
		:: atomic { leased[JOB(k)] && finisher[JOB(k)] != NOBODY -> skip };
			if
			:: (snapshot & BIT(k)) == 0 || (ready & BIT(k)) == 0 -> k++
			:: else ->
				/* idemq_lease_turns_away */
				if
				:: atomic {
						leased[JOB(k)] ->
						if
						:: passed_by[JOB(k)] == 0 || k < passed_by[JOB(k)] -> passed_by[JOB(k)] = k
						:: else
						fi;
						k++
					}
				:: atomic { !leased[JOB(k)] -> goto take }
				fi
			fi
		:: atomic { !leased[JOB(k)] -> skip };
			if
			:: (snapshot & BIT(k)) == 0 -> k++
			:: else ->
take:			/* idemq_claim_one: a row that has changed is passed; the entry first, then the row */
				if
				:: (ready & BIT(k)) == 0 -> k++
				:: else ->
					if
					:: atomic { leased[JOB(k)] -> k++ }
					:: atomic { !leased[JOB(k)] -> leased[JOB(k)] = true };
						if
						:: (ready & BIT(k)) != 0 -> got = k; reach = k + 1; break
						:: else ->
							/* undo_changed: the note's undoing lowers, and once more to where it is ready */
							drop(JOB(k), passed);
							lower(k);
							if
							:: JOB(k) == B && (ready & BIT(3)) != 0 -> lower(3)
							:: else
							fi;
							k++
						fi
					fi
				fi
			fi
		fi
	od;
	/* look_ahead */
	if
	:: got == 0
	:: got != 0 && in_read_ahead -> fill_from = view_end; k = view_end
	:: got != 0 && !in_read_ahead -> fill_from = got; fill = BIT(got); k = got + 1
	fi;
	do
	:: got == 0 || k > KEYS || COUNT(fill) == READ_AHEAD_LENGTH -> break
	:: else ->
		atomic {
			if
			:: (indexed & BIT(k)) != 0 -> fill = fill | BIT(k)
			:: else
			fi;
			k++
		}
	od;
	advance()
}

#define LOCALS byte from, view, view_end, snapshot, k, got, reach, to, fill, fill_from, passed; bool in_read_ahead

proctype claimer(byte me)
{
	byte calls = 0;
	LOCALS;

again:
	claim();
	if
	:: got == 0 -> goto out
	:: else
	fi;
	if
	:: ready = ready & ~BIT(got)
	MAY_ABORT;
		/* undo_claim */
#ifdef ENTRY_LATE
		lower(got);
		drop(JOB(got), passed);
#else
		drop(JOB(got), passed);
#ifndef NO_UNDO
		lower(got);
#endif
#endif
		goto out
	fi;
	/* The attempt ends; once its end may abort. */
end:
	finisher[JOB(got)] = me;
	if
	:: got == 2 ->
		if
		:: dead = true
		:: indexed = indexed | BIT(3);
#ifdef LOWER_EARLY
			lower(3);
#endif
			ready = ready | BIT(3);
			drop(B, passed);
#ifndef LOWER_EARLY
			lower(3);
#endif
			goto out
		MAY_ABORT;
			atomic { finisher[B] = NOBODY; passed_by[B] = 0 };
			goto end
		fi
	:: else
	fi;
	drop(JOB(got), passed);
out:
	atomic {
		got = 0;
		calls++;
		if
		:: calls < 2 - me -> goto again
		:: else -> calls = 0; running--
		fi
	}
}

/* An enqueue of A. */
proctype enqueuer()
{
	indexed = indexed | BIT(1);
#ifdef LOWER_EARLY
	lower(1);
#endif
	if
	:: ready = ready | BIT(1)
	MAY_ABORT
	fi;
#ifndef LOWER_EARLY
	lower(1);
#endif
	running--
}

/* Brings B back when it is dead. */
proctype retrier()
{
	if
	:: dead ->
		indexed = indexed | BIT(3);
		if
		:: ready = ready | BIT(3)
		MAY_ABORT
		fi;
		lower(3)
	:: running == 1
	fi;
	running--
}

/* Claims and completes what is left. */
proctype sweeper(byte me)
{
	LOCALS;

	running == 0;
	do
	:: claim();
		if
		:: got == 0 -> break
		:: else -> atomic { ready = ready & ~BIT(got); leased[JOB(got)] = false }
		fi
	od;
	through = true
}

init
{
	atomic {
		low[0] = NEVER; low[1] = NEVER; low[2] = NEVER;
		run claimer(0); run claimer(1); run enqueuer(); run retrier(); run sweeper(2)
	}
}

ltl nothing_forgotten { <> (through && ready == 0) }
