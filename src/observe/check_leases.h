/*
 * observe/check_leases.h
 *		The audit of the lease table against the rows, the sessions and the slots.
 */
#ifndef IDEMQ_OBSERVE_CHECK_LEASES_H
#define IDEMQ_OBSERVE_CHECK_LEASES_H

#include "observe/check_report.h"

extern void idemq_check_leases(CheckCall *call);

#endif
