#!/usr/bin/python3
"""page.py RESULTS [PAGE]: makes tables of what main.mjs found and, with a PAGE, puts
them between its marks and draws the plots that it shows.

The plots have one file for white and for black pages: each color is a CSS variable.
"""

import json
import os
import re
import statistics
import sys
from collections import defaultdict

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from report import plain, markdown, put_between  # pylint: disable=wrong-import-position

NAMES = {
    "idemq": "idemq", "skip": "SKIP LOCKED by hand", "skip-next": "SKIP LOCKED, one statement",
    "pgq": "PgQ", "pgq-1000": "PgQ, batches of 1,000", "graphile": "graphile-worker", "boss": "pg-boss",
    "bullmq": "BullMQ on Redis",
}
# a dummy that matplotlib writes: the variable that stands for it, on white, on black
COLORS = {
    "#010101": ("ink", "#1f2328", "#f0f6fc"), "#020202": ("soft", "#818b98", "#7d8590"),
    "#030303": ("grid", "#d1d9e0", "#3d444d"),
    "#110101": ("idemq", "#0969da", "#4493f8"), "#120101": ("skip", "#9a6700", "#d29922"),
    "#130101": ("pgq", "#1a7f37", "#3fb950"), "#140101": ("graphile", "#8250df", "#ab7df8"),
    "#150101": ("boss", "#59636e", "#9198a1"), "#160101": ("bullmq", "#cf222e", "#f85149"),
}
COLOR = {name: dummy for dummy, (name, _, _) in COLORS.items()}


def number(value):
    if not value:
        return "–"  # not measured, or the jobs ran out before the clock began
    if value >= 10000:
        return f"{value / 1000:,.0f} k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def milliseconds(value):
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def medians(rows, keys, field):
    """{key: the median of the rounds}"""
    groups = defaultdict(list)
    for row in rows:
        if row.get(field) is not None:
            groups[tuple(row.get(key) for key in keys)].append(row[field])
    return {key: statistics.median(values) for key, values in groups.items()}


def sides_of(rows):
    return list(dict.fromkeys((row["side"], row.get("by", "node")) for row in rows))


def title(side, by="node"):
    return NAMES[side] + (", with pgbench" if by == "pgbench" else "")


def rates_table(rows, what):
    """One row a side: one by one and in hundreds, in both durabilities, and what a job costs."""
    keys = ("side", "by", "batch", "sync")
    rate = medians(rows, keys, "rate")
    head = [what, "one by one, on", "off", "in hundreds, on", "off", "log B/job", "server us/job", "client us/job"]
    body = []
    for side, by in sides_of(rows):
        costs = [" / ".join(number(medians(rows, keys, field).get((side, by, batch, "off"))) for batch in (1, 100))
                 for field in ("log", "server", "client")]
        body.append([title(side, by), *(number(rate.get((side, by, batch, sync))) for batch in (1, 100) for sync in ("on", "off")),
                     *costs])
    return head, body


def run_table(rows, what, latency):
    head = [what, "jobs/s", "last sixth to first", *(["p50 ms", "p99 ms", "p99.9 ms", "worst ms"] if latency else []),
            "log B/job", "server us/job"]
    body = []
    for row in rows:
        found = row["latency"] or {}
        body.append([title(row["side"]), number(row["rate"]), f"{row['last_to_first']:.2f}",
                     *([milliseconds(found.get(key)) for key in ("p50", "p99", "p999", "worst")] if latency else []),
                     number(row["log"]), number(row["server"])])
    return head, body


def waiting_table(rows):
    few, many = min(row["waiting"] for row in rows), max(row["waiting"] for row in rows)
    rate = {(row["side"], row["waiting"]): row["rate"] for row in rows}
    head = ["cycle, jobs/s", f"{few:,} waiting", f"{many:,} waiting", "ratio"]
    return head, [[title(side), number(rate[side, few]), number(rate[side, many]), f"{rate[side, many] / rate[side, few]:.2f}"]
                  for side, _ in sides_of(rows) if rate.get((side, few)) and rate.get((side, many))]


def idle_table(rows):
    return (["time until an idle worker receives the job", "samples", "p50 ms", "p99 ms", "worst ms"],
            [[title(row["side"]), str(row["latency"]["samples"]), *(milliseconds(row["latency"][key]) for key in ("p50", "p99", "worst"))]
             for row in rows if row["latency"]])


def killed_table(rows):
    body = []
    for row in rows:
        found = [str(row["samples"]), milliseconds(row["median"]), milliseconds(row["worst"])] if row["samples"] else \
            ["–", f"more than {row['more_than']:,.0f}", "–"]
        body.append([title(row["side"]), row["means"], *found])
    return ["time from killing a worker with `kill -9` until another worker receives its job", "mechanism", "samples", "median ms", "worst ms"], body


