"""drivers.py: enqueue_statement with real libraries, each in its own transaction.  doc/usage/enqueue-anywhere.md shows the functions
named order_with_LIBRARY.

For drivers.pl, which says where the server is (IDEMQ_DSN, IDEMQ_HOST, IDEMQ_PORT) and has pip install the libraries.
"""

import asyncio
import json
import os
import unittest

import asyncpg
import django
import psycopg
import sqlalchemy
from django.conf import settings
from django.db import connection, transaction
from psycopg.types.json import Jsonb
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker

import tap
from idemq import drain_async, enqueue, enqueue_statement

DSN, HOST, PORT = (os.environ[name] for name in ("IDEMQ_DSN", "IDEMQ_HOST", "IDEMQ_PORT"))
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres", "HOST": HOST, "PORT": PORT}})
django.setup()


class Refused(Exception):
    """Ends a transaction."""


async def order_with_asyncpg(conn, number):
    async with conn.transaction():
        await conn.execute("INSERT INTO orders VALUES ($1)", number)
        sql, params = enqueue_statement("mail", {"order": number}, key=f"order-{number}")
        return await conn.fetchrow(sql, *params)


def order_with_sqlalchemy(engine, number):
    with engine.begin() as conn:
        conn.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
        sql, params = enqueue_statement("mail", {"order": number}, key=f"order-{number}", style=":name")
        return conn.execute(text(sql), params).one()


async def order_with_async_sqlalchemy(engine, number):
    async with engine.begin() as conn:
        await conn.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
        sql, params = enqueue_statement("mail", {"order": number}, key=f"order-{number}", style=":name")
        return (await conn.execute(text(sql), params)).one()


def order_with_django(number):
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s)", [number])
        sql, params = enqueue_statement("mail", {"order": number}, key=f"order-{number}", style="%s")
        cursor.execute(sql, params)
        id, outcome, status, result = cursor.fetchone()
    return id, outcome, status, result


# The same for all libraries: execute(handle, style, sql, params) returns a row, and transaction() and savepoint(handle) are those of the
# library.


class Asyncpg:
    name, styles = "asyncpg", ["$1"]

    async def begin(self):
        self.conn = await asyncpg.connect(host=HOST, port=PORT, user="postgres", database="postgres")

    async def end(self):
        await self.conn.close()

    async def order(self, number):
        return await order_with_asyncpg(self.conn, number)

    def transaction(self):
        return Entered(self.conn.transaction(), self.conn)

    def savepoint(self, handle):
        return handle.transaction()

    async def execute(self, handle, sql, params):
        return await handle.fetchrow(sql, *params)

    @staticmethod
    def sqlstate(error):
        return error.sqlstate


class Entered:
    """A transaction whose handle is something else than what it returns."""

    def __init__(self, transaction, handle):
        self.transaction, self.handle = transaction, handle

    async def __aenter__(self):
        await self.transaction.__aenter__()
        return self.handle

    async def __aexit__(self, *error):
        return await self.transaction.__aexit__(*error)


class Sync:
    """A synchronous context manager as an asynchronous one."""

    def __init__(self, inner, handle=None):
        self.inner, self.handle = inner, handle

    async def __aenter__(self):
        entered = self.inner.__enter__()
        return self.handle or entered

    async def __aexit__(self, *error):
        return self.inner.__exit__(*error)


class Sqlalchemy:
    styles = [":name"]

    def __init__(self, driver):
        self.name = f"SQLAlchemy with {driver}"
        self.url = f"postgresql+{driver}://postgres@/postgres?host={HOST}&port={PORT}"

    async def begin(self):
        self.engine = sqlalchemy.create_engine(self.url)

    async def end(self):
        self.engine.dispose()

    async def order(self, number):
        return order_with_sqlalchemy(self.engine, number)

    def transaction(self):
        return Sync(self.engine.begin())

    def savepoint(self, handle):
        return Sync(handle.begin_nested())

    async def execute(self, handle, sql, params):
        return handle.execute(text(sql), params).one()

    @staticmethod
    def sqlstate(error):
        return error.orig.sqlstate


class Sessions(Sqlalchemy):
    async def begin(self):
        await super().begin()
        self.name += " (Session)"

    def transaction(self):
        return Sync(sessionmaker(self.engine).begin())


class AsyncSqlalchemy(Sqlalchemy):
    async def begin(self):
        self.name = self.name.replace("SQLAlchemy", "async SQLAlchemy")
        self.engine = create_async_engine(self.url)

    async def end(self):
        await self.engine.dispose()

    async def order(self, number):
        return await order_with_async_sqlalchemy(self.engine, number)

    def transaction(self):
        return self.engine.begin()

    def savepoint(self, handle):
        return handle.begin_nested()

    async def execute(self, handle, sql, params):
        return (await handle.execute(text(sql), params)).one()


class Django:
    name, styles = "Django", ["%s", "%(name)s"]

    # Django connects per context, so its calls stay in this one.
    async def begin(self):
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"

    async def end(self):
        connection.close()

    async def order(self, number):
        return order_with_django(number)

    def transaction(self):
        return Sync(transaction.atomic(), connection)

    def savepoint(self, handle):
        return Sync(transaction.atomic())

    async def execute(self, handle, sql, params):
        with handle.cursor() as cursor:
            cursor.execute(sql, params)
            return cursor.fetchone()

    @staticmethod
    def sqlstate(error):
        return error.__cause__.sqlstate


