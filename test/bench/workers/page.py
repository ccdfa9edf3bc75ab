#!/usr/bin/python3
"""page.py RESULTS [PAGE]: makes a table of what main.py found and, with a PAGE, puts it between its marks, and draws
workers.svg in the page's folder.

page.py --draw PAGE: draws it of the table that stands in the page.
"""

import json
import os
import re
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from report import markdown, plain, processor, put_between  # pylint: disable=wrong-import-position
from sides import CANCEL, CANNOT_CANCEL, LATENCY, THROUGHPUT  # pylint: disable=wrong-import-position


def number(value):
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.005 else "0"


def median(found, key):
    values = [each[key] for each in found if key in each]
    return statistics.median(values) if values else None


def times(found, others, key="rate"):
    """The median of what each round says, with the least and the greatest."""
    if not found or not others:
        return "–"
    ratios = [own[key] / other[key] for own, other in zip(found, others) if other[key]]
    if not ratios:
        return "–"
    return f"{statistics.median(ratios):.2f}" + (f" ({min(ratios):.2f}–{max(ratios):.2f})" if len(ratios) > 1 else "")


def throughput(results):
    all_found, messages = results["throughput"], results["messages"]
    base = any(name.startswith("base-") for name in all_found)
    head = ["worker", "jobs/s", "relative to its peer", "client us/job", "server us/job", "messages/job", "flushes/job"]
    if base:
        head += ["before: jobs/s", "messages/job", "times", "client's time, times"]
    rows = []
    for side in THROUGHPUT:
        found, before = all_found.get(side.name), all_found.get(f"base-{side.name}")
        if not found:
            continue
        row = [side.title, number(median(found, "rate")), times(found, all_found.get(side.beside)), number(median(found, "client") or None),
               number(median(found, "server")), number(messages.get(side.name, {}).get("messages")), number(median(found, "flushes"))]
        if base:
            row += [number(median(before, "rate")) if before else "–", number(messages.get(f"base-{side.name}", {}).get("messages")),
                    times(found, before), times(found, before, "client") if before else "–"]
        rows.append(row)
    return head, rows


def percentiles(results, sides, what):
    rows = []
    for side in sides:
        for name, title in ((side.name, side.title), (f"base-{side.name}", f"{side.title}, before")):
            if name in results.get(what, ()):
                its = sorted(results[what][name])
                rows.append([title, str(len(its)), *(f"{its[min(len(its) - 1, int(len(its) * part))]:.2f}" for part in (0.5, 0.99))])
    return rows


def latency(results):
    head = ["time from enqueue to the handler, at 10 jobs per second", "samples", "p50 ms", "p99 ms"]
    return head, percentiles(results, LATENCY, "latency")


def cancel(results):
    head = ["time from `cancel` to the handler's signal", "samples", "p50 ms", "p99 ms"]
    rows = percentiles(results, CANCEL, "cancel")
    return head, rows and rows + [[title, why, "", ""] for title, why in CANNOT_CANCEL.items()]


# What the picture shows: as the table has it, and in its words.
SHOWN = [
    [("Node `run`, 10 jobs at a time", "idemq, Node, 10 at a time"), ("BullMQ, 10 jobs at a time", "BullMQ on Redis"), ("graphile-worker, 10 jobs at a time", "graphile-worker"),
     ("pg-boss, 10 jobs at a time", "pg-boss")],
    [("Python `run`, 8 jobs at a time", "idemq, Python, 8 at a time"), ("Celery on Redis, 8 processes", "Celery on Redis"),
     ("RQ on Redis, 8 processes", "RQ on Redis")],
    [("Node `runOutside`, 100 jobs at a time", "idemq, Node, 100 at a time"), ("graphile-worker, local queue of 100 jobs", "graphile-worker, its local queue"),
     ("BullMQ, 100 jobs at a time", "BullMQ on Redis")],
]  # fmt: skip
STYLE = """<style>
text { font: 13px sans-serif; fill: #1f2328 } .own { fill: #0969da } .other { fill: #818b98 }
@media (prefers-color-scheme: dark) { text { fill: #f0f6fc } .own { fill: #4493f8 } .other { fill: #7d8590 } }
</style>"""


def draw(rows, path):
    """Bars of jobs a second, each group by its own greatest; rows: the cells of the table."""
    rate = {row[0]: float(row[1].replace(",", "")) for row in rows if re.fullmatch(r"[\d,.]+", row[1])}
    parts, y = [], 24
    for group in SHOWN:
        there = [(title, rate[name]) for name, title in group if name in rate]
        for title, value in there:
            width = 330 * value / max(value for _, value in there)
            parts.append(f'<text x="228" y="{y + 13}" text-anchor="end">{title}</text>'
                         f'<rect x="236" y="{y}" width="{width:.1f}" height="17" class="{"own" if title.startswith("idemq") else "other"}"/>'
                         f'<text x="{242 + width:.1f}" y="{y + 13}">{value:,.0f}</text>')  # fmt: skip
            y += 23
        y += 12
    heading = "Jobs per second through each queue's own worker, with handlers that do nothing"
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {y}" role="img" aria-label="{heading}">\n<title>{heading}</title>\n'
                   + STYLE + f'\n<text x="8" y="14">{heading}</text>\n' + "\n".join(parts) + "\n</svg>\n")  # fmt: skip


def rows_of(page):
    """The cells of the table that stands in a page."""
    with open(page, encoding="utf-8") as file:
        text = re.search(r"<!-- workers:.*?<!-- end of workers", file.read(), re.S)[0]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.split("\n") if line.startswith("| ")]


def picture(page):
    return os.path.join(os.path.splitext(page)[0], "workers.svg")


def command(settings):
    named = {"ROUNDS": settings["rounds"], "JOBS": settings["jobs"], "SAMPLES": settings["samples"], "ONLY": settings["only"], "BASE": settings["base"]}
    default = {"ROUNDS": 5, "JOBS": 10000, "SAMPLES": 1000, "ONLY": "", "BASE": ""}
    words = [f'{name}="{value}"' if " " in str(value) else f"{name}={value}" for name, value in named.items() if value != default[name]]
    return " ".join([*words, "make bench-workers"])


def main():
    if sys.argv[1] == "--draw":
        draw(rows_of(sys.argv[2]), picture(sys.argv[2]))
        return
    with open(sys.argv[1], encoding="utf-8") as file:
        results = json.load(file)
    settings = results["settings"]
    tables = [table for table in (throughput(results), latency(results), cancel(results)) if table[1]]
    for table in tables:
        print("\n".join(plain(*table)), end="\n\n")
    about = (f"`{command(settings)}` measured commit {settings['commit']} on {settings['date']}, in {settings['rounds']} rounds. The table shows the medians. "
             f"The clients and the server shared one machine ({processor()}). Before the run, the load average was {settings['load']}.")
    print(about)
    if len(sys.argv) > 2:
        put_between(sys.argv[2], "workers", "\n\n".join([about, *("\n".join(markdown(*table)) for table in tables)]))
        draw(throughput(results)[1], picture(sys.argv[2]))


main()
