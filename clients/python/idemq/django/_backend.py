"""The backend: adds tasks as jobs and reads their results, through Django's connection."""

import json
import math
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Iterable, Optional, Sequence

from django.apps import apps
from django.core import checks
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.utils import timezone

from .. import IdemqError, enqueue_statement
from ._checks import check_backend
from ._tasks import BaseTaskBackend, Task, TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus, task_enqueued

_STATUS = {
    **dict.fromkeys(("blocked", "pending", "retrying"), TaskResultStatus.READY),
    **{"running": TaskResultStatus.RUNNING, "completed": TaskResultStatus.SUCCESSFUL},
    **dict.fromkeys(("dead", "cancelled"), TaskResultStatus.FAILED),
}
_JOB = """SELECT q.name, j.status::text, j.payload::text, j.enqueued_at, j.claimed_at, j.finished_at, j.attempt, j.worker, j.result::text, j.priority,
        CASE WHEN j.attempt = 0 AND j.status = 'pending' AND j.ready_at > j.enqueued_at THEN j.ready_at END
    FROM idemq.job(%s) AS j JOIN idemq.queues AS q USING (queue_id)"""
_ATTEMPTS = "SELECT worker, claimed_at, outcome, error, details::text FROM idemq.attempts WHERE job_id = %s ORDER BY token"
_OPTIONS = ("key", "group_key", "max_attempts", "depends_on", "on_duplicate", "kind", "outside")
_NORMAL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class IdemqTask(Task):
    """A task of this backend.  using() accepts idemq's own options as well."""

    key: Optional[str] = None
    group_key: Optional[str] = None
    max_attempts: Optional[int] = None
    depends_on: Optional[Sequence[str]] = None
    """Ids of results that must be finished first."""
    on_duplicate: str = "keep"
    kind: Optional[str] = None
    outside: bool = False
    """Whether the task has no transaction: autocommit, and the job is completed after the task has returned."""

    def using(self, **changes: Any) -> "IdemqTask":
        own = {name: changes.pop(name) for name in _OPTIONS if name in changes}
        # Without super(), because a dataclass with slots is another class than the one of this function.
        return replace(Task.using(self, **changes), **own) if own else Task.using(self, **changes)


def _own_options(task: Task) -> dict[str, Any]:
    """The options of idemq for a task, which may have been made for another backend."""
    own = {name: getattr(task, name) for name in _OPTIONS} if isinstance(task, IdemqTask) else {}
    if own.pop("outside", False):
        own["headers"] = {"outside": True}
    if own.get("depends_on") is not None:
        own["depends_on"] = [int(id) for id in own["depends_on"]]
    return {**own, "kind": own.get("kind") or task.module_path}


def idemq_priority(priority: int) -> int:
    """Django's priority, -100 to 100, as idemq's, 9 to 0."""
    return _NORMAL - math.ceil(priority / 25) if priority > 0 else _NORMAL + math.ceil(-priority / 20)


def django_priority(priority: int) -> int:
    """Of Django's priorities that idemq_priority maps to this one, the farthest from 0."""
    return (_NORMAL - priority) * (25 if priority <= _NORMAL else 20)


def find_task(path: Any) -> Optional[Task]:
    """The task of this path, which a row names.  Only a Task in a module of an installed app is found; None otherwise."""
    module, _, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    if not any(module == app.name or module.startswith(app.name + ".") for app in apps.get_app_configs()):
        return None
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if f"{module}.".startswith(f"{error.name}."):
            return None
        raise  # something that the module imports is missing
    task = getattr(sys.modules[module], name, None)
    return task if isinstance(task, Task) else None


class IdemqBackend(BaseTaskBackend):
    task_class = IdemqTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @property
    def database(self) -> str:
        """Alias of the database that has the extension."""
        alias: str = self.options.get("database", DEFAULT_DB_ALIAS)
        return alias

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Adds a job through Django's connection, so it belongs to the caller's transaction, if there is one."""
        self.validate_task(task)
        result = TaskResult(
            task=task, id="", status=TaskResultStatus.READY, enqueued_at=timezone.now(), started_at=None, last_attempted_at=None, finished_at=None,
            args=list(args), kwargs=dict(kwargs), backend=self.alias, errors=[], worker_ids=[],
        )  # fmt: skip
        run_at = task.run_after
        sql, values = enqueue_statement(
            task.queue_name,
            {"task": task.module_path, "args": result.args, "kwargs": result.kwargs},
            style="%s",
            run_at=timezone.make_aware(run_at) if run_at is not None and timezone.is_naive(run_at) else run_at,
            priority=idemq_priority(task.priority),
            **_own_options(task),
        )
        id, outcome, status, _ = self._rows(sql, values)[0]
        object.__setattr__(result, "id", str(id))
        if outcome == "duplicate":
            try:
                return self.get_result(str(id))
            except TaskResultDoesNotExist:  # a role that may only enqueue does not see the job
                object.__setattr__(result, "status", _STATUS[status])
                return result
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """The result of a job of this backend's queues."""
        rows = self._rows(_JOB, [int(result_id)]) if str(result_id).isdecimal() and int(result_id) < 2**63 else []
        if not rows or (self.queues and rows[0][0] not in self.queues):
            raise TaskResultDoesNotExist(result_id)
        queue, status, payload, enqueued_at, claimed_at, finished_at, attempt, worker, value, priority, run_after = rows[0]
        called = json.loads(payload)
        task = find_task(called.get("task")) if isinstance(called, dict) else None
        if task is None:
            raise TaskResultDoesNotExist(result_id)
        attempts = self._rows(_ATTEMPTS, [int(result_id)])
        workers = [row[0] or "" for row in attempts if row[2] != "released"]
        if len(workers) < attempt:
            workers.append(worker or "")  # the attempt that is running or has completed the job has no row
        result = TaskResult(
            task=task.using(backend=self.alias, queue_name=queue, priority=django_priority(priority), run_after=run_after),
            id=str(result_id), status=_STATUS[status], enqueued_at=enqueued_at, started_at=min((row[1] for row in attempts if row[1]), default=claimed_at),
            last_attempted_at=claimed_at, finished_at=finished_at, args=called.get("args", []), kwargs=called.get("kwargs", {}), backend=self.alias,
            errors=[_error(*row[2:]) for row in attempts if row[2] in ("failed", "expired")], worker_ids=workers,
        )  # fmt: skip
        object.__setattr__(result, "_return_value", None if value is None else json.loads(value))
        return result

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        return check_backend(self, kwargs.get("databases"))

    def _rows(self, sql: str, values: Sequence[Any]) -> list[Any]:
        try:
            with connections[self.database].cursor() as cursor:
                cursor.execute(sql, values)
                rows: list[Any] = cursor.fetchall()
                return rows
        except DatabaseError as error:
            if isinstance(error.__cause__, IdemqError):
                raise error.__cause__ from None  # NoSuchQueue, KeyReused and others, as the manual names them
            raise


def _error(outcome: str, text: Optional[str], details: Optional[str]) -> TaskError:
    more = json.loads(details or "{}")
    other = "idemq.StaleToken" if outcome == "expired" else "builtins.TimeoutError" if "timeout" in more else "builtins.RuntimeError"
    return TaskError(exception_class_path=more.get("class", other), traceback=more.get("trace", text or ""))
