/*
 * say.c: the time, lines on stderr, memory, pipes.
 *
 * A line is written by one write(), so that those of several runners in one log do not mix.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "say.h"

const char *say_who = "";

int64_t
now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void __attribute__((format(printf, 1, 0))) say_args(const char *format, va_list args)
{
	char line[2048];
	size_t start = (size_t) snprintf(line, 64, "idemq-work: %s", say_who);
	size_t end;

	vsnprintf(line + start, sizeof(line) - start - 1, format, args);
	end = strlen(line);
	/* libpq ends its messages with a new line, and has more than one in some. */
	while (end > start && (line[end - 1] == '\n' || line[end - 1] == ' '))
		end--;
	for (size_t i = start; i < end; i++)
	{
		if ((unsigned char) line[i] < ' ')
			line[i] = ' ';
	}
	line[end++] = '\n';
	/* Nobody reads it: there is nowhere to say so. */
	if (write(STDERR_FILENO, line, end) < 0)
		return;
}

void
say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say_args(format, args);
	va_end(args);
}

void
die(int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say_args(format, args);
	va_end(args);
	exit(status);
}

void *
memory(void *old, size_t size)
{
	void *new = realloc(old, size ? size : 1);

	if (new == NULL)
		die(1, "out of memory");
	return new;
}

char *
copy_text(const char *text)
{
	size_t size;

	if (text == NULL)
		return NULL;
	size = strlen(text) + 1;
	return memcpy(memory(NULL, size), text, size);
}

int64_t
sooner(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

int64_t
later(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

bool
open_pipe(int ends[2])
{
	if (pipe(ends) != 0)
	{
		ends[0] = ends[1] = -1;
		return false;
	}
	for (int i = 0; i < 2; i++)
		fcntl(ends[i], F_SETFD, FD_CLOEXEC);
	return true;
}

void
never_block(int fd)
{
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void
close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}
