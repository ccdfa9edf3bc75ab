"""letters.py DSN: one job sends many letters through an outside service."""

import sys

import psycopg
from psycopg.types.json import Jsonb

from service import send  # your client: must take an idempotency key; a fencing token if it can

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
            (outcome,) = conn.execute("SELECT idemq.heartbeat(%s, %s)", (job_id, token)).fetchone()
            if outcome != "current":
                sys.exit("lease lost: another attempt goes on from the checkpoint")
            send(payload["to"][n], idempotency_key=f"{request}/{n}", fencing_token=token)
            conn.execute("SELECT idemq.checkpoint(%s, %s, %s)", (job_id, token, Jsonb({"done": n + 1})))
    except OSError as error:
        text = str(error).replace("\0", "")  # which PostgreSQL's text cannot hold
        conn.execute("SELECT idemq.fail(%s, %s, %s)", (job_id, token, text))
    else:
        (outcome,) = conn.execute("SELECT idemq.try_commit(%s, %s)", (job_id, token)).fetchone()
        print(outcome)  # committed; already_committed: also done; stale: another attempt has it
