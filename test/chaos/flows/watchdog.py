#!/usr/bin/python3
"""watchdog.py DSN LOG: checks that each job started as soon as it could, and that no job started too early.  See README.md.

Must be run when all jobs are done.  The ledger happened and the "watch" lines of the log say what was the case at each
instant.  A queue is open while it certainly has a job that may start: the job is committed and due, its queue and group are
not held or paused, there is room at every limit, and a session is seeking a job.  Whenever this is doubtful (a claim whose
outcome is unknown, a client that was killed, a crash), the queue counts as not open.  At most LIMIT seconds may pass from the
instant at which a queue opens until one of its jobs starts, or until the queue is no longer open.  The delays in the lines
"watch late" are added to this LATE_FACTOR times, because several processes take part in a start.

Prints a line "found: ..." for each violation, lines "figure: ..." with counts, and a line "instants: N" with the number of instants.
"""

import heapq
import sys
from collections import Counter, defaultdict, deque
from itertools import count

from findings import found, rows
from late import LATE_FACTOR, LIMIT, Late

COUNTS_FOR = 17 / 16  # number of periods for which a start counts toward a rate, at most
FOREVER = float("inf")

log = sys.argv[2]


class Queue:
    """What is certain about a queue at one instant."""

    def __init__(self, name, grouped, max_running, group_max_running, rate, group_rate, period):
        self.name, self.grouped = name, grouped
        self.max_running = max_running or FOREVER
        self.group_max_running = group_max_running
        self.rate, self.group_rate, self.period = rate, group_rate, period * COUNTS_FOR + 0.005
        self.waiting = {}  # job: (name of its group, since when it is due)
        self.running = {}  # job: name; if the attempt is lost, it is not known when the job is due
        self.closings = []  # [scope, until, when it committed, kind]
        self.starts, self.group_starts = deque(), defaultdict(deque)
        self.seeking, self.doubtful = set(), set()
        self.since, self.cause = None, None  # when the queue opened, and which event opened it
        self.last = deque(maxlen=40)

    def closed(self, scope, now):
        return any(c[0] == scope and c[1] > now for c in self.closings)

    def charge(self, now, name=None, every_group=False):
        """Counts a start toward the rates; every_group: it may have been rolled back, and may have been in any group."""
        self.starts.append(now)
        for group in list(self.group_starts) if every_group else [name]:
            self.group_starts[group].append(now)

    def at_rate(self, starts, limit, now):
        while starts and starts[0] <= now - self.period:
            starts.popleft()
        return limit is not None and len(starts) >= limit

    def startable(self, now):
        """Returns jobs of which one can certainly start if a session is seeking a job."""
        if self.doubtful or self.closed(None, now) or len(self.running) >= self.max_running or self.at_rate(self.starts, self.rate, now):
            return []
        groups = defaultdict(list)
        for job, (name, due) in self.waiting.items():
            groups[name].append((job, due))
        running = Counter(self.running.values())
        able = []
        for name, jobs in groups.items():
            if name is None:
                able += [job for job, due in jobs if due <= now]
            # The watchdog does not know which job of the group is next, so all of them must be due.
            elif (running[name] < self.group_max_running and all(due <= now for _, due in jobs) and not self.closed(name, now)
                  and not self.at_rate(self.group_starts[name], self.group_rate, now)):
                able += [job for job, _ in jobs]
        return able

    def state(self, now):
        return (f"queue {self.name}: waiting {self.waiting}, running {self.running}, "
                f"closings {[c for c in self.closings if c[1] > now - 3]}, seeking {sorted(self.seeking)}, "
                f"starts {[round(t - now, 3) for t in self.starts]}, before: " + "; ".join(f"{t - now:.3f} {what}" for t, what in self.last))


class Room:
    """What is certain about the room in a queue with max_unfinished; it is open if there is as much room as a session waits for."""

    def __init__(self, name, max_unfinished):
        self.name, self.max_unfinished = name + ", room", max_unfinished
        self.jobs = set()
        self.seeking, self.doubtful = {}, set()
        self.since, self.cause = None, None
        self.last = deque(maxlen=40)

    def startable(self, _now):
        return not self.doubtful and any(len(self.jobs) + n <= self.max_unfinished for n in self.seeking.values())

    def state(self, now):
        return (f"queue {self.name}: {len(self.jobs)} jobs, seeking {self.seeking}, before: "
                + "; ".join(f"{t - now:.3f} {what}" for t, what in self.last))


