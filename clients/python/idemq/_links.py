"""Links: connections that reconnect when they are lost.

A loss is one line in the log, whether a crash, a restart, a failover, a pooler or an idle timeout caused it.  The line is
repeated every minute, and the return of the connection is another line.  The first attempt is immediate; the pauses after it start at 0.2 s and double up to 10 s.
A server that has become a standby (25006) is treated like one that is down.  If the DSN names several hosts,
the link finds the one that accepts writes.  It tries each host separately, because psycopg would wait indefinitely for
a first host that does not answer.

A session is direct if its process has the number that the server reported when the connection started.  A
pooler invents that number.  Only in a direct session can leases be attached, statements prepared, and settings
made for the whole session.

Links do not depend on the settings of roles and databases: text is sent and read as UTF-8, the worker's own rows
are read in binary format, which DateStyle and similar settings do not affect, and no session is ended for being idle.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
from datetime import timezone, tzinfo
from typing import Any, Callable, Coroutine, Generic, NamedTuple, Optional, Sequence, TypeVar, Union

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from . import _pipeline
from ._forks import connections
from ._handler_connection import AsyncHandlersConnection, HandlersConnection, by_worker, give_up, sever
from ._threads import in_thread
from ._values import AnyConnection, Row
from .errors import said, sqlstate

log = logging.getLogger("idemq")

LOCK_TIMEOUT = "1s"
"""How long a statement may wait for a lock on a link with limits_locks."""
ANSWER_TIMEOUT = 10.0
"""Seconds within which the worker's own statements must be answered."""

T = TypeVar("T")
Conn = TypeVar("Conn", Connection[Any], AsyncConnection[Any])

REPEAT_AFTER = 60.0
"""Seconds after which a connection that is still lost is logged again."""
INTERRUPT_TIMEOUT = 2.0
"""Seconds that a cancel request may take."""
_FIRST_BACKOFF = 0.1
_LAST_BACKOFF = 10.0
# The process, whether the session is read-only, whether the server is a standby, and statement_timeout in milliseconds
# (0: none).  A direct session may be idle while its handler is busy elsewhere.  Behind a pooler, settings would reach other
# processes.
_SESSION_INFO = """SELECT who.pid, pg_catalog.current_setting('transaction_read_only') AS read_only,
        pg_catalog.pg_is_in_recovery() AS standby,
        (SELECT setting::int8 FROM pg_catalog.pg_settings WHERE name = 'statement_timeout') AS statement_timeout,
        CASE WHEN who.pid = %s THEN pg_catalog.set_config('idle_session_timeout',
            pg_catalog.set_config('idle_in_transaction_session_timeout', '0', false), false) END,
        pg_catalog.to_regprocedure('idemq.hold_claimed()') IS NOT NULL,
        (SELECT extract(epoch FROM a.backend_start)::text FROM pg_catalog.pg_stat_get_activity(who.pid) AS a),
        EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'idemq'), pg_catalog.current_database()::text,
        CASE WHEN who.pid = %s AND pg_catalog.current_setting('idemq.process', true) IS NOT NULL
            THEN pg_catalog.set_config('idemq.process', %s, false) END
    FROM pg_catalog.pg_backend_pid() AS who (pid)"""
END_SESSION = """SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_get_activity(%s) AS a
    WHERE extract(epoch FROM a.backend_start)::text = %s"""
_END_STATEMENT_TIMEOUT = 1.0
"""Seconds for which a statement may go on after its connection was severed."""
_DEFAULTS = {
    "fallback_application_name": "idemq-python",
    "connect_timeout": 3,
    # A cut cable is noticed after 25 s instead of two hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25000,
}


def place(dsn: str) -> str:
    """Database and host of a DSN, for the log."""
    try:
        params = conninfo_to_dict(dsn)
    except psycopg.Error:
        return "invalid DSN"
    user = params.get("user") or os.environ.get("PGUSER")
    database = params.get("dbname") or os.environ.get("PGDATABASE") or user or "with the user's name"
    host = params.get("host") or params.get("hostaddr") or os.environ.get("PGHOST") or "this machine"
    return f"database {database} at {host}"


class AnswerLost(Exception):
    """The connection was lost during a statement, which may or may not have been executed."""


