/*
 * observe/check_groups.h
 *		The audit of FIFO groups: at most one head each, and none that is forgotten.
 */
#ifndef IDEMQ_OBSERVE_CHECK_GROUPS_H
#define IDEMQ_OBSERVE_CHECK_GROUPS_H

#include "observe/check_report.h"

extern void idemq_check_groups(CheckCall *call);

#endif
