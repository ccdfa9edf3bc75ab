/*
 * sign.c: signatures as Standard Webhooks say: v1, HMAC with SHA-256.
 *
 * A request has one of each key, so that a receiver that knows the old key or the new one accepts
 * it.  The file is read once, at the start.
 */
#ifdef HAVE_CURL
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "say.h"
#include "sign.h"

#define PREFIX "whsec_"
#define KEYS_MOST 4
/* Bytes of a key: what Standard Webhooks ask for. */
#define KEY_LEAST 24
#define KEY_MOST 64

static struct
{
	unsigned char bytes[3 * (4 * KEY_MOST / 3 + 4) / 4];
	int size;
} keys[KEYS_MOST];
static int key_count;

static void
read_key(const char *file, char *text)
{
	size_t length = strlen(text);
	int padding = 0;
	int size;

	if (strncmp(text, PREFIX, strlen(PREFIX)) == 0)
	{
		text += strlen(PREFIX);
		length -= strlen(PREFIX);
	}
	while (padding < 2 && length > (size_t) padding && text[length - 1 - (size_t) padding] == '=')
		padding++;
	if (key_count == KEYS_MOST)
		die(2, "--sign-key-file: \"%s\" contains more than %d keys", file, KEYS_MOST);
	size = length > 4 * KEY_MOST / 3 + 4
			   ? -1
			   : EVP_DecodeBlock(keys[key_count].bytes, (unsigned char *) text, (int) length);
	keys[key_count].size = size - padding;
	if (size < 0 || keys[key_count].size < KEY_LEAST || keys[key_count].size > KEY_MOST)
		die(2,
			"--sign-key-file: line %d of \"%s\" is not a key: \"" PREFIX "\" and %d to %d bytes in "
			"Base64",
			key_count + 1, file, KEY_LEAST, KEY_MOST);
	key_count++;
}

void
sign_read_keys(const char *file)
{
	FILE *input = fopen(file, "r");
	char line[256];

	if (input == NULL)
		die(2, "--sign-key-file: cannot read \"%s\": %s", file, strerror(errno));
	while (fgets(line, sizeof(line), input) != NULL)
	{
		line[strcspn(line, " \t\r\n")] = '\0';
		if (line[0] != '\0')
			read_key(file, line);
	}
	fclose(input);
	if (key_count == 0)
		die(2, "--sign-key-file: \"%s\" contains no key", file);
}

char *
sign(const char *id, const char *timestamp, const char *body, size_t size)
{
	size_t begin = strlen(id) + strlen(timestamp) + 2;
	unsigned char *text = memory(NULL, begin + size + 1);
	char *signatures = memory(NULL, KEYS_MOST * 64);
	char *to = signatures;

	sprintf((char *) text, "%s.%s.", id, timestamp);
	memcpy(text + begin, body, size);
	for (int i = 0; i < key_count; i++)
	{
		unsigned char hash[EVP_MAX_MD_SIZE];
		unsigned length = 0;

		if (HMAC(EVP_sha256(), keys[i].bytes, keys[i].size, text, begin + size, hash, &length) ==
			NULL)
			die(1, "could not sign a request");
		to += sprintf(to, "%sv1,", i > 0 ? " " : "");
		to += EVP_EncodeBlock((unsigned char *) to, hash, (int) length);
	}
	free(text);
	return signatures;
}
#endif