def hosts(dsn: str) -> list[dict[str, Any]]:
    """The connection parameters for each host of a DSN."""
    params: dict[str, Any] = dict(_DEFAULTS)
    if "PGCONNECT_TIMEOUT" in os.environ:
        del params["connect_timeout"]
    params.update(conninfo_to_dict(dsn))
    # This overrides role and environment, because a payload can contain any character.
    params["client_encoding"] = "UTF8"
    columns: dict[str, list[str]] = {}
    for name, variable in (("host", "PGHOST"), ("hostaddr", "PGHOSTADDR"), ("port", "PGPORT")):
        value = params.get(name) or os.environ.get(variable)
        if value:
            columns[name] = str(value).split(",")
    count = max((len(column) for name, column in columns.items() if name != "port"), default=1)
    if count == 1:
        return [params]
    # A single port applies to all hosts.
    return [
        {**params, **{name: column[n % len(column)] for name, column in columns.items()}} for n in range(count)
    ]


def is_lost(conn: AnyConnection, error: BaseException) -> bool:
    """Whether an error means that this connection can no longer be used, and its handler is not the cause."""
    state = sqlstate(error)
    given_up = isinstance(conn, (HandlersConnection, AsyncHandlersConnection)) and conn.given_up
    return bool(
        (conn.closed and not given_up) or conn.broken or state[:2] == "08" or state == "25006" or state[:3] == "57P"
    )


async def interrupt(conn: AnyConnection) -> None:
    """Cancels the running statement of a connection, if there is one."""
    try:
        await asyncio.wait_for(in_thread(conn.cancel), INTERRUPT_TIMEOUT)
    except (psycopg.Error, asyncio.TimeoutError, OSError) as error:
        log.debug("cancel: %s", error)


class Process(NamedTuple):
    """A process of the server."""

    pid: int
    started: str
    """Its start time, because process numbers are reused."""


class SessionInfo(NamedTuple):
    """Properties of a new connection."""

    direct: bool
    """Whether the session is direct, without a pooler."""
    statement_timeout: float
    """Seconds that a statement may take (statement_timeout); 0 means no limit."""
    has_hold_claimed: bool = False
    """Whether idemq.hold_claimed exists."""
    process: Optional[Process] = None
    """Process of the session, if it is direct."""
    hears_ends: bool = False
    """Whether the server tells the worker's process at once if one of its attempts is cancelled or taken back."""


def _prepare_session(conn: AnyConnection, row: Row, needs_idemq: bool = True) -> SessionInfo:
    """Prepares a new connection.  Raises if it cannot write, or if the database does not have idemq."""
    pid, read_only, standby, statement_timeout, _, has_hold_claimed, started, has_idemq, database, worker = row
    if read_only == "on":
        raise psycopg.errors.ReadOnlySqlTransaction(
            "the server is a standby, which does not accept writes" if standby else
            "default_transaction_read_only is on for this role, database or server, but a worker must write: "
            "ALTER ROLE ... SET default_transaction_read_only = off"
        )  # fmt: skip
    if needs_idemq and not has_idemq:
        raise psycopg.errors.InvalidSchemaName(
            f'database "{database}" does not have the extension: run CREATE EXTENSION idemq in it, or connect to '
            'a database that has it'
        )
    conn.add_notice_handler(_notice)
    direct = conn.info.backend_pid == pid
    if not direct:
        conn.prepare_threshold = None
    if isinstance(conn, (HandlersConnection, AsyncHandlersConnection)):
        conn.direct, conn.named, conn.has_hold_claimed = direct, direct, has_hold_claimed
    connections.add(conn)
    return SessionInfo(direct, statement_timeout / 1000, has_hold_claimed, Process(pid, started) if direct and started else None, bool(worker))


def _session_values(conn: AnyConnection, worker: str) -> list[Any]:
    """Parameters of _SESSION_INFO.  worker: identifies the worker's process in all its sessions; empty if there is none."""
    return [conn.info.backend_pid, conn.info.backend_pid, worker]


def _notice(diagnostic: psycopg.errors.Diagnostic) -> None:
    if diagnostic.severity_nonlocalized == "WARNING":
        log.warning("%s", diagnostic.message_primary)


def _last_error(error: Optional[BaseException]) -> BaseException:
    return error or psycopg.OperationalError("the DSN does not specify a host")


