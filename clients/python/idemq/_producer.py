"""enqueue and enqueue_many, in the transaction of the given connection."""

from __future__ import annotations

from datetime import datetime
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Callable, Generic, NamedTuple, Optional, Sequence, TypedDict, TypeVar, Union

from psycopg.types.json import Jsonb

from . import _trace
from ._arguments import (
    bool_argument,
    delay_argument,
    headers_argument,
    ids_argument,
    key_argument,
    options_of_a_job,
    options_of_many,
    queue_argument,
    text_argument,
)
from ._codec import Codec, Duplicates, add_documents, checked_codec, decoded, plain_bytes
from ._statements import Plan, Statement, statement
from ._values import Row, jsonb_parameter
from .errors import Delay, Key

T = TypeVar("T")
P = TypeVar("P")
R = TypeVar("R")

# _portable.py reads the type of each parameter.
_ENQUEUE = """SELECT id, outcome::text, status::text, result
    FROM idemq.enqueue(%(queue)s::text, %(payload)s::jsonb, key => %(key)s::text, delay => %(delay)s::interval,
        run_at => %(run_at)s::timestamptz, priority => %(priority)s::int, group_key => %(group_key)s::text,
        max_attempts => %(max_attempts)s::int, headers => %(headers)s::jsonb,
        expires_in => %(expires_in)s::interval, key_ttl => %(key_ttl)s::interval,
        on_duplicate => %(on_duplicate)s::text, nowait => %(nowait)s::bool, kind => %(kind)s::text,
        max_wait => %(max_wait)s::interval, depends_on => %(depends_on)s::bigint[],
        on_parent_failure => %(on_parent_failure)s::text)"""


_ENQUEUE_MANY = """SELECT id, outcome::text, status::text, result
    FROM idemq.enqueue_many(%(queue)s, %(payloads)s::jsonb[], keys => %(keys)s::text[], delays => %(delays)s::interval[],
        run_ats => %(run_ats)s::timestamptz[], priorities => %(priorities)s::int[], group_keys => %(group_keys)s::text[],
        max_attempts => %(max_attempts)s::int[], headers => %(headers)s::jsonb[],
        expires_ins => %(expires_ins)s::interval[], key_ttls => %(key_ttls)s::interval[],
        on_duplicate => %(on_duplicate)s, nowait => %(nowait)s, kinds => %(kinds)s::text[],
        max_wait => %(max_wait)s::interval, depends_on => %(depends_on)s::bigint[],
        on_parent_failure => %(on_parent_failure)s) ORDER BY ord"""
_ERRORS = "SELECT id, last_error FROM idemq.jobs WHERE id = ANY(%(ids)s::bigint[])"


if TYPE_CHECKING:

    class Enqueued(NamedTuple, Generic[R]):
        """Result of enqueue.  For a duplicate, id, status, result and error are those of the first job."""

        id: int
        outcome: str
        status: str
        result: R
        error: Optional[str] = None
        """If the first job is dead, its last error; None if you may not see the job."""

    class _Payload(TypedDict, Generic[P]):
        payload: P

else:  # Python 3.9 and 3.10 have no generic NamedTuple and TypedDict

    class Enqueued(NamedTuple):
        """Result of enqueue.  For a duplicate, id, status, result and error are those of the first job."""

        id: int
        outcome: str
        status: str
        result: Any
        error: Optional[str] = None
        __class_getitem__ = classmethod(GenericAlias)

    class _Payload(TypedDict):
        payload: Any


class NewJob(_Payload[P], total=False):
    """A job of enqueue_many: payload, and other arguments of enqueue."""

    key: Key
    delay: Delay
    run_at: datetime
    priority: int
    group_key: str
    max_attempts: int
    headers: dict[str, Any]
    expires_in: Delay
    key_ttl: Delay
    kind: str


@statement
def enqueue(
    queue: str,
    payload: Any,
    *,
    key: Optional[Key] = None,
    delay: Optional[Delay] = None,
    run_at: Optional[datetime] = None,
    priority: int = 4,
    group_key: Optional[str] = None,
    max_attempts: Optional[int] = None,
    headers: Optional[dict[str, Any]] = None,
    expires_in: Optional[Delay] = None,
    key_ttl: Optional[Delay] = None,
    on_duplicate: str = "keep",
    nowait: bool = False,
    kind: Optional[str] = None,
    max_wait: Optional[Delay] = None,
    depends_on: Optional[Sequence[int]] = None,
    on_parent_failure: str = "cancel",
    codec: Optional[Codec] = None,
) -> Union[Statement[Enqueued[Any]], Plan[Enqueued[Any]]]:
    """Add a job in the transaction of conn, the first argument.  Await the call if conn is an AsyncConnection.

    The job exists once the transaction commits.

    payload: any value that can be encoded as JSON.
    key: idempotency key.  A call with the same key and payload returns the first job; one with another payload raises KeyReused.
    delay, run_at: the job is not ready before this time.
    priority: from 0 (highest) to 9.
    group_key: jobs with the same group key run one after the other.
    expires_in: the job is cancelled if no worker has claimed it within this time.
    key_ttl: time for which the key remains reserved.
    on_duplicate: "keep", "ignore", "replace", "rerun" or "error".
    nowait: return the outcome "locked" instead of waiting for a transaction that is using the key.
    kind: label that selects the handler.
    max_wait: with on_duplicate="replace", the longest that repeated requests can postpone the job.
    depends_on: ids of jobs that must finish first.
    on_parent_failure: what to do if one of them fails: "cancel", "wait" or "run".
    codec: encodes the payload, and decodes the result of a duplicate.
    """
    coder = checked_codec(codec)
    values = {
        **options_of_a_job(delay, run_at, priority, group_key, max_attempts, expires_in, kind),
        "queue": queue_argument(queue),
        "payload": Jsonb(payload) if coder is None else None,
        "key": key_argument(key),
        "headers": jsonb_parameter("headers", _trace.inject(headers_argument(headers))),
        "key_ttl": delay_argument("key_ttl", key_ttl),
        "on_duplicate": text_argument("on_duplicate", on_duplicate),
        "nowait": bool_argument("nowait", nowait),
        "max_wait": delay_argument("max_wait", max_wait),
        "depends_on": None if depends_on is None else ids_argument("depends_on", depends_on),
        "on_parent_failure": text_argument("on_parent_failure", on_parent_failure),
    }
    if coder is not None:
        return _enqueue_encoded(coder, payload, values)
    return Statement(_ENQUEUE, values, lambda rows: Enqueued(*rows[0]), then=lambda added: errors_of_dead([added], lambda all: all[0]))


