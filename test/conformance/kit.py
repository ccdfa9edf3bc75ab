"""What the scenarios are written with: adapters, attempts, a proxy, and the rows and the ledger that they assert."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

import psycopg
from psycopg.rows import dict_row

# Payloads have thousands of digits and levels.
getattr(sys, "set_int_max_str_digits", lambda most: None)(0)
sys.setrecursionlimit(20000)

PATIENCE = float(os.environ.get("CONFORMANCE_PATIENCE", 120))  # seconds until what does not come is missed

SCHEMA = """
CREATE SCHEMA conformance;
CREATE TABLE conformance.effects (n bigint GENERATED ALWAYS AS IDENTITY, job bigint, token bigint, name text);
GRANT USAGE ON SCHEMA conformance TO PUBLIC;
GRANT INSERT ON conformance.effects TO PUBLIC;
-- COMMIT waits for a lock if the job has an effect with this name.
CREATE FUNCTION conformance.gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(NEW.job);
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON conformance.effects DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (NEW.name = 'gated') EXECUTE FUNCTION conformance.gate();
CREATE FUNCTION conformance.raise(state text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = state, MESSAGE = 'raised by the scenario';
END $$;
"""


def uri(host, port, where, more=""):
    """A connection string that libpq, pg and pgx understand."""
    user = where.get("user", "postgres")
    return f"postgresql://localhost:{port}/{where['dbname']}?host={urllib.parse.quote(host, safe='')}&port={port}&user={user}{more}"


class Failed(Exception):
    """The client has not done what the scenario requires."""


class Missed(Failed):
    """Something that must happen has not happened."""


class Omitted(Exception):
    """The client lacks what the scenario requires."""


class Refused(Exception):
    """A command has ended with an error."""

    def __init__(self, error, command):
        super().__init__(f"{command['do']}: {error}")
        self.sqlstate = error.get("sqlstate")
        self.gone = error.get("gone", False)


class Adapter:
    """A process of an adapter."""

    def __init__(self, scenario, client, dsn, name):
        self.scenario = scenario
        self.name = name
        self.client = client
        self.log = open(os.path.join(scenario.directory, f"{len(scenario.adapters)}.{client.name}.log"), "w+")
        self.process = subprocess.Popen(
            client.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, bufsize=1,
            start_new_session=True, env={**os.environ, **client.env, "IDEMQ_DSN": dsn}, cwd=scenario.directory,
        )  # fmt: skip
        self.commands = 0
        self.replies = {}
        self.effects = []  # outside effects: (token, name)
        self.told = set()
        self.over = {}  # tokens of handlers that have ended, and how often
        self.work_id = None
        self.writing = threading.Lock()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            try:
                self.heard(json.loads(line))
            except ValueError:
                self.log.write(f"no JSON on stdout: {line}")
        with self.scenario.changed:
            self.replies[None] = True
            self.scenario.changed.notify_all()

    def heard(self, event):
        with self.scenario.changed:
            token = event.get("token")
            if event["event"] == "ended" and "command" in event:
                self.replies[event["command"]] = event
            elif event["event"] == "ended" and event.get("told"):
                self.told.add(token)
            elif event["event"] == "ended":
                self.over[token] = self.over.get(token, 0) + 1
            elif event["event"] == "effect":
                self.effects.append((token, event["name"]))
            elif event["event"] == "started":
                self.scenario.started.append(Attempt(self, event))
            self.scenario.changed.notify_all()

    def send(self, do, **arguments):
        """Sends a command, and returns what waits for its value."""
        with self.writing:
            self.commands += 1
            command = {"id": self.commands, "do": do, **arguments}
            try:
                self.process.stdin.write(json.dumps(command) + "\n")
                self.process.stdin.flush()
            except (OSError, ValueError):
                pass  # it has ended: its value will not come

        def value():
            self.scenario.wait(lambda: command["id"] in self.replies or None in self.replies, f"the end of {command}")
            reply = self.replies.get(command["id"])
            if reply is None:
                raise Failed(f"{self.client.name} has ended before {command}: {self.said()}")
            if reply.get("unsupported"):
                raise Omitted(f"{self.client.name}: {do}")
            if "error" in reply:
                raise Refused(reply["error"], command)
            return reply.get("value")

        value.pending = lambda: command["id"] not in self.replies
        return value

    def call(self, do, **arguments):
        return self.send(do, **arguments)()

    def enqueue(self, payload, queue=None, **options):
        return self.call("enqueue", queue=queue or self.scenario.queue, payload=payload, options=options)

    def stop(self):
        """SIGTERM.  It waits until the worker has connected, because a program that has only just begun does not know the signal yet."""
        connected = "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = %s"
        self.scenario.until(lambda: self.work_id in self.replies or self.scenario.value(connected, self.name), "a connection of the worker")
        self.process.send_signal(signal.SIGTERM)

    def kill(self):
        """SIGKILL, of all its processes."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.reader.join(PATIENCE)

    def outcomes(self):
        """The value of work, after the end of the worker."""
        self.scenario.wait(lambda: self.work_id in self.replies or None in self.replies, "the end of the worker")
        reply = self.replies.get(self.work_id)
        if reply is None or "error" in reply:
            raise Failed(f"the worker of {self.client.name} has ended badly: {reply} {self.said()}")
        self.scenario.wait(lambda: self.process.poll() is not None, "the end of the process")
        if self.process.returncode != 0:
            raise Failed(f"{self.client.name} has ended with status {self.process.returncode}: {self.said()}")
        return reply.get("value")

    def end(self):
        """Drains the worker, and returns its outcomes."""
        if self.process.poll() is None:
            self.stop()
        return self.outcomes()

    def said(self):
        self.log.flush()
        self.log.seek(0)
        return self.log.read()[-3000:]


class Attempt:
    """A call of a handler, or of a function of a step."""

    def __init__(self, adapter, event):
        self.adapter = adapter
        self.token = event["token"]
        self.job = int(event["job"]) if "job" in event else None
        self.step = event.get("step")
        self.event = event

    def __getattr__(self, name):
        try:
            return self.__dict__["event"][name]
        except KeyError:
            raise AttributeError(name) from None

    def call(self, do, **arguments):
        return self.adapter.call(do, token=self.token, **arguments)

    def send(self, do, **arguments):
        return self.adapter.send(do, token=self.token, **arguments)

    def effect(self, name="effect", **arguments):
        self.call("effect", name=name, **arguments)

    def query(self, sql, **arguments):
        return self.call("query", sql=sql, **arguments)

    def returns(self, value=None):
        return self.call("return", value=value)

    def fails(self, text="planned", error="plain", **arguments):
        return self.call("raise", error=error, text=text, **arguments)

    def does(self, name="effect", value=None):
        """The effect, and the end."""
        self.effect(name)
        self.returns(value)

    def is_told(self):
        self.adapter.scenario.wait(lambda: self.token in self.adapter.told, f"{self.adapter.client.name} tells the handler to stop")

    def is_over(self):
        self.adapter.scenario.wait(lambda: self.token in self.adapter.over or None in self.adapter.replies, "the end of the handler")

    def tries(self, do, **arguments):
        """A command that may come too late: the handler may have gone."""
        try:
            self.call(do, **arguments)
        except Refused:
            pass

    def cannot(self, do="effect", name="too late"):
        """A command that must not succeed: it is refused, or the handler has gone."""
        try:
            self.call(do, name=name)
        except Refused:
            return
        raise Failed(f"{do} was not refused after the attempt had lost its job")


class Proxy:
    """A proxy in front of the server, at a port of its own.  hold_answers and hold_requests keep what is sent from then on; cut ends all
    connections, and silence swallows both directions without an end.  New connections pass."""

    def __init__(self, to):
        self.to = to
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.pairs = []
        self.swallowed = 0
        self.closed = False
        self.wake = os.pipe()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while not self.closed:
            with self.lock:
                ends = {end: (pair, side) for pair in self.pairs for side, end in enumerate(pair["ends"])}
            readable = select.select([self.listener, self.wake[0], *ends], [], [])[0]
            for each in readable:
                if each is self.listener:
                    self.accept()
                elif each == self.wake[0]:
                    os.read(each, 1)
                else:
                    self.forward(*ends[each], each)

    def accept(self):
        client = self.listener.accept()[0]
        server = socket.socket(socket.AF_UNIX if self.to[0].startswith("/") else socket.AF_INET)
        try:
            server.connect(f"{self.to[0]}/.s.PGSQL.{self.to[1]}" if self.to[0].startswith("/") else self.to)
        except OSError:  # the server does not run
            server.close()
            client.close()
            return
        with self.lock:
            self.pairs.append({"ends": (client, server), "held": set()})

    def forward(self, pair, side, end):
        try:
            data = end.recv(65536)
        except OSError:
            data = b""
        with self.lock:
            if pair not in self.pairs:
                return
            if side in pair["held"]:
                if data:
                    self.swallowed += side == 0
                    return
            if not data:
                self.drop(pair)
                return
            try:
                pair["ends"][1 - side].sendall(data)
            except OSError:
                self.drop(pair)

    def drop(self, pair):
        self.pairs.remove(pair)
        for end in pair["ends"]:
            end.close()

    def hold(self, *sides):
        with self.lock:
            self.swallowed = 0
            for pair in self.pairs:
                pair["held"].update(sides)

    def hold_requests(self):
        self.hold(0)

    def hold_answers(self):
        self.hold(1)

    def silence(self):
        self.hold(0, 1)

    def cut(self):
        """Only the thread closes sockets, when it reads their end: select fails with one that another thread has closed."""
        with self.lock:
            for pair in self.pairs:
                for end in pair["ends"]:
                    try:
                        end.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        pass

    def close(self):
        self.closed = True
        self.cut()
        os.write(self.wake[1], b"!")
        self.thread.join(10)
        self.listener.close()
        with self.lock:
            for pair in self.pairs[:]:
                self.drop(pair)
        for end in self.wake:
            os.close(end)


class Scenario:
    """One run of a scenario.  clients: who produces, who works, and the second worker of a scenario for two."""

    number = 0
    numbering = threading.Lock()

    def __init__(self, dsn, clients, directory):
        with Scenario.numbering:
            Scenario.number += 1
            self.queue = f"c{os.getpid()}_{Scenario.number}"
        self.where = psycopg.conninfo.conninfo_to_dict(dsn)
        self.dsn = uri(self.where["host"], self.where["port"], self.where)
        self.clients = clients
        self.directory = os.path.join(directory, self.queue)
        os.mkdir(self.directory)
        self.closed = False
        self.adapters = []
        self.proxies = []
        self.started = []
        self.taken = set()
        self.changed = threading.Condition()
        self.conn = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)
        self.create_queue(self.queue)

    # The server.

    def sql(self, sql, *values):
        cursor = self.conn.execute(sql, values or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, sql, *values):
        rows = self.sql(sql, *values)
        return next(iter(rows[0].values())) if rows else None

    def create_queue(self, name, **settings):
        settings = {"lease": "1 h", "retry_base": "1 h", "retry_max": "1 h", **settings}
        arguments = ", ".join(f"{name} => %s" for name in settings)
        self.sql(f"SELECT idemq.create_queue(%s, {arguments})", name, *settings.values())

    def alter_queue(self, **settings):
        arguments = ", ".join(f"{name} => %s" for name in settings)
        self.sql(f"SELECT idemq.alter_queue(%s, {arguments})", self.queue, *settings.values())

    def add(self, payload="{}", **arguments):
        """Adds a job without a client; payload is JSON text."""
        named = "".join(f", {name} => %s" for name in arguments)
        return self.value(f"SELECT id FROM idemq.enqueue(%s, %s::jsonb{named})", self.queue, payload, *arguments.values())

    def count(self, where="true"):
        return self.value(f"SELECT count(*) FROM idemq.jobs WHERE queue_id = (SELECT queue_id FROM idemq.queues WHERE name = %s) AND {where}", self.queue)

    def job(self, job):
        rows = self.sql("SELECT *, status::text FROM idemq.jobs WHERE id = %s", job)
        if not rows:
            raise Failed(f"there is no job {job}")
        return rows[0]

    def status(self, job):
        return self.value("SELECT status::text FROM idemq.jobs WHERE id = %s", job)

    def is_job(self, job, **expected):
        """Asserts columns of a job."""
        row = self.job(job)
        for name, value in expected.items():
            self.equal(row[name], value, f"{name} of job {job}")

    def settles(self, job, **expected):
        """Waits for the end of a running attempt, and asserts columns of the job."""
        self.until(lambda: self.status(job) != "running", f"the end of the attempt of job {job}")
        self.is_job(job, **expected)

    def becomes(self, job, **expected):
        """Waits for columns of a job."""
        found = {}

        def good():
            nonlocal found
            row = self.sql(f"SELECT status::text, {', '.join(name for name in expected if name != 'status') or 'id'} FROM idemq.jobs WHERE id = %s", job)[0]
            found = {name: row[name] for name in expected}
            if row["status"] in ("completed", "dead", "cancelled") and found != expected:
                raise Failed(f"job {job} is {found} instead of {expected}")
            return found == expected

        self.until(good, lambda: f"job {job} to be {expected}; it is {found}")

    def attempts(self, job):
        return self.sql("SELECT * FROM idemq.attempts WHERE job_id = %s ORDER BY token", job)

    def ledger(self, job):
        """The effects of a job, inside and outside of its transactions, in order."""
        tokens = {each.token for each in self.started if each.job == int(job)}
        inside = [row["name"] for row in self.sql("SELECT name FROM conformance.effects WHERE job = %s ORDER BY n", job)]
        return inside + [name for adapter in self.adapters for token, name in adapter.effects if token in tokens]

    def has_effects(self, job, *names):
        self.equal(self.ledger(job), list(names), f"effects of job {job}")

    # The clients.

    def adapter(self, client, dsn=None):
        name = f"{self.queue}_{len(self.adapters)}"
        adapter = Adapter(self, client, f"{dsn or self.dsn}&application_name={name}", name)
        self.adapters.append(adapter)
        return adapter

    def producer(self, **where):
        return self.adapter(self.clients[0], **where)

    def worker(self, mode="run", queue=None, second=False, dsn=None, **options):
        adapter = self.adapter(self.clients[2 if second else 1], dsn)
        adapter.send("work", queue=queue or self.queue, mode=mode, options=options)
        adapter.work_id = adapter.commands
        return adapter

    def workers(self, mode="run", **options):
        """Two workers, of two clients if all are mixed."""
        return self.worker(mode, **options), self.worker(mode, second=True, **options)

    def proxy(self):
        proxy = Proxy((self.where["host"], int(self.where["port"])))
        self.proxies.append(proxy)
        return proxy

    def as_role(self, name):
        return uri(self.where["host"], self.where["port"], {**self.where, "user": name})

    def through(self, proxy):
        return uri("127.0.0.1", proxy.port, self.where, "&sslmode=disable")

    def attempt(self, job=None, step=None, or_end=False):
        """The next call of a handler that no earlier call of this method has returned; by default of any job.  With or_end, None if the
        attempts of the job have ended without one."""

        def find():
            for each in self.started:
                if each not in self.taken and each.step == step and (job is None or step or each.job == int(job)):
                    self.taken.add(each)
                    found.append(each)
                    return True
            for adapter in self.adapters:
                if adapter.work_id in adapter.replies and ("error" in adapter.replies[adapter.work_id] or "unsupported" in adapter.replies[adapter.work_id]):
                    if "unsupported" in adapter.replies[adapter.work_id]:
                        raise Omitted(f"{adapter.client.name}: work")
                    raise Failed(f"the worker of {adapter.client.name} has ended: {adapter.replies[adapter.work_id]} {adapter.said()}")
            return False

        found = []
        if or_end:

            def end():
                status = self.status(job)
                return find() or status in ("completed", "dead", "cancelled", "retrying") and (find() or True)

            self.until(end, f"a call of the handler for job {job}, or its end")
            return found[0] if found else None
        self.wait(find, f"a call of the handler for job {job}" if step is None else f"a call of step {step}")
        return found[0]

    def close_gate(self, job):
        """From now on, a COMMIT with the effect 'gated' of a job waits until open_gate.  The value: the sessions that wait."""
        self.sql("SELECT pg_advisory_lock(%s)", job)

        def waiting():
            return [row["pid"] for row in self.sql("SELECT pid FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)) AND wait_event = 'advisory'")]

        def at_gate():
            self.until(lambda: waiting() or self.status(job) != "running", f"a session in COMMIT of job {job}")
            self.true(waiting(), "the job completes in the transaction of its effect")
            return waiting()

        return at_gate

    def open_gate(self, job):
        self.sql("SELECT pg_advisory_unlock(%s)", job)

    def autopilot(self, does, job=None):
        """From now on, does(attempt) is called for each call of a handler, or for those of a job, in a thread of its own."""

        def fly(attempt):
            try:
                does(attempt)
            except (Refused, Failed):
                pass  # the rows show it

        def watch():
            while not self.closed:
                with self.changed:
                    new = [each for each in self.started if each not in self.taken and each.step is None and job in (None, each.job)]
                    self.taken.update(new)
                    if not new:
                        self.changed.wait(1)
                for each in new:
                    threading.Thread(target=fly, args=(each,), daemon=True).start()

        threading.Thread(target=watch, daemon=True).start()

    def steps(self, name):
        """How many calls of the functions of a step there have been."""
        return sum(1 for each in self.started if each.step == name)

    def calls(self, job=None):
        """How many calls of handlers there have been."""
        return sum(1 for each in self.started if each.step is None and (job is None or each.job == int(job)))

    def is_idle(self):
        """Waits until a worker has told the server that it serves the queue and runs nothing."""
        self.until(lambda: self.value("SELECT count(*) > 0 FROM idemq.workers WHERE queues @> ARRAY[%s] AND running = 0 AND state = 'here'", self.queue), "an idle worker")

    # Waiting and asserting.

    def wait(self, condition, what):
        give_up = time.monotonic() + PATIENCE
        with self.changed:
            while not condition():
                left = give_up - time.monotonic()
                if left <= 0:
                    raise Missed(f"never: {what}\n" + "\n".join(each.said() for each in self.adapters))
                self.changed.wait(min(left, 1))

    def until(self, condition, what):
        give_up = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > give_up:
                raise Missed(f"never: {what() if callable(what) else what}\n" + "\n".join(each.said() for each in self.adapters))
            time.sleep(0.02)

    def equal(self, actual, expected, what):
        if actual != expected:
            raise Failed(f"{what}: {actual!r} instead of {expected!r}")

    def true(self, value, what):
        if not value:
            raise Failed(f"not true: {what}")

    def refused(self, sqlstate, call):
        """Asserts that a call fails with this SQLSTATE."""
        try:
            value = call()
        except Refused as error:
            self.equal(error.sqlstate, sqlstate, "SQLSTATE")
        else:
            raise Failed(f"{value!r} instead of SQLSTATE {sqlstate}")

    def refuses(self, call):
        """Asserts that a call fails, whether the client or the server refuses it."""
        try:
            value = call()
        except Refused:
            return
        raise Failed(f"{value!r} instead of an error")

    def close(self):
        """Ends what the scenario has started, and pauses its queue."""
        self.closed = True
        for adapter in self.adapters:
            if adapter.process.poll() is None:
                adapter.kill()
        for proxy in self.proxies:
            proxy.close()
        self.sql("SELECT idemq.pause(%s)", self.queue)
        self.conn.close()
