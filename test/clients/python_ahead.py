"""python_ahead.py: jobs that a worker has claimed ahead: when they begin, and when they are given back.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import psycopg

import idemq
import tap
from idemq import Inside, Outside
from python_common import DSN, Client

PROGRAM = "import idemq, sys, time; idemq.Worker(sys.argv[1], sys.argv[2], ahead=100, ahead_wait=1000, attach=True).run_outside(lambda job: time.sleep(1000))"


class Ahead(Client):
    def setUp(self):
        super().setUp()
        self.q = f"{self.queue}_ahead"
        self.begun = []
        self.gate = threading.Event()
        self.addCleanup(self.gate.set)
        self.begins = threading.Lock()

    def jobs(self, count, settings="", **options):
        self.sql(f"SELECT idemq.create_queue(%s, lease => '1 h'{settings})", self.q)
        for n in range(count):
            idemq.enqueue(self.conn, self.q, n, **{name: value(n) for name, value in options.items()})

    def one(self, sql, *values):
        with psycopg.connect(DSN, autocommit=True) as conn:
            return conn.execute(sql, values).fetchone()[0]

    def marked(self):
        return self.one("SELECT count(*) FROM idemq.running_jobs WHERE queue = %s AND ahead", self.q)

    def in_status(self, status):
        return self.one("SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s) AND status = %s::idemq.status", self.q, status)

    def counted(self):
        return self.one("SELECT sum(attempt) FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s)", self.q)

    def wait_for(self, what):
        end = time.monotonic() + 60
        while not what():
            self.assertLess(time.monotonic(), end, "in time")
            time.sleep(0.01)

    def note(self, job, conn=None):
        with self.begins:
            self.begun.append(job.payload)
            first = len(self.begun) == 1
        if first:
            self.assertTrue(self.gate.wait(60))

    async def note_async(self, job, conn=None):
        self.begun.append(job.payload)
        while len(self.begun) == 1 and not self.gate.is_set():
            await asyncio.sleep(0.01)

    def start_worker(self, method="run_outside", coroutines=False, handler=None, queue=None, **options):
        """Starts a worker whose first job waits for the gate.  Returns a function that stops it."""
        options = {"ahead": 100, "ahead_wait": 1000, **options}
        outcomes = []
        handler = handler or (self.note_async if coroutines else self.note)
        worker = (idemq.AsyncWorker if coroutines else idemq.Worker)(DSN, queue or self.q, **options)

        def run():
            call = getattr(worker, method)
            outcomes.append(asyncio.run(call(handler)) if coroutines else call(handler) if queue is None else call())

        thread = threading.Thread(target=run)
        thread.start()
        told = []

        def stop(wait=True):
            if not told:
                told.append(worker.stop())
            if wait:
                thread.join(60)
                self.assertFalse(thread.is_alive(), "the worker ends")
            return outcomes[0] if outcomes else None

        self.addCleanup(stop)
        return stop

    def in_order(self, method, coroutines):
        self.jobs(30)
        stop = self.start_worker(method, coroutines)
        self.wait_for(lambda: len(self.begun) == 1 and self.marked() == 29)
        self.assertRegex(self.one("SELECT idemq.why(id) FROM idemq.jobs WHERE payload = '1' AND queue_id = idemq.queue_id(%s)", self.q), r'claimed by worker "python \d+", waits for a free place')
        self.gate.set()
        self.wait_for(lambda: self.in_status("completed") == 30)
        self.assertEqual((stop(), self.begun, self.counted()), ({"committed": 30}, list(range(30)), 30))

    def test_order_outside(self):
        self.in_order("run_outside", False)

    def test_order_outside_coroutines(self):
        self.in_order("run_outside", True)

    def test_order_inside(self):
        self.in_order("run", False)

    def test_order_inside_coroutines(self):
        self.in_order("run", True)

    def quick(self, method, coroutines):
        """Quick jobs, each of which begins once."""
        self.sql("SELECT idemq.create_queue(%s, lease => '1 h')", self.q)
        self.sql("SELECT count(*) FROM idemq.enqueue_many(%s, ARRAY(SELECT to_jsonb(n) FROM generate_series(0, 299) n))", self.q)
        self.gate.set()
        stop = self.start_worker(method, coroutines, concurrency=10)
        self.wait_for(lambda: self.in_status("completed") == 300)
        self.assertEqual((stop(), sorted(self.begun), self.counted()), ({"committed": 300}, list(range(300)), 300))

    def test_quick_outside(self):
        self.quick("run_outside", False)

    def test_quick_outside_coroutines(self):
        self.quick("run_outside", True)

    def test_quick_inside(self):
        self.quick("run", False)

    def test_quick_inside_coroutines(self):
        self.quick("run", True)

    def test_of_two_workers_one_is_blocked(self):
        self.jobs(30)
        stop = self.start_worker(ahead_wait=0.05)
        self.wait_for(lambda: len(self.begun) == 1)
        others = []
        other = self.start_worker(handler=lambda job: others.append(job.payload))
        self.wait_for(lambda: len(others) == 29)
        self.gate.set()
        self.wait_for(lambda: self.in_status("completed") == 30)
        stop()
        other()
        self.assertEqual((len(self.begun), self.counted()), (1, 30))

    def closed(self, close):
        self.jobs(5)
        stop = self.start_worker(coroutines=True)
        self.wait_for(lambda: len(self.begun) == 1 and self.marked() == 4)
        close()
        self.gate.set()
        self.wait_for(lambda: self.in_status("pending") == 4)
        self.assertEqual((self.begun, self.counted()), ([0], 1))
        self.sql("SELECT idemq.resume(%s)", self.q)
        self.wait_for(lambda: self.in_status("completed") == 5)
        stop()
        self.assertEqual(self.counted(), 5)

    def test_pause(self):
        self.closed(lambda: self.sql("SELECT idemq.pause(%s)", self.q))

    def test_hold(self):
        self.closed(lambda: self.sql("SELECT idemq.hold_back(id, token, '1 h', scope => 'queue') FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s) AND payload = '0'", self.q))

    def test_cancel(self):
        self.jobs(5)
        stop = self.start_worker()
        self.wait_for(lambda: len(self.begun) == 1 and self.marked() == 4)
        self.assertEqual(self.one("SELECT idemq.cancel(id) FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s) AND payload = '1'", self.q), "cancelled")
        self.gate.set()
        self.wait_for(lambda: self.in_status("completed") == 4)
        stop()
        self.assertEqual(self.begun, [0, 2, 3, 4])

    def test_drain(self):
        self.jobs(20, ", max_attempts => 2")
        stop = self.start_worker(grace=1000)
        self.wait_for(lambda: len(self.begun) == 1 and self.marked() == 19)
        stop(wait=False)
        self.wait_for(lambda: self.in_status("pending") == 19)
        self.gate.set()
        self.assertEqual((stop(), self.begun, self.counted()), ({"committed": 1}, [0], 1))

    def test_lost_connection(self):
        self.jobs(20, ", max_attempts => 2")
        with self.assertLogs("idemq", logging.INFO) as logs:
            stop = self.start_worker()
            self.wait_for(lambda: len(self.begun) == 1 and self.marked() == 19)
            self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'idemq-python' AND datname = current_database()")
            self.wait_for(lambda: any("that were claimed ahead are given back" in line for line in logs.output))
        self.assertEqual(self.begun, [0])
        self.gate.set()
        self.wait_for(lambda: self.in_status("completed") == 20)
        stop()
        self.assertEqual((sorted(self.begun), self.counted()), (list(range(20)), 20))

    def test_killed(self):
        self.jobs(20, ", max_attempts => 2")
        worker = subprocess.Popen([sys.executable, "-c", PROGRAM, DSN, self.q])
        self.addCleanup(worker.kill)
        self.wait_for(lambda: self.marked() == 19)
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        self.wait_for(lambda: self.one("SELECT idemq.reap(%s)", self.q) >= 0 and self.in_status("running") == 0)
        self.assertEqual(self.counted(), 1)
        outcomes = self.one("SELECT array_agg(a.outcome ORDER BY a.outcome) FROM idemq.attempts a JOIN idemq.jobs j ON j.id = a.job_id WHERE j.queue_id = idemq.queue_id(%s)", self.q)
        self.assertEqual(outcomes, ["expired"] + ["released"] * 19)

    def test_times_begin_with_the_handler(self):
        self.jobs(2, ", job_timeout => '1 h'")
        times = []

        def handler(job):
            if job.payload == 0:
                self.wait_for(lambda: self.marked() == 1)
                times.append(time.time())
                return
            times.append(self.one("SELECT extract(epoch FROM deadline)::float8 FROM (SELECT (SELECT count(*) FROM idemq.heartbeat_many(ARRAY[%s], ARRAY[%s], '1 day')), 1) b, idemq.running_jobs WHERE job_id = %s", job.id, job.token, job.id))
            times.append(job.deadline.timestamp())

        stop = self.start_worker(handler=handler)
        self.wait_for(lambda: self.in_status("completed") == 2)
        stop()
        begun, deadline, own = times
        self.assertGreater(deadline, begun + 3599)
        self.assertTrue(begun + 3598 < own < deadline, (begun, own, deadline))

    def refused(self, why, *jobs, **options):
        self.jobs(5, *jobs, **options)
        with self.assertLogs("idemq", logging.INFO) as logs:
            stop = self.start_worker()
            self.wait_for(lambda: len(self.begun) == 1 and self.in_status("running") == 1)
            self.gate.set()
            self.wait_for(lambda: self.in_status("completed") == 5)
            stop()
        self.assertEqual(sum(f"{self.q}: jobs are claimed without ahead, because of {why}" in line for line in logs.output), 1, logs.output)
        self.assertEqual(self.counted(), 5)

    def test_max_running(self):
        self.refused("max_running", ", max_running => 50")

    def test_rate_limit(self):
        self.refused("rate_limit", ", rate_limit => 1000")

    def test_max_attempts(self):
        self.refused("max_attempts 1", ", max_attempts => 1")

    def test_groups(self):
        self.refused("groups", group_key=lambda n: f"g{n}")

    def test_job_with_one_attempt(self):
        self.refused("jobs with one attempt", max_attempts=lambda n: 1)

    def test_several_queues_and_refused_options(self):
        self.jobs(40)
        other = f"{self.q}_other"
        self.sql("SELECT idemq.create_queue(%s, lease => '1 h')", other)
        self.sql("SELECT count(*) FROM idemq.enqueue_many(%s, ARRAY(SELECT to_jsonb(n) FROM generate_series(0, 39) n))", other)
        done = lambda: self.one("SELECT count(*) FROM idemq.jobs WHERE queue_id IN (idemq.queue_id(%s), idemq.queue_id(%s)) AND status = 'completed'", self.q, other)
        queues = {self.q: Inside(lambda job, conn: conn.execute("SELECT 1") and None, ahead=20, batch=4, ahead_wait=100), other: Outside(lambda job: None, ahead=20, concurrency=2, ahead_wait=100)}
        worker = idemq.Worker(DSN, queues)
        outcomes = []
        thread = threading.Thread(target=lambda: outcomes.append(worker.run()))
        thread.start()
        self.wait_for(lambda: done() == 80)
        worker.stop()
        thread.join(60)
        self.assertEqual(outcomes, [{"committed": 80}])
        for wrong in ({"ahead": -1}, {"ahead_wait": 0}):
            self.assertRaises(ValueError, Outside, print, **wrong)
        self.assertRaises(TypeError, Outside, print, ahead=1.5)


if __name__ == "__main__":
    tap.main()
