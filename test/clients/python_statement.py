"""python_statement.py: enqueue_statement in every style, executed by psycopg or by libpq.  drivers.py tests it with other libraries.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import enum
import inspect
import json
import os
import re
import uuid
from datetime import date, datetime, timedelta, timezone

import psycopg
from psycopg.types.json import Jsonb, set_json_dumps

import idemq
import tap
from python_common import Client

STYLES = ("$1", "%s", "%(name)s", ":name", "?")
# Also what looks like a parameter.
AWKWARD = [
    "it's", '"', "\\", "%s %(name)s %% :name ::x ? ?? $1 $$", "\U0001f600 ä €", "\r\n\t", "", None, True, [], [1, [2]], {}, -0.5, {"a:b?": "%"}, 2**70, 10**400,
    "x" * 2**20,
]  # fmt: skip


class Color(str, enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    TWO = 2


class Statements(Client):
    def execute(self, payload, style="$1", queue=None, **options):
        """The row that the statement returns."""
        sql, params = idemq.enqueue_statement(queue or self.queue, payload, style=style, **options)
        if style in ("%s", "%(name)s"):
            self.assertNotIn("::", sql)
            return self.conn.execute(sql, params).fetchone()
        if style == ":name":
            names = re.findall(r":(\w+)", sql)
            self.assertEqual(sorted(names), sorted(params))
            sql, params = re.sub(r":(\w+)", lambda match: f"${names.index(match[1]) + 1}", sql), [params[name] for name in names]
        elif style == "?":
            parts = sql.split("?")
            sql = parts[0] + "".join(f"${n}{part}" for n, part in enumerate(parts[1:], 1))
        # As a driver that declares no types.
        result = self.conn.pgconn.exec_params(sql.encode(), [None if value is None else value.encode() for value in params])
        if result.ntuples == 0:
            raise psycopg.errors.lookup(result.error_field(psycopg.pq.DiagnosticField.SQLSTATE).decode())(result.error_message.decode())
        id, *others = (result.get_value(0, n) for n in range(result.nfields))
        return int(id), *(None if each is None else each.decode() for each in others)

    def stored(self, id):
        return self.sql(
            "SELECT payload, group_key, kind, priority, max_attempts, headers, status, ready_at - enqueued_at, expires_at - enqueued_at,"
            " key_expires_at - enqueued_at, flags, ARRAY(SELECT parent FROM idemq.parents(id)) FROM idemq.jobs WHERE id = %s",
            id,
        )

    def test_every_style_adds_the_job_that_enqueue_adds(self):
        parent = idemq.enqueue(self.conn, self.queue, "parent").id
        options = dict(
            delay=timedelta(hours=1, microseconds=3), priority=Number.TWO, group_key="g%s", max_attempts=3, headers={"h": "'%s :x ? $1"}, expires_in=7200,
            key_ttl="1 day", on_duplicate="ignore", nowait=True, kind=Color.RED, depends_on=(parent,), on_parent_failure="run",
        )  # fmt: skip
        expected = self.stored(idemq.enqueue(self.conn, self.queue, {"n": 1}, key="one", **options).id)
        plain = self.stored(idemq.enqueue(self.conn, self.queue, 1).id)
        for style in STYLES:
            first = self.execute({"n": 1}, style, key=style, **options)
            self.assertEqual(first[1:], ("accepted", "blocked", None))
            self.assertEqual(self.stored(first[0]), expected, style)
            self.assertEqual(self.execute({"n": 2}, style, key=style, **options), (first[0], "duplicate", "blocked", None))
            nothing = dict(key=None, delay=None, run_at=None, group_key=None, max_attempts=None, headers=None, depends_on=None)
            self.assertEqual(self.stored(self.execute(1, style, **nothing)[0]), plain)

    def test_values_arrive_as_they_are(self):
        for style in STYLES:
            for n, payload in enumerate(AWKWARD):
                key = f"{style} {n} {str(payload)[:100]}"
                id = self.execute(payload, style, key=key, kind=f"k{payload}"[:20])[0]
                rows = self.sql("SELECT payload = %s, kind, key FROM idemq.jobs WHERE id = %s", Jsonb(payload), id)
                self.assertEqual(rows, [(True, f"k{payload}"[:20], key)])
        for key in (2**64, uuid.UUID(int=7), Color.RED):
            id = self.execute(1, key=key)[0]
            self.assertEqual(self.sql("SELECT key FROM idemq.jobs WHERE id = %s", id), [(key.value if isinstance(key, Color) else str(key),)])

    def test_times_are_those_of_enqueue(self):
        self.sql("SET TimeZone = 'Asia/Kolkata'; SET DateStyle = 'German'; SET IntervalStyle = 'sql_standard'")
        for run_at in (
            datetime(2100, 2, 3, 4, 5, 6, 7, tzinfo=timezone(timedelta(hours=-3, minutes=-30))), datetime(2100, 2, 3, 4, 5), date(2100, 2, 3),
            "2100-02-03 04:05+01", datetime.max, datetime(2100, 1, 1, tzinfo=timezone(timedelta(minutes=19, seconds=32))),
        ):  # fmt: skip
            ids = [self.execute(1, style, run_at=run_at)[0] for style in ("$1", "%s")]
            ids.append(idemq.enqueue(self.conn, self.queue, 1, run_at=run_at).id)
            self.assertEqual(self.sql("SELECT count(DISTINCT ready_at), count(ready_at) FROM idemq.jobs WHERE id = ANY(%s)", ids), [(1, 3)], run_at)
        for delay in (timedelta(days=400, seconds=-1), 0, 0.5, "1-2 +3 -4:05:06", "P1Y2M"):
            ids = [self.execute(1, expires_in=delay, delay=0)[0] if delay == "P1Y2M" else self.execute(1, delay=delay)[0]]
            ids.append(idemq.enqueue(self.conn, self.queue, 1, **({"expires_in": delay, "delay": 0} if delay == "P1Y2M" else {"delay": delay})).id)
            rows = self.sql("SELECT DISTINCT (ready_at - enqueued_at)::text, (expires_at - enqueued_at)::text FROM idemq.jobs WHERE id = ANY(%s)", ids)
            self.assertEqual(len(rows), 1, delay)

    def test_the_answer_has_the_result_of_the_first_job(self):
        id = self.execute("done", key="k")[0]
        self.drain(lambda job: {"sent": [1]}, outside=True)
        for style in STYLES:
            answer = self.execute("done", style, key="k")
            self.assertEqual(answer[:3], (id, "duplicate", "completed"))
            self.assertEqual(json.loads(answer[3]), {"sent": [1]})

    def test_what_cannot_be_stored_is_refused(self):
        for options in ({"key": "a\0b"}, {"group_key": "\0"}, {"kind": "k\0"}, {"queue": "q\0"}):
            (name,) = options
            with self.assertRaisesRegex(ValueError, f"^{name} contains a NUL character, which PostgreSQL cannot store"):
                idemq.enqueue_statement(options.pop("queue", self.queue), 1, **options)
        for style in STYLES:
            # In JSON it is an escape, which the server refuses.
            with self.assertRaises(psycopg.errors.UntranslatableCharacter):
                self.execute("a\0b", style)
            with self.assertRaisesRegex(idemq.NoSuchQueue, re.escape("\"'%s %(a)s :x ? $1")):
                self.execute(1, style, queue="'%s %(a)s :x ? $1")
            self.execute(1, style, key=f"other {style}")
            with self.assertRaises(idemq.KeyReused):
                self.execute(2, style, key=f"other {style}")
        for style in ("%d", None, "named", []):
            with self.assertRaisesRegex((ValueError, TypeError), "^style must be"):
                idemq.enqueue_statement(self.queue, 1, style=style)
        with self.assertRaisesRegex(TypeError, "prioriy"):
            idemq.enqueue_statement(self.queue, 1, prioriy=1)
        with self.assertRaisesRegex(TypeError, "^key must be"):
            idemq.enqueue_statement(self.queue, 1, key=1.5)
        for options in ({"payload": object()}, {"payload": 1, "headers": {"h": object()}}):
            with self.assertRaisesRegex(TypeError, f"^{list(options)[-1]} cannot be encoded as JSON: ") as caught:
                idemq.enqueue_statement(self.queue, **options)
            self.assertIsInstance(caught.exception, ValueError)

    def test_json_is_encoded_as_by_enqueue(self):
        set_json_dumps(lambda value: json.dumps(value, default=str))
        self.addCleanup(set_json_dumps, json.dumps)
        id = self.execute({"id": uuid.UUID(int=7)}, key="k")[0]
        self.assertEqual(idemq.enqueue(self.conn, self.queue, {"id": uuid.UUID(int=7)}, key="k")[:2], (id, "duplicate"))

    def test_the_arguments_are_those_of_enqueue(self):
        enqueue = dict(inspect.signature(idemq.enqueue).parameters)
        statement = dict(inspect.signature(idemq.enqueue_statement).parameters)
        # With a codec, a duplicate may need several statements.
        del enqueue["conn"], enqueue["codec"], statement["style"]
        self.assertEqual(list(enqueue.values()), list(statement.values()))


if __name__ == "__main__":
    tap.main()
