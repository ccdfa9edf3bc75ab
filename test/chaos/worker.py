#!/usr/bin/python3
"""worker.py DSN NAME LOG: a worker that is stalled, killed and cut off; see test/t/chaos.pl.

Each effect, two increments, shares a transaction with the job's commit.  One answer to
COMMIT in a hundred is thrown away with its connection: the worker then runs the same
transaction again.  What it meets goes to LOG, a line at once, so that it survives the worker.
Exits when no job is left.
"""

import os
import random
import sys
import time

import psycopg

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "load"))
from client import Client  # pylint: disable=wrong-import-position

LOST_ANSWERS = 0.01


class Worker(Client):
    def commit(self):
        """Sends COMMIT; sometimes nobody waits for the answer."""
        if random.random() >= LOST_ANSWERS:
            self.execute("COMMIT")
            return
        self.conn.pgconn.send_query(b"COMMIT")
        self.conn.pgconn.flush()
        self.note("lost")
        self.conn.close()
        raise psycopg.OperationalError("the answer to COMMIT is lost")

    def attempt(self, job_id, token, amount):
        self.execute("BEGIN")
        self.execute("SELECT idemq.commit(%s, %s)", (job_id, token))
        time.sleep(random.uniform(0, 0.004))  # so that trouble comes in the middle, too
        self.execute(
            "UPDATE sums SET n = n + 1, total = total + %s, squares = squares + %s WHERE part = %s",
            (amount, amount * amount, amount % 64),
        )
        self.commit()

    def claim(self):
        """Returns some jobs; None when there is none left."""
        while True:
            jobs = self.ask(
                "SELECT id, token, payload::int FROM idemq.claim('chaos', 20, worker => %s, attach => %s)",
                (self.name, random.random() < 0.5),
            )
            if jobs:
                return jobs
            if self.ask("SELECT count(*) FROM idemq.jobs WHERE finished_at IS NULL")[0][0] == 0:
                return None
            time.sleep(0.05)

    def run(self):
        self.connect()
        while (jobs := self.claim()) is not None:
            for job in jobs:
                refused = self.settle(lambda job=job: self.attempt(*job), ("IQ001", "IQ006"))
                if refused:
                    self.note(refused)


Worker(*sys.argv[1:]).run()
