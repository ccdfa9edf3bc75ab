/*
 * base/compat.h
 *		All differences between PostgreSQL 15 and 19 that matter to idemq.  No other file uses
 *		PG_VERSION_NUM.
 */
#ifndef IDEMQ_BASE_COMPAT_H
#define IDEMQ_BASE_COMPAT_H

#include "access/genam.h"
#include "access/heapam.h"
#include "access/relation.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/dependency.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "commands/sequence.h"
#if PG_VERSION_NUM >= 190000
#include "commands/sequence_xlog.h"
#endif
#include "common/pg_prng.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "optimizer/pathnode.h"
#include "optimizer/plancat.h"
#include "pgstat.h"
#include "parser/parse_relation.h"
#include "parser/parser.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/bufmgr.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"
#include "utils/acl.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#if PG_VERSION_NUM < 150000
#error "idemq needs PostgreSQL 15 or later"
#endif

/* The number of this process's PGPROC, which is unique among running processes. */
#if PG_VERSION_NUM >= 170000
#define IDEMQ_MY_PROC_NUMBER ((int32) MyProcNumber)
#else
#define IDEMQ_MY_PROC_NUMBER ((int32) MyProc->pgprocno)
#endif

/* Whether a backslash in a string is an ordinary character; a setting until 18. */
#if PG_VERSION_NUM >= 190000
#define COMPAT_STRINGS_CONFORM true
#else
#define COMPAT_STRINGS_CONFORM standard_conforming_strings
#endif

/* Returns whether a session is in a transaction, as far as other sessions can see. */
static inline bool
compat_proc_in_transaction(const PGPROC *proc)
{
#if PG_VERSION_NUM >= 170000
	return LocalTransactionIdIsValid(proc->vxid.lxid);
#else
	return LocalTransactionIdIsValid(proc->lxid);
#endif
}

/* Since 16, table_tuple_update returns an enum that says which indexes need new entries. */
#if PG_VERSION_NUM >= 160000
typedef TU_UpdateIndexes UpdateIndexes;
#define UPDATE_INDEXES_NONE(u) ((u) == TU_None)
#define UPDATE_INDEXES_SUMMARIZING(u) ((u) == TU_Summarizing)
#else
typedef bool UpdateIndexes;
#define UPDATE_INDEXES_NONE(u) (!(u))
#define UPDATE_INDEXES_SUMMARIZING(u) false
#endif

static inline IndexScanDesc
compat_index_beginscan(Relation heap, Relation index, Snapshot snapshot, int nkeys)
{
#if PG_VERSION_NUM >= 190000
	/* Not SO_HINT_REL_READ_ONLY, because the rows will be written. */
	return index_beginscan(heap, index, snapshot, NULL, nkeys, 0, SO_NONE);
#elif PG_VERSION_NUM >= 180000
	return index_beginscan(heap, index, snapshot, NULL, nkeys, 0);
#else
	return index_beginscan(heap, index, snapshot, nkeys, 0);
#endif
}

/* Since 19, table_tuple_update and table_tuple_delete have an argument for options. */
static inline TM_Result
compat_tuple_update(Relation rel, ItemPointer tid, TupleTableSlot *row, Snapshot snapshot,
					Snapshot crosscheck, TM_FailureData *failure, LockTupleMode *mode,
					UpdateIndexes *indexes)
{
#if PG_VERSION_NUM >= 190000
	return table_tuple_update(rel, tid, row, GetCurrentCommandId(true), 0, snapshot, crosscheck,
							  true, failure, mode, indexes);
#else
	return table_tuple_update(rel, tid, row, GetCurrentCommandId(true), snapshot, crosscheck, true,
							  failure, mode, indexes);
#endif
}

static inline TM_Result
compat_tuple_delete(Relation rel, ItemPointer tid, Snapshot snapshot, Snapshot crosscheck,
					bool wait, TM_FailureData *failure)
{
#if PG_VERSION_NUM >= 190000
	return table_tuple_delete(rel, tid, GetCurrentCommandId(true), 0, snapshot, crosscheck, wait,
							  failure);
#else
	return table_tuple_delete(rel, tid, GetCurrentCommandId(true), snapshot, crosscheck, wait,
							  failure, false);
#endif
}

/*
 * Prunes a page that is nearly full, unless another session has pinned it.  Since 19, pruning may
 * have to clear the page's bit in the visibility map.
 */
static inline void
compat_prune(Relation rel, Buffer buffer)
{
#if PG_VERSION_NUM >= 190000
	Buffer map = InvalidBuffer;

	/* The page will be written, so it is useless to mark it all-visible. */
	heap_page_prune_opt(rel, buffer, &map, false);
	if (BufferIsValid(map))
		ReleaseBuffer(map);
#else
	heap_page_prune_opt(rel, buffer);
#endif
}

/*
 * The id of a tranche of LWLocks is allocated once.  Until 18, each process must then register its
 * name; since 19, it is named when it is allocated.
 */
static inline int
compat_tranche_new(const char *name)
{
#if PG_VERSION_NUM >= 190000
	return LWLockNewTrancheId(name);
#else
	return LWLockNewTrancheId();
#endif
}

