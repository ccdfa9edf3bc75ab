/*
 * queue/queue_cache.c
 *		The queues that this session has read, with their settings and grants.  A queue is read when
 *		it is first looked up, and again after it has changed.
 *
 * Two queries read a queue under one snapshot: the latest one, at any isolation level, so it shows
 * every change that the session knows of.  The rows hold until the queue's settings version
 * changes, which is read before the snapshot is taken; shared/queue_states/settings_version.c has
 * the proof.  That a queue does not exist is remembered in the same way.
 *
 * The triggers on idemq.queues, idemq_internal.queue_grants and idemq_internal.hold_entries report
 * each change of a row (hooks/row_triggers.c):
 *	 - Other sessions: the version changes after the commit (txn/pending.c), and not at all after a
 *	   rollback.  COMMIT PREPARED changes the version of all queues (hooks/utility.c).
 *	 - This session must see its own changes at once.  So it forgets a queue when it changes the
 *	   queue, and again when the change is rolled back (even to a savepoint) or prepared.  A trigger
 *	   that runs between the change and the end of the command may look up the queue, and would see
 *	   the old rows.  Therefore the session forgets all queues at the end of the command.
 *	 - A standby: the trigger sends a relcache invalidation of the sequence of queue ids.  Nothing
 *	   else invalidates this sequence, and a primary ignores the message.  A standby then forgets
 *	   all queues.  The first call after a promotion does the same.
 *
 * A name leads to an id, and the id to a queue, which must have that name.  Names are unique, so
 * the version of that id alone shows whether the queue has been dropped, created again or renamed.
 * That no queue has a name is not remembered.
 *
 * A relcache invalidation of the tables of queues or grants (DROP EXTENSION, ALTER TABLE, VACUUM),
 * or of all relations, makes the session forget all queues; an invalidation of roles, all
 * privileges.  So after a trigger has been disabled and enabled again, nothing stays out of date.
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

/* If more queues than this are out of date, all are read at once. */
#define MAX_SINGLY 32

typedef struct CachedName
{
	char name[IDEMQ_MAX_QUEUE_NAME + 1]; /* hash key */
	CachedQueue *queue;					 /* the queue that had this name when it was read */
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
								 .fields = SQL_SCALAR(int32)};
/*
 * In order of ids: if there are not enough queue states, the oldest queues get them
 * (idemq_queues_give_qstates).
 */
static SqlStatement list_ids = {.text = "SELECT queue_id FROM idemq.queues ORDER BY queue_id",
								.fields = SQL_SCALAR(int32)};

static MemoryContext cache_context = NULL;
static HTAB *cache = NULL;			   /* of CachedQueue */
static HTAB *queue_cache_names = NULL; /* of CachedName */
/* The ids of all queues, valid while the version VERSION_ANY_QUEUE is listed_at; 0: not known. */
static int32 *listed = NULL;
static int nlisted = 0;
static uint64 listed_at = 0;
/*
 * The cache is valid while these are equal, and while the server is still a standby, or still a
 * primary.
 */
static uint64 queue_cache_invalidations = 1;
static uint64 reset_at = 0;
static bool on_standby = false;
static uint64 standby_invalidations = 0;
static uint64 standby_reset_at = 0;
/* The command of this session that has changed a queue, until it has ended. */
static CommandId changing_in = InvalidCommandId;
/* Changes when roles change. */
static uint64 roles = 1;
bool idemq_any_limits_groups = false;
/* The tables and the sequence of queue ids, because the callback cannot look them up. */
static Oid queues_relid = InvalidOid;
static Oid grants_relid = InvalidOid;
static Oid sequence_relid = InvalidOid;

/* Forgets all queues if an invalidation requires it.  The next call follows later invalidations. */
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
	reset_at = 0; /* an error may interrupt what follows */
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

/* Returns the entry of a queue, emptied, so that it does not count as up to date. */
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

/* Reads the queue with an id, or all queues if id is 0, into empty entries, under one snapshot. */
static void
read_queues(int32 id)
{
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	Datum range[] = {Int32GetDatum(id == 0 ? PG_INT32_MIN : id),
					 Int32GetDatum(id == 0 ? PG_INT32_MAX : id)};
	uint64 nqueues = idemq_settings_load(range, snapshot);
	uint64 ngrants;
	QueueGrant *grants;
	QueueInfo info;
	uint64 next;

	for (uint64 i = 0; i < nqueues; i++)
	{
		CachedQueue *cached;
		CachedName *name;

		idemq_settings_read(i, &info);
		cached = empty_entry(info.id);
		/* The queue state stays until it turns out to belong to another queue. */
		info.qstate = cached->info.qstate;
		cached->info = info;
		cached->exists = true;
		idemq_any_limits_groups |= info.group_max_unfinished > 0;
		name = hash_search(queue_cache_names, info.name, HASH_ENTER, NULL);
		name->queue = cached;
	}

	ngrants = idemq_spi_query_at(&load_grants, range, NULL, snapshot);
	grants = MemoryContextAllocHuge(CurrentMemoryContext, Max(ngrants, 1) * sizeof(QueueGrant));
	memset(grants, 0, ngrants * sizeof(QueueGrant));
	for (uint64 i = 0; i < ngrants; i++)
		idemq_spi_read(i, grant_fields, &grants[i], CurrentMemoryContext);
	for (uint64 i = 0; i < ngrants; i = next)
	{
		CachedQueue *cached = hash_search(cache, &grants[i].queue_id, HASH_FIND, NULL);

		next = i + 1;
		while (next < ngrants && grants[next].queue_id == grants[i].queue_id)
			next++;
		if (cached == NULL)
			continue;
		cached->grants = MemoryContextAlloc(cache_context, (next - i) * sizeof(QueueGrant));
		memcpy(cached->grants, &grants[i], (next - i) * sizeof(QueueGrant));
		cached->ngrants = (int) (next - i);
	}
	UnregisterSnapshot(snapshot);
}

