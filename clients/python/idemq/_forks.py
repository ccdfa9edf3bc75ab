"""Protects the worker from processes that a handler forks (os.fork, multiprocessing).  They inherit, but must not use:

 - The signal handlers of the event loop, and its wakeup descriptor.  The descriptor belongs to the parent, so a SIGTERM to the
   child would not end the child but make the parent drain.  So the signal handlers from before the worker are restored.
 - The sockets of the worker's connections.  A statement of the child would mix with those of the parent, and while
   the child lives, the server does not notice that the parent has died.  So the child's sockets are replaced by /dev/null.  Those of
   the parent are not changed.
 - The worker itself.  If a handler forks and the child returns or raises, two processes would report the outcome of
   one attempt.  So the child exits at this point, and its requests to the worker are refused.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import weakref
from typing import Any

from ._values import AnyConnection

log = logging.getLogger("idemq")

connections: "weakref.WeakSet[AnyConnection]" = weakref.WeakSet()
"""The open connections of this process's workers."""
signal_handlers: dict[int, Any] = {}
"""The signal handlers from before the worker, by signal number."""


def _after_fork() -> None:
    """Called in the new process."""
    if signal_handlers:
        signal.set_wakeup_fd(-1)
        for number, handler in signal_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal_handlers.clear()
    inherited = [conn for conn in list(connections) if not conn.closed]
    connections.clear()
    if inherited:
        nothing = os.open(os.devnull, os.O_RDWR)
        for conn in inherited:
            os.dup2(nothing, conn.fileno(), inheritable=False)
        os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def must_be_in(process: int) -> None:
    """Raises RuntimeError in any other process."""
    if os.getpid() != process:
        raise RuntimeError("this process was forked by a handler; only the handler's own process can use its job and its worker")


def end_unless_in(process: int) -> None:
    """Ends a process that a handler has forked and that has left the handler, by a return or an exception.

    Call it in a finally clause."""
    if os.getpid() == process:
        return
    error = sys.exc_info()[1]
    status = 0 if error is None else 1
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    else:
        log.error(
            "process %d, which was forked by a handler, returned from the handler (%s) and exits now: call "
            "os._exit() in the forked process",
            os.getpid(), "a return" if error is None else type(error).__name__,
        )  # fmt: skip
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    os._exit(status & 0xFF)