static inline void
compat_tranche_name(int tranche, const char *name)
{
#if PG_VERSION_NUM < 190000
	LWLockRegisterTranche(tranche, name);
#endif
}

/*
 * Creates or attaches to a hash table in shared memory, whose entries are all allocated at the
 * start.
 */
static inline HTAB *
compat_shmem_hash(const char *name, int64 entries, HASHCTL *info, int flags)
{
#if PG_VERSION_NUM >= 190000
	return ShmemInitHash(name, entries, info, flags);
#else
	return ShmemInitHash(name, entries, entries, info, flags);
#endif
}

/*
 * The arguments with which a signal handler calls another one; since 19, they include the sender.
 */
#if PG_VERSION_NUM >= 190000
#define COMPAT_SIGNAL_ARGS postgres_signal_arg, pg_siginfo
#else
#define COMPAT_SIGNAL_ARGS postgres_signal_arg
#define PG_SIG_IGN SIG_IGN
#endif

/* PostgreSQL 19 defines it, and its compiler flags do not accept a comment instead. */
#ifndef pg_fallthrough
#define pg_fallthrough __attribute__((fallthrough))
#endif

/* Returns the header of a WAL record for a sequence's row. */
static inline xl_seq_rec
compat_sequence_record(Relation rel)
{
#if PG_VERSION_NUM >= 160000
	return (xl_seq_rec){.locator = rel->rd_locator};
#else
	return (xl_seq_rec){.node = rel->rd_node};
#endif
}

/* Returns the number of a table's file, which changes when the table is rewritten. */
static inline Oid
compat_file_number(Relation rel)
{
#if PG_VERSION_NUM >= 160000
	return rel->rd_locator.relNumber;
#else
	return rel->rd_node.relNode;
#endif
}

static inline Oid
compat_primary_key_index(Relation rel)
{
#if PG_VERSION_NUM >= 180000
	return RelationGetPrimaryKeyIndex(rel, false);
#else
	return RelationGetPrimaryKeyIndex(rel);
#endif
}

static inline List *
compat_insert_index_tuples(ResultRelInfo *result_rel, TupleTableSlot *row, EState *estate,
						   bool update, bool only_summarizing)
{
#if PG_VERSION_NUM >= 190000
	return ExecInsertIndexTuples(result_rel, estate,
								 (update ? EIIT_IS_UPDATE : 0) |
									 (only_summarizing ? EIIT_ONLY_SUMMARIZING : 0),
								 row, NIL, NULL);
#elif PG_VERSION_NUM >= 160000
	return ExecInsertIndexTuples(result_rel, row, estate, update, false, NULL, NIL,
								 only_summarizing);
#else
	return ExecInsertIndexTuples(result_rel, row, estate, update, false, NULL, NIL);
#endif
}

/* Since 16, permissions are no longer part of the range table entry. */
static inline void
compat_init_range_table(EState *estate, Relation rel, Bitmapset *updated_cols)
{
	RangeTblEntry *rte = makeNode(RangeTblEntry);
#if PG_VERSION_NUM >= 160000
	List *perminfos = NIL;
	RTEPermissionInfo *perminfo;
#endif

	rte->rtekind = RTE_RELATION;
	rte->relid = RelationGetRelid(rel);
	rte->relkind = rel->rd_rel->relkind;
	rte->rellockmode = AccessShareLock;
#if PG_VERSION_NUM >= 160000
	perminfo = addRTEPermissionInfo(&perminfos, rte);
	perminfo->updatedCols = updated_cols;
#if PG_VERSION_NUM >= 180000
	ExecInitRangeTable(estate, list_make1(rte), perminfos, bms_make_singleton(1));
#else
	ExecInitRangeTable(estate, list_make1(rte), perminfos);
#endif
#else
	rte->updatedCols = updated_cols;
	ExecInitRangeTable(estate, list_make1(rte));
#endif
}

/* Returns the sequence of an identity column.  Since 17, getIdentitySequence takes a Relation. */
static inline Oid
compat_identity_sequence(Oid relid, AttrNumber attnum)
{
#if PG_VERSION_NUM >= 170000
	Relation rel = relation_open(relid, NoLock);
	Oid sequence = getIdentitySequence(rel, attnum, false);

	relation_close(rel, NoLock);
	return sequence;
#else
	return getIdentitySequence(relid, attnum, false);
#endif
}

/* Returns whether a DROP DATABASE was interrupted; 15.4 and 16 introduced the mark for this. */
static inline bool
compat_database_is_invalid(Form_pg_database database)
{
#ifdef DATCONNLIMIT_INVALID_DB
	return database->datconnlimit == DATCONNLIMIT_INVALID_DB;
#else
	return false;
#endif
}

/*
 * Takes a lock until the end of the transaction.  Returns false if this would require waiting, or
 * if the lock table is full.
 */
