"""worker.py DSN: sends confirmations, each one once."""

import signal
import sys
import time

import psycopg

ending = []
signal.signal(signal.SIGTERM, lambda *_: ending.append(True))  # finish the job, then end


def claim(conn):
    """Begins an attempt, in a transaction of its own."""
    return conn.execute(
        "SELECT id, token, payload FROM idemq.claim('mail', worker => 'python', attach => true)"
    ).fetchone()


def effect(conn, payload):
    conn.execute("INSERT INTO confirmations (order_id) VALUES (%s)", (payload["order"],))


def run(conn, job_id, token, payload):
    try:
        with conn.transaction():
            conn.execute("SELECT idemq.commit(%s, %s)", (job_id, token))
            effect(conn, payload)
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
                    job = job or claim(conn)
                    if job is None:
                        conn.execute("CALL idemq.wait('mail', '5 s')")  # asleep until there is a job
                        continue
                    run(conn, *job)
                    job = None
        except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction):
            time.sleep(0.2)  # the server is gone, or a standby now; job, if there is one, is not settled


main(sys.argv[1])
