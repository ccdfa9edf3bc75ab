#!/usr/bin/python3
"""report.py DIRECTORY WHAT [OUT [PAGE]]: makes tables of the lines that run wrote.

The tables go to the terminal, as Markdown to OUT; what has a target, with what was
before and what was wanted, between the marks of PAGE.

A ratio is one side's jobs a second over the other's in the same round; a table
gives the median of the rounds and, in brackets, the least and greatest.
"""

import os
import platform
import statistics
import sys
from collections import defaultdict

# (bench, side, other side): what stands in the table
TITLES = {
    ("cycle", "idemq", "floor"): "claim + commit / two primary-key HOT updates",
    ("cycle", "idemq-next", "floor"): "commit_and_claim / two primary-key HOT updates",
    ("cycle", "idemq", "skip"): "claim + commit / SKIP LOCKED",
    ("cycle", "idemq-next", "skip"): "commit_and_claim / SKIP LOCKED",
    ("enqueue", "idemq", "plain"): "enqueue / INSERT",
    ("batch", "idemq", "skip"): "claim + commit_many of 100 / SKIP LOCKED of 100",
    ("batch", "idemq-next", "skip"): "commit_many_and_claim of 100 / SKIP LOCKED of 100",
    ("many", "idemq", "plain"): "enqueue_many of 1,000 / INSERT of 1,000",
    ("backlog", "idemq-backlog", "idemq-small"): "claim + commit: long backlog / short",
    ("backlog", "idemq-scheduled", "idemq-small"): "claim + commit: many scheduled in front / none",
    ("backlog", "idemq-inflight", "idemq-small"): "claim + commit: many in flight / none",
    ("backlog", "idemq-blocked", "idemq-small"): "claim + commit: many blocked behind one head / none",
    ("notify", "idemq-on", "idemq-off"): "enqueue: idemq.notify on / off",
    ("keyed", "idemq-key", "idemq-nokey"): "enqueue: with a key / without",
    ("duplicate", "idemq", "plain"): "enqueue of a duplicate / SELECT of a row by primary key",
    ("acquire", "idemq-acquire", "idemq-claim"): "acquire + commit / claim + commit",
    ("message", "idemq-acquire", "idemq-enqueue"): "acquire + commit of new keys / enqueue + claim + commit",
    ("hot", "idemq-held", "one"): "acquire of one key: held by a worker / SELECT 1",
    ("hot", "idemq-open", "one"): "acquire of one key: in an open transaction / SELECT 1",
    ("admit", "idemq-one", "one"): "admit: one bucket / SELECT 1",
    ("admit", "idemq-many", "one"): "admit: many buckets / SELECT 1",
    ("notify", "idemq-pgnotify", "idemq-off"): "enqueue: with pg_notify / idemq.notify off",
}

# the least ratio asked for: (bench, side, other side, clients, synchronous_commit),
# or the first three where the others do not matter
TARGETS = {
    ("cycle", "idemq", "floor", 8, "on"): 1.0,
    ("cycle", "idemq", "floor", 8, "off"): 1.15,
    ("cycle", "idemq-next", "floor", 8, "on"): 1.6,
    ("cycle", "idemq-next", "floor", 8, "off"): 1.35,
    ("cycle", "idemq", "floor", 32, "on"): 0.95,
    ("cycle", "idemq", "floor", 32, "off"): 1.2,
    ("cycle", "idemq-next", "floor", 32, "on"): 0.95,
    ("cycle", "idemq-next", "floor", 32, "off"): 1.2,
    ("cycle", "idemq", "skip", 8, "on"): 1.3,
    ("cycle", "idemq", "skip", 8, "off"): 2.5,
    ("enqueue", "idemq", "plain", 8, "on"): 1.1,
    ("enqueue", "idemq", "plain", 8, "off"): 1.1,
    ("batch", "idemq-next", "skip"): 2.5,
    ("many", "idemq", "plain"): 1.5,
    ("backlog", "idemq-backlog", "idemq-small"): 0.95,
    ("backlog", "idemq-scheduled", "idemq-small"): 0.95,
    ("backlog", "idemq-inflight", "idemq-small"): 0.95,
    ("backlog", "idemq-blocked", "idemq-small"): 0.95,
    ("notify", "idemq-on", "idemq-off"): 0.97,
    ("keyed", "idemq-key", "idemq-nokey"): 0.85,
    ("duplicate", "idemq", "plain"): 0.85,
    ("acquire", "idemq-acquire", "idemq-claim"): 0.8,
    ("hot", "idemq-held", "one"): 0.5,
    ("hot", "idemq-open", "one"): 0.5,
    ("admit", "idemq-one", "one"): 0.9,
    ("admit", "idemq-many", "one"): 0.9,
}
MIXED_TARGET = 4
MIXED = {"idemq": "idemq", "idemq-next": "idemq, commit_and_claim", "skip": "SKIP LOCKED"}

