"""Exceptions: one class per SQLSTATE of idemq, and those that a handler raises to end its attempt.

Importing this module registers the classes with psycopg.  Then every statement that idemq refuses raises
one of them, on every connection of the process.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Optional, Union
from uuid import UUID

import psycopg

MAX_TEXT = 10_000
"""Maximum number of characters of an error that are reported."""

Delay = Union[timedelta, int, float, str]
"""A timedelta, a number of seconds, or the text of a PostgreSQL interval."""

Key = Union[str, int, UUID]
"""An idempotency key; a UUID and an int are sent as text."""


class IdemqError(psycopg.DatabaseError):
    """An error of idemq, with its SQLSTATE."""


class StaleToken(IdemqError, code="IQ001"):
    """The attempt has lost its lease.  Another attempt may have the job."""


class NoSuchJob(IdemqError, code="IQ002"):
    """There is no such job, or the role may not see it."""


class KeyReused(IdemqError, code="IQ003"):
    """A job with another payload has this key."""


class DuplicateKey(IdemqError, code="IQ004"):
    """The key is taken, and on_duplicate is "error"."""


class NoSuchQueue(IdemqError, code="IQ005"):
    """There is no such queue."""


class AlreadyCommitted(IdemqError, code="IQ006"):
    """This attempt has already completed the job."""


class QueueFull(IdemqError, code="IQ007"):
    """The queue (max_unfinished) or the job's group (group_max_unfinished) is full.  To wait for room in a queue, CALL idemq.wait_for_room."""


class RetryLater(Exception):
    """Raised by a handler: the attempt has failed.  The next one starts after delay, or after the queue's backoff if delay is None."""

    def __init__(self, delay: Optional[Delay] = None, reason: str = "") -> None:
        super().__init__(reason or "retry later")
        self.delay = delay


class Snooze(Exception):
    """Raised by a handler: the job is ready again after delay.  The attempt does not count."""

    def __init__(self, delay: Delay, reason: str = "") -> None:
        super().__init__(reason or "snooze")
        self.delay = delay


class HoldBack(Exception):
    """Raised by a handler whose provider asks for a pause (429): until delay has passed, no further job of the same group (or of the
    queue, if the job has no group) starts.  To choose, set scope to "group" or "queue".  The job is ready again at that time.  The
    first 100 such attempts in a row do not count."""

    def __init__(self, delay: Delay, scope: Optional[str] = None, reason: str = "") -> None:
        super().__init__(reason or "held back")
        self.delay = delay
        self.scope = scope


class Dead(Exception):
    """Raised by a handler: no attempt can succeed, so the job is dead.  If the call of a step raises it, it
    also means the same as Refused."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "dead")


class Waiting(BaseException):
    """Raised by await_event: the job waits until the event arrives.  Do not catch it.  `except Exception` does not
    catch it, and the attempt ends whatever the handler does."""

    def __init__(self, name: str, timeout: Delay) -> None:
        super().__init__(f"waits for event {name}")
        self.name = name
        self.timeout = timeout


class TypeMismatch(TypeError):
    """A payload or a result does not fit the type of its Queue.  The text begins with the path of the field."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem, path)
        self.problem = problem
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


class Refused(Exception):
    """Raised by the call of a step: the other system has definitely not performed it."""


def sqlstate(error: Optional[BaseException]) -> str:
    """The SQLSTATE of an error, or an empty string."""
    try:
        state = getattr(error, "sqlstate", None)
    except BaseException:
        return ""
    return state if isinstance(state, str) else ""


def said(error: BaseException) -> str:
    """The text of an error, shortened.  The error may be of any class, so str() may raise as well."""
    try:
        return str(error)[:MAX_TEXT]
    except BaseException as second:
        return f"no text, because its str() raised {type(second).__name__}"


def text_of(error: Optional[BaseException]) -> str:
    """Type and text of an error."""
    return f"{type(error).__name__}: {said(error)}".rstrip(": \n") if error is not None else ""


def interval(delay: Optional[Delay]) -> Union[timedelta, str, None]:
    """A delay as a parameter of type interval."""
    if isinstance(delay, (int, float)):
        return timedelta(seconds=delay)
    return delay
