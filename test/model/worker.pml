/*
 * worker.pml
 *		src/shared/processes/worker_call.c and due_times.c, with the loops of
 *		worker/worker.c, tasks.c and task_runner.c: nothing that is due is slept through.
 *
 * Two queues whose marks are in one word.  Three sessions with something to do each: of queue 0 at once,
 * of queue 0 later, of queue 1 later.  The clock reaches that, or stands still.  The worker is asleep for ever at first; one task fails.
 * The worker's words are seen by sessions when it has passed a barrier, or at any time before.
 *
 * Not in it: several kinds of times, worker slots that change hands, "all queues", what is no queue's, the
 * bit that says since when the worker is called.  Sessions' own words are seen at once: each
 * of theirs is written by an atomic operation that is a full barrier.
 *
 * Mutants: NOT_AWAKE (the worker does not say so), NO_BARRIER (after it has), TAKE_FIRST (marks,
 * before it does), MARK_FIRST (a session marks before the time is there), QUEUES_FIRST (the worker clears
 * the bits of queues before that of their word), TRUSTING (who finds a queue's bit set leaves its
 * word's to others), LOOK_FIRST (before the time is taken), RESET_LATE (the latch, after the look), LOSES
 * (a task that fails leaves no time).
 */
#define QUEUES 2
#define ITEMS 3
#define QUEUE(i) (i / 2)
#define TIME(i) (i == 0 -> 0 : 1)

/* Times: 0 is due; 1 is later; then: */
#define NEVER 2
#define CALLED 3
#define AWAKE 4

byte now = 0;
bool made[ITEMS];
bool done[ITEMS];
byte due[QUEUES] = NEVER;
bool queue_bit[QUEUES];
bool word_bit = false;
byte asleep_until = NEVER;
byte unseen = 255;			/* the worker's last write of it, while in its store buffer */
bool latch = false;
bool failed = false;

#define ALL_DONE (done[0] && (now == 0 || (done[1] && done[2])))

/* idemq_worker_mark_queue; a bit that is set is left alone: ensure_bit */
inline mark(queue, found)
{
	found = queue_bit[queue];
	if
	:: !found -> queue_bit[queue] = true
	:: else
	fi;
#ifdef TRUSTING
	if
	:: !found -> word_bit = true
	:: else
	fi
#else
	found = word_bit;
	if
	:: !found -> word_bit = true
	:: else
	fi
#endif
}

proctype session(byte i)
{
	byte queue = QUEUE(i), until;
	bool low = false, found = false;

	made[i] = true;
#ifdef MARK_FIRST
	mark(queue, found);
#endif
	/* idemq_due_by */
	atomic {
		if
		:: due[queue] <= TIME(i) -> low = true
		:: else -> due[queue] = TIME(i)
		fi
	};
	if
	:: !low ->
#ifndef MARK_FIRST
		mark(queue, found);
#endif
		/* call */
		until = asleep_until;
		if
		:: TIME(i) < until ->
			atomic {
				if
				:: until < CALLED && asleep_until == until -> asleep_until = CALLED
				:: else
				fi
			};
			latch = true
		:: else
		fi
	:: else
	fi;
	atomic { until = 0; low = false; found = false }
}

inline barrier() { unseen == 255 }

/* idemq_worker_take_marks with plan_marked; every exchange is a barrier. */
inline take_marks()
{
	/* At first it is only read. */
	taken = word_bit;
#ifndef QUEUES_FIRST
	if
	:: taken ->
		barrier();
		word_bit = false
	:: else
	fi;
#endif
	if
	:: taken ->
		atomic { found[0] = queue_bit[0]; queue_bit[0] = false; found[1] = queue_bit[1]; queue_bit[1] = false };
		if :: found[0] -> scheduled[0] = due[0] :: else fi;
		if :: found[1] -> scheduled[1] = due[1] :: else fi
	:: else
	fi;
#ifdef QUEUES_FIRST
	if :: taken -> word_bit = false :: else fi;
#endif
	atomic { found[0] = false; found[1] = false; taken = false }
}

/* What there is to do of a queue, by a snapshot; what is left is for later. */
inline look(queue)
{
	atomic {
		left = NEVER;
		if
		:: queue == 0 && made[0] -> done[0] = true
		:: else
		fi;
		if
		:: made[queue + 1] && now >= 1 -> done[queue + 1] = true
		:: made[queue + 1] && now < 1 -> left = 1
		:: else
		fi
	}
}

/* idemq_task_run_if_due: a task that takes its time. */
inline run_queue(queue)
{
	fails = false;
	if
	:: skip
	:: atomic { !failed -> failed = true; fails = true }
	fi;
#ifdef LOOK_FIRST
	if :: !fails -> look(queue) :: else fi;
#endif
	barrier();
	due[queue] = NEVER;
#ifndef LOOK_FIRST
	if :: !fails -> look(queue) :: else fi;
#endif
#ifndef LOSES
	if :: fails -> left = 0 :: else fi;
#else
	if :: fails -> left = NEVER :: else fi;
#endif
	/* idemq_due_by, of which the worker itself tells nobody. */
	atomic {
		if
		:: left < due[queue] -> due[queue] = left; low = true
		:: else
		fi
	};
	if
	:: low -> queue_bit[queue] = true; word_bit = true
	:: else
	fi;
	atomic { left = 0; low = false; fails = false };
	/* run_queue_tasks plans it anew. */
	scheduled[queue] = due[queue]
}

proctype worker()
{
	byte scheduled[QUEUES] = NEVER;
	byte until = NEVER, left;
	bool found[QUEUES], taken, low, fails, ran;

	goto sleeps;
again:
#ifdef TAKE_FIRST
	take_marks();
#endif
#ifndef NOT_AWAKE
	/* idemq_worker_awake */
	barrier();
	unseen = AWAKE;
#ifndef NO_BARRIER
	barrier();
#endif
#endif
#ifndef TAKE_FIRST
	take_marks();
#endif
	/* run_due_queues */
	ran = false;
	do
	:: scheduled[0] <= now -> run_queue(0); ran = true; take_marks()
	:: scheduled[1] <= now -> run_queue(1); ran = true; take_marks()
	:: scheduled[0] > now && scheduled[1] > now -> break
	od;
	atomic { until = (scheduled[0] < scheduled[1] -> scheduled[0] : scheduled[1]) };
	if
	:: ran -> atomic { until = 0; ran = false }
	:: else
	fi;
	/* idemq_worker_asleep: no barrier follows but that of WaitLatch. */
	barrier();
	atomic { unseen = until };
#ifdef RESET_LATE
	latch = false;
#endif
	barrier();
sleeps:
	if
	:: latch
	:: until <= now
	fi;
#ifndef RESET_LATE
	latch = false;
#endif
	atomic { until = 0; goto again }
}

/* What drains the worker's store buffer. */
proctype memory()
{
	do
	:: atomic { unseen != 255 -> asleep_until = unseen; unseen = 255 }
	od
}

/* It may stand still: what is due at once does not wait for it. */
proctype clock()
{
	if
	:: now = 1
	:: skip
	fi
}

init
{
	atomic { run worker(); run memory(); run clock(); run session(0); run session(1); run session(2) }
}

ltl nothing_forgotten { <> [] ALL_DONE }
