"""python_client.py: what a handler's end, a lost answer and a lost lease do with clients/python.

For python.pl, which says where the server is (IDEMQ_DSN); its worker is on.  Tests that need real time or many jobs are in
python_client_slow.py.  A test that needs a handler's time to be over, or a lost lease to be noticed, does not wait for a
short timeout: it calls end_time or beat once the situation exists.  So a slow machine cannot make a timeout expire early.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import datetime
import functools
import logging
import os
import signal
import socket
import sys
import threading
import time
import types
import unittest
import unittest.mock

import psycopg

import idemq
import idemq._attempts
import idemq._run
from idemq import _places
import manual
import idemq._trace
import tap

DSN = os.environ["IDEMQ_DSN"]
os.environ.pop("PGAPPNAME", None)  # sessions of workers are found by the client's own
logging.getLogger("idemq").addHandler(logging.NullHandler())
logging.getLogger("psycopg").addHandler(logging.NullHandler())
logging.getLogger("idemq").propagate = False


class Proxy:
    """A server's TCP port of its own, which cuts a connection at a COMMIT: before or after it is done."""

    def __init__(self, cut):
        self.cut = cut  # how often
        self.after = True
        self.cuts = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        info = psycopg.conninfo.conninfo_to_dict(DSN)
        self.to = f"{info['host']}/.s.PGSQL.{info['port']}"
        threading.Thread(target=self.accept, daemon=True).start()

    def dsn(self, more=""):
        params = dict(psycopg.conninfo.conninfo_to_dict(DSN), host="127.0.0.1", port=self.port)
        return psycopg.conninfo.make_conninfo(**params) + " gssencmode=disable " + more

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.to)
            armed = [False]
            threading.Thread(target=self.up, args=(client, server, armed), daemon=True).start()
            threading.Thread(target=self.down, args=(client, server, armed), daemon=True).start()

    def up(self, client, server, armed):
        while data := self.read(client):
            if b"COMMIT\0" in data and self.cuts < self.cut:
                self.cuts += 1
                if not self.after:
                    self.end(client, server)
                    return
                armed[0] = True
            server.sendall(data)
        self.end(client, server)

    def down(self, client, server, armed):
        while data := self.read(server):
            if armed[0]:
                break  # done, and nobody hears of it
            client.sendall(data)
        self.end(client, server)

    @staticmethod
    def read(end):
        try:
            return end.recv(65536)
        except OSError:
            return b""

    @staticmethod
    def end(*ends):
        for each in ends:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Client(unittest.TestCase):
    number = 0

    def setUp(self):
        Client.number += 1
        self.queue = f"queue_{os.getpid()}_{Client.number}"
        self.conn = psycopg.connect(DSN, autocommit=True)
        self.addCleanup(self.conn.close)
        self.sql("SELECT idemq.create_queue(%s, lease => '1 h', retry_base => '1 ms')", self.queue)
        self.sql("CREATE TABLE IF NOT EXISTS effects (queue text, n int, by text)")
        # On a busy machine, a handler that was told to end may take longer than the client's 5 s.
        self.set_seconds("KILL_AFTER", 120)

    def sql(self, sql, *values):
        cursor = self.conn.execute(sql, values)
        return cursor.fetchall() if cursor.description else None

    def alter(self, settings):
        self.sql(f"SELECT idemq.alter_queue('{self.queue}', {settings})")

    def add(self, *payloads, **options):
        return [idemq.enqueue(self.conn, self.queue, payload, **options).id for payload in payloads]

    def effects(self):
        return [n for n, in self.sql("SELECT n FROM effects WHERE queue = %s ORDER BY n", self.queue)]

    def job(self, job_id):
        return self.sql("SELECT status::text, attempt, result, last_error FROM idemq.jobs WHERE id = %s", job_id)[0]

    def until(self, sql, *values):
        give_up = time.monotonic() + 120
        while not self.sql(sql, *values)[0][0]:
            if time.monotonic() > give_up:
                self.fail(f"never: {sql} {values}")
            time.sleep(0.05)

    def until_set(self, event):
        self.assertTrue(event.wait(60), "it has not happened")

    def effect(self, conn, n):
        conn.execute("INSERT INTO effects VALUES (%s, %s)", (self.queue, n))

    def do(self, job, conn):
        self.effect(conn, job.payload)
        return {"n": job.payload}

    async def do_async(self, job, conn):
        await conn.execute("INSERT INTO effects VALUES (%s, %s)", (self.queue, job.payload))
        return {"n": job.payload}

    def drain(self, handler, outside=False, dsn=DSN, **options):
        return idemq.drain(dsn, self.queue, handler, outside, **options)

    def drain_async(self, handler, outside=False, dsn=DSN, **options):
        return asyncio.run(idemq.drain_async(dsn, self.queue, handler, outside, **options))

    def start(self, handler, outside=False, dsn=DSN, **options):
        """A worker in a thread, and what stops it, at the end of the test at the latest."""
        worker = idemq.Worker(dsn, self.queue, **options)
        thread = threading.Thread(target=worker.run_outside if outside else worker.run, args=(handler,))
        told = []

        def stop(wait=True):
            if not told:
                told.append(worker.stop())
            if wait:
                thread.join(60)
                self.assertFalse(thread.is_alive(), "the worker ends")

        thread.start()
        self.addCleanup(stop)
        return stop

    def until_completed(self, drain, jobs):
        """Drains until they are; what ended how."""
        ended = collections.Counter()
        give_up = time.monotonic() + 120
        while any(self.job(job)[0] != "completed" for job in jobs):
            if time.monotonic() > give_up:
                self.fail(f"never completed: {ended}")
            ended.update(drain())
            time.sleep(0.05)
        return ended

    @staticmethod
    def end_time(job):
        """Ends the time of a handler as if job_timeout had passed."""
        unit = job._unit
        unit._run.call_loop(unit.end, "time")

    def end_time_in_statement(self, job, conn):
        """Ends the time of a handler as soon as its session is in pg_sleep."""
        pid = conn.info.backend_pid

        def ends():
            self.until("SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'", pid)
            self.end_time(job)

        thread = threading.Thread(target=ends)
        thread.start()
        self.addCleanup(thread.join)

    def beat(self, job):
        """Makes the worker send heartbeats for a job now, instead of after a third of the lease, until the job is
        cancelled or the test ends.  One heartbeat is not enough: the answer to an earlier one may postpone it."""
        run = job._unit._run
        over = threading.Event()

        def beats():
            while not job.cancelled.is_set() and not over.wait(0.05):
                job._beat_at = time.monotonic()
                run.call_loop(run._beat_now.set)

        thread = threading.Thread(target=beats)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(over.set)

    def set_seconds(self, name, seconds):
        before = getattr(idemq._attempts, name)
        setattr(idemq._attempts, name, seconds)
        self.addCleanup(setattr, idemq._attempts, name, before)


