/*
 * dependencies.pml
 *		src/shared/groups/dependencies.c and src/job/dependencies.c: a child is released when its
 *		parents are done, not before, and never forgotten.
 *
 * A child of two parents, which are of one queue; each parent ends once, in a session of its own.  The
 * filter is not known at first: a learner reads the rows meanwhile, and again when it is unset; so does
 * another one from then on.  Two sessions take marks, one of them twice.  One transaction aborts, the enqueue, an end, or a look, and
 * is done again.  The enqueue may be a prepared one, whose bits went in a restart.
 *
 * The children of the second parent are looked up in two pages, the child in the later one; between them
 * the parent's mark keeps the place (its low-water mark), and another session may take it.  The child in
 * the first page is as it is for the first parent, which has one page.
 *
 * Or the child has the first parent alone, and grows: while that parent runs, its holder adds the second
 * one (job/add_parents.c), in a transaction of its own or in the one that ends the first parent.  The first
 * parent may have ended and run again before, so a look may be under way that has seen it done.  For
 * such a child there is one learner, and the second session takes one mark.
 *
 * A mark that is taken has one promoter, and comes back when it is marked meanwhile or its promoter aborts:
 * groups.pml.  Not in it: parents that fail, a child that does not grow and whose parents are brought back, a batch of marks, scans, a database
 * without a worker, full tables, the hash (one parent's bit may be another's: marked in vain).
 *
 * Mutants: BITS_LATE (after the child's mark), NO_MARK (of the child, after its enqueue), FILTER_FIRST
 * (an end reads the filter before it is visible), BEGIN_LATE (a learner begins after its snapshot),
 * ONE_BEGIN (learners share what they note when they begin),
 * LOOK_FIRST (a look's snapshot, before the mark is taken), NO_MARK_AGAIN (a look that moves the watch
 * marks nothing), NO_NEXT_PAGE (the first page of a parent's children ends its mark).  Of an adder: NO_HOLD (it
 * does not hold the first parent), LOOK_NOT_SEEN (it does not ask whether a look owns the child's mark),
 * CHILD_FIRST (it reads the child's rows before it asks), CHILD_NOT_SEEN (it adds to a child that no longer
 * waits), ADD_BELOW (the added parent's id is below the watched one's),
 * ADD_BIT_LATE (it sets the bit after its commit).
 */
#define CHILD 2
#define PAGED 1
#define KNOWN 1
#define SOME 2

bool grows = false;			/* the second parent is added */
bool edge = false;			/* the child's rows, as committed: */
bool added = false;			/* the edge of the second parent */
byte watched = 0;
bool released = false;
bool ended[2];				/* its parents */
bool ever = false;			/* the first one has ended, and may run again */
bool held = false;			/* it is held by an open transaction that adds */

bool has_bit[2];				/* the filter, of the parents' jobs */
byte state = 0;				/* QueueState.dependencies: */
byte number = 0;			/* and how often it was unset */
#ifdef ONE_BEGIN
byte begun;
#endif

bool marked[3];				/* parents, and the child */
bool owned[3];
bool again[3];
bool second = false;			/* the low-water mark of the second parent's mark: its second page is next */

bool aborted = false;

#define MAY_ABORT :: atomic { !aborted -> aborted = true }
#define ALL_ENDED (ever && (!added || ended[1]))

/* idemq_group_mark; of a parent, it drops the low-water mark. */
inline mark(m)
{
	d_step {
		if
		:: owned[m] -> again[m] = true
		:: else -> marked[m] = true;
			if
			:: m == PAGED -> second = false
			:: else
			fi
		fi
	}
}

inline note_bit(p)
{
	/* idemq_dependency_note */
	has_bit[p] = true; state = state | SOME
}

inline note_bits(second_one)
{
	note_bit(0);
	if
	:: second_one -> note_bit(1)
	:: else
	fi
}

