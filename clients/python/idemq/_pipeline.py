"""The worker's own statements: several in one message, each parsed and planned once per session.

A message is Parse, Bind and Execute of each statement, with one Sync, so nothing after an error is executed.
It is a generator like those of psycopg, so a Connection and an AsyncConnection can both run it
through wait().  Values are sent as text, and a row is returned as one JSON document, because psycopg in pure Python needs
more time for the columns of a job than for everything else.

Statements have names if the session is direct.  Behind a pooler, the next message may go to another session.
psycopg deallocates all names after some statements of a handler, which the connection notes (_handler_connection.py).
"""

from __future__ import annotations

import re
from typing import Any, Callable, Generator, Iterable, NamedTuple, Optional, Sequence

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result
from psycopg.waiting import Wait

Values = Sequence[Optional[bytes]]
Message = Generator[Any, Any, "list[str]"]


class Statement(NamedTuple):
    """A statement with the parameters $1, $2, ..., and a name for the case that it is prepared."""

    name: bytes
    sql: bytes


Step = tuple[Statement, Values]


def _job_of(outcome: str) -> str:
    # Times are whole numbers, because the format of other values depends on settings of the session.
    return f"""pg_catalog.json_build_array({outcome}, id, token, attempt, max_attempts, payload, key, group_key, checkpoint,
        pg_catalog.floor(extract(epoch FROM enqueued_at) * 1000000)::bigint, headers, kind,
        greatest(pg_catalog.floor(extract(epoch FROM deadline - idemq.clock_timestamp()) * 1000), 100)::bigint)::text"""


# A job that the handler has committed itself counts as committed.  If it has ended otherwise, this raises 2201E.
_COMMITTED_OR_RAISE = """CASE WHEN outcome::text IN ('committed', 'already_committed', 'claimed') THEN outcome::text
    ELSE pg_catalog.ln((id - id)::float8)::text END"""
_FROM_COMMIT_MANY = "FROM idemq.commit_many($1::bigint[], $2::bigint[], $3::jsonb[])"
_FROM_COMMIT_MANY_AND_CLAIM = """FROM idemq.commit_many_and_claim($1::bigint[], $2::bigint[], $3::jsonb[], $4::text, $5::int,
    lease => $6::interval, worker => $7::text, attach => $8::boolean)"""

BEGIN = Statement(b"idemq_begin", b"BEGIN")
COMMIT = Statement(b"idemq_commit", b"COMMIT")
ROLLBACK = Statement(b"", b"ROLLBACK")
ASSERT_CURRENT = Statement(
    b"idemq_hold",
    b"SELECT idemq.assert_current(id, token)"
    b" FROM ROWS FROM (pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::bigint[])) AS job (id, token)",
)
HOLD_CLAIMED = Statement(b"idemq_hold_claimed", b"SELECT idemq.hold_claimed()")
# Even behind a pooler, the server must not end a transaction while the handler is busy elsewhere.
NO_IDLE_TIMEOUT = Statement(b"", b"SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true)")
COMMIT_MANY = Statement(b"idemq_end", f"SELECT pg_catalog.json_build_array(outcome::text, id, token)::text {_FROM_COMMIT_MANY}".encode())
COMMIT_MANY_AND_CLAIM = Statement(b"idemq_end_claim", f"SELECT {_job_of('outcome::text')} {_FROM_COMMIT_MANY_AND_CLAIM}".encode())
COMMIT_MANY_OR_RAISE = Statement(b"idemq_must_end", f"SELECT pg_catalog.json_build_array({_COMMITTED_OR_RAISE}, id, token)::text {_FROM_COMMIT_MANY}".encode())
COMMIT_MANY_AND_CLAIM_OR_RAISE = Statement(b"idemq_must_end_claim", f"SELECT {_job_of(_COMMITTED_OR_RAISE)} {_FROM_COMMIT_MANY_AND_CLAIM}".encode())
# Without rows, so that its answer cannot be taken for that of another statement.
RECORD_DETAILS = Statement(
    b"idemq_record", b"SELECT NULL::text FROM idemq.record_details($1::bigint[], $2::bigint[], $3::jsonb[]) AS stored WHERE stored IS NULL"
)
ENDED_BY_HANDLER = "2201E"
NO_SUCH_NAME = "26000"

CLAIM = Statement(
    b"idemq_claim",
    f"""SELECT {_job_of("'claimed'")}
    FROM idemq.claim($1::text, max_jobs => $2::int, lease => $3::interval, worker => $4::text, attach => $5::boolean)""".encode(),
)

# A row of _job_of and of the statements that end jobs: outcome, id and token, then for a claimed job the numbers of
# its attempts, and as the last value the length of its lease in milliseconds.
_ENDED = re.compile(r'\["(\w+)", (-?\d+), (-?\d+)')
_CLAIMED = re.compile(r'\["(\w+)", (-?\d+), (-?\d+), (-?\d+), (-?\d+), ')
_LEASE = re.compile(r", (\d+)\]\Z")


