#!/usr/bin/python3
"""main.py TABLE: runs the scenarios that SCENARIO names, all by default, prints their table, and
writes it into a file as Markdown when all went well.  Called by run."""

import os
import signal
import sys
import time
from pathlib import Path

import patroni
import repmgr
import scenarios
from processes import BIN, WORK, Failure, await_orphans, call, stop_all

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from report import machine, markdown, plain  # pylint: disable=wrong-import-position

SCENARIOS = {
    "async": scenarios.asynchronous, "sync": scenarios.synchronous, "cascade": scenarios.cascade, "hang": scenarios.hangs,
    "repmgr": repmgr.repmgr, "patroni": patroni.patroni, "proxy": patroni.proxies,
}
LOAD = os.getloadavg()[0]
HEAD = ("setup", "event", "longest enqueue gap", "longest commit gap", "acknowledged jobs", "acknowledged commits", "lost jobs", "lost commits", "duplicate effects")


def row(one):
    told = one.account
    return (one.scenario, one.event, f"{told.no_enqueue:.1f} s", f"{told.no_commit:.1f} s", f"{told.enqueued:,}", f"{told.committed:,}",
            f"{len(told.lost_jobs):,}", f"{told.lost_commits:,}", str(told.effects_twice))


def measured():
    """What was measured, on what."""
    def version(*command):
        try:
            return [call(*command, "--version").strip()]
        except (FileNotFoundError, PermissionError):  # the latter where a folder of PATH may not be searched
            return []

    postgres = version(BIN / "postgres")[0].split(") ")[1].split()[0]
    versions = [f"PostgreSQL {postgres}", *version("patroni"), *version(BIN / "repmgr")]
    text = f"{time.strftime('%Y-%m-%d')}, {', '.join(versions)}; {machine()}"
    if LOAD >= 1:
        text += f"; **on a machine busy with other work (load {LOAD:.1f} before the run began)**"
    return text


def wanted():
    names = os.environ.get("SCENARIO", "").replace(",", " ").split() or list(SCENARIOS)
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        sys.exit(f"no such scenario: {' '.join(unknown)}; there are {' '.join(SCENARIOS)}")
    return names


def show_logs():
    """The ends of the logs, for who has to find out."""
    for path in sorted(WORK.glob("*.log")):
        text = path.read_text(errors="replace").splitlines()[-15:]
        print(f"--- {path.name}", *text, sep="\n", flush=True)


def run(names):
    """The rows, and whether all went well."""
    rows, good = [], True
    for name in names:
        begun = time.monotonic()
        try:
            rows += SCENARIOS[name]()
            print(f"ok     failover/{name} ({time.monotonic() - begun:.0f} s)", flush=True)
        except Exception as error:  # pylint: disable=broad-exception-caught
            good = False
            print(f"not ok failover/{name}: {type(error).__name__}: {error}", flush=True)
            show_logs()
            stop_all()
    return rows, good


def main():
    await_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        rows, good = run(wanted())
    finally:
        stop_all()
    cells = [row(one) for one in rows]
    print(*plain(HEAD, cells), sep="\n")
    if good:
        Path(sys.argv[1]).write_text("\n".join([*markdown(HEAD, cells), "", measured()]), encoding="utf-8")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
