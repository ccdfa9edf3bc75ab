"""python_paths.py: each way on which clients/python brings a job to its end, and what it sends for that.

For python.pl, beside python_client.py, whose server it uses (IDEMQ_DSN).  Tests that need real time are in
python_client_slow.py.
"""

import asyncio
import collections
import contextvars
import logging
import os
import signal
import struct
import sys
import threading
import time
import unittest
import unittest.mock

import psycopg
from psycopg import sql

import idemq
import idemq._conn
import idemq._lanes
import idemq._talk
import manual
import tap
from python_client import DSN, Client, Proxy


class Counting(Proxy):
    """Counts messages, each with one Sync or a Query, by connection; can be a pooler for all that a client sees."""

    def __init__(self, pooler=False, cut=0):
        self.pooler = pooler
        self.messages = []  # of all connections: the statements' texts and names
        self.pass_first = 0
        self.commits = 0
        super().__init__(cut)

    def dsn(self, more=""):
        return super().dsn("sslmode=disable " + more)

    def up(self, client, server, armed):
        buffer, started, names = b"", False, []
        while data := self.read(client):
            buffer += data
            ends_here = False
            while len(buffer) >= (5 if started else 4):
                (length,) = struct.unpack("!i", buffer[1:5] if started else buffer[:4])
                total = length + started
                if len(buffer) < total:
                    break
                message, buffer = buffer[:total], buffer[total:]
                kind = message[:1] if started else b""
                started = True
                if kind == b"P":
                    names.append(message[5:].split(b"\0")[1])
                    names.append(b"name " + message[5:].split(b"\0")[0])
                elif kind == b"B":
                    names.append(b"bind " + message[5:].split(b"\0")[1])
                elif kind == b"Q":
                    names.append(message[5:-1])
                if kind in (b"S", b"Q"):
                    ends_here |= b"COMMIT" in names or b"bind idemq_commit" in names
                    self.messages.append(names)
                    names = []
            if ends_here:
                self.commits += 1
                if self.commits > self.pass_first and self.cuts < self.cut:
                    self.cuts += 1
                    if not self.after:
                        break
                    armed[0] = True
            try:
                server.sendall(data)
            except OSError:
                break
        self.end(client, server)

    def down(self, client, server, armed):
        while data := self.read(server):
            if armed[0]:
                break  # done, and nobody hears of it
            at = data.find(b"K\0\0\0\x0c") if self.pooler else -1
            if at >= 0:  # the process is another one than that of the session
                data = data[: at + 5] + struct.pack("!i", 1) + data[at + 9 :]
            try:
                client.sendall(data)
            except OSError:
                break
        self.end(client, server)


class Paths(Client):
    def setUp(self):
        super().setUp()
        # A busy machine takes longer than two milliseconds from a handler's begin to its first statement.
        patched = unittest.mock.patch.object(idemq._conn, "QUICK", 60.0)
        patched.start()
        self.addCleanup(patched.stop)

    def both(self):
        """Functions and coroutines: how to drain, and how to write a handler of which the body is both."""
        return ((self.drain, self.do), (self.drain_async, self.do_async))


