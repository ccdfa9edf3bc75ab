"""Functions with which a program declares queues, topic spaces and handlers whenever it starts.

The first argument of each is a connection.  Each call is one statement in its transaction.  Await it if that is an AsyncConnection.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from ._arguments import (
    bool_argument,
    delay_argument,
    int_argument,
    optional_bool,
    optional_float,
    optional_int,
    optional_text,
    queue_argument,
    text_argument,
)
from ._statements import Statement, statement
from .errors import Delay

_ENSURE_QUEUE = """SELECT outcome, changes
    FROM idemq.ensure_queue(%(queue)s, exact => %(exact)s,
        lease => %(lease)s::interval, max_attempts => %(max_attempts)s::int,
        retry_base => %(retry_base)s::interval, retry_factor => %(retry_factor)s::float8,
        retry_max => %(retry_max)s::interval, retry_jitter => %(retry_jitter)s::float8,
        retention => %(retention)s::interval, idempotency_window => %(idempotency_window)s::interval,
        max_running => %(max_running)s::int, rate_limit => %(rate_limit)s::int,
        rate_period => %(rate_period)s::interval, dead_letter_queue => %(dead_letter_queue)s,
        dead_retention => %(dead_retention)s::interval, max_lease => %(max_lease)s::interval,
        job_timeout => %(job_timeout)s::interval, dead_letter_cancelled => %(dead_letter_cancelled)s::boolean,
        group_max_running => %(group_max_running)s::int, group_rate_limit => %(group_rate_limit)s::int,
        group_rate_period => %(group_rate_period)s::interval, expect_workers => %(expect_workers)s::boolean,
        rate_burst => %(rate_burst)s::int, group_rate_burst => %(group_rate_burst)s::int,
        max_hold_back => %(max_hold_back)s::interval, max_unfinished => %(max_unfinished)s::int,
        group_max_unfinished => %(group_max_unfinished)s::int, notify_finished => %(notify_finished)s::boolean)"""
_ENSURE_TOPIC = "SELECT idemq.ensure_topic(%(topic)s)"
_ENSURE_HANDLER = """SELECT outcome, changes
    FROM idemq.ensure_handler(%(queue)s, %(function)s, workers => %(workers)s::int, batch => %(batch)s::int,
        max_idle => %(max_idle)s::interval)"""


class Ensured(NamedTuple):
    """Result of ensure_queue and ensure_handler."""

    outcome: str
    """Either "created", "changed" or "unchanged"."""
    changes: Optional[dict[str, dict[str, Any]]]
    """If the outcome is "changed", the settings that were changed, each with "from" and "to"."""


@statement
def ensure_queue(
    queue: str,
    *,
    exact: bool = False,
    lease: Optional[Delay] = None,
    max_attempts: Optional[int] = None,
    retry_base: Optional[Delay] = None,
    retry_factor: Optional[float] = None,
    retry_max: Optional[Delay] = None,
    retry_jitter: Optional[float] = None,
    retention: Optional[Delay] = None,
    idempotency_window: Optional[Delay] = None,
    max_running: Optional[int] = None,
    rate_limit: Optional[int] = None,
    rate_period: Optional[Delay] = None,
    dead_letter_queue: Optional[str] = None,
    dead_retention: Optional[Delay] = None,
    max_lease: Optional[Delay] = None,
    job_timeout: Optional[Delay] = None,
    dead_letter_cancelled: Optional[bool] = None,
    group_max_running: Optional[int] = None,
    group_rate_limit: Optional[int] = None,
    group_rate_period: Optional[Delay] = None,
    expect_workers: Optional[bool] = None,
    rate_burst: Optional[int] = None,
    group_rate_burst: Optional[int] = None,
    max_hold_back: Optional[Delay] = None,
    max_unfinished: Optional[int] = None,
    group_max_unfinished: Optional[int] = None,
    notify_finished: Optional[bool] = None,
) -> Statement[Ensured]:
    """Declare a queue: create it, or change the settings that are named and leave the others as they are.

    If an argument is None, its setting is not named.  0 means no limit or no job_timeout, and "" means no
    dead_letter_queue.
    exact: whether settings that are not named get their defaults.

    A setting is changed only if its value differs from its last declaration.  A setting that was changed with
    alter_queue since then keeps its value, and the server sends a WARNING.  Requires any privilege on the queue for "unchanged", admin for
    "changed", and EXECUTE on idemq.create_queue for "created".
    """
    values = {
        "queue": queue_argument(queue),
        "exact": bool_argument("exact", exact),
        "lease": delay_argument("lease", lease),
        "max_attempts": optional_int("max_attempts", max_attempts),
        "retry_base": delay_argument("retry_base", retry_base),
        "retry_factor": optional_float("retry_factor", retry_factor),
        "retry_max": delay_argument("retry_max", retry_max),
        "retry_jitter": optional_float("retry_jitter", retry_jitter),
        "retention": delay_argument("retention", retention),
        "idempotency_window": delay_argument("idempotency_window", idempotency_window),
        "max_running": optional_int("max_running", max_running),
        "rate_limit": optional_int("rate_limit", rate_limit),
        "rate_period": delay_argument("rate_period", rate_period),
        "dead_letter_queue": optional_text("dead_letter_queue", dead_letter_queue),
        "dead_retention": delay_argument("dead_retention", dead_retention),
        "max_lease": delay_argument("max_lease", max_lease),
        "job_timeout": delay_argument("job_timeout", job_timeout),
        "dead_letter_cancelled": optional_bool("dead_letter_cancelled", dead_letter_cancelled),
        "group_max_running": optional_int("group_max_running", group_max_running),
        "group_rate_limit": optional_int("group_rate_limit", group_rate_limit),
        "group_rate_period": delay_argument("group_rate_period", group_rate_period),
        "expect_workers": optional_bool("expect_workers", expect_workers),
        "rate_burst": optional_int("rate_burst", rate_burst),
        "group_rate_burst": optional_int("group_rate_burst", group_rate_burst),
        "max_hold_back": delay_argument("max_hold_back", max_hold_back),
        "max_unfinished": optional_int("max_unfinished", max_unfinished),
        "group_max_unfinished": optional_int("group_max_unfinished", group_max_unfinished),
        "notify_finished": optional_bool("notify_finished", notify_finished),
    }
    return Statement(_ENSURE_QUEUE, values, lambda rows: Ensured(*rows[0]))


@statement
def ensure_topic(
    topic: str,
) -> Statement[str]:
    """Create a topic space unless it exists.  Returns "created" or "unchanged".

    Requires any privilege on the topic space for "unchanged", and EXECUTE on idemq.create_topic for "created".
    """
    return Statement(_ENSURE_TOPIC, {"topic": text_argument("topic", topic)}, lambda rows: str(rows[0][0]))


@statement
def ensure_handler(
    queue: str,
    function: str,
    *,
    workers: int = 1,
    batch: int = 1,
    max_idle: Delay = 10,
) -> Statement[Ensured]:
    """Run a queue's jobs inside the server, as the current role, by calling a function f(payload jsonb).

    Calls idemq.set_handler, unless the same role has already set the handler with the same arguments.
    workers: maximum number of processes.
    batch: maximum number of jobs per transaction.
    max_idle: how long a process may be idle before it exits.
    """
    values = {
        "queue": queue_argument(queue),
        "function": text_argument("function", function),
        "workers": int_argument("workers", workers),
        "batch": int_argument("batch", batch),
        "max_idle": delay_argument("max_idle", max_idle),
    }
    return Statement(_ENSURE_HANDLER, values, lambda rows: Ensured(*rows[0]))
