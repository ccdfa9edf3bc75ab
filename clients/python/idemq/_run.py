"""A run of a worker: executors that run jobs, a dispatcher that claims jobs for them, heartbeats, and the drain.

Everything runs in one asyncio loop, even if the handlers are functions.  Those run in threads, so a
handler that hangs delays neither heartbeats nor the drain.

The dispatcher goes through the queues in rounds.  In a round, each queue that has an idle executor gets one claim, over a
connection that all queues share.  If a round has found nothing, the dispatcher sleeps until one of these queues has a job, or until
an executor of another queue is idle.  An executor continues by itself as long as the statement that completes a job claims another.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, deque
from contextlib import suppress
from datetime import timedelta
from typing import Any, Callable, Coroutine, Iterable, Mapping, NamedTuple, Optional, Sequence, TypeVar

import psycopg

from . import _attempt_runner, _links, _logs, _pipeline, _signals
from ._ahead import NOT_AHEAD
from ._attempt_runner import AttemptRunner
from ._executors import Executor
from ._handler_connection import sever
from ._handler_slots import HandlerSlots
from ._handlers import Kind
from ._job import BaseJob
from ._links import AnswerLost, Link
from ._options import Options
from ._shared import LOCK_PAUSE, Shared
from ._typed_jobs import JobTypes
from ._worker_report import WorkerReport

log = logging.getLogger("idemq")
T = TypeVar("T")

LONGEST_WAIT = 30.0
"""Seconds that the server sleeps in one CALL, or less if statement_timeout is shorter."""
POOLED_WAIT = 3.0
"""The same through a pooler, where a wait cannot be ended, so a worker that stops lets it time out."""
END_WAIT_TIMEOUT = 2.0
"""Seconds that the server gets to end a wait."""
ERROR_PAUSE = 5.0
"""Seconds of pause after a refused claim or wait."""
CONNECT_TIMEOUT = 3.0
"""Seconds that a claimed job waits for the connection of its handler if the server answers on another one."""
SETTINGS_MAX_AGE = 60.0
LISTEN_AFTER = 0.01
"""Seconds that a job runs before the worker listens for the end of its attempt, so that short jobs cost nothing extra."""

# Each lease is extended by the length that it has had since the claim.
_HEARTBEAT = "SELECT token, outcome::text FROM idemq.heartbeat_many(%s, %s, NULL, end_waits => '{}')"
_END_WAIT = "SELECT token, outcome::text FROM idemq.heartbeat_many('{}', '{}', NULL, end_waits => ARRAY[%s::int])"
_ENDED_THEMSELVES = f"""SELECT s.token FROM unnest(%s::bigint[], %s::bigint[]) AS s (id, token)
    WHERE EXISTS (SELECT FROM idemq.attempts a WHERE a.job_id = s.id AND a.token = s.token AND {_attempt_runner.ENDED_BY_TOKEN})
    OR EXISTS (SELECT FROM idemq.jobs j WHERE j.id = s.id AND j.token = s.token AND j.status = 'completed')"""
"""Of attempts that a heartbeat calls stale: those that have ended themselves."""
_WAIT = "CALL idemq.wait(%s, %s)"
_WAIT_ANY = "CALL idemq.wait_any(%s, %s)"
_SETTINGS = f"SELECT extract(epoch FROM job_timeout)::float8, {NOT_AHEAD} FROM idemq.queues WHERE name = %s"


class Setup(NamedTuple):
    """A queue of a worker."""

    options: Options
    make_executor: Callable[[Options, bool], Executor]
    handler: Callable[..., Any]
    kinds: Optional[Mapping[Optional[str], Kind[Any]]]
    """Kinds with a time limit or a backoff; None if one handler runs the jobs of all kinds."""
    types: Optional[JobTypes] = None
    """Types of payloads and results; None if they are not checked."""


class QueueRun(AttemptRunner):
    """A queue of a run: its executors and its claims."""

    def __init__(self, shared: Shared, setup: Setup, once: bool, slots: HandlerSlots, refused: Callable[[psycopg.Error], bool]) -> None:
        options = setup.options
        executors = [setup.make_executor(options, not once) for _ in range(options.concurrency)]
        super().__init__(shared, options, executors, setup.handler, setup.kinds, once, slots)
        self.types = setup.types
        self._refused = refused
        self._idle: list[tuple[Executor, "asyncio.Future[list[BaseJob]]"]] = []
        self.busy = 0
        """Number of executors that have jobs."""
        self.looks = True
        """Whether the queue may have a job that can be claimed."""
        self.claimed = False
        """Whether a claim has been answered."""
        self.confirming: Optional["asyncio.Task[None]"] = None
        """The task that has waiting jobs confirmed."""
        self._paused_until = 0.0
        self._settings_at = -SETTINGS_MAX_AGE
        self._last_asked = 0
        """Number of jobs that the last claim has asked for."""

    # Executors.

    async def serve(self, executor: Executor) -> None:
        """Lets an executor run jobs until the run ends."""
        while jobs := await self._next_jobs(executor):
            try:
                if await self._connect(executor, jobs):
                    executor.pending.extend(self.executions(jobs, executor))
                    await self._work(executor)
            finally:
                self.busy -= 1
                self.slots.release(1)
                self.shared.changed.set()

    async def _next_jobs(self, executor: Executor) -> list[BaseJob]:
        """Jobs for an executor, or none if it must end."""
        if self.shared.ending.is_set():
            return []
        jobs: "asyncio.Future[list[BaseJob]]" = self.shared.loop.create_future()
        self._idle.append((executor, jobs))
        self.looks = True
        self.hand_out()
        self.shared.changed.set()
        return await jobs

    def hand_out(self) -> None:
        """Gives claimed jobs to idle executors.  Those that are connected come first, so that a queue with few jobs needs few connections."""
        if self.confirming is not None:
            return
        while self.unassigned and self._idle:
            taken = self.ahead.take_fresh(self.at_once) if self.ahead is not None else [self.unassigned.popleft() for _ in range(min(self.at_once, len(self.unassigned)))]
            if not taken:
                if not self.shared.ending.is_set():
                    self.confirming = asyncio.create_task(self._hand_out_confirmed())
                return
            self._hand_to_idle(taken)

    def _hand_to_idle(self, taken: list[BaseJob]) -> None:
        n = next((n for n, (executor, _) in enumerate(self._idle) if executor.link is None or executor.link.usable), 0)
        _, jobs = self._idle.pop(n)
        if jobs.done():  # it was cancelled
            self.unassigned.extendleft(reversed(taken))
        else:
            self.busy += 1
            jobs.set_result(taken)

    async def _hand_out_confirmed(self) -> None:
        """Has the server confirm jobs that have waited, and gives them to idle executors."""
        assert self.ahead is not None
        try:
            jobs = self.ahead.take(len(self._idle) * self.at_once if not self.breaker.is_open else 1)
            fit = await self.ahead.confirm(jobs)
            begins = deque(job for job in jobs if job.token in fit)
            while begins and self._idle and not self.shared.ending.is_set():
                self._hand_to_idle([begins.popleft() for _ in range(min(self.at_once, len(begins)))])
            if unfit := [*begins, *(job for job in jobs if job.token not in fit)]:
                await self.give_back(unfit)
        finally:
            self.confirming = None
            self.looks = True
            self.shared.changed.set()
        self.hand_out()

    def refill(self) -> None:
        self.looks = True
        self.shared.changed.set()

    def dismiss(self) -> None:
        """Ends the idle executors."""
        for _, jobs in self._idle:
            if not jobs.done():
                jobs.set_result([])
        self._idle.clear()

    async def _connect(self, executor: Executor, jobs: list[BaseJob]) -> bool:
        """Opens the executor's connection.  If this fails although the server answers, for example because there are too many connections,
        gives the jobs back and returns False, but not before the connection is open or the run ends."""
        link = executor.link
        if link is None or link.usable or self.slots.shared:
            return True
        opening = asyncio.ensure_future(link.ready())
        ending = asyncio.ensure_future(self.shared.ending.wait())
        either: "set[asyncio.Future[Any]]" = {opening, ending}
        try:
            while not (ending.done() or (link.lost and self.shared.control.usable)):
                await asyncio.wait(either, timeout=CONNECT_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
                if opening.done():
                    opening.result()
                    return True
            await self.give_back(jobs)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return False
        except psycopg.Error:  # in a drain, which tries only once
            await self.give_back(jobs)
            raise
        finally:
            ending.cancel()
            opening.cancel()

    async def _work(self, executor: Executor) -> None:
        """Lets an executor run its jobs, and those that it claims meanwhile, until there are none."""
        while executor.pending:
            execution = executor.pending[0]
            if not execution.begun and (self.shared.ending.is_set() or self.holds_back(execution)):
                await self.give_back([job for each in executor.pending for job in each.jobs])
                executor.pending.clear()
                return
            if not await self.ensure_connected(executor, execution):
                executor.pending.popleft()
                self.shared.executions.discard(execution)
                for job in execution.jobs:
                    await self.slots.lend_while(self._settle_uncommitted(job, execution, psycopg.OperationalError("the connection was lost")))
                continue
            unsettled = await executor.start(self)
            if unsettled is not None:
                await self.settle(executor, unsettled)

    # Claims.

    @property
    def idle(self) -> int:
        """Number of executors that may have a job and have none."""
        if self.breaker.is_open:
            return min(len(self._idle), 1) if self.busy == 0 else 0
        return len(self._idle)

    @property
    def wants(self) -> bool:
        """Whether it wants jobs, for idle executors or to claim ahead."""
        return bool(self.idle) or self.refills

    @property
    def paused_for(self) -> float:
        """Seconds for which nothing may be claimed."""
        return max(self._paused_until, self.claims_paused_until) - time.monotonic()

    async def look(self) -> bool:
        """Claims jobs for the idle executors.  Returns whether it has found any."""
        self.looks = False
        jobs: list[BaseJob] = []
        try:
            jobs, self.looks = await self._claim()
        except AnswerLost:
            self._look_after(0.1)
        except psycopg.errors.LockNotAvailable:  # a table is locked, for example by ALTER EXTENSION UPDATE
            self._look_after(LOCK_PAUSE)
        except psycopg.Error as error:
            if self._once or (not self.claimed and self._refused(error)):
                raise
            log.error("%s: claim: %s", self.options.where if self.slots.shared else self.options.queue, str(error).strip())
            self._look_after(ERROR_PAUSE)
        if self.ahead is not None:
            self.ahead.accept(jobs)
        else:
            self.unassigned.extend(jobs)
        if not self.shared.ending.is_set():
            self.hand_out()
        return bool(jobs)

    def _look_after(self, seconds: float) -> None:
        self.looks, self._paused_until = True, time.monotonic() + seconds

    async def _claim(self) -> tuple[list[BaseJob], bool]:
        """Jobs, and whether there may be more."""
        control = self.shared.control
        jobs: list[BaseJob] = []
        if self.slots.shared:
            # A shard that is down does not hold a slot.
            await while_running(self.shared, control, control.ready())
        taken = await while_running(self.shared, control, self.slots.acquire(max(self.idle, 1) if self.refills else self.idle), False) or 0
        try:
            if taken > 0 and not self.shared.ending.is_set():
                probes = self.breaker.is_open
                claimed = await while_running(self.shared, control, self._ask_claim(1 if probes else taken * self.at_once, probes))
                self.claimed = self.claimed or claimed is not None
                jobs = claimed or []
                self.probe = jobs[0].token if probes and jobs else None
        finally:
            self.slots.release(taken - math.ceil(len(jobs) / self.at_once))
        return jobs, len(jobs) == self._last_asked

    async def _ask_claim(self, most: int, probes: bool) -> list[BaseJob]:
        control = self.shared.control
        if time.monotonic() - self._settings_at >= SETTINGS_MAX_AGE:
            rows = await control.ask(_SETTINGS, (self.options.queue,))
            self.job_timeout = rows[0][0] if rows else None
            if self.ahead is not None and rows:
                self.ahead.configure(rows[0][1])
            self._settings_at = time.monotonic()
        await control.ready()
        asked_at = time.monotonic()
        self._last_asked = most
        if probes or self.ahead is None:
            return self.take(await control.exchange([(_pipeline.CLAIM, self.claims(control, most))]), asked_at, control)
        with self.claiming(0, most) as room:
            self._last_asked = max(room, 1)
            jobs = self.take(await control.exchange([(_pipeline.CLAIM, self.claims(control, room))]), asked_at, control) if room > 0 else []
            self.ahead.dry = len(jobs) < room
            return jobs


class Run:
    """One call of run(), run_outside() or drain()."""

    def __init__(
        self,
        setups: Sequence[Setup],
        once: bool = False,
        slots: Optional[HandlerSlots] = None,
        refused: Callable[[psycopg.Error], bool] = lambda error: True,
    ) -> None:
        """refused: decides whether an error of the first claim ends the run."""
        self.options = setups[0].options
        self._once = once
        self.shared = shared = Shared(self.options, not once)
        shared.has_claimed = self._has_claimed
        self.loop = shared.loop
        slots = slots or HandlerSlots()
        self.queues = {setup.options.queue: QueueRun(shared, setup, once, slots, refused) for setup in setups}
        self._report = WorkerReport(
            shared.control,
            self.options.worker_name,
            list(self.queues),
            sum(len(queue.executors) * queue.at_once for queue in self._each()),
            lambda: ([job.id for job in list(shared.leased.values())], sum(shared.counts.values())),
        )
        self._sleeping: Optional["asyncio.Task[None]"] = None
        """The task in which the server waits for work."""
        self._sleeps_for: list[QueueRun] = []
        self._wait_refused_at = -math.inf
        self._listening: Optional["asyncio.Task[None]"] = None
        """The task that listens while the server waits for nothing."""
        self._stops_listening = False
        self._looks_soon = False
        """Whether _look_at_ages will be called soon."""
        self._told = False
        """Whether to send heartbeats at once, because an attempt may have ended."""

    def _each(self) -> Iterable[QueueRun]:
        return self.queues.values()

    @property
    def _busy(self) -> int:
        return sum(queue.busy for queue in self._each())

    # The run, and its end.

    async def main(self) -> Counter[str]:
        """Runs until it is told to stop, or, in a drain(), until no job is ready.  Returns the number of attempts by outcome."""
        captures = any(queue.options.captures != "off" for queue in self._each())
        with _signals.stop_on_signals(self.shared.loop, self.options.signals, self.stop), _logs.capturing(captures):
            return await self._main()

    async def _main(self) -> Counter[str]:
        shared = self.shared
        tasks = [asyncio.create_task(work) for work in (self._send_heartbeats(), shared.watch())]
        if not self._once:
            tasks.append(asyncio.create_task(self._report.report_regularly()))
        tending = [asyncio.create_task(queue.ahead.tend()) for queue in self._each() if queue.ahead is not None]
        working = [asyncio.create_task(queue.serve(executor)) for queue in self._each() for executor in queue.executors]
        working.append(asyncio.create_task(self._dispatch()))
        over: "asyncio.Future[Any]" = asyncio.create_task(shared.over.wait())
        giving_up = asyncio.create_task(self._give_up())
        # Done when all have ended, or when one has raised an error.
        ended: "asyncio.Future[Any]" = asyncio.gather(*working)
        try:
            # A cancellation drains without a grace period.
            await asyncio.wait({ended, over, giving_up}, return_when=asyncio.FIRST_COMPLETED)
            for task in (ended, giving_up):
                if task.done():
                    task.result()
        finally:
            shared.ending.set()
            for queue in self._each():
                queue.dismiss()
            if not all(task.done() for task in working):
                self._end_grace()
            # If one raises an error, the others still end their jobs properly.
            await self._until_over(working)
            while not shared.over.is_set() and all(task.done() for task in working) and (committing := self._committing()):
                await self._until_over(committing)
            await self._until_over([*tending, *(queue.confirming for queue in self._each() if queue.confirming is not None)])
            for queue in self._each():
                if left := [*queue.unassigned, *(queue.group_commit.untaken() if queue.group_commit is not None else [])]:
                    await queue.give_back(left)
            while shared.hook_tasks and not shared.over.is_set():  # a hook may start another
                await self._until_over(shared.hook_tasks)
            end_of_listening = asyncio.create_task(self._end_listening())
            await self._until_over([end_of_listening])
            await self._report.report_stopping()
            await self._close([*working, ended, over, giving_up, end_of_listening, *tending, *tasks])
        return shared.counts

    async def _give_up(self) -> None:
        """Raises if there has been no connection for give_up_after."""
        limit, control = self.options.give_up_after, self.shared.control
        while limit is not None:
            lost_for = control.lost_for
            if lost_for >= limit:
                log.error("%s: the worker gives up, because it has had no connection for %g s", self.options.where, limit)
                raise control.last_error or psycopg.OperationalError("the server is not responding")
            await asyncio.sleep(limit - lost_for)
        await asyncio.get_running_loop().create_future()

    def _committing(self) -> list["asyncio.Future[Any]"]:
        return [task for queue in self._each() for task in queue.committing.values()]

    async def _until_over(self, tasks: Iterable["asyncio.Future[Any]"]) -> None:
        """Waits until all of them are done, or the time limit of the drain has passed."""
        left = set(tasks)
        over = asyncio.ensure_future(self.shared.over.wait())
        while left and not over.done():
            await asyncio.wait({*left, over}, return_when=asyncio.FIRST_COMPLETED)
            left = {task for task in left if not task.done()}
        over.cancel()

    async def _close(self, tasks: list["asyncio.Future[Any]"]) -> None:
        """Ends all remaining tasks and connections, even if the server does not answer."""
        shared = self.shared
        for link in shared.links:
            link.closing = True
        if shared.leased:
            log.error("%s: %d jobs wait until their leases expire, because the ends of their attempts could not be reported in time", self.options.where, len(shared.leased))
        others = (*self._committing(), *shared.hook_tasks, *(queue.opening for queue in self._each()), shared.silence.task, self._sleeping, self._listening)
        tasks += [task for task in others if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_attempt_runner.LAST_MARGIN / 4)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()  # the first one has been raised
        for queue in self._each():
            for executor in queue.executors:
                if executor.link is not None:
                    executor.link.on_silent = lambda process: None
                await executor.close()
                if executor.link is not None:
                    await executor.link.end()
        await shared.close()

    def stop(self) -> None:
        """Starts the drain.  A second call ends the grace period."""
        if self.shared.ending.is_set():
            self._end_grace()
            return
        self.shared.ending.set()
        self.shared.changed.set()
        if self._busy:
            log.info("stopping: %d jobs have %g s to finish", len(self.shared.executions), self.options.grace)
        self.shared.end_within(self.options.grace + _attempt_runner.END_MARGIN - _attempt_runner.LAST_MARGIN)
        self.shared.loop.call_later(self.options.grace, self._end_grace)

    def _end_grace(self) -> None:
        self.shared.changed.set()
        self.shared.end_within(_attempt_runner.END_MARGIN - _attempt_runner.LAST_MARGIN)
        for execution in list(self.shared.executions):
            execution.request_end("drain")

    # Looking for jobs.

    async def _dispatch(self) -> None:
        """Claims jobs for idle executors, in rounds in which each queue has its turn once.  Sleeps if a round has found nothing."""
        shared, turns = self.shared, list(self._each())
        try:
            while not shared.ending.is_set():
                shared.changed.clear()
                if self._once and self._busy == 0 and (committing := self._committing()):
                    await asyncio.wait(committing)  # committing may make the last jobs ready
                if self._once:
                    # The end of a job can make another one ready: one of its group, or one that it has added.
                    for queue in turns:
                        queue.looks = True
                # A job that ends during the round may have added one to a queue that has had its turn.
                was_idle, found = self._busy == 0, False
                for queue in list(turns):
                    if queue.looks and queue.wants and queue.paused_for <= 0 and not shared.ending.is_set():
                        found = await queue.look() or found
                turns.append(turns.pop(0))
                if found:
                    continue
                if not self._once:
                    await self._sleep()
                    continue
                # Also queues of which an executor has become idle during this round.
                pauses = [queue.paused_for for queue in turns if queue.looks and queue.idle]
                if self._busy == 0 and not pauses:
                    if was_idle:
                        return
                    continue
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(shared.changed.wait(), max(min(pauses), 0) if pauses else None)
        finally:
            for queue in turns:
                queue.dismiss()

    async def _sleep(self) -> None:
        """Sleeps until a queue has work, an executor of a queue for which the server does not wait is idle, or a pause has ended."""
        ready = [queue for queue in self._each() if queue.idle and queue.paused_for <= 0]
        if self._sleeping is None and ready:
            self._sleeps_for = ready
            self._sleeping = asyncio.create_task(self._sleep_on_server())
        while not (self.shared.ending.is_set() or self._looks_elsewhere()):
            pauses = [queue.paused_for for queue in self._each() if queue.looks and queue.idle and queue not in self._sleeps_for]
            changing = asyncio.ensure_future(self.shared.changed.wait())
            wanted: "set[asyncio.Future[Any]]" = {changing} if self._sleeping is None else {changing, self._sleeping}
            await asyncio.wait(wanted, timeout=max(min(pauses), 0) if pauses else None, return_when=asyncio.FIRST_COMPLETED)
            changing.cancel()
            if self._sleeping is not None and self._sleeping.done():
                break
            self.shared.changed.clear()
        if (sleeping := self._sleeping) is None:
            return
        interrupted = not sleeping.done()
        if interrupted and not await self._end_sleep(sleeping):
            return  # through a pooler, it goes on for a short while
        self._sleeping = None
        if not sleeping.cancelled():
            sleeping.result()
        if not interrupted:
            for queue in self._sleeps_for:
                queue.looks = True
        self._sleeps_for = []

    def _looks_elsewhere(self) -> bool:
        """Whether there is a queue with an idle executor for which the server does not wait."""
        return any(queue.looks and queue.wants and queue.paused_for <= 0 for queue in self._each() if queue not in self._sleeps_for)

    async def _sleep_on_server(self) -> None:
        """Waits until one of the queues has work, or for a while."""
        try:
            await while_running(self.shared, self.shared.waiter, self._wait_for_work(), end=self._end_wait)
        except AnswerLost:
            await self._pause(0.1)
        except psycopg.Error as error:
            if not self.shared.ending.is_set():
                log.error("%s: wait: %s", self.options.where, str(error).strip())
                # One of several queues may be the cause.  The claims find out which, and the next wait is for the others.
                again = time.monotonic() - self._wait_refused_at < 2 * ERROR_PAUSE
                self._wait_refused_at = time.monotonic()
                if again or len(self._sleeps_for) == 1:
                    await self._pause(ERROR_PAUSE)

    async def _pause(self, seconds: float) -> None:
        """Sleeps, or until the drain begins."""
        try:
            await asyncio.wait_for(self.shared.ending.wait(), seconds)
        except asyncio.TimeoutError:
            pass

    async def _wait_for_work(self) -> None:
        try:
            await self._end_listening()
            if not self.shared.ending.is_set():
                await self._wait([queue.options.queue for queue in self._sleeps_for])
        finally:
            if self.shared.leased and not self._looks_soon:
                self._look_soon()

    async def _wait(self, queues: Sequence[str]) -> None:
        """Waits until one of the queues has work, an attempt of this process is cancelled or taken back, or the wait times out."""
        waiter = self.shared.waiter
        await waiter.ready()
        limit = waiter.statement_timeout
        seconds = LONGEST_WAIT if waiter.process is not None else POOLED_WAIT
        seconds = min(seconds, 0.8 * limit) if limit > 0 else seconds
        sql, value = (_WAIT_ANY, list(queues)) if len(queues) > 1 else (_WAIT, queues[0] if queues else None)
        rows = await waiter.ask(sql, (value, timedelta(seconds=seconds)), seconds + _links.ANSWER_TIMEOUT)
        if not rows[0][0] and waiter.hears_ends and self.shared.leased:
            self._told = True
            self.shared.heartbeat_now.set()

    async def _end_sleep(self, sleeping: "asyncio.Task[None]") -> bool:
        """Ends the wait for work of the other session, so that it can wait for more queues.  Returns whether it has ended."""
        waiter = self.shared.waiter
        if self.shared.ending.is_set():
            await asyncio.wait({sleeping})  # it ends its wait itself
            return True
        if waiter.conn is not None:
            if waiter.process is None:
                return False
            await self._ask_end_of_wait(waiter.process.pid, sleeping)
            await asyncio.wait({sleeping}, timeout=END_WAIT_TIMEOUT)
        sleeping.cancel()
        await asyncio.wait({sleeping})
        return True

    async def _ask_end_of_wait(self, process: int, waiting: "asyncio.Task[None]") -> None:
        ends = asyncio.ensure_future(self.shared.control.ask(_END_WAIT, (process,)))
        ends.add_done_callback(_links._retrieved)
        await asyncio.wait({ends, waiting}, timeout=END_WAIT_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)

    async def _end_wait(self, waiting: "asyncio.Future[Any]") -> None:
        """Asks the server to end the wait of the other session, because the run ends.  A cancel request would also end it, but the server
        would log an ERROR.

        A wait through a pooler is short and times out, because the number of its session is unknown."""
        process = self.shared.waiter.process
        if process is not None:
            ends = asyncio.ensure_future(self._report.end_wait(process.pid, self._busy == 0 and not self.shared.leased))
            await asyncio.wait({ends, waiting}, timeout=END_WAIT_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                await asyncio.wait({waiting}, timeout=END_WAIT_TIMEOUT)
            ends.cancel()
        else:
            await asyncio.wait({waiting}, timeout=POOLED_WAIT + 1)

    # Listening, while the server waits for no queue.

    def _has_claimed(self) -> None:
        """Called when jobs have been claimed.  If they run for a while, the worker listens for the end of their attempts."""
        if not self._looks_soon:
            self._looks_soon = True
            self.shared.call_loop(self._look_soon)

    def _look_soon(self) -> None:
        self._looks_soon = True
        self.shared.loop.call_later(LISTEN_AFTER, self._look_at_ages)

    def _look_at_ages(self) -> None:
        """Begins to listen as soon as a job has run for LISTEN_AFTER."""
        self._looks_soon = False
        leased, waiter = list(self.shared.leased.values()), self.shared.waiter
        if self._sleeping is not None or self._listening is not None or not leased or self.shared.over.is_set():
            return
        if waiter.conn is not None and not waiter.hears_ends:
            return  # the server does not tell this process anything: only heartbeats find the end of an attempt
        left = min(job._claimed_at for job in leased) + LISTEN_AFTER - time.monotonic()
        if left > 0:
            self._looks_soon = True
            self.shared.loop.call_later(left, self._look_at_ages)
        else:
            self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        waiter = self.shared.waiter
        try:
            await waiter.ready()
            while self.shared.leased and self._sleeping is None and not self._stops_listening and waiter.hears_ends:
                await self._wait([])
        except AnswerLost:
            self._look_soon()
        except psycopg.Error as error:
            log.debug("listen: %s", error)
        finally:
            self._listening = None

    async def _end_listening(self) -> None:
        """Ends the wait in which this process listens."""
        if (listening := self._listening) is None:
            return
        self._stops_listening = True
        process = self.shared.waiter.process
        if process is not None and self.shared.waiter.conn is not None:
            await self._ask_end_of_wait(process.pid, listening)
        if not listening.done():
            await asyncio.wait({listening}, timeout=END_WAIT_TIMEOUT)
        listening.cancel()
        self._stops_listening = False

    # Leases.

    async def _send_heartbeats(self) -> None:
        """Sends heartbeats for all jobs as soon as one is due, and on each new connection, because a restarted server
        keeps attached leases only for a short time."""
        shared, control, seen = self.shared, self.shared.control, 0
        while True:
            now = time.monotonic()
            # A thread that claims meanwhile wakes this task: either its job is seen here, or the thread sees that nothing is due yet.
            shared.next_heartbeat = math.inf
            shared.heartbeat_now.clear()
            shared.next_heartbeat = min((job._heartbeat_at for job in list(shared.leased.values())), default=now + 3600)
            if shared.next_heartbeat > now and not self._told and (control.connections == seen or not shared.leased):
                try:
                    await asyncio.wait_for(shared.heartbeat_now.wait(), shared.next_heartbeat - now)
                except asyncio.TimeoutError:
                    pass
                continue
            try:
                await control.ready()
                seen = control.connections
                self._told = False
                await self._send_heartbeat()
            except (AnswerLost, psycopg.errors.LockNotAvailable):
                await asyncio.sleep(0.1)
            except psycopg.Error as error:
                log.error("heartbeat: %s", str(error).strip())
                for job in list(shared.leased.values()):
                    job._heartbeat_at = time.monotonic() + job._lease / 3

    async def _send_heartbeat(self) -> None:
        jobs = list(self.shared.leased.values())
        if not jobs:
            return
        asked_at = time.monotonic()
        stale: list[BaseJob] = []
        for token, outcome in await self.shared.control.ask(_HEARTBEAT, ([job.id for job in jobs], [job.token for job in jobs])):
            job = self.shared.leased.get(token)
            if job is None:
                continue  # the attempt has ended meanwhile
            if outcome == "current":
                job._renew_lease(asked_at)
            elif outcome == "stale":
                stale.append(job)
            else:
                job._being_cancelled = outcome == "cancelled"
                self._lose_lease(job, {"expired": "time", "cancelled": "cancelled"}.get(outcome, "lost"))
        if stale:
            await self._lose_stale(stale)

    async def _lose_stale(self, jobs: Sequence[BaseJob]) -> None:
        """Ends attempts that the server calls stale.  A handler that has ended its attempt itself, through SQL, continues, unless
        it has a transaction, which can only be rolled back."""
        ended: set[int] = set()
        outside = [job for job in jobs if not self.queues[job.queue].transacts]
        if outside:
            ended = {token for (token,) in await self.shared.control.ask(_ENDED_THEMSELVES, ([job.id for job in outside], [job.token for job in outside]))}
        for job in jobs:
            if job.token in ended:
                if self.shared.leased.pop(job.token, None) is not None:
                    job._lease_until = math.inf
            elif job.token in self.shared.leased:
                job._being_cancelled = False
                self._lose_lease(job, "lost")

    def _lose_lease(self, job: BaseJob, why: str) -> None:
        self.shared.leased.pop(job.token, None)
        execution, queue = job._execution, self.queues[job.queue]
        # Its own COMMIT may be the reason, which the transaction itself finds out.
        if execution is not None and execution.commit_at is None and not execution.commit_unknown:
            # The server may already have taken the job back for this reason.
            execution.request_end("time" if execution.time_is_over(time.monotonic()) else why)
        with queue.lock:
            waits = job in queue.unassigned
            if waits:
                queue.unassigned.remove(job)
        if waits:
            queue.slots.release(1)
            if why == "cancelled":
                self.shared.begin_hook_task(queue.give_back([job]))

    # For a shard of a cluster.

    @property
    def unreachable(self) -> bool:
        """Whether its server is known to be down."""
        executors = [executor for queue in self._each() for executor in queue.executors]
        return self.shared.control.lost or self.shared.waiter.lost or any(executor.link is not None and executor.link.lost for executor in executors)

    @property
    def claimed(self) -> bool:
        """Whether a claim has been answered."""
        return any(queue.claimed for queue in self._each())

    def moved(self) -> None:
        """Called when the address has changed.  Wakes up the waiter; other connections find out by themselves."""
        if self.shared.waiter.conn is not None:
            sever(self.shared.waiter.conn)


async def while_running(
    shared: Shared,
    link: Link[Any],
    work: Coroutine[Any, Any, T],
    asks: bool = True,
    end: Optional[Callable[["asyncio.Future[Any]"], Coroutine[Any, Any, None]]] = None,
) -> Optional[T]:
    """The result of work, or None if the drain begins first.  Then work is ended soon, or at once if no statement is under way.

    end: ends the statement; otherwise it is awaited, for example so that the jobs of a claim are released."""
    task = asyncio.ensure_future(work)
    ending = asyncio.ensure_future(shared.ending.wait())
    try:
        await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and asks and link.conn is not None:
            if end is not None:
                await end(task)
            elif not shared.over.is_set():
                over = asyncio.ensure_future(shared.over.wait())
                await asyncio.wait({task, over}, timeout=_links.ANSWER_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
                over.cancel()
        return await task if task.done() else None
    finally:
        ending.cancel()
        task.cancel()
