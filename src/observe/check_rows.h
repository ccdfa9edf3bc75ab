/*
 * observe/check_rows.h
 *		The audit of what one snapshot shows: rows, tokens, indexes, triggers.
 */
#ifndef IDEMQ_OBSERVE_CHECK_ROWS_H
#define IDEMQ_OBSERVE_CHECK_ROWS_H

#include "observe/check_report.h"

extern void idemq_check_rows(CheckCall *call);
extern void idemq_check_tokens(CheckCall *call);
extern void idemq_check_steps(CheckCall *call);
extern bool idemq_check_catalog(CheckCall *call);

#endif
