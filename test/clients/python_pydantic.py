"""python_pydantic.py: pydantic models as payloads and results of typed queues.

For python_typing.pl, which installs pydantic and says where the server is (IDEMQ_DSN).
"""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import Generic, List, Optional, TypeVar
from uuid import UUID

import pydantic
import pydantic.dataclasses

import idemq
import tap
from idemq import Queue, TypeMismatch
from python_common import DSN, Client

T = TypeVar("T")


class Item(pydantic.BaseModel):
    name: str
    price: Decimal


class Cart(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    id: UUID
    at: datetime
    items: List[Item]
    total: float = 0
    note: Optional[str] = pydantic.Field(default=None, alias="remark")

    @pydantic.computed_field
    @property
    def count(self) -> int:
        return len(self.items)


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    at: datetime
    amount: Decimal


class Page(pydantic.BaseModel, Generic[T]):
    rows: List[T]


@dataclasses.dataclass
class Holder:
    carts: List[Cart]


@pydantic.dataclasses.dataclass
class Checked:
    n: int


CART = Cart(id=UUID(int=1), at=datetime(2026, 11, 30, tzinfo=timezone.utc), items=[Item(name="x", price=Decimal("1.50"))], remark="r")


class Models(Client):
    def refused(self, text, call, *args):
        with self.assertRaises(TypeMismatch) as raised:
            call(*args)
        self.assertEqual(str(raised.exception), text)

    def test_models_come_back(self):
        for of, value in ((Cart, CART), (Holder, Holder([CART])), (Strict, Strict(at=CART.at, amount=Decimal("1.5"))), (Page[int], Page[int](rows=[1])),
                          (Checked, Checked(3)), (Optional[Item], None), (list[Item], CART.items)):  # fmt: skip
            queue = Queue("q", of)
            self.assertEqual(queue.decode(json.loads(json.dumps(queue.encode(value)))), value)
        self.assertEqual(Queue("q", Cart).encode(CART)["remark"], "r")

    def test_what_does_not_fit(self):
        queue = Queue("q", Holder)
        encoded = queue.encode(Holder([CART, CART]))
        encoded["carts"][1]["items"][0]["name"] = 5
        self.refused("payload.carts[1].items[0].name: Input should be a valid string", queue.decode, encoded)
        self.refused("payload.new: Extra inputs are not permitted", Queue("q", Cart).decode, {**Queue("q", Cart).encode(CART), "new": 1})
        self.refused("payload: expected Cart, got dict", Queue("q", Cart).encode, {})
        self.refused("payload.total: expected a value that JSON can hold, got the float inf", Queue("q", Cart).encode, CART.model_copy(update={"total": float("inf")}))
        self.assertNotIn("secret", str(self.error(Queue("q", Cart).decode, {"id": "secret"})))

    def error(self, call, *args):
        with self.assertRaises(TypeMismatch) as raised:
            call(*args)
        return raised.exception

    def test_in_a_worker(self):
        carts = Queue(self.queue, Cart, result=Item)
        added = carts.enqueue(self.conn, CART, key="k")
        bad = idemq.enqueue(self.conn, self.queue, {**carts.encode(CART), "items": [{"name": "x"}]})
        self.alter("retry_base => '1 h'")
        got = []

        def handle(job, conn):
            got.append(job.payload)
            return job.payload.items[0]

        idemq.drain(DSN, [carts.inside(handle)])
        self.assertEqual(got, [CART])
        self.assertEqual(carts.enqueue(self.conn, CART, key="k").result, CART.items[0])
        self.assertEqual(carts.result(self.conn, added.id).status, "completed")
        self.assertEqual(self.job(bad.id)[3], "TypeMismatch: payload.items[0].price: Field required")


if __name__ == "__main__":
    tap.main()
