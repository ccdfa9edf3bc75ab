"""python_jobs.py: functions about jobs, queues and schedules that exist, enqueue_many, and functions for tests.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import inspect
from datetime import datetime, timedelta, timezone

import psycopg

import idemq
import tap
from python_common import DSN, Client


class Jobs(Client):
    def both(self):
        """Calls a function of the client with a Connection, and with an AsyncConnection."""
        def sync(function, *args, **options):
            return function(self.conn, *args, **options)

        def asynchronous(function, *args, **options):
            async def call():
                async with await psycopg.AsyncConnection.connect(DSN, autocommit=True) as conn:
                    return await function(conn, *args, **options)

            return asyncio.run(call())

        return sync, asynchronous

    def test_many(self):
        """The results are in the order of jobs, whatever the order of the keys; every option of a job arrives."""
        tomorrow = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=1)
        for n, call in enumerate(self.both()):
            keys = [f"z{n}", f"a{n}"]
            added = call(idemq.enqueue_many, self.queue, [
                {"payload": {"n": 1}, "key": keys[0], "priority": 2, "group_key": "g", "max_attempts": 7, "headers": {"h": "x"}, "kind": "k"},
                {"payload": None, "key": keys[1], "delay": timedelta(days=1), "expires_in": "2 days", "key_ttl": 86400.5},
                {"payload": [3], "run_at": tomorrow},
            ])
            self.assertEqual([(each.outcome, each.error) for each in added], [("accepted", None)] * 3)
            jobs = [idemq.job(self.conn, each.id) for each in added]
            self.assertEqual([(job.payload, job.key) for job in jobs], [({"n": 1}, keys[0]), (None, keys[1]), ([3], None)])
            self.assertEqual((jobs[0].priority, jobs[0].group_key, jobs[0].max_attempts, jobs[0].headers, jobs[0].kind), (2, "g", 7, {"h": "x"}, "k"))
            self.assertEqual(jobs[2].ready_at, tomorrow)
            self.assertLess(abs(jobs[1].ready_at - jobs[1].enqueued_at - timedelta(days=1)), timedelta(seconds=1))
            ((expires,),) = self.sql("SELECT expires_at - enqueued_at FROM idemq.jobs WHERE id = %s", added[1].id)
            self.assertEqual(expires, timedelta(days=2))
            again = call(idemq.enqueue_many, self.queue, [{"payload": None, "key": keys[1]}, {"payload": {"n": 1}, "key": keys[0], "kind": "k"}])
            self.assertEqual([(each.id, each.outcome) for each in again], [(added[1].id, "duplicate"), (added[0].id, "duplicate")])
            child = call(idemq.enqueue_many, self.queue, [{"payload": 1}], depends_on=[added[0].id], on_parent_failure="run")
            self.assertEqual(child[0].status, "blocked")
            self.assertEqual(call(idemq.enqueue_many, self.queue, []), [])

    def test_many_are_all_or_none(self):
        for jobs, error, said in (
            ([{"payload": 1}, {"payload": object()}], TypeError, "payload cannot be encoded as JSON"),
            ([{"payload": 1, "headers": {"h": object()}}], TypeError, "headers cannot be encoded as JSON"),
            ([{"payload": 1}, {"payload": 1, "keys": "k"}], TypeError, "job 1 has no option keys"),
            ([{"key": "k"}], TypeError, "job 0 has no payload"),
            ([1], TypeError, "job 0 must be a dict, not int"),
            ({"payload": 1}, TypeError, "jobs must be a sequence of dicts, not dict"),
            ([{"payload": 1, "priority": "high"}], TypeError, "priority must be an int, not str"),
            ([{"payload": 1}, {"payload": 1, "priority": 99}], psycopg.Error, "priority"),
        ):
            with self.assertRaisesRegex(error, said):
                idemq.enqueue_many(self.conn, self.queue, jobs)
        self.assertEqual(self.sql("SELECT count(*) FROM idemq.job_list WHERE queue = %s", self.queue), [(0,)])

    def test_a_duplicate_of_a_dead_job_has_its_error(self):
        def fails(job, conn):
            raise ValueError("no such order")

        (dead,) = self.add({"order": 1}, key="dead", max_attempts=1)
        (waits,) = self.add({"order": 2}, key="waits", delay="1 h")
        self.drain(fails)
        for call in self.both():
            one = call(idemq.enqueue, self.queue, {"order": 1}, key="dead")
            self.assertEqual(one, (dead, "duplicate", "dead", None, "ValueError: no such order"))
            self.assertEqual(call(idemq.enqueue, self.queue, {"order": 2}, key="waits").error, None)
            many = call(idemq.enqueue_many, self.queue, [{"payload": {"order": 2}, "key": "waits"}, {"payload": {"order": 1}, "key": "dead"}])
            self.assertEqual([(each.id, each.status, each.error) for each in many], [(waits, "pending", None), (dead, "dead", "ValueError: no such order")])

    def test_one_job(self):
        for call in self.both():
            added = call(idemq.enqueue, self.queue, {"a": 1}, delay="1 h", kind="k")
            job = call(idemq.job, added.id)
            self.assertIsInstance(job, idemq.JobInfo)
            self.assertEqual((job.id, job.queue, job.status, job.payload, job.kind, job.group_key, job.attempt, job.error, job.finished_at),
                             (added.id, self.queue, "pending", {"a": 1}, "k", None, 0, None, None))
            self.assertEqual(call(idemq.result, added.id), ("pending", None))
            self.assertIn("due", call(idemq.why, added.id))
            soon = datetime.now(timezone.utc) + timedelta(days=2)
            self.assertEqual(call(idemq.reschedule, added.id, run_at=soon, priority=1), "accepted")
            job = call(idemq.job, added.id)
            self.assertEqual((job.priority, job.ready_at), (1, soon))
            self.assertEqual(call(idemq.retry, added.id), "retrying")
            self.assertEqual(self.drain(lambda job, conn: {"done": job.id}), {"committed": 1})
            self.assertEqual(call(idemq.result, added.id), ("completed", {"done": added.id}))
            self.assertEqual(call(idemq.job, added.id).result, {"done": added.id})
            self.assertEqual(call(idemq.cancel, added.id), "completed")
            (other,) = self.add(1)
            self.assertEqual((call(idemq.cancel, other), call(idemq.job, other).status), ("cancelled", "cancelled"))
            self.assertIsNone(call(idemq.job, 1))
            with self.assertRaises(idemq.NoSuchJob):
                call(idemq.result, 1)

    def test_a_queue_and_a_schedule(self):
        for call in self.both():
            self.assertIsNone(call(idemq.pause, self.queue, until=datetime.now(timezone.utc) + timedelta(days=1)))
            self.add(1)
            self.assertEqual(self.drain(self.do), {})
            self.assertIsNone(call(idemq.resume, self.queue))
            self.assertEqual(self.drain(self.do), {"committed": 1})
            at = call(idemq.schedule, self.queue, "0 3 1 1 *", self.queue, {"report": 1}, time_zone="Europe/Berlin", kind="k", headers={"h": 1})
            self.assertEqual((at.month, at.day), (at.astimezone(timezone.utc).month, at.day))
            self.assertEqual(self.sql("SELECT payload, kind FROM idemq.schedules WHERE name = %s", self.queue), [({"report": 1}, "k")])
            self.assertEqual((call(idemq.unschedule, self.queue), call(idemq.unschedule, self.queue)), (True, False))

    def test_what_is_due(self):
        """Delays and retries, in one queue or in all; not what waits for an event, and not what has ended."""
        def handler(job, conn):
            if job.payload == "fails" and job.attempt == 1:
                raise idemq.RetryLater("1 h")
            if job.payload == "waits":
                job.await_event("never", "1 day")

        other = self.queue + "_other"
        self.sql("SELECT idemq.create_queue(%s)", other)
        for call in self.both():
            self.add("fails", "waits", "done")
            (delayed,) = self.add("delayed", delay="1 h")
            elsewhere = idemq.enqueue(self.conn, other, 1, delay="1 h").id
            self.assertEqual(self.drain(handler), {"retrying": 1, "waiting": 1, "committed": 1})
            self.assertEqual(self.drain(handler), {})
            self.assertEqual(call(idemq.make_due, self.queue), 2)
            self.assertEqual(self.drain(handler), {"committed": 2})
            self.assertEqual(call(idemq.make_due, self.queue), 0)
            self.assertEqual(self.sql("SELECT ready_at > idemq.clock_timestamp() FROM idemq.jobs WHERE id = %s", elsewhere), [(True,)])
            call(idemq.make_due)
            self.assertEqual(idemq.drain(DSN, other, lambda job, conn: None), {"committed": 1})
            self.sql("SELECT idemq.cancel(id) FROM idemq.job_list WHERE queue = %s AND status = 'pending'", self.queue)
        with self.assertRaises(idemq.NoSuchQueue):
            idemq.make_due(self.conn, "there is none")

    def test_what_was_enqueued(self):
        for call in self.both():
            self.sql("SELECT idemq.purge(%s)", self.queue)
            with self.assertRaises(AssertionError) as none:
                call(idemq.assert_enqueued, self.queue, {"order": 1})
            self.assertEqual(str(none.exception), f'expected 1 job in {self.queue} with payload {{"order": 1}}, but found 0. There is no job in {self.queue}.')
            call(idemq.assert_enqueued, self.queue, times=0)
            jobs = self.add({"order": 1, "mail": "a"}, {"order": 1, "mail": "b"}, kind="k") + self.add({"order": 2})
            call(idemq.assert_enqueued, self.queue, {"order": 1}, times=2)
            call(idemq.assert_enqueued, self.queue, payload={"order": 1, "mail": "b"}, kind="k")
            call(idemq.assert_enqueued, self.queue, kind="k", times=2)
            call(idemq.assert_enqueued, self.queue, times=3)
            call(idemq.assert_enqueued, self.queue, None, times=0)
            with self.assertRaises(AssertionError) as other:
                call(idemq.assert_enqueued, self.queue, {"order": 2}, key="order-2")
            self.assertEqual(str(other.exception),
                             f'expected 1 job in {self.queue} with payload {{"order": 2}} and key order-2, but found 0. Jobs in {self.queue}:\n'
                             f'  {jobs[2]} pending key - kind - {{"order": 2}}\n'
                             f'  {jobs[1]} pending key - kind k {{"mail": "b", "order": 1}}\n'
                             f'  {jobs[0]} pending key - kind k {{"mail": "a", "order": 1}}')
            for n in range(30):
                self.add(n)
            with self.assertRaisesRegex(AssertionError, "(?s)expected 2 jobs in .* but found 33.*\n  and 13 more$"):
                call(idemq.assert_enqueued, self.queue, times=2)
            with self.assertRaises(idemq.NoSuchQueue):
                call(idemq.assert_enqueued, "there is none")
            self.drain(lambda job, conn: None)

    def test_they_belong_to_the_callers_transaction(self):
        (job,) = self.add(1)
        with psycopg.connect(DSN) as conn:
            idemq.cancel(conn, job)
            idemq.enqueue_many(conn, self.queue, [{"payload": 2}])
            idemq.assert_enqueued(conn, self.queue, 2)
            conn.rollback()
        idemq.assert_enqueued(self.conn, self.queue, 2, times=0)
        self.assertEqual(idemq.job(self.conn, job).status, "pending")

    def test_their_signatures(self):
        for function in (idemq.enqueue, idemq.enqueue_many, idemq.retry, idemq.make_due, idemq.ensure_queue):
            self.assertEqual(next(iter(inspect.signature(function).parameters)), "conn")
            self.assertTrue(function.__doc__)
            with self.assertRaisesRegex(TypeError, "expected a psycopg.Connection or AsyncConnection"):
                function("not a connection", 1, 1)


if __name__ == "__main__":
    tap.main()
