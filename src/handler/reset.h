/*
 * handler/reset.h
 *		What a handler's function leaves behind in its session.
 */
#ifndef IDEMQ_HANDLER_RESET_H
#define IDEMQ_HANDLER_RESET_H

extern bool idemq_handler_reset(Oid role);

#endif