# side: what stands in the table, the least last/first asked for
HELD = {
    "idemq-held": ("idemq, snapshot held", 0.9),
    "skip-held": ("SKIP LOCKED, snapshot held", None),
    "idemq-urgent": ("idemq, snapshot held, one job of priority 0 a second", 0.9),
    "idemq-free": ("idemq, no snapshot held", None),
}
SKIP_FALLS_BELOW = 0.2

# (bench, side): what stands in the table, milliseconds asked for: the median, and
# the 99th percentile or the worst
SAMPLES = {
    ("latency", "idemq"): ("enqueue to claim: idemq.wait", 0.5, ("p99", 5)),
    ("latency", "skip"): ("enqueue to claim: LISTEN, pg_notify, SKIP LOCKED", None, None),
    ("recovery", "idemq-lease"): ("lease of 500 ms ran out", 10, ("worst", 50)),
    ("recovery", "idemq-client"): ("attached, client killed with -9", 10, ("worst", 50)),
    ("recovery", "idemq-backend"): ("attached, pg_terminate_backend", 10, ("worst", 50)),
    ("hot", "idemq-held"): ("SELECT 1 beside many that acquire a held key", None, None),
    ("hot", "idemq-open"): ("SELECT 1 beside many that acquire a key in an open transaction", None, None),
    ("admit", "idemq-one"): ("admit through psycopg, one bucket", 0.5, ("p99", 0.5)),
    ("admit", "idemq-many"): ("admit through psycopg, many buckets", 0.5, ("p99", 0.5)),
    ("admit", "one"): ("SELECT 1 through psycopg", None, None),
    ("hot", "one"): ("SELECT 1 beside as many SELECT 1", None, None),
}

RATIO_HEAD = ["ratio", "(min-max)", "target", ""]
HEAD = [
    "idemq / other", "clients", "sync", "idemq/s", "other/s", *RATIO_HEAD,
    "latency ms", "WAL B/job", "CPU us/job", "HOT %",
]
MIXED_HEAD = [
    "4 producers + 4 workers", "sync", "completed/s", "enqueued/s",
    "completed/s by quarter", "last/first", *RATIO_HEAD, "WAL B/step",
]
HELD_HEAD = [
    "claim + commit, 8 clients", "sync", "completed/s by sixth", "last/first",
    "(min-max)", "target", "", "WAL B/job", "CPU us/job",
]
SAMPLE_HEAD = [
    "milliseconds", "sync", "samples", "min", "median", "p90", "p99", "worst", "target", "",
]


class Piece:
    """One timed piece: a line that run wrote."""

    def __init__(self, words):
        self.bench, self.side = words[0], words[1]
        self.clients, self.sync = int(words[2]), words[3]
        jobs, rate, size, latency = (float(word) for word in words[5:9])
        self.rate = rate * size
        self.latency = latency
        wal, updates, hot, cpu = differences(words[9:17])
        self.wal = wal / jobs
        self.cpu = cpu / jobs
        self.hot = 100 * hot / updates if updates else None


