"""python_flows.py: events, parents, graphs, topics, numbered producers, cancels of many.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import asyncio
import collections
import datetime
import functools
import threading
import time
import unittest.mock

import psycopg

import idemq
import idemq._attempt_runner
import manual
import tap
from python_common import DSN, Client


class Flows(Client):
    """Events, parents, graphs, topics, numbers."""

    def until_paid(self, job, conn):
        self.effect(conn, job.payload)
        paid = job.await_event(f"paid {job.payload}", "1 h")
        return {"arrived": paid.arrived, "payload": paid.payload}

    async def until_paid_async(self, job, conn):
        await self.do_async(job, conn)
        paid = await job.await_event(f"paid {job.payload}", 3600)
        return {"arrived": paid.arrived, "payload": paid.payload}

    def until_paid_outside(self, job):
        paid = job.await_event(f"paid {job.payload}", "1 h")
        return {"arrived": paid.arrived, "payload": paid.payload}

    async def until_paid_outside_async(self, job):
        paid = await job.await_event(f"paid {job.payload}", "1 h")
        return {"arrived": paid.arrived, "payload": paid.payload}

    def until_ended(self, handlers, expected):
        """A child is ready milliseconds after its parents."""
        self.until_all(self.drain, handlers, expected)

    def until_all(self, drain, handlers, expected):
        ended = collections.Counter()
        give_up = time.monotonic() + 120
        while sum(ended.values()) < sum(expected.values()) and time.monotonic() < give_up:
            ended.update(drain(handlers))
            time.sleep(0.05)
        self.assertEqual(ended, expected)

    def test_await_event(self):
        ways = (
            (self.drain, self.until_paid, False, [1]),
            (self.drain_async, self.until_paid_async, False, [2]),
            (self.drain, self.until_paid_outside, True, []),
            (self.drain_async, self.until_paid_outside_async, True, []),
        )
        for n, (drain, handler, outside, effects) in enumerate(ways, 1):
            with self.subTest(n):
                (job,) = self.add(n)
                self.sql("DELETE FROM effects WHERE queue = %s", self.queue)
                self.assertEqual(drain(handler, outside), {"waiting": 1})
                # What it had done is undone, the attempt not counted, and nobody gets the job until the hour is over.
                self.assertEqual(self.effects(), [])
                self.assertEqual(self.job(job), ("pending", 0, None, None))
                self.assertEqual(drain(handler, outside), {})
                state = self.sql("SELECT name, state, call_until - begun_at = '1 h' FROM idemq.steps WHERE job_id = %s", job)
                self.assertEqual(state, [(f"paid {n}", "waiting", True)])
                self.assertEqual(idemq.send_event(self.conn, self.queue, f"paid {n}", {"n": n}), ("accepted", {"n": n}, True))
                self.assertEqual(drain(handler, outside), {"committed": 1})
                self.assertEqual(self.effects(), effects)
                self.assertEqual(self.job(job), ("completed", 1, {"arrived": True, "payload": {"n": n}}, None))
                self.assertEqual(idemq.send_event(self.conn, self.queue, f"paid {n}"), ("duplicate", {"n": n}, False))

    def test_a_timeout_and_an_event_without_payload(self):
        ways = ((self.until_paid, False), (self.until_paid_outside, True))
        for n, (handler, outside) in enumerate(ways):
            (late, early) = self.add(2 * n, 2 * n + 1)
            idemq.send_event(self.conn, self.queue, f"paid {2 * n + 1}")
            self.assertEqual(self.drain(handler, outside), {"committed": 1, "waiting": 1})
            self.assertEqual(self.job(early)[2], {"arrived": True, "payload": None})
            self.sql("UPDATE idemq.steps SET call_until = now() - interval '1 s' WHERE job_id = %s", late)
            self.sql("SELECT idemq.retry(%s)", late)
            self.assertEqual(self.drain(handler, outside), {"committed": 1})
            self.assertEqual(self.job(late)[:3], ("completed", 1, {"arrived": False, "payload": None}))

    def test_a_handler_that_catches_everything(self):
        """The attempt is over all the same; what it does instead does not count."""

        def inside(job, conn):
            try:
                job.await_event("never", "1 h")
            except BaseException:
                self.effect(conn, 1)

        def outside(job):
            try:
                job.await_event("never", "1 h")
            except BaseException:
                raise ValueError("no way") from None

        def raises(job, conn):
            inside(job, conn)
            raise idemq.Dead("no way")

        for handler, is_outside in ((inside, False), (raises, False), (outside, True)):
            (job,) = self.add(1)
            self.assertEqual(self.drain(handler, is_outside), {"waiting": 1})
            self.assertEqual(self.job(job), ("pending", 0, None, None))
        self.assertEqual(self.effects(), [])
        # `except Exception` does not hold it up.
        self.assertFalse(issubclass(idemq.Waiting, Exception))

    def test_what_a_handler_has_heard_stays(self):
        """Its transaction is undone when it waits for another event, or fails; the event may be forgotten by then."""
        failures = [ValueError("no way"), idemq.Snooze(0)]

        def handler(job, conn):
            first = job.await_event("first", "1 h")
            if failures and job.payload == 2:
                raise failures.pop()
            return [first.payload, job.await_event("second", "1 h").payload]

        async def handler_async(job, conn):
            return [(await job.await_event(name, "1 h")).payload for name in ("first", "second")]

        ways = (
            (self.drain, handler, 1, {"waiting": 1}),
            (self.drain, handler, 2, {"waiting": 1, "retrying": 1, "released": 1}),
            (self.drain_async, handler_async, 3, {"waiting": 1}),
        )
        for drain, way, payload, ended in ways:
            (job,) = self.add(payload)
            idemq.send_event(self.conn, self.queue, "first", 7)
            self.until_all(drain, way, ended)
            self.assertEqual(self.forget("first"), 1)
            idemq.send_event(self.conn, self.queue, "second", 8)
            self.assertEqual(drain(way), {"committed": 1})
            self.assertEqual(self.job(job)[2], [7, 8])
            self.assertEqual(self.forget("second"), 1)

    def forget(self, event):
        """As at the end of the queue's idempotency_window."""
        return self.sql(
            """WITH gone AS (DELETE FROM idemq.events e USING idemq.queues q
                WHERE e.queue_id = q.queue_id AND q.name = %s AND e.name = %s RETURNING 1) SELECT count(*) FROM gone""",
            self.queue, event,
        )[0][0]

    def test_one_of_a_batch_waits(self):
        def handler(job, conn):
            self.effect(conn, job.payload)
            return job.await_event("never", "1 h").arrived if job.payload == 2 else None

        self.add(1, 2, 3)
        self.assertEqual(self.drain(handler, batch=3), {"committed": 2, "waiting": 1})
        self.assertEqual(self.effects(), [1, 3])

    def test_the_event_comes_between_the_rollback_and_the_wait(self):
        """The attempt is current then, and its handler over: the job is given back, and hears it at once."""
        (job,) = self.add(1)
        wait = idemq._attempt_runner.AttemptRunner._record_wait

        async def later(run, job, waiting):
            await asyncio.to_thread(idemq.send_event, self.conn, self.queue, waiting.name, "now")
            await wait(run, job, waiting)

        with unittest.mock.patch.object(idemq._attempt_runner.AttemptRunner, "_record_wait", later):
            self.assertEqual(self.drain(self.until_paid), {"released": 1, "committed": 1})
        self.assertEqual(self.job(job), ("completed", 1, {"arrived": True, "payload": "now"}, None))
        self.assertEqual(self.effects(), [1])

    def test_a_lost_job_does_not_wait(self):
        """Another attempt has it by then."""
        (job,) = self.add(1)
        wait = idemq._attempt_runner.AttemptRunner._record_wait

        async def later(run, job, waiting):
            await asyncio.to_thread(self.sql, "SELECT idemq.cancel(%s)", job.id)
            await wait(run, job, waiting)

        with unittest.mock.patch.object(idemq._attempt_runner.AttemptRunner, "_record_wait", later):
            self.assertEqual(self.drain(self.until_paid), {"stale": 1})
        self.assertEqual(self.job(job)[0], "cancelled")

    def test_what_await_event_refuses(self):
        for outside, handler in ((False, lambda job, conn: job.await_event("x" * 257, 1)), (True, lambda job: job.await_event("x" * 257, 1))):
            (job,) = self.add(1, max_attempts=1)
            self.assertEqual(self.drain(handler, outside), {"dead": 1})
            self.assertEqual(self.sql("SELECT details->>'sqlstate' FROM idemq.attempts WHERE job_id = %s", job), [("22023",)])

    def test_parents(self):
        (first,) = self.add(1)
        (second,) = self.add(2, max_attempts=1)
        child = idemq.enqueue(self.conn, self.queue, 3, depends_on=(first, second), on_parent_failure="run")
        self.assertEqual(child.status, "blocked")

        def begin(job, conn):
            if job.payload == 3:
                return [parent.status for parent in job.parents()]
            if job.payload == 2:
                raise idemq.Dead("no way")
            return self.do(job, conn)

        self.until_ended(begin, {"committed": 2, "dead": 1})
        self.assertEqual(self.job(child.id)[2], ["completed", "dead"])

        def handler(job, conn):
            return [list(parent) for parent in job.parents()]

        async def handler_async(job):
            return [list(parent) for parent in await job.parents()]

        for drain, how, outside in ((self.drain, handler, False), (self.drain_async, handler_async, True)):
            child = idemq.enqueue(self.conn, self.queue, 4, depends_on=[first])
            self.until("SELECT status = 'pending' FROM idemq.jobs WHERE id = %s", child.id)
            self.assertEqual(drain(how, outside), {"committed": 1})
            self.assertEqual(self.job(child.id)[2], [[first, self.queue, "completed", {"n": 1}]])

        with self.assertRaises(idemq.NoSuchJob):
            idemq.enqueue(self.conn, self.queue, 3, depends_on=[-1])

    def test_a_flow_that_grows(self):
        def total(parents):
            return sum(parent.result or 0 for parent in parents)

        def handler(job, conn):
            if job.payload != "list":
                return total(job.parents()) if job.payload == "sum" else job.payload
            pages = [idemq.enqueue(conn, self.queue, n).id for n in (1, 2)]
            job.add_parents(child, pages)
            job.add_parents(child, pages[:1])
            return None

        async def handler_async(job):
            if job.payload != "list":
                return total(await job.parents()) if job.payload == "sum" else job.payload
            await job.add_parents(child, self.add(3, 4))
            return None

        for drain, how, sum_of in ((self.drain, handler, 3), (functools.partial(self.drain_async, outside=True), handler_async, 7)):
            (first,) = self.add("list")
            child = idemq.enqueue(self.conn, self.queue, "sum", depends_on=[first]).id
            self.until_all(drain, how, {"committed": 4})
            self.assertEqual(self.job(child)[2], sum_of)

        # A page that is being deleted: the attempt does not count, and nothing is added.
        (first,) = self.add("list")
        child = idemq.enqueue(self.conn, self.queue, "sum", depends_on=[first]).id
        (page,) = self.add(5)
        with psycopg.connect(DSN) as other:
            other.execute("DELETE FROM idemq.jobs WHERE id = %s", (page,))
            self.assertEqual(self.drain(lambda job, conn: job.add_parents(child, [page])), {"released": 1})
            other.rollback()
        self.assertEqual(self.job(first)[:2], ("pending", 0))
        self.assertEqual(self.sql("SELECT count(*) FROM idemq.dependencies WHERE child = %s", child), [(1,)])

        def wrong(job, conn):
            return job.add_parents(str(child), [page]) if job.id == first else None

        (first,) = self.add("list", max_attempts=1)
        self.assertEqual(self.drain(wrong)["dead"], 1)
        self.assertRegex(self.job(first)[3], "TypeError")

    def test_a_graph_and_its_results(self):
        (before,) = self.add(0)
        times = {"delay": 0, "expires_in": datetime.timedelta(days=2), "run_at": None, "headers": {"h": 1}}
        jobs = idemq.enqueue_graph(self.conn, {
            "sum": {"queue": self.queue, "payload": None, "depends_on": ["a", "b", before], "kind": "sum"},
            "a": {"queue": self.queue, "payload": 1, **times},
            "b": {"queue": self.queue, "payload": 2, "run_at": datetime.datetime.now(datetime.timezone.utc)},
        })  # fmt: skip
        self.assertEqual({name: job[1:] for name, job in jobs.items()},
                         {"a": ("accepted", "pending"), "b": ("accepted", "pending"), "sum": ("accepted", "blocked")})
        row = self.sql("SELECT expires_at - enqueued_at = '2 days', headers FROM idemq.jobs WHERE id = %s", jobs["a"].id)
        self.assertEqual(row, [(True, {"h": 1})])
        ids = [job.id for job in jobs.values()]
        self.assertEqual({result.status for result in idemq.wait_results(self.conn, ids, 0.01)}, {"pending", "blocked"})
        handlers = {None: lambda job, conn: job.payload, "sum": lambda job, conn: sum(parent.result for parent in job.parents())}
        self.until_ended(handlers, {"committed": 4})
        self.assertEqual(idemq.wait_results(self.conn, [jobs["sum"].id, before]), [("completed", 3), ("completed", 0)])
        self.assertEqual(idemq.wait_results(self.conn, []), [])
        with self.assertRaises(psycopg.errors.InvalidParameterValue):
            idemq.enqueue_graph(self.conn, {"a": {"queue": self.queue, "payload": 1, "depends_on": ["a"]}})

    def test_how_far_a_flow_is(self):
        list_id = idemq.enqueue(self.conn, self.queue, "list").id
        parts = [idemq.enqueue(self.conn, self.queue, n, depends_on=[list_id]).id for n in range(3)]
        begun = idemq.flow(self.conn, parts[1])
        self.assertEqual(begun[:9] + (begun.progress, begun.eta, begun.held_up_by, begun.failed_ids, begun.roots, begun.cut),
                         (4, 1, 3, 0, 0, 0, 0, 0, 0, 0.0, None, list_id, [], [list_id], False))
        self.until_ended({None: lambda job, conn: None}, {"committed": 4})
        ended = idemq.flow(self.conn, list_id)
        self.assertEqual((ended.done, ended.progress, ended.eta, ended.held_up_by), (4, 100.0, datetime.timedelta(0), None))
        self.assertGreater(ended.slowest_for, datetime.timedelta(0))
        self.assertTrue(idemq.flow(self.conn, list_id, 2).cut)
        self.assertIsNone(idemq.flow(self.conn, 1))

    def test_a_group_is_paused(self):
        def claimed():
            return [row[0] for row in self.conn.execute("SELECT group_key FROM idemq.claim(%s, 10)", (self.queue,))]

        for group in "ab":
            idemq.enqueue(self.conn, self.queue, 1, group_key=group)
        self.assertIsNone(idemq.pause_group(self.conn, self.queue, "a", until=datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)))
        self.assertEqual(claimed(), ["b"])
        with self.assertRaises(psycopg.errors.InvalidParameterValue):
            idemq.pause_group(self.conn, self.queue, "")
        with self.assertRaises(TypeError):
            idemq.pause_group(self.conn, self.queue, None)
        with self.assertRaises(TypeError):
            idemq.resume_group(self.conn, self.queue, None)
        self.assertIsNone(idemq.resume_group(self.conn, self.queue, "a"))
        self.assertEqual(claimed(), ["a"])

    def test_cancels_of_many(self):
        ids = [idemq.enqueue(self.conn, self.queue, n, kind=kind, key=f"k/{n}", group_key=kind).id
               for n, kind in enumerate(["mail", "pdf", "mail", "mail"])]  # fmt: skip
        self.assertEqual(idemq.cancel_matching(self.conn, self.queue, kind="mail", max_jobs=1), (1, 0))
        self.assertEqual(idemq.cancel_matching(self.conn, self.queue, kind="mail", group_key="pdf"), (0, 0))
        with psycopg.connect(DSN) as other, other.transaction():
            self.assertEqual(idemq.cancel_matching(other, self.queue, key_prefix="k/2").cancelled, 1)
            self.assertEqual(idemq.cancel_matching(self.conn, self.queue, key_prefix="k/").locked, 1)
        with self.assertRaises(psycopg.errors.NullValueNotAllowed):
            idemq.cancel_matching(self.conn, self.queue)
        self.assertEqual(idemq.cancel_many(self.conn, [ids[3], ids[1], -1]), {-1: "not_found", ids[1]: "cancelled", ids[3]: "cancelled"})
        self.assertEqual(idemq.cancel_many(self.conn, []), {})

    def test_topics_and_numbers(self):
        space = self.queue
        self.sql("SELECT idemq.create_topic(%s)", space)
        self.assertEqual(idemq.publish(self.conn, f"{space}.paid", 1), [])
        self.sql("SELECT idemq.bind_topic(%s, %s)", f"{space}.#", self.queue)
        (job,) = idemq.publish(self.conn, f"{space}.paid", {"n": 1}, key="k", kind="mail", priority=1, expires_in=60)
        self.assertEqual((job.queue, job.outcome), (self.queue, "accepted"))
        self.assertEqual(idemq.publish(self.conn, f"{space}.paid", {"n": 1}, key="k"), [(self.queue, job.id, "duplicate")])
        self.assertEqual(self.sql("SELECT payload, kind, priority FROM idemq.jobs WHERE id = %s", job.id), [({"n": 1}, "mail", 1)])

        first = idemq.enqueue_sequenced(self.conn, self.queue, "log/1", 5, "five", kind="k", delay=1)
        self.assertEqual(first[1:], ("accepted", "pending", None, None))
        self.assertEqual(idemq.enqueue_sequenced(self.conn, self.queue, "log/1", 5, "five"), (first.id, "duplicate", "pending", None, None))
        self.assertEqual(idemq.enqueue_sequenced(self.conn, self.queue, "log/1", 4, "four"), (None, "duplicate", None, None, None))
        dead = idemq.enqueue_sequenced(self.conn, self.queue, "log/2", 1, 1)
        self.sql("SELECT idemq.fail(id, token, 'no', permanent => true) FROM idemq.claim(%s, 2) WHERE id = %s", self.queue, dead.id)
        self.assertEqual(idemq.enqueue_sequenced(self.conn, self.queue, "log/2", 1, 1), (dead.id, "duplicate", "dead", None, "no"))

    def test_a_queue_is_declared(self):
        name = f"{self.queue}_declared"
        settings = {"lease": 60, "max_running": 20, "retry_factor": 1.5, "expect_workers": False, "dead_letter_queue": self.queue}
        self.assertEqual(idemq.ensure_queue(self.conn, name, **settings), ("created", None))
        self.assertEqual(idemq.ensure_queue(self.conn, name, **settings), ("unchanged", None))
        settings["lease"] = datetime.timedelta(minutes=1)
        self.assertEqual(idemq.ensure_queue(self.conn, name, **settings).outcome, "unchanged")
        notices = []
        self.conn.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        self.sql("SELECT idemq.alter_queue(%s, max_running => 2)", name)
        self.assertEqual(idemq.ensure_queue(self.conn, name, **settings).outcome, "unchanged")
        self.assertEqual(len(notices), 1)
        self.assertIn("max_running", notices[0])
        ensured = idemq.ensure_queue(self.conn, name, max_running=0, lease="2 min", dead_letter_queue="")
        self.assertEqual(ensured, ("changed", {"max_running": {"from": 2, "to": None}, "lease": {"from": "00:01:00", "to": "00:02:00"},
                                               "dead_letter_queue": {"from": self.queue, "to": None}}))  # fmt: skip
        self.assertEqual(set(idemq.ensure_queue(self.conn, name, exact=True).changes), {"lease", "retry_factor", "expect_workers"})
        names = [row[0] for row in self.sql("SELECT a FROM pg_proc, unnest(proargnames[3:pronargs]) a WHERE proname = 'ensure_queue'")]
        kinds = dict(self.sql("SELECT attname, atttypid::regtype::text FROM pg_attribute WHERE attrelid = 'idemq.queues'::regclass AND attnum > 0"))
        of_kind = {"interval": "3 min", "integer": 7, "double precision": 1, "boolean": True, "text": self.queue}
        ensured = idemq.ensure_queue(self.conn, name, **{each: of_kind[kinds[each]] for each in names})
        self.assertEqual(self.sql("SELECT count(*) FROM idemq.queues, jsonb_object_keys(declared) WHERE name = %s", name), [(len(names),)])
        with self.assertRaises(idemq.NoSuchQueue):
            idemq.ensure_queue(self.conn, name, dead_letter_queue="nowhere")
        self.sql("SELECT idemq.drop_queue(%s)", name)

        self.assertEqual([idemq.ensure_topic(self.conn, self.queue) for _ in range(2)], ["created", "unchanged"])
        self.sql("CREATE FUNCTION declared(jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog AS ''")
        self.assertEqual(idemq.ensure_handler(self.conn, self.queue, "declared"), ("created", None))
        self.assertEqual(idemq.ensure_handler(self.conn, self.queue, "declared", max_idle="10 s").outcome, "unchanged")
        changed = idemq.ensure_handler(self.conn, self.queue, "declared", workers=2, batch=3)
        self.assertEqual(changed, ("changed", {"workers": {"from": 1, "to": 2}, "batch": {"from": 1, "to": 3}}))
        self.sql("SELECT idemq.drop_handler(%s)", self.queue)
        self.sql("DROP FUNCTION declared")

    def test_all_of_it_with_asyncio(self):
        async def run():
            async with await psycopg.AsyncConnection.connect(DSN, autocommit=True, row_factory=psycopg.rows.dict_row) as conn:
                self.assertEqual((await idemq.send_event(conn, self.queue, "e", 1)).outcome, "accepted")
                self.assertEqual((await idemq.send_event(conn, self.queue, "e", 2)).first_payload, 1)
                jobs = await idemq.enqueue_graph(conn, {"a": {"queue": self.queue, "payload": 1}})
                self.assertEqual(await idemq.wait_results(conn, [jobs["a"].id], 0.01), [("pending", None)])
                self.assertEqual((await idemq.enqueue_sequenced(conn, self.queue, "p", 1, 1)).status, "pending")
                self.assertEqual(await idemq.cancel_matching(conn, self.queue, group_key="none"), (0, 0))
                self.assertEqual(await idemq.cancel_many(conn, [jobs["a"].id]), {jobs["a"].id: "cancelled"})
                self.assertEqual((await idemq.ensure_queue(conn, self.queue)).outcome, "unchanged")
                self.assertEqual(await idemq.ensure_topic(conn, self.queue), "created")
                self.assertEqual(await idemq.publish(conn, self.queue, 1), [])

        asyncio.run(run())

    def test_the_manual(self):
        self.sql("SELECT idemq.create_queue('orders', lease => '1 h'), idemq.create_queue('sums', lease => '1 h')")
        self.sql("CREATE TABLE shipments (no int)")
        self.sql("CREATE TABLE reminders (no int)")
        self.sql("CREATE TABLE sales AS SELECT a AS area, 5 * n AS amount FROM unnest('{north,south}'::text[]) WITH ORDINALITY AS v (a, n)")
        self.addCleanup(self.sql, "DROP TABLE shipments, reminders, sales")
        self.addCleanup(self.sql, "SELECT idemq.drop_queue('orders', force => true), idemq.drop_queue('sums', force => true)")
        for order in (42, 43):
            idemq.enqueue(self.conn, "orders", {"order": order})
        self.assertEqual(idemq.drain(DSN, "orders", manual.ship), {"waiting": 2})
        self.assertEqual(manual.is_paid(self.conn, 42, 12), "accepted")
        self.sql("UPDATE idemq.steps SET call_until = now() WHERE name = 'paid 43'")
        self.sql("SELECT idemq.retry(job_id) FROM idemq.steps WHERE name = 'paid 43'")
        self.assertEqual(idemq.drain(DSN, "orders", manual.ship), {"committed": 2})
        self.assertEqual(self.sql("SELECT shipments.no, reminders.no FROM shipments, reminders"), [(42, 43)])

        workers = []
        with unittest.mock.patch.object(manual, "Worker", lambda *of: workers.append(idemq.Worker(*of, signals=False)) or workers[0]):
            thread = threading.Thread(target=manual.work_sums, args=(DSN,))
            thread.start()
            try:
                self.assertEqual(manual.sales(self.conn), 15)
            finally:
                workers[0].stop()
                thread.join(60)


if __name__ == "__main__":
    tap.main()