class Messages(Paths):
    def counted(self, proxy, drain, do, jobs=12, **options):
        """How many messages there were from one handler's begin to the next one's, once all is known."""
        at = []

        def note():
            at.append(len(proxy.messages))

        if asyncio.iscoroutinefunction(do):
            async def handler(job, conn):
                note()
                return await do(job, conn)
        else:
            def handler(job, conn):
                note()
                return do(job, conn)

        self.sql("TRUNCATE effects")
        self.add(*range(jobs))
        self.assertEqual(drain(handler, dsn=proxy.dsn(), **options), {"committed": jobs})
        self.assertEqual(self.effects(), list(range(jobs)))
        # psycopg prepares a handler's statement when it comes for the sixth time.
        return collections.Counter(b - a for a, b in zip(at[7:], at[8:]))

    def test_one_message_a_job_and_the_handlers(self):
        for drain, do in self.both():
            proxy = Counting()
            self.assertEqual(self.counted(proxy, drain, do), {2: 4})
            chained = [names for names in proxy.messages if b"bind idemq_hold_claimed" in names]
            binds = [name[5:] for name in chained[-1] if name.startswith(b"bind ")]
            self.assertEqual(binds, [b"idemq_must_end_claim", b"idemq_commit", b"idemq_begin", b"idemq_hold_claimed"])
            self.assertFalse([name for name in chained[-1] if not name.startswith(b"bind ")], "nothing is parsed again")

    def test_behind_a_pooler(self):
        """Nothing comes after COMMIT, nothing has a name, and no setting stays."""
        for drain, do in self.both():
            proxy = Counting(pooler=True)
            self.assertEqual(self.counted(proxy, drain, do), {3: 4})
            for names in proxy.messages:
                self.assertFalse([name for name in names if name.startswith(b"name ") and name != b"name "], names)
                if b"COMMIT" in names:
                    self.assertEqual(names[-3], b"COMMIT", names)
                self.assertFalse([name for name in names if name.upper().startswith(b"SET ")], names)

    def test_an_older_server(self):
        """It has no hold_claimed: the next transaction begins when it is used."""
        settle = idemq._server._settle_in
        for drain, do in self.both():
            proxy = Counting()
            with unittest.mock.patch.object(idemq._server, "_settle_in", lambda conn, row: settle(conn, (*row[:-1], False))):
                self.assertEqual(self.counted(proxy, drain, do), {3: 4})

    def test_an_older_libpq(self):
        """It has no pipeline mode: each statement is a message."""
        with unittest.mock.patch.object(psycopg.Pipeline, "is_supported", classmethod(lambda cls: False)):
            for drain, do in self.both():
                self.assertEqual(self.counted(Counting(), drain, do), {5: 4})

    def test_a_handler_that_does_not_touch_its_connection(self):
        for drain, coroutine in ((self.drain, False), (self.drain_async, True)):
            seen = []

            def untouched(job, conn):
                seen.append(job.id)
                return {"n": job.payload}

            async def untouched_async(job, conn):
                return untouched(job, conn)

            jobs = self.add(*range(20))
            proxy = Counting()
            with unittest.mock.patch.object(idemq._conn.Turn, "begin", side_effect=AssertionError):
                self.assertEqual(drain(untouched_async if coroutine else untouched, dsn=proxy.dsn(), concurrency=4), {"committed": 20})
            self.assertEqual(sorted(seen), jobs)
            self.assertEqual([self.job(job) for job in jobs], [("completed", 1, {"n": n}, None) for n in range(20)])
            self.assertFalse([names for names in proxy.messages if b"BEGIN" in names or b"bind idemq_begin" in names])

    def test_a_slow_first_statement_chains_nothing(self):
        """Else a transaction would be open, and its xid be held, while a handler does something else."""
        with unittest.mock.patch.object(idemq._conn, "QUICK", 0.0):
            self.assertEqual(self.counted(Counting(), self.drain, self.do), {3: 4})



class Use(Paths):
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
                    with self.assertRaisesRegex(psycopg.ProgrammingError, "the transaction is the worker's"):
                        call(statement)
            for call in (conn.commit, conn.rollback):
                with self.assertRaisesRegex(psycopg.ProgrammingError, "the transaction is the worker's"):
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
                with self.assertRaisesRegex(psycopg.ProgrammingError, "the transaction is the worker's"):
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

        for handler, said in ((sneaks, "has ended the transaction"), (past, "has begun a transaction past its connection")):
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
        self.assertEqual(set(refused), {"the handler has ended, and its transaction with it"})
        self.assertEqual((len(refused) > 1, self.effects()), (True, [2]))

    def test_what_a_handler_has_left_half_done_fails_its_attempt(self):
        """And not its lane, which would wait for the connection's lock until job_timeout."""
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


