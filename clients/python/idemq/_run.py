"""A run of a worker: lanes that claim, call the handler and settle; heartbeats; the drain.

All of it is one asyncio loop, also of a worker whose handlers are functions: those run in threads, so a
handler that hangs holds up neither heartbeats nor the drain.

Connections: `control` renews leases and settles what has no transaction; `waiter` sleeps in CALL
idemq.wait; each lane with a transaction has one more, and claims with it, so that an attached lease
ends with the session that the transaction is in.  Without transactions `control` claims.  Each is
opened when it is first needed.

An attempt ends once: token and row decide.  What is asked again after a lost answer is answered as
already committed or stale.  So a transaction whose COMMIT was not answered is run again: its first
statement raises IQ006 when it was committed, IQ001 when another attempt may have the job, and
otherwise nothing of it has happened.

One lane at a time looks for jobs, and waits for them; the others queue behind it.  So a wake-up sets
one lane going, which lets the next look when it has found something.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
import traceback
from collections import Counter, deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable, Coroutine, Optional, Sequence, TypeVar

import psycopg

from . import _server
from ._job import BaseJob, End, Unit
from ._lanes import CLAIM, COMMIT, COMMIT_AND_CLAIM, Gone, Lane
from ._server import MAX_TEXT, AsyncLink, Link, Lost, Row, clean
from .errors import AlreadyCommitted, Dead, Delay, NoSuchJob, RetryLater, Snooze, StaleToken, interval

log = logging.getLogger("idemq")
T = TypeVar("T")

WAIT = timedelta(seconds=30)
"""So long the server sleeps in one CALL."""
KILL_AFTER = 5.0
"""Seconds from telling a handler to end until it is left behind."""
ERROR_PAUSE = 5.0
"""Seconds after a claim or a wait that was refused."""
PATIENCE = 60.0
"""Seconds, at least, for telling the server how an attempt has ended; LAST_WORDS in a drain."""
LAST_WORDS = 10.0
TRIES = 3
"""How often a transaction is run again at once."""
SETTINGS_AGE = 60.0

_HEARTBEAT = "SELECT token, outcome::text FROM idemq.heartbeat_many(%s, %s, %s::interval)"
_WAIT = "CALL idemq.wait(%s, %s)"
_FAIL = "SELECT idemq.fail(%s, %s, %s, %s::interval, permanent => %s, details => %s::jsonb)::text"
_RELEASE = "SELECT idemq.release(%s, %s, %s::interval)::text"
_RELEASE_MANY = "SELECT outcome::text FROM idemq.release_many(%s, %s)"
_TRY_COMMIT = "SELECT idemq.try_commit(%s, %s, %s::jsonb)::text"
# Through JSON, since an older server has no such column.
_SETTINGS = """SELECT extract(epoch FROM (pg_catalog.to_jsonb(q) ->> 'job_timeout')::interval)::float8
    FROM idemq.queues AS q WHERE name = %s"""


@dataclass(frozen=True)
class Options:
    """What a worker was made with."""

    dsn: str
    queue: str
    name: Optional[str]
    wait_dsn: Optional[str]
    concurrency: int
    batch: int
    lease: Optional[Delay]
    timeout: float
    grace: float
    attach: Optional[bool]
    signals: bool


class Run:
    """One call of run(), run_outside() or drain()."""

    def __init__(
        self, options: Options, lanes: Sequence[Lane], handler: Callable[..., Any], once: bool = False
    ) -> None:
        self.options = options
        self.counts: Counter[str] = Counter()
        self._lanes = lanes
        self._handler = handler
        self._once = once
        self._control = AsyncLink("server", options.dsn, patient=not once)
        self._waiter = AsyncLink("server, to wait", options.wait_dsn or options.dsn)
        self._held: dict[int, BaseJob] = {}  # by token, of which no two attempts have the same
        self._units: set[Unit] = set()
        self._spare: deque[BaseJob] = deque()
        self._looking = asyncio.Lock()
        self._idle = 0
        self._busy = 0
        self._claimed = False
        self._ending = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._next_beat = 0.0
        self._ended_one = asyncio.Event()
        self._to_commit: list[tuple[BaseJob, Any, "asyncio.Future[list[BaseJob]]"]] = []
        self._committing: Optional[asyncio.Task[None]] = None
        self._job_timeout: Optional[float] = None
        self._settings_at = -SETTINGS_AGE
        self._loop = asyncio.get_running_loop()

    # The run, and its end.

    async def main(self) -> Counter[str]:
        """Runs until it is told to end, or once there is nothing to do; answers how attempts ended."""
        beats = asyncio.create_task(self._beats())
        lanes = [asyncio.create_task(self._serve(lane)) for lane in self._lanes]
        signals = self._catch_signals()
        try:
            # A cancellation drains, without grace.
            await asyncio.shield(asyncio.gather(*lanes))
        finally:
            self._ending.set()
            self._end_grace()
            # An error of one lane does not leave the others in the middle of a job.
            await asyncio.wait(lanes, timeout=2 * KILL_AFTER + LAST_WORDS)
            for task in (*lanes, beats):
                task.cancel()
            await asyncio.gather(*lanes, beats, return_exceptions=True)
            for number in signals:
                self._loop.remove_signal_handler(number)
            for lane in self._lanes:
                await lane.close()
            await self._control.drop()
            await self._waiter.drop()
        return self.counts

    def _catch_signals(self) -> list[signal.Signals]:
        if not self.options.signals or threading.current_thread() is not threading.main_thread():
            return []
        numbers = [signal.SIGTERM, signal.SIGINT]
        for number in numbers:
            self._loop.add_signal_handler(number, self.stop)
        return numbers

    def stop(self) -> None:
        """Begins the drain; called again, ends its grace."""
        if self._ending.is_set():
            self._end_grace()
            return
        self._ending.set()
        if self._busy:
            log.info("ending: %d handlers have %g s", len(self._units), self.options.grace)
        self._loop.call_later(self.options.grace, self._end_grace)

    def _end_grace(self) -> None:
        for unit in list(self._units):
            unit.end("drain")

    async def _while_running(self, link: Link[Any], work: Coroutine[Any, Any, T]) -> Optional[T]:
        """What work answers; None when the drain begins first, and it is soon ended."""
        task = asyncio.ensure_future(work)
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and link.conn is not None:
                # A claim that is on its way is heard, and given back; a wait ends now.
                if link is self._waiter:
                    await _server.interrupt(link.conn)
                await asyncio.wait({task}, timeout=_server.ANSWER)
            return await task if task.done() else None
        finally:
            ending.cancel()
            task.cancel()

    async def _pause(self, seconds: float) -> None:
        """Sleeps, but not in a drain."""
        try:
            await asyncio.wait_for(self._ending.wait(), seconds)
        except asyncio.TimeoutError:
            pass

    # Looking for jobs.

    async def _serve(self, lane: Lane) -> None:
        jobs: list[BaseJob] = []
        while True:
            jobs = jobs or await self._next(lane)
            if not jobs:
                return
            if self._ending.is_set():
                await self._give_back(jobs)
                return
            self._busy += 1
            try:
                jobs = await self._attempt(lane, jobs)
            finally:
                self._busy -= 1
                self._ended_one.set()

    async def _next(self, lane: Lane) -> list[BaseJob]:
        """Jobs for a lane; none when it is to end."""
        self._idle += 1
        try:
            async with self._looking:
                while not self._ending.is_set():
                    if self._spare:
                        return [self._spare.popleft()]
                    self._ended_one.clear()
                    jobs = await self._claim(lane)
                    if lane.link is not None and jobs:
                        return jobs
                    if jobs:
                        self._spare.extend(jobs)
                    elif jobs is not None and self._once:
                        if self._busy == 0:
                            return []
                        # The end of one may let another begin: of its group, or one that it has added.
                        await self._ended_one.wait()
                    elif jobs is not None:
                        await self._sleep()
            if self._spare:
                await self._give_back(list(self._spare))
                self._spare.clear()
            return []
        finally:
            self._idle -= 1

    async def _claim(self, lane: Lane) -> Optional[list[BaseJob]]:
        """Ready jobs; None: it could not be asked."""
        link = lane.link or self._control
        try:
            claimed = await self._while_running(link, self._ask_claim(link, lane))
        except Lost:
            return None
        except psycopg.Error as error:
            if not self._claimed or self._once:
                raise
            log.error("claim: %s", str(error).strip())
            await self._pause(ERROR_PAUSE)
            return None
        self._claimed = True
        return claimed

    async def _ask_claim(self, link: Link[Any], lane: Lane) -> list[BaseJob]:
        if time.monotonic() - self._settings_at >= SETTINGS_AGE:
            rows = await link.ask(_SETTINGS, (self.options.queue,))
            self._job_timeout = rows[0][0] if rows else None
            self._settings_at = time.monotonic()
        await link.ready()
        asked_at = time.monotonic()
        most = self._idle if lane.link is None else self.options.batch
        rows = await link.ask(CLAIM, (self.options.queue, *self._how_to_claim(link, most)))
        return self._take(rows, asked_at)

    def _how_to_claim(self, link: Link[Any], most: int) -> tuple[Any, ...]:
        options = self.options
        attach = options.attach
        if attach is None:
            # Without a transaction a lost connection would let another attempt begin beside the handler.
            attach = link is not self._control and options.wait_dsn is None
        return most, interval(options.lease), options.name, attach and link.ours

    def _take(self, rows: Sequence[Row], asked_at: float) -> list[BaseJob]:
        """Claimed jobs: from now on their leases are kept."""
        jobs: list[BaseJob] = []
        for row in rows:
            job: BaseJob = self._lanes[0].job_class(self.options.queue, row, asked_at)
            self._held[job.token] = job
            if job._beat_at < self._next_beat:
                self._beat_now.set()
            jobs.append(job)
        return jobs

    async def _sleep(self) -> None:
        """Until the queue has work, or a while."""
        wait = self._waiter.ask(_WAIT, (self.options.queue, WAIT), WAIT.total_seconds() + _server.ANSWER)
        try:
            await self._while_running(self._waiter, wait)
        except Lost:
            pass
        except psycopg.Error as error:
            if not self._ending.is_set():
                log.error("wait: %s", str(error).strip())
                await self._pause(ERROR_PAUSE)

    # Leases.

    async def _beats(self) -> None:
        """Heartbeats for all as soon as one is due, and by each new connection: a server that was
        started again gives attached leases a grace only."""
        seen = 0
        while True:
            now = time.monotonic()
            self._next_beat = min((job._beat_at for job in self._held.values()), default=now + 3600)
            if self._next_beat > now and (self._control.connections == seen or not self._held):
                self._beat_now.clear()
                try:
                    await asyncio.wait_for(self._beat_now.wait(), self._next_beat - now)
                except asyncio.TimeoutError:
                    pass
                continue
            try:
                await self._control.ready()
                seen = self._control.connections
                await self._beat()
            except Lost:
                await asyncio.sleep(0.1)
            except psycopg.Error as error:
                log.error("heartbeat: %s", str(error).strip())
                for job in self._held.values():
                    job._beat_at = time.monotonic() + job._lease / 3

    async def _beat(self) -> None:
        jobs = list(self._held.values())
        if not jobs:
            return
        asked_at = time.monotonic()
        values = [job.id for job in jobs], [job.token for job in jobs], interval(self.options.lease)
        for token, outcome in await self._control.ask(_HEARTBEAT, values):
            job = self._held.get(token)
            if job is None:
                continue  # it has ended meanwhile
            if outcome == "current":
                job._heard(asked_at)
            else:
                self._lose(job)

    def _lose(self, job: BaseJob) -> None:
        del self._held[job.token]
        if job._unit is not None:
            job._unit.end("lost")
        if job in self._spare:
            self._spare.remove(job)

    # An attempt.

    async def _attempt(self, lane: Lane, jobs: list[BaseJob]) -> list[BaseJob]:
        """Runs claimed jobs to their end; answers those that were claimed with it."""
        if lane.link is None:
            return await self._outside(lane, jobs[0])
        # One that has failed or killed a worker before is not to do it to others.
        fresh = [job for job in jobs if job.attempt == 1]
        return await self._each(lane, [*([job] for job in jobs if job.attempt > 1), *([fresh] if fresh else [])], True)

    async def _each(
        self, lane: Lane, groups: list[list[BaseJob]], claim: bool, commit_unknown: bool = False
    ) -> list[BaseJob]:
        claimed: list[BaseJob] = []
        for n, jobs in enumerate(groups):
            if self._ending.is_set() and n > 0:
                await self._give_back(jobs)
            else:
                claimed = await self._transaction(lane, jobs, claim and n == len(groups) - 1, commit_unknown)
        return claimed

    async def _transaction(
        self, lane: Lane, jobs: list[BaseJob], claim: bool, commit_unknown: bool
    ) -> list[BaseJob]:
        """A transaction of the handler, again as often as it makes sense."""
        link = lane.link
        assert link is not None
        unit = self._unit(jobs)
        unit.commit_unknown = commit_unknown
        try:
            tries = 0
            while True:
                unit.commit_at = None
                end = await self._watch(lane, unit, claim)
                if end.error is None:
                    for job in jobs:
                        self._ended(job, "committed")
                    assert unit.commit_at is not None
                    return self._take([row[1:] for row in end.value if row[0] == "claimed"], unit.commit_at)
                conn = link.conn
                lost = conn is None or _server.is_lost(conn, end.error)
                if lost or unit.why is not None:
                    unit.commit_unknown |= lost and unit.commit_at is not None
                    await link.drop(end.error if lost and unit.why is None else None)
                tries += 1
                if unit.why is not None or tries > TRIES or not (lost or _again(end.error)):
                    break
        finally:
            self._units.discard(unit)
        if len(jobs) > 1 and unit.why != "drain":
            log.info("%s: a transaction of %d jobs is run one by one: %s", self.options.queue, len(jobs), end.error)
            return await self._each(lane, [[job] for job in unit.jobs], claim, unit.commit_unknown)
        for job in jobs:
            await self._after(job, unit, end.error)
        return []

    async def _outside(self, lane: Lane, job: BaseJob) -> list[BaseJob]:
        """A handler without a transaction; what it has done stands, whatever became of it."""
        unit = self._unit([job])
        job._run = self
        try:
            end = await self._watch(lane, unit, False)
        finally:
            self._units.discard(unit)
        if end.error is None:
            return await self._commit(job, end.value)
        await self._after(job, unit, end.error)
        return []

    def _unit(self, jobs: list[BaseJob]) -> Unit:
        unit = Unit(jobs, self.options.timeout if self._job_timeout is None else self._job_timeout)
        self._units.add(unit)
        return unit

    def _then(self, link: Link[Any], claim: bool) -> tuple[str, tuple[Any, ...]]:
        """The end of a transaction."""
        if not claim or self._ending.is_set():
            return COMMIT, ()
        return COMMIT_AND_CLAIM, (self.options.queue, *self._how_to_claim(link, self.options.batch))

    async def _watch(self, lane: Lane, unit: Unit, claim: bool) -> End:
        """Calls the handler, and ends it when the lease is lost or the time is over."""
        body = lane.begin(self._handler, unit, lambda link: self._then(link, claim))
        stop = asyncio.ensure_future(unit.stop.wait())
        try:
            while not body.done() and not unit.stop.is_set():
                # In a transaction the job's row is locked: it may take longer than the lease.
                until = unit.ends_at if lane.link is not None else min(unit.ends_at, unit.lease_until)
                left = until - time.monotonic()
                if left <= 0:
                    unit.end("time" if until == unit.ends_at else "cut off")
                else:
                    await asyncio.wait({body, stop}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        if body.done():
            return body.result()
        await lane.interrupt(body)
        await asyncio.wait({body}, timeout=KILL_AFTER)
        if not body.done() and lane.link is not None and lane.link.conn is not None:
            _server.sever(lane.link.conn)
            await asyncio.wait({body}, timeout=1)
        if body.done():
            return body.result()
        log.error("%s %d: the handler does not end, and is left behind", self.options.queue, unit.jobs[0].id)
        await lane.leave()
        return End(error=TimeoutError("the handler does not end"))

    # The end of an attempt.

    async def _after(self, job: BaseJob, unit: Unit, error: BaseException) -> None:
        """Tells the server of an attempt that has not committed."""
        cause = error.__cause__ if isinstance(error, Gone) else None
        if isinstance(cause, AlreadyCommitted) or (isinstance(cause, NoSuchJob) and unit.commit_unknown):
            self._ended(job, "committed")
        elif cause is not None or unit.why == "lost":
            log.warning("%s %d: the lease is lost; what the handler did is rolled back, or another attempt's",
                        self.options.queue, job.id)
            self._ended(job, "stale")
        elif unit.why == "time":
            text = f"ended after {unit.seconds:g} s (job_timeout)"
            await self._fail(job, text, {"timeout": unit.seconds}, None, False)
        elif unit.why is not None:
            await self._release(job, None)
        elif isinstance(error, Snooze):
            await self._release(job, error.delay)
        elif isinstance(error, RetryLater):
            await self._fail(job, str(error), None, error.delay, False)
        elif isinstance(error, Dead):
            await self._fail(job, str(error), None, None, True)
        else:
            await self._fail(job, _text(error), _details(error), None, False)

    async def _fail(
        self, job: BaseJob, text: str, details: Optional[dict[str, Any]], delay: Optional[Delay], permanent: bool
    ) -> None:
        def statement(level: int) -> tuple[str, tuple[Any, ...]]:
            # The server's encoding may lack a character; it may take no such length.
            said = clean(text) if level == 0 else clean(text).encode("ascii", "backslashreplace").decode()[:1000]
            more = _server.document(details) if level == 0 else None
            return _FAIL, (job.id, job.token, said, interval(delay), permanent, more)

        outcome = await self._tell_end(job, statement)
        log.warning("%s %d: attempt %d of %d: %s: %s", self.options.queue, job.id, job.attempt, job.max_attempts,
                    outcome, text)

    async def _release(self, job: BaseJob, delay: Optional[Delay]) -> None:
        await self._tell_end(job, lambda _: (_RELEASE, (job.id, job.token, interval(delay))))

    async def _give_back(self, jobs: Sequence[BaseJob]) -> None:
        """Jobs that were not begun."""
        values = [job.id for job in jobs], [job.token for job in jobs]
        try:
            await asyncio.wait_for(self._control.ask(_RELEASE_MANY, values), LAST_WORDS)
        except (Lost, psycopg.Error, asyncio.TimeoutError) as error:
            log.error("%s: %d jobs are left to their leases: %s", self.options.queue, len(jobs), error)
        for job in jobs:
            self._held.pop(job.token, None)

    async def _tell_end(self, job: BaseJob, statement: Callable[[int], tuple[str, Sequence[Any]]]) -> str:
        """Asks until the server has answered; with less to say, when it does not take what was said."""
        give_up = time.monotonic() + (LAST_WORDS if self._ending.is_set() else PATIENCE)
        pause = 1.0
        level = 0
        outcome = "left to its lease"
        while True:
            try:
                left = max(give_up - time.monotonic(), 0.01)
                outcome = (await asyncio.wait_for(self._control.ask(*statement(level)), left))[0][0]
                break
            except Lost:
                continue  # done or not: the same question is answered
            except asyncio.TimeoutError:
                log.error("%s %d: the server could not be told how the attempt has ended; the job is left to its"
                          " lease", self.options.queue, job.id)
                break
            except (psycopg.Error, TypeError, ValueError) as error:
                if level == 0 and _refused(error):
                    log.error("%s %d: %s", self.options.queue, job.id, str(error).strip())
                    level = 1
                    continue
                log.error("%s %d: %s; trying again", self.options.queue, job.id, str(error).strip())
                await asyncio.sleep(min(pause, max(give_up - time.monotonic(), 0)))
                pause *= 2
        self._ended(job, outcome)
        return outcome

    def _ended(self, job: BaseJob, outcome: str) -> None:
        self._held.pop(job.token, None)
        self.counts["committed" if outcome == "already_committed" else outcome] += 1
        if outcome == "committed":
            log.debug("%s %d: committed", self.options.queue, job.id)

    async def _commit(self, job: BaseJob, result: Any) -> list[BaseJob]:
        """Commits; handlers that end while a statement is on its way share the next one, and its claim."""
        answer: "asyncio.Future[list[BaseJob]]" = self._loop.create_future()
        self._to_commit.append((job, result, answer))
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_all())
        return await answer

    async def _commit_all(self) -> None:
        try:
            while self._to_commit:
                batch, self._to_commit = self._to_commit, []
                claimed = await self._commit_batch([(job, result) for job, result, _ in batch])
                for _, _, answer in batch:
                    if not answer.done():
                        answer.set_result([claimed.pop()] if claimed else [])
                self._spare.extend(claimed)
        finally:
            self._committing = None

    async def _commit_batch(self, ends: list[tuple[BaseJob, Any]]) -> list[BaseJob]:
        jobs = [job for job, _ in ends]
        sql, values = COMMIT, ()
        asked_at = time.monotonic()
        try:
            if not self._ending.is_set():
                sql = COMMIT_AND_CLAIM
                values = (self.options.queue, *self._how_to_claim(self._control, len(jobs)))  # type: ignore[assignment]
            results = [_server.document(result) for _, result in ends]
            pairs = [job.id for job in jobs], [job.token for job in jobs]
            rows = await asyncio.wait_for(self._control.ask(sql, (*pairs, results, *values)), _server.ANSWER)
        except (Lost, psycopg.Error, TypeError, ValueError, asyncio.TimeoutError):
            # Each by itself, until it is answered; one whose result is refused, without it.
            for job, result in ends:
                await self._commit_one(job, result)
            return []
        outcomes = {row[2]: row[0] for row in rows if row[0] != "claimed"}
        for job in jobs:
            self._say_committed(job, outcomes.get(job.token, "not_found"))
        return self._take([row[1:] for row in rows if row[0] == "claimed"], asked_at)

    async def _commit_one(self, job: BaseJob, result: Any) -> None:
        def statement(level: int) -> tuple[str, tuple[Any, ...]]:
            return _TRY_COMMIT, (job.id, job.token, _server.document(result) if level == 0 else None)

        outcome = await self._tell_end(job, statement)
        if outcome == "stale":
            self._say_committed(job, outcome)

    def _say_committed(self, job: BaseJob, outcome: str) -> None:
        if job.token in self._held:
            self._ended(job, outcome)
        if outcome in ("stale", "not_found"):
            log.warning("%s %d: the handler has ended well, but the lease was lost: not committed (%s)",
                        self.options.queue, job.id, outcome)

    # What a handler without a transaction asks for.

    async def tell(self, job: BaseJob, sql: str, values: Sequence[Any], anyway: bool = False) -> list[Row]:
        """The rows of a statement about a job, asked again when its answer is lost.

        Until the attempt is ended; anyway: for a while longer, since what is told is true all the same.
        """
        unit = job._unit
        assert unit is not None
        while True:
            task = asyncio.ensure_future(self._control.ask(sql, values))
            stop = asyncio.ensure_future(unit.stop.wait())
            try:
                await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
                if not task.done():
                    await asyncio.wait({task}, timeout=LAST_WORDS if anyway else 1)
                if not task.done():
                    raise StaleToken(f"the attempt was ended ({unit.why}), and the server does not answer")
                return await task
            except Lost:
                if unit.stop.is_set() and not anyway:
                    raise StaleToken(f"the attempt was ended ({unit.why}), and the server does not answer") from None
            except (StaleToken, NoSuchJob, AlreadyCommitted):
                unit.end("lost")
                raise
            finally:
                stop.cancel()
                task.cancel()

    def from_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """The same for a handler that is a function."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _again(error: Optional[BaseException]) -> bool:
    return getattr(error, "sqlstate", None) in ("40001", "40P01")


def _refused(error: BaseException) -> bool:
    """Whether it is about a value that was given."""
    state = getattr(error, "sqlstate", None)
    return state[:2] in ("22", "54") if state else isinstance(error, (psycopg.DataError, TypeError, ValueError))


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": \n")


def _details(error: BaseException) -> dict[str, Any]:
    """For programs that read idemq.attempts."""
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    details = {"type": type(error).__name__, "trace": clean(lines[-MAX_TEXT:])}
    state = getattr(error, "sqlstate", None)
    return {**details, "sqlstate": state} if state else details
