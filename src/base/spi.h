/*
 * base/spi.h
 *		SQL from C: saved plans, run as the extension's owner.
 */
#ifndef IDEMQ_BASE_SPI_H
#define IDEMQ_BASE_SPI_H

#include "executor/spi.h"

#define SQL_MAX_ARGS 24

/* One statement; static in the file that runs it, its plan prepared at first use. */
typedef struct SqlStatement
{
	const char *text;
	int nargs;
	Oid types[SQL_MAX_ARGS];
	SPIPlanPtr plan;
} SqlStatement;

/* What idemq_spi_begin changed and idemq_spi_end puts back. */
typedef struct SqlScope
{
	Oid user;
	int sec_context;
	int guc_level;
} SqlScope;

extern void idemq_spi_begin(SqlScope *scope);
extern void idemq_spi_begin_on_jobs(SqlScope *scope);
extern void idemq_spi_begin_as(SqlScope *scope, Oid role);
extern void idemq_spi_no_seqscan(void);
extern void idemq_spi_in_order(void);
extern uint64 idemq_spi_run(SqlStatement *statement, const Datum *args, const char *nulls,
							int expected);
extern uint64 idemq_spi_query_at(SqlStatement *statement, const Datum *args, const char *nulls,
								 Snapshot snapshot);
extern uint64 idemq_spi_query_latest(SqlStatement *statement, const Datum *args, const char *nulls);
extern Datum idemq_spi_value(uint64 row, int column, bool *isnull);
extern int64 idemq_spi_int64(uint64 row, int column, bool *isnull);
extern void idemq_spi_end(SqlScope *scope);

#endif
