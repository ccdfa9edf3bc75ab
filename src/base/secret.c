/*
 * base/secret.c
 *		Hashes that cannot be computed outside this server: SipHash-2-4, with a random key of 128
 *		bits that is chosen when the server starts.
 *
 * Use them for hashes that other roles can see, for example in the tags of advisory locks in
 * pg_locks.  With an ordinary hash, a role could check whether it has guessed the input.  A seeded
 * hash that is not designed for this, such as PostgreSQL's own, would reveal its seed to a role
 * that knows some inputs.
 *
 * There are no locks, because the key is written before any session exists.
 */
#include "postgres.h"

#include "base/base.h"

typedef struct SecretShared
{
	uint64 key[2];
} SecretShared;

static SecretShared *secret_shared = NULL;

static void
init_secret(int tranche)
{
	if (!pg_strong_random(secret_shared->key, sizeof(secret_shared->key)))
		ereport(ERROR, errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not generate a random key"),
				errhint(
					"PostgreSQL could not get random numbers from the operating system. Check the "
					"operating system's log."));
}

const ShmemPart idemq_secret_part = {.area = (void **) &secret_shared,
									 .size = sizeof(SecretShared),
									 .init = init_secret};

static inline uint64
rotl64(uint64 x, int bits)
{
	return (x << bits) | (x >> (64 - bits));
}

static inline void
sip_rounds(uint64 *v, int count)
{
	for (int i = 0; i < count; i++)
	{
		v[0] += v[1];
		v[1] = rotl64(v[1], 13) ^ v[0];
		v[0] = rotl64(v[0], 32);
		v[2] += v[3];
		v[3] = rotl64(v[3], 16) ^ v[2];
		v[0] += v[3];
		v[3] = rotl64(v[3], 21) ^ v[0];
		v[2] += v[1];
		v[1] = rotl64(v[1], 17) ^ v[2];
		v[2] = rotl64(v[2], 32);
	}
}

static inline void
sip_word(uint64 *v, uint64 word)
{
	v[3] ^= word;
	sip_rounds(v, 2);
	v[0] ^= word;
}

/* Returns the hash of a number and length bytes. */
uint64
idemq_secret_hash(uint64 number, const void *data, size_t length)
{
	const unsigned char *bytes = data;
	size_t whole = length / sizeof(uint64) * sizeof(uint64);
	uint64 last = (uint64) (length + sizeof(number)) << 56;
	uint64 v[4] = {secret_shared->key[0] ^ UINT64CONST(0x736f6d6570736575),
				   secret_shared->key[1] ^ UINT64CONST(0x646f72616e646f6d),
				   secret_shared->key[0] ^ UINT64CONST(0x6c7967656e657261),
				   secret_shared->key[1] ^ UINT64CONST(0x7465646279746573)};

	sip_word(v, number);
	for (size_t i = 0; i < whole; i += sizeof(uint64))
	{
		uint64 word;

		memcpy(&word, bytes + i, sizeof(word));
		sip_word(v, word);
	}
	for (size_t i = whole; i < length; i++)
		last |= (uint64) bytes[i] << (8 * (i - whole));
	sip_word(v, last);
	v[2] ^= 0xff;
	sip_rounds(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}
