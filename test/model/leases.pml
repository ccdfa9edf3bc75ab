/*
 * leases.pml
 *		src/shared/leases/leases.c with txn/pending.c and job/reap.c: an entry goes with its attempt,
 *		and no sooner; a heartbeat and a reap do not both win; the job is not passed by.
 *
 * One job.  A worker claims it, and may die then, or with what it has claimed again; it sends a heartbeat, from another session, at any
 * time, and completes the job, releases it, or releases it and claims it again in the same transaction, as a whole or
 * in a savepoint that is rolled back.  A reaper comes twice, another claimer once.  A finisher ends whatever attempt it
 * sees, at any time, and claims the job again likewise.  The lease ends by time twice at most.  One transaction aborts, at any of its commits.  Then one session reaps and
 * claims what is left.
 *
 * Whatever goes back to an earlier step counts: rounds, heartbeats, ends by time, the abort, the claim by which the
 * worker goes on.  So no run is endless, and in one that forgets something a process does not come to its end: spin
 * says that of itself (invalid end state), with no formula and in half the time.  A loop that does not count needs one.
 *
 * The scan start is one bit: whether claims pass the job.  Not in it: adoption, cancels, attached
 * sessions, a full table, the count of running jobs, PREPARE TRANSACTION.  A crash of the server
 * leaves no entry: that is for adoption.
 *
 * Mutants: ACTIVE_EARLY (a lease starts with its claim, not with the commit), SNAPSHOT_FIRST (a
 * reaper's, before it collects), DEAF (heartbeats do not ask for a reaper's mark),
 * ONE_LOOK (a reaper that has the row does not look whether the mark is still its own), LOWER_FIRST
 * (a claim's abort, before the entry goes), ANY_TOKEN (an entry goes whatever its token), NO_RESTORE (an abort
 * leaves what a claim took over), KEEP_FINISHER (an abort leaves the mark), LATE_START (a finisher does not start the lease of a
 * claim that has just committed), ENDED_BACK (an abort gives back the entry of an attempt that another has ended meanwhile).
 */
#define READY 0
#define RUN 1
#define DONE 2
#define NOBODY 255
#define WORKER 0
#define REAPER 1
#define OTHER 2
#define FINISHER 3

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
byte e_finisher = NOBODY;
byte e_ended;				/* the last attempt that has ended while another had its entry */

bool passed = false;		/* the scan start is behind the job */
bool lowered[3] = true;		/* since a claimer, who is at work, read it; true while none is */

bool promised = false;		/* a heartbeat was answered, and the lease has not ended by time since */
bool lost = false;			/* a search for lost leases is asked for */
bool aborted = false;
byte held = 0;			/* the token that the worker's heartbeats name */
byte ended_by_time = 0;
byte running = 4;

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
	d_step { passed = false; lowered[WORKER] = true; lowered[OTHER] = true }
}

inline clear_entry()
{
	there = false; e_token = 0; e_session = NOBODY; e_claiming = false; e_expired = false; e_reaping = false;
	e_finisher = NOBODY; e_ended = 0
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
		:: there && e_token == tok && e_finisher == me ->
#ifndef KEEP_FINISHER
			e_finisher = NOBODY; e_reaping = false
#endif
		:: else -> lost = true
		fi
	}
}

inline set_claiming(tok, me)
{
	there = true; e_token = tok; e_session = me; e_expired = false; e_reaping = false; e_finisher = NOBODY;
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
			e_finisher = me; e_reaping = false
		:: else
		fi
	}
}

/* idemq_lease_take by the finisher of tok; next: the new token, 0 when another's entry is there. */
inline take_over(tok, me)
{
	d_step {
		tokens++;
		next = tokens;
		prior = there;
		if
		:: there && e_finisher == me ->
			p_claiming = e_claiming; p_session = e_session; p_expired = e_expired; p_reaping = e_reaping;
			set_claiming(next, me)
		:: !there -> set_claiming(next, me)
		:: else -> next = 0; prior = false
		fi
	}
}