class Producers(Client):
    def test_the_callers_transaction(self):
        with psycopg.connect(DSN) as conn:
            first = idemq.enqueue(conn, self.queue, {"a": [1]}, key="k", priority=2, delay=60, headers={"h": 1})
            conn.rollback()
            self.assertEqual(self.sql("SELECT count(*) FROM idemq.jobs WHERE id = %s", first.id), [(0,)])
            again = idemq.enqueue(conn, self.queue, {"a": [1]}, key="k", priority=2, delay=60, headers={"h": 1})
        self.assertEqual((again.outcome, again.status, again.result), ("accepted", "pending", None))
        self.assertEqual(
            self.sql("SELECT payload, key, priority, headers, ready_at > now() FROM idemq.jobs WHERE id = %s", again.id),
            [({"a": [1]}, "k", 2, {"h": 1}, True)],
        )

    def test_a_key(self):
        (job,) = self.add(1, key="k")
        self.assertEqual(idemq.enqueue(self.conn, self.queue, 1, key="k")[:2], (job, "duplicate"))
        with self.assertRaises(idemq.KeyReused) as caught:
            self.add(2, key="k")
        self.assertEqual(caught.exception.sqlstate, "IQ003")
        with self.assertRaises(idemq.DuplicateKey):
            self.add(1, key="k", on_duplicate="error")
        with self.assertRaises(idemq.NoSuchQueue):
            idemq.enqueue(self.conn, "none", 1)

    def test_asyncio_and_other_rows(self):
        async def run():
            conn = await psycopg.AsyncConnection.connect(DSN, row_factory=psycopg.rows.dict_row)
            async with conn:
                return await idemq.enqueue(conn, self.queue, 3)

        self.assertEqual(asyncio.run(run()).outcome, "accepted")
        with psycopg.connect(DSN, row_factory=psycopg.rows.dict_row) as conn:
            self.assertEqual(idemq.enqueue(conn, self.queue, 3).outcome, "accepted")

    def test_debounce(self):
        options = {"key": "k", "delay": 7200, "max_wait": 3600, "on_duplicate": "replace"}
        (job,) = self.add(1, **options)
        self.assertEqual(self.add(2, **options), [job])
        rows = self.sql("SELECT payload, ready_at - enqueued_at = '1 h' FROM idemq.jobs WHERE id = %s", job)
        self.assertEqual(rows, [(2, True)])

    def test_errors_by_sqlstate(self):
        (job,) = self.add(1)
        token = self.sql("SELECT token FROM idemq.claim(%s)", self.queue)[0][0]
        self.assertTrue(issubclass(idemq.StaleToken, idemq.IdemqError))
        for error, sql, values in (
            (idemq.StaleToken, "SELECT idemq.commit(%s, %s)", (job, token - 1)),
            (idemq.NoSuchJob, "SELECT idemq.commit(%s, %s)", (-1, token)),
        ):
            with self.assertRaises(error):
                self.sql(sql, *values)
        self.sql("SELECT idemq.commit(%s, %s)", job, token)
        with self.assertRaises(idemq.AlreadyCommitted):
            self.sql("SELECT idemq.commit(%s, %s)", job, token)


    def test_another_drivers_connection(self):
        for module, name, said in (
            ("psycopg2.extensions", "connection", "not a psycopg2.extensions.connection: .* psycopg 3"),
            ("sqlalchemy.orm.session", "Session", "driver_connection"),
            ("sqlalchemy.engine.base", "Connection", "driver_connection"),
            ("django.utils.connection", "ConnectionProxy", "connection.ensure_connection"),
            ("psycopg_pool.pool", "ConnectionPool", "with pool.connection"),
            ("asyncpg.connection", "Connection", "not a asyncpg.connection.Connection$"),
        ):
            other = type(name, (), {"__module__": module})()
            for call in (
                lambda: idemq.enqueue(other, self.queue, 1),
                lambda: idemq.publish(other, "topic", 1),
                lambda: idemq.send_event(other, self.queue, "paid"),
                lambda: idemq.wait_results(other, [1]),
            ):
                with self.assertRaisesRegex(TypeError, r"psycopg.Connection or AsyncConnection \(psycopg 3\) is wanted, .*" + said):
                    call()

            def checkpoint(job):
                job.checkpoint(1, other)

            (job,) = self.add(1, max_attempts=1)
            self.drain(checkpoint, outside=True)
            self.assertRegex(self.job(job)[3], "TypeError: .*" + said)


