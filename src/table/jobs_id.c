/*
 * table/jobs_id.c
 *		New job ids, none of which was given before.
 *
 * A crash with asynchronous commit, and the promotion of an asynchronous standby, lose
 * the last writes of the sequence: the ids that it gave would be given again.  No gap is
 * wide enough for what may be lost.  So the first session that takes an id in a run of
 * the server as a primary raises the sequence to the time of day, in microseconds since
 * 2026.  It passes all ids ever given: each run began at or below its own time of day,
 * and gives fewer than 10^6 ids a second.  Nothing has to be on disk for that, so that a
 * second crash changes nothing; and a dump, a backup or a base backup that is older than
 * the ids is covered as well.  The limit is a clock set back behind the last run's start.
 *
 * The sequence starts at 10^12 + 1, beyond int from the first id on: a column that is too
 * narrow fails on the first day, and not at the first restart.  That is below every time of
 * day since 2026-01-12 (a shard's, whose unit is longer, since 2026-04-03), so that a run
 * that begins with it has begun below its own time of day, too.
 *
 * idemq.ids_since, the mark, says that this was done: its value is idemq_primary_since() of
 * the run, and is_called says that an id was taken.  It is a sequence, so that it neither rolls
 * back nor waits for a transaction, and is not dumped:
 *	   (this run, true)		done: the fast path, once a session.
 *	   (this run, false)	CREATE EXTENSION in this run, no id taken: nothing can be lost,
 *							and ids begin at START, unless a restore has moved the sequence
 *							or rows came from elsewhere.  Rows of queues count: a restore may
 *							yet bring jobs, with the ids that they had (hooks/row_triggers.c).
 *	   anything else		an earlier run, another server: raise it.
 *
 * A batch takes its ids at once (take_block): one change of the sequence's row and one
 * record of WAL, in place of one for each job.  The ids follow each other, and none is
 * kept for a later call: jobs of equal ready time are claimed in the order of their ids,
 * which is the order of their making.  It does what nextval does, under the same locks:
 * RowExclusiveLock on the sequence keeps ALTER SEQUENCE away, the lock on its one page
 * keeps two from taking the same ids.  The record has the last id taken and no more, so
 * that log_cnt is 0: the next nextval writes its own, and a crash leaves no gap.  (What
 * currval says in this session does not change.)  A sequence that is not as we made it
 * (another increment, a cache, unlogged), or that would end in the middle, gives its ids
 * one by one.
 *
 * A shard's ids are a part of all, which its row of idemq.shard names (table/jobs_shard.c).
 * The sequence is raised into that part when it is found below: after ALTER SEQUENCE ... RESTART
 * by hand, or where the row has come without the sequence.  An id beyond the part is refused
 * (54000).
 *
 * That the sequence is sure, and which ids are ours, holds in a session until the sequence's
 * relcache entry is invalidated: by set_shard, TRUNCATE ... RESTART IDENTITY or ALTER SEQUENCE,
 * and by the trigger of idemq.shard.  An invalidation that comes while an id is taken is
 * followed before the id is used: by then the session has its lock, and nobody restarts the
 * sequence.
 *
 * Locks: an ExclusiveLock on idemq.ids_since as an object, which nothing else takes,
 * while both sequences are compared and set.  jobs_id_seq is raised first: a reader that has
 * the mark, in memory or in WAL, has that too.
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

/* More ids than a server gives in the time that its replica lags: 10^6 a second at most. */
#define TAKE_OVER_GAP INT64CONST(1000000000)
#define SHARD_CLOCK_UNIT 8 /* microseconds; see table/jobs_shard.c */
/* More than a burst of a shard's run gives beyond the average that its clock covers. */
#define SHARD_GAP INT64CONST(100000000)

typedef enum IdsState
{
	IDS_SURE,	 /* this run has made sure of them */
	IDS_FRESH,	 /* none was ever given */
	IDS_UNKNOWN, /* some may have been given that the sequence does not know */
} IdsState;

/* The ids that this database may give. */
typedef struct IdPart
{
	int32 shard; /* -1: it is no shard */
	int64 base;	 /* ids are above this ... */
	int64 most;	 /* ... and up to this */
} IdPart;

/* What is known of both sequences, and of the shard. */
typedef struct IdsMark
{
	int64 since;
	bool is_called;
	int32 shard; /* as in IdPart */
	int64 last;
	bool is_unused; /* no id was ever taken */
} IdsMark;

static SqlStatement read_mark =
	{.text = "SELECT m.last_value, m.is_called, coalesce(s.shard, -1), j.last_value, "
			 "NOT j.is_called AND NOT EXISTS (SELECT FROM idemq.jobs) FROM idemq.ids_since m "
			 "CROSS JOIN idemq.jobs_id_seq j LEFT JOIN idemq.shard s ON true",
	 .fields = (const SqlField[]){SQL_FIELD(IdsMark, since), SQL_FIELD(IdsMark, is_called),
								  SQL_FIELD(IdsMark, shard), SQL_FIELD(IdsMark, last),
								  SQL_FIELD(IdsMark, is_unused)}};
static SqlStatement read_last = {.text = "SELECT last_value FROM idemq.jobs_id_seq WHERE is_called",
								 .fields = (const SqlField[]){{0, sizeof(int64), NULL}}};
static SqlStatement set_value = {.text = "SELECT pg_catalog.setval($1, $2)",
								 .types = {REGCLASSOID, INT8OID}};
