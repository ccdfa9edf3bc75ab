"""Enqueues the jobs 1 to N through the router, in a random order: producer.py N.

What is not answered, or refused since a shard is down, is enqueued again: the key makes that safe.
Prints how often there was which outcome.
"""
import collections
import json
import os
import random
import sys
import time

import psycopg
from psycopg.types.json import Jsonb

BATCH = 50
MANY = "SELECT ord, outcome, error FROM cluster.enqueue_many('orders', %s, keys => %s)"

left = [f"order-{n}" for n in range(1, int(sys.argv[1]) + 1)]
random.shuffle(left)
counts = collections.Counter()
conn = None
while left:
    keys, left = left[:BATCH], left[BATCH:]
    try:
        conn = conn or psycopg.connect(os.environ["ROUTER"], autocommit=True)
        rows = conn.execute(MANY, [[Jsonb({"order": key}) for key in keys], keys]).fetchall()
    except psycopg.Error as error:
        counts["calls that failed"] += 1
        print(f"producer: {str(error).splitlines()[0]}", file=sys.stderr)
        conn = conn.close() if conn else None
        left += keys
        time.sleep(0.1)
        continue
    for number, outcome, error in rows:
        counts[outcome or "refused, and enqueued again"] += 1
        if error:
            left.append(keys[number - 1])
    if any(error for _, _, error in rows) and len(left) <= BATCH:
        time.sleep(0.2)
print(json.dumps(counts))
