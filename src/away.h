/*
 * away.h
 *		Commands that need a database for themselves.
 */
#ifndef IDEMQ_AWAY_H
#define IDEMQ_AWAY_H

#include "nodes/nodes.h"

extern void idemq_away_make_way(Node *statement);
extern void idemq_away_let_back(void);

#endif