def notify_table(rows):
    rate = medians(rows, ("side", "notify", "sync"), "rate")
    body = []
    for side, _ in sides_of(rows):
        cells = []
        for sync in ("on", "off"):
            without, with_ = rate.get((side, False, sync)), rate.get((side, True, sync))
            cells += [number(without), number(with_), f"{with_ / without:.2f}" if with_ and without else "–"]
        server = medians(rows, ("side", "notify", "sync"), "server")
        body.append([title(side), *cells, " / ".join(number(server.get((side, notify, "off"))) for notify in (False, True))])
    return ["jobs/s enqueued by 32 producers", "without, on", "with NOTIFY", "ratio", "without, off", "with NOTIFY", "ratio",
            "server us/job with *off*, without / with NOTIFY"], body


def bytes_table(rows):
    return (["bytes per job", "waiting", "done"],
            [[title(row["side"]), number(row["waiting"]), number(row["finished"])] for row in rows])


SECTIONS = {
    "enqueue": ("Enqueue", "8 producers enqueue jobs. *On* means `synchronous_commit = on` and, for Redis, `appendfsync always`; *off* means "
                "`synchronous_commit = off` and `appendfsync everysec`. The cost columns were measured with *off*, and each shows the cost with one job at a time and in batches of 100.", lambda rows: rates_table(rows, "jobs/s")),
    "cycle": ("From waiting to done", "8 workers claim jobs and complete them. PgQ has one reader and does not handle individual jobs. BullMQ has no batches, "
              "so it runs 100 jobs at once instead. The cost columns have the same meaning as under *Enqueue*.", lambda rows: rates_table(rows, "jobs/s")),
    "mixed": ("Producers and workers together", "4 producers and 4 workers run for {SECS_MIXED} s, one job at a time (PgQ has only one reader, and pg-boss uses `fetch`). "
              "The producers pause while {ROOM:,} jobs are waiting.", lambda rows: run_table(rows, "", False)),
    "latency": ("Latency at {RATE} jobs per second", "Latency is the time between the moment when a job was due to be enqueued and the moment when a worker receives it. "
                "4 producers and 4 workers run for {SECS_MIXED} s; each system uses its own notifications.", lambda rows: run_table(rows, "", True)),
    "held": ("While a snapshot is held", "Producers and workers run together for {SECS_HELD} s, while another session holds a REPEATABLE READ "
             "snapshot. BullMQ is not listed, because Redis has no snapshots.", lambda rows: run_table(rows, "", False)),
    "waiting": ("A long backlog", "8 workers take one job at a time; PgQ takes batches of 100.", waiting_table),
    "idle": ("An idle worker is woken", "Ten jobs per second arrive at random times; each system uses its own notifications.", idle_table),
    "killed": ("A worker is killed", "", killed_table),
    "notify": ("What notifications cost producers", "One session listens. graphile-worker always notifies.", notify_table),
    "bytes": ("Bytes", "The figures include tables and indexes or, for Redis, memory. *Done* means a finished job under the system's "
              "default settings. graphile-worker deletes finished jobs, and PgQ empties its tables by rotation.", bytes_table),
}


def tables(results):
    for measure, (heading, text, table) in SECTIONS.items():
        rows = results["measures"].get(measure)
        if rows:
            head, body = table(rows)
            yield heading.format(**results["settings"]), text.format(**results["settings"]), head, body


def about(results):
    settings = results["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    text = f"These versions were measured on {settings['date']}: idemq at commit {settings['commit']}, {versions}. "
    text += f"All clients and servers ran on one machine ({settings['machine']}). "
    text += f"The rates are medians of {settings['ROUNDS']} rounds of {settings['SECS']} s, in which the systems took turns."
    if settings["load"] > 1:
        text += f" **The machine was busy with other work: before the run, the load average was {settings['load']:.0f}. Measure again on a quiet machine.**"
    return text


def svg(figure, path, name):
    """With a variable for each color."""
    from io import StringIO
    text = StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = text.getvalue()
    for dummy, (variable, _, _) in COLORS.items():
        drawn = drawn.replace(dummy, f"var(--{variable})")
    light = " ".join(f"--{name}: {color};" for name, color, _ in COLORS.values())
    dark = " ".join(f"--{name}: {color};" for name, _, color in COLORS.values())
    style = f"<style>svg {{ {light} }} @media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}</style>"
    drawn = re.sub(r"(<svg [^>]*>)", r"\1\n <title>" + name + "</title>\n " + style, drawn, count=1)
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(line.rstrip() for line in drawn.splitlines()) + "\n")


