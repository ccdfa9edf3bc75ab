#!/usr/bin/python3
"""fuzz.py DSN CALLS SEED: calls every SQL function of idemq with arguments of every kind; see test/t/fuzz.pl.

Functions, tables and types come from the catalog: a new one is covered without a line here.
Four processes, each with a session for each role, choose from the seed: what they send is
the same again with the same seed, how they meet is not, nor the ids that they are given.

Implementations of wrappers (src/api/wrapper.c) are also called after SET ROLE in a superuser's session, by
functions that are SECURITY DEFINER, and in error handlers, and by these once more: with the rights of
the role, whoever's session it is, and what was set before is set again.

Strings of two tenants ("canaries") stand in the jobs; nobody sends one.  A canary
in an answer, error or notice to a role that may not see it is a leak.  While only
strangers call, the rows of tenant b do not change.  An SQLSTATE that the manual does not
name is a finding.  (script/test finds crashes and internal errors in the server's log.)

Prints a line "found: ..." for each finding, one "figure: ..." at the end; with
FUZZ_FUNCTIONS=1 how often each function was called, and succeeded.
"""

import collections
import multiprocessing
import os
import random
import re
import sys
import time
import uuid

import psycopg
from psycopg.pq import DiagnosticField, ExecStatus

PROCESSES = 4
NAMES = ["a1", "a1", "a1", "a2", "b1", "b2", "dead"]
# Whose canaries a role may see, or of which kind.
ROLES = {
    "postgres": ("canary_a", "canary_b"),
    "fuzz_admin": ("canary_a",),
    "fuzz_claim": ("canary_a",),
    "fuzz_enqueue": ("canary_a_result", "canary_a_schedule"),
    "fuzz_b": ("canary_b",),
    "fuzz_nobody": (),
    "fuzz_monitor": ("canary_a_worker", "canary_b_worker", "canary_a_schedule", "canary_b_schedule"),
    "fuzz_reader": (),
}
STRANGERS = [role for role, seen in ROLES.items() if "canary_b" not in seen]
# In a database that follows another, or has moved away, nothing else can be called, and a shard is
# one for ever: test/t/subscription.pl and test/t/shard.pl have them.
LEFT_OUT = "'follow', 'retire', 'set_shard'"
# What uses up something, or takes long: seldom.
SELDOM = {"advance_tokens": 0.05, "recount": 0.2, "check": 0.2, "drop_queue": 0.1, "purge": 0.2}
# What needs a function that fits, an open step of the token, a topic that is there, or a shard:
# test/t/handlers.pl, test/t/steps.pl, test/sql/topics.sql, test/t/cluster_guard.pl.
UNLIKELY = {"set_handler", "refuse_step", "grant_topic", "assert_shard"}
# What PostgreSQL itself may say of such arguments and sessions: the rest is in the manual.
POSTGRES = {
    "22001", "22003", "22007", "22008", "22P02", "2202E", "22021",  # a value that is none of its type
    "42704", "42883", "42846", "42P01",  # no such role, prepared transaction, function, cast
    "25P01", "25P02", "25001", "3B001", "34000", "24000",  # where a transaction stands
    "40001", "40P01", "55P03", "57014",  # others, and time
    "57P01", "57P02", "57P03", "08006", "08003",  # sessions that are ended
    "42501", "0A000", "53200", "54000", "42809",
}  # fmt: skip


def quote(text):
    """A literal of any text."""
    return "NULL" if text is None else "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def array(elements):
    """The text of an array; of lists, of more dimensions."""

    def one(element):
        if element is None:
            return "NULL"
        if isinstance(element, list):
            return array(element)
        return '"' + element.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return "{" + ",".join(one(element) for element in elements) + "}"


