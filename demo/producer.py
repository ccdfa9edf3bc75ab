"""Enqueues one job for every path on standard input, the path being its key.

Another producer sends the same paths: idemq answers `duplicate` to the second
of the two, whoever that is.  Prints how many calls had which outcome.
"""

import json
import sys
from collections import Counter

import psycopg
from psycopg.types.json import Jsonb

outcomes = Counter()
with psycopg.connect("dbname=postgres user=app", autocommit=True) as connection:
    for path in sys.stdin.read().splitlines():
        outcome = connection.execute(
            "SELECT outcome FROM idemq.enqueue('hash', %s, key => %s)",
            (Jsonb({"path": path}), path),
        ).fetchone()[0]
        outcomes[outcome] += 1
print(json.dumps(outcomes))