class Lost(Paths):
    def test_a_connection_is_used_after_the_attempt_is_over(self):
        """It refuses, and whatever the handler does then, its attempt does not count."""
        said = []

        def late(job, conn):
            self.sql("SELECT idemq.cancel(%s)", job.id)
            self.beat(job)
            self.until_set(job.cancelled)
            try:
                self.effect(conn, 1)
            except idemq.StaleToken as error:
                said.append(str(error))

        async def late_async(job, conn):
            self.sql("SELECT idemq.cancel(%s)", job.id)
            self.beat(job)
            try:
                await job.cancelled.wait()
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
            try:
                await self.do_async(job, conn)
            except idemq.StaleToken as error:
                said.append(str(error))

        for drain, handler in ((self.drain, late), (self.drain_async, late_async)):
            (job,) = self.add(1)
            self.assertEqual(drain(handler), {"stale": 1})
            self.assertEqual((self.effects(), self.job(job)[0]), ([], "cancelled"))
        self.assertEqual(len(said), 2)
        self.assertIn("takes no statements any more", said[0])

    def test_a_job_that_is_another_attempts_before_the_first_use(self):
        """Nobody has told the worker; the server does, with the first statement."""

        def taken(job, conn):
            self.sql("SELECT idemq.fail(id, token, 'taken away', retry_in => '1 h') FROM idemq.jobs WHERE id = %s", job.id)
            try:
                self.effect(conn, 1)
            except idemq.StaleToken:
                pass
            return "whatever"

        async def taken_async(job, conn):
            self.sql("SELECT idemq.fail(id, token, 'taken away', retry_in => '1 h') FROM idemq.jobs WHERE id = %s", job.id)
            try:
                await self.do_async(job, conn)
            except idemq.StaleToken:
                pass

        for drain, handler in ((self.drain, taken), (self.drain_async, taken_async)):
            (job,) = self.add(1)
            self.assertEqual(drain(handler), {"stale": 1})
            self.assertEqual((self.effects(), self.job(job)[:3]), ([], ("retrying", 1, None)))

    def test_one_that_never_uses_it_is_not_committed_when_it_is_lost(self):
        def taken(job, conn):
            self.sql("SELECT idemq.fail(id, token, 'taken away', retry_in => '1 h') FROM idemq.jobs WHERE id = %s", job.id)

        (job,) = self.add(1)
        self.assertEqual(self.drain(taken), {"stale": 1})
        self.assertEqual(self.job(job)[:2], ("retrying", 1))

    def test_the_session_of_the_lease_ends(self):
        """A handler that has not used its connection is told, and a connection of its own is of no use to it."""
        told = []

        def waits(job, conn):
            if job.attempt > 1:
                return self.effect(conn, job.payload)
            self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'idemq-python'")
            told.append(job.cancelled.wait(60))
            with self.assertRaises(psycopg.Error):
                self.effect(conn, 100)
            return None

        async def waits_async(job, conn):
            if job.attempt > 1:
                return await self.do_async(job, conn)
            self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'idemq-python'")
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                told.append(job.cancelled.is_set())
                raise

        for drain, handler in ((self.drain, waits), (self.drain_async, waits_async)):
            self.sql("TRUNCATE effects")
            (job,) = self.add(1)
            ended = self.until_completed(lambda: drain(handler), [job])
            self.assertEqual((ended["committed"], self.effects()), (1, [1]))
        self.assertEqual(told, [True, True])

    def test_the_answer_to_a_chained_commit_is_lost(self):
        """The third job's commit, with the claim and the lock of the fourth: done or not, each effect is there once."""
        for drain, do in self.both():
            for after in (True, False):
                with self.subTest(after=after, how=drain.__name__):
                    self.sql("TRUNCATE effects")
                    jobs = self.add(1, 2, 3, 4, 5)
                    proxy = Counting(cut=1)
                    proxy.pass_first, proxy.after = 2, after
                    drain(do, dsn=proxy.dsn())
                    self.assertEqual(proxy.cuts, 1)
                    self.assertTrue(any(b"bind idemq_hold_claimed" in names for names in proxy.messages))
                    self.until_completed(lambda: drain(do), jobs)
                    self.assertEqual(self.effects(), [1, 2, 3, 4, 5])
                    self.assertEqual(self.job(jobs[0])[1], 1)

    def test_the_answer_to_ends_without_a_transaction_is_lost(self):
        """They are asked again, and answered as committed already."""

        class CutEnds(Counting):
            def up(self, client, server, armed):
                read = self.read

                def reading(end):
                    data = read(end)
                    if end is client and b"idemq_end_claim\0" in data and self.cuts < 1:
                        self.cuts += 1
                        armed[0] = True
                    return data

                self.read = reading
                super().up(client, server, armed)

        for drain, handler in ((self.drain, lambda job, conn: {"n": job.payload}), (self.drain_async, self.returns)):
            proxy = CutEnds()
            jobs = self.add(1, 2, 3)
            drain(handler, dsn=proxy.dsn(), attach=False)
            self.assertEqual(proxy.cuts, 1)
            # What was claimed with the lost answer waits for its lease.
            lost = [job for job in jobs if self.job(job)[0] == "running"]
            self.assertLessEqual(len(lost), 1)
            self.sql("SELECT idemq.fail(id, token, 'lost', retry_in => '0') FROM idemq.jobs WHERE id = ANY (%s)", lost)
            self.until_completed(lambda: drain(handler), jobs)
            self.assertEqual([self.job(job)[2] for job in jobs], [{"n": 1}, {"n": 2}, {"n": 3}])
            self.assertEqual(self.job(jobs[0])[1], 1)

    async def returns(self, job, conn):
        return {"n": job.payload}


