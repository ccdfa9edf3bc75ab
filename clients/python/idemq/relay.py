"""idemq-relay: sends jobs from a database that cannot have idemq, through its outbox (outbox.sql), to a server that has it.

    idemq-relay create --app DSN --idemq DSN    creates the outbox and the queue of results
    idemq-relay run --app DSN --idemq DSN       moves rows and results until SIGTERM
    idemq-relay sql                             prints the SQL that create runs in the application's database

No transaction spans the two servers.  The relay locks a row, commits its job in idemq, and then marks the row.  If anything
dies in between, the row is sent again, and its key makes it the same job.  Every unmarked row is sent, whatever its
id, so a row that becomes visible late is also found.

One relay at a time sends rows, while it holds an advisory lock of the transaction, so the jobs of a group stay in the order of the
rows.  Other relays wait to take over.  If a stopped relay continues after another has taken over, its rows are duplicates.

For a row with `reply`, a second job depends on the first, however the first one ends.  A Worker runs it: it writes the result into
the row and commits.  This can also happen twice, and the second time the row is already written.
"""

from __future__ import annotations

import argparse
import logging
import pathlib
import random
import select
import socket
import sys
import threading
import time
from typing import Any, NamedTuple, NoReturn, Optional

import psycopg
from psycopg import Connection

from . import Job, RetryLater, Worker
from ._handler_connection import HandlersConnection
from ._links import hosts
from .errors import said, sqlstate

log = logging.getLogger("idemq")

RESULTS = "outbox_results"
"""Name of the queue of results."""

_CREATE_RESULTS = "SELECT idemq.create_queue(%s, max_attempts => 2000000000, retry_max => '1 min', retention => '1 min')"
# One message.  A relay that hangs holds the rows for at most a minute, because its lock ends with its session.  The settings force
# index scans for a few rows of many, because the statistics about waiting rows are out of date.  key_ttl is sent as text, whose sign has
# another meaning in another IntervalStyle.
_BEGIN = """BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '60s'; SET LOCAL enable_seqscan = off;
    SET LOCAL enable_bitmapscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL jit = off;
    SET LOCAL IntervalStyle = postgres"""
# At most that many rows are sent, and at most 8 MB as stored, but always at least one row.  None are sent while another relay sends.
_TAKE = """WITH mine AS MATERIALIZED (SELECT pg_catalog.pg_try_advisory_xact_lock('idemq_outbox.jobs'::regclass::int, 0) AS got),
    first AS MATERIALIZED (SELECT id, pg_catalog.pg_column_size(payload) AS size FROM idemq_outbox.jobs WHERE sent_at IS NULL
        ORDER BY sent_at NULLS FIRST, id LIMIT %s),
    sized AS MATERIALIZED (SELECT id, pg_catalog.sum(size) OVER (ORDER BY id) AS sum, pg_catalog.row_number() OVER (ORDER BY id) AS n FROM first)
    SELECT j.id, j.row, j.queue, j.group_key FROM sized CROSS JOIN LATERAL (SELECT j.id, j.queue, j.group_key, pg_catalog.jsonb_build_object('id', j.id, 'queue', j.queue,
            'payload', j.payload, 'key', j.key, 'kind', j.kind, 'priority', j.priority, 'run_at', j.run_at, 'expires_at', j.expires_at,
            'group_key', j.group_key, 'max_attempts', j.max_attempts, 'headers', j.headers, 'key_ttl', j.key_ttl,
            'on_duplicate', j.on_duplicate, 'reply', j.reply)::text AS row
        FROM idemq_outbox.jobs j WHERE j.id = sized.id AND j.sent_at IS NULL FOR UPDATE SKIP LOCKED) AS j
    WHERE (SELECT got FROM mine) AND (sized.sum <= 8000000 OR sized.n = 1) ORDER BY sized.id"""