def differences(words):
    """What the counters were after, less what they were before."""
    half = len(words) // 2
    return [int(b) - int(a) for a, b in zip(words[:half], words[half:])]


def read_words(directory, name):
    path = os.path.join(directory, name)
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as lines:
        return [line.split() for line in lines]


def median(pieces, field):
    return statistics.median(getattr(piece, field) for piece in pieces)


def both(ours, theirs, field, form):
    """The two sides' medians in one cell."""
    return " / ".join(
        format(median(side, field), form) if getattr(side[0], field) is not None else "-"
        for side in (ours, theirs))


def verdict(ratio, target):
    if target is None:
        return ["", ""]
    return [f"{target:.2f}", "ok" if ratio >= target else "MISSED"]


def ratio_cells(ratios, target):
    ratio = statistics.median(ratios)
    return [f"{ratio:.2f}", f"({min(ratios):.2f}-{max(ratios):.2f})", *verdict(ratio, target)]


def compared_row(title, clients, ours, theirs, target):
    return [
        title, clients, ours[0].sync,
        f"{median(ours, 'rate'):,.0f}", f"{median(theirs, 'rate'):,.0f}",
        *ratio_cells([a.rate / b.rate for a, b in zip(ours, theirs)], target),
        both(ours, theirs, "latency", ".3f"), both(ours, theirs, "wal", ",.0f"),
        both(ours, theirs, "cpu", ",.1f"), both(ours, theirs, "hot", ".1f"),
    ]


def compared_rows(pieces):
    """One row a (bench, clients, synchronous_commit, two sides), in the order run."""
    groups = defaultdict(lambda: defaultdict(list))
    for piece in pieces:
        if piece.bench != "clients":
            groups[piece.bench, piece.clients, piece.sync][piece.side].append(piece)
    for (bench, clients, sync), sides in groups.items():
        for (of, side, other), title in TITLES.items():
            if of == bench and side in sides and other in sides:
                target = TARGETS.get((of, side, other), TARGETS.get((of, side, other, clients, sync)))
                yield compared_row(title, str(clients), sides[side], sides[other], target)


def clients_rows(pieces):
    """One row a (side, synchronous_commit, number of clients): against the fewest clients."""
    groups = defaultdict(lambda: defaultdict(list))
    for piece in pieces:
        if piece.bench == "clients":
            groups[piece.side.split("-")[0], piece.sync][piece.clients].append(piece)
    for (side, _), counts in groups.items():
        title = "claim + commit" if side == "idemq" else "two primary-key HOT updates"
        fewest, *others = sorted(counts)
        for clients in others:
            yield compared_row(f"{title}: {clients} clients / {fewest}", f"{clients} / {fewest}",
                               counts[clients], counts[fewest], None)


class Mixed:
    """One run of producers and workers together: a line that run wrote."""

    def __init__(self, words):
        self.side, self.sync = words[1], words[2]
        seconds = float(words[4])
        self.produced = int(words[5]) / seconds
        quarters = [int(word) for word in words[6:10]]
        self.quarters = [4 * jobs / seconds for jobs in quarters]
        self.rate = sum(quarters) / seconds
        self.wal = differences(words[10:18])[0] / (sum(quarters) + int(words[5]))


def parts(runs, field):
    """The medians of each part of the runs in one cell."""
    return " ".join(f"{statistics.median(part):,.0f}" for part in zip(*(getattr(one, field) for one in runs)))


def mixed_ratios(sides, side):
    return [a.rate / b.rate for a, b in zip(sides[side], sides["skip"])]


