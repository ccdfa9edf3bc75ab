"""Functions beyond a single job: events, topics, ordered logs, graphs and their progress, cancelling many jobs, and
waiting for results.

The first argument of each is a connection.  Each call is one statement in its transaction.  Await it if that is an AsyncConnection.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, Mapping, NamedTuple, Optional, Sequence, TypedDict, TypeVar, Union

from psycopg.types.json import Jsonb

from . import _trace
from ._arguments import (
    delay_argument,
    delay_text,
    headers_argument,
    ids_argument,
    int_argument,
    key_argument,
    members_of_graph,
    optional_int,
    optional_text,
    options_of_a_job,
    parents_in_graph,
    queue_argument,
    text_argument,
    time_argument,
    time_text,
)
from ._codec import Codec, Duplicates, add_documents, checked_codec, decoded, encoded, encoded_with_each_key, plain_bytes
from ._producer import Enqueued, errors_of_dead
from ._statements import Plan, Statement, statement
from ._values import Row, jsonb_parameter
from .errors import Delay, Key

R = TypeVar("R")

_SEND = """SELECT outcome::text, first_payload, same_payload
    FROM idemq.send_event(%(queue)s, %(name)s, %(payload)s::jsonb)"""
_PUBLISH = """SELECT queue, id, outcome::text
    FROM idemq.publish(%(topic)s, %(payload)s, key => %(key)s, delay => %(delay)s::interval,
        run_at => %(run_at)s, priority => %(priority)s::int, group_key => %(group_key)s,
        max_attempts => %(max_attempts)s::int, headers => %(headers)s::jsonb,
        expires_in => %(expires_in)s::interval, kind => %(kind)s)"""
_ENQUEUE_SEQUENCED = """SELECT id, outcome::text, status::text, result
    FROM idemq.enqueue_sequenced(%(queue)s, %(producer)s, %(seq)s, %(payload)s,
        delay => %(delay)s::interval, run_at => %(run_at)s, priority => %(priority)s::int,
        group_key => %(group_key)s, max_attempts => %(max_attempts)s::int,
        headers => %(headers)s::jsonb, expires_in => %(expires_in)s::interval, kind => %(kind)s)"""
_ENQUEUE_GRAPH = "SELECT name, id, outcome::text, status::text FROM idemq.enqueue_graph(%(jobs)s)"
_FLOW = """SELECT jobs, waiting, blocked, running, retrying, completed, dead, cancelled, done, progress,
    begun_at, ended_at, eta, held_up_by, held_up_why, slowest, slowest_kind, slowest_for, failed_ids, roots, cut
    FROM idemq.flow(%(id)s, %(most)s)"""
_CANCEL_MANY = "SELECT id, outcome::text FROM idemq.cancel_many(%(ids)s::bigint[])"
_CANCEL_MATCHING = """SELECT cancelled, locked
    FROM idemq.cancel_matching(%(queue)s, kind => %(kind)s, group_key => %(group_key)s,
        key_prefix => %(key_prefix)s, max_jobs => %(max_jobs)s::int)"""
_PAUSE_GROUP = "SELECT idemq.pause(%(queue)s, until => %(until)s, group_key => %(group_key)s)"
_RESUME_GROUP = "SELECT idemq.resume(%(queue)s, group_key => %(group_key)s)"
_WAIT_RESULTS = "CALL idemq.wait_results(%(ids)s::bigint[], %(timeout)s::interval)"


class Sent(NamedTuple):
    """Result of send_event."""

    outcome: str
    """accepted, or duplicate if the event had been sent before."""
    first_payload: Any
    """The payload that counts.  For a duplicate, it is the payload of the first event, or None if the role may only enqueue."""
    same_payload: bool
    """Whether your payload equals the one that counts."""


class Published(NamedTuple):
    """A job that publish has added to one of the queues bound to the topic."""

    queue: str
    id: int
    outcome: str


class Sequenced(NamedTuple):
    """Result of enqueue_sequenced.  A duplicate has id, status and result only if it is the producer's last message."""

    id: Optional[int]
    outcome: str
    status: Optional[str]
    result: Any
    error: Optional[str] = None
    """The last error of the first job, if this is a duplicate and that job is dead."""


class _Named(TypedDict):
    queue: str
    payload: Any


