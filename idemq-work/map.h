/*
 * map.h: the process that reads a cluster's map.
 */
#ifndef IDEMQ_WORK_MAP_H
#define IDEMQ_WORK_MAP_H

/*
 * Reads the map, tells it to the descriptor, a line "SHARD ADDRESS" for each shard, and again whenever
 * the router says that it has changed, a byte comes from the descriptor, or the connection has been
 * made again.  Ends the process when the descriptor has ended.
 */
extern void map_read(int fd) __attribute__((noreturn));

/* Ends the process where --cluster or --shard-options is no connection string. */
extern void map_check_options(void);

#endif
