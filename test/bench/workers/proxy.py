"""A Unix socket before a server's, which counts what clients wait for: messages are the queries and the Syncs of PostgreSQL's
protocol, turns how often a client has sent something after an answer."""

import os
import socket
import struct
import threading

SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102


class Proxy:
    def __init__(self, listen, server):
        self.messages = self.turns = 0
        self._server = server
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(listen)
        os.chmod(listen, 0o777)
        self._listener.listen(300)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            client, _ = self._listener.accept()
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._server)
            except OSError:
                client.close()
                continue
            answered = threading.Event()
            for pump in (self._requests, self._answers):
                threading.Thread(target=pump, args=(client, server, answered), daemon=True).start()

    def _requests(self, client, server, answered):
        counted, started = bytearray(), False
        while data := received(client):
            turned = answered.is_set()
            answered.clear()
            counted += data
            messages = 0
            while True:
                if not started and len(counted) >= 8:
                    length, code = struct.unpack_from("!ii", counted)
                    if len(counted) < length:
                        break
                    del counted[:length]
                    started = code not in (SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST)
                elif started and len(counted) >= 5:
                    length = struct.unpack_from("!i", counted, 1)[0] + 1
                    if len(counted) < length:
                        break
                    messages += counted[0] in b"QSF"
                    del counted[:length]
                else:
                    break
            with self._lock:
                self.messages += messages
                self.turns += turned
            if not sent(server, data):
                break
        end(client, server)

    def _answers(self, client, server, answered):
        while data := received(server):
            answered.set()
            if not sent(client, data):
                break
        end(client, server)


def received(end_):
    try:
        return end_.recv(1 << 18)
    except OSError:
        return b""


def sent(end_, data):
    try:
        end_.sendall(data)
        return True
    except OSError:
        return False


def end(*ends):
    for each in ends:
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
