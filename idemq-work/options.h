/*
 * options.h: the command line.
 */
#ifndef IDEMQ_WORK_OPTIONS_H
#define IDEMQ_WORK_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Times are milliseconds. */
struct options
{
	const char *dsn;
	const char *cluster; /* the router's connection string; NULL: one server */
	int *home;			 /* shards that come first, and -1; NULL: all alike */
	bool only_home;
	const char *shard_options; /* a connection string, before the map's; or NULL */
	const char *wait_dsn;	   /* of the connection that waits */
	const char *queues;		   /* an array literal */
	const char *queue;		   /* the only one; NULL: there are several */
	const char *worker;		   /* as idemq.running_jobs shows it */
	const char *lease;		   /* an interval; NULL: the queue's */
	int jobs;				   /* at a time */
	bool result;			   /* stdout is the job's result */
	bool attach;
	bool once;
	bool verbose;
	int64_t timeout; /* of a program; 0: not given */
	int64_t later;	 /* a job's delay after exit status 75 */
	int64_t grace;	 /* from SIGTERM until programs are ended */
	int64_t kill_after;
	size_t max_output;
	const char *http; /* a URL to which jobs go; NULL: to a program */
	const char *unix_socket;
	const char *sign_key_file;
	bool holds; /* 429 with Retry-After holds back other jobs */
	bool hold_given;
	const char
		*hold;	/* group or queue; NULL: the group of a job that has one, otherwise its queue */
	bool lines; /* the program is given one job after the other */
	char **program;
};

extern struct options options;

/* Sets options; ends the process where the command line is wrong, or asks for help. */
extern void options_read(int argc, char **argv);

#endif
