/*
 * hooks/exclusive_database.h
 *		Commands that need a database for themselves.
 */
#ifndef IDEMQ_HOOKS_EXCLUSIVE_DATABASE_H
#define IDEMQ_HOOKS_EXCLUSIVE_DATABASE_H

#include "nodes/nodes.h"

extern void idemq_exclusive_make_way(Node *statement);

#endif
