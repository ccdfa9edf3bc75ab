/*
 * table/jobs_id.c
 *		New job ids, each greater than all that were given before.
 *
 * A crash with asynchronous commit, and the promotion of an asynchronous standby, lose the last
 * changes of the sequence, so it would give the same ids again.  No fixed gap is wide enough for
 * the ids that may be lost.  So the first session that takes an id in a run of the server as a
 * primary raises the sequence to the current time, in microseconds since 2026.  That is above all
 * ids ever given, because each run began at or below its own current time, and gives fewer than
 * 10^6 ids per second.  Nothing has to be on disk for this, so a second crash does no harm.  It
 * also covers a dump, a backup or a base backup that is older than the ids.  The limit is a clock
 * that is set back to a time before the start of the last run.
 *
 * The sequence starts at 10^12 + 1, so even the first id does not fit into an int: a column that is
 * too narrow fails on the first day, and not at the first restart.  This start is below every
 * current time since 2026-01-12 (for a shard, whose unit is longer, since 2026-04-03), so a run
 * that begins there has also begun below its own current time.
 *
 * idemq.ids_since, the mark, records that this has been done.  Its value is idemq_primary_since()
 * of the run, and is_called says whether an id has been taken.  It is a sequence, because a
 * sequence is not rolled back, waits for no transaction, and its value is not dumped:
 *	   (this run, true)		done; a session finds this once
 *	   (this run, false)	CREATE EXTENSION in this run, and no id has been taken: nothing can be lost, and ids
 *							begin at the start, unless a restore has moved the sequence, or rows
 *							have come from elsewhere.  Rows of queues count, too, because a restore
 *							may still bring jobs with their old ids (hooks/row_triggers.c)
 *	   anything else		an earlier run or another server: raise the sequence
 *
 * A batch takes all its ids at once (take_block), with one change of the sequence's row and one WAL
 * record, which makes enqueue_many several percent cheaper than nextval for each job.  The ids are
 * consecutive, and none is kept for a later call: jobs with the same ready time are claimed in the
 * order of their ids, which is the order in which they were enqueued.  take_block does the same as
 * nextval, under the same locks: RowExclusiveLock on the sequence prevents ALTER SEQUENCE, and the
 * lock on its only page prevents two sessions from taking the same ids.  The WAL record contains
 * the last id that was taken, so log_cnt is 0: the next nextval writes its own record, and a crash
 * leaves no gap.  (currval in this session does not change.)  If a user has changed the sequence
 * (increment, cache, unlogged), or if the block would pass its end, ids are taken one by one.
 *
 * A shard's ids are a range of all ids, which is determined by its row of idemq.shard
 * (jobs_shard.c).  If the sequence is below this range, after ALTER SEQUENCE ... RESTART by hand,
 * or because the row has come without the sequence, it is raised into the range.  An id beyond the
 * range raises 54000.
 *
 * A session remembers that the sequence has been raised, and which range is ours, until the
 * relcache entry of the sequence is invalidated: by set_shard, TRUNCATE ... RESTART IDENTITY, ALTER
 * SEQUENCE, or the trigger of idemq.shard.  If an invalidation comes while an id is taken, it is
 * followed before the id is used.  By then, the session has its lock, so no other session restarts
 * the sequence.
 *
 * Locks: ExclusiveLock on idemq.ids_since as a database object, which nothing else takes, while the
 * two sequences are compared and set.  jobs_id_seq is raised first, so whoever sees the mark, in
 * memory or in WAL, also sees that.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/parallel.h"
#include "access/relation.h"
#include "access/rmgr.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "catalog/pg_class.h"
#include "catalog/pg_sequence.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "base/base.h"
#include "base/compat.h"
#include "table/table.h"

/* More ids than a server gives while its replica lags, at 10^6 per second at most. */
#define TAKE_OVER_GAP INT64CONST(1000000000)
#define SHARD_CLOCK_UNIT 8 /* microseconds; see table/jobs_shard.c */
/* More ids than a burst of a shard gives beyond the average that its clock covers. */
#define SHARD_GAP INT64CONST(100000000)