inline forget_prior()
{
	next = 0; prior = false; p_claiming = false; p_session = NOBODY; p_expired = false; p_reaping = false
}

/* idemq_lease_restore, or idemq_lease_drop where nothing was taken over; with the finisher's mark. */
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
				e_reaping = p_reaping; e_finisher = me
			fi
		:: there && e_token == next && !prior -> clear_entry()
		:: else
		fi;
		forget_prior()
	}
}

/*
 * A claim of the job that is not this session's: the entry first, then the row, which mine is the
 * token of by then; goes to out without it.
 */
inline claim(me)
{
	atomic { lowered[me] = false; seen = passed; if :: seen -> goto no_pass :: else fi };
	atomic { seen_status = status; seen_token = token };
	if
	:: atomic { there && e_finisher == NOBODY -> skip }
	:: atomic { there && e_finisher != NOBODY && (seen_status != READY || status != READY) -> skip }
	:: atomic { there && e_finisher != NOBODY && !(seen_status != READY || status != READY) -> goto no_pass }
		/* It turns the claim away, and lowers when it goes: scan_start.pml. */
	:: atomic { !there && (seen_status != READY || token != seen_token || status != READY) -> skip }
	:: atomic { !there && !(seen_status != READY || token != seen_token || status != READY) -> skip };
		/* idemq_lease_take */
		if
		:: d_step { there -> skip }
		:: d_step { !there -> tokens++; mine = tokens; set_claiming(mine, me) };
			if
			:: atomic { writer == NOBODY && status == READY && token == seen_token -> writer = me }
			:: atomic { writer != NOBODY -> skip }; /* held */
				drop(mine);
				atomic { lower(); mine = 0; goto no_pass }
			:: atomic { writer == NOBODY && !(status == READY && token == seen_token) -> skip };
				/* undo_changed */
				drop(mine);
				atomic { lower(); mine = 0 }
			fi
		fi
	fi;
	/* idemq_scan_start_advance */
	d_step { if :: !lowered[me] -> passed = true :: else fi };
no_pass:
	atomic {
		seen = false; seen_status = 0; seen_token = 0; lowered[me] = true;
		if :: mine == 0 -> goto out :: else fi
	}
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
		goto out
	fi
}

#define LOCALS byte mine, seen_status, seen_token; bool seen
#define TAKES_OVER byte next, p_session = NOBODY; bool prior, p_claiming, p_expired, p_reaping

proctype worker()
{
	LOCALS;
	TAKES_OVER;
	bool taken_over = false;

	claim(WORKER);
	end_claim(WORKER);
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
	:: skip
	:: !taken_over -> take_over(mine, WORKER) /* released, and claimed again */
	fi;
settle:
	/* A commit, with idemq_pending_apply, then idemq_pending_ready_apply. */
	if
	:: atomic { next == 0 -> status = DONE; writer = NOBODY; promised = false };
		drop(mine)
	:: atomic { next == 0 -> status = READY; writer = NOBODY; promised = false };
		drop(mine);
		lower()
	:: atomic { next != 0 -> token = next; writer = NOBODY; promised = false };
		drop(mine);
		activate(next);
		atomic { mine = next; held = mine; taken_over = true; forget_prior(); if :: goto end :: goto out fi }
	:: next != 0 -> /* rolled back to a savepoint between both */
		give_back(mine, WORKER);
		lower();
		goto settle
	MAY_ABORT;
		/* The row first, then what was noted, the last first. */
		writer = NOBODY;
		if
		:: next != 0 -> give_back(mine, WORKER); lower()
		:: else
		fi;
		cancel_end(mine, WORKER);
		lower();
		goto end
	fi;
out:
	atomic { mine = 0; taken_over = false; running-- }
}

