#!/usr/bin/python3
"""recovery.py DSN URL: one order, in three steps that can be resumed; see
doc/usage/recovery-points.md.

Exits with status 0 after it has finished an order, 3 if there was no order to claim, and 4
if it has lost its lease.  In the test, DIE_AT names the point at which the process is killed,
and STOP_AT the point at which it is stopped until it receives SIGCONT.
"""

import os
import signal
import sys
from http.client import HTTPConnection, HTTPException
import json

import psycopg
from psycopg.types.json import Jsonb


def point(name):
    """Mark a place where the test may interrupt the worker."""
    if os.environ.get("DIE_AT") == name:
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("STOP_AT") == name:
        os.kill(os.getpid(), signal.SIGSTOP)


def request_charge(address, key, token, order):
    """Ask the payment service for a charge.  It makes one charge per key."""
    http = HTTPConnection(address, timeout=10)
    http.request(
        "POST",
        "/charges",
        json.dumps({"amount": order["amount"]}),
        {"Idempotency-Key": key, "Fencing-Token": str(token)},
    )
    point("request sent")
    response = http.getresponse()
    body = response.read()
    if response.status != 200:  # a proxy's error page is HTML
        raise OSError(f"charge: {response.status} {body[:200]!r}")
    return json.loads(body)["charge"]


def reserve(conn, job_id, token, order):
    """Step 1, in this database: recovery point and effect in one transaction."""
    with conn.transaction():
        conn.execute(
            "SELECT idemq.checkpoint(%s, %s, %s)", (job_id, token, Jsonb({"step": "reserved"}))
        )
        point("checkpoint written")
        conn.execute("UPDATE stock SET reserved = reserved + 1 WHERE item = %s", (order["item"],))
        point("reserve")


def charge(conn, address, job_id, token, key, order):
    """Step 2, in another system: first the request with the key, then the recovery point."""
    point("charge")
    number = request_charge(address, key, token, order)
    point("charged")
    conn.execute(
        "SELECT idemq.checkpoint(%s, %s, %s)",
        (job_id, token, Jsonb({"step": "charged", "charge": number})),
    )
    return number


def mail(conn, job_id, token, key, order, number):
    """Step 3: commit this job and enqueue the next one in the same transaction."""
    point("mail")
    with conn.transaction():
        conn.execute("SELECT idemq.commit(%s, %s, %s)", (job_id, token, Jsonb({"charge": number})))
        point("committed")
        conn.execute(
            "SELECT idemq.enqueue('mail', %s, key => %s)",
            (Jsonb({"to": order["mail"], "charge": number}), key),
        )
        point("mail enqueued")
    point("done")


def run(conn, address):
    """Claim an order and run the steps that are still missing."""
    job = conn.execute(
        "SELECT id, token, key, payload, checkpoint FROM idemq.claim('orders', attach => true)"
    ).fetchone()
    if job is None:
        return 3
    job_id, token, key, order, reached = job
    key = key or f"order-{job_id}"  # the same for every attempt; ids are never reused
    reached = reached or {"step": "new"}
    try:
        if reached["step"] == "new":
            point("claimed")
            reserve(conn, job_id, token, order)
            reached = {"step": "reserved"}
        if reached["step"] == "reserved":
            number = charge(conn, address, job_id, token, key, order)
            reached = {"step": "charged", "charge": number}
        mail(conn, job_id, token, key, order, reached["charge"])
    except psycopg.DatabaseError as error:
        if error.sqlstate not in ("IQ001", "IQ006"):
            raise
        return 4  # another attempt owns the order and continues from the recovery point
    except (OSError, ValueError, HTTPException) as error:
        text = str(error).replace("\0", "")  # PostgreSQL's type text cannot store NUL
        conn.execute("SELECT idemq.fail(%s, %s, %s)", (job_id, token, text))
        return 4
    return 0


if __name__ == "__main__":
    with psycopg.connect(sys.argv[1], autocommit=True) as connection:
        sys.exit(run(connection, sys.argv[2]))
