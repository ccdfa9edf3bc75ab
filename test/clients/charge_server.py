#!/usr/bin/python3
"""charge_server.py: an outside service that charges cards, for recovery.pl.

POST /charges requires the header Idempotency-Key.  The same key again gets the first
answer; with another body, 422.  It honours Fencing-Token: one that is smaller than
the greatest seen for the key is 409.  GET /charges answers with all that was charged,
GET /requests with how many requests came.  After GET /break the next request gets a
proxy's answer: 502, in HTML, and nothing is charged.  Prints its port.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

lock = threading.Lock()
charges = {}  # by key: body, answer
tokens = {}  # by key: the greatest fencing token
requests = 0
broken = False


class Handler(BaseHTTPRequestHandler):
    def reply(self, status, answer):
        body = json.dumps(answer).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            pass  # the client is gone; what it asked for is done

    def do_GET(self):
        global broken
        with lock:
            if self.path == "/break":
                broken = True
                self.reply(200, broken)
            elif self.path == "/requests":
                self.reply(200, requests)
            else:
                self.reply(200, [answer for _, answer in charges.values()])

    def do_POST(self):
        global requests, broken
        key = self.headers["Idempotency-Key"]
        token = int(self.headers["Fencing-Token"] or 0)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            requests += 1
            if broken:
                broken = False
                self.send_error(502)
            elif not key:
                self.reply(400, {"error": "Idempotency-Key is required"})
            elif token < tokens.get(key, 0):
                self.reply(409, {"error": "stale fencing token"})
            elif key in charges and charges[key][0] != body:
                self.reply(422, {"error": "the key was used with another body"})
            else:
                tokens[key] = token
                if key not in charges:
                    charges[key] = body, {"charge": len(charges) + 1, "amount": body["amount"]}
                self.reply(200, charges[key][1])

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
