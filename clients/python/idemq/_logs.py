"""Logs of handlers: the job of each log line, and the last lines of an attempt for idemq.attempts.

The job of the running handler is in a context variable.  A task inherits it, and so does asyncio.to_thread; a thread that a handler
starts itself has it if it runs in contextvars.copy_context().
"""

from __future__ import annotations

import copy
import logging
import re
import threading
from collections import deque
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any, Callable, Iterator, Optional

log = logging.getLogger("idemq")

MODES = ("off", "failed", "all")
MAX_LOG = 16384
"""Bytes of UTF-8 that are kept of an attempt's log."""
MAX_JSON = 2 * MAX_LOG
"""Bytes of the log as JSON, apart from quotes and backslashes.  The limit of the server (idemq.max_document) is at least 64 kB."""
MAX_LINE = 1 << 20
"""Characters of one log record that are looked at."""
REDACT_FAILED = "(removed, because redact failed)"
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_CONTROL = re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1f]")
"""Characters of which JSON makes six."""

Redact = Optional[Callable[[str], str]]

_current: ContextVar[Optional[Any]] = ContextVar("idemq_job", default=None)


class JobLogFilter(logging.Filter):
    """Adds the job of the running handler to log records: queue, job_id and attempt, which are None outside of a handler, and job, a
    text such as "mail 42 attempt 1", or "-".  It keeps every record.  Add it to the handlers of logging, and not to loggers, because a
    logger does not apply its filters to records of the loggers below it."""

    def filter(self, record: logging.LogRecord) -> bool:
        job = _current.get()
        if job is None:
            # A record keeps members of the same name, such as those of another library, or of this filter if another thread handles the record.
            for name, value in (("queue", None), ("job_id", None), ("attempt", None), ("job", "-")):
                record.__dict__.setdefault(name, value)
        else:
            record.queue, record.job_id, record.attempt = job.queue, job.id, job.attempt
            record.job = f"{job.queue} {job.id} attempt {job.attempt}"
        return True


def current_job() -> Optional[Any]:
    """Return the job whose handler has called this, directly or through other functions; None outside of a handler."""
    return _current.get()


def enter(job: Any) -> "Token[Optional[Any]]":
    """Called before a handler, in its context."""
    return _current.set(job)


def leave(token: "Token[Optional[Any]]") -> None:
    """Called after it."""
    try:
        _current.reset(token)
    except ValueError:
        pass  # a coroutine that was abandoned is closed in another context


def redacted(redact: Redact, text: str) -> str:
    """The text as the application's function returns it.  If the function fails, nothing is left of the text."""
    if redact is None:
        return text
    try:
        answer = redact(text)
        why = f"it returned {type(answer).__name__}"
        if isinstance(answer, str):
            return answer
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # even SystemExit, because the end of the attempt must be reported
        why = type(error).__name__  # its text may contain what it should have removed
    log.error("redact failed, so a text is not stored: %s", why)
    return REDACT_FAILED


class Lines:
    """The last log lines of an attempt.  Threads of the handler may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: deque[tuple[str, int]] = deque()
        self._size = 0
        self._cut = False

    def add(self, text: str) -> None:
        if len(text) > MAX_LINE:
            # Half a line could contain half of a secret, which redact would not recognize.
            text, self._cut = text[-MAX_LINE:].partition("\n")[2] or "(a line that was too long)", True
        size = len(text.encode("utf-8", "replace")) + 1
        with self._lock:
            self._records.append((text, size))
            self._size += size
            while self._size - self._records[0][1] > MAX_LOG:
                self._size -= self._records.popleft()[1]
                self._cut = True

    def details(self, redact: Redact, utf8: bool = True) -> dict[str, Any]:
        """The members of details: log, and log_cut if the log had more lines.  utf8: whether the server can store every character."""
        with self._lock:
            text, cut = "\n".join(text for text, _ in self._records), self._cut
        if not text:
            return {}
        text = redacted(redact, text).replace("\0", "")
        data = text.encode("utf-8", "replace") if utf8 else text.encode("ascii", "backslashreplace")
        kept = _last_lines(data)
        last = kept.decode("utf-8", "ignore")
        if len(kept) + 5 * len(_CONTROL.findall(last)) > MAX_JSON:
            last = _CONTROL.sub("?", last)
        return {"log": last, **({"log_cut": True} if cut or kept != data else {})}


def _last_lines(data: bytes) -> bytes:
    """The last MAX_LOG bytes, from the beginning of a line.  Of a single line that is too long, the end."""
    if len(data) <= MAX_LOG:
        return data
    start = data.find(b"\n", len(data) - MAX_LOG - 1) + 1
    if 0 < start < len(data):
        return data[start:]
    data = data[-MAX_LOG:]
    while data and data[0] & 0xC0 == 0x80:
        data = data[1:]
    return data


class _Capture(logging.Handler):
    """A handler of the root logger that adds each record to the lines of its job."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))

    def handle(self, record: logging.LogRecord) -> Any:  # without the lock of the handler
        job = _current.get()
        lines: Optional[Lines] = None if job is None else job.lines
        try:
            if lines is not None:
                # format() stores the traceback in the record, for other handlers too.
                lines.add(self.format(copy.copy(record) if record.exc_info else record))
        except Exception:
            self.handleError(record)
        if self._is_alone(record.name):
            last = logging.lastResort
            if last is not None and record.levelno >= last.level:
                last.handle(record)
        return True

    def _is_alone(self, name: str) -> bool:
        """Whether logging would have used its handler of last resort if this one did not exist."""
        logger = logging.getLogger(name)
        each: Optional[logging.Logger] = logger
        while each is not None:
            if any(handler is not self for handler in each.handlers):
                return False
            each = each.parent if each.propagate else None
        return True


_capture = _Capture()
_runs = 0
_runs_lock = threading.Lock()


@contextmanager
def capturing(wanted: bool) -> Iterator[None]:
    """Context manager of a run that captures logs, if it is wanted."""
    global _runs
    if not wanted:
        yield
        return
    with _runs_lock:
        _runs += 1
        logging.getLogger().addHandler(_capture)
    try:
        yield
    finally:
        with _runs_lock:
            _runs -= 1
            if _runs == 0:
                logging.getLogger().removeHandler(_capture)


def mode_argument(name: str, value: Any) -> str:
    """Raises ValueError for a mode that does not exist."""
    if value not in MODES:
        raise ValueError(f"{name} must be 'off', 'failed' or 'all', not {value!r}")
    return str(value)


def redact_argument(redact: Any) -> Redact:
    """Raises TypeError for what cannot be called."""
    if redact is not None and not callable(redact):
        raise TypeError(f"redact must be a function, not {type(redact).__name__}")
    return redact  # type: ignore[no-any-return]
