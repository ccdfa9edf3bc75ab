"""encryption_shop.py DSN ACTION...: runs the shop of encryption.py; CARD_KEYS contains the keys.  Prints JSON.

pay ORDER CARD | work | all KEY PAYLOAD | handle | read ID | send NAME PAYLOAD
"""

import json
import sys

import psycopg
from encryption import charge, codec, pay

import idemq


def handle(job, conn):
    """Uses everything that is encoded."""
    answer = job.step("charge", lambda step: {"of": step.request}, job.payload)
    if job.checkpoint is None:
        job.save_checkpoint({"first": job.payload})
        raise idemq.RetryLater(0)
    event = job.await_event(f"approved {job.payload['n']}", "1 h")
    return [answer, job.checkpoint, event.payload, [parent.result for parent in job.parents()]]


def main(dsn, action, *args):
    with psycopg.connect(dsn, autocommit=True) as conn:
        if action == "pay":
            return pay(conn, int(args[0]), args[1]).outcome
        if action == "work":
            return idemq.drain(dsn, {"cards": idemq.Inside(charge, codec=codec)})
        if action == "all":
            parents = [int(each) for each in args[2:]] or None
            added = idemq.enqueue(conn, "cards", json.loads(args[1]), key=args[0], depends_on=parents, codec=codec)
            return [added.outcome, str(added.id)]
        if action == "handle":
            return idemq.drain(dsn, "cards", handle, codec=codec)
        if action == "read":
            return idemq.result(conn, int(args[0]), codec=codec).result
        if action == "send":
            sent = idemq.send_event(conn, "cards", args[0], json.loads(args[1]), codec=codec)
            return [sent.outcome, sent.first_payload, sent.same_payload]
        raise ValueError(action)


print(json.dumps(main(*sys.argv[1:]), separators=(",", ":")))
