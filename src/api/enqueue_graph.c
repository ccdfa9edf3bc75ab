/*
 * api/enqueue_graph.c
 *		SQL function enqueue_graph: adds jobs that depend on each other, all or none.
 *
 * The jobs are read and checked first: names, members, edges by name, and that there is an
 * order in which each comes behind those that it depends on.  Then idemq.enqueue is called for
 * each in that order, as the caller, who needs what that needs.  A job whose key is taken is
 * the one that has the key, for its children as well.
 *
 * Memory: that of the document, and some 100 bytes a job.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/numeric.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "table/table.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_enqueue_graph);

/* Names that an error message shows of a cycle. */
#define MAX_SHOWN 10

/* Members of a job, in the order of the statement's parameters; the last two are no parameters. */
typedef enum Member
{
	MEMBER_QUEUE,
	MEMBER_PAYLOAD,
	MEMBER_KEY,
	MEMBER_DELAY,
	MEMBER_RUN_AT,
	MEMBER_PRIORITY,
	MEMBER_GROUP_KEY,
	MEMBER_MAX_ATTEMPTS,
	MEMBER_HEADERS,
	MEMBER_EXPIRES_IN,
	MEMBER_KEY_TTL,
	MEMBER_ON_DUPLICATE,
	MEMBER_ON_PARENT_FAILURE,
	MEMBER_KIND,
	MEMBER_MAX_WAIT,
	MEMBER_NAME,
	MEMBER_DEPENDS_ON
} Member;

#define PARAMETERS MEMBER_NAME
#define MEMBERS (MEMBER_DEPENDS_ON + 1)

static const char *const members[MEMBERS] = {"queue",
											 "payload",
											 "key",
											 "delay",
											 "run_at",
											 "priority",
											 "group_key",
											 "max_attempts",
											 "headers",
											 "expires_in",
											 "key_ttl",
											 "on_duplicate",
											 "on_parent_failure",
											 "kind",
											 "max_wait",
											 "name",
											 "depends_on"};

static SqlStatement enqueue_job = {
	.text =
		"SELECT e.id, e.outcome, e.status FROM idemq.enqueue($1, $2, key => $3, "
		"delay => $4::interval, run_at => $5::timestamptz, priority => coalesce($6::int4, 4), "
		"group_key => $7, max_attempts => $8::int4, headers => $9, expires_in => $10::interval, "
		"key_ttl => $11::interval, on_duplicate => coalesce($12, 'keep'), "
		"on_parent_failure => coalesce($13, 'cancel'), kind => $14, max_wait => $15::interval, depends_on => $16) e",
	.nargs = PARAMETERS + 1,
	.types = {TEXTOID, JSONBOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, JSONBOID,
			  TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8ARRAYOID}};

typedef struct GraphJob
{
	const char *name;
	Datum values[PARAMETERS];
	char nulls[PARAMETERS + 2];
	JsonbContainer *depends_on; /* NULL for none */
	int nparents;
	int64 *parents; /* ids, or with by_name indexes of nodes */
	bool *by_name;
	int left;	   /* parents by name that are not in the order yet */
	int nchildren; /* by name; then where they begin in Graph.children */
	int first_child;
	int seen; /* parents before this one are in the order: parent_left */
	int64 id; /* once it is enqueued */
} GraphJob;

typedef struct Graph
{
	int count;
	GraphJob *nodes;
	int *by_name;  /* indexes of nodes, in the order of their names */
	int *children; /* of all nodes */
	int *order;	   /* in which they are enqueued */
} Graph;

pg_noreturn static void
refuse(const char *name, const char *what)
{
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					name == NULL ? errmsg("jobs: %s", what)
								 : errmsg("job \"%s\" of the graph: %s", name, what),
					errhint("Pass an array of objects, such as {\"name\": \"a\", \"queue\": \"q\", "
							"\"payload\": {}, \"depends_on\": [\"b\", 17]}; the other members are "
							"arguments of idemq.enqueue.")));
}

static char *
string_of(const JsonbValue *value)
{
	return pnstrdup(value->val.string.val, value->val.string.len);
}

