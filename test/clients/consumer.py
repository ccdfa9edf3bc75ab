#!/usr/bin/python3
"""consumer.py DSN NAME: a consumer of messages that come two or three times.

Reads messages from stdin, a line of JSON each: {"key": ..., "account": ..., "amount": ...};
a broker that delivers at least once.  A message that is not settled is delivered
again later, as by a visibility timeout.  Prints how often each outcome came.
"""

import collections
import json
import random
import sys
import time

import psycopg
from psycopg.types.json import Jsonb


def handle(conn, name, message, seen):
    """Returns whether the message is settled: only then is it acknowledged."""
    outcome, job_id, token = conn.execute(
        "SELECT outcome, id, token FROM idemq.acquire('inbox', %s, %s, lease => '10 s', worker => %s)",
        (message["key"], Jsonb(message), name),
    ).fetchone()
    seen[outcome] += 1
    if outcome in ("completed", "dead", "cancelled"):
        return True  # somebody has done it, or nobody ever will
    if outcome not in ("claimed", "claimed_again"):
        return False  # locked, not_due: somebody is on it
    time.sleep(random.uniform(0, 0.01))  # the work
    try:
        with conn.transaction():
            conn.execute("SELECT idemq.commit(%s, %s)", (job_id, token))
            conn.execute(
                "UPDATE accounts SET balance = balance + %s WHERE account = %s",
                (message["amount"], message["account"]),
            )
    except psycopg.DatabaseError as error:
        if error.sqlstate not in ("IQ001", "IQ006"):
            raise
        seen[error.sqlstate] += 1
        return False
    return True


def main(dsn, name):
    messages = collections.deque(json.loads(line) for line in sys.stdin)
    seen = collections.Counter()
    # A pooler in transaction mode may not keep prepared statements.
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
        while messages:
            message = messages.popleft()
            if not handle(conn, name, message, seen):
                messages.append(message)
                time.sleep(random.uniform(0, 0.005))
    print(json.dumps(seen))


main(*sys.argv[1:])
