"""What bench-workers measures: a row for each way in which a client's worker, or another's, is used."""

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Side:
    name: str
    """What ONLY says, or begins with."""
    title: str
    program: str
    """node, python, go, work (idemq-work), celery, rq, or sql: handlers in the server."""
    side: str = "idemq"
    concurrency: int = 1
    batch: int = 1
    outside: str = ""
    """Not empty: in run_outside; asyncio: of coroutines; of idemq-work: http, lines."""
    insert: bool = False
    pooled: bool = False
    weight: float = 1
    """Its jobs are JOBS times that: a run takes some seconds."""
    ahead: int = 0
    """How many jobs it claims ahead."""
    shortest: bool = False
    """Of River: with the shortest intervals between fetches that it accepts, instead of its default ones."""
    beside: str = ""
    """Whose jobs a second its own are compared with."""
    base: bool = False
    """The client of BASE."""

    @property
    def own(self) -> bool:
        return self.side == "idemq"


def node(name: str, title: str, weight: float, beside: str, **rest: object) -> Side:
    return Side(f"node-{name}", f"Node {title}", "node", weight=weight, beside=beside, **rest)  # type: ignore[arg-type]


def python(name: str, title: str, weight: float, **rest: object) -> Side:
    return Side(f"python-{name}", f"Python {title}", "python", weight=weight, beside="celery-8", **rest)  # type: ignore[arg-type]


def go(name: str, title: str, weight: float, beside: str, **rest: object) -> Side:
    return Side(f"go-{name}", f"Go {title}", "go", weight=weight, beside=beside, **rest)  # type: ignore[arg-type]


def river(name: str, title: str, weight: float, **rest: object) -> Side:
    return Side(f"river-{name}", f"River, {title}", "go", "river", weight=weight, **rest)  # type: ignore[arg-type]


def peer(name: str, title: str, side: str, weight: float, **rest: object) -> Side:
    return Side(name, title, "node", side, weight=weight, **rest)  # type: ignore[arg-type]


THROUGHPUT = [
    node("run-1", "`run`, one job at a time", 0.4, "graphile-10", concurrency=1),
    node("run-10", "`run`, 10 jobs at a time", 2, "graphile-10", concurrency=10),
    node("run-10-insert", "`run`, 10 jobs at a time, one INSERT per job", 1.5, "graphile-10-insert", concurrency=10, insert=True),
    node("run-10-insert-pooled", "`run`, 10 jobs at a time, one INSERT per job, through pgbouncer", 1, "", concurrency=10, insert=True, pooled=True),
    node("batch-100", "`run`, batches of 100 jobs", 5, "graphile-10", batch=100),
    node("batch-100-insert", "`run`, batches of 100 jobs, one INSERT per job", 3, "graphile-10-insert", batch=100, insert=True),
    node("outside-4", "`runOutside`, 4 jobs at a time", 2, "graphile-local-100", concurrency=4, outside="yes"),
    node("outside-32", "`runOutside`, 32 jobs at a time", 6, "graphile-local-100", concurrency=32, outside="yes"),
    Side("work-http-32", "`idemq-work --http`, 32 requests at a time to a small server", "work", concurrency=32, outside="http", weight=3, beside="node-outside-32"),
    Side("work-lines-4", "`idemq-work --lines` with 4 Python programs", "work", concurrency=4, outside="lines", weight=1, beside="node-outside-4"),
    node("outside-10", "`runOutside`, 10 jobs at a time", 5, "graphile-local-100", concurrency=10, outside="yes"),
    node("outside-100", "`runOutside`, 100 jobs at a time", 8, "graphile-local-100", concurrency=100, outside="yes"),
    node("outside-10-ahead", "`runOutside`, 10 jobs at a time, 100 claimed ahead", 5, "graphile-local-100", concurrency=10, outside="yes", ahead=100),
    node("outside-100-ahead", "`runOutside`, 100 jobs at a time, 100 claimed ahead", 8, "graphile-local-100", concurrency=100, outside="yes", ahead=100),
    peer("graphile-10", "graphile-worker, 10 jobs at a time", "graphile", 2, concurrency=10),
    peer("graphile-10-insert", "graphile-worker, 10 jobs at a time, one INSERT per job", "graphile", 1.5, concurrency=10, insert=True),
    peer("graphile-local-100", "graphile-worker, local queue of 100 jobs", "graphile", 6, concurrency=10, batch=100),
    peer("boss-10", "pg-boss, 10 jobs at a time", "boss", 1, concurrency=10),
    peer("boss-100", "pg-boss, batches of 100 jobs", "boss", 4, concurrency=1, batch=100),
    peer("bullmq-10", "BullMQ, 10 jobs at a time", "bullmq", 2, concurrency=10),
    peer("bullmq-100", "BullMQ, 100 jobs at a time", "bullmq", 2, concurrency=10, batch=100),
    python("run-1", "`run`, one job at a time", 0.3),
    python("run-8", "`run`, 8 jobs at a time", 0.8, concurrency=8),
    python("run-8-insert", "`run`, 8 jobs at a time, one INSERT per job", 0.6, concurrency=8, insert=True),
    python("run-8-insert-pooled", "`run`, 8 jobs at a time, one INSERT per job, through pgbouncer", 0.5, concurrency=8, insert=True, pooled=True),
    python("batch-100", "`run`, batches of 100 jobs", 2, batch=100),
    python("batch-100-insert", "`run`, batches of 100 jobs, one INSERT per job", 1.5, batch=100, insert=True),
    python("outside-8", "`run_outside`, 8 jobs at a time", 1.5, concurrency=8, outside="yes"),
    python("asyncio-100", "`run_outside`, 100 coroutines at a time", 3, concurrency=100, outside="asyncio"),
    python("asyncio-100-ahead", "`run_outside`, 100 coroutines at a time, 100 jobs claimed ahead", 3, concurrency=100, outside="asyncio", ahead=100),
    go("run-10", "`Handle`, 10 jobs at a time", 2, "river-tx-10", concurrency=10),
    go("run-10-insert", "`Handle`, 10 jobs at a time, one INSERT per job", 1.5, "river-tx-10-insert", concurrency=10, insert=True),
    go("run-100", "`Handle`, 100 jobs at a time", 2, "river-tx-100", concurrency=100),
    go("run-100-insert", "`Handle`, 100 jobs at a time, one INSERT per job", 1.5, "river-tx-100-insert", concurrency=100, insert=True),
    go("batch-100", "`Handle`, batches of 100 jobs", 5, "river-tx-100", batch=100),
    go("batch-100-insert", "`Handle`, batches of 100 jobs, one INSERT per job", 3, "river-tx-100-insert", batch=100, insert=True),
    go("outside-10", "`HandleOutside`, 10 jobs at a time", 5, "river-10", concurrency=10, outside="yes"),
    go("outside-100", "`HandleOutside`, 100 jobs at a time", 8, "river-100", concurrency=100, outside="yes"),
    river("tx-10", "`JobCompleteTx`, 10 jobs at a time", 1, concurrency=10, shortest=True),
    river("tx-10-insert", "`JobCompleteTx`, 10 jobs at a time, one INSERT per job", 1, concurrency=10, insert=True, shortest=True),
    river("tx-100", "`JobCompleteTx`, 100 jobs at a time", 1, concurrency=100, shortest=True),
    river("tx-100-insert", "`JobCompleteTx`, 100 jobs at a time, one INSERT per job", 1, concurrency=100, insert=True, shortest=True),
    river("10", "10 jobs at a time", 1, concurrency=10, outside="yes", shortest=True),
    river("100", "100 jobs at a time", 2, concurrency=100, outside="yes", shortest=True),
    river("default-tx-100", "`JobCompleteTx`, 100 jobs at a time, default intervals", 0.5, concurrency=100),
    river("default-10", "10 jobs at a time, default intervals", 0.05, concurrency=10, outside="yes"),
    river("default-100", "100 jobs at a time, default intervals", 0.5, concurrency=100, outside="yes"),
    Side("celery-8", "Celery on Redis, 8 processes", "celery", "celery", concurrency=8, weight=1),
    Side("rq-8", "RQ on Redis, 8 processes", "rq", "rq", concurrency=8, weight=0.04),
    Side("sql-1", "SQL handler", "sql", weight=6),
    Side("sql-1-insert", "SQL handler, one INSERT per job", "sql", insert=True, weight=5),
    Side("sql-100", "SQL handler, batches of 100 jobs", "sql", batch=100, weight=20),
    Side("sql-100-insert", "SQL handler, batches of 100 jobs, one INSERT per job", "sql", batch=100, insert=True, weight=15),
]

