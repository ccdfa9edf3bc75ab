/*
 * queue/queues.c
 *		Queues looked up: their settings (queue/queue_settings.c) and the role's
 *		privileges, cached per backend.
 *
 * The cache is filled by one query under the latest snapshot, and emptied when
 * idemq.queues or idemq.queue_grants changed (their triggers send a relcache
 * invalidation, which other backends read at their next lookup) or
 * when roles did.  Callers get copies: a QueueInfo stays what it was.
 *
 * Privileges: admin includes the others; superusers and the owner of idemq's
 * tables hold all of them.  Grants name roles (queue/roles.c); a role that does not exist
 * any more grants nothing.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "queue/queue_settings.h"
#include "queue/queues.h"
#include "queue/roles.h"
#include "queue/slot_life.h"
#include "shared/slots.h"
#include "shared/worker_board.h"
#include "base/args.h"
#include "base/errors.h"
#include "base/oids.h"
#include "base/spi.h"

typedef struct CachedQueue
{
	int32 id; /* hash key */
	QueueInfo info;
	Oid role;	  /* whose privileges info.privileges are */
	List *grants; /* of QueueGrant */
} CachedQueue;

typedef struct QueueGrant
{
	NameData role;
	Oid role_oid; /* InvalidOid: the name alone decides */
	int privilege;
} QueueGrant;

static SqlStatement load_grants = {
	.text = "SELECT queue_id, role_name, privilege, role_oid FROM idemq.queue_grants"};

typedef struct CachedName
{
	char name[IDEMQ_MAX_QUEUE_NAME + 1]; /* hash key */
	int32 id;
} CachedName;

static MemoryContext cache_context = NULL;
static HTAB *cache = NULL; /* of CachedQueue */
static HTAB *names = NULL; /* of CachedName */
/* The cache holds while these are equal. */
static uint64 invalidations = 1;
static uint64 loaded_at = 0;
/* The same for changes whose invalidations are still to come. */
static uint64 settings_loaded = 0;
/* idemq.queues, as the callback needs it without a lookup. */
static Oid queues_relid = InvalidOid;

/* Reads one row of idemq_settings_load into the cache. */
static void
cache_queue(uint64 row)
{
	QueueInfo info;
	CachedQueue *cached;

	idemq_settings_read(row, &info);
	cached = hash_search(cache, &info.id, HASH_ENTER, NULL);
	cached->info = info;
	cached->role = InvalidOid;
	cached->grants = NIL;
	((CachedName *) hash_search(names, info.name, HASH_ENTER, NULL))->id = info.id;
}

static int
privilege_from_text(const char *text)
{
	if (strcmp(text, "enqueue") == 0)
		return PRIVILEGE_ENQUEUE;
	if (strcmp(text, "claim") == 0)
		return PRIVILEGE_CLAIM;
	return PRIVILEGE_ALL;
}

/* Reads one row of load_grants into the cache. */
static void
cache_grant(uint64 row)
{
	bool isnull;
	int32 id = DatumGetInt32(idemq_spi_value(row, 1, &isnull));
	CachedQueue *cached = hash_search(cache, &id, HASH_FIND, NULL);
	MemoryContext old;
	QueueGrant *grant;

	if (cached == NULL)
		return;
	old = MemoryContextSwitchTo(cache_context);
	grant = palloc(sizeof(QueueGrant));
	namestrcpy(&grant->role, NameStr(*DatumGetName(idemq_spi_value(row, 2, &isnull))));
	grant->privilege = privilege_from_text(TextDatumGetCString(idemq_spi_value(row, 3, &isnull)));
	grant->role_oid = DatumGetObjectId(idemq_spi_value(row, 4, &isnull));
	if (isnull)
		grant->role_oid = InvalidOid;
	cached->grants = lappend(cached->grants, grant);
	MemoryContextSwitchTo(old);
}

