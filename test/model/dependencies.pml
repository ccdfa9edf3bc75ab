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
 * A mark that is taken has one promoter, and comes back when it is marked meanwhile or its promoter aborts:
 * groups.pml.  Not in it: parents that fail or are brought back, a batch of marks, scans, a database
 * without a worker, full tables, the hash (one parent's bit may be another's: marked in vain).
 *
 * Mutants: BITS_LATE (after the child's mark), NO_MARK (of the child, after its enqueue), FILTER_FIRST
 * (an end reads the filter before it is visible), BEGIN_LATE (a learner begins after its snapshot),
 * ONE_BEGIN (learners share what they note when they begin),
 * LOOK_FIRST (a look's snapshot, before the mark is taken), NO_MARK_AGAIN (a look that moves the watch
 * marks nothing), NO_NEXT_PAGE (the first page of a parent's children ends its mark).
 */
#define CHILD 2
#define PAGED 1
#define KNOWN 1
#define SOME 2

bool edge = false;			/* the child's rows, as committed: */
byte watched = 0;
bool released = false;
bool ended[2];				/* its parents */

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
#define ALL_ENDED (ended[0] && ended[1])

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

inline note_bits()
{
	/* idemq_dependency_note, of each parent */
	has_bit[0] = true; state = state | SOME;
	has_bit[1] = true; state = state | SOME
}

proctype enqueuer()
{
	bool prepared = false;

begin:
#ifndef BITS_LATE
	if
	:: note_bits()
	:: prepared = true /* its bits went in a restart */
	fi;
#endif
	if
	:: edge = true
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
	note_bits()
#else
	skip
#endif
}

/* The end of a parent. */
proctype finisher(byte p)
{
	byte seen = 0;
	bool may = false;

begin:
#ifdef FILTER_FIRST
	atomic { seen = state; may = has_bit[p] };
#endif
	if
	:: ended[p] = true
	MAY_ABORT; goto begin
	fi;
	/* idemq_may_have_dependencies */
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

/* idemq_dependencies_learn */
proctype learner(bool other)
{
	bool seen = false;
#ifndef ONE_BEGIN
	byte begun;
#endif

end:
	do
	:: (state & KNOWN) == 0 && (!other || number > 0) ->
#ifdef BEGIN_LATE
		seen = edge;
		begun = number;
#else
		begun = number;
		seen = edge;
#endif
		if
		:: seen -> note_bits()
		:: else
		fi;
		/* idemq_dependencies_learn_end; not where it was unset meanwhile */
		d_step {
			if
			:: begun == number -> state = state | KNOWN
			:: else
			fi;
			seen = false;
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

/* Takes a mark, looks, and ends its transaction. */
inline take(m)
{
#ifdef LOOK_FIRST
	atomic { seen_edge = edge && !released; seen_watched = watched; seen[0] = ended[0]; seen[1] = ended[1] };
#endif
	if
	:: d_step { marked[m] && !owned[m] -> marked[m] = false; owned[m] = true; mine = true }
	:: d_step { !marked[m] || owned[m] -> mine = false }
	fi;
#ifndef LOOK_FIRST
	if
	:: mine -> atomic { seen_edge = edge && !released; seen_watched = watched; seen[0] = ended[0]; seen[1] = ended[1] }
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
		:: seen_edge && (seen_watched == 1 || seen[0]) && seen[1] ->
			if
			:: atomic { assert(ALL_ENDED && !released); released = true };
				give_back(m, false)
			MAY_ABORT; give_back(m, true)
			fi
		:: seen_edge && seen_watched == 0 && seen[0] && !seen[1] ->
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
	atomic { seen_edge = false; seen_watched = 0; seen[0] = false; seen[1] = false; mine = false }
}

#define LOCALS bool seen_edge, mine, seen[3]; byte seen_watched

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
	:: calls < 2 && marked[0] -> calls++; take(0)
	:: calls < 2 && marked[1] -> calls++; take(1)
	:: calls < 2 && marked[CHILD] -> calls++; take(CHILD)
	:: calls == 2 || released -> break
	od
}

/* Nothing is forgotten: when nobody has anything to do. */
proctype witness()
{
	timeout -> assert(released)
}

init
{
	atomic { run witness(); run enqueuer(); run finisher(0); run finisher(1); run learner(false); run learner(true); run worker(); run claimer() }
}