static inline bool
compat_lock_if_free(const LOCKTAG *tag, LOCKMODE mode)
{
#if PG_VERSION_NUM >= 180000
	return LockAcquireExtended(tag, mode, false, true, false, NULL, false) != LOCKACQUIRE_NOT_AVAIL;
#else
	return LockAcquireExtended(tag, mode, false, true, false, NULL) != LOCKACQUIRE_NOT_AVAIL;
#endif
}

/* Returns whether the current role owns a database. */
static inline bool
compat_owns_database(Oid database)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(DatabaseRelationId, database, GetUserId());
#else
	return pg_database_ownercheck(database, GetUserId());
#endif
}

/* Returns whether the current role owns an extension. */
static inline bool
compat_owns_extension(Oid extension)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(ExtensionRelationId, extension, GetUserId());
#else
	return pg_extension_ownercheck(extension, GetUserId());
#endif
}

/* A transaction_timeout set for the server would end a background worker during a task. */
#if PG_VERSION_NUM >= 170000
#define COMPAT_TRANSACTION_TIMEOUT_OFF {"transaction_timeout", "0"},
#else
#define COMPAT_TRANSACTION_TIMEOUT_OFF
#endif

/* Returns whether there are synchronous standbys; the minor releases of 2025 changed the flag. */
static inline bool
compat_sync_standbys_defined(void)
{
#ifdef SYNC_STANDBY_DEFINED
	uint8 status = ((volatile WalSndCtlData *) WalSndCtl)->sync_standbys_status;

	/* The checkpointer has not set the flags yet. */
	if ((status & SYNC_STANDBY_INIT) == 0)
		return SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0';
	return (status & SYNC_STANDBY_DEFINED) != 0;
#else
	return ((volatile WalSndCtlData *) WalSndCtl)->sync_standbys_defined;
#endif
}

/* Since 17, wait events of an extension can have names. */
#if PG_VERSION_NUM >= 170000
#define COMPAT_WAIT_EVENT(function, name)                                                          \
	static inline uint32 function(void)                                                            \
	{                                                                                              \
		static uint32 event = 0;                                                                   \
                                                                                                   \
		if (event == 0)                                                                            \
			event = WaitEventExtensionNew(name);                                                   \
		return event;                                                                              \
	}
#else
#define COMPAT_WAIT_EVENT(function, name)                                                          \
	static inline uint32 function(void)                                                            \
	{                                                                                              \
		return PG_WAIT_EXTENSION;                                                                  \
	}
#endif
COMPAT_WAIT_EVENT(compat_wait_event_wait, "IdemqWait")
COMPAT_WAIT_EVENT(compat_wait_event_launcher, "IdemqLauncherMain")
COMPAT_WAIT_EVENT(compat_wait_event_worker, "IdemqWorkerMain")
COMPAT_WAIT_EVENT(compat_wait_event_handler, "IdemqHandlerMain")
COMPAT_WAIT_EVENT(compat_wait_event_away, "IdemqWorkerAway")

/*
 * The planner hook that runs after the sizes of a table were read.  Since 19, it is called for
 * every relation of a query.
 */
#if PG_VERSION_NUM >= 190000
#define COMPAT_RELATION_HOOK_POINTER build_simple_rel_hook
typedef build_simple_rel_hook_type compat_relation_hook_type;
#define COMPAT_RELATION_HOOK(name, previous, function)                                             \
	static void name(PlannerInfo *root, RelOptInfo *rel, RangeTblEntry *rte)                       \
	{                                                                                              \
		if (previous != NULL)                                                                      \
			previous(root, rel, rte);                                                              \
		if (rte->rtekind == RTE_RELATION)                                                          \
			function(rte->relid, rel);                                                             \
	}
#else
#define COMPAT_RELATION_HOOK_POINTER get_relation_info_hook
typedef get_relation_info_hook_type compat_relation_hook_type;
#define COMPAT_RELATION_HOOK(name, previous, function)                                             \
	static void name(PlannerInfo *root, Oid relid, bool inhparent, RelOptInfo *rel)                \
	{                                                                                              \
		if (previous != NULL)                                                                      \
			previous(root, relid, inhparent, rel);                                                 \
		function(relid, rel);                                                                      \
	}
#endif

/* Returns whether a role has a privilege on a function, a schema or a database. */
static inline bool
compat_may(Oid class_id, Oid object, Oid role, AclMode mode)
{
#if PG_VERSION_NUM >= 160000
	return object_aclcheck(class_id, object, role, mode) == ACLCHECK_OK;
#else
	if (class_id == ProcedureRelationId)
		return pg_proc_aclcheck(object, role, mode) == ACLCHECK_OK;
	if (class_id == NamespaceRelationId)
		return pg_namespace_aclcheck(object, role, mode) == ACLCHECK_OK;
	return pg_database_aclcheck(object, role, mode) == ACLCHECK_OK;
#endif
}

/*
 * Returns how long a call that waits may stay in one transaction: 9/10 of transaction_timeout, us.
 */
static inline int64
compat_longest_transaction(void)
{
#if PG_VERSION_NUM >= 170000
	if (TransactionTimeout > 0)
		return (int64) TransactionTimeout * 900;
#endif
	return USECS_PER_DAY;
}

#endif
