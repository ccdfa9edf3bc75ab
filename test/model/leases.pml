/*
 * leases.pml
 *		src/shared/leases/leases.c with txn/pending.c and job/reap.c: an entry goes with its attempt,
 *		and no sooner; a heartbeat and a reap do not both win; the job is not passed by.
 *
 * One job.  A worker claims it, and may die then, or with what it has claimed again; it sends a heartbeat, from another session, at any
 * time, and completes the job, releases it, or releases it and claims it again in the same transaction, as a whole or
 * in a savepoint that is rolled back.  A reaper comes twice, another claimer once.  An ender ends whatever attempt it
 * sees, at any time, and claims the job again likewise.  The lease ends by time twice at most.  One transaction aborts, at any of its commits.  Then one session reaps and
 * claims what is left.
 *
 * The ready cursor is one bit: whether claims pass the job.  Not in it: adoption, cancels, attached
 * sessions, a full table, the count of running jobs, PREPARE TRANSACTION.  A crash of the server
 * leaves no entry: that is for adoption.
 *
 * Mutants: ACTIVE_EARLY (a lease starts with its claim, not with the commit), SNAPSHOT_FIRST (a
 * reaper's, before it collects), DEAF (heartbeats do not ask for a reaper's mark),
 * ONE_LOOK (a reaper that has the row does not look whether the mark is still its own), LOWER_FIRST
 * (a claim's abort, before the entry goes), ANY_TOKEN (an entry goes whatever its token), NO_RESTORE (an abort
 * leaves what a claim took over), KEEP_ENDER (an abort leaves the mark), LATE_START (an ender does not start the lease of a
 * claim that has just committed), ENDED_BACK (an abort gives back the entry of an attempt that another has ended meanwhile).
 */
#define READY 0
#define RUN 1
#define DONE 2
#define NOBODY 255
#define WORKER 0
#define REAPER 1
#define OTHER 2
#define ENDER 3

byte status = READY;		/* of the row, as committed */
byte token = 0;
byte writer = NOBODY;		/* whose uncommitted version it has */
byte tokens = 0;			/* last that was issued */

bool there = false;			/* the entry: */
byte e_token;
byte e_session = NOBODY;	/* that claimed; while claiming */
bool e_claiming;
bool e_expired;
bool e_reaping;
byte e_ender = NOBODY;
byte e_ended;				/* the last attempt that has ended while another had its entry */

bool passed = false;		/* the cursor is behind the job */
bool lowered[4];			/* since a claimer read it */

bool promised = false;		/* a heartbeat was answered, and the lease has not ended by time since */
bool lost = false;			/* a search for lost leases is asked for */
bool aborted = false;
byte held = 0;			/* the token that the worker's heartbeats name */
byte ended_by_time = 0;
byte running = 4;
bool through = false;

#ifdef NO_RESTORE
#define RESTORES false
#else
#define RESTORES true
#endif
#ifdef DEAF
#define HEARS false
#else
#define HEARS true
#endif
#define MAY_ABORT :: atomic { !aborted -> aborted = true }

inline lower()
{
	d_step { passed = false; lowered[0] = true; lowered[1] = true; lowered[2] = true; lowered[3] = true }
}

inline clear_entry()
{
	there = false; e_token = 0; e_session = NOBODY; e_claiming = false; e_expired = false; e_reaping = false;
	e_ender = NOBODY; e_ended = 0
}

/* idemq_lease_drop */
inline drop(tok)
{
	d_step {
#ifdef ANY_TOKEN
		if :: there -> clear_entry() :: else fi
#else
		if
		:: there && e_token == tok -> clear_entry()
		:: there && e_token > tok && e_ended < tok -> e_ended = tok
		:: else
		fi
#endif
	}
}

