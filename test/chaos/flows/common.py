"""common.py: what the clients of the chaos test of flows share; README.md here."""

import os
import random
import signal
import sys
import time

import psycopg

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "load"))
from client import Client  # pylint: disable=wrong-import-position

LOST_ANSWERS = 0.02


class FlowClient(Client):
    """Choices follow the seed and the name.

    calm: nothing is thrown away or given up by its own choice.  SIGTERM ends it between two
    pieces of work.
    """

    def __init__(self, dsn, name, log, seed, tenant, calm=""):
        super().__init__(dsn, name, log)
        self.dice = random.Random(f"{seed} {name}")
        self.tenant = tenant
        self.calm = calm == "calm"
        self.ended = False
        signal.signal(signal.SIGTERM, self.end)

    def end(self, *_):
        self.ended = True

    def chance(self, share):
        """Whether something that makes trouble is to be done."""
        return not self.calm and self.dice.random() < share

    def commit(self):
        """Sends COMMIT; sometimes nobody waits for the answer."""
        if not self.chance(LOST_ANSWERS):
            self.execute("COMMIT")
            return
        self.conn.pgconn.send_query(b"COMMIT")
        self.conn.pgconn.flush()
        self.note("lost")
        self.conn.close()
        raise psycopg.OperationalError("the answer to COMMIT is lost")

    def one(self, sql, args=None):
        """The only row of a statement, or None."""
        rows = self.rows(sql, args)
        assert len(rows) <= 1, rows
        return rows[0] if rows else None

    def ask(self, sql, args=None):
        while True:
            try:
                return super().ask(sql, args)
            except psycopg.errors.QueryCanceled:
                self.note("57014")

    def do(self, work, refusals=()):
        """Runs work until its fate is known; a refusal is noted, and no error."""
        refused = self.settle(work, ("IQ001", "IQ006", "57014", *refusals))
        if refused:
            self.note(refused)
        return refused

    def forever(self, work):
        self.connect()
        while not self.ended:
            if not work():
                time.sleep(0.02)
