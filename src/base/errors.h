/*
 * base/errors.h
 *		SQLSTATEs of idemq.  Class IQ is ours; everything else is standard.
 */
#ifndef IDEMQ_BASE_ERRORS_H
#define IDEMQ_BASE_ERRORS_H

#define ERRCODE_IDEMQ_LEASE_LOST MAKE_SQLSTATE('I', 'Q', '0', '0', '1')
#define ERRCODE_IDEMQ_NO_SUCH_JOB MAKE_SQLSTATE('I', 'Q', '0', '0', '2')
#define ERRCODE_IDEMQ_KEY_REUSED MAKE_SQLSTATE('I', 'Q', '0', '0', '3')
#define ERRCODE_IDEMQ_DUPLICATE_KEY MAKE_SQLSTATE('I', 'Q', '0', '0', '4')
#define ERRCODE_IDEMQ_NO_SUCH_QUEUE MAKE_SQLSTATE('I', 'Q', '0', '0', '5')
#define ERRCODE_IDEMQ_ALREADY_COMMITTED MAKE_SQLSTATE('I', 'Q', '0', '0', '6')

/* What a handler's function may raise. */
#define ERRCODE_IDEMQ_RETRY_LATER MAKE_SQLSTATE('I', 'Q', '0', '1', '0')
#define ERRCODE_IDEMQ_DEAD MAKE_SQLSTATE('I', 'Q', '0', '1', '1')
#define ERRCODE_IDEMQ_SNOOZE MAKE_SQLSTATE('I', 'Q', '0', '1', '2')

#endif
