/*
 * ensure_queue.pml
 *		ensure_queue of src/api/create_queue.c: calls that create or change one queue at once all
 *		succeed, and no call undoes what a DBA has changed since the same declaration.
 *
 * One setting.  Two programs declare it, one twice with the same value, one with a value that it chooses; a
 * DBA alters it twice, and drops the queue once.  One transaction may abort.  A look reads what is
 * committed, as the latest snapshot does at every isolation level; a transaction looks no more after it
 * has written, so its own changes are only seen by its commit.
 *
 * Not in it: several settings, exact, privileges, warnings, rows that are written by hand without the
 * lock, pause and resume (which change no setting), and a session's cache of queues, which is read anew.
 *
 * Mutants: NO_LOOK (after the lock, the first look decides), NO_LOCK (of the name), LOCK_ENDS (before the
 * commit), BY_SETTING (the current setting is compared, and not the declaration).
 */
#define NONE 0
#define DBA_VALUE 9

bool exists = false;
byte setting = NONE;
byte declared = NONE; /* the last declaration; NONE: the queue was never declared */
bool name_locked = false;
bool aborted = false; /* one is allowed */

/* idemq_queue_find and idemq_declared_compare, under the latest snapshot. */
inline look()
{
	d_step {
		found = exists;
#ifdef BY_SETTING
		is_new = (setting != value)
#else
		is_new = (declared != value)
#endif
	}
}

inline lock_name()
{
#ifndef NO_LOCK
	atomic { !name_locked -> name_locked = true }
#else
	skip
#endif
}

inline unlock_name()
{
#ifndef NO_LOCK
	name_locked = false
#else
	skip
#endif
}

/* The end of a transaction that has created or changed the queue. */
inline finish_ensure()
{
#ifdef LOCK_ENDS
	unlock_name();
#endif
	if
	:: atomic {
		!aborted -> aborted = true;
#ifndef LOCK_ENDS
		unlock_name()
#endif
	   }
	:: atomic {
		/* A second row of the name, or a row that is gone: the call would fail. */
		assert(found == exists);
		/* The same declaration as before: what a DBA has set since then stays. */
		assert(!(exists && declared == value));
		exists = true;
		setting = value;
		declared = value;
#ifndef LOCK_ENDS
		unlock_name()
#endif
	   }
	fi
}

/* One call of ensure_queue, in a transaction of its own. */
inline ensure()
{
	look();
	if
	:: found && !is_new /* unchanged: no lock, and nothing is written */
	:: else ->
		lock_name();
#ifndef NO_LOOK
		look();
#endif
		if
		:: found && !is_new -> unlock_name()
		:: else -> finish_ensure()
		fi
	fi
}

active proctype same_program()
{
	bool found, is_new;
	byte value = 1;

	ensure();
	ensure()
}

active proctype other_program()
{
	bool found, is_new;
	byte value;

	if
	:: value = 1
	:: value = 2
	fi;
	ensure()
}

/* alter_queue and drop_queue lock the name too. */
active proctype dba()
{
	byte n = 0;

	do
	:: n == 3 -> break
	:: n < 3 ->
		lock_name();
		atomic {
			if
			:: exists && n != 1 -> setting = DBA_VALUE
			:: exists && n == 1 -> exists = false; setting = NONE; declared = NONE
			:: true
			fi;
			unlock_name()
		};
		n++
	od
}
