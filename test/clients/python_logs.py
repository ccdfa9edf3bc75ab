"""python_logs.py: the job of each log line, and logs of attempts in idemq.attempts.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import contextlib
import contextvars
import io
import json
import logging
import re
import sys
import threading
import unittest.mock

import psycopg

import idemq
import idemq._logs
import manual
import tap
from idemq import Inside, Outside
from python_common import DSN, Client, Proxy

app = logging.getLogger("app")


class Logs(Client):
    def setUp(self):
        super().setUp()
        app.setLevel(logging.INFO)
        # So that nothing of it is in the output of the tests.
        self.addCleanup(app.removeHandler, handler := logging.NullHandler())
        app.addHandler(handler)

    def says(self, job, conn=None):
        app.info("job %s says é", job.payload)
        if conn is not None:
            self.effect(conn, 1)
        if job.payload == "fails":
            raise ValueError("no")
        return "done"

    async def says_async(self, job, conn=None):
        app.info("job %s says é", job.payload)
        if conn is not None:
            await conn.execute("INSERT INTO effects VALUES (%s, %s)", (self.queue, 1))
        if job.payload == "fails":
            raise ValueError("no")
        return "done"

    def silent(self, job, conn=None):
        return "done"

    def attempts(self):
        return self.sql(
            "SELECT j.payload, a.outcome, a.details FROM idemq.attempts a JOIN idemq.jobs j ON j.id = a.job_id WHERE j.queue_id = idemq.queue_id(%s)"
            " ORDER BY a.job_id, a.token", self.queue)  # fmt: skip

    def log_of(self, log, **options):
        """The details of an attempt that fails after it has logged these lines."""
        (job,) = self.add(1, max_attempts=1)

        def handler(job, conn):
            for line in log:
                app.info(line)
            raise ValueError("no secret-1")

        self.assertEqual(self.drain(handler, capture_logs="failed", **options), {"dead": 1})
        return self.sql("SELECT details, error FROM idemq.attempts WHERE job_id = %s", job)[0]


class TheJobOfALine(Logs):
    def setUp(self):
        super().setUp()
        self.out = io.StringIO()
        handler = logging.StreamHandler(self.out)
        handler.setFormatter(logging.Formatter("%(message)s: %(job)s | %(queue)s %(job_id)s %(attempt)s"))
        handler.addFilter(idemq.JobLogFilter())
        app.addHandler(handler)
        self.addCleanup(app.removeHandler, handler)

    def lines(self):
        return sorted(self.out.getvalue().splitlines())

    def said(self, job, what):
        return f"{what}: {self.queue} {job} attempt 1 | {self.queue} {job} 1"

    def test_functions(self):
        jobs = self.add(1, 2, 3)
        together = threading.Barrier(3)

        def handler(job, conn):
            together.wait(60)
            app.info("in the handler")
            self.assertIs(idemq.current_job(), job)
            threads = [threading.Thread(target=app.info, args=("in a bare thread",)),
                       threading.Thread(target=contextvars.copy_context().run, args=(app.info, "in a thread"))]  # fmt: skip
            for thread in threads:
                thread.start()
                thread.join()

        app.info("before")
        self.assertEqual(self.drain(handler, concurrency=3), {"committed": 3})
        app.info("after")
        self.assertIsNone(idemq.current_job())
        lines = self.lines()
        for job in jobs:
            self.assertIn(self.said(job, "in the handler"), lines)
            self.assertIn(self.said(job, "in a thread"), lines)
        self.assertIn("before: - | None None None", lines)
        self.assertIn("after: - | None None None", lines)

    def test_records_of_others_keep_their_members(self):
        # The members of another library, and those that this filter added in the thread of the handler.
        for members in ({"queue": "mine", "job": 7}, {"queue": "mail", "job_id": 42, "attempt": 1, "job": "mail 42 attempt 1"}):
            record = logging.makeLogRecord(members)
            self.assertTrue(idemq.JobLogFilter().filter(record))
            self.assertEqual({name: getattr(record, name) for name in members}, members)
            self.assertEqual(record.attempt, members.get("attempt"))

    def test_coroutines(self):
        jobs = self.add(1, 2, 3)

        async def handler(job, conn):
            await asyncio.sleep(0)
            await asyncio.gather(*(asyncio.create_task(self.line(f"task {n}")) for n in range(2)))
            await asyncio.to_thread(app.info, "to_thread")

        self.assertEqual(self.drain_async(handler, concurrency=3), {"committed": 3})
        expected = [self.said(job, what) for job in jobs for what in ("task 0", "task 1", "to_thread")]
        self.assertEqual(self.lines(), sorted(expected))

    async def line(self, text):
        await asyncio.sleep(0)
        app.info(text)


class Manual(Logs):
    """What doc/usage/logs-traces.md shows."""

    def test_logs(self):
        self.sql("CREATE TABLE IF NOT EXISTS confirmations (order_id int)")
        (job,) = self.add({"url": "there"})
        printed = io.StringIO()
        root = logging.getLogger()
        provider = unittest.mock.Mock(get=lambda url: logging.getLogger("provider").info("gets %s with card 4111111111111111", url))
        with unittest.mock.patch.object(root, "handlers", []), unittest.mock.patch.object(manual, "provider", provider), contextlib.redirect_stderr(printed):
            level = root.level
            self.addCleanup(root.setLevel, level)
            manual.log_with_jobs()
            self.drain(manual.fetch_in_thread, True, capture_logs="all", redact=manual.without_cards)
        self.assertRegex(printed.getvalue(), rf"INFO \[{self.queue} {job} attempt 1\] gets there with card 4111")
        self.assertRegex(self.attempts()[0][2]["log"], r"INFO provider: gets there with card \(card\)\Z")


class Capture(Logs):
    def test_of_failed_attempts(self):
        self.add("succeeds", "fails", max_attempts=2)
        for drain, handler, outside in ((self.drain, self.says, False), (self.drain, self.says, True), (self.drain_async, self.says_async, False),
                                        (self.drain_async, self.says_async, True)):  # fmt: skip
            self.sql("SELECT idemq.purge(%s)", self.queue)
            self.sql("DELETE FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s)", self.queue)
            self.add("succeeds", "fails", max_attempts=1)
            self.assertEqual(drain(handler, outside, capture_logs="failed"), {"committed": 1, "dead": 1})
            ((payload, outcome, details),) = self.attempts()
            self.assertEqual((payload, outcome, details["type"]), ("fails", "failed", "ValueError"))
            self.assertRegex(details["log"], r"\A\d{4}-\S+ \S+ INFO app: job fails says é\Z")
            self.assertIn("in says", details["trace"])
        self.assertNotIn(idemq._logs._capture, logging.getLogger().handlers)

    def test_of_all(self):
        for drain, handler, outside, options in (
            (self.drain, self.says, False, {}), (self.drain, lambda job, conn: self.says(job), False, {}), (self.drain, self.says, False, {"batch": 5}),
            (self.drain, self.says, True, {"concurrency": 2}), (self.drain_async, self.says_async, False, {}), (self.drain_async, self.says_async, True, {}),
        ):  # fmt: skip
            with self.subTest(drain=drain.__name__, outside=outside, **options):
                self.sql("DELETE FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s)", self.queue)
                self.sql("DELETE FROM idemq.attempts WHERE queue_id = idemq.queue_id(%s)", self.queue)
                self.add("a", "b", "c")
                self.assertEqual(drain(handler, outside, capture_logs="all", **options), {"committed": 3})
                self.assertEqual([(payload, outcome, details["log"].partition("INFO ")[2]) for payload, outcome, details in self.attempts()],
                                 [(each, "committed", f"app: job {each} says é") for each in "abc"])  # fmt: skip
                self.assertEqual(self.sql("SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s) AND result = '\"done\"'", self.queue), [(3,)])

    def test_off_and_silent(self):
        self.add(1)
        self.drain(self.says)
        self.add(2)
        self.drain(self.silent, capture_logs="all")
        self.add(3)
        idemq.drain(DSN, {self.queue: Inside(self.says, capture_logs="off")}, capture_logs="all")
        self.assertEqual(self.attempts(), [])
        self.add(4)
        idemq.drain(DSN, {self.queue: Outside(self.says, capture_logs="all")})
        self.assertEqual(len(self.attempts()), 1)

    def test_the_last_16_kb(self):
        details, _ = self.log_of([f"line {n} " + "é" * 50 for n in range(1000)])
        self.assertTrue(details["log_cut"])
        log = details["log"]
        self.assertTrue(16_200 < len(log.encode()) <= 16_384, len(log.encode()))
        self.assertRegex(log, r"\A\d{4}-")
        self.assertTrue(log.endswith("line 999 " + "é" * 50))
        lines = log.split("\n")
        self.assertEqual([f" line {1000 - len(lines) + n} " in line for n, line in enumerate(lines)], [True] * len(lines))
        # One line that is longer than that: its end, from a whole character.
        details, _ = self.log_of(["begin", "x" + "é" * 20_000 + "\0"])
        self.assertEqual(details["log"], "é" * 8192)
        self.assertTrue(details["log_cut"])
        details, _ = self.log_of(["y" * 3_000_000 + "\nthe last line", "short"])
        self.assertRegex(details["log"], r"\Athe last line\n.* short\Z")
        # Exactly as much as there is room for.
        with unittest.mock.patch.object(idemq._logs._capture.formatter._style, "_fmt", "%(message)s"):
            self.assertEqual(self.log_of(["a" * 16_000, "b" * 383])[0].get("log_cut"), None)
            details, _ = self.log_of(["a" * 16_000, "b" * 384])
            self.assertEqual((details["log"], details["log_cut"]), ("b" * 384, True))
            self.assertEqual(self.log_of(["half of a pair: \ud800"])[0]["log"], "half of a pair: ?")

    def test_a_log_that_is_long_as_json(self):
        # It must be shorter than idemq.max_document can be, which is 64 kB, or the job would fail.
        for text, kept in (("\x01" * 16_000, "?" * 16_000), ("\x1b[31m", "\x1b[31m"), ("\t" * 16_384, "\t" * 16_384), ('"' * 16_384, '"' * 16_384)):
            lines = idemq._logs.Lines()
            lines.add(text)
            self.assertEqual(lines.details(None), {"log": kept})
            self.assertLess(len(json.dumps(lines.details(None))), 50_000)

    def test_a_handler_that_changes_the_encoding(self):
        def handler(job, conn):
            conn.execute("SET LOCAL client_encoding = 'EUC_JP'")
            app.info("é 😀")

        self.add(1)
        self.assertEqual(self.drain(handler, capture_logs="all"), {"committed": 1})
        self.assertRegex(self.attempts()[0][2]["log"], r"app: é 😀\Z")

    def test_a_failed_batch(self):
        self.add("a", "fails", max_attempts=1)
        self.assertEqual(self.drain(self.says, batch=5, capture_logs="all"), {"committed": 1, "dead": 1})
        # The log has the lines of every run of the handler in this attempt.
        self.assertEqual([(outcome, details["log"].count("says")) for _, outcome, details in self.attempts()], [("committed", 2), ("failed", 2)])

    def test_the_answer_to_commit_is_lost(self):
        for after in (True, False):
            proxy = Proxy(1)
            proxy.after = after
            self.add(1)
            self.assertEqual(self.drain(self.says, dsn=proxy.dsn(), attach=False, capture_logs="all"), {"committed": 1})
            self.assertEqual(proxy.cuts, 1)
            (_, outcome, details) = self.attempts()[-1]
            self.assertEqual((outcome, details["log"].count("says")), ("committed", 1 if after else 2))

    def test_a_result_that_the_server_refuses(self):
        """The jobs of the statement are committed one by one."""
        self.add("a", "b")
        self.drain(lambda job: self.says(job) and ("\ud800" if job.payload == "a" else 1), True, capture_logs="all", concurrency=2)
        self.assertEqual([(payload, outcome, "log" in details) for payload, outcome, details in self.attempts()], [("a", "committed", True), ("b", "committed", True)])

    def test_redact(self):
        def redact(text):
            return re.sub(r"secret-\d+", "(removed)", text)

        details, error = self.log_of(["one secret-1", "two secret-22"], redact=redact)
        self.assertNotIn("secret", details["log"] + details["trace"].replace('"no secret-1"', "") + error)
        self.assertEqual((details["log"].count("(removed)"), error), (2, "ValueError: no (removed)"))
        # A secret at the cut is not cut in two before it is removed.
        details, _ = self.log_of(["x" * 100] + ["secret-" + "1" * 20_000], redact=redact)
        self.assertRegex(details["log"], r"\(removed\)\Z")
        for wrong in (lambda text: 1 / 0, lambda text: None, lambda text: sys.exit("secret-1")):
            with self.assertLogs("idemq", "ERROR") as said:
                details, error = self.log_of(["secret-1"], redact=wrong)
            self.assertEqual((details["log"], details["trace"], error), ("(removed, because redact failed)",) * 3)
            self.assertNotIn("secret", "".join(said.output))
        self.add(1)
        self.drain(lambda job: app.info("secret-3"), True, redact=redact, capture_logs="all")
        self.assertRegex(self.attempts()[-1][2]["log"], r"app: \(removed\)\Z")

        def refuses(step):
            raise idemq.Refused("secret-4")

        (job,) = self.add(1, max_attempts=1)
        self.drain(lambda job: job.step("s", refuses), True, redact=redact)
        self.assertEqual(self.sql("SELECT error FROM idemq.steps WHERE job_id = %s", job), [("(removed)",)])
        self.assertEqual(self.job(job)[3], "Refused: (removed)")

        def cannot_encode(data, key):
            raise ValueError("secret-5")

        codec = unittest.mock.Mock(keys=["1"], encode=cannot_encode)
        codec.name = "none"
        self.add(1)
        with self.assertLogs("idemq", "ERROR") as said:
            self.drain(lambda job: 1, True, redact=redact, codec=codec)
        self.assertRegex("".join(said.output), r"the result cannot be encoded: ValueError: \(removed\)")

    def test_a_timeout(self):
        (job,) = self.add(1, max_attempts=1)

        def handler(job):
            app.info("before the end")
            self.end_time(job)
            self.until_set(job.cancelled)
            raise TimeoutError

        self.drain(handler, True, capture_logs="failed")
        details = self.sql("SELECT details FROM idemq.attempts WHERE job_id = %s", job)[0][0]
        self.assertEqual((sorted(details), details["log"][-14:]), (["log", "timeout"], "before the end"))

    def test_a_server_that_cannot_store_every_character(self):
        name = "latin_" + self.queue
        self.sql(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        dsn = psycopg.conninfo.make_conninfo(DSN, dbname=name)
        with contextlib.closing(psycopg.connect(dsn, autocommit=True)) as conn:
            conn.execute("CREATE EXTENSION idemq")
            conn.execute("SELECT idemq.create_queue('q')")
            conn.execute("CREATE TABLE effects (queue text, n int)")
            for outside in (False, True):
                idemq.enqueue(conn, "q", 1)

                def handler(job, *conn):
                    app.info("costs 5 €")
                    self.says(job, *conn)

                self.assertEqual(idemq.drain(dsn, "q", handler, outside, capture_logs="all"), {"committed": 1})
            logs = [details["log"] for details, in conn.execute("SELECT details FROM idemq.attempts")]
            # Of a failure, neither the log nor the rest of the details is lost.
            idemq.enqueue(conn, "q", "fails", max_attempts=1)
            idemq.drain(dsn, "q", handler, True, capture_logs="failed")
            ((details,),) = conn.execute("SELECT details FROM idemq.attempts WHERE outcome = 'failed'").fetchall()
            self.assertEqual((details["type"], r"costs 5 \u20ac" in details["log"]), ("ValueError", True))
        self.assertEqual([(r"costs 5 \u20ac" in log, log.count("says")) for log in logs], [(True, 1)] * 2)
        self.sql(f"DROP DATABASE {name} (FORCE)")

    def test_logging_that_is_not_set_up(self):
        """Python prints warnings in this case, and still does."""
        self.add(1)
        root = logging.getLogger()
        loud = logging.getLogger("loud")
        with unittest.mock.patch.object(root, "handlers", []), contextlib.redirect_stderr(io.StringIO()) as printed:
            self.drain(lambda job, conn: loud.warning("help") or loud.info("quiet"), capture_logs="all")
        self.assertEqual(printed.getvalue(), "help\n")
        self.assertRegex(self.attempts()[0][2]["log"], "WARNING loud: help")

    def test_a_traceback_in_the_log(self):
        self.add(1)

        def handler(job, conn):
            try:
                1 / 0
            except ZeroDivisionError:
                app.exception("caught %s", "it")
            app.info("%d", "not a number")

        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(self.drain(handler, capture_logs="all"), {"committed": 1})
        log = self.attempts()[0][2]["log"]
        self.assertRegex(log, r"ERROR app: caught it\nTraceback \(most recent call last\):\n(?s:.*)ZeroDivisionError: division by zero\Z")

    def test_wrong_options(self):
        for error, text, make in (
            (ValueError, "capture_logs must be 'off', 'failed' or 'all', not 'some'", lambda: idemq.Worker(DSN, "q", capture_logs="some")),
            (ValueError, "capture_logs must be 'off', 'failed' or 'all', not True", lambda: Inside(self.do, capture_logs=True)),
            (TypeError, "redact must be a function, not str", lambda: idemq.AsyncWorker(DSN, "q", redact="x")),
        ):
            with self.assertRaisesRegex(error, text):
                make()


if __name__ == "__main__":
    tap.main()