class Flows(Client):
    """Events, parents, graphs, topics, numbers."""

    def until_paid(self, job, conn):
        self.effect(conn, job.payload)
        paid = job.await_event(f"paid {job.payload}", "1 h")
        return {"arrived": paid.arrived, "payload": paid.payload}

    async def until_paid_async(self, job, conn):
        await self.do_async(job, conn)
        paid = await job.await_event(f"paid {job.payload}", 3600)
        return {"arrived": paid.arrived, "payload": paid.payload}

    def until_paid_outside(self, job):
        paid = job.await_event(f"paid {job.payload}", "1 h")
        return {"arrived": paid.arrived, "payload": paid.payload}

    async def until_paid_outside_async(self, job):
        paid = await job.await_event(f"paid {job.payload}", "1 h")
        return {"arrived": paid.arrived, "payload": paid.payload}

    def until_ended(self, handlers, expected):
        """A child is ready milliseconds after its parents."""
        self.until_all(self.drain, handlers, expected)

    def until_all(self, drain, handlers, expected):
        ended = collections.Counter()
        give_up = time.monotonic() + 120
        while sum(ended.values()) < sum(expected.values()) and time.monotonic() < give_up:
            ended.update(drain(handlers))
            time.sleep(0.05)
        self.assertEqual(ended, expected)

    def test_await_event(self):
        ways = (
            (self.drain, self.until_paid, False, [1]),
            (self.drain_async, self.until_paid_async, False, [2]),
            (self.drain, self.until_paid_outside, True, []),
            (self.drain_async, self.until_paid_outside_async, True, []),
        )
        for n, (drain, handler, outside, effects) in enumerate(ways, 1):
            with self.subTest(n):
                (job,) = self.add(n)
                self.sql("DELETE FROM effects WHERE queue = %s", self.queue)
                self.assertEqual(drain(handler, outside), {"waiting": 1})
                # What it had done is undone, the attempt not counted, and nobody gets the job until the hour is over.
                self.assertEqual(self.effects(), [])
                self.assertEqual(self.job(job), ("pending", 0, None, None))
                self.assertEqual(drain(handler, outside), {})
                state = self.sql("SELECT name, state, call_until - begun_at = '1 h' FROM idemq.steps WHERE job_id = %s", job)
                self.assertEqual(state, [(f"paid {n}", "waiting", True)])
                self.assertEqual(idemq.send_event(self.conn, self.queue, f"paid {n}", {"n": n}), ("accepted", {"n": n}))
                self.assertEqual(drain(handler, outside), {"committed": 1})
                self.assertEqual(self.effects(), effects)
                self.assertEqual(self.job(job), ("completed", 1, {"arrived": True, "payload": {"n": n}}, None))
                self.assertEqual(idemq.send_event(self.conn, self.queue, f"paid {n}"), ("duplicate", {"n": n}))

    def test_a_timeout_and_an_event_without_payload(self):
        ways = ((self.until_paid, False), (self.until_paid_outside, True))
        for n, (handler, outside) in enumerate(ways):
            (late, early) = self.add(2 * n, 2 * n + 1)
            idemq.send_event(self.conn, self.queue, f"paid {2 * n + 1}")
            self.assertEqual(self.drain(handler, outside), {"committed": 1, "waiting": 1})
            self.assertEqual(self.job(early)[2], {"arrived": True, "payload": None})
            self.sql("UPDATE idemq.steps SET call_until = now() - interval '1 s' WHERE job_id = %s", late)
            self.sql("SELECT idemq.retry(%s)", late)
            self.assertEqual(self.drain(handler, outside), {"committed": 1})
            self.assertEqual(self.job(late)[:3], ("completed", 1, {"arrived": False, "payload": None}))

    def test_a_handler_that_catches_everything(self):
        """The attempt is over all the same; what it does instead does not count."""

        def inside(job, conn):
            try:
                job.await_event("never", "1 h")
            except BaseException:
                self.effect(conn, 1)

        def outside(job):
            try:
                job.await_event("never", "1 h")
            except BaseException:
                raise ValueError("no way") from None

        def raises(job, conn):
            inside(job, conn)
            raise idemq.Dead("no way")

        for handler, is_outside in ((inside, False), (raises, False), (outside, True)):
            (job,) = self.add(1)
            self.assertEqual(self.drain(handler, is_outside), {"waiting": 1})
            self.assertEqual(self.job(job), ("pending", 0, None, None))
        self.assertEqual(self.effects(), [])
        # `except Exception` does not hold it up.
        self.assertFalse(issubclass(idemq.Waiting, Exception))

    def test_what_a_handler_has_heard_stays(self):
        """Its transaction is undone when it waits for another event, or fails; the event may be forgotten by then."""
        failures = [ValueError("no way"), idemq.Snooze(0)]

        def handler(job, conn):
            first = job.await_event("first", "1 h")
            if failures and job.payload == 2:
                raise failures.pop()
            return [first.payload, job.await_event("second", "1 h").payload]

        async def handler_async(job, conn):
            return [(await job.await_event(name, "1 h")).payload for name in ("first", "second")]

        ways = (
            (self.drain, handler, 1, {"waiting": 1}),
            (self.drain, handler, 2, {"waiting": 1, "retrying": 1, "released": 1}),
            (self.drain_async, handler_async, 3, {"waiting": 1}),
        )
        for drain, way, payload, ended in ways:
            (job,) = self.add(payload)
            idemq.send_event(self.conn, self.queue, "first", 7)
            self.until_all(drain, way, ended)
            self.assertEqual(self.forget("first"), 1)
            idemq.send_event(self.conn, self.queue, "second", 8)
            self.assertEqual(drain(way), {"committed": 1})
            self.assertEqual(self.job(job)[2], [7, 8])
            self.assertEqual(self.forget("second"), 1)

    def forget(self, event):
        """As at the end of the queue's idempotency_window."""
        return self.sql(
            """WITH gone AS (DELETE FROM idemq.events e USING idemq.queues q
                WHERE e.queue_id = q.queue_id AND q.name = %s AND e.name = %s RETURNING 1) SELECT count(*) FROM gone""",
            self.queue, event,
        )[0][0]

    def test_one_of_a_batch_waits(self):
        def handler(job, conn):
            self.effect(conn, job.payload)
            return job.await_event("never", "1 h").arrived if job.payload == 2 else None

        self.add(1, 2, 3)
        self.assertEqual(self.drain(handler, batch=3), {"committed": 2, "waiting": 1})
        self.assertEqual(self.effects(), [1, 3])

    def test_the_event_comes_between_the_rollback_and_the_wait(self):
        """The attempt is current then, and its handler over: the job is given back, and hears it at once."""
        (job,) = self.add(1)
        wait = idemq._attempts.Attempts._wait

        async def later(run, job, waiting):
            await asyncio.to_thread(idemq.send_event, self.conn, self.queue, waiting.name, "now")
            await wait(run, job, waiting)

        with unittest.mock.patch.object(idemq._attempts.Attempts, "_wait", later):
            self.assertEqual(self.drain(self.until_paid), {"released": 1, "committed": 1})
        self.assertEqual(self.job(job), ("completed", 1, {"arrived": True, "payload": "now"}, None))
        self.assertEqual(self.effects(), [1])

    def test_a_lost_job_does_not_wait(self):
        """Another attempt has it by then."""
        (job,) = self.add(1)
        wait = idemq._attempts.Attempts._wait

        async def later(run, job, waiting):
            await asyncio.to_thread(self.sql, "SELECT idemq.cancel(%s)", job.id)
            await wait(run, job, waiting)

        with unittest.mock.patch.object(idemq._attempts.Attempts, "_wait", later):
            self.assertEqual(self.drain(self.until_paid), {"stale": 1})
        self.assertEqual(self.job(job)[0], "cancelled")

    def test_what_await_event_refuses(self):
        for outside, handler in ((False, lambda job, conn: job.await_event("x" * 257, 1)), (True, lambda job: job.await_event("x" * 257, 1))):
            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(self.drain(handler, outside), {"dead": 1})
            self.assertEqual(self.sql("SELECT details->>'sqlstate' FROM idemq.attempts WHERE job_id = %s", job), [("22023",)])

    def test_parents(self):
        (first,) = self.add(1)
        (second,) = self.add(2, max_attempts=1)
        child = idemq.enqueue(self.conn, self.queue, 3, depends_on=(first, second), on_parent_failure="run")
        self.assertEqual(child.status, "blocked")

        def begin(job, conn):
            if job.payload == 3:
                return [parent.status for parent in job.parents()]
            if job.payload == 2:
                raise idemq.Dead("no way")
            return self.do(job, conn)

        self.until_ended(begin, {"committed": 2, "dead": 1})
        self.assertEqual(self.job(child.id)[2], ["completed", "dead"])

        def handler(job, conn):
            return [list(parent) for parent in job.parents()]

        async def handler_async(job):
            return [list(parent) for parent in await job.parents()]

        for drain, how, outside in ((self.drain, handler, False), (self.drain_async, handler_async, True)):
            child = idemq.enqueue(self.conn, self.queue, 4, depends_on=[first])
            self.until("SELECT status = 'pending' FROM idemq.jobs WHERE id = %s", child.id)
            self.assertEqual(drain(how, outside), {"committed": 1})
            self.assertEqual(self.job(child.id)[2], [[first, self.queue, "completed", {"n": 1}]])

        with self.assertRaises(idemq.NoSuchJob):
            idemq.enqueue(self.conn, self.queue, 3, depends_on=[-1])

    def test_a_graph_and_its_results(self):
        (before,) = self.add(0)
        times = {"delay": 0, "expires_in": datetime.timedelta(days=2), "run_at": None, "headers": {"h": 1}}
        jobs = idemq.enqueue_graph(self.conn, {
            "sum": {"queue": self.queue, "payload": None, "depends_on": ["a", "b", before], "kind": "sum"},
            "a": {"queue": self.queue, "payload": 1, **times},
            "b": {"queue": self.queue, "payload": 2, "run_at": datetime.datetime.now(datetime.timezone.utc)},
        })  # fmt: skip
        self.assertEqual({name: job[1:] for name, job in jobs.items()},
                         {"a": ("accepted", "pending"), "b": ("accepted", "pending"), "sum": ("accepted", "blocked")})
        row = self.sql("SELECT expires_at - enqueued_at = '2 days', headers FROM idemq.jobs WHERE id = %s", jobs["a"].id)
        self.assertEqual(row, [(True, {"h": 1})])
        ids = [job.id for job in jobs.values()]
        self.assertEqual({result.status for result in idemq.wait_results(self.conn, ids, 0.01)}, {"pending", "blocked"})
        handlers = {None: lambda job, conn: job.payload, "sum": lambda job, conn: sum(parent.result for parent in job.parents())}
        self.until_ended(handlers, {"committed": 4})
        self.assertEqual(idemq.wait_results(self.conn, [jobs["sum"].id, before]), [("completed", 3), ("completed", 0)])
        self.assertEqual(idemq.wait_results(self.conn, []), [])
        with self.assertRaises(psycopg.errors.InvalidParameterValue):
            idemq.enqueue_graph(self.conn, {"a": {"queue": self.queue, "payload": 1, "depends_on": ["a"]}})

    def test_how_far_a_flow_is(self):
        list_id = idemq.enqueue(self.conn, self.queue, "list").id
        parts = [idemq.enqueue(self.conn, self.queue, n, depends_on=[list_id]).id for n in range(3)]
        begun = idemq.flow(self.conn, parts[1])
        self.assertEqual(begun[:9] + (begun.progress, begun.eta, begun.held_up_by, begun.failed_ids, begun.roots, begun.cut),
                         (4, 1, 3, 0, 0, 0, 0, 0, 0, 0.0, None, list_id, [], [list_id], False))
        self.until_ended({None: lambda job, conn: None}, {"committed": 4})
        ended = idemq.flow(self.conn, list_id)
        self.assertEqual((ended.done, ended.progress, ended.eta, ended.held_up_by), (4, 100.0, datetime.timedelta(0), None))
        self.assertGreater(ended.slowest_for, datetime.timedelta(0))
        self.assertTrue(idemq.flow(self.conn, list_id, 2).cut)
        self.assertIsNone(idemq.flow(self.conn, 1))

    def holding(self, name, until):
        """A worker that has begun one job, which ends when until() is true."""
        end = threading.Event()
        worker = idemq.Worker(DSN, self.queue, name=name, concurrency=3, signals=False)
        self.add(1)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            running = pool.submit(worker.run_outside, lambda job: end.wait(60))
            while not until():
                time.sleep(0.05)
            end.set()
            self.until("SELECT count(*) = 0 FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s) AND finished_at IS NULL", self.queue)
            worker.stop()
            self.assertEqual(running.result(), {"committed": 1})

    def test_a_worker_reports_itself_and_that_it_is_stopping(self):
        seen = """SELECT program, version <> '', host <> '', queues, concurrency, running, cardinality(jobs), done, state
            FROM idemq.workers WHERE worker = 'talks'"""
        here = []
        # Its first word may come before it has the job; and its last one be written when it has gone.
        self.holding("talks", lambda: here.extend(self.sql(f"{seen} AND running > 0")) or here)
        self.assertEqual(here, [("python", True, True, [self.queue], 3, 1, 1, 0, "here")])
        self.until("SELECT state = 'gone' FROM idemq.workers WHERE worker = 'talks'")
        self.assertEqual(self.sql(seen), [("python", True, True, [self.queue], 3, 0, 0, 1, "gone")])

    def test_a_word_that_is_refused_or_has_to_wait_disturbs_nothing(self):
        asked = "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'idemq-python' AND query LIKE '%%idemq.report_worker%%' AND pid <> pg_backend_pid()"
        with self.assertNoLogs("idemq", "ERROR") if hasattr(self, "assertNoLogs") else unittest.mock.MagicMock():
            self.sql("ALTER FUNCTION idemq.report_worker RENAME TO elsewhere")
            self.holding("refused", lambda: self.sql(asked)[0][0])
            self.sql("ALTER FUNCTION idemq.elsewhere RENAME TO here")
            with psycopg.connect(DSN) as other:
                other.execute("LOCK TABLE idemq_internal.worker_entries")
                self.holding("locked out", lambda: self.sql(asked)[0][0])
        # What waited may still be written once the lock is gone.
        self.assertEqual(self.sql("SELECT worker FROM idemq.workers WHERE worker = 'refused'"), [])

    def test_cancels_of_many(self):
        ids = [idemq.enqueue(self.conn, self.queue, n, kind=kind, key=f"k/{n}", group_key=kind).id
               for n, kind in enumerate(["mail", "pdf", "mail", "mail"])]  # fmt: skip
        self.assertEqual(idemq.cancel_matching(self.conn, self.queue, kind="mail", max_jobs=1), (1, 0))
        self.assertEqual(idemq.cancel_matching(self.conn, self.queue, kind="mail", group_key="pdf"), (0, 0))
        with psycopg.connect(DSN) as other, other.transaction():
            self.assertEqual(idemq.cancel_matching(other, self.queue, key_prefix="k/2").cancelled, 1)
            self.assertEqual(idemq.cancel_matching(self.conn, self.queue, key_prefix="k/").locked, 1)
        with self.assertRaises(psycopg.errors.NullValueNotAllowed):
            idemq.cancel_matching(self.conn, self.queue)
        self.assertEqual(idemq.cancel_many(self.conn, [ids[3], ids[1], -1]), {-1: "not_found", ids[1]: "cancelled", ids[3]: "cancelled"})
        self.assertEqual(idemq.cancel_many(self.conn, []), {})

    def test_topics_and_numbers(self):
        space = self.queue
        self.sql("SELECT idemq.create_topic(%s)", space)
        self.assertEqual(idemq.publish(self.conn, f"{space}.paid", 1), [])
        self.sql("SELECT idemq.bind_topic(%s, %s)", f"{space}.#", self.queue)
        (job,) = idemq.publish(self.conn, f"{space}.paid", {"n": 1}, key="k", kind="mail", priority=1, expires_in=60)
        self.assertEqual((job.queue, job.outcome), (self.queue, "accepted"))
        self.assertEqual(idemq.publish(self.conn, f"{space}.paid", {"n": 1}, key="k"), [(self.queue, job.id, "duplicate")])
        self.assertEqual(self.sql("SELECT payload, kind, priority FROM idemq.jobs WHERE id = %s", job.id), [({"n": 1}, "mail", 1)])

        first = idemq.enqueue_sequenced(self.conn, self.queue, "log/1", 5, "five", kind="k", delay=1)
        self.assertEqual(first[1:], ("accepted", "pending", None))
        self.assertEqual(idemq.enqueue_sequenced(self.conn, self.queue, "log/1", 5, "five"), (first.id, "duplicate", "pending", None))
        self.assertEqual(idemq.enqueue_sequenced(self.conn, self.queue, "log/1", 4, "four"), (None, "duplicate", None, None))

    def test_all_of_it_with_asyncio(self):
        async def run():
            async with await psycopg.AsyncConnection.connect(DSN, autocommit=True, row_factory=psycopg.rows.dict_row) as conn:
                self.assertEqual((await idemq.send_event(conn, self.queue, "e", 1)).outcome, "accepted")
                self.assertEqual((await idemq.send_event(conn, self.queue, "e", 2)).first_payload, 1)
                jobs = await idemq.enqueue_graph(conn, {"a": {"queue": self.queue, "payload": 1}})
                self.assertEqual(await idemq.wait_results(conn, [jobs["a"].id], 0.01), [("pending", None)])
                self.assertEqual((await idemq.enqueue_sequenced(conn, self.queue, "p", 1, 1)).status, "pending")
                self.assertEqual(await idemq.cancel_matching(conn, self.queue, group_key="none"), (0, 0))
                self.assertEqual(await idemq.cancel_many(conn, [jobs["a"].id]), {jobs["a"].id: "cancelled"})
                await conn.execute("SELECT idemq.create_topic(%s)", (self.queue,))
                self.assertEqual(await idemq.publish(conn, self.queue, 1), [])

        asyncio.run(run())

    def test_the_manual(self):
        self.sql("SELECT idemq.create_queue('orders', lease => '1 h'), idemq.create_queue('sums', lease => '1 h')")
        self.sql("CREATE TABLE shipments (no int)")
        self.sql("CREATE TABLE reminders (no int)")
        self.sql("CREATE TABLE sales AS SELECT a AS area, 5 * n AS amount FROM unnest('{north,south}'::text[]) WITH ORDINALITY AS v (a, n)")
        self.addCleanup(self.sql, "DROP TABLE shipments, reminders, sales")
        self.addCleanup(self.sql, "SELECT idemq.drop_queue('orders', force => true), idemq.drop_queue('sums', force => true)")
        for order in (42, 43):
            idemq.enqueue(self.conn, "orders", {"order": order})
        self.assertEqual(idemq.drain(DSN, "orders", manual.ship), {"waiting": 2})
        self.assertEqual(manual.is_paid(self.conn, 42, 12), "accepted")
        self.sql("UPDATE idemq.steps SET call_until = now() WHERE name = 'paid 43'")
        self.sql("SELECT idemq.retry(job_id) FROM idemq.steps WHERE name = 'paid 43'")
        self.assertEqual(idemq.drain(DSN, "orders", manual.ship), {"committed": 2})
        self.assertEqual(self.sql("SELECT shipments.no, reminders.no FROM shipments, reminders"), [(42, 43)])

        workers = []
        with unittest.mock.patch.object(manual, "Worker", lambda *of: workers.append(idemq.Worker(*of, signals=False)) or workers[0]):
            thread = threading.Thread(target=manual.work_sums, args=(DSN,))
            thread.start()
            try:
                self.assertEqual(manual.sales(self.conn), 15)
            finally:
                workers[0].stop()
                thread.join(60)


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

    def test_what_a_handler_sees(self):
        seen = []
        (job,) = self.add({"a": 1}, key="k", headers={"h": "x"})
        self.drain(lambda job, conn: seen.append(job))
        (it,) = seen
        self.assertEqual((it.id, it.attempt, it.payload, it.key, it.headers, it.state), (job, 1, {"a": 1}, "k", {"h": "x"}, None))
        self.assertEqual(it.token, self.sql("SELECT token FROM idemq.jobs WHERE id = %s", job)[0][0])
        self.assertFalse(it.cancelled.is_set())
        left = (it.deadline - it.enqueued_at).total_seconds()
        self.assertTrue(3000 < left < 3700, left)
        with self.assertRaises(RuntimeError):
            it.checkpoint({})
        with self.assertRaises(RuntimeError):
            it.step("a", lambda step: 1)

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

    def test_any_text_and_any_exception(self):
        class Odd(BaseException):
            pass

        for error in (ValueError("\ud800" + "x" * 100_000), SystemExit(3), StopIteration("s"), Odd("o"), KeyError()):
            def fails(job, conn, error=error):
                raise error

            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(self.drain(fails), {"dead": 1}, error)
            self.assertIn(type(error).__name__, self.job(job)[3])

    def test_what_a_handler_says(self):
        for error, outcome, row in (
            (idemq.RetryLater(3600, "busy"), "retrying", ("retrying", 1, None, "busy")),
            (idemq.Snooze(3600), "released", ("pending", 0, None, None)),
            (idemq.Snooze("1 h"), "released", ("pending", 0, None, None)),
            (idemq.Dead("no such address"), "dead", ("dead", 1, None, "no such address")),
        ):
            def says(job, conn, error=error):
                self.do(job, conn)
                raise error

            (job,) = self.add(1)
            self.assertEqual(self.drain(says), {outcome: 1})
            self.assertEqual(self.job(job), row)
            if outcome != "dead":
                due = self.sql("SELECT ready_at > now() + interval '50 min' FROM idemq.jobs WHERE id = %s", job)
                self.assertEqual(due, [(True,)])
        self.assertEqual(self.effects(), [])

    def test_an_error_that_cannot_be_read(self):
        """Its class is anybody's: the attempt fails, and neither the worker nor the next one does."""

        def raises(self):
            raise RuntimeError("not even that")

        unreadable = {"__str__": raises, "__repr__": raises, "sqlstate": property(raises)}
        for base, outcome in ((ValueError, "retrying"), (idemq.Dead, "dead"), (idemq.RetryLater, "retrying"), (BaseException, "retrying")):
            error = type("Unreadable", (base,), unreadable)
            for drain, outside in ((self.drain, False), (self.drain, True), (self.drain_async, False), (self.drain_async, True)):
                self.alter("retry_base => '1 h'")
                (job,) = self.add(1)
                self.assertEqual(drain(self.raiser(error, drain == self.drain_async), outside), {outcome: 1})
                self.assertIn("its str() raised RuntimeError", self.job(job)[3])
                self.assertEqual(self.job(job)[1], 1)
        # Nor does one that asks for the end of the program.
        error = type("Exits", (ValueError,), dict.fromkeys(("__str__",), lambda self: sys.exit(3)) | {"sqlstate": property(sys.exit)})
        for drain in (self.drain, self.drain_async):
            self.add(1)
            self.assertEqual(drain(self.raiser(error, drain == self.drain_async)), {"retrying": 1})
        # Of a long one no more is read than is told.
        self.assertLess(len(idemq.errors.text_of(ValueError("x" * 10**6))), 2 * idemq.errors.MAX_TEXT)
        # The reason why a batch is run one by one is one of them.
        self.add(1, 2)
        self.assertEqual(self.drain(self.raiser(type("Unreadable", (ValueError,), unreadable), False), batch=2), {"retrying": 2})

    def test_why_a_batch_is_run_one_by_one(self):
        """The log says it, also where the error of the transaction has no text."""

        def why(drain, handler):
            with self.assertLogs("idemq", "INFO") as said:
                drain(handler, batch=3)
            return [line.partition("one by one: ")[2] for line in said.output if "one by one" in line]

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

        self.assertEqual(why(self.drain_async, takes_long), ["job_timeout is over"])
        self.assertEqual(self.sql("SELECT count(*) FROM idemq.jobs WHERE status <> 'completed' AND queue_id = idemq.queue_id(%s)", self.queue)[0][0], 0)

    @staticmethod
    def raiser(error, coroutine):
        def handler(job, *conn):
            raise error()

        async def handler_async(job, *conn):
            raise error()

        return handler_async if coroutine else handler

    def test_a_delay_that_is_none(self):
        class Forgotten(idemq.Snooze):
            def __init__(self):
                pass

        self.alter("retry_base => '1 h'")
        for error in (idemq.RetryLater(float("inf"), "busy"), idemq.RetryLater("a while", "busy"), idemq.Snooze(float("nan"), "busy"), Forgotten()):
            def says(job, conn, error=error):
                raise error

            (job,) = self.add(1)
            self.assertEqual(self.drain(says), {"retrying": 1}, error)
            self.assertRegex(self.job(job)[3], r"(busy|Forgotten) \(its delay is no interval\)$")

    def test_a_wait_that_is_refused(self):
        """It is a failure: a job that is given back is ready again at once, for ever."""

        def waits(job, *conn):
            raise idemq.Waiting("paid", object())

        for outside in (False, True):
            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(self.drain(waits, outside), {"dead": 1})
            self.assertEqual(self.job(job)[3], "its wait for an event was refused")

    def test_a_function_that_the_worker_cannot_run(self):
        """Refused before a job is claimed: a call of it runs nothing, or cannot be awaited."""

        class Called:
            async def __call__(self, job, *conn):
                pass

        def generates(job, *conn):
            yield self.calls.append(job)

        async def generates_async(job, *conn):
            yield self.calls.append(job)

        def function(job, *conn):
            self.calls.append(job)

        async def coroutine(job, *conn):
            self.calls.append(job)

        self.calls = []
        workers = [
            (idemq.Worker(DSN, self.queue), "AsyncWorker", (coroutine, Called(), functools.partial(coroutine), functools.partial(Called()), {"a": function, None: coroutine})),
            (idemq.ClusterWorker(DSN, self.queue), "AsyncClusterWorker", (coroutine,)),
            (idemq.AsyncWorker(DSN, self.queue), "use Worker", (function, lambda job: coroutine(job), functools.partial(function), {"a": function})),
            (idemq.AsyncClusterWorker(DSN, self.queue), "use ClusterWorker", (function,)),
        ]
        (job,) = self.add(1)
        for worker, other, handlers in workers:
            refused = [(handler, other) for handler in handlers]
            refused += [(handler, "generator function") for handler in (generates, generates_async)]
            refused += [(handler, "a handler is a function") for handler in ({}, None, {"a": None})]
            for handler, why in refused:
                for outside in (False, True):
                    for run in (worker.run_outside if outside else worker.run, functools.partial(worker.drain, outside=outside)):
                        with self.assertRaisesRegex(TypeError, why):
                            answer = run(handler)
                            if asyncio.iscoroutine(answer):
                                asyncio.run(answer)
        self.assertEqual((self.calls, self.job(job)[:2]), ([], ("pending", 0)))
        # A decorator that makes a function of one; an object whose call is one.
        wrapped = functools.wraps(coroutine)(lambda job: coroutine(job))
        for handler in (wrapped, Called(), functools.partial(Called())):
            self.assertEqual(self.drain_async(handler, outside=True), {"committed": 1})
            self.add(1)

    def test_an_answer_that_has_not_run(self):
        """What only shows when the handler returns fails the attempt."""

        async def coroutine(job):
            self.effect(self.conn, 1)

        async def generates_async():
            yield self.effect(self.conn, 1)

        answers = (coroutine, lambda job: (self.effect(self.conn, n) for n in [1]), lambda job: generates_async(),
                   lambda job: map(self.effect, [self.conn], [1]), lambda job: concurrent.futures.Future(),
                   lambda job: [coroutine(job)])
        for answer in answers:
            async def answers_async(job, *conn, answer=answer):
                return answer(job)

            for drain, handler in ((self.drain, lambda job, *conn: answer(job)), (self.drain_async, answers_async)):
                for outside in (False, True):
                    (job,) = self.add(1, max_attempts=1)
                    self.assertEqual(drain(handler, outside), {"dead": 1})
                    self.assertRegex(self.job(job)[3], "TypeError: .* (coroutine|generator|async_generator|map|Future), which has not run")
        self.assertEqual(self.effects(), [])

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

    def test_a_deferred_constraint_fails_the_attempt(self):
        self.sql("DROP TABLE IF EXISTS deferred; CREATE TABLE deferred (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")

        def twice(job, conn):
            self.do(job, conn)
            conn.execute("INSERT INTO deferred VALUES (1), (1)")

        first, second = self.add(1, 2, max_attempts=1)
        self.assertEqual(self.drain(twice), {"dead": 2})
        self.assertIn("UniqueViolation", self.job(second)[3])
        self.assertEqual(self.effects(), [])

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

    def test_many_at_a_time(self):
        together = threading.Barrier(5)

        def meets(job, conn):
            together.wait(60)
            self.do(job, conn)

        self.add(*range(5))
        self.assertEqual(self.drain(meets, concurrency=5), {"committed": 5})
        self.assertEqual(self.effects(), [0, 1, 2, 3, 4])

    def test_kinds(self):
        def mail(job, conn):
            self.effect(conn, job.payload)
            return job.kind

        def rest(job, conn):
            self.effect(conn, 10 * job.payload)

        jobs = self.add(1, kind="mail") + self.add(2) + self.add(3, kind="new") + self.add(4, kind="mail")
        with self.assertLogs("idemq", "WARNING") as said:
            done = self.drain({"mail": mail, None: rest}, batch=4, unknown_kind="1 h")
        self.assertEqual(done, {"committed": 3, "released": 1})
        self.assertEqual(sum("no handler here for kind new" in line for line in said.output), 1)
        self.assertEqual(self.effects(), [1, 4, 20])
        self.assertEqual(self.job(jobs[0])[2], "mail")
        # Given back for that time, and no attempt counted: a newer worker knows it.
        waits = "SELECT status::text, attempt, ready_at > now() + interval '50 min' FROM idemq.jobs WHERE id = %s"
        self.assertEqual(self.sql(waits, jobs[2]), [("pending", 0, True)])
        self.sql("SELECT idemq.retry(%s)", jobs[2])
        self.assertEqual(self.drain({"new": lambda job: job.kind}, outside=True), {"committed": 1})
        self.assertEqual(self.job(jobs[2])[:3], ("completed", 1, "new"))

    def test_kinds_with_asyncio(self):
        async def mail(job):
            return job.kind

        jobs = self.add(1, kind="mail") + self.add(2, kind="new") + self.add(3)
        with self.assertLogs("idemq", "WARNING"):
            done = self.drain_async({"mail": mail}, outside=True)
        self.assertEqual(done, {"committed": 1, "released": 2})
        self.assertEqual(self.job(jobs[0])[2], "mail")
        self.assertEqual([self.job(job)[1] for job in jobs[1:]], [0, 0])

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


