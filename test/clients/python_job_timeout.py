"""python_job_timeout.py: a handler whose time is over, or that is cancelled.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import contextlib
import threading
import time
import unittest.mock

import psycopg

import idemq
import idemq._handler_connection
import idemq._links
import tap
from python_common import PatientClient


class JobTimeout(PatientClient):
    def test_a_statement_is_cancelled(self):
        async def sleeps_async(job, conn):
            await self.do_async(job, conn)
            self.end_time_in_statement(job, conn)
            await conn.execute("SELECT pg_sleep(3600)")

        def sleeps(job, conn):
            self.do(job, conn)
            self.end_time_in_statement(job, conn)
            conn.execute("SELECT pg_sleep(3600)")

        for interrupt in (idemq._links.interrupt, self.cancel_late):
            for drain, handler in ((self.drain, sleeps), (self.drain_async, sleeps_async)):
                (job,) = self.add(1, max_attempts=1)
                with unittest.mock.patch.object(idemq._links, "interrupt", interrupt):
                    self.assertEqual(drain(handler, timeout=3600), {"dead": 1})
                self.assertEqual(self.job(job), ("dead", 1, None, "stopped after 3600 s (job_timeout)"))
                self.assertEqual(self.effects(), [])

    def test_a_cancel_between_two_statements_is_not_the_last(self):
        sent, cancelled = threading.Event(), []

        async def interrupt(conn, cancel=idemq._links.interrupt):
            await cancel(conn)
            sent.set()

        def handler(job, conn):
            conn.execute("SELECT 1")
            self.end_time(job)
            self.until_set(sent)  # where there is no statement to cancel
            try:
                conn.execute("SELECT pg_sleep(3600)")
            except psycopg.errors.QueryCanceled:  # one that is left behind loses its connection
                cancelled.append(job.id)
                raise

        (job,) = self.add(1, max_attempts=1)
        with unittest.mock.patch.object(idemq._links, "interrupt", interrupt):
            self.assertEqual(self.drain(handler, timeout=3600), {"dead": 1})
        self.assertEqual((cancelled, self.job(job)[:2]), ([job], ("dead", 1)))

    def test_a_handler_that_hangs_is_left_behind(self):
        self.set_seconds("ABANDON_AFTER", 0.3)  # meant to expire
        never = threading.Event()
        self.addCleanup(never.set)

        def hangs(job):
            if job.payload == 1 and job.attempt == 1:
                self.end_time(job)
                never.wait()

        def inside(job, conn):
            self.do(job, conn)
            hangs(job)

        def outside(job):
            hangs(job)
            self.effect(self.conn, job.payload)

        for is_outside, handler in ((False, inside), (True, outside)):
            self.sql("TRUNCATE effects")
            jobs = self.add(1, 2)
            ended = self.until_completed(lambda: self.drain(handler, is_outside), jobs)
            self.assertEqual(ended["committed"], 2)
            self.assertEqual(self.effects(), [1, 2])
            self.assertEqual([self.job(job)[1] for job in jobs], [2, 1])

    def test_a_coroutine_that_does_not_end(self):
        self.set_seconds("ABANDON_AFTER", 0.3)  # meant to expire
        stop = threading.Event()
        self.addCleanup(stop.set)

        async def stubborn(job, conn):
            await self.do_async(job, conn)
            if job.attempt > 1:
                return stop.set()
            self.end_time(job)
            while not stop.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.1)

        (job,) = self.add(1)
        ended = self.until_completed(lambda: self.drain_async(stubborn), [job])
        self.assertEqual((ended, self.effects()), ({"retrying": 1, "committed": 1}, [1]))

    def test_the_first_statement_when_the_time_is_over(self):
        """It is refused, and the attempt has failed for its time: the lease is not lost."""
        def late(job, conn):
            self.until_set(job.cancelled)
            self.do(job, conn)

        async def late_async(job, conn):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
            await self.do_async(job, conn)

        for drain, handler in ((self.drain, late), (self.drain_async, late_async)):
            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(drain(handler, timeout=0.2), {"dead": 1})  # meant to expire
            self.assertEqual(self.job(job), ("dead", 1, None, "stopped after 0.2 s (job_timeout)"))
        self.assertEqual(self.effects(), [])

    def test_the_first_statement_before_the_loop_has_looked(self):
        """The queue's job_timeout is the end of the lease as well: it is the time that is over."""
        async def blocks(job, conn):
            time.sleep(0.5)
            await self.do_async(job, conn)

        async def failed(job, failure):
            failures.append((type(failure.error), failure.outcome))

        failures = []
        self.alter("job_timeout => '200 ms'")  # meant to expire
        (job,) = self.add(1, max_attempts=1)
        self.drain_async(blocks, hooks={"failed": failed})
        self.assertIn(failures, ([(TimeoutError, "dead")], [(TimeoutError, "stale")]))  # worker or server has ended it
        self.is_over(job, 0.2)
        self.assertEqual(self.effects(), [])

    def test_jobs_of_a_batch_whose_time_is_over(self):
        """They run again one by one, and nobody tells them that they are cancelled."""
        def handler(job, conn):
            seen.append((job.payload, job.cancelled.is_set()))
            if len(seen) == 2:
                self.end_time(job)
                self.until_set(job.cancelled)
            if job.cancelled.is_set():
                raise ValueError("no time left")
            self.do(job, conn)

        async def handler_async(job, conn):
            seen.append((job.payload, job.cancelled.is_set()))
            if len(seen) == 2:
                self.end_time(job)
                await asyncio.sleep(3600)
            if job.cancelled.is_set():
                raise ValueError("no time left")
            await self.do_async(job, conn)

        for drain, handler in ((self.drain, handler), (self.drain_async, handler_async)):
            seen = []
            self.sql("TRUNCATE effects")
            self.add(1, 2)
            self.assertEqual(drain(handler, batch=2), {"committed": 2})
            self.assertEqual(seen, [(1, False), (2, False)] * 2)
            self.assertEqual(self.effects(), [1, 2])

    def test_a_handler_of_a_batch_that_is_left_behind_stays_cancelled(self):
        """Also when its job runs again."""
        self.set_seconds("ABANDON_AFTER", 0.3)  # meant to expire
        seen, looked = [], []
        again, over = threading.Event(), threading.Event()

        def handler(job, conn):
            seen.append(job.payload)
            if len(seen) == 2:
                self.end_time(job)
                self.until_set(again)
                looked.append(job.cancelled.is_set())
                over.set()
                return
            if len(seen) == 4:
                again.set()
                self.until_set(over)
            self.do(job, conn)

        self.add(1, 2)
        self.assertEqual(self.drain(handler, batch=2, attach=False), {"committed": 2})
        self.assertEqual((seen, looked, self.effects()), ([1, 2, 1, 2], [True], [1, 2]))

    def test_a_handler_that_waits_for_no_longer(self):
        """Its statement is cancelled as well: nobody waits for the locks of a session that has nobody."""
        async def goes_on(job, conn):
            await self.do_async(job, conn)
            with contextlib.suppress(asyncio.TimeoutError):
                async with conn.transaction():
                    await asyncio.wait_for(conn.execute("SELECT pg_sleep(3600)"), 0.1)  # meant to expire
            return (await (await conn.execute("SELECT 7")).fetchone())[0]

        async def fails(job, conn):
            await self.do_async(job, conn)
            await asyncio.wait_for(conn.execute("SELECT pg_sleep(3600)"), 0.1)  # meant to expire

        (job,) = self.add(1)
        self.assertEqual(self.drain_async(goes_on), {"committed": 1})
        self.assertEqual((self.job(job)[2], self.effects()), (7, [1]))
        (job,) = self.add(1, max_attempts=1)
        self.assertEqual(self.drain_async(fails), {"dead": 1})
        self.assertIn("TimeoutError", self.job(job)[3])

    def test_a_statement_is_cancelled_twice(self):
        async def fails(job, conn):
            await self.do_async(job, conn)
            sleeps = asyncio.create_task(conn.execute("SELECT pg_sleep(3600)"))
            await asyncio.to_thread(self.until, "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'", conn.info.backend_pid)
            for _ in range(3):
                sleeps.cancel()
                await asyncio.sleep(0)
            await asyncio.wait([sleeps])
            self.assertTrue(sleeps.cancelled())
            await conn.execute("SELECT 1")

        (job,) = self.add(1, max_attempts=1)
        self.assertEqual(self.drain_async(fails), {"dead": 1})
        self.assertIn("transaction is aborted", self.job(job)[3])

    def test_a_cancel_that_nobody_sends(self):
        """The handler's wait is over soon all the same; the attempt is not, with a session that is at work."""
        waited = []

        async def fails(job, conn):
            if waited:  # its session has gone, and it was called again
                raise idemq.Dead("over")
            await self.do_async(job, conn)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(conn.execute("SELECT pg_sleep(3600)"), 0.1)  # meant to expire
            waited.append(over.is_set())
            over.set()
            await asyncio.to_thread(self.sql, "SELECT pg_terminate_backend(%s)", conn.info.backend_pid)
            raise idemq.Dead("over")

        over = threading.Event()
        (job,) = self.add(1, max_attempts=1)
        cancels = []
        never = unittest.mock.patch.object(idemq._handler_connection.AsyncHandlersConnection, "cancel", lambda conn: cancels.append(over.wait(120)))
        with never, unittest.mock.patch.object(idemq._handler_connection, "CANCEL_TIMEOUT", 0.5):  # meant to expire
            self.assertIn(self.drain_async(fails), ({"dead": 1}, {"stale": 1}))
        # The handler's wait ended while the cancel was still waiting, and not because the cancel gave up.
        self.assertEqual((waited, set(cancels)), ([False], {True}))
        self.assertIn(self.job(job)[3], ("over", "the worker's session ended"))
        self.assertEqual(self.effects(), [])

    def test_the_queues_time_goes_before_the_workers(self):
        self.alter("job_timeout => '400 ms'")  # meant to expire
        (job,) = self.add(1, max_attempts=1)
        self.drain(lambda job, conn: conn.execute("SELECT pg_sleep(3600)"))
        self.is_over(job, 0.36)  # a tenth before


if __name__ == "__main__":
    tap.main()