class Held(Paths):
    """What hold_claimed answers in the message whose commit has claimed the job."""

    def test_whatever_it_says_the_commit_stands_and_the_next_job_runs(self):
        said = {
            "busy": b"SELECT 'busy'::text", "gone": b"SELECT 'gone'::text", "an error": b"SELECT (1 / (random() * 0)::int)::text",
            "no such function": b"SELECT idemq.no_such_function()",
        }  # fmt: skip
        for drain, do in self.both():
            for what, statement in said.items():
                with self.subTest(what):
                    self.sql("TRUNCATE effects")
                    jobs = self.add(1, 2, 3, 4)
                    held = idemq._talk.Statement(b"idemq_hold_claimed", statement)
                    proxy = Counting()
                    with unittest.mock.patch.object(idemq._talk, "HOLD_CLAIMED", held):
                        self.assertEqual(drain(do, dsn=proxy.dsn()), {"committed": 4})
                    self.assertTrue([1 for names in proxy.messages if b"bind idemq_commit" in names and len(names) > 2])
                    self.assertEqual(self.effects(), [1, 2, 3, 4])
                    self.assertEqual([self.job(job)[1] for job in jobs], [1, 1, 1, 1])

    def test_a_job_that_is_held_keeps_its_lock(self):
        """Its transaction is begun before its handler is: until the handler has ended nobody takes the job."""
        seen = []

        def looks(job, conn):
            with psycopg.connect(DSN) as other:
                seen.append(other.execute("SELECT count(*) FROM idemq.jobs WHERE id = %s", (job.id,)).fetchone()[0]
                            - len(other.execute("SELECT 1 FROM idemq.jobs WHERE id = %s FOR UPDATE SKIP LOCKED", (job.id,)).fetchall()))
            self.effect(conn, job.payload)

        self.add(1, 2, 3)
        self.assertEqual(self.drain(looks), {"committed": 3})
        self.assertEqual((seen, self.effects()), ([0, 1, 1], [1, 2, 3]))

    def test_one_that_does_not_use_a_transaction_that_is_begun(self):
        def first_ones(job, conn):
            if job.payload < 3:
                self.effect(conn, job.payload)
            return job.payload

        jobs = self.add(1, 2, 3, 4, 5)
        self.assertEqual(self.drain(first_ones), {"committed": 5})
        self.assertEqual((self.effects(), [self.job(job)[2] for job in jobs]), ([1, 2], [1, 2, 3, 4, 5]))

    def test_a_held_job_is_given_back_by_a_drain(self):
        """Its lock is let go first."""
        def last(job, conn):
            self.effect(conn, job.payload)
            if job.payload == 2:
                stop(wait=False)
                time.sleep(0.3)

        jobs = self.add(1, 2, 3)
        ready = threading.Event()
        stop = None

        def begins(job, conn):
            ready.wait(60)
            last(job, conn)

        stop = self.start(begins, grace=3600)
        ready.set()
        stop_now = stop
        self.until("SELECT count(*) >= 2 FROM effects WHERE queue = %s", self.queue)
        stop_now()
        self.assertEqual(self.effects(), [1, 2])
        self.assertEqual(self.job(jobs[2])[:2], ("pending", 0))