class GraphJob(_Named, total=False):
    """A job of a graph: queue, payload, and other arguments of enqueue."""

    depends_on: Sequence[Union[str, int]]
    """Names in the graph, and ids of existing jobs."""
    on_parent_failure: str
    key: Key
    delay: Delay
    run_at: datetime
    priority: int
    group_key: str
    max_attempts: int
    headers: dict[str, Any]
    expires_in: Delay
    key_ttl: Delay
    on_duplicate: str
    kind: str
    max_wait: Delay


class InGraph(NamedTuple):
    """Result of enqueue_graph for one job."""

    id: int
    outcome: str
    status: str


class CancelledJobs(NamedTuple):
    """Result of cancel_matching."""

    cancelled: int
    locked: int
    """Number of matching jobs that open transactions hold.  Call again to cancel them."""


class Flow(NamedTuple):
    """Progress of a graph or a fan-out."""

    jobs: int
    """Number of jobs, including parents that have been deleted."""
    waiting: int
    blocked: int
    running: int
    retrying: int
    completed: int
    dead: int
    cancelled: int
    done: int
    """Number of jobs that are completed, dead or cancelled."""
    progress: float
    """done as a percentage of jobs."""
    begun_at: Optional[datetime]
    ended_at: Optional[datetime]
    eta: Optional[timedelta]
    """Estimated time left at the recent rate; None if no estimate is possible."""
    held_up_by: Optional[int]
    """Id of the unfinished job that most others are waiting for, or that has been unfinished longest."""
    held_up_why: Optional[str]
    slowest: Optional[int]
    slowest_kind: Optional[str]
    slowest_for: Optional[timedelta]
    failed_ids: list[int]
    """Ids of at most 100 failed jobs: dead jobs first, then those that will be retried."""
    roots: list[int]
    """Ids of at most 100 jobs without parents."""
    cut: bool
    """Whether there are more than `most` jobs."""


if TYPE_CHECKING:

    class Result(NamedTuple, Generic[R]):
        """Result of wait_results for one job."""

        status: str
        """completed, dead or cancelled.  Any other status means that the timeout passed first."""
        result: R

else:  # Python 3.9 and 3.10 have no generic NamedTuple

    class Result(NamedTuple):
        """Result of wait_results for one job."""

        status: str
        result: Any
        __class_getitem__ = classmethod(GenericAlias)

    status: str
    """completed, dead or cancelled.  Any other status means that the timeout passed first."""
    result: Any


@statement
def send_event(
    queue: str,
    name: str,
    payload: Any = None,
    *,
    codec: Optional[Codec] = None,
) -> Union[Statement[Sent], Plan[Sent]]:
    """Send an event to the jobs of a queue that wait for it now, or start to within the queue's idempotency_window.

    Waiting jobs become ready when the transaction commits.
    """
    values = {"queue": queue_argument(queue), "name": text_argument("name", name), "payload": jsonb_parameter("payload", payload)}
    coder = checked_codec(codec)
    if coder is not None and payload is not None:
        return _send_encoded(coder, payload, values)
    return Statement(_SEND, values, lambda rows: Sent(rows[0][0], decoded(coder, rows[0][1]), rows[0][2]))


def _send_encoded(codec: Codec, payload: Any, values: dict[str, Any]) -> Plan[Sent]:
    """The payload of the first event may be encoded with another key, so the server compares it with each."""
    first: Optional[Sent] = None
    for document in encoded_with_each_key(codec, "payload", payload):
        sent: Sent = yield Statement(_SEND, {**values, "payload": document}, lambda rows: Sent(*rows[0]))
        first = first or sent._replace(first_payload=decoded(codec, sent.first_payload))
        if sent.same_payload:
            return first._replace(same_payload=True)
    assert first is not None
    return first


@statement
def publish(
    topic: str,
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
    kind: Optional[str] = None,
    codec: Optional[Codec] = None,
) -> Statement[list[Published]]:
    """Add a job to each queue that is bound to a topic.  Returns these jobs; the list is empty if no queue is bound."""
    values = _options(delay, run_at, priority, group_key, max_attempts, headers, expires_in, kind)
    values.update(topic=text_argument("topic", topic), payload=encoded(checked_codec(codec), "payload", payload), key=key_argument(key))
    return Statement(_PUBLISH, values, lambda rows: [Published(*row) for row in rows])


