"""Where lanes' threads leave what has ended outside of a transaction, and get the next.

One of them at a time tells the server of all that has ended, and claims for all that have nothing to do;
the others run what is there, or wait for it.  So handlers that end together are committed together, and a
thread goes on to its next job without another one's help.

What has ended waits for nobody's handler: a thread that takes a job while there are ends to be told, and
nobody tells them, has the loop do it.  A lane that has another job of its own leaves nothing here: it has the
loop commit, and waits for that.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Optional, Sequence

from ._server import ThreadLink

if TYPE_CHECKING:
    from ._attempts import Attempts
    from ._job import BaseJob
    from ._lanes import Lane

Ended = list[tuple["BaseJob", Optional[str]]]


class Desk:
    """That of the lanes of one run."""

    def __init__(self, run: Attempts, link: ThreadLink) -> None:
        self.link = link
        """Of who tells; handlers cannot harm it, so leases of others may be attached to its session."""
        self._run = run
        self._change = threading.Condition()
        # All of it is of who has _change.
        self._ended: Ended = []
        self._jobs: deque[Any] = deque()
        self._idle = 0
        self._waiting = 0
        self._called = False
        """Whether one that waits was told to look, and has not yet."""
        self._telling = False
        self._loop_tells = False

    def leave(self, jobs: Sequence[Any], results: Sequence[Optional[str]]) -> None:
        """Jobs whose handlers have ended well."""
        with self._change:
            self._ended.extend(zip(jobs, results))

    def next(self, lane: Lane) -> bool:
        """Gives a lane its next jobs; False: there are none, and nothing is left to be told."""
        with self._change:
            self._idle += 1
            while not self._jobs and (self._telling or self._ended):
                if self._telling:
                    self._waiting += 1
                    self._change.wait()
                    self._waiting -= 1
                    self._called = False
                else:
                    self._telling = True
                    self._change.release()
                    try:
                        self._tell()
                    finally:
                        self._change.acquire()
            self._idle -= 1
            jobs = [self._jobs.popleft() for _ in range(min(len(self._jobs), self._run.at_once))]
            if self._ended and not self._telling and not self._loop_tells:
                self._loop_tells = True
                self._run.call_loop(self._tell_rest)
            # Each lets the next look, who may have to tell, or to go home.
            self._call_one()
        lane.pending.extend(self._run.units(jobs, lane))
        return bool(jobs)

    def _tell(self) -> None:
        time.sleep(0)  # a turn for those that are just about to end
        with self._change:
            ended, self._ended = self._ended, []
            idle = self._idle
        claimed: list[Any] = []
        try:
            claimed = self._run.tell_ends(ended, idle)
        finally:
            with self._change:
                self._telling = False
                self._jobs.extend(claimed)
                self._call_one()

    def _call_one(self) -> None:
        """One is enough: when it has looked it calls the next."""
        if self._waiting > 0 and not self._called:
            self._called = True
            self._change.notify()

    def _tell_rest(self) -> None:
        """In the loop."""
        with self._change:
            self._loop_tells = False
            ended: Ended = []
            if not self._telling:
                ended, self._ended = self._ended, []
        if ended:
            self._run.tell_soon(ended)

    def left(self) -> list[Any]:
        """What nobody has taken; at the end."""
        with self._change:
            jobs = list(self._jobs)
            self._jobs.clear()
        return jobs
