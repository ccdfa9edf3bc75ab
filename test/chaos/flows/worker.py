"""worker.py: works all queues of one tenant; README.md here, arguments in common.py.

Each handler is one attempt, or what it takes of transactions: it may be cut off, stalled or
killed anywhere, and begun again with the same token.
"""

import time

from psycopg.types.json import Jsonb

from common import FlowClient

QUEUES = ("graph", "graph2", "brief", "events", "fan1", "fan2", "fan3", "fan4", "seq", "debounce",
          "kinds", "undo", "trips", "limited", "elastic", "grouped", "permits")
KINDS = ("k0", "k1", "k2", "k3", "k4")
# Queues of which workers hold back a group, or all, before they give a job back.
HELD = ("kinds", "limited", "elastic", "grouped", "permits")
CALL_TIMEOUT = 1.0  # seconds, of a call to a company


class Stop(Exception):
    """The attempt is given back: whoever claims the job next goes on."""


class Worker(FlowClient):
    def __init__(self, *args):
        super().__init__(*args)
        # A rolling deployment: each knows some kinds, the calm ones all.
        self.kinds = KINDS if self.calm else self.dice.sample(KINDS, 3)

    def work(self):
        queues = [f"{self.tenant}.{queue}" for queue in self.dice.sample(QUEUES, len(QUEUES))]
        jobs = []

        def take():
            jobs[:] = self.rows(
                "SELECT id, token, payload, queue, kind, attempt FROM take(%s, %s, %s, %s)",
                (queues, self.dice.choice((1, 1, 2, 4)), self.name, self.chance(0.3)),
            )

        self.do(take)
        for job in jobs:
            self.attempt(*job)
        if self.chance(0.05):
            self.probe()
        if self.dice.random() < 0.3:
            self.do(self.admit)
        return bool(jobs)

    def attempt(self, job, token, payload, queue, kind, attempt):
        tenant, name = queue.split(".")
        if tenant != self.tenant or payload.get("tenant", payload.get("payload", {}).get("tenant")) != self.tenant:
            self.note("foreign", queue, payload)
        handler = getattr(self, "do_" + name.rstrip("1234"))
        self.job, self.token, self.payload, self.queue, self.kind = job, token, payload, name, kind
        if self.chance(0.02):
            return  # forgotten: its lease ends
        if self.chance(0.06):
            if name in HELD:
                # 22023: another hold has ended, and no job has been claimed since.
                self.do(self.hold, ("22023",))
            self.do(self.give_up)
            return
        try:
            # IQ002: committed before its answer was lost, in a queue with retention 0.
            self.do(handler, ("IQ002",))
        except Stop:
            pass

    def hold(self):
        """As after a 429: the group, or the queue if there is none, waits for a while."""
        self.execute("SELECT idemq.hold_back(%s, %s, make_interval(secs => %s))", (self.job, self.token, self.dice.uniform(0.01, 0.3)))

    def give_up(self):
        if self.dice.random() < 0.5:
            self.execute("SELECT idemq.fail(%s, %s, 'no luck', retry_in => '5 ms')", (self.job, self.token))
        else:
            self.execute("SELECT idemq.release(%s, %s)", (self.job, self.token))

    def admit(self):
        """A call that is no job: 20 a second, by whatever tenant."""
        self.execute("INSERT INTO admitted SELECT t0, clock_timestamp(), life() FROM (SELECT clock_timestamp() AS t0 OFFSET 0) t, "
                     "LATERAL idemq.admit('calls' || left(t0::text, 0), 20, '1 s') WHERE allowed")

    def effect(self, flow, part, value=None, parents=()):
        """The end of the attempt with its effect, in the transaction that is open or one of its own."""
        args = (flow, self.tenant, self.payload.get("n"), part, self.job, self.token, Jsonb(value), list(parents))
        sql = "SELECT effect(%s, %s, %s, %s, %s, %s, %s, %s::text[])"
        if self.chance(0.03):
            self.execute("SAVEPOINT undone")
            self.execute(sql, args)
            self.execute("ROLLBACK TO SAVEPOINT undone")
        self.execute(sql, args)

    def simply(self, flow, part, value=None, parents=()):
        self.execute("BEGIN")
        self.effect(flow, part, value, parents)
        if self.chance(0.02):
            self.execute("ROLLBACK")
            self.execute("BEGIN")
            self.effect(flow, part, value, parents)
        if self.dice.random() < 0.2:
            time.sleep(self.dice.uniform(0, 0.01))  # so that trouble comes in the middle, too
        self.commit()

    # ---- Graphs

    def do_graph(self):
        key = self.payload["key"]
        self.execute("BEGIN")
        # Parents may have been added since it was enqueued.
        parents = self.one("SELECT parents FROM nodes WHERE key = %s", (key,))[0]
        if self.queue != "brief" and self.dice.random() < 0.3:
            self.grow(key)
        if self.payload["plan"] == "die" and not self.one("SELECT 1 FROM mended WHERE key = %s", (key,)):
            outcome = self.one("SELECT idemq.fail(%s, %s, 'as planned', permanent => true)::text", (self.job, self.token))[0]
            if outcome == "dead":
                self.execute("INSERT INTO deaths SELECT 'graph', %s, %s, missing(%s::text[])", (key, self.job, parents))
        else:
            self.effect("graph", key, None, parents)
        self.commit()

    do_brief = do_graph

    def grow(self, key):
        """A child of this job that waits gets a parent more, in this transaction; each attempt adds the same one."""
        child = self.one("SELECT n.key, n.job, n.queue FROM nodes n JOIN idemq.jobs j ON j.id = n.job WHERE n.parents @> ARRAY[%s] AND j.status = 'blocked' "
                         "AND n.queue NOT LIKE '%%.brief' ORDER BY n.job LIMIT 1", (key,))
        if child is None:
            return
        part = f"{child[0]}+{key}"
        payload = {"tenant": self.tenant, "key": part, "plan": "run", "parents": []}
        self.execute("SAVEPOINT grow")
        try:
            # This job may die, and be brought back when the queue's window is over.
            job = self.one("SELECT id FROM idemq.enqueue(%s, %s, key => %s, key_ttl => '1 h')", (child[2], Jsonb(payload), part))[0]
            outcome = self.one("SELECT outcome::text FROM idemq.add_parents(%s, ARRAY[%s]::bigint[], %s, %s)", (child[1], job, self.job, self.token))[0]
        except Exception as error:  # pylint: disable=broad-except
            # 55000: it was cancelled, or this job had completed before; 42501: the right to enqueue is revoked.
            if getattr(error, "sqlstate", None) not in ("55000", "42501"):
                raise
            outcome = error.sqlstate
        if outcome not in ("added", "already"):
            self.execute("ROLLBACK TO SAVEPOINT grow")
            self.note("not-grown", outcome)
            return
        self.execute("INSERT INTO nodes VALUES (%s, %s, %s, 'run', 'cancel', '{}', %s) ON CONFLICT DO NOTHING", (part, self.tenant, child[2], job))
        self.execute("UPDATE nodes SET parents = parents || %s::text WHERE key = %s AND NOT parents @> ARRAY[%s]", (part, child[0], part))

    # ---- Events

    def do_events(self):
        name, n = self.payload["event"], self.payload["n"]
        self.execute("BEGIN")
        outcome, payload = self.one(
            "SELECT * FROM idemq.await_event(%s, %s, %s, %s)", (self.job, self.token, name, self.payload["patience"]))
        if outcome == "waiting":
            if self.chance(0.1):
                self.execute("ROLLBACK")  # the job is ours still
                raise Stop
            if self.dice.random() < 0.4:
                time.sleep(self.dice.uniform(0, 0.03))  # so that the event comes before this has committed
            self.commit()
            return
        self.execute("INSERT INTO heard VALUES (%s, %s, %s)", (self.job, outcome, Jsonb(payload)))
        if self.chance(0.2):
            self.execute("COMMIT")
            self.give_up()
            return
        self.effect("events", f"{n}.{self.payload['waiter']}", [outcome, payload])
        self.commit()

    # ---- Topics, sequences, debounce, kinds, limits

    def do_fan(self):
        self.simply("fan", f"{self.payload['n']}.{self.queue}")

    def do_seq(self):
        self.simply("seq", str(self.payload["n"]))

    def do_debounce(self):
        self.simply("debounce", str(self.job), self.payload["rev"])

    def do_kinds(self):
        if self.kind not in self.kinds:
            self.execute("SELECT idemq.release(%s, %s, delay => '50 ms')", (self.job, self.token))
            self.note("unknown-kind")
            return
        self.simply("kinds", f"{self.payload['n']}.{self.kind}", self.kind)

    def do_limited(self):
        time.sleep(self.dice.uniform(0, 0.02))
        self.simply("limited", self.payload["part"])

    def do_elastic(self):
        time.sleep(self.dice.uniform(0, 0.02))
        self.simply("elastic", self.payload["part"])

    def do_grouped(self):
        self.simply("grouped", self.payload["part"], self.payload["group"])

    def do_permits(self):
        time.sleep(self.dice.uniform(0, 0.02))
        self.simply("permits", self.payload["part"], self.payload["group"])

    # ---- A saga

    def later(self, delay):
        self.execute("SELECT idemq.release(%s, %s, delay => %s)", (self.job, self.token, delay))
        raise Stop

    def step(self, name, request, call):
        """One step: call(effect_key, until) answers booked, refused or late."""
        while True:
            until = self.one("SELECT clock_timestamp() + make_interval(secs => %s)", (CALL_TIMEOUT,))[0]
            outcome, _, _, _, retry_after, effect_key = self.one(
                "CALL idemq.begin_step(%s, %s, %s, %s, make_interval(secs => %s))",
                (self.job, self.token, name, Jsonb(request), CALL_TIMEOUT))
            if outcome == "done":
                return
            if outcome == "busy":
                self.later(retry_after)
            answer = call(effect_key, until)
            if answer == "refused":
                self.execute("SELECT idemq.refuse_step(%s, %s, %s, 'full')", (self.job, self.token, name))
                continue
            if answer == "late" or self.chance(0.15):
                self.later("0")  # the answer was lost: the step stays open
            self.execute("SELECT idemq.finish_step(%s, %s, %s, %s)", (self.job, self.token, name, Jsonb(effect_key)))
            return

    def do_trips(self):
        n = self.payload["n"]
        for place, what in enumerate(("flight", "hotel", "car")):
            if self.payload["dies_at"] == place:
                self.execute("BEGIN")
                if self.one("SELECT idemq.fail(%s, %s, 'no car left', permanent => true)::text", (self.job, self.token))[0] == "dead":
                    self.execute("INSERT INTO deaths VALUES ('trips', %s, %s)", (n, self.job))
                self.commit()
                return

            def book(key, until, what=what):
                return self.one("SELECT book(%s, %s, %s, %s, %s)", (key, n, what, until, self.chance(0.1)))[0]

            self.step(what, {"n": n}, book)
        self.simply("trips", str(n))

    def do_undo(self):
        trip = self.payload["id"]
        self.payload["n"] = self.payload["payload"]["n"]
        for step in reversed(self.payload["steps"]):
            if step["state"] not in ("done", "open"):
                continue
            state, token, key, wait = self.one(
                "SELECT state, token, effect_key, greatest(call_until - clock_timestamp(), '0') FROM idemq.steps "
                "WHERE job_id = %s AND name = %s", (trip, step["name"]))
            if state == "open" and wait:
                self.later(wait)
            if self.one("SELECT is_booked(%s)", (key,))[0]:
                self.step("undo " + step["name"], {"booking": key}, lambda undo_key, _, key=key: self.unbook(key, undo_key))
            if state == "open":
                self.execute("SELECT idemq.finish_step(%s, %s, %s, '\"undone\"')", (trip, token, step["name"]))
        self.simply("undo", str(self.payload["n"]))

    def unbook(self, key, undo_key):
        self.execute("INSERT INTO undos VALUES (%s, %s) ON CONFLICT DO NOTHING", (key, undo_key))
        return "booked"

    # ---- What is another tenant's

    def probe(self):
        """Nothing of another tenant's is seen, or answered."""
        seen = self.ask(
            "SELECT 'jobs', count(*) FROM idemq.jobs WHERE NOT queue_id = ANY (%(own)s) "
            "UNION ALL SELECT 'steps', count(*) FROM idemq.steps WHERE NOT queue_id = ANY (%(own)s) "
            "UNION ALL SELECT 'events', count(*) FROM idemq.events WHERE NOT queue_id = ANY (%(own)s) "
            "UNION ALL SELECT 'producers', count(*) FROM idemq.producers WHERE NOT queue_id = ANY (%(own)s) "
            "UNION ALL SELECT 'dependencies', count(*) FROM idemq.dependencies WHERE NOT queue_id = ANY (%(own)s) "
            "UNION ALL SELECT 'metrics', count(*) FROM idemq.metrics WHERE NOT queue_id = ANY (%(own)s) "
            "UNION ALL SELECT 'running_jobs', count(*) FROM idemq.running_jobs WHERE queue !~ %(name)s",
            {"own": self.ids(), "name": rf"^{self.tenant}\."})
        for what, count in seen:
            if count:
                self.note("foreign", what, count)
        other = self.ask("SELECT job, token, queue FROM claims WHERE queue !~ %s AND queue !~ '^turns' ORDER BY t1 DESC LIMIT 1", (rf"^{self.tenant}\.",))
        if not other:
            return
        job, token, queue = other[0]
        self.note("probes")
        for sql, args, state in (
            ("SELECT idemq.commit(%s, %s)", (job, token), "IQ002"),
            ("SELECT idemq.enqueue(%s, '{}', depends_on => ARRAY[%s]::bigint[])", (f"{self.tenant}.graph", job), "IQ002"),
            ("SELECT idemq.claim(%s)", (queue,), "42501"),
            ("SELECT idemq.send_event(%s, 'e1')", (queue,), "42501"),
            ("SELECT idemq.publish(%s, '{}')", (queue.split(".")[0] + ".a.b",), "42501"),
        ):
            refused = self.settle(lambda sql=sql, args=args: self.execute(sql, args), ("IQ002", "42501", "57014"))
            if refused not in (state, "57014"):
                self.note("foreign", sql, refused)
        if self.ask("SELECT idemq.cancel(%s)::text, (SELECT count(*) FROM idemq.parents(%s))", (job, job)) != [("not_found", 0)]:
            self.note("foreign", "cancel or parents", job)

    def ids(self):
        return [row[0] for row in self.ask("SELECT queue_id FROM idemq.queues WHERE name ~ %s", (rf"^{self.tenant}\.",))]
