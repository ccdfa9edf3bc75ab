"""main.py TREE WORK: changes one line at a time and runs the tests of its area; test/mutants/run, README.md."""

import collections
import concurrent.futures
import datetime
import fnmatch
import glob
import hashlib
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib

import uncovered
from change import changes

HERE = os.path.dirname(os.path.abspath(__file__))
TREE, WORK = sys.argv[1:3]
SEED = os.environ.get("MUTANTS_SEED") or datetime.date.today().strftime("%Y%m%d")
WANTED = int(os.environ.get("MUTANTS") or 170)
MINUTES = float(os.environ.get("MUTANTS_MINUTES") or 120)
AREAS = (os.environ.get("AREA") or "").split()
LANES = int(os.environ.get("LANES") or os.cpu_count() or 1)
PATIENCE = 240  # seconds; what hangs is noticed
SUITES = {"regress": "test/sql/%s.sql", "isolation": "test/specs/%s.spec", "tap": "test/t/%s.pl"}
BEGAN = time.monotonic()


def read_list(name):
    """Returns the entries of killed or unobservable: lists of fields, by what a change is known by."""
    entries = {}
    with open(f"{HERE}/{name}", encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                area, file, function, before, after, last = line.rstrip("\n").split("\t")
                entries[(file, function, before, after)] = (area, last)
    return entries


class Tests:
    """script/test in a tree, ended at the first test that fails."""

    def __init__(self, tree, env=None):
        self.tree = tree
        self.env = {**os.environ, "LANES": "1", "WERROR": "", "CI": "", "TEST_TIMEOUT": "120", **(env or {})}

    def run(self, chosen, stop=True):
        """Runs {suite: "names"}; returns the names of tests that passed and failed, and what was said."""
        env = {**self.env, **{suite.upper(): names for suite, names in chosen.items()}}
        process = subprocess.Popen([f"{self.tree}/script/test", *chosen], env=env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", start_new_session=True)  # fmt: skip
        passed, failed, said, ended = [], [], [], False
        timer = concurrent.futures.ThreadPoolExecutor(1)
        timer.submit(self.give_up, process)
        for line in process.stdout:
            said.append(line)
            found = re.match(r"(not )?ok +(\w+)[/:] ?([\w-]+)", line)
            if found and not (found.group(1) and ended):
                (failed if found.group(1) else passed).append(f"{found.group(2)}/{found.group(3)}")
            # What it shows of the failure comes below its line: the next one ends it.
            if failed and stop and not ended and len(said) > 1 and not found:
                ended = True
                end(process, signal.SIGTERM)
        process.wait()
        timer.shutdown(wait=False)
        return passed, failed, "".join(said)

    @staticmethod
    def give_up(process):
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            end(process, signal.SIGTERM)


def end(process, how):
    """Ends a run; one that has not ended after a while, at once."""
    try:
        os.killpg(process.pid, how)
    except ProcessLookupError:
        return
    if how == signal.SIGTERM:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            end(process, signal.SIGKILL)


def copied(name):
    """Returns a new copy of the tree, with its objects, which user postgres may read."""
    to = f"{WORK}/{name}"
    subprocess.run(["cp", "-a", "--reflink=auto", TREE, to], check=True)
    shutil.rmtree(f"{to}/.git", ignore_errors=True)
    if os.path.isfile(f"{to}/.git"):
        os.remove(f"{to}/.git")
    return to


def files_of(area):
    return sorted(f for pattern in area["files"] for f in glob.glob(pattern, root_dir=TREE) if fnmatch.fnmatch(f, pattern))


def check_areas(areas):
    """Ends the run when a file or a test of an area is not there: nothing would be changed, and all be killed."""
    for name, area in areas.items():
        wanted = area["files"] + [form % test for suite, form in SUITES.items() for test in area[suite].split()]
        lost = [pattern for pattern in wanted if not glob.glob(pattern, root_dir=TREE)]
        if lost:
            sys.exit(f"{name}: there is no {', '.join(lost)}")


def lines_that_run(areas):
    """Returns {area: {file: lines}}: what its tests run, by a build that counts.  Says what they fail."""
    tree = copied("counted")
    # A process that runs as postgres writes the counts.
    subprocess.run(f"find {tree} -name '*.o' -delete -o -name '*.so' -delete; chmod -R a+rwX {tree}", shell=True, check=True)
    tests = Tests(tree, {"COPT": "-O0 --coverage -fprofile-update=atomic", "SHLIB_LINK": "--coverage"})
    ran = {}
    for name, area in areas.items():
        for counts in glob.glob(f"{tree}/src/**/*.gcda", recursive=True):
            os.remove(counts)
        chosen = {suite: area[suite] for suite in SUITES if area[suite]}
        # Times are not those of the usual build: what fails here is not counted against a change.
        _, failed, said = tests.run(chosen, stop=False)
        counts = uncovered.read(tree)
        ran[name] = {file: {line for line, times in lines.items() if times} for file, lines in counts.items()}
        # CREATE EXTENSION runs each line of SQL.
        ran[name].update((file, {c.number for c in changes(TREE, file)}) for file in files_of(area) if file.endswith(".sql"))
        print(f"{name}: its tests run {sum(len(ran[name].get(f, ())) for f in files_of(area))} lines"
              + (f"; failed when counted: {' '.join(failed)}" if failed else ""), flush=True)  # fmt: skip
        if not any(ran[name].values()):
            sys.exit(said[:3000])
    return ran


def draw(areas, ran, known):
    """Returns (area, change) in random order, an area after the other."""
    chance = random.Random(SEED)
    pools = []
    for name, area in areas.items():
        pool = []
        for file in files_of(area):
            lines = ran[name].get(file, set())
            pool += [c for c in changes(TREE, file) if c.number in lines and c.name not in known]
        chance.shuffle(pool)
        pools.append([(name, change) for change in pool])
    while any(pools):
        for pool in pools:
            if pool:
                yield pool.pop()


class Lane:
    """A tree in which one line at a time is another."""

    def __init__(self, number):
        self.tree = copied(f"lane{number}")
        self.tests = Tests(self.tree)

    def code(self, change):
        """Returns what the compiler makes of the file of a change, without what debuggers read; None: nothing."""
        if change.file.endswith(".sql"):
            return None
        made = change.file[:-1] + "o"
        built = subprocess.run(["make", "-s", "-C", self.tree, made], capture_output=True)
        if built.returncode:
            return False
        plain = subprocess.run(["objcopy", "-S", "-R", ".note.gnu.build-id", f"{self.tree}/{made}", f"{self.tree}/plain.o"])
        with open(f"{self.tree}/plain.o", "rb") as file:
            return plain.returncode == 0 and hashlib.sha256(file.read()).digest()

    def put(self, change, text):
        path = f"{self.tree}/{change.file}"
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
        lines[change.number - 1] = text
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))

    def judge(self, change, area, first=None):
        """Returns ("killed", test), ("survived", "") or ("void", why): no change of what runs."""
        before = self.code(change)
        self.put(change, change.after)
        try:
            after = self.code(change)
            if after is False:
                return "void", "does not compile"
            if after is not None and after == before:
                return "void", "the same code"
            return self.killer(area, first)
        finally:
            self.put(change, change.before)
            self.code(change)

    def killer(self, area, first):
        fast = {suite: area[suite] for suite in ("regress", "isolation") if area[suite]}
        slow = {"tap": area["tap"]} if area["tap"] else {}
        rounds = [fast, slow]
        if first and first != "-":
            suite, test = first.split("/")
            rounds.insert(0, {suite: test})
        for chosen in filter(None, rounds):
            passed, failed, said = self.tests.run(chosen)
            if re.search(r"^.CREATE EXTENSION idemq;\n\+(psql:)?.*ERROR", said, re.MULTILINE):
                return "void", "is not installed"
            if failed:
                return "killed", failed[0]
            if len(passed) < sum(len(names.split()) for names in chosen.values()):
                return "killed", "a run that ends before its tests, or hangs"
        return "survived", ""


