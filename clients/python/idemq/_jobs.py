"""Functions about jobs, queues and schedules that exist, and those for tests.

The first argument of each is a connection.  Each call is one statement in its transaction.  Await it if that is an AsyncConnection.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Callable, NamedTuple, Optional, Union

from psycopg.types.json import Jsonb

from . import _trace
from ._arguments import (
    delay_argument,
    headers_argument,
    int_argument,
    key_argument,
    optional_int,
    optional_text,
    queue_argument,
    text_argument,
    time_argument,
)
from ._codec import Codec, checked_codec, decoded, encoded
from ._flows import Result
from ._statements import Plan, Statement, statement
from ._values import Row, json_text, jsonb_parameter
from .errors import Delay, Key

_SCHEDULE = """SELECT idemq.schedule(%(name)s, %(cron)s, %(queue)s, %(payload)s, time_zone => %(time_zone)s,
    priority => %(priority)s::int, group_key => %(group_key)s, max_attempts => %(max_attempts)s::int,
    headers => %(headers)s::jsonb, expires_in => %(expires_in)s::interval, kind => %(kind)s)"""
_JOB = """SELECT j.id, q.name, j.status::text, j.payload, j.key, j.group_key, j.kind, j.priority, j.attempt, j.max_attempts,
        j.checkpoint, j.result, j.last_error, j.worker, j.headers, j.enqueued_at, j.ready_at, j.claimed_at, j.finished_at
    FROM idemq.job(%(id)s) AS j JOIN idemq.queues AS q USING (queue_id)"""
# Not the jobs that wait for an event, a limit or a hold.
_MAKE_DUE = """SELECT count(*) FROM idemq.retry_many(ARRAY(SELECT j.id FROM idemq.jobs AS j
        WHERE j.status IN ('pending', 'retrying') AND j.ready_at > idemq.clock_timestamp() AND j.flags & 64 = 0
            AND (%(queue)s::text IS NULL OR j.queue_id = (SELECT idemq.queue_id(%(queue)s::text) WHERE %(queue)s::text IS NOT NULL))
            AND NOT EXISTS (SELECT FROM idemq.steps AS s WHERE s.job_id = j.id AND s.state = 'waiting')))
    WHERE outcome = 'retrying'"""
_LISTED = 20
_PAYLOADS = "SELECT array_agg(j.id), array_agg(j.payload) FROM idemq.jobs AS j WHERE j.queue_id = idemq.queue_id(%(queue)s)"
_FIND = """WITH found AS MATERIALIZED (SELECT j.id, j.status::text, j.key, j.kind, j.payload::text AS payload,
        (%(key)s::text IS NULL OR j.key = %(key)s::text) AND (%(kind)s::text IS NULL OR j.kind = %(kind)s::text)
            AND (%(payload)s::text IS NULL OR j.payload @> %(payload)s::text::jsonb) IS TRUE AS matches
        FROM {jobs} AS j WHERE j.queue_id = idemq.queue_id(%(queue)s))
    SELECT count(*) FILTER (WHERE matches), count(*),
        ARRAY(SELECT pg_catalog.format('%%s %%s key %%s kind %%s %%s', id, status, coalesce(key, '-'), coalesce(kind, '-'), payload)
            FROM found ORDER BY id DESC LIMIT {listed}) FROM found"""
_DECODED = """(SELECT j.id, j.queue_id, j.status, j.key, j.kind, d.payload FROM idemq.jobs AS j
    JOIN ROWS FROM (pg_catalog.unnest(%(ids)s::bigint[]), pg_catalog.unnest(%(payloads)s::jsonb[])) AS d (id, payload) USING (id))"""


class JobInfo(NamedTuple):
    """Result of job."""

    id: int
    queue: str
    status: str
    payload: Any
    key: Optional[str]
    group_key: Optional[str]
    kind: Optional[str]
    priority: int
    attempt: int
    """Number of attempts that have begun, without those that were given back."""
    max_attempts: int
    checkpoint: Any
    result: Any
    error: Optional[str]
    """Why the last attempt ended."""
    worker: Optional[str]
    headers: Optional[dict[str, Any]]
    enqueued_at: datetime
    ready_at: Optional[datetime]
    claimed_at: Optional[datetime]
    finished_at: Optional[datetime]


def _first(rows: list[Row]) -> Any:
    return rows[0][0]


@statement
def schedule(
    name: str,
    cron: str,
    queue: str,
    payload: Any,
    *,
    time_zone: str = "UTC",
    priority: int = 4,
    group_key: Optional[str] = None,
    max_attempts: Optional[int] = None,
    headers: Optional[dict[str, Any]] = None,
    expires_in: Optional[Delay] = None,
    kind: Optional[str] = None,
    codec: Optional[Codec] = None,
) -> Statement[Optional[datetime]]:
    """Enqueue one job at each tick of a cron expression ("0 3 * * *") or an interval ("every 5 min").  Creates or replaces the schedule
    with this name.  Returns the time of its next run, or None if it is paused."""
    values = {
        "name": text_argument("name", name),
        "cron": text_argument("cron", cron),
        "queue": queue_argument(queue),
        "payload": encoded(checked_codec(codec), "payload", payload),
        "time_zone": text_argument("time_zone", time_zone),
        "priority": int_argument("priority", priority),
        "group_key": optional_text("group_key", group_key),
        "max_attempts": optional_int("max_attempts", max_attempts),
        "headers": jsonb_parameter("headers", _trace.inject(headers_argument(headers))),
        "expires_in": delay_argument("expires_in", expires_in),
        "kind": optional_text("kind", kind),
    }
    return Statement(_SCHEDULE, values, _first, binary=True)


@statement
def unschedule(name: str) -> Statement[bool]:
    """Drop a schedule.  Returns whether there was one.  The jobs that it has enqueued remain."""
    return Statement("SELECT idemq.unschedule(%(name)s)", {"name": text_argument("name", name)}, _first)


@statement
def retry(id: int) -> Statement[str]:
    """Make a job ready now if it is retrying, not yet due, dead or cancelled.  Returns "retrying", or the reason why it was not made ready."""
    return Statement("SELECT idemq.retry(%(id)s)::text", {"id": int_argument("id", id)}, _first)


@statement
def cancel(id: int) -> Statement[str]:
    """Cancel an unfinished job.  Its worker is told at once.  Returns "cancelled", or the reason why it was not cancelled."""
    return Statement("SELECT idemq.cancel(%(id)s)::text", {"id": int_argument("id", id)}, _first)


@statement
def reschedule(id: int, *, run_at: Optional[datetime] = None, priority: Optional[int] = None) -> Statement[str]:
    """Change the time or the priority of a waiting job.  Returns "accepted", or the reason why it was not changed."""
    values = {"id": int_argument("id", id), "run_at": time_argument("run_at", run_at), "priority": optional_int("priority", priority)}
    return Statement("SELECT idemq.reschedule(%(id)s, %(run_at)s, %(priority)s::int)::text", values, _first)


@statement
def pause(queue: str, *, until: Optional[datetime] = None) -> Statement[None]:
    """Pause a queue until resume is called or the given time is reached.  Running jobs continue.  Requires the privilege admin on the queue."""
    values = {"queue": queue_argument(queue), "until": time_argument("until", until)}
    return Statement("SELECT idemq.pause(%(queue)s, until => %(until)s)", values, lambda rows: None)


@statement
def resume(queue: str) -> Statement[None]:
    """Resume a paused queue, and end its holds.  Requires the privilege admin on the queue."""
    return Statement("SELECT idemq.resume(%(queue)s)", {"queue": queue_argument(queue)}, lambda rows: None)


@statement
def job(id: int, *, codec: Optional[Codec] = None) -> Statement[Optional[JobInfo]]:
    """Return a job, or None if there is no such job or you may not see it."""
    coder = checked_codec(codec)

    def answer(rows: list[Row]) -> Optional[JobInfo]:
        found = JobInfo(*rows[0]) if rows else None
        if found is None or coder is None:
            return found
        return found._replace(payload=decoded(coder, found.payload), checkpoint=decoded(coder, found.checkpoint), result=decoded(coder, found.result))

    return Statement(_JOB, {"id": int_argument("id", id)}, answer, binary=True)


@statement
def result(id: int, *, codec: Optional[Codec] = None) -> Statement[Result[Any]]:
    """Return the current status and the result of a job without waiting (wait_results waits).  Raises NoSuchJob."""
    coder = checked_codec(codec)
    sql = "SELECT status::text, result FROM idemq.result(%(id)s)"
    return Statement(sql, {"id": int_argument("id", id)}, lambda rows: Result(rows[0][0], decoded(coder, rows[0][1])))


@statement
def why(id: int) -> Statement[str]:
    """Explain in one sentence what a job is waiting for."""
    return Statement("SELECT idemq.why(%(id)s)", {"id": int_argument("id", id)}, _first)


@statement
def make_due(queue: Optional[str] = None) -> Statement[int]:
    """For tests: make all jobs that wait for a delay or a retry due now, in one queue or in all.  Returns the number of jobs."""
    return Statement(_MAKE_DUE, {"queue": None if queue is None else queue_argument(queue)}, _first)


@statement
def advance_clock(by: Delay) -> Statement[None]:
    """For tests: move idemq's clock forward, on a server with idemq.test_clock.  Returns when everything that is due by then has been done.
    The connection must be in autocommit mode."""
    return Statement("CALL idemq.advance_clock(%(by)s::interval)", {"by": delay_argument("by", by)}, lambda rows: None)


_ANY = object()


@statement
def assert_enqueued(
    queue: str, payload: Any = _ANY, *, key: Optional[Key] = None, kind: Optional[str] = None, times: int = 1, codec: Optional[Codec] = None
) -> Union[Statement[None], Plan[None]]:
    """For tests: raise AssertionError, with a list of the queue's jobs, unless it has this many jobs with the payload, key and kind.

    payload: a part of the payload, such as {"order": 42}; a job matches if its payload contains it.
    """
    wanted = None if payload is _ANY else json_text(payload) or "null"
    values = {
        "queue": queue_argument(queue),
        "payload": wanted,
        "key": key_argument(key),
        "kind": optional_text("kind", kind),
    }
    number = int_argument("times", times)
    named = {"payload": wanted, "key": values["key"], "kind": values["kind"]}
    given = " and ".join(f"{name} {value}" for name, value in named.items() if value is not None)

    def check(rows: list[Row]) -> None:
        found, total, listed = rows[0]
        if found == number:
            return
        jobs = "There is no job in " + queue + "." if total == 0 else f"Jobs in {queue}:" + "".join(f"\n  {line}" for line in listed)
        more = f"\n  and {total - len(listed)} more" if total > len(listed) else ""
        raise AssertionError(f"expected {number} {'job' if number == 1 else 'jobs'} in {queue}{' with ' + given if given else ''}, but found {found}. {jobs}{more}")

    coder = checked_codec(codec)
    if coder is not None:
        return _find_decoded(coder, values, check)
    return Statement(_FIND.format(jobs="idemq.jobs", listed=_LISTED), values, check)


def _find_decoded(codec: Codec, values: dict[str, Any], check: Callable[[list[Row]], None]) -> Plan[None]:
    """The server compares the decoded payloads, which are sent to it for that."""
    ids, payloads = yield Statement(_PAYLOADS, values, lambda rows: rows[0])
    sent = {**values, "ids": ids or [], "payloads": [Jsonb(decoded(codec, each)) for each in payloads or []]}
    yield Statement(_FIND.format(jobs=_DECODED, listed=_LISTED), sent, check)
