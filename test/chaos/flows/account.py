#!/usr/bin/python3
"""account.py DSN: whether what the ledgers say is what was promised; README.md here.

Run when all is at rest.  Each violation is a line "found: ...", each count "figure: ...".
"""

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from datetime import timedelta

from findings import figure, found, none, rows

# ---- Of all

none("an effect twice", "SELECT flow, tenant, part, array_agg(job), array_agg(token) FROM effects GROUP BY 1, 2, 3 HAVING count(*) > 1")
none("two effects of a job", "SELECT job, array_agg(part) FROM effects GROUP BY 1 HAVING count(*) > 1")
none("an effect of a token that was never claimed",
     "SELECT e.flow, e.part, e.job, e.token FROM effects e WHERE NOT EXISTS (SELECT FROM claims c WHERE c.job = e.job AND c.token = e.token)")
none("an effect of another tenant's queue", "SELECT e.* FROM effects e JOIN claims c USING (job, token) WHERE split_part(c.queue, '.', 1) <> e.tenant")
none("a token that did not grow", "SELECT * FROM (SELECT job, token, lag(token) OVER (PARTITION BY job ORDER BY t1) AS before FROM claims) c WHERE before >= token")
none("unfinished", "SELECT q.name, j.id, j.status, j.payload, idemq.why(j.id) FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE j.finished_at IS NULL")
none("not to be seen", "SELECT what, at FROM excess")
none("no effect of what was asked for", "SELECT flow, tenant, part FROM wants w WHERE flow IN ('kinds', 'limited', 'elastic', 'grouped', 'permits', 'turns') "
     "AND NOT EXISTS (SELECT FROM effects e WHERE (e.flow, e.tenant, e.part) = (w.flow, w.tenant, w.part))")
none("an effect that nobody asked for", "SELECT flow, tenant, part FROM effects e WHERE flow IN ('kinds', 'limited', 'elastic', 'grouped', 'permits', 'turns', 'trips') "
     "AND NOT EXISTS (SELECT FROM wants w WHERE (e.flow, e.tenant, e.part) = (w.flow, w.tenant, w.part))")
none("a kind by which it was not routed", "SELECT * FROM effects JOIN wants USING (flow, tenant, part) WHERE flow = 'kinds' AND value <> details->'kind'")
figure("effects", dict(rows("SELECT flow, count(*) FROM effects GROUP BY 1")))
figure("claims", dict(rows("SELECT 'all', count(*) FROM claims UNION ALL SELECT 'of jobs claimed again', count(*) - count(DISTINCT job) FROM claims")))


# ---- Graphs: what each node has come to, by its plan, its mode and its parents

