/*
 * sign.h: signatures as Standard Webhooks say: v1, HMAC with SHA-256.
 */
#ifndef IDEMQ_WORK_SIGN_H
#define IDEMQ_WORK_SIGN_H

#include <stddef.h>

/*
 * Reads the keys of a file, "whsec_" and Base64, a line each: more than one while a key is
 * replaced.  Ends the process where there is none.
 */
extern void sign_read_keys(const char *file);

/* A new text: the value of webhook-signature, of "id.timestamp.body". */
extern char *sign(const char *id, const char *timestamp, const char *body, size_t size);

#endif
