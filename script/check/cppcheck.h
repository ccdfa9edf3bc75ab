/*
 * What cppcheck has to know of PostgreSQL's macros, whose headers it is not given; and the build of make chaos,
 * which has what the usual one has: else it looks at every file twice.
 */
#define PG_VERSION_NUM 150000
#define IDEMQ_JITTER
#define foreach(cell, list) for (cell = list_head(list); cell != NULL; cell = lnext(list, cell))
