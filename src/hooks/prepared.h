/*
 * hooks/prepared.h
 *		Which prepared transactions have changed idemq's tables.
 */
#ifndef IDEMQ_HOOKS_PREPARED_H
#define IDEMQ_HOOKS_PREPARED_H

extern bool idemq_prepared_has_written(const char *gid);

#endif
