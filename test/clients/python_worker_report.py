"""python_worker_report.py: what a worker reports of itself.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import concurrent.futures
import logging
import os
import threading
import time
import unittest.mock

import psycopg

import idemq
import tap
from idemq import _worker_report
from python_common import DSN, Client


class WorkerReports(Client):
    def holding(self, name, until):
        """A worker that has begun one job, which ends when until() is true."""
        end = threading.Event()
        worker = idemq.Worker(DSN, self.queue, name=name, concurrency=3, signals=False)
        self.add(1)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            running = pool.submit(worker.run_outside, lambda job: end.wait(60))
            deadline = time.monotonic() + 180
            while not until() and time.monotonic() < deadline:
                time.sleep(0.05)
            end.set()
            self.until("SELECT count(*) = 0 FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s) AND finished_at IS NULL", self.queue)
            worker.stop()
            self.assertEqual(running.result(), {"committed": 1})

    def test_a_statement_that_is_running_ends_with_the_worker(self):
        # Such as the report that ends a wait.  In the event loop of an application, nothing may remain of it.
        async def run():
            link = idemq._links.AsyncLink("a worker", DSN)
            asking = asyncio.ensure_future(link.ask("SELECT pg_sleep(600)"))
            await asyncio.to_thread(self.until, "SELECT count(*) = 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'")
            await link.end()
            with self.assertRaises(idemq._links.AnswerLost):
                await asyncio.wait_for(asking, 60)
            for watched in asyncio.get_running_loop()._selector.get_map().values():
                os.fstat(watched.fd)  # it is open
            self.assertFalse(link.usable)
            # The answer of a step that is still under way is stored over a connection that is closed again.
            self.assertEqual(await link.ask("SELECT 1"), [(1,)])
            self.assertIsNone(link.conn)
            self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'")

        with self.assertLogs("idemq") as logs:
            asyncio.run(run())
            logging.getLogger("idemq").warning("nothing else")
        self.assertEqual(logs.output, ["WARNING:idemq:nothing else"])

    def test_a_worker_reports_itself_and_that_it_is_stopping(self):
        seen = """SELECT program, version <> '', host <> '', queues, concurrency, running, cardinality(jobs), done, state
            FROM idemq.workers WHERE worker = 'talks'"""
        here = []
        # Its first word may come before it has the job; and its last one be written when it has gone.
        self.holding("talks", lambda: here.extend(self.sql(f"{seen} AND running > 0")) or here)
        self.assertEqual(here, [("python", True, True, [self.queue], 3, 1, 1, 0, "here")])
        self.until("SELECT state = 'gone' FROM idemq.workers WHERE worker = 'talks'")
        self.assertEqual(self.sql(seen), [("python", True, True, [self.queue], 3, 0, 0, 1, "gone")])

    def test_a_queue_that_is_refused_is_left_out(self):
        """The others are still reported.  Ten minutes later, it is tried again."""
        class Link:
            usable = True

            @staticmethod
            async def ask(sql, values):
                asked.append(values[2])
                return self.sql(sql, *values)

        def report():
            asked.clear()
            return asyncio.run(words._report(False))

        asked = []
        gone = self.queue + "_gone"
        words = _worker_report.WorkerReport(Link(), "without", [gone, self.queue], 1, lambda: ([], 0))
        self.assertEqual(report(), _worker_report.REPORT_INTERVAL)
        self.assertEqual(asked, [[gone, self.queue], [gone], [self.queue], [self.queue]])
        seen = "SELECT queues FROM idemq.workers WHERE worker = 'without'"
        self.assertEqual(self.sql(seen), [([self.queue],)])
        report()
        self.assertEqual(asked, [[self.queue]])
        self.sql("SELECT idemq.create_queue(%s)", gone)
        words._all_again_at = 0.0
        report()
        self.assertEqual((asked, self.sql(seen)), ([[gone, self.queue]], [([self.queue, gone],)]))
        self.sql("SELECT idemq.drop_queue(%s)", gone)
        self.sql("SELECT idemq.drop_queue(%s)", self.queue)
        self.assertEqual(report(), _worker_report.REPORT_AFTER_REFUSAL)

    def test_a_word_that_is_refused_or_has_to_wait_disturbs_nothing(self):
        asked = "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'idemq-python' AND query LIKE '%%idemq.report_worker%%' AND pid <> pg_backend_pid()"
        with self.assertNoLogs("idemq", "ERROR") if hasattr(self, "assertNoLogs") else unittest.mock.MagicMock():
            self.sql("ALTER FUNCTION idemq.report_worker RENAME TO elsewhere")
            self.holding("refused", lambda: self.sql(asked)[0][0])
            self.sql("ALTER FUNCTION idemq.elsewhere RENAME TO report_worker")
            with psycopg.connect(DSN) as other:
                other.execute("LOCK TABLE idemq_internal.worker_entries")
                self.holding("locked out", lambda: self.sql(asked)[0][0])
        # What waited may still be written once the lock is gone.
        self.assertEqual(self.sql("SELECT worker FROM idemq.workers WHERE worker = 'refused'"), [])


if __name__ == "__main__":
    tap.main()
