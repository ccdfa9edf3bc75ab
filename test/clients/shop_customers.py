"""shop_customers.py URL LOG: customers of the shop, for shop_faults.pl.  Each places orders, one after the other, under a key of its own, and
repeats a request until the shop has taken it; one in three is sent again even then.  Each order that was taken is a line of LOG: KEY CUSTOMER.
SIGTERM ends them after the order in hand."""

import http.client
import json
import random
import signal
import sys
import threading
import urllib.parse

URL, LOG = sys.argv[1:]
end = threading.Event()
log = open(LOG, "a", buffering=1)


def place(key, customer):
    """Whether the shop has taken it."""
    where = urllib.parse.urlsplit(URL)
    try:
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=20)
        connection.request("POST", "/orders", json.dumps({"customer": customer, "amount": 12}), {"Idempotency-Key": key})
        return connection.getresponse().status == 202
    except (OSError, http.client.HTTPException):
        return False


def orders(customer):
    number = 0
    while not end.is_set():
        number += 1
        key = f"{customer}-{number}"
        for _ in range(random.choice([1, 1, 2])):
            while not place(key, customer):
                threading.Event().wait(0.1)
        log.write(f"{key} {customer}\n")
        end.wait(1)


signal.signal(signal.SIGTERM, lambda *_: end.set())
customers = [threading.Thread(target=orders, args=[name]) for name in ("anna", "berta", "carla")]
for each in customers:
    each.start()
print("open", flush=True)
for each in customers:
    each.join()