/* Returns a member as a parameter: text of a string or number, or jsonb. */
static Datum
parameter(const GraphJob *node, Member member, JsonbValue *value)
{
	if (enqueue_job.types[member] == JSONBOID)
		return JsonbPGetDatum(JsonbValueToJsonb(value));
	if (value->type == jbvString)
		return CStringGetTextDatum(string_of(value));
	if (value->type == jbvNumeric)
		return CStringGetTextDatum(
			DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value->val.numeric))));
	refuse(node->name, psprintf("%s must be a string or a number", members[member]));
}

/* Reads one member of a job. */
static void
read_member(GraphJob *node, const JsonbValue *key, JsonbValue *value)
{
	char *name = string_of(key);
	int member = 0;

	while (member < MEMBERS && strcmp(members[member], name) != 0)
		member++;
	if (member == MEMBERS)
		refuse(node->name, psprintf("there is no member \"%s\"", name));
	/* A payload of null is a payload. */
	if (value->type == jbvNull && member != MEMBER_PAYLOAD)
		return;
	if (member == MEMBER_NAME)
		return;
	if (member == MEMBER_DEPENDS_ON)
	{
		if (value->type != jbvBinary || !JsonContainerIsArray(value->val.binary.data))
			refuse(node->name, "depends_on must be an array");
		node->depends_on = value->val.binary.data;
		return;
	}
	node->values[member] = parameter(node, (Member) member, value);
	node->nulls[member] = ' ';
}

/* Reads a job, but not what it depends on. */
static void
read_node(GraphJob *node, JsonbValue *element)
{
	JsonbContainer *object = element->type == jbvBinary ? element->val.binary.data : NULL;
	JsonbIterator *iterator;
	JsonbIteratorToken token;
	JsonbValue buffer;
	JsonbValue value;
	JsonbValue *name;

	if (object == NULL || !JsonContainerIsObject(object))
		refuse(NULL, "an element is no object");
	name = getKeyJsonValueFromContainer(object, members[MEMBER_NAME], strlen(members[MEMBER_NAME]),
										&buffer);
	if (name == NULL || name->type != jbvString || name->val.string.len == 0)
		refuse(NULL, "an element has no name, which must be a string");
	node->name = string_of(name);
	memset(node->nulls, 'n', PARAMETERS);
	iterator = JsonbIteratorInit(object);
	(void) JsonbIteratorNext(&iterator, &value, true);
	while ((token = JsonbIteratorNext(&iterator, &buffer, true)) == WJB_KEY)
	{
		(void) JsonbIteratorNext(&iterator, &value, true);
		read_member(node, &buffer, &value);
	}
	Assert(token == WJB_END_OBJECT);
	if (node->nulls[MEMBER_QUEUE] == 'n' || node->nulls[MEMBER_PAYLOAD] == 'n')
		refuse(node->name, "it needs a queue and a payload");
}

static int
compare_names(const void *a, const void *b, void *arg)
{
	const GraphJob *nodes = arg;

	return strcmp(nodes[*(const int *) a].name, nodes[*(const int *) b].name);
}

/* Returns the index of the job of a name; -1 for none. */
static int
find_node(const Graph *graph, const char *name)
{
	int low = 0;
	int high = graph->count;

	while (low < high)
	{
		int middle = (low + high) / 2;
		int order = strcmp(graph->nodes[graph->by_name[middle]].name, name);

		if (order == 0)
			return graph->by_name[middle];
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return -1;
}

/* Returns the id that a number is; 1.4 is none, nor what no bigint can be. */
static int64
parent_id(const GraphJob *node, Numeric number)
{
	char *digits = DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(number)));
	char *end;
	long long id;

	errno = 0;
	id = strtoll(digits, &end, 10);
	if (errno != 0 || *end != '\0')
		refuse(node->name, psprintf("it depends on %.40s, which is no id of a job", digits));
	return id;
}

