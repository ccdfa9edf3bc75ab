"""python_handler_connection.py: the connection of a handler: its first use begins the job's transaction, and what would end that is refused.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import collections
import contextvars
import threading
import unittest.mock

import psycopg
from psycopg import sql

import idemq
import tap
from python_common import QuickFirstUse


class HandlerConnection(QuickFirstUse):
    """Whatever is the first use, it is in the job's transaction: a failure undoes it, and then it is done once."""

    def uses(self):
        queue = self.queue
        insert = "INSERT INTO effects VALUES (%s, %s)"

        def execute(conn, n):
            conn.execute(insert, (queue, n))

        def composed(conn, n):
            conn.execute(sql.SQL("INSERT INTO {} VALUES (%s, %s)").format(sql.Identifier("effects")), (queue, n))

        def cursor(conn, n):
            with conn.cursor() as cur:
                cur.execute(insert, (queue, n))

        def client_cursor(conn, n):
            with psycopg.ClientCursor(conn) as cur:
                cur.execute(insert, (queue, n))

        def many(conn, n):
            conn.cursor().executemany(insert, [(queue, n)])

        def stream(conn, n):
            list(conn.cursor().stream(insert + " RETURNING n", (queue, n)))

        def server_cursor(conn, n):
            with conn.cursor("named") as cur:
                self.assertEqual(cur.execute("SELECT 1").fetchall(), [(1,)])
            execute(conn, n)

        def copy(conn, n):
            with conn.cursor() as cur, cur.copy("COPY effects (queue, n) FROM STDIN") as rows:
                rows.write_row((queue, n))

        def transaction(conn, n):
            with conn.transaction():
                execute(conn, n)
            try:
                with conn.transaction():
                    execute(conn, 10 * n)
                    conn.execute("SELECT 1 / 0")
            except psycopg.errors.DivisionByZero:
                pass

        def forced(conn, n):
            with conn.transaction(force_rollback=True):
                execute(conn, 10 * n)
            execute(conn, n)

        def pipeline(conn, n):
            with conn.pipeline():
                execute(conn, n)

        return execute, composed, cursor, client_cursor, many, stream, server_cursor, copy, transaction, forced, pipeline

    def uses_async(self):
        queue = self.queue
        insert = "INSERT INTO effects VALUES (%s, %s)"

        async def execute(conn, n):
            await conn.execute(insert, (queue, n))

        async def stream(conn, n):
            async for _ in conn.cursor().stream(insert + " RETURNING n", (queue, n)):
                pass

        async def server_cursor(conn, n):
            async with conn.cursor("named") as cur:
                await cur.execute("SELECT 1")
            await execute(conn, n)

        async def copy(conn, n):
            async with conn.cursor() as cur, cur.copy("COPY effects (queue, n) FROM STDIN") as rows:
                await rows.write_row((queue, n))

        async def transaction(conn, n):
            async with conn.transaction():
                await execute(conn, n)
            try:
                async with conn.transaction():
                    await execute(conn, 10 * n)
                    await conn.execute("SELECT 1 / 0")
            except psycopg.errors.DivisionByZero:
                pass

        async def pipeline(conn, n):
            async with conn.pipeline():
                await execute(conn, n)

        return execute, stream, server_cursor, copy, transaction, pipeline

    def test_any_use_is_in_the_jobs_transaction(self):
        for held in (False, True):  # begun with the last commit, too
            for use in self.uses():
                def handler(job, conn, use=use):
                    use(conn, job.payload)
                    if job.attempt == 1 and job.payload % 2:
                        raise idemq.RetryLater(0)

                self.once(self.drain, handler, held, use)
            for use in self.uses_async():
                async def handler_async(job, conn, use=use):
                    await use(conn, job.payload)
                    if job.attempt == 1 and job.payload % 2:
                        raise idemq.RetryLater(0)

                self.once(self.drain_async, handler_async, held, use)

    def once(self, drain, handler, held, use):
        with self.subTest(use.__name__, held=held):
            self.sql("TRUNCATE effects")
            self.add(1, 2, 3, 4) if held else self.add(1)
            ended = collections.Counter()
            while sum(self.sql("SELECT count(*) FROM idemq.jobs WHERE status <> 'completed' AND queue_id = idemq.queue_id(%s)", self.queue)[0]):
                ended.update(drain(handler))
            self.assertEqual(ended, {"committed": 4, "retrying": 2} if held else {"committed": 1, "retrying": 1})
            self.assertEqual(self.effects(), [1, 2, 3, 4] if held else [1])

    def test_the_transaction_is_the_workers(self):
        """What would end it, or begin one, raises and is not sent; a handler that catches that goes on."""
        statements = ("COMMIT", "commit work", b"END", sql.SQL("ABORT"), "ROLLBACK", " -- so\n /* it */ BEGIN", ";START TRANSACTION",
                      "PREPARE TRANSACTION 'x'", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN")  # fmt: skip

        def refused(job, conn):
            self.effect(conn, job.payload)
            for statement in statements:
                for call in (conn.execute, conn.cursor().execute, lambda query: conn.cursor().executemany(query, [()]),
                             lambda query: list(conn.cursor().stream(query)), lambda query: conn.cursor().copy(query).__enter__()):
                    with self.assertRaisesRegex(psycopg.ProgrammingError, "the worker commits its transaction"):
                        call(statement)
            for call in (conn.commit, conn.rollback):
                with self.assertRaisesRegex(psycopg.ProgrammingError, "the worker commits its transaction"):
                    call()
            conn.execute("SAVEPOINT a")
            self.effect(conn, 100)
            conn.execute("ROLLBACK TO a")
            conn.execute("ROLLBACK WORK TO SAVEPOINT a")
            return "good"

        (job,) = self.add(1)
        self.assertEqual(self.drain(refused), {"committed": 1})
        self.assertEqual((self.effects(), self.job(job)[2]), ([1], "good"))

        async def refused_async(job, conn):
            for statement in statements:
                with self.assertRaisesRegex(psycopg.ProgrammingError, "the worker commits its transaction"):
                    await conn.execute(statement)
            with self.assertRaises(psycopg.ProgrammingError):
                await conn.commit()
            with self.assertRaises(psycopg.ProgrammingError):
                await conn.rollback()

        self.add(2)
        self.assertEqual(self.drain_async(refused_async), {"committed": 1})

    def test_one_that_ends_it_all_the_same_fails(self):
        """In the middle of a text with several statements nothing sees it, but what has come of it."""

        def sneaks(job, conn):
            try:
                conn.execute("SELECT 1; ROLLBACK")
            except psycopg.ProgrammingError:
                pass

        def past(job, conn):
            conn.pgconn.exec_(b"BEGIN")

        for handler, said in ((sneaks, "has ended the worker's transaction"), (past, "began a transaction without using its connection object")):
            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(self.drain(handler), {"dead": 1})
            self.assertIn(said, self.job(job)[3])

    def test_what_a_handler_has_left_behind_is_refused(self):
        """A task, while the next handler has the connection, and when nobody has."""
        refused = []

        async def late(conn, seconds):
            await asyncio.sleep(seconds)
            try:
                await conn.execute("INSERT INTO effects VALUES (%s, %s)", (self.queue, 100))
            except psycopg.ProgrammingError as error:
                refused.append(str(error))

        async def leaves(job, conn):
            if job.payload == 1:
                leaves.tasks = [asyncio.create_task(late(conn, 0)), asyncio.create_task(late(conn, 0.1))]
            if job.payload == 2:
                await asyncio.sleep(0.3)
            await conn.execute("INSERT INTO effects VALUES (%s, %s)", (self.queue, job.payload))
            if job.attempt == 1 and job.payload == 1:
                leaves.tasks.append(asyncio.create_task(late(conn, 0)))
                raise idemq.Dead("once")

        self.add(1, 2)
        self.assertEqual(self.drain_async(leaves), {"dead": 1, "committed": 1})
        self.assertEqual(set(refused), {"the handler has ended, and so has its transaction"})
        self.assertEqual((len(refused) > 1, self.effects()), (True, [2]))

    def test_what_a_handler_has_left_half_done_fails_its_attempt(self):
        """And not its executor, which would wait for the connection's lock until job_timeout."""
        kept = []

        def stream(job, conn):
            self.effect(conn, 100)
            kept.append(conn.cursor().stream("SELECT generate_series(1, 100000)"))
            next(kept[-1])

        def raises(job, conn):
            stream(job, conn)
            raise ValueError("in the middle")

        def copy(job, conn):
            kept.append(conn.cursor().copy("COPY effects (queue, n) FROM STDIN"))
            kept[-1].__enter__().write_row((self.queue, 100))

        def copy_out(job, conn):
            self.effect(conn, 100)
            kept.append(conn.cursor().copy("COPY (SELECT generate_series(1, 100000)) TO STDOUT"))
            kept[-1].__enter__().read()

        def pipeline(job, conn):
            kept.append(conn.pipeline())
            kept[-1].__enter__()
            self.effect(conn, 100)

        def hidden(job, conn):
            kept.append(conn.cursor().stream("SELECT 1"))  # never begun
            pipeline(job, conn)

        def busy(job, conn):
            pipeline(job, conn)
            conn.execute("SELECT pg_sleep(0.2)")  # its session ends, and the lease with it, long after the connection

        def writer(job, conn):
            self.effect(conn, 100)
            broken = unittest.mock.Mock()
            broken.finish.side_effect = OSError("the disk is full")
            kept.append(conn.cursor().copy("COPY effects (queue, n) FROM STDIN", writer=broken))
            kept[-1].__enter__()
            raise ValueError("in the middle")

        async def stream_async(job, conn):
            await conn.execute("INSERT INTO effects VALUES (%s, 100)", (self.queue,))
            kept.append(conn.cursor().stream("SELECT generate_series(1, 100000)"))
            await kept[-1].__anext__()

        async def copy_async(job, conn):
            kept.append(conn.cursor().copy("COPY effects (queue, n) FROM STDIN"))
            await (await kept[-1].__aenter__()).write_row((self.queue, 100))

        async def copy_out_async(job, conn):
            await conn.execute("INSERT INTO effects VALUES (%s, 100)", (self.queue,))
            kept.append(conn.cursor().copy("COPY (SELECT generate_series(1, 100000)) TO STDOUT"))
            await (await kept[-1].__aenter__()).read()

        for use in (stream, raises, copy, copy_out, pipeline, hidden, busy, writer, stream_async, copy_async, copy_out_async):
            with self.subTest(use.__name__):
                self.sql("TRUNCATE effects")
                left, job = self.add(1, 2)

                def first(job):
                    return job.payload == 1 and job.attempt == 1 and not done and not done.append(1)

                def handler(job, conn, use=use):
                    if first(job):
                        return use(job, conn)
                    self.effect(conn, job.payload)

                async def handler_async(job, conn, use=use):
                    if first(job):
                        return await use(job, conn)
                    await self.do_async(job, conn)

                done = []
                while any(self.job(each)[0] != "completed" for each in (left, job)):
                    if use.__name__.endswith("_async"):
                        self.drain_async(handler_async)
                    else:
                        self.drain(handler)
                self.assertEqual(self.effects(), [1, 2])
                self.assertEqual(self.job(left)[1], 2)

    def test_a_threads_copy_ends_with_its_handler(self):
        """Its rows would come with those of the next job's COPY."""
        in_copy, next_is_in, over = threading.Event(), threading.Event(), threading.Event()
        said = []

        def goes_on(conn):
            try:
                with conn.cursor().copy("COPY effects (queue, n) FROM STDIN") as rows:
                    in_copy.set()
                    next_is_in.wait(60)
                    for _ in range(4000):
                        rows.write_row((self.queue, 100))
            except Exception as error:
                said.append(error)
            over.set()

        def handler(job, conn):
            if job.payload == 1 and not in_copy.is_set():
                threading.Thread(target=contextvars.copy_context().run, args=(goes_on, conn), daemon=True).start()
                in_copy.wait(60)
                return
            with conn.cursor().copy("COPY effects (queue, n) FROM STDIN") as rows:
                next_is_in.set()
                over.wait(60)
                rows.write_row((self.queue, job.payload))

        jobs = self.add(1, 2)
        while any(self.job(each)[0] != "completed" for each in jobs):
            self.drain(handler)
        self.assertEqual((self.effects(), len(said)), ([1, 2], 1))

    def test_names_that_a_handler_deallocates(self):
        """psycopg does it by itself after a rollback, too."""

        def all_of_it(job, conn):
            self.effect(conn, job.payload)
            conn.execute("DEALLOCATE ALL")

        def hidden(job, conn):
            self.effect(conn, job.payload)
            conn.execute("SELECT 1; DEALLOCATE ALL")

        def rolled_back(job, conn):
            for _ in range(7):
                conn.execute("SELECT 1")
            with conn.transaction(force_rollback=True):
                self.effect(conn, 100)
            self.effect(conn, job.payload)

        for handler in (all_of_it, hidden, rolled_back):
            self.sql("TRUNCATE effects")
            self.add(1, 2, 3, 4)
            self.assertEqual(self.drain(handler), {"committed": 4})
            self.assertEqual(self.effects(), [1, 2, 3, 4])


if __name__ == "__main__":
    tap.main()
