/*
 * hooks/hooks.h
 *		Code that PostgreSQL calls: for utility commands, in triggers, and in the planner.
 */
#ifndef IDEMQ_HOOKS_HOOKS_H
#define IDEMQ_HOOKS_HOOKS_H

#include "nodes/nodes.h"

/*
 * utility.c
 *		Utility commands that change what shared memory reflects.
 */

extern void idemq_utility_install(void);

/*
 * exclusive_database.c
 *		Commands that require that no other session uses the database.
 */

extern void idemq_exclusive_make_way(Node *statement);

/*
 * row_estimates.c
 *		How many rows the planner expects in idemq's tables.
 */

extern void idemq_row_estimates_install(void);

#endif
