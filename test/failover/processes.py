"""processes.py: what every scenario starts, and how all of it ends.

A process that is started here ends with main.py, whatever ends that (PR_SET_PDEATHSIG), except
PostgreSQL servers, which begin sessions of their own: stop_all ends those, and run does once more.

What loses its parent is awaited by the parent of all of this, await_orphans: an init that leaves a
dead postmaster a zombie for a while makes its postmaster.pid look like that of a server that runs.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psycopg

WORK = Path(os.environ["FAILOVER_WORK"])
BIN = Path(os.environ["FAILOVER_BIN"])
SLOW = int(os.environ.get("FAILOVER_SLOW", 1))  # how many times longer all may take
PATIENCE = 90 * SLOW

_libc = ctypes.CDLL(None)
_started = []
_servers = []


class Failure(Exception):
    """What a scenario needed did not come, or is wrong."""


def log(text):
    print(f"    {text}", flush=True)


def until(condition, what, patience=PATIENCE):
    """Waits for a condition; its value."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise Failure(f"not within {patience} s: {what}")


def free_ports(count):
    """Ports that nobody listens at."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _ends_with_parent():
    _libc.prctl(1, signal.SIGTERM)


def await_orphans():
    """Goes on in a child; this process awaits all that ends below it, and ends as the child does."""
    _libc.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    child = os.fork()
    if child == 0:
        _ends_with_parent()
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child has heard it, too
    signal.signal(signal.SIGTERM, lambda *_: signal_all([child], signal.SIGTERM))
    while True:
        pid, status = os.wait()
        if pid == child:
            sys.exit(abs(os.waitstatus_to_exitcode(status)))


def start(command, output, **env):
    """Starts a program whose output goes to a file."""
    with open(output, "ab") as out:
        process = subprocess.Popen(  # pylint: disable=consider-using-with,subprocess-popen-preexec-fn
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            env={**os.environ, **env}, preexec_fn=_ends_with_parent,
        )
    _started.append(process)
    return process


def call(*command, **env):
    """Runs a program that must succeed; its output."""
    result = subprocess.run(
        [str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        env={**os.environ, **env}, timeout=PATIENCE, check=False,
    )
    if result.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}: {result.stdout}{result.stderr}")
    return result.stdout


def tree(pid):
    """A process and all that it has begun."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rsplit(")", 1)[1].split()
            children.setdefault(int(words[1]), []).append(int(stat.parent.name))
        except (OSError, IndexError):
            pass  # it has ended
    found, rest = [], [pid]
    while rest:
        found.append(rest.pop())
        rest += children.get(found[-1], [])
    return found


def signal_all(pids, what):
    for pid in pids:
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            pass


def end(process, patience=10):
    """Ends a program in good order, or else at once."""
    if process.poll() is None:
        signal_all(tree(process.pid), signal.SIGCONT)
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process in _started:
        _started.remove(process)


def stop_all():
    """Ends everything, also what is stopped by a signal."""
    for process in reversed(list(_started)):
        end(process)
    for server in list(_servers):
        server.kill()