proctype enqueuer()
{
	bool prepared = false;

begin:
#ifndef BITS_LATE
	if
	:: note_bits(!grows)
	:: prepared = true /* its bits went in a restart */
	fi;
#endif
	if
	:: d_step { edge = true; added = !grows }
	MAY_ABORT; prepared = false; goto begin
	fi;
	/* COMMIT PREPARED: qstate_unset_dependencies, and a scan, which looks at the child. */
	if
	:: prepared -> d_step { state = state & ~KNOWN; number++ }
	:: else
	fi;
#ifndef NO_MARK
	mark(CHILD);
#endif
#ifdef BITS_LATE
	note_bits(!grows)
#else
	skip
#endif
}

/* idemq_may_have_dependencies, after the end of a parent, and the mark. */
inline tell(p)
{
#ifndef FILTER_FIRST
	seen = state;
#endif
	if
	:: seen == KNOWN -> skip
	:: (seen & KNOWN) == 0 -> mark(p)
	:: else ->
#ifndef FILTER_FIRST
		may = has_bit[p];
#endif
		if
		:: may -> mark(p)
		:: else
		fi
	fi
}

/* The child waits, and watches the first parent: all of it by one snapshot. */
#ifdef CHILD_NOT_SEEN
#define SEE_WAITS waits = true
#else
#define SEE_WAITS waits = edge && !released && watched == 0
#endif

/* The end of a parent. */
proctype finisher(byte p)
{
	byte seen = 0;
	bool may = false;
	bool again_too = false;

begin:
#ifdef FILTER_FIRST
	atomic { seen = state; may = has_bit[p] };
#endif
	if
	:: atomic { (p == 1 || !held) && !ended[p] -> ended[p] = true; ever = ever || p == 0 }
	:: p == 0 && ended[0] -> goto over /* the adder has ended it */
	MAY_ABORT; goto begin
	fi;
	tell(p);
	/* It is asked for again, and claimed. */
	if
	:: atomic { p == 0 && grows && !again_too && !released -> ended[0] = false; again_too = true }; goto begin
	:: skip
	fi;
over:
	skip
}

/* The holder of the first parent makes the child wait for the second one too. */
proctype adder()
{
	byte seen = 0;
	bool may = false;
	bool ends = false;
	bool waits = false;

	/* idemq_attempt_try_lock */
	if
	:: atomic { edge && !ended[0] ->
#ifndef NO_HOLD
		held = true
#endif
	}
	:: edge && ended[0] -> goto over
	fi;
#ifdef CHILD_FIRST
	SEE_WAITS;
#endif
#ifndef LOOK_NOT_SEEN
	/* A look that owns the mark may have seen the end of an earlier run. */
	if
	:: owned[CHILD] -> goto leave
	:: else
	fi;
#endif
#ifndef CHILD_FIRST
	SEE_WAITS;
#endif
	if
	:: !waits -> goto leave
	:: else
	fi;
#ifndef ADD_BIT_LATE
	note_bit(1);
#endif
	if
	:: atomic { assert(!released); added = true; held = false }
	:: atomic { !ended[0] -> assert(!released); added = true; held = false; ended[0] = true; ever = true; ends = true }
	:: goto leave /* it rolls back */
	fi;
	mark(CHILD);
	if
	:: ends -> tell(0)
	:: else
	fi;
#ifdef ADD_BIT_LATE
	note_bit(1);
#endif
	goto over;
leave:
	held = false;
over:
	skip
}

/* idemq_dependencies_learn */
proctype learner(bool other)
{
	bool seen = false;
	bool two = false;
#ifndef ONE_BEGIN
	byte begun;
#endif

end:
	do
	:: (state & KNOWN) == 0 && (!other || number > 0) ->
#ifdef BEGIN_LATE
		d_step { seen = edge; two = added };
		begun = number;
#else
		begun = number;
		d_step { seen = edge; two = added };
#endif
		if
		:: seen -> note_bits(two)
		:: else
		fi;
		/* idemq_dependencies_learn_end; not where it was unset meanwhile */
		d_step {
			if
			:: begun == number -> state = state | KNOWN
			:: else
			fi;
			seen = false;
			two = false;
			begun = 0
		}
	od
}