static void
reset_cache(void)
{
	HASHCTL info = {0};

	if (cache_context == NULL)
		cache_context =
			AllocSetContextCreate(TopMemoryContext, "idemq queues", ALLOCSET_SMALL_SIZES);
	MemoryContextReset(cache_context);
	info.keysize = sizeof(int32);
	info.entrysize = sizeof(CachedQueue);
	info.hcxt = cache_context;
	cache = hash_create("idemq queues", 32, &info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	info.keysize = IDEMQ_MAX_QUEUE_NAME + 1;
	info.entrysize = sizeof(CachedName);
	names = hash_create("idemq queue names", 32, &info, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

/* Fills the cache if something changed; what changes meanwhile is read at the next call. */
static void
load_cache(void)
{
	AcceptInvalidationMessages();
	if (loaded_at != invalidations || settings_loaded != idemq_slots_settings())
	{
		uint64 before = invalidations;
		uint64 settings_before = idemq_slots_settings();
		uint64 rows;
		SqlScope scope;

		reset_cache();
		queues_relid = idemq_oids()->queues;
		idemq_spi_begin(&scope);
		rows = idemq_settings_load();
		for (uint64 i = 0; i < rows; i++)
			cache_queue(i);
		rows = idemq_spi_query_latest(&load_grants, NULL, NULL);
		for (uint64 i = 0; i < rows; i++)
			cache_grant(i);
		idemq_spi_end(&scope);
		loaded_at = before;
		settings_loaded = settings_before;
		idemq_worker_announce_use();
	}
}

/*
 * Returns a number that is another after settings were read anew: for what else of the
 * database a session reads only then.
 */
uint64
idemq_queues_loads(void)
{
	return loaded_at;
}

/* Returns the current role's privileges on a queue. */
static int
privileges_of(CachedQueue *cached)
{
	Oid role = GetUserId();
	ListCell *lc;
	int privileges = 0;

	if (cached->role == role)
		return cached->info.privileges;
	if (has_privs_of_role(role, idemq_oids()->owner))
		privileges = PRIVILEGE_ALL;
	foreach(lc, cached->grants)
	{
		QueueGrant *grant = lfirst(lc);
		Oid grantee = idemq_role_of(NameStr(grant->role), grant->role_oid);

		if (OidIsValid(grantee) && has_privs_of_role(role, grantee))
			privileges |= grant->privilege;
	}
	cached->info.privileges = privileges;
	cached->role = role;
	return privileges;
}

/*
 * Returns a cached queue with a slot, if there is one for it; NULL when it has been
 * dropped since the cache was filled.
 */
static CachedQueue *
with_slot(CachedQueue *cached)
{
	int32 id = cached->id;

	if (idemq_slot_is_of(cached->info.slot, id))
		return cached;
	cached->info.slot = idemq_slot_for_queue(id);
	/* DROP counts up the settings, then frees the slot: perhaps before we assigned one. */
	if (settings_loaded == idemq_slots_settings())
		return cached;
	load_cache();
	cached = hash_search(cache, &id, HASH_FIND, NULL);
	if (cached == NULL)
		idemq_slot_forget_queue(id);
	else
		cached->info.slot = idemq_slot_find(MyDatabaseId, id);
	return cached;
}

/* Copies a cached queue, with the current role's privileges and its slot; false when it is gone. */
static bool
copy_out(CachedQueue *cached, QueueInfo *queue)
{
	cached = with_slot(cached);
	if (cached == NULL)
		return false;
	(void) privileges_of(cached);
	*queue = cached->info;
	return true;
}

/* Raises 42501 for a queue on which the role holds none of the wanted privileges. */
void
idemq_queue_denied(const char *name, int wanted)
{
	const char *privilege = (wanted & PRIVILEGE_ENQUEUE) ? "enqueue"
							: (wanted & PRIVILEGE_CLAIM) ? "claim"
														 : "admin";

	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for queue \"%s\"", name),
			 errhint("Let its administrator run %s.",
					 idemq_grant_text(name, GetUserNameFromId(GetUserId(), false), privilege))));
}

/* Looks a queue up by name, whatever the current role's privileges; false when there is none. */
bool
idemq_queue_find(const char *name, QueueInfo *queue)
{
	CachedName *match = NULL;

	load_cache();
	if (strlen(name) <= IDEMQ_MAX_QUEUE_NAME)
		match = hash_search(names, name, HASH_FIND, NULL);
	return match != NULL && copy_out(hash_search(cache, &match->id, HASH_FIND, NULL), queue);
}

/*
 * Looks a queue up by name.  wanted: QueuePrivilege bits of which the current
 * role must hold one.  Raises IQ005 when there is none, 42501 without a privilege.
 */
void
idemq_queue_by_name(const char *name, int wanted, QueueInfo *queue)
{
	if (!idemq_queue_find(name, queue))
		ereport(ERROR,
				(errcode(ERRCODE_IDEMQ_NO_SUCH_QUEUE), errmsg("queue \"%s\" does not exist", name),
				 errhint("Create it with SELECT idemq.create_queue('...'), or correct the name.")));
	if ((queue->privileges & wanted) == 0)
		idemq_queue_denied(name, wanted);
}