LIBRARIES = [Asyncpg, lambda: Sqlalchemy("psycopg"), lambda: Sessions("psycopg"), lambda: AsyncSqlalchemy("psycopg"), lambda: AsyncSqlalchemy("asyncpg"), Django]
# Also what looks like a parameter.
AWKWARD = ["it's \\ \" %s %(a)s %% :a ::x ? ?? $1 $$", "\U0001f600 ä €\r\n\t", "", None, True, [], [1, [2]], {"a:b?": "%"}, 2**70, "x" * 2**20]


async def send(job):
    return {"sent": job.payload["order"]}


class Drivers(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.conn = psycopg.connect(DSN, autocommit=True)
        self.addCleanup(self.conn.close)
        self.conn.execute("SELECT idemq.drop_queue('mail', force => true) FROM idemq.queues WHERE name = 'mail'")
        self.conn.execute("SELECT idemq.create_queue('mail'); DROP TABLE IF EXISTS orders; CREATE TABLE orders (number int)")

    def sql(self, sql, *values):
        return self.conn.execute(sql, values).fetchall()

    def jobs(self):
        """What exists: orders, and keys of jobs."""
        return self.sql("SELECT ARRAY(SELECT number FROM orders ORDER BY number), ARRAY(SELECT key FROM idemq.jobs ORDER BY key)")[0]

    async def each(self, test):
        for make in LIBRARIES:
            library = make()
            await library.begin()
            try:
                for style in library.styles:
                    with self.subTest(library.name, style=style):
                        self.setUp()
                        await test(library, style)
            finally:
                await library.end()

    async def add(self, library, handle, payload, style, **options):
        return tuple(await library.execute(handle, *enqueue_statement("mail", payload, style=style, **options)))

    async def test_the_job_commits_with_the_order_and_answers(self):
        async def test(library, style):
            first = tuple(await library.order(42))
            self.assertEqual(first[1:], ("accepted", "pending", None))
            self.assertEqual(self.jobs(), ([42], ["order-42"]))
            self.assertEqual(tuple(await library.order(42)), (first[0], "duplicate", "pending", None))
            self.assertEqual(await drain_async(DSN, "mail", send, True), {"committed": 1})
            *others, result = await library.order(42)
            self.assertEqual(others, [first[0], "duplicate", "completed"])
            self.assertEqual(json.loads(result), {"sent": 42})

        await self.each(test)

    async def test_the_job_is_rolled_back_with_the_transaction(self):
        async def test(library, style):
            with self.assertRaises(Refused):
                async with library.transaction() as handle:
                    self.assertEqual((await self.add(library, handle, 1, style, key="a"))[1], "accepted")
                    raise Refused
            self.assertEqual(self.jobs(), ([], []))

        await self.each(test)

    async def test_the_job_is_rolled_back_with_the_savepoint(self):
        async def test(library, style):
            async with library.transaction() as handle:
                await self.add(library, handle, 1, style, key="before")
                with self.assertRaises(Refused):
                    async with library.savepoint(handle):
                        self.assertEqual((await self.add(library, handle, 1, style, key="inside"))[1], "accepted")
                        raise Refused
                async with library.savepoint(handle):
                    await self.add(library, handle, 1, style, key="kept")
                # Within a savepoint, a refused statement does not end the transaction.
                with self.assertRaises(Exception) as caught:
                    async with library.savepoint(handle):
                        await self.add(library, handle, 2, style, key="before")
                self.assertEqual(library.sqlstate(caught.exception), "IQ003")
                self.assertEqual((await self.add(library, handle, 1, style, key="inside"))[1], "accepted")
            self.assertEqual(self.jobs(), ([], ["before", "inside", "kept"]))

        await self.each(test)

    async def test_values_and_options_arrive_as_they_are(self):
        async def test(library, style):
            parent = enqueue(self.conn, "mail", 1).id
            options = dict(
                delay="1 h", priority=2, group_key="g%s", max_attempts=3, headers={"h": "'%s :x ? $1"}, expires_in=7200, key_ttl="1 day",
                on_duplicate="ignore", nowait=True, kind="k?:a", depends_on=[parent], on_parent_failure="run",
            )  # fmt: skip
            ids = [enqueue(self.conn, "mail", 1, key="one", **options).id]
            async with library.transaction() as handle:
                ids.append((await self.add(library, handle, 1, style, key="two", **options))[0])
                for payload in AWKWARD:
                    key = f"key {str(payload)[:50]}"
                    id = (await self.add(library, handle, payload, style, key=key))[0]
                    self.later = getattr(self, "later", []) + [(id, payload, key)]
            both = self.sql(
                "SELECT DISTINCT payload, group_key, kind, priority, max_attempts, headers, status, ready_at - enqueued_at, expires_at - enqueued_at,"
                " key_expires_at - enqueued_at, flags, ARRAY(SELECT parent FROM idemq.parents(id)) FROM idemq.jobs WHERE id = ANY(%s)",
                ids,
            )
            self.assertEqual(len(both), 1)
            for id, payload, key in self.later:
                self.assertEqual(self.sql("SELECT payload = %s, key FROM idemq.jobs WHERE id = %s", Jsonb(payload), id), [(True, key)])
            self.later = []

        await self.each(test)

    async def test_a_refused_payload_is_an_error(self):
        async def test(library, style):
            with self.assertRaises(Exception) as caught:
                async with library.transaction() as handle:
                    await self.add(library, handle, "a\0b", style)
            self.assertEqual(library.sqlstate(caught.exception), "22P05")
            self.assertEqual(self.jobs(), ([], []))

        await self.each(test)


if __name__ == "__main__":
    tap.main()
