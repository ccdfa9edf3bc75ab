"""turner.py: works a queue whose turns are judged, as one of so many sessions; README.md here, arguments in common.py.

In place of the tenant is the slot: turns.single has one, turns.pair has two.  Who has a slot holds its advisory lock: a client
that comes back, or takes the place of one that was killed, claims when the session before it is gone.
"""

import time

import psycopg
from psycopg.types.json import Jsonb

from worker import Worker

SLOTS = {"single.1": 1, "pair.1": 2, "pair.2": 3}


class Turner(Worker):
    def __init__(self, dsn, name, log, seed, slot, calm=""):
        super().__init__(dsn, name, log, seed, "turns", calm)
        self.slot = SLOTS[slot]
        self.line = "turns." + slot.split(".")[0]

    def connect(self):
        while True:
            super().connect()
            try:
                self.conn.execute("SELECT pg_advisory_lock(43, %s)", (self.slot,))
                return
            except psycopg.DatabaseError:
                self.conn.close()  # ended or cancelled while it waited

    def work(self):
        jobs = []
        self.do(lambda: self.take_turn(jobs))
        for self.job, self.token, self.payload, name in jobs:
            if self.chance(0.02):
                continue  # forgotten: its lease ends
            if self.chance(0.04):
                self.do(self.give_up)
            else:
                self.do(lambda name=name: self.end_turn(name))
        return bool(jobs)

    def take_turn(self, jobs):
        """One claim; jobs: what is left to do."""
        jobs.clear()
        this = self.one("INSERT INTO tries (queue, slot) VALUES (%s, %s) RETURNING try", (self.line, self.slot))[0]
        self.execute("BEGIN")
        got = self.rows("SELECT id, token, payload, coalesce(group_key, '') FROM take_turn(%s, %s, %s, %s)", (self.line, this, self.name, self.chance(0.3)))
        if self.chance(0.05):
            time.sleep(self.dice.uniform(0, 0.02))  # others go on meanwhile
        if self.chance(0.015):
            self.execute("ROLLBACK")
            return
        if got and self.dice.random() < 0.2:
            self.job, self.token, self.payload, name = got.pop()
            self.note_end(name)  # claimed, worked and committed in one transaction
        self.commit()
        jobs[:] = got

    def note_end(self, name):
        self.effect("turns", self.payload["part"], name or "alone")
        if not self.calm:
            self.execute("SELECT add_turn(%s, %s)", (self.line, name))

    def end_turn(self, name):
        self.execute("BEGIN")
        self.note_end(name)
        self.commit()