def connect(dsn: str, needs_idemq: bool = True, worker: str = "") -> tuple[Connection[Any], SessionInfo]:
    """A connection in autocommit mode to the host that accepts writes, and its properties."""
    last: Optional[BaseException] = None
    for params in hosts(dsn):
        conn = None
        try:
            conn = HandlersConnection.connect(autocommit=True, **params)
            assert isinstance(conn, HandlersConnection)
            conn.answer_within = ANSWER_TIMEOUT
            row = conn.execute(_SESSION_INFO, _session_values(conn, worker)).fetchone()
            conn.answer_within = None
            assert row is not None
            return conn, _prepare_session(conn, row, needs_idemq)
        except (psycopg.Error, OSError) as error:
            last = error
            if conn is not None:
                conn.close()
    raise _last_error(last)


async def connect_async(dsn: str, needs_idemq: bool = True, worker: str = "") -> tuple[AsyncConnection[Any], SessionInfo]:
    """Like connect, for an AsyncConnection."""
    last: Optional[BaseException] = None
    for params in hosts(dsn):
        conn = None
        try:
            timeout = float(params.get("connect_timeout") or ANSWER_TIMEOUT) + 1
            conn = await asyncio.wait_for(AsyncHandlersConnection.connect(autocommit=True, **params), timeout)
            assert isinstance(conn, AsyncHandlersConnection)
            with conn.limited(ANSWER_TIMEOUT):
                row = await (await conn.execute(_SESSION_INFO, _session_values(conn, worker))).fetchone()
            assert row is not None
            return conn, _prepare_session(conn, row, needs_idemq)
        except asyncio.TimeoutError:
            last = psycopg.errors.ConnectionTimeout(f"no response from {params.get('host')}")
        except (psycopg.Error, OSError) as error:
            last = error
        if conn is not None:
            await conn.close()
    raise _last_error(last)