def graphs():
    nodes = {key: (plan, mode, parents, job) for key, plan, mode, parents, job in rows("SELECT key, plan, mode, parents, job FROM nodes")}
    status = dict(rows("SELECT j.id, j.status::text FROM idemq.jobs j JOIN nodes n ON n.job = j.id"))
    missing = dict(rows("SELECT part, missing FROM effects WHERE flow = 'graph'"))
    deaths = defaultdict(list)
    for part, lacking in rows("SELECT part, missing FROM deaths WHERE flow = 'graph'"):
        deaths[part].append(lacking)
    cancelled = {row[0] for row in rows("SELECT job FROM cancels")}
    mended = {row[0] for row in rows("SELECT key FROM mended")}
    jobs = {node[3] for node in nodes.values()}
    counts = Counter()

    def state(key):
        if key in missing:
            return "done"
        if nodes[key][3] in status:
            return status[nodes[key][3]]
        return "dead" if key in deaths else "gone"

    def failed_once(key):
        return state(key) != "done" or key in deaths or key in mended or nodes[key][3] in cancelled

    for key in missing.keys() - nodes.keys():
        found("an effect of a node that nobody asked for", key)
    for key, (plan, mode, parents, job) in nodes.items():
        now = state(key)
        of_parents = [state(parent) for parent in parents]
        facts = (key, job, plan, mode, now, list(zip(parents, of_parents)), "mended" if key in mended else "")
        counts[f"{mode if parents else 'root'} {now}"] += 1
        if now == "done" and job in status and status[job] != "completed":
            found("an effect of a job that is not completed", status[job], *facts)
        if now == "completed":
            found("a job completed without its effect", *facts)
        for lacking in [missing.get(key, []), *deaths[key]]:
            # A child that runs in any case runs when its parents are finished: a parent without an effect has failed.
            wrong = lacking if mode != "run" else [parent for parent in lacking if not failed_once(parent)]
            if wrong:
                found("a child that ran before its parents had committed:", wrong, *facts)
        if now in ("done", "dead") and mode != "run" and any(parent != "done" for parent in of_parents):
            found("a child that ran, and its parents have not", *facts)
        if now == "dead" and plan != "die":
            found("a job that died unasked", *facts)
        if now == "done" and plan == "die" and key not in mended:
            found("a job that was to die", *facts)
        if now in ("cancelled", "gone"):
            if now == "gone" and all(parent == "done" for parent in of_parents):
                found("a job that was lost", *facts)
            elif job not in cancelled and not (mode == "cancel" and any(failed_once(parent) for parent in parents)):
                found("a job that was cancelled by nobody", *facts)
        if now not in ("cancelled", "gone") and mode == "cancel" and any(parent in ("dead", "cancelled", "gone") for parent in of_parents):
            found("a child that was to be cancelled", *facts)
        if parents and mode == "run" and now == "done" and missing[key]:
            counts["ran after a failed parent"] += 1
        if mode == "wait" and now == "done" and any(parent in mended for parent in parents):
            counts["waited for a parent that was brought back"] += 1
    grown = sum("+" in key for key in nodes)
    if grown == 0 and len(nodes) > 300:
        found("no job that was added to a flow", len(nodes))
    figure("nodes of graphs", {"all": len(nodes), "added by running jobs": grown, "brought back": len(mended), "cancelled by hand": len(cancelled & jobs), **counts})


graphs()


# ---- Events: the first payload, once, for each that waits

def events():
    sent = defaultdict(list)
    counts = Counter()
    for name, payload, outcome, first in rows("SELECT name, payload, outcome, first_payload FROM sent"):
        sent[name].append((payload, outcome, first))
    for name, sends in sent.items():
        accepted = [payload for payload, outcome, _ in sends if outcome == "accepted"]
        if len(accepted) != 1:
            found("an event that was accepted so often:", len(accepted), name, sends)
        elif any(first != accepted[0] for _, outcome, first in sends if outcome == "duplicate"):
            found("a duplicate with another first payload", name, sends)
        counts["sent again"] += len(sends) - 1
    heard = {part: tuple(value) for part, value in rows("SELECT part, value FROM effects WHERE flow = 'events'")}
    for n, details in rows("SELECT n, details FROM wants WHERE flow = 'events'"):
        accepted = [payload for payload, outcome, _ in sent[f"e{n}"] if outcome == "accepted"]
        for waiter in range(details["waiters"]):
            got = heard.pop(f"{n}.{waiter}", None)
            allowed = [("arrived", payload) for payload in accepted]
            if details["plan"] == "never" or details["plan"] == "tight":
                allowed.append(("timed_out", None))
            if got not in allowed:
                found("a waiter that heard", got, "in place of", allowed, n, waiter, details)
            counts[f"{details['plan']} {got and got[0]}"] += 1
    for part in heard:
        found("a waiter that nobody asked for", part)
    none("two answers to one waiter", "SELECT job, array_agg(DISTINCT outcome || coalesce(payload::text, '')) FROM heard GROUP BY 1 "
         "HAVING count(DISTINCT outcome || coalesce(payload::text, '')) > 1")
    figure("waiters", counts)


events()


# ---- Topics: one job for each bound queue, all or none

none("a publication that has not one job in each bound queue",
     "SELECT tenant, n, topic, expected, got FROM (SELECT tenant, n, topic, expected, array_agg(queue ORDER BY queue) AS got FROM "
     "(SELECT p.ctid, tenant, n, topic, expected, queue FROM published p) p GROUP BY 1, 2, 3, 4) x "
     "WHERE NOT (got @> expected) OR cardinality(got) NOT IN (cardinality(expected), 2 * cardinality(expected))")
none("a job in a queue that is not bound", "SELECT tenant, n, topic, queue, outcome, expected FROM published p WHERE NOT queue = ANY (expected) "
     "AND NOT EXISTS (SELECT FROM published f WHERE (f.tenant, f.n, f.queue) = (p.tenant, p.n, p.queue) AND f.queue = ANY (f.expected))")