def minutes():
    return (time.monotonic() - BEGAN) / 60


def main():
    with open(f"{HERE}/areas.toml", "rb") as file:
        areas = tomllib.load(file)
    check_areas(areas)
    if AREAS:
        areas = {name: areas[name] for name in AREAS}
    killed, unobservable = read_list("killed"), read_list("unobservable")
    print(f"seed {SEED}, {LANES} lanes", flush=True)
    known = [(area, change, killed[change.name][1]) for area, spec in areas.items() for file in files_of(spec)
             for change in changes(TREE, file) if killed.get(change.name, ("",))[0] == area]  # fmt: skip
    there = {change.name for _, change, _ in known}
    gone = [name for name, (area, _) in killed.items() if area in areas and name not in there]
    ran = lines_that_run(areas) if WANTED else {}
    new = draw(areas, ran, {*killed, *unobservable}) if WANTED else iter(())
    old = iter({change.name: (area, change, test) for area, change, test in known}.values() if os.environ.get("KNOWN") != "0" else ())

    lanes = queue.SimpleQueue()
    for number in range(LANES):
        lanes.put(Lane(number))
    table = collections.defaultdict(collections.Counter)
    results = []

    def one(area, change, test=None):
        lane = lanes.get()
        try:
            what, by = lane.judge(change, areas[area], test)
        finally:
            lanes.put(lane)
        table[area][what] += 1
        results.append((what, by, area, change, test))
        if what != "void":
            print(f"{minutes():5.1f} min  {what:8} {area:14} {change.file}:{change.number} {change.function}: "
                  f"{change.before.strip()}  ->  {change.after.strip() or '(gone)'}{'  by ' + by if by else ''}", flush=True)  # fmt: skip

    with concurrent.futures.ThreadPoolExecutor(LANES) as pool:
        waiting = set()

        def feed(items, enough):
            nonlocal waiting
            for item in items:
                while len(waiting) >= LANES:
                    done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
                    for future in done:
                        future.result()
                if enough():
                    return
                waiting.add(pool.submit(one, *item))
            for future in concurrent.futures.as_completed(waiting):
                future.result()
            waiting = set()

        late = lambda: minutes() >= MINUTES  # noqa: E731
        feed(old, late)
        feed(new, lambda: late() or sum(1 for r in results if r[4] is None and r[0] != "void") + len(waiting) >= WANTED)
    report(table, results, gone)