class Outside(Client):
    def test_results(self):
        jobs = self.add(1, "two", [3])
        self.assertEqual(self.drain(lambda job: {"it": job.payload}, outside=True), {"committed": 3})
        self.assertEqual([self.job(job)[2] for job in jobs], [{"it": 1}, {"it": "two"}, {"it": [3]}])

        async def handler(job):
            return job.payload

        self.add(*range(50))
        self.assertEqual(self.drain_async(handler, outside=True, concurrency=10), {"committed": 50})

    def test_a_result_that_is_none_is_left_out(self):
        for result in (object(), "a\0b", {"a": float("nan")}):
            jobs = self.add(1, 2)
            outcomes = self.drain(lambda job: result if job.payload == 1 else "good", outside=True, concurrency=2)
            self.assertEqual(outcomes, {"committed": 2})
            self.assertEqual([self.job(job)[:3] for job in jobs], [("completed", 1, None), ("completed", 1, "good")])

    def test_a_checkpoint_is_there_in_the_next_attempt(self):
        seen = []

        def stops(job):
            seen.append(job.state)
            if job.attempt == 1:
                job.checkpoint({"done": 1})
                raise idemq.RetryLater(0)
            with psycopg.connect(DSN) as conn:
                job.checkpoint({"done": 2}, conn)
                conn.rollback()

        (job,) = self.add(1)
        self.drain(stops, outside=True)
        self.assertEqual(seen, [None, {"done": 1}])
        self.assertEqual(self.sql("SELECT checkpoint FROM idemq.jobs WHERE id = %s", job), [({"done": 1},)])

    def test_a_heartbeat_renews_the_lease(self):
        def waits(job):
            ((deadline,),) = self.sql("SELECT deadline FROM idemq.running_jobs WHERE job_id = %s", job.id)
            self.beat(job)
            self.until("SELECT deadline > %s FROM idemq.running_jobs WHERE job_id = %s", deadline, job.id)

        (job,) = self.add(1, max_attempts=1)
        self.assertEqual(self.drain(waits, outside=True), {"committed": 1})
        self.assertEqual(self.job(job)[:2], ("completed", 1))

    def test_a_lost_lease_cancels(self):
        reasons = []

        def waits(job):
            self.sql("SELECT idemq.cancel(%s)", job.id)
            self.beat(job)
            self.until_set(job.cancelled)
            with self.assertRaises(idemq.StaleToken):
                job.checkpoint({})
            reasons.append("told")

        async def waits_async(job):
            self.sql("SELECT idemq.cancel(%s)", job.id)
            self.beat(job)
            try:
                await asyncio.sleep(3600)
            finally:
                reasons.append(job.cancelled.is_set())

        for drain, handler in ((self.drain, waits), (self.drain_async, waits_async)):
            (job,) = self.add(1)
            self.assertEqual(drain(handler, outside=True), {"stale": 1})
            self.assertEqual(self.job(job)[0], "cancelled")
        self.assertEqual(reasons, ["told", True])

    def test_a_connection_that_is_ended_is_no_end(self):
        ended = []

        def end():
            ended.extend(self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                                  " WHERE application_name = 'idemq-python'"))

        def cut(job):
            end()
            time.sleep(0.1)
            job.checkpoint({"still": "here"})
            end()

        (job,) = self.add(1)
        self.assertEqual(self.drain(cut, outside=True), {"committed": 1})
        self.assertEqual(self.job(job)[:2], ("completed", 1))
        self.assertGreaterEqual(len(ended), 2)






