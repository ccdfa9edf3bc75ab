"""Django's connection in a task: its transaction is the one that completes the job.

A task finds it as connections[alias] of its thread, as it finds any other.  For Django, a transaction has already begun on it, so atomic() is
a savepoint, and commit(), rollback() and close() raise.  The database connection is the one that idemq's worker lends to the handler.  It refuses SQL
statements that end the transaction, and its first use begins the transaction and locks the job.
"""

import functools
from contextlib import contextmanager
from typing import Any, Iterator

from django.db import connections
from django.db.transaction import Atomic, TransactionManagementError
from psycopg import adapt

from .._handler_connection import HandlersConnection, _Cursor

_WITHOUT = ("pool", "isolation_level", "assume_role")
"""Options of DATABASES for new connections, which the worker opens itself."""


class _Driver:
    """psycopg for Django's wrapper: a new connection is the worker's."""

    def __init__(self, driver: Any, conn: HandlersConnection) -> None:
        self._driver = driver
        self._conn = conn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def connect(self, *, context: Any, cursor_factory: Any, **params: Any) -> HandlersConnection:
        self._conn._adapters = adapt.AdaptersMap(context.adapters)
        self._conn.cursor_factory = _cursor_class(cursor_factory)
        return self._conn


@functools.lru_cache(maxsize=None)
def _cursor_class(base: Any) -> Any:
    """Django's cursor, which refuses statements that end the transaction."""
    return type("TaskCursor", (_Cursor, base), {})


class _TaskConnection:
    """What differs from the wrapper of Django's engine, or of another one that is based on it."""

    def lend(self: Any, conn: HandlersConnection) -> None:
        self.Database = _Driver(self.Database, conn)
        self.in_atomic_block = True
        # So that atomic(durable=True) raises.
        self.atomic_blocks = [Atomic(self.alias, savepoint=True, durable=False)]

    def connect(self: Any) -> None:
        kept = self.atomic_blocks, self.savepoint_ids, self.needs_rollback, self.run_on_commit
        super().connect()
        self.in_atomic_block, self.autocommit = True, False
        self.atomic_blocks, self.savepoint_ids, self.needs_rollback, self.run_on_commit = kept

    def _set_autocommit(self, autocommit: bool) -> None:
        """The transaction belongs to the worker."""

    def close(self: Any) -> None:
        raise TransactionManagementError("the connection of a task cannot be closed, because its transaction completes the job")


@functools.lru_cache(maxsize=None)
def _wrapper_class(base: Any) -> Any:
    return type(f"Task{base.__name__}", (_TaskConnection, base), {})


@contextmanager
def task_transaction(alias: str, conn: HandlersConnection) -> Iterator[list[Any]]:
    """Context manager in which connections[alias] of this thread has the transaction of conn.  Yields a list, which at the end has the functions
    of transaction.on_commit."""
    own = connections[alias]
    options = {name: value for name, value in own.settings_dict["OPTIONS"].items() if name not in _WITHOUT}
    wrapper = _wrapper_class(type(own))({**own.settings_dict, "OPTIONS": options, "CONN_HEALTH_CHECKS": False, "CONN_MAX_AGE": 0}, alias)
    wrapper.lend(conn)
    connections[alias] = wrapper
    functions: list[Any] = []
    try:
        yield functions
        if wrapper.needs_rollback:
            raise TransactionManagementError("the task has ended, but its transaction was marked for rollback")
        functions.extend(function for _, function, *_ in wrapper.run_on_commit)
    finally:
        connections[alias] = own
        wrapper.connection, wrapper.closed_in_transaction = None, True
