"""celery_moved.py: the handlers of the tasks that have moved."""
import os
from idemq import Worker


def confirm(job, conn):
    conn.execute("INSERT INTO confirmations VALUES (%s)", [job.payload["order"]])  # committed with the job


Worker(os.environ["DSN"], "shop").run({"confirm": confirm})
