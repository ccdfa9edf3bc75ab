"""The service of test/bench/upgrade: upgrade.py SOCKET LOG, until SIGTERM; upgrade.py --report TITLE STEPS LOG.

A session connects again only when it is broken, as that of a pool does.
"""

import collections
import signal
import sys
import threading
import time

import psycopg
import psycopg.rows

PAUSE = 0.005


def producer(conn):
    conn.execute("SELECT outcome FROM idemq.enqueue('bench', '1')").fetchone()


def worker(conn, claim="SELECT * FROM idemq.claim('bench')"):
    cursor = conn.cursor(row_factory=psycopg.rows.namedtuple_row)
    job = cursor.execute(claim).fetchone()
    if job:
        with conn.transaction():
            conn.execute("SELECT idemq.commit(%s, %s)", (job.id, job.token))
            conn.execute("INSERT INTO effects VALUES (%s)", (job.id,))


def prepares(conn):
    conn.execute("PREPARE claim AS SELECT * FROM idemq.claim('bench')")


def prepared_worker(conn):
    worker(conn, "EXECUTE claim")


def client(name, begins, step, socket, log, ended):
    conn = None
    while not ended.is_set():
        try:
            if conn is None or conn.closed:
                conn = psycopg.connect(f"host={socket} user=app dbname=shop", autocommit=True, prepare_threshold=None)
                begins(conn)
            step(conn)
            said = "ok"
        except psycopg.Error as error:
            # A connection that is refused has no SQLSTATE in psycopg.
            said = error.sqlstate or ("53300" if "too many connections" in str(error) else "no connection")
        log.append(f"{time.time()}|{name}|{said}\n")
        time.sleep(PAUSE)


def serve(socket, path):
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    sides = {
        "producer": (lambda conn: None, producer),
        "worker": (lambda conn: None, worker),
        "worker that has prepared SELECT *": (prepares, prepared_worker),
    }
    log = []
    threads = [
        threading.Thread(target=client, args=(name, begins, step, socket, log, ended))
        for name, (begins, step) in sides.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open(path, "w") as file:
        file.writelines(log)


def report(title, steps_path, log_path):
    steps = [(name, float(at)) for name, at in (line.rstrip().split("|") for line in open(steps_path))]
    begin = steps[0][1]
    seen = collections.defaultdict(list)
    for at, name, said in (line.rstrip().split("|") for line in open(log_path)):
        if float(at) >= begin - 3:
            seen[name, said].append(float(at) - begin)
    print(f"\n{title}; seconds since the restart began")
    for name, at in steps:
        print(f"  {at - begin:6.2f}  {name}")
    for (name, said), times in sorted(seen.items()):
        if said == "ok":
            before = max(at for at in times if at < steps[1][1])
            after = [at for at in times if at > before]
            print(f"  {name}: nothing done from {before:.2f} " + (f"to {after[0]:.2f}" if after else "on"))
        else:
            print(f"  {name}: {said}, {len(times)} times, from {times[0]:.2f} to {times[-1]:.2f}")


if sys.argv[1] == "--report":
    report(*sys.argv[2:])
else:
    serve(*sys.argv[1:])