static SqlStatement unset_mark = {
	.text = "SELECT pg_catalog.setval('idemq.ids_since', 0, false) FROM idemq.ids_since "
			"WHERE NOT is_called AND last_value <> 0"};

/* The sequence that this session knows to be sure; a run outlives all its sessions. */
static Oid sure_sequence = InvalidOid;
/* It is sure while these are equal; a change while it is made sure is seen by the next call. */
static uint64 jobs_id_invalidations = 1;
static uint64 sure_at = 0;
/* The ids that are ours, as they were read when it became sure. */
static IdPart ours = {-1, 0, PG_INT64_MAX};

static inline bool
is_sure(Oid sequence)
{
	return sequence == sure_sequence && sure_at == jobs_id_invalidations;
}

/* Returns the id of this instant: above all that earlier runs of the server have given. */
static int64
id_now(const IdPart *part)
{
	int64 now = idemq_now() - IDEMQ_EPOCH;

	return part->base + (part->shard < 0 ? now : now / SHARD_CLOCK_UNIT);
}

/* Returns what is known of the ids in this run; *part: which are ours. */
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

/* Has the sequence go on behind an id, unless it is beyond; a shard's leaves a gap as well. */
static void
raise_to(const IdPart *part, int64 id)
{
	Oid sequence = idemq_oids()->jobs_seq;
	int64 next = nextval_internal(sequence, false);

	if (part->shard >= 0 && next > part->base)
		id = Max(id, next + SHARD_GAP);
	/* An id that is taken by hand in between is below id as well. */
	if (next < id)
		set_sequence(sequence, id);
}

/*
 * Raises the sequence to the time of day and beyond, for a database that takes the place
 * of another: greatest is the greatest id that came from there, perhaps from a clock that
 * is ahead of ours; then those that did not come are in the gap.
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
 * Makes sure that the sequence is above all ids that were ever given in our part of them;
 * *part: our part.
 */
static void
make_sure(IdPart *part)
{
	IdsState state;

	if (ids_state(part) == IDS_SURE)
		return;
	/* As nextval does: waits for a set_shard elsewhere, and then sees what it did. */
	LockRelationOid(idemq_oids()->jobs_seq, RowExclusiveLock);
	lock_mark(true);
	state = ids_state(part);
	if (state == IDS_UNKNOWN)
		raise_to(part, id_now(part));
	if (state != IDS_SURE)
		set_sequence(mark_sequence(), idemq_primary_since());
	lock_mark(false);
}

/* Makes sure of the sequence, once a session; where no id may be taken, nextval refuses. */
static Oid
sure_jobs_sequence(void)
{
	Oid sequence = idemq_oids()->jobs_seq;

	if (unlikely(!is_sure(sequence)) && !XactReadOnly && !RecoveryInProgress() &&
		!IsInParallelMode())
	{
		uint64 before = jobs_id_invalidations;
		IdPart part;

		make_sure(&part);
		ours = part;
		sure_sequence = sequence;
		sure_at = before;
	}
	return sequence;
}

/* Raises 54000 for an id that would be another shard's. */
static inline void
refuse_beyond(int64 id)
{
	if (unlikely(id > ours.most))
		ereport(ERROR, errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				errmsg("shard %d has no job ids left", ours.shard),
				errhint("Route its keys to another cluster with more shards."));
}

/*
 * Returns a new job id, greater than all that were given before.  Raises 25006 in a
 * read-only transaction and on a standby.
 */
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

/* Returns the row of an open sequence, whose page is locked; *tuple, *length: of the tuple. */
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

/* Writes a sequence's row, whose page is locked, and logs it; the transaction has an id. */
static void
advance(Relation rel, Buffer buffer, int64 last)
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

/* Returns whether an open sequence counts by one, without a cache; *most is its last number. */
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

/* Takes the next ids of the sequence, *first and those that follow; false: nothing is done. */
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

		/* With an id its commit flushes the record, and waits for standbys. */
		(void) GetTopTransactionId();
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		row = sequence_row(rel, BufferGetPage(buffer), &tuple, &length);
		taken = row->last_value < most - count;
		*first = row->last_value + (row->is_called ? 1 : 0);
		if (taken)
			advance(rel, buffer, *first + count - 1);
		UnlockReleaseBuffer(buffer);
	}
	relation_close(rel, NoLock);
	return taken;
}

static void
take_ids(Oid sequence, int64 *ids, int count)
{
	int64 first;
	bool block = count > 1 && take_block(sequence, count, &first);

	for (int i = 0; i < count; i++)
		ids[i] = block ? first + i : nextval_internal(sequence, false);
}

/*
 * Returns new job ids, each greater than the one before it and than all that were given
 * before, in a transaction that may write.
 */
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

/* Returns the last id that the sequence gave, 0 for none. */
int64
idemq_jobs_last_id(void)
{
	int64 last;

	(void) idemq_spi_row(&read_last, NULL, &last, sizeof(last));
	return last;
}

/* Has every session look again whether the sequence is sure: the row of idemq.shard has changed. */
void
idemq_jobs_ids_changed(void)
{
	CacheInvalidateRelcacheByRelid(idemq_oids()->jobs_seq);
	jobs_id_invalidations++;
}

/* Has ids begin at the time of day, if none was taken yet: a queue has come from elsewhere. */
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