/* idemq_lease_cancel_end, for undo_end */
inline cancel_end(tok, me)
{
	d_step {
		if
		:: there && e_token == tok && e_ender == me ->
#ifndef KEEP_ENDER
			e_ender = NOBODY; e_reaping = false
#endif
		:: else -> lost = true
		fi
	}
}

inline set_claiming(tok, me)
{
	there = true; e_token = tok; e_session = me; e_expired = false; e_reaping = false; e_ender = NOBODY;
#ifdef ACTIVE_EARLY
	e_claiming = false
#else
	e_claiming = true
#endif
}

/* idemq_lease_activate */
inline activate(tok)
{
	d_step { if :: there && e_token == tok -> e_claiming = false; e_session = NOBODY :: else fi }
}

/* idemq_lease_begin_end */
inline begin_end(tok, me)
{
	d_step {
		if
		:: there && e_token == tok ->
#ifndef LATE_START
			if :: e_claiming && e_session != me -> e_claiming = false; e_session = NOBODY :: else fi;
#endif
			e_ender = me; e_reaping = false
		:: else
		fi
	}
}

/* idemq_lease_take by the ender of tok; next: the new token, 0 when another's entry is there. */
inline take_over(tok, me)
{
	d_step {
		tokens++;
		next = tokens;
		prior = there;
		if
		:: there && e_ender == me ->
			p_claiming = e_claiming; p_session = e_session; p_expired = e_expired; p_reaping = e_reaping;
			set_claiming(next, me)
		:: !there -> set_claiming(next, me)
		:: else -> next = 0; prior = false
		fi
	}
}

/* idemq_lease_restore, or idemq_lease_drop where nothing was taken over; with the ender's mark. */
inline give_back(tok, me)
{
	d_step {
		if
		:: there && e_token == next && prior && RESTORES ->
			if
#ifndef ENDED_BACK
			:: tok <= e_ended -> clear_entry()
#endif
			:: else ->
				e_token = tok; e_claiming = p_claiming; e_session = p_session; e_expired = p_expired;
				e_reaping = p_reaping; e_ender = me
			fi
		:: there && e_token == next && !prior -> clear_entry()
		:: else
		fi;
		next = 0; prior = false; p_claiming = false; p_session = NOBODY; p_expired = false; p_reaping = false
	}
}

/*
 * A claim of the job that is not this session's: the entry first, then the row.  mine: its token, by
 * then uncommitted, or 0.
 */
inline claim(me)
{
	mine = 0;
	atomic { lowered[me] = false; seen = passed };
	if
	:: !seen ->
		atomic { seen_status = status; seen_token = token };
		if
		:: atomic { there && e_ender == NOBODY -> seen = true }
		:: atomic { there && e_ender != NOBODY -> seen = (seen_status != READY || status != READY) };
			/* Otherwise it turns the claim away, and lowers when it goes: cursor.pml. */
			if
			:: !seen -> goto no_pass
			:: else
			fi
		:: atomic { !there -> seen = (seen_status != READY || token != seen_token || status != READY) };
			if
			:: !seen ->
				/* idemq_lease_take */
				if
				:: d_step { there -> seen = true }
				:: d_step { !there -> tokens++; mine = tokens; set_claiming(mine, me) };
					if
					:: atomic { writer == NOBODY && status == READY && token == seen_token -> writer = me }
					:: atomic { writer != NOBODY -> skip }; /* held */
						drop(mine); lower(); mine = 0;
						goto no_pass
					:: atomic { writer == NOBODY && !(status == READY && token == seen_token) -> skip };
						/* undo_changed */
						drop(mine); lower(); mine = 0; seen = true
					fi
				fi
			:: else
			fi
		fi;
		/* idemq_cursor_advance */
		d_step { if :: !lowered[me] -> passed = true :: else fi }
	:: else
	fi;
no_pass:
	atomic { seen = false; seen_status = 0; seen_token = 0 }
}

