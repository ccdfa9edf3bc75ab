"""Enqueue and run jobs of idemq, the job queue in PostgreSQL.

    enqueue(conn, "mail", {"order": 42}, key="order-42")       # in the caller's transaction

    def confirm(job, conn):                                    # in the job's transaction
        conn.execute("INSERT INTO confirmations VALUES (%s)", [job.payload["order"]])

    Worker(dsn, "mail").run(confirm)
    Worker(dsn, {"mail": confirm, "pages": Outside(fetch, concurrency=10)}).run()        # several queues

The manual is doc/usage/python.md, and doc/reference/python.md lists every name.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import fields
from typing import Any, Awaitable, Callable, Collection, Mapping, Optional, Sequence, Union

from psycopg import AsyncConnection, Connection

from ._arguments import (
    bool_argument,
    optional_text,
    positive_seconds,
    queue_argument,
    seconds_argument,
    text_argument,
)
from ._cluster import ClusterRun
from ._codec import Codec
from ._declare import Ensured, ensure_handler, ensure_queue, ensure_topic
from ._executors import AsyncExecutor, AsyncTransactionExecutor, Executor, ThreadExecutor, ThreadTransactionExecutor
from ._finished import FinishedJob, Overflow, finished_jobs, finished_jobs_async
from ._flows import (
    CancelledJobs,
    Flow,
    GraphJob,
    InGraph,
    Published,
    Result,
    Sent,
    Sequenced,
    cancel_many,
    cancel_matching,
    enqueue_graph,
    enqueue_sequenced,
    flow,
    pause_group,
    publish,
    resume_group,
    send_event,
    wait_results,
)
from ._handlers import Handlers, Kind, single_handler
from ._hooks import Failure, Hooks, call_hook, call_hook_safely, checked_hooks
from ._job import AsyncJob, Event, Job, Parent, StepCall
from ._jobs import (
    JobInfo,
    advance_clock,
    assert_enqueued,
    cancel,
    job,
    make_due,
    pause,
    reschedule,
    result,
    resume,
    retry,
    schedule,
    unschedule,
    why,
)
from ._links import AsyncLink, ThreadLink
from ._logs import JobLogFilter, current_job, mode_argument, redact_argument
from ._options import Options, QueueOptions, WorkerOptions, options_of
from ._portable import enqueue_statement
from ._producer import Enqueued, NewJob, enqueue, enqueue_many
from ._queues import Inside, Outside, QueueHandler, TypedHandler, checked_queues, queue_options
from ._run import Run, Setup
from ._typed import Queue, handlers_by_queue, is_list_of_bound
from .errors import (
    AlreadyCommitted,
    Dead,
    Delay,
    DuplicateKey,
    HoldBack,
    IdemqError,
    Key,
    KeyReused,
    NoSuchJob,
    NoSuchQueue,
    QueueFull,
    Refused,
    RetryLater,
    Snooze,
    StaleToken,
    TypeMismatch,
    Waiting,
)

__all__ = [
    "AlreadyCommitted",
    "AsyncClusterWorker",
    "AsyncJob",
    "AsyncWorker",
    "CancelledJobs",
    "ClusterWorker",
    "Codec",
    "Dead",
    "Delay",
    "DuplicateKey",
    "Enqueued",
    "Ensured",
    "Event",
    "Failure",
    "FinishedJob",
    "Flow",
    "GraphJob",
    "HoldBack",
    "Hooks",
    "IdemqError",
    "InGraph",
    "Inside",
    "Job",
    "JobInfo",
    "JobLogFilter",
    "Key",
    "KeyReused",
    "Kind",
    "NewJob",
    "NoSuchJob",
    "NoSuchQueue",
    "Outside",
    "Overflow",
    "Parent",
    "Published",
    "Queue",
    "QueueFull",
    "Refused",
    "Result",
    "RetryLater",
    "Sent",
    "Sequenced",
    "Snooze",
    "StaleToken",
    "StepCall",
    "TypeMismatch",
    "Waiting",
    "Worker",
    "advance_clock",
    "assert_enqueued",
    "cancel",
    "cancel_many",
    "cancel_matching",
    "current_job",
    "drain",
    "drain_async",
    "enqueue",
    "enqueue_graph",
    "enqueue_many",
    "enqueue_sequenced",
    "enqueue_statement",
    "ensure_handler",
    "ensure_queue",
    "ensure_topic",
    "finished_jobs",
    "finished_jobs_async",
    "flow",
    "job",
    "make_due",
    "pause",
    "pause_group",
    "publish",
    "reschedule",
    "result",
    "resume",
    "resume_group",
    "retry",
    "schedule",
    "send_event",
    "unschedule",
    "wait_results",
    "why",
]


class _Worker:
    _coroutines: bool
    """Whether the handlers are coroutine functions."""
    _other: str
    """The class for the other kind of handlers, for error messages."""

    def __init__(
        self,
        dsn: str,
        queue: Union[str, Mapping[str, QueueHandler], Sequence[TypedHandler]],
        *,
        name: Optional[str] = None,
        wait_dsn: Optional[str] = None,
        concurrency: int = 1,
        batch: int = 1,
        lease: Optional[Delay] = None,
        timeout: float = 3600,
        grace: float = 30,
        attach: Optional[bool] = None,
        signals: bool = True,
        unknown_kind: Delay = 60,
        never_retry: Sequence[type[BaseException]] = (),
        codec: Optional[Codec] = None,
        give_up_after: Optional[float] = None,
        hooks: Union[Hooks, Mapping[str, Callable[..., Any]], None] = None,
        capture_logs: str = "off",
        redact: Optional[Callable[[str], str]] = None,
        ahead: int = 0,
        ahead_wait: float = 1,
    ) -> None:
        """Create a worker.  It connects to nothing until it runs.

        dsn: connection string of the database.
        queue: name of the queue; or a dict of handlers by queue, each an Inside or Outside, a function, or a dict of functions by kind.
            A function or a dict means Inside.  Or a list of what Queue.inside and Queue.outside return.
        name: name shown in idemq.running_jobs and idemq.workers.
        wait_dsn: direct connection to the server for the session that waits, if dsn goes through a pooler.
        grace: seconds that running handlers have after SIGTERM or stop().
        signals: whether SIGTERM and SIGINT drain the worker.
        give_up_after: seconds without a connection after which run() raises the error of the last attempt to connect; None means never.
        hooks: functions to call around each attempt, after a failure, at the start and at the end.
        capture_logs: whether to store the last 16 kB of a handler's log lines in idemq.attempts: "off", "failed" (of attempts that fail) or
            "all" (also of those that complete their jobs).  Inside and Outside can have a value of their own.
        redact: function that gets each text of a handler (log, error, traceback) before it is stored, and returns what may be stored.

        These options belong to a queue, so with a dict they are arguments of Inside and Outside:

        concurrency: number of handlers that run at once.
        batch: number of jobs that run() handles in one transaction.
        lease: length of the leases; None means the queue's setting.
        timeout: maximum duration of an attempt in seconds, if the queue has no job_timeout.
        attach: whether leases also end when the session ends; None means True in run(), if the session is the worker's own.
        unknown_kind: delay for a job whose kind has no handler in this worker.
        never_retry: exception classes.  An attempt that fails with one of them makes the job dead at once.
        codec: decodes payloads and encodes what is stored about the jobs, to encrypt them for example.
        ahead: maximum number of jobs that are claimed ahead, which wait in the worker until a handler has ended.
        ahead_wait: seconds after which a job that was claimed ahead, and has not begun, is given back.

        Raises TypeError for an argument of the wrong type, and ValueError for a number out of range.
        """
        text_argument("router" if isinstance(self, _OverShards) else "dsn", dsn)
        self._own = queue_options(concurrency, batch, lease, timeout, attach, unknown_kind, never_retry, codec=codec, ahead=ahead, ahead_wait=ahead_wait)
        self._handlers: Optional[dict[str, Union[Inside, Outside]]] = None
        if isinstance(queue, Mapping):
            self._handlers = self._several(checked_queues(queue))
        elif is_list_of_bound(queue):
            self._handlers = self._several(handlers_by_queue(queue))
        self._queues: tuple[str, ...] = tuple(self._handlers or [queue_argument(queue)])
        if seconds_argument("grace", grace) < 0:
            raise ValueError(f"grace must be at least 0 seconds, not {grace}")
        bool_argument("signals", signals)
        if give_up_after is not None:
            positive_seconds("give_up_after", give_up_after)
        self._options = WorkerOptions(
            dsn, optional_text("name", name), optional_text("wait_dsn", wait_dsn), grace, signals, give_up_after,
            checked_hooks(hooks, self._coroutines, type(self).__name__, self._other), mode_argument("capture_logs", capture_logs), redact_argument(redact),
        )  # fmt: skip
        self._process = os.getpid()
        self._running: Union[Run, ClusterRun, None] = None
        self._stopped = False

    def _several(self, handlers: dict[str, Union[Inside, Outside]]) -> dict[str, Union[Inside, Outside]]:
        for option in fields(QueueOptions):
            if getattr(self._own, option.name) != option.default:
                raise TypeError(f"with several queues, pass {option.name} to Inside or Outside")
        return handlers

    @property
    def queue(self) -> str:
        """Name of the queue; of several, their names with commas between them."""
        return ", ".join(self._queues)

    @property
    def queues(self) -> tuple[str, ...]:
        """Names of the queues."""
        return self._queues

    @property
    def name(self) -> str:
        """Name of the worker, as shown in idemq.running_jobs and idemq.workers."""
        return self._options.worker_name

    def stop(self) -> None:
        """Start the drain, as SIGTERM does.  A second call ends the grace period.  Any thread may call it."""
        self._of_this_process()
        self._stopped = True
        if self._running is not None:
            self._running.loop.call_soon_threadsafe(self._running.stop)

    def _of_this_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "this worker was created in another process, before a fork; create a separate Worker in each process "
                "after the fork"
            )

    def _make_run(self, setups: Sequence[Setup], once: bool) -> Union[Run, ClusterRun]:
        return Run(setups, once)

    async def _work(self, handler: Any, once: bool, outside: bool, caller: str) -> dict[str, int]:
        self._of_this_process()
        if self._running is not None:
            raise RuntimeError("this worker is already running")
        setups = [
            Setup(
                options_of(self._options, queue, each.options),
                self._executor(isinstance(each, Inside)),
                single_handler(each.handler, each.options.unknown_kind, self._coroutines, type(self).__name__, self._other, isinstance(each, Outside)),
                {kind: own for kind, own in each.handler.items() if isinstance(own, Kind)} if isinstance(each.handler, Mapping) else None,
                each.types,
            )
            for queue, each in self._handlers_for(handler, outside, caller).items()
        ]
        hooks = self._options.hooks
        outcomes: dict[str, int] = {}
        await call_hook(hooks.started, self._coroutines, self)
        run = self._running = self._make_run(setups, once)
        try:
            if self._stopped:
                run.stop()
            outcomes = dict(await run.main())
            return outcomes
        finally:
            self._running = None
            self._stopped = False
            await call_hook_safely("stopped", hooks.stopped, self._coroutines, self, outcomes)

    def _handlers_for(self, handler: Any, outside: bool, caller: str) -> Mapping[str, Union[Inside, Outside]]:
        """The handlers of a run.  handler: the argument of run(), run_outside() or drain()."""
        if self._handlers is None:
            made: Union[Inside, Outside] = Outside(handler) if outside else Inside(handler)
            made.options = self._own
            return {self._queues[0]: made}
        if outside:
            raise TypeError("this worker already has its handlers; use Outside(handler) for the queue")
        if handler is not None:
            raise TypeError(f"this worker already has its handlers; call {caller}() without one")
        return self._handlers

    def _executor(self, transaction: bool) -> Callable[[Options, bool], Executor]:
        """Makes executors for the handlers of a queue."""
        if self._coroutines:
            return (lambda options, retry: AsyncTransactionExecutor(AsyncLink(options.where, options.dsn, retry))) if transaction else lambda *_: AsyncExecutor()
        return (lambda options, retry: ThreadTransactionExecutor(ThreadLink(options.where, options.dsn, retry))) if transaction else lambda *_: ThreadExecutor()


class Worker(_Worker):
    """A worker whose handlers are functions.  It calls each in a thread."""

    _coroutines = False
    _other = "AsyncWorker (drain_async)"

    def run(
        self,
        handler: Union[
            Callable[[Job[Any], Connection[Any]], Any], Mapping[Optional[str], Union[Callable[[Job[Any], Connection[Any]], Any], Kind[Any]]], None
        ] = None,
    ) -> dict[str, int]:
        """Run jobs until SIGTERM, SIGINT or stop().  Returns the number of attempts by outcome.

        The handler gets the job and a connection, whose transaction also completes the job.  Its changes and its
        return value, the job's result, become visible only if the job is completed.  A dict contains
        handlers by the kind of the job (None for jobs without a kind); jobs of other kinds are released for a while.
        A worker that was created with handlers for its queues takes none here.
        """
        return asyncio.run(self._work(handler, False, False, "run"))

    def run_outside(
        self, handler: Union[Callable[[Job[Any]], Any], Mapping[Optional[str], Union[Callable[[Job[Any]], Any], Kind[Any]]]]
    ) -> dict[str, int]:
        """Run jobs whose effect is outside the database.  The job is completed after the handler has returned."""
        return asyncio.run(self._work(handler, False, True, "run_outside"))

    def drain(self, handler: Union[Callable[..., Any], Handlers, None] = None, outside: bool = False) -> dict[str, int]:
        """Run the jobs that are ready, for tests and for cron.  Returns the number of attempts by outcome."""
        return asyncio.run(self._work(handler, True, outside, "drain"))


class AsyncWorker(_Worker):
    """A worker whose handlers are coroutine functions."""

    _coroutines = True
    _other = "Worker (drain)"

    async def run(
        self,
        handler: Union[
            Callable[[AsyncJob[Any], AsyncConnection[Any]], Awaitable[Any]],
            Mapping[Optional[str], Union[Callable[[AsyncJob[Any], AsyncConnection[Any]], Awaitable[Any]], Kind[Any]]],
            None,
        ] = None,
    ) -> dict[str, int]:
        """Like Worker.run, for coroutine functions."""
        return await self._work(handler, False, False, "run")

    async def run_outside(
        self,
        handler: Union[
            Callable[[AsyncJob[Any]], Awaitable[Any]], Mapping[Optional[str], Union[Callable[[AsyncJob[Any]], Awaitable[Any]], Kind[Any]]]
        ],
    ) -> dict[str, int]:
        """Like Worker.run_outside, for coroutine functions."""
        return await self._work(handler, False, True, "run_outside")

    async def drain(self, handler: Union[Callable[..., Awaitable[Any]], Handlers, None] = None, outside: bool = False) -> dict[str, int]:
        """Like Worker.drain, for coroutine functions."""
        return await self._work(handler, True, outside, "drain")


class _OverShards(_Worker):
    def __init__(
        self,
        router: str,
        queue: str,
        *,
        home: Optional[Collection[int]] = None,
        roam: bool = True,
        shard_options: str = "",
        name: Optional[str] = None,
        concurrency: int = 1,
        batch: int = 1,
        lease: Optional[Delay] = None,
        timeout: float = 3600,
        grace: float = 30,
        attach: Optional[bool] = None,
        signals: bool = True,
        unknown_kind: Delay = 60,
        never_retry: Sequence[type[BaseException]] = (),
        codec: Optional[Codec] = None,
        hooks: Union[Hooks, Mapping[str, Callable[..., Any]], None] = None,
        capture_logs: str = "off",
        redact: Optional[Callable[[str], str]] = None,
    ) -> None:
        """Create a worker for one queue on all shards of a cluster.

        router: connection string of the router's database.  It must be direct, because the worker listens there.
        home: numbers of the shards to serve first; None means that all shards are equal.
        roam: whether the worker also serves shards that are not in home.
        shard_options: connection string that takes precedence over the router's DSN and the map, such as
            "user=worker sslmode=verify-full".
        concurrency: number of handlers that run at once, on all shards together.
        The other arguments are those of Worker.
        """
        if not isinstance(queue, str):
            raise TypeError(f"{type(self).__name__} serves one queue")
        super().__init__(
            router, queue, name=name, concurrency=concurrency, batch=batch, lease=lease, timeout=timeout,
            grace=grace, attach=attach, signals=signals, unknown_kind=unknown_kind, never_retry=never_retry, hooks=hooks, codec=codec,
            capture_logs=capture_logs, redact=redact,
        )  # fmt: skip
        if home is not None and not home and not roam:
            raise ValueError("a worker without home shards must have roam enabled, or it would never get a job; pass home, roam or both")
        self._shards = home, roam, shard_options

    def _make_run(self, setups: Sequence[Setup], once: bool) -> Union[Run, ClusterRun]:
        return ClusterRun(setups[0], *self._shards, once)


class ClusterWorker(_OverShards, Worker):
    """A Worker for all shards of a cluster.  The changes of a handler of run() are committed on the job's shard."""

    _other = "AsyncClusterWorker"


class AsyncClusterWorker(_OverShards, AsyncWorker):
    """An AsyncWorker for all shards of a cluster."""

    _other = "ClusterWorker"


def drain(
    dsn: str,
    queue: Union[str, Mapping[str, QueueHandler], Sequence[TypedHandler]],
    handler: Union[Callable[..., Any], Handlers, None] = None,
    outside: bool = False,
    **options: Any,
) -> dict[str, int]:
    """Run the jobs that are ready, for tests of an application.  Calls Worker.drain."""
    return Worker(dsn, queue, **options).drain(handler, outside)


async def drain_async(
    dsn: str,
    queue: Union[str, Mapping[str, QueueHandler], Sequence[TypedHandler]],
    handler: Union[Callable[..., Awaitable[Any]], Handlers, None] = None,
    outside: bool = False,
    **options: Any,
) -> dict[str, int]:
    """Like drain, for a coroutine function."""
    return await AsyncWorker(dsn, queue, **options).drain(handler, outside)
