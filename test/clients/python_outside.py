"""python_outside.py: run_outside(): results, checkpoints, heartbeats, lost leases.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import time

import psycopg

import idemq
import tap
from python_common import DSN, Client


class Outside(Client):
    def test_results(self):
        jobs = self.add(1, "two", [3])
        self.assertEqual(self.drain(lambda job: {"it": job.payload}, outside=True), {"committed": 3})
        self.assertEqual([self.job(job)[2] for job in jobs], [{"it": 1}, {"it": "two"}, {"it": [3]}])

        async def handler(job):
            return job.payload

        self.add(*range(50))
        self.assertEqual(self.drain_async(handler, outside=True, concurrency=10), {"committed": 50})

    def test_a_result_that_is_none_is_left_out(self):
        for result in (object(), "a\0b", {"a": float("nan")}):
            jobs = self.add(1, 2)
            outcomes = self.drain(lambda job: result if job.payload == 1 else "good", outside=True, concurrency=2)
            self.assertEqual(outcomes, {"committed": 2})
            self.assertEqual([self.job(job)[:3] for job in jobs], [("completed", 1, None), ("completed", 1, "good")])

    def test_a_checkpoint_is_there_in_the_next_attempt(self):
        seen = []

        def stops(job):
            seen.append(job.checkpoint)
            if job.attempt == 1:
                job.save_checkpoint({"done": 1})
                raise idemq.RetryLater(0)
            with psycopg.connect(DSN) as conn:
                job.save_checkpoint({"done": 2}, conn)
                conn.rollback()

        (job,) = self.add(1)
        self.drain(stops, outside=True)
        self.assertEqual(seen, [None, {"done": 1}])
        self.assertEqual(self.sql("SELECT checkpoint FROM idemq.jobs WHERE id = %s", job), [({"done": 1},)])

    def test_a_heartbeat_renews_the_lease(self):
        def waits(job):
            ((deadline,),) = self.sql("SELECT deadline FROM idemq.running_jobs WHERE job_id = %s", job.id)
            self.beat(job)
            self.until("SELECT deadline > %s FROM idemq.running_jobs WHERE job_id = %s", deadline, job.id)

        (job,) = self.add(1, max_attempts=1)
        self.assertEqual(self.drain(waits, outside=True), {"committed": 1})
        self.assertEqual(self.job(job)[:2], ("completed", 1))

    def test_a_lost_lease_cancels(self):
        reasons = []

        def waits(job):
            self.sql("SELECT idemq.cancel(%s)", job.id)
            self.beat(job)
            self.until_set(job.cancelled)
            with self.assertRaises(idemq.StaleToken):
                job.save_checkpoint({})
            reasons.append("told")

        async def waits_async(job):
            self.sql("SELECT idemq.cancel(%s)", job.id)
            self.beat(job)
            try:
                await asyncio.sleep(3600)
            finally:
                reasons.append(job.cancelled.is_set())

        for drain, handler in ((self.drain, waits), (self.drain_async, waits_async)):
            (job,) = self.add(1)
            self.assertEqual(drain(handler, outside=True), {"stale": 1})
            self.assertEqual(self.job(job)[0], "cancelled")
        self.assertEqual(reasons, ["told", True])

    def test_a_connection_that_is_ended_is_no_end(self):
        ended = []

        def end():
            ended.extend(self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                                  " WHERE application_name = 'idemq-python'"))

        def cut(job):
            end()
            time.sleep(0.1)
            job.save_checkpoint({"still": "here"})
            end()

        (job,) = self.add(1)
        self.assertEqual(self.drain(cut, outside=True), {"committed": 1})
        self.assertEqual(self.job(job)[:2], ("completed", 1))
        self.assertGreaterEqual(len(ended), 2)


if __name__ == "__main__":
    tap.main()
