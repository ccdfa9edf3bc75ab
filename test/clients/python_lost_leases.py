"""python_lost_leases.py: leases and connections that are lost while a handler runs.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio

import psycopg

import idemq
import tap
from python_common import Counting, QuickFirstUse


class LostLeases(QuickFirstUse):
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
        self.assertIn("accepts no more statements", said[0])

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


if __name__ == "__main__":
    tap.main()
