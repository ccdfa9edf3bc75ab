"""python_steps.py: job.step.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import sys
import time

import idemq
import manual
import tap
from python_common import Client


class Steps(Client):
    """job.step, where the server has it."""

    def setUp(self):
        super().setUp()
        if self.sql("SELECT to_regprocedure('idemq.finish_step(bigint,bigint,text,jsonb)') IS NULL")[0][0]:
            self.skipTest("no idemq.finish_step")
        self.calls = []

    def both(self, handle):
        """Runs handle(job, step) as a function and as a coroutine; step takes plain functions."""
        def sync(job):
            return handle(job, job.step, lambda function: function)

        def wrap(function):
            async def call(step):
                return function(step)

            return call

        async def asynchronous(job):
            def step(name, call, request=None, call_timeout=30, ask=None):
                return job.step(name, wrap(call), request, call_timeout, ask and wrap(ask))

            answer = handle(job, step, wrap)
            return await answer if asyncio.iscoroutine(answer) else answer

        for drain, handler in ((self.drain, sync), (self.drain_async, asynchronous)):
            self.calls.clear()
            yield lambda drain=drain, handler=handler: drain(handler, outside=True)

    def steps(self, job):
        return self.sql("SELECT name, state, response FROM idemq.steps WHERE job_id = %s ORDER BY name", job)

    def test_once(self):
        def call(step):
            self.calls.append((step.key, step.request, step.begun_at))
            return {"n": len(self.calls)}

        for run in self.both(lambda job, step, wrap: step("a", call, {"q": 1})):
            (job,) = self.add(1)
            self.assertEqual(run(), {"committed": 1})
            self.assertEqual(self.job(job)[2], {"n": 1})
            self.assertEqual(self.steps(job), [("a", "done", {"n": 1})])
            self.assertTrue(0 < len(self.calls[0][0]) <= 64)
            self.assertEqual(self.calls[0][1:], ({"q": 1}, None))

    def test_a_later_attempt_has_the_response(self):
        def sync(job):
            answer = job.step("a", lambda step: self.calls.append(1) or "first")
            if job.attempt == 1:
                raise idemq.RetryLater(0)
            return answer

        async def call(step):
            self.calls.append(1)
            return "first"

        async def asynchronous(job):
            answer = await job.step("a", call)
            if job.attempt == 1:
                raise idemq.RetryLater(0)
            return answer

        for drain, handler in ((self.drain, sync), (self.drain_async, asynchronous)):
            self.calls.clear()
            (job,) = self.add(1)
            drain(handler, outside=True)
            self.assertEqual((self.job(job)[:3], len(self.calls)), (("completed", 2, "first"), 1))

    def test_an_answer_that_was_lost(self):
        """The first call is made, and its answer lost: then the other side is asked, or called with the same key."""
        for ask in (lambda step: "found", lambda step: None, None):
            keys = []

            def call(step):
                keys.append(step.key)
                if len(keys) == 1:
                    raise OSError("502")
                return "called"

            asked = []

            def asks(step, ask=ask):
                asked.append((step.key, step.request, step.begun_at is not None))
                return ask(step)

            for run in self.both(lambda job, step, wrap: step("a", call, "r", 3600, ask and asks)):
                keys.clear()
                asked.clear()
                (job,) = self.add(1)
                self.until_done(run, job)
                self.assertEqual(self.job(job)[2], "found" if ask and ask(None) else "called")
                self.assertEqual(len(set(keys)), 1)
                self.assertEqual(len(keys), 1 if ask and ask(None) else 2)
                self.assertEqual(asked, [(keys[0], "r", True)] if ask else [])
                self.assertEqual(self.steps(job)[0][1], "done")

    def test_no_call_after_its_time(self):
        """If asking takes longer than the call may take, the call is not made: another attempt may have asked meanwhile."""
        calls, asks = [], []

        def call(step):
            calls.append(1)
            raise OSError("502")

        def ask(step):
            asks.append(1)
            if len(asks) > 1:
                return "found"
            time.sleep(0.6)

        for run in self.both(lambda job, step, wrap: step("a", call, "r", 0.5, ask)):
            calls.clear()
            asks.clear()
            (job,) = self.add(1)
            self.until_done(run, job)
            self.assertEqual((self.job(job)[2], len(calls)), ("found", 1))

    def until_done(self, run, job):
        """Runs a job until it is completed.  Between attempts, its open call times out and its delay ends."""
        for _ in range(100):
            run()
            if self.job(job)[0] == "completed":
                return
            self.sql("UPDATE idemq.steps SET call_until = clock_timestamp() WHERE job_id = %s AND state = 'open'", job)
            self.sql("SELECT idemq.retry(%s)", job)
        self.fail("it is never done")

    def test_refused(self):
        keys = []

        def call(step):
            keys.append(step.key)
            if len(keys) == 1:
                raise idemq.Refused("no\0 such amount")
            return "yes"

        for run in self.both(lambda job, step, wrap: step("a", call)):
            keys.clear()
            (job,) = self.add(1)
            self.until_done(run, job)
            self.assertEqual(len(set(keys)), 2, "another key")
            self.assertEqual(self.sql("SELECT error FROM idemq.attempts WHERE job_id = %s", job), [("Refused: no such amount",)])

    def test_dead(self):
        """What no attempt can do is not done: the step is refused, and called under another key should the job come again."""
        keys = []

        def call(step):
            keys.append(step.key)
            if len(keys) == 1:
                raise idemq.Dead("no such account")
            return "yes"

        for run in self.both(lambda job, step, wrap: step("a", call)):
            keys.clear()
            (job,) = self.add(1)
            self.assertEqual(run(), {"dead": 1})
            self.assertEqual(self.steps(job), [("a", "refused", None)])
            ((error, details),) = self.sql("SELECT error, details FROM idemq.attempts WHERE job_id = %s", job)
            self.assertEqual((error, details["type"]), ("no such account", "Dead"))
            self.assertIn('raise idemq.Dead("no such account")', details["trace"])
            self.sql("SELECT idemq.retry(%s)", job)
            self.assertEqual(run(), {"committed": 1})
            self.assertEqual(len(set(keys)), 2, "another key")

    def test_a_call_that_asks_for_the_end_of_the_program(self):
        def call(step):
            sys.exit(3)

        for run in self.both(lambda job, step, wrap: step("a", call)):
            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(run(), {"dead": 1})
            self.assertEqual(self.job(job)[3], "SystemExit: 3")

    def test_dead_when_asked(self):
        """The call that is asked for may have been done: the step stays unknown."""
        def call(step):
            raise OSError("502")

        def ask(step):
            raise idemq.Dead("nobody knows")

        for run in self.both(lambda job, step, wrap: step("a", call, None, 0.01, ask)):  # meant to expire
            (job,) = self.add(1)
            for _ in range(100):
                run()
                if self.job(job)[0] == "dead":
                    break
                time.sleep(0.05)
            self.assertEqual(self.job(job)[3], "nobody knows")
            self.assertNotEqual(self.steps(job)[0][1], "refused")

    def test_a_call_that_does_not_run(self):
        """A coroutine function is refused before the step begins; what only shows in its answer is no response."""
        async def coroutine(step):
            self.calls.append(1)

        for call, said, begun in (
            (coroutine, "Job.step requires a plain function", 0),
            (lambda step: coroutine(step), "a coroutine, which has not run", 1),
            (lambda step: (each for each in [1]), "a generator, which has not run", 1),
        ):
            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(self.drain(lambda job: job.step("a", call), outside=True), {"dead": 1})
            self.assertIn(said, self.job(job)[3])
            self.assertEqual([state for _, state, _ in self.steps(job)], begun * ["open"])
        self.assertEqual(self.calls, [])

        # A function that was to be a coroutine function has called: what it has answered is the response.
        async def asynchronous(job):
            return await job.step("a", lambda step: "done")

        (job,) = self.add(1)
        self.assertEqual(self.drain_async(asynchronous, outside=True), {"committed": 1})
        self.assertEqual(self.steps(job), [("a", "done", "done")])

    def test_another_request_under_that_name(self):
        def changes(job):
            job.step("a", lambda step: 1, {"amount": job.attempt})
            raise idemq.RetryLater(0)

        (job,) = self.add(1, max_attempts=2)
        self.drain(changes, outside=True)
        self.assertIn("KeyReused", self.job(job)[3])

    def test_a_response_that_cannot_be_stored(self):
        for response in (object(), "a\0b"):
            seen = []
            (job,) = self.add(1)
            self.assertEqual(self.drain(lambda job: seen.append(job.step("a", lambda step: response)), outside=True), {"committed": 1})
            self.assertEqual((seen, self.steps(job)), ([response], [("a", "done", None)]))

    def test_a_call_that_takes_too_long(self):
        async def slow(step):
            await asyncio.sleep(3600)

        async def handler(job):
            await job.step("a", slow, call_timeout=0.3)  # meant to expire

        (job,) = self.add(1, max_attempts=1)
        self.assertEqual(self.drain_async(handler, outside=True), {"dead": 1})
        self.assertIn("Timeout", self.job(job)[3])

    def test_the_answer_counts_after_the_lease_was_lost(self):
        def loses(job):
            def call(step):
                self.sql("SELECT idemq.revoke_lease(%s)", job.id)
                self.sql("SELECT idemq.cancel(%s)", job.id)  # the drain must not claim it again
                self.beat(job)
                self.until_set(job.cancelled)
                return "done"

            return job.step("a", call)

        (job,) = self.add(1)
        self.drain(loses, outside=True)
        self.assertEqual(self.steps(job), [("a", "done", "done")])

    def test_the_manual(self):
        jobs = self.add({"amount": 5}, {"amount": -5}, max_attempts=1)
        self.assertEqual(self.drain(manual.charge, outside=True), {"committed": 1, "dead": 1})
        self.assertEqual([state for _, state, _ in self.steps(jobs[0]) + self.steps(jobs[1])], ["done", "refused"])


if __name__ == "__main__":
    tap.main()
