#!/usr/bin/python3
"""Turns the pieces that run measured into one table of ratios.

A ratio is idemq's jobs a second over the other side's in the same round; the
table gives the median of the rounds and, in brackets, the least and greatest.
"""

import os
import platform
import statistics
import sys
from collections import defaultdict

TITLES = {
    ("cycle", "floor"): "claim + commit / two primary-key HOT updates",
    ("cycle", "skip"): "claim + commit / SKIP LOCKED",
    ("enqueue", "plain"): "enqueue / INSERT",
    ("batch", "skip"): "claim + commit_many of 100 / SKIP LOCKED of 100",
    ("many", "plain"): "enqueue_many of 1,000 / INSERT of 1,000",
}

# (bench, other side, clients, synchronous_commit): the least ratio asked for
TARGETS = {
    ("cycle", "floor", 8, "on"): 0.90,
    ("cycle", "floor", 8, "off"): 0.88,
    ("cycle", "skip", 8, "on"): 1.3,
    ("cycle", "skip", 8, "off"): 2.5,
    ("enqueue", "plain", 8, "on"): 0.9,
    ("enqueue", "plain", 8, "off"): 0.9,
    ("batch", "skip", 8, "on"): 1.6,
    ("batch", "skip", 8, "off"): 1.6,
}
MIXED_TARGET = 2.5

HEAD = [
    "idemq / other", "clients", "sync", "idemq/s", "other/s", "ratio", "(min-max)",
    "target", "", "latency ms", "WAL B/job", "CPU us/job", "HOT %",
]
MIXED_HEAD = [
    "4 producers + 4 workers", "sync", "completed/s", "enqueued/s",
    "completed/s by quarter", "last/first", "ratio", "(min-max)", "target", "",
    "WAL B/step",
]


class Piece:
    """One timed piece: a line that run wrote."""

    def __init__(self, words):
        self.bench, self.side = words[0], words[1]
        self.clients, self.sync = int(words[2]), words[3]
        self.round = int(words[4])
        jobs, rate, size, latency = (float(word) for word in words[5:9])
        self.rate = rate * size
        self.latency = latency
        wal, updates, hot, cpu = (int(b) - int(a) for a, b in zip(words[9:13], words[13:17]))
        self.wal = wal / jobs
        self.cpu = cpu / jobs
        self.hot = 100 * hot / updates if updates else None


def read_words(path):
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


def compared_rows(pieces):
    """One row a (bench, clients, synchronous_commit, other side), in the order run."""
    groups = defaultdict(lambda: defaultdict(list))
    for piece in pieces:
        groups[piece.bench, piece.clients, piece.sync][piece.side].append(piece)
    for (bench, clients, sync), sides in groups.items():
        ours = sides.pop("idemq")
        for side, theirs in sides.items():
            ratios = [a.rate / b.rate for a, b in zip(ours, theirs)]
            ratio = statistics.median(ratios)
            yield [
                TITLES[bench, side], str(clients), sync,
                f"{median(ours, 'rate'):,.0f}", f"{median(theirs, 'rate'):,.0f}",
                f"{ratio:.2f}", f"({min(ratios):.2f}-{max(ratios):.2f})",
                *verdict(ratio, TARGETS.get((bench, side, clients, sync))),
                both(ours, theirs, "latency", ".3f"), both(ours, theirs, "wal", ",.0f"),
                both(ours, theirs, "cpu", ",.1f"), both(ours, theirs, "hot", ".1f"),
            ]


class Mixed:
    """One run of producers and workers together: a line that run wrote."""

    def __init__(self, words):
        self.side, self.sync = words[1], words[2]
        seconds = float(words[4])
        self.produced = int(words[5]) / seconds
        quarters = [int(word) for word in words[6:10]]
        self.quarters = [4 * jobs / seconds for jobs in quarters]
        self.rate = sum(quarters) / seconds
        wal = int(words[14]) - int(words[10])
        self.wal = wal / (sum(quarters) + int(words[5]))


def mixed_rows(runs):
    sides = defaultdict(list)
    for one in runs:
        sides[one.side].append(one)
    ratios = [a.rate / b.rate for a, b in zip(sides["idemq"], sides["skip"])]
    ratio = statistics.median(ratios)
    for side, ran in sides.items():
        quarters = [statistics.median(q) for q in zip(*(one.quarters for one in ran))]
        decline = quarters[3] / quarters[0] if quarters[0] else 0
        yield [
            "idemq" if side == "idemq" else "SKIP LOCKED", ran[0].sync,
            f"{median(ran, 'rate'):,.0f}", f"{median(ran, 'produced'):,.0f}",
            " ".join(f"{q:,.0f}" for q in quarters), f"{decline:.2f}",
            *([f"{ratio:.2f}", f"({min(ratios):.2f}-{max(ratios):.2f})", *verdict(ratio, MIXED_TARGET)]
              if side == "idemq" else [""] * 4),
            f"{median(ran, 'wal'):,.0f}",
        ]


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


def machine():
    cpu = "unknown processor"
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
    return f"{os.cpu_count()} x {cpu}, Linux {platform.release()}, pgbench on the same machine"


def main():
    pieces_path, mixed_path, what, out = sys.argv[1:5]
    rows = list(compared_rows([Piece(words) for words in read_words(pieces_path)]))
    mixed = [Mixed(words) for words in read_words(mixed_path)]
    tables = [(HEAD, rows)] if rows else []
    if mixed:
        tables.append((MIXED_HEAD, list(mixed_rows(mixed))))
    what = f"{what}; {machine()}"
    print(what)
    for head, body in tables:
        print()
        print("\n".join(plain(head, body)))
    if out:
        with open(out, "w", encoding="utf-8") as file:
            file.write(what + ".\n")
            for head, body in tables:
                file.write("\n" + "\n".join(markdown(head, body)) + "\n")


if __name__ == "__main__":
    main()