class PatientClient(Client):
    """Gives a cancelled statement a minute to answer."""

    def setUp(self):
        super().setUp()
        patient = unittest.mock.patch.object(idemq._conn, "ANSWERED", 60)  # on a busy machine, too
        patient.start()
        self.addCleanup(patient.stop)

    @staticmethod
    async def cancel_late(conn, cancel=idemq._server.interrupt):
        """A cancel takes its way past the connection: that it is sent says nothing of when the statement answers."""
        asyncio.get_running_loop().call_later(0.2, lambda: asyncio.ensure_future(cancel(conn)))

    def is_over(self, job, seconds):
        """The lease has ended as well, and once the transaction has, worker or server may be first.  A worker that a
        heartbeat has told of it leaves the job to the server, and its session may be gone by then."""
        self.until("SELECT status = 'dead' FROM idemq.jobs WHERE id = %s", job)
        self.assertIn(self.job(job)[3], (f"ended after {seconds:g} s (job_timeout)", "job_timeout reached", "the worker's session ended"))


class TimeOver(PatientClient):
    def test_a_statement_is_cancelled(self):
        async def sleeps_async(job, conn):
            await self.do_async(job, conn)
            self.end_time_in_statement(job, conn)
            await conn.execute("SELECT pg_sleep(3600)")

        def sleeps(job, conn):
            self.do(job, conn)
            self.end_time_in_statement(job, conn)
            conn.execute("SELECT pg_sleep(3600)")

        for interrupt in (idemq._server.interrupt, self.cancel_late):
            for drain, handler in ((self.drain, sleeps), (self.drain_async, sleeps_async)):
                (job,) = self.add(1, max_attempts=1)
                with unittest.mock.patch.object(idemq._server, "interrupt", interrupt):
                    self.assertEqual(drain(handler, timeout=3600), {"dead": 1})
                self.assertEqual(self.job(job), ("dead", 1, None, "ended after 3600 s (job_timeout)"))
                self.assertEqual(self.effects(), [])

    def test_a_cancel_between_two_statements_is_not_the_last(self):
        sent, cancelled = threading.Event(), []

        async def interrupt(conn, cancel=idemq._server.interrupt):
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
        with unittest.mock.patch.object(idemq._server, "interrupt", interrupt):
            self.assertEqual(self.drain(handler, timeout=3600), {"dead": 1})
        self.assertEqual((cancelled, self.job(job)[:2]), ([job], ("dead", 1)))

    def test_a_handler_that_hangs_is_left_behind(self):
        self.set_seconds("KILL_AFTER", 0.3)  # meant to expire
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
        self.set_seconds("KILL_AFTER", 0.3)  # meant to expire
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
            self.assertEqual(self.job(job), ("dead", 1, None, "ended after 0.2 s (job_timeout)"))
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
        self.set_seconds("KILL_AFTER", 0.3)  # meant to expire
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
        never = unittest.mock.patch.object(idemq._conn.AsyncHandlersConnection, "cancel", lambda conn: cancels.append(over.wait(120)))
        with never, unittest.mock.patch.object(idemq._conn, "ANSWERED", 0.5):  # meant to expire
            self.assertIn(self.drain_async(fails), ({"dead": 1}, {"stale": 1}))
        # The handler's wait ended while the cancel was still waiting, and not because the cancel gave up.
        self.assertEqual((waited, set(cancels)), ([False], {True}))
        self.assertIn(self.job(job)[3], ("over", "the worker's session ended"))
        self.assertEqual(self.effects(), [])

    def test_the_queues_time_goes_before_the_workers(self):
        self.alter("job_timeout => '400 ms'")  # meant to expire
        (job,) = self.add(1, max_attempts=1)
        self.drain(lambda job, conn: conn.execute("SELECT pg_sleep(3600)"))
        self.is_over(job, 0.4)





