/*
 * base/token.h
 *		Fencing tokens: arithmetic only.
 */
#ifndef IDEMQ_BASE_TOKEN_H
#define IDEMQ_BASE_TOKEN_H

#include "datatype/timestamp.h"

extern int64 idemq_token_lead(int64 base, uint32 timeline);
extern int64 idemq_token_next(int64 row_token, int64 last_issued, TimestampTz now, uint32 timeline,
							  int64 base);

#endif