class Batches(Paths):
    def test_used_and_not(self):
        for drain, do, name in ((self.drain, self.do, "used"), (self.drain_async, self.do_async, "used"),
                                (self.drain, lambda job, conn: {"n": job.payload}, "not"), (self.drain, self.some, "some")):
            with self.subTest(name):
                self.sql("TRUNCATE effects")
                jobs = self.add(*range(25))
                self.assertEqual(drain(do, batch=10), {"committed": 25})
                self.assertEqual([self.job(job)[:3] for job in jobs], [("completed", 1, {"n": n}) for n in range(25)])
                self.assertEqual(self.effects(), {"used": list(range(25)), "not": [], "some": list(range(0, 25, 3))}[name])

    def some(self, job, conn):
        if job.payload % 3 == 0:
            self.effect(conn, job.payload)
        return {"n": job.payload}

    def test_a_handler_ends_one_of_them_itself(self):
        """The message that would commit them raises: nothing of it stays, and each runs alone."""
        def ends(job, conn):
            self.effect(conn, job.payload)
            if job.payload == 2:
                conn.execute("SELECT idemq.fail(%s, %s, 'by hand', retry_in => '1 h')", (job.id, job.token))

        jobs = self.add(1, 2, 3)
        ended = self.drain(ends, batch=3)
        self.assertEqual((ended["committed"], self.effects()), (2, [1, 3]))
        self.assertEqual([self.job(job)[0] for job in jobs], ["completed", "retrying", "completed"])
        self.assertIn("the handler has ended its job itself", self.job(jobs[1])[3])

    def test_a_result_that_the_server_refuses(self):
        """In run() it fails the attempt, used or not, alone or with others; the others are committed."""
        for use in (False, True):
            for options in ({}, {"batch": 3}, {"concurrency": 3}):
                self.sql("TRUNCATE effects")

                def handler(job, conn):
                    if use:
                        self.effect(conn, job.payload)
                    return "a\0b" if job.payload == 2 else "good"

                jobs = self.add(1, 2, 3, max_attempts=1)
                self.assertEqual(self.drain(handler, **options), {"committed": 2, "dead": 1})
                self.assertEqual(self.effects(), [1, 3] if use else [])
                self.assertEqual([self.job(job)[2] for job in jobs], ["good", None, "good"])


class HooksOfWorkers(Paths):
    def test_around(self):
        seen = []

        def around(job, call):
            seen.append(("before", job.payload))
            try:
                return [call()]
            finally:
                seen.append(("after", job.payload))

        async def around_async(job, call):
            return [await call()]

        async def outside(job):
            return job.payload

        (job,) = self.add(1)
        self.assertEqual(self.drain(self.do, hooks=idemq.Hooks(around=around)), {"committed": 1})
        self.assertEqual((self.job(job)[2], seen, self.effects()), ([{"n": 1}], [("before", 1), ("after", 1)], [1]))
        for handler, is_outside in ((self.do_async, False), (outside, True)):
            (job,) = self.add(2)
            self.assertEqual(self.drain_async(handler, is_outside, hooks={"around": around_async}), {"committed": 1})
            self.assertEqual(self.job(job)[2], [2] if is_outside else [{"n": 2}])
        # Without a call, what it returns is the result; what it raises fails the attempt.
        (job,) = self.add(3)
        self.drain(self.do, hooks={"around": lambda job, call: "mine"})
        self.assertEqual((self.job(job)[2], self.effects()), ("mine", [1, 2]))
        (job,) = self.add(4, max_attempts=1)
        self.assertEqual(self.drain(self.do, hooks={"around": lambda job, call: call() and 1 / 0}), {"dead": 1})
        self.assertEqual(self.effects(), [1, 2])

    def test_failures_begin_and_end(self):
        heard, failures = [], []

        def failed(job, failure):
            failures.append((job.payload, *failure[:2], type(failure.error).__name__, failure.outcome))
            raise ValueError("what it raises changes nothing")

        async def failed_async(job, failure):
            failed(job, failure)

        def handler(job, *conn):
            if job.payload == 1:
                raise KeyError("no") if job.attempt == 1 else idemq.Dead("no")
            if job.payload == 2:
                raise idemq.Snooze(3600)
            self.sql("SELECT idemq.cancel(%s)", job.id)

        async def handler_async(job, *conn):
            handler(job)

        hooks = {"failed": failed, "started": lambda worker: heard.append(worker.queue),
                 "stopped": lambda worker, outcomes: heard.append((worker.name, outcomes))}  # fmt: skip
        expected = [(1, 1, True, "KeyError", "retrying"), (1, 2, False, "Dead", "dead"), (3, 1, True, "StaleToken", "stale")]
        for drain, way, outside in ((self.drain, handler, False), (self.drain, handler, True), (self.drain_async, handler_async, True)):
            heard.clear()
            failures.clear()
            self.sql("SELECT idemq.purge(%s)", self.queue)
            self.add(1, 2, 3)
            if drain == self.drain_async:
                hooks = {**hooks, "failed": failed_async}
            with self.assertLogs("idemq", "ERROR") as said:
                ended = collections.Counter(drain(way, outside, hooks=hooks, name="me"))
                time.sleep(0.1)
                ended.update(drain(way, outside, hooks=hooks, name="me"))
            self.assertEqual(ended, {"retrying": 1, "dead": 1, "released": 1, "stale": 1})
            self.assertEqual(sorted(failures), expected)
            self.assertEqual((heard[0], heard[1][0]), (self.queue, "me"))
            self.assertEqual(collections.Counter(heard[1][1]) + collections.Counter(heard[3][1]), ended)
            self.assertTrue(any("hook failed" in line for line in said.output))

    def test_a_begin_that_fails_ends_the_run(self):
        def refuses(worker):
            raise OSError("no tracer")

        (job,) = self.add(1)
        with self.assertRaisesRegex(OSError, "no tracer"):
            self.drain(self.do, hooks={"started": refuses})
        self.assertEqual(self.job(job)[0], "pending")

    def test_the_manual(self):
        self.add({"order": 1})
        self.sql("CREATE TABLE IF NOT EXISTS confirmations (order_id int)")
        calls = manual.SECONDS.calls
        self.drain(manual.confirm, hooks=idemq.Hooks(around=manual.measured, failed=manual.reported))
        self.assertEqual(calls, [("labels", self.queue), ("time",), "begin", "end"])
        calls.clear()
        self.add({"order": 2})
        self.drain(manual.confirm, hooks={"around": manual.traced})
        self.assertEqual(calls, [("start_as_current_span", "confirm"), "begin", "end"])
        calls.clear()
        self.add({}, max_attempts=2)
        self.until_all_failed(idemq.Hooks(failed=manual.reported))
        self.assertEqual([(name, type(error)) for name, error in calls], [("capture_exception", KeyError)])

    def until_all_failed(self, hooks):
        ended = collections.Counter()
        give_up = time.monotonic() + 60
        while not ended["dead"] and time.monotonic() < give_up:
            ended.update(self.drain(manual.confirm, hooks=hooks))
        self.assertEqual(ended, {"retrying": 1, "dead": 1})

    def test_what_is_no_hook(self):
        async def coroutine(job, call):
            pass

        for hooks, said in (({"arround": print}, "no hook arround; hooks are around, failed, started, stopped"), ({"failed": 1}, "failed is no function"),
                            ("around", "as Hooks, or as a dict"), ({"around": coroutine}, "is a coroutine function: use AsyncWorker")):
            with self.assertRaisesRegex(TypeError, said):
                idemq.Worker(DSN, self.queue, hooks=hooks)
        with self.assertRaisesRegex(TypeError, "is a function: make it async def"):
            idemq.AsyncWorker(DSN, self.queue, hooks={"around": lambda job, call: call()})