def mixed_rows(runs):
    sides = defaultdict(list)
    for one in runs:
        sides[one.side].append(one)
    for side, ran in sides.items():
        decline = statistics.median(one.quarters[3] / max(one.quarters[0], 1) for one in ran)
        yield [
            MIXED[side], ran[0].sync,
            f"{median(ran, 'rate'):,.0f}", f"{median(ran, 'produced'):,.0f}",
            parts(ran, "quarters"), f"{decline:.2f}",
            *(ratio_cells(mixed_ratios(sides, side), MIXED_TARGET) if side != "skip" and "skip" in sides else [""] * 4),
            f"{median(ran, 'wal'):,.0f}",
        ]


class Held:
    """One run while a snapshot was held: a line that run wrote."""

    def __init__(self, words):
        self.side, self.sync = words[0], words[1]
        sixths = [int(word) for word in words[4:10]]
        self.sixths = [6 * jobs / float(words[3]) for jobs in sixths]
        self.last_to_first = sixths[5] / max(sixths[0], 1)
        wal, _, _, cpu = differences(words[10:18])
        self.wal = wal / sum(sixths)
        self.cpu = cpu / sum(sixths)


def held_rows(runs):
    sides = defaultdict(list)
    for one in runs:
        sides[one.side].append(one)
    for side, ran in sides.items():
        title, target = HELD[side]
        cells = ratio_cells([one.last_to_first for one in ran], target)
        if side == "skip-held":
            cells[2:] = [f"below {SKIP_FALLS_BELOW:.2f}", "yes" if median(ran, "last_to_first") < SKIP_FALLS_BELOW else "NO"]
        yield [
            title, ran[0].sync, parts(ran, "sixths"), *cells,
            f"{median(ran, 'wal'):,.0f}", f"{median(ran, 'cpu'):,.1f}",
        ]


WAL_SIDES = {"idemq": "claim + commit", "idemq-next": "commit_and_claim", "floor": "two primary-key HOT updates",
             "skip": "SKIP LOCKED"}
WAL_HEAD = ["WAL bytes per cycle, full_page_writes off", "wal_level replica", "logical"]
KEPT_HEAD = ["bytes per kept finished job", "table", "indexes", "together"]


def wal_bytes(lines):
    """(side, wal_level): the median of the rounds."""
    groups = defaultdict(list)
    for side, level, _, jobs, *counters in lines:
        groups[side, level].append(differences(counters)[0] / int(jobs))
    return {key: statistics.median(found) for key, found in groups.items()}


def wal_rows(found):
    for side, title in WAL_SIDES.items():
        if (side, "replica") in found:
            yield [title, f"{found[side, 'replica']:,.0f}", f"{found[side, 'logical']:,.0f}"]


def kept_bytes(lines):
    """side: bytes in the table and in the indexes."""
    return {side: (int(heap) / int(jobs), int(index) / int(jobs)) for side, jobs, heap, index in lines}


def kept_rows(found):
    for side, (heap, index) in found.items():
        yield [MIXED[side], f"{heap:,.0f}", f"{index:,.0f}", f"{heap + index:,.0f}"]


