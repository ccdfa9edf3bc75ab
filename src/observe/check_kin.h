/*
 * observe/check_kin.h
 *		The audit of children and their parents.
 */
#ifndef IDEMQ_OBSERVE_CHECK_KIN_H
#define IDEMQ_OBSERVE_CHECK_KIN_H

#include "observe/check_report.h"

extern void idemq_check_kin(CheckCall *call);

#endif
