/*
 * utility.h
 *		Utility commands that idemq follows.
 */
#ifndef IDEMQ_UTILITY_H
#define IDEMQ_UTILITY_H

extern void idemq_utility_install(void);

#endif
