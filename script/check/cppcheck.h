/*
 * Macros of PostgreSQL that cppcheck needs, because it does not read PostgreSQL's headers.  IDEMQ_JITTER selects the
 * build of make chaos, which contains everything that the usual build contains; otherwise cppcheck would read each file
 * twice.
 */
#define PG_VERSION_NUM 150000
#define IDEMQ_JITTER
#define foreach(cell, list) for (cell = list_head(list); cell != NULL; cell = lnext(list, cell))