/* The commit of a claim, or its abort. */
inline end_claim(me)
{
	if
	:: atomic { assert(status == READY); status = RUN; token = mine; writer = NOBODY };
		activate(mine)
	MAY_ABORT;
		writer = NOBODY;
#ifdef LOWER_FIRST
		lower(); drop(mine);
#else
		drop(mine); lower();
#endif
		mine = 0
	fi
}

#define LOCALS byte mine, seen_status, seen_token; bool seen
#define TAKES_OVER byte next, p_session = NOBODY; bool prior, p_claiming, p_expired, p_reaping

proctype worker()
{
	LOCALS;
	TAKES_OVER;
	bool aborting = false, taken_over = false;
	byte new_status;

	claim(WORKER);
	if :: mine == 0 -> goto out :: else fi;
	end_claim(WORKER);
	if :: mine == 0 -> goto out :: else fi;
	if
	:: goto out /* it dies */
	:: held = mine
	fi;
end:
	/* idemq_transition: it waits for the row, and writes it; then its note marks the entry. */
	if
	:: atomic { writer == NOBODY && status == RUN && token == mine -> writer = WORKER }
	:: atomic { writer == NOBODY && !(status == RUN && token == mine) -> goto out }
	fi;
	begin_end(mine, WORKER);
	if
	:: new_status = DONE
	:: new_status = READY
	:: taken_over -> skip; new_status = DONE
	:: !taken_over ->
		/* Released, and claimed again. */
		take_over(mine, WORKER);
		if
		:: next == 0 -> new_status = READY
		:: next != 0 ->
			if
			:: new_status = RUN
			:: skip; /* rolled back to a savepoint between both */
undo_claim:
				skip;
				give_back(mine, WORKER);
				lower();
				if
				:: aborting -> goto undo_end
				:: else -> new_status = READY
				fi
			fi
		fi
	fi;
	if
	:: atomic { status = new_status; token = (new_status == RUN -> next : token); writer = NOBODY; promised = false };
		/* idemq_pending_apply, then idemq_pending_ready_apply */
		if
		:: new_status == READY ->
			drop(mine);
			lower()
		:: new_status == DONE -> drop(mine)
		:: new_status == RUN ->
			drop(mine);
			activate(next);
			atomic { mine = next; held = mine; next = 0; taken_over = true; prior = false };
			if
			:: goto end
			:: goto out
			fi
		fi
	MAY_ABORT;
		/* The row first, then what was noted, the last first. */
		writer = NOBODY;
		if
		:: next != 0 -> aborting = true; goto undo_claim
		:: else
		fi;
undo_end:
		aborting = false;
		cancel_end(mine, WORKER);
		lower();
		goto end
	fi;
out:
	running--
}

proctype reaper()
{
	byte tok, seen_status, seen_token, rounds = 0;

	do
	:: rounds == 2 -> break
	:: rounds < 2 ->
		rounds++;
#ifdef SNAPSHOT_FIRST
		atomic { seen_status = status; seen_token = token };
#endif
		/* idemq_lease_collect_expired */
		if
		:: atomic { there && !e_claiming && e_ender == NOBODY && e_expired -> tok = e_token }
		:: running == 1 -> break
		fi;
#ifndef SNAPSHOT_FIRST
		atomic { seen_status = status; seen_token = token };
#endif
		/* idemq_lease_begin_reap */
		if
		:: d_step {
				there && e_token == tok && !e_claiming && e_ender == NOBODY && e_expired ->
				e_ender = REAPER; e_reaping = true
			}
		:: d_step { !(there && e_token == tok && !e_claiming && e_ender == NOBODY && e_expired) -> tok = 0 }
		fi;
		if
		:: tok != 0 && !(seen_status == RUN && seen_token == tok) ->
			/* It has moved on: the entry goes. */
			drop(tok);
			if :: seen_status == READY -> lower() :: else fi
		:: tok != 0 && seen_status == RUN && seen_token == tok ->
			if
			:: atomic { writer == NOBODY && status == RUN && token == tok -> writer = REAPER };
				/* The mark may be another's by now, who had the row meanwhile, and marked the entry. */
#ifdef ONE_LOOK
				if
				:: d_step { true -> if :: there && e_token == tok && e_ender != REAPER -> e_ender = REAPER; e_reaping = false :: else fi }
#else
				if
				:: there && e_token == tok && e_ender == REAPER && e_reaping
				:: else ->
					writer = NOBODY; /* it stays locked, which nobody misses */
					cancel_end(tok, REAPER);
					goto next_lease
#endif
				fi;
				if
				:: atomic { assert(!promised); status = READY; writer = NOBODY };
					drop(tok);
					lower()
				MAY_ABORT;
					writer = NOBODY;
					cancel_end(tok, REAPER);
					lower()
				fi
			:: atomic { !(writer == NOBODY && status == RUN && token == tok) -> skip };
				cancel_end(tok, REAPER)
			fi
		:: else
		fi;
next_lease:
		atomic { tok = 0; seen_status = 0; seen_token = 0 }
	od;
	running--
}