typedef enum IdsState
{
	IDS_SURE,	 /* the sequence has been raised in this run */
	IDS_FRESH,	 /* no id has ever been given */
	IDS_UNKNOWN, /* ids may have been given that the sequence does not know */
} IdsState;

/* The range of ids that this database may give. */
typedef struct IdPart
{
	int32 shard; /* -1: it is not a shard */
	int64 base;	 /* ids are greater than this, */
	int64 most;	 /* and at most this */
} IdPart;

/* What is known of both sequences, and of the shard. */
typedef struct IdsMark
{
	int64 since;
	bool is_called;
	int32 shard; /* as in IdPart */
	int64 last;
	bool is_unused; /* no id has ever been taken */
} IdsMark;

static SqlStatement read_mark =
	{.text = "SELECT m.last_value, m.is_called, coalesce(s.shard, -1), j.last_value, "
			 "NOT j.is_called AND NOT EXISTS (SELECT FROM idemq.jobs) FROM idemq.ids_since m "
			 "CROSS JOIN idemq.jobs_id_seq j LEFT JOIN idemq.shard s ON true",
	 .fields = (const SqlField[]){SQL_FIELD(IdsMark, since), SQL_FIELD(IdsMark, is_called),
								  SQL_FIELD(IdsMark, shard), SQL_FIELD(IdsMark, last),
								  SQL_FIELD(IdsMark, is_unused)}};
static SqlStatement read_last = {.text = "SELECT last_value FROM idemq.jobs_id_seq WHERE is_called",
								 .fields = SQL_SCALAR(int64)};
static SqlStatement set_value = {.text = "SELECT pg_catalog.setval($1, $2)",
								 .types = {REGCLASSOID, INT8OID}};
static SqlStatement unset_mark = {
	.text = "SELECT pg_catalog.setval('idemq.ids_since', 0, false) FROM idemq.ids_since "
			"WHERE NOT is_called AND last_value <> 0"};

/*
 * The sequence that has been raised, as far as this session knows; a run outlives all its sessions.
 */
static Oid sure_sequence = InvalidOid;
/* That is valid while these are equal; a change in between is noticed by the next call. */
static uint64 jobs_id_invalidations = 1;
static uint64 sure_at = 0;
/* The range of our ids, read at that time. */
static IdPart ours = {-1, 0, PG_INT64_MAX};

static inline bool
is_sure(Oid sequence)
{
	return sequence == sure_sequence && sure_at == jobs_id_invalidations;
}

/* Returns the id for the current time, which is above all ids that earlier runs have given. */
static int64
id_now(const IdPart *part)
{
	int64 now = idemq_now() - IDEMQ_EPOCH;

	return part->base + (part->shard < 0 ? now : now / SHARD_CLOCK_UNIT);
}

/* Returns what is known about ids in this run; sets *part to our range. */
static IdsState
ids_state(IdPart *part)
{
	IdsMark mark;

	if (!idemq_spi_row(&read_mark, NULL, &mark, sizeof(mark)))
		elog(ERROR, "idemq.ids_since has no row");
	*part = (IdPart){mark.shard, 0, PG_INT64_MAX};
	if (mark.shard >= 0)
	{
		part->base = (int64) mark.shard << SHARD_ID_BITS;
		part->most = part->base + ((INT64CONST(1) << SHARD_ID_BITS) - 1);
	}
	if (mark.since != idemq_primary_since() || mark.last < part->base)
		return IDS_UNKNOWN;
	return mark.is_called ? IDS_SURE : mark.is_unused ? IDS_FRESH : IDS_UNKNOWN;
}

static void
set_sequence(Oid sequence, int64 value)
{
	IDEMQ_STOP("before_setval");
	(void) idemq_spi_do(&set_value, (Datum[]){ObjectIdGetDatum(sequence), Int64GetDatum(value)},
						NULL);
}

static Oid
mark_sequence(void)
{
	return get_relname_relid("ids_since", idemq_oids()->schema);
}