class Server:
    """A PostgreSQL server with its data below WORK, which listens on loopback."""

    def __init__(self, name, port):
        self.name, self.port = name, port
        self.data = WORK / name
        self.log = WORK / f"{name}.log"
        _servers.append(self)

    def forget(self):
        """It is not used any more."""
        self.kill()
        _servers.remove(self)

    def conninfo(self, **more):
        params = {"host": "127.0.0.1", "port": self.port, "user": "postgres", "dbname": "postgres", **more}
        return " ".join(f"{name}={value}" for name, value in params.items())

    def pg_ctl(self, *words):
        return call(BIN / "pg_ctl", "-D", self.data, "-s", "-w", "-t", PATIENCE, *words)

    def init(self, **settings):
        call(BIN / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-k", "--no-sync")
        self.set(**settings)

    def clone(self, source):
        """A standby of source, not started."""
        call(BIN / "pg_basebackup", "-D", self.data, "-X", "stream", "-c", "fast", "--no-sync", "-d", source.conninfo())
        self.set(port=self.port, listen_addresses="127.0.0.1")
        self.follow(source, reload=False)

    def set(self, **settings):
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as conf:
            for name, value in settings.items():
                conf.write(f"{name.replace('__', '.')} = '{value}'\n")

    def reload(self):
        self.pg_ctl("reload")

    def follow(self, source, reload=True):
        """Streams from source, from now on or from its start."""
        (self.data / "standby.signal").touch()
        # An entry of pg_basebackup, pg_rewind or repmgr in postgresql.auto.conf would win.
        self.set(primary_conninfo=source.conninfo(application_name=self.name, connect_timeout=3 * SLOW) if source else "")
        if reload:
            self.reload()

    def start(self):
        self.pg_ctl("-l", self.log, "start")

    def stop(self, mode="fast"):
        self.pg_ctl("-m", mode, "stop")

    def promote(self):
        self.pg_ctl("promote")

    def rewind(self, source):
        """Takes back what only this server has, after its end; then it is a standby of source."""
        # Before 16, pg_rewind takes a new primary that has not had its first checkpoint for one of
        # the old timeline, and rewinds nothing.
        source.sql("CHECKPOINT")
        call(BIN / "pg_rewind", "-D", self.data, "--no-sync", f"--source-server={source.conninfo()}")
        # pg_rewind has copied the other's settings.
        self.set(port=self.port)
        self.follow(source, reload=False)

    @property
    def postmaster(self):
        try:
            return int((self.data / "postmaster.pid").read_text(encoding="utf-8").split("\n")[0])
        except (OSError, ValueError):
            return None

    def pids(self):
        pid = self.postmaster
        return tree(pid) if pid and Path(f"/proc/{pid}").exists() else []

    def kill(self):
        """kill -9 of all its processes at once, as a machine dies."""
        pids = self.pids()
        signal_all(pids[:1], signal.SIGSTOP)  # it starts none meanwhile
        pids = self.pids()
        signal_all(pids, signal.SIGKILL)
        until(lambda: not any(running(pid) for pid in pids), f"the end of {self.name}")
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), f"somebody awaits {self.name}")

    def freeze(self):
        """Stops all its processes: the kernel goes on answering for it."""
        signal_all(self.pids()[:1], signal.SIGSTOP)
        signal_all(self.pids(), signal.SIGSTOP)

    def thaw(self):
        signal_all(self.pids(), signal.SIGCONT)

    def sql(self, query, args=None):
        """The rows of a statement; its first value where it is one row of one."""
        with psycopg.connect(self.conninfo(connect_timeout=5 * SLOW), autocommit=True) as conn:
            cursor = conn.execute(query, args)
            return cursor.fetchall() if cursor.description else []

    def value(self, query, args=None):
        return self.sql(query, args)[0][0]

    def says(self, query, args=None):
        """The same; None while it does not answer."""
        try:
            return self.value(query, args)
        except psycopg.Error:
            return None

    def received(self):
        """Of a standby: the bytes of WAL that it has, flushed."""
        return self.value("SELECT pg_last_wal_receive_lsn() - '0/0'")

    def is_primary(self):
        return self.says("SELECT NOT pg_is_in_recovery()") is True

    def wait_for_standby(self, name, sync=None):
        until(lambda: self.says("SELECT count(*) FROM pg_stat_replication WHERE application_name = %s AND state = 'streaming'"
                                " AND (%s::text IS NULL OR sync_state = %s)", (name, sync, sync)), f"{name} streams from {self.name}")

    def wait_for_replay(self, standby):
        """Waits until a standby, also one behind another, has replayed what there is now."""
        here = self.value("SELECT pg_current_wal_insert_lsn()")
        until(lambda: standby.says("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (here,)), f"{standby.name} has caught up")


def running(pid):
    """Whether a process runs: one that has ended and was not awaited does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False