/* Reads one element of depends_on. */
static void
read_parent(Graph *graph, GraphJob *node, const JsonbValue *value)
{
	int n = node->nparents++;

	if (value->type == jbvNumeric)
	{
		node->parents[n] = parent_id(node, value->val.numeric);
		return;
	}
	if (value->type != jbvString)
		refuse(node->name, "depends_on takes names of the graph, and ids of jobs as numbers");
	node->parents[n] = find_node(graph, string_of(value));
	node->by_name[n] = true;
	if (node->parents[n] < 0)
		refuse(node->name,
			   psprintf("it depends on \"%s\", which is not in the graph", string_of(value)));
	node->left++;
	graph->nodes[node->parents[n]].nchildren++;
}

/* Reads what a job depends on. */
static void
read_parents(Graph *graph, GraphJob *node)
{
	int max = node->depends_on == NULL ? 0 : (int) JsonContainerSize(node->depends_on);
	JsonbIterator *iterator;
	JsonbValue value;

	if (max == 0)
		return;
	node->parents = MemoryContextAllocHuge(CurrentMemoryContext, max * sizeof(int64));
	node->by_name = palloc0(max * sizeof(bool));
	iterator = JsonbIteratorInit(node->depends_on);
	(void) JsonbIteratorNext(&iterator, &value, true);
	while (JsonbIteratorNext(&iterator, &value, true) == WJB_ELEM)
		read_parent(graph, node, &value);
}

/* Lists the children of each job, by name. */
static void
list_children(Graph *graph)
{
	int edges = 0;

	for (int i = 0; i < graph->count; i++)
	{
		graph->nodes[i].first_child = edges;
		edges += graph->nodes[i].nchildren;
		graph->nodes[i].nchildren = 0;
	}
	graph->children = MemoryContextAllocHuge(CurrentMemoryContext, Max(edges, 1) * sizeof(int));
	for (int i = 0; i < graph->count; i++)
	{
		const GraphJob *node = &graph->nodes[i];

		for (int n = 0; n < node->nparents; n++)
		{
			GraphJob *parent;

			if (!node->by_name[n])
				continue;
			parent = &graph->nodes[node->parents[n]];
			graph->children[parent->first_child + parent->nchildren++] = i;
		}
	}
}

/* Returns a parent of a job that has no place in the order; both have none. */
static int
parent_left(const Graph *graph, int at)
{
	GraphJob *node = &graph->nodes[at];

	/* One that is not left now never will be: a circle that is walked round is read once. */
	while (!node->by_name[node->seen] || graph->nodes[node->parents[node->seen]].left == 0)
		node->seen++;
	return (int) node->parents[node->seen];
}

/* Raises 22023, and names jobs that depend on each other in a circle. */
pg_noreturn static void
refuse_cycle(const Graph *graph)
{
	StringInfoData names;
	int first = 0;
	int shown = 0;
	int at;

	while (graph->nodes[first].left == 0)
		first++;
	/* After so many steps one is in a circle. */
	for (int i = 0; i < graph->count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		first = parent_left(graph, first);
	}
	initStringInfo(&names);
	appendStringInfo(&names, "\"%s\"", graph->nodes[first].name);
	at = first;
	do
	{
		at = parent_left(graph, at);
		shown++;
		if (shown < MAX_SHOWN || at == first)
			appendStringInfo(&names, " depends on \"%s\"", graph->nodes[at].name);
		else if (shown == MAX_SHOWN)
			appendStringInfoString(&names, " depends on ...");
	} while (at != first);
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					errmsg("jobs of the graph depend on each other in a circle"),
					errdetail("%s.", names.data),
					errhint("Take one of these edges out: none of these jobs could ever run.")));
}

/* Finds an order in which each job comes behind its parents. */
static void
find_order(Graph *graph)
{
	int placed = 0;

	graph->order = palloc(Max(graph->count, 1) * sizeof(int));
	for (int i = 0; i < graph->count; i++)
	{
		if (graph->nodes[i].left == 0)
			graph->order[placed++] = i;
	}
	for (int done = 0; done < placed; done++)
	{
		const GraphJob *node = &graph->nodes[graph->order[done]];

		CHECK_FOR_INTERRUPTS();
		for (int n = 0; n < node->nchildren; n++)
		{
			int child = graph->children[node->first_child + n];

			if (--graph->nodes[child].left == 0)
				graph->order[placed++] = child;
		}
	}
	if (placed < graph->count)
		refuse_cycle(graph);
}