LATENCY = [
    node("run", "`run`", 0, "latency-graphile", concurrency=10),
    node("outside", "`runOutside`", 0, "latency-graphile", concurrency=10, outside="yes"),
    peer("graphile", "graphile-worker", "graphile", 0, concurrency=10),
    peer("boss", "pg-boss, its LISTEN", "boss", 0, concurrency=10),
    peer("bullmq", "BullMQ", "bullmq", 0, concurrency=10),
    python("run", "`run`", 0, concurrency=8),
    python("outside", "`run_outside`", 0, concurrency=8, outside="yes"),
    python("asyncio", "`run_outside` with coroutines", 0, concurrency=100, outside="asyncio"),
    Side("celery", "Celery", "celery", "celery", concurrency=8),
    Side("rq", "RQ", "rq", "rq", concurrency=8),
]


# Their samples are SAMPLES times the weight.
CANCEL = [
    node("run", "`run`, whose transaction holds the job", 1, "", concurrency=10, insert=True),
    node("outside", "`runOutside`", 1, "", concurrency=10, outside="yes"),
    peer("boss", "pg-boss, with its shortest heartbeat (10 s, sent every 5 s)", "boss", 0.02, concurrency=10),
    python("run", "`run`, whose transaction holds the job", 1, concurrency=8, insert=True),
    python("outside", "`run_outside`", 1, concurrency=8, outside="yes"),
]
CANNOT_CANCEL = {
    "graphile-worker": "none: it cannot cancel a running job",
    "BullMQ": "none: only the process that runs the job can cancel it",
}
"""Systems that have no figure among CANCEL, and why."""


def chosen(sides: list[Side], only: str, prefix: str = "") -> list[Side]:
    """Those whose names begin with a word of ONLY; all where it is empty."""
    return [side for side in sides if not only or any((prefix + side.name).startswith(word) for word in only.split())]


def reference(side: Side, sides: list[Side]) -> Optional[Side]:
    return next((other for other in sides if other.name == side.beside), None)
