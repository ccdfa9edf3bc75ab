"""The web server of the shop: POST /orders with an Idempotency-Key."""

import http.server
import json
import os
import signal

import psycopg
from idemq import KeyReused

from queues import charges, declare_queues
from shop import place
from tables import create_tables


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        try:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with psycopg.connect(os.environ["DSN"]) as db:
                place(db, charges.decode({**body, "id": self.headers["Idempotency-Key"]}))
            status = 202  # not before it is stored
        except psycopg.Error as error:
            status = 422 if isinstance(error, KeyReused) else 503
        except (TypeError, ValueError):
            status = 400  # no JSON, or not an Order
        self.send_response(status)
        self.end_headers()


with psycopg.connect(os.environ["DSN"]) as db:
    create_tables(db)
    declare_queues(db)
signal.signal(signal.SIGTERM, lambda *_: exit(0))
http.server.ThreadingHTTPServer(("", int(os.environ["PORT"])), Handler).serve_forever()
