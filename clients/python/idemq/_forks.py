"""What a process inherits that a handler forks (os.fork, multiprocessing), and must not use.

 - The signal handlers of the event loop, and its wakeup descriptor.  A SIGTERM for such a process would not end it,
   but tell its parent to drain: the descriptor is the parent's.  So the handlers that were there before the worker
   are restored.
 - The sockets of the worker's connections.  One statement by such a process would mix with the parent's, and while
   it lives the server does not see that the parent has died.  So they are replaced by /dev/null, and the parent's are
   left as they are.
 - The worker itself.  A handler that forks and lets the new process return, or raise, would have two processes settle
   one attempt.  So such a process ends there, and what it asks of the worker is refused.
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
"""What handled a signal before a worker did, by its number, while one does."""


def _after_fork() -> None:
    """In the new process."""
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
    """Raises in another process than that one."""
    if os.getpid() != process:
        raise RuntimeError("this process was forked by a handler: only the handler's own process can use its job and its worker")


def end_unless_in(process: int) -> None:
    """Ends a process that a handler has forked, and that has come back from the handler, by a return or an exception.

    To be called in a finally."""
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