class Watchdog:
    def __init__(self):
        self.queues = {row[0]: Queue(*row) for row in rows(
            "SELECT queue, grouped, max_running, group_max_running, rate, group_rate, extract(epoch FROM period)::float8 FROM watched")}
        self.rooms = {row[0]: Room(*row) for row in rows("SELECT queue, max_unfinished FROM watched WHERE max_unfinished IS NOT NULL")}
        self.sessions = {}  # name: its queues
        self.fillers = {}  # name: its room
        self.heap, self.order = [], count()
        self.opened, self.latest, self.worst = Counter(), Counter(), []
        self.away = set()  # why no instant counts right now
        self.late = None
        self.answered = {}
        self.refused = 0
        self.read_ledger()
        self.read_log()

    def at(self, when, kind, *args):
        heapq.heappush(self.heap, (when, next(self.order), kind, args))

    def read_ledger(self):
        self.ledger = rows("SELECT id, what, queue, name, job, token, extract(epoch FROM t0)::float8, extract(epoch FROM t1)::float8, "
                           "extract(epoch FROM ready)::float8, extract(epoch FROM until)::float8, "
                           "extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8, worker FROM happened ORDER BY id")
        last = {}
        for row in self.ledger:
            what, job, t0, committed = row[1], row[4], row[6], row[10]
            # A job that is claimed may be gone from when the claim began; a hold or pause may be in force from then on.
            when = t0 if what in ("start", "hold", "pause") else committed
            if what in ("enqueue", "start", "commit", "fail", "release"):
                # A claim may have begun before what made the job due: the ledger has these in their order.
                when = last[job] = max(when, last.get(job, 0.0))
            self.at(when, what, *row)

    def read_log(self):
        spans = []
        with open(log, encoding="utf-8") as file:
            for line in file:
                words = line.split()
                if words[:1] != ["watch"]:
                    continue
                if words[1] == "late":
                    spans.append(tuple(map(float, words[2:])))
                elif words[1] == "answered":
                    self.answered[int(words[2])] = float(words[3])
                else:
                    self.at(float(words[3]), words[1], words[2], *words[4:])
        self.late = Late(spans)

    # ---- What happens

    def run(self):
        while self.heap:
            now, _, kind, args = heapq.heappop(self.heap)
            touched = getattr(self, "on_" + kind)(now, *args) or ()
            for queue in touched:
                self.judge(queue, now, kind)

    def judge(self, queue, now, kind):
        is_open = not self.away and queue.seeking and queue.startable(now)
        if is_open and queue.since is None:
            queue.since, queue.cause = now, "room" if isinstance(queue, Room) else kind
        elif not is_open and queue.since is not None:
            self.close(queue, now, kind)

    def close(self, queue, now, kind, started=None):
        """Notes that the queue is no longer open, or that a job started at the time started."""
        end = started or now
        took = end - queue.since
        lost = self.late.between(queue.since, end)
        if took - lost * LATE_FACTOR > LIMIT:
            found(f"no job started for {took:.3f} s ({lost:.3f} s lost) from {queue.since:.6f} on, opened by {queue.cause}, ended by {kind};", queue.state(queue.since))
        if started is not None:
            self.opened[queue.cause] += 1
            self.latest[queue.cause] = max(self.latest[queue.cause], took)
            self.worst.append(took - lost * LATE_FACTOR)
        queue.since = None

    def on_enqueue(self, now, _id, _what, q, name, job, _token, _t0, _t1, ready, *_):
        queue = self.note(now, q, f"enqueue {job} {name}")
        self.wait(queue, job, name, ready, now)
        room = self.rooms.get(q)
        if room is None:
            return [queue]
        room.jobs.add(job)
        room.last.append((now, f"enqueue {job}"))
        return [queue, room]

    def wait(self, queue, job, name, ready, now):
        queue.waiting[job] = (name, ready)
        queue.group_starts.setdefault(name, deque())
        if ready > now:
            self.at(ready, "due", queue)

    def note(self, now, q, what):
        queue = self.queues[q]
        queue.last.append((now, what))
        return queue

    def on_start(self, now, _id, _what, q, name, job, token, _t0, t1, _ready, _until, _committed, worker):
        queue = self.note(now, q, f"start {job} {name} by {worker}")
        if queue.since is not None:
            self.close(queue, now, "start", max(t1, queue.since))
        queue.waiting.pop(job, None)
        queue.running[job] = name
        queue.charge(t1, name)
        self.at(t1 + queue.period, "rate", queue)
        self.leave(worker)
        return self.queues.values()

    def ended(self, now, _id, what, q, name, job, _token, _t0, _t1, ready, *_):
        queue = self.note(now, q, f"{what} {job} {name}")
        queue.running.pop(job, None)
        if what != "commit":
            self.wait(queue, job, name, ready, now)
        room = self.rooms.get(q)
        if room is None or what != "commit":
            return [queue]
        room.jobs.discard(job)
        room.last.append((now, f"commit {job}"))
        return [queue, room]

    on_commit = on_fail = on_release = ended

    def closing(self, now, _id, what, q, name, _job, _token, _t0, _t1, _ready, until, committed, _worker):
        queue = self.note(now, q, f"{what} {name} until {until - now:.3f}")
        queue.closings = [c for c in queue.closings if c[1] > now - 3]
        queue.closings.append([name, until, committed, what])
        if until < FOREVER:
            self.at(until, f"{what}_ends", queue)
        return [queue]

    on_hold = on_pause = closing

    def on_resume(self, now, _id, _what, q, name, _job, _token, t0, *_):
        queue = self.note(now, q, f"resume {name}")
        for c in queue.closings:
            # A resume of the queue ends holds of its groups, but not their pauses.
            if c[2] < t0 and (c[0] == name or (name is None and c[3] == "hold")):
                c[1] = min(c[1], now)
        queue.closings = [c for c in queue.closings if c[1] > now]
        return [queue]

    def on_due(self, _now, queue):
        return [queue]

    on_rate = on_hold_ends = on_pause_ends = on_due

    def leave(self, name):
        for q in self.sessions.get(name, ()):
            self.queues[q].seeking.discard(name)

    def on_seeks(self, _now, name, queues):
        self.sessions[name] = queues.split(",")
        for q in self.sessions[name]:
            self.queues[q].seeking.add(name)
            self.queues[q].doubtful.discard(name)
        return [self.queues[q] for q in self.sessions[name]]

    def on_tries(self, now, name, *_):
        self.leave(name)
        for q in self.sessions[name]:
            self.queues[q].doubtful.add(name)
        return self.reset(name, now)

    def reset(self, name, now):
        """Begins again for the queues of a client whose claim may have taken a job until now, and may count toward the rates."""
        queues = [self.queues[q] for q in self.sessions[name]]
        for queue in queues:
            queue.last.append((now, f"{name} left"))
            if queue.since is not None:
                self.close(queue, now, "a client that left")
            queue.charge(now, every_group=True)
            self.at(now + queue.period, "rate", queue)
        return queues

    # ---- Room

    def on_needs(self, now, name, q, jobs):
        room = self.fillers[name] = self.rooms[q]
        room.doubtful.discard(name)
        room.seeking[name] = int(jobs)
        room.last.append((now, f"{name} needs {jobs}"))
        return [room]

    def on_fills(self, now, name):
        """A producer was woken, as this room requires; the other waiting producers then begin again."""
        room = self.fillers[name]
        if room.since is not None:
            self.close(room, now, "fills", now)
        room.seeking.pop(name, None)
        room.doubtful.add(name)
        room.last.append((now, f"{name} fills"))
        return [room]

    def room_leave(self, now, name):
        room = self.fillers[name]
        if room.since is not None:
            self.close(room, now, "a client that left")
        room.seeking.pop(name, None)
        room.doubtful.discard(name)
        room.last.append((now, f"{name} left"))
        return [room]

    def on_over(self, now, _name, q, jobs, group=""):
        found(f"{jobs} jobs in {q} {group} at {now:.6f}:", self.rooms.get(q, self.queues[q]).state(now))

    def on_refused(self, *_):
        self.refused += 1

    # ---- The end of a client, and of all

    def on_leaves(self, now, name, *_):
        if name in self.fillers:
            return self.room_leave(now, name)
        was_trying = any(name in self.queues[q].seeking or name in self.queues[q].doubtful for q in self.sessions.get(name, ()))
        self.leave(name)
        for q in self.sessions.get(name, ()):
            self.queues[q].doubtful.discard(name)
        return self.reset(name, now) if was_trying else ()

    on_killed = on_leaves

    def on_stops(self, now, name, *_):
        if name in self.fillers:
            self.room_leave(now, name)
            self.fillers[name].doubtful.add(name)
        return self.on_tries(now, name) if name in self.sessions else ()

    on_continues = on_leaves

    def on_away(self, now, why):
        self.away.add(why)
        return self.both()

    def on_back(self, now, why):
        """Counts instants again; after a crash, assumes that all rates are used up."""
        self.away.discard(why)
        if why == "crash":
            for queue in self.queues.values():
                for _ in range(queue.rate or queue.group_rate or 1):
                    queue.charge(now, every_group=True)
                self.at(now + queue.period, "rate", queue)
        return self.both()

    def on_end(self, *_):
        self.away.add("end")
        return self.both()

    def both(self):
        return [*self.queues.values(), *self.rooms.values()]

    # ---- What must not happen

    def check_ledger(self):
        ends = Counter()
        for row in self.ledger:
            if row[1] == "commit":
                ends[row[4]] += 1
        for job, n in ends.items():
            if n > 1:
                found("two effects of a job", job)
        for row in self.ledger:
            if row[1] == "enqueue" and not ends[row[4]]:
                found("no effect of a job", row[4], row[2])
        starts = defaultdict(list)
        for row in self.ledger:
            if row[1] == "start":
                starts[row[2]].append(row)
        checked = self.check_closings(starts)
        checked += self.check_rates(starts)
        self.check_groups()
        print("figure: starts", sum(map(len, starts.values())), "effects", sum(ends.values()), "checked for rates and closings", checked)

    def check_closings(self, starts):
        """Finds starts that began after a hold or pause had certainly committed, and ended before the hold or pause ended or was changed."""
        checked = 0
        for number, what, q, name, _, _, t0, _, _, until, *_ in self.ledger:
            if what not in ("hold", "pause") or number not in self.answered:
                continue
            begin, end = self.answered[number], until
            for other in self.ledger:
                ends_it = other[1] == "resume" and (other[3] == name or (other[3] is None and what == "hold"))
                ends_it |= other[1] == what == "pause" and other[3] == name and other[0] != number
                if other[2] == q and ends_it and other[10] >= t0:
                    end = min(end, other[6])
            for start in starts[q]:
                if start[6] > begin and start[7] < end:
                    checked += 1
                    if name is None or start[3] == name:
                        found("a start in a", what, f"of {q} {name} from {begin:.6f} to {end:.6f}:", start)
        return checked

    def check_groups(self):
        """Checks, by the times of all commits, that no group ever had more unfinished jobs than group_max_unfinished."""
        full = 0
        for q, limit in rows("SELECT queue, group_max_unfinished FROM watched WHERE group_max_unfinished IS NOT NULL"):
            # Of changes at the same time, ends come first, because a job's room is free once its end is visible.
            changes = sorted((row[10], 1 if row[1] == "enqueue" else -1, row[3]) for row in self.ledger if row[2] == q and row[1] in ("enqueue", "commit"))
            jobs = Counter()
            for when, change, name in changes:
                jobs[name] += change
                full += change > 0 and jobs[name] == limit
                if jobs[name] > limit:
                    found(f"{jobs[name]} unfinished jobs of group {name} in {q} at {when:.6f}")
        print("figure: groups that became full", full, "jobs refused", self.refused)

    def check_rates(self, starts):
        checked = 0
        for q, of_queue in starts.items():
            queue = self.queues[q]
            by_group = defaultdict(list)
            for start in of_queue:
                by_group[start[3]].append(start)
            period = (queue.period - 0.005) / COUNTS_FOR
            for limit, line in [(queue.rate, of_queue)] + [(queue.group_rate, line) for name, line in by_group.items() if name is not None]:
                if limit is None:
                    continue
                line.sort(key=lambda start: start[7])
                for first in line:
                    # Starts that certainly began no earlier than this one; limit + 1 of them must not fit into one period.
                    after = [start for start in line if start[6] >= first[6]][: limit + 1]
                    checked += len(after) > limit
                    if len(after) > limit and after[-1][7] - first[6] < period:
                        found(f"{limit + 1} starts within {after[-1][7] - first[6]:.6f} s in {q} {first[3]}:", after)
        return checked


watchdog = Watchdog()
watchdog.run()
watchdog.check_ledger()
print("figure: opened by:", ", ".join(f"{cause} {n} ({watchdog.latest[cause] * 1000:.0f} ms)" for cause, n in sorted(watchdog.opened.items())))
watchdog.worst.sort()
print(f"figure: the machine was late by {watchdog.late.sums[-1]:.2f} s; the latest starts came after",
      ", ".join(f"{took * 1000:.0f} ms" for took in watchdog.worst[-3:]))
print("instants:", sum(watchdog.opened.values()))
