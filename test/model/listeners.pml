/*
 * listeners.pml
 *		src/shared/waiters/listeners.c and lease_beat.c: a worker's process hears of a cancel without
 *		waiting for its next regular heartbeat, also while its own transaction holds the job's row.
 *
 * One attempt, whose entry has the key of its process from the claim, or, after a restart, only from a
 * heartbeat.  A worker holds the row, begins to listen at any time, and sends a heartbeat only if its wait
 * tells it to.  It lets the row go once it hears that its attempt is being cancelled or is over.  Two sessions cancel;
 * each marks the entry, tells the process, and then rolls back, or waits for the row and commits.
 *
 * A run in which a session waits for the row and the worker sleeps stops too early, and spin reports it.
 * The barriers of both sides are full, so there are no store buffers.  Not in it: several listeners or attempts,
 * cancel_many, a reaper, a full lease table, a handler's process in the server.
 *
 * Mutants: NO_FIRST (a session that begins to listen does not tell itself), TELL_FIRST (before the entry is
 * marked), NO_KEY (a heartbeat does not store it), LATCH_FIRST (before the mark), RESET_LATE (the latch, after
 * the mark was read), TOLD_STAYS (after a rollback), EMPTY_MARK (a wait takes the marks of earlier events).
 */
bool there = true;		/* the entry of the attempt */
bool has_key;			/* it has the key of the process */
byte cancels = 0;		/* marks of open transactions */
bool told = false;		/* the process was told of a mark that is still there */

bool listens = false;	/* the listener's element has the key of the process */
bool mark = false;		/* the listener was told */
bool latch = false;

bool row_held = true;	/* by the worker's transaction */
bool row_locked = false; /* by a session that cancels */
byte at_work = 2;		/* sessions that cancel */

/* idemq_listeners_tell */
inline tell()
{
	if
	:: listens ->
#ifdef LATCH_FIRST
		latch = true;
		mark = true
#else
		mark = true;
		latch = true
#endif
	:: else
	fi
}

/* idemq_lease_mark_cancel, under the lock of the partition. */
inline mark_cancel()
{
#ifdef TELL_FIRST
	tell();
#endif
	d_step {
		tells = false;
		marked = there;
		if
		:: there ->
			cancels++;
			tells = has_key && !told;
			told = told || tells
		:: else
		fi
	};
#ifndef TELL_FIRST
	if
	:: tells -> tell()
	:: else
	fi;
#endif
	tells = false
}

active [2] proctype canceller()
{
	bool marked, tells;

	mark_cancel();
	if
	:: !marked
	:: marked ->
		if
		:: true -> skip /* a rollback before it has the row */
		:: true -> atomic { !row_held && !row_locked -> row_locked = true };
			if
			:: true -> skip
			:: atomic { /* the commit; the entry goes */
				tells = there && has_key && !told;
				there = false;
				row_locked = false
			   };
			   if
			   :: tells -> tell()
			   :: else
			   fi;
			   goto over
			fi;
			row_locked = false
		fi;
		/* idemq_lease_unmark_cancel */
		d_step {
			if
			:: there ->
				cancels--;
#ifndef TOLD_STAYS
				if
				:: cancels == 0 -> told = false
				:: else
				fi
#endif
			:: else
			fi
		}
	fi;
over:
	at_work--
}

active proctype worker()
{
	bool heard = false;

	if
	:: has_key = true
	:: has_key = false
	fi;
	/* idemq_listener_begin */
	listens = true;
#ifndef NO_FIRST
	mark = true;
#endif
	do
	:: heard -> break
	/* Nobody cancels any more: it runs to its end. */
	:: !heard && at_work == 0 && there -> break
	:: !heard && !(at_work == 0 && there) ->
#ifdef EMPTY_MARK
		mark = false;
#endif
		/* the loop of the wait */
		do
		:: mark -> mark = false; break
		:: !mark ->
#ifdef RESET_LATE
			latch = false;
#endif
			if
			:: latch -> skip
			:: at_work == 0 && there -> goto ended
			fi;
#ifndef RESET_LATE
			latch = false
#endif
		od;
		/* idemq_lease_beat */
		atomic {
			heard = !there || cancels > 0;
#ifndef NO_KEY
			has_key = true
#endif
		}
	od;
ended:
	row_held = false
}
