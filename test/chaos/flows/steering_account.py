#!/usr/bin/python3
"""steering_account.py DSN LOG: checks the ledgers of the third part.  See README.md.

Must be run when all jobs are done, while the Listener is still listening.  Prints a line "found: ..." for each violation, and lines
"figure: ..." with counts.  The lines of the log are explained in steering.py.
"""

import sys
import time
from collections import Counter, defaultdict

from findings import figure, found, none, rows
from late import LATE_FACTOR, LIMIT, Late

log = sys.argv[2]
FOREVER = float("inf")
LEASE = rows("SELECT extract(epoch FROM lease)::float8 FROM idemq.queues WHERE name = 's.told'")[0][0]


def enough(what, count, least):
    if count < least:
        found(f"only {count}", what)


class Log:
    """The lines of the log that concern this part."""

    def __init__(self):
        self.steps = defaultdict(list)  # what: its lines, as (name, time, the other words)
        self.away = []  # (begin, end) of the times when the server or its background worker was away
        self.stopped = defaultdict(list)  # name: (begin, end) of the times when the client was stopped, or ended
        self.lines = defaultdict(list)  # name: its lines, as (time, words)
        spans, stops, since = [], {}, None
        with open(log, encoding="utf-8") as file:
            for line in file:
                words = line.split()
                if words[:1] == ["steer"]:
                    self.steps[words[1]].append((words[2], float(words[3]), words[4:]))
                    self.lines[words[2]].append((float(words[3]), " ".join([words[1], *words[4:]])))
                elif words[:2] == ["watch", "late"]:
                    spans.append(tuple(map(float, words[2:])))
                elif words[:2] == ["watch", "away"]:
                    since = float(words[3])
                elif words[:2] == ["watch", "back"] and since is not None:
                    self.away.append((since, float(words[3])))
                elif words[:2] == ["watch", "stops"]:
                    stops[words[2]] = float(words[3])
                elif words[:2] == ["watch", "continues"]:
                    self.stopped[words[2]].append((stops.pop(words[2]), float(words[3])))
                elif words[:2] == ["watch", "killed"]:
                    self.stopped[words[2]].append((float(words[3]), FOREVER))
        for name, when, _ in self.steps["disturbed"]:
            # The session may have been lost some time before the client noticed it.
            self.stopped[name].append((when - LIMIT, when + 0.1))
        self.late = Late(spans)

    def around(self, name, begin, until):
        """What a client did at that time, for the report of a violation."""
        return "; ".join(f"{when - begin:.3f} {what}" for when, what in self.lines[name] if begin - 2 < when < until + 1)

    def is_away(self, begin, end):
        return any(since < end and until > begin for since, until in self.away)

    def is_disturbed(self, name, begin, end):
        return self.is_away(begin, end) or any(since < end and until > begin for since, until in self.stopped[name])


steps = Log()


# ---- Each job has one end

none("two ends of a job", "SELECT queue, job, array_agg(status) FROM finishes GROUP BY 1, 2 HAVING count(*) > 1")
none("a job whose end is not that in the ledger", "SELECT q.name, j.id, j.status, f.status FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) "
     "LEFT JOIN finishes f ON f.job = j.id WHERE q.name ~ '^s\\.' AND j.status::text IS DISTINCT FROM f.status")
none("an end of a job that does not exist", "SELECT * FROM finishes f WHERE NOT EXISTS (SELECT FROM idemq.jobs j WHERE j.id = f.job)")
figure("ends", dict(rows("SELECT queue || ' ' || status, count(*) FROM finishes GROUP BY 1")))


# ---- Cancels: the process is told at once, and only if its attempt was cancelled or taken back

class Attempt:
    """An attempt of a process that listens, from when it can be told until it is over."""

    def __init__(self, name, since):
        self.name, self.since, self.told, self.over = name, since, FOREVER, FOREVER


class Call:
    """A call that cancels a job or takes it back; stands: its transaction is known to have committed, and end is when."""

    def __init__(self, begin, how):
        self.begin, self.how, self.outcome, self.end, self.stands = begin, how, None, FOREVER, False


