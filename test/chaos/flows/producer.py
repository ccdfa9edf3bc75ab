"""producer.py: asks for work of every kind for one tenant; README.md here, arguments in common.py.

What is asked for is noted in the transaction that asks.  What is to come later (an event, a
cancel, the second half of a graph) is a row of todo, taken by whichever producer comes by.
calm: only that is done, and it ends when there is none left.
"""

import time

from psycopg.types.json import Jsonb

from common import FlowClient

BACKLOG = 150  # jobs of a tenant, above which nothing is added: this is no bench


class Producer(FlowClient):
    def __init__(self, *args):
        super().__init__(*args)
        self.menu = [self.graph] * 5 + [self.brief] * 3 + [self.event] * 4 + [self.publish] * 3 + [self.sequence] * 3 \
            + [self.debounce] * 4 + [self.kinds] + [self.trip] * 5 + [self.limited] * 2 + [self.grouped] * 2
        # Each once before any twice.
        self.first = self.dice.sample(list(dict.fromkeys(self.menu)), len(set(self.menu)))

    def queue(self, name):
        return f"{self.tenant}.{name}"

    def work(self):
        done = self.do(self.next_todo) is None and self.found
        if self.calm:
            if not done and not self.ask("SELECT count(*) FROM todo WHERE tenant = %s", (self.tenant,))[0][0]:
                self.ended = True
            return done
        if self.ask("SELECT count(*) FROM idemq.jobs WHERE finished_at IS NULL AND ready_at < now()")[0][0] > BACKLOG:
            return done
        flow = self.first.pop() if self.first else self.dice.choice(self.menu)
        # IQ002: a parent of a queue with retention 0 is gone.
        self.do(lambda: self.transaction(flow), ("IQ002",))
        return True

    def transaction(self, flow):
        self.execute("BEGIN")
        self.n = self.one("SELECT nextval('numbers')")[0]
        if self.chance(0.03):
            self.execute("SAVEPOINT undone")
            flow()
            self.execute("ROLLBACK TO SAVEPOINT undone")
        flow()
        self.commit()

    def want(self, flow, part, **details):
        self.execute("INSERT INTO wants VALUES (%s, %s, %s, %s, %s)", (flow, self.tenant, self.n, part, Jsonb(details)))

    def later(self, what, seconds, **details):
        self.execute("INSERT INTO todo (tenant, at, what, details) VALUES (%s, clock_timestamp() + make_interval(secs => %s), %s, %s)",
                     (self.tenant, seconds, what, Jsonb(details)))

    def next_todo(self):
        self.found = False
        self.execute("BEGIN")
        row = self.one(
            "DELETE FROM todo WHERE id = (SELECT id FROM todo WHERE tenant = %s AND (at < clock_timestamp() OR %s) "
            "ORDER BY at LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING what, details", (self.tenant, self.calm))
        if row:
            self.found = True
            getattr(self, "todo_" + row[0])(**row[1])
        self.commit()

    # ---- Graphs

    def shape(self):
        """The parents of each node, which come before it."""
        size = self.dice.randint(2, 7)
        kind = self.dice.choice(("in", "out", "chain", "diamond", "any", "any"))
        for i in range(size):
            if kind == "in":
                yield list(range(i)) if i == size - 1 else []
            elif kind == "out":
                yield [0] if i else []
            elif kind == "chain":
                yield [i - 1] if i else []
            elif kind == "diamond":
                yield [] if i == 0 else list(range(1, i)) if i == size - 1 and i > 1 else [0]
            else:
                yield sorted(self.dice.sample(range(i), self.dice.randint(0, min(i, 3))))

    def plan(self, brief):
        """Nodes: key, queue, plan, mode, parents; one that is cancelled may have run before."""
        keys = []
        for i, parents in enumerate(self.shape()):
            keys.append(f"{self.n}.{i}")
            plan = self.dice.choices(("run", "die", "cancel"), (10, 0, 0) if brief else (10, 2, 1))[0]
            mode = self.dice.choice(("cancel", "cancel", "wait", "run"))
            queue = self.queue("brief" if brief else self.dice.choice(("graph", "graph", "graph2")))
            yield keys[i], queue, plan, mode, [keys[p] for p in parents]

    def graph(self, brief=False):
        nodes = list(self.plan(brief))
        ids = {}
        if not brief and self.dice.random() < 0.2:
            # A root depends on a job of an older graph, as it may stand by now.
            older = self.rows("SELECT key, job FROM nodes WHERE tenant = %s AND queue <> %s ORDER BY job DESC LIMIT 1 OFFSET %s",
                              (self.tenant, self.queue("brief"), self.dice.randint(0, 30)))
            ids.update(older)
            nodes[0][4].extend(ids)
        how = self.dice.choice(("graph", "graph", "one by one", "halves"))
        if how == "graph":
            self.enqueue_graph(nodes, ids)
        elif how == "one by one":
            self.enqueue_nodes(nodes, ids)
        else:
            # The first half is there, and may be running or done, when the second one comes.
            half = len(nodes) // 2
            self.enqueue_nodes(nodes[:half], ids)
            self.later("second_half", self.dice.uniform(0, 0.1), nodes=nodes[half:], ids=ids)

    def brief(self):
        self.graph(brief=True)

    def enqueue_graph(self, nodes, ids):
        """All in one call, in any order."""
        jobs = [{"name": key, "queue": queue, "payload": self.node(key, plan, parents), "on_parent_failure": mode,
                 "depends_on": [ids.get(parent, parent) for parent in parents], **self.extras(queue)}
                for key, queue, plan, mode, parents in nodes]
        self.dice.shuffle(jobs)
        got = dict(self.rows("SELECT name, id FROM idemq.enqueue_graph(%s)", (Jsonb(jobs),)))
        for node in nodes:
            self.note_node(node, got[node[0]])

    def enqueue_nodes(self, nodes, ids):
        for node in nodes:
            key, queue, plan, mode, parents = node
            extras = self.extras(queue)
            ids[key] = self.one(
                "SELECT id FROM idemq.enqueue(%s, %s, depends_on => %s, on_parent_failure => %s, priority => %s, delay => %s, group_key => %s)",
                (queue, Jsonb(self.node(key, plan, parents)), [ids[p] for p in parents], mode,
                 extras.get("priority", 4), extras.get("delay"), extras.get("group_key")))[0]
            self.note_node(node, ids[key])

    def extras(self, queue):
        extras = {"priority": self.dice.randint(0, 9)}
        if self.dice.random() < 0.2:
            extras["delay"] = "20 ms"
        if queue.endswith("brief") and self.dice.random() < 0.3:
            extras["group_key"] = f"g{self.dice.randint(0, 3)}"
        return extras

    def node(self, key, plan, parents):
        return {"tenant": self.tenant, "key": key, "plan": plan, "parents": parents}

    def note_node(self, node, job):
        key, queue, plan, mode, parents = node
        self.execute("INSERT INTO nodes VALUES (%s, %s, %s, %s, %s, %s, %s)", (key, self.tenant, queue, plan, mode, parents, job))
        if plan == "cancel":
            self.later("cancel", self.dice.uniform(0, 0.2), job=job)

    def todo_second_half(self, nodes, ids):
        if "brief" in nodes[0][1]:
            # Parents of a queue with retention 0 may be gone: then there is no second half.
            self.execute("SAVEPOINT half")
            try:
                self.enqueue_nodes(nodes, ids)
            except Exception as error:  # pylint: disable=broad-except
                if getattr(error, "sqlstate", None) != "IQ002":
                    raise
                self.execute("ROLLBACK TO SAVEPOINT half")
                self.note("too-late")
        else:
            self.enqueue_nodes(nodes, ids)

    def todo_cancel(self, job):
        if self.one("SELECT idemq.cancel(%s)::text", (job,))[0] == "cancelled":
            self.execute("INSERT INTO cancels VALUES (%s)", (job,))

    # ---- Events

    def event(self):
        plan = self.dice.choice(("before", "before", "after", "after", "together", "twice", "never", "tight"))
        name = f"e{self.n}"
        waiters = self.dice.randint(1, 3)
        payload = self.dice.choice((None, {"paid": self.n}))
        self.want("events", "plan", plan=plan, waiters=waiters, payload=payload)
        send = {"name": name, "payload": payload}
        await_ = {"n": self.n, "name": name, "waiters": waiters, "patience": "300 ms" if plan in ("never", "tight") else "1 h"}
        if plan == "before":
            self.todo_send(**send)
            self.later("await", self.dice.uniform(0, 0.2), **await_)
            return
        if plan == "together" and self.dice.random() < 0.5:
            self.todo_send(**send)
            self.todo_await(**await_)
            return
        self.todo_await(**await_)
        if plan == "together":
            self.todo_send(**send)
        elif plan in ("after", "twice"):
            self.later("send", self.dice.uniform(0, self.dice.choice((0.05, 0.5))), **send)
        elif plan == "tight":
            self.later("send", self.dice.uniform(0.2, 0.5), **send)
        if plan == "twice":
            self.later("send", self.dice.uniform(0, 0.5), name=name, payload={"second": self.n})

    def todo_await(self, n, name, waiters, patience):
        for waiter in range(waiters):
            self.execute("SELECT idemq.enqueue(%s, %s)", (self.queue("events"), Jsonb(
                {"tenant": self.tenant, "n": n, "event": name, "waiter": waiter, "patience": patience})))

    def todo_send(self, name, payload):
        value = None if payload is None else Jsonb(payload)
        self.execute("INSERT INTO sent SELECT %s, %s, %s, s.outcome, s.first_payload, s.same_payload FROM idemq.send_event(%s, %s, %s) s",
                     (self.tenant, name, value, self.queue("events"), name, value))
        if self.dice.random() < 0.4:
            time.sleep(self.dice.uniform(0, 0.03))  # so that somebody asks before this has committed
        if self.chance(0.1):
            self.later("send", self.dice.uniform(0, 0.3), name=name, payload={"again": name})

    # ---- Topics

    def publish(self):
        topic = self.tenant + self.dice.choice((".a.x", ".a.b", ".b.x", ".b.b", ".a", ".a.x.x", ""))
        key = f"pub {self.n}" if self.dice.random() < 0.4 else None
        self.todo_publish(self.n, topic, key)
        if key:
            self.later("publish", self.dice.uniform(0, 0.3), n=self.n, topic=topic, key=key)

    def todo_publish(self, n, topic, key):
        words = topic.split(".")[1:]
        allowed = self.one("SELECT allowed FROM rights WHERE tenant = %s FOR SHARE", (self.tenant,))[0]
        bound = {"fan1": True, "fan2": len(words) == 2 and words[1] == "x", "fan3": words[:1] == ["a"] or words[-1:] == ["x"],
                 "fan4": allowed and len(words) == 2}
        expected = [self.queue(queue) for queue, is_bound in bound.items() if is_bound]
        self.execute(
            "INSERT INTO published SELECT %s, %s, %s, %s, p.queue, p.id, p.outcome FROM idemq.publish(%s, %s, key => %s) p",
            (self.tenant, n, topic, expected, topic, Jsonb({"tenant": self.tenant, "n": n}), key))

    # ---- Sequences, debounce, kinds

    def sequence(self):
        """Goes on after what has committed, and sends some of it again."""
        last = self.rows("SELECT seq FROM idemq.producers WHERE queue_id = idemq.queue_id(%s) AND name = 'log'", (self.queue("seq"),))
        first = max(1, (last[0][0] if last else 0) + 1 - self.dice.randint(0, 3))
        for seq in range(first, first + self.dice.randint(1, 6)):
            self.execute("SELECT idemq.enqueue_sequenced(%s, 'log', %s, %s)",
                         (self.queue("seq"), seq, Jsonb({"tenant": self.tenant, "n": seq})))

    def debounce(self):
        """Requests for a key come one after the other: so its numbers say which is the last."""
        key = f"d{self.dice.randint(0, 3)}"
        self.todo_request(key)
        for _ in range(self.dice.randint(0, 6)):
            self.later("request", self.dice.uniform(0, 0.6), key=key)

    def todo_request(self, key):
        self.one("SELECT key FROM debounced WHERE tenant = %s AND key = %s FOR UPDATE", (self.tenant, key))
        rev = self.one("SELECT nextval('numbers')")[0]
        self.execute(
            "INSERT INTO requests SELECT %s, %s, %s, r.id, r.outcome, r.status FROM idemq.enqueue(%s, %s, key => %s, delay => '100 ms', "
            "max_wait => '400 ms', key_ttl => '1 ms', on_duplicate => 'replace') r",
            (self.tenant, key, rev, self.queue("debounce"), Jsonb({"tenant": self.tenant, "rev": rev}), key))
        # A job whose attempt counts is not replaced, though it may be pending again; of one that is
        # replaced the row is ours, so that this is what it was.
        self.execute("UPDATE requests r SET attempt = j.attempt FROM idemq.jobs j WHERE r.rev = %s AND j.id = r.job", (rev,))
        # Not later than that after the first request, unless it was begun, and waits for its next attempt.
        self.execute(
            "UPDATE requests r SET late = j.ready_at - j.enqueued_at - interval '400 ms' FROM idemq.jobs j "
            "WHERE r.rev = %s AND j.id = r.job AND r.status = 'pending' AND NOT EXISTS (SELECT FROM claims c WHERE c.job = j.id)", (rev,))

    def kinds(self):
        for kind in ("k0", "k1", "k2", "k3", "k4"):
            self.want("kinds", f"{self.n}.{kind}", kind=kind)
            self.execute("SELECT idemq.enqueue(%s, %s, kind => %s)", (self.queue("kinds"), Jsonb({"tenant": self.tenant, "n": self.n}), kind))

    # ---- Sagas, limits, groups

    def trip(self):
        dies_at = self.dice.choice((None, None, 0, 1, 2))
        self.want("trips", str(self.n), dies_at=dies_at)
        job = self.one("SELECT id FROM idemq.enqueue(%s, %s, key => %s)",
                       (self.queue("trips"), Jsonb({"tenant": self.tenant, "n": self.n, "dies_at": dies_at}), f"trip {self.n}"))[0]
        if self.dice.random() < 0.3:
            self.later("cancel", self.dice.uniform(0, 0.5), job=job)

    def limited(self):
        flow = self.dice.choice(("limited", "elastic"))
        for i in range(self.dice.randint(1, 12)):
            job = f"{self.n}.{i}"
            self.want(flow, job)
            self.execute("SELECT idemq.enqueue(%s, %s, key => %s)",
                         (self.queue(flow), Jsonb({"tenant": self.tenant, "n": self.n, "part": job}), f"{flow} {job}"))

    def grouped(self):
        flow = self.dice.choice(("grouped", "permits"))
        for i in range(self.dice.randint(1, 4)):
            group = self.dice.choice(("g0", "g1", "g2", "alone"))
            self.want(flow, f"{self.n}.{i}", group=group)
            self.execute("SELECT idemq.enqueue(%s, %s, group_key => NULLIF(%s, 'alone'))",
                         (self.queue(flow), Jsonb({"tenant": self.tenant, "n": self.n, "part": f"{self.n}.{i}", "group": group}), group))
