"""Group commit: the thread of one executor commits the jobs of all executors whose handlers have ended without a transaction.

One thread at a time commits all jobs that have ended, and claims jobs for every idle thread.  The
other threads run the claimed jobs, or wait for them.  So handlers that end together share a commit, and a
thread continues with its next job without the help of the event loop.

A job that has ended never waits for another job's handler: if a thread takes a job while ended jobs are
left and no thread is committing, it asks the event loop to commit them.  An executor that has another claimed job
does not take part.  It asks the event loop to commit its job, and waits for that.
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
    """The object that commits for it (AttemptRunner)."""

    at_once: int

    def call_loop(self, function: Callable[..., Any], *args: Any) -> None:
        ...

    def commit_from_thread(self, ended: Ended, executors: int) -> list[BaseJob]:
        ...

    def commit_soon(self, ended: Ended) -> None:
        ...


class GroupCommit:
    """The ended and the claimed jobs of the executors of one run."""

    def __init__(self, run: Committer, link: ThreadLink) -> None:
        self.link = link
        """The link of the thread that commits.  Handlers cannot disturb it, so leases of other threads may be attached to its session."""
        self._run = run
        self._change = threading.Condition()
        # All of the following is used only by a thread that holds _change.
        self._ended: Ended = []
        self._jobs: deque[Any] = deque()
        self._idle = 0
        self._waiting = 0
        self._woken = False
        """Whether a waiting thread was woken but has not run yet."""
        self._committing = False
        self._loop_commits = False

    def add(self, jobs: Sequence[Any], results: Sequence[Optional[str]]) -> None:
        """Jobs whose handlers have succeeded."""
        with self._change:
            self._ended.extend(zip(jobs, results))

    def next_jobs(self) -> list[Any]:
        """Returns an executor's next jobs; an empty list means that there are none, and nothing to commit."""
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
            # Each thread wakes the next one, which may have to commit or end.
            self._wake_one()
        return jobs

    def _commit(self) -> None:
        time.sleep(0)  # let other threads run whose handlers are about to end
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
        """Wakes one thread, which wakes the next one."""
        if self._waiting > 0 and not self._woken:
            self._woken = True
            self._change.notify()

    def _commit_rest_in_loop(self) -> None:
        """Runs in the event loop."""
        with self._change:
            self._loop_commits = False
            ended: Ended = []
            if not self._committing:
                ended, self._ended = self._ended, []
        if ended:
            self._run.commit_soon(ended)

    def untaken(self) -> list[Any]:
        """Takes the claimed jobs that no executor has taken, at the end of the run."""
        with self._change:
            jobs = list(self._jobs)
            self._jobs.clear()
        return jobs
