/*
 * hooks/hooks.h
 *		What PostgreSQL calls: utility statements, triggers, COMMIT PREPARED, the planner.
 */
#ifndef IDEMQ_HOOKS_HOOKS_H
#define IDEMQ_HOOKS_HOOKS_H

#include "nodes/nodes.h"

/*
 * prepared.c
 *		Which prepared transactions have changed idemq's tables.
 */

extern bool idemq_prepared_has_written(const char *gid);

/*
 * utility.c
 *		Utility commands that idemq follows.
 */

extern void idemq_utility_install(void);

/*
 * exclusive_database.c
 *		Commands that need a database for themselves.
 */

extern void idemq_exclusive_make_way(Node *statement);

/*
 * row_estimates.c
 *		How many rows the planner expects in idemq's tables.
 */

extern void idemq_row_estimates_install(void);

#endif