class Drains(Client):
    def test_it_waits_for_ends_that_the_loop_tells(self):
        def by_the_loop(desk, jobs, results):
            desk._run.call_loop(desk._run.tell_soon, list(zip(jobs, results)))

        async def late(run, *args, commit=idemq._attempts.Attempts._commit_batch):
            await asyncio.sleep(0.3)
            return await commit(run, *args)

        self.add(1, 2, group_key="g")
        leaves = unittest.mock.patch.object(idemq._desk.Desk, "leave", by_the_loop)
        with leaves, unittest.mock.patch.object(idemq._attempts.Attempts, "_commit_batch", late):
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
        self.set_seconds("KILL_AFTER", 0.3)  # meant to expire
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

    def test_a_sleeper_ends_soon(self):
        """Not when its sleep is over."""
        patched = unittest.mock.patch.object(idemq._run, "WAIT", 3600.0)
        patched.start()
        self.addCleanup(patched.stop)
        stop = self.start(self.do)
        self.until("SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'CALL idemq.wait%%'"
                   " AND state = 'active' AND application_name = 'idemq-python'")
        stop()

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


class Traces(Client):
    """The packages are not Debian's: a module with the calls of their interface that the client makes."""

    def setUp(self):
        super().setUp()
        self.current = "trace-of-the-producer"
        self.spans = []
        test = self

        class Span:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                test.spans.append("end")

        class Tracer:
            def start_as_current_span(self, name, kind=None):
                test.spans.append((name, kind, test.current))
                return Span()

        def attach(context):
            before, test.current = test.current, context
            return before

        def detach(token):
            test.current = token

        fakes = {
            "propagate": types.SimpleNamespace(
                inject=lambda carrier: carrier.update(traceparent=self.current),
                extract=lambda carrier: carrier.get("traceparent"),
            ),
            "context": types.SimpleNamespace(attach=attach, detach=detach),
            "trace": types.SimpleNamespace(get_tracer=lambda name: Tracer(), SpanKind=types.SimpleNamespace(CONSUMER="C")),
        }
        for name, fake in fakes.items():
            before = getattr(idemq._trace, name, None)
            setattr(idemq._trace, name, fake)
            self.addCleanup(setattr, idemq._trace, name, before)

    def test_from_producer_to_handler(self):
        (job,) = self.add(1, headers={"own": 1})
        self.assertEqual(
            self.sql("SELECT headers FROM idemq.jobs WHERE id = %s", job),
            [({"own": 1, "traceparent": "trace-of-the-producer"},)],
        )
        self.current = "of the worker"
        self.drain(self.do)
        self.assertEqual(self.spans, [(f"process {self.queue}", "C", "trace-of-the-producer"), "end"])
        self.assertEqual(self.current, "of the worker")
        self.current = "another"
        self.assertEqual(self.add(1, headers={"traceparent": "mine"}) and 1, 1)
        self.drain(lambda job: None, outside=True)
        self.assertEqual(self.spans[2][2], "mine")


