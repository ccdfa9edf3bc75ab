"""celery_shop.py: the tasks of a shop that is moving away from Celery, as loaded by Celery's worker."""
import os
import celery, psycopg
from idemq import enqueue

app = celery.Celery("shop", broker=os.environ["BROKER"])
moves = dict(bind=True, acks_late=True, reject_on_worker_lost=True, autoretry_for=(psycopg.OperationalError,),
             retry_backoff=True, retry_backoff_max=60, max_retries=None)


@app.task(name="confirm", **moves)
def confirm(self, order):  # its body is now a handler of idemq, and each call becomes a job
    with psycopg.connect(os.environ["DSN"]) as conn:
        enqueue(conn, "shop", {"order": order}, kind="confirm", key=f"celery/{self.request.id}")


@app.task(name="report")
def report(month):  # has not moved yet
    with psycopg.connect(os.environ["DSN"]) as conn:
        conn.execute("INSERT INTO reports VALUES (%s, 'celery')", [month])