inline give_back(m, wants)
{
	d_step { owned[m] = false; marked[m] = again[m] || wants; again[m] = false }
}

/* The same of a parent's mark, with the page that is next; a mark that came meanwhile drops it. */
inline give_back_at(m, wants, next)
{
	d_step {
		/* In this order: wants and next are of what second was. */
		owned[m] = false; marked[m] = again[m] || wants;
		second = next && !again[m]; again[m] = false
	}
}

/* A look reads from the watched parent on. */
#ifdef ADD_BELOW
#define SEE_ADDED seen_added = added && !grows
#else
#define SEE_ADDED seen_added = added
#endif

/* Takes a mark, looks, and ends its transaction. */
inline take(m)
{
#ifdef LOOK_FIRST
	atomic { seen_edge = edge && !released; seen_watched = watched; seen[0] = ended[0]; seen[1] = ended[1]; SEE_ADDED };
#endif
	if
	:: d_step { marked[m] && !owned[m] -> marked[m] = false; owned[m] = true; mine = true }
	:: d_step { !marked[m] || owned[m] -> mine = false }
	fi;
#ifndef LOOK_FIRST
	if
	:: mine -> atomic { seen_edge = edge && !released; seen_watched = watched; seen[0] = ended[0]; seen[1] = ended[1]; SEE_ADDED }
	:: else
	fi;
#endif
	if
	:: !mine
	:: mine && m != CHILD ->
		/* tell_children: who watches it, of this page, and at once. */
		if
		:: seen[m] && seen_edge && seen_watched == m && (m != PAGED || second) -> mark(CHILD)
		:: else
		fi;
		if
		:: m != PAGED ->
			if
			:: give_back(m, false)
			MAY_ABORT; give_back(m, true)
			fi
		:: m == PAGED ->
			if
#ifdef NO_NEXT_PAGE
			:: give_back_at(m, false, false)
#else
			:: give_back_at(m, !second, !second)
#endif
			MAY_ABORT; give_back_at(m, true, second)
			fi
		fi
	:: mine && m == CHILD ->
		if
		:: !seen_edge -> give_back(m, false)
		:: seen_edge && (seen_watched == 1 || seen[0]) && (seen[1] || !seen_added) ->
			if
			:: atomic { assert(ALL_ENDED && !released); released = true };
				give_back(m, false)
			MAY_ABORT; give_back(m, true)
			fi
		:: seen_edge && seen_watched == 0 && seen[0] && seen_added && !seen[1] ->
			/* wait_for: the watch moves. */
			if
			:: watched = 1;
				/* Its own mark, of the commit, comes before it gives back what it owns. */
#ifndef NO_MARK_AGAIN
				mark(m);
#endif
				give_back(m, false)
			MAY_ABORT; give_back(m, true)
			fi
		:: else -> give_back(m, false)
		fi
	fi;
	atomic { seen_edge = false; seen_watched = 0; seen[0] = false; seen[1] = false; seen_added = false; mine = false }
}

/* Marks that the second session takes. */
#define CALLS (grows -> 1 : 2)

#define LOCALS bool seen_edge, seen_added, mine, seen[3]; byte seen_watched

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
	:: calls < CALLS && marked[0] -> calls++; take(0)
	:: calls < CALLS && marked[1] -> calls++; take(1)
	:: calls < CALLS && marked[CHILD] -> calls++; take(CHILD)
	:: calls == CALLS || released -> break
	od
}

/* Nothing is forgotten: when nobody has anything to do. */
proctype witness()
{
	timeout -> assert(released)
}

init
{
	if
	:: grows = true
	:: skip
	fi;
	atomic {
		run witness(); run enqueuer(); run finisher(0); run finisher(1); run learner(false); run worker(); run claimer();
		if
		:: grows -> run adder()
		:: else -> run learner(true)
		fi
	}
}