class Surroundings(Paths):
    """Where a worker may run."""

    def test_several_in_a_process(self):
        other = self.queue + "_other"
        self.sql("SELECT idemq.create_queue(%s, lease => '1 h')", other)
        stops = [self.start(self.do, concurrency=2), self.start(lambda job: None, outside=True)]
        jobs = self.add(*range(30))
        third = idemq.Worker(DSN, other)
        thread = threading.Thread(target=third.run, args=(lambda job, conn: job.payload,))
        thread.start()
        beside = idemq.enqueue(self.conn, other, 7).id
        self.until("SELECT count(*) = 31 FROM idemq.jobs WHERE status = 'completed' AND id = ANY (%s)", [*jobs, beside])
        third.stop()
        thread.join(60)
        for stop in stops:
            stop()
        self.assertEqual(self.job(beside)[2], 7)

    def test_after_a_fork(self):
        """A worker is of the process that has made it."""
        worker = idemq.Worker(DSN, self.queue)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                worker.run(self.do)
            except RuntimeError as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        with os.fdopen(read) as said:
            self.assertIn("make a Worker in each process, after the fork", said.read())
        self.add(1)
        self.assertEqual(worker.drain(self.do), {"committed": 1})

    def test_in_a_container_it_is_process_1(self):
        """For whom a signal does nothing, unless there is a handler."""
        script = ("import idemq, os, sys; print(os.getpid(), flush=True);"
                  "print(idemq.Worker(sys.argv[1], sys.argv[2]).run(lambda job, conn: job.payload), flush=True)")
        import subprocess

        command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", sys.executable, "-W", "ignore", "-c", script, DSN, self.queue]
        try:
            subprocess.run(command[:6] + ["true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no namespaces of processes here")
        (job,) = self.add(1)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            self.assertEqual(process.stdout.readline(), "1\n")
            self.until("SELECT status = 'completed' FROM idemq.jobs WHERE id = %s", job)
            with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
                os.kill(int(children.read().split()[0]), signal.SIGTERM)
            self.assertEqual(process.stdout.readline(), "{'committed': 1}\n")
            self.assertEqual(process.wait(60), 0)


if __name__ == "__main__":
    logging.getLogger("idemq").propagate = False
    tap.main()