class Catalog:
    """What there is to be called and read."""

    def __init__(self, conn):
        self.functions = conn.execute("""
            SELECT proname, prokind = 'p', prorettype = 'trigger'::regtype, pronargs - pronargdefaults,
                coalesce(proargnames, array_fill(''::text, ARRAY[pronargs])), array(SELECT format_type(t, NULL) FROM unnest(proargtypes) WITH ORDINALITY u(t, n) ORDER BY n),
                coalesce(proargmodes::text[], '{}'), prokind = 'a'
            FROM pg_proc WHERE pronamespace = 'idemq'::regnamespace AND proname NOT IN (""" + LEFT_OUT + """)
            ORDER BY proname, oid""").fetchall()
        self.relations = [name for (name,) in conn.execute("""
            SELECT relname FROM pg_class WHERE relnamespace = 'idemq'::regnamespace AND relkind IN ('r', 'v', 'S') ORDER BY 1""")]
        self.wrappers = {name for (name,) in conn.execute("SELECT proname FROM pg_proc WHERE prosrc ~ '^idemq_sql_wrapper(_jobs)?$'")}
        self.enums = collections.defaultdict(list)
        for name, label in conn.execute("SELECT format_type(enumtypid, NULL), enumlabel FROM pg_enum ORDER BY 1, enumsortorder"):
            self.enums[name].append(label)
        self.version = conn.info.server_version


