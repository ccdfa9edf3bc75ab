/*
 * queue/queue_cache.c
 *		What this session has read of the queues, settings and grants, each when it is
 *		first looked up, and again when it has changed.
 *
 * A queue is read by two queries under one snapshot, newer than any change that the
 * session knows of: the latest one, whatever the isolation level.  What was read holds
 * while the queue's number in shared memory stays (shared/queue_states/settings_version.c has the
 * proof); the number is read before the snapshot is taken.  That there is no such queue
 * is kept in the same way.
 *
 * The triggers of idemq.queues, idemq_internal.queue_grants and idemq_internal.hold_entries
 * (hooks/row_triggers.c) do the rest,
 * row by row:
 *	 - Others: the number moves after the commit (txn/pending.c).  What is rolled
 *	   back moves nothing.  COMMIT PREPARED moves the number of all queues (hooks/utility.c).
 *	 - This session, whose own changes its lookups see at once: the queue is forgotten when
 *	   it changes, and once more when the change is rolled back, a savepoint's too, or
 *	   prepared.  A commit moves the number for it as well.
 *	 - A standby, where no number moves: the trigger sends a relcache invalidation of the
 *	   sequence of queue ids, which nothing else changes, and which costs nobody anything.
 *	   A primary ignores it.  A standby forgets all queues, and so does its first call
 *	   after a promotion.
 *
 * A name leads to an id, and the id to what was read, which has to have that name: names
 * are unique, so the number of the id alone shows whether the queue has been dropped,
 * created anew, or renamed.  That no queue has a name is not kept.
 *
 * A relcache invalidation of one of the two tables (DROP EXTENSION, ALTER TABLE, VACUUM), or
 * of all relations, has all queues forgotten; an invalidation of roles, all privileges.  So
 * enabling a trigger again ends what was stale while it was disabled.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"

/* So many queues are read one by one; more are read at once. */
#define MAX_SINGLY 32
/* So many queues that one command changes are remembered. */
#define MAX_CHANGING 8

typedef struct CachedName
{
	char name[IDEMQ_MAX_QUEUE_NAME + 1]; /* hash key */
	CachedQueue *queue;					 /* which had that name when it was read */
} CachedName;

static const SqlField grant_fields[] = {SQL_FIELD(QueueGrant, queue_id),
										SQL_FIELD(QueueGrant, role),
										SQL_FIELD(QueueGrant, role_oid),
										SQL_FIELD(QueueGrant, privileges)};
/* Privileges as QueuePrivilege: admin includes the others. */
static SqlStatement load_grants =
	{.few = true,
	 .text = "SELECT queue_id, role_name, role_oid, CASE privilege WHEN 'enqueue' THEN 1 "
			 "WHEN 'claim' THEN 2 ELSE 7 END FROM idemq_internal.queue_grants "
			 "WHERE queue_id BETWEEN $1 AND $2 ORDER BY queue_id",
	 .types = {INT4OID, INT4OID}};
static SqlStatement find_name = {.few = true,
								 .text = "SELECT queue_id FROM idemq.queues WHERE name = $1",
								 .types = {TEXTOID},
								 .fields = (const SqlField[]){{0, sizeof(int32), NULL}}};
/*
 * In order of ids: if there are not enough queue states, the oldest queues get them
 * (idemq_queues_give_qstates).
 */
static SqlStatement list_ids = {.text = "SELECT queue_id FROM idemq.queues ORDER BY queue_id",
								.fields = (const SqlField[]){{0, sizeof(int32), NULL}}};

