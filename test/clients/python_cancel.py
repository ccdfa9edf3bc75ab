"""python_cancel.py: handlers of all kinds are told at once that their job is cancelled, even if the cancel is rolled back.

For python.pl, which says where the server is (IDEMQ_DSN).  Leases last for an hour, so no heartbeat is due: without the server's
hint, a handler would wait for job.cancelled until the test fails.
"""

import asyncio
import threading

import psycopg

import idemq
import idemq._run
import tap
from python_common import DSN, Client, Counting


class Cancel(Client):
    def setUp(self):
        super().setUp()
        self.running = threading.Event()
        self.other = psycopg.connect(DSN, autocommit=True)
        self.addCleanup(self.other.close)

    def handlers(self):
        """Names and drains of handlers of each kind.  If a handler has a transaction, it holds the job's row."""

        def outside(job):
            self.running.set()
            self.until_set(job.cancelled)
            raise ValueError("it has stopped")

        def inside(job, conn):
            self.effect(conn, 1)
            self.running.set()
            self.until_set(job.cancelled)
            raise ValueError("it has stopped")

        async def outside_async(job):
            self.running.set()
            await asyncio.sleep(60)

        async def inside_async(job, conn):
            await self.do_async(job, conn)
            self.running.set()
            await asyncio.sleep(60)

        return (
            ("outside", lambda: self.drain(outside, True)),
            ("inside", lambda: self.drain(inside)),
            ("outside, async", lambda: self.drain_async(outside_async, True)),
            ("inside, async", lambda: self.drain_async(inside_async)),
        )

    def run_meanwhile(self, drain, meanwhile):
        """Calls meanwhile while the handler of a drain runs, and returns the counts of the drain."""
        self.running.clear()
        counts = []
        thread = threading.Thread(target=lambda: counts.append(drain()))
        thread.start()
        self.until_set(self.running)
        meanwhile()
        thread.join(60)
        self.assertFalse(thread.is_alive(), "the drain ends")
        return counts[0]

    def test_it_arrives_at_once(self):
        for name, drain in self.handlers():
            for end in ("cancel", "revoke_lease"):
                with self.subTest(name, end=end):
                    (job,) = self.add(1)
                    calls = []

                    def ends():
                        calls.append(self.other.execute(f"SELECT idemq.{end}(%s)", [job]))
                        if end == "revoke_lease":  # the same drain must not claim it again
                            self.other.execute("SELECT idemq.cancel(%s)", [job])

                    counts = self.run_meanwhile(drain, ends)
                    self.assertEqual((sum(counts.values()), "committed" in counts), (1, False))
                    self.assertEqual((self.effects(), self.job(job)[0]), ([], "cancelled"))

    def test_it_is_rolled_back(self):
        """The handler is told and ends, and its attempt does not count."""
        for name, drain in self.handlers():
            with self.subTest(name):
                (job,) = self.add(1)

                def cancel():
                    self.other.execute("BEGIN")
                    self.other.execute("SELECT idemq.cancel(%s)", [job])

                counts = self.run_meanwhile(drain, cancel)
                self.assertEqual((sum(counts.values()), "committed" in counts), (1, False))
                self.other.execute("ROLLBACK")
                self.until("SELECT status = 'pending' FROM idemq.jobs WHERE id = %s", job)
                self.assertEqual(self.job(job)[1], 0)
                self.assertEqual(self.sql("SELECT outcome FROM idemq.attempts WHERE job_id = %s", job), [("released",)])
                self.sql("SELECT idemq.cancel(%s)", job)

    def test_a_worker_with_free_slots(self):
        """A worker with free slots waits for work and listens in the same session.  A busy worker listens until a slot is free."""
        told, jobs = [], []

        def handler(job):
            jobs.append(job.id)
            self.running.set()
            self.until_set(job.cancelled)
            told.append(job.id)

        for concurrency in (2, 1):
            with self.subTest(concurrency=concurrency):
                told.clear()
                stop = self.start(handler, True, concurrency=concurrency)
                for _ in range(3):
                    self.running.clear()
                    (job,) = self.add(1)
                    self.until_set(self.running)
                    self.sql("SELECT idemq.cancel(%s)", job)
                    self.until("SELECT count(*) = 0 FROM idemq.running_jobs WHERE queue = %s", self.queue)
                stop()
                self.assertEqual(len(told), 3)

    def test_attempts_that_end_themselves(self):
        """A handler that has ended its attempt through SQL runs on, even if the cancel of another job makes the worker send heartbeats."""
        ends = {
            "commit": "SELECT idemq.commit(%s, %s)",
            "fail": "SELECT idemq.fail(%s, %s, 'its own', retry_in => '1 h')",
            "release": "SELECT idemq.release(%s, %s, '1 h')",
            "await_event": "SELECT idemq.await_event(%s, %s, 'paid', '1 h')",
        }
        counted = {"commit": "committed", "fail": "retrying", "release": "released", "await_event": "released"}
        for name, sql in ends.items():
            with self.subTest(name):
                told, ready, go_on = [], threading.Semaphore(0), threading.Event()

                def handler(job):
                    if job.payload == 1:
                        self.other.execute(sql, [job.id, job.token])
                        ready.release()
                        self.until_set(go_on)
                    else:
                        ready.release()
                        self.until_set(job.cancelled)
                    told.append((job.payload, job.cancelled.is_set()))

                ((own, other),) = [self.add(1, 2)]
                worker = idemq.Worker(DSN, self.queue, concurrency=2)
                counts = []
                thread = threading.Thread(target=lambda: counts.append(worker.run_outside(handler)))
                thread.start()
                for _ in range(2):
                    self.assertTrue(ready.acquire(timeout=60))
                with self.assertLogs("idemq", "WARNING") as logged:
                    self.sql("SELECT idemq.cancel(%s)", other)
                    self.until("SELECT count(*) = 0 FROM idemq.running_jobs WHERE queue = %s", self.queue)
                    while not told:
                        threading.Event().wait(0.02)
                    go_on.set()
                    worker.stop()
                    thread.join(60)
                self.assertFalse(thread.is_alive())
                self.assertEqual(told, [(2, True), (1, False)])
                self.assertEqual([text for text in logged.output if str(own) in text], [])
                self.assertEqual(counts[0][counted[name]], 1)
                self.sql("SELECT idemq.cancel(%s)", own)

    def test_a_worker_that_stops(self):
        """It still listens while handlers run."""
        told, began = [], threading.Semaphore(0)

        def handler(job):
            began.release()
            self.until_set(job.cancelled)
            told.append(job.id)

        for concurrency in (2, 3):
            with self.subTest(concurrency=concurrency):
                told.clear()
                jobs = self.add(1, 2)
                stop = self.start(handler, True, concurrency=concurrency, grace=3600)
                for _ in jobs:
                    self.assertTrue(began.acquire(timeout=60))
                stop(wait=False)
                for job in jobs:
                    self.sql("SELECT idemq.cancel(%s)", job)
                    while job not in told:
                        threading.Event().wait(0.02)
                stop()
                self.assertEqual(told, jobs)

    def test_a_thousand_jobs(self):
        """If one of them is cancelled, only that job's handler is told, and the process still listens in one session."""
        began = threading.Semaphore(0)
        over = threading.Event()
        told = []

        async def handler(job):
            began.release()
            try:
                while not over.is_set():
                    await asyncio.sleep(0.05)
            finally:
                if job.cancelled.is_set():
                    told.append(job.id)

        jobs = self.add(*[1] * 1000)
        worker = idemq.AsyncWorker(DSN, self.queue, concurrency=1000)
        ((begin,),) = self.sql("SELECT clock_timestamp()")
        thread = threading.Thread(target=lambda: asyncio.run(worker.run_outside(handler)))
        for cleanup in (thread.join, worker.stop, over.set):
            self.addCleanup(cleanup)
        thread.start()
        for _ in range(1000):
            self.assertTrue(began.acquire(timeout=60))
        one_listens = "SELECT count(*) = 1 FROM pg_stat_activity WHERE query = 'CALL idemq.wait($1, $2)' AND state = 'active' AND backend_start > %s"
        self.until(one_listens, begin)
        self.sql("SELECT idemq.cancel(%s)", jobs[500])
        self.until("SELECT count(*) = 999 FROM idemq.running_jobs WHERE queue = %s", self.queue)
        give_up = 600
        while not told and give_up > 0:
            threading.Event().wait(0.1)
            give_up -= 1
        self.assertEqual(told, [jobs[500]])
        # Between two calls, the session does not wait.
        self.until(one_listens, begin)

    def test_short_jobs_and_poolers_do_not_listen(self):
        def waits(proxy):
            return sum(b"CALL idemq.wait" in b" ".join(names) for names in proxy.messages)

        long_enough = threading.Event()
        for pooler, listens in ((True, False), (False, True)):
            proxy = Counting(pooler)
            self.add(1)
            self.drain(lambda job: long_enough.wait(0.3), True, dsn=proxy.dsn())
            self.assertEqual(waits(proxy) > 0, listens, f"pooler: {pooler}")
        self.set_seconds("LISTEN_AFTER", 60, idemq._run)
        proxy = Counting()
        self.add(*range(100))
        self.drain(lambda job: None, True, dsn=proxy.dsn())
        self.assertEqual(waits(proxy), 0)


if __name__ == "__main__":
    tap.main()
