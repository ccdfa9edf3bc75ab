/*
 * places.c: the runner's side: places for programs, which all shards share.
 *
 * A program runs on a place; one that has ended needs none, even while the server is to be told of it.
 * A runner asks for places when its shard may have jobs, and leaves at the end of each round what it
 * has not used.  So a shard that is down, or has nothing to do, keeps none.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "places.h"
#include "say.h"

int places_fd = -1;

static int granted;
static int asked;

void
places_tell(char what)
{
	/* It cannot be full of bytes, and its end is noticed by places_read. */
	if (places_fd >= 0 && write(places_fd, &what, 1) < 0)
		return;
}

int
places_for(int n, int running)
{
	int unused = granted - running;

	if (places_fd < 0)
		return n;
	for (; unused + asked < n; asked++)
		places_tell(SAY_WANT);
	return unused < n ? unused : n;
}

bool
places_awaited(void)
{
	return places_fd >= 0 && asked > 0;
}

void
places_keep(int running)
{
	for (; places_fd >= 0 && granted > running; granted--)
		places_tell(SAY_LEAVE);
}

char *
places_read(void)
{
	static char *line = NULL; /* an address that has begun */
	static size_t size = 0;
	char *address = NULL;
	char text[4096];
	ssize_t got;

	while ((got = read(places_fd, text, sizeof(text))) > 0)
	{
		for (ssize_t i = 0; i < got; i++)
		{
			if (line == NULL && text[i] == SAY_PLACE)
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
		die(1, "the supervisor has ended");
	if (errno != EAGAIN && errno != EINTR)
		die(1, "the supervisor: %m");
	return address;
}
