/*
 * hooks/utility.h
 *		Utility commands that idemq follows.
 */
#ifndef IDEMQ_HOOKS_UTILITY_H
#define IDEMQ_HOOKS_UTILITY_H

extern void idemq_utility_install(void);

#endif