/* Reads the graph, and checks all that can be without enqueueing it. */
static void
read_graph(Graph *graph, Jsonb *jobs)
{
	JsonbIterator *iterator;
	JsonbValue value;
	int n = 0;

	if (!JB_ROOT_IS_ARRAY(jobs) || JB_ROOT_IS_SCALAR(jobs))
		refuse(NULL, "no array");
	graph->count = (int) JB_ROOT_COUNT(jobs);
	if (graph->count > IDEMQ_MAX_ARRAY)
		refuse(NULL, psprintf("more than %d", IDEMQ_MAX_ARRAY));
	graph->nodes = MemoryContextAllocExtended(CurrentMemoryContext,
											  Max(graph->count, 1) * sizeof(GraphJob),
											  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	graph->by_name = palloc(Max(graph->count, 1) * sizeof(int));
	iterator = JsonbIteratorInit(&jobs->root);
	(void) JsonbIteratorNext(&iterator, &value, true);
	while (JsonbIteratorNext(&iterator, &value, true) == WJB_ELEM)
	{
		graph->by_name[n] = n;
		read_node(&graph->nodes[n++], &value);
	}
	qsort_arg(graph->by_name, n, sizeof(int), compare_names, graph->nodes);
	for (int i = 1; i < n; i++)
	{
		if (compare_names(&graph->by_name[i - 1], &graph->by_name[i], graph->nodes) == 0)
			refuse(graph->nodes[graph->by_name[i]].name, "another one has the same name");
	}
	for (int i = 0; i < n; i++)
		read_parents(graph, &graph->nodes[i]);
	list_children(graph);
	find_order(graph);
}

/* Enqueues a job, whose parents are. */
static void
enqueue_node(Graph *graph, GraphJob *node, Tuplestorestate *store, TupleDesc desc)
{
	Datum values[PARAMETERS + 1];
	Datum *parents = palloc(Max(node->nparents, 1) * sizeof(Datum));
	Datum answer[4];
	bool nulls[4] = {false};
	SqlScope scope;

	memcpy(values, node->values, sizeof(node->values));
	for (int n = 0; n < node->nparents; n++)
		parents[n] =
			Int64GetDatum(node->by_name[n] ? graph->nodes[node->parents[n]].id : node->parents[n]);
	values[PARAMETERS] =
		PointerGetDatum(construct_array(parents, node->nparents, INT8OID, sizeof(int64),
										FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	node->nulls[PARAMETERS] = ' ';
	idemq_spi_begin_as(&scope, GetUserId());
	(void) idemq_spi_run(&enqueue_job, values, node->nulls, SPI_OK_SELECT);
	answer[0] = CStringGetTextDatum(node->name);
	answer[1] = idemq_spi_value(0, 1, &nulls[1]);
	node->id = DatumGetInt64(answer[1]);
	answer[2] = idemq_spi_value(0, 2, &nulls[2]);
	answer[3] = idemq_spi_value(0, 3, &nulls[3]);
	tuplestore_putvalues(store, desc, answer, nulls);
	idemq_spi_end(&scope);
}

/*
 * enqueue_graph(jobs) -> setof (name, id, outcome, status), parents first; 22023, 22004, and
 * what idemq.enqueue raises.
 */
Datum
idemq_sql_v2_enqueue_graph(PG_FUNCTION_ARGS)
{
	Graph graph = {0};
	Tuplestorestate *store;
	MemoryContext context;
	MemoryContext old;
	TupleDesc desc;

	idemq_arg_required(fcinfo, 0, "jobs");
	idemq_jobs_check_writable();
	store = idemq_srf_begin(fcinfo, &desc);
	read_graph(&graph, PG_GETARG_JSONB_P(0));
	context = AllocSetContextCreate(CurrentMemoryContext, "idemq graph", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	for (int i = 0; i < graph.count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(context);
		enqueue_node(&graph, &graph.nodes[graph.order[i]], store, desc);
	}
	MemoryContextSwitchTo(old);
	return (Datum) 0;
}