none("a key that made two jobs", "SELECT tenant, n, queue, array_agg(job), array_agg(outcome) FROM published GROUP BY 1, 2, 3 "
     "HAVING count(DISTINCT job) <> 1 OR count(*) FILTER (WHERE outcome = 'accepted') <> 1")
none("a published job without its effect", "SELECT DISTINCT tenant, n, queue, job FROM published p WHERE NOT EXISTS "
     "(SELECT FROM effects e WHERE e.flow = 'fan' AND e.job = p.job AND e.part = p.n || '.' || split_part(p.queue, '.', 2))")
none("an effect of what was not published", "SELECT tenant, part, job FROM effects e WHERE flow = 'fan' AND NOT EXISTS (SELECT FROM published p WHERE p.job = e.job)")
figure("published", dict(rows("SELECT 'calls with a job', count(DISTINCT (tenant, n)) FROM published UNION ALL SELECT 'jobs', count(DISTINCT job) FROM published "
                              "UNION ALL SELECT 'duplicates', count(*) FROM published WHERE outcome = 'duplicate' "
                              "UNION ALL SELECT 'skipped bindings', count(DISTINCT (tenant, n)) FROM published p WHERE topic ~ '^\\w+\\.\\w+\\.\\w+$' "
                              "AND NOT EXISTS (SELECT FROM published f WHERE (f.tenant, f.n) = (p.tenant, p.n) AND f.queue ~ 'fan4')")))

# ---- Sequences: no gap, no double

none("a gap in a sequence", "SELECT tenant, max(n), count(DISTINCT n), count(*) FROM effects WHERE flow = 'seq' GROUP BY 1 HAVING max(n) <> count(DISTINCT n) OR min(n) <> 1")
none("a sequence without its last numbers", "SELECT q.name, p.seq, (SELECT max(n) FROM effects e WHERE flow = 'seq' AND e.tenant || '.seq' = q.name) FROM idemq.producers p "
     "JOIN idemq.queues q USING (queue_id) WHERE p.seq IS DISTINCT FROM (SELECT max(n) FROM effects e WHERE flow = 'seq' AND e.tenant || '.seq' = q.name)")

# ---- Debounce: the newest payload, once, and not too late

none("a debounced job with another payload than the newest, or not once",
     "SELECT * FROM (SELECT r.tenant, r.key, r.job, max(r.rev) FILTER (WHERE outcome = 'accepted' OR status = 'pending' AND attempt = 0) AS newest, "
     "(SELECT array_agg((e.value #>> '{}')::bigint) FROM effects e WHERE e.flow = 'debounce' AND e.job = r.job) AS did FROM requests r GROUP BY 1, 2, 3) x "
     "WHERE did IS DISTINCT FROM ARRAY[newest]")
none("a debounced job that was deferred for too long", "SELECT * FROM requests WHERE late > '0'")
none("a debounced job that nobody asked for", "SELECT * FROM effects e WHERE flow = 'debounce' AND NOT EXISTS (SELECT FROM requests r WHERE r.job = e.job)")
figure("requests", dict(rows("SELECT outcome || ' ' || status, count(*) FROM requests GROUP BY 1")))


# ---- Sagas: three bookings, or each of those made undone once

def sagas():
    done = {row[0] for row in rows("SELECT n FROM effects WHERE flow = 'trips'")}
    records = Counter(row[0] for row in rows("SELECT (payload #>> '{payload,n}')::bigint FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name ~ 'undo$'"))
    undone = {row[0] for row in rows("SELECT n FROM effects WHERE flow = 'undo'")}
    bookings, undos = defaultdict(list), Counter()
    for key, n, what in rows("SELECT key, n, what FROM bookings"):
        bookings[n].append((what, key))
    for booking, in rows("SELECT booking FROM undos"):
        undos[booking] += 1
    counts = Counter()
    for n, details in rows("SELECT n, details FROM wants WHERE flow = 'trips'"):
        booked = sorted(what for what, _ in bookings[n])
        times = [undos[key] for _, key in bookings[n]]
        facts = (n, details, booked, times, f"{records[n]} dead-letter records")
        if len(booked) != len(set(booked)):
            found("a step that was done twice", *facts)
        if n in done:
            counts["made"] += 1
            if booked != ["car", "flight", "hotel"] or any(times) or records[n]:
                found("a trip that was made, and not, or was undone", *facts)
        else:
            counts[f"undone {len(booked)} steps"] += 1
            if any(time != 1 for time in times):
                found("a step that was not undone exactly once", *facts)
            if records[n] > 1 or (booked and n not in undone):
                found("a trip that does not have exactly one dead-letter record", *facts)
    for key in undos.keys() - {key for made in bookings.values() for _, key in made}:
        found("what was never booked was undone", key)
    figure("trips", counts)


