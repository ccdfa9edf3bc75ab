/*
 * say.h: what each part of idemq-work needs: the time, a line on stderr, memory.
 */
#ifndef IDEMQ_WORK_SAY_H
#define IDEMQ_WORK_SAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* No time at all: later than each that is. */
#define NEVER INT64_MAX

/* Milliseconds of a clock that nobody sets. */
extern int64_t now_ms(void);

/* Which of several runners this is, in its lines. */
extern const char *say_who;

/* One line on stderr, whatever the text has in it. */
extern void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* say, and end with this status. */
extern void die(int status, const char *format, ...)
	__attribute__((format(printf, 2, 3), noreturn));

/* realloc and strdup that end the program where there is no memory; text NULL stays NULL. */
extern void *memory(void *old, size_t size);
extern char *copy_text(const char *text);

/* The earlier of two times; the later. */
extern int64_t sooner(int64_t a, int64_t b);
extern int64_t later(int64_t a, int64_t b);

/* Descriptors that no program inherits, and whose end here never blocks: false with errno. */
extern bool open_pipe(int ends[2]);
extern void never_block(int fd);
extern void close_fd(int *fd);

#endif