static void
lock_mark(bool lock)
{
	if (lock)
		LockDatabaseObject(RelationRelationId, mark_sequence(), 0, ExclusiveLock);
	else
		UnlockDatabaseObject(RelationRelationId, mark_sequence(), 0, ExclusiveLock);
}

/* Raises the sequence to an id, unless it is above it already; for a shard, also leaves a gap. */
static void
raise_to(const IdPart *part, int64 id)
{
	Oid sequence = idemq_oids()->jobs_seq;
	int64 next = nextval_internal(sequence, false);

	if (part->shard >= 0 && next > part->base)
		id = Max(id, next + SHARD_GAP);
	/* Even if a user takes an id in between, it is below id. */
	if (next < id)
		set_sequence(sequence, id);
}

/*
 * Raises the sequence in a database that takes over from another one, to the current time, or, if
 * greatest, the greatest id that came from there, is above that because its clock was ahead of
 * ours, to greatest plus a gap for the ids that did not come.
 */
void
idemq_jobs_ids_take_over(int64 greatest)
{
	IdPart part;
	int64 now;

	lock_mark(true);
	(void) ids_state(&part);
	now = id_now(&part);
	raise_to(&part, greatest < now ? now : greatest + TAKE_OVER_GAP);
	lock_mark(false);
}

/*
 * Returns the sequence of job ids, and makes sure, once per session, that it is above all ids that
 * have ever been given in our range.  Where no id may be taken, nextval raises the error.
 */
static Oid
sure_jobs_sequence(void)
{
	Oid sequence = idemq_oids()->jobs_seq;
	uint64 before = jobs_id_invalidations;
	IdsState state;
	IdPart part;

	if (likely(is_sure(sequence)) || XactReadOnly || RecoveryInProgress() || IsInParallelMode())
		return sequence;
	if (ids_state(&part) != IDS_SURE)
	{
		/* As nextval does: waits for a set_shard in another session, and then sees what it did. */
		LockRelationOid(sequence, RowExclusiveLock);
		lock_mark(true);
		state = ids_state(&part);
		if (state == IDS_UNKNOWN)
			raise_to(&part, id_now(&part));
		if (state != IDS_SURE)
			set_sequence(mark_sequence(), idemq_primary_since());
		lock_mark(false);
	}
	ours = part;
	sure_sequence = sequence;
	sure_at = before;
	return sequence;
}

/* Raises 54000 for an id beyond our range. */
static inline void
refuse_beyond(int64 id)
{
	if (unlikely(id > ours.most))
		ereport(ERROR, errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				errmsg("shard %d has no job ids left", ours.shard),
				errhint("Route its keys to another cluster with more shards."));
}

/* Returns a new job id.  Raises 25006 in a read-only transaction and on a standby. */
int64
idemq_jobs_next_id(void)
{
	Oid sequence = sure_jobs_sequence();
	int64 id = nextval_internal(sequence, false);

	if (unlikely(!is_sure(sequence)))
		id = nextval_internal(sure_jobs_sequence(), false);
	refuse_beyond(id);
	return id;
}

/*
 * Returns the row of an open sequence whose page is locked; sets *tuple and *length to its tuple.
 */
static Form_pg_sequence_data
sequence_row(Relation rel, Page page, HeapTupleHeader *tuple, uint32 *length)
{
	ItemId item;

	if (PageGetMaxOffsetNumber(page) != FirstOffsetNumber)
		elog(ERROR, "sequence \"%s\" has no row", RelationGetRelationName(rel));
	item = PageGetItemId(page, FirstOffsetNumber);
	*tuple = (HeapTupleHeader) PageGetItem(page, item);
	*length = ItemIdGetLength(item);
	return (Form_pg_sequence_data) ((char *) *tuple + (*tuple)->t_hoff);
}

