"""python_messages.py: how many messages a job costs, and what stands in them.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import collections
import threading
import time
import unittest.mock

import psycopg

import idemq
import idemq._handler_connection
import idemq._links
import idemq._pipeline
import idemq._run
import tap
from python_common import DSN, Counting, QuickFirstUse


class Messages(QuickFirstUse):
    def setUp(self):
        super().setUp()
        # On a slow machine, a job may run long enough for the worker to begin to listen.
        self.set_seconds("LISTEN_AFTER", 3600, idemq._run)

    def counted(self, proxy, drain, do, jobs=12, **options):
        """How many messages there were from one handler's begin to the next one's, once all is known."""
        at = []

        def note():
            at.append(len(proxy.messages))

        if asyncio.iscoroutinefunction(do):
            async def handler(job, conn):
                note()
                return await do(job, conn)
        else:
            def handler(job, conn):
                note()
                return do(job, conn)

        self.sql("TRUNCATE effects")
        self.add(*range(jobs))
        self.assertEqual(drain(handler, dsn=proxy.dsn(), **options), {"committed": jobs})
        self.assertEqual(self.effects(), list(range(jobs)))
        # psycopg prepares a handler's statement when it comes for the sixth time.
        return collections.Counter(b - a for a, b in zip(at[7:], at[8:]))

    def test_one_message_a_job_and_the_handlers(self):
        for drain, do in self.both():
            proxy = Counting()
            self.assertEqual(self.counted(proxy, drain, do), {2: 4})
            chained = [names for names in proxy.messages if b"bind idemq_hold_claimed" in names]
            binds = [name[5:] for name in chained[-1] if name.startswith(b"bind ")]
            self.assertEqual(binds, [b"idemq_must_end_claim", b"idemq_commit", b"idemq_begin", b"idemq_hold_claimed"])
            self.assertFalse([name for name in chained[-1] if not name.startswith(b"bind ")], "nothing is parsed again")

    def test_behind_a_pooler(self):
        """Nothing comes after COMMIT, nothing has a name, and no setting stays."""
        for drain, do in self.both():
            proxy = Counting(pooler=True)
            self.assertEqual(self.counted(proxy, drain, do), {3: 4})
            for names in proxy.messages:
                self.assertFalse([name for name in names if name.startswith(b"name ") and name != b"name "], names)
                if b"COMMIT" in names:
                    self.assertEqual(names[-3], b"COMMIT", names)
                self.assertFalse([name for name in names if name.upper().startswith(b"SET ")], names)

    def test_an_older_server(self):
        """It has no hold_claimed: the next transaction begins when it is used."""
        settle = idemq._links._prepare_session
        for drain, do in self.both():
            proxy = Counting()
            with unittest.mock.patch.object(idemq._links, "_prepare_session", lambda conn, row, needs: settle(conn, (*row[:5], False, *row[6:]), needs)):
                self.assertEqual(self.counted(proxy, drain, do), {3: 4})

    def test_an_older_libpq(self):
        """It has no pipeline mode: each statement is a message."""
        with unittest.mock.patch.object(psycopg.Pipeline, "is_supported", classmethod(lambda cls: False)):
            for drain, do in self.both():
                self.assertEqual(self.counted(Counting(), drain, do), {5: 4})

    def test_a_handler_that_does_not_touch_its_connection(self):
        for drain, coroutine in ((self.drain, False), (self.drain_async, True)):
            seen = []

            def untouched(job, conn):
                seen.append(job.id)
                return {"n": job.payload}

            async def untouched_async(job, conn):
                return untouched(job, conn)

            jobs = self.add(*range(20))
            proxy = Counting()
            with unittest.mock.patch.object(idemq._handler_connection.HandlerTransaction, "begin", side_effect=AssertionError):
                self.assertEqual(drain(untouched_async if coroutine else untouched, dsn=proxy.dsn(), concurrency=4), {"committed": 20})
            self.assertEqual(sorted(seen), jobs)
            self.assertEqual([self.job(job) for job in jobs], [("completed", 1, {"n": n}, None) for n in range(20)])
            self.assertFalse([names for names in proxy.messages if b"BEGIN" in names or b"bind idemq_begin" in names])

    def test_a_slow_first_statement_chains_nothing(self):
        """Else a transaction would be open, and its xid be held, while a handler does something else."""
        with unittest.mock.patch.object(idemq._handler_connection, "QUICK_FIRST_USE", 0.0):
            self.assertEqual(self.counted(Counting(), self.drain, self.do), {3: 4})


class Held(QuickFirstUse):
    """What hold_claimed answers in the message whose commit has claimed the job."""

    def test_whatever_it_says_the_commit_stands_and_the_next_job_runs(self):
        said = {
            "busy": b"SELECT 'busy'::text", "gone": b"SELECT 'gone'::text", "an error": b"SELECT (1 / (random() * 0)::int)::text",
            "no such function": b"SELECT idemq.no_such_function()",
        }  # fmt: skip
        for drain, do in self.both():
            for what, statement in said.items():
                with self.subTest(what):
                    self.sql("TRUNCATE effects")
                    jobs = self.add(1, 2, 3, 4)
                    held = idemq._pipeline.Statement(b"idemq_hold_claimed", statement)
                    proxy = Counting()
                    with unittest.mock.patch.object(idemq._pipeline, "HOLD_CLAIMED", held):
                        self.assertEqual(drain(do, dsn=proxy.dsn()), {"committed": 4})
                    self.assertTrue([1 for names in proxy.messages if b"bind idemq_commit" in names and len(names) > 2])
                    self.assertEqual(self.effects(), [1, 2, 3, 4])
                    self.assertEqual([self.job(job)[1] for job in jobs], [1, 1, 1, 1])

    def test_a_job_that_is_held_keeps_its_lock(self):
        """Its transaction is begun before its handler is: until the handler has ended nobody takes the job."""
        seen = []

        def looks(job, conn):
            with psycopg.connect(DSN) as other:
                seen.append(other.execute("SELECT count(*) FROM idemq.jobs WHERE id = %s", (job.id,)).fetchone()[0]
                            - len(other.execute("SELECT 1 FROM idemq.jobs WHERE id = %s FOR UPDATE SKIP LOCKED", (job.id,)).fetchall()))
            self.effect(conn, job.payload)

        self.add(1, 2, 3)
        self.assertEqual(self.drain(looks), {"committed": 3})
        self.assertEqual((seen, self.effects()), ([0, 1, 1], [1, 2, 3]))

    def test_one_that_does_not_use_a_transaction_that_is_begun(self):
        def first_ones(job, conn):
            if job.payload < 3:
                self.effect(conn, job.payload)
            return job.payload

        jobs = self.add(1, 2, 3, 4, 5)
        self.assertEqual(self.drain(first_ones), {"committed": 5})
        self.assertEqual((self.effects(), [self.job(job)[2] for job in jobs]), ([1, 2], [1, 2, 3, 4, 5]))

    def test_a_held_job_is_given_back_by_a_drain(self):
        """Its lock is let go first."""
        def last(job, conn):
            self.effect(conn, job.payload)
            if job.payload == 2:
                stop(wait=False)
                time.sleep(0.3)

        jobs = self.add(1, 2, 3)
        ready = threading.Event()
        stop = None

        def begins(job, conn):
            ready.wait(60)
            last(job, conn)

        stop = self.start(begins, grace=3600)
        ready.set()
        stop_now = stop
        self.until("SELECT count(*) >= 2 FROM effects WHERE queue = %s", self.queue)
        stop_now()
        self.assertEqual(self.effects(), [1, 2])
        self.assertEqual(self.job(jobs[2])[:2], ("pending", 0))


if __name__ == "__main__":
    tap.main()
