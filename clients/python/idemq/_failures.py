"""What a worker makes of the errors of its handlers."""

from __future__ import annotations

import re
from typing import Any, Optional

import psycopg

from .errors import said, sqlstate

SAME_FAILURES = 10
"""Number of failures in a row with the same fingerprint after which a queue runs one job at a time."""
FIRST_PAUSE = 1.0
"""Seconds until the next job after a failure then.  The pause doubles up to LAST_PAUSE."""
LAST_PAUSE = 10.0
OTHER_SUCCESSES = 10
"""Number of successes of other kinds after which the queue runs several jobs at a time again, because the failing kind may have no more jobs."""
MOST_KINDS = 1000
"""Kinds whose failures are remembered: those that failed last."""

_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]+)*\b|\d+")
"""The parts of a message that differ from job to job."""

Fingerprint = tuple[str, str, str]


def fingerprint(error: BaseException) -> Fingerprint:
    """Equal for errors that have the same cause, as far as class, SQLSTATE and message can tell."""
    return type(error).__qualname__, sqlstate(error), _VARIABLE.sub("?", said(error)[:2000])


class Breaker:
    """Notices that the handlers of a queue fail again and again with the same error, as after a bad deploy.  From then on, the queue
    claims one job at a time, with a pause after each failure, so that the backlog keeps its attempts.  Used under the lock of the run."""

    def __init__(self) -> None:
        self._failures: dict[Optional[str], tuple[Fingerprint, int]] = {}
        """For each kind, the fingerprint of the last failures in a row, and their number.  The kind that failed last comes last."""
        self._open: set[Optional[str]] = set()
        self._other_successes = 0
        """Successes of other kinds since the last failure of a kind in _open."""
        self._pause = FIRST_PAUSE

    @property
    def is_open(self) -> bool:
        """Whether the queue must run one job at a time."""
        return bool(self._open)

    def failed(self, kind: Optional[str], error: BaseException) -> tuple[bool, float]:
        """Records a failed attempt.  Returns whether this has opened the breaker for its kind, and the seconds until the next claim."""
        found = fingerprint(error)
        before, count = self._failures.pop(kind, (found, 0))
        self._failures[kind] = found, (count + 1 if before == found else 1)
        if len(self._failures) > MOST_KINDS:
            self._forget(next(iter(self._failures)))
        opened = kind not in self._open and self._failures[kind][1] >= SAME_FAILURES
        if opened:
            self._open.add(kind)
        if kind in self._open:
            self._other_successes = 0
        if not self._open:
            return False, 0.0
        pause, self._pause = self._pause, min(self._pause * 2, LAST_PAUSE)
        return opened, pause

    def succeeded(self, kind: Optional[str]) -> bool:
        """Records a success.  Returns whether this has closed the breaker."""
        was_open = self.is_open
        self._forget(kind)
        self._pause = FIRST_PAUSE
        if self._open:
            self._other_successes += 1
            if self._other_successes >= OTHER_SUCCESSES:
                self._open.clear()  # but the next such failure opens it again at once
        return was_open and not self._open

    def _forget(self, kind: Optional[str]) -> None:
        self._failures.pop(kind, None)
        self._open.discard(kind)


def is_from_server(error: BaseException, own: Any) -> bool:
    """Whether an error says that the connection to the worker's own server was lost or could not be opened.

    own: a connection of the worker, or None."""
    state = sqlstate(error)
    if not issubclass(type(error), psycopg.OperationalError) or (state and state[:2] != "08" and state not in ("57P01", "57P02", "57P03")):
        return False
    try:  # only an error of an attempt to connect says where
        other = getattr(error, "pgconn", None)
        return other is None or own is None or (other.host.decode(), int(other.port)) == (own.info.host, own.info.port)
    except Exception:
        return True