# In the order of ids.  If an open transaction is using a key, the row is left for later; for a row of a group the relay waits, so
# that no later row overtakes it.  A record has NULL where JSON has null, and no row has a NULL payload.
_SEND = """SELECT r.id, e.id, CASE WHEN r.reply AND e.id IS NOT NULL THEN (idemq.enqueue(%s,
        pg_catalog.jsonb_build_object('id', r.id, 'key', r.key), depends_on => ARRAY[e.id], on_parent_failure => 'run')).id END
    FROM (SELECT * FROM pg_catalog.jsonb_to_recordset(%s::jsonb) AS r (id bigint, queue text, payload jsonb, key text, kind text,
            priority int, run_at timestamptz, expires_at timestamptz, group_key text, max_attempts int, headers jsonb,
            key_ttl interval, on_duplicate text, reply boolean)
        WHERE (SELECT pg_catalog.set_config('lock_timeout', '10s', true)) <> '' ORDER BY id OFFSET 0) AS r
    CROSS JOIN LATERAL idemq.enqueue(r.queue, coalesce(r.payload, 'null'), key => r.key, run_at => r.run_at, priority => coalesce(r.priority, 4),
        group_key => r.group_key, max_attempts => r.max_attempts, headers => r.headers, kind => r.kind, key_ttl => r.key_ttl,
        expires_in => CASE WHEN pg_catalog.isfinite(r.expires_at) THEN greatest(r.expires_at - pg_catalog.clock_timestamp(), '1 ms') END, on_duplicate => r.on_duplicate,
        nowait => r.group_key IS NULL) AS e"""
# A result that has been written is kept.  A refusal is that of the last time.
_MARK = """UPDATE idemq_outbox.jobs j SET sent_at = pg_catalog.clock_timestamp(), job_id = s.job_id,
        finished_at = CASE WHEN s.error IS NOT NULL THEN pg_catalog.clock_timestamp()
            WHEN j.status IS DISTINCT FROM 'refused' THEN j.finished_at END,
        error = CASE WHEN s.error IS NOT NULL THEN s.error WHEN j.status IS DISTINCT FROM 'refused' THEN j.error END,
        status = CASE WHEN s.error IS NOT NULL THEN 'refused' ELSE nullif(j.status, 'refused') END
    FROM ROWS FROM (pg_catalog.unnest(%s::bigint[]), pg_catalog.unnest(%s::bigint[]), pg_catalog.unnest(%s::text[])) AS s (id, job_id, error) WHERE j.id = s.id"""
_FIRST = "SELECT id FROM idemq_outbox.jobs WHERE sent_at IS NULL ORDER BY sent_at NULLS FIRST, id LIMIT 1 FOR UPDATE"
_TELL = "SELECT pg_catalog.pg_notify('idemq_outbox_done', id::text) FROM pg_catalog.unnest(%s::bigint[]) AS id"
_DELETE = """DELETE FROM idemq_outbox.jobs WHERE id = ANY (ARRAY (SELECT id FROM idemq_outbox.jobs
    WHERE sent_at < pg_catalog.clock_timestamp() - %(keep)s::interval AND job_id IS NOT NULL
        AND (NOT reply OR finished_at < pg_catalog.clock_timestamp() - %(keep)s::interval)
    ORDER BY sent_at NULLS FIRST, id LIMIT 10000 FOR UPDATE SKIP LOCKED))"""
_RESULT = """SELECT p.status::text, p.result::text, CASE WHEN p.status <> 'completed' THEN j.last_error END
    FROM idemq.parents(%s) AS p LEFT JOIN idemq.job_list j ON j.id = p.parent"""
_ANSWER = """WITH written AS (UPDATE idemq_outbox.jobs SET finished_at = pg_catalog.clock_timestamp(), status = %s, result = %s::jsonb,
        error = %s WHERE id = %s AND key = %s AND finished_at IS NULL RETURNING id)
    SELECT pg_catalog.pg_notify('idemq_outbox_done', id::text) FROM written"""

ANSWER_TIMEOUT = 60.0
"""Seconds within which a statement must be answered.  Otherwise the connection may be silent."""
GRACE = 30.0
"""Seconds after SIGTERM for work that is under way; JOIN_TIMEOUT of them for the thread that sends."""
JOIN_TIMEOUT = 5.0
_PURGE_EVERY = 60.0
_FIRST_BACKOFF = 0.1
_LAST_BACKOFF = 10.0
# SQLSTATEs that are not about a row: the connection, resources, conflicts, a server that stops or is a standby, or no idemq.
_TROUBLE = ("", "08", "25", "28", "3D", "3F", "40", "42", "53", "55", "57", "58", "F0", "XX")
# For a statement that is not about a row: no outbox, no idemq, no queue, no privilege, or an invalid interval.  Waiting does not help.
_FATAL = ("22", "3F", "42", "IQ")
_FULL = "IQ007"
_SAID_EVERY = 60.0

