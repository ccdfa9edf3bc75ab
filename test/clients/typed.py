"""typed.py: the typed queues that doc/usage/python-types.md shows.  python_types.py runs it, and python_typing.pl checks its types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, TypedDict

from idemq import Job, Kind, Queue, Worker
from psycopg import Connection


@dataclass
class Mail:
    to: list[str]
    text: str = ""
    cc: Optional[str] = None


@dataclass
class Receipt:
    id: str


mail = Queue("mail", Mail, result=Receipt)


def order(conn: Connection[Any]) -> Optional[Receipt]:
    added = mail.enqueue(conn, Mail(["anna@example.com"]), key="order-42")
    return added.result  # of a duplicate that has been sent


def send(job: Job[Mail], conn: Connection[Any]) -> Receipt:
    return Receipt(job.payload.to[0])


def work(dsn: str) -> None:
    Worker(dsn, [mail.inside(send, concurrency=4)]).run()


class Refund(TypedDict):
    charge: str


charges = Queue("shop", int, result=Receipt, kind="charge")
refunds = Queue("shop", Refund, kind="refund")


def charge(job: Job[int], conn: Connection[Any]) -> Receipt:
    return Receipt(f"charge of {job.payload}")


def refund(job: Job[Refund], conn: Connection[Any]) -> None:
    print(job.payload["charge"])


def work_shop(dsn: str) -> None:
    Worker(dsn, [charges.inside(charge, concurrency=10), refunds.inside(Kind(refund, timeout=30))]).run()
