"""python_silence.py: a proxy that stops forwarding, and sends no RST, at each point of a job's life.

For python_silence.pl, which says where the server is (IDEMQ_DSN).  Two questions, for each way to work: does the work go on
over new connections, each effect once; and does SIGTERM end the process within grace plus 5 s, if new connections lead
nowhere, too?
"""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import idemq.relay
import tap
from python_common import DSN, Client, Proxy

GRACE = 2
MARGIN = 5
BUSY = 1  # second more until a signal is heard on a busy machine
ENDS = 25  # seconds more until Python itself has ended there; what keeps the process does so for a minute
LEASE = 9

# What is seen on the way to the server when the point is reached, and whether it is still forwarded; the handler's seconds.
POINTS = {
    "claim, before": (b"idemq.claim(", False, 0),
    "claim, after": (b"idemq.claim(", True, 0),
    "heartbeat, before": (b"heartbeat_many", False, 7),
    "heartbeat, after": (b"heartbeat_many", True, 7),
    "commit, before": (b"idemq.commit_many", False, 0),
    "commit, after": (b"idemq.commit_many", True, 0),
}
POINTS_OF_RUN = {
    "begin, before": (b"idemq.assert_current", False, 0),
    "begin, after": (b"idemq.assert_current", True, 0),
    "statement, before": (b"INSERT INTO effects", False, 0),
    "statement, after": (b"INSERT INTO effects", True, 0),
}
WAYS = ("run", "outside", "async_run", "async_outside")


class Silencer(Proxy):
    """Forwards nothing more on the connections that are there when the pattern is seen; with forever on no other one."""

    def __init__(self, pattern, forwards, forever=False):
        self.pattern, self.forwards, self.forever = pattern, forwards, forever
        self.silent = threading.Event()
        self.before = set()  # connections that are silent from then on
        self.all = set()
        super().__init__(0)

    def silence(self):
        self.before |= self.all
        self.silent.set()

    def is_silent(self, connection):
        return connection in self.before or (self.forever and self.silent.is_set())

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.to)
            connection = (client, server)
            self.all.add(connection)
            threading.Thread(target=self.pump, args=(connection, client, server), daemon=True).start()
            threading.Thread(target=self.pump, args=(connection, server, client), daemon=True).start()

    def pump(self, connection, source, to):
        while data := self.read(source):
            if source is connection[0] and self.pattern in data and not self.silent.is_set():
                if self.forwards:
                    # Nothing of the answer: it is silent before the server has the question.
                    self.silence()
                    to.sendall(data)
                    continue
                self.silence()
            if self.is_silent(connection):
                continue  # read, and dropped: not even the end of it is forwarded
            try:
                to.sendall(data)
            except OSError:
                break
        if not self.is_silent(connection):
            self.end(*connection)


