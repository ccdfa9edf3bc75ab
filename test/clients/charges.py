"""charges.py: the charge that README.md and doc/tutorials/charge-a-card.md show.  shop.pl runs it."""
import os
import psycopg
from idemq import Worker, enqueue

class Provider:  # represents the client of a payment provider
    def post(self, path, request, idempotency_key, timeout):
        with psycopg.connect(os.environ["DSN"]) as conn:
            conn.execute("INSERT INTO charged VALUES (%s, %s) ON CONFLICT DO NOTHING", [idempotency_key, request["amount"]])
        return {"id": idempotency_key}

    def find(self, key):
        with psycopg.connect(os.environ["DSN"]) as conn:
            return {"id": key} if conn.execute("SELECT FROM charged WHERE key = %s", [key]).fetchone() else None

provider = Provider()

def charge(job, conn):
    def call(step):  # step.timeout: seconds left for the call
        return provider.post("/charges", step.request, idempotency_key=step.key, timeout=step.timeout)

    def ask(step):  # returns None if the provider knows nothing of the charge
        return provider.find(step.key)

    paid = job.step("charge", call, {"amount": job.payload["amount"]}, call_timeout=10, ask=ask)
    conn.execute("UPDATE orders SET charge = %s WHERE id = %s", [paid["id"], job.payload["order"]])
    enqueue(conn, "mail", {"paid": job.payload["order"]}, key=job.key)

Worker(os.environ["DSN"], "charges").run(charge)
