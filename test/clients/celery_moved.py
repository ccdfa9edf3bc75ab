"""celery_moved.py: handlers for the tasks that have moved to idemq."""
import os
from idemq import Worker


def confirm(job, conn):
    conn.execute("INSERT INTO confirmations VALUES (%s)", [job.payload["order"]])  # committed with the job


Worker(os.environ["DSN"], "shop").run({"confirm": confirm})
