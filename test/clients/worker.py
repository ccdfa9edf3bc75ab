"""worker.py DSN: sends confirmations, each one once."""

import signal
import sys
import time

import psycopg

ending = []
signal.signal(signal.SIGTERM, lambda *_: ending.append(True))  # finish the job, then end


CLAIM = "SELECT id, token, payload FROM idemq.claim('mail', worker => 'python', attach => true)"
COMMIT_AND_CLAIM = """SELECT id, token, payload
    FROM idemq.commit_and_claim(%s, %s, worker => 'python', attach => true)"""


def effect(conn, payload):
    conn.execute("INSERT INTO confirmations (order_id) VALUES (%s)", (payload["order"],))


def run(conn, job_id, token, payload):
    """Ends an attempt; returns the next job, which is claimed with the commit."""
    try:
        with conn.transaction():
            sql = "SELECT idemq.commit(%s, %s)" if ending else COMMIT_AND_CLAIM
            row = conn.execute(sql, (job_id, token)).fetchone()
            effect(conn, payload)
        return None if sql != COMMIT_AND_CLAIM else row
    except Exception as error:
        if conn.closed:
            raise  # the answer to COMMIT may be lost: main() runs the job again
        if getattr(error, "sqlstate", None) in ("IQ001", "IQ006"):
            return  # lease lost, or committed already; the effect is rolled back
        text = str(error).replace("\0", "")  # which PostgreSQL's text cannot hold
        conn.execute("SELECT idemq.fail(%s, %s, %s)", (job_id, token, text))


def main(dsn):
    job = None
    while not ending:
        try:
            with psycopg.connect(dsn, autocommit=True, target_session_attrs="read-write") as conn:
                while job or not ending:
                    job = job or conn.execute(CLAIM).fetchone()
                    if job is None:
                        conn.execute("CALL idemq.wait('mail', '5 s')")  # asleep until there is a job
                        continue
                    job = run(conn, *job)
        except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction):
            time.sleep(0.2)  # the server is gone, or a standby now; job, if there is one, is not settled


main(sys.argv[1])
