"""SIGTERM and SIGINT, for all workers of one event loop.

A loop has one handler per signal. If each run set its own, only the last run would be told to drain, and
the first to end would remove the handler, so the next signal would kill the process while other jobs are running.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from typing import Callable, Iterator

from . import _forks

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_stops: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}


@contextlib.contextmanager
def stop_on_signals(loop: asyncio.AbstractEventLoop, wanted: bool, stop: Callable[[], None]) -> Iterator[None]:
    """Context manager in which a signal calls stop, as well as those of the loop's other runs.  Works in the main thread only."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    stops = _stops.setdefault(loop, [])
    stops.append(stop)
    try:
        if len(stops) == 1:
            for number in _SIGNALS:
                _forks.signal_handlers.setdefault(number, signal.getsignal(number))
                loop.add_signal_handler(number, _stop_all, stops)
        yield
    finally:
        stops.remove(stop)
        if not stops:
            del _stops[loop]
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
                _forks.signal_handlers.pop(number, None)


def _stop_all(stops: list[Callable[[], None]]) -> None:
    for stop in list(stops):
        stop()