sagas()


# ---- Limits, by the log of claims and ends

def overlaps(queues, most):
    """Attempts that committed had their permit from the claim on: so many at once."""
    per_queue = defaultdict(list)
    for queue, begun, ended in rows("SELECT c.queue || coalesce(' ' || (e.value #>> '{}'), ''), c.t1, e.ended FROM effects e "
                                     "JOIN claims c USING (job, token) WHERE c.queue ~ %s AND e.value IS DISTINCT FROM '\"alone\"'", (queues,)):
        per_queue[queue] += [(begun, 1), (ended, -1)]
    peak = 0
    for queue, changes in per_queue.items():
        at_once = 0
        for at, change in sorted(changes):
            at_once += change
            peak = max(peak, at_once)
            if at_once > most:
                found("so many at once:", at_once, queue, at)
    return peak


def rate(what, calls, limit):
    """Never more than limit + limit * t in any time t; each call was made between its two times."""
    calls.sort()
    for i, (begun, _) in enumerate(calls):
        ends = sorted(end for _, end in calls[i:i + 150])
        for count, end in enumerate(ends, 1):
            if count > limit + limit * ((end - begun) / timedelta(seconds=1)):
                found("a rate was exceeded:", what, count, "from", begun, "to", end)
                return


def limits():
    figure("most at once by the log", {"limited": overlaps("limited", 3), "elastic": overlaps("elastic", 4),
                                          "of a group": overlaps("grouped", 1), "of a group with two permits": overlaps("permits", 2),
                                          "of a group with four": overlaps("turns", 4)})
    for sql, limit in (("SELECT queue, t0, t1, life FROM claims WHERE queue ~ 'limited'", 6),
                       ("SELECT c.queue || ' ' || (e.value #>> '{}'), t0, t1, life FROM effects e JOIN claims c USING (job, token) "
                        "WHERE c.queue ~ 'permits' AND e.value <> '\"alone\"'", 2),
                       ("SELECT 'admit', t0, t1, life FROM admitted", 20)):
        calls = defaultdict(list)
        for what, begun, ended, life in rows(sql):
            calls[what, life].append((begun, ended))
        for (what, _), times in calls.items():
            rate(what, times, limit)
        counts = Counter()
        for (what, _), times in calls.items():
            counts[what] += len(times)
        figure(f"calls under {limit} a second", counts)


limits()
figure("looks", dict(rows("SELECT 'all', count(*) FROM looks UNION ALL SELECT 'at a full queue', count(*) FROM looks WHERE running = 3")))


# ---- Turns: who stays claimable falls behind nobody by more than there are sessions

class Turn:
    """A try to claim: what it took, of which group, and which jobs and groups were in the line just before."""

    def __init__(self, row):
        self.slot, self.tried, self.looked, self.begun, self.ended, self.job, self.name, names, jobs, noted = row
        self.fate_is_known = self.begun is not None
        self.jobs = {job for job, is_noted in zip(jobs or (), noted or ()) if is_noted}
        self.names = {name for name, is_noted in zip(names or (), noted or ()) if is_noted}

    def __repr__(self):
        return f"({self.slot} {self.begun:%T.%f}: {self.job} of '{self.name}', in line {sorted(self.names)} {sorted(self.jobs)})"


def tries_of(queue):
    return [Turn(row) for row in rows(
        "SELECT slot, t.begun, looked, u.begun, u.ended, job, name, line_names, line_jobs, line_noted FROM tries t LEFT JOIN turns u USING (try) "
        "WHERE queue = %s ORDER BY try", (queue,))]


