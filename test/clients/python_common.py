"""python_common.py: what the tests of clients/python share: a queue for each test, a proxy that cuts connections.

For python.pl and python_slow.pl, which say where the server is (IDEMQ_DSN); its worker is on.  Tests that need real time or
many jobs are in python_slow.py.  A test that needs a handler's time to be over, or a lost lease to be noticed, does not wait
for a short timeout: it calls end_time or beat once the situation exists.  So a slow machine cannot make a timeout expire early.
"""

import asyncio
import collections
import logging
import os
import socket
import struct
import threading
import time
import unittest
import unittest.mock

import psycopg

import idemq
import idemq._attempt_runner
import idemq._executors
import idemq._handler_connection
import idemq._links
import idemq._run

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
        # On a busy machine, a handler that was told to end may take longer than the client's 5 s, and so may all that follows.
        for name in ("ABANDON_AFTER", "DRAIN_ABANDON_AFTER"):
            self.set_seconds(name, 120)
        self.set_seconds("END_MARGIN", 600)
        for name in ("LOCK_TIMEOUT", "ROLLBACK_TIMEOUT"):
            self.set_seconds(name, 60, idemq._executors)
        for module, name in ((idemq._run, "END_WAIT_TIMEOUT"), (idemq._links, "ANSWER_TIMEOUT"), (idemq._links, "INTERRUPT_TIMEOUT")):
            self.set_seconds(name, 60, module)

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
        execution = job._execution
        execution._run.call_loop(execution.request_end, "time")

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
        run = job._execution._run
        over = threading.Event()

        def beats():
            while not job.cancelled.is_set() and not over.wait(0.05):
                job._heartbeat_at = time.monotonic()
                run.call_loop(run.shared.heartbeat_now.set)

        thread = threading.Thread(target=beats)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(over.set)

    def set_seconds(self, name, seconds, module=idemq._attempt_runner):
        before = getattr(module, name)
        setattr(module, name, seconds)
        self.addCleanup(setattr, module, name, before)


class PatientClient(Client):
    """Gives a cancelled statement a minute to answer."""

    def setUp(self):
        super().setUp()
        patient = unittest.mock.patch.object(idemq._handler_connection, "CANCEL_TIMEOUT", 60)  # on a busy machine, too
        patient.start()
        self.addCleanup(patient.stop)

    @staticmethod
    async def cancel_late(conn, cancel=idemq._links.interrupt):
        """A cancel takes its way past the connection: that it is sent says nothing of when the statement answers."""
        asyncio.get_running_loop().call_later(0.2, lambda: asyncio.ensure_future(cancel(conn)))

    def is_over(self, job, seconds):
        """The lease has ended as well, and once the transaction has, worker or server may be first.  A worker that a
        heartbeat has told of it leaves the job to the server, and its session may be gone by then."""
        self.until("SELECT status = 'dead' FROM idemq.jobs WHERE id = %s", job)
        self.assertIn(self.job(job)[3], (f"stopped after {seconds:g} s (job_timeout)", "job_timeout reached", "the worker's session ended"))


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


class QuickFirstUse(Client):
    def setUp(self):
        super().setUp()
        # A busy machine takes longer than two milliseconds from a handler's begin to its first statement.
        patched = unittest.mock.patch.object(idemq._handler_connection, "QUICK_FIRST_USE", 60.0)
        patched.start()
        self.addCleanup(patched.stop)

    def both(self):
        """Functions and coroutines: how to drain, and how to write a handler of which the body is both."""
        return ((self.drain, self.do), (self.drain_async, self.do_async))
