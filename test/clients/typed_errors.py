"""typed_errors.py: what a type checker finds in programs with typed queues.  Nothing runs it.

lint (mypy of Debian) and python_typing.pl (mypy, pyright) check it.  A line with "type: ignore" must have an error; otherwise the comment is an error itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Optional, TypedDict

from idemq import AsyncJob, AsyncWorker, Enqueued, Job, Kind, Parent, Queue, Worker, drain
from psycopg import AsyncConnection, Connection
from typed import Mail, Receipt, charges, mail, refunds

plain = Queue("plain")
nothing = Queue("nothing", None)
numbers = Queue("numbers", List[int], result=int)


@dataclass
class Other:
    x: int


class Another(TypedDict):
    x: int


def send(job: Job[Mail], conn: Connection[Any]) -> Receipt:
    to: str = job.payload.to[0]
    job.payload.no_such_field  # type: ignore[attr-defined]
    number: int = job.payload.text  # type: ignore[assignment]
    print(to, number)
    for parent in job.parents(mail):
        typed: Parent[Optional[Receipt]] = parent
        parent.result.id  # type: ignore[union-attr]
        text: Optional[str] = parent.result  # type: ignore[assignment]
        print(typed, text)
    for untyped in job.parents():
        print(untyped.result["anything"])
    return Receipt(job.payload.text)


def send_outside(job: Job[Mail]) -> Receipt:
    return Receipt("")


async def send_async(job: AsyncJob[Mail], conn: AsyncConnection[Any]) -> Receipt:
    typed: List[Parent[Optional[int]]] = await job.parents(numbers)
    print(typed)
    return Receipt("")


def wrong_payload(job: Job[Other], conn: Connection[Any]) -> Receipt:
    return Receipt("")


def wrong_result(job: Job[Mail], conn: Connection[Any]) -> str:
    return ""


def no_result(job: Job[Mail], conn: Connection[Any]) -> None:
    pass


def of_nothing(job: Job[None], conn: Connection[Any]) -> None:
    pass


def of_any(job: Job[Any], conn: Connection[Any]) -> Any:
    return job.payload["anything"]


def typed_dict(job: Job[Other], conn: Connection[Any]) -> Another:
    return {"x": job.payload.x}


def produce(conn: Connection[Any]) -> None:
    added: Enqueued[Optional[Receipt]] = mail.enqueue(conn, Mail(["x"]), key="k", delay=5)
    added.result.id  # type: ignore[union-attr]
    wrong: Optional[int] = added.result  # type: ignore[assignment]
    mail.enqueue(conn, {"to": ["x"]})  # type: ignore[call-overload]
    mail.enqueue(conn, Other(1))  # type: ignore[call-overload]
    mail.enqueue(conn, Mail(5))  # type: ignore[arg-type]
    mail.enqueue(conn, Mail(["x"]), kee="k")  # type: ignore[call-overload]
    mail.enqueue(conn, Mail(["x"]), kind="k")  # type: ignore[call-overload]
    mail.enqueue(Mail(["x"]))  # type: ignore[call-overload]
    refunds.enqueue(conn, {"charge": "x"})
    refunds.enqueue(conn, {"charg": "x"})  # type: ignore[call-overload]
    refunds.enqueue(conn, {"charge": 5})  # type: ignore[call-overload]
    numbers.enqueue(conn, [1])
    numbers.enqueue(conn, ["x"])  # type: ignore[list-item]
    nothing.enqueue(conn, None)
    nothing.enqueue(conn, 1)  # type: ignore[call-overload]
    plain.enqueue(conn, {"anything": 1})
    many: List[Enqueued[Optional[Receipt]]] = mail.enqueue_many(conn, [{"payload": Mail(["x"]), "key": "k"}, {"payload": Mail([])}])
    mail.schedule(conn, "name", "0 0 1 1 *", Mail(["x"]))
    mail.schedule(conn, "name", "0 0 1 1 *", Other(1))  # type: ignore[call-overload]
    result: Optional[Receipt] = mail.result(conn, 1).result
    results: List[Optional[Receipt]] = [each.result for each in mail.wait_results(conn, [1], timeout="5 s")]
    no_number: Optional[int] = mail.result(conn, 1).result  # type: ignore[assignment]
    number: Optional[int] = numbers.result(conn, 1).result
    payload: Mail = mail.decode(mail.encode(Mail([])))
    mail.encode(Other(1))  # type: ignore[arg-type]
    print(added, wrong, many, result, results, no_number, number, payload)


async def produce_async(conn: AsyncConnection[Any]) -> None:
    added: Enqueued[Optional[Receipt]] = await mail.enqueue(conn, Mail(["x"]))
    await mail.enqueue(conn, Other(1))  # type: ignore[call-overload]
    print(added)


def work() -> None:
    Worker("", [mail.inside(send, concurrency=3), nothing.inside(of_nothing), plain.inside(of_any)])
    handlers = [mail.outside(send_outside), charges.inside(Kind(lambda job, conn: Receipt(str(job.payload)), timeout=3))]
    Worker("", handlers)
    drain("", handlers)
    AsyncWorker("", [mail.inside(send_async)])
    mail.inside(wrong_payload)  # type: ignore[arg-type]
    mail.inside(wrong_result)  # type: ignore[arg-type]
    mail.inside(no_result)  # type: ignore[arg-type]
    mail.inside(send_outside)  # type: ignore[arg-type]
    mail.outside(send)  # type: ignore[arg-type]
    mail.inside(Kind(wrong_result))  # type: ignore[arg-type]
    refunds.inside(send)  # type: ignore[arg-type]
    mail.inside(send, concurency=3)  # type: ignore[call-arg]
    mail.outside(send_outside, batch=3)  # type: ignore[call-arg]
    Queue("q", Other, result=Another).inside(typed_dict)
    Queue("q", 5)  # type: ignore[call-overload]
