"""What is raised: by the server, as classes; by a handler, to say how its attempt ends.

Importing this registers the classes with psycopg, so that each statement that idemq refuses raises
one of them, on any connection of the process.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Optional, Union
from uuid import UUID

import psycopg

MAX_TEXT = 10_000
"""Characters of an error that are told."""

Delay = Union[timedelta, int, float, str]
"""A time: a timedelta, a number of seconds, or the text of an interval."""

Key = Union[str, int, UUID]
"""An idempotency key; a UUID and an int are sent as text."""


class IdemqError(psycopg.DatabaseError):
    """What idemq has refused, by its SQLSTATE."""


class StaleToken(IdemqError, code="IQ001"):
    """The lease is lost: another attempt may have the job."""


class NoSuchJob(IdemqError, code="IQ002"):
    """There is no such job, or not for this role."""


class KeyReused(IdemqError, code="IQ003"):
    """The key is that of a job with another payload."""


class DuplicateKey(IdemqError, code="IQ004"):
    """The key is taken (on_duplicate="error")."""


class NoSuchQueue(IdemqError, code="IQ005"):
    """There is no such queue."""


class AlreadyCommitted(IdemqError, code="IQ006"):
    """This attempt has committed the job before."""


class RetryLater(Exception):
    """Raised by a handler: the attempt has failed; the next one after delay, or the queue's backoff."""

    def __init__(self, delay: Optional[Delay] = None, reason: str = "") -> None:
        super().__init__(reason or "retry later")
        self.delay = delay


class Snooze(Exception):
    """Raised by a handler: not now; the job is ready again after delay, and nothing is counted."""

    def __init__(self, delay: Delay, reason: str = "") -> None:
        super().__init__(reason or "snooze")
        self.delay = delay


class Dead(Exception):
    """Raised by a handler: no attempt can succeed; the job is dead.  Raised by a step's call it says
    what Refused says, too."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "dead")


class Waiting(BaseException):
    """Raised in a handler by await_event: the job sleeps until the event comes.  Let it pass: no
    `except Exception` holds it up, and whatever the handler does instead, its attempt is over."""

    def __init__(self, name: str, timeout: Delay) -> None:
        super().__init__(f"waits for event {name}")
        self.name = name
        self.timeout = timeout


class Refused(Exception):
    """Raised by a step's call: the other side definitely did not do it."""


def sqlstate(error: Optional[BaseException]) -> str:
    """The SQLSTATE of an error, or ""."""
    try:
        state = getattr(error, "sqlstate", None)
    except BaseException:
        return ""
    return state if isinstance(state, str) else ""


def said(error: BaseException) -> str:
    """What an error says, as far as it is told.  Its class is anybody's: that may raise, too."""
    try:
        return str(error)[:MAX_TEXT]
    except BaseException as second:
        return f"no text, because its str() raised {type(second).__name__}"


def text_of(error: Optional[BaseException]) -> str:
    """The same with its type, as PostgreSQL's text may hold it but for its length."""
    return f"{type(error).__name__}: {said(error)}".rstrip(": \n") if error is not None else ""


def interval(delay: Optional[Delay]) -> Union[timedelta, str, None]:
    """A delay as a parameter of type interval."""
    if isinstance(delay, (int, float)):
        return timedelta(seconds=delay)
    return delay
