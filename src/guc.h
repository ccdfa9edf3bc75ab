/*
 * guc.h
 *		Settings.
 */
#ifndef IDEMQ_GUC_H
#define IDEMQ_GUC_H

extern int idemq_max_queues;
extern int idemq_max_leases;

extern void idemq_guc_define(void);

#endif