class Manual(Client):
    """What doc/usage/python.md shows."""

    def setUp(self):
        super().setUp()
        for queue in ("mail", "pages"):
            self.sql("SELECT idemq.drop_queue(name, force => true) FROM idemq.queues WHERE name = %s", queue)
            self.sql("SELECT idemq.create_queue(%s, lease => '1 h')", queue)
        self.sql("DROP TABLE IF EXISTS orders, confirmations; CREATE TABLE orders (id int);"
                 " CREATE TABLE confirmations (order_id int)")

    def in_thread(self, function, *args):
        thread = threading.Thread(target=function, args=args)
        thread.start()
        return thread

    def test_orders(self):
        manual.test_an_order_is_confirmed(DSN)
        self.assertEqual(self.sql("SELECT * FROM orders, confirmations"), [(42, 42)])
        self.assertEqual(self.sql("SELECT result FROM idemq.job_by_key('mail', 'order-42')"), [({"confirmed": 42},)])

    def test_pages(self):
        async def run():
            task = asyncio.create_task(manual.work_async(DSN))
            while (await (await conn.execute("SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('pages')"
                                             " AND status = 'completed'")).fetchone())[0] < 300:
                await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.wait({task})

        for n in range(300):
            idemq.enqueue(self.conn, "pages", n)

        async def main():
            nonlocal conn
            conn = await psycopg.AsyncConnection.connect(DSN, autocommit=True)
            async with conn:
                await asyncio.wait_for(run(), 120)

        conn = None
        asyncio.run(main())

    def test_visits(self):
        jobs = self.add({"url": "busy"}, {"url": "closed"}, {"url": "gone"}, {"url": "there"})
        self.assertEqual(self.drain(manual.visit), {"retrying": 1, "released": 1, "dead": 1, "committed": 1})
        self.assertEqual([self.job(job)[0] for job in jobs], ["retrying", "pending", "dead", "completed"])


