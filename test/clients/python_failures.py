"""python_failures.py: failures that are not repeated, those that are not counted, and what a worker does if all attempts fail.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import logging
import os
import threading
import time
import unittest.mock

import psycopg

import idemq
import idemq._attempt_runner
import idemq._failures
import idemq._links
import tap
from idemq import Inside, Kind
from idemq._failures import Breaker, fingerprint
from python_common import DSN, Client


class Failures(Client):
    def raising(self, *errors):
        """Handlers of run and run_outside that raise the errors in turn, as functions and as coroutine functions; how to drain with each."""
        for outside in (False, True):
            left = list(errors)

            def fails(job, conn=None, left=left):
                raise left.pop(0)

            yield lambda fails=fails, outside=outside, **options: self.drain(fails, outside, **options)
            left = list(errors)

            async def fails_async(job, conn=None, left=left):
                raise left.pop(0)

            yield lambda fails_async=fails_async, outside=outside, **options: self.drain_async(fails_async, outside, **options)

    def test_never_retry(self):
        class NoSuchOrder(LookupError):
            pass

        for run in self.raising(NoSuchOrder("42"), ValueError("other"), idemq.RetryLater("1 h")):
            self.alter("retry_base => '1 h'")
            jobs = self.add(1, 2, 3)
            self.assertEqual(run(never_retry=(LookupError, idemq.RetryLater)), {"dead": 1, "retrying": 2})
            self.assertEqual([self.job(job)[:2] for job in jobs], [("dead", 1), ("retrying", 1), ("retrying", 1)])
            self.assertIn("NoSuchOrder: 42", self.job(jobs[0])[3])
            for job in jobs:
                idemq.cancel(self.conn, job)
        for wrong in ("ValueError", ["x"], (ValueError(),)):
            with self.assertRaisesRegex(TypeError, "never_retry must (contain|be a sequence of) exception classes, not "):
                Inside(self.do, never_retry=wrong)
        (job,) = self.add(1)
        outcomes = idemq.drain(DSN, {self.queue: Inside(lambda job, conn: 1 / 0, never_retry=[ZeroDivisionError])})
        self.assertEqual((outcomes, self.job(job)[0]), ({"dead": 1}, "dead"))

    def test_in_a_batch(self):
        """The others of its transaction are completed."""
        def handler(job, conn):
            self.effect(conn, job.payload)
            if job.payload == 2:
                raise KeyError(job.payload)

        jobs = self.add(1, 2, 3)
        self.assertEqual(self.drain(handler, batch=10, never_retry=(KeyError,)), {"committed": 2, "dead": 1})
        self.assertEqual(([self.job(job)[0] for job in jobs], self.effects()), (["completed", "dead", "completed"], [1, 3]))

    def test_the_loss_of_the_own_server(self):
        """Outside, it does not count, at most three times in a row; inside, the transaction runs again at once."""
        def loses(job):
            with psycopg.connect(DSN) as conn:
                conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")

        async def loses_async(job):
            async with await psycopg.AsyncConnection.connect(DSN) as conn:
                await conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")

        def not_there(job):
            raise psycopg.OperationalError("connection to server failed")

        for drain, handler in ((self.drain, loses), (self.drain_async, loses_async), (self.drain, not_there)):
            (job,) = self.add(1, max_attempts=2)
            self.alter("retry_base => '1 h'")
            with self.assertLogs("idemq", "WARNING") as logs:
                for _ in range(3):
                    self.assertEqual(drain(handler, True), {"released": 1})
                    self.assertEqual(self.job(job)[:2], ("pending", 0))
                    self.assertEqual(drain(handler, True), {})  # a second later
                    idemq.retry(self.conn, job)
            self.assertIn("is given back, because the connection to the server was lost", logs.output[0])
            self.assertEqual(drain(handler, True), {"retrying": 1})
            self.assertEqual(self.job(job)[:2], ("retrying", 1))
            idemq.retry(self.conn, job)
            self.assertEqual(drain(handler, True), {"released": 1})  # in a row
            idemq.cancel(self.conn, job)

    def test_inside_such_an_error_counts(self):
        """If the connection of the transaction itself is lost, it runs again anyway."""
        def fails(job, conn):
            raise psycopg.OperationalError("connection to server failed")

        self.alter("retry_base => '1 h'")
        self.add(1)
        self.assertEqual(self.drain(fails), {"retrying": 1})

    def test_what_is_no_loss_of_the_own_server(self):
        def elsewhere():
            try:
                psycopg.connect("host=127.0.0.1 port=1 connect_timeout=2")
            except psycopg.OperationalError as error:
                return error

        for error in (ConnectionRefusedError("HTTP"), psycopg.errors.UniqueViolation("key"), psycopg.errors.DiskFull("53100"), psycopg.errors.QueryCanceled("57014"), elsewhere()):
            (job,) = self.add(1, max_attempts=1)

            def fails(job, error=error):
                raise error

            self.assertEqual(self.drain(fails, True), {"dead": 1}, error)

    def test_a_limit_and_a_backoff_of_a_kind(self):
        """The others have those of the queue."""
        self.alter("retry_base => '1 h'")
        kinds = {"slow": Kind(lambda job, conn=None: 1 / 0, backoff=[60, "5 min"]), "constant": Kind(lambda job, conn=None: 1 / 0, backoff=7200), None: lambda job, conn=None: 1 / 0}
        for outside in (False, True):
            jobs = [self.add(1, kind=kind)[0] for kind in ("slow", "constant", None)]
            for expected in ((60, 7200, None), (300, 7200, None), (300, 7200, None)):
                self.assertEqual(self.drain(kinds, outside), {"retrying": 3})
                for job, seconds in zip(jobs, expected):
                    ((wait,),) = self.sql("SELECT extract(epoch FROM ready_at - idemq.clock_timestamp())::float8 FROM idemq.jobs WHERE id = %s", job)
                    if seconds is not None:
                        self.assertTrue(seconds - 60 < wait <= seconds, (wait, seconds))
                    idemq.retry(self.conn, job)
            for job in jobs:
                idemq.cancel(self.conn, job)

    def test_the_time_of_a_kind(self):
        def sleeps(job, conn=None):
            self.until_set(job.cancelled)
            raise TimeoutError

        async def sleeps_async(job, conn=None):
            await asyncio.sleep(3600)

        for drain, handler in ((self.drain, sleeps), (self.drain_async, sleeps_async)):
            for outside in (False, True):
                (job,) = self.add(1, kind="slow", max_attempts=1)
                self.assertEqual(drain({"slow": Kind(handler, timeout=0.2)}, outside), {"dead": 1})  # meant to expire
                self.assertEqual(self.job(job)[3], "stopped after 0.2 s (timeout of kind slow)")

    def test_a_batch_has_the_time_of_all_its_jobs(self):
        seen = []

        def handler(job, conn):
            seen.append(job._execution.ends_at - time.monotonic())
            self.effect(conn, job.payload)

        self.add(1, 2, 3, kind="slow")
        self.assertEqual(self.drain({"slow": Kind(handler, timeout=1000)}, batch=10), {"committed": 3})
        self.assertTrue(2900 < seen[0] <= 3000, seen)
        self.alter("job_timeout => '10 min'")
        self.add(1, kind="slow")
        self.drain({"slow": Kind(handler, timeout=1000)})
        self.assertLess(seen[-1], 600)

    def test_what_a_kind_refuses(self):
        for error, said, call in (
            (TypeError, "handler must be a function, not int", lambda: Kind(1)),
            (ValueError, "timeout must be greater than 0 seconds, not 0", lambda: Kind(self.do, timeout=0)),
            (ValueError, "backoff must not be empty", lambda: Kind(self.do, backoff=[])),
            (TypeError, "backoff must be a timedelta", lambda: Kind(self.do, backoff=[{}])),
            (ValueError, "give_up_after must be greater than 0 seconds, not 0", lambda: idemq.Worker(DSN, "q", give_up_after=0)),
        ):
            with self.assertRaisesRegex(error, said):
                call()

    def test_a_drain_names_its_claims(self):
        workers = []
        for options, name in (({}, f"python {os.getpid()}"), ({"name": "me"}, "me")):
            for outside in (False, True):
                self.add(1, 2)
                self.drain(lambda job, conn=None: workers.extend(self.sql("SELECT worker FROM idemq.jobs WHERE id = %s", job.id)), outside, **options)
                self.assertEqual(workers, [(name,)] * 2)
                workers.clear()

    def test_jobs_are_given_back_although_the_first_requests_get_no_answer(self):
        """A table is locked, and then the connection is lost."""
        ask, released, begun, ready = idemq._links.AsyncLink.ask, [], [], threading.Event()

        async def troubled(link, sql, values=(), timeout=None):
            if "release_many" in sql:
                released.append(values)
                if len(released) == 1:
                    raise psycopg.errors.LockNotAvailable
                if len(released) == 2:
                    self.sql("SELECT pg_terminate_backend(%s)", link.conn.info.backend_pid)
            return await ask(link, sql, values, timeout)

        def handler(job, conn):
            begun.append(job.id)
            self.until_set(ready)
            stop(wait=False)

        self.alter("retry_base => '1 h'")
        jobs = self.add(1, 2, 3)
        self.assertEqual(self.drain(lambda job, conn: 1 / 0), {"retrying": 3})  # so each runs alone
        self.sql("SELECT idemq.retry(id) FROM unnest(%s::bigint[]) AS j (id)", jobs)
        with unittest.mock.patch.object(idemq._links.AsyncLink, "ask", troubled), self.assertLogs("idemq", "INFO") as logs:
            stop = self.start(handler, batch=3, attach=False)
            ready.set()
            self.until("SELECT count(*) = 1 AND min(attempt) = 2 FROM idemq.jobs WHERE id = ANY(%s) AND status = 'completed'", jobs)
            self.until("SELECT count(*) = 0 FROM idemq.jobs WHERE id = ANY(%s) AND status = 'running'", jobs)
            stop()
        self.assertEqual((len(released), len(begun)), (3, 1))
        self.assertEqual([self.job(job)[:2] for job in jobs if job not in begun], [("pending", 1)] * 2)
        self.assertNotIn("wait until their leases expire", "".join(logs.output))

    def test_a_worker_that_cannot_connect_gives_up(self):
        for worker in (lambda: idemq.Worker("host=127.0.0.1 port=1", self.queue, give_up_after=0.3).run(self.do),
                       lambda: asyncio.run(idemq.AsyncWorker("host=127.0.0.1 port=1", self.queue, give_up_after=0.3).run(self.do_async))):
            with self.assertLogs("idemq", "ERROR") as logs, self.assertRaisesRegex(psycopg.OperationalError, "refused"):
                worker()
            self.assertIn("the worker gives up, because it has had no connection for 0.3 s", logs.output[-1])

    def test_a_worker_whose_server_goes_away_gives_up(self):
        gone = threading.Event()
        connect = idemq._links.connect_async

        async def refuses(*args):
            if gone.is_set():
                raise psycopg.OperationalError("the server is away")
            return await connect(*args)

        def run():
            try:
                idemq.Worker(DSN, self.queue, give_up_after=0.5).run(self.do)
            except psycopg.OperationalError as error:
                raised.append(str(error))

        raised = []
        with unittest.mock.patch.object(idemq._links, "connect_async", refuses):
            thread = threading.Thread(target=run)
            thread.start()
            self.until("SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'CALL idemq.wait%%' AND state = 'active' AND application_name = 'idemq-python'")
            gone.set()
            self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'idemq-python' AND datname = current_database()")
            thread.join(60)
        self.assertEqual(raised, ["the server is away"])


class Breakers(Client):
    """Ten failures in a row with the same fingerprint."""

    def setUp(self):
        super().setUp()
        self.set_seconds("FIRST_PAUSE", 0.05, idemq._failures)
        self.set_seconds("LAST_PAUSE", 0.05, idemq._failures)
        self.alter("retry_base => '1 h'")

    def test_fingerprints(self):
        same = (ValueError("order 42 of 'anna'"), ValueError('order 43 of "bert"')), (KeyError("1234abcd-99"), KeyError("77"))
        for one, other in same:
            self.assertEqual(fingerprint(one), fingerprint(other))
        others = ValueError("no order"), KeyError("order 42 of 'anna'"), psycopg.errors.UniqueViolation("a"), psycopg.errors.CheckViolation("a")
        self.assertEqual(len({fingerprint(error) for error in others}), 4)

    def test_when_it_opens(self):
        breaker = Breaker()
        for n in range(9):
            self.assertEqual(breaker.failed("a", ValueError(f"order {n}")), (False, 0.0))
        self.assertEqual(breaker.failed("a", KeyError("other")), (False, 0.0))  # not the same
        self.assertFalse(breaker.is_open)
        for n in range(8):
            breaker.failed("a", KeyError("other"))
            breaker.failed("b", KeyError("other"))
        self.assertFalse(breaker.is_open)
        self.assertTrue(breaker.failed("a", KeyError("other"))[0])
        self.assertTrue(breaker.is_open)
        self.assertFalse(breaker.failed("a", KeyError("other"))[0])  # one line
        self.assertFalse(breaker.succeeded("b"))
        self.assertTrue(breaker.is_open)
        self.assertTrue(breaker.succeeded("a"))
        self.assertFalse(breaker.is_open)
        with unittest.mock.patch.object(idemq._failures, "LAST_PAUSE", 10.0):
            slow = Breaker()
            slow._pause = 1.0
            pauses = [slow.failed(None, ValueError())[1] for _ in range(16)]
        self.assertEqual(pauses, [0.0] * 9 + [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0])

    def test_the_failing_kind_has_no_more_jobs(self):
        """After ten successes of other kinds, several jobs run at a time again.  The next such failure opens the breaker again."""
        breaker = Breaker()
        for _ in range(10):
            breaker.failed("a", ValueError())
        self.assertEqual([breaker.succeeded("b") for _ in range(9)], [False] * 9)
        breaker.failed("a", ValueError())  # it has one
        self.assertEqual([breaker.succeeded("b") for _ in range(10)], [False] * 9 + [True])
        self.assertFalse(breaker.is_open)
        self.assertTrue(breaker.failed("a", ValueError())[0])
        self.assertTrue(breaker.is_open)

    def test_so_many_kinds(self):
        """Those that failed last are remembered."""
        with unittest.mock.patch.object(idemq._failures, "MOST_KINDS", 3):
            breaker = Breaker()
            for kind in ("open", *"abcdefgh"):
                for _ in range(9):
                    breaker.failed(kind, ValueError())
                breaker.failed("open", ValueError())
            self.assertTrue(breaker.is_open)
            self.assertEqual(list(breaker._failures), ["g", "h", "open"])
            for kind in "xyz":
                breaker.failed(kind, ValueError())
            self.assertFalse(breaker.is_open)

    def until_one_at_a_time(self, options, outside, deploy):
        """Runs 200 jobs with a handler that fails until `deploy` is set; how many jobs ran at once after the tenth failure."""
        at_once, most, failures = [0], [], []
        lock = threading.Lock()
        opened = threading.Event()

        def handler(job, conn=None):
            with lock:
                at_once[0] += 1
                if opened.is_set():
                    most.append(at_once[0])
            try:
                time.sleep(0.15 if opened.is_set() and not deploy.is_set() else 0.005)  # longer than the pause
                if not deploy.is_set():
                    failures.append(job.id)
                    raise ValueError(f"bad deploy, order {job.payload}")
            finally:
                with lock:
                    at_once[0] -= 1

        class Opens(logging.Handler):
            def emit(self, record):
                if "ten attempts in a row" in record.getMessage():
                    lines.append(record.getMessage())
                    threading.Timer(0.3, opened.set).start()  # those that had begun have ended

        lines = []
        opens = Opens()
        logger = idemq._attempt_runner.log
        logger.addHandler(opens)
        self.addCleanup(logger.removeHandler, opens)
        jobs = self.add(*range(200))
        stop = self.start(handler, outside, **options)
        self.until_set(opened)
        while len(most) < 5:
            time.sleep(0.01)
        deploy.set()
        self.until("SELECT count(*) = 0 FROM idemq.jobs WHERE id = ANY(%s) AND status IN ('pending', 'running')", jobs)
        stop()
        logger.removeHandler(opens)
        self.assertEqual(lines, [f"{self.queue}: ten attempts in a row have failed with the same error, so the worker runs one job at a time until one succeeds: {lines[0].split(': ', 2)[2]}"])
        return most, failures, jobs

    def test_a_bad_deploy_keeps_the_attempts_of_the_backlog(self):
        for options, outside in (({"concurrency": 8}, True), ({"concurrency": 4}, False), ({"batch": 100}, False), ({"concurrency": 2, "batch": 50}, False)):
            with self.subTest(options, outside=outside):
                deploy = threading.Event()
                most, failures, jobs = self.until_one_at_a_time(options, outside, deploy)
                self.assertEqual(set(most[:5]), {1})
                ((counted,),) = self.sql("SELECT count(*) FROM idemq.jobs WHERE id = ANY(%s) AND status = 'retrying'", jobs)
                self.assertLess(counted, 60)
                self.assertEqual(self.sql("SELECT max(attempt) FROM idemq.jobs WHERE id = ANY(%s)", jobs), [(1,)])
                if options.get("concurrency", 1) > 1 and outside:
                    self.assertGreater(max(most), 1)  # afterwards, several at a time again
                self.sql("SELECT idemq.cancel(id) FROM idemq.jobs WHERE id = ANY(%s) AND status = 'retrying'", jobs)

    def test_not_in_a_drain(self):
        self.add(*range(30))
        with unittest.mock.patch.object(Breaker, "failed", side_effect=AssertionError):
            self.assertEqual(self.drain(lambda job, conn: 1 / 0), {"retrying": 30})


if __name__ == "__main__":
    tap.main()
