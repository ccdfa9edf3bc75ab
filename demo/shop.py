"""The shop of make ui-demo: shop.py customers | checkout | mail | import.

Customers order, and each of the others is a worker of the queue of its name; all of them fail now
and then, as a shop does.
"""

import random
import sys
import time

import psycopg
from idemq import Dead, Worker, enqueue

DSN = ""  # by PGHOST, PGUSER and PGDATABASE


def customers():
    """Orders, some a second, more and fewer of them by the minute."""
    number = int(time.time())
    with psycopg.connect(DSN, autocommit=True) as conn:
        while True:
            time.sleep(random.expovariate(4 + 3 * random.random() * (time.time() % 120 < 60)))
            number += 1
            order = {"number": number, "customer": f"customer-{number % 5000}", "total": random.randint(5, 300)}
            enqueue(conn, "checkout", order, key=f"order-{number}", kind="order")


def checkout(job, conn):
    """An order and what follows of it: once, or not at all."""
    order = job.payload
    time.sleep(random.uniform(0.02, 0.15))
    if random.random() < 0.03:
        raise ValueError(f"card of {order['customer']} was declined")
    conn.execute("INSERT INTO orders VALUES (%s, %s, %s)", (order["number"], order["customer"], order["total"]))
    enqueue(conn, "mail", {"to": order["customer"], "order": order["number"]}, key=f"confirm-{order['number']}", kind="confirmation")
    enqueue(conn, "thumbnails", {"picture": f"{order['number']}.jpg"})


def send(job):
    """A mail, by a provider that is away now and then."""
    time.sleep(random.uniform(0.05, 0.3))
    if job.payload["order"] % 41 == 0:
        raise Dead(f"no such address: {job.payload['to']}@shop.example")
    if random.random() < 0.05:
        raise ConnectionError("no response from mail.shop.example in 3000 ms")
    return {"sent": job.payload["to"]}


def parse(job, conn):
    """A file, a row of it, or the report."""
    time.sleep(random.uniform(0.05, 0.4))
    row = job.payload.get("row")
    if row is not None:
        float(job.payload["price"])
        conn.execute("INSERT INTO articles VALUES (%s, %s)", (row, f"article {row}"))


part = sys.argv[1]
if part == "customers":
    customers()
elif part == "checkout":
    Worker(DSN, "checkout", name="checkout-1", concurrency=2).run(checkout)
elif part == "mail":
    Worker(DSN, "mail", name="mail-1", concurrency=3).run_outside(send)
else:
    Worker(DSN, "import", name="import-1", concurrency=2).run(parse)