def read_row(answer: str, loads: Callable[[str], Any]) -> list[Any]:
    """A row as a list, followed by None.

    Python cannot decode all that jsonb can store: not an integer of 5,000 digits, nor 1,500 nested arrays.  Of such a row
    the numbers are read, which identify the attempt; its documents are None, and behind them is the error.
    """
    failure: Exception
    try:
        row = list(loads(answer))
        if len(row) in (3, 13) and isinstance(row[1], int) and isinstance(row[2], int):
            return [*row, None]
        raise ValueError("the decoder set in psycopg changed the value")
    except Exception as error:
        failure = error
    claimed, lease = _CLAIMED.match(answer), _LEASE.search(answer)
    if claimed is not None and lease is not None:
        numbers = [int(number) for number in claimed.groups()[1:]]
        return [claimed[1], *numbers, None, None, None, None, 0, None, None, int(lease[1]), failure]
    ended = _ENDED.match(answer)
    if ended is None:
        raise failure
    return [ended[1], int(ended[2]), int(ended[3]), failure]


def numbers(values: Iterable[int]) -> bytes:
    """A parameter of type bigint[]."""
    return b"{%s}" % ",".join(map(str, values)).encode()


def texts(values: Iterable[Optional[str]]) -> bytes:
    """An array parameter, from elements given as text."""
    items = ["NULL" if each is None else '"%s"' % each.replace("\\", "\\\\").replace('"', '\\"') for each in values]
    return ("{%s}" % ",".join(items)).encode("utf-8", "surrogatepass")


def exchange(conn: Any, steps: Sequence[Step], named: bool) -> Message:
    """Sends statements in one message.  Returns the first column of each row of all statements, in order.

    Raises the first one's error; how many were done before it is its attribute `done`.
    """
    pgconn: pq.abc.PGconn = conn.pgconn
    known: set[bytes] = conn.statements
    answers: list[str] = []
    done = 0
    try:
        for results in (yield from (_send_one_by_one if not psycopg.Pipeline.is_supported() else _send_pipelined)(pgconn, steps, known, named)):
            for result in results:
                if result.status == pq.ExecStatus.FATAL_ERROR:
                    raise error_from_result(result, encoding="utf-8")
                # After a handler's stream(), libpq returns one row per result for one more statement.
                if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.SINGLE_TUPLE):
                    answers += [(result.get_value(row, 0) or b"").decode() for row in range(result.ntuples)]
            done += 1
        if done < len(steps):
            raise psycopg.OperationalError("the connection was lost")
    except BaseException as error:
        error.done = done  # type: ignore[attr-defined]
        error.answers = answers  # type: ignore[attr-defined]
        raise
    return answers


def _send_one(pgconn: Any, step: Step, known: set[bytes], named: bool) -> int:
    """Returns the number of results to expect.  The values are passed as lists, because psycopg 3.1 in C accepts nothing else."""
    (name, sql), values = step
    if not named or not name:
        pgconn.send_query_params(sql, list(values))
        return 1
    if name in known:
        pgconn.send_query_prepared(name, list(values))
        return 1
    pgconn.send_prepare(name, sql)
    pgconn.send_query_prepared(name, list(values))
    return 2


def _flush(pgconn: Any) -> Generator[Any, Any, None]:
    while pgconn.flush():
        if (yield Wait.RW) & Wait.R:
            pgconn.consume_input()


def _result(pgconn: Any) -> Generator[Any, Any, Any]:
    while pgconn.is_busy():
        if (yield Wait.R):
            pgconn.consume_input()
    return pgconn.get_result()


def _send_pipelined(pgconn: Any, steps: Sequence[Step], known: set[bytes], named: bool) -> Generator[Any, Any, "list[list[Any]]"]:
    """The results of each statement, up to the first that failed."""
    pgconn.enter_pipeline_mode()
    counts = [_send_one(pgconn, step, known, named) for step in steps]
    pgconn.pipeline_sync()
    yield from _flush(pgconn)
    groups: list[list[Any]] = [[]]
    while pgconn.status == pq.ConnStatus.OK:
        result = yield from _result(pgconn)
        if result is None:
            groups.append([])
        elif result.status == pq.ExecStatus.PIPELINE_SYNC:
            break
        else:
            groups[-1].append(result)
    if pgconn.status == pq.ConnStatus.OK:
        pgconn.exit_pipeline_mode()
    in_turn = (group for group in groups if group)
    answers: list[list[Any]] = []
    for ((name, _), _), count in zip(steps, counts):
        group: list[Any] = next(in_turn, [])
        if count == 2 and group and group[0].status == pq.ExecStatus.COMMAND_OK:
            known.add(name)
            group = next(in_turn, [])
        if not group or group[0].status == pq.ExecStatus.PIPELINE_ABORTED:
            break
        answers.append(group)
    return answers


def _send_one_by_one(pgconn: Any, steps: Sequence[Step], known: set[bytes], named: bool) -> Generator[Any, Any, "list[list[Any]]"]:
    """The same for a libpq before 14, which does not support such messages."""
    answers: list[list[Any]] = []
    for (name, sql), values in steps:
        results: list[Any] = []
        pgconn.send_query_params(sql, list(values))
        yield from _flush(pgconn)
        while (result := (yield from _result(pgconn))) is not None:
            results.append(result)
        answers.append(results)
        if results[-1].status == pq.ExecStatus.FATAL_ERROR:
            break
    return answers
