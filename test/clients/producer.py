"""producer.py JSON: an application for upgrade.pl, until SIGTERM.

JSON has connection; queues; prepare, whether its statements are prepared; and half, 0 or 1: of the numbers those are its own whose
half is even or odd.  Each transaction is an order and its job, and is repeated when the connection was lost.  Any other
error ends it.
"""

import json
import signal
import sys
import time

import psycopg

SETTINGS = json.loads(sys.argv[1])
ending = []
signal.signal(signal.SIGTERM, lambda *_: ending.append(True))

READS = (
    "SELECT * FROM idemq.job_list WHERE id = %s",
    "SELECT id, status, attempt FROM idemq.job(%s)",
    "SELECT * FROM idemq.metrics WHERE queue_id = (SELECT queue_id FROM idemq.jobs WHERE id = %s)",
    "SELECT idemq.why(%s)",
)


def order(conn, n):
    for queue in SETTINGS["queues"]:
        with conn.transaction():
            conn.execute("INSERT INTO orders VALUES (%s, %s) ON CONFLICT DO NOTHING", (queue, n))
            job = conn.execute(
                "SELECT * FROM idemq.enqueue(%s, %s::jsonb, key => %s)", (queue, json.dumps({"n": n}), str(n))
            ).fetchone()
    conn.execute(READS[n % len(READS)], job[:1]).fetchall()


n = 2 * SETTINGS["half"]
while not ending:
    try:
        with psycopg.connect(
            SETTINGS["connection"], autocommit=True, prepare_threshold=1 if SETTINGS["prepare"] else None
        ) as conn:
            while not ending:
                order(conn, n)
                n += 1 if n % 2 == 0 else 3
                time.sleep(0.01)
    except (psycopg.OperationalError, psycopg.InternalError) as error:
        # Of a server that ends while it answers BEGIN psycopg 3.3 makes an InternalError of its own, without a SQLSTATE.
        if isinstance(error, psycopg.InternalError) and error.sqlstate:
            raise
        print(type(error).__name__, error.sqlstate, error, file=sys.stderr)
        time.sleep(0.1)
