/*
 * add_parents.pml
 *		src/job/add_parents.c, table/jobs_dependencies.c: a child to which a parent is added, while another
 *		one runs, starts after both, and is never forgotten.
 *
 * A child waits for and watches the first parent, which runs.  Its holder adds the second parent, in a
 * transaction of its own, or in the one that ends the first parent, or it rolls back; another session with
 * the same token may end the first parent.  The second parent ends at any time.  The first
 * one may have ended before and run again, so a look that has seen its earlier end may be under way.  Two
 * sessions take marks, one of them three; one look may abort, and is done again.
 *
 * How a child is enqueued, how the filter becomes known, and pages of children: dependencies.pml.  There
 * the second parent is the child's from the start.  Not in it: parents that fail (their mark is another
 * one), more than one adder (they write different rows), circles (the proof is about ids and snapshots).
 *
 * Mutants: NO_HOLD (the adder does not hold the first parent), LOOK_NOT_SEEN (it does not ask whether a look
 * owns the child's mark), CHILD_FIRST (it reads the child's rows before it asks), CHILD_NOT_SEEN (it adds to
 * a child that no longer waits), BACK_UNSEEN (its own transaction has brought the first parent back, which
 * others still see as done), ADD_BELOW (the added parent's id is below the watched one's), BIT_LATE (it
 * sets the bit of the added parent after its commit), NO_MARK_AGAIN (a look that moves the watch marks nothing).
 */
#define CHILD 2

bool added = false;			/* the row of the second parent, as committed */
byte watched = 0;			/* the child's row in idemq.children */
bool released = false;
bool ended[2];				/* the parents' rows, as committed */
bool ever = false;			/* the first one has ended once */
bool held = false;			/* its row is locked by the adder */

bool has_bit = false;			/* the filter, of the second parent; the first one's bit is set */

bool marked[3];				/* parents, and the child */
bool owned[3];
bool again[3];

bool aborted = false;

#define MAY_ABORT :: atomic { !aborted -> aborted = true }

/* idemq_group_mark */
inline mark(m)
{
	d_step {
		if
		:: owned[m] -> again[m] = true
		:: else -> marked[m] = true
		fi
	}
}

/* idemq_dependency_finished, after a commit. */
inline tell(p)
{
	if
	:: p == 0 || has_bit -> mark(p)
	:: else
	fi
}

/* The end of a parent by another session; of the first one perhaps twice. */
proctype finisher(byte p)
{
	bool once_more = (p == 0);

begin:
	if
	:: atomic { !ended[p] && (p == 1 || !held) -> ended[p] = true; ever = ever || p == 0 }
	:: p == 0 && ended[0] -> goto over /* the adder has ended it */
	fi;
	tell(p);
	/* It is asked for again, and claimed, before the child's release is visible or later. */
	if
	:: atomic { once_more && !held -> ended[0] = false; once_more = false }; goto begin
	:: skip
	fi;
over:
	skip
}

/* The child waits, and watches the first parent: one snapshot. */
#ifdef CHILD_NOT_SEEN
#define SEE_CHILD waits = true
#else
#define SEE_CHILD waits = !released && watched == 0
#endif

/* idemq_add_parents */
proctype adder()
{
	bool waits = false;
	bool ends = false;

	/* hold_job: its attempt is current. */
	atomic {
		if
#ifdef BACK_UNSEEN
		:: held = true
#else
		:: !ended[0] -> held = true
		:: ended[0] -> goto over
#endif
		fi
	}
#ifdef NO_HOLD
	held = false;
#endif
#ifdef CHILD_FIRST
	SEE_CHILD;
#endif
#ifndef LOOK_NOT_SEEN
	/* idemq_group_is_busy */
	if
	:: owned[CHILD] -> goto leave
	:: !owned[CHILD]
	fi;
#endif
#ifndef CHILD_FIRST
	SEE_CHILD;
#endif
	if
	:: !waits -> goto leave
	:: waits
	fi;
#ifndef BIT_LATE
	has_bit = true;
#endif
	/* idemq_dependencies_add_more, and its commit */
	if
	:: atomic { assert(!released); added = true; held = false }
#ifndef BACK_UNSEEN
	:: atomic { !ended[0] -> assert(!released); added = true; held = false; ended[0] = true; ever = true; ends = true }
#endif
	:: goto leave
	fi;
	mark(CHILD);
	if
	:: ends -> tell(0)
	:: !ends
	fi;
#ifdef BIT_LATE
	has_bit = true;
#endif
	goto over;
leave:
	held = false;
over:
	skip
}

/* It is owned no more; wants: it is to be looked at again. */
inline give_back(m, wants)
{
	d_step { owned[m] = false; marked[m] = again[m] || wants; again[m] = false }
}

/* One snapshot.  A look reads the child's parents from the watched one on. */
#ifdef ADD_BELOW
#define SEE_ADDED seen_added = (added && watched == 1)
#else
#define SEE_ADDED seen_added = added
#endif
#define SEE atomic { seen_child = !released; seen_watched = watched; seen[0] = ended[0]; seen[1] = ended[1]; SEE_ADDED }
#define FORGET atomic { seen_child = false; seen_watched = 0; seen[0] = false; seen[1] = false; seen_added = false; mine = false }

/* Takes a mark, looks, and ends its transaction. */
inline take(m)
{
	if
	:: d_step { marked[m] && !owned[m] -> marked[m] = false; owned[m] = true; mine = true }
	:: d_step { !marked[m] || owned[m] -> mine = false }
	fi;
	if
	:: mine -> SEE
	:: !mine
	fi;
	if
	:: !mine
	:: mine && m != CHILD ->
		/* tell_children */
		if
		:: seen[m] && seen_child && seen_watched == m -> mark(CHILD)
		:: else
		fi;
		give_back(m, false)
	:: mine && m == CHILD ->
		if
		:: seen_child && (seen_watched == 1 || seen[0]) && (!seen_added || seen[1]) ->
			if
			:: atomic { assert(ever && (!added || ended[1]) && !released); released = true };
				give_back(m, false)
			MAY_ABORT; give_back(m, true)
			fi
		:: seen_child && seen_watched == 0 && seen[0] && seen_added && !seen[1] ->
			/* dependencies_wait_for: the watch moves. */
			if
			:: watched = 1;
#ifndef NO_MARK_AGAIN
				mark(m);
#endif
				give_back(m, false)
			MAY_ABORT; give_back(m, true)
			fi
		:: else -> give_back(m, false)
		fi
	fi;
	FORGET
}

#define LOCALS bool seen_child, seen_added, mine, seen[2]; byte seen_watched

proctype worker()
{
	LOCALS;

end:
	do
	:: marked[0] && !owned[0] -> take(0)
	:: marked[1] && !owned[1] -> take(1)
	:: marked[CHILD] && !owned[CHILD] -> take(CHILD)
	od
}

proctype claimer()
{
	LOCALS;
	byte calls = 0;

end:
	do
	:: calls < 3 && marked[0] -> calls++; take(0)
	:: calls < 3 && marked[1] -> calls++; take(1)
	:: calls < 3 && marked[CHILD] -> calls++; take(CHILD)
	:: calls == 3 || released -> break
	od
}

/* Nothing is forgotten: when nobody has anything to do. */
proctype witness()
{
	timeout -> assert(released)
}

init
{
	atomic { run witness(); run finisher(0); run finisher(1); run adder(); run worker(); run claimer() }
}