class Values:
    """Arguments, by type and by name."""

    def __init__(self, rng, catalog):
        self.rng = rng
        self.catalog = catalog
        self.jobs = [(1, 1)]  # ids and tokens that are there
        self.begin()

    def begin(self):
        """A call of its own: jobs whose ids and tokens belong together, and how odd the rest is."""
        self.chosen = [self.rng.choice(self.jobs) for _ in range(3)]
        self.oddity = self.rng.choice([0.0, 0.03, 0.3])

    def is_odd(self):
        return self.rng.random() < self.oddity

    def text(self, name):
        rng = self.rng
        if name == "dead_letter_queue":
            # None of a tenant's: the superuser may send another's jobs there, for all to see.
            return rng.choice(["dead", "dead", "", "A1", "none", "n" * 64])
        kinds = {
            "queue": NAMES, "name": [*NAMES, "new1", "new2"], "key": [f"key{i}" for i in range(12)],
            "group_key": ["g1", "g2", "g3"], "privilege": ["enqueue", "claim", "admin", "owner"],
            "on_duplicate": ["keep", "ignore", "replace", "error", "rerun", "keeper"],
            "on_parent_failure": ["cancel", "wait", "run", "skip"],
            "cron": ["* * * * *", "*/5 0-3 1,15 * mon", "0 0 31 2 *", "@daily", "@reboot", "60 * * * *", "* * * *", "every 1 s", "every 90 min", "every 0 s", "every"],
            "timezone": ["UTC", "Europe/Berlin", "Mars/Base", "+25"], "schedule": ["s1", "s2"], "bucket": ["x", "y"],
        }  # fmt: skip
        if not self.is_odd():
            for part, values in kinds.items():
                if part == name or name.rstrip("s") == part:
                    return rng.choice(values)
        return rng.choice([
            "", "x", "a1", "key1", "n" * 48, "n" * 49, "n" * 63, "n" * 64, "k" * 1024, "k" * 1025, "w" * 20000,
            "ä" * 24, "\u202e\U0001f4a9", " ", "'; DROP SCHEMA idemq; --", '"', "%s%n%d", "\\", "\n\t\x01", "null", "-1",
            "A1", "a1 ", "pg_catalog", "public", "postgres",
        ])  # fmt: skip

    def integer(self, name, bits, place):
        rng = self.rng
        top = 2 ** (bits - 1)
        usual = {"id": 0, "token": 1, "job": 0, "depends_on": 0}.get(name.rstrip("s").removesuffix("_id"))
        if usual is not None and not self.is_odd():
            return str(self.chosen[place % len(self.chosen)][usual])
        if not self.is_odd():
            return str(rng.choice([0, 1, 1, 2, 3, 5, 10]))
        return str(rng.choice([-1, 9, 10, 100, 1000000, 1000001, top - 1, -top, top // 2, rng.randrange(-top, top)]))

    def interval(self):
        usual = ["1 us", "1 ms", "5 ms", "20 ms", "1 s", "1 min", "1 day"]
        odd = ["0", "-1 s", "1 mon", "-1 mon 31 days", "100 years", "178000000 years", "-178000000 years", "2147483647 days", "25:00:00.000001"]
        if self.catalog.version >= 170000:
            odd += ["infinity", "-infinity"]
        return self.rng.choice(odd if self.is_odd() else usual)

    def timestamp(self):
        if not self.is_odd():
            return self.rng.choice(["now", "yesterday", "tomorrow"])
        return self.rng.choice(["yesterday", "tomorrow", "infinity", "-infinity", "4713-01-01 00:00:00+00 BC",
            "294276-12-31 23:59:59+00", "epoch", "2026-01-01", "2000-02-29 12:00:00+14"])  # fmt: skip

    def jsonb(self):
        return self.rng.choice(["null", "{}", "[]", "1", '"x"', '{"n": 1}', '{"n": 2, "a": [1, null, {"b": "\\u0001"}]}', "1e400", "-0.0",
            '"' + "x" * 9000 + '"', "[" * 1000 + "]" * 1000, '{"": ""}', "true"])  # fmt: skip

    def huge(self):
        size = self.rng.choice([100000, 1100000, 5000000])
        return f"to_jsonb(repeat({quote(self.rng.choice(['x', chr(1), '0']))}, {size}))"

    def one(self, kind, name, place=0):
        """The text of a value of a type that is no array."""
        if kind in self.catalog.enums:
            return self.rng.choice(self.catalog.enums[kind])
        if kind in ("bigint", "integer", "smallint"):
            return self.integer(name, {"bigint": 64, "integer": 32, "smallint": 16}[kind], place)
        if kind == "regrole":
            return self.rng.choice(["fuzz_friend", "fuzz_friend", "999999", "0", "fuzz_friend "])
        if kind == "oid":
            return self.rng.choice(["0", "1", "10", "4294967295"])
        if kind == "boolean":
            return self.rng.choice(["t", "f"])
        if kind in ("double precision", "real", "numeric"):
            if not self.is_odd():
                return self.rng.choice(["0.2", "1"])
            return self.rng.choice(["0", "2", "-1", "1e300", "-1e-300", "NaN", "Infinity", "-Infinity"][: 6 if kind == "numeric" else 8])
        if kind == "interval":
            return self.interval()
        if kind.startswith("timestamp"):
            return self.timestamp()
        if kind in ("jsonb", "json"):
            return self.jsonb()
        if kind == "uuid" and not self.is_odd():
            return str(uuid.UUID(int=self.rng.choice([1, 2, 3])))
        return self.text(name)

    def literal(self, kind, name):
        """An SQL expression of a type."""
        rng = self.rng
        if rng.random() < self.oddity / 4:
            return f"NULL::{kind}"
        if kind == "jsonb" and rng.random() < 0.01:
            return self.huge()
        if not kind.endswith("[]"):
            return f"{quote(self.one(kind, name))}::{kind}"
        kind = kind[:-2]
        elements = [None if rng.random() < self.oddity / 4 else self.one(kind, name, place) for place in range(rng.choice([0, 1, 2, 2, 3, 3, 3, 5]))]
        shape = rng.random() if self.oddity else 0.5
        if shape < 0.02:
            return f"array_fill({quote(self.one(kind, name))}::{kind}, '{{{rng.choice([1000, 2000])}}}')"
        text = array([elements, elements] if shape < 0.10 and elements else elements)
        if shape > 0.95 and elements:
            text = f"[-1:{len(elements) - 2}]={text}"
        return f"{quote(text)}::{kind}[]"


class Session:
    """A role's connection; remembers what it was answered."""

    def __init__(self, dsn, role):
        self.dsn = dsn
        self.role = role
        self.conn = None
        self.heard = []

    def connect(self):
        for _ in range(600):
            try:
                self.conn = psycopg.connect(f"{self.dsn} user={self.role} application_name=fuzz", autocommit=True)
                self.conn.pgconn.notice_handler = lambda result: self.heard.append(bytes(result.error_message))
                self.send("SET statement_timeout = 300")
                self.send("SET lock_timeout = 150")
                return
            except psycopg.OperationalError:
                time.sleep(0.1)
        raise SystemExit("the server does not come back")

    def send(self, sql):
        """Returns SQLSTATE, or 00000; 'lost' when the connection is gone."""
        self.heard = []
        if self.conn.pgconn.status != psycopg.pq.ConnStatus.OK:
            return "lost"  # of a call whose answer nobody has looked at
        result = self.conn.pgconn.exec_(sql.encode())
        if result.status == ExecStatus.TUPLES_OK:
            for row in range(result.ntuples):
                self.heard.extend(result.get_value(row, column) or b"" for column in range(result.nfields))
        self.tag = (result.command_status or b"").decode()
        if result.status != ExecStatus.FATAL_ERROR:
            return "00000"
        self.heard.extend(result.error_field(field) or b"" for field in (
            DiagnosticField.MESSAGE_PRIMARY, DiagnosticField.MESSAGE_DETAIL, DiagnosticField.MESSAGE_HINT, DiagnosticField.CONTEXT))  # fmt: skip
        state = result.error_field(DiagnosticField.SQLSTATE)
        if self.conn.pgconn.status != psycopg.pq.ConnStatus.OK:
            return "lost"
        return state.decode() if state else "none"


def forget_prepared(root):
    """Ends the transactions of those who lost their connection in between, with all their locks."""
    for (gid,) in root.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
        try:
            root.execute(f"ROLLBACK PREPARED '{gid}'")
        except psycopg.Error as error:
            if error.sqlstate not in ("42704", "55000"):  # its session has ended it meanwhile, or is at it
                raise


class Fuzzer:
    """One of the processes."""

    def __init__(self, dsn, number, calls, seed, roles, documented):
        self.rng = random.Random(f"{seed} {number}")
        self.number = number
        self.calls = calls
        self.roles = roles
        self.documented = documented
        self.root = psycopg.connect(f"{dsn} user=postgres options='-c lock_timeout=10s'", autocommit=True)
        self.catalog = Catalog(self.root)
        self.values = Values(self.rng, self.catalog)
        self.sessions = {role: Session(dsn, role) for role in ROLES if role in roles}
        self.lent = Session(dsn, "postgres")  # which does what a role may
        for session in [*self.sessions.values(), self.lent]:
            session.connect()
        self.states = collections.Counter()
        self.called = collections.Counter()
        self.worked = collections.Counter()
        self.found = []
        self.done = 0
        self.locked = False
        """Whether a table or view was locked by hand in this transaction."""

    # ---- What to send

    def arguments(self, function):
        _, procedure, _, needed, names, types, modes, _ = function
        inputs = [i for i in range(len(names)) if not modes or modes[i] in "ib"]
        parts = []
        self.values.begin()
        optional = self.rng.choice([0.05, 0.2, 0.5])
        for n, i in enumerate(inputs):
            mode = modes[i] if modes else "i"
            if mode == "b" and procedure:
                parts.append(f"{names[i]} => NULL")
            elif n < needed or self.rng.random() < optional:
                name = f"{names[i]} => " if names[i] else ""
                parts.append(name + self.values.literal(types[n], names[i]))
        return ", ".join(parts)

    def call(self):
        """A statement that calls a function."""
        rng = self.rng
        while True:
            function = rng.choice(self.catalog.functions)
            if rng.random() < SELDOM.get(function[0], 1):
                break
        name, procedure, trigger = function[:3]
        self.calling = name
        called = f'idemq."{name}"({self.arguments(function)})'
        if procedure:
            return f"CALL {called}"
        if trigger or function[-1] or rng.random() < 0.15:
            return f"SELECT {called}"
        return rng.choice([
            f"SELECT * FROM {called}", f"SELECT * FROM {called}", f"SELECT * FROM {called}", f"SELECT * FROM {called} LIMIT 1",
            f"SELECT count(*) FROM generate_series(1, 3) g, LATERAL {called} f WHERE g > 0",
        ])  # fmt: skip

    def table(self):
        """A statement that reads or writes a table by hand."""
        name = self.rng.choice([*self.catalog.relations, "jobs", "jobs", "jobs", "attempts", "audit"])
        read = [f"SELECT * FROM idemq.{name}", f"SELECT t::text FROM idemq.{name} t", f"SELECT count(*) FROM idemq.{name} t WHERE leak(t::text)"]
        write = [f"DELETE FROM idemq.{name}", f"INSERT INTO idemq.{name} DEFAULT VALUES", f"TRUNCATE idemq.{name} CASCADE",
            f"LOCK idemq.{name} IN ACCESS EXCLUSIVE MODE", "UPDATE idemq.jobs SET worker = 'x'", "UPDATE idemq.queues SET paused = true"]  # fmt: skip
        sql = self.rng.choice(read if self.role == "postgres" or self.rng.random() < 0.7 else write)
        self.locked = self.locked or sql.startswith("LOCK")
        return sql

    # ---- What came of it

    def report(self, what, sql):
        self.found.append(f"{what}: process {self.number}, call {self.done}, {self.role}: {sql[:600]}")

    def send(self, sql, session=None):
        """Sends a statement and judges its answer; returns its SQLSTATE."""
        session = session or self.sessions[self.role]
        state = session.send(sql)
        caught = re.findall(rb"^caught (\w{5}) ", b"\n".join(session.heard), re.M) if "nested_" in sql else []
        if state == "00000" and caught:
            state = caught[-1].decode()
        self.states[state] += 1
        if state == "lost":
            # By an administrator's command, which the log tells, or by a crash, which the runner finds in it.
            session.connect()
        elif state != "00000" and state not in self.documented:
            self.report(f"SQLSTATE {state}, {b' '.join(session.heard[-5:]).decode(errors='replace')[:300]}", sql)
        elif state == "00000" and self.role != "postgres" and re.match("DELETE|UPDATE|INSERT|TRUNCATE|LOCK", sql):
            # pg_write_all_data may lock and write any table: row-level security leaves it no row to write.
            if self.role != "fuzz_reader" or not re.search("LOCK| 0$", session.tag):
                self.report("wrote by hand", sql)
        canaries = {canary.decode() for text in session.heard for canary in re.findall(rb"canary_[ab]_[a-z]+", text)}
        if '"parents"' in sql:  # who enqueued the job, a superuser perhaps, has handed their results on
            canaries = {canary for canary in canaries if not canary.endswith("_result")}
        leaks = sorted(canary for canary in canaries if not canary.startswith(ROLES[self.role]))
        if leaks:
            self.report(f"leak of {', '.join(leaks)}", sql)
        return state

    def send_otherwise(self, sql):
        """As send, of a call with the role's rights that is not its session's own."""
        way = self.rng.choice(["handler", "definer", "role"])
        if way == "handler":
            return self.send(f"SELECT nested_call({quote(sql)})")
        if way == "definer":
            return self.send(f"SELECT nested_by_{self.role}({quote(sql)})", self.lent)
        self.lent.send(f"SET ROLE {self.role}")
        state = self.send(sql, self.lent)
        self.lent.send("RESET ROLE")
        return state

    def statement(self):
        if self.rng.random() < 0.12:
            return self.send(self.table())
        self.done += 1
        sql = self.call()
        state = self.send_otherwise(sql) if self.calling in self.catalog.wrappers and self.rng.random() < 0.7 else self.send(sql)
        self.called[self.calling] += 1
        self.worked[self.calling] += state == "00000"
        return state

    def transaction(self):
        rng = self.rng
        begin = "BEGIN" + rng.choice(["", "", "", " ISOLATION LEVEL REPEATABLE READ", " ISOLATION LEVEL SERIALIZABLE", " READ ONLY"])
        self.send(begin)
        self.locked = False
        depth = 0
        for _ in range(rng.randrange(1, 7)):
            if rng.random() < 0.5:
                depth += 1
                self.send(f"SAVEPOINT s{depth}")
            state = self.statement()
            if state == "lost":
                return
            if depth and (state != "00000" or rng.random() < 0.4):
                # Sometimes to one that is further out.
                depth = rng.choice([depth, rng.randrange(1, depth + 1)])
                self.send(f"{rng.choice(['ROLLBACK TO', 'ROLLBACK TO', 'RELEASE']) if state == '00000' else 'ROLLBACK TO'} s{depth}")
                depth = max(0, depth - 1)
            elif state != "00000":
                break
        # A view's lock is pg_authid's, too: prepared, nobody could come in to end it.
        if not self.locked and rng.random() < 0.1:
            gid = f"'{self.number} {self.done}'"
            if self.send(f"PREPARE TRANSACTION {gid}") == "00000" and self.sessions[self.role].tag == "PREPARE TRANSACTION":
                self.send(f"{rng.choice(['COMMIT', 'ROLLBACK'])} PREPARED {gid}")
        self.send(rng.choice(["COMMIT", "COMMIT", "ROLLBACK"]))

    def refresh(self):
        """Looks which jobs there are; the first process makes new ones."""
        try:
            if self.number == 0 and "postgres" in self.roles:
                self.root.execute("SELECT refill()")
            jobs = self.root.execute("SELECT id, coalesce(token, 0) FROM idemq.jobs ORDER BY status <> 'running', random() LIMIT 100").fetchall()
            self.values.jobs = jobs or [(1, 1)]
            if self.rng.random() < 0.2 and "postgres" in self.roles:
                self.root.execute(f"SELECT pg_{self.rng.choice(['cancel', 'cancel', 'terminate'])}_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'fuzz' AND state <> 'idle' ORDER BY random() LIMIT 1")  # fmt: skip
        except psycopg.Error as error:
            # Another process drops a queue, or makes one, under refill's hands.
            if error.sqlstate not in ("40P01", "40001", "55P03", "IQ005", "42710"):
                self.found.append(f"refill: {error.sqlstate} {error}")
            elif error.sqlstate == "55P03":
                forget_prepared(self.root)

    def run(self):
        looked = -1000
        while self.done < self.calls and len(self.found) < 30:
            if self.done - looked >= 100:
                looked = self.done
                self.refresh()
            self.role = self.rng.choice(self.roles)
            if self.rng.random() < 0.5:
                self.statement()
            else:
                self.transaction()
        return self.found, self.states, self.called, self.worked


SETUP = """
CREATE FUNCTION leak(t text) RETURNS bool LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN RAISE NOTICE '%%', t; RETURN true; END $$;
CREATE FUNCTION refill() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	queue text;
	job record;
BEGIN
	FOREACH queue IN ARRAY '{dead,a1,a2,b1,b2}'::text[] LOOP
		IF NOT EXISTS (SELECT FROM idemq.queues WHERE name = queue) THEN
			PERFORM idemq.create_queue(queue, lease => '1 day', retry_jitter => 0, dead_letter_queue => CASE queue WHEN 'a2' THEN 'dead' WHEN 'b2' THEN 'b1' END);
			IF queue LIKE 'a%%' THEN
				PERFORM idemq.grant_queue(queue, 'fuzz_admin', 'admin'), idemq.grant_queue(queue, 'fuzz_claim', 'claim'), idemq.grant_queue(queue, 'fuzz_enqueue', 'enqueue');
			ELSIF queue LIKE 'b%%' THEN
				PERFORM idemq.grant_queue(queue, 'fuzz_b', 'admin');
			END IF;
		END IF;
		CONTINUE WHEN queue = 'dead' OR (SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id(queue)) > 60;
		PERFORM idemq.resume(queue), idemq.alter_queue(queue, max_running => 0, rate_limit => 0, max_unfinished => 0, group_max_unfinished => 0);
		FOR i IN 1 .. 12 LOOP
			PERFORM idemq.enqueue(queue, to_jsonb('canary_' || left(queue, 1) || '_payload'), key => CASE i %% 3 WHEN 0 THEN 'key' || i WHEN 1 THEN 'canary_' || left(queue, 1) || '_key' || i END,
				headers => to_jsonb('canary_' || left(queue, 1) || '_headers'), group_key => CASE WHEN i > 8 THEN 'canary_' || left(queue, 1) || '_group' END, on_duplicate => 'ignore');
		END LOOP;
		PERFORM idemq.schedule('canary_' || left(queue, 1) || '_schedule', '0 0 1 1 *', queue, to_jsonb('canary_' || left(queue, 1) || '_payload'));
		FOR job IN SELECT *, row_number() OVER () AS n FROM idemq.claim(queue, 6, worker => 'canary_' || left(queue, 1) || '_worker') LOOP
			PERFORM idemq.checkpoint(job.id, job.token, to_jsonb('canary_' || left(queue, 1) || '_checkpoint'));
			CASE job.n
				WHEN 1, 2 THEN PERFORM idemq.commit(job.id, job.token, to_jsonb('canary_' || left(queue, 1) || '_result'));
				WHEN 3 THEN PERFORM idemq.fail(job.id, job.token, 'canary_' || left(queue, 1) || '_error', retry_in => '1 day');
				WHEN 4 THEN PERFORM idemq.fail(job.id, job.token, 'canary_' || left(queue, 1) || '_error', permanent => true);
				ELSE NULL;
			END CASE;
		END LOOP;
	END LOOP;
END $$
"""
# Runs a statement, and again in the handler of its error; what a wrapper has set must not stay.
NESTED = """
CREATE FUNCTION nested_settings() RETURNS text LANGUAGE sql AS $$ SELECT concat_ws('; ', current_user, current_setting('search_path'),
	current_setting('enable_seqscan'), current_setting('jit'), current_setting('plan_cache_mode')) $$;
CREATE FUNCTION nested_call(sql text, again boolean DEFAULT true) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	before text := nested_settings();
	answer record;
BEGIN
	FOR answer IN EXECUTE sql LOOP
		RETURN NEXT answer::text;
	END LOOP;
	IF nested_settings() <> before THEN RAISE SQLSTATE 'SETUP' USING MESSAGE = nested_settings(); END IF;
EXCEPTION WHEN OTHERS THEN
	IF nested_settings() <> before THEN RAISE SQLSTATE 'SETUP' USING MESSAGE = nested_settings(); END IF;
	RETURN NEXT format('caught %s %s', SQLSTATE, SQLERRM);
	IF again THEN RETURN QUERY SELECT nested_call(sql, false); END IF;
END $$
"""
# What strangers must not change.
DIGEST = """
SELECT md5(string_agg(t, E'\\n' ORDER BY t)), count(*) FROM (
	SELECT j::text FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE q.name LIKE 'b%%'
	UNION ALL SELECT q::text FROM idemq.queues q WHERE name LIKE 'b%%'
	UNION ALL SELECT g::text FROM idemq_internal.queue_grants g JOIN idemq.queues q USING (queue_id) WHERE q.name LIKE 'b%%'
	UNION ALL SELECT s::text FROM idemq_internal.schedule_entries s WHERE s.name LIKE 'canary_b%%') x(t)
"""


def set_up(conn):
    for role in ROLES:
        if role != "postgres":
            conn.execute(f"CREATE ROLE {role} LOGIN")
            conn.execute(f"GRANT USAGE ON SCHEMA idemq TO {role}")
    conn.execute("CREATE ROLE fuzz_friend")
    conn.execute(NESTED)
    for role in ROLES:
        conn.execute(f"CREATE FUNCTION nested_by_{role}(sql text) RETURNS SETOF text SECURITY DEFINER LANGUAGE sql AS 'SELECT nested_call(sql)'")
        conn.execute(f"ALTER FUNCTION nested_by_{role}(text) OWNER TO {role}")
    conn.execute("GRANT pg_monitor TO fuzz_monitor")
    conn.execute("GRANT pg_read_all_data, pg_write_all_data TO fuzz_reader")
    conn.execute("CALL idemq.tick()")
    conn.execute(SETUP.replace("%%", "%"))
    conn.execute("SELECT refill()")


def process(arguments):
    return Fuzzer(*arguments).run()


def documented():
    """The SQLSTATEs that the manual names, and PostgreSQL's own."""
    errors = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../doc/reference/errors.md")
    with open(errors, encoding="utf-8") as page:
        rows = re.findall(r"^\| ([0-9A-Z, ]+) \|", page.read(), re.M)
    return POSTGRES | {state for row in rows for state in re.findall(r"\b[0-9A-Z]{5}\b", row)}


def main(dsn, calls, seed):
    calls = int(calls)
    root = psycopg.connect(f"{dsn} user=postgres", autocommit=True)
    start = time.time()
    set_up(root)
    states = documented()
    found, counts, called, worked = [], collections.Counter(), collections.Counter(), collections.Counter()

    def phase(number, calls, roles):
        # As on all versions of Python before 3.14: the processes find what was prepared here.
        with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
            arguments = [(dsn, n, calls // PROCESSES, f"{seed} {number}", roles, states) for n in range(PROCESSES)]
            for found_there, counts_there, called_there, worked_there in pool.imap_unordered(process, arguments):
                found.extend(found_there)
                counts.update(counts_there)
                called.update(called_there)
                worked.update(worked_there)

    # The heads of groups come after the commit.
    while root.execute("""SELECT count(*) FROM idemq.jobs b WHERE status = 'blocked' AND NOT EXISTS (SELECT FROM idemq.jobs h
            WHERE h.queue_id = b.queue_id AND h.group_key = b.group_key AND h.finished_at IS NULL AND h.status <> 'blocked')""").fetchone()[0]:
        time.sleep(0.1)
    before = root.execute(DIGEST.replace("%%", "%")).fetchone()
    phase(1, calls // 4, STRANGERS)
    forget_prepared(root)
    if root.execute(DIGEST.replace("%%", "%")).fetchone() != before:
        found.append("strangers have changed the rows of tenant b")
    if before[1] < 20:
        found.append("tenant b has hardly a row")
    phase(2, calls - calls // 4, [*ROLES, "postgres", "postgres", "fuzz_admin", "fuzz_claim", "fuzz_b"])

    forget_prepared(root)
    for severity, invariant, detail in root.execute("SELECT * FROM idemq.check()").fetchall():
        # Who begins steps at random leaves some without an answer.
        if invariant != "steps.unknown":
            found.append(f"check(): {severity} {invariant} {detail}")
    functions = {function[0]: function[2] for function in Catalog(root).functions}
    missed = functions.keys() - called.keys() - (SELDOM.keys() if calls < 100000 else set())
    if calls >= 3000 and missed:
        found.append(f"never called: {', '.join(sorted(missed))}")
    # Trigger functions, which nobody may call so, always fail.
    never = sorted(name for name, trigger in functions.items() if not trigger and not worked[name] and name not in UNLIKELY)
    if calls >= 100000 and never:
        found.append(f"never succeeded: {', '.join(never)}")
    if os.environ.get("FUZZ_FUNCTIONS"):
        print("figure: succeeded/called:", ", ".join(f"{name} {worked[name]}/{called[name]}" for name in sorted(called)))
    for line in found:
        print("found:", line.replace("\n", " "))
    ok = counts.pop("00000", 0)
    print(f"figure: {sum(called.values())} calls of {len(functions)} functions in {time.time() - start:.0f} s; {ok} statements succeeded; "
          + ", ".join(f"{state} {count}" for state, count in sorted(counts.items())))


main(*sys.argv[1:])