static MemoryContext cache_context = NULL;
static HTAB *cache = NULL;			   /* of CachedQueue */
static HTAB *queue_cache_names = NULL; /* of CachedName */
/* The ids of all queues, while idemq_version_of_list() is listed_at; 0: not known. */
static int32 *listed = NULL;
static int nlisted = 0;
static uint64 listed_at = 0;
/* The cache holds while these are equal, and while this stays a standby, or none. */
static uint64 queue_cache_invalidations = 1;
static uint64 reset_at = 0;
static bool on_standby = false;
static uint64 standby_invalidations = 0;
static uint64 standby_reset_at = 0;
/* The queues that a command of this session has changed: at its end the session sees the rows. */
static int32 changing[MAX_CHANGING];
static int nchanging = 0;
static CommandId changing_in = InvalidCommandId;
/* Moves when roles change. */
static uint64 roles = 1;
bool idemq_any_limits_groups = false;
/* The tables, and the sequence of queue ids, as the callback needs them without a lookup. */
static Oid queues_relid = InvalidOid;
static Oid grants_relid = InvalidOid;
static Oid sequence_relid = InvalidOid;

/* Forgets everything, if need be; what changes from here on is seen by the next call. */
static void
follow_invalidations(void)
{
	bool standby = RecoveryInProgress();
	HASHCTL info = {0};
	uint64 before;
	uint64 standby_before;

	AcceptInvalidationMessages();
	if (reset_at == queue_cache_invalidations && on_standby == standby &&
		(!standby || standby_reset_at == standby_invalidations))
		return;
	before = queue_cache_invalidations;
	standby_before = standby_invalidations;
	reset_at = 0; /* an error may leave it half done */
	if (cache_context == NULL)
		cache_context =
			AllocSetContextCreate(TopMemoryContext, "idemq queues", ALLOCSET_SMALL_SIZES);
	cache = queue_cache_names = NULL;
	idemq_any_limits_groups = false;
	MemoryContextReset(cache_context);
	listed = NULL;
	listed_at = 0;
	info.keysize = sizeof(int32);
	info.entrysize = sizeof(CachedQueue);
	info.hcxt = cache_context;
	cache = hash_create("idemq queues", 32, &info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	info.keysize = IDEMQ_MAX_QUEUE_NAME + 1;
	info.entrysize = sizeof(CachedName);
	queue_cache_names =
		hash_create("idemq queue names", 32, &info, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	queues_relid = idemq_oids()->queues;
	grants_relid = idemq_oids()->queue_grants;
	sequence_relid = idemq_oids()->queues_seq;
	on_standby = standby;
	standby_reset_at = standby_before;
	reset_at = before;
}

/* Returns the entry of a queue, with nothing in it that would pass for fresh. */
static CachedQueue *
empty_entry(int32 id)
{
	bool found;
	CachedQueue *cached = hash_search(cache, &id, HASH_ENTER, &found);

	if (found && cached->grants != NULL)
		pfree(cached->grants);
	cached->exists = false;
	cached->version = 0;
	cached->role = InvalidOid;
	cached->ngrants = 0;
	cached->grants = NULL;
	if (!found)
		memset(&cached->info, 0, sizeof(cached->info));
	return cached;
}

/* Reads a queue, or, with 0, all, into empty entries, by one snapshot. */
static void
read_rows(int32 id)
{
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	Datum range[] = {Int32GetDatum(id == 0 ? PG_INT32_MIN : id),
					 Int32GetDatum(id == 0 ? PG_INT32_MAX : id)};
	uint64 rows = idemq_settings_load(range, snapshot);
	QueueGrant *grants;
	QueueInfo info;
	uint64 next;

	for (uint64 i = 0; i < rows; i++)
	{
		CachedQueue *cached;

		idemq_settings_read(i, &info);
		cached = empty_entry(info.id);
		/* The queue state is kept until it turns out to be another queue's. */
		info.qstate = cached->info.qstate;
		cached->info = info;
		cached->exists = true;
		idemq_any_limits_groups |= info.group_max_unfinished > 0;
		((CachedName *) hash_search(queue_cache_names, info.name, HASH_ENTER, NULL))->queue =
			cached;
	}
	rows = idemq_spi_query_at(&load_grants, range, NULL, snapshot);
	grants = MemoryContextAllocHuge(CurrentMemoryContext, Max(rows, 1) * sizeof(QueueGrant));
	memset(grants, 0, rows * sizeof(QueueGrant));
	for (uint64 i = 0; i < rows; i++)
		idemq_spi_read(i, grant_fields, &grants[i], CurrentMemoryContext);
	for (uint64 i = 0; i < rows; i = next)
	{
		CachedQueue *cached = hash_search(cache, &grants[i].queue_id, HASH_FIND, NULL);

		next = i + 1;
		while (next < rows && grants[next].queue_id == grants[i].queue_id)
			next++;
		if (cached == NULL)
			continue;
		cached->grants = MemoryContextAlloc(cache_context, (next - i) * sizeof(QueueGrant));
		memcpy(cached->grants, &grants[i], (next - i) * sizeof(QueueGrant));
		cached->ngrants = (int) (next - i);
	}
	UnregisterSnapshot(snapshot);
}

/* Reads a queue, which may not be there. */
static CachedQueue *
queue_cache_load(int32 id)
{
	/* Read before the snapshot is taken. */
	uint64 version = idemq_version_of_queue(id);
	CachedQueue *cached;
	SqlScope scope;

	idemq_spi_begin(&scope);
	cached = empty_entry(id);
	read_rows(id);
	idemq_spi_end(&scope);
	cached->version = version;
	idemq_worker_announce_use();
	return cached;
}

/* Reads all queues; for a caller that looks at each. */
static void
load_all(void)
{
	/* Read before the snapshot is taken. */
	SettingsVersions *versions = idemq_versions_copy();
	HASH_SEQ_STATUS seq;
	CachedQueue *cached;
	SqlScope scope;

	idemq_spi_begin(&scope);
	hash_seq_init(&seq, cache);
	while ((cached = hash_seq_search(&seq)) != NULL)
		(void) empty_entry(cached->id);
	read_rows(0);
	idemq_spi_end(&scope);
	hash_seq_init(&seq, cache);
	while ((cached = hash_seq_search(&seq)) != NULL)
		cached->version = idemq_versions_copied(versions, cached->id);
	pfree(versions);
}

/* Returns whether what was read of a queue still holds. */
bool
idemq_queue_cache_is_fresh(const CachedQueue *cached)
{
	return cached->version == idemq_version_of_queue(cached->id);
}

/* Like idemq_queue_cache_by_id, after follow_invalidations. */
static CachedQueue *
queue_cache_find(int32 id)
{
	CachedQueue *cached;

	if (id == 0) /* no queue's id: elsewhere here it stands for all queues */
		return NULL;
	cached = hash_search(cache, &id, HASH_FIND, NULL);
	if (cached == NULL || !idemq_queue_cache_is_fresh(cached))
		cached = queue_cache_load(id);
	return cached->exists ? cached : NULL;
}

/* Returns a queue, NULL when there is none of that id.  Valid until the next lookup. */
CachedQueue *
idemq_queue_cache_by_id(int32 id)
{
	follow_invalidations();
	return queue_cache_find(id);
}

/* Looks in the table for the id of a queue; 0: there is none of that name. */
static int32
look_up_name(const char *name)
{
	Datum key = CStringGetTextDatum(name);
	int32 id;

	(void) idemq_spi_row(&find_name, &key, &id, sizeof(id));
	pfree(DatumGetPointer(key));
	return id;
}

static bool
has_name(const CachedQueue *cached, const char *name)
{
	return cached->exists && strcmp(cached->info.name, name) == 0;
}

/* Like idemq_queue_cache_by_id, by name. */
CachedQueue *
idemq_queue_cache_by_name(const char *name)
{
	CachedName *known;
	CachedQueue *cached;
	int32 id;

	follow_invalidations();
	if (strlen(name) > IDEMQ_MAX_QUEUE_NAME)
		return NULL;
	known = hash_search(queue_cache_names, name, HASH_FIND, NULL);
	if (known != NULL && has_name(known->queue, name) && idemq_queue_cache_is_fresh(known->queue))
		return known->queue;
	id = known == NULL ? look_up_name(name) : known->queue->id;
	while (id != 0)
	{
		cached = queue_cache_find(id);
		if (cached != NULL && has_name(cached, name))
			return cached;
		/* It was renamed, or dropped, perhaps since it was looked up. */
		CHECK_FOR_INTERRUPTS();
		id = look_up_name(name);
	}
	return NULL;
}

/* Returns the ids of all queues, and reads all if many changed; valid until the next lookup. */
const int32 *
idemq_queue_cache_ids(int *count)
{
	uint64 version = idemq_version_of_list();
	MemoryContext old;
	int stale = 0;

	follow_invalidations();
	if (listed_at != version)
	{
		listed_at = 0;
		if (listed != NULL)
			pfree(listed);
		listed = NULL;
		old = MemoryContextSwitchTo(cache_context);
		listed = idemq_spi_rows(&list_ids, NULL, sizeof(int32), &nlisted);
		MemoryContextSwitchTo(old);
		for (int i = 0; i < nlisted && stale <= MAX_SINGLY; i++)
		{
			CachedQueue *cached = hash_search(cache, &listed[i], HASH_FIND, NULL);

			stale += cached == NULL || !idemq_queue_cache_is_fresh(cached);
		}
		if (stale > MAX_SINGLY)
			load_all();
		listed_at = version;
	}
	*count = nlisted;
	return listed;
}

/* Returns a number that moves when roles have changed, for what is derived from grants. */
uint64
idemq_queue_cache_roles(void)
{
	return roles;
}

/*
 * Returns a number that moves when all queues are to be read again: for other things of the
 * database that a session reads only then.
 */
uint64
idemq_queue_cache_version(void)
{
	return reset_at + idemq_version_of_all();
}

/* Returns whether a queue has group_max_unfinished, by what was last read of it. */
bool
idemq_queue_cache_limits_groups(int32 id)
{
	const CachedQueue *cached = cache == NULL ? NULL : hash_search(cache, &id, HASH_FIND, NULL);

	return cached != NULL && cached->exists && cached->info.group_max_unfinished > 0;
}

/*
 * Follows a change of a queue (0: of all) by this transaction, before it ends: forgets the
 * queue, and has a standby forget all once the change is replayed there.  The caller notes
 * that the others are told, and that a rollback is followed (txn/pending.c).
 */
void
idemq_queue_cache_changed(int32 id)
{
	CacheInvalidateRelcacheByRelid(idemq_oids()->queues_seq);
	idemq_queue_cache_forget(id);
	/* A trigger that fires after ours may look the queue up, and see the old rows. */
	if (nchanging < MAX_CHANGING)
		changing[nchanging++] = id;
	else
		changing[0] = 0;
	changing_in = GetCurrentCommandId(false);
}

/* Has this session read a queue (0: all) again.  Neither allocates nor raises. */
void
idemq_queue_cache_forget(int32 id)
{
	CachedQueue *cached;

	listed_at = 0;
	if (id == 0)
		queue_cache_invalidations++;
	else if (cache != NULL && (cached = hash_search(cache, &id, HASH_FIND, NULL)) != NULL)
		cached->version = 0;
}

static void
queue_cache_forget_by_relcache(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == queues_relid || relid == grants_relid)
		queue_cache_invalidations++;
	else if (relid == sequence_relid)
	{
		standby_invalidations++;
		/* What this session has changed; this is called at the end of the command at least. */
		for (int i = 0; i < nchanging; i++)
			idemq_queue_cache_forget(changing[i]);
		if (GetCurrentCommandId(false) != changing_in)
			nchanging = 0;
	}
}

static void
queue_cache_forget_by_syscache(Datum arg, int cacheid, uint32 hashvalue)
{
	roles++;
}

/* Registers the invalidation callbacks; called once, from _PG_init. */
void
idemq_queue_cache_install(void)
{
	CacheRegisterRelcacheCallback(queue_cache_forget_by_relcache, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, queue_cache_forget_by_syscache, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHOID, queue_cache_forget_by_syscache, (Datum) 0);
}
