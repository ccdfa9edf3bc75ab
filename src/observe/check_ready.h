/*
 * observe/check_ready.h
 *		The audit of the ready cursors: nothing below one is claimable.
 */
#ifndef IDEMQ_OBSERVE_CHECK_READY_H
#define IDEMQ_OBSERVE_CHECK_READY_H

#include "observe/check_report.h"

extern void idemq_check_ready(CheckCall *call);

#endif
