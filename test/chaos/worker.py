#!/usr/bin/python3
"""worker.py sql|client|work DSN NAME LOG: a worker that is stalled, killed and cut off; see test/t/chaos.pl.

sql: by SQL functions; client: the client for Python; work: a program that stays, of idemq-work, which
commits by itself.

Each effect, two increments, shares a transaction with the job's commit.  Of a hundred
answers to COMMIT three are thrown away with their connections: the worker then runs the same
transaction again.  What it meets goes to LOG, a line at once, so that it survives the worker.
The first exits when there is a row in table over.
"""

import json
import os
import random
import sys
import time

import idemq
import psycopg

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "load"))
from client import Client  # pylint: disable=wrong-import-position

LOST_ANSWERS = 0.03
UPDATE = "UPDATE sums SET n = n + 1, total = total + %s, squares = squares + %s WHERE part = %s"


def moment():
    """So that trouble comes in the middle, too."""
    time.sleep(random.uniform(0, 0.004))


def effect(conn, amount):
    conn.execute(UPDATE, (amount, amount * amount, amount % 64))


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
        moment()
        effect(self, amount)
        self.commit()

    def claim(self):
        """Returns some jobs; None when there is none left."""
        while True:
            jobs = self.ask(
                "SELECT id, token, payload::int FROM idemq.claim('sql', 20, worker => %s, attach => %s)",
                (self.name, random.random() < 0.5),
            )
            if jobs:
                return jobs
            if self.ask("SELECT EXISTS (SELECT FROM over)")[0][0]:
                return None
            time.sleep(0.05)

    def end(self, *job):
        """Ends an attempt, or is refused."""
        if refused := self.settle(lambda: self.attempt(*job), ("IQ001", "IQ006")):
            self.note(refused)

    def run(self):
        self.connect()
        while (jobs := self.claim()) is not None:
            for job in jobs:
                self.end(*job)

    def answer(self):
        """Takes a job from each line, and answers with another."""
        self.connect()
        for line in sys.stdin:
            job = json.loads(line)
            self.end(int(job["id"]), int(job["token"]), job["payload"])
            print(json.dumps({"id": job["id"]}), flush=True)


def handle(job, conn):
    moment()
    effect(conn, job.payload)


if sys.argv[1] == "client":
    idemq.Worker(sys.argv[2], "client", concurrency=2, batch=1, name=sys.argv[3]).run(handle)
elif sys.argv[1] == "work":
    Worker(*sys.argv[2:]).answer()
else:
    Worker(*sys.argv[2:]).run()
