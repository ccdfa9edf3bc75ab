"""python_finished.py: notifications of finished jobs, as an iterator.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import itertools
import unittest.mock

import psycopg

import idemq
import idemq._finished
import manual
import tap
from idemq import FinishedJob, Overflow
from python_common import DSN, Client

LISTENERS = """SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idemq-python' AND datname = current_database() AND pid <> pg_backend_pid()"""


class Finished(Client):
    """finished_jobs."""

    def setUp(self):
        super().setUp()
        self.alter("notify_finished => true")

    def cancel(self, *ids):
        for job_id in ids:
            self.sql("SELECT idemq.cancel(%s)", job_id)

    def end_listener(self):
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'idemq-python' AND pid <> pg_backend_pid()")

    def test_items(self):
        items = idemq.finished_jobs(DSN, self.queue)
        self.assertEqual(next(items), Overflow(self.queue, None))
        done, dead, cancelled = self.add(1, 2, 3)
        self.sql("SELECT idemq.commit_once(%s)", done)
        self.assertEqual(next(items), FinishedJob(self.queue, done, "completed"))
        self.sql("SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim(%s)", self.queue)
        self.assertEqual(next(items), FinishedJob(self.queue, dead, "dead"))
        self.cancel(cancelled)
        self.assertEqual(next(items), FinishedJob(self.queue, cancelled, "cancelled"))
        items.close()
        self.until(f"SELECT ({LISTENERS}) = 0")

    def test_overflow(self):
        items = idemq.finished_jobs(DSN, [self.queue])
        next(items)
        self.sql("SELECT count(idemq.cancel((idemq.enqueue(%s, '1')).id)) FROM generate_series(1, 2000)", self.queue)
        kept, lost = 0, 0
        while kept + lost < 2000:
            item = next(items)
            kept += isinstance(item, FinishedJob)
            lost += item.lost if isinstance(item, Overflow) else 0
        self.assertEqual(kept + lost, 2000)
        # The worker may have sent a few while the others were added.
        self.assertGreaterEqual(kept, 256)
        self.assertGreater(lost, 0)
        items.close()

    def test_lost_connection(self):
        items = idemq.finished_jobs(DSN, self.queue)
        next(items)
        self.end_listener()
        self.assertEqual(next(items), Overflow(self.queue, None), "a new connection")
        job, = self.add(1)
        self.cancel(job)
        self.assertEqual(next(items), FinishedJob(self.queue, job, "cancelled"))
        items.close()

    def test_async(self):
        other = f"{self.queue}.Other-1"
        self.sql("SELECT idemq.create_queue(%s, notify_finished => true)", other)
        here, = self.add(1)
        there = idemq.enqueue(self.conn, other, 1).id

        async def run():
            items = idemq.finished_jobs_async(DSN, [self.queue, other, self.queue])
            first = [await items.__anext__() for _ in range(2)]
            self.cancel(here, there)
            then = [await items.__anext__() for _ in range(2)]
            # A task that is cancelled while it waits.
            waiting = asyncio.ensure_future(items.__anext__())
            await asyncio.sleep(0)
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            await items.aclose()
            return first, then

        first, then = asyncio.run(asyncio.wait_for(run(), 120))
        self.assertEqual(first, [Overflow(self.queue, None), Overflow(other, None)])
        self.assertEqual(set(then), {FinishedJob(self.queue, here, "cancelled"), FinishedJob(other, there, "cancelled")})
        self.until(f"SELECT ({LISTENERS}) = 0")

    def test_many_while_the_caller_does_not_read(self):
        """More jobs than fit into a socket's buffers, if nobody read them, and more than are kept here."""
        with unittest.mock.patch("idemq._finished.MOST_KEPT", 50):
            items = idemq.finished_jobs(DSN, self.queue)
            next(items)
            ids = self.add(*range(200))
            for job_id in ids:
                self.cancel(job_id)
            total, overflows = 0, 0
            while total < 200:
                item = next(items)
                overflows += isinstance(item, Overflow)
                total += item.lost if isinstance(item, Overflow) else 1
            self.assertEqual(total, 200)
            self.assertGreater(overflows, 0)
            items.close()

    def test_silent_connection(self):
        """Nothing arrives: the connection is tried out, and goes on."""
        with unittest.mock.patch("idemq._finished.PING_AFTER", 0.01):
            items = idemq.finished_jobs(DSN, self.queue)
            next(items)
            self.until("SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'idemq-python' AND query = 'SELECT'")
            job, = self.add(1)
            self.cancel(job)
            self.assertEqual(next(items), FinishedJob(self.queue, job, "cancelled"))
            items.close()

    def test_buffer(self):
        with unittest.mock.patch("idemq._finished.MOST_KEPT", 3):
            buffer = idemq._finished.Buffer()
            for item in (FinishedJob("a", 1, "dead"), FinishedJob("b", 2, "dead"), Overflow("a", 5), FinishedJob("a", 3, "dead")):
                buffer.put(item)
            self.assertEqual(list(buffer.items), [Overflow("a", 6), Overflow("b", 1), FinishedJob("a", 3, "dead")])
            buffer.put(Overflow("b", None))
            buffer.put(Overflow("c", 1))
            self.assertEqual(list(buffer.items)[:2], [Overflow("a", 7), Overflow("b", None)])

    def test_payloads(self):
        items_of = idemq._finished.items_of
        self.assertEqual(items_of('{"event":"finished","queue":"q","completed":[9223372036854775807],"later":[1],"dead":[2,3]}'),
                         [FinishedJob("q", 9223372036854775807, "completed"), FinishedJob("q", 2, "dead"), FinishedJob("q", 3, "dead")])
        self.assertEqual(items_of('{"event":"overflow","queue":"q","lost":7,"more":1}'), [Overflow("q", 7)])
        self.assertEqual(items_of('{"event":"later","queue":"q"}'), [])

    def test_arguments(self):
        for function in (idemq.finished_jobs, idemq.finished_jobs_async):
            for queues in ("", 'a"b', "a b", "x" * 49, ["q", ""], []):
                with self.assertRaises(ValueError):
                    function(DSN, queues)
            for dsn, queues in ((5, "q"), (DSN, [5]), (DSN, 5)):
                with self.assertRaises(TypeError):
                    function(dsn, queues)

    def test_refused(self):
        """A role that may not listen is the caller's mistake: here, an error of LISTEN."""
        with unittest.mock.patch("idemq._finished._PREFIX", 'x" y'):
            with self.assertRaises(psycopg.errors.SyntaxError):
                next(idemq.finished_jobs(DSN, self.queue))

    def test_manual(self):
        for queue in ("mail", "invoices"):
            self.sql("SELECT idemq.ensure_queue(%s, notify_finished => true)", queue)
        page = unittest.mock.Mock()
        page.show.side_effect = StopIteration
        jobs = itertools.count()

        def read_jobs_again(queue):
            if next(jobs) == 1:
                self.cancel(idemq.enqueue(self.conn, "mail", 1).id)

        page.read_jobs_again.side_effect = read_jobs_again
        with self.assertRaises(StopIteration):
            manual.follow(DSN, page)
        self.assertEqual([call.args for call in page.read_jobs_again.mock_calls], [("mail",), ("invoices",)])
        self.assertEqual(page.show.mock_calls[0].args[0::2], ("mail", "cancelled"))


if __name__ == "__main__":
    tap.main()
