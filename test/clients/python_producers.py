"""python_producers.py: enqueue, keys, errors by SQLSTATE, and connections that are not psycopg's.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio

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


if __name__ == "__main__":
    tap.main()
