"""python_producers.py: enqueue, keys, errors by SQLSTATE, and connections that are not psycopg's.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import os
import re
import uuid

import psycopg

import idemq
import tap
from python_common import DSN, Client


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
        self.sql("SELECT idemq.alter_queue(%s, max_unfinished => 1)", self.queue)
        with self.assertRaises(idemq.QueueFull) as caught:
            self.add(3)
        self.assertEqual(caught.exception.sqlstate, "IQ007")

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

    def test_keys_that_are_no_text(self):
        unique = uuid.uuid4()
        for key, text in ((unique, str(unique)), (42, "42"), (-1, "-1")):
            (job,) = self.add(1, key=key)
            self.assertEqual(self.sql("SELECT key FROM idemq.jobs WHERE id = %s", job), [(text,)])
            self.assertEqual(idemq.enqueue(self.conn, self.queue, 1, key=key)[:2], (job, "duplicate"))
        graph = idemq.enqueue_graph(self.conn, {"a": {"queue": self.queue, "payload": 1, "key": unique}})
        self.assertEqual(graph["a"].outcome, "duplicate")
        self.sql("SELECT idemq.create_topic(%s)", f"keys{os.getpid()}")
        self.sql("SELECT idemq.bind_topic(%s, %s)", f"keys{os.getpid()}.#", self.queue)
        self.assertEqual([published.outcome for published in idemq.publish(self.conn, f"keys{os.getpid()}.a", 1, key=unique)], ["accepted"])

        async def run():
            async with await psycopg.AsyncConnection.connect(DSN, autocommit=True) as conn:
                return await idemq.enqueue(conn, self.queue, 1, key=unique)

        self.assertEqual(asyncio.run(run()).outcome, "duplicate")

    def test_arguments_are_named(self):
        """Before anything is sent: in a transaction that goes on."""

        class Encodes:
            pass

        def call(function, *args, **options):
            return lambda: function(self.conn, *args, **options)

        for said, refused in (
            ("key must be a str, a UUID or an int, not float", call(idemq.enqueue, self.queue, 1, key=1.5)),
            ("key must be a str, a UUID or an int, not bool", call(idemq.enqueue, self.queue, 1, key=True)),
            ("key must be a str, a UUID or an int, not bytes", call(idemq.publish, "t", 1, key=b"k")),
            ("queue must be the name of a queue as a str, not dict", call(idemq.enqueue, {"order": 42}, self.queue)),
            ("queue must be the name of one queue as a str, not list: make a separate call for each queue", call(idemq.enqueue, ["a", "b"], 1)),
            ("delay must be a timedelta, a number of seconds or the text of an interval, not dict", call(idemq.enqueue, self.queue, 1, delay={})),
            ("delay: ", call(idemq.enqueue, self.queue, 1, delay=float("nan"))),
            ("run_at must be a datetime, not int", call(idemq.enqueue, self.queue, 1, run_at=7)),
            ("priority must be an int, not str", call(idemq.enqueue, self.queue, 1, priority="high")),
            ("group_key must be a str, not int", call(idemq.enqueue, self.queue, 1, group_key=7)),
            ("max_attempts must be an int, not float", call(idemq.enqueue, self.queue, 1, max_attempts=1.5)),
            ("headers must be a dict, not list", call(idemq.enqueue, self.queue, 1, headers=[])),
            ("headers cannot be encoded as JSON: TypeError", call(idemq.enqueue, self.queue, 1, headers={"a": Encodes()})),
            ("payload cannot be encoded as JSON: TypeError", call(idemq.enqueue, self.queue, Encodes())),
            ("payload cannot be encoded as JSON: TypeError", call(idemq.publish, "t", Encodes())),
            ("payload cannot be encoded as JSON: TypeError", call(idemq.send_event, self.queue, "e", Encodes())),
            ("expires_in must be", call(idemq.enqueue, self.queue, 1, expires_in=[])),
            ("key_ttl must be", call(idemq.enqueue, self.queue, 1, key_ttl=[])),
            ("on_duplicate must be a str", call(idemq.enqueue, self.queue, 1, on_duplicate=None)),
            ("nowait must be a bool", call(idemq.enqueue, self.queue, 1, nowait="yes")),
            ("kind must be a str", call(idemq.enqueue, self.queue, 1, kind=7)),
            ("max_wait must be", call(idemq.enqueue, self.queue, 1, max_wait=[])),
            ("depends_on must be a sequence of job ids (int), not int", call(idemq.enqueue, self.queue, 1, depends_on=7)),
            ("each element of depends_on must be an int, not str", call(idemq.enqueue, self.queue, 1, depends_on=["7"])),
            ("on_parent_failure must be a str", call(idemq.enqueue, self.queue, 1, on_parent_failure=7)),
            ("topic must be a str", call(idemq.publish, 7, 1)),
            ("name must be a str", call(idemq.send_event, self.queue, 7)),
            ("producer must be a str", call(idemq.enqueue_sequenced, self.queue, 7, 1, 1)),
            ("seq must be an int", call(idemq.enqueue_sequenced, self.queue, "p", "1", 1)),
            ("jobs must be a dict of jobs by name", call(idemq.enqueue_graph, [])),
            ("job a must be a dict", call(idemq.enqueue_graph, {"a": 1})),
            ("queue must be the name of a queue", call(idemq.enqueue_graph, {"a": {"queue": 1, "payload": 1}})),
            ("depends_on must be a sequence of job names and ids, not str", call(idemq.enqueue_graph, {"a": {"queue": "q", "payload": 1, "depends_on": "b"}})),
            ("id must be an int", call(idemq.flow, "1")),
            ("most must be an int", call(idemq.flow, 1, "1")),
            ("ids must be a sequence of job ids", call(idemq.cancel_many, 1)),
            ("key_prefix must be a str", call(idemq.cancel_matching, self.queue, key_prefix=1)),
            ("max_jobs must be an int", call(idemq.cancel_matching, self.queue, max_jobs="1")),
            ("exact must be a bool", call(idemq.ensure_queue, self.queue, exact=None)),
            ("lease must be", call(idemq.ensure_queue, self.queue, lease=[])),
            ("max_running must be an int", call(idemq.ensure_queue, self.queue, max_running="20")),
            ("retry_factor must be a number", call(idemq.ensure_queue, self.queue, retry_factor="2")),
            ("expect_workers must be a bool", call(idemq.ensure_queue, self.queue, expect_workers=1)),
            ("topic must be a str", call(idemq.ensure_topic, 7)),
            ("function must be a str", call(idemq.ensure_handler, self.queue, len)),
            ("ids must be a sequence of job ids", call(idemq.wait_results, "12")),
            ("timeout must be", call(idemq.wait_results, [1], [])),
            ("expected a psycopg.Connection or AsyncConnection", lambda: idemq.enqueue("mail", {"order": 42}, None)),
            ("expected a psycopg.Connection or AsyncConnection", lambda: idemq.cancel_many([1], [1])),
            ("queue must be the name of one queue as a str, not list", lambda: idemq.Worker(DSN, ["mail", "reports"])),
            ("dsn must be a str, not Connection", lambda: idemq.Worker(self.conn, self.queue)),
            ("concurrency must be an int", lambda: idemq.Worker(DSN, self.queue, concurrency="4")),
            ("grace must be a number of seconds", lambda: idemq.AsyncWorker(DSN, self.queue, grace="30 s")),
            ("lease must be", lambda: idemq.Worker(DSN, self.queue, lease=[])),
            ("router must be a str", lambda: idemq.ClusterWorker(1, self.queue)),
        ):
            with self.conn.transaction():
                with self.assertRaisesRegex((TypeError, ValueError), "^(?:a )?" + re.escape(said)):
                    refused()
                self.sql("SELECT 1")

    def test_another_drivers_connection(self):
        for module, name, said in (
            ("psycopg2.extensions", "connection", "not a psycopg2.extensions.connection: .* psycopg 3, or execute what enqueue_statement"),
            ("sqlalchemy.orm.session", "Session", "driver_connection"),
            ("sqlalchemy.engine.base", "Connection", "driver_connection"),
            ("django.utils.connection", "ConnectionProxy", "connection.ensure_connection"),
            ("psycopg_pool.pool", "ConnectionPool", "with pool.connection"),
            ("asyncpg.connection", "Connection", "enqueue_statement"),
            ("another.driver", "Connection", "not a another.driver.Connection$"),
        ):
            other = type(name, (), {"__module__": module})()
            for call in (
                lambda: idemq.enqueue(other, self.queue, 1),
                lambda: idemq.publish(other, "topic", 1),
                lambda: idemq.send_event(other, self.queue, "paid"),
                lambda: idemq.wait_results(other, [1]),
            ):
                with self.assertRaisesRegex(TypeError, r"expected a psycopg.Connection or AsyncConnection \(psycopg 3\), .*" + said):
                    call()

            def checkpoint(job):
                job.save_checkpoint(1, other)

            (job,) = self.add(1, max_attempts=1)
            self.drain(checkpoint, outside=True)
            self.assertRegex(self.job(job)[3], "TypeError: .*" + said)


if __name__ == "__main__":
    tap.main()
