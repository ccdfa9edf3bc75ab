/*
 * What cppcheck has to know of PostgreSQL's macros, whose headers it is not given.
 */
#define PG_VERSION_NUM 150000
#define foreach(cell, list) for (cell = list_head(list); cell != NULL; cell = lnext(list, cell))
