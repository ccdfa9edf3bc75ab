"""first_worker.py: the first worker of README.md and doc/tutorials/first-worker.md."""

import os
from idemq import Worker

def confirm(job, conn):
    conn.execute("INSERT INTO confirmations (order_id) VALUES (%s)", [job.payload["order"]])
    return {"sent": True}  # the job's result

Worker(os.environ["DSN"], "mail").run(confirm)  # until SIGTERM
