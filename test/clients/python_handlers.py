"""python_handlers.py: what a handler may be, sees, raises and returns; handlers by the kind of a job.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import concurrent.futures
import functools
import sys

import idemq
import tap
from python_common import DSN, Client


class Handlers(Client):
    def test_what_a_handler_sees(self):
        seen = []
        (job,) = self.add({"a": 1}, key="k", headers={"h": "x"})
        self.drain(lambda job, conn: seen.append(job))
        (it,) = seen
        self.assertEqual((it.id, it.attempt, it.payload, it.key, it.headers, it.checkpoint), (job, 1, {"a": 1}, "k", {"h": "x"}, None))
        self.assertEqual(it.token, self.sql("SELECT token FROM idemq.jobs WHERE id = %s", job)[0][0])
        self.assertFalse(it.cancelled.is_set())
        left = (it.deadline - it.enqueued_at).total_seconds()
        self.assertTrue(3000 < left < 3700, left)

    def test_any_text_and_any_exception(self):
        class Odd(BaseException):
            pass

        for error in (ValueError("\ud800" + "x" * 100_000), SystemExit(3), StopIteration("s"), Odd("o"), KeyError()):
            def fails(job, conn, error=error):
                raise error

            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(self.drain(fails), {"dead": 1}, error)
            self.assertIn(type(error).__name__, self.job(job)[3])

    def test_what_a_handler_says(self):
        for error, outcome, row in (
            (idemq.RetryLater(3600, "busy"), "retrying", ("retrying", 1, None, "busy")),
            (idemq.Snooze(3600), "released", ("pending", 0, None, None)),
            (idemq.Snooze("1 h"), "released", ("pending", 0, None, None)),
            (idemq.Dead("no such address"), "dead", ("dead", 1, None, "no such address")),
        ):
            def says(job, conn, error=error):
                self.do(job, conn)
                raise error

            (job,) = self.add(1)
            self.assertEqual(self.drain(says), {outcome: 1})
            self.assertEqual(self.job(job), row)
            if outcome != "dead":
                due = self.sql("SELECT ready_at > now() + interval '50 min' FROM idemq.jobs WHERE id = %s", job)
                self.assertEqual(due, [(True,)])
        self.assertEqual(self.effects(), [])

    def test_a_provider_that_asks_for_a_pause(self):
        """HoldBack gives the job back, and holds back the others; without a limit that allows it, it only gives the job back."""
        held = "SELECT scope, group_key, job_id, until > now() + interval '25 min' FROM idemq.holds WHERE queue = %s"
        for drain, outside in ((self.drain, False), (self.drain, True), (self.drain_async, False), (self.drain_async, True)):
            first, second = self.add(1, 2)
            says = self.raiser(lambda: idemq.HoldBack("30 min", reason="busy"), drain == self.drain_async)
            self.assertEqual(drain(says, outside), {"released": 1})
            self.assertEqual([self.job(job)[:2] for job in (first, second)], [("pending", 0)] * 2)
            self.assertEqual(self.sql(held, self.queue), [("queue", None, first, True)])
            self.sql("SELECT idemq.resume(%s), idemq.cancel(%s), idemq.cancel(%s)", self.queue, first, second)
        # Its group, or the queue in spite of that.
        for scope, expected in ((None, ("group", "a")), ("group", ("group", "a")), ("queue", ("queue", None))):
            (job,) = self.add(1, group_key="a")
            (other,) = self.add(2, group_key="b", delay="1 h")
            self.assertEqual(self.drain(self.raiser(lambda scope=scope: idemq.HoldBack(1800, scope), False)), {"released": 1})
            self.assertEqual([row[:2] for row in self.sql(held, self.queue)], [expected], scope)
            self.sql("SELECT idemq.resume(%s), idemq.cancel(%s), idemq.cancel(%s)", self.queue, job, other)
        # Longer than the queue allows: the others wait as long as it does, and the job longer.  None at all: only the job waits.
        for most, rows in (("10 min", 1), ("0", 0)):
            self.alter(f"max_hold_back => '{most}'")
            (job,) = self.add(1)
            self.assertEqual(self.drain(self.raiser(lambda: idemq.HoldBack("30 min"), False)), {"released": 1})
            self.assertEqual(self.sql("SELECT count(*) FROM idemq.holds WHERE queue = %s AND until < now() + interval '11 min'", self.queue), [(rows,)])
            self.assertEqual(self.sql("SELECT ready_at > now() + interval '25 min' FROM idemq.jobs WHERE id = %s", job), [(True,)])
            self.sql("SELECT idemq.resume(%s), idemq.cancel(%s)", self.queue, job)
        # A hundred times in a row; then it counts.  So too if the server refuses the hold.
        for most in ("1 h", "0"):
            self.alter(f"max_hold_back => '{most}'")
            (job,) = self.add(1)
            self.sql("""INSERT INTO idemq.attempts (job_id, token, queue_id, attempt, ended_at, outcome)
                SELECT %s, n, idemq.queue_id(%s), 1, now(), 'released' FROM generate_series(1, 99) n""", job, self.queue)
            busy = self.raiser(lambda: idemq.HoldBack(1800, reason="busy"), False)
            self.assertEqual(self.drain(busy), {"released": 1}, most)
            self.sql("SELECT idemq.resume(%s), idemq.retry(%s)", self.queue, job)
            self.assertEqual(self.drain(busy), {"retrying": 1}, most)
            self.assertEqual(self.job(job), ("retrying", 1, None, "busy"), most)
            self.sql("SELECT idemq.resume(%s), idemq.cancel(%s)", self.queue, job)

    def test_an_error_that_cannot_be_read(self):
        """Its class is anybody's: the attempt fails, and neither the worker nor the next one does."""

        def raises(self):
            raise RuntimeError("not even that")

        unreadable = {"__str__": raises, "__repr__": raises, "sqlstate": property(raises)}
        for base, outcome in ((ValueError, "retrying"), (idemq.Dead, "dead"), (idemq.RetryLater, "retrying"), (BaseException, "retrying")):
            error = type("Unreadable", (base,), unreadable)
            for drain, outside in ((self.drain, False), (self.drain, True), (self.drain_async, False), (self.drain_async, True)):
                self.alter("retry_base => '1 h'")
                (job,) = self.add(1)
                self.assertEqual(drain(self.raiser(error, drain == self.drain_async), outside), {outcome: 1})
                self.assertIn("its str() raised RuntimeError", self.job(job)[3])
                self.assertEqual(self.job(job)[1], 1)
        # Nor does one that asks for the end of the program.
        error = type("Exits", (ValueError,), dict.fromkeys(("__str__",), lambda self: sys.exit(3)) | {"sqlstate": property(sys.exit)})
        for drain in (self.drain, self.drain_async):
            self.add(1)
            self.assertEqual(drain(self.raiser(error, drain == self.drain_async)), {"retrying": 1})
        # Of a long one no more is read than is told.
        self.assertLess(len(idemq.errors.text_of(ValueError("x" * 10**6))), 2 * idemq.errors.MAX_TEXT)
        # The reason why a batch is run one by one is one of them.
        self.add(1, 2)
        self.assertEqual(self.drain(self.raiser(type("Unreadable", (ValueError,), unreadable), False), batch=2), {"retrying": 2})

    @staticmethod
    def raiser(error, coroutine):
        def handler(job, *conn):
            raise error()

        async def handler_async(job, *conn):
            raise error()

        return handler_async if coroutine else handler

    def test_a_delay_that_is_none(self):
        class Forgotten(idemq.Snooze):
            def __init__(self):
                pass

        self.alter("retry_base => '1 h'")
        for error in (idemq.RetryLater(float("inf"), "busy"), idemq.RetryLater("a while", "busy"), idemq.Snooze(float("nan"), "busy"), Forgotten()):
            def says(job, conn, error=error):
                raise error

            (job,) = self.add(1)
            self.assertEqual(self.drain(says), {"retrying": 1}, error)
            self.assertRegex(self.job(job)[3], r"(busy|Forgotten) \(the delay is not a valid interval\)$")

    def test_the_number_of_parameters_is_checked_when_a_worker_starts(self):
        """Not by each of its jobs, twenty times."""

        def two(job, conn):
            pass

        def three(job, conn, tenant):
            pass

        def keyword(job, *, conn):
            pass

        async def one_async(job):
            pass

        async def none_async():
            pass

        @functools.wraps(three)  # of a decorator that passes the third one
        def injected(job, conn):
            three(job, conn, "here")

        class Handles:
            def __call__(self, job):
                pass

        worker, async_worker = idemq.Worker(DSN, self.queue), idemq.AsyncWorker(DSN, self.queue)
        refused = (
            (worker.run, lambda job: None), (worker.run, three), (worker.run, keyword), (worker.run, Handles()), (worker.run, {"a": two, None: three}),
            (worker.run, lambda: None), (worker.run_outside, two), (worker.run_outside, functools.partial(three, tenant=1)),
            (worker.drain, lambda job: None), (lambda handler: worker.drain(handler, outside=True), two),
            (async_worker.run, one_async), (async_worker.run_outside, none_async), (idemq.ClusterWorker(DSN, self.queue).run, three),
        )  # fmt: skip
        (job,) = self.add(1)
        for run, handler in refused:
            with self.assertRaisesRegex(TypeError, r"cannot be called with \(job(?:, conn)?\): "):
                answer = run(handler)
                if asyncio.iscoroutine(answer):
                    asyncio.run(answer)
        for hook in ({"around": lambda job: None}, {"failed": lambda job: None}, {"started": lambda: None}, {"stopped": lambda worker: None}):
            with self.assertRaisesRegex(TypeError, "cannot be called with"):
                idemq.Worker(DSN, self.queue, hooks=hook)
        self.assertEqual(self.job(job)[:2], ("pending", 0))
        for handler in (injected, functools.partial(three, tenant=1), lambda *args: None, lambda job, conn=None, tenant=None: None):
            self.assertEqual(self.drain(handler), {"committed": 1})
            self.add(1)

        def step(job):
            job.step("s", lambda: 1)

        self.sql("SELECT count(idemq.cancel(id)) FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s)", self.queue)
        (job,) = self.add(1, max_attempts=1)
        self.drain(step, outside=True)
        self.assertRegex(self.job(job)[3], "cannot be called with .step.")

    def test_a_wait_that_is_refused(self):
        """It is a failure: a job that is given back is ready again at once, for ever."""

        def waits(job, *conn):
            raise idemq.Waiting("paid", object())

        for outside in (False, True):
            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(self.drain(waits, outside), {"dead": 1})
            self.assertEqual(self.job(job)[3], "the server refused to let it wait for the event")

    def test_a_function_that_the_worker_cannot_run(self):
        """Refused before a job is claimed: a call of it runs nothing, or cannot be awaited."""

        class Called:
            async def __call__(self, job, *conn):
                pass

        def generates(job, *conn):
            yield self.calls.append(job)

        async def generates_async(job, *conn):
            yield self.calls.append(job)

        def function(job, *conn):
            self.calls.append(job)

        async def coroutine(job, *conn):
            self.calls.append(job)

        self.calls = []
        workers = [
            (idemq.Worker(DSN, self.queue), "AsyncWorker", (coroutine, Called(), functools.partial(coroutine), functools.partial(Called()), {"a": function, None: coroutine})),
            (idemq.ClusterWorker(DSN, self.queue), "AsyncClusterWorker", (coroutine,)),
            (idemq.AsyncWorker(DSN, self.queue), "use Worker", (function, lambda job: coroutine(job), functools.partial(function), {"a": function})),
            (idemq.AsyncClusterWorker(DSN, self.queue), "use ClusterWorker", (function,)),
        ]
        (job,) = self.add(1)
        for worker, other, handlers in workers:
            refused = [(handler, other) for handler in handlers]
            refused += [(handler, "generator function") for handler in (generates, generates_async)]
            refused += [(handler, "handler must be a function") for handler in ({}, None, {"a": None})]
            for handler, why in refused:
                for outside in (False, True):
                    for run in (worker.run_outside if outside else worker.run, functools.partial(worker.drain, outside=outside)):
                        with self.assertRaisesRegex(TypeError, why):
                            answer = run(handler)
                            if asyncio.iscoroutine(answer):
                                asyncio.run(answer)
        self.assertEqual((self.calls, self.job(job)[:2]), ([], ("pending", 0)))
        # A decorator that makes a function of one; an object whose call is one.
        wrapped = functools.wraps(coroutine)(lambda job: coroutine(job))
        for handler in (wrapped, Called(), functools.partial(Called())):
            self.assertEqual(self.drain_async(handler, outside=True), {"committed": 1})
            self.add(1)

    def test_an_answer_that_has_not_run(self):
        """What only shows when the handler returns fails the attempt."""

        async def coroutine(job):
            self.effect(self.conn, 1)

        async def generates_async():
            yield self.effect(self.conn, 1)

        answers = (coroutine, lambda job: (self.effect(self.conn, n) for n in [1]), lambda job: generates_async(),
                   lambda job: map(self.effect, [self.conn], [1]), lambda job: concurrent.futures.Future(),
                   lambda job: [coroutine(job)])
        for answer in answers:
            async def answers_async(job, *conn, answer=answer):
                return answer(job)

            for drain, handler in ((self.drain, lambda job, *conn: answer(job)), (self.drain_async, answers_async)):
                for outside in (False, True):
                    (job,) = self.add(1, max_attempts=1)
                    self.assertEqual(drain(handler, outside), {"dead": 1})
                    self.assertRegex(self.job(job)[3], "TypeError: .* (coroutine|generator|async_generator|map|Future), which has not run")
        self.assertEqual(self.effects(), [])

    def test_kinds(self):
        def mail(job, conn):
            self.effect(conn, job.payload)
            return job.kind

        def rest(job, conn):
            self.effect(conn, 10 * job.payload)

        jobs = self.add(1, kind="mail") + self.add(2) + self.add(3, kind="new") + self.add(4, kind="mail")
        with self.assertLogs("idemq", "WARNING") as said:
            done = self.drain({"mail": mail, None: rest}, batch=4, unknown_kind="1 h")
        self.assertEqual(done, {"committed": 3, "released": 1})
        self.assertEqual(sum("no handler for kind new" in line for line in said.output), 1)
        self.assertEqual(self.effects(), [1, 4, 20])
        self.assertEqual(self.job(jobs[0])[2], "mail")
        # Given back for that time, and no attempt counted: a newer worker knows it.
        waits = "SELECT status::text, attempt, ready_at > now() + interval '50 min' FROM idemq.jobs WHERE id = %s"
        self.assertEqual(self.sql(waits, jobs[2]), [("pending", 0, True)])
        self.sql("SELECT idemq.retry(%s)", jobs[2])
        self.assertEqual(self.drain({"new": lambda job: job.kind}, outside=True), {"committed": 1})
        self.assertEqual(self.job(jobs[2])[:3], ("completed", 1, "new"))

    def test_kinds_with_asyncio(self):
        async def mail(job):
            return job.kind

        jobs = self.add(1, kind="mail") + self.add(2, kind="new") + self.add(3)
        with self.assertLogs("idemq", "WARNING"):
            done = self.drain_async({"mail": mail}, outside=True)
        self.assertEqual(done, {"committed": 1, "released": 2})
        self.assertEqual(self.job(jobs[0])[2], "mail")
        self.assertEqual([self.job(job)[1] for job in jobs[1:]], [0, 0])


if __name__ == "__main__":
    tap.main()