/* Sets and logs the last value of a sequence whose page is locked.  The transaction has an id. */
static void
set_last_value(Relation rel, Buffer buffer, int64 last)
{
	Page page = BufferGetPage(buffer);
	xl_seq_rec record = compat_sequence_record(rel);
	HeapTupleHeader tuple;
	XLogRecPtr written;
	uint32 length;
	Form_pg_sequence_data row = sequence_row(rel, page, &tuple, &length);

	START_CRIT_SECTION();
	MarkBufferDirty(buffer);
	row->last_value = last;
	row->is_called = true;
	row->log_cnt = 0;
	XLogBeginInsert();
	XLogRegisterBuffer(0, buffer, REGBUF_WILL_INIT);
	XLogRegisterData((char *) &record, sizeof(record));
	XLogRegisterData((char *) tuple, length);
	written = XLogInsert(RM_SEQ_ID, XLOG_SEQ_LOG);
	PageSetLSN(page, written);
	END_CRIT_SECTION();
}

/* Returns whether an open sequence counts by one without a cache; sets *most to its maximum. */
static bool
is_plain_sequence(Relation rel, int64 *most)
{
	HeapTuple tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(RelationGetRelid(rel)));
	Form_pg_sequence form;
	bool plain;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_sequence) GETSTRUCT(tuple);
	*most = form->seqmax;
	plain = form->seqincrement == 1 && form->seqcache == 1 && !form->seqcycle;
	ReleaseSysCache(tuple);
	return plain && RelationNeedsWAL(rel);
}

/*
 * Takes count consecutive ids from *first on; returns false, and takes none, if that is not
 * possible.
 */
static bool
take_block(Oid sequence, int count, int64 *first)
{
	Relation rel = relation_open(sequence, RowExclusiveLock);
	HeapTupleHeader tuple;
	uint32 length;
	int64 most;
	bool taken = false;

	if (is_plain_sequence(rel, &most))
	{
		Buffer buffer = ReadBuffer(rel, 0);
		Form_pg_sequence_data row;

		/* The commit of a transaction with an id flushes the WAL record, and waits for standbys. */
		(void) GetTopTransactionId();
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		row = sequence_row(rel, BufferGetPage(buffer), &tuple, &length);
		taken = row->last_value < most - count;
		*first = row->last_value + (row->is_called ? 1 : 0);
		if (taken)
			set_last_value(rel, buffer, *first + count - 1);
		UnlockReleaseBuffer(buffer);
	}
	relation_close(rel, NoLock);
	return taken;
}

/*
 * Takes count ids, in ascending order: a block of consecutive ones if there are several and the
 * sequence permits it, otherwise one by one.
 */
static void
take_ids(Oid sequence, int64 *ids, int count)
{
	int64 first;
	bool block = count > 1 && take_block(sequence, count, &first);

	for (int i = 0; i < count; i++)
		ids[i] = block ? first + i : nextval_internal(sequence, false);
}

/* Returns new job ids in ascending order, in a transaction that may write. */
void
idemq_jobs_next_ids(int64 *ids, int count)
{
	Oid sequence = sure_jobs_sequence();

	take_ids(sequence, ids, count);
	if (unlikely(!is_sure(sequence)))
		take_ids(sure_jobs_sequence(), ids, count);
	if (count > 0)
		refuse_beyond(ids[count - 1]);
}

/* Returns the last id that the sequence has given; 0: none. */
int64
idemq_jobs_last_id(void)
{
	int64 last;

	(void) idemq_spi_row(&read_last, NULL, &last, sizeof(last));
	return last;
}

/* Makes every session check the sequence again, because the row of idemq.shard has changed. */
void
idemq_jobs_ids_changed(void)
{
	CacheInvalidateRelcacheByRelid(idemq_oids()->jobs_seq);
	jobs_id_invalidations++;
}

/*
 * Makes ids begin at the current time if none has been taken, because a queue has come from
 * elsewhere.
 */
void
idemq_jobs_ids_unknown(void)
{
	lock_mark(true);
	(void) idemq_spi_do(&unset_mark, NULL, NULL);
	lock_mark(false);
}

static void
jobs_id_forget_by_relcache(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == sure_sequence)
		jobs_id_invalidations++;
}

/* Registers the invalidation callback; called once, from _PG_init. */
void
idemq_jobs_id_install(void)
{
	CacheRegisterRelcacheCallback(jobs_id_forget_by_relcache, (Datum) 0);
}