Row = tuple[int, str, str, Optional[str]]
"""The id of a row, all of it as JSON, its queue and its group."""
Full = dict[tuple[str, Optional[str]], str]
"""Queues (with the group None) and groups that have no room, each with idemq's error."""


class Sent(NamedTuple):
    """The outcome of a row: its job, or the reason why there is none."""

    id: int
    job: Optional[int]
    error: Optional[str] = None


def connect(dsn: str) -> Connection[Any]:
    """A connection in autocommit mode to the host that accepts writes."""
    last: Optional[BaseException] = None
    for params in hosts(dsn):
        try:
            params.setdefault("target_session_attrs", "read-write")
            params["client_encoding"] = "UTF8"  # a row that cannot be converted to UTF-8 causes an error of the server
            # Statements are not prepared, because there may be a pooler.
            conn = HandlersConnection.connect(autocommit=True, prepare_threshold=None, **params)
            assert isinstance(conn, HandlersConnection)
            conn.answer_within = ANSWER_TIMEOUT
            return conn
        except (psycopg.Error, OSError) as error:
            last = error
    raise last or psycopg.OperationalError("the DSN does not specify a host")


def is_of_a_row(error: psycopg.Error) -> bool:
    """Whether idemq has refused only this row, also for a missing privilege on its queue or a missing slot of the queue."""
    state = sqlstate(error)
    return state in ("42501", "53400") or state[:2] not in _TROUBLE


def is_unreadable(error: BaseException) -> bool:
    """Whether a row contains text that is not UTF-8, or is longer than a server can return."""
    return sqlstate(error) in ("22021", "22P05", "54000")


def line(error: BaseException) -> str:
    """The SQLSTATE and text of an error, in one line."""
    return f"{sqlstate(error)}: {' '.join(said(error).split())}".lstrip(": ") or type(error).__name__


def send(idemq: Connection[Any], rows: list[Row], full: Full) -> list[Sent]:
    """Enqueues rows in order.  A refused row does not undo the others.  If a queue or group has no room for a row, that row and
    its later rows are left for another time, so that they stay in order."""
    rows = [row for row in rows if (row[2], None) not in full and (row[2], row[3]) not in full]
    if not rows:
        return []
    try:
        answers = idemq.execute(_SEND, [RESULTS, "[" + ",".join(row[1] for row in rows) + "]"]).fetchall()
        return [Sent(id, job) for id, job, _ in answers if job is not None]
    except psycopg.Error as error:
        if not is_of_a_row(error):
            raise
        if len(rows) == 1 and sqlstate(error) == _FULL:
            # The message tells whether only the group is full.  Other groups of its queue may then have room.
            of_group = "a group of queue" in (error.diag.message_primary or "")
            full[rows[0][2], rows[0][3] if of_group else None] = line(error)
            return []
        if len(rows) == 1:
            log.error("row %s was refused: %s", rows[0][0], line(error))
            return [Sent(rows[0][0], None, line(error))]
    half = len(rows) // 2
    return send(idemq, rows[:half], full) + send(idemq, rows[half:], full)


def unreadable(app: Connection[Any]) -> list[Sent]:
    """The first row to send, as refused, if it cannot be read.  Begins a transaction."""
    app.execute(_BEGIN)
    for (id,) in app.execute(_FIRST).fetchall():
        try:
            with app.transaction():
                app.execute("SELECT pg_catalog.to_jsonb(j)::text FROM idemq_outbox.jobs j WHERE id = %s", [id])
        except psycopg.Error as error:
            if not is_unreadable(error):
                raise
            log.error("row %s was refused: %s", id, line(error))
            return [Sent(id, None, line(error))]
    return []


def send_to_full(idemq: Connection[Any], rows: list[Row], full: Full) -> list[Sent]:
    """Like send, but first sends one row to each queue and group in `full`, to find out whether it has room again."""
    sent = []
    tried = set()
    for queue, group in list(full):
        del full[queue, group]
        first = next((row for row in rows if row[2] == queue and group in (None, row[3])), None)
        if first is not None and first[0] not in tried:
            tried.add(first[0])
            sent += send(idemq, [first], full)
    return sent + send(idemq, [row for row in rows if row[0] not in tried], full)


