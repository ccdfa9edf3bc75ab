/*
 * observe/check_floors.h
 *		The audit of the floors of FIFO groups.
 */
#ifndef IDEMQ_OBSERVE_CHECK_FLOORS_H
#define IDEMQ_OBSERVE_CHECK_FLOORS_H

#include "observe/check_report.h"

extern void idemq_check_floors(CheckCall *call);

#endif
