/*
 * group_pause.pml
 *		src/job/group_pause.c, with job/promote_one.c, txn/pending_groups.c and the number of a queue's
 *		settings: no claim that begins after a pause takes a job of the group, and no promoter leaves one
 *		in the ready index.
 *
 * One group of one job, which is enqueued meanwhile; a session that pauses the group; the background
 * worker, which promotes it; a claim that begins whenever it likes, and one that begins when the pause
 * has returned.  One transaction aborts: of the pause, a promotion or the first claim.
 *
 * A session reads the settings again if their number has moved, first the number and then the rows.  A row
 * that another transaction holds is not waited for.  Not in it: low-water marks and commit windows
 * (groups.pml), the end of a pause, failures and releases, which promise no more than the first claim does.
 *
 * Mutants: MARK_FIRST (before the number has moved), NO_FIRST_LOOK (a promoter does not look for the
 * pause), NUMBER_FIRST (the number moves before the pause is visible), NUMBER_LATE (it moves when
 * the call has returned), CLAIM_TRUSTS (the later claim does not look), SNAPSHOT_FIRST (its snapshot is
 * older than its call).
 */
#define BLOCKED 0
#define READY 1
#define RUNNING 2
#define NOBODY 0

bool made = false;			/* the job, as committed: */
byte job = BLOCKED;
byte holder = NOBODY;			/* whose transaction has written its row */
bool paused = false;			/* the row of the pause, as committed */
bool moved = false;			/* the number */
bool returned = false;			/* the pause */

bool promoter = false;			/* the entry of the group: */
bool waiting = false;
bool again = false;

bool aborted = false;
bool left = false;			/* the first claim has given the job back */

#define MAY_ABORT :: atomic { !aborted -> aborted = true }

/* idemq_group_mark */
inline mark()
{
	d_step {
		if
		:: promoter -> again = true
		:: else -> waiting = true
		fi
	}
}

/* idemq_queue_by_id: known is the number, has whether the queue has a paused group. */
inline look_up()
{
	if
	:: known != moved -> known = moved; has = paused
	:: else
	fi
}

/* idemq_group_release */
inline release(wants)
{
	d_step { promoter = false; waiting = waiting || wants || again; again = false }
}

proctype enqueuer()
{
	made = true;
	mark()
}

proctype pauser()
{
	bool mine = false;

#ifdef NUMBER_FIRST
	moved = true;
#endif
begin:
	skip;
	/* idemq_group_pause_block */
	d_step {
		if
		:: made && job == READY && holder == NOBODY -> holder = 1; mine = true
		:: else
		fi
	};
	if
	:: d_step {
			paused = true;
			if
			:: mine -> job = BLOCKED; holder = NOBODY
			:: else
			fi
		}
	MAY_ABORT;
		d_step {
			if
			:: mine -> holder = NOBODY
			:: else
			fi;
			mine = false
		};
		goto begin
	fi;
	/* idemq_pending_move_versions, idemq_pending_groups_apply */
#ifdef MARK_FIRST
	mark();
#endif
#ifdef NUMBER_LATE
	returned = true;
#endif
#ifndef NUMBER_FIRST
	moved = true;
#endif
#ifndef MARK_FIRST
	mark();
#endif
	returned = true
}

proctype worker()
{
	byte seen;
	bool seen_made, seen_pause;
	bool known = false;
	bool has = false;

end:
	do
	:: waiting ->
		look_up();
		d_step { waiting = false; promoter = true };
		/* The snapshot, then the number. */
		d_step { seen = job; seen_made = made; seen_pause = paused };
#ifdef NO_FIRST_LOOK
		seen_pause = false;
#else
		if
		:: !has && known == moved -> seen_pause = false
		:: else
		fi;
#endif
		if
		:: seen_pause && seen == READY ->
			/* idemq_promote_one, if the group is paused */
			if
			:: d_step { holder == NOBODY && job == READY -> holder = 2 };
				if
				:: d_step { job = BLOCKED; holder = NOBODY }; release(false); mark()
				MAY_ABORT; holder = NOBODY; release(true)
				fi
			:: holder != NOBODY || job != READY; holder == NOBODY; release(true)
			fi
		:: !seen_pause && seen_made && seen == BLOCKED ->
			if
			:: d_step { holder == NOBODY && job == BLOCKED -> holder = 2 };
				if
				:: d_step { job = READY; holder = NOBODY }; release(false)
				MAY_ABORT; holder = NOBODY; release(true)
				fi
			:: holder != NOBODY || job != BLOCKED; holder == NOBODY; release(true)
			fi
		:: else -> release(false)
		fi;
		d_step { seen = 0; seen_made = false; seen_pause = false }
	od
}

/* A claim that may begin before the pause: it takes what is ready. */
proctype early()
{
	if
	:: d_step { job == READY && holder == NOBODY && !returned -> holder = 3 };
		if
		:: d_step { job = RUNNING; holder = NOBODY }
		MAY_ABORT; d_step { holder = NOBODY; left = true }
		fi
	:: returned
	fi
}

/* A claim that begins when the pause has returned. */
proctype late()
{
	bool seen_pause = false;
	bool known = false;
	bool has = false;

#ifdef SNAPSHOT_FIRST
	seen_pause = paused;
#endif
	returned;
	look_up();
#ifdef CLAIM_TRUSTS
	has = false;
#endif
#ifndef SNAPSHOT_FIRST
	seen_pause = paused;
#endif
	if
	:: d_step { job == READY && holder == NOBODY -> assert(has && seen_pause); job = BLOCKED; left = false }
	/* It finds nothing, or does not come. */
	:: true
	fi;
	/* Once all others have ended. */
	timeout;
	assert(job != READY || left)
}

init
{
	atomic {
		run enqueuer();
		run pauser();
		run worker();
		run early();
		run late()
	}
}
