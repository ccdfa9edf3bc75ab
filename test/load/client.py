"""client.py: a client that comes back; README.md here.

The hosts of a DSN are asked one by one, each time beginning with another: psycopg's
connect_timeout is that of all hosts together in some versions, and a first one that hangs
would keep it from the second.
"""

import os
import random
import socket
import threading
import time
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import conninfo_to_dict


def hosts(dsn):
    """The parameters of a connection to each host of a DSN."""
    params = conninfo_to_dict(dsn)
    names, ports = str(params["host"]).split(","), str(params.get("port", 5432)).split(",")
    return [{**params, "host": name, "port": ports[n % len(ports)]} for n, name in enumerate(names)]


class Client:
    """One connection, which is made anew whenever it is lost.

    patience: seconds that a statement may take; then the socket is shut down under it, which
    ends the wait for a server that hangs: neither keepalives nor tcp_user_timeout would, since
    the kernel of such a server goes on answering.
    """

    prepare_threshold = 5  # None behind a pooler

    def __init__(self, dsn, name, log, patience=None):
        self.hosts = hosts(dsn)
        self.turn = random.randrange(len(self.hosts))
        self.name = name
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.patience = patience
        self.conn = None
        self._give_up_at = None
        if patience is not None:
            threading.Thread(target=self._watch, daemon=True).start()

    def note(self, *what):
        os.write(self.log, (" ".join(map(str, what)) + "\n").encode())

    def _watch(self):
        while True:
            time.sleep(0.05)
            if self._give_up_at is not None and time.monotonic() > self._give_up_at:
                self._give_up_at = None
                self.note("gave-up")
                try:
                    with socket.socket(fileno=os.dup(self.conn.fileno())) as end:
                        end.shutdown(socket.SHUT_RDWR)
                except (OSError, psycopg.Error):
                    pass  # it has ended

    @contextmanager
    def patient(self):
        """Gives up what runs inside when patience is over."""
        if self.patience is not None:
            self._give_up_at = time.monotonic() + self.patience
        try:
            yield
        finally:
            self._give_up_at = None

    def execute(self, sql, args=None):
        with self.patient():
            return self.conn.execute(sql, args)

    def rows(self, sql, args=None):
        with self.patient():
            return self.conn.execute(sql, args).fetchall()

    def connect(self):
        """Comes back as often as it takes."""
        while True:
            self.turn += 1
            try:
                self.conn = psycopg.connect(
                    **self.hosts[self.turn % len(self.hosts)], autocommit=True,
                    application_name=self.name, prepare_threshold=self.prepare_threshold,
                )
                return
            except psycopg.OperationalError:
                time.sleep(0.1 / len(self.hosts))

    def is_lost(self, error):
        """Whether an error means that this connection is of no more use."""
        state = error.sqlstate or ""
        if not self.conn.closed and (state in ("25006", "40003") or state[:2] == "08" or state[:3] == "57P"):
            self.conn.close()
        return self.conn.closed

    def rollback(self):
        """Ends the transaction; who has lost the connection has done so."""
        try:
            self.execute("ROLLBACK")
        except psycopg.DatabaseError as error:
            if not self.is_lost(error):
                raise
            self.connect()

    def settle(self, transaction, refusals):
        """Runs a transaction until its fate is known: None, or the SQLSTATE of a refusal."""
        while True:
            try:
                transaction()
                return None
            except psycopg.DatabaseError as error:
                if self.is_lost(error):
                    # The connection is gone, and perhaps only the answer with it.
                    self.note("again")
                    self.connect()
                    continue
                if error.sqlstate not in refusals:
                    raise
                self.rollback()
                return error.sqlstate

    def ask(self, sql, args=None):
        """The rows of a statement that may run twice."""
        while True:
            try:
                return self.rows(sql, args)
            except psycopg.DatabaseError as error:
                if not self.is_lost(error):
                    raise
                self.connect()
