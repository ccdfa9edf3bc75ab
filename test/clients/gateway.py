"""gateway.py PORT LOG: a gateway before an endpoint at this port, which answers 502 to each job twice: to its first request, which it has
not passed on, and when the endpoint has done it, whose answer is lost.  Says on stdout at which port it listens.

A line of LOG is a request: the job, and the answer; of one that was lost, that of the endpoint, too.
"""

import sys
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, LOG = int(sys.argv[1]), sys.argv[2]
lock = threading.Lock()
met = set()


class Gateway(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        job = self.headers["Idemq-Id"]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with lock:
            first = job not in met
            met.add(job)
        status = 502 if first else self.passed_on(body)
        lost = status == 204
        with lock, open(LOG, "a", encoding="utf-8") as log:
            log.write(f"{job} {status}{':502' if lost else ''}\n")
        self.send_response(502 if lost else status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def passed_on(self, body):
        endpoint = HTTPConnection("127.0.0.1", PORT)
        endpoint.request("POST", self.path, body, dict(self.headers))
        answer = endpoint.getresponse()
        answer.read()
        endpoint.close()
        return answer.status

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
print(server.server_address[1], flush=True)
server.serve_forever()
