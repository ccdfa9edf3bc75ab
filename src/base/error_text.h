/*
 * base/error_text.h
 *		What errors have in common: a message without what differs from job to job.
 */
#ifndef IDEMQ_BASE_ERROR_TEXT_H
#define IDEMQ_BASE_ERROR_TEXT_H

/* So many bytes of a message are looked at; what follows is a stack, or data. */
#define IDEMQ_ERROR_BYTES 2000
#define IDEMQ_SQLSTATE_LENGTH 5

extern char *idemq_error_pattern(const char *message, int length);
extern const char *idemq_error_find_sqlstate(const char *message, int length);
extern bool idemq_is_sqlstate(const char *text, int length);
extern uint64 idemq_error_hash(const char *sqlstate, const char *pattern);

#endif
