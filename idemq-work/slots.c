/*
 * slots.c: the runner's side: slots for programs, which all shards share.
 *
 * A program runs on a slot; one that has ended needs none, even before the server has been told of it.
 * A runner asks for slots when its shard may have jobs, and leaves at the end of each round what it
 * has not used.  So a shard that is down, or has nothing to do, keeps none.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "slots.h"
#include "say.h"

int slots_fd = -1;

static int granted;
static int asked;

void
slots_tell(char what)
{
	/* It cannot be full of bytes, and its end is noticed by slots_read. */
	if (slots_fd >= 0 && write(slots_fd, &what, 1) < 0)
		return;
}

int
slots_for(int n, int running)
{
	int unused = granted - running;

	if (slots_fd < 0)
		return n;
	for (; unused + asked < n; asked++)
		slots_tell(SAY_WANT);
	return unused < n ? unused : n;
}

bool
slots_awaited(void)
{
	return slots_fd >= 0 && asked > 0;
}

void
slots_keep(int running)
{
	for (; slots_fd >= 0 && granted > running; granted--)
		slots_tell(SAY_LEAVE);
}

char *
slots_read(void)
{
	static char *line = NULL; /* an address that has begun */
	static size_t size = 0;
	char *address = NULL;
	char text[4096];
	ssize_t got;

	while ((got = read(slots_fd, text, sizeof(text))) > 0)
	{
		for (ssize_t i = 0; i < got; i++)
		{
			if (line == NULL && text[i] == SAY_SLOT)
			{
				granted++;
				asked--;
				continue;
			}
			if (line == NULL)
			{
				line = memory(NULL, 1);
				size = 0;
				continue;
			}
			line = memory(line, size + 2);
			line[size++] = text[i];
			if (text[i] != '\n')
				continue;
			line[size - 1] = '\0';
			free(address);
			address = line;
			line = NULL;
		}
	}
	if (got == 0)
		die(1, "the supervisor has exited");
	if (errno != EAGAIN && errno != EINTR)
		die(1, "the supervisor: %m");
	return address;
}