@statement
def enqueue_sequenced(
    queue: str,
    producer: str,
    seq: int,
    payload: Any,
    *,
    delay: Optional[Delay] = None,
    run_at: Optional[datetime] = None,
    priority: int = 4,
    group_key: Optional[str] = None,
    max_attempts: Optional[int] = None,
    headers: Optional[dict[str, Any]] = None,
    expires_in: Optional[Delay] = None,
    kind: Optional[str] = None,
    codec: Optional[Codec] = None,
) -> Statement[Sequenced]:
    """Add a job for message number seq of one ordered log, such as a Kafka partition.

    A number that is not greater than the producer's last one is a duplicate.  Gaps are normal.  Do not use it for the
    ids of an outbox table, because transactions commit in another order.
    """
    values = _options(delay, run_at, priority, group_key, max_attempts, headers, expires_in, kind)
    coder = checked_codec(codec)
    values.update(
        queue=queue_argument(queue), producer=text_argument("producer", producer), seq=int_argument("seq", seq),
        payload=encoded(coder, "payload", payload),
    )  # fmt: skip

    def answer(rows: list[Row]) -> Sequenced:
        id, outcome, status, result = rows[0]
        return Sequenced(id, outcome, status, decoded(coder, result))

    return Statement(_ENQUEUE_SEQUENCED, values, answer, then=_with_error)


def _with_error(added: Any) -> Optional[Statement[Sequenced]]:
    return errors_of_dead([Enqueued(*added)], lambda all: Sequenced(*all[0]))


@statement
def enqueue_graph(
    jobs: Mapping[str, GraphJob],
    *,
    codec: Optional[Codec] = None,
) -> Union[Statement[dict[str, InGraph]], Plan[dict[str, InGraph]]]:
    """Add jobs that depend on each other, all or none.  In depends_on, a job names the jobs that must finish first.

    A cycle raises SQLSTATE 22023.  If the key of a job is taken, its result describes the job that has the key.
    """
    members = [_member_texts(name, job) for name, job in members_of_graph(jobs).items()]
    coder = checked_codec(codec)
    if coder is not None:
        return _enqueue_graph_encoded(coder, members)
    values = {"jobs": jsonb_parameter("jobs", members)}
    return Statement(_ENQUEUE_GRAPH, values, lambda rows: {row[0]: InGraph(*row[1:]) for row in rows})


def _enqueue_graph_encoded(codec: Codec, members: Sequence[dict[str, Any]]) -> Plan[dict[str, InGraph]]:
    def add(numbers: Sequence[int], documents: Sequence[Jsonb], ignore: bool, whole: bool) -> Statement[list[InGraph]]:
        jobs: list[dict[str, Any]] = []
        for n, document in zip(numbers, documents):
            job = {**members[n], "payload": json.loads(document.obj)}
            if ignore and compared[n]:
                job["on_duplicate"] = "ignore"
            if not whole:  # the job is a duplicate, so it keeps its parents
                job.pop("depends_on", None)
            jobs.append(job)
        order = [job["name"] for job in jobs]

        def answer(rows: list[Row]) -> list[InGraph]:
            placed = {row[0]: InGraph(*row[1:]) for row in rows}
            return [placed[name] for name in order]

        return Statement(_ENQUEUE_GRAPH, {"jobs": jsonb_parameter("jobs", jobs)}, answer)

    compared = [job.get("key") is not None and job.get("on_duplicate", "keep") == "keep" for job in members]
    placed = yield from add_documents(codec, Duplicates(
        [plain_bytes(f"payload of job {job['name']}", job.get("payload")) for job in members], compared,
        lambda documents, ignore: add(range(len(documents)), documents, ignore, True),
        lambda numbers, documents: add(numbers, documents, False, False),
    ))  # fmt: skip
    return {job["name"]: each for job, each in zip(members, placed)}


@statement
def flow(id: int, most: int = 100000) -> Statement[Optional[Flow]]:
    """Return the progress of the graph or fan-out that contains the job.  Returns None if you may not see the job."""
    return Statement(_FLOW, {"id": int_argument("id", id), "most": int_argument("most", most)}, lambda rows: Flow(*rows[0]) if rows else None, binary=True)


