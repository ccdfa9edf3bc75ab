/*
 * cluster.h: the supervisor of the runners of a cluster's shards.
 */
#ifndef IDEMQ_WORK_CLUSTER_H
#define IDEMQ_WORK_CLUSTER_H

/*
 * With --cluster: starts a runner for each shard.  Returns in those, which have their address and
 * their end of the line; the supervisor ends the process.  Without: returns at once.
 */
extern void cluster_start(void);

#endif