/* As idemq_queue_by_name, of the queue that argument n names; raises 22004, 22023 too. */
void
idemq_queue_arg(FunctionCallInfo fcinfo, int n, const char *name, int wanted, QueueInfo *queue)
{
	idemq_queue_by_name(idemq_arg_text(fcinfo, n, name, IDEMQ_MAX_NAME_ARG), wanted, queue);
}

/* Looks a queue up by id; false when there is none. */
bool
idemq_queue_by_id(int32 id, QueueInfo *queue)
{
	CachedQueue *cached;

	load_cache();
	cached = hash_search(cache, &id, HASH_FIND, NULL);
	return cached != NULL && copy_out(cached, queue);
}

/* As idemq_queue_by_id, and whether the current role holds one of the wanted privileges. */
bool
idemq_queue_allows(int32 id, int wanted, QueueInfo *queue)
{
	return idemq_queue_by_id(id, queue) && (queue->privileges & wanted) != 0;
}

/* Returns whether the current role may replace and end a schedule. */
bool
idemq_may_change_schedule(int32 queue_id, const char *creator, Oid creator_oid)
{
	Oid role = idemq_role_of(creator, creator_oid);
	QueueInfo queue;

	return idemq_queue_allows(queue_id, PRIVILEGE_ADMIN, &queue) ||
		   (OidIsValid(role) && has_privs_of_role(GetUserId(), role));
}

/*
 * Locks a queue to the end of the transaction: AccessShareLock keeps it from being
 * dropped, AccessExclusiveLock is for dropping it.
 */
void
idemq_queue_lock(int32 id, LOCKMODE mode)
{
	LockDatabaseObject(idemq_oids()->queues, (Oid) id, 0, mode);
}

/*
 * Locks a queue that was looked up, and looks it up again: it may have been dropped, and
 * created anew, while this waited for the lock.  The new one is another, and is locked in
 * its turn.
 */
void
idemq_queue_hold(QueueInfo *queue, int wanted, LOCKMODE mode)
{
	int32 locked;

	do
	{
		locked = queue->id;
		idemq_queue_lock(locked, mode);
		idemq_queue_by_name(queue->name, wanted, queue);
	} while (queue->id != locked);
}

/* As idemq_queue_arg, and locks the queue to the end of the transaction. */
void
idemq_queue_open(FunctionCallInfo fcinfo, int n, const char *name, int wanted, LOCKMODE mode,
				 QueueInfo *queue)
{
	idemq_queue_arg(fcinfo, n, name, wanted, queue);
	idemq_queue_hold(queue, wanted, mode);
}

/* As idemq_queue_lock, but does not wait: false when another transaction is in the way. */
bool
idemq_queue_try_lock(int32 id, LOCKMODE mode)
{
	LOCKTAG tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, idemq_oids()->queues, (Oid) id, 0);
	if (LockAcquire(&tag, mode, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	AcceptInvalidationMessages();
	return true;
}

/*
 * Returns the ids of all queues on which the current role holds one of the wanted
 * privileges; of all queues when wanted is 0.
 */
int32 *
idemq_queue_ids(int wanted, int *count)
{
	HASH_SEQ_STATUS seq;
	CachedQueue *cached;
	int32 *ids;

	load_cache();
	ids = palloc(Max(hash_get_num_entries(cache), 1) * sizeof(int32));
	*count = 0;
	hash_seq_init(&seq, cache);
	while ((cached = hash_seq_search(&seq)) != NULL)
	{
		if (wanted == 0 || (privileges_of(cached) & wanted))
			ids[(*count)++] = cached->id;
	}
	return ids;
}

/* Has every backend read settings and grants anew: others after our commit, this one at once. */
void
idemq_queues_changed(void)
{
	CacheInvalidateRelcacheByRelid(idemq_oids()->queues);
	invalidations++;
}

static void
forget_by_relcache(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == queues_relid)
		invalidations++;
}

static void
forget_by_syscache(Datum arg, int cacheid, uint32 hashvalue)
{
	invalidations++;
}

/* Registers the invalidation callbacks; called once, from _PG_init. */
void
idemq_queues_install(void)
{
	CacheRegisterRelcacheCallback(forget_by_relcache, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, forget_by_syscache, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHOID, forget_by_syscache, (Datum) 0);
}