class Silence(Client):
    def begin(self, way, seconds, pattern, forwards, jobs, forever=False):
        Client.number += 1
        queue = f"silence_{os.getpid()}_{Client.number}"
        self.sql("SELECT idemq.create_queue(%s, lease => %s::interval, retry_base => '1 ms', max_attempts => 9)", queue, f"{LEASE} s")
        proxy = Silencer(pattern, forwards, forever)
        self.sql("SELECT count(idemq.enqueue(%s, to_jsonb(n))) FROM generate_series(1, %s) n", queue, jobs)
        log = open(os.path.join(os.environ.get("TMPDIR", "/tmp"), f"{queue}.log"), "w+")
        worker = subprocess.Popen(
            [sys.executable, os.path.join(os.path.dirname(__file__), "python_silence_worker.py"), way, proxy.dsn("sslmode=disable"), queue, str(GRACE), str(seconds)],
            stderr=log,
        )
        self.addCleanup(worker.kill)
        return queue, proxy, worker, log

    @staticmethod
    def said(log):
        log.seek(0)
        return log.read()

    def lasts(self, worker, log):
        """Seconds from SIGTERM until the worker has returned; more if that does not end the process."""
        begun = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(GRACE + MARGIN + ENDS)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
        returned = re.search(r"^returned at ([\d.]+)$", self.said(log), re.MULTILINE)
        return float(returned[1]) - begun if returned and worker.returncode == 0 else time.monotonic() - begun

    def goes_on(self, way, point, pattern, forwards, seconds):
        name = f"{way}, {point}"
        queue, proxy, worker, log = self.begin(way, seconds, pattern, forwards, 3)
        if not proxy.silent.wait(90):
            return f"{name}: the point was not reached\n{self.said(log)}"
        give_up = time.monotonic() + 150
        while self.count(queue, "status = 'completed'") < 3:
            if time.monotonic() > give_up or worker.poll() is not None:
                return f"{name}: the work does not go on\n{self.said(log)}"
            time.sleep(0.2)
        lasts = self.lasts(worker, log)
        effects = self.query("SELECT array_agg(n ORDER BY n) FROM effects WHERE queue = %s", queue)
        if effects != [1, 2, 3]:
            return f"{name}: effects {effects}\n{self.said(log)}"
        if lasts > GRACE + MARGIN + BUSY or worker.returncode != 0:
            return f"{name}: ended after {lasts:.1f} s, status {worker.returncode}\n{self.said(log)}"
        return None

    def stops(self, way, point, pattern, forwards, seconds):
        name = f"{way}, {point}, then SIGTERM"
        queue, proxy, worker, log = self.begin(way, seconds, pattern, forwards, 1, True)
        if not proxy.silent.wait(90):
            return f"{name}: the point was not reached\n{self.said(log)}"
        lasts = self.lasts(worker, log)
        if lasts > GRACE + MARGIN + BUSY or worker.returncode != 0:
            return f"{name}: ended after {lasts:.1f} s, status {worker.returncode}\n{self.said(log)}"
        # Sessions that nobody has ended hold the job; the server's administrator, or TCP, would end them.
        self.query("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'idemq-python' AND query LIKE %s", f"%{queue}%")
        effects = self.query("SELECT count(*) FROM effects WHERE queue = %s", queue)
        if effects > 1:
            return f"{name}: {effects} effects"
        return None

    def query(self, sql, *values):
        import psycopg

        with psycopg.connect(DSN, autocommit=True) as conn:
            return conn.execute(sql, values).fetchone()[0]

    def count(self, queue, condition):
        return self.query(f"SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s) AND {condition}", queue)

    def all_points(self, ask):
        cases = []
        for way in WAYS:
            for point, (pattern, forwards, seconds) in {**POINTS, **(POINTS_OF_RUN if way.endswith("run") else {})}.items():
                cases.append((way, point, pattern, forwards, seconds))
        if os.environ.get("POINTS"):
            cases = [case for case in cases if os.environ["POINTS"] in f"{case[0]}, {case[1]}"]
        with ThreadPoolExecutor(4) as pool:
            troubles = [trouble for trouble in pool.map(lambda case: ask(*case), cases) if trouble is not None]
        self.assertEqual(troubles, [], "\n".join(troubles))

    def test_the_work_goes_on(self):
        self.all_points(self.goes_on)

    def test_sigterm_ends_the_process(self):
        self.all_points(self.stops)

    def test_sigterm_ends_an_idle_process(self):
        def idle(way):
            queue, proxy, worker, log = self.begin(way, 0, b"CALL idemq.wait", True, 0, True)
            if not proxy.silent.wait(90):
                return f"{way}: it does not wait\n{self.said(log)}"
            lasts = self.lasts(worker, log)
            return None if lasts < GRACE + MARGIN + BUSY and worker.returncode == 0 else f"{way}: {lasts:.1f} s\n{self.said(log)}"

        with ThreadPoolExecutor(4) as pool:
            troubles = [trouble for trouble in pool.map(idle, WAYS) if trouble is not None]
        self.assertEqual(troubles, [], "\n".join(troubles))

    def test_an_idle_worker_goes_on(self):
        def idle(way):
            queue, proxy, worker, log = self.begin(way, 0, b"CALL idemq.wait", True, 0)
            if not proxy.silent.wait(90):
                return f"{way}: it does not wait\n{self.said(log)}"
            self.query("SELECT count(idemq.enqueue(%s, to_jsonb(n))) FROM generate_series(1, 2) n", queue)
            give_up = time.monotonic() + 150
            while self.count(queue, "status = 'completed'") < 2 and time.monotonic() < give_up:
                time.sleep(0.2)
            effects = self.query("SELECT array_agg(n ORDER BY n) FROM effects WHERE queue = %s", queue)
            self.lasts(worker, log)
            return None if effects == [1, 2] and worker.returncode == 0 else f"{way}: {effects}\n{self.said(log)}"

        with ThreadPoolExecutor(4) as pool:
            troubles = [trouble for trouble in pool.map(idle, WAYS) if trouble is not None]
        self.assertEqual(troubles, [], "\n".join(troubles))

    def relay(self, forever):
        """A relay of which the application's connections are silent once it has taken rows; and how it has ended."""
        proxy = Silencer(b"FOR UPDATE SKIP LOCKED", True, forever)
        program = "import idemq.relay as r; r.ANSWER_TIMEOUT, r.GRACE, r.JOIN_TIMEOUT = 3, 7, 3; r.main()"
        relay = subprocess.Popen([sys.executable, "-c", program, "run", "--app", proxy.dsn("sslmode=disable"), "--idemq", DSN], stderr=subprocess.DEVNULL)
        self.addCleanup(relay.kill)
        self.assertTrue(proxy.silent.wait(90), "it takes rows")
        return relay

    def test_the_relay(self):
        idemq.relay.create(DSN, DSN)
        self.sql("INSERT INTO idemq_outbox.jobs (queue, payload) SELECT %s, to_jsonb(n) FROM generate_series(1, 3) n", self.queue)
        relay = self.relay(True)
        begun = time.monotonic()
        relay.terminate()
        self.assertEqual(relay.wait(90), 0)
        self.assertLess(time.monotonic() - begun, 7 + MARGIN + ENDS)
        relay = self.relay(False)
        self.until("SELECT count(*) = 3 FROM idemq_outbox.jobs WHERE sent_at IS NOT NULL")
        self.assertEqual(self.sql("SELECT payload FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s) ORDER BY 1", self.queue), [(1,), (2,), (3,)])
        # What anybody may put into its own queue fails by itself.
        ((bad,),) = self.sql(f"SELECT id FROM idemq.enqueue('{idemq.relay.RESULTS}', '{'9' * 5000}', max_attempts => 1)")
        self.until("SELECT status = 'dead' FROM idemq.jobs WHERE id = %s", bad)
        self.assertIsNone(relay.poll())
        relay.terminate()
        self.assertEqual(relay.wait(90), 0)


if __name__ == "__main__":
    tap.main()
