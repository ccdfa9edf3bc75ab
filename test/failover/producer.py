#!/usr/bin/python3
"""producer.py DSN NAME LOG PATIENCE: enqueues jobs into queue work, one by one, each with a row of its own.

The row, of orders (key), shares a transaction with the enqueue.  A transaction whose answer is
lost is run again with the same key, until it is acknowledged: a duplicate writes no row.
Lines of LOG; TIME is the monotonic clock:
    ack TIME ID OUTCOME KEY           its COMMIT was acknowledged
    gave-up                           a statement was not answered within PATIENCE seconds
Ends at SIGTERM, with each key acknowledged.
"""

import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "load"))
from client import Client  # pylint: disable=wrong-import-position

PAUSE = 0.01
ENQUEUE = """WITH e AS (SELECT id, outcome FROM idemq.enqueue('work', jsonb_build_object('key', %(key)s::text), key => %(key)s)),
    o AS (INSERT INTO orders (key) SELECT %(key)s FROM e WHERE outcome = 'accepted')
SELECT id, outcome FROM e"""


class Producer(Client):
    stopping = False
    prepare_threshold = None  # a pooler may stand between
    answer = None

    def stop(self, *_):
        self.stopping = True

    def attempt(self, key):
        self.execute("BEGIN")
        self.answer = self.rows(ENQUEUE, {"key": key})[0]
        self.execute("COMMIT")

    def run(self):
        self.connect()
        n = 0
        while not self.stopping:
            n += 1
            key = f"{self.name}-{n}"
            self.settle(lambda key=key: self.attempt(key), ())
            self.note("ack", time.monotonic(), *self.answer, key)
            time.sleep(PAUSE)


if __name__ == "__main__":
    producer = Producer(*sys.argv[1:4], patience=float(sys.argv[4]))
    signal.signal(signal.SIGTERM, producer.stop)
    producer.run()
