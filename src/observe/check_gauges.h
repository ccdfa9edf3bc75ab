/*
 * observe/check_gauges.h
 *		The audit of how many jobs shared memory knows of.
 */
#ifndef IDEMQ_OBSERVE_CHECK_GAUGES_H
#define IDEMQ_OBSERVE_CHECK_GAUGES_H

#include "observe/check_report.h"

extern void idemq_check_gauges(CheckCall *call);

#endif
