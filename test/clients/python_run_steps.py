"""python_run_steps.py: what a handler of run() can ask for before it uses its connection: steps, checkpoints, events and parents.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import collections
import threading
import time

import psycopg

import idemq
import idemq._links
import tap
from python_common import DSN, Client, QuickFirstUse

TOO_LATE = (
    "RuntimeError: job.{} is not available after the handler has used its connection, because the transaction that completes the job has"
    " begun. Call it before the first statement, or save a checkpoint in the transaction with job.save_checkpoint(data, conn)"
)


SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idemq-python' AND datname = current_database()"


class RunSteps(Client):
    def setUp(self):
        super().setUp()
        self.calls = []

    def both(self, handler):
        """A handler that is a generator, and yields what it would await, as a function and as a coroutine function; how to drain each."""

        def sync(job, conn):
            work = handler(job, conn)
            try:
                while True:
                    next(work)
            except StopIteration as end:
                return end.value

        async def asynchronous(job, conn):
            work = handler(job, conn)
            answer, error = None, None
            try:
                while True:
                    awaited = work.send(answer) if error is None else work.throw(error)
                    answer = error = None
                    try:
                        answer = await awaited if asyncio.iscoroutine(awaited) else awaited
                    except BaseException as raised:
                        error = raised
            except StopIteration as end:
                return end.value

        for drain, function in ((self.drain, sync), (self.drain_async, asynchronous)):
            self.calls.clear()
            self.sql("DELETE FROM effects WHERE queue = %s", self.queue)
            yield lambda drain=drain, function=function, **options: drain(function, **options)

    def call(self, job, answer="answer", then=lambda: None):
        """The call of a step of this job."""

        def called(step):
            self.calls.append(step.key)
            then()
            return answer

        async def called_async(step):
            return called(step)

        return called_async if isinstance(job, idemq.AsyncJob) else called

    def steps(self, job):
        return self.sql("SELECT name, state, response FROM idemq.steps WHERE job_id = %s ORDER BY name", job)

    def insert(self, conn, n):
        return conn.execute("INSERT INTO effects VALUES (%s, %s)", (self.queue, n))

    def test_a_call_then_rows_then_the_commit(self):
        def handler(job, conn):
            yield job.step("charge", self.call(job, {"id": 7}))
            yield self.insert(conn, job.payload)
            yield idemq.enqueue(conn, self.queue + "_mail", job.payload)
            return "done"

        self.sql("SELECT idemq.create_queue(%s)", self.queue + "_mail")
        for run in self.both(handler):
            (job,) = self.add(1)
            self.assertEqual(run(), {"committed": 1})
            self.assertEqual((self.job(job)[:3], self.steps(job)), (("completed", 1, "done"), [("charge", "done", {"id": 7})]))
            self.assertEqual((self.effects(), len(self.calls)), ([1], 1))
        mails = self.sql("SELECT count(*) FROM idemq.job_list WHERE queue = %s", self.queue + "_mail")
        self.assertEqual(mails, [(2,)])

    def test_a_step_that_is_still_under_way_at_the_end_fails_the_attempt(self):
        """Otherwise the job would be completed before its call.  A step that begins afterwards is refused."""
        self.alter("retry_base => '1 h'")
        ended = threading.Event()

        def call(step):
            self.calls.append(step.key)
            self.until_set(ended)

        def handler(job, conn=None):
            def late():
                for name, function in (("charge", call), ("late", self.call(job))):
                    try:
                        job.step(name, function)
                    except RuntimeError as error:
                        refused.append(error)

            threads.append(threading.Thread(target=late))
            threads[-1].start()
            while not self.calls:
                time.sleep(0.01)

        async def handler_async(job, conn=None):
            async def call(step):
                self.calls.append(step.key)
                begun.set()
                await asyncio.to_thread(self.until_set, ended)

            async def late():
                await job.step("late", self.call(job))

            begun = asyncio.Event()
            tasks.append(asyncio.create_task(job.step("charge", call)))
            await begun.wait()
            tasks.append(asyncio.create_task(late()))

        async def run_async(outside):
            found = await idemq.drain_async(DSN, self.queue, handler_async, outside)
            ended.set()
            refused.extend(await asyncio.gather(*tasks, return_exceptions=True))
            return found

        for outside in (False, True):
            for run in (lambda outside: self.drain(handler, outside), lambda outside: asyncio.run(run_async(outside))):
                (job,) = self.add(1, max_attempts=1)
                threads, tasks, refused = [], [], []
                self.calls.clear()
                ended.clear()
                self.assertEqual(run(outside), {"dead": 1})
                self.assertIn("RuntimeError: the handler has ended while step charge was under way; ", self.job(job)[3])
                ended.set()
                for thread in threads:
                    thread.join(60)
                self.assertEqual((len(self.calls), str(refused[-1])), (1, "job.step was called after the handler had ended"))

    def test_a_coroutine_of_a_step_that_was_never_awaited_fails_the_attempt(self):
        async def handler(job, conn=None):
            unawaited.append(job.step("charge", self.call(job)))

        for outside in (False, True):
            unawaited = []
            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(self.drain_async(handler, outside), {"dead": 1})
            self.assertIn("the handler has ended while step charge was under way; await job.step", self.job(job)[3])
            with self.assertRaisesRegex(RuntimeError, "job.step was called after the handler had ended"):
                asyncio.run(unawaited[0])
            self.assertEqual(self.calls, [])

    def test_after_the_first_use_they_are_refused(self):
        """The attempt fails, even if the handler catches the error, and a later deploy repairs it."""
        self.alter("retry_base => '1 h'")
        with psycopg.connect(DSN) as other:
            for name, late in (("step", lambda job: job.step("charge", self.call(job))), ("save_checkpoint", lambda job: job.save_checkpoint(1))):
                for caught in (False, True):

                    def handler(job, conn, late=late, caught=caught):
                        yield self.insert(conn, job.payload)
                        if job.attempt > 1:
                            return "repaired"
                        try:
                            yield late(job)
                        except RuntimeError:
                            if not caught:
                                raise
                        return "wrong"

                    for run in self.both(handler):
                        (job,) = self.add(1, max_attempts=2)
                        self.assertEqual(run(), {"retrying": 1})
                        self.assertEqual(self.job(job), ("retrying", 1, None, TOO_LATE.format(name)))
                        self.assertEqual((self.effects(), self.steps(job), self.calls), ([], [], []))
                        self.sql("SELECT idemq.retry(%s)", job)
                        self.assertEqual(run(), {"committed": 1})
                        self.assertEqual((self.job(job)[1:3], self.effects()), ((2, "repaired"), [1]))

            def with_another(job, conn):  # it would wait for the transaction's own lock
                conn.execute("SELECT 1")
                job.save_checkpoint(1, other)

            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(self.drain(with_another), {"dead": 1})
            self.assertEqual(self.job(job)[3], TOO_LATE.format("save_checkpoint"))

    def test_no_use_in_a_step(self):
        def handler(job, conn):
            def use(step):
                return self.insert(conn, 1)

            async def use_async(step):
                return await self.insert(conn, 1)

            try:
                yield job.step("charge", use_async if isinstance(job, idemq.AsyncJob) else use)
            except psycopg.ProgrammingError:
                pass
            return "wrong"

        for run in self.both(handler):
            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(run(), {"dead": 1})
            self.assertEqual(self.job(job)[3], "ProgrammingError: the handler's connection was used while job.step was under way; use it after"
                             " job.step has returned")
            self.assertEqual((self.effects(), [state for _, state, _ in self.steps(job)]), ([], ["open"]))

    def test_it_ends_a_batch(self):
        """What ran is rolled back, whatever the handler does with the exception, and each job runs alone.  No attempt is counted."""
        alone = []

        def handler(job, conn):
            alone.append(len(job._execution.jobs) == 1)
            if job.payload != 2:
                yield self.insert(conn, job.payload)
            try:
                if job.payload >= 2:
                    yield job.step("charge", self.call(job)) if job.payload < 4 else job.save_checkpoint(job.payload)
            except BaseException:
                self.assertEqual(job.payload, 2)
            if job.payload == 2:
                yield self.insert(conn, job.payload)

        for run in self.both(handler):
            for payloads in ([1, 2, 1], [1, 1, 2]):
                alone.clear()
                self.calls.clear()
                self.sql("DELETE FROM effects WHERE queue = %s", self.queue)
                jobs = self.add(*payloads)
                with self.assertLogs("idemq", "INFO") as logs:
                    self.assertEqual(run(batch=10), {"committed": 3})
                self.assertIn("running the 3 jobs of a transaction one at a time: job.step was called", logs.output[0])
                self.assertEqual(alone, [False] * (payloads.index(2) + 1) + [True] * 3)
                self.assertEqual((self.effects(), len(self.calls)), (sorted(payloads), 1))
                self.assertEqual([self.job(job)[:2] for job in jobs], [("completed", 1)] * 3)

    def test_a_checkpoint_ends_a_batch(self):
        def handler(job, conn):
            yield job.save_checkpoint(job.payload)
            yield self.insert(conn, job.payload)

        for run in self.both(handler):
            jobs = self.add(1, 2)
            self.assertEqual(run(batch=2), {"committed": 2})
            self.assertEqual(self.sql("SELECT checkpoint FROM idemq.jobs WHERE id = ANY(%s) ORDER BY id", jobs), [(1,), (2,)])
            self.assertEqual(self.effects(), [1, 2])

    def test_a_repeated_handler_has_the_answers(self):
        """40001 and 40P01; the checkpoint of a transaction that has rolled back counts no more."""
        for state in ("40001", "40P01"):
            seen = []

            def handler(job, conn, seen=seen, state=state):
                answer = yield job.step("charge", self.call(job, f"answer {len(self.calls)}"))
                seen.append((job.checkpoint, job.attempt))
                yield job.save_checkpoint("before")
                yield self.insert(conn, job.payload)
                yield job.save_checkpoint("in the transaction", conn)
                if len(seen) == 1:
                    yield conn.execute(f"DO $$ BEGIN RAISE SQLSTATE '{state}'; END $$")
                return answer if isinstance(job, idemq.AsyncJob) else job.step.__name__

            for run in self.both(handler):
                seen.clear()
                (job,) = self.add(1)
                self.assertEqual(run(), {"committed": 1})
                self.assertEqual(seen, [(None, 1), ("before", 1)])
                self.assertEqual((len(self.calls), self.effects(), self.steps(job)), (1, [1], [("charge", "done", "answer 0")]))
                self.assertEqual(self.sql("SELECT checkpoint FROM idemq.jobs WHERE id = %s", job), [("in the transaction",)])

    def test_an_answer_after_the_lease_was_lost(self):
        """Raises StaleToken in this attempt, and the next one has the answer."""
        seen = []

        def handler(job, conn):
            if not self.calls:
                try:
                    yield job.step("charge", self.call(job, "late", lambda: self.sql("SELECT idemq.revoke_lease(%s)", job.id)))
                except (idemq.StaleToken, asyncio.CancelledError) as error:
                    seen.append(str(error))
                    raise
            else:
                yield job.step("charge", self.call(job, "called again"))
                yield self.insert(conn, job.payload)

        for run in self.both(handler):
            seen.clear()
            (job,) = self.add(1)
            self.assertEqual(run()["stale"], 1)
            self.until_committed(run, job)
            # If the worker has been told of the loss, it has cancelled the coroutine.
            self.assertIn(seen, (["the answer of step charge arrived after the lease was lost; it is stored, and the next attempt returns it"], [""]))
            self.assertEqual((len(self.calls), self.effects(), self.steps(job)), (1, [1], [("charge", "done", "late")]))

    def until_committed(self, run, job):
        while self.job(job)[0] != "completed":
            run()

    def test_a_lock_delays_no_heartbeat(self):
        """A step waits for an open transaction that has locked the job, and heartbeats go on."""
        self.set_seconds("ANSWER_TIMEOUT", 600, idemq._links)

        def handler(job, conn):
            with psycopg.connect(DSN) as other:
                other.execute("SELECT FROM idemq.jobs WHERE id = %s FOR UPDATE", [job.id])
                thread = threading.Thread(target=job.step, args=("charge", self.call(job)))
                thread.start()
                self.until("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%begin_step%%'")
                ((before,),) = self.sql("SELECT deadline FROM idemq.running_jobs WHERE job_id = %s", job.id)
                self.beat(job)
                self.until("SELECT deadline > %s FROM idemq.running_jobs WHERE job_id = %s", before, job.id)
                other.rollback()
                thread.join()
            self.effect(conn, 1)

        (job,) = self.add(1)
        self.assertEqual(self.drain(handler), {"committed": 1})
        self.assertEqual((self.effects(), self.steps(job)), ([1], [("charge", "done", "answer")]))

    def test_the_number_of_connections_stays(self):
        sessions = []

        def handler(job, conn):
            listening = self.until, f"SELECT ({SESSIONS}) >= 3"
            yield asyncio.to_thread(*listening) if isinstance(job, idemq.AsyncJob) else listening[0](listening[1])
            yield job.step("charge", self.call(job, then=lambda: sessions.extend(self.sql(SESSIONS))))
            yield self.insert(conn, 1)
            sessions.extend(self.sql(SESSIONS))

        for run in self.both(handler):
            sessions.clear()
            self.until(f"SELECT ({SESSIONS}) = 0")  # those of the worker before have ended
            self.add(1)
            self.assertEqual(run(), {"committed": 1})
            self.assertEqual(sessions, [(3,), (3,)])  # the worker's, the one that waits, and the handler's

    def test_events_and_parents_come_before_it(self):
        def handler(job, conn):
            if job.payload == "parent":
                return "of the parent"
            yield job.parents()
            yield job.await_event(f"approved {job.id}", "1 h")
            yield job.step("charge", self.call(job))
            yield self.insert(conn, 1)

        for run in self.both(handler):
            (parent,) = self.add("parent")
            (job,) = self.add("child", depends_on=[parent])
            outcomes = collections.Counter()
            while not outcomes["waiting"]:  # the server may make the child ready a moment after its parent is completed
                outcomes.update(run())
            self.assertEqual(outcomes, {"committed": 1, "waiting": 1})
            self.assertEqual((self.effects(), self.calls), ([], []))
            idemq.send_event(self.conn, self.queue, f"approved {job}")
            self.assertEqual(run(), {"committed": 1})
            self.assertEqual((self.job(job)[:2], self.effects(), len(self.calls)), (("completed", 1), [1], 1))

    def test_parents_are_added_by_the_transaction(self):
        """add_parents is a use of the connection: what it adds is rolled back with the attempt."""
        def handler(job, conn):
            yield job.add_parents(child, [other])
            raise idemq.RetryLater("1 h")

        for run in self.both(handler):
            (job,) = self.add(1)
            (child,) = self.add(2, depends_on=[job])
            (other,) = self.add(3, delay="1 h")
            self.assertEqual(run(), {"retrying": 1})
            self.assertEqual(self.sql("SELECT parent FROM idemq.dependencies WHERE child = %s", child), [(job,)])

    def test_a_thread_of_the_handler(self):
        """The connection is used while another thread makes a step: neither waits for the other's lock."""
        begun, used = threading.Event(), threading.Event()

        def handler(job, conn):
            def call(step):
                begun.set()
                self.until_set(used)
                return "answer"

            thread = threading.Thread(target=job.step, args=("charge", call))
            thread.start()
            self.until_set(begun)
            try:
                self.effect(conn, 1)
            finally:
                used.set()
                thread.join()

        (job,) = self.add(1, max_attempts=1)
        self.assertEqual(self.drain(handler), {"dead": 1})
        self.assertEqual((self.job(job)[3].split(";")[0], self.steps(job)),
                         ("ProgrammingError: the handler's connection was used while job.step was under way", [("charge", "done", "answer")]))


