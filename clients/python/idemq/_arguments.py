"""Checks of arguments, made before anything is sent.  An argument of the wrong type raises a TypeError that names it."""

from __future__ import annotations

import operator
from datetime import date, timedelta
from typing import Any, Callable, Mapping, Optional, Sequence, Union
from uuid import UUID

from .errors import Delay, Key, interval


def _refuse(name: str, wanted: str, value: Any, hint: str = "") -> TypeError:
    return TypeError(f"{name} must be {wanted}, not {type(value).__name__}{hint}")


def text_argument(name: str, value: Any) -> str:
    """A str."""
    if not isinstance(value, str):
        raise _refuse(name, "a str", value)
    return str.__str__(value)  # psycopg would adapt an Enum differently


def optional_text(name: str, value: Any) -> Optional[str]:
    """A str, or None."""
    return None if value is None else text_argument(name, value)


def queue_argument(value: Any) -> str:
    """The name of one queue."""
    if isinstance(value, (list, tuple, set, frozenset)):
        raise _refuse("queue", "the name of one queue as a str", value, ": make a separate call for each queue, or give a worker a dict of handlers by queue")
    if not isinstance(value, str):
        raise _refuse("queue", "the name of a queue as a str", value)
    return str.__str__(value)


def key_argument(value: Optional[Key]) -> Optional[str]:
    """An idempotency key as text: a str, a UUID or an int."""
    if value is None or isinstance(value, str):
        return None if value is None else str.__str__(value)
    if isinstance(value, UUID) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise _refuse("key", "a str, a UUID or an int", value)


def int_argument(name: str, value: Any) -> int:
    """An int."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise _refuse(name, "an int", value)


def optional_int(name: str, value: Any) -> Optional[int]:
    """An int, or None."""
    return None if value is None else int_argument(name, value)


def optional_float(name: str, value: Any) -> Optional[float]:
    """A number, or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise _refuse(name, "a number", value)
    return value


def ids_argument(name: str, value: Any) -> list[int]:
    """Ids of jobs."""
    if isinstance(value, (str, bytes, Mapping)):
        raise _refuse(name, "a sequence of job ids (int)", value)
    try:
        ids = list(value)
    except TypeError:
        raise _refuse(name, "a sequence of job ids (int)", value) from None
    return [int_argument(f"each element of {name}", each) for each in ids]


def bool_argument(name: str, value: Any) -> bool:
    """A bool."""
    if not isinstance(value, bool):
        raise _refuse(name, "a bool", value)
    return value


def optional_bool(name: str, value: Any) -> Optional[bool]:
    """A bool, or None."""
    return None if value is None else bool_argument(name, value)


def seconds_argument(name: str, value: Any) -> float:
    """A number of seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _refuse(name, "a number of seconds", value)
    return value


def positive_seconds(name: str, value: Any) -> float:
    """A number of seconds that is greater than 0."""
    if seconds_argument(name, value) <= 0:
        raise ValueError(f"{name} must be greater than 0 seconds, not {value}")
    return float(value)


def count_argument(name: str, value: Any) -> int:
    """An int that is at least 1."""
    number = int_argument(name, value)
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}")
    return number


def classes_argument(name: str, value: Any) -> tuple[type[BaseException], ...]:
    """A sequence of exception classes."""
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise _refuse(name, "a sequence of exception classes", value)
    for each in value:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise TypeError(f"{name} must contain exception classes, not {each!r}")
    return tuple(value)


def delay_argument(name: str, value: Optional[Delay]) -> Union[timedelta, str, None]:
    """A delay, as a parameter of type interval, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, timedelta, str)):
        raise _refuse(name, "a timedelta, a number of seconds or the text of an interval", value)
    try:
        return interval(value)
    except (ValueError, OverflowError) as error:
        raise type(error)(f"{name}: {error}") from None


def time_argument(name: str, value: Any) -> Any:
    """A timestamp, or None."""
    if value is not None and not isinstance(value, (date, str)):
        raise _refuse(name, "a datetime", value)
    return value


def headers_argument(value: Any) -> Optional[dict[str, Any]]:
    """Headers: a dict, or None."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise _refuse("headers", "a dict", value)
    return dict(value)


def options_of_a_job(
    delay: Optional[Delay],
    run_at: Any,
    priority: int,
    group_key: Optional[str],
    max_attempts: Optional[int],
    expires_in: Optional[Delay],
    kind: Optional[str],
) -> dict[str, Any]:
    """The arguments that all calls that add jobs have in common."""
    return {
        "delay": delay_argument("delay", delay),
        "run_at": time_argument("run_at", run_at),
        "priority": int_argument("priority", priority),
        "group_key": optional_text("group_key", group_key),
        "max_attempts": optional_int("max_attempts", max_attempts),
        "expires_in": delay_argument("expires_in", expires_in),
        "kind": optional_text("kind", kind),
    }


def delay_text(name: str, value: Optional[Delay]) -> Optional[str]:
    """A delay as text of an interval, or None."""
    delay = delay_argument(name, value)
    return f"{delay // timedelta(microseconds=1)} microseconds" if isinstance(delay, timedelta) else delay


def time_text(name: str, value: Any) -> Optional[str]:
    """A timestamp as text, or None."""
    time = time_argument(name, value)
    return time.isoformat() if isinstance(time, date) else time


_COLUMNS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "key": ("keys", lambda name, value: key_argument(value)),
    "delay": ("delays", delay_text),
    "run_at": ("run_ats", time_text),
    "priority": ("priorities", optional_int),
    "group_key": ("group_keys", optional_text),
    "max_attempts": ("max_attempts", optional_int),
    "headers": ("headers", lambda name, value: headers_argument(value)),
    "expires_in": ("expires_ins", delay_text),
    "key_ttl": ("key_ttls", delay_text),
    "kind": ("kinds", optional_text),
}
"""For each option of a job of enqueue_many: the argument of the SQL function, and the check."""


def options_of_many(jobs: Any) -> dict[str, list[Any]]:
    """The arguments of idemq.enqueue_many for the options of jobs."""
    if isinstance(jobs, (str, bytes, Mapping)) or not isinstance(jobs, Sequence):
        raise _refuse("jobs", "a sequence of dicts", jobs)
    for n, job in enumerate(jobs):
        if not isinstance(job, Mapping):
            raise _refuse(f"job {n}", "a dict", job)
        if "payload" not in job:
            raise TypeError(f"job {n} has no payload")
        for name in job:
            if name != "payload" and name not in _COLUMNS:
                raise TypeError(f"job {n} has no option {name}")
    return {column: [check(name, job.get(name)) for job in jobs] for name, (column, check) in _COLUMNS.items()}


def members_of_graph(jobs: Any) -> Mapping[str, Mapping[str, Any]]:
    """The jobs of a graph, by name."""
    if not isinstance(jobs, Mapping):
        raise _refuse("jobs", "a dict of jobs by name", jobs)
    for name, job in jobs.items():
        text_argument("each name in jobs", name)
        if not isinstance(job, Mapping):
            raise _refuse(f"job {name}", "a dict", job)
    return jobs


def parents_in_graph(value: Any) -> Optional[list[Union[str, int]]]:
    """Names in the graph, and ids of existing jobs."""
    if value is None:
        return None
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise _refuse("depends_on", "a sequence of job names and ids", value)
    return [each if isinstance(each, str) else int_argument("each element of depends_on", each) for each in value]
