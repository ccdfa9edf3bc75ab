"""python_slow.py: tests of clients/python that need real time or many jobs: leases and job_timeout that expire by
themselves, thousands of jobs, descriptors and threads that must be released.

For python_slow.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import collections
import os
import threading
import time
import unittest.mock

import psycopg

import idemq
import idemq._handler_connection
import idemq._links
import tap
from python_common import DSN, Client, Counting, PatientClient, QuickFirstUse


class Outside(Client):
    def test_heartbeats_keep_the_lease(self):
        def slow(job):
            self.until("SELECT clock_timestamp() > claimed_at + '7 s' FROM idemq.jobs WHERE id = %s", job.id)
            self.sql("SELECT idemq.reap(%s)", self.queue)

        (job,) = self.add(1)
        self.assertEqual(self.drain(slow, outside=True, lease="6 s"), {"committed": 1})
        self.assertEqual(self.job(job)[:2], ("completed", 1))

    def drain_many(self, dsn=DSN, again=lambda n: None):
        """Drains 3,000 jobs by 100 coroutines, each once; answers how many sessions have committed them."""
        calls = collections.Counter()
        committers = [0]
        tried = []

        async def tries(dsn, needs_idemq, worker, connect=idemq._links.connect_async):
            try:
                return await connect(dsn, needs_idemq, worker)
            finally:
                tried.append(dsn)

        async def handler(job):
            calls[job.payload] += 1
            # Until the second connection is there, or refused: on a busy machine the jobs might all be done before.
            while job.payload >= 1000 and len(tried) < 2 and time.monotonic() < give_up:
                await asyncio.sleep(0.01)
            if job.payload % 200 == 199:
                committers.extend(self.sql("SELECT count(*) FROM pg_stat_activity WHERE query ~ 'commit_many_and_claim'"
                                           " AND application_name = 'idemq-python' AND pid <> pg_backend_pid()")[0])
                again(job.payload)
            await asyncio.sleep(0)
            return job.payload

        self.sql("SELECT idemq.enqueue_many(%s, (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 3000) n))", self.queue)
        give_up = time.monotonic() + 60
        with unittest.mock.patch.object(idemq._links, "connect_async", tries):
            self.assertEqual(self.drain_async(handler, outside=True, dsn=dsn, concurrency=100), {"committed": 3000})
        self.assertEqual((len(calls), set(calls.values())), (3000, {1}))
        self.assertEqual(self.sql("SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = %s"
                                  " AND status = 'completed' AND result = payload AND attempt = 1", self.queue), [(3000,)])
        return max(committers)

    def test_many_that_end_together(self):
        self.assertEqual(self.drain_many(), 2)

    def test_many_and_sessions_that_are_ended(self):
        ended = []

        def end(n):
            # Where there are two: the later one, or both, in turn.
            ended.append(len(self.sql("SELECT pg_terminate_backend(pid) FROM (SELECT pid, count(*) OVER () AS there FROM pg_stat_activity"
                                      " WHERE query ~ 'commit_many_and_claim' AND application_name = 'idemq-python'"
                                      " AND pid <> pg_backend_pid() ORDER BY backend_start DESC) s WHERE there = 2 LIMIT %s",
                                      1 + len(ended) % 2)))

        self.assertEqual(self.drain_many(again=end), 2)
        self.assertGreater(sum(ended), 0)

    def test_many_where_there_is_one_connection(self):
        role = f"alone_{self.queue}"
        self.sql(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1")
        self.addCleanup(lambda: self.sql(f"DROP OWNED BY {role}; DROP ROLE {role}"))
        self.sql("SELECT idemq.grant_queue(%s, %s, 'claim')", self.queue, role)
        with self.assertLogs("idemq", "WARNING") as log:
            self.assertEqual(self.drain_many(f"{DSN} user={role}"), 1)
        self.assertTrue(any("for committing" in line for line in log.output), log.output)


class TimeOver(PatientClient):
    def test_a_statement_is_cancelled(self):
        async def sleeps_async(job, conn):
            await self.do_async(job, conn)
            begun.append(job.id)
            await conn.execute("SELECT pg_sleep(3600)")

        def sleeps(job, conn):
            self.do(job, conn)
            begun.append(job.id)
            conn.execute("SELECT pg_sleep(3600)")

        begun = []
        for interrupt in (idemq._links.interrupt, self.cancel_late):
            for drain, handler in ((self.drain, sleeps), (self.drain_async, sleeps_async)):
                for seconds in (0.5, 2, 8):
                    (job,) = self.add(1, max_attempts=1)
                    with unittest.mock.patch.object(idemq._links, "interrupt", interrupt):
                        ended = drain(handler, timeout=seconds)
                    if job in begun:
                        break  # else its time was over before its first statement
                self.assertEqual(ended, {"dead": 1})
                self.assertEqual(self.job(job), ("dead", 1, None, f"stopped after {seconds:g} s (job_timeout)"))
                self.assertEqual(self.effects(), [])

    def test_a_transaction_that_cannot_begin_in_time(self):
        """The job's row is another's for longer: the session stays, for the next job."""
        sessions = []

        async def uses(job, conn):
            sessions.append(conn.info.backend_pid)
            if job.payload == 1:
                other.execute("SELECT FROM idemq.jobs WHERE id = %s FOR UPDATE", [job.id])
                release.start()
            await conn.execute("SELECT 1")

        jobs = self.add(1, max_attempts=1) + self.add(2)
        with psycopg.connect(DSN) as other, unittest.mock.patch.object(idemq._links, "interrupt", self.cancel_late):
            release = threading.Timer(1.5, other.rollback)
            ended = collections.Counter(self.drain_async(uses, timeout=0.5))
            release.join()
        self.assertEqual((ended["dead"], self.job(jobs[0])[3]), (1, "stopped after 0.5 s (job_timeout)"))
        self.assertEqual(sessions[:2], sessions[:1] * 2)
        # On a busy machine half a second may be over for the next job, too.
        ended += self.until_completed(lambda: self.drain_async(uses, timeout=0.5), jobs[1:])
        self.assertEqual((ended["dead"], ended["committed"]), (1, 1))

    def test_a_cancel_between_two_statements_is_not_the_last(self):
        begun, cancelled = [], []

        def handler(job, conn):
            conn.execute("SELECT 1")
            begun.append(job.id)
            self.until_set(job.cancelled)
            time.sleep(0.2)  # the time is over here, where there is no statement to cancel
            try:
                conn.execute("SELECT pg_sleep(60)")
            except psycopg.errors.QueryCanceled:  # one that is left behind loses its connection
                cancelled.append(job.id)
                raise

        for seconds in (0.1, 1, 10):
            self.alter(f"job_timeout => '{seconds} s'")
            (job,) = self.add(1, max_attempts=1)
            self.drain(handler)
            if begun:
                break  # else the time was over before the first statement
        self.assertEqual(cancelled, [job])
        self.is_over(job, seconds - min(1, seconds / 10))
        self.assertEqual(self.job(job)[1], 1)

    def test_a_handler_that_hangs_is_left_behind(self):
        self.set_seconds("ABANDON_AFTER", 0.3)
        never = threading.Event()
        self.addCleanup(never.set)

        def hangs(job, conn):
            self.do(job, conn)
            if job.payload == 1 and job.attempt == 1:
                never.wait(600)

        def hangs_outside(job):
            if job.payload == 1 and job.attempt == 1:
                never.wait(600)
            self.effect(self.conn, job.payload)

        for outside, handler in ((False, hangs), (True, hangs_outside)):
            self.sql("TRUNCATE effects")
            jobs = self.add(1, 2)
            # On a busy machine half a second may be over for others, too.
            ended = self.until_completed(lambda: self.drain(handler, outside, timeout=0.5), jobs)
            self.assertEqual(ended["committed"], 2)
            effects = self.effects()
            self.assertEqual(sorted(set(effects)) if outside else effects, [1, 2])
            self.assertGreater(self.job(jobs[0])[1], 1)

    def test_a_coroutine_that_does_not_end(self):
        self.set_seconds("ABANDON_AFTER", 0.3)
        async def stubborn(job, conn):
            await self.do_async(job, conn)
            while job.attempt == 1 and not stop.is_set():
                try:
                    await asyncio.sleep(0.1)
                except asyncio.CancelledError:
                    pass

        stop = threading.Event()
        (job,) = self.add(1)
        threading.Timer(3, stop.set).start()
        ended = self.until_completed(lambda: self.drain_async(stubborn, timeout=0.5), [job])
        self.assertGreaterEqual(ended.pop("retrying"), 1)
        self.assertEqual((ended, self.effects()), ({"committed": 1}, [1]))


class Messages(QuickFirstUse):
    def test_what_ends_together_is_sent_together(self):
        """Eight at a time that end together: 50 rounds, not 400 statements."""
        together = threading.Barrier(8)
        self.add(*range(400))
        proxy = Counting()
        self.assertEqual(self.drain(lambda job: together.wait(60), outside=True, dsn=proxy.dsn(), concurrency=8), {"committed": 400})
        ends = [names for names in proxy.messages if any(b"idemq_end" in name for name in names)]
        self.assertLess(len(ends), 200)

        async def at_once(job):
            await asyncio.sleep(0)

        self.add(*range(1000))
        proxy = Counting()
        self.assertEqual(self.drain_async(at_once, outside=True, dsn=proxy.dsn(), concurrency=100), {"committed": 1000})
        ends = [names for names in proxy.messages if any(b"idemq_end" in name for name in names)]
        self.assertLess(len(ends), 40)


class Lost(QuickFirstUse):
    def test_a_blocked_event_loop(self):
        """For longer than the lease: the first use refuses, though nobody could tell."""
        said = []

        async def blocks(job, conn):
            if job.attempt == 1:
                time.sleep(2.5)
                try:
                    await self.do_async(job, conn)
                except idemq.StaleToken as error:
                    said.append(error)
                    raise
            return await self.do_async(job, conn)

        (job,) = self.add(1)
        ended = self.until_completed(lambda: self.drain_async(blocks, lease="1 s", attach=False), [job])
        self.assertEqual((ended["committed"], self.effects(), len(said)), (1, [1], 1))


class Surroundings(QuickFirstUse):
    def test_descriptors_and_threads_are_given_back(self):
        def count():
            return len(os.listdir("/proc/self/fd")), threading.active_count()

        def go():
            self.add(*range(20))
            self.drain(self.do, concurrency=4)
            self.drain(lambda job, conn: None, concurrency=4)
            self.add(*range(20))
            self.drain(lambda job: None, outside=True, concurrency=4)
            self.add(*range(20))
            self.drain_async(self.do_async, concurrency=4)

        go()
        before = count()
        for _ in range(5):
            go()
        give_up = time.monotonic() + 60
        # A thread that was told to end does so soon: one that had not at first is none too few.
        while any(now > then for now, then in zip(count(), before)) and time.monotonic() < give_up:
            time.sleep(0.1)
        for now, then in zip(count(), before):
            self.assertLessEqual(now, then)


if __name__ == "__main__":
    tap.main()