class Address:
    """The address of a server.  The address of a shard changes with the map (_cluster.py)."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.version = 0

    async def has_moved(self, error: Optional[BaseException], version: int) -> bool:
        """Whether an error of a connection that was opened at this version means that the jobs are,
        or will soon be, at another place."""
        return False


class Link(Generic[Conn]):
    """A connection that reconnects.  It is opened when it is first needed."""

    def __init__(self, name: str, to: Union[str, Address], retry_connect: bool = True, needs_idemq: bool = True) -> None:
        self.conn: Optional[Conn] = None
        self.address = to if isinstance(to, Address) else Address(to)
        self._session_info = SessionInfo(False, 0)
        self.connections = 0
        self._name = name
        self._connected_to = ""
        self.version = 0
        """Version of the address when the connection was opened."""
        self.zone: tzinfo = timezone.utc
        """Time zone of the session, used for times."""
        self._asking = False
        self._statement: Optional["asyncio.Future[Any]"] = None
        """The statement that is running in the event loop."""
        self._ended = False
        """Whether the worker has ended.  A step that is still under way connects again to store its answer."""
        self.in_use = False
        """Whether a thread is using the connection without ask()."""
        self.answer_timeout: Optional[float] = None
        """Seconds within which a statement must be answered, unless the caller gives a limit.  None means ANSWER_TIMEOUT."""
        self.on_silent: Callable[[Process], None] = lambda process: None
        """Called with the process of the session when a connection was given up because the server did not answer."""
        self._retry_connect = retry_connect
        self._needs_idemq = needs_idemq
        self.limits_locks = False
        """Whether no statement may wait for a lock for longer than LOCK_TIMEOUT, because other statements wait for the link."""
        self.closing = False
        """Whether the worker is closing its connections, so that statements that wait for a connection open none."""
        self.worker = ""
        """Identifies the worker's process in its sessions; empty if this is not the link of a worker."""
        self._ask_lock = asyncio.Lock()
        self._open_lock = asyncio.Lock()
        self._lost_at: Optional[float] = None
        self.last_error: Optional[BaseException] = None
        """The error of the last loss or attempt to connect."""
        self._logged_at = 0.0
        self._backoff = _FIRST_BACKOFF

    @property
    def direct(self) -> bool:
        """Whether the session is direct, so that leases can be attached to it."""
        return self._session_info.direct

    @property
    def process(self) -> Optional[Process]:
        """Process of the session, if it is direct."""
        return self._session_info.process

    @property
    def hears_ends(self) -> bool:
        """Whether the server tells the worker's process at once if one of its attempts is cancelled or taken back."""
        return self._session_info.hears_ends

    @property
    def statement_timeout(self) -> float:
        """Seconds that a statement may take; 0 means no limit."""
        return self._session_info.statement_timeout

    @property
    def usable(self) -> bool:
        """Whether there is a connection to the known current address of the server."""
        return self.conn is not None and not self.conn.closed and self._connected_to == self.address.dsn

    def has_ended(self) -> bool:
        """Whether the server has ended the session or sent data outside a statement.  Checks the socket."""
        conn = self.conn
        if conn is None or conn.closed:
            return True
        if self._asking or self.in_use:
            return False
        try:
            with socket.socket(fileno=os.dup(conn.fileno())) as end:
                end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            return True
        except BlockingIOError:
            return False
        except (OSError, psycopg.Error):
            return True

    @property
    def lost(self) -> bool:
        """Whether the last attempt to connect has failed."""
        return self._lost_at is not None

    @property
    def lost_for(self) -> float:
        """Seconds for which there has been no connection, since it was lost or could not be opened; 0 if there is one."""
        return 0.0 if self._lost_at is None else time.monotonic() - self._lost_at

    async def _connect(self, dsn: str) -> tuple[Conn, SessionInfo]:
        raise NotImplementedError

    async def _execute(self, conn: Conn, sql: str, values: Sequence[Any]) -> list[Row]:
        raise NotImplementedError

    async def ready(self) -> Conn:
        """The connection, after as many attempts as necessary.  The caller sets the time limit."""
        async with self._open_lock:
            if self.conn is not None and self._connected_to != self.address.dsn and not self._asking:
                await self.drop()
            while self.conn is None or self.conn.closed:
                if self.closing:
                    raise psycopg.OperationalError("the worker has ended")
                await self._open()
            return self.conn

    async def _open(self) -> None:
        if self._backoff > _FIRST_BACKOFF:
            # Not all workers should reconnect at the same time.
            await asyncio.sleep(self._backoff * random.uniform(0.5, 1))
        dsn, version = self.address.dsn, self.address.version
        try:
            self.conn, self._session_info = await self._connect(dsn)
        except (psycopg.Error, OSError) as error:
            if not self._retry_connect:
                raise
            self._log_lost(error)
            self._backoff = min(self._backoff * 2, _LAST_BACKOFF)
            return
        if self._lost_at is not None:
            log.warning("%s: reconnected after %.1f s", self._name, time.monotonic() - self._lost_at)
        self._connected_to, self.version = dsn, version
        self.zone = self.conn.info.timezone
        self._lost_at = None
        self._backoff = _FIRST_BACKOFF
        self.connections += 1

    async def ask(self, sql: str, values: Sequence[Any] = (), timeout: Optional[float] = None) -> list[Row]:
        """The rows of one of the worker's own statements.

        Raises AnswerLost if it may or may not have been executed; otherwise the error of the server.
        """
        return await self._on_connection(lambda conn: self._execute(conn, sql, values), timeout)

    async def exchange(self, steps: Sequence[_pipeline.Step]) -> list[str]:
        """Like ask, for a message of several statements (_pipeline.py)."""
        return await self._on_connection(lambda conn: self._exchange(conn, steps))

    async def _on_connection(self, question: Callable[[Conn], Coroutine[Any, Any, T]], timeout: Optional[float] = None) -> T:
        async with self._ask_lock:
            conn = await self.ready()
            self._asking = True
            # A separate task, which ends with its connection: since 3.2, psycopg reacts to a cancellation by sending a cancel request
            # and waiting for the outcome.
            asking: "asyncio.Future[T]" = asyncio.ensure_future(question(conn))
            self._statement = asking
            try:
                await asyncio.wait({asking}, timeout=(self.answer_timeout or ANSWER_TIMEOUT) if timeout is None else timeout)
                if not asking.done():
                    give_up(conn)
                    await self.drop(psycopg.OperationalError("the server is not responding"), in_use=True)
                    raise AnswerLost
                return asking.result()
            except asyncio.CancelledError:
                await self.drop(in_use=True)
                raise
            except psycopg.Error as error:
                if not is_lost(conn, error) and not await self.address.has_moved(error, self.version):
                    raise
                await self.drop(error)
                raise AnswerLost(str(error)) from error
            finally:
                self._asking, self._statement = False, None
                asking.add_done_callback(_retrieved)
                if self._ended and self.conn is not None:
                    await self.drop()

    def _log_lost(self, error: Optional[BaseException]) -> None:
        now = time.monotonic()
        self.last_error = error
        if self._lost_at is not None and now < self._logged_at + REPEAT_AFTER:
            return
        since = "" if self._lost_at is None else f", for {now - self._lost_at:.0f} s so far"
        self._lost_at, self._logged_at = self._lost_at or now, now
        text = " ".join(said(error).split()) if error is not None else ""
        log.warning("%s: %s%s (%s)", self._name, text or type(error).__name__, since, place(self.address.dsn))

    async def _exchange(self, conn: Conn, steps: Sequence[_pipeline.Step]) -> list[str]:
        raise NotImplementedError

    async def drop(self, error: Optional[BaseException] = None, in_use: bool = False) -> None:
        """Abandons the connection, whatever its state.  An error is logged.

        in_use: whether an abandoned thread may be in the middle of a statement.
        """
        conn, self.conn = self.conn, None
        if error is not None and not self._ended:
            self._log_lost(error)
        if conn is not None and getattr(conn, "silent", False) and self.process is not None:
            self.on_silent(self.process)
        if conn is not None and in_use:
            sever(conn)
        elif conn is not None:
            await self._close(conn)

    async def end(self) -> None:
        """Closes the connection at the end of the worker, even if the server does not answer.

        A statement that is running ends first.  If its connection were closed under it, its task would never end, and the event loop would
        keep the number of the closed socket: a connection of the application that gets this number would never hear from its server.
        """
        self._ended = True
        if self.conn is not None and self._statement is not None:
            sever(self.conn)
            await asyncio.wait({self._statement}, timeout=_END_STATEMENT_TIMEOUT)
        await self.drop(in_use=self.in_use)
        self.closing = False

    async def _close(self, conn: Conn) -> None:
        raise NotImplementedError