proctype reaper()
{
	byte tok, seen_status, seen_token, rounds = 0;

again:
#ifdef SNAPSHOT_FIRST
	atomic { seen_status = status; seen_token = token };
#endif
	/* idemq_lease_collect_expired */
	if
	:: atomic { there && !e_claiming && e_finisher == NOBODY && e_expired -> tok = e_token }
	:: atomic { running == 1 -> goto out }
	fi;
#ifndef SNAPSHOT_FIRST
	atomic { seen_status = status; seen_token = token };
#endif
	/* idemq_lease_begin_reap */
	if
	:: atomic { there && e_token == tok && !e_claiming && e_finisher == NOBODY && e_expired ->
			e_finisher = REAPER; e_reaping = true;
			if :: seen_status == RUN && seen_token == tok -> goto reaps :: else fi }
	:: atomic { !(there && e_token == tok && !e_claiming && e_finisher == NOBODY && e_expired) -> goto next_lease }
	fi;
	/* It has moved on: the entry goes. */
	atomic { drop(tok); if :: seen_status != READY -> goto next_lease :: else fi };
	lower();
	goto next_lease;
reaps:
	if
	:: atomic { writer == NOBODY && status == RUN && token == tok -> writer = REAPER }
	:: atomic { !(writer == NOBODY && status == RUN && token == tok) -> skip };
		cancel_end(tok, REAPER);
		goto next_lease
	fi;
	/* The mark may be another's by now, who had the row meanwhile, and marked the entry. */
#ifdef ONE_LOOK
	d_step { if :: there && e_token == tok && e_finisher != REAPER -> e_finisher = REAPER; e_reaping = false :: else fi };
#else
	if
	:: there && e_token == tok && e_finisher == REAPER && e_reaping
	:: else ->
		writer = NOBODY; /* it stays locked, which nobody misses */
		cancel_end(tok, REAPER);
		goto next_lease
	fi;
#endif
	if
	:: atomic { assert(!promised); status = READY; writer = NOBODY };
		drop(tok);
		lower()
	MAY_ABORT;
		writer = NOBODY;
		cancel_end(tok, REAPER);
		lower()
	fi;
next_lease:
	atomic {
		tok = 0; seen_status = 0; seen_token = 0; rounds++;
		if :: rounds < 2 -> goto again :: else fi
	};
out:
	atomic { rounds = 0; seen_status = 0; seen_token = 0; running-- }
}

proctype other()
{
	LOCALS;

	claim(OTHER);
	end_claim(OTHER);
	/* It completes, or has lost the job by then. */
	if
	:: atomic { writer == NOBODY && status == RUN && token == mine -> writer = OTHER };
		begin_end(mine, OTHER);
		atomic { status = DONE; writer = NOBODY };
		drop(mine)
	:: atomic { writer == NOBODY && !(status == RUN && token == mine) -> skip }
	fi;
out:
	atomic { mine = 0; running-- }
}

/* Ends an attempt that is not its own (revoke_lease, cancel and retry), and may claim the job again. */
proctype finisher()
{
	TAKES_OVER;
	byte tok;

	if
	:: atomic { writer == NOBODY && status == RUN -> writer = FINISHER; tok = token }
	:: goto out
	fi;
	begin_end(tok, FINISHER);
	if
	:: take_over(tok, FINISHER)
	:: skip
	fi;
settle:
	if
	:: atomic { next == 0 -> status = READY; writer = NOBODY; promised = false };
		drop(tok);
		lower()
	:: atomic { next != 0 -> token = next; writer = NOBODY; promised = false }; /* it dies then */
		drop(tok);
		activate(next)
	:: next != 0 -> /* rolled back to a savepoint between both */
		give_back(tok, FINISHER);
		lower();
		goto settle
	MAY_ABORT;
		writer = NOBODY;
		if
		:: next != 0 -> give_back(tok, FINISHER); lower()
		:: else
		fi;
		cancel_end(tok, FINISHER);
		lower()
	fi;
out:
	atomic { tok = 0; forget_prior(); running-- }
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
		assert(!there || (e_finisher == NOBODY && !e_claiming && status == RUN && token == e_token));
		assert(there || lost || status != RUN);
		/* A job that is ready is before the scan start. */
		assert(status != READY || !passed)
	}
}

init { atomic { run worker(); run reaper(); run other(); run finisher(); run clock(); run beater(); run sweeper() } }
