"""python_values.py: values that Python cannot decode, results that cannot be encoded, processes that a handler forks.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import unittest.mock

import idemq
import idemq._attempt_runner
import tap
from python_common import DSN, Client



def children_of(parent):
    """The processes of a parent, from /proc: a minimal Debian has no ps."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    state = stat.read()
            except OSError:  # it has ended
                continue
            if int(state.rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry))
    return found


def can_decode(document):
    try:
        json.loads(document)
    except (ValueError, RecursionError):
        return False
    return True


NUMBER, NESTED = ("'" + "9" * 5000 + "'", "'" + "[" * 1500 + "]" * 1500 + "'")
"""Documents that jsonb stores, as SQL: an integer of 5,000 digits, 1,500 nested arrays."""
LIMITED = hasattr(sys, "get_int_max_str_digits")
"""Whether Python refuses to convert such an integer.  Python 3.9.2 (Debian 11) converts integers of any length."""
if not LIMITED:
    NUMBER = NESTED
REFUSED = "ValueError" if LIMITED else "RecursionError"
"""What NUMBER raises."""
BAD = [document for document in (NUMBER, NESTED) if not can_decode(document.strip("'"))]
"""Those that this Python cannot decode.  Since 3.12 its limit for nested arrays is above that of jsonb."""


class Unreadable(Client):
    """A document that Python cannot decode fails its own attempt, and nothing else."""

    def ways(self):
        return (
            (self.drain, lambda job, conn: None, False),
            (self.drain, lambda job, conn: self.do(job, conn), False),
            (self.drain, lambda job: None, True),
            (self.drain_async, self.do_async, False),
            (self.drain_async, self.nothing_async, True),
        )

    async def nothing_async(self, job):
        return None

    def add_bad(self, document, max_attempts=1):
        ((job,),) = self.sql(f"SELECT id FROM idemq.enqueue('{self.queue}', {document}, max_attempts => {max_attempts})")
        return job

    def test_a_payload(self):
        for document in BAD:
            for drain, handler, outside in self.ways():
                for options in ({}, {"concurrency": 3}) if outside else ({}, {"batch": 5}):
                    self.sql("TRUNCATE effects")
                    first, bad, last = self.add(1)[0], self.add_bad(document), self.add(2)[0]
                    outcomes = drain(handler, outside, **options)
                    self.assertEqual(outcomes, {"committed": 2, "dead": 1})
                    self.assertEqual([self.job(job)[0] for job in (first, bad, last)], ["completed", "dead", "completed"])
                    self.assertRegex(self.job(bad)[3], "^ValueError: payload, checkpoint or headers could not be decoded: (?:ValueError|RecursionError)")
                    if handler in (self.do_async,) and not outside:
                        self.assertEqual(self.effects(), [1, 2])

    def test_headers_and_a_checkpoint(self):
        for column in ("headers", "checkpoint"):
            (bad, good) = self.add(1, 2, max_attempts=1)
            self.sql(f"UPDATE idemq.jobs SET {column} = jsonb_build_object('a', {NUMBER}::jsonb) WHERE id = %s", bad)
            self.assertEqual(self.drain(self.do), {"committed": 1, "dead": 1})
            self.assertEqual([self.job(job)[0] for job in (bad, good)], ["dead", "completed"])

    def test_results_of_parents_and_events(self):
        ((parent, token),) = self.sql(f"SELECT (idemq.enqueue('{self.queue}', '1')).id, 0")
        ((token,),) = self.sql("SELECT token FROM idemq.claim(%s)", self.queue)
        self.sql(f"SELECT idemq.commit(%s, %s, {NUMBER})", parent, token)
        self.sql(f"SELECT idemq.send_event('{self.queue}', 'paid', {BAD[-1]})")

        def reads(job, conn=None):
            if job.payload == "parents":
                job.parents()
            elif job.payload == "event":
                job.await_event("paid", "1 h")

        for outside in (False, True):
            (parents,) = self.add("parents", depends_on=[parent], max_attempts=1)
            (event, good) = self.add("event", 3, max_attempts=1)
            self.assertEqual(self.drain(reads, outside), {"dead": 2, "committed": 1})
            self.assertEqual([self.job(job)[0] for job in (parents, event, good)], ["dead", "dead", "completed"])
            self.assertRegex(self.job(parents)[3], REFUSED)
            self.assertRegex(self.job(event)[3], "RecursionError" if BAD[-1] is NESTED else "ValueError")

    def test_an_event_that_comes_while_the_worker_records_the_wait(self):
        """Its payload is the next attempt's."""

        async def late(run, job, waiting, record=idemq._attempt_runner.AttemptRunner._record_wait):
            await asyncio.to_thread(self.sql, f"SELECT idemq.send_event('{self.queue}', 'late', {NUMBER})")
            await record(run, job, waiting)

        def waits(job, conn):
            conn.execute("SELECT 1")  # from now on, the wait is part of the transaction
            job.await_event("late", "1 h")

        (job,) = self.add(1, max_attempts=1)
        with unittest.mock.patch.object(idemq._attempt_runner.AttemptRunner, "_record_wait", late):
            self.assertEqual(self.drain(waits), {"released": 1, "dead": 1})
        self.assertRegex(self.job(job)[3], REFUSED)

    def test_a_response_of_a_step(self):
        def handler(job):
            return job.step("s", lambda step: 1)

        (job, good) = self.add(1, 2, max_attempts=1)
        claimed = self.sql("SELECT id, token FROM idemq.claim(%s)", self.queue)[0]
        self.sql("CALL idemq.begin_step(%s, %s, 's', 'null', '1 h')", *claimed)
        self.sql(f"SELECT idemq.finish_step(%s, %s, 's', {NUMBER}) IS NULL", *claimed)
        self.sql("SELECT idemq.release(%s, %s)", *claimed)
        self.assertEqual(self.drain(handler, True), {"dead": 1, "committed": 1})


