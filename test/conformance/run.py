"""run.py: runs the scenarios of scenarios.py, and prints a line of TAP for each.

    run.py --dsn DSN [--clients 'python node go idemq-work'] [--mixed] [--mutants] [--only '1 6'] [--adapter COMMAND --omit '16 17'] [--lanes 3]

A scenario that its client leaves out without a declaration has failed.
"""

import argparse
import concurrent.futures
import os
import shlex
import sys
import tempfile
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import psycopg  # noqa: E402

import kit  # noqa: E402
import scenarios  # noqa: E402


class Client:
    def __init__(self, name, command, env=None):
        self.name = name
        self.command = command
        self.env = env or {}


def known_clients(node, go):
    source = os.path.dirname(os.path.dirname(HERE))
    python = {"PYTHONPATH": f"{source}/clients/python", "PYTHONDONTWRITEBYTECODE": "1"}
    adapters = os.path.join(HERE, "adapters")
    return {
        "python": Client("python", ["/usr/bin/python3", f"{adapters}/python.py"], python),
        "node": Client("node", ["node", node or f"{adapters}/node.mjs"]),
        "go": Client("go", [go or f"{adapters}/go/adapter"]),
        "idemq-work": Client("idemq-work", ["/usr/bin/python3", f"{adapters}/work.py"], {"PYTHONDONTWRITEBYTECODE": "1"}),
    }


printing = threading.Lock()


def report(good, name, skip=None, why=""):
    with printing:
        print(f"{'ok' if good else 'not ok'} - {name}{f' # skip {skip}' if skip else ''}", flush=True)
        if why:
            print(why, file=sys.stderr, flush=True)


def run(scenario, clients, options, directory):
    """None if the clients pass; otherwise the exception, and where it came from."""
    context = None
    try:
        context = kit.Scenario(options.dsn, clients, directory)
        scenario.function(context)
        return None, ""
    except Exception as error:
        return error, traceback.format_exc()
    finally:
        if context:
            context.close()


def one(scenario, clients, label, options, directory):
    """Runs a scenario, and reports it.  Returns passed, omitted or failed."""
    name = f"{label}: {scenario.title}"
    workers = {each.name for each in (clients if label.startswith("mixed") else clients[:1])}
    declared = {each: scenario.may_omit[each] for each in workers if each in scenario.may_omit}
    if declared or scenario.number in options.omit:
        report(True, f"{name} (left out: {'; '.join(declared.values()) or 'as --omit says'})")
        return "omitted"
    began = time.monotonic()
    error, trace = run(scenario, clients, options, directory)
    if isinstance(error, kit.Omitted):
        report(False, name, why=f"{name}: left out, but not declared: {error}")
        return "failed"
    report(error is None, name, why=f"{name}:\n{trace}" if error else "")
    if options.verbose:
        print(f"# {time.monotonic() - began:.1f} s: {name}", file=sys.stderr, flush=True)
    return "failed" if error else "passed"


def mutant(scenario, name, bases, options, directory):
    """A broken client must fail because of what the scenario asserts.  It is Python's, unless the name begins with another client."""
    label = f"mutant '{name}' fails {scenario.number}"
    of, _, name = name.rpartition(": ")
    base = bases[of or "python"]
    client = Client("mutant", [*base.command, "--mutant", name], base.env)
    error, trace = run(scenario, [client] * 3, options, directory)
    good = isinstance(error, (kit.Failed, kit.Refused))
    report(good, label, why="" if good else f"{label}: {trace or 'it passes'}")
    if options.verbose:
        print(f"# {label}: {error}"[:300], file=sys.stderr, flush=True)
    return "passed" if good else "failed"


def pairs(names, scenario):
    """Which clients produce, work and work second when all are mixed.  Those that may leave a scenario out do not take part."""
    able = [name for name in names if name not in scenario.may_omit]
    if len(able) < 2:
        return []
    turns = range(len(able)) if scenario.for_two else [scenarios.ALL.index(scenario) % len(able)]
    return [[able[turn], able[(turn + 1) % len(able)], able[(turn + 2) % len(able)]] for turn in turns]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--clients", default="python node go idemq-work")
    parser.add_argument("--node")
    parser.add_argument("--go")
    parser.add_argument("--adapter")
    parser.add_argument("--omit", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--lanes", type=int, default=3)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    options.omit = options.omit.split()
    only = options.only.split()
    chosen = [each for each in scenarios.ALL if not only or each.number in only]

    with psycopg.connect(options.dsn, autocommit=True) as conn:
        if not conn.execute("SELECT to_regnamespace('conformance')").fetchone()[0]:
            conn.execute(kit.SCHEMA)
    clients = known_clients(options.node, options.go)
    names = options.clients.split()
    if options.adapter:
        clients["adapter"] = Client("adapter", shlex.split(options.adapter))
        names = ["adapter"]
    tasks = []
    with tempfile.TemporaryDirectory() as directory:
        for scenario in chosen:
            if options.mutants:
                tasks += [(scenario, each, mutant, (scenario, each, clients, options, directory)) for each in scenario.mutants]
                continue
            if options.mixed:
                for group in pairs(names, scenario):
                    label = f"mixed ({', '.join(group if scenario.for_two else group[:2])})"
                    tasks.append((scenario, "mixed", one, (scenario, [clients[name] for name in group], label, options, directory)))
                continue
            for name in names:
                tasks.append((scenario, name, one, (scenario, [clients[name]] * 3, name, options, directory)))
        with concurrent.futures.ThreadPoolExecutor(options.lanes) as pool:
            ends = list(pool.map(lambda task: (task[1], task[2](*task[3])), tasks))
    for name in dict.fromkeys(name for name, _ in ends) if not options.mutants else ():
        of = [end for each, end in ends if each == name]
        print(f"# {name}: {of.count('passed')} passed, {of.count('omitted')} left out, {of.count('failed')} failed", file=sys.stderr)
    with psycopg.connect(options.dsn, autocommit=True) as conn:
        broken = conn.execute("SELECT * FROM idemq.check() WHERE severity = 'error'").fetchall()
    report(not broken, "idemq.check() finds nothing", why=f"{broken}" if broken else "")
    sys.exit(1 if broken or any(end == "failed" for _, end in ends) else 0)


main()
