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

LOST_ANSWERS = 0.01


class Worker:
    def __init__(self, dsn, name, log):
        self.dsn = dsn
        self.name = name
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.conn = None

    def note(self, what):
        os.write(self.log, f"{what}\n".encode())

    def connect(self):
        """Comes back as often as it takes."""
        while True:
            try:
                self.conn = psycopg.connect(self.dsn, autocommit=True, application_name=self.name)
                return
            except psycopg.OperationalError:
                time.sleep(0.1)

    def commit(self):
        """Sends COMMIT; sometimes nobody waits for the answer."""
        if random.random() >= LOST_ANSWERS:
            self.conn.execute("COMMIT")
            return
        self.conn.pgconn.send_query(b"COMMIT")
        self.conn.pgconn.flush()
        self.note("lost")
        self.conn.close()
        raise psycopg.OperationalError("the answer to COMMIT is lost")

    def attempt(self, job_id, token, amount):
        self.conn.execute("BEGIN")
        self.conn.execute("SELECT idemq.commit(%s, %s)", (job_id, token))
        time.sleep(random.uniform(0, 0.004))  # so that trouble comes in the middle, too
        self.conn.execute(
            "UPDATE sums SET n = n + 1, total = total + %s, squares = squares + %s WHERE part = %s",
            (amount, amount * amount, amount % 64),
        )
        self.commit()

    def rollback(self):
        """Ends the transaction; who has lost the connection has done so."""
        try:
            self.conn.execute("ROLLBACK")
        except psycopg.OperationalError:
            self.connect()

    def settle(self, job_id, token, amount):
        """Runs the transaction until its fate is known."""
        while True:
            try:
                self.attempt(job_id, token, amount)
                return
            except psycopg.DatabaseError as error:
                if self.conn.closed:
                    # The connection is gone, and perhaps only the answer with it.
                    self.note("again")
                    self.connect()
                    continue
                if error.sqlstate not in ("IQ001", "IQ006"):
                    raise
                self.note(error.sqlstate)
                self.rollback()
                return

    def claim(self):
        """Returns some jobs; None when there is none left."""
        while True:
            try:
                jobs = self.conn.execute(
                    "SELECT id, token, payload::int FROM idemq.claim('chaos', 20, worker => %s, attach => %s)",
                    (self.name, random.random() < 0.5),
                ).fetchall()
                if jobs:
                    return jobs
                left = self.conn.execute("SELECT count(*) FROM idemq.jobs WHERE finished_at IS NULL")
                if left.fetchone()[0] == 0:
                    return None
                time.sleep(0.05)
            except psycopg.OperationalError:
                if not self.conn.closed:
                    raise
                self.connect()

    def run(self):
        self.connect()
        while (jobs := self.claim()) is not None:
            for job in jobs:
                self.settle(*job)


Worker(*sys.argv[1:]).run()
