"""report.py: each night at three the day's sales, once."""
import os
import idemq, psycopg

with psycopg.connect(os.environ["DSN"]) as conn:
    idemq.schedule(conn, "nightly", "0 3 * * *", "reports", {})

def report(job, conn):
    conn.execute("INSERT INTO reports SELECT %s, sum(total) FROM sales", [job.headers["tick"]])

idemq.Worker(os.environ["DSN"], "reports").run(report)
