"""python_lost_answers.py: a connection that breaks between COMMIT and its answer, or just before.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import functools
import unittest.mock

import idemq
import tap
from python_common import Client, Proxy


class LostAnswers(Client):
    """The connection breaks between COMMIT and its answer, or just before."""

    def lost(self, after, drain, do, **options):
        proxy = Proxy(1)
        proxy.after = after
        calls = []

        @functools.wraps(do)  # a coroutine function, if that is one
        def counts(job, conn):
            calls.append(job.token)
            return do(job, conn)

        outcomes = drain(counts, dsn=proxy.dsn(), **options)
        self.assertEqual(proxy.cuts, 1)
        return outcomes, calls

    def test_committed(self):
        for drain, do in ((self.drain, self.do), (self.drain_async, self.do_async)):
            for options in ({}, {"attach": False}):
                self.sql("TRUNCATE effects")
                (job,) = self.add(1)
                outcomes, calls = self.lost(True, drain, do, **options)
                self.assertEqual((outcomes, len(calls)), ({"committed": 1}, 1))
                self.assertEqual((self.effects(), self.job(job)[:3]), ([1], ("completed", 1, {"n": 1})))

    def test_what_it_has_claimed_ends_with_the_session(self):
        jobs = self.add(1, 2)
        self.lost(True, self.drain, self.do)
        self.until("SELECT status IN ('pending', 'completed') FROM idemq.jobs WHERE id = %s", jobs[1])
        self.drain(self.do)
        self.assertEqual(self.effects(), [1, 2])

    def test_not_committed(self):
        for drain, do in ((self.drain, self.do), (self.drain_async, self.do_async)):
            self.sql("TRUNCATE effects")
            jobs = self.add(1, 2)
            outcomes, calls = self.lost(False, drain, do, attach=False)
            self.assertEqual((outcomes, len(calls)), ({"committed": 2}, 3))
            self.assertEqual(calls[0], calls[1], "the same attempt again")
            self.assertEqual((self.effects(), self.job(jobs[0])[:2]), ([1, 2], ("completed", 1)))

    def test_not_committed_and_the_lease_gone_with_the_session(self):
        (job,) = self.add(1)
        outcomes, calls = self.lost(False, self.drain, self.do)
        self.until("SELECT status IN ('pending', 'completed') FROM idemq.jobs WHERE id = %s", job)
        self.drain(self.do)
        self.assertEqual((self.effects(), self.job(job)[0]), ([1], "completed"))

    def test_an_attempt_that_was_told_to_end(self):
        """By a drain, or because its time is over: what has happened counts, and is told to the hook."""
        async def no_cancel(conn):
            pass

        def told(job):
            job.cancelled  # makes the event
            execution = job._execution
            execution._run.call_loop(execution.request_end, why)

        def do(job, conn):
            self.effect(conn, job.payload)
            told(job)
            self.until_set(job.cancelled)

        async def do_async(job, conn):
            await self.do_async(job, conn)
            job._execution.handled = True  # its task is not cancelled
            told(job)
            await job.cancelled.wait()

        failures = []

        async def failed_async(job, failure):
            failures.append(failure.outcome)

        for why, ended in (("drain", "released"), ("time", "dead")):
            for drain, handler, failed in (
                (self.drain, do, lambda job, failure: failures.append(failure.outcome)),
                (self.drain_async, do_async, failed_async),
            ):
                for after in (True, False):
                    failures.clear()
                    self.sql("TRUNCATE effects")
                    (job,) = self.add(1, max_attempts=1)
                    with unittest.mock.patch.object(idemq._links, "interrupt", no_cancel):
                        outcomes, calls = self.lost(after, drain, handler, attach=False, hooks={"failed": failed})
                    if after:
                        self.assertEqual((outcomes, failures), ({"committed": 1}, []))
                        self.assertEqual((self.effects(), self.job(job)[:2]), ([1], ("completed", 1)))
                    else:
                        self.assertEqual(outcomes.get(ended), 1, outcomes)
                        self.assertEqual(failures[:1], ["dead"] if why == "time" else [])
                        self.sql("SELECT idemq.cancel(%s)", job)

    def test_a_batch(self):
        self.add(1, 2, 3)
        outcomes, calls = self.lost(True, self.drain, self.do, batch=3)
        self.assertEqual((outcomes, len(calls), self.effects()), ({"committed": 3}, 3, [1, 2, 3]))

    def test_a_queue_that_keeps_no_jobs(self):
        self.alter("retention => '0'")
        for jobs in ((1,), (1, 2)):
            self.sql("TRUNCATE effects")
            self.add(*jobs)
            outcomes, calls = self.lost(True, self.drain, self.do, batch=2)
            self.assertEqual((outcomes, len(calls), self.effects()), ({"committed": len(jobs)}, len(jobs), list(jobs)))

    def test_a_session_that_is_ended(self):
        def ends(job, conn):
            self.do(job, conn)
            if len(calls) < 2:
                calls.append(job.token)
                self.sql("SELECT pg_terminate_backend(%s)", conn.info.backend_pid)

        calls = []
        self.add(1)
        self.assertEqual(self.drain(ends, attach=False), {"committed": 1})
        self.assertEqual((self.effects(), len(calls), len(set(calls))), ([1], 2, 1))

    def test_one_that_always_ends_its_session_fails(self):
        (job,) = self.add(1, max_attempts=1)
        self.drain(lambda job, conn: conn.execute("SELECT pg_terminate_backend(pg_backend_pid())"), attach=False)
        self.assertEqual(self.job(job)[0], "dead")


if __name__ == "__main__":
    tap.main()