def new_plot(heading, width=7.6, height=3.4):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    plt.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "idemq", "font.family": "sans-serif", "font.size": 10,
        "text.color": COLOR["ink"], "axes.labelcolor": COLOR["ink"], "xtick.color": COLOR["soft"], "ytick.color": COLOR["soft"],
        "xtick.labelcolor": COLOR["ink"], "ytick.labelcolor": COLOR["ink"], "axes.edgecolor": COLOR["soft"],
    })
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    axes.set_title(heading, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return figure, axes


def plot_rates(rows, heading, path):
    """Bars: one by one through the same kind of client, durable and not."""
    rate = medians([row for row in rows if row["by"] == "node"], ("side", "batch", "sync"), "rate")
    sides = [side for side in ("idemq", "skip", "pgq", "graphile", "boss", "bullmq") if (side, 1, "off") in rate]
    figure, axes = new_plot(heading, height=0.55 * len(sides) + 1)
    for place, side in enumerate(reversed(sides)):
        for offset, sync, alpha in ((0.2, "on", 1), (-0.2, "off", 0.5)):
            value = rate.get((side, 1, sync))
            if value is None:
                continue
            axes.barh(place + offset, value, 0.36, color=COLOR[side], alpha=alpha)
            axes.text(value, place + offset, f" {value:,.0f}" + (" durable" if sync == "on" else ""), va="center", fontsize=9)
    axes.set_yticks(range(len(sides)), [NAMES[side] for side in reversed(sides)])
    axes.margins(x=0.15)
    axes.grid(axis="x", color=COLOR["grid"])
    svg(figure, path, heading)


def plot_time(rows, heading, path):
    figure, axes = new_plot(heading)
    for row in rows:
        step = row["seconds"] / len(row["parts"])
        axes.plot([step * (n + 0.5) for n in range(len(row["parts"]))], row["parts"], color=COLOR[row["side"]], linewidth=2)
    # the names beside the ends of the lines, from below, each a step above the one before
    axes.set_yscale("log")
    least, most = axes.get_ylim()
    above = 0
    for row in sorted(rows, key=lambda row: row["parts"][-1]):
        place = max(row["parts"][-1], above)
        above = place * (most / least) ** 0.07
        axes.text(row["seconds"], place, NAMES[row["side"]], color=COLOR[row["side"]], va="center", fontsize=9)
    axes.set_xlabel("seconds since the snapshot was taken")
    axes.set_xlim(0, rows[0]["seconds"] * 1.25)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="y", color=COLOR["grid"])
    svg(figure, path, heading)


def plot_latency(rows, heading, path):
    figure, axes = new_plot(heading, height=0.5 * len(rows) + 1)
    for place, row in enumerate(reversed(rows)):
        found = row["latency"]
        if not found:
            continue
        values = [found["p50"], found["p99"], found["p999"]]
        axes.plot(values, [place] * 3, color=COLOR[row["side"]], linewidth=1.5)
        axes.scatter(values, [place] * 3, s=[50, 30, 14], color=COLOR[row["side"]])
        axes.text(values[2] * 1.2, place, f"{milliseconds(values[0])} / {milliseconds(values[1])} / {milliseconds(values[2])}",
                  va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [NAMES[row["side"]] for row in reversed(rows)])
    axes.set_xscale("log")
    axes.margins(x=0.25, y=0.15)
    axes.set_xlabel("milliseconds: p50, p99, p99.9")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(axis="x", color=COLOR["grid"])
    svg(figure, path, heading)


def plots(results, directory):
    """(file, what it shows) of what was measured"""
    os.makedirs(directory, exist_ok=True)
    found = results["measures"]
    wanted = [
        ("cycle", "cycle.svg", "Jobs completed per second, one at a time, 8 workers", plot_rates),
        ("enqueue", "enqueue.svg", "Jobs enqueued per second, one at a time, 8 producers", plot_rates),
        ("held", "held.svg", "Jobs completed per second while a snapshot is held", plot_time),
        ("latency", "latency.svg", f"From enqueue to a worker, at {results['settings']['RATE']} jobs per second", plot_latency),
    ]
    for measure, name, heading, draw in wanted:
        if measure in found:
            draw(found[measure], heading, os.path.join(directory, name))
            yield name, heading


def write_page(results, page):
    directory = os.path.splitext(page)[0]
    try:
        drawn = list(plots(results, directory))
    except ImportError:
        print("no matplotlib: the plots stay as they were (Debian: python3-matplotlib)", file=sys.stderr)
        drawn = []
    text = [about(results)]
    if results["left_out"]:
        text.append(" ".join(f"{reason}." for reason in results["left_out"]))
    text += [f"![{heading}]({os.path.basename(directory)}/{name})" for name, heading in drawn]
    for heading, said, head, body in tables(results):
        text.append(f"### {heading}")
        if said:
            text.append(said)
        text.append("\n".join(markdown(head, body)))
    put_between(page, "peers", "\n\n".join(text))


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        results = json.load(file)
    print(about(results))
    for heading, said, head, body in tables(results):
        print(f"\n{heading}. {said}\n")
        print("\n".join(plain(head, body)))
    if len(sys.argv) > 2 and sys.argv[2]:
        write_page(results, sys.argv[2])


if __name__ == "__main__":
    main()
