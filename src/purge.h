/*
 * purge.h
 *		Deleting what is past its retention.
 */
#ifndef IDEMQ_PURGE_H
#define IDEMQ_PURGE_H

#include "idemq.h"

extern int64 idemq_purge_due_at(void);
extern void idemq_purge_some(void);
extern void idemq_purge_ended(bool done);

#endif
