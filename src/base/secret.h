/*
 * base/secret.h
 *		Hashes that cannot be computed outside of this server.
 */
#ifndef IDEMQ_BASE_SECRET_H
#define IDEMQ_BASE_SECRET_H

extern Size idemq_secret_shmem_size(void);
extern void idemq_secret_shmem_init(void *area, bool found);
extern uint64 idemq_secret_hash(uint64 number, const void *data, size_t length);

#endif
