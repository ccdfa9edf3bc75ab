/*
 * table/jobs_id.h
 *		New job ids, none of which was given before.
 */
#ifndef IDEMQ_TABLE_JOBS_ID_H
#define IDEMQ_TABLE_JOBS_ID_H

extern int64 idemq_jobs_next_id(void);
extern void idemq_jobs_next_ids(int64 *ids, int count);
extern void idemq_jobs_ids_take_over(int64 greatest);
extern int64 idemq_jobs_last_id(void);
extern void idemq_jobs_ids_changed(void);
extern void idemq_jobs_ids_unknown(void);
extern void idemq_jobs_id_install(void);

#endif
