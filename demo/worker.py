"""Hashes files: claims a job, then commits it and writes its result in one transaction.

    worker.py NAME [TRICK N]

TRICK happens at the N-th job: `hang` claims it and does nothing more (to be
killed), `stop` stops the process between claim and commit, `repeat` runs the
committed transaction again, as a client does that lost the answer.  What
happens is printed as JSON, a line an event.
"""

import hashlib
import json
import os
import signal
import sys

import psycopg
from psycopg.types.json import Jsonb

name = sys.argv[1]
trick, trick_at = (sys.argv[2], int(sys.argv[3])) if len(sys.argv) > 2 else (None, 0)
ending = False


def tell(event, job_id):
    print(json.dumps({"worker": name, "event": event, "job": job_id}), flush=True)


def end(*_):
    global ending
    ending = True


def claim(connection):
    return connection.execute(
        "SELECT id, token, payload FROM idemq.claim('hash', worker => %s, attach => true)",
        (name,),
    ).fetchone()


def finish(connection, job_id, token, path):
    """Commits the job and writes its effect, both or neither: commit first."""
    with open(path, "rb") as file:
        content = file.read()
    digest = hashlib.sha256(content).hexdigest()
    with connection.transaction():
        connection.execute(
            "SELECT idemq.commit(%s, %s, %s)", (job_id, token, Jsonb({"sha256": digest}))
        )
        connection.execute(
            "INSERT INTO results VALUES (%s, %s, %s, %s)", (path, digest, len(content), name)
        )


def play(connection, job_id, token, path):
    """The N-th job, in the way of this worker's trick."""
    if trick == "hang":
        tell("hangs", job_id)
        signal.pause()
    if trick == "stop":
        tell("stops", job_id)
        os.kill(os.getpid(), signal.SIGSTOP)
    finish(connection, job_id, token, path)
    if trick == "repeat":
        finish(connection, job_id, token, path)


def main():
    signal.signal(signal.SIGTERM, end)
    jobs = 0
    with psycopg.connect("dbname=postgres user=app", autocommit=True) as connection:
        while not ending:
            job = claim(connection)
            if job is None:
                # Asleep until there is a job; now and then awake, to see a SIGTERM.
                connection.execute("CALL idemq.wait('hash', '1 s')")
                continue
            job_id, token, payload = job
            jobs += 1
            try:
                if jobs == trick_at:
                    play(connection, job_id, token, payload["path"])
                else:
                    finish(connection, job_id, token, payload["path"])
            except psycopg.Error as error:
                # IQ001: the lease was lost.  IQ006: committed already.  Either
                # way the effect is undone, and this worker takes the next job.
                if error.sqlstate not in ("IQ001", "IQ006"):
                    raise
                tell(error.sqlstate, job_id)
            except OSError as error:
                text = str(error).replace("\0", "")  # which PostgreSQL's text cannot hold
                connection.execute("SELECT idemq.fail(%s, %s, %s)", (job_id, token, text))


main()