proctype other()
{
	LOCALS;

	claim(OTHER);
	if
	:: mine != 0 -> end_claim(OTHER)
	:: else
	fi;
	if
	:: mine != 0 ->
		/* It completes, or has lost the job by then. */
		if
		:: atomic { writer == NOBODY && status == RUN && token == mine -> writer = OTHER };
			begin_end(mine, OTHER);
			atomic { status = DONE; writer = NOBODY };
			drop(mine)
		:: atomic { writer == NOBODY && !(status == RUN && token == mine) -> skip }
		fi
	:: else
	fi;
	running--
}

/* Ends an attempt that is not its own (release_job, cancel and retry), and may claim the job again. */
proctype ender()
{
	TAKES_OVER;
	byte tok;

	if
	:: atomic { writer == NOBODY && status == RUN -> writer = ENDER; tok = token }
	:: goto out
	fi;
	begin_end(tok, ENDER);
	if
	:: take_over(tok, ENDER)
	:: skip
	fi;
	if
	:: next != 0 ->
		/* It commits, and dies. */
		atomic { token = next; writer = NOBODY; promised = false };
		drop(tok);
		activate(next)
	:: next != 0 -> /* rolled back to a savepoint between both */
		give_back(tok, ENDER);
		lower();
		goto end
	:: next == 0 ->
end:
		atomic { status = READY; writer = NOBODY; promised = false };
		drop(tok);
		lower()
	MAY_ABORT;
		writer = NOBODY;
		if
		:: next != 0 -> give_back(tok, ENDER); lower()
		:: else
		fi;
		cancel_end(tok, ENDER);
		lower()
	fi;
out:
	running--
}

/* Heartbeats of the worker, from another session: idemq_lease_beat. */
proctype beater()
{
	byte beats = 0;

	do
	:: d_step {
			beats < 1 && held != 0 && there && e_token == held && !e_claiming && (HEARS -> !e_reaping : true) ->
			e_expired = false; promised = true; beats++
		}
	:: running == 0 -> break
	od
}

proctype clock()
{
	do
	:: atomic { ended_by_time < 2 && there && !e_claiming && !e_expired ->
			e_expired = true; promised = false; ended_by_time++ }
	:: running == 0 -> break
	od
}

proctype sweeper()
{
	running == 0;
	atomic {
		/* No entry of a transaction that is over, none of an attempt that is. */
		assert(!there || (e_ender == NOBODY && !e_claiming && status == RUN && token == e_token));
		assert(there || lost || status != RUN);
		/* A job that is ready is before the cursor. */
		assert(status != READY || !passed);
		through = true
	}
}

init { atomic { run worker(); run reaper(); run other(); run ender(); run clock(); run beater(); run sweeper() } }

ltl nothing_forgotten { <> through }
