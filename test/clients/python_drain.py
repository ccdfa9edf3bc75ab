"""python_drain.py: the end of a worker: stop(), signals, the grace, and the wait for jobs before it.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import contextlib
import os
import signal
import threading
import time
import unittest.mock

import psycopg

import idemq
import idemq._attempt_runner
import idemq._group_commit
import idemq._links
import idemq._run
import tap
from python_common import DSN, Client, Counting


class Drains(Client):
    def test_it_waits_for_ends_that_the_loop_tells(self):
        def by_the_loop(group_commit, jobs, results):
            group_commit._run.call_loop(group_commit._run.commit_soon, list(zip(jobs, results)))

        async def late(run, *args, commit=idemq._attempt_runner.AttemptRunner._commit_batch):
            await asyncio.sleep(0.3)
            return await commit(run, *args)

        self.add(1, 2, group_key="g")
        leaves = unittest.mock.patch.object(idemq._group_commit.GroupCommit, "add", by_the_loop)
        with leaves, unittest.mock.patch.object(idemq._attempt_runner.AttemptRunner, "_commit_batch", late):
            self.assertEqual(self.drain(lambda job, conn: None), {"committed": 2})

    def test_grace(self):
        begun, ended = threading.Event(), threading.Event()

        def slow(job, conn):
            begun.set()
            self.until_set(ended)
            cancelled.append(job.cancelled.is_set())
            self.do(job, conn)

        cancelled = []
        jobs = self.add(1, 2)
        stop = self.start(slow, grace=3600)
        self.until_set(begun)
        stop(wait=False)
        time.sleep(0.2)  # for a drain without grace to be seen
        ended.set()
        stop()
        self.assertEqual((self.effects(), cancelled), ([1], [False]))
        self.assertEqual([self.job(job)[:2] for job in jobs], [("completed", 1), ("pending", 0)])

    def test_the_end_of_grace(self):
        self.set_seconds("DRAIN_ABANDON_AFTER", 0.3)  # meant to expire
        never = threading.Event()
        self.addCleanup(never.set)
        for outside in (False, True):
            begun = threading.Event()

            def hangs(job, conn=None):
                begun.set()
                never.wait(600)

            def late(job, conn=None):
                begun.set()
                self.until_set(job.cancelled)
                if conn:
                    self.do(job, conn)  # its first statement: refused, and the lease is not lost
                raise ValueError("late")

            for handler in (hangs, late):
                begun.clear()
                (job,) = self.add(1)
                stop = self.start(handler, outside, grace=0.2)  # meant to expire
                self.until_set(begun)
                stop()
                self.assertEqual(self.job(job)[:2], ("pending", 0))
                self.sql("SELECT idemq.cancel(%s)", job)

    def test_a_lease_that_is_lost_before_the_end_of_grace(self):
        """The hook hears of it, also where the first statement comes after that."""
        begun = threading.Event()
        failures = []

        def late(job, conn):
            begun.set()
            self.until_set(job.cancelled)
            self.do(job, conn)

        (job,) = self.add(1)
        hooks = {"failed": lambda job, failure: failures.append((type(failure.error), failure.outcome))}
        stop = self.start(late, grace=0.2, hooks=hooks)  # meant to expire
        self.until_set(begun)
        self.sql("SELECT idemq.cancel(%s)", job)
        stop()
        self.assertEqual(failures, [(idemq.StaleToken, "lost")])
        self.assertEqual(self.effects(), [])

    def test_a_waiter_ends_soon(self):
        """Not when its sleep is over."""
        patched = unittest.mock.patch.object(idemq._run, "LONGEST_WAIT", 3600.0)
        patched.start()
        self.addCleanup(patched.stop)
        stop = self.start(self.do)
        self.until("SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'CALL idemq.wait%%'"
                   " AND state = 'active' AND application_name = 'idemq-python'")
        stop()

    def test_a_waiter_ends_without_an_error_in_the_servers_log(self):
        """A cancelled wait would log ERROR 57014.  The worker asks the server to end the wait; behind a pooler, the wait times out."""
        waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'CALL idemq.wait%%' AND state = 'active' AND application_name = 'idemq-python'"

        async def run(worker):
            task = asyncio.create_task(worker.run(self.do_async))
            await asyncio.to_thread(self.until, waits)
            worker.stop()
            await asyncio.wait_for(task, 60)

        logged = os.path.getsize(os.environ["IDEMQ_SERVER_LOG"])
        with self.assertNoLogs("idemq", "WARNING") if hasattr(self, "assertNoLogs") else contextlib.nullcontext():
            for dsn in (DSN, Counting(pooler=True).dsn()):
                stop = self.start(self.do, dsn=dsn)
                self.until(waits)
                stop()
                asyncio.run(run(idemq.AsyncWorker(dsn, self.queue)))
        # The server logs its errors before it sends them, so by now any error that ended a wait is in the file.
        with open(os.environ["IDEMQ_SERVER_LOG"], "rb") as log:
            log.seek(logged)
            self.assertNotRegex(log.read().decode(errors="replace"), "ERROR|canceling statement")
        self.assertEqual(self.sql("SELECT state, running FROM idemq.workers WHERE %s = ANY (queues) AND state <> 'gone'", self.queue), [])

    def test_where_it_cannot_connect_is_named(self):
        """Once, and again each minute."""
        name = f"without_{os.getpid()}"
        self.sql(f"CREATE DATABASE {name}")
        self.addCleanup(self.sql, f"DROP DATABASE {name} WITH (FORCE)")
        for dsn, said in ((f"{DSN} dbname={name}", f'database "{name}" does not have the extension: run CREATE EXTENSION idemq'),
                          (f"{DSN} dbname=nowhere", 'database "nowhere" does not exist')):  # fmt: skip
            dsn = psycopg.conninfo.make_conninfo(**psycopg.conninfo.conninfo_to_dict(dsn))
            for repeats in (60.0, 0.0):
                with unittest.mock.patch.object(idemq._links, "REPEAT_AFTER", repeats), self.assertLogs("idemq", "WARNING") as log:
                    stop = self.start(self.do, dsn=dsn)
                    give_up = time.monotonic() + 60
                    while len(log.output) < (1 if repeats else 3) and time.monotonic() < give_up:
                        time.sleep(0.05)
                    if repeats:
                        time.sleep(1)  # for the next attempts, of which nothing is said
                    stop()
                self.assertEqual({said in line and "\n" not in line for line in log.output}, {True}, log.output)
                self.assertEqual(len(log.output) == 1, repeats == 60.0, log.output)
            with self.assertRaises(psycopg.Error):  # it tries once
                idemq.drain(dsn, self.queue, self.do)

    def test_it_sleeps_and_wakes(self):
        self.start(self.do, concurrency=3)
        for n in range(5):
            self.until("SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'CALL idemq.wait%%' AND state = 'active'"
                       " AND application_name = 'idemq-python'")
            (job,) = self.add(n)
            self.until("SELECT status = 'completed' FROM idemq.jobs WHERE id = %s", job)
        self.assertEqual(self.effects(), [0, 1, 2, 3, 4])

    def test_a_signal_drains_all_workers_of_a_loop(self):
        async def run():
            workers = [idemq.AsyncWorker(DSN, self.queue) for _ in range(3)]
            tasks = [asyncio.create_task(worker.run(self.do_async)) for worker in workers]
            await asyncio.to_thread(self.until, "SELECT count(*) = 3 FROM pg_stat_activity WHERE query LIKE 'CALL idemq.wait%%'"
                                    " AND state = 'active' AND application_name = 'idemq-python'")
            # The end of one leaves the others to hear it.
            workers[2].stop()
            await tasks[2]
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(asyncio.gather(*tasks), 60)

        asyncio.run(run())
        self.assertEqual(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)

    def test_a_cancelled_run_leaves_nothing(self):
        async def run():
            begun = asyncio.Event()

            async def hangs(job):
                begun.set()
                await asyncio.sleep(600)

            task = asyncio.create_task(idemq.AsyncWorker(DSN, self.queue).run_outside(hangs))
            await begun.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        (job,) = self.add(1)
        asyncio.run(run())
        self.assertEqual(self.job(job)[:2], ("pending", 0))


if __name__ == "__main__":
    tap.main()
