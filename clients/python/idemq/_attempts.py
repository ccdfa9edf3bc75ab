"""An attempt: its time, its end, and what the server is told of it.

An attempt ends once: token and row decide.  What is asked again after a lost answer is answered as
already committed or stale.  So a transaction whose COMMIT was not answered is run again: its first
statement raises IQ006 when it was committed, IQ001 when another attempt may have the job, and
otherwise nothing of it has happened.

A lease is counted from before the question that began or renewed it, so it never ends later here than
in the server.  A handler without a transaction is ended when its lease has ended here, even if the
server cannot be asked; one with a transaction goes on: the row's lock keeps its job.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Callable, Coroutine, Optional, Sequence, TypeVar, Union

import psycopg

from . import _server
from ._job import AWAIT, BaseJob, End, Unit
from ._lanes import COMMIT, COMMIT_AND_CLAIM, Gone, Lane
from ._places import Places
from ._server import Address, AsyncLink, Link, Lost, Row, clean
from .errors import (
    MAX_TEXT,
    AlreadyCommitted,
    Dead,
    Delay,
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
T = TypeVar("T")

KILL_AFTER = 5.0
"""Seconds from telling a handler to end until it is left behind."""
AGAIN = 0.5
"""Seconds from one cancel of a statement to the next."""
PATIENCE = 60.0
"""Seconds for telling the server how an attempt has ended; LAST_WORDS in a drain."""
LAST_WORDS = 10.0
TRIES = 3
"""How often a transaction is run again at once."""

_FAIL = "SELECT idemq.fail(%s, %s, %s, %s::interval, permanent => %s, details => %s::jsonb)::text"
_RELEASE = "SELECT idemq.release(%s, %s, %s::interval)::text"
_RELEASE_MANY = "SELECT outcome::text FROM idemq.release_many(%s, %s)"
_TRY_COMMIT = "SELECT idemq.try_commit(%s, %s, %s::jsonb)::text"


_ENDED = {
    "lost": "the lease of one is lost",
    "cut off": "a lease is over, and the server does not answer",
    "time": "job_timeout is over",
}


def _reason(unit: Unit, error: BaseException) -> str:
    """Why a transaction of several has not committed: an error that ended it from outside says nothing."""
    if unit.why in _ENDED:
        return _ENDED[unit.why]
    return text_of(error.__cause__ if isinstance(error, Gone) else error)


@dataclass(frozen=True)
class Options:
    """What a worker was made with."""

    dsn: Union[str, Address]
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
    where: str = "server"
    """What its server is called in the log."""


class Attempts:
    """Claimed jobs, from their claim to their end."""

    def __init__(
        self, options: Options, lanes: Sequence[Lane], handler: Callable[..., Any], patient: bool, places: Places
    ) -> None:
        self.options = options
        self._places = places
        self.counts: Counter[str] = Counter()
        self._lanes = lanes
        self._handler = handler
        self._control = AsyncLink(options.where, options.dsn, patient)
        self._held: dict[int, BaseJob] = {}  # by token, of which no two attempts have the same
        self._units: set[Unit] = set()
        self._spare: deque[BaseJob] = deque()
        self._ending = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._next_beat = 0.0
        self._to_commit: list[tuple[BaseJob, Any, "asyncio.Future[list[BaseJob]]"]] = []
        self._committing: Optional[asyncio.Task[None]] = None
        self._job_timeout: Optional[float] = None
        self._late: list[BaseJob] = []
        """Jobs whose handlers have ended well, and after their leases: of one turn of the loop."""
        self._held_up = 0
        """How often in a row there were such jobs; nothing is claimed before _claims_at."""
        self._claims_at = 0.0
        self._loop = asyncio.get_running_loop()

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
                await self.give_back(jobs)
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
                moved = not lost and await link.address.elsewhere(end.error, link.version)
                lost = lost or moved
                unit.commit_unknown |= lost and unit.commit_at is not None
                if lost and not end.hangs:
                    await link.drop(end.error if unit.why is None else None)
                tries += not moved
                if unit.why is not None or tries > TRIES or not (lost or _again(end.error)):
                    break
                if lost and self._places.shared:
                    await self._places.lent(self._reconnected(link, unit))
        finally:
            self._units.discard(unit)
        if len(jobs) > 1 and unit.why != "drain":
            log.info("%s: a transaction of %d jobs is run one by one: %s", self.options.queue, len(jobs), _reason(unit, end.error))
            await lane.go_on(end)
            return await self._each(lane, [[job] for job in unit.jobs], claim, unit.commit_unknown)
        for job in jobs:
            await self._places.lent(self._after(job, unit, end.error))
        # Not before: with the session attached leases end, and the attempt counts.
        await lane.go_on(end)
        return []

    async def _reconnected(self, link: Link[Any], unit: Unit) -> None:
        """Until the link is there again, or the attempt is to end."""
        task = asyncio.ensure_future(link.ready())
        either: set["asyncio.Future[Any]"] = {task, unit.stop}
        left = max(unit.ends_at - time.monotonic(), 0)
        await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _outside(self, lane: Lane, job: BaseJob) -> list[BaseJob]:
        """A handler without a transaction; what it has done stands, whatever became of it."""
        unit = self._unit([job])
        job._run = self
        try:
            end = await self._watch(lane, unit, False)
        finally:
            self._units.discard(unit)
        if job.waiting is not None:
            self._ended(job, "waiting")  # whatever the handler did then
            await lane.go_on(end)
            return []
        if end.error is None:
            if time.monotonic() > unit.lease_until:
                self._hold_up(job)
            return await self._places.lent(self._commit(job, end.value))
        await self._places.lent(self._after(job, unit, end.error))
        await lane.go_on(end)
        return []

    def _unit(self, jobs: list[BaseJob]) -> Unit:
        unit = Unit(jobs, self.options.timeout if self._job_timeout is None else self._job_timeout)
        self._units.add(unit)
        return unit

    def _hold_up(self, job: BaseJob) -> None:
        """A lease was over before its handler had ended, and nobody could renew it: the loop was blocked.
        The jobs are given out again, here perhaps, for ever: so nothing is claimed for a while."""
        if not self._late:
            self._claims_at = time.monotonic() + min(2.0**self._held_up, 60)
            self._held_up += 1
            self._loop.call_soon(self._say_held_up)
        self._late.append(job)

    def _say_held_up(self) -> None:
        late, self._late = self._late, []
        names = ", ".join(str(job.id) for job in late[:3])
        log.error(
            "%s: %d handlers ended after their leases, which nobody could renew: the event loop was blocked for longer"
            " than a lease. Jobs %s%s. Call what blocks by asyncio.to_thread, or give the queue a longer lease; claims"
            " pause for %g s", self.options.queue, len(late), names, " and more" if len(late) > 3 else "",
            max(self._claims_at - time.monotonic(), 0),
        )  # fmt: skip

    def _may_claim(self) -> bool:
        """Whether a commit may claim the next job."""
        return not self._ending.is_set() and not self._places.wanted() and time.monotonic() >= self._claims_at

    def _then(self, link: Link[Any], claim: bool) -> tuple[str, tuple[Any, ...]]:
        """The end of a transaction."""
        if not claim or not self._may_claim():
            return COMMIT, ()
        return COMMIT_AND_CLAIM, (self.options.queue, *self._how_to_claim(link, self.options.batch))

    async def _watch(self, lane: Lane, unit: Unit, claim: bool) -> End:
        """Calls the handler, and ends it when the lease is lost or the time is over."""
        body = lane.begin(self._handler, unit, lambda link: self._then(link, claim))
        either: set["asyncio.Future[Any]"] = {body, unit.stop}
        while not body.done() and not unit.stop.done():
            # In a transaction the job's row is locked: it may take longer than the lease.
            until = unit.ends_at if lane.link is not None else min(unit.ends_at, unit.lease_until)
            left = until - time.monotonic()
            if left <= 0:
                unit.end("time" if until == unit.ends_at else "cut off")
            else:
                await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if body.done():
            return body.result()
        await lane.interrupt(body)
        give_up = time.monotonic() + KILL_AFTER
        while (left := give_up - time.monotonic()) > 0:
            await asyncio.wait({body}, timeout=min(left, AGAIN))
            if body.done():
                return body.result()
            # What comes between two statements of the handler cancels neither.
            await lane.interrupt_again()
        log.error("%s %d: the handler does not end, and is left behind", self.options.queue, unit.jobs[0].id)
        await lane.freeze()
        return End(error=TimeoutError("the handler does not end"), hangs=True)

    # The end of an attempt.

    async def _after(self, job: BaseJob, unit: Unit, error: BaseException) -> None:
        """Tells the server of an attempt that has not committed."""
        cause = error.__cause__ if isinstance(error, Gone) else None
        waiting = error if job.waiting is None else job.waiting  # whatever the handler did then
        if isinstance(cause, AlreadyCommitted) or (isinstance(cause, NoSuchJob) and unit.commit_unknown):
            self._ended(job, "committed")
        elif cause is not None or unit.why == "lost":
            log.warning("%s %d: the lease is lost; what the handler did is rolled back, or another attempt's",
                        self.options.queue, job.id)
            self._ended(job, "stale")
        elif not await self._keep(job):
            pass
        elif unit.why == "time":
            await self._settle(job, f"ended after {unit.seconds:g} s (job_timeout)", {"timeout": unit.seconds})
        elif unit.why is not None:
            await self._release(job)
        elif isinstance(waiting, Waiting):
            await self._wait(job, waiting)
        else:
            text = said(error) if isinstance(error, (RetryLater, Dead)) else text_of(error)
            await self._settle(job, text, error=error)

    async def _settle(
        self, job: BaseJob, text: str, details: Optional[dict[str, Any]] = None, error: Optional[BaseException] = None
    ) -> None:
        """Fails or, after a Snooze, releases.  What an error has to say is asked for where a refusal of it
        is met: its class is anybody's."""

        def statement(level: int) -> tuple[str, tuple[Any, ...]]:
            delay = interval(error.delay) if isinstance(error, (RetryLater, Snooze)) and level < 2 else None
            if isinstance(error, Snooze) and level < 2:
                return _RELEASE, (job.id, job.token, delay)
            # The server's encoding may lack a character; it may take no such length.
            told = clean(text) if level == 0 else clean(text).encode("ascii", "backslashreplace").decode()[:1000]
            if level == 2 and isinstance(error, (RetryLater, Snooze)):
                told += " (its delay is no interval)"
            more = (details if error is None else _details(error)) if level == 0 else None
            return _FAIL, (job.id, job.token, told, delay, isinstance(error, Dead), _server.document(more))

        outcome = await self._tell_end(job, statement)
        self._ended(job, outcome)
        if outcome != "released":
            log.warning("%s %d: attempt %d of %d: %s: %s", self.options.queue, job.id, job.attempt, job.max_attempts,
                        outcome, text)

    async def _release(self, job: BaseJob) -> None:
        self._ended(job, await self._tell_end(job, lambda _: (_RELEASE, (job.id, job.token, None))))

    async def _wait(self, job: BaseJob, waiting: Waiting) -> None:
        """Notes the wait, which was undone with the handler's transaction.  What has come meanwhile the
        next attempt hears."""
        outcome = await self._ask_event(job, waiting)
        if outcome in ("arrived", "timed_out"):
            await self._release(job)
        else:
            self._ended(job, outcome)

    async def _keep(self, job: BaseJob) -> bool:
        """Notes the events that the handler has heard, which was undone too: by the next attempt they may
        be forgotten.  False: the attempt is over by that."""
        for event in job._arrived:
            outcome = await self._ask_event(job, event)
            if outcome != "arrived":
                self._ended(job, outcome)
                return False
        return True

    async def _ask_event(self, job: BaseJob, event: Waiting) -> str:
        def statement(level: int) -> tuple[str, tuple[Any, ...]]:
            if level > 0:
                # Given back it would be here again at once, for ever.
                return _FAIL, (job.id, job.token, "its wait for an event was refused", None, False, None)
            return AWAIT, (job.id, job.token, event.name, interval(event.timeout))

        return await self._tell_end(job, statement)

    async def give_back(self, jobs: Sequence[BaseJob]) -> None:
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
            except (StaleToken, NoSuchJob, AlreadyCommitted):
                outcome = "stale"
                break
            except asyncio.TimeoutError:
                log.error("%s %d: the server could not be told how the attempt has ended; the job is left to its"
                          " lease", self.options.queue, job.id)
                break
            except Exception as error:
                if level < 2 and _refused(error):
                    log.error("%s %d: %s", self.options.queue, job.id, said(error).strip())
                    level += 1
                    continue
                log.error("%s %d: %s; trying again", self.options.queue, job.id, said(error).strip())
                await asyncio.sleep(min(pause, max(give_up - time.monotonic(), 0)))
                pause *= 2
        return outcome

    def _ended(self, job: BaseJob, outcome: str) -> None:
        self._held.pop(job.token, None)
        self.counts["committed" if outcome == "already_committed" else outcome] += 1
        if outcome == "committed":
            self._held_up = 0
            log.debug("%s %d: committed", self.options.queue, job.id)

    async def _commit(self, job: BaseJob, result: Any) -> list[BaseJob]:
        """Commits; handlers that end while a statement is on its way share the next one, and its claim."""
        answer: "asyncio.Future[list[BaseJob]]" = self._loop.create_future()
        self._to_commit.append((job, result, answer))
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_all())
        return await answer

    async def _commit_all(self) -> None:
        while self._to_commit:
            # What ends in this turn of the loop goes along.
            await asyncio.sleep(0)
            batch, self._to_commit = self._to_commit, []
            try:
                claimed = await self._commit_batch([(job, result) for job, result, _ in batch])
            except BaseException as error:
                for _, _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for _, _, answer in batch:
                if not answer.done():
                    answer.set_result([claimed.pop()] if claimed else [])
            self._spare.extend(claimed)
        self._committing = None

    async def _commit_batch(self, ends: list[tuple[BaseJob, Any]]) -> list[BaseJob]:
        jobs = [job for job, _ in ends]
        sql, values = COMMIT, ()
        asked_at = time.monotonic()
        try:
            if self._may_claim():
                sql = COMMIT_AND_CLAIM
                values = (self.options.queue, *self._how_to_claim(self._control, len(jobs)))  # type: ignore[assignment]
            results = [_server.document(result) for _, result in ends]
            pairs = [job.id for job in jobs], [job.token for job in jobs]
            rows = await asyncio.wait_for(self._control.ask(sql, (*pairs, results, *values)), _server.ANSWER)
        except (Lost, psycopg.Error, TypeError, ValueError, asyncio.TimeoutError) as error:
            # Each by itself, until it is answered; one whose result is refused, without it.
            for job, result in ends:
                await self._commit_one(job, result, not isinstance(error, psycopg.Error))
            return []
        outcomes = {row[2]: row[0] for row in rows if row[0] != "claimed"}
        for job in jobs:
            self._say_committed(job, outcomes.get(job.token, "not_found"))
        return self._take([row[1:] for row in rows if row[0] == "claimed"], asked_at)

    async def _commit_one(self, job: BaseJob, result: Any, asked: bool) -> None:
        def statement(level: int) -> tuple[str, tuple[Any, ...]]:
            return _TRY_COMMIT, (job.id, job.token, _server.document(result) if level == 0 else None)

        self._say_committed(job, await self._tell_end(job, statement), asked)

    def _say_committed(self, job: BaseJob, outcome: str, asked: bool = False) -> None:
        # Deleted by the commit whose answer was lost, in a queue that keeps no jobs.
        self._ended(job, "committed" if outcome == "not_found" and asked else outcome)
        if outcome == "stale" or (outcome == "not_found" and not asked):
            log.warning(
                "%s %d: the handler has ended well, but the lease was lost: not committed (%s)",
                self.options.queue, job.id, outcome,
            )

    # What a handler without a transaction asks for.

    async def tell(self, job: BaseJob, sql: str, values: Sequence[Any], anyway: bool = False) -> list[Row]:
        """The rows of a statement about a job, asked again when its answer is lost.

        Until the attempt is ended; anyway: for a while longer, since what is told is true all the same.
        """
        unit = job._unit
        assert unit is not None
        while True:
            task = asyncio.ensure_future(self._control.ask(sql, values))
            either: set["asyncio.Future[Any]"] = {task, unit.stop}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not task.done():
                    await asyncio.wait({task}, timeout=LAST_WORDS if anyway else 1)
                if not task.done():
                    raise StaleToken(f"the attempt was ended ({unit.why}), and the server does not answer")
                return await task
            except Lost:
                if unit.stop.done() and not anyway:
                    raise StaleToken(f"the attempt was ended ({unit.why}), and the server does not answer") from None
            except (StaleToken, NoSuchJob, AlreadyCommitted):
                unit.end("lost")
                raise
            finally:
                task.cancel()

    def from_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """The same for a handler that is a function."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _again(error: Optional[BaseException]) -> bool:
    return sqlstate(error) in ("40001", "40P01")


def _refused(error: BaseException) -> bool:
    """Whether it is about a value that was given."""
    state = sqlstate(error)
    return state[:2] in ("22", "54") if state else not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, OSError))


def _details(error: BaseException) -> dict[str, Any]:
    """For programs that read idemq.attempts."""
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    details = {"type": type(error).__name__, "trace": clean(lines[-MAX_TEXT:])}
    state = sqlstate(error)
    return {**details, "sqlstate": clean(state)} if state else details
