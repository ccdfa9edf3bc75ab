/*
 * job/generation.h
 *		What a restored database adds to its tokens.
 */
#ifndef IDEMQ_JOB_GENERATION_H
#define IDEMQ_JOB_GENERATION_H

extern int64 idemq_generation_base(void);
extern int64 idemq_generation_latest_base(void);
extern void idemq_generation_note(void);
extern int64 idemq_generation_new(int64 seen);

#endif