def report(table, results, gone):
    print(f"\n{'area':16}{'changes':>8}{'killed':>8}{'survived':>9}{'void':>6}")
    total = collections.Counter()
    for area in sorted(table):
        row = table[area]
        total += row
        print(f"{area:16}{row['killed'] + row['survived']:8}{row['killed']:8}{row['survived']:9}{row['void']:6}")
    print(f"{'all':16}{total['killed'] + total['survived']:8}{total['killed']:8}{total['survived']:9}{total['void']:6}")
    for name in gone:
        print(f"no longer there: {' | '.join(name)}")
    if os.environ.get("RECORD"):
        record(results, gone)
    lost = [r for r in results if r[0] == "survived"]
    for _, _, area, change, test in lost:
        print(f"survived, {area}{' (it was killed by ' + test + ')' if test else ''}: {change.file}:{change.number} {change.function}\n"
              f"\t-{change.before.strip()}\n\t+{change.after.strip()}")  # fmt: skip
    print(f"{minutes():.0f} minutes; {total['killed']} passed, {len(lost)} failed")
    sys.exit(1 if lost else 0)


def record(results, gone):
    """Writes killed anew: what was killed is in, what is no longer there is out."""
    entries = {name: fields for name, fields in read_list("killed").items() if name not in set(gone)}
    for what, by, area, change, _ in results:
        if what == "killed":
            entries[change.name] = (area, by if "/" in by else "-")
    with open(f"{HERE}/killed", encoding="utf-8") as file:
        head = [line for line in file if line.startswith("#")]
    with open(f"{HERE}/killed", "w", encoding="utf-8") as file:
        file.writelines(head)
        for (name, (area, by)) in sorted(entries.items()):
            file.write("\t".join([area, *name, by]) + "\n")


main()
