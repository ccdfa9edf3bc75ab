/*
 * observe/progress.h
 *		How far a job has come.
 */
#ifndef IDEMQ_OBSERVE_PROGRESS_H
#define IDEMQ_OBSERVE_PROGRESS_H

#include "utils/jsonb.h"

extern bool idemq_progress(Jsonb *checkpoint, double *percent);

#endif
