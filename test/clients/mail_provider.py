#!/usr/bin/python3
"""mail_provider.py [keyless]: a provider of e-mail, for test/t/lib/ThreePrograms.pm.  Prints its port.

POST /mails sends one; the same Idempotency-Key again is the same mail, or, keyless, another one.  How it
does that is the first word of the recipient, up to a dot:
    well   sent, and answered
    bad    first a proxy answers 502, in HTML, and nothing is sent; worse: three times
    lost   sent, but the first answer is such a 502
    late   sent, but the first answer does not come before the client has given up
    stall  sent, but no answer comes before GET /go/RECIPIENT, also when it is asked for by its key
GET /mails: the recipients of all that was sent; /mails/KEY: what was sent under the key, or 404;
/requests: the recipients of all requests; /calls: those whose clients wait for /go.
"""

import json
import select
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

keyless = sys.argv[1:] == ["keyless"]
lock = threading.Lock()
gone_on = set()
sent = []  # [key, recipient]
requests = []
calls = []


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
        what, _, which = self.path[1:].partition("/")
        with lock:
            if what == "go":
                gone_on.add(which)
            under = [to for key, to in sent if which in ("", key)]
            answer = list({"requests": requests, "calls": calls}.get(what, under))
        if what == "mails" and which:
            if answer and answer[0].startswith("stall"):
                self.stall(answer[0])
            self.reply(*([{"sent": answer[0]}] if answer else ["nothing of that key", 404]))
        else:
            self.reply(answer)

    def do_POST(self):
        to = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["to"]
        key = self.headers["Idempotency-Key"]
        if self.client_is_gone():
            return  # it has given up on a call that now does not arrive any more
        with lock:
            how = to.split(".")[0]
            requests.append(to)
            nth = requests.count(to)
            refused = nth <= {"bad": 1, "worse": 3}.get(how, 0)
            if not refused and (keyless or key not in [of for of, _ in sent]):
                sent.append([key, to])
        if refused or (nth == 1 and how == "lost"):
            self.send_error(502)
            return
        while nth == 1 and how == "late" and not self.client_is_gone(0.05):
            pass
        if how == "stall":
            self.stall(to)
        self.reply({"sent": to})

    def stall(self, to):
        """Until it may go on, or the client is gone."""
        with lock:
            calls.append(to)
        while to not in gone_on and not self.client_is_gone(0.05):
            pass
        with lock:
            calls.remove(to)

    def client_is_gone(self, timeout=0):
        return bool(select.select([self.connection], [], [], timeout)[0])

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
