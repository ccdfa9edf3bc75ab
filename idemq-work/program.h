/*
 * program.h: a program that runs, with its process group and its pipes.
 */
#ifndef IDEMQ_WORK_PROGRAM_H
#define IDEMQ_WORK_PROGRAM_H

#include <sys/types.h>

#include "executor.h"

/* How much of the end of stderr is kept: at least half of it. */
#define TAIL_SIZE 16384

struct program
{
	pid_t pid; /* and its group; 0: none */
	int in;	   /* our ends; -1: closed */
	int out;
	int err;
	char *input; /* its own */
	size_t input_size;
	size_t input_sent;
	bool stays;	  /* more input will come, and others are to see its stderr as it comes */
	char *output; /* NULL: none yet */
	size_t output_size;
	size_t output_most;
	bool output_cut; /* there was more than that */
	char tail[TAIL_SIZE + 1];
	size_t tail_size;
};

/* A variable of the program's environment; value NULL: it has none of that name. */
struct variable
{
	const char *name;
	const char *value;
};

/*
 * Starts options.program; input becomes its own.  output_most: the bytes of its output that are
 * kept; 0: it has our own stdout.  False, with errno, when there is no process.
 */
extern bool program_start(struct program *program, char *input, size_t output_most,
						  const struct variable *variables);

/*
 * Which of its pipes want what; at most 3.  Then, what to do about it: of so many descriptors the
 * first are its own; answers how many.
 */
extern int program_poll(const struct program *program, struct pollfd *fds);
extern int program_serve(struct program *program, const struct pollfd *fds, int count);

extern void program_kill(const struct program *program, int number);

/*
 * When it has ended: kills the rest of its group, reads what is left in its pipes, and sets
 * the status that waitpid knows.  False while it runs.
 */
extern bool program_ended(struct program *program, int *status);

/* Copies the end of its stderr. */
extern void program_said(struct program *program, struct answer *answer);

/* Frees what it was told and has answered. */
extern void program_free(struct program *program);

#endif