class EarlyTransactions(QuickFirstUse):
    """The worker has begun the transaction, and locked the job, before its handler runs."""

    def test_a_step_unlocks_the_job(self):
        begun = []

        def handler(job, conn):
            if job.payload == 1:
                self.effect(conn, 1)
                return
            begun.append(job._execution.handler_transaction.begun)
            job.step("charge", lambda step: "answer")
            begun.append(job._execution.handler_transaction.begun)
            self.effect(conn, job.payload)

        async def call(step):
            return "answer"

        async def handler_async(job, conn):
            if job.payload != 1:
                begun.append(job._execution.handler_transaction.begun)
                await job.step("charge", call)
                begun.append(job._execution.handler_transaction.begun)
            await conn.execute("INSERT INTO effects VALUES (%s, %s)", (self.queue, job.payload))

        for drain, function in ((self.drain, handler), (self.drain_async, handler_async)):
            begun.clear()
            self.sql("DELETE FROM effects WHERE queue = %s", self.queue)
            self.add(1, 2, 3)
            self.assertEqual(drain(function), {"committed": 3})
            # The handler of a step was not quick, so nothing was begun before the third.
            self.assertEqual((begun, self.effects()), ([True, False, False, False], [1, 2, 3]))


if __name__ == "__main__":
    tap.main()
