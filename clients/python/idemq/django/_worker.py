"""The worker: runs the jobs of a backend as Django's tasks."""

import logging
import threading
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence

import psycopg
from django.db import close_old_connections, connections
from django.db.transaction import TransactionManagementError
from django.utils import timezone
from psycopg.conninfo import make_conninfo

from .. import Failure, Hooks, Inside, Job, Snooze, Worker
from .._handler_connection import HandlersConnection
from ._backend import IdemqBackend, find_task
from ._connection import task_transaction
from ._tasks import DEFAULT_TASK_BACKEND_ALIAS, Task, TaskContext, TaskResult, TaskResultStatus, normalize_json, task_backends, task_finished, task_started

log = logging.getLogger("idemq")
_UNKNOWN_TASK = 60
"""Seconds for which a job is given back whose task does not exist, as for an unknown kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdemqContext(TaskContext):
    """The context of a task with takes_context."""

    job: Job[Any]
    """The attempt, with step, save_checkpoint, await_event and the others."""


def worker_dsn(alias: str) -> str:
    """The connection string of a database of the settings."""
    connection = connections[alias]
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    params = {name: value for name, value in connection.get_connection_params().items() if name in known}
    role = connection.settings_dict["OPTIONS"].get("assume_role")
    if role:
        escaped = "".join(f"\\{letter}" if letter in "\\ " else letter for letter in role)
        params["options"] = f"{params.get('options', '')} -c role={escaped}".strip()
    return make_conninfo("", **params)


def make_worker(
    backend: IdemqBackend, queues: Optional[Sequence[str]] = None, concurrency: Optional[int] = None, close: Callable[[], None] = close_old_connections, **options: Any
) -> Worker:
    """A worker for the queues of a backend.  close: called before and after each task."""
    runner = _Runner(backend, close)
    count = concurrency or backend.options.get("concurrency", 1)
    handlers = {queue: Inside(runner.run, concurrency=count) for queue in sorted(queues or backend.queues)}
    return Worker(worker_dsn(backend.database), handlers, hooks=Hooks(failed=runner.failed), **{**backend.options.get("worker", {}), **options})


def drain(backend: str = DEFAULT_TASK_BACKEND_ALIAS, queues: Optional[Sequence[str]] = None, concurrency: Optional[int] = None) -> dict[str, int]:
    """Run the tasks that are ready, for tests.  Returns the number of attempts by outcome."""
    found = task_backends[backend]
    if connections[found.database].in_atomic_block:
        raise TransactionManagementError(
            "drain was called in a transaction, so the worker would not see its jobs.  Use TransactionTestCase instead of TestCase, or ImmediateBackend"
        )
    # Otherwise the threads would keep connections, and a test database could not be dropped.
    return make_worker(found, queues, concurrency, connections.close_all, signals=threading.current_thread() is threading.main_thread()).drain()


class _Runner:
    """Runs jobs as tasks."""

    def __init__(self, backend: IdemqBackend, close: Callable[[], None]) -> None:
        self._backend = backend
        self._close = close
        self._unknown: set[str] = set()

    def run(self, job: Job[Any], conn: HandlersConnection) -> Any:
        """The handler of all jobs."""
        self._close()
        try:
            return self._run(job, conn)
        except BaseException as error:
            kind = type(error)
            job.error_details = {"class": f"{kind.__module__}.{kind.__qualname__}"}
            if isinstance(error.__cause__, psycopg.Error) and not hasattr(error, "sqlstate"):
                # So that the worker runs the task again after a deadlock, and reports the SQLSTATE.
                error.sqlstate = error.__cause__.sqlstate
            raise
        finally:
            self._close()

    def _run(self, job: Job[Any], conn: HandlersConnection) -> Any:
        task = self._task(job)
        outside = bool(job.headers.get("outside", getattr(task, "outside", False)))
        result = self._running(job, task)
        task_started.send(sender=type(self._backend), task_result=result)
        args = [IdemqContext(task_result=result, job=job), *result.args] if task.takes_context else result.args
        if outside:
            value = normalize_json(task.call(*args, **result.kwargs))
            self._succeeded(result, value)
            return value
        with task_transaction(self._backend.database, conn) as functions:
            value = normalize_json(task.call(*args, **result.kwargs))
        if conn.handler_transaction is not None and not conn.handler_transaction.used:
            conn.execute("SELECT")  # so that what follows is called after the job's COMMIT

        def after_commit() -> None:
            for function in functions:
                try:
                    function()
                except Exception:
                    log.exception("%s %d: on_commit", job.queue, job.id)
            self._succeeded(result, value)
            self._close()

        job.after_commit = after_commit
        return value

    def _task(self, job: Job[Any]) -> Task:
        path = job.payload.get("task") if isinstance(job.payload, dict) else None
        task = find_task(path)
        if task is not None:
            return task
        if str(path) not in self._unknown and len(self._unknown) < 1000:
            self._unknown.add(str(path))
            log.warning("%s %d: there is no task %s in the installed apps, so the worker releases such jobs", job.queue, job.id, path)
        raise Snooze(_UNKNOWN_TASK, f"there is no task {path}")

    def _running(self, job: Job[Any], task: Task) -> TaskResult:
        """The result at the start of an attempt."""
        if job.attempt > 1:
            return self._backend.get_result(str(job.id))
        now = timezone.now()
        at = job.enqueued_at if timezone.is_aware(now) else timezone.make_naive(job.enqueued_at)
        return TaskResult(
            task=task.using(backend=self._backend.alias, queue_name=job.queue), id=str(job.id), status=TaskResultStatus.RUNNING, enqueued_at=at, started_at=now,
            last_attempted_at=now, finished_at=None, args=job.payload.get("args", []), kwargs=job.payload.get("kwargs", {}), backend=self._backend.alias,
            errors=[], worker_ids=[job._run.options.worker_name],
        )  # fmt: skip

    def _succeeded(self, result: TaskResult, value: Any) -> None:
        for name, each in (("finished_at", timezone.now()), ("status", TaskResultStatus.SUCCESSFUL), ("_return_value", value)):
            object.__setattr__(result, name, each)
        task_finished.send(sender=type(self._backend), task_result=result)

    def failed(self, job: Job[Any], failure: Failure) -> None:
        """The hook: sends the signal of a task that is not tried again, inside an exception handler, as Django does."""
        if failure.will_retry:
            return
        try:
            result = self._backend.get_result(str(job.id))
            try:
                raise failure.error
            except BaseException:
                task_finished.send(sender=type(self._backend), task_result=result)
        finally:
            connections.close_all()  # of this thread, which ends