/* Returns whether what was read of a queue is still valid. */
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

	if (id == 0) /* no queue has this id: here it means all queues */
		return NULL;
	cached = hash_search(cache, &id, HASH_FIND, NULL);
	if (cached == NULL || !idemq_queue_cache_is_fresh(cached))
	{
		/* Before the snapshot is taken. */
		uint64 version = idemq_version_of_queue(id);
		SqlScope scope;

		idemq_spi_begin(&scope);
		cached = empty_entry(id);
		read_queues(id);
		idemq_spi_end(&scope);
		cached->version = version;
		idemq_worker_announce_use();
	}
	return cached->exists ? cached : NULL;
}

/* Returns the queue with an id, or NULL if there is none.  Valid until the next lookup. */
CachedQueue *
idemq_queue_cache_by_id(int32 id)
{
	follow_invalidations();
	return queue_cache_find(id);
}

/* Returns the id of the queue that has a name in the table; 0: there is none. */
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
		/* The queue was renamed or dropped, perhaps since its name was looked up. */
		CHECK_FOR_INTERRUPTS();
		id = look_up_name(name);
	}
	return NULL;
}

/* Reads all queues of the list at once. */
static void
read_listed(void)
{
	/* Before the snapshot is taken. */
	uint64 *versions = palloc(Max(nlisted, 1) * sizeof(uint64));
	HASH_SEQ_STATUS seq;
	CachedQueue *cached;
	SqlScope scope;

	for (int i = 0; i < nlisted; i++)
		versions[i] = idemq_version_of_queue(listed[i]);
	idemq_spi_begin(&scope);
	hash_seq_init(&seq, cache);
	while ((cached = hash_seq_search(&seq)) != NULL)
		(void) empty_entry(cached->id);
	read_queues(0);
	idemq_spi_end(&scope);
	for (int i = 0; i < nlisted; i++)
	{
		cached = hash_search(cache, &listed[i], HASH_FIND, NULL);
		if (cached != NULL)
			cached->version = versions[i];
	}
	pfree(versions);
}

/*
 * Returns the ids of all queues, in order, and their number in *count.  If many queues are out of
 * date, reads all of them, because the caller will look at each.  Valid until the next lookup.
 */
const int32 *
idemq_queue_cache_ids(int *count)
{
	uint64 version = idemq_version_of_database(VERSION_ANY_QUEUE);

	follow_invalidations();
	if (listed_at != version)
	{
		MemoryContext old;
		int stale = 0;

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
			read_listed();
		listed_at = version;
	}
	*count = nlisted;
	return listed;
}

/*
 * Returns a number that changes when roles have changed, for results that were computed from
 * grants.
 */
uint64
idemq_queue_cache_roles(void)
{
	return roles;
}

/*
 * Returns a number that changes whenever all queues must be reread.  A session that caches something
 * else of the database compares this number to know when to read it again.
 */
uint64
idemq_queue_cache_version(void)
{
	return reset_at + idemq_version_of_database(VERSION_ALL_QUEUES);
}

/* Returns whether a queue has group_max_unfinished, according to the cache. */
bool
idemq_queue_cache_limits_groups(int32 id)
{
	const CachedQueue *cached = cache == NULL ? NULL : hash_search(cache, &id, HASH_FIND, NULL);

	return cached != NULL && cached->exists && cached->info.group_max_unfinished > 0;
}

/*
 * Follows a change of a queue (0: of all) by this transaction, before the transaction ends: forgets
 * the queue now, and all queues at the end of the command; a standby forgets all queues when it
 * replays the change.  The caller makes sure that other sessions are told, and that a rollback is
 * followed (txn/pending.c).
 */
void
idemq_queue_cache_changed(int32 id)
{
	CacheInvalidateRelcacheByRelid(idemq_oids()->queues_seq);
	idemq_queue_cache_forget(id);
	changing_in = GetCurrentCommandId(false);
}

/* Makes this session reread a queue (0: all).  Neither allocates nor raises errors. */
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
		/*
		 * A message from another session may come before the end of the command that changes a
		 * queue.
		 */
		if (changing_in != InvalidCommandId)
			idemq_queue_cache_forget(0);
		if (GetCurrentCommandId(false) != changing_in)
			changing_in = InvalidCommandId;
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