def move(app: Connection[Any], idemq: Connection[Any], batch: int, full: Full) -> int:
    """Sends at most `batch` rows, and returns the number of rows that are settled.  Updates `full`, which contains the queues
    and groups that had no room last time.  If it raises, the caller must close both connections."""
    app.execute(_BEGIN)
    try:
        rows = app.execute(_TAKE, [batch]).fetchall()
    except psycopg.Error as error:
        if batch > 1 or not is_unreadable(error):
            raise
        app.execute("ROLLBACK")
        sent = unreadable(app)
    else:
        sent = send_to_full(idemq, rows, full)
    if sent:
        app.execute(_MARK, [list(column) for column in zip(*sent)])
    refused = [each.id for each in sent if each.error is not None]
    if refused:
        app.execute(_TELL, [refused])
    app.execute("COMMIT")
    return len(sent)


class Relay:
    """Sends rows, and writes results."""

    def __init__(self, app: str, idemq: str, batch: int = 1000, poll: float = 1.0, keep: str = "7 days", writers: int = 4) -> None:
        self._app, self._idemq, self._batch, self._poll, self._keep = app, idemq, batch, poll, keep
        self._worker = Worker(idemq, RESULTS, name="idemq-relay", concurrency=writers, grace=GRACE - JOIN_TIMEOUT)
        self._woken, self._wake = socket.socketpair()
        self._stopped = threading.Event()
        self._heard = False
        self._lost = False
        self._purged = 0.0
        self._full: Full = {}
        self._said: dict[tuple[str, Optional[str]], float] = {}
        self._own = threading.local()
        self._failure: Optional[BaseException] = None

    def run(self) -> None:
        """Runs until SIGTERM.  Raises errors that waiting does not fix."""
        sender = threading.Thread(target=self._send, name="sender", daemon=True)
        sender.start()
        try:
            self._worker.run(self._answer)
        finally:
            self._stopped.set()
            self._wake.send(b".")
            # A thread that hangs ends with the process.  Its rows are sent again, and are duplicates.
            sender.join(JOIN_TIMEOUT)
        if self._failure is not None:
            raise self._failure

    def _send(self) -> None:
        backoff = _FIRST_BACKOFF
        size = self._batch
        while not self._stopped.is_set():
            try:
                with connect(self._app) as app, connect(self._idemq) as idemq:
                    self._ready(app, idemq)
                    while not self._stopped.is_set():
                        self._heard = False
                        moved = move(app, idemq, size, self._full)
                        self._say()
                        size = min(2 * size, self._batch)
                        if self._lost:
                            log.warning("goes on")
                        self._lost, backoff = False, _FIRST_BACKOFF
                        if moved == 0 and not self._purge(app):
                            self._sleep(app, idemq)
            except (psycopg.Error, OSError) as error:
                if sqlstate(error)[:2] in _FATAL and not is_unreadable(error):
                    self._end(error)
                    return
                if not self._lost:
                    log.warning("%s", line(error))
                self._lost = True
                # A batch that takes too long as a whole can succeed in parts.
                size = max(size // 16, 1)
                self._select([], backoff * random.uniform(0.5, 1))
                backoff = min(backoff * 2, _LAST_BACKOFF)
            except BaseException as error:
                self._end(error)
                raise

    def _end(self, failure: BaseException) -> None:
        self._failure = failure
        self._worker.stop()

    def _ready(self, app: Connection[Any], idemq: Connection[Any]) -> None:
        # This raises if there is no outbox, or no privilege on it.
        idemq.execute("SELECT idemq.queue_id(%s), 'idemq.enqueue_result'::regtype", [RESULTS])
        app.add_notify_handler(self._notified)
        app.execute("LISTEN idemq_outbox")

    def _notified(self, _: psycopg.Notify) -> None:
        self._heard = True

    def _say(self) -> None:
        """Warns of each full queue and group, at most once per minute."""
        now = time.monotonic()
        for which, error in self._full.items():
            if now > self._said.get(which, -_SAID_EVERY) + _SAID_EVERY:
                self._said[which] = now
                log.warning("rows wait: %s", error)
        self._said = {which: at for which, at in self._said.items() if now <= at + _SAID_EVERY}

    def _purge(self, app: Connection[Any]) -> bool:
        """Deletes rows that were sent long ago, once a minute.  Returns whether there are more."""
        now = time.monotonic()
        if self._purged and now < self._purged + _PURGE_EVERY:
            return False
        if app.execute(_DELETE, {"keep": self._keep}).rowcount >= 10000:
            return True
        self._purged = now
        return False

    def _sleep(self, app: Connection[Any], idemq: Connection[Any]) -> None:
        """Sleeps until a row is inserted, a connection ends, the relay must stop, or it is time to check."""
        # Notifications that arrived with the last answer are known; later ones are in the socket.
        if not self._heard and idemq in self._select([app, idemq], self._poll):
            idemq.execute("SELECT")  # this raises if the connection has ended

    def _select(self, connections: list[Connection[Any]], seconds: float) -> list[Any]:
        return select.select([self._woken, *connections], [], [], seconds)[0]

    def _answer(self, job: Job[Any], conn: Connection[Any]) -> None:
        """Writes the result of a job into its row."""
        row = conn.execute(_RESULT, [job.id]).fetchone()
        app: Optional[Connection[Any]] = getattr(self._own, "app", None)
        try:
            if app is None or app.closed:
                app = self._own.app = connect(self._app)
            app.execute(_ANSWER, [*(row or ("deleted", None, None)), job.payload["id"], job.payload["key"]])
        except (psycopg.Error, OSError) as error:
            # An error of the other server must not be mistaken for one of this job's own connection.
            if app is not None:
                app.close()
            raise RetryLater(None, line(error)) from error


def create(app: str, idemq: str) -> None:
    """Creates the outbox and the queue of results, unless they exist."""
    with connect(app) as conn, conn.transaction():
        conn.execute(sql())
    with connect(idemq) as conn:
        try:
            conn.execute(_CREATE_RESULTS, [RESULTS])
        except psycopg.errors.DuplicateObject:
            pass


def sql() -> bytes:
    """The SQL that creates the outbox."""
    return (pathlib.Path(__file__).parent / "outbox.sql").read_bytes()


def main() -> NoReturn:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="idemq-relay", description="move jobs from the outbox of a database without idemq to a server with idemq, each job once")
    parser.add_argument("command", choices=["create", "run", "sql"], help="create: create the outbox and the queue of results; run: move rows and results until SIGTERM; sql: "
        "print the SQL of the outbox")
    parser.add_argument("--app", metavar="DSN", default="", help="connection string of the application's database, as for psql")
    parser.add_argument("--idemq", metavar="DSN", default="", help="connection string of the database with idemq")
    parser.add_argument("--keep", metavar="INTERVAL", default="7 days", help="minimum time for which sent rows are kept, so that they can be sent again after the server with "
        "idemq has been restored (default: 7 days)")
    parser.add_argument("--poll", metavar="SECONDS", type=float, default=1.0, help="seconds between polls if no NOTIFY arrives (default: 1)")
    parser.add_argument("--batch", metavar="ROWS", type=int, default=1000, help="maximum number of rows sent per transaction (default: 1000)")
    parser.add_argument("--writers", metavar="N", type=int, default=4, help="maximum number of results written at once (default: 4)")
    options = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="idemq-relay: %(message)s")
    try:
        if options.command == "sql":
            sys.stdout.write(sql().decode())
            sys.exit(0)
        if not options.app or not options.idemq:
            parser.error("pass both --app and --idemq: the connection strings of the two databases")
        if min(options.batch, options.writers) < 1 or options.poll <= 0:
            parser.error("--batch and --writers must be at least 1, and --poll must be greater than 0")
        if options.command == "create":
            create(options.app, options.idemq)
        else:
            Relay(options.app, options.idemq, options.batch, options.poll, options.keep, options.writers).run()
    except psycopg.Error as error:
        hint = "; run idemq-relay create to create the missing objects" if sqlstate(error)[:2] in ("3F", "42", "IQ") else ""
        sys.exit(f"idemq-relay: {line(error)}{hint}")
    sys.exit(0)


if __name__ == "__main__":
    main()
