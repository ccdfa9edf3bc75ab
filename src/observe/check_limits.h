/*
 * observe/check_limits.h
 *		The audit of what max_running counts.
 */
#ifndef IDEMQ_OBSERVE_CHECK_LIMITS_H
#define IDEMQ_OBSERVE_CHECK_LIMITS_H

#include "observe/check_report.h"

extern void idemq_check_limits(CheckCall *call);

#endif
