"""What the shop does: it takes orders, charges them, sends mails and writes reports."""

from dataclasses import asdict

from idemq import Job

from provider import payments, postbox
from queues import Charged, Mail, Order, charges, mails, reports
from tables import Conn, insert_order, insert_report, mark_paid


def place(db: Conn, order: Order) -> None:
    with db.transaction():
        insert_order(db, order.id, order.customer, order.amount)
        charges.enqueue(db, order, key=order.id, group_key=order.customer)


def charge(job: Job[Order], db: Conn) -> Charged:
    order, to, request = job.payload.id, job.payload.customer, asdict(job.payload)
    paid = job.step("charge", payments.send, request, call_timeout=2, ask=payments.find)
    mark_paid(db, order, paid["id"])
    mails.enqueue(db, Mail(order, to, "receipt"), key=f"receipt {order}")
    mails.enqueue(db, Mail(order, to, "review"), key=f"review {order}", delay="1 day")
    return {"charge": paid["id"]}


def mail(job: Job[Mail]) -> None:
    job.step("mail", postbox.send, asdict(job.payload), call_timeout=2, ask=postbox.find)


def report(job: Job[None], db: Conn) -> None:
    insert_report(db, job.headers["tick"])


handlers = [
    charges.inside(charge, concurrency=5),
    mails.outside(mail, concurrency=4),
    reports.inside(report),
]