def of_one_session(queue):
    """One session at a time: while a group stays claimable no other gets ahead of it by more than one."""
    tries = tries_of(queue)
    names = {turn.name for turn in tries if turn.job}
    counts = Counter({"claims": sum(turn.job is not None for turn in tries), "of unknown fate": sum(not turn.fate_is_known for turn in tries)})
    for ahead in names:
        since = []  # claims of it since a claim was rolled back, after which it may have two jobs in the line
        for turn in tries:
            since.append(since[-1] + (turn.name == ahead) if since and turn.fate_is_known else 0)
        for behind in names - {ahead}:
            most = 0  # by which the former gets ahead in an interval that begins here
            for i in range(len(tries) - 1, -1, -1):
                turn = tries[i]
                if not turn.fate_is_known or behind not in turn.names:
                    most = 0
                    continue
                most = max(0, most) + (turn.name == ahead) - (turn.name == behind)
                if i > 0 and since[i - 1] >= 2:
                    counts["intervals"] += most == 1
                    counts["most ahead"] = max(counts["most ahead"], most)
                    if most > 1:
                        found("a group that got ahead of one that could be claimed all the time:", ahead, behind, most, tries[i:i + 12])
                        return
    if counts["intervals"] < 20:
        found("too few turns to judge", counts)
    figure(f"{queue}, one session", counts)


def of_sessions(queue, sessions):
    """While a job waits in the line, no other group has more claims than there are sessions; of what is ordered for certain."""
    tries = tries_of(queue)
    claims = sorted((turn for turn in tries if turn.job), key=lambda turn: turn.begun)
    begins = [turn.begun for turn in claims]
    # A try is over, with its transaction, when the next one of its slot has begun.
    unknown, earlier, looks = [], defaultdict(list), defaultdict(list)
    for slot in {turn.slot for turn in tries}:
        of_slot = [turn for turn in tries if turn.slot == slot]
        for turn, then in zip(of_slot, of_slot[1:]):
            if turn.job:
                earlier[turn.job].append((turn.begun, then.tried))
            elif not turn.fate_is_known:
                unknown.append((turn.tried, then.tried))
    for turn in tries:
        for job in turn.jobs:
            looks[job].append((turn.looked, turn.begun))
    counts = Counter({"claims": len(claims), "of unknown fate": len(unknown)})
    for taken in claims:
        calm_since = max((end for begun, end in unknown if begun < taken.begun), default=tries[0].tried)
        # It came into the line anew after its last attempt.
        came_after = max((over for begun, over in earlier[taken.job] if begun < taken.begun), default=tries[0].tried)
        start = min((seen for looked, seen in looks[taken.job] if calm_since <= seen < taken.begun and looked >= came_after), default=None)
        if start is None:
            continue
        passed = Counter(turn.name for turn in claims[bisect_left(begins, start):bisect_left(begins, taken.begun)] if turn.ended < taken.begun)
        before = Counter(turn.name for turn in claims[bisect_left(begins, calm_since):bisect_left(begins, start)] if turn.ended < start)
        for name, count in passed.items():
            # Since a claim was rolled back, until it has been claimed so often, a group may have several jobs in the line.
            if name == taken.name or before[name] <= sessions:
                continue
            counts["intervals"] += 1
            counts["most ahead"] = max(counts["most ahead"], count)
            if count > sessions:
                found("a group that got ahead of a job that waited:", name, count, start, taken,
                      [turn for turn in claims if start <= turn.begun <= taken.begun][:12])
                return
    if counts["intervals"] < 20:
        found("too few turns to judge", counts)
    figure(f"{queue}, {sessions} sessions", counts)


of_one_session("turns.single")
of_sessions("turns.pair", 2)

# ---- Gauges are what the rows say; retention may come between these and those, and then that is asked again

GAUGES = ("SELECT m.queue, s.status, s.gauge, s.rows FROM idemq.metrics m, LATERAL (SELECT g.status, g.gauge, (SELECT count(*) FROM idemq.jobs j "
          "WHERE j.queue_id = m.queue_id AND j.status::text = g.status) AS rows FROM (VALUES ('pending', m.pending), ('blocked', m.blocked), "
          "('running', m.running), ('retrying', m.retrying), ('completed', m.completed), ('dead', m.dead), ('cancelled', m.cancelled)) g (status, gauge)) s "
          "WHERE m.queue ~ '^t' AND s.gauge <> s.rows")

for _ in range(100):
    if not rows(GAUGES):
        break
    time.sleep(0.1)
none("a gauge of metrics that is not what the rows say", GAUGES)
