"""python_queues.py: one worker for several queues.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import os
import threading
import unittest.mock

import psycopg

import idemq
import idemq._run
import tap
from idemq import Inside, Outside
from python_common import DSN, Client, Counting

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idemq-python' AND datname = current_database()"
SLEEPS = ("SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'CALL idemq.wait%%' AND state = 'active'"
          " AND application_name = 'idemq-python' AND datname = current_database()")


class Queues(Client):
    def setUp(self):
        super().setUp()
        self.queues = [f"{self.queue}_{name}" for name in "abc"]
        for queue in self.queues:
            self.sql("SELECT idemq.create_queue(%s, lease => '1 h', retry_base => '1 ms')", queue)
        self.a, self.b, self.c = self.queues
        self.ran = []

    def add_to(self, queue, *payloads, **options):
        return [idemq.enqueue(self.conn, queue, payload, **options).id for payload in payloads]

    def note(self, job, conn=None):
        self.ran.append((job.queue, job.payload))

    async def note_async(self, job, conn=None):
        self.ran.append((job.queue, job.payload))

    def ran_sorted(self):
        return sorted(self.ran)

    def start_worker(self, queues, dsn=DSN, method="run", **options):
        worker = idemq.Worker(dsn, queues, **options)
        outcomes = []
        thread = threading.Thread(target=lambda: outcomes.append(getattr(worker, method)()))
        thread.start()
        told = []

        def stop():
            if not told:
                told.append(worker.stop())
            thread.join(60)
            self.assertFalse(thread.is_alive(), "the worker ends")
            return outcomes[0] if outcomes else None

        self.addCleanup(stop)
        return stop

    def completed(self, *jobs):
        self.until("SELECT count(*) = %s FROM idemq.jobs WHERE id = ANY(%s) AND status = 'completed'", len(jobs), list(jobs))

    def test_all_kinds_of_handlers(self):
        """Inside, Outside, a function and a dict of kinds; each queue has its own options, and one drain runs all of them."""
        def inside(job, conn):
            self.note(job)
            conn.execute("INSERT INTO effects VALUES (%s, %s)", (job.queue, job._execution.executor.link is not None and len(job._execution.jobs)))

        async def inside_async(job, conn):
            self.note(job)
            await conn.execute("INSERT INTO effects VALUES (%s, %s)", (job.queue, len(job._execution.jobs)))

        for drain, function, note in ((idemq.drain, inside, self.note),
                                      (lambda *args: asyncio.run(idemq.drain_async(*args)), inside_async, self.note_async)):
            self.ran.clear()
            self.sql("DELETE FROM effects WHERE queue = %s", self.a)
            self.add_to(self.a, 1, 2, 3)
            self.add_to(self.b, 4)
            self.add_to(self.c, 5, kind="five")
            self.add_to(self.queue, 6)
            outcomes = drain(DSN, {self.a: Inside(function, batch=10), self.b: Outside(note, concurrency=3), self.c: {"five": note}, self.queue: note})
            self.assertEqual(outcomes, {"committed": 6})
            self.assertEqual(self.ran_sorted(), sorted([(self.a, 1), (self.a, 2), (self.a, 3), (self.b, 4), (self.c, 5), (self.queue, 6)]))
            self.assertEqual(self.sql("SELECT n FROM effects WHERE queue = %s", self.a), [(3,)] * 3)  # a batch

    def test_a_drain_ends_when_no_queue_has_a_job(self):
        """A job of one queue adds one to another, whose executors have found nothing until then."""
        def passes_on(job, conn):
            self.note(job)
            if job.payload < 6:
                idemq.enqueue(conn, self.queues[job.payload % 3], job.payload + 1)

        self.add_to(self.a, 0)
        self.assertEqual(idemq.drain(DSN, dict.fromkeys(self.queues, passes_on)), {"committed": 7})
        self.assertEqual([payload for _, payload in self.ran], list(range(7)))

    def test_a_job_that_is_added_during_the_last_round(self):
        """The drain looks at b, finds nothing, and then the only job of a ends, which has added one to b: before or after the turn of a."""
        look = idemq._run.QueueRun.look
        for nth in (1, 2):
            looked = threading.Event()
            runs, looks_at_b = {}, []

            async def looks(queue):
                runs[queue.options.queue] = queue
                found = await look(queue)
                if queue.options.queue == self.b and runs[self.a].busy:
                    looks_at_b.append(found)
                    if len(looks_at_b) == nth:
                        looked.set()
                        while runs[self.a].busy:
                            await asyncio.sleep(0.01)
                return found

            def adds(job, conn):
                self.until_set(looked)
                idemq.enqueue(conn, self.b, 1)

            self.add_to(self.a, 1)
            with self.subTest(nth=nth), unittest.mock.patch.object(idemq._run.QueueRun, "look", looks):
                self.assertEqual(idemq.drain(DSN, {self.a: adds, self.b: self.note}), {"committed": 2})
            self.assertTrue(looked.is_set())

    def test_what_is_refused(self):
        def plain(job, conn):
            pass

        for error, said, call in (
            (TypeError, "with several queues, pass concurrency to Inside or Outside", lambda: idemq.Worker(DSN, {"a": plain}, concurrency=2)),
            (TypeError, "with several queues, pass lease to Inside or Outside", lambda: idemq.AsyncWorker(DSN, {"a": plain}, lease=2)),
            (ValueError, "queues must not be empty", lambda: idemq.Worker(DSN, {})),
            (TypeError, "each queue must be the name of a queue as a str, not int", lambda: idemq.Worker(DSN, {1: plain})),
            (ValueError, "batch must be at least 1, not 0", lambda: Inside(plain, batch=0)),
            (ValueError, "concurrency must be at least 1, not 0", lambda: idemq.Worker(DSN, "a", concurrency=0)),
            (ValueError, "grace must be at least 0 seconds, not -1", lambda: idemq.Worker(DSN, "a", grace=-1)),
            (TypeError, "never_retry must be a sequence of exception classes, not type", lambda: Inside(plain, never_retry=ValueError)),
            (TypeError, "never_retry must contain exception classes, not 'ValueError'", lambda: Inside(plain, never_retry=["ValueError"])),
            (TypeError, "concurrency must be an int, not str", lambda: Outside(plain, concurrency="2")),
            (TypeError, "this worker already has its handlers; call run\\(\\) without one", lambda: idemq.Worker(DSN, {"a": plain}).run(plain)),
            (TypeError, "this worker already has its handlers; call drain\\(\\) without one", lambda: idemq.drain(DSN, {"a": plain}, plain)),
            (TypeError, "this worker already has its handlers; use Outside\\(handler\\) for the queue", lambda: idemq.Worker(DSN, {"a": plain}).run_outside(plain)),
            (TypeError, "handler must be a function, or a dict", lambda: idemq.Worker(DSN, "a").run()),
            (TypeError, "ClusterWorker serves one queue", lambda: idemq.ClusterWorker(DSN, {"a": plain})),
            (TypeError, "cannot be called with \\(job\\)", lambda: idemq.Worker(DSN, {"a": Outside(plain)}).run()),
        ):
            with self.assertRaisesRegex(error, said):
                call()
        with self.assertRaises(idemq.NoSuchQueue):
            idemq.Worker(DSN, {self.a: plain, "there is none": plain}).run()
        worker = idemq.Worker(DSN, {"a": plain, "b": Outside(lambda job: None)})
        self.assertEqual((worker.name, idemq.Worker(DSN, "a", name="w").name), (f"python {os.getpid()}", "w"))
        self.assertEqual((worker.queues, worker.queue, idemq.Worker(DSN, "a").queues), (("a", "b"), "a, b", ("a",)))

    def test_queues_without_work_take_no_connection(self):
        """One connection sleeps, one claims and sends heartbeats, and each handler has one, however many queues there are."""
        sessions = []

        def counts(job, conn):
            conn.execute("SELECT 1")
            self.until(f"SELECT ({SESSIONS}) >= 3")
            sessions.extend(self.sql(SESSIONS))

        self.until(f"SELECT ({SESSIONS}) = 0")  # those of workers before have ended
        self.start_worker({**{queue: Inside(counts, concurrency=5) for queue in self.queues}, self.queue: Outside(self.note, concurrency=5)})
        self.until(f"SELECT ({SESSIONS}) = 2")
        self.until(SLEEPS)
        for _ in range(3):  # the same executor, because it is connected
            self.completed(*self.add_to(self.b, 1))
            self.until(SLEEPS)
        self.assertEqual(sessions, [(3,)] * 3)

    def test_a_busy_queue_delays_no_other(self):
        """Each queue has its own executors.  While those of one are all busy, the server waits for the others; and for it again when one is idle."""
        begun, go_on = threading.Event(), threading.Event()

        def waits(job, conn):
            self.note(job)
            if job.payload == "long":
                begun.set()
                self.until_set(go_on)

        self.set_seconds("LONGEST_WAIT", 3600, idemq._run)
        self.start_worker({self.a: waits, self.b: Outside(self.note), self.c: self.note})
        long, behind = self.add_to(self.a, "long", "behind")
        self.until_set(begun)
        self.until(SLEEPS)
        for queue in (self.b, self.c, self.b):
            self.completed(*self.add_to(queue, "short"))
        self.assertNotIn((self.a, "behind"), self.ran)
        go_on.set()
        self.completed(long, behind)
        self.until(SLEEPS)
        for queue in (self.a, self.c):
            self.completed(*self.add_to(queue, "after"))

    def test_a_round_goes_through_all_queues(self):
        """A queue that always has work, and idle executors, is never looked at twice before another one that has them."""
        def goes_on(job, conn):
            self.note(job)
            if (self.c, 0) not in self.ran and job.payload < 300:
                idemq.enqueue(conn, job.queue, job.payload + 3)

        order = []
        look = idemq._run.QueueRun.look

        async def looks(queue):
            order.append(queue.options.queue)
            return await look(queue)

        self.add_to(self.a, 0, 1, 2)
        self.add_to(self.b, 0, 1, 2)
        self.add_to(self.c, 0)
        # A commit claims nothing, so every job needs a claim of the dispatcher.
        with unittest.mock.patch.object(idemq._run.QueueRun, "may_claim", lambda queue: False), unittest.mock.patch.object(idemq._run.QueueRun, "look", looks):
            idemq.drain(DSN, {queue: Inside(goes_on, concurrency=3) for queue in self.queues})
        self.assertEqual(order[:3], self.queues)
        self.assertLess(self.ran.index((self.c, 0)), 20)

    def test_a_queue_that_is_dropped_stops_no_other(self):
        with unittest.mock.patch.object(idemq._run, "ERROR_PAUSE", 0.2), self.assertLogs("idemq", "ERROR") as logs:
            self.start_worker(dict.fromkeys(self.queues, self.note))
            self.until(SLEEPS)
            self.sql("SELECT idemq.drop_queue(%s)", self.a)
            self.completed(*self.add_to(self.b, 1))
            self.completed(*self.add_to(self.c, 2))
            self.sql("SELECT idemq.create_queue(%s)", self.a)
            self.completed(*self.add_to(self.a, 3))
        self.assertIn(self.a, "".join(logs.output))

    def test_a_queue_that_is_refused_delays_no_other(self):
        with unittest.mock.patch.object(idemq._run, "ERROR_PAUSE", 3600), self.assertLogs("idemq", "ERROR"):
            stop = self.start_worker(dict.fromkeys(self.queues, self.note))
            self.until(SLEEPS)
            self.sql("SELECT idemq.drop_queue(%s)", self.a)
            self.completed(*self.add_to(self.b, 1))
            self.completed(*self.add_to(self.c, 2))
            stop()

    def test_a_locked_table_ends_no_worker(self):
        """As while the extension is updated, when the worker starts, and in a drain."""
        look_after, refused = idemq._run.QueueRun._look_after, threading.Semaphore(0)

        def look_later(queue, seconds):
            look_after(queue, seconds)
            refused.release()

        for method in ("run", "drain"):
            (job,) = self.add_to(self.a, 1)
            with unittest.mock.patch.multiple(idemq._links, LOCK_TIMEOUT="10ms"), \
                    unittest.mock.patch.object(idemq._run.QueueRun, "_look_after", look_later), psycopg.connect(DSN) as other:
                other.execute("LOCK TABLE idemq.jobs IN ACCESS EXCLUSIVE MODE")
                stop = self.start_worker({self.a: self.note}, method=method)
                for _ in range(2):
                    self.assertTrue(refused.acquire(timeout=60), "it claims again")
                other.rollback()
                self.completed(job)
                self.assertEqual(stop(), {"committed": 1})

    def test_one_drain_ends_them_all(self):
        begun = threading.Barrier(3)
        go_on = threading.Event()

        def waits(job, conn=None):
            begun.wait(60)
            self.until_set(go_on)

        jobs = self.add_to(self.a, 1) + self.add_to(self.b, 1)
        stop = self.start_worker({self.a: waits, self.b: Outside(waits), self.c: self.note})
        begun.wait(60)
        threading.Timer(0.1, go_on.set).start()
        self.assertEqual(stop(), {"committed": 2})
        self.completed(*jobs)

    def test_each_queue_has_its_own_lease(self):
        """Heartbeats renew each lease by its own length."""
        def waits(job, conn=None):
            ((before,),) = self.sql("SELECT deadline FROM idemq.running_jobs WHERE job_id = %s", job.id)
            self.beat(job)
            self.until("SELECT deadline > %s FROM idemq.running_jobs WHERE job_id = %s", before, job.id)
            self.ran += self.sql("SELECT round(extract(epoch FROM deadline - idemq.clock_timestamp()) / 3600)::int FROM idemq.running_jobs WHERE job_id = %s", job.id)

        self.add_to(self.a, 1)
        self.add_to(self.b, 1)
        self.assertEqual(idemq.drain(DSN, {self.a: Inside(waits, lease="3 h"), self.b: Outside(waits, lease="5 h")}), {"committed": 2})
        self.assertEqual(self.ran_sorted(), [(3,), (5,)])

    def test_too_many_connections(self):
        """An executor that cannot connect gives its jobs back, uncounted, and others run them."""
        connect = idemq._links.connect
        allowed = threading.Semaphore(1)

        def limited(*args):
            if not allowed.acquire(blocking=False):
                raise psycopg.OperationalError("FATAL: sorry, too many clients already")
            return connect(*args)

        go_on = threading.Event()

        def waits(job, conn):
            conn.execute("SELECT 1")
            self.note(job)
            if job.payload == 0:
                self.until_set(go_on)

        with unittest.mock.patch.object(idemq._links, "connect", limited), unittest.mock.patch.object(idemq._run, "CONNECT_TIMEOUT", 0.2):
            jobs = self.add_to(self.a, *range(4))
            stop = self.start_worker({self.a: Inside(waits, concurrency=4)})
            self.until("SELECT count(*) = 3 FROM idemq.jobs WHERE id = ANY(%s) AND status = 'pending' AND attempt = 0", jobs)
            go_on.set()
            self.completed(*jobs)
            self.assertEqual(self.sql("SELECT DISTINCT attempt FROM idemq.jobs WHERE id = ANY(%s)", jobs), [(1,)])
            self.assertEqual(stop(), {"committed": 4})

    def test_through_a_pooler(self):
        """A wait cannot be ended there, but a queue with an idle executor is looked at at once."""
        begun, go_on = threading.Event(), threading.Event()

        def waits(job, conn):
            begun.set()
            self.until_set(go_on)

        # A commit claims nothing, so the second job needs a claim of the dispatcher.
        patched = unittest.mock.patch.object(idemq._run.QueueRun, "may_claim", lambda queue: False)
        with patched, unittest.mock.patch.object(idemq._run, "POOLED_WAIT", 3600.0):
            stop = self.start_worker({self.a: waits, self.b: Outside(self.note)}, dsn=Counting(pooler=True).dsn())
            self.until(SLEEPS)
            jobs = self.add_to(self.a, 1)
            self.until_set(begun)
            self.until(SLEEPS)  # for the other queue
            jobs += self.add_to(self.a, 2)
            go_on.set()
            self.completed(*jobs)
        self.completed(*self.add_to(self.b, 3))  # ends the long wait
        self.assertEqual(stop(), {"committed": 3})

    def test_sessions_that_end(self):
        """Every session of the worker is ended while the queues work; each effect happens once."""
        def effect(job, conn):
            conn.execute("INSERT INTO effects VALUES (%s, %s)", (self.queue, job.payload))

        stop = self.start_worker({self.a: Inside(effect, concurrency=2), self.b: Inside(effect, batch=3), self.c: Outside(lambda job: job.step("s", lambda step: 1))})
        jobs = []
        for round in range(5):
            for n, queue in enumerate(self.queues):
                jobs += self.add_to(queue, *(100 * round + 10 * n + k for k in range(5)))
            self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'idemq-python' AND datname = current_database()")
        self.completed(*jobs)
        stop()
        self.assertEqual(self.effects(), sorted(100 * round + 10 * n + k for round in range(5) for n in range(2) for k in range(5)))


if __name__ == "__main__":
    tap.main()
