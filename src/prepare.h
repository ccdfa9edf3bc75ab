/*
 * prepare.h
 *		What PREPARE TRANSACTION refuses.
 */
#ifndef IDEMQ_PREPARE_H
#define IDEMQ_PREPARE_H

extern void idemq_check_prepare(int32 queue_id, bool attached, bool drops);

#endif
