"""python_codec.py: documents that a codec encodes, before, across and after a rotation of its keys.

The codec is a toy, because a quick test has no package for encryption.  encryption.pl tests the codec that the manual shows.
"""

import asyncio
import hashlib
import json
import os
import threading
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

import psycopg
from python_common import DSN, Client

import idemq
from idemq._codec import plain_bytes
from idemq import Inside, Outside

SECRET = "4111-1111"


class Toy:
    """Turns each byte around, and adds a checksum.  Equal documents become equal bytes."""

    name = "toy"

    def __init__(self, *keys):
        self.keys = keys

    def _mask(self, key):
        return hashlib.sha256(key.encode()).digest()[0] | 1

    def _sum(self, data, key):
        return hashlib.sha256(key.encode() + data).digest()[:8]

    def encode(self, data, key):
        assert key in self.keys
        return self._sum(data, key) + bytes(byte ^ self._mask(key) for byte in data)

    def decode(self, data, key):
        plain = bytes(byte ^ self._mask(key) for byte in data[8:])
        if self._sum(plain, key) != data[:8]:
            raise ValueError
        return plain


@dataclass
class Card:
    number: str
    until: date


OLD, BOTH, NEW = Toy("1"), Toy("2", "1"), Toy("2")


class Codecs(Client):
    def setUp(self):
        super().setUp()
        self.role = f"producer_{os.getpid()}_{Client.number}"
        self.alter("retention => '1 d', retry_base => '1 h'")

    def drain_due(self, handlers):
        idemq.make_due(self.conn, self.queue)
        return idemq.drain(DSN, handlers)

    def stored(self):
        """Everything that is stored about the jobs of the queue."""
        rows = self.sql(
            """SELECT j.payload::text, j.checkpoint::text, j.result::text FROM idemq.jobs j WHERE queue_id = idemq.queue_id(%s)
               UNION ALL SELECT s.request::text, s.response::text, NULL FROM idemq.steps s JOIN idemq.jobs j ON j.id = s.job_id
                WHERE j.queue_id = idemq.queue_id(%s)
               UNION ALL SELECT e.payload::text, NULL, NULL FROM idemq.events e WHERE e.queue_id = idemq.queue_id(%s)""",
            self.queue, self.queue, self.queue,
        )  # fmt: skip
        return [json.loads(text) for row in rows for text in row if text is not None]

    def assert_all_encoded(self, least):
        stored = self.stored()
        self.assertGreaterEqual(len(stored), least)
        for each in stored:
            self.assertEqual(set(each), {"idemq_codec", "key", "data"})

    def producer(self):
        """A connection of a role that may only enqueue."""
        self.sql(f"CREATE ROLE {self.role} LOGIN")
        self.sql("SELECT idemq.grant_queue(%s, %s, 'enqueue')", self.queue, self.role)
        conn = psycopg.connect(DSN, user=self.role, autocommit=True)

        def drop():
            conn.close()
            self.sql("SELECT idemq.revoke_queue(%s, %s, 'enqueue')", self.queue, self.role)
            self.sql(f"DROP ROLE {self.role}")

        self.addCleanup(drop)
        return conn

    def test_everything_about_a_job_is_encoded(self):
        seen = []

        def handler(job, conn):
            seen.append((job.payload, job.checkpoint))
            answer = job.step("charge", lambda call: {"card": call.request["card"], "paid": True}, {"card": SECRET})
            if job.checkpoint is None:
                job.save_checkpoint({"card": SECRET})
                self.assertEqual(job.checkpoint, {"card": SECRET})
                raise ValueError("once")
            event = job.await_event("approved", "1 h")
            conn.execute("SELECT 1")
            job.save_checkpoint([SECRET], conn)
            return [answer, event.arrived, event.payload]

        (job,) = self.add({"card": SECRET}, codec=OLD)
        sent = idemq.send_event(self.conn, self.queue, "approved", {"by": SECRET}, codec=OLD)
        self.assertEqual((sent.outcome, sent.first_payload, sent.same_payload), ("accepted", {"by": SECRET}, True))
        self.assertEqual(self.drain(handler, codec=OLD)["retrying"], 1)
        idemq.make_due(self.conn, self.queue)
        self.until_completed(lambda: self.drain(handler, codec=OLD), [job])
        self.assertEqual([seen[0], seen[-1]], [({"card": SECRET}, None), ({"card": SECRET}, {"card": SECRET})])
        result = [{"card": SECRET, "paid": True}, True, {"by": SECRET}]
        self.assertEqual(idemq.result(self.conn, job, codec=OLD), ("completed", result))
        self.assertEqual(idemq.wait_results(self.conn, [job], codec=OLD), [("completed", result)])
        info = idemq.job(self.conn, job, codec=OLD)
        self.assertEqual((info.payload, info.checkpoint, info.result), ({"card": SECRET}, [SECRET], result))
        self.assert_all_encoded(6)
        self.assertNotIn(SECRET, str(self.stored()))

    def test_a_handler_outside_and_coroutines(self):
        async def fetch(job):
            stored = await job.step("fetch", self.answer, {"n": job.payload["n"]})
            await job.save_checkpoint({"n": stored})
            return {"n": stored}

        jobs = self.add(*({"n": n} for n in range(5)), codec=OLD)
        self.assertEqual(asyncio.run(idemq.drain_async(DSN, {self.queue: Outside(fetch, concurrency=3, codec=OLD)})), {"committed": 5})
        self.assertEqual([idemq.result(self.conn, job, codec=OLD).result for job in jobs], [{"n": n} for n in range(5)])
        jobs = self.add(*({"n": n} for n in range(5, 10)), codec=OLD)
        self.assertEqual(self.drain(lambda job: job.payload, outside=True, concurrency=3, codec=OLD), {"committed": 5})
        self.assertEqual([idemq.result(self.conn, job, codec=OLD).result for job in jobs], [{"n": n} for n in range(5, 10)])
        self.assert_all_encoded(30)

    @staticmethod
    async def answer(call):
        return call.request["n"]

    def test_batches_and_group_commits(self):
        jobs = self.add(*range(40), codec=OLD)
        self.assertEqual(idemq.drain(DSN, {self.queue: Inside(self.do, batch=8, concurrency=2, codec=OLD)}), {"committed": 40})
        self.assertEqual(self.effects(), list(range(40)))
        more = self.add(*range(40), codec=OLD)
        self.assertEqual(idemq.drain(DSN, {self.queue: Inside(lambda job, conn: {"n": job.payload}, concurrency=4, codec=OLD)}), {"committed": 40})
        self.assertEqual([idemq.result(self.conn, job, codec=OLD).result["n"] for job in jobs + more], [*range(40), *range(40)])
        self.assert_all_encoded(160)

    def test_a_batch_that_falls_apart_runs_each_job_once_decoded(self):
        def handler(job, conn):
            self.effect(conn, job.payload["n"])
            if job.payload["n"] == 2 and job.attempt == 1:
                raise ValueError("once")
            return job.payload

        jobs = self.add(*({"n": n} for n in range(4)), codec=OLD)
        self.until_completed(lambda: self.drain_due({self.queue: Inside(handler, batch=4, codec=OLD)}), jobs)
        self.assertEqual(self.effects(), [0, 1, 2, 3])
        self.assertEqual([idemq.result(self.conn, job, codec=OLD).result for job in jobs], [{"n": n} for n in range(4)])

    def test_parents_and_graphs(self):
        found = []

        def handler(job, conn):
            found.extend(parent.result for parent in job.parents())
            return {"of": job.payload["name"]}

        graph = {
            "a": {"queue": self.queue, "payload": {"name": "a"}, "key": "a"},
            "b": {"queue": self.queue, "payload": {"name": "b"}, "key": "b", "depends_on": ["a"]},
        }
        first = idemq.enqueue_graph(self.conn, graph, codec=OLD)
        self.assertEqual([each.outcome for each in first.values()], ["accepted", "accepted"])
        for codec in (OLD, BOTH):
            again = idemq.enqueue_graph(self.conn, graph, codec=codec)
            self.assertEqual([(each.id, each.outcome) for each in again.values()], [(each.id, "duplicate") for each in first.values()])
        mixed = {**graph, "c": {"queue": self.queue, "payload": {"name": "c"}, "key": "c", "depends_on": ["b"]}}
        placed = idemq.enqueue_graph(self.conn, mixed, codec=BOTH)
        self.assertEqual([each.outcome for each in placed.values()], ["duplicate", "duplicate", "accepted"])
        changed = {**mixed, "b": {**graph["b"], "payload": {"name": "x"}}, "d": {"queue": self.queue, "payload": {"name": "d"}, "key": "d"}}
        with self.assertRaises(idemq.KeyReused):
            idemq.enqueue_graph(self.conn, changed, codec=BOTH)
        self.assertEqual(self.sql("SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s)", self.queue), [(3,)])
        self.until_completed(lambda: self.drain(handler, codec=BOTH), [each.id for each in first.values()] + [placed["c"].id])
        self.assertEqual(found, [{"of": "a"}, {"of": "b"}])

    def rotation(self, conn):
        """A second enqueue before, across and after a rotation."""

        def add(n, codec):
            return idemq.enqueue(conn, self.queue, {"n": n, "card": SECRET}, key=f"key-{n}", codec=codec)

        one = add(1, OLD)
        self.assertEqual((one.outcome, add(1, OLD)), ("accepted", one._replace(outcome="duplicate")))
        self.assertEqual(add(1, Toy("1", "2")).outcome, "duplicate")  # both programs know the new key first
        self.assertEqual([add(1, BOTH), add(1, BOTH)], [one._replace(outcome="duplicate")] * 2)
        two = add(2, BOTH)
        self.assertEqual((two.outcome, add(2, BOTH), add(2, NEW)), ("accepted", two._replace(outcome="duplicate"), two._replace(outcome="duplicate")))
        self.assertEqual(add(2, Toy("1", "2")).outcome, "duplicate")  # a producer that has not been deployed yet
        for codec in (OLD, BOTH):
            with self.assertRaises(idemq.KeyReused):
                idemq.enqueue(conn, self.queue, {"n": 7}, key="key-1", codec=codec)
        self.assertEqual(self.sql("SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s)", self.queue), [(2,)])
        idemq.enqueue(conn, self.queue, {"n": 3}, key="key-3", kind="mail", codec=OLD)
        with self.assertRaises(idemq.KeyReused):
            idemq.enqueue(conn, self.queue, {"n": 3}, key="key-3", kind="report", codec=BOTH)
        self.assertEqual(idemq.enqueue(conn, self.queue, {"n": 3}, key="key-3", codec=BOTH).outcome, "duplicate")

    def test_a_duplicate_across_a_rotation(self):
        self.rotation(self.conn)

    def test_a_duplicate_of_a_role_that_may_only_enqueue(self):
        self.rotation(self.producer())

    def test_a_duplicate_in_a_transaction(self):
        """Nothing that the transaction has done is lost."""
        for conn in (self.conn, self.producer()):
            self.sql("DELETE FROM effects WHERE queue = %s", self.queue)
            self.sql("GRANT ALL ON effects TO PUBLIC")
            key = f"key of {conn.info.user}"
            idemq.enqueue(conn, self.queue, {"n": 1}, key=key, codec=OLD)
            with conn.transaction():
                self.effect(conn, 1)
                self.assertEqual(idemq.enqueue(conn, self.queue, {"n": 1}, key=key, codec=BOTH).outcome, "duplicate")
                self.effect(conn, 2)
                results = idemq.enqueue_many(conn, self.queue, [{"payload": {"n": 1}, "key": key}, {"payload": {"n": 2}}], codec=BOTH)
                self.assertEqual([each.outcome for each in results], ["duplicate", "accepted"])
                self.effect(conn, 3)
            self.assertEqual(self.effects(), [1, 2, 3])

    def many(self, conn):
        def add(numbers, codec, **options):
            return idemq.enqueue_many(conn, self.queue, [{"payload": {"n": n}, "key": f"many-{n}"} for n in numbers], codec=codec, **options)

        def outcomes(numbers, codec):
            return [each.outcome for each in add(numbers, codec)]

        self.assertEqual(outcomes([2, 1], OLD), ["accepted"] * 2)
        self.assertEqual(outcomes([2, 1], OLD), ["duplicate"] * 2)
        self.assertEqual(outcomes([1, 2], BOTH), ["duplicate"] * 2)
        self.assertEqual(outcomes([3, 1, 4, 2], BOTH), ["accepted", "duplicate", "accepted", "duplicate"])
        self.assertEqual(outcomes([1, 3, 5, 3], BOTH), ["duplicate", "duplicate", "accepted", "duplicate"])
        self.assertEqual(outcomes([3, 4, 5], NEW), ["duplicate"] * 3)
        jobs = [{"payload": {"n": 1}, "key": "many-1"}, {"payload": {"n": 9}, "key": "many-9"}, {"payload": "other", "key": "many-3"}]
        with self.assertRaises(idemq.KeyReused):
            idemq.enqueue_many(conn, self.queue, jobs, codec=BOTH)
        self.assertEqual(self.sql("SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s)", self.queue), [(5,)])
        results = idemq.enqueue_many(conn, self.queue, jobs, codec=BOTH, on_duplicate="ignore")
        self.assertEqual([each.outcome for each in results], ["duplicate", "accepted", "duplicate"])

    def test_many_duplicates_across_a_rotation(self):
        self.many(self.conn)

    def test_many_duplicates_of_a_role_that_may_only_enqueue(self):
        self.many(self.producer())

    def test_coroutines_across_a_rotation(self):
        async def run():
            async with await psycopg.AsyncConnection.connect(DSN) as conn:
                one = await idemq.enqueue(conn, self.queue, [1], key="async", codec=OLD)
                self.assertEqual(await idemq.enqueue(conn, self.queue, [1], key="async", codec=BOTH), one._replace(outcome="duplicate"))
                many = await idemq.enqueue_many(conn, self.queue, [{"payload": [1], "key": "async"}, {"payload": [2]}], codec=BOTH)
                self.assertEqual([each.outcome for each in many], ["duplicate", "accepted"])
                await idemq.assert_enqueued(conn, self.queue, [1], codec=BOTH)

        asyncio.run(run())

    def test_a_handler_adds_duplicates(self):
        jobs = [{"payload": {"n": n}, "key": f"job {n}", "delay": "1 h"} for n in (1, 2)]
        other = {"payload": "other", "key": "job 1"}
        outcomes = []

        def handler(job, conn):
            outcomes.extend(each.outcome for each in idemq.enqueue_many(conn, self.queue, jobs, codec=BOTH))
            outcomes.append(idemq.enqueue(conn, self.queue, {"n": 1}, key="job 1", codec=BOTH).outcome)
            with self.assertRaises(idemq.KeyReused), conn.transaction():
                idemq.enqueue_many(conn, self.queue, [*jobs, {"payload": "new"}, other], codec=BOTH)
            self.effect(conn, 1)

        async def handler_async(job, conn):
            outcomes.extend(each.outcome for each in await idemq.enqueue_many(conn, self.queue, jobs, codec=BOTH))
            await conn.execute("INSERT INTO effects VALUES (%s, 2)", [self.queue])

        idemq.enqueue_many(self.conn, self.queue, jobs[:1], codec=OLD)
        self.add({"n": 0}, codec=BOTH)
        self.assertEqual(self.drain(handler, codec=BOTH), {"committed": 1})
        self.assertEqual(outcomes, ["duplicate", "accepted", "duplicate"])
        self.add({"n": 0}, codec=BOTH)
        self.assertEqual(self.drain_async(handler_async, codec=BOTH), {"committed": 1})
        self.assertEqual((outcomes[3:], self.effects()), (["duplicate", "duplicate"], [1, 2]))

    def test_an_accepted_job_needs_no_more_statements(self):
        with psycopg.connect(DSN, autocommit=True) as conn:
            sent = []
            execute = psycopg.Cursor.execute
            self.addCleanup(setattr, psycopg.Cursor, "execute", execute)
            psycopg.Cursor.execute = lambda self, *args, **options: sent.append(args[0]) or execute(self, *args, **options)
            with conn.transaction():
                idemq.enqueue(conn, self.queue, 1, codec=BOTH)
                idemq.enqueue(conn, self.queue, 1, key="new", codec=BOTH)
                idemq.enqueue(conn, self.queue, 1, key="plain")
                idemq.enqueue(conn, self.queue, 2, key="old", codec=OLD)
                idemq.enqueue(conn, self.queue, 2, key="old", codec=OLD)
            self.assertEqual(len(sent), 5)
            idemq.enqueue_many(conn, self.queue, [{"payload": n, "key": f"many-{n}"} for n in range(2)], codec=BOTH)
            self.assertEqual(len(sent), 6)

    def test_the_result_of_a_duplicate(self):
        self.add({"n": 1}, key="done", codec=OLD)
        self.assertEqual(self.drain(lambda job, conn: {"card": SECRET}, codec=OLD), {"committed": 1})
        for codec in (OLD, BOTH):
            duplicate = idemq.enqueue(self.conn, self.queue, {"n": 1}, key="done", codec=codec)
            self.assertEqual((duplicate.status, duplicate.result), ("completed", {"card": SECRET}))
        self.add({"n": 2}, key="dies", codec=OLD)
        self.drain(self.die, codec=OLD)
        self.assertEqual(idemq.enqueue(self.conn, self.queue, {"n": 2}, key="dies", codec=BOTH).error, "never")

    @staticmethod
    def die(job, conn):
        raise idemq.Dead("never")

    def test_a_step_across_a_rotation(self):
        calls = []

        def handler(job, conn):
            def call(step):
                calls.append((step.request, step.key))
                return {"paid": SECRET}

            answer = job.step("charge", call, {"card": SECRET})
            if job.attempt == 1:
                raise ValueError("after the step")
            with self.assertRaises(idemq.KeyReused):
                job.step("charge", call, {"card": "another"})
            return answer

        (job,) = self.add({"n": 1}, codec=OLD)
        self.drain(handler, codec=OLD)
        idemq.make_due(self.conn, self.queue)
        self.until_completed(lambda: self.drain(handler, codec=BOTH), [job])
        self.assertEqual([request for request, _ in calls], [{"card": SECRET}])
        self.assertEqual(idemq.result(self.conn, job, codec=BOTH).result, {"paid": SECRET})

    def test_ask_gets_the_earlier_request(self):
        asked = []

        def handler(job):
            def call(step):
                raise ConnectionError("lost")

            def ask(step):
                asked.append(step.request)
                return {"found": True}

            return job.step("charge", call, {"card": SECRET}, call_timeout=0.001, ask=ask)

        (job,) = self.add({"n": 1}, codec=OLD)
        self.drain(handler, outside=True, codec=OLD)

        def drain():
            idemq.make_due(self.conn, self.queue)
            return self.drain(handler, outside=True, codec=BOTH)

        self.until_completed(drain, [job])
        self.assertEqual(asked, [{"card": SECRET}])

    def test_an_event_across_a_rotation(self):
        def send(payload, codec):
            return idemq.send_event(self.conn, self.queue, "approved", payload, codec=codec)

        self.assertEqual(send({"by": 1}, OLD), ("accepted", {"by": 1}, True))
        self.assertEqual(send({"by": 1}, OLD), ("duplicate", {"by": 1}, True))
        self.assertEqual(send({"by": 1}, BOTH), ("duplicate", {"by": 1}, True))
        self.assertEqual(send({"by": 2}, BOTH), ("duplicate", {"by": 1}, False))
        self.assertEqual(send(None, BOTH), ("duplicate", {"by": 1}, False))
        self.assertEqual(idemq.send_event(self.conn, self.queue, "none", codec=BOTH), ("accepted", None, True))

    def test_a_job_whose_key_is_unknown_is_retried(self):
        (job,) = self.add({"n": 1}, codec=NEW)
        self.assertEqual(self.drain(self.do, codec=OLD), {"retrying": 1})
        self.assertEqual(self.job(job)[3], "RuntimeError: a document is encoded with key 2 of codec toy, but this program has only 1 of codec toy")
        self.assertEqual(self.effects(), [])
        with self.assertRaisesRegex(RuntimeError, "key 2 of codec toy"):
            idemq.job(self.conn, job, codec=OLD)
        idemq.make_due(self.conn, self.queue)
        self.assertEqual(self.drain(lambda job, conn: self.effect(conn, job.payload["n"]), codec=BOTH), {"committed": 1})

    def test_a_duplicate_whose_key_is_unknown(self):
        self.add({"n": 1}, key="k", codec=Toy("0"))
        with self.assertRaisesRegex(RuntimeError, "is encoded with key 0, but this program has only 2, 1"):
            self.add({"n": 1}, key="k", codec=BOTH)

    def test_a_document_that_was_changed_fails_the_attempt(self):
        (job,) = self.add({"n": 1}, codec=OLD)
        self.sql("UPDATE idemq.jobs SET payload = jsonb_set(payload, '{data}', '\"AAAAAAAAAAAAAAAA\"') WHERE id = %s", job)
        self.assertEqual(self.drain(self.do, codec=OLD), {"retrying": 1})
        self.assertEqual(self.job(job)[3], "RuntimeError: a document that is encoded with key 1 cannot be decoded: ValueError")

    def test_what_a_codec_must_not_return_or_raise(self):
        def codec(**functions):
            made = Toy("1")
            vars(made).update(functions)
            return made

        def exits(data, key):
            raise SystemExit(3)

        (job,) = self.add({"n": 1}, codec=OLD)
        unreadable = "document that is encoded with key 1 cannot be decoded: "
        for decode, text in (
            (lambda data, key: 5, "TypeError: decode of a codec must return bytes, not int"), (lambda data, key: "1", "TypeError: .* not str"),
            (exits, "RuntimeError: decode of a codec raised SystemExit"),
        ):  # fmt: skip
            with self.assertRaisesRegex(RuntimeError, unreadable + text):
                idemq.job(self.conn, job, codec=codec(decode=decode))
        # Nothing of the document is in the error, nor in what the error refers to.
        with self.assertRaisesRegex(RuntimeError, unreadable + r"the codec's decode returned data that cannot be read as JSON \(JSONDecodeError\)\Z") as raised:
            idemq.job(self.conn, job, codec=codec(decode=lambda data, key: SECRET.encode()))
        self.assertEqual((raised.exception.__cause__, raised.exception.__context__), (None, None))

        def handler(job, conn):
            return job.step("charge", lambda call: [SECRET])

        def exits_later(data, key):
            return exits(data, key) if SECRET in data.decode() else OLD.encode(data, key)

        # The response cannot be stored, but the worker goes on.
        ends = self.drain(handler, codec=codec(encode=exits_later))
        self.assertEqual(ends, {"retrying": 1})
        self.assertEqual(self.job(job)[3], "RuntimeError: encode of a codec raised SystemExit: 3")

    def test_a_codec_runs_in_the_thread_of_the_handler(self):
        # In the event loop, a slow one would delay the heartbeats of all jobs.
        class Where(Toy):
            threads = set()

            def encode(self, data, key):
                self.threads.add(threading.get_ident())
                return super().encode(data, key)

            def decode(self, data, key):
                self.threads.add(threading.get_ident())
                return super().decode(data, key)

        def handler(job, conn=None):
            own.add(threading.get_ident())
            job.save_checkpoint([1])
            return job.step("call", lambda step: 1, {"n": 1})

        for outside in (False, True):
            own = set()
            Where.threads.clear()
            self.add({"n": 1}, codec=OLD)
            self.assertEqual(self.drain(handler, outside, codec=Where("1")), {"committed": 1})
            self.assertEqual(Where.threads, own)
            self.assertNotIn(threading.get_ident(), own)

    def test_a_plain_document_that_resembles_an_encoded_one(self):
        for payload in ({"idemq_codec": 1}, ["idemq_codec"]):
            self.add(payload, key="plain")
            with self.assertRaises(idemq.KeyReused):
                self.add(payload, key="plain", codec=BOTH)
            self.sql("DELETE FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s)", self.queue)

    def test_plain_jobs_and_dead_letter_records_are_read(self):
        seen = []
        self.add({"plain": True})
        self.sql("SELECT idemq.create_queue(%s)", f"{self.queue}_dead")
        self.alter(f"dead_letter_queue => '{self.queue}_dead'")
        self.add({"card": SECRET}, codec=OLD)

        def handler(job, conn):
            seen.append(job.payload)
            if "plain" not in job.payload:
                job.step("charge", lambda call: {"paid": True}, {"card": SECRET})
                job.save_checkpoint([1])
                raise idemq.Dead("never")

        self.assertEqual(self.drain(handler, codec=OLD), {"committed": 1, "dead": 1})
        self.assertEqual(seen, [{"plain": True}, {"card": SECRET}])
        records = []
        self.assertEqual(idemq.drain(DSN, f"{self.queue}_dead", lambda job, conn: records.append(job.payload), codec=BOTH), {"committed": 1})
        ((step,), record) = records[0]["steps"], records[0]
        self.assertEqual((record["payload"], record["checkpoint"]), ({"card": SECRET}, [1]))
        self.assertEqual((step["request"], step["response"]), ({"card": SECRET}, {"paid": True}))

    def test_other_calls_that_add_jobs(self):
        topic = f"topic_{self.queue}"
        self.sql("SELECT idemq.create_topic(%s)", topic)
        self.sql("SELECT idemq.bind_topic(%s, %s)", topic, self.queue)
        for codec in (OLD, BOTH):
            self.assertEqual([each.queue for each in idemq.publish(self.conn, topic, {"n": 3}, key="message", codec=codec)], [self.queue])
            idemq.enqueue_sequenced(self.conn, self.queue, "log", 1, {"n": 1}, codec=codec)
        idemq.schedule(self.conn, self.queue, "every 1 h", self.queue, {"n": 2}, codec=OLD)
        self.assertEqual(self.sql("SELECT payload->>'idemq_codec' FROM idemq.schedules WHERE name = %s", self.queue), [("toy",)])
        idemq.unschedule(self.conn, self.queue)
        self.assertEqual(self.drain(lambda job, conn: self.effect(conn, job.payload["n"]), codec=OLD), {"committed": 2})
        self.assertEqual(self.effects(), [1, 3])
        self.assert_all_encoded(2)

    def test_a_queue_with_types(self):
        def queue(codec):
            return idemq.Queue(self.queue, Card, result=Card, codec=codec)

        def handler(job, conn):
            found.extend(job.parents(queue(BOTH)))
            return Card(job.payload.number, job.payload.until)

        found = []
        card = Card(SECRET, date(2027, 1, 31))
        one = queue(OLD).enqueue(self.conn, card, key="typed")
        self.assertEqual(queue(BOTH).enqueue(self.conn, card, key="typed"), one._replace(outcome="duplicate"))
        many = queue(BOTH).enqueue_many(self.conn, [{"payload": card, "key": "typed"}, {"payload": card}], depends_on=[one.id])
        self.assertEqual([each.outcome for each in many], ["duplicate", "accepted"])
        with self.assertRaises(idemq.KeyReused):
            queue(BOTH).enqueue(self.conn, Card("5500", card.until), key="typed")
        self.until_completed(lambda: idemq.drain(DSN, [queue(BOTH).inside(handler)]), [each.id for each in many])
        self.assertEqual([parent.result for parent in found], [card])
        self.assertEqual([queue(BOTH).result(self.conn, one.id), *queue(BOTH).wait_results(self.conn, [many[1].id])], [("completed", card)] * 2)
        self.assert_all_encoded(4)

    def test_assert_enqueued(self):
        self.add({"order": 42, "card": SECRET}, key="k", codec=OLD)
        self.add({"order": 43})
        idemq.assert_enqueued(self.conn, self.queue, {"order": 42}, key="k", codec=BOTH)
        idemq.assert_enqueued(self.conn, self.queue, {"order": 43}, codec=BOTH)
        idemq.assert_enqueued(self.conn, self.queue, times=2, codec=BOTH)
        with self.assertRaisesRegex(AssertionError, f'found 0. Jobs in {self.queue}:\n.*"order": 43.*\n.*"card": "{SECRET}"'):
            idemq.assert_enqueued(self.conn, self.queue, {"order": 1}, codec=BOTH)
        with self.assertRaisesRegex(AssertionError, "There is no job"):
            idemq.send_event(self.conn, self.queue, "x")
            self.sql("SELECT idemq.create_queue(%s)", f"{self.queue}_empty")
            idemq.assert_enqueued(self.conn, f"{self.queue}_empty", codec=BOTH)

    def test_values_are_what_they_were(self):
        values = [None, True, 1, 1.0, 1e300, -0.5, 10**30, "\u007f\u00e4\U0001f600\n\"\\\u0001", [], {}, {"": [{"b": 1, "a": [None, False]}]}, {"idemq_codec": "x", "key": "y", "data": "z"}]
        seen = []
        self.add(*values, codec=OLD)
        self.drain(lambda job, conn: seen.append(job.payload), codec=OLD)
        self.assertEqual([(type(value), value) for value in seen], [(type(value), value) for value in values])
        same = [self.add(payload, key="order", codec=OLD)[0] for payload in ({"b": 1, "a": {"10": 1, "9": 2}}, {"a": {"9": 2, "10": 1}, "b": 1})]
        self.assertEqual(same[0], same[1])

    def test_equal_numbers_are_equal_bytes(self):
        # node_codec.mjs has the same texts.
        values = [1, 0, 0.1, 0.00001, 1e-7, -1.25e-7, -5e-324, -1.25e21, 123456789012345680000]
        texts = ["1", "0", "0.1", "0.00001", "0.0000001", "-0.000000125", f"-0.{'0' * 323}5", "-1.25e+21", "123456789012345680000"]
        self.assertEqual([plain_bytes("x", value).decode() for value in values], texts)
        # The float is a float again, also one that is a whole number.
        floats = [1.0, -0.0, 1e-5, 1e16, 5e-324]
        self.assertEqual([str(value) for value in json.loads(plain_bytes("x", floats))], [str(value) for value in floats])

    def test_json_encoders_of_the_application_apply(self):
        seen = []
        self.addCleanup(psycopg.types.json.set_json_dumps, json.dumps)
        self.addCleanup(psycopg.types.json.set_json_loads, json.loads)
        psycopg.types.json.set_json_dumps(lambda value: '{"amount": 12345678901234567.10}' if isinstance(value, Decimal) else json.dumps(value))
        psycopg.types.json.set_json_loads(lambda text: json.loads(text, parse_float=Decimal))
        self.add(Decimal(1), codec=OLD)
        self.drain(lambda job, conn: seen.append(job.payload), codec=OLD)
        self.assertEqual([str(seen[0]["amount"]), type(seen[0]["amount"])], ["12345678901234567.10", Decimal])

    def test_what_cannot_be_encoded(self):
        for value in (object(), float("nan"), {1, 2}):
            with self.assertRaisesRegex(TypeError, "payload cannot be encoded as JSON") as raised:
                self.add(value, codec=OLD)
            self.assertIsInstance(raised.exception, ValueError)
        (job,) = self.add(1, codec=OLD)
        with self.assertLogs("idemq", "ERROR"):
            self.assertEqual(self.drain(lambda job: object(), outside=True, codec=OLD), {"committed": 1})
        self.assertEqual(self.job(job)[2], None)
        (job,) = self.add(1, codec=OLD)
        self.assertEqual(self.drain(lambda job, conn: self.effect(conn, 1) or object(), codec=OLD), {"retrying": 1})
        self.assertEqual(self.effects(), [])

    def test_what_is_no_codec(self):
        for codec in (object(), "aes", type("NoKeys", (Toy,), {})(), Toy("1", 2)):
            with self.assertRaises(TypeError):
                self.add(1, codec=codec)
            with self.assertRaises(TypeError):
                idemq.Worker(DSN, self.queue, codec=codec)
        with self.assertRaisesRegex(TypeError, "pass codec to Inside or Outside"):
            idemq.Worker(DSN, {self.queue: self.do}, codec=OLD)
