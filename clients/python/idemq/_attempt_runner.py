"""Runs attempts: their time limits, their ends, and the reports to the server.

An attempt ends once, as decided by its token and the job's row.  A request that is repeated after a lost answer returns
already committed or stale.  So a transaction whose COMMIT was not answered runs again.  Its first
statement raises IQ006 if it was committed, and IQ001 if another attempt may have the job.
Otherwise the first try had no effect.

A lease is counted from before the request that started or renewed it, so it never ends later here than
in the server.  A handler without a transaction is ended when its lease has ended here, even if the
server does not answer.  A handler with a transaction continues, because the lock of the row keeps its job.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import time
import traceback
from collections import deque
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, Callable, ContextManager, Iterator, Mapping, NamedTuple, Optional, Sequence

import psycopg
from psycopg.types.json import Jsonb

from . import _links, _logs, _pipeline, _trace
from ._ahead import Ahead
from ._execution import Execution, ExecutionResult
from ._executors import AttemptOver, Executor, Unsettled
from ._failures import Breaker, is_from_server
from ._forks import end_unless_in
from ._group_commit import Ended, GroupCommit
from ._handler_connection import BatchEnded
from ._handler_slots import HandlerSlots
from ._handlers import Kind, finished_result
from ._hooks import Failure, call_hook_safely
from ._job import BaseJob
from ._links import AnswerLost, AsyncLink, Link, ThreadLink
from ._options import Options
from ._shared import DRAIN_SETTLE_TIMEOUT, LOCK_PAUSE, Shared
from ._threads import in_thread
from ._codec import encoded_json
from ._typed_jobs import JobTypes, decode_payload
from ._values import EncodedLater, json_loads, json_text, jsonb_parameter, storable_text
from .errors import (
    MAX_TEXT,
    AlreadyCommitted,
    Dead,
    Delay,
    HoldBack,
    NoSuchJob,
    RetryLater,
    Snooze,
    StaleToken,
    Waiting,
    interval,
    said,
    sqlstate,
    text_of,
)

log = logging.getLogger("idemq")

ABANDON_AFTER = 5.0
"""Seconds from telling a handler to end until it is abandoned; DRAIN_ABANDON_AFTER after the grace period of a drain."""
DRAIN_ABANDON_AFTER = 1.5
END_MARGIN = 5.0
"""Seconds after the grace period within which a worker ends, even if the server does not answer."""
LAST_MARGIN = 1.0
"""Seconds of END_MARGIN that are reserved for closing connections."""
TIMEOUT_MARGIN = 1.0
"""Seconds (or a tenth of job_timeout, if that is shorter) by which an attempt ends before the server would take its job back."""
CANCEL_INTERVAL = 0.5
"""Seconds between two cancel requests for a statement."""
SHORTEST_ANSWER_TIMEOUT = 2.0
"""Lower limit of the time that a heartbeat may take, which is a third of the shortest lease."""
SETTLE_TIMEOUT = 60.0
"""Seconds within which the outcome of an attempt must be reported, if the worker is not stopping."""
MOST_HOLDS = 100
"""How many attempts in a row that asked for a hold do not count."""
MOST_LOSSES = 3
"""How many attempts in a row that lost the server do not count."""
RETRY_LOST_AFTER = "1 s"
"""When such a job is ready again."""
MAX_RERUNS = 3
"""How many times a transaction runs again at once."""
SPLIT_COMMIT_FROM = 32
"""If at least this many jobs end at once, they are committed in two statements.  While the server executes one, the handlers of the other run."""

_FAIL = "SELECT idemq.fail(%s, %s, %s, %s::interval, permanent => %s, details => %s::jsonb)::text"
_RELEASE = "SELECT idemq.release(%s, %s, %s::interval)::text"
_GIVE_BACK = """SELECT (CASE WHEN (SELECT count(*) FROM (SELECT a.outcome FROM idemq.attempts a WHERE a.job_id = %s ORDER BY a.token DESC LIMIT %s) l
    WHERE l.outcome = 'released') < %s THEN idemq.release(%s, %s, %s::interval) ELSE idemq.fail(%s, %s, %s, %s::interval) END)::text"""
"""Ends an attempt that does not count, unless the last ones in a row did not count either."""
_HOLD_BACK = f"""WITH held AS MATERIALIZED (SELECT idemq.hold_back(%s, %s, least(%s::interval, (SELECT nullif(q.max_hold_back, '0') FROM idemq.jobs j
    JOIN idemq.queues q USING (queue_id) WHERE j.id = %s)), scope => %s::text)) {_GIVE_BACK} FROM held"""
"""Holds back, then ends the attempt, in one transaction."""
_RELEASE_MANY = "SELECT outcome::text FROM idemq.release_many(%s, %s)"
_TRY_COMMIT = "SELECT idemq.try_commit(%s, %s, %s::jsonb)::text"
_NOT_TRACED: ContextManager[Callable[[str], None]] = nullcontext(lambda outcome: None)
_RECORD_DETAILS = "SELECT idemq.record_details(%s, %s, %s::jsonb[])"
_ASSERT_CURRENT = "SELECT idemq.assert_current(%s, %s)::text"
_AWAIT_OUTCOME = "SELECT outcome FROM idemq.await_event(%s, %s, %s, %s::interval)"  # without the payload, which Python may be unable to decode
ENDED_BY_TOKEN = "(a.outcome IN ('failed', 'committed') OR (a.outcome = 'released' AND a.error IS NULL))"
"""Whether an attempt was ended by a call with its token.  If the lease was revoked, the error says so."""
_STATUS = f"""SELECT j.status::text, j.attempt, (SELECT a.outcome FROM idemq.attempts a WHERE a.job_id = j.id AND a.token = %s AND {ENDED_BY_TOKEN})
    FROM idemq.job(%s) j"""


def _reason(execution: Execution, error: BaseException) -> str:
    """The reason why a transaction of several jobs has not committed, if the error itself does not show it."""
    if execution.end_reason is not None:
        return execution.end_text
    return said(error) if isinstance(error, BatchEnded) else text_of(error.__cause__ if isinstance(error, AttemptOver) else error)


class _JobNow(NamedTuple):
    """The state of a job whose attempt the server has ended itself."""

    status: str
    by_this_attempt: bool
    """Whether no other attempt has begun since."""
    own: Optional[str]
    """How an attempt without a transaction has ended itself: failed, released or committed.  None if it has not."""


class _ToCommit(NamedTuple):
    """Jobs of one executor whose handlers have succeeded."""

    jobs: list[BaseJob]
    results: list[Optional[str]]
    answer: Optional["asyncio.Future[list[BaseJob]]"]
    """Future of the executor that waits for the commit and continues with the claimed jobs; None if none waits."""
    claims: bool
    """Whether to claim jobs for it."""


class AttemptRunner:
    """Runs claimed jobs, from their claim to their end."""

    def __init__(
        self,
        shared: Shared,
        options: Options,
        executors: Sequence[Executor],
        handler: Callable[..., Any],
        kinds: Optional[Mapping[Optional[str], Kind[Any]]],
        once: bool,
        slots: HandlerSlots,
    ) -> None:
        self.shared = shared
        self.options = options
        self.slots = slots
        self.lock = shared.lock
        self.call_loop, self.from_thread, self.ask_about_job = shared.call_loop, shared.from_thread, shared.ask_about_job
        self.executors = executors
        self._handler = handler
        self._by_kind = kinds is not None
        self._kinds = kinds or {}
        self.types: Optional[JobTypes] = None
        """Types of payloads and results; None if they are not checked."""
        self.breaker = Breaker()
        self.probe: Optional[int] = None
        """Token of the one job that may run while the breaker is open."""
        self._once = once
        self.unassigned: deque[BaseJob] = deque()
        """Claimed jobs that no executor has."""
        self.ahead: Optional[Ahead] = None
        """The jobs that are claimed ahead, if the worker does that."""
        self._asked = self._ending = 0
        """Number of jobs that claims under way ask for, and of jobs that the same statements end."""
        self._to_commit: list[_ToCommit] = []
        self.committing: dict[AsyncLink, asyncio.Task[None]] = {}
        self.opening: Optional[asyncio.Future[Any]] = None
        """The task that opens the link for the second statement of SPLIT_COMMIT_FROM.  Until it is connected, one link is used."""
        self.job_timeout: Optional[float] = None
        self._ended_late: list[BaseJob] = []
        """Jobs of this turn of the event loop whose handlers succeeded, but after their leases."""
        self._blocked_in_a_row = 0
        """How many times in a row this happened.  Nothing is claimed before claims_paused_until."""
        self.claims_paused_until = 0.0
        self._loads = json_loads()
        self._codec = options.codec
        self._lease = _text_of_interval(options.lease)
        self.transacts = executors[0].link is not None
        """Whether its handlers have transactions."""
        self.at_once = options.batch if self.transacts else 1
        """Maximum number of jobs that an executor has at a time."""
        # If shards share slots, the event loop must know about each slot that is waiting.
        if options.ahead > 0 and not once and not slots.shared:
            self.ahead = Ahead(self)
        self.group_commit = GroupCommit(self, shared.commits) if executors[0].threads and not slots.shared and self.ahead is None else None
        for executor in executors:
            if executor.link is not None:
                shared.adopt(executor.link, shared.worker)

    # Claims.

    def _attach(self, link: Link[Any]) -> bool:
        attach = self.options.attach
        if attach is None:
            # Without a transaction, a lost connection would let another attempt start while the handler is running.
            attach = self.transacts and self.options.wait_dsn is None
        return attach and link.direct

    def claims(self, link: Link[Any], most: int) -> _pipeline.Values:
        """Parameters of a statement that claims, after the jobs that it ends."""
        options = self.options
        values = options.queue, str(most), self._lease, options.worker_name, "t" if self._attach(link) else "f"
        return [None if value is None else value.encode() for value in values]

    @staticmethod
    def ends(jobs: Sequence[BaseJob], results: Sequence[Optional[str]]) -> _pipeline.Values:
        """Parameters of a statement that ends jobs."""
        return _pipeline.numbers(job.id for job in jobs), _pipeline.numbers(job.token for job in jobs), _pipeline.texts(results)

    def take(self, answers: Sequence[str], asked_at: float, link: Link[Any]) -> list[BaseJob]:
        """The claimed jobs of an answer.  From now on, their leases are renewed."""
        rows = [_pipeline.read_row(answer, self._loads) for answer in answers if answer.startswith("[")]
        return self._take([row for row in rows if row[0] == "claimed"], asked_at, link)

    def _take(self, rows: Sequence[Sequence[Any]], asked_at: float, link: Link[Any]) -> list[BaseJob]:
        jobs: list[BaseJob] = []
        attached = self._attach(link)
        for row in rows:
            job: BaseJob = self.executors[0].job_class(self.options.queue, row[1:], asked_at, link, attached)
            self.shared.leased[job.token] = job
            self.shared.control.answer_timeout = min(
                self.shared.control.answer_timeout or _links.ANSWER_TIMEOUT, max(job._lease / 3, SHORTEST_ANSWER_TIMEOUT)
            )
            if job._heartbeat_at < self.shared.next_heartbeat:
                self.call_loop(self.shared.heartbeat_now.set)
            jobs.append(job)
            if self.options.captures != "off":
                job.lines = _logs.Lines()
        if jobs:
            self.shared.has_claimed()
        return jobs

    def executions(self, jobs: Sequence[BaseJob], executor: Executor) -> list[Execution]:
        """Executions for claimed jobs."""
        if len(jobs) < 2 or self.at_once == 1:
            return [Execution([job], executor, self) for job in jobs]
        # A job that has failed or killed a worker before runs alone, so that it does not affect others.
        fresh = [job for job in jobs if job.attempt == 1]
        return [Execution(each, executor, self) for each in ([job] for job in jobs if job.attempt > 1)] + (
            [Execution(fresh, executor, self)] if fresh else []
        )

    def may_claim(self) -> bool:
        """Whether a commit may also claim the next job."""
        return not (self.shared.ending.is_set() or self.breaker.is_open or self.slots.should_yield()) and time.monotonic() >= self.claims_paused_until

    def holds_back(self, execution: Execution) -> bool:
        """Whether an execution that has not begun must be given back, because its handler would probably fail."""
        return self.breaker.is_open and execution.jobs[0].token != self.probe

    def may_begin(self, executor: Executor) -> bool:
        """Whether an executor may start its pending executions."""
        first = executor.pending[0]
        if not first.begun and (self.shared.ending.is_set() or self.holds_back(first)):
            return False
        return executor.link is None or executor.link.usable

    def next_in_thread(self, executor: Executor) -> bool:
        """The next jobs of an executor with a thread."""
        if self.ahead is not None:
            jobs = self.next_ahead()
        elif self.group_commit is None:
            return False
        else:
            jobs = self.group_commit.next_jobs()
        executor.pending.extend(self.executions(jobs, executor))
        return bool(jobs)

    def next_ahead(self) -> list[BaseJob]:
        """The next jobs of an executor, if they were claimed ahead and may begin at once."""
        if self.ahead is None:
            return []
        jobs = self.ahead.take_fresh(self.at_once)
        if self.refills:
            self.call_loop(self.refill)
        return jobs

    @property
    def refills(self) -> bool:
        """Whether the dispatcher claims ahead.  Commits without a transaction do so themselves."""
        return self.ahead is not None and self.transacts and self.ahead.low and self.may_claim()

    def refill(self) -> None:
        """Makes the dispatcher claim ahead."""
        raise NotImplementedError

    @contextmanager
    def claiming(self, ending: int, most: int) -> Iterator[int]:
        """Context manager for a claim that ends this many jobs: the number of jobs that it may ask for.  Without ahead, that is most."""
        if self.ahead is None:
            yield most
            return
        held = sum(job.queue == self.options.queue for job in list(self.shared.leased.values()))
        with self.lock:
            self._ending += ending
            room = len(self.executors) * self.at_once + self.ahead.most - (held - self._ending) - self._asked
            asked = max(room, 0)
            self._asked += asked
        try:
            yield asked
        finally:
            with self.lock:
                self._ending -= ending
                self._asked -= asked

    def hand_out(self) -> None:
        """Gives unassigned jobs to idle executors."""
        raise NotImplementedError

    def _attempt_ended(self) -> None:
        """In a run that ends with the last job, idle executors look for jobs again, because this may have made another one ready."""
        if self._once:
            self.call_loop(self.shared.changed.set)

    # An attempt.

    def begin(self, execution: Execution) -> None:
        """Called before the handler is called."""
        if execution.end_reason is not None:
            raise StaleToken("the lease was lost before the handler started")
        self._set_limit(execution)
        self.shared.executions.add(execution)
        self.shared.has_begun_handlers = True
        if min(execution.ends_at, execution.lease_until, execution.session_check_at) < self.shared.watch_at:
            self.call_loop(self.shared.watch_now.set)

    def _set_limit(self, execution: Execution) -> None:
        """Begins its time.  Jobs that share a transaction have as long as all of them together."""
        of_kinds = [kind.timeout for job in execution.jobs if (kind := self._kinds.get(job.kind)) is not None and kind.timeout is not None]
        others = len(execution.jobs) - len(of_kinds)
        of_kind = sum(of_kinds) + others * self.options.timeout if of_kinds else None
        execution.begin(self.options.timeout, self.job_timeout and self.job_timeout - min(TIMEOUT_MARGIN, self.job_timeout / 10), of_kind)

    def call(self, job: BaseJob, *conn: Any) -> Any:
        """Calls a handler that is a function."""
        self._check_readable(job)
        encode = decode_payload(self.types, job)
        context = _logs.enter(job)
        try:
            result = self._call(job, *conn)
        finally:
            _logs.leave(context)
            job.handled = True
            end_unless_in(self.shared.process)
        job.check_steps()
        return result if encode is None else EncodedLater(finished_result(result), encode)

    def _call(self, job: BaseJob, *conn: Any) -> Any:
        if not _trace.installed() and self.options.hooks.around is None:
            return self._handler(job, *conn)
        with self._processing(job):
            if self.options.hooks.around is None:
                return self._handler(job, *conn)
            return self.options.hooks.around(job, lambda: self._handler(job, *conn))

    async def call_async(self, job: BaseJob, *conn: Any) -> Any:
        """Calls a handler that is a coroutine function."""
        self._check_readable(job)
        encode = decode_payload(self.types, job)
        context = _logs.enter(job)
        try:
            result = await self._call_async(job, *conn)
        finally:
            _logs.leave(context)
            job.handled = True
            end_unless_in(self.shared.process)
        job.check_steps()
        return result if encode is None else EncodedLater(finished_result(result), encode)

    async def _call_async(self, job: BaseJob, *conn: Any) -> Any:
        if not _trace.installed() and self.options.hooks.around is None:
            return await self._handler(job, *conn)
        with self._processing(job):
            if self.options.hooks.around is None:
                return await self._handler(job, *conn)

            async def call() -> Any:
                return finished_result(await self._handler(job, *conn))

            return await self.options.hooks.around(job, call)

    def _processing(self, job: BaseJob) -> ContextManager[None]:
        shared = job._execution is not None and len(job._execution.jobs) > 1  # then they have one span (processing_batch)
        return nullcontext() if shared else _trace.processing([job], self.options.worker_name, self._redacted)

    def processing_batch(self, jobs: Sequence[BaseJob]) -> ContextManager[None]:
        """Context manager for the handlers of jobs that share a transaction."""
        return _trace.processing(jobs, self.options.worker_name, self._redacted) if len(jobs) > 1 and _trace.installed() else nullcontext()

    def settling(self, jobs: Sequence[BaseJob]) -> ContextManager[Callable[[str], None]]:
        """Context manager for a request that ends attempts."""
        return _trace.settling(jobs, self._redacted) if _trace.installed() else _NOT_TRACED

    def _check_readable(self, job: BaseJob) -> None:
        """Raises if the job cannot be decoded.  This fails only its own attempt."""
        if job.unreadable is not None:
            raise ValueError(f"payload, checkpoint or headers could not be decoded: {text_of(job.unreadable)}")
        if self._codec is not None:
            job.decode(self._codec)

    def result_text(self, value: Any) -> Optional[str]:
        """A result as it is stored."""
        return json_text(value) if self._codec is None else encoded_json(self._codec, "the result", value)

    def result_json(self, value: Any, job: BaseJob) -> Optional[str]:
        """The result of a handler whose effect has happened.  A result that cannot be encoded is left out."""
        try:
            return self.result_text(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # encoders and results may be of any class
            log.error("%s %d: completed without its result, because the result cannot be encoded: %s", self.options.queue, job.id, self._redacted(text_of(error)))
            return None

    def handler_succeeded(self, execution: Execution, end: ExecutionResult) -> bool:
        """Records that a handler has succeeded.  Returns False if the event loop must do more."""
        if execution.end_reason is not None or execution.jobs[0].waiting is not None:
            return False
        self.shared.executions.discard(execution)
        if not end.committed and time.monotonic() > execution.lease_until:
            self.call_loop(self._pause_claims, execution.jobs[0])
        return True

    def committed(self, execution: Execution) -> None:
        """Records that a transaction has been committed."""
        for job in execution.jobs:
            self._record_outcome(job, "committed")
        self._attempt_ended()

    async def settle(self, executor: Executor, unsettled: Unsettled) -> None:
        """Settles an execution that an executor has passed to the event loop."""
        execution, end = unsettled
        if execution.end_task is not None and not end.hangs:
            await execution.end_task
        if execution.jobs[0].wait_stored:
            self.shared.executions.discard(execution)
            self._record_outcome(execution.jobs[0], "waiting")  # whatever the handler did afterwards
            await executor.reset_connection(end)
        elif end.committed or end.error is None:
            self.shared.executions.discard(execution)
            if end.committed:
                return
            if time.monotonic() > execution.lease_until:
                self._pause_claims(execution.jobs[0])
            await self.commit(executor, execution.jobs, end.value)
        elif executor.link is None:
            self.shared.executions.discard(execution)
            await self.slots.lend_while(self._settle_uncommitted(execution.jobs[0], execution, end.error))
            await executor.reset_connection(end)
        elif await self._runs_again(executor, executor.link, execution, end):
            executor.pending.appendleft(execution)
        else:
            self.shared.executions.discard(execution)
            await self._handle_failure(executor, execution, end)

    async def _runs_again(self, executor: Executor, link: Link[Any], execution: Execution, end: ExecutionResult) -> bool:
        """Whether a transaction that was not committed runs again at once."""
        assert end.error is not None
        conn = link.conn
        lost = conn is None or _links.is_lost(conn, end.error)
        moved = not lost and await link.address.has_moved(end.error, link.version)
        lost = lost or moved
        execution.commit_unknown |= lost and execution.commit_at is not None
        if lost and not end.hangs:
            await link.drop(end.error if execution.end_reason is None else None)
        execution.tries += not moved
        if execution.end_reason is not None or execution.tries > MAX_RERUNS or not (lost or _is_transient(end.error)):
            return False
        if not lost:
            await executor.reset_connection(end)
        return await self.ensure_connected(executor, execution)

    async def ensure_connected(self, executor: Executor, execution: Execution) -> bool:
        """Makes the executor's link usable.  Returns False if the attempt must end before that."""
        link = executor.link
        if link is None or link.usable:
            return True
        work = self._reconnect(link, execution)
        await (self.slots.lend_while(work) if self.slots.shared else work)
        return execution.end_reason is None and link.usable

    async def _handle_failure(self, executor: Executor, execution: Execution, end: ExecutionResult) -> None:
        """Settles a transaction that does not run again as it was."""
        assert end.error is not None
        jobs = execution.jobs
        if len(jobs) > 1 and execution.end_reason != "drain":
            log.info("%s: running the %d jobs of a transaction one at a time: %s", self.options.queue, len(jobs), _reason(execution, end.error))
            await executor.reset_connection(end)
            singles = [Execution([self._copy_for_rerun(job)], executor, self) for job in jobs]
            for single in singles:
                single.commit_unknown = execution.commit_unknown
            executor.pending.extendleft(reversed(singles))
            return
        for job in jobs:
            await self.slots.lend_while(self._settle_uncommitted(job, execution, end.error))
        # Not earlier, because attached leases end with the session, and then the attempt counts.
        await executor.reset_connection(end)

    def _copy_for_rerun(self, job: BaseJob) -> BaseJob:
        """A copy of a job that runs again alone, without the state of its transaction.  An abandoned handler keeps
        the old object."""
        again = copy.copy(job)
        again._cancelled = None
        if job.token in self.shared.leased:
            self.shared.leased[job.token] = again
        return again

    async def _reconnect(self, link: Link[Any], execution: Execution) -> None:
        """Waits until the link is usable again, or the attempt must end."""
        task = asyncio.ensure_future(link.ready())
        either: set["asyncio.Future[Any]"] = {task, execution.end_requested}
        if not execution.begun:
            self._set_limit(execution)
        left = max(execution.ends_at - time.monotonic(), 0)
        await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    # The end of its time.

    def time_is_over(self, execution: Execution, now: float) -> bool:
        """Whether a lease has ended because of the queue's job_timeout."""
        return self.job_timeout is not None and execution.claimed_at + self.job_timeout < now + 0.05

    def enforce_end(self, execution: Execution) -> None:
        """Enforces the end of a handler that was told to end."""
        execution.end_task = asyncio.create_task(self._enforce_end(execution))

    async def _enforce_end(self, execution: Execution) -> None:
        if execution.ended:
            return
        give_up = time.monotonic() + (DRAIN_ABANDON_AFTER if self.shared.ending.is_set() else ABANDON_AFTER)
        interrupting = asyncio.ensure_future(execution.executor.interrupt(execution))
        again = time.monotonic() + CANCEL_INTERVAL
        while not execution.ended and time.monotonic() < give_up:
            await asyncio.sleep(0.01)
            # A cancel request that arrives between two statements of the handler cancels neither.
            if not execution.ended and interrupting.done() and time.monotonic() > again:
                interrupting = asyncio.ensure_future(execution.executor.interrupt_again(execution))
                again = time.monotonic() + CANCEL_INTERVAL
        if execution.ended:
            await interrupting  # otherwise it could cancel a statement of the next job
        else:
            log.error("%s %d: the handler has not stopped, so the worker is abandoning it", self.options.queue, execution.jobs[0].id)
            await execution.executor.abandon(execution)

    def _pause_claims(self, job: BaseJob) -> None:
        """Called when a lease expired before its handler ended, because the blocked event loop could not renew it.
        This worker might claim the same jobs again and again, so it claims nothing for a while."""
        if not self._ended_late:
            self.claims_paused_until = time.monotonic() + min(2.0**self._blocked_in_a_row, 60)
            self._blocked_in_a_row += 1
            self.shared.loop.call_soon(self._log_blocked_loop)
        self._ended_late.append(job)

    def _log_blocked_loop(self) -> None:
        late, self._ended_late = self._ended_late, []
        names = ", ".join(str(job.id) for job in late[:3])
        log.error(
            "%s: %d handlers ended after their leases had expired, because the event loop was blocked for longer "
            "than a lease and could not send heartbeats. Jobs: %s%s. Run blocking calls with asyncio.to_thread, "
            "or give the queue a longer lease. Claims pause for %g s", self.options.queue, len(late), names, " and more" if len(late) > 3 else "",
            max(self.claims_paused_until - time.monotonic(), 0),
        )  # fmt: skip

    # The end of an attempt.

    async def _settle_uncommitted(self, job: BaseJob, execution: Execution, error: BaseException) -> None:
        """Reports an attempt that has not committed to the server."""
        cause = error.__cause__ if isinstance(error, AttemptOver) else None
        if execution.commit_unknown and cause is None and execution.end_reason is not None:
            cause = await self._outcome_of_commit(job)
        waiting = error if job.waiting is None else job.waiting  # whatever the handler did afterwards
        if isinstance(cause, AlreadyCommitted) or (isinstance(cause, NoSuchJob) and execution.commit_unknown):
            self._record_outcome(job, "committed")
            if job.after_commit is not None:  # of the run whose COMMIT was not answered
                await in_thread(job.call_after_commit)
        elif execution.end_reason == "lost" or (cause is not None and execution.end_reason not in ("time", "drain", "cancelled") and not job._being_cancelled):  # these reasons also make the connection refuse statements
            await self._report_lost(job, "stale" if execution.end_reason is None else "lost", cause)
        elif job._being_cancelled:
            await self._release(job)  # if the cancellation is rolled back, the attempt must not count
        elif not await self._record_arrived_events(job):
            pass
        elif execution.end_reason == "time":
            await self._fail_or_release(job, f"stopped after {execution.seconds:g} s ({execution.limit})", {"timeout": execution.seconds})
        elif execution.end_reason is not None:
            await self._release(job)
        elif isinstance(waiting, Waiting):
            await self._record_wait(job, waiting)
        else:
            text = said(error) if isinstance(error, (RetryLater, HoldBack, Dead)) else text_of(error)
            await self._fail_or_release(job, text, error=error)

    async def _fail_or_release(
        self, job: BaseJob, text: str, details: Optional[dict[str, Any]] = None, error: Optional[BaseException] = None
    ) -> None:
        """Fails the job or, after a Snooze, a HoldBack or the loss of the server, releases it.  The text of the error is read inside the
        try block, because the error may be of any class.  If the server refuses the hold, the job is released without one.  The first
        100 such attempts in a row do not count, either."""
        text = self._redacted(text)
        own_server = error is not None and not self.transacts and is_from_server(error, self.shared.control.conn)

        def statement(level: int) -> tuple[str, tuple[Any, ...]]:
            delay = interval(error.delay) if isinstance(error, (RetryLater, Snooze, HoldBack)) and level < 2 else None
            if delay is None and level < 2 and job.kind in self._kinds:
                delay = self._kinds[job.kind].delay_after(job.attempt)
            if isinstance(error, HoldBack) and level < 2:
                attempt = job.id, job.token
                why = storable_text(text).encode("ascii", "backslashreplace").decode()[:1000]
                end = job.id, MOST_HOLDS, MOST_HOLDS, *attempt, delay, *attempt, why, delay
                return (_HOLD_BACK, (*attempt, delay, job.id, error.scope, *end)) if level == 0 else (_GIVE_BACK, end)
            if isinstance(error, Snooze) and level < 2:
                return _RELEASE, (job.id, job.token, delay)
            # The server's encoding may lack a character, or the text may be too long.
            told = storable_text(text) if level == 0 else storable_text(text).encode("ascii", "backslashreplace").decode()[:1000]
            if level == 2 and isinstance(error, (RetryLater, Snooze, HoldBack)):
                told += " (the delay is not a valid interval)"
            if own_server and level < 2:
                end = job.id, MOST_LOSSES, MOST_LOSSES, job.id, job.token, RETRY_LOST_AFTER, job.id, job.token, told, delay
                return _GIVE_BACK, end
            more = {**(details or {}), **({} if error is None else {**self._details(error), **job.error_details}), **self._log_of(job, _stores_all(self.shared.control))} or None if level == 0 else None
            return _FAIL, (job.id, job.token, told, delay, permanent, jsonb_parameter("details", more))

        kind_of_error = type(error)
        permanent = issubclass(kind_of_error, (Dead, *self.options.never_retry)) and not issubclass(kind_of_error, (RetryLater, Snooze, HoldBack))

        outcome = await self._settle_with(job, statement)
        now = await self._job_after(job, outcome)
        self._record_outcome(job, _ended_as(outcome, now))
        if outcome == "released" and own_server:
            log.warning("%s %d: attempt %d is given back, because the connection to the server was lost: %s", self.options.queue, job.id, job.attempt, text)
        if outcome not in ("released", "already_committed"):
            self._report_failure(job, outcome, text, error, now)
        if outcome in ("retrying", "dead") and not self._once:
            self._note_failure(job, error if error is not None else TimeoutError(text), text)

    def _redacted(self, text: str) -> str:
        return _logs.redacted(self.options.redact, text)

    def _details(self, error: BaseException) -> dict[str, Any]:
        """The machine-readable details of an error."""
        lines = self._redacted("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        details = {"type": type(error).__name__, "trace": storable_text(lines[-MAX_TEXT:])}
        state = sqlstate(error)
        return {**details, "sqlstate": storable_text(state)} if state else details

    def _log_of(self, job: BaseJob, utf8: bool) -> dict[str, Any]:
        """The log of an attempt, for its details."""
        return {} if job.lines is None else job.lines.details(self.options.redact, utf8)

    def records(self, jobs: Sequence[BaseJob], link: Link[Any]) -> list[_pipeline.Step]:
        """The statement that stores the logs of jobs that the statement before it completes, if there are any.  It must not fail, because the
        jobs would not be completed."""
        if self.options.captures != "all":
            return []
        logs = [(job, log) for job in jobs if (log := self._log_of(job, _stores_all(link)))]
        if not logs:
            return []
        # In ASCII, because the handler may have changed the encoding of its connection.
        ids, tokens = _pipeline.numbers(job.id for job, _ in logs), _pipeline.numbers(job.token for job, _ in logs)
        return [(_pipeline.RECORD_DETAILS, (ids, tokens, _pipeline.texts(json.dumps(log) for _, log in logs)))]

    def _note_failure(self, job: BaseJob, error: BaseException, text: str) -> None:
        with self.lock:
            opened, pause = self.breaker.failed(job.kind if self._by_kind else None, error)
        if pause > 0:
            self.claims_paused_until = max(self.claims_paused_until, time.monotonic() + pause)
        if opened:
            log.error(
                "%s%s: ten attempts in a row have failed with the same error, so the worker runs one job at a time until one succeeds: %s",
                self.options.queue, f", kind {job.kind}" if self._by_kind and job.kind is not None else "", text,
            )  # fmt: skip

    async def _job_after(self, job: BaseJob, outcome: str) -> Optional[_JobNow]:
        """The state of the job if the end was reported too late, because the server may have ended the attempt, and the job, itself.
        None if the state is unknown or not needed."""
        if outcome != "stale":
            return None
        try:
            rows = await self.shared.within(self.shared.control.ask(_STATUS, (job.token, job.id)), _links.ANSWER_TIMEOUT)
        except (AnswerLost, psycopg.Error, asyncio.TimeoutError):
            return None
        return _JobNow(rows[0][0], rows[0][1] == job.attempt, None if self.transacts else rows[0][2]) if rows else None

    def _report_failure(
        self, job: BaseJob, outcome: str, text: str, error: Optional[BaseException], now: Optional[_JobNow] = None
    ) -> None:
        self._notify_failed(job, outcome, error if error is not None else TimeoutError(text), now)
        log.warning("%s %d: attempt %d of %d: %s%s: %s", self.options.queue, job.id, job.attempt, job.max_attempts, outcome,
                    "" if now is None else f" (the job is {now.status})", text)  # fmt: skip

    def _notify_failed(self, job: BaseJob, outcome: str, error: BaseException, now: Optional[_JobNow] = None) -> None:
        """Calls the hook.  now: the state of the job, if it is known."""
        if self.options.hooks.failed is not None:
            outcome = outcome if outcome in ("retrying", "dead", "stale") else "lost"
            outcome = _ended_as(outcome, now)
            finished = outcome == "dead" or (now is not None and now.status in ("completed", "cancelled", "dead"))
            failure = Failure(job.attempt, not finished, error, outcome)
            self.call_loop(self._call_failed_hook, job, failure)

    def _call_failed_hook(self, job: BaseJob, failure: Failure) -> None:
        coroutines = not self.executors[0].threads
        self.shared.begin_hook_task(call_hook_safely("failed", self.options.hooks.failed, coroutines, job, failure))

    async def _report_lost(self, job: BaseJob, outcome: str, cause: Optional[BaseException]) -> None:
        now = await self._job_after(job, "stale")
        log.warning("%s %d: the lease was lost; the handler's effects were rolled back, or belong to another attempt%s",
                    self.options.queue, job.id, "" if now is None else f"; the job is {now.status}")  # fmt: skip
        self._record_outcome(job, _ended_as("stale", now))
        self._notify_failed(job, outcome, cause or StaleToken("the lease was lost"), now)

    async def _outcome_of_commit(self, job: BaseJob) -> Optional[BaseException]:
        """The error that a repeated transaction would raise after an unanswered COMMIT: AlreadyCommitted, NoSuchJob or StaleToken.
        It is used if the attempt was told to end, so none is run.  None if it has not committed or the server does not answer."""
        found: list[BaseException] = []
        await self._settle_with(job, lambda _: (_ASSERT_CURRENT, (job.id, job.token)), ended=found)
        return found[0] if found else None

    async def _release(self, job: BaseJob) -> None:
        outcome = await self._settle_with(job, lambda _: (_RELEASE, (job.id, job.token, None)))
        if outcome in ("stale", "cancelled"):
            await self._report_lost(job, "lost", None)
        else:
            self._record_outcome(job, outcome)

    async def _record_wait(self, job: BaseJob, waiting: Waiting) -> None:
        """Records the wait again, because it was undone with the handler's transaction.  An event that has arrived
        meanwhile goes to the next attempt."""
        outcome = await self._await_event(job, waiting)
        if outcome in ("arrived", "timed_out"):
            await self._release(job)
        else:
            self._record_outcome(job, outcome)

    async def _record_arrived_events(self, job: BaseJob) -> bool:
        """Records again the events that the handler has received, which was also undone.  Otherwise they may have been
        deleted before the next attempt.  Returns False if this has ended the attempt."""
        for event in job._arrived:
            outcome = await self._await_event(job, event)
            if outcome != "arrived":
                self._record_outcome(job, outcome)
                return False
        return True

    async def _await_event(self, job: BaseJob, event: Waiting) -> str:
        def statement(level: int) -> tuple[str, tuple[Any, ...]]:
            if level > 0:
                # If it were released, it would be claimed again at once, repeatedly.
                return _FAIL, (job.id, job.token, "the server refused to let it wait for the event", None, False, None)
            return _AWAIT_OUTCOME, (job.id, job.token, event.name, interval(event.timeout))

        return await self._settle_with(job, statement)

    async def give_back(self, jobs: Sequence[BaseJob]) -> None:
        """Releases jobs that were not started."""
        values = [job.id for job in jobs], [job.token for job in jobs]
        give_up = time.monotonic() + DRAIN_SETTLE_TIMEOUT
        try:
            while True:
                try:
                    with self.settling(jobs) as settled:
                        await self.shared.within(self.shared.control.ask(_RELEASE_MANY, values), max(give_up - time.monotonic(), 0.01))
                        settled("released")
                    break
                except AnswerLost:
                    continue  # executed or not, a repetition does no harm
                except psycopg.errors.LockNotAvailable:
                    await asyncio.sleep(LOCK_PAUSE)
        except (psycopg.Error, asyncio.TimeoutError) as error:
            self._leave_to_leases(jobs, error)
            return
        for job in jobs:
            self.shared.leased.pop(job.token, None)

    def _leave_to_leases(self, jobs: Sequence[BaseJob], error: BaseException) -> None:
        text = said(error).strip() or type(error).__name__
        log.error("%s: %d jobs wait until their leases expire: %s", self.options.queue, len(jobs), text)
        for job in jobs:
            self.shared.leased.pop(job.token, None)

    async def _settle_with(
        self,
        job: BaseJob,
        statement: Callable[[int], tuple[str, Sequence[Any]]],
        refused: Optional[list[Any]] = None,
        ended: Optional[list[BaseException]] = None,
    ) -> str:
        """Repeats a statement until the server has answered.  If the server refuses a value, the statement is sent with fewer values.

        refused, ended: lists for the errors that refused a value, and those that show that the attempt has ended."""
        with self.settling([job]) as settled:
            outcome = await self._settle_until_answered(job, statement, refused, ended)
            settled(outcome)
            return outcome

    async def _settle_until_answered(
        self,
        job: BaseJob,
        statement: Callable[[int], tuple[str, Sequence[Any]]],
        refused: Optional[list[Any]],
        ended: Optional[list[BaseException]],
    ) -> str:
        give_up = time.monotonic() + (DRAIN_SETTLE_TIMEOUT if self.shared.ending.is_set() else SETTLE_TIMEOUT)
        pause = 1.0
        level = 0
        outcome = "waiting until its lease expires"
        while True:
            try:
                left = max(give_up - time.monotonic(), 0.01)
                outcome = (await self.shared.within(self.shared.control.ask(*statement(level)), left))[0][0]
                break
            except AnswerLost:
                continue  # executed or not, the repeated statement returns the outcome
            except psycopg.errors.LockNotAvailable:
                await asyncio.sleep(LOCK_PAUSE)
            except (StaleToken, NoSuchJob, AlreadyCommitted) as error:
                outcome = "already_committed" if isinstance(error, AlreadyCommitted) else "stale"
                if ended is not None:
                    ended.append(error)
                break
            except asyncio.TimeoutError:
                log.error("%s %d: could not report the end of the attempt to the server; the job waits until its lease expires", self.options.queue, job.id)
                break
            except Exception as error:
                if level < 2 and _is_refused_value(error):
                    log.error("%s %d: %s", self.options.queue, job.id, said(error).strip())
                    level += 1
                    if refused is not None:
                        refused.append(error)
                    continue
                log.error("%s %d: %s; trying again", self.options.queue, job.id, said(error).strip())
                try:
                    await self.shared.within(asyncio.sleep(min(pause, max(give_up - time.monotonic(), 0))), pause + 1)
                except asyncio.TimeoutError:
                    break
                pause *= 2
        return outcome

    def _record_outcome(self, job: BaseJob, outcome: str) -> None:
        self.shared.leased.pop(job.token, None)
        if self.ahead is not None:
            self.ahead.ended(job)
        closed = False
        with self.lock:
            self.shared.counts["committed" if outcome == "already_committed" else outcome] += 1
            if outcome == "committed":
                closed = self.breaker.succeeded(job.kind if self._by_kind else None)
        if closed:
            log.info("%s: an attempt has succeeded, so the worker runs %d jobs at a time again", self.options.queue, self.options.concurrency * self.options.batch)
            self.claims_paused_until = 0.0
        if outcome == "committed":
            self._blocked_in_a_row = 0
            log.debug("%s %d: committed", self.options.queue, job.id)

    async def commit(self, executor: Executor, jobs: list[BaseJob], results: list[Optional[str]]) -> None:
        """Commits an executor's jobs that have no transaction.  Jobs that end while a statement is under way share
        the next one.  An executor without other jobs continues with the jobs that the statement claims.  An executor with more jobs
        starts them only afterwards, because its next job could end the executor's session and with it the leases of these jobs."""
        if self.ahead is not None and self.unassigned and not executor.pending:
            # The executor continues with jobs that wait.
            self._queue_commit(_ToCommit(jobs, results, None, True))
            executor.pending.extend(self.executions(self.next_ahead(), executor))
            return
        answer: "asyncio.Future[list[BaseJob]]" = self.shared.loop.create_future()
        self._queue_commit(_ToCommit(jobs, results, answer, not executor.pending))

        async def wait() -> list[BaseJob]:
            return await answer

        claimed = await (self.slots.lend_while(wait()) if self.slots.shared else answer)
        executor.pending.extend(self.executions(claimed, executor))

    def commit_soon(self, ended: Ended) -> None:
        """Commits jobs whose executors have already continued."""
        self._queue_commit(_ToCommit([job for job, _ in ended], [result for _, result in ended], None, False))

    def _queue_commit(self, ended: _ToCommit) -> None:
        self._to_commit.append(ended)
        if not self.committing:
            self._begin_committing(self.shared.control)

    def _begin_committing(self, link: AsyncLink) -> None:
        self.committing[link] = asyncio.create_task(self._commit_all(link))

    async def _commit_all(self, link: AsyncLink) -> None:
        while self._to_commit and self._may_commit_on(link):
            # Jobs that end in this turn of the event loop are included.
            await asyncio.sleep(0)
            count = len(self._to_commit)
            other = self.shared.second if link is self.shared.control else self.shared.control
            if count >= SPLIT_COMMIT_FROM and other not in self.committing and self._may_commit_on(other):
                count = (count + 1) // 2
                self._begin_committing(other)
            batch, self._to_commit = self._to_commit[:count], self._to_commit[count:]
            if batch:
                await self._commit_together(batch, link)
        del self.committing[link]
        if self._to_commit and not self.committing:
            self._begin_committing(self.shared.control)

    def _may_commit_on(self, link: AsyncLink) -> bool:
        """Whether a link can be used.  The second one is opened in the background."""
        if link is self.shared.control or link.usable:
            return True
        if self.opening is None or self.opening.done():
            self.opening = asyncio.ensure_future(link.ready())
        return False

    async def _commit_together(self, batch: Sequence[_ToCommit], link: AsyncLink) -> None:
        ended = [each for part in batch for each in zip(part.jobs, part.results)]
        claimed: deque[BaseJob] = deque()
        try:
            claimed.extend(await self._commit_batch(ended, sum(part.claims for part in batch), link))
        except BaseException as error:
            for part in batch:
                if part.answer is None:
                    self._leave_to_leases(part.jobs, error)
                elif not part.answer.done():
                    part.answer.set_exception(error)
            return
        if self.ahead is not None:
            # Claimed jobs begin after those that wait.
            self.ahead.accept(list(claimed))
            claimed.clear()
        for part in batch:
            if part.answer is not None and not part.answer.done():
                most = self.at_once if part.claims else 0
                if self.ahead is not None and most > 0:
                    claimed.extend(self.next_ahead())
                part.answer.set_result([claimed.popleft() for _ in range(min(most, len(claimed)))])
        self.unassigned.extend(claimed)
        self.hand_out()

    def _commit_message(self, ended: Ended, link: Link[Any], most: int) -> list[_pipeline.Step]:
        ends = self.ends([job for job, _ in ended], [result for _, result in ended])
        records = self.records([job for job, _ in ended], link)
        if most == 0 or not self.may_claim():
            return [(_pipeline.COMMIT_MANY, ends), *records]
        return [(_pipeline.COMMIT_MANY_AND_CLAIM, (*ends, *self.claims(link, most))), *records]

    def _apply_commit_answers(self, ended: Ended, answers: list[str], asked_at: float, link: Link[Any]) -> list[BaseJob]:
        rows = [_pipeline.read_row(answer, self._loads) for answer in answers]
        outcomes = {row[2]: row[0] for row in rows if row[0] != "claimed"}
        for job, _ in ended:
            self._report_committed(job, outcomes.get(job.token, "not_found"))
        self._attempt_ended()
        return self._take([row for row in rows if row[0] == "claimed"], asked_at, link)

    async def _commit_batch(self, ended: Ended, executors: int, link: AsyncLink) -> list[BaseJob]:
        asked_at = time.monotonic()
        try:
            # Otherwise the link could have reconnected since the statement was built.
            await self.shared.within(link.ready(), _links.ANSWER_TIMEOUT)
            with self.settling([job for job, _ in ended]), self.claiming(len(ended) if executors > 0 else 0, executors * self.at_once) as most:
                answers = await link.exchange(self._commit_message(ended, link, most if executors > 0 else 0))
                return self._apply_commit_answers(ended, answers, asked_at, link)
        except (AnswerLost, psycopg.Error, asyncio.TimeoutError) as error:
            await self._commit_each(ended, error)
            return []

    def commit_from_thread(self, ended: Ended, executors: int) -> list[BaseJob]:
        """Like _commit_batch, called by an executor's thread for all executors."""
        link = self.shared.commits
        with self.shared.commits_lock:
            asked_at = time.monotonic()
            try:
                if not link.usable:
                    self.from_thread(self.shared.within(link.ready(), _links.ANSWER_TIMEOUT))
                link.in_use = True
                try:
                    with self.settling([job for job, _ in ended]):
                        answers = link.exchange_in_thread(self._commit_message(ended, link, executors * self.at_once))
                finally:
                    link.in_use = False
            except (psycopg.Error, OSError, asyncio.TimeoutError) as error:
                self.from_thread(self._commit_each_after(ended, error, link))
                return []
        return self._apply_commit_answers(ended, answers, asked_at, link)

    async def _commit_each_after(self, ended: Ended, error: BaseException, link: ThreadLink) -> None:
        if link.conn is not None and _links.is_lost(link.conn, error):
            await link.drop(error)
            for job in list(self.shared.leased.values()):
                if job._link is link:  # its lease has ended with the session, if the server is running
                    job._heartbeat_at = time.monotonic()
            self.shared.heartbeat_now.set()
        await self._commit_each(ended, error)

    async def _commit_each(self, ended: Ended, error: BaseException) -> None:
        """Commits each job separately until the server has answered.  If a result is refused, the job is committed without it; in run() it fails."""
        for job, result in ended:
            await self._commit_one(job, result, not isinstance(error, psycopg.Error) or _is_connection_error(error))

    async def _commit_one(self, job: BaseJob, result: Optional[str], asked: bool) -> None:
        refused: list[psycopg.Error] = []

        def statement(level: int) -> tuple[str, tuple[Any, ...]]:
            if level > 0 and self.transacts and refused:
                details = {**self._details(refused[0]), **self._log_of(job, _stores_all(self.shared.control))}
                return _FAIL, (job.id, job.token, storable_text(self._redacted(text_of(refused[0]))), None, False, Jsonb(details))
            return _TRY_COMMIT, (job.id, job.token, result if level == 0 else None)

        outcome = await self._settle_with(job, statement, refused)
        if refused and self.transacts:
            self._record_outcome(job, outcome)
            self._report_failure(job, outcome, self._redacted(text_of(refused[0])), refused[0])
        else:
            await self._record_log(job, outcome)
            self._report_committed(job, outcome, asked)

    async def _record_log(self, job: BaseJob, outcome: str) -> None:
        """Stores the log of a job that was committed alone.  The job is completed, even if this fails."""
        if outcome not in ("committed", "already_committed") or self.options.captures != "all" or not (log_of := self._log_of(job, _stores_all(self.shared.control))):
            return
        try:
            await self.shared.within(self.shared.control.ask(_RECORD_DETAILS, ([job.id], [job.token], [Jsonb(log_of)])), _links.ANSWER_TIMEOUT)
        except (AnswerLost, psycopg.Error, asyncio.TimeoutError) as error:
            log.warning("%s %d: the log was not stored: %s", self.options.queue, job.id, text_of(error))

    def _report_committed(self, job: BaseJob, outcome: str, asked: bool = False) -> None:
        if outcome == "stale" or (outcome == "not_found" and not asked):
            self.shared.leased.pop(job.token, None)
            self.call_loop(self.shared.begin_hook_task, self._report_not_committed(job, outcome))
        else:
            # Not found: the commit whose answer was lost has deleted the job, in a queue that keeps no jobs.
            self._record_outcome(job, "committed" if outcome == "not_found" else outcome)

    async def _report_not_committed(self, job: BaseJob, outcome: str) -> None:
        now = await self._job_after(job, outcome)
        self._record_outcome(job, _ended_as(outcome, now))
        if now is not None and now.own is not None:
            log.info("%s %d: the handler has ended the attempt itself (%s)", self.options.queue, job.id, now.own)
            return
        log.warning(
            "%s %d: the handler finished successfully, but the lease was lost, so the job was not committed (%s)",
            self.options.queue, job.id, outcome if now is None else f"{outcome}; the job is {now.status}",
        )  # fmt: skip
        self._notify_failed(job, "stale", StaleToken("the lease was lost"), now)

def _ended_as(outcome: str, now: Optional[_JobNow]) -> str:
    """The outcome of an attempt that the server has called stale."""
    if now is not None and now.status == "dead" and now.by_this_attempt:
        return "dead"
    if now is not None and now.own is not None:
        return "retrying" if now.own == "failed" else now.own
    return outcome


def _stores_all(link: Link[Any]) -> bool:
    """Whether the server can store every character.  If its encoding is another one, it may refuse some."""
    return link.conn is not None and bool(link.conn.pgconn.parameter_status(b"server_encoding") == b"UTF8")


def _is_transient(error: Optional[BaseException]) -> bool:
    state = sqlstate(error)
    return state in ("40001", "40P01") or (state == _pipeline.NO_SUCH_NAME and hasattr(error, "done"))


def _is_connection_error(error: BaseException) -> bool:
    state = sqlstate(error)
    return not state or state[:2] == "08" or state[:3] == "57P"


def _text_of_interval(delay: Optional[Delay]) -> Optional[str]:
    """A delay as text of an interval."""
    value = interval(delay)
    return f"{value // timedelta(microseconds=1)} microseconds" if isinstance(value, timedelta) else value


def _is_refused_value(error: BaseException) -> bool:
    """Whether an error refuses one of the values."""
    state = sqlstate(error)
    return state[:2] in ("22", "54") if state else not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, OSError))