class Steps(Client):
    """job.step, where the server has it."""

    def setUp(self):
        super().setUp()
        if self.sql("SELECT to_regprocedure('idemq.finish_step(bigint,bigint,text,jsonb)') IS NULL")[0][0]:
            self.skipTest("no idemq.finish_step")
        self.calls = []

    def both(self, handle):
        """Runs handle(job, step) as a function and as a coroutine; step takes plain functions."""
        def sync(job):
            return handle(job, job.step, lambda function: function)

        def wrap(function):
            async def call(step):
                return function(step)

            return call

        async def asynchronous(job):
            def step(name, call, request=None, call_timeout=30, ask=None):
                return job.step(name, wrap(call), request, call_timeout, ask and wrap(ask))

            answer = handle(job, step, wrap)
            return await answer if asyncio.iscoroutine(answer) else answer

        for drain, handler in ((self.drain, sync), (self.drain_async, asynchronous)):
            self.calls.clear()
            yield lambda drain=drain, handler=handler: drain(handler, outside=True)

    def steps(self, job):
        return self.sql("SELECT name, state, response FROM idemq.steps WHERE job_id = %s ORDER BY name", job)

    def test_once(self):
        def call(step):
            self.calls.append((step.key, step.request, step.begun_at))
            return {"n": len(self.calls)}

        for run in self.both(lambda job, step, wrap: step("a", call, {"q": 1})):
            (job,) = self.add(1)
            self.assertEqual(run(), {"committed": 1})
            self.assertEqual(self.job(job)[2], {"n": 1})
            self.assertEqual(self.steps(job), [("a", "done", {"n": 1})])
            self.assertTrue(0 < len(self.calls[0][0]) <= 64)
            self.assertEqual(self.calls[0][1:], ({"q": 1}, None))

    def test_a_later_attempt_has_the_response(self):
        def sync(job):
            answer = job.step("a", lambda step: self.calls.append(1) or "first")
            if job.attempt == 1:
                raise idemq.RetryLater(0)
            return answer

        async def call(step):
            self.calls.append(1)
            return "first"

        async def asynchronous(job):
            answer = await job.step("a", call)
            if job.attempt == 1:
                raise idemq.RetryLater(0)
            return answer

        for drain, handler in ((self.drain, sync), (self.drain_async, asynchronous)):
            self.calls.clear()
            (job,) = self.add(1)
            drain(handler, outside=True)
            self.assertEqual((self.job(job)[:3], len(self.calls)), (("completed", 2, "first"), 1))

    def test_an_answer_that_was_lost(self):
        """The first call is made, and its answer lost: then the other side is asked, or called with the same key."""
        for ask in (lambda step: "found", lambda step: None, None):
            keys = []

            def call(step):
                keys.append(step.key)
                if len(keys) == 1:
                    raise OSError("502")
                return "called"

            asked = []

            def asks(step, ask=ask):
                asked.append((step.key, step.request, step.begun_at is not None))
                return ask(step)

            for run in self.both(lambda job, step, wrap: step("a", call, "r", 3600, ask and asks)):
                keys.clear()
                asked.clear()
                (job,) = self.add(1)
                self.until_done(run, job)
                self.assertEqual(self.job(job)[2], "found" if ask and ask(None) else "called")
                self.assertEqual(len(set(keys)), 1)
                self.assertEqual(len(keys), 1 if ask and ask(None) else 2)
                self.assertEqual(asked, [(keys[0], "r", True)] if ask else [])
                self.assertEqual(self.steps(job)[0][1], "done")

    def until_done(self, run, job):
        """Runs a job until it is completed.  Between attempts, its open call times out and its delay ends."""
        for _ in range(100):
            run()
            if self.job(job)[0] == "completed":
                return
            self.sql("UPDATE idemq.steps SET call_until = clock_timestamp() WHERE job_id = %s AND state = 'open'", job)
            self.sql("SELECT idemq.retry(%s)", job)
        self.fail("it is never done")

    def test_refused(self):
        keys = []

        def call(step):
            keys.append(step.key)
            if len(keys) == 1:
                raise idemq.Refused("no\0 such amount")
            return "yes"

        for run in self.both(lambda job, step, wrap: step("a", call)):
            keys.clear()
            (job,) = self.add(1)
            self.until_done(run, job)
            self.assertEqual(len(set(keys)), 2, "another key")
            self.assertEqual(self.sql("SELECT error FROM idemq.attempts WHERE job_id = %s", job), [("Refused: no such amount",)])

    def test_dead(self):
        """What no attempt can do is not done: the step is refused, and called under another key should the job come again."""
        keys = []

        def call(step):
            keys.append(step.key)
            if len(keys) == 1:
                raise idemq.Dead("no such account")
            return "yes"

        for run in self.both(lambda job, step, wrap: step("a", call)):
            keys.clear()
            (job,) = self.add(1)
            self.assertEqual(run(), {"dead": 1})
            self.assertEqual(self.steps(job), [("a", "refused", None)])
            ((error, details),) = self.sql("SELECT error, details FROM idemq.attempts WHERE job_id = %s", job)
            self.assertEqual((error, details["type"]), ("no such account", "Dead"))
            self.assertIn('raise idemq.Dead("no such account")', details["trace"])
            self.sql("SELECT idemq.retry(%s)", job)
            self.assertEqual(run(), {"committed": 1})
            self.assertEqual(len(set(keys)), 2, "another key")

    def test_a_call_that_asks_for_the_end_of_the_program(self):
        def call(step):
            sys.exit(3)

        for run in self.both(lambda job, step, wrap: step("a", call)):
            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(run(), {"dead": 1})
            self.assertEqual(self.job(job)[3], "SystemExit: 3")

    def test_dead_when_asked(self):
        """The call that is asked for may have been done: the step stays unknown."""
        def call(step):
            raise OSError("502")

        def ask(step):
            raise idemq.Dead("nobody knows")

        for run in self.both(lambda job, step, wrap: step("a", call, None, 0.01, ask)):  # meant to expire
            (job,) = self.add(1)
            for _ in range(100):
                run()
                if self.job(job)[0] == "dead":
                    break
                time.sleep(0.05)
            self.assertEqual(self.job(job)[3], "nobody knows")
            self.assertNotEqual(self.steps(job)[0][1], "refused")

    def test_a_call_that_does_not_run(self):
        """A coroutine function is refused before the step begins; what only shows in its answer is no response."""
        async def coroutine(step):
            self.calls.append(1)

        for call, said, begun in (
            (coroutine, "Job.step calls functions", 0),
            (lambda step: coroutine(step), "a coroutine, which has not run", 1),
            (lambda step: (each for each in [1]), "a generator, which has not run", 1),
        ):
            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(self.drain(lambda job: job.step("a", call), outside=True), {"dead": 1})
            self.assertIn(said, self.job(job)[3])
            self.assertEqual([state for _, state, _ in self.steps(job)], begun * ["open"])
        self.assertEqual(self.calls, [])

        # A function that was to be a coroutine function has called: what it has answered is the response.
        async def asynchronous(job):
            return await job.step("a", lambda step: "done")

        (job,) = self.add(1)
        self.assertEqual(self.drain_async(asynchronous, outside=True), {"committed": 1})
        self.assertEqual(self.steps(job), [("a", "done", "done")])

    def test_another_request_under_that_name(self):
        def changes(job):
            job.step("a", lambda step: 1, {"amount": job.attempt})
            raise idemq.RetryLater(0)

        (job,) = self.add(1, max_attempts=2)
        self.drain(changes, outside=True)
        self.assertIn("KeyReused", self.job(job)[3])

    def test_a_response_that_cannot_be_stored(self):
        for response in (object(), "a\0b"):
            seen = []
            (job,) = self.add(1)
            self.assertEqual(self.drain(lambda job: seen.append(job.step("a", lambda step: response)), outside=True), {"committed": 1})
            self.assertEqual((seen, self.steps(job)), ([response], [("a", "done", None)]))

    def test_a_call_that_takes_too_long(self):
        async def slow(step):
            await asyncio.sleep(3600)

        async def handler(job):
            await job.step("a", slow, call_timeout=0.3)  # meant to expire

        (job,) = self.add(1, max_attempts=1)
        self.assertEqual(self.drain_async(handler, outside=True), {"dead": 1})
        self.assertIn("Timeout", self.job(job)[3])

    def test_the_answer_counts_after_the_lease_was_lost(self):
        def loses(job):
            def call(step):
                self.sql("SELECT idemq.fail(id, token, 'taken away') FROM idemq.jobs WHERE id = %s", job.id)
                self.beat(job)
                self.until_set(job.cancelled)
                return "done"

            return job.step("a", call)

        (job,) = self.add(1)
        self.drain(loses, outside=True)
        self.assertEqual(self.steps(job), [("a", "done", "done")])

    def test_the_manual(self):
        jobs = self.add({"amount": 5}, {"amount": -5}, max_attempts=1)
        self.assertEqual(self.drain(manual.charge, outside=True), {"committed": 1, "dead": 1})
        self.assertEqual([state for _, state, _ in self.steps(jobs[0]) + self.steps(jobs[1])], ["done", "refused"])


class PlacesOfShards(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.pool = _places.Pool(2)
        self.home, self.away = _places.OfShard(self.pool, True), _places.OfShard(self.pool, False)
        self.order = []

    def waits(self, name, places):
        async def wait():
            self.assertEqual(await places.take(1), 1)
            self.order.append(name)

        return asyncio.create_task(wait())

    async def test_home_comes_first_and_nobody_twice(self):
        self.assertEqual(await self.away.take(5), 2)  # as many as there are
        tasks = [self.waits("away", self.away), self.waits("gone", self.away), self.waits("home", self.home)]
        await asyncio.sleep(0)
        self.assertTrue(self.away.wanted())
        tasks[1].cancel()
        await asyncio.sleep(0)
        self.away.leave(1)
        await tasks[2]
        self.assertEqual(self.order, ["home"])
        self.away.leave(1)
        await tasks[0]
        self.assertEqual(self.pool.free, 0)

    async def test_a_place_that_was_given_to_who_was_cancelled_is_not_lost(self):
        await self.home.take(2)
        task = self.waits("late", self.home)
        await asyncio.sleep(0)
        self.home.leave(1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.assertEqual((self.order, self.pool.free), ([], 1))

    async def test_a_turn_ends_and_away_is_not_forgotten(self):
        await self.home.take(2)
        task = self.waits("away", self.away)
        await asyncio.sleep(0)
        with unittest.mock.patch("idemq._places.time.monotonic", lambda at=time.monotonic(): at + _places.HOME_FIRST - 1):
            self.assertFalse(self.home.wanted())
        with unittest.mock.patch("idemq._places.time.monotonic", lambda at=time.monotonic(): at + _places.HOME_FIRST + 1):
            self.assertTrue(self.home.wanted())
        self.home.leave(1)
        await task

    async def test_a_place_is_lent_while_its_server_is_waited_for(self):
        await self.home.take(2)
        end = asyncio.Event()

        async def work():
            await end.wait()
            return "done"

        lent = asyncio.create_task(self.home.lent(work()))
        self.assertEqual(await asyncio.wait_for(self.away.take(1), 60), 1)
        end.set()
        self.assertEqual(await lent, "done")
        self.assertEqual(self.pool.free, -1)
        self.home.leave(3)
        self.assertEqual(self.pool.free, 2)


if __name__ == "__main__":
    tap.main()