def calls_by_job():
    calls = defaultdict(list)
    for lines in steps.lines.values():
        call = None  # of this client
        for when, text in lines:
            what, *words = text.split()
            if what == "cancels":
                call = Call(when, words[1])
                calls[words[0]].append(call)
            elif what == "returned":
                call.outcome = words[1]
            elif what == "ended":
                call.end, call.stands = when, words[1] == "committed"
    return calls


def cancels():
    attempts = defaultdict(dict)  # job: token: its attempt
    for name, when, (job, token) in steps.steps["hears"]:
        attempts[job][token] = Attempt(name, when)
    for _, when, (job, token) in steps.steps["over"]:
        attempts[job][token].over = when
    for name, when, _ in steps.steps["leaves"]:
        for attempt in (attempt for of_job in attempts.values() for attempt in of_job.values()):
            if attempt.name == name and attempt.since < when:
                attempt.over = min(attempt.over, when)
    began = {(str(job), str(token)): when for job, token, when in rows("SELECT job, token, extract(epoch FROM t0)::float8 FROM claims")}
    calls, woken = calls_by_job(), defaultdict(list)
    for name, when, _ in steps.steps["woken"]:
        woken[name].append(when)
    counts, took = Counter(), []
    for name, when, (job, token, outcome, age) in steps.steps["told"]:
        attempts[job][token].told = when
        counts[f"told {outcome}"] += 1
        # The call may have begun before the attempt did, and marked it when it had the row.
        caused = any(call.begin < when and call.end > began[job, token] for call in calls[job])
        if not caused and float(age) < 0.8 * LEASE and not steps.is_away(when - float(age), when):
            found("a process that was told of an attempt that nobody cancelled:", name, f"{when:.6f}", job, token, outcome, age)
    for job, of_job in calls.items():
        for call in of_job:
            if call.outcome is None:
                continue  # the call may not have arrived
            until = call.begin + LIMIT
            until += LATE_FACTOR * steps.late.between(call.begin, until)
            for token, attempt in attempts[job].items():
                if attempt.since > call.begin or min(attempt.told, attempt.over) < call.begin:
                    continue
                heard = attempt.told
                if not call.stands:
                    # The heartbeat may have come after the rollback.
                    heard = min([heard, *(when for when in woken[attempt.name] if when > call.begin)])
                if heard <= until:
                    counts["judged"] += 1
                    counts[f"judged {call.how}"] += 1
                    took.append(heard - call.begin)
                elif attempt.over > until and not steps.is_disturbed(attempt.name, call.begin, until):
                    found(f"a process that was not told within {until - call.begin:.3f} s:", attempt.name, job, token, vars(call), vars(attempt),
                          "its log:", steps.around(attempt.name, call.begin, until))
    took.sort()
    if took:
        counts["p50 in ms"], counts["p99 in ms"] = round(took[len(took) // 2] * 1000), round(took[len(took) * 99 // 100] * 1000)
    enough("cancels of attempts whose process listened", counts["judged"], 20)
    figure("cancels", counts)


cancels()


# ---- Declarations

class Declared:
    """A queue's settings, and those that were last declared; both are None if it does not exist."""

    def __init__(self, settings=None, declared=None):
        self.settings, self.declared = settings, declared

    def is_unchanged(self, named):
        return self.settings is not None and all(self.declared.get(name) == value for name, value in named.items())

    def ensure(self, named):
        """Returns the outcome, its changes and the new state; the settings of a new queue are not known here."""
        if self.settings is None:
            return "created", None, None
        if self.is_unchanged(named):
            return "unchanged", None, self
        new = {name: value for name, value in named.items() if self.declared.get(name) != value}
        changes = {name: {"from": self.settings[name], "to": value} for name, value in new.items() if self.settings[name] != value}
        return "changed", changes, Declared(self.settings | new, self.declared | named)


def declarations(queue):
    calls = rows("SELECT id, what, named, changes, stored, declared, seen, t0, t1, xid FROM declarations WHERE queue = %s ORDER BY id", (queue,))
    writes = [call for call in calls if call[1] != "unchanged"]
    states, counts = [Declared()], Counter()
    for number, what, named, changes, stored, declared, *_ in writes:
        before = states[-1]
        after = Declared(stored, declared or {})
        counts[what] += 1
        if what == "drop":
            after = Declared()
        elif what == "alter":
            if before.settings is None or stored != before.settings | named or after.declared != before.declared:
                found("alter_queue that changed something else:", number, named, vars(before), vars(after))
        else:
            expected, expected_changes, state = before.ensure(named)
            if what == "created":
                state = Declared(stored | named, named)
            elif stored is None and state is not None:
                after = state
            if what != expected or changes != expected_changes or state is None or vars(after) != vars(state):
                found("a declaration with another answer or effect than the one expected:", number, what, changes, "expected", expected, expected_changes,
                      "named", named, "before", vars(before), "after", vars(after))
            counts["kept what the DBA had set"] += any(after.settings[name] != value for name, value in named.items())
        states.append(after)
    # An unchanged call holds no lock: it may have seen each state between those that were certainly before it and after it.
    first = dict(rows("SELECT c.id, count(w.id) FILTER (WHERE pg_visible_in_snapshot(w.xid, c.seen)) FROM declarations c "
                      "LEFT JOIN declarations w ON w.queue = c.queue AND w.what <> 'unchanged' WHERE c.queue = %s AND c.what = 'unchanged' GROUP BY 1", (queue,)))
    for number, what, named, _, stored, _, _, _, t1, _ in calls:
        if what != "unchanged":
            continue
        counts[what] += 1
        last = max((n for n, write in enumerate(writes, 1) if write[7] < t1), default=0)
        possible = states[first[number]:max(last, first[number]) + 1]
        if not any(state.is_unchanged(named) for state in possible):
            found("a declaration that was unchanged, and should not be:", number, named, [vars(state) for state in possible])
        counts["warned, and kept what the DBA had set"] += any((stored or named)[name] != value for name, value in named.items())
    now = rows("SELECT (s).settings, (s).declared FROM (SELECT steer_stored(name) AS s FROM idemq.queues WHERE name = %s) x", (queue,))
    if now and states[-1].settings != now[0][0]:
        found("settings that nobody has set:", now, vars(states[-1]))
    for what, least in (("created", 1), ("changed", 3), ("unchanged", 20), ("warned, and kept what the DBA had set", 3)):
        enough(f"calls of ensure_queue for {queue}: {what}", counts[what], least)
    figure(f"declarations of {queue}", counts)


declarations("d.one")
declarations("d.two")


# ---- Schedules

def schedule(number, begin, end):
    name = f"every{number}"
    ticks = {}
    for job, key, tick, enqueued in rows("SELECT id, key, extract(epoch FROM (headers->>'tick')::timestamptz)::float8, extract(epoch FROM enqueued_at)::float8 "
                                         "FROM idemq.jobs WHERE queue_id = idemq.queue_id('s.ticks') AND headers->>'schedule' = %s", (name,)):
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(tick))
        if tick in ticks:
            found("a tick that was enqueued twice:", name, key, job, ticks[tick])
        if tick % number != 0 or key != f"{name}@{stamp}":
            found("a tick that is not a multiple of its interval, or has another key:", name, tick % number, stamp, key, job)
        if enqueued < tick:
            found("a tick that was enqueued before its time:", name, key, enqueued - tick)
        ticks[tick] = enqueued
    pauses, since = [], None
    for what, t0, t1 in rows("SELECT what, extract(epoch FROM t0)::float8, extract(epoch FROM t1)::float8 FROM steered WHERE name = %s ORDER BY id", (name,)):
        if what == "pause" and since is None:
            since = t1
        elif what == "resume" and since is not None:
            pauses.append((since, t0))
            since = None
    if since is not None:
        pauses.append((since, FOREVER))
    for tick, enqueued in ticks.items():
        for since, until in pauses:
            if since < tick < until or since < enqueued < until:
                found("a tick in a pause:", name, tick, enqueued, since, until)
    # While a client may be pausing or resuming it, a tick may be skipped, or wait for the row's lock.
    doubtful, opened = [], {}
    for what in ("steers", "steered"):
        for client, when, (of,) in steps.steps[what]:
            if of == name:
                opened.setdefault(client, []).append((when, what))
    for lines in opened.values():
        lines.sort()
        for (when, what), (then, _) in zip(lines, lines[1:] + [(FOREVER, "")]):
            if what == "steers":
                doubtful.append((when, min(then, when + 3)))
    due, latest = 0, 0.0
    tick = begin + 1 - (begin + 1) % number + number
    while tick + number + 1 < end:
        until = tick
        # It is enqueued within 0.3 s, plus the time that the machine loses until then.
        while until < tick + number and until < (later := tick + 0.3 + LATE_FACTOR * steps.late.between(tick, until)):
            until = later
        is_doubtful = any(since < until and then > tick - 0.2 for since, then in doubtful + pauses) or steps.is_away(tick - 1, until)
        # A tick that is later than the next one is left out.
        if until < tick + number - 0.1 and not is_doubtful:
            due += 1
            if tick not in ticks:
                found("a tick that is missing:", name, tick, f"expected within {until - tick:.3f} s")
            else:
                latest = max(latest, ticks[tick] - tick)
        tick += number
    return len(ticks), due, len(pauses), latest


def schedules():
    begin = min(when for _, when, _ in steps.steps["hears"])
    end = rows("SELECT extract(epoch FROM until)::float8 FROM schedules_ended")[0][0]
    total = [schedule(number, begin, end) for number in range(1, 8)]
    ticks, due, pauses = (sum(column) for column in list(zip(*total))[:3])
    enough("ticks that had to come", due, 5)
    enough("pauses of schedules", pauses, 3)
    print(f"figure: ticks {ticks}, of these had to come {due}, pauses {pauses}, the latest tick came after {max(row[3] for row in total) * 1000:.0f} ms")


schedules()


# ---- Notifications of finished jobs

LEFT_OUT = (
    "SELECT queue, count(*) AS unannounced, (SELECT coalesce(sum(lost), 0) FROM overflows o WHERE o.queue = f.queue AND o.life = %(life)s) AS lost FROM finishes f "
    "WHERE life = %(life)s AND pg_xact_commit_timestamp(f.xmin) > (SELECT min(since) FROM listening l WHERE l.life = %(life)s) "
    "AND NOT EXISTS (SELECT FROM announced a WHERE a.job = f.job AND a.life = %(life)s) GROUP BY 1")


def notifications():
    life = {"life": rows("SELECT life()")[0][0]}
    none("a job that was announced before its end had committed, or with another status", "SELECT * FROM announced WHERE NOT known")
    none("an announced job of another queue", "SELECT a.* FROM announced a JOIN finishes f USING (job) WHERE a.queue <> f.queue")
    for _ in range(100):
        left_out = rows(LEFT_OUT, life)
        if all(unannounced <= lost for _, unannounced, lost in left_out):
            break
        time.sleep(0.1)
    for queue, unannounced, lost in left_out:
        if unannounced > lost:
            found(f"{unannounced} jobs of {queue} were not announced, and overflows have counted {lost}")
    announced, distinct, in_life = rows("SELECT count(*), count(DISTINCT job), count(DISTINCT job) FILTER (WHERE life = %(life)s) FROM announced", life)[0]
    lost = rows("SELECT coalesce(sum(lost), 0) FROM overflows WHERE life = %(life)s", life)[0][0]
    enough("announced jobs since the last crash", in_life, 20)
    enough("jobs that overflows have counted since the last crash", lost, 1)
    figure("announced", {"all": announced, "jobs": distinct, "since the last crash": in_life, "overflows since then": lost})


notifications()