def _retrieved(asking: "asyncio.Future[Any]") -> None:
    """Retrieves the error of an abandoned statement, so that asyncio does not warn about it."""
    if not asking.cancelled():
        asking.exception()


class AsyncLink(Link[AsyncConnection[Any]]):
    """A link with an AsyncConnection."""

    async def _connect(self, dsn: str) -> tuple[AsyncConnection[Any], SessionInfo]:
        conn, info = await connect_async(dsn, self._needs_idemq, self.worker)
        if self.limits_locks and info.direct:
            assert isinstance(conn, AsyncHandlersConnection)
            try:
                with by_worker(), conn.limited(ANSWER_TIMEOUT):
                    await conn.execute("SELECT pg_catalog.set_config('lock_timeout', %s, false)", (LOCK_TIMEOUT,))
            except BaseException:
                sever(conn)
                raise
        return conn, info

    async def _execute(self, conn: AsyncConnection[Any], sql: str, values: Sequence[Any]) -> list[Row]:
        with by_worker():
            cursor = conn.cursor(row_factory=tuple_row, binary=True)
            await cursor.execute(sql.encode(), values)
            return await cursor.fetchall() if cursor.description else []

    async def _exchange(self, conn: AsyncConnection[Any], steps: Sequence[_pipeline.Step]) -> list[str]:
        assert isinstance(conn, AsyncHandlersConnection)
        answers: list[str] = await conn.run_own(_pipeline.exchange(conn, steps, conn.named))
        return answers

    async def _close(self, conn: AsyncConnection[Any]) -> None:
        await conn.close()


class ThreadLink(Link[Connection[Any]]):
    """A link with a Connection, which is used in threads."""

    async def _connect(self, dsn: str) -> tuple[Connection[Any], SessionInfo]:
        return await in_thread(connect, dsn, self._needs_idemq, self.worker)

    async def _execute(self, conn: Connection[Any], sql: str, values: Sequence[Any]) -> list[Row]:
        def execute() -> list[Row]:
            with by_worker(), conn.cursor(row_factory=tuple_row, binary=True) as cursor:
                return cursor.execute(sql.encode(), values).fetchall()

        return await in_thread(execute)

    async def _exchange(self, conn: Connection[Any], steps: Sequence[_pipeline.Step]) -> list[str]:
        return await in_thread(self.exchange_in_thread, steps)

    def exchange_in_thread(self, steps: Sequence[_pipeline.Step]) -> list[str]:
        """Like exchange, in the calling thread, which must be the only user of the connection.  Raises the errors of psycopg."""
        conn = self.conn
        if not isinstance(conn, HandlersConnection):
            raise psycopg.OperationalError("the connection is closed")
        answers: list[str] = conn.run_own(_pipeline.exchange(conn, steps, conn.named), ANSWER_TIMEOUT)
        return answers

    async def _close(self, conn: Connection[Any]) -> None:
        conn.close()