class Targets:
    """The table of what was wanted: a row's parts are (what was reached, what was
    wanted, whether more is better[, the same ratio of the servers' processor time])."""

    head = ["", "before", "target", "result", "", "result in processor time"]

    def __init__(self, pieces, mixed, wal, kept):
        self.ran = defaultdict(list)
        for piece in pieces:
            self.ran[piece.bench, piece.side, piece.clients, piece.sync].append(piece)
        self.mixed = defaultdict(list)
        for one in mixed:
            self.mixed[one.side].append(one)
        self.wal, self.kept = wal, kept

    def ratio(self, wanted, bench, side, other, clients=8, sync="off"):
        pairs = list(zip(self.ran[bench, side, clients, sync], self.ran[bench, other, clients, sync]))
        if not pairs:
            return None, wanted, True
        return (statistics.median(a.rate / b.rate for a, b in pairs), wanted, True,
                statistics.median(b.cpu / a.cpu for a, b in pairs))

    def rate(self, bench, side, sync="off"):
        ran = self.ran[bench, side, 8, sync]
        return median(ran, "rate") if ran else None

    def both_syncs(self, side, clients, on, off):
        return [self.ratio(on, "cycle", side, "floor", clients, "on"), self.ratio(off, "cycle", side, "floor", clients, "off")]

    def mixed_parts(self, side):
        ran = self.mixed[side]
        if not ran or not self.mixed["skip"]:
            return [(None, 4, True), (None, 0.98, True)]
        return [(statistics.median(mixed_ratios(self.mixed, side)), 4, True),
                (statistics.median(one.quarters[3] / max(one.quarters[0], 1) for one in ran), 0.98, True)]

    def parts(self):
        """(what, before, parts)"""
        cycle = "compared with two HOT updates by primary key; with fsync / with synchronous_commit off"
        yield f"claim and commit in two transactions, 8 clients, {cycle}", "0.91–0.95 / 0.82–0.95", self.both_syncs("idemq", 8, 1.0, 1.15)
        yield f"commit_and_claim in one transaction, 8 clients, {cycle}", "–", self.both_syncs("idemq-next", 8, 1.6, 1.35)
        yield f"claim and commit in two transactions, 32 clients, {cycle}", "0.79–0.96 / 0.85", self.both_syncs("idemq", 32, 0.95, 1.2)
        yield f"commit_and_claim in one transaction, 32 clients, {cycle}", "–", self.both_syncs("idemq-next", 32, 0.95, 1.2)
        for side, call in (("idemq", "claim and commit_many"), ("idemq-next", "commit_many_and_claim")):
            yield (f"{call} in batches of 100, with synchronous_commit off: compared with SKIP LOCKED in batches of 100 / jobs per second",
                   "1.5–1.8 / 114,000–169,000" if side == "idemq" else "–",
                   [self.ratio(2.5, "batch", side, "skip"), (self.rate("batch", side), 250000, True)])
        yield ("enqueue, compared with INSERT; with fsync / with synchronous_commit off", "1.0 / 1.0",
               [self.ratio(1.1, "enqueue", "idemq", "plain", sync=sync) for sync in ("on", "off")])
        yield "enqueue_many of 1,000 jobs, compared with INSERT … SELECT; with synchronous_commit off", "1.1", [self.ratio(1.5, "many", "idemq", "plain")]
        yield ("enqueue with a key, compared with enqueue without one; with fsync / with synchronous_commit off", "0.81 / 0.81",
               [self.ratio(0.85, "keyed", "idemq-key", "idemq-nokey", sync=sync) for sync in ("on", "off")])
        yield "enqueuing a duplicate, compared with SELECT by primary key", "0.72", [self.ratio(0.85, "duplicate", "idemq", "plain")]
        for side, call in (("idemq", "claim and commit"), ("idemq-next", "commit_and_claim")):
            yield (f"4 producers and 4 workers with {call} and synchronous_commit off: compared with SKIP LOCKED / last quarter compared with the first",
                   "3.1–3.7 / 0.75–0.93" if side == "idemq" else "–", self.mixed_parts(side))
        for side, call in (("idemq", "claim and commit"), ("idemq-next", "commit_and_claim")):
            yield (f"WAL bytes per {call}, without full-page images; with wal_level replica / logical",
                   "730" if side == "idemq" else "–",
                   [(self.wal.get((side, "replica")), 450, False), (self.wal.get((side, "logical")), None, False)])
        kept = self.kept.get("idemq")
        yield "bytes per kept finished job, in the table and its indexes", "625", [(sum(kept) if kept else None, 500, False)]
        yield ("admit, compared with SELECT 1; with one bucket / 1,000 buckets", "0.76 / 0.83",
               [self.ratio(0.9, "admit", side, "one") for side in ("idemq-one", "idemq-many")])

    @staticmethod
    def number(value):
        return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"

    def rows(self):
        for what, before, parts in self.parts():
            if all(reached is None for reached, *_ in parts):
                continue
            missed = [(reached, wanted) for reached, wanted, more, *_ in parts if reached is not None and wanted is not None
                      and (round(reached, 2) < wanted if more else round(reached) > wanted)]
            said = missed and "missed by " + " and ".join(f"{abs(1 - reached / wanted):.0%}" for reached, wanted in missed)
            yield [what, before, " / ".join(self.number(wanted) for _, wanted, *_ in parts if wanted is not None),
                   " / ".join(self.number(reached) for reached, *_ in parts), said or "met",
                   " / ".join(self.number(part[3]) for part in parts if len(part) > 3)]


