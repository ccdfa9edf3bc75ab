#!/usr/bin/python3
"""shop_provider.py [ONE_IN]: a provider of payments and mails, for shop.pl and shop_faults.pl.  Prints its port.

POST /charges and /mails do what the body says, under an Idempotency-Key.  So that the tests notice a call that is made twice, the
same key again is done again: whoever does not know what became of a call asks.  GET /charges/KEY and /mails/KEY answer {"id": KEY}, or 404 if
nothing has been done under that key.  GET /charges and /mails: all bodies, in the order in which they were done; GET /troubles: how
many requests have gone wrong.  With ONE_IN, one in so many does: nothing is done, or it is done, and then the answer is 502, or does
not come before the client has given up.
"""

import json
import random
import select
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

one_in = int(sys.argv[1]) if len(sys.argv) > 1 else 0
lock = threading.Lock()
done = {"charges": [], "mails": []}  # [key, body]
troubles = {"charges": 0, "mails": 0}


class Handler(BaseHTTPRequestHandler):
    def reply(self, answer, status=200):
        body = json.dumps(answer).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass  # the client is gone

    def do_GET(self):
        what, _, key = self.path[1:].partition("/")
        with lock:
            if what == "troubles":
                self.reply(troubles)
            elif not key:
                self.reply([body for _, body in done[what]])
            elif key in [of for of, _ in done[what]]:
                self.reply({"id": key})
            else:
                self.reply("nothing of that key", 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        what, key = self.path[1:], self.headers["Idempotency-Key"]
        if self.client_is_gone(0):
            return  # it has given up, and asks what became of it
        with lock:
            trouble = random.choice(["refused", "502", "silence"]) if one_in and random.randrange(one_in) == 0 else None
            troubles[what] += trouble is not None
            if trouble != "refused":
                done[what].append([key, body])
        if trouble == "silence":
            self.client_is_gone(60)
        self.reply({"id": key}, 502 if trouble else 200)

    def client_is_gone(self, timeout):
        return bool(select.select([self.connection], [], [], timeout)[0])

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