def _enqueue_encoded(codec: Codec, payload: Any, values: dict[str, Any]) -> Plan[Enqueued[Any]]:
    def add(document: Jsonb, on_duplicate: str) -> Statement[list[Enqueued[Any]]]:
        sent = {**values, "payload": document, "on_duplicate": on_duplicate}
        return Statement(_ENQUEUE, sent, lambda rows: _decoded_results(codec, rows), then=lambda added: errors_of_dead(added, lambda all: all))

    own = values["on_duplicate"]
    added: list[Enqueued[Any]] = yield from add_documents(codec, Duplicates(
        [plain_bytes("payload", payload)], [values["key"] is not None and own == "keep"],
        lambda documents, ignore: add(documents[0], "ignore" if ignore else own), lambda _, documents: add(documents[0], own),
    ))  # fmt: skip
    return added[0]


def _decoded_results(codec: Codec, rows: Sequence[Row]) -> list[Enqueued[Any]]:
    return [Enqueued(id, outcome, status, decoded(codec, result)) for id, outcome, status, result in rows]


@statement
def enqueue_many(
    queue: str,
    jobs: Sequence[NewJob[Any]],
    *,
    on_duplicate: str = "keep",
    nowait: bool = False,
    max_wait: Optional[Delay] = None,
    depends_on: Optional[Sequence[int]] = None,
    on_parent_failure: str = "cancel",
    codec: Optional[Codec] = None,
) -> Union[Statement[list[Enqueued[Any]]], Plan[list[Enqueued[Any]]]]:
    """Add many jobs to a queue in one statement, all or none.  Returns the results in the order of jobs.

    jobs: a dict for each job, with its payload, and other arguments of enqueue: key, delay, run_at, priority, group_key, max_attempts,
        headers, expires_in, key_ttl, kind.
    nowait: skip jobs whose keys another open transaction is using; their outcome is "locked".
    The other arguments are those of enqueue, and apply to every job.
    """
    coder = checked_codec(codec)
    columns = options_of_many(jobs)
    headers = columns.pop("headers")
    values = {
        **columns,
        "queue": queue_argument(queue),
        "payloads": [Jsonb(job["payload"]) for job in jobs] if coder is None else [],
        "headers": [jsonb_parameter("headers", _trace.inject(each)) for each in headers],
        "on_duplicate": text_argument("on_duplicate", on_duplicate),
        "nowait": bool_argument("nowait", nowait),
        "max_wait": delay_argument("max_wait", max_wait),
        "depends_on": None if depends_on is None else ids_argument("depends_on", depends_on),
        "on_parent_failure": text_argument("on_parent_failure", on_parent_failure),
    }
    if coder is not None:
        return _enqueue_many_encoded(coder, [job["payload"] for job in jobs], values, list(columns))
    return Statement(_ENQUEUE_MANY, values, lambda rows: [Enqueued(*row) for row in rows], then=lambda added: errors_of_dead(added, lambda all: all))


def _enqueue_many_encoded(codec: Codec, payloads: Sequence[Any], values: dict[str, Any], columns: Sequence[str]) -> Plan[list[Enqueued[Any]]]:
    """columns: the arguments that are arrays with an element for each job."""
    own = values["on_duplicate"]

    def add(numbers: Sequence[int], documents: Sequence[Jsonb], on_duplicate: str) -> Statement[list[Enqueued[Any]]]:
        sent = {**values, **{name: [values[name][n] for n in numbers] for name in (*columns, "headers")}}
        sent.update(payloads=list(documents), on_duplicate=on_duplicate)
        return Statement(_ENQUEUE_MANY, sent, lambda rows: _decoded_results(codec, rows), then=lambda added: errors_of_dead(added, lambda all: all))

    added: list[Enqueued[Any]] = yield from add_documents(codec, Duplicates(
        [plain_bytes(f"payload of job {n}", payload) for n, payload in enumerate(payloads)],
        [key is not None and own == "keep" for key in values["keys"]],
        lambda documents, ignore: add(range(len(documents)), documents, "ignore" if ignore else own),
        lambda numbers, documents: add(numbers, documents, own),
    ))  # fmt: skip
    return added


def errors_of_dead(added: list[Enqueued[Any]], answer: Callable[[list[Enqueued[Any]]], T]) -> Optional[Statement[T]]:
    """The statement that adds the errors of dead jobs to the results; None if there are none."""

    def with_errors(rows: list[Row]) -> T:
        errors: dict[int, Optional[str]] = {id: error for id, error in rows}
        return answer([each._replace(error=errors.get(each.id)) if each.id in dead else each for each in added])

    dead = [each.id for each in added if each.outcome == "duplicate" and each.status == "dead"]
    return Statement(_ERRORS, {"ids": dead}, with_errors) if dead else None
