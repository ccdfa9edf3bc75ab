"""A run of a worker: executors that claim jobs, call the handler and report outcomes; heartbeats; the drain.

Everything runs in one asyncio loop, even if the handlers are functions.  Those run in threads, so a
handler that hangs delays neither heartbeats nor the drain.

Connections: `control` renews leases and reports outcomes of jobs without a transaction.  `waiter` sleeps in CALL
idemq.wait, until there is work or an attempt has been cancelled or taken back.  Each executor with a transaction has another connection, which it also uses to claim, so that an attached lease
ends with the session of the transaction.  Without transactions, `control` claims and commits as well.
If many coroutines end together, `second` helps it.  Each connection is opened when it is first needed.

One executor at a time looks for jobs and waits for them, and the others queue behind it.  So a wake-up starts
one executor, and when it has found jobs, the next executor looks for more.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections import Counter
from datetime import timedelta
from typing import Any, Callable, Coroutine, Iterable, Optional, Sequence, TypeVar

import psycopg

from . import _attempt_runner, _links, _pipeline, _signals
from ._attempt_runner import AttemptRunner
from ._executors import Executor
from ._handler_connection import sever
from ._handler_slots import HandlerSlots
from ._job import BaseJob
from ._links import AnswerLost, AsyncLink, Link
from ._options import Options
from ._worker_report import WorkerReport
from .errors import interval

log = logging.getLogger("idemq")
T = TypeVar("T")

LONGEST_WAIT = 30.0
"""Seconds that the server sleeps in one CALL, or less if statement_timeout is shorter."""
POOLED_WAIT = 3.0
"""The same through a pooler, where a worker that stops lets the wait time out."""
END_WAIT_TIMEOUT = 2.0
"""Seconds that a worker that is stopping gives the server to end the wait."""
ERROR_PAUSE = 5.0
"""Seconds of pause after a refused claim or wait."""
SETTINGS_MAX_AGE = 60.0
LISTEN_AFTER = 0.01
"""Seconds that a job runs before the worker listens for the end of its attempt, so that short jobs cost nothing extra."""

_HEARTBEAT = "SELECT token, outcome::text FROM idemq.heartbeat_many(%s, %s, %s::interval, end_waits => '{}')"
_END_WAIT = "SELECT token, outcome::text FROM idemq.heartbeat_many('{}', '{}', NULL, end_waits => ARRAY[%s::int])"
_ENDED_THEMSELVES = f"""SELECT s.token FROM unnest(%s::bigint[], %s::bigint[]) AS s (id, token)
    WHERE EXISTS (SELECT FROM idemq.attempts a WHERE a.job_id = s.id AND a.token = s.token AND {_attempt_runner._ENDED_BY_TOKEN})
    OR EXISTS (SELECT FROM idemq.jobs j WHERE j.id = s.id AND j.token = s.token AND j.status = 'completed')"""
"""Of attempts that a heartbeat calls stale: those that have ended themselves."""
_WAIT = "CALL idemq.wait(%s, %s)"
_SETTINGS = "SELECT extract(epoch FROM job_timeout)::float8 FROM idemq.queues WHERE name = %s"


class Run(AttemptRunner):
    """One call of run(), run_outside() or drain()."""

    def __init__(
        self,
        options: Options,
        executors: Sequence[Executor],
        handler: Callable[..., Any],
        once: bool = False,
        slots: Optional[HandlerSlots] = None,
        refused: Callable[[psycopg.Error], bool] = lambda error: True,
    ) -> None:
        """refused: decides whether an error of the first claim ends the run."""
        super().__init__(options, executors, handler, not once, slots or HandlerSlots())
        self._once = once
        self._refused = refused
        self._waiter = AsyncLink(f"{options.where}, for waiting", options.wait_dsn or options.dsn)
        self._waiter.on_silent = self._silence.note
        self._report: Optional[WorkerReport] = None
        self._claim_lock = asyncio.Lock()
        self._idle = 0
        self._busy = 0
        self._claimed = False
        self._ended_one = asyncio.Event()
        self._settings_at = -SETTINGS_MAX_AGE
        self._waiter.worker = self._worker_id
        self._waits = False
        """Whether an executor is waiting for work."""
        self._listening: Optional["asyncio.Task[None]"] = None
        """The task that listens while no executor waits."""
        self._told = False
        """Whether to send heartbeats at once, because an attempt may have ended."""

    def _wake_idle_executors(self) -> None:
        if self._once and self._idle > 0:
            self.call_loop(self._ended_one.set)

    # The run, and its end.

    async def main(self) -> Counter[str]:
        """Runs until it is told to stop, or, in a drain(), until no job is ready.  Returns the number of attempts by outcome."""
        with _signals.stop_on_signals(self._loop, self.options.signals, self.stop):
            return await self._main()

    async def _main(self) -> Counter[str]:
        beats = asyncio.create_task(self._send_heartbeats())
        watch = asyncio.create_task(self._watch())
        report = self._report = WorkerReport(
            self._control,
            self.options.name or f"python {os.getpid()}",
            self.options.queue,
            self.options.concurrency * self.at_once,
            lambda: ([job.id for job in list(self._leased.values())], sum(self.counts.values())),
        )
        tasks = [beats, watch]
        if not self._once:
            tasks.append(asyncio.create_task(report.report_regularly()))
        executors = [asyncio.create_task(self._serve(executor)) for executor in self._executors]
        over: "asyncio.Future[Any]" = asyncio.create_task(self._over.wait())
        # Done when all have ended, or when one has raised an error.
        ended: "asyncio.Future[Any]" = asyncio.gather(*executors)
        try:
            # A cancellation drains without a grace period.
            await asyncio.wait({ended, over}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ended.result()
        finally:
            self._ending.set()
            if not all(executor.done() for executor in executors):
                self._end_grace()
            # If one executor raises an error, the others still end their jobs properly.
            await self._until_over(executors)
            while self._committing and all(executor.done() for executor in executors) and not self._over.is_set():
                await self._until_over(self._committing.values())
            if left := self.group_commit.untaken() if self.group_commit is not None else []:
                await self.give_back(left)
            while self._hook_tasks and not self._over.is_set():  # a hook may start another
                await self._until_over(self._hook_tasks)
            await self._end_listening()
            await report.report_stopping()
            await self._close([*executors, ended, over, *tasks])
        return self.counts

    async def _until_over(self, tasks: Iterable["asyncio.Future[Any]"]) -> None:
        """Waits until all of them are done, or the time limit of the drain has passed."""
        left = set(tasks)
        over = asyncio.ensure_future(self._over.wait())
        while left and not over.done():
            await asyncio.wait({*left, over}, return_when=asyncio.FIRST_COMPLETED)
            left = {task for task in left if not task.done()}
        over.cancel()

    async def _close(self, tasks: list["asyncio.Future[Any]"]) -> None:
        """Ends all remaining tasks and connections, even if the server does not answer."""
        if self._leased:
            log.error("%s: %d jobs wait until their leases expire, because the ends of their attempts could not be reported in time", self.options.where, len(self._leased))
        tasks += [task for task in (*self._committing.values(), *self._hook_tasks, self._opening, self._silence.task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_attempt_runner.LAST_MARGIN / 4)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()  # the first one has been raised
        self._waiter.on_silent = lambda process: None
        for link in self.links():
            link.on_silent = lambda process: None
        for executor in self._executors:
            await executor.close()
        for link in (*self.links(), self._waiter):
            await link.drop(in_use=link.in_use)

    def stop(self) -> None:
        """Starts the drain.  A second call ends the grace period."""
        if self._ending.is_set():
            self._end_grace()
            return
        self._ending.set()
        if self._busy:
            log.info("stopping: %d handlers have %g s to finish", len(self._executions), self.options.grace)
        self.end_within(self.options.grace + _attempt_runner.END_MARGIN - _attempt_runner.LAST_MARGIN)
        self._loop.call_later(self.options.grace, self._end_grace)

    def _end_grace(self) -> None:
        self.end_within(_attempt_runner.END_MARGIN - _attempt_runner.LAST_MARGIN)
        for execution in list(self._executions):
            execution.request_end("drain")

    async def _while_running(self, link: Link[Any], work: Coroutine[Any, Any, T], asks: bool = True) -> Optional[T]:
        """The result of work, or None if the drain begins first.  Then work is ended soon, or at once if no
        statement is under way."""
        task = asyncio.ensure_future(work)
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and asks and link.conn is not None:
                # Await a claim that is under way, so that its jobs are released.  A wait ends by itself.
                if link is self._waiter:
                    await self._end_wait(task)
                elif not self._over.is_set():
                    over = asyncio.ensure_future(self._over.wait())
                    await asyncio.wait({task, over}, timeout=_links.ANSWER_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
                    over.cancel()
            return await task if task.done() else None
        finally:
            ending.cancel()
            task.cancel()

    async def _end_wait(self, waiting: "asyncio.Future[Any]") -> None:
        """Asks the server to end the wait of the other session.  A cancel request would also end it, but the server would log an ERROR.

        A wait through a pooler is short and times out, because the number of its session is unknown."""
        if self._report is not None and self._waiter.process is not None:
            ends = asyncio.ensure_future(self._report.end_wait(self._waiter.process.pid, self._busy == 0 and not self._leased))
            await asyncio.wait({ends, waiting}, timeout=END_WAIT_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                await asyncio.wait({waiting}, timeout=END_WAIT_TIMEOUT)
            ends.cancel()
        else:
            await asyncio.wait({waiting}, timeout=POOLED_WAIT + 1)

    async def _pause(self, seconds: float) -> None:
        """Sleeps, or until the drain begins."""
        try:
            await asyncio.wait_for(self._ending.wait(), seconds)
        except asyncio.TimeoutError:
            pass

    # Looking for jobs.

    async def _serve(self, executor: Executor) -> None:
        while True:
            jobs = await self._next_jobs(executor)
            if not jobs:
                return
            if self._ending.is_set():
                await self.give_back(jobs)
                return
            self._busy += 1
            executor.pending.extend(self.executions(jobs, executor))
            try:
                await self._work(executor)
            finally:
                self._busy -= 1
                self._slots.release(1)
                self._ended_one.set()

    async def _work(self, executor: Executor) -> None:
        """Lets an executor run its jobs, and those that it claims meanwhile, until there are none."""
        while executor.pending:
            execution = executor.pending[0]
            if self._ending.is_set() and not execution.begun:
                await self.give_back([job for each in executor.pending for job in each.jobs])
                executor.pending.clear()
                return
            if not await self.ensure_connected(executor, execution):
                executor.pending.popleft()
                self._executions.discard(execution)
                for job in execution.jobs:
                    await self._slots.lend_while(self._settle_uncommitted(job, execution, psycopg.OperationalError("the connection was lost")))
                continue
            unsettled = await executor.start(self)
            if unsettled is not None:
                await self.settle(executor, unsettled)

    async def _next_jobs(self, executor: Executor) -> list[BaseJob]:
        """Jobs for an executor, or none if it must end."""
        self._idle += 1
        try:
            async with self._claim_lock:
                while not self._ending.is_set():
                    if self._unassigned:
                        return [self._unassigned.popleft() for _ in range(min(self.at_once, len(self._unassigned)))]
                    self._ended_one.clear()
                    if self._once and self._busy == 0 and self._committing:
                        await asyncio.wait(self._committing.values())  # committing may make the last jobs ready
                    jobs = await self._claim(executor)
                    if executor.link is not None and jobs:
                        return jobs
                    if jobs:
                        self._unassigned.extend(jobs)
                    elif jobs is not None and self._once:
                        if self._busy == 0:
                            return []
                        # The end of a job can make another one ready: one of its group, or one that it has added.
                        await self._ended_one.wait()
                    elif jobs is not None:
                        await self._sleep()
            if self._unassigned:
                await self.give_back(list(self._unassigned))
                self._unassigned.clear()
            return []
        finally:
            self._idle -= 1

    async def _claim(self, executor: Executor) -> Optional[list[BaseJob]]:
        """Ready jobs, or None if the server did not answer."""
        link = executor.link or self._control
        most = self._idle if executor.link is None else 1
        claimed: Optional[list[BaseJob]] = None
        if (pause := self._claims_paused_until - time.monotonic()) > 0:
            await self._pause(pause)
            return None
        try:
            if self._slots.shared:
                # A shard that is down does not hold a slot.
                await self._while_running(link, link.ready())
            taken = await self._while_running(link, self._slots.acquire(most), False) or 0
            try:
                if taken > 0 and not self._ending.is_set():
                    claimed = await self._while_running(link, self._ask_claim(link, executor, taken))
            finally:
                self._slots.release(taken - (len(claimed or ()) if executor.link is None else min(len(claimed or ()), 1)))
        except AnswerLost:
            await self._pause(0.1)
            return None
        except psycopg.Error as error:
            if self._once or (not self._claimed and self._refused(error)):
                raise
            log.error("%s: claim: %s", self.options.where, str(error).strip())
            await self._pause(ERROR_PAUSE)
            return None
        self._claimed = self._claimed or claimed is not None
        return claimed

    async def _ask_claim(self, link: Link[Any], executor: Executor, slots: int) -> list[BaseJob]:
        if time.monotonic() - self._settings_at >= SETTINGS_MAX_AGE:
            rows = await link.ask(_SETTINGS, (self.options.queue,))
            self._job_timeout = rows[0][0] if rows else None
            self._settings_at = time.monotonic()
        await link.ready()
        asked_at = time.monotonic()
        most = slots if executor.link is None else self.options.batch
        return self.take(await link.exchange([(_pipeline.CLAIM, self.claims(link, most))]), asked_at, link)

    async def _sleep(self) -> None:
        """Waits until the queue has work, or for a while."""
        try:
            await self._while_running(self._waiter, self._wait_for_work())
        except AnswerLost:
            await self._pause(0.1)
        except psycopg.Error as error:
            if not self._ending.is_set():
                log.error("%s: wait: %s", self.options.where, str(error).strip())
                await self._pause(ERROR_PAUSE)

    async def _wait_for_work(self) -> None:
        self._waits = True
        try:
            await self._end_listening()
            if not self._ending.is_set():
                await self._wait(self.options.queue)
        finally:
            self._waits = False
            if self._leased and not self._looks_soon:
                self._look_soon()

    async def _wait(self, queue: Optional[str]) -> None:
        """Waits until the queue has work (if a queue is given), an attempt of this process is cancelled or taken back, or the wait times out."""
        await self._waiter.ready()
        limit = self._waiter.statement_timeout
        seconds = LONGEST_WAIT if self._waiter.process is not None else POOLED_WAIT
        seconds = min(seconds, 0.8 * limit) if limit > 0 else seconds
        rows = await self._waiter.ask(_WAIT, (queue, timedelta(seconds=seconds)), seconds + _links.ANSWER_TIMEOUT)
        if not rows[0][0] and self._waiter.hears_ends and self._leased:
            self._told = True
            self._heartbeat_now.set()

    # Listening, while no executor waits.

    def _look_soon(self) -> None:
        self._looks_soon = True
        self._loop.call_later(LISTEN_AFTER, self._look_at_ages)

    def _look_at_ages(self) -> None:
        """Begins to listen as soon as a job has run for LISTEN_AFTER."""
        self._looks_soon = False
        leased = list(self._leased.values())
        if self._waits or self._listening is not None or not leased or self._over.is_set():
            return
        if self._waiter.conn is not None and not self._waiter.hears_ends:
            return  # the server does not tell this process anything: only heartbeats find the end of an attempt
        left = min(job._claimed_at for job in leased) + LISTEN_AFTER - time.monotonic()
        if left > 0:
            self._looks_soon = True
            self._loop.call_later(left, self._look_at_ages)
        else:
            self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        try:
            await self._waiter.ready()
            while self._leased and not self._waits and self._waiter.hears_ends:
                await self._wait(None)
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
        waits, self._waits = self._waits, True
        process = self._waiter.process
        if process is not None and self._waiter.conn is not None:
            ends = asyncio.ensure_future(self._control.ask(_END_WAIT, (process.pid,)))
            ends.add_done_callback(_links._retrieved)
            await asyncio.wait({ends, listening}, timeout=END_WAIT_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            await asyncio.wait({listening}, timeout=END_WAIT_TIMEOUT)
        listening.cancel()
        self._waits = waits

    # Leases.

    async def _send_heartbeats(self) -> None:
        """Sends heartbeats for all jobs as soon as one is due, and on each new connection, because a restarted server
        keeps attached leases only for a short time."""
        seen = 0
        while True:
            now = time.monotonic()
            # A thread that claims meanwhile wakes this task: either its job is seen here, or the thread sees that nothing is due yet.
            self._next_heartbeat = math.inf
            self._heartbeat_now.clear()
            self._next_heartbeat = min((job._heartbeat_at for job in list(self._leased.values())), default=now + 3600)
            if self._next_heartbeat > now and not self._told and (self._control.connections == seen or not self._leased):
                try:
                    await asyncio.wait_for(self._heartbeat_now.wait(), self._next_heartbeat - now)
                except asyncio.TimeoutError:
                    pass
                continue
            try:
                await self._control.ready()
                seen = self._control.connections
                self._told = False
                await self._send_heartbeat()
            except AnswerLost:
                await asyncio.sleep(0.1)
            except psycopg.Error as error:
                log.error("heartbeat: %s", str(error).strip())
                for job in list(self._leased.values()):
                    job._heartbeat_at = time.monotonic() + job._lease / 3

    async def _send_heartbeat(self) -> None:
        jobs = list(self._leased.values())
        if not jobs:
            return
        asked_at = time.monotonic()
        values = [job.id for job in jobs], [job.token for job in jobs], interval(self.options.lease)
        stale: list[BaseJob] = []
        for token, outcome in await self._control.ask(_HEARTBEAT, values):
            job = self._leased.get(token)
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
        if not self._transacts:
            ended = {token for (token,) in await self._control.ask(_ENDED_THEMSELVES, ([job.id for job in jobs], [job.token for job in jobs]))}
        for job in jobs:
            if job.token in ended:
                if self._leased.pop(job.token, None) is not None:
                    job._lease_until = math.inf
            elif job.token in self._leased:
                job._being_cancelled = False
                self._lose_lease(job, "lost")

    def _lose_lease(self, job: BaseJob, why: str) -> None:
        self._leased.pop(job.token, None)
        execution = job._execution
        # Its own COMMIT may be the reason, which the transaction itself finds out.
        if execution is not None and execution.commit_at is None and not execution.commit_unknown:
            # The server may already have taken the job back for this reason.
            execution.request_end("time" if self.time_is_over(execution, time.monotonic()) else why)
        if job in self._unassigned:
            self._unassigned.remove(job)
            self._slots.release(1)
            if why == "cancelled":
                self._begin_hook_task(self.give_back([job]))

    # For a shard of a cluster.

    @property
    def unreachable(self) -> bool:
        """Whether its server is known to be down."""
        return self._control.lost or self._waiter.lost or any(executor.link is not None and executor.link.lost for executor in self._executors)

    @property
    def claimed(self) -> bool:
        """Whether a claim has been answered."""
        return self._claimed

    def moved(self) -> None:
        """Called when the address has changed.  Wakes up the waiter; other connections find out by themselves."""
        if self._waiter.conn is not None:
            sever(self._waiter.conn)
