"""python_transactions.py: run(): the effect of a handler and the commit of its job are one transaction.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import threading

import psycopg

import idemq
import tap
from python_common import DSN, Client


class Transactions(Client):
    def test_effect_and_result(self):
        jobs = self.add(1, 2, 3)
        self.assertEqual(self.drain(self.do), {"committed": 3})
        self.assertEqual(self.effects(), [1, 2, 3])
        self.assertEqual(self.job(jobs[0]), ("completed", 1, {"n": 1}, None))

    def test_the_same_with_asyncio(self):
        jobs = self.add(1, 2, 3)
        self.assertEqual(self.drain_async(self.do_async), {"committed": 3})
        self.assertEqual(self.effects(), [1, 2, 3])
        self.assertEqual(self.job(jobs[2]), ("completed", 1, {"n": 3}, None))

    def test_an_error_undoes_the_effect(self):
        for drain, fails in ((self.drain, self.fails), (self.drain_async, self.fails_async)):
            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(drain(fails), {"dead": 1})
            self.assertEqual(self.effects(), [])
            self.assertEqual(self.job(job), ("dead", 1, None, "ValueError: no way"))
            details = self.sql("SELECT details FROM idemq.attempts WHERE job_id = %s", job)[0][0]
            self.assertEqual(details["type"], "ValueError")
            self.assertIn("raise ValueError", details["trace"])

    def fails(self, job, conn):
        self.do(job, conn)
        raise ValueError("no\0 way")

    async def fails_async(self, job, conn):
        await self.do_async(job, conn)
        raise ValueError("no\0 way")

    def test_a_swallowed_error_commits_nothing(self):
        def swallows(job, conn):
            self.do(job, conn)
            try:
                conn.execute("SELECT 1 / 0")
            except psycopg.Error:
                pass

        (job,) = self.add(1, max_attempts=1)
        self.assertEqual(self.drain(swallows), {"dead": 1})
        self.assertEqual(self.effects(), [])

    def test_a_handler_cannot_end_the_transaction(self):
        for how in (lambda conn: conn.commit(), lambda conn: conn.execute("ROLLBACK")):
            def ends(job, conn, how=how):
                self.do(job, conn)
                how(conn)

            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(self.drain(ends), {"dead": 1})
            self.assertEqual(self.effects(), [])

    def test_a_handler_that_commits_the_job_itself(self):
        def commits(job, conn):
            conn.execute("SELECT idemq.commit(%s, %s, '\"mine\"')", (job.id, job.token))
            self.do(job, conn)

        (job,) = self.add(1)
        self.assertEqual(self.drain(commits), {"committed": 1})
        self.assertEqual((self.job(job)[2], self.effects()), ("mine", [1]))

    def test_a_result_that_is_no_json_undoes_the_effect(self):
        def odd(job, conn):
            self.do(job, conn)
            return object()

        (job,) = self.add(1, max_attempts=1)
        self.assertEqual(self.drain(odd), {"dead": 1})
        self.assertEqual(self.effects(), [])

    def test_a_serialization_failure_is_tried_again_at_once(self):
        calls = []

        def conflicts(job, conn):
            calls.append(1)
            self.do(job, conn)
            if len(calls) < 3:
                conn.execute("DO $$BEGIN RAISE SQLSTATE '40001'; END$$")

        (job,) = self.add(1)
        self.assertEqual(self.drain(conflicts), {"committed": 1})
        self.assertEqual((self.job(job)[:2], len(calls), self.effects()), (("completed", 1), 3, [1]))
        calls.clear()
        self.add(2, max_attempts=1)

        def always(job, conn):
            calls.append(1)
            conn.execute("DO $$BEGIN RAISE SQLSTATE '40P01'; END$$")

        self.assertEqual(self.drain(always), {"dead": 1})
        self.assertEqual(len(calls), 4)

    def test_a_repeated_handler_gets_what_is_stored(self):
        """Even if the first call has changed the payload, the headers and the checkpoint: after 40001, and alone after a batch."""
        seen = []

        def sees(job):
            seen.append((job.payload["items"][:], dict(job.headers), job.checkpoint and job.checkpoint["pages"][:]))
            job.payload["items"].append("changed")
            job.headers.clear()

        def repeated(job, conn):
            sees(job)
            if len(seen) == 1:
                job.save_checkpoint({"pages": [1]})
            job.checkpoint["pages"].append(2)
            if len(seen) < 3:
                conn.execute("DO $$BEGIN RAISE SQLSTATE '40001'; END$$")

        async def repeated_async(job, conn):
            sees(job)
            if len(seen) == 1:
                await job.save_checkpoint({"pages": [1]})
            job.checkpoint["pages"].append(2)
            if len(seen) < 3:
                await conn.execute("DO $$BEGIN RAISE SQLSTATE '40001'; END$$")

        def in_a_batch(job, conn):
            sees(job)
            if len(seen) == 2:
                raise ValueError

        stored = ["x"], {"h": 1}
        for drain, handler, batch, pages in (
            (self.drain, repeated, 1, [None, [1], [1]]), (self.drain_async, repeated_async, 1, [None, [1], [1]]), (self.drain, in_a_batch, 2, [None] * 4),
        ):  # fmt: skip
            seen.clear()
            self.add(*[{"items": ["x"]}] * batch, headers={"h": 1})
            drain(handler, batch=batch)
            self.assertEqual(seen, [(*stored, each) for each in pages])

    def test_a_deferred_constraint_fails_the_attempt(self):
        self.sql("DROP TABLE IF EXISTS deferred; CREATE TABLE deferred (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")

        def twice(job, conn):
            self.do(job, conn)
            conn.execute("INSERT INTO deferred VALUES (1), (1)")

        first, second = self.add(1, 2, max_attempts=1)
        self.assertEqual(self.drain(twice), {"dead": 2})
        self.assertIn("UniqueViolation", self.job(second)[3])
        self.assertEqual(self.effects(), [])

    def test_many_at_a_time(self):
        together = threading.Barrier(5)

        def meets(job, conn):
            together.wait(60)
            self.do(job, conn)

        self.add(*range(5))
        self.assertEqual(self.drain(meets, concurrency=5), {"committed": 5})
        self.assertEqual(self.effects(), [0, 1, 2, 3, 4])

    def test_leases_are_attached(self):
        seen = []

        def look(job, conn):
            seen.extend(self.sql("SELECT attached FROM idemq.running_jobs WHERE job_id = %s", job.id))

        for options, attached in (({}, True), ({"attach": False}, False), ({"wait_dsn": DSN}, False)):
            self.add(1)
            self.drain(look, **options)
            self.assertEqual(seen.pop(), (attached,), options)

    def test_no_such_queue(self):
        with self.assertRaises(idemq.NoSuchQueue):
            idemq.Worker(DSN, "none").run(self.do)
        with self.assertRaises(psycopg.OperationalError):
            idemq.drain("host=/nonexistent", self.queue, self.do)

    def test_jobs_that_jobs_add(self):
        def adds(job, conn):
            self.do(job, conn)
            if job.payload < 5:
                idemq.enqueue(conn, self.queue, job.payload + 1)

        self.add(1)
        self.assertEqual(self.drain(adds, concurrency=2), {"committed": 5})


if __name__ == "__main__":
    tap.main()
