#!/usr/bin/python3
"""nursery.py DSN LOG SEED: starts clients by fork, since an interpreter takes longer to start than a job.

A line "NAME PROGRAM TENANT [calm]" on its input starts one: its pid is in LOG.NAME.pid then, what
it says in LOG.NAME, and its status in LOG.NAME.exit when it has ended.  "end" ends the nursery.
"""

import os
import select
import sys
import traceback

from producer import Producer
from sleeper import Crowder, Feeder, Filler, Holder, Pinger, Sleeper
from steering import Administrator, Canceller, Declarer, Enqueuer, Hearer, Listener, Pauser
from turner import Turner
from watcher import Watcher
from worker import Worker

PROGRAMS = {
    "producer": Producer, "turner": Turner, "watcher": Watcher, "worker": Worker,
    "sleeper": Sleeper, "feeder": Feeder, "filler": Filler, "crowder": Crowder, "holder": Holder, "pinger": Pinger,
    "hearer": Hearer, "canceller": Canceller, "declarer": Declarer, "administrator": Administrator, "pauser": Pauser, "enqueuer": Enqueuer,
    "listener": Listener,
}
dsn, log, seed = sys.argv[1:]
running = {}


def write_whole(path, text):
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(text)
    os.rename(path + ".new", path)


def child(name, program, tenant, calm=""):
    os.dup2(os.open(f"{log}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 2)
    status = 1
    try:
        user = f" user={tenant}" if tenant.startswith("t") else ""
        client = PROGRAMS[program](dsn + user, name, log, seed, tenant, calm)
        write_whole(f"{log}.{name}.pid", str(os.getpid()))
        client.forever(client.work)
        status = 0
    except BaseException:  # pylint: disable=broad-except
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def reap():
    for pid, name in list(running.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del running[pid]
            write_whole(f"{log}.{name}.exit", str(status))


buffer = b""
while True:
    if select.select([0], [], [], 0.01)[0]:
        *lines, buffer = (buffer + os.read(0, 4096)).split(b"\n")
        for line in lines:
            words = line.decode().split()
            if words == ["end"]:  # a server that was started meanwhile may have the other end, too
                sys.exit(0)
            pid = os.fork()
            if pid == 0:
                child(*words)
            running[pid] = words[0]
    reap()
