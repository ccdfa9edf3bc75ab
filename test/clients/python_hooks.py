"""python_hooks.py: hooks of a worker: around, failed, started, stopped.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import collections
import time

import idemq
import manual
import tap
from python_common import DSN, QuickFirstUse


class Hooks(QuickFirstUse):
    def test_around(self):
        seen = []

        def around(job, call):
            seen.append(("before", job.payload))
            try:
                return [call()]
            finally:
                seen.append(("after", job.payload))

        async def around_async(job, call):
            return [await call()]

        async def outside(job):
            return job.payload

        (job,) = self.add(1)
        self.assertEqual(self.drain(self.do, hooks=idemq.Hooks(around=around)), {"committed": 1})
        self.assertEqual((self.job(job)[2], seen, self.effects()), ([{"n": 1}], [("before", 1), ("after", 1)], [1]))
        for handler, is_outside in ((self.do_async, False), (outside, True)):
            (job,) = self.add(2)
            self.assertEqual(self.drain_async(handler, is_outside, hooks={"around": around_async}), {"committed": 1})
            self.assertEqual(self.job(job)[2], [2] if is_outside else [{"n": 2}])
        # Without a call, what it returns is the result; what it raises fails the attempt.
        (job,) = self.add(3)
        self.drain(self.do, hooks={"around": lambda job, call: "mine"})
        self.assertEqual((self.job(job)[2], self.effects()), ("mine", [1, 2]))
        (job,) = self.add(4, max_attempts=1)
        self.assertEqual(self.drain(self.do, hooks={"around": lambda job, call: call() and 1 / 0}), {"dead": 1})
        self.assertEqual(self.effects(), [1, 2])

    def test_failures_begin_and_end(self):
        heard, failures = [], []

        def failed(job, failure):
            failures.append((job.payload, *failure[:2], type(failure.error).__name__, failure.outcome))
            raise ValueError("what it raises changes nothing")

        async def failed_async(job, failure):
            failed(job, failure)

        def handler(job, *conn):
            if job.payload == 1:
                raise KeyError("no") if job.attempt == 1 else idemq.Dead("no")
            if job.payload == 2:
                raise idemq.Snooze(3600)
            self.sql("SELECT idemq.cancel(%s)", job.id)

        async def handler_async(job, *conn):
            handler(job)

        hooks = {"failed": failed, "started": lambda worker: heard.append(worker.queue),
                 "stopped": lambda worker, outcomes: heard.append((worker.name, outcomes))}  # fmt: skip
        expected = [(1, 1, True, "KeyError", "retrying"), (1, 2, False, "Dead", "dead"), (3, 1, False, "StaleToken", "stale")]
        for drain, way, outside in ((self.drain, handler, False), (self.drain, handler, True), (self.drain_async, handler_async, True)):
            heard.clear()
            failures.clear()
            self.sql("SELECT idemq.purge(%s)", self.queue)
            self.add(1, 2, 3)
            if drain == self.drain_async:
                hooks = {**hooks, "failed": failed_async}
            with self.assertLogs("idemq", "ERROR") as said:
                ended = collections.Counter(drain(way, outside, hooks=hooks, name="me"))
                time.sleep(0.1)
                ended.update(drain(way, outside, hooks=hooks, name="me"))
            self.assertEqual(ended, {"retrying": 1, "dead": 1, "released": 1, "stale": 1})
            self.assertEqual(sorted(failures), expected)
            self.assertEqual((heard[0], heard[1][0]), (self.queue, "me"))
            self.assertEqual(collections.Counter(heard[1][1]) + collections.Counter(heard[3][1]), ended)
            self.assertTrue(any("hook failed" in line for line in said.output))

    def test_a_job_that_the_server_has_ended_before(self):
        """It is dead then: nobody does it again, whatever the worker had to say of its attempt."""
        failures = []

        def late(job):
            self.sql("SELECT idemq.heartbeat(%s, %s, '1 ms')", job.id, job.token)  # meant to expire
            self.until("SELECT status IN ('dead', 'pending') FROM idemq.jobs WHERE id = %s", job.id)
            if job.payload == "time":
                self.end_time(job)
                self.until_set(job.cancelled)
                raise TimeoutError("told to end")
            if job.payload == "fails":
                raise ValueError("too late")

        async def late_async(job):
            await asyncio.to_thread(late, job)

        async def failed_async(job, failure):
            failures.append(failure[1:2] + failure[3:])

        for drain, handler, failed, ways in (
            (self.drain, late, lambda job, failure: failures.append(failure[1:2] + failure[3:]), ("time", "fails", "returns")),
            (self.drain_async, late_async, failed_async, ("fails", "returns")),
        ):
            for payload in ways:
                failures.clear()
                (job,) = self.add(payload, max_attempts=1)
                self.assertEqual(drain(handler, True, hooks={"failed": failed}), {"dead": 1}, payload)
                self.assertEqual(failures, [(False, "dead")], payload)
                self.assertEqual(self.job(job)[:2], ("dead", 1))

    def test_a_begin_that_fails_ends_the_run(self):
        def refuses(worker):
            raise OSError("no tracer")

        (job,) = self.add(1)
        with self.assertRaisesRegex(OSError, "no tracer"):
            self.drain(self.do, hooks={"started": refuses})
        self.assertEqual(self.job(job)[0], "pending")

    def test_the_manual(self):
        self.add({"order": 1})
        self.sql("CREATE TABLE IF NOT EXISTS confirmations (order_id int)")
        calls = manual.SECONDS.calls
        self.drain(manual.confirm, hooks=idemq.Hooks(around=manual.measured, failed=manual.reported))
        self.assertEqual(calls, [("labels", self.queue), ("time",), "begin", "end"])
        calls.clear()
        self.add({"order": 2})
        self.drain(manual.confirm, hooks={"around": manual.traced})
        self.assertEqual(calls, [("start_as_current_span", "confirm"), "begin", "end"])
        calls.clear()
        self.add({}, max_attempts=2)
        self.until_all_failed(idemq.Hooks(failed=manual.reported))
        self.assertEqual([(name, type(error)) for name, error in calls], [("capture_exception", KeyError)])

    def until_all_failed(self, hooks):
        ended = collections.Counter()
        give_up = time.monotonic() + 60
        while not ended["dead"] and time.monotonic() < give_up:
            ended.update(self.drain(manual.confirm, hooks=hooks))
        self.assertEqual(ended, {"retrying": 1, "dead": 1})

    def test_what_is_no_hook(self):
        async def coroutine(job, call):
            pass

        for hooks, said in (({"arround": print}, "unknown hook arround; the hooks are around, failed, started, stopped"), ({"failed": 1}, "failed is not a function"),
                            ("around", "a Hooks object, or a dict"), ({"around": coroutine}, "is a coroutine function: use AsyncWorker")):
            with self.assertRaisesRegex(TypeError, said):
                idemq.Worker(DSN, self.queue, hooks=hooks)
        with self.assertRaisesRegex(TypeError, "is a plain function: declare it with async def"):
            idemq.AsyncWorker(DSN, self.queue, hooks={"around": lambda job, call: call()})


if __name__ == "__main__":
    tap.main()
