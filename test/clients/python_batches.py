"""python_batches.py: several jobs in one transaction.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio

import psycopg

import idemq
import idemq._run
import tap
from python_common import DSN, Client, QuickFirstUse


class Batches(Client):
    def test_why_a_batch_is_run_one_by_one(self):
        """The log says it, also where the error of the transaction has no text."""

        def why(drain, handler):
            with self.assertLogs("idemq", "INFO") as said:
                drain(handler, batch=3)
            return [line.partition("one at a time: ")[2] for line in said.output if "one at a time" in line]

        self.set_seconds("LISTEN_AFTER", 3600, idemq._run)  # otherwise the worker may be told of the loss before the transaction finds it
        (again,) = self.add(1)
        self.sql("SELECT idemq.fail(id, token, 'busy', retry_in => '0') FROM idemq.claim(%s)", self.queue)
        other, _ = self.add(2, 3)

        def gives_back(job, conn):
            conn.execute("SELECT 1")
            if job.id == again:
                self.sql("SELECT idemq.release(id, token) FROM idemq.jobs WHERE id = %s", other)

        (reason,) = why(self.drain, gives_back)
        self.assertRegex(reason, rf"^StaleToken: .*job {other}")

        first = self.add(4, 5)

        async def takes_long(job, conn):
            if job.id in first and first.pop(0):
                first.clear()
                self.end_time(job)
                await asyncio.sleep(3600)

        self.assertEqual(why(self.drain_async, takes_long), ["job_timeout has passed"])
        self.assertEqual(self.sql("SELECT count(*) FROM idemq.jobs WHERE status <> 'completed' AND queue_id = idemq.queue_id(%s)", self.queue)[0][0], 0)

    def test_a_batch_is_one_transaction(self):
        for drain, do in ((self.drain, self.do), (self.drain_async, self.do_async)):
            self.sql("TRUNCATE effects")
            self.add(*range(20))
            self.assertEqual(drain(do, batch=20), {"committed": 20})
            self.assertEqual(self.sql("SELECT count(*), count(DISTINCT xmin::text) FROM effects"), [(20, 1)])

    def test_a_batch_with_an_error_runs_one_by_one(self):
        def one_fails(job, conn):
            self.do(job, conn)
            if job.payload == 3:
                raise ValueError("three")

        jobs = self.add(*range(6), max_attempts=1)
        self.assertEqual(self.drain(one_fails, batch=10), {"committed": 5, "dead": 1})
        self.assertEqual(self.effects(), [0, 1, 2, 4, 5])
        self.assertEqual(self.sql("SELECT count(DISTINCT xmin::text) FROM effects WHERE queue = %s", self.queue), [(5,)])
        self.assertEqual(self.sql("SELECT DISTINCT attempt FROM idemq.jobs WHERE id = ANY (%s)", jobs), [(1,)])

    def test_what_has_ended_is_committed_before_the_next_job_of_its_batch(self):
        # Nothing but the worker commits what does not use its connection.  The last one fails alone, too; until
        # then the others may not be left, nor more be claimed, nor what they have made ready be overlooked after it.
        count = """SELECT count(*) FILTER (WHERE status = 'completed'), count(*) FILTER (WHERE status = 'running')
            FROM idemq.jobs WHERE id = ANY (%s)"""
        calls = []

        def fifth_fails(job):
            if job.payload != 4:
                return
            with psycopg.connect(DSN, autocommit=True) as conn:
                calls.append(conn.execute(count, [jobs]).fetchone())
            raise ValueError("four")

        async def fifth_fails_async(job, conn):
            await asyncio.to_thread(fifth_fails, job)

        for drain, handler in ((self.drain, lambda job, conn: fifth_fails(job)), (self.drain_async, fifth_fails_async)):
            calls.clear()
            jobs = self.add(0, group_key="g")
            self.until("SELECT status = 'pending' FROM idemq.jobs WHERE id = %s", jobs[0])  # else 6 may come before it
            jobs += self.add(1, 2, 3, 4, max_attempts=1)
            jobs += self.add(5, group_key="g") + self.add(6, 7, 8)
            self.assertEqual(drain(handler, batch=5), {"committed": 8, "dead": 1})
            self.assertEqual(calls, [(0, 5), (4, 1)])

    def test_a_second_attempt_runs_alone(self):
        def first_time(job, conn):
            if job.attempt == 1:
                raise idemq.RetryLater(0)
            self.do(job, conn)

        self.add(1)
        calls = []

        def alone(job, conn):
            calls.append((job.attempt, conn.execute("SELECT txid_current()").fetchone()[0]))
            first_time(job, conn)

        jobs = self.add(2, 3)
        self.drain(alone, batch=10)
        self.assertEqual(self.effects(), [1, 2, 3])
        seconds = [xid for attempt, xid in calls if attempt == 2]
        self.assertEqual((len(seconds), len(set(seconds))), (3, 3))


class UsedAndNot(QuickFirstUse):
    def test_used_and_not(self):
        for drain, do, name in ((self.drain, self.do, "used"), (self.drain_async, self.do_async, "used"),
                                (self.drain, lambda job, conn: {"n": job.payload}, "not"), (self.drain, self.some, "some")):
            with self.subTest(name):
                self.sql("TRUNCATE effects")
                jobs = self.add(*range(25))
                self.assertEqual(drain(do, batch=10), {"committed": 25})
                self.assertEqual([self.job(job)[:3] for job in jobs], [("completed", 1, {"n": n}) for n in range(25)])
                self.assertEqual(self.effects(), {"used": list(range(25)), "not": [], "some": list(range(0, 25, 3))}[name])

    def some(self, job, conn):
        if job.payload % 3 == 0:
            self.effect(conn, job.payload)
        return {"n": job.payload}

    def test_a_handler_ends_one_of_them_itself(self):
        """The message that would commit them raises: nothing of it stays, and each runs alone."""
        def ends(job, conn):
            self.effect(conn, job.payload)
            if job.payload == 2:
                conn.execute("SELECT idemq.fail(%s, %s, 'by hand', retry_in => '1 h')", (job.id, job.token))

        jobs = self.add(1, 2, 3)
        ended = self.drain(ends, batch=3)
        self.assertEqual((ended["committed"], self.effects()), (2, [1, 3]))
        self.assertEqual([self.job(job)[0] for job in jobs], ["completed", "retrying", "completed"])
        self.assertIn("the handler has ended its own job", self.job(jobs[1])[3])

    def test_a_result_that_the_server_refuses(self):
        """In run() it fails the attempt, used or not, alone or with others; the others are committed."""
        for use in (False, True):
            for options in ({}, {"batch": 3}, {"concurrency": 3}):
                self.sql("TRUNCATE effects")

                def handler(job, conn):
                    if use:
                        self.effect(conn, job.payload)
                    return "a\0b" if job.payload == 2 else "good"

                jobs = self.add(1, 2, 3, max_attempts=1)
                self.assertEqual(self.drain(handler, **options), {"committed": 2, "dead": 1})
                self.assertEqual(self.effects(), [1, 3] if use else [])
                self.assertEqual([self.job(job)[2] for job in jobs], ["good", None, "good"])


if __name__ == "__main__":
    tap.main()
