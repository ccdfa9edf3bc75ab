"""endpoint.py LOG [PORT|SOCKET] [CERTIFICATE KEY]: an endpoint for idemq-work --http, which does what a job's payload says.

Says on stdout at which port it listens.  A line of LOG, in JSON, is a request: its headers by their names in small letters, its body.
"""

import hashlib
import json
import socket
import ssl
import sys
import threading
import time
from pathlib import Path

LOG = sys.argv[1]
WHERE = sys.argv[2] if len(sys.argv) > 2 else "0"
lock = threading.Lock()


def answer(status, body=b"", headers=()):
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Connection:
    def __init__(self, plain):
        self.plain = plain
        self.read = plain.makefile("rb")

    def log(self, what):
        with lock, open(LOG, "a", encoding="utf-8") as log:
            log.write(json.dumps(what) + "\n")

    def serve(self):
        """Request after request; until one ends the connection."""
        while first := self.read.readline():
            headers = {}
            while (line := self.read.readline()) not in (b"\r\n", b""):
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            its = {"line": first.decode().strip(), "headers": headers, "from": self.plain.fileno()}
            if headers.get("idemq-kind") == "early":
                self.log(its)
                # And never reads: neither side closes the connection for it.
                self.plain.sendall(answer(200, b'"early"'))
                threading.Event().wait()
            body = self.read.read(int(headers["content-length"]))
            # One of 16 MB would be read again and again.
            logged = body.decode() if len(body) < 2**20 else hashlib.sha256(body).hexdigest()
            self.log({**its, "body": logged, "time": time.time()})
            said = json.loads(body)
            if not self.act(said if isinstance(said, dict) else {}, headers):
                return

    def act(self, said, headers):
        """What the payload asks for; whether the connection goes on."""
        do = said.get("do", "answer")
        if do == "answer":
            body = said["body"].replace("%0", "\0").encode("latin-1") if "body" in said else json.dumps(said.get("result", headers["idemq-id"])).encode()
            self.plain.sendall(answer(said.get("status", 200), body, said.get("headers", [])))
            return True
        if do == "nothing":
            # Until the other side closes it.
            self.read.read(1)
            self.log({"closed": headers["idemq-id"], "token": headers["idemq-token"]})
        elif do == "slow":
            for byte in answer(200, b"x" * 1000):
                time.sleep(1)
                self.plain.sendall(bytes([byte]))
        elif do == "huge":
            self.plain.sendall(f"HTTP/1.1 {said.get('status', 200)} x\r\nContent-Length: {10 * 2**30}\r\n\r\n".encode())
            while True:
                self.plain.sendall(b"[" * 2**20)
        elif do == "headers":
            self.plain.sendall(answer(200, b"1", [f"X-{n}: {'x' * 8000}" for n in range(100)]))
        elif do == "cut":
            self.plain.sendall(b"HTTP/1.1 200 x\r\nContent-Length: 100\r\n\r\n[1, 2")
        elif do == "wait":
            gate = Path(said["gate"])
            self.log({"waits": headers["idemq-id"], "token": headers["idemq-token"]})
            while not gate.exists():
                time.sleep(0.05)
            self.plain.sendall(answer(said.get("status", 200), b'"waited"'))
            return True
        # And else it dies.
        return False


def serve(plain):
    try:
        if len(sys.argv) > 3:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(sys.argv[3], sys.argv[4])
            plain = context.wrap_socket(plain, server_side=True)
        with plain:
            Connection(plain).serve()
    except OSError:
        pass


def main():
    if WHERE.startswith("/"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(WHERE)
    else:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(WHERE)))
    listener.listen(200)
    print(listener.getsockname()[1] if WHERE[0] != "/" else WHERE, flush=True)
    while True:
        plain, _ = listener.accept()
        threading.Thread(target=serve, args=(plain,), daemon=True).start()


main()
