"""The queues of the shop, what they hold, and the schedule."""

from dataclasses import dataclass
from typing import Literal, TypedDict

from idemq import Queue, ensure_queue

from tables import Conn


@dataclass(frozen=True)
class Order:
    id: str
    customer: str
    amount: int


class Charged(TypedDict):
    charge: str


@dataclass(frozen=True)
class Mail:
    order: str
    to: str
    text: Literal["receipt", "review"]


charges = Queue("charges", Order, result=Charged)
mails = Queue("mails", Mail)
reports = Queue("reports", None)


def declare_queues(db: Conn) -> None:
    ensure_queue(db, charges.name, rate_limit=5, rate_period="1 s")
    ensure_queue(db, mails.name)
    ensure_queue(db, reports.name)
    reports.schedule(db, "report", "* * * * *", None)
