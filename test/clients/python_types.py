"""python_types.py: typed queues (Queue): which types they accept, how they convert values, and what workers do with them.

For python.pl, which says where the server is (IDEMQ_DSN).  What type checkers find: python_typing.pl, which also tests pydantic.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
import logging
import threading
import unittest.mock
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Dict, Generic, List, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar, Union
from uuid import UUID

import psycopg

import idemq
import tap
import typed
from idemq import AsyncWorker, Kind, Queue, TypeMismatch, Worker
from python_common import DSN, Client

T = TypeVar("T")
Order = NewType("Order", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Name(str):
    pass


@dataclass(frozen=True)
class Address:
    street: str
    at: Optional[date] = None


@dataclass
class Everything:
    none: None
    truth: bool
    order: Order
    price: float
    text: str
    when: datetime
    day: date
    id: UUID
    amount: Decimal
    colour: Colour
    level: Level
    size: Literal["s", 1, True, None, Colour.RED]
    maybe: Optional[Address]
    addresses: List[Address]
    counts: dict[str, int]
    any: Any
    old: Dict[str, List[Optional[int]]] = field(default_factory=dict)
    noted: Annotated[int, "a note"] = 7
    made: int = field(init=False, default=3)
    shared: ClassVar[int] = 5


@dataclass
class Node:
    value: int
    next: Optional[Node] = None
    others: list[Node] = field(default_factory=list)


class Base(TypedDict):
    to: str


class Mail(Base, total=False):
    copies: int


@dataclass
class Letter:
    to: list[str]
    text: str = ""
    cc: Optional[str] = None


@dataclass
class LongLetter(Letter):
    pages: int = 2


@dataclass
class Receipt:
    id: str


@dataclass
class Even:
    n: int

    def __post_init__(self):
        if self.n % 2:
            raise ValueError("odd")


EVERYTHING = Everything(
    None, True, Order(10**400), 1.5, "ä\n", datetime(2026, 11, 30, 12, 0, 0, 5, timezone(timedelta(hours=2))), date(2026, 11, 30),
    UUID("12345678-1234-5678-1234-567812345678"), Decimal("12.50"), Colour.BLUE, Level.HIGH, "s", Address("x"),
    [Address("y", date(1, 1, 1))], {"a b": 1, "": 2}, {"x": [None, 1.5, True]}, {"k": [None, 3]},
)  # fmt: skip


class Conversions(Client):
    def setUp(self):  # no server is needed
        pass

    def refused(self, text, call, *args, error=TypeMismatch):
        with self.assertRaises(error) as raised:
            call(*args)
        self.assertEqual(str(raised.exception), text)

    def undefinable(self, start, payload):
        with self.assertRaises(TypeError) as raised:
            Queue("q", payload)
        self.assertNotIsInstance(raised.exception, TypeMismatch)
        self.assertTrue(str(raised.exception).startswith(f"queue q: payload{start}"), raised.exception)
        return str(raised.exception)

    def test_every_type_comes_back(self):
        queue = Queue("q", Everything)
        for value in (
            EVERYTHING,
            *(dataclasses.replace(EVERYTHING, size=size) for size in (1, True, None, Colour.RED)),
            dataclasses.replace(EVERYTHING, maybe=None, price=-0.0, amount=Decimal("-1E+400"), when=datetime(1, 1, 1, tzinfo=timezone.utc)),
            dataclasses.replace(EVERYTHING, when=datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc), price=1e300),
        ):
            back = queue.decode(json.loads(json.dumps(queue.encode(value), allow_nan=False)))
            self.assertEqual(back, value)
            self.assertEqual(type(back.size), type(value.size))
        encoded = queue.encode(EVERYTHING)
        self.assertEqual(
            {name: encoded[name] for name in ("when", "day", "amount", "colour", "level", "maybe", "addresses")},
            {"when": "2026-11-30T10:00:00.000005Z", "day": "2026-11-30", "amount": "12.50", "colour": "blue", "level": "HIGH",
             "maybe": {"street": "x"}, "addresses": [{"street": "y", "at": "0001-01-01"}]},
        )  # fmt: skip
        self.assertNotIn("made", encoded)
        self.assertNotIn("shared", encoded)

    def test_types_at_the_top(self):
        for of, value in ((int, 3), (str, "x"), (list[int], [1]), (dict[str, Colour], {"a": Colour.RED}), (Optional[int], None), (None, None),
                          (Literal["a"], "a"), (Any, [1, {"x": None}]), (Mail, {"to": "x"}), (Mail, {"to": "x", "copies": 2})):  # fmt: skip
            queue = Queue("q", of)
            self.assertEqual(queue.decode(json.loads(json.dumps(queue.encode(value)))), value)

    def test_a_class_may_contain_itself(self):
        queue = Queue("q", Node)
        value = Node(1, Node(2), [Node(3, Node(4))])
        self.assertEqual(queue.decode(queue.encode(value)), value)
        self.refused("payload.next.others[1].value: expected int, got str", queue.encode, Node(1, Node(2, None, [Node(3), Node("x")])))

        @dataclass
        class Local:
            next: Optional[Local] = None

        self.assertEqual(Queue("q", Local).decode({"next": {}}), Local(Local()))
        deep = None
        for _ in range(10_000):
            deep = {"value": 1, "next": deep}
        self.refused("payload: it contains itself, or is nested too deeply", queue.decode, deep)
        value.next = value
        self.refused("payload: it contains itself, or is nested too deeply", queue.encode, value)

    def test_what_does_not_fit_is_refused_with_its_path(self):
        when = EVERYTHING.when
        change = dataclasses.replace
        queue = Queue("q", Everything)
        for expected, value in (
            ("payload.truth: expected bool, got int", change(EVERYTHING, truth=1)),
            ("payload.order: expected int, got bool", change(EVERYTHING, order=True)),
            ("payload.order: expected int, got float", change(EVERYTHING, order=1.0)),
            ("payload.price: expected float, got bool", change(EVERYTHING, price=False)),
            ("payload.price: expected float, got nan", change(EVERYTHING, price=float("nan"))),
            ("payload.price: expected float, got -inf", change(EVERYTHING, price=float("-inf"))),
            ("payload.price: expected float, got an int that is out of the range of float", change(EVERYTHING, price=10**400)),
            ("payload.when: expected datetime with a time zone, got another datetime", change(EVERYTHING, when=when.replace(tzinfo=None))),
            ("payload.when: expected datetime with a time zone, got another datetime",
             change(EVERYTHING, when=datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2))))),
            ("payload.when: expected datetime with a time zone, got date", change(EVERYTHING, when=date(2026, 1, 1))),
            ("payload.day: expected date, got datetime", change(EVERYTHING, day=when)),
            ("payload.amount: expected finite Decimal, got another Decimal", change(EVERYTHING, amount=Decimal("NaN"))),
            ("payload.amount: expected finite Decimal, got another Decimal", change(EVERYTHING, amount=Decimal("sNaN"))),
            ("payload.amount: expected finite Decimal, got another Decimal", change(EVERYTHING, amount=Decimal("Infinity"))),
            ("payload.amount: expected finite Decimal, got float", change(EVERYTHING, amount=1.5)),
            ("payload.id: expected UUID, got str", change(EVERYTHING, id="12345678-1234-5678-1234-567812345678")),
            ("payload.colour: expected Colour, got str", change(EVERYTHING, colour="red")),
            ("payload.level: expected Level, got int", change(EVERYTHING, level=1)),
            ("payload.size: expected one of 's', 1, True, None, <Colour.RED: 'red'>, got another int", change(EVERYTHING, size=0)),
            ("payload.maybe: expected Address, got dict", change(EVERYTHING, maybe={"street": "x"})),
            ("payload.addresses: expected list, got tuple", change(EVERYTHING, addresses=(Address("x"),))),
            ("payload.addresses[1].street: expected str, got bytes", change(EVERYTHING, addresses=[Address("x"), Address(b"x")])),
            ("payload.counts['a b']: expected int, got NoneType", change(EVERYTHING, counts={"a b": None})),
            ("payload.counts: expected str as a key, got int", change(EVERYTHING, counts={1: 1})),
            ("payload.any.x[0]: expected a value that JSON can hold, got set", change(EVERYTHING, any={"x": [set()]})),
            ("payload.any: expected a value that JSON can hold, got the float nan", change(EVERYTHING, any=float("nan"))),
            ("payload.any: expected str as a key, got int", change(EVERYTHING, any={1: 2})),
            ("payload: expected Everything, got Node", Node(1)),
        ):  # fmt: skip
            self.refused(expected, queue.encode, value)
        self.refused("payload: expected Letter, got LongLetter", Queue("q", Letter).encode, LongLetter([]))  # its pages would be lost
        for payload, expected in (
            ({}, "payload.to: Mail requires this field"), ({"to": "x", "cc": 1}, "payload.cc: Mail does not have this field"),
            ({"to": "x", 1: 1}, "payload[1]: Mail does not have this field"), ("x", "payload: expected Mail, got str"),
        ):  # fmt: skip
            self.refused(expected, Queue("q", Mail).encode, payload)

    def test_json_that_does_not_fit_is_refused_with_its_path(self):
        queue = Queue("q", Everything)
        encoded = queue.encode(EVERYTHING)
        for expected, name, value in (
            (".truth: expected bool, got int", "truth", 1),
            (".order: expected int, got bool", "order", True),
            (".order: expected int, got float", "order", 1.0),
            (".price: expected float, got an int that is out of the range of float", "price", 10**400),
            (".price: expected float, got bool", "price", True),
            (".when: expected datetime with a time zone, got int", "when", 0),
            *((".when: expected datetime with a time zone, got another text", "when", text) for text in (
                "", "2026-11-30", "2026-11-30T12:00:00", "2026-13-30T12:00:00Z", "2026-11-30T12:00:00Z ", "٢026-11-30T12:00:00Z", "2026-11-30T12:00:00+99:00")),
            *((".day: expected date, got another text", "day", text) for text in ("20261130", "2026-W01-1", "2026-02-30", "2026-11-30T00:00:00Z")),
            *((".id: expected UUID, got another text", "id", text) for text in ("", "{12345678-1234-5678-1234-567812345678}", "1234567812345678123456781234567")),
            *((".amount: expected finite Decimal, got another text", "amount", text) for text in ("NaN", "-Infinity", " 1", "1_0", "١", "", "1e", "1E+99999999999999999999")),
            (".amount: expected finite Decimal, got float", "amount", 1.5),
            (".colour: expected Colour, got another text", "colour", "RED"),
            (".level: expected Level, got int", "level", 1),
            (".maybe.street: Address requires this field", "maybe", {}),
            (".maybe.zip: Address does not have this field", "maybe", {"street": "x", "zip": 1}),
            ("['no such']: Everything does not have this field", "no such", 1),
            (".made: Everything does not have this field", "made", 1),
            (".addresses[0]: expected Address, got NoneType", "addresses", [None]),
            (".counts: expected dict, got list", "counts", []),
            (".size: expected one of 's', 1, True, None, <Colour.RED: 'red'>, got another float", "size", 1.0),
        ):  # fmt: skip
            self.refused(f"payload{expected}", queue.decode, {**encoded, name: value})
        self.refused("payload.to[0]: expected str, got int", Queue("q", Letter).decode, {"to": [5]})
        self.refused("payload.to: Letter requires this field", Queue("q", Letter).decode, {})
        self.refused("payload: expected Letter, got list", Queue("q", Letter).decode, [])
        self.refused("payload[1]: Even raised ValueError: odd", Queue("q", list[Even]).decode, [{"n": 2}, {"n": 3}])
        self.assertEqual(queue.decode({**encoded, "price": 3}).price, 3.0)

    def test_times_in_other_forms(self):
        queue = Queue("q", datetime)
        for text in ("2026-11-30T10:00:00Z", "2026-11-30 12:00+02", "2026-11-30T12:00:00.000+0200", "2026-11-30T10:00:00.000000000Z"):
            self.assertEqual(queue.decode(text), datetime(2026, 11, 30, 10, tzinfo=timezone.utc))
        self.assertEqual(queue.decode("2026-11-30T10:00:00.12Z").microsecond, 120000)
        odd = datetime(1900, 1, 1, tzinfo=timezone(timedelta(minutes=53, seconds=28)))
        self.assertEqual(queue.decode(queue.encode(odd)), odd)
        self.assertEqual({queue.encode(datetime(2026, 11, 30, 12 + n, tzinfo=timezone(timedelta(hours=n)))) for n in (0, 1, 2)}, {"2026-11-30T12:00:00Z"})

    def test_subclasses_of_plain_types(self):
        encoded = Queue("q", list[str]).encode([Name("x")]) + Queue("q", list[int]).encode([Level.LOW])
        self.assertEqual([(type(each), each) for each in encoded], [(str, "x"), (int, 1)])

    def test_a_new_optional_field_changes_nothing_while_it_is_none(self):
        """A repeated call sends the same payload after a deploy, and an older worker can still read it."""
        @dataclass
        class OldLetter:
            to: list[str]
            text: str = ""

        old, new = Queue("q", OldLetter), Queue("q", Letter)
        self.assertEqual(new.encode(Letter(["x"])), old.encode(OldLetter(["x"])))
        self.assertEqual(new.decode(old.encode(OldLetter(["x"]))), Letter(["x"]))
        self.refused("payload.cc: OldLetter does not have this field", old.decode, new.encode(Letter(["x"], cc="y")))

    def test_a_result_may_have_new_fields(self):
        queue = Queue("q", Letter, result=Receipt)
        self.assertEqual(queue.decode_result({"id": "x", "new": 1}), Receipt("x"))
        self.refused("result.id: expected str, got int", queue.decode_result, {"id": 1})
        self.assertIsNone(queue.decode_result(None))
        self.assertIsNone(Queue("q", Letter).decode_result({"of an older worker": 1}))
        self.assertEqual(Queue("q").decode_result({"n": 1}), {"n": 1})

    def test_any_other_type_is_refused_at_its_definition(self):
        class Plain:
            pass

        class Pair(NamedTuple):
            a: int

        class Meta(type):
            __hash__ = None

        class Unhashable(metaclass=Meta):
            pass

        class Flags(enum.Flag):
            A = 1

        class Sub(dict):
            pass

        @dataclass
        class Generic_(Generic[T]):
            a: T

        @dataclass
        class Init:
            a: int
            b: dataclasses.InitVar[int]

        @dataclass
        class Own:
            a: int

            def __init__(self, a, other):
                pass

        for of in (bytes, set[int], set, tuple[int, ...], complex, object, timedelta, Plain, Pair, Flags, Sub, Unhashable, EVERYTHING, Generic_[int], list, dict, List,
                   OrderedDict, namedtuple("N", "a"), Union[int, str], Union[int, str, None], Literal[b"x"], T, type, len, "Address"):  # fmt: skip
            self.undefinable(": ", of)
        self.undefinable(".a: ", Generic_)
        self.undefinable(".b: ", Init)
        self.undefinable(".other: Own requires this argument", Own)
        self.undefinable(": the keys of a dict must be str, not int", dict[int, str])
        self.undefinable("[][]: ", dict[str, list[bytes]])
        for bad, path in ((List[Dict[str, Optional[bytes]]], ".inner.bad[][]"), (Union[int, str], ".inner.bad")):
            inner = dataclasses.make_dataclass("Inner", [("ok", int), ("bad", bad)])
            self.undefinable(f"{path}: ", dataclasses.make_dataclass("Outer", [("inner", Optional[inner])]))
        missing = dataclasses.make_dataclass("Missing", [("ok", int), ("to", "NoSuchName")])
        self.assertIn("NoSuchName", self.undefinable(".to: its type 'NoSuchName' cannot be evaluated: NameError", missing))
        with self.assertRaisesRegex(TypeError, "^queue q: result: bytes is not supported"):
            Queue("q", int, result=bytes)
        with self.assertRaisesRegex(TypeError, "^name must be a str"):
            Queue(5)
        with self.assertRaisesRegex(TypeError, "^kind must be a str"):
            Queue("q", int, kind=5)


class Workers(Client):
    def queue_of(self, payload=Letter, **options):
        return Queue(self.queue, payload, **options)

    def failed(self, job):
        status, attempt, _, error = self.job(job)
        self.assertEqual((status, attempt), ("retrying", 1))
        return error

    def test_the_handler_gets_an_instance_and_its_result_is_encoded(self):
        letters = self.queue_of(result=Receipt)
        got = []

        def send(job, conn):
            got.append(job.payload)
            return Receipt(job.payload.to[0])

        async def send_async(job, conn):
            return send(job, conn)

        async def outside_async(job):
            return send(job, None)

        for n, drain in enumerate((
            lambda: idemq.drain(DSN, [letters.inside(send)]),
            lambda: idemq.drain(DSN, [letters.outside(lambda job: send(job, None))]),
            lambda: asyncio.run(idemq.drain_async(DSN, [letters.inside(send_async)])),
            lambda: asyncio.run(idemq.drain_async(DSN, [letters.outside(outside_async)])),
        )):  # fmt: skip
            added = letters.enqueue(self.conn, Letter([f"x{n}"]), key=n)
            self.assertEqual(drain(), {"committed": 1})
            again = letters.enqueue(self.conn, Letter([f"x{n}"]), key=n)
            self.assertEqual((again.outcome, again.id, again.result), ("duplicate", added.id, Receipt(f"x{n}")))
            self.assertEqual(letters.result(self.conn, added.id), ("completed", Receipt(f"x{n}")))
            self.assertEqual(letters.wait_results(self.conn, [added.id]), [("completed", Receipt(f"x{n}"))])
            self.assertEqual(idemq.result(self.conn, added.id).result, {"id": f"x{n}"})
        self.assertEqual(got, [Letter([f"x{n}"]) for n in range(4)])

    def test_with_an_asynchronous_connection(self):
        letters = self.queue_of(result=Receipt)

        async def call():
            async with await psycopg.AsyncConnection.connect(DSN, autocommit=True) as conn:
                added = await letters.enqueue(conn, Letter(["x"]), key="k")
                return added, await letters.result(conn, added.id)

        added, result = asyncio.run(call())
        self.assertEqual((added.outcome, added.result, result), ("accepted", None, ("pending", None)))

    def test_every_option_is_passed_on(self):
        letters = self.queue_of(kind="letter")
        parent = idemq.enqueue(self.conn, self.queue, 1).id
        added = letters.enqueue(self.conn, Letter([]), key="k", delay="1 h", priority=3, max_attempts=2, headers={"h": 1},
                                expires_in="2 h", key_ttl="1 d", on_duplicate="ignore", nowait=True, depends_on=[parent], on_parent_failure="run")  # fmt: skip
        job = idemq.job(self.conn, added.id)
        self.assertEqual((job.payload, job.key, job.kind, job.priority, job.max_attempts, job.headers, job.status),
                         ({"to": [], "text": ""}, "k", "letter", 3, 2, {"h": 1}, "blocked"))  # fmt: skip
        grouped = letters.enqueue(self.conn, Letter([]), run_at=datetime(2100, 1, 1, tzinfo=timezone.utc), group_key="g")
        job = idemq.job(self.conn, grouped.id)
        self.assertEqual((job.group_key, job.ready_at.year), ("g", 2100))
        many = letters.enqueue_many(self.conn, [{"payload": Letter(["x"]), "key": "a"}, {"payload": Letter(["y"]), "kind": "letter"}])
        self.assertEqual([(job.payload["to"], job.kind) for job in (idemq.job(self.conn, each.id) for each in many)], [(["x"], "letter"), (["y"], "letter")])
        with self.assertRaisesRegex(TypeMismatch, r"^jobs\[1\]\.payload\.to: expected list, got str$"):
            letters.enqueue_many(self.conn, [{"payload": Letter([])}, {"payload": Letter("x")}])
        with self.assertRaisesRegex(ValueError, "^job 0 has kind other, but this Queue is of kind letter$"):
            letters.enqueue_many(self.conn, [{"payload": Letter([]), "kind": "other"}])
        with self.assertRaisesRegex(TypeError, "^job 0 has no payload$"):
            letters.enqueue_many(self.conn, [{}])
        name = f"schedule of {self.queue}"
        self.assertIsNotNone(letters.schedule(self.conn, name, "0 0 1 1 *", Letter(["x"]), time_zone="Europe/Berlin", priority=2))
        self.assertEqual(self.sql("SELECT payload, kind, time_zone, priority FROM idemq.schedules WHERE name = %s", name),
                         [({"to": ["x"], "text": ""}, "letter", "Europe/Berlin", 2)])  # fmt: skip
        idemq.unschedule(self.conn, name)
        with self.assertRaisesRegex(TypeMismatch, "^payload: expected Letter, got NoneType$"):
            letters.schedule(self.conn, name, "0 0 1 1 *", None)
        with self.assertRaisesRegex(TypeError, "expected a psycopg.Connection or AsyncConnection"):
            letters.enqueue("no connection", Letter([]))

    def test_a_duplicate_of_a_dead_job_returns_its_error(self):
        letters = self.queue_of(result=Receipt)
        letters.enqueue(self.conn, Letter([]), key="k", max_attempts=1)
        idemq.drain(DSN, [letters.inside(lambda job, conn: 1 / 0)])
        again = letters.enqueue(self.conn, Letter([]), key="k")
        self.assertEqual((again.status, again.result, again.error), ("dead", None, "ZeroDivisionError: division by zero"))

    def test_a_payload_that_does_not_fit_fails_its_attempt_and_is_retried(self):
        letters = self.queue_of()
        ran = []

        async def run_async(job, conn=None):
            ran.append(job.payload)

        for n, drain in enumerate((
            lambda: idemq.drain(DSN, [letters.inside(lambda job, conn: ran.append(job.payload), batch=10)]),
            lambda: idemq.drain(DSN, [letters.outside(lambda job: ran.append(job.payload))]),
            lambda: asyncio.run(idemq.drain_async(DSN, [letters.inside(run_async)])),
        )):  # fmt: skip
            ran.clear()
            self.alter("retry_base => '1 h'")
            good, bad = self.add({"to": ["x"]}, {"to": [5]})
            drain()
            self.assertIn(ran, ([Letter(["x"])], [Letter(["x"])] * 2))  # twice, if the batch ran first
            self.assertEqual(self.failed(bad), "TypeMismatch: payload.to[0]: expected str, got int")
            self.assertEqual(self.job(good)[0], "completed")
            idemq.cancel(self.conn, bad)

    def test_it_can_be_made_dead_at_once(self):
        (bad,) = self.add({"to": 5})
        idemq.drain(DSN, [self.queue_of().inside(lambda job, conn: None, never_retry=[TypeMismatch])])
        self.assertEqual(self.job(bad)[0], "dead")

    def test_a_result_that_does_not_fit(self):
        """The transaction of a handler is rolled back.  An effect outside has happened, so the job is completed without a result."""
        letters = self.queue_of(result=Receipt)
        self.alter("retry_base => '1 h'")

        def inside(job, conn):
            self.effect(conn, 1)
            return {"id": "x"}

        job = letters.enqueue(self.conn, Letter([])).id
        idemq.drain(DSN, [letters.inside(inside)])
        self.assertEqual((self.failed(job), self.effects()), ("TypeMismatch: result: expected Receipt, got dict", []))
        idemq.cancel(self.conn, job)
        job = letters.enqueue(self.conn, Letter([])).id
        with self.assertLogs("idemq", logging.ERROR) as logs:
            idemq.drain(DSN, [letters.outside(lambda job: Receipt(5))])
        self.assertEqual(self.job(job)[:3], ("completed", 1, None))
        self.assertIn("result.id: expected str, got int", logs.output[0])
        job = self.queue_of().enqueue(self.conn, Letter([])).id
        idemq.drain(DSN, [self.queue_of().inside(lambda job, conn: 5)])
        self.assertEqual(self.failed(job), "TypeMismatch: result: expected None, got int")

    def test_a_repeated_handler_gets_a_new_payload(self):
        letters = self.queue_of()
        seen = []

        def send(job, conn):
            seen.append(list(job.payload.to))
            job.payload.to.append("changed")
            if len(seen) == 1:
                conn.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")

        job = letters.enqueue(self.conn, Letter(["x"])).id
        idemq.drain(DSN, [letters.inside(send)])
        self.assertEqual((seen, self.job(job)[:2]), ([["x"], ["x"]], ("completed", 1)))

    def test_hooks_see_typed_values(self):
        letters = self.queue_of(result=Receipt)
        seen = []

        def around(job, call):
            seen.append(job.payload)
            seen.append(call())
            return seen[-1]

        job = letters.enqueue(self.conn, Letter(["x"])).id
        Worker(DSN, [letters.inside(lambda job, conn: Receipt("r"))], hooks={"around": around}).drain()
        self.assertEqual(seen, [Letter(["x"]), Receipt("r")])
        self.assertEqual(self.job(job)[2], {"id": "r"})

    def test_kinds(self):
        letter, address = self.queue_of(kind="letter", result=Receipt), self.queue_of(Address, kind="address")
        plain = self.queue_of(int)
        got = []
        self.alter("retry_base => '1 h'")
        jobs = [
            letter.enqueue(self.conn, Letter(["x"])).id, address.enqueue(self.conn, Address("y")).id, plain.enqueue(self.conn, 3).id,
            idemq.enqueue(self.conn, self.queue, {"street": 5}, kind="address").id, idemq.enqueue(self.conn, self.queue, 1, kind="unknown").id,
        ]  # fmt: skip

        def send(job, conn):
            got.append(job.payload)
            return Receipt("r")

        idemq.drain(DSN, [
            letter.inside(send, concurrency=2),
            address.inside(Kind(lambda job, conn: got.append(job.payload), timeout=30, backoff=["2 h"])),
            plain.inside(lambda job, conn: got.append(job.payload), concurrency=2),
        ])  # fmt: skip
        self.assertCountEqual(got, [Letter(["x"]), Address("y"), 3])
        self.assertEqual([self.job(job)[0] for job in jobs], ["completed"] * 3 + ["retrying", "pending"])
        self.assertEqual(self.job(jobs[3])[3], "TypeMismatch: payload.street: expected str, got int")
        ((late,),) = self.sql("SELECT ready_at > idemq.now() + interval '100 min' FROM idemq.jobs WHERE id = %s", jobs[3])
        self.assertTrue(late)
        self.assertEqual(letter.result(self.conn, jobs[0]).result, Receipt("r"))

    def test_kinds_share_the_options_of_their_queue(self):
        a, b, other = self.queue_of(kind="a"), self.queue_of(kind="b"), Queue(f"{self.queue}_other", int)

        def inside(job, conn):
            pass

        def outside(job):
            pass

        worker = Worker(DSN, [a.inside(inside, batch=5), other.outside(outside), b.inside(inside, concurrency=3, batch=5)])
        self.assertEqual(worker.queues, (self.queue, other.name))
        options = worker._handlers[self.queue].options
        self.assertEqual((options.concurrency, options.batch), (3, 5))
        for text, error, handlers in (
            ("share its options, but concurrency is 2 for one and 3 for another", ValueError, [a.inside(inside, concurrency=2), b.inside(inside, concurrency=3)]),
            ("its handlers must be all inside or all outside", TypeError, [a.inside(inside), b.outside(outside)]),
            ("has two handlers for kind a", ValueError, [a.inside(inside), a.inside(inside)]),
            ("has two handlers for jobs without a kind", ValueError, [other.outside(outside), other.outside(outside)]),
            ("must be the name of one queue", TypeError, [a.inside(inside), idemq.Inside(inside)]),
            ("must be the name of one queue", TypeError, []),
        ):  # fmt: skip
            with self.assertRaisesRegex(error, text):
                Worker(DSN, handlers)
        with self.assertRaisesRegex(TypeError, "pass concurrency to Inside or Outside"):
            Worker(DSN, [a.inside(inside)], concurrency=3)
        with self.assertRaisesRegex(TypeError, "^handler must be a function"):
            a.inside({"a": inside})
        with self.assertRaisesRegex(TypeError, "this worker already has its handlers"):
            Worker(DSN, [a.inside(inside)]).run(inside)
        with self.assertRaisesRegex(TypeError, "requires a coroutine function"):
            asyncio.run(AsyncWorker(DSN, [a.inside(inside)]).drain())

    def test_results_of_parents(self):
        """Only those of the queue and of the kind; None if there is none."""
        letter, address = self.queue_of(kind="letter", result=Receipt), self.queue_of(Address, kind="address", result=int)
        other = Queue(f"{self.queue}_other", int, result=str)
        self.sql("SELECT idemq.create_queue(%s, retention => '1 h')", other.name)
        parents = [
            letter.enqueue(self.conn, Letter([])).id, address.enqueue(self.conn, Address("")).id, other.enqueue(self.conn, 5).id,
            letter.enqueue(self.conn, Letter(["no"]), max_attempts=1).id,
        ]  # fmt: skip
        child = self.queue_of(int).enqueue(self.conn, 1, depends_on=parents, on_parent_failure="run")
        got = []

        def send(job, conn):
            if job.payload.to:
                raise ValueError
            return Receipt("r")

        def collect(job, conn):
            got.extend([job.parents(letter), job.parents(address), job.parents(other), [each.result for each in job.parents()]])

        idemq.drain(DSN, [letter.inside(send), address.inside(lambda job, conn: 4), other.inside(lambda job, conn: "s"), self.queue_of(int).inside(collect)])
        self.assertEqual(self.job(child.id)[0], "completed")
        self.assertEqual([[(each.id, each.result) for each in each] for each in got[:3]],
                         [[(parents[0], Receipt("r")), (parents[3], None)], [(parents[1], 4)], [(parents[2], "s")]])  # fmt: skip
        self.assertEqual(got[3], [{"id": "r"}, 4, "s", None])

    def test_the_manual(self):
        """What doc/usage/python-types.md shows."""
        for queue in (typed.mail, typed.charges):
            self.sql("SELECT idemq.drop_queue(name, force => true) FROM idemq.queues WHERE name = %s", queue.name)
            self.sql("SELECT idemq.create_queue(%s)", queue.name)
        with self.conn.transaction():
            self.assertIsNone(typed.order(self.conn))
        charge, refund = typed.charges.enqueue(self.conn, 12).id, typed.refunds.enqueue(self.conn, {"charge": "x"}).id
        for work in (typed.work, typed.work_shop):
            worker = []
            with unittest.mock.patch("builtins.print"), unittest.mock.patch.object(typed, "Worker", lambda *args: worker.append(Worker(*args, signals=False)) or worker[0]):
                thread = threading.Thread(target=work, args=[DSN])
                thread.start()
                self.until("SELECT count(*) = 0 FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE q.name = %s AND finished_at IS NULL",
                           typed.mail.name if work is typed.work else typed.charges.name)  # fmt: skip
                worker[0].stop()
                thread.join()
        self.assertEqual(typed.order(self.conn), typed.Receipt("anna@example.com"))
        self.assertEqual(typed.charges.result(self.conn, charge).result, typed.Receipt("charge of 12"))
        self.assertEqual(self.job(refund)[0], "completed")

    def test_an_untyped_queue_in_the_list(self):
        plain = Queue(self.queue)
        job = plain.enqueue(self.conn, {"n": 1}, key="k").id
        idemq.drain(DSN, [plain.inside(lambda job, conn: job.payload)])
        self.assertEqual(self.job(job)[2], {"n": 1})
        self.assertEqual(plain.enqueue(self.conn, {"n": 1}, key="k").result, {"n": 1})

    def test_what_the_server_stores_comes_back(self):
        """PostgreSQL rewrites numbers."""
        queue = self.queue_of(Everything)
        for value in (dataclasses.replace(EVERYTHING, price=price) for price in (1e300, 5e-324, 1.0, 0.1, -123456789.25)):
            got = []
            job = queue.enqueue(self.conn, value).id
            idemq.drain(DSN, [queue.inside(lambda job, conn: got.append(job.payload))])
            self.assertEqual((got, self.job(job)[0]), ([value], "completed"))
        twice = [queue.enqueue(self.conn, EVERYTHING, key="k").outcome for _ in range(2)]
        self.assertEqual(twice, ["accepted", "duplicate"])


if __name__ == "__main__":
    tap.main()
