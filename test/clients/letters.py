"""letters.py DSN: one job sends many letters through an outside service."""

import signal
import sys

import psycopg
from psycopg.types.json import Jsonb

from service import send  # your client: must take an idempotency key; a fencing token if it can

ending = []
signal.signal(signal.SIGTERM, lambda *_: ending.append(True))  # not in the middle of a letter

with psycopg.connect(sys.argv[1], autocommit=True) as conn:
    job = conn.execute(
        "SELECT id, token, key, payload, checkpoint FROM idemq.claim('letters', lease => '1 min')"
    ).fetchone()
    if job is None:
        sys.exit("no job is ready")
    job_id, token, key, payload, checkpoint = job
    request = key or f"job-{job_id}"  # the same for every attempt; an id never comes again

    try:
        for n in range((checkpoint or {"done": 0})["done"], len(payload["to"])):
            if ending:  # costs no attempt: another worker goes on from the checkpoint, at once
                conn.execute("SELECT idemq.release(%s, %s)", (job_id, token))
                sys.exit("told to end")
            (outcome,) = conn.execute("SELECT idemq.heartbeat(%s, %s)", (job_id, token)).fetchone()
            if outcome != "current":
                sys.exit("lease lost: another attempt goes on from the checkpoint")
            send(payload["to"][n], idempotency_key=f"{request}/{n}", fencing_token=token)
            conn.execute("SELECT idemq.checkpoint(%s, %s, %s)", (job_id, token, Jsonb({"done": n + 1})))
    except (OSError, ValueError) as error:  # no answer, or none to be read: a proxy's 502 is HTML
        text = str(error).replace("\0", "")[:1000]  # NUL: PostgreSQL's text cannot hold it
        conn.execute("SELECT idemq.fail(%s, %s, %s)", (job_id, token, text))
    else:
        (outcome,) = conn.execute("SELECT idemq.try_commit(%s, %s)", (job_id, token)).fetchone()
        print(outcome)  # committed; already_committed: also done; stale: another attempt has it
