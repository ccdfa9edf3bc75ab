"""orders.py: ships an order when it is paid, and reminds the customer after three days (doc/usage/three-programs.md)."""
import os
import idemq

def order(job, conn):
    paid = job.await_event(f"paid {job.payload['order']}", "3 days")  # returns only when the payment is known
    table = "shipments" if paid.arrived else "reminders"
    conn.execute(f"INSERT INTO {table} VALUES (%s)", [job.payload["order"]])

def payment(job, conn):
    idemq.send_event(conn, "orders", f"paid {job.payload['order']}", job.payload)

idemq.Worker(os.environ["DSN"], "orders").run({"order": order, "payment": payment})
