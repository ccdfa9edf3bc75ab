"""Group commit: one executor's thread commits the jobs of all whose handlers have ended without a transaction.

One thread at a time commits everything that has ended, and claims jobs for every thread that is idle; the
others run what was claimed, or wait for it.  So handlers that end together are committed together, and a
thread goes on to its next job without the help of the loop.

A job that has ended never waits for another job's handler: if a thread takes a job while ended jobs are
left and no thread is committing, it has the loop commit them.  An executor that has another job of its own
adds nothing here: it has the loop commit its job, and waits for that.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Callable, Optional, Protocol, Sequence

from ._job import BaseJob
from ._links import ThreadLink

Ended = list[tuple[BaseJob, Optional[str]]]


class Committer(Protocol):
    """What commits for it (AttemptRunner)."""

    at_once: int

    def call_loop(self, function: Callable[..., Any], *args: Any) -> None:
        ...

    def commit_from_thread(self, ended: Ended, executors: int) -> list[BaseJob]:
        ...

    def commit_soon(self, ended: Ended) -> None:
        ...


class GroupCommit:
    """The ended jobs, and the claimed ones, of the executors of one run."""

    def __init__(self, run: Committer, link: ThreadLink) -> None:
        self.link = link
        """Used by the thread that commits.  Handlers cannot harm it, so leases of others may be attached to its session."""
        self._run = run
        self._change = threading.Condition()
        # All of the following is used only by a thread that holds _change.
        self._ended: Ended = []
        self._jobs: deque[Any] = deque()
        self._idle = 0
        self._waiting = 0
        self._woken = False
        """Whether a waiting thread was woken, and has not run yet."""
        self._committing = False
        self._loop_commits = False

    def add(self, jobs: Sequence[Any], results: Sequence[Optional[str]]) -> None:
        """Jobs whose handlers have ended well."""
        with self._change:
            self._ended.extend(zip(jobs, results))

    def next_jobs(self) -> list[Any]:
        """Returns an executor's next jobs; an empty list means that no job is left, and none to commit."""
        with self._change:
            self._idle += 1
            while not self._jobs and (self._committing or self._ended):
                if self._committing:
                    self._waiting += 1
                    self._change.wait()
                    self._waiting -= 1
                    self._woken = False
                else:
                    self._committing = True
                    self._change.release()
                    try:
                        self._commit()
                    finally:
                        self._change.acquire()
            self._idle -= 1
            jobs = [self._jobs.popleft() for _ in range(min(len(self._jobs), self._run.at_once))]
            if self._ended and not self._committing and not self._loop_commits:
                self._loop_commits = True
                self._run.call_loop(self._commit_rest_in_loop)
            # Each thread wakes the next one, which may have to commit, or to end.
            self._wake_one()
        return jobs

    def _commit(self) -> None:
        time.sleep(0)  # a turn for those that are just about to end
        with self._change:
            ended, self._ended = self._ended, []
            idle = self._idle
        claimed: list[Any] = []
        try:
            claimed = self._run.commit_from_thread(ended, idle)
        finally:
            with self._change:
                self._committing = False
                self._jobs.extend(claimed)
                self._wake_one()

    def _wake_one(self) -> None:
        """One thread is enough: it wakes the next one."""
        if self._waiting > 0 and not self._woken:
            self._woken = True
            self._change.notify()

    def _commit_rest_in_loop(self) -> None:
        """In the loop."""
        with self._change:
            self._loop_commits = False
            ended: Ended = []
            if not self._committing:
                ended, self._ended = self._ended, []
        if ended:
            self._run.commit_soon(ended)

    def untaken(self) -> list[Any]:
        """Takes the claimed jobs that no executor has taken; for the end of the run."""
        with self._change:
            jobs = list(self._jobs)
            self._jobs.clear()
        return jobs
