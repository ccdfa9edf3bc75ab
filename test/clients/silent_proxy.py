"""silent_proxy.py CONTROL TO: a proxy between clients and PostgreSQL (a port, or the folder of a socket), which prints its own port.

It swallows bytes, and says nothing of that, as a firewall does that has forgotten a connection.  Each line of the file CONTROL arms it:

    all                 every connection that is open, both ways; new ones are passed on
    request PATTERN     the next connection whose client sends bytes that match: these and all later ones, both ways
    answer PATTERN      the same, but the bytes that match are passed on: the answer is swallowed

It prints a line when it has swallowed something because of that: "silent PATTERN".
"""

import os
import re
import selectors
import socket
import sys

control, to = sys.argv[1:]
listener = socket.create_server(("127.0.0.1", 0))
selector = selectors.DefaultSelector()
selector.register(listener, selectors.EVENT_READ, None)
print(listener.getsockname()[1], flush=True)
armed, read = [], 0


class Pair:
    def __init__(self, client):
        self.client = client
        self.server = socket.socket(socket.AF_UNIX) if to.startswith("/") else socket.socket()
        self.server.connect(to if to.startswith("/") else ("127.0.0.1", int(to)))
        self.silent = False
        for end in (self.client, self.server):
            selector.register(end, selectors.EVENT_READ, self)

    def close(self):
        for end in (self.client, self.server):
            try:
                selector.unregister(end)
            except (KeyError, ValueError):
                pass
            end.close()

    def serve(self, end):
        try:
            data = end.recv(65536)
        except OSError:
            data = b""
        if not data:
            # A connection that the client gives up is closed; the server hears nothing of it.
            if end.fileno() < 0:
                return  # closed with its other end, of which the same select has told
            selector.unregister(end)
            if not self.silent:
                self.close()
            return
        if end is self.client and not self.silent:
            for arm in armed:
                if arm[1].search(data):
                    armed.remove(arm)
                    self.silent = True
                    if arm[0] == "answer":
                        self.server.sendall(data)
                    print("silent", arm[1].pattern.decode(), flush=True)
                    break
        if not self.silent:
            (self.server if end is self.client else self.client).sendall(data)


pairs = []
while True:
    for key, _ in selector.select(0.05):
        if key.data is None:
            pairs.append(Pair(listener.accept()[0]))
        else:
            try:
                key.data.serve(key.fileobj)
            except OSError:
                key.data.close()
    lines = open(control).read().splitlines() if os.path.exists(control) else []
    for line in lines[read:]:
        what, _, pattern = line.partition(" ")
        if what == "all":
            for pair in pairs:
                pair.silent = True
            print("silent all", flush=True)
        else:
            armed.append((what, re.compile(pattern.encode())))
    read = len(lines)