class Odd:
    """What raises whatever is asked of it."""

    @property
    def __class__(self):
        raise RuntimeError("no class")

    def __str__(self):
        raise RecursionError("no text")

    __repr__ = __str__


class OddList(list):
    def __iter__(self):
        raise RuntimeError("nothing in it")


def nested():
    value = []
    for _ in range(100_000):
        value = [value]
    return value


class Results(Client):
    def test_outside_the_job_completes_without_it(self):
        for result in (nested(), Odd(), OddList([1]), {Odd(): 1}, {"a": object()}, *([9**6000] if LIMITED else []), "\ud800"):
            for concurrency in (1, 3):
                (bad, good) = self.add(1, 2)
                with self.assertLogs("idemq", "ERROR"):
                    outcomes = self.drain(lambda job: result if job.payload == 1 else "good", True, concurrency=concurrency)
                self.assertEqual(outcomes, {"committed": 2})
                self.assertEqual([self.job(job)[:3] for job in (bad, good)], [("completed", 1, None), ("completed", 1, "good")])

        async def handler(job):
            return nested() if job.payload == 1 else "good"

        (bad, good) = self.add(1, 2)
        self.assertEqual(self.drain_async(handler, True), {"committed": 2})
        self.assertEqual([self.job(job)[0] for job in (bad, good)], ["completed", "completed"])

    def test_in_a_transaction_the_attempt_fails(self):
        for result in (nested(), Odd(), {"a": object()}):
            self.sql("TRUNCATE effects")

            def handler(job, conn):
                self.effect(conn, job.payload)
                return result if job.payload == 1 else "good"

            (bad, good) = self.add(1, 2, max_attempts=1)
            self.assertEqual(self.drain(handler), {"dead": 1, "committed": 1})
            self.assertEqual((self.job(bad)[0], self.job(good)[2], self.effects()), ("dead", "good", [2]))

    def test_a_response_of_a_step_is_done_without_it(self):
        calls = []

        def handler(job):
            def call(step):
                calls.append(step.key)
                return nested()

            job.step("s", call)
            if job.attempt == 1:
                raise idemq.RetryLater(0)

        (job,) = self.add(1)
        self.drain(handler, True)
        self.assertEqual((len(calls), self.job(job)[0]), (1, "completed"))