@statement
def cancel_many(
    ids: Sequence[int],
) -> Statement[dict[int, str]]:
    """Cancel unfinished jobs.  Returns the outcome by id: "cancelled", or the reason why a job was not cancelled.

    It never waits for locks.  The outcome "locked" means that an open transaction holds the job.
    """
    return Statement(_CANCEL_MANY, {"ids": ids_argument("ids", ids)}, lambda rows: {row[0]: row[1] for row in rows})


@statement
def cancel_matching(
    queue: str,
    *,
    kind: Optional[str] = None,
    group_key: Optional[str] = None,
    key_prefix: Optional[str] = None,
    max_jobs: Optional[int] = None,
) -> Statement[CancelledJobs]:
    """Cancel the unfinished jobs of a queue that match every given filter.  At least one filter is required.

    max_jobs: maximum number of jobs to cancel in this call.  It never waits for locks, but counts the locked jobs.
    """
    values = {
        "queue": queue_argument(queue),
        "kind": optional_text("kind", kind),
        "group_key": optional_text("group_key", group_key),
        "key_prefix": optional_text("key_prefix", key_prefix),
        "max_jobs": optional_int("max_jobs", max_jobs),
    }
    return Statement(_CANCEL_MATCHING, values, lambda rows: CancelledJobs(*rows[0]))


@statement
def pause_group(
    queue: str,
    group_key: str,
    *,
    until: Optional[datetime] = None,
) -> Statement[None]:
    """Pause one group of a queue.  Its jobs wait until resume_group is called or the given time is reached.

    Running jobs continue.  The other groups of the queue are not affected.  Requires the privilege admin on the queue.
    """
    values = {"queue": queue_argument(queue), "group_key": text_argument("group_key", group_key), "until": time_argument("until", until)}
    return Statement(_PAUSE_GROUP, values, lambda rows: None)


@statement
def resume_group(
    queue: str,
    group_key: str,
) -> Statement[None]:
    """Resume a paused group.  Requires the privilege admin on the queue."""
    values = {"queue": queue_argument(queue), "group_key": text_argument("group_key", group_key)}
    return Statement(_RESUME_GROUP, values, lambda rows: None)


@statement
def wait_results(
    ids: Sequence[int],
    timeout: Delay = 30,
    *,
    codec: Optional[Codec] = None,
) -> Statement[list[Result[Any]]]:
    """Sleep until all these jobs are finished or the timeout has passed.  Returns their results in the order of ids.

    The connection must be in autocommit mode and outside a transaction.
    """
    values = {"ids": ids_argument("ids", ids), "timeout": delay_argument("timeout", timeout)}
    coder = checked_codec(codec)
    return Statement(_WAIT_RESULTS, values, lambda rows: _results(rows, coder))


def _options(
    delay: Optional[Delay],
    run_at: Optional[datetime],
    priority: int,
    group_key: Optional[str],
    max_attempts: Optional[int],
    headers: Optional[dict[str, Any]],
    expires_in: Optional[Delay],
    kind: Optional[str],
) -> dict[str, Any]:
    return {
        **options_of_a_job(delay, run_at, priority, group_key, max_attempts, expires_in, kind),
        "headers": jsonb_parameter("headers", _trace.inject(headers_argument(headers))),
    }


def _member_texts(name: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """A job of a graph as JSON, with times as text that PostgreSQL reads."""
    members: dict[str, Any] = {**job, "name": name}
    if "queue" in members:
        members["queue"] = queue_argument(members["queue"])
    members["key"] = key_argument(members.get("key"))
    for member in ("delay", "expires_in", "key_ttl", "max_wait"):
        members[member] = delay_text(member, members.get(member))
    members["run_at"] = time_text("run_at", members.get("run_at"))
    for member in ("priority", "max_attempts"):
        members[member] = optional_int(member, members.get(member))
    for member in ("group_key", "kind", "on_duplicate", "on_parent_failure"):
        members[member] = optional_text(member, members.get(member))
    members["headers"] = _trace.inject(headers_argument(members.get("headers")))
    members["depends_on"] = parents_in_graph(members.get("depends_on"))
    # A payload can be null.
    return {member: value for member, value in members.items() if value is not None or member == "payload"}


def _results(rows: list[Row], codec: Optional[Codec]) -> list[Result[Any]]:
    statuses, results = rows[0]
    # psycopg returns an array of an enum as text.
    names = statuses.strip("{}").split(",") if isinstance(statuses, str) else statuses
    return [Result(status, decoded(codec, result)) for status, result in zip(names, results)]
