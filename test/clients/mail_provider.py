#!/usr/bin/python3
"""mail_provider.py: a provider of e-mail, for mailer.py.  Prints its port.

POST /mails sends one; the same Idempotency-Key again is the same mail, and gets its first
answer.  The first request for a recipient that begins with "bad" is answered by a proxy: 502, in
HTML, and nothing is sent; for one that begins with "late" the mail is sent, and the answer comes
after 4 s; for "stall" it is sent, and the answer comes when GET /go has been asked.
GET /mails answers with all that was sent, GET /requests with how many requests came.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

lock = threading.Lock()
go = threading.Event()
sent = {}  # by key: the recipient
met = set()
requests = 0


class Handler(BaseHTTPRequestHandler):
    def reply(self, answer):
        body = json.dumps(answer).encode()
        try:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass  # the client is gone

    def do_GET(self):
        if self.path == "/go":
            go.set()
        with lock:
            self.reply(requests if self.path == "/requests" else sorted(sent.values()))

    def do_POST(self):
        global requests
        to = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["to"]
        key = self.headers["Idempotency-Key"]
        with lock:
            requests += 1
            first = to not in met
            met.add(to)
            if not (first and to.startswith("bad")):
                sent.setdefault(key, to)
        if first and to.startswith("bad"):
            self.send_error(502)
            return
        if first and to.startswith("late"):
            threading.Event().wait(4)
        if first and to.startswith("stall"):
            go.wait(120)
        self.reply({"sent": to})

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