FORKS = """
import logging, multiprocessing, os, sys, threading, time, asyncio
import idemq
logging.basicConfig(format="%(message)s")
def square(n):
    return n * n
def pool(job, conn=None):
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as workers:  # whose end sends SIGTERM to its processes
        return sum(workers.map(square, range(10)))
def returns(job, conn=None):
    if conn is not None:
        conn.execute("INSERT INTO effects (queue, n) VALUES (%s, 1)", (job.queue,))
    pid = os.fork()
    if pid == 0:
        if job.payload == "raises":
            raise ValueError("in the child")
        if job.payload == "exits":
            sys.exit(7)
        if job.payload == "uses":
            try:
                conn.execute("SELECT 1") if conn is not None else job.save_checkpoint(1)
            except Exception:
                os._exit(9)
            os._exit(1)
        return "in the child"
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
async def returns_async(job, conn=None):
    if conn is not None:
        await conn.execute("INSERT INTO effects (queue, n) VALUES (%s, 1)", (job.queue,))
    pid = os.fork()
    if pid == 0:
        return "in the child"
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def stays(job, conn=None):
    if conn is not None:
        conn.execute("SELECT 1")
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    print("forked", flush=True)
    time.sleep(600)
how, dsn, queue, way = sys.argv[1:]
handler = globals()[how]
if way.startswith("async"):
    worker = idemq.AsyncWorker(dsn, queue)
    asyncio.run(worker.run(handler) if way == "async_run" else worker.run_outside(handler))
else:
    worker = idemq.Worker(dsn, queue)
    print(worker.run(handler) if way == "run" else worker.run_outside(handler), flush=True)
"""


class Forks(Client):
    def program(self, how, way, **options):
        program = subprocess.Popen([sys.executable, "-W", "ignore", "-c", FORKS, how, DSN, self.queue, way], text=True, **options)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        return program

    def test_a_pool_does_not_drain_the_worker(self):
        for way in ("outside", "run"):
            worker = self.program("pool", way)
            for n in range(3):  # the worker goes on
                (job,) = self.add(n)
                self.until("SELECT status = 'completed' FROM idemq.jobs WHERE id = %s", job)
                self.assertEqual(self.job(job)[1:3], (1, 285))
            self.assertIsNone(worker.poll())
            worker.terminate()
            self.assertEqual(worker.wait(60), 0)

    def test_a_process_that_comes_back_ends(self):
        for way in ("outside", "run"):
            worker = self.program("returns", way, stderr=subprocess.DEVNULL)
            for payload, status in (("returns", 0), ("raises", 1), ("exits", 7), ("uses", 9)):
                self.sql("TRUNCATE effects")
                (job,) = self.add(payload)
                self.until("SELECT status = 'completed' FROM idemq.jobs WHERE id = %s", job)
                self.assertEqual(self.job(job)[1:3], (1, status), f"{way}, {payload}")
                self.assertEqual(self.effects(), [1] if way == "run" else [])
            worker.terminate()
            self.assertEqual(worker.wait(60), 0)
        worker = self.program("returns_async", "async_run", stderr=subprocess.DEVNULL)
        self.sql("TRUNCATE effects")
        (job,) = self.add(1)
        self.until("SELECT status = 'completed' FROM idemq.jobs WHERE id = %s", job)
        self.assertEqual((self.job(job)[1:3], self.effects()), ((1, 0), [1]))

    def test_it_does_not_keep_the_session_of_a_worker_that_died(self):
        """The lease is attached to the session; the process that was forked lives on."""
        (job,) = self.add(1, max_attempts=1)
        worker = self.program("stays", "run", stdout=subprocess.PIPE)
        self.assertEqual(worker.stdout.readline(), "forked\n")
        children = children_of(worker.pid)
        try:
            self.assertEqual(len(children), 1)
            worker.kill()
            self.until("SELECT status = 'dead' FROM idemq.jobs WHERE id = %s", job)
            self.assertEqual(self.job(job)[3], "the worker's session ended")
            os.kill(children[0], 0)  # it is still there
            os.kill(children[0], signal.SIGTERM)  # which ends it, as any process
        finally:
            for child in children:
                try:
                    os.kill(child, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        worker.stdout.close()


if __name__ == "__main__":
    tap.main()