def percentile(ordered, percent):
    """The least sample that so many percent do not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def sample_rows(lines):
    groups = defaultdict(list)
    for bench, side, sync, microseconds in lines:
        groups[bench, side, sync].append(float(microseconds) / 1000)
    for (bench, side, sync), samples in groups.items():
        title, target, bound = SAMPLES[bench, side]
        samples.sort()
        found = {"min": samples[0], "median": statistics.median(samples), "p90": percentile(samples, 90),
                 "p99": percentile(samples, 99), "worst": samples[-1]}
        asked = ["", ""]
        if target:
            name, most = bound
            asked = [f"median < {target}, {name} < {most}",
                     "ok" if found["median"] < target and found[name] < most else "MISSED"]
        yield [title, sync, str(len(samples)), *(f"{value:.2f}" for value in found.values()), *asked]


def plain(head, rows):
    """Columns padded to their widest cell: the first left, the others right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        first, *others = row
        cells = [first.ljust(widths[0])] + [c.rjust(w) for c, w in zip(others, widths[1:])]
        yield "  ".join(cells).rstrip()


def markdown(head, rows):
    yield "| " + " | ".join(head) + " |"
    yield "|---" + "|--:" * (len(head) - 1) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def processor():
    cpu = "unknown processor"
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
    return f"{os.cpu_count()} x {cpu}, Linux {platform.release()}"


def machine():
    return f"{processor()}, clients on the same machine"


def put_between(path, name, text, by="test/bench"):
    """Puts the text between the marks of that name."""
    begin, end = f"<!-- {name}: written by {by}, do not edit -->", f"<!-- end of {name} -->"
    with open(path, encoding="utf-8") as file:
        page = file.read()
    before, rest = page.split(begin)
    _, after = rest.split(end)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def main():
    directory, what, out, page = (sys.argv[1:] + ["", ""])[:4]
    pieces = [Piece(words) for words in read_words(directory, "pieces")]
    mixed = [Mixed(words) for words in read_words(directory, "mixed")]
    held = [Held(words) for words in read_words(directory, "held")]
    wal, kept = wal_bytes(read_words(directory, "wal")), kept_bytes(read_words(directory, "kept"))
    targets = list(Targets(pieces, mixed, wal, kept).rows())
    tables = [
        (HEAD, [*compared_rows(pieces), *clients_rows(pieces)]),
        (MIXED_HEAD, list(mixed_rows(mixed))),
        (HELD_HEAD, list(held_rows(held))),
        (SAMPLE_HEAD, list(sample_rows(read_words(directory, "samples")))),
        (WAL_HEAD, list(wal_rows(wal))),
        (KEPT_HEAD, list(kept_rows(kept))),
        (Targets.head, targets),
    ]
    tables = [(head, rows) for head, rows in tables if rows]
    what = f"{what} The clients and the server shared one machine ({processor()})."
    print(what)
    for head, body in tables:
        print()
        print("\n".join(plain(head, body)))
    if out:
        with open(out, "w", encoding="utf-8") as file:
            file.write(what + "\n")
            for head, body in tables:
                file.write("\n" + "\n".join(markdown(head, body)) + "\n")
    if page:
        put_between(page, "targets", "\n".join(markdown(Targets.head, targets)) + f"\n\n{what}")


if __name__ == "__main__":
    main()
