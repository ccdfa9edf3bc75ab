"""worker.py DSN: sends confirmations, each one once."""

import sys
import time

import psycopg


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
        conn.execute("SELECT idemq.fail(%s, %s, %s)", (job_id, token, str(error)))


def main(dsn):
    job = None
    while True:
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                while True:
                    job = job or claim(conn)
                    if job is None:
                        conn.execute("CALL idemq.wait('mail')")  # asleep until there is a job
                        continue
                    run(conn, *job)
                    job = None
        except psycopg.OperationalError:
            time.sleep(0.2)  # the connection is gone; job, if there is one, is not settled


main(sys.argv[1])
