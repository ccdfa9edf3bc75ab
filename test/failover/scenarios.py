"""scenarios.py: streaming replication by hand: asynchronous, synchronous, cascade, a primary that hangs.

Each scenario is a function that yields a Row for each event: traffic flows, the event happens,
traffic flows again, and the account of it is made.
"""

import signal
from dataclasses import dataclass

import psycopg

from processes import SLOW, Failure, Server, free_ports, log, signal_all, until
from traffic import SCHEMA, Account, Traffic, account, lost_do_no_harm

CONF = {
    "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": 60, "fsync": "off",
    "shared_preload_libraries": "idemq", "wal_level": "logical", "wal_keep_size": "512MB",
    "wal_retrieve_retry_interval": "500ms", "log_line_prefix": "%m [%p] %e %a ", "dynamic_shared_memory_type": "mmap",
    "tcp_keepalives_idle": 5, "tcp_keepalives_interval": 2, "tcp_keepalives_count": 3, "tcp_user_timeout": "10s",
    "log_min_messages": "warning",
}
# What clients say: notice a host that is gone in 10 s, a connection that is not made in 2.
CLIENT = {
    "target_session_attrs": "read-write", "connect_timeout": 2 * SLOW, "keepalives_idle": 5, "keepalives_interval": 2,
    "keepalives_count": 3, "tcp_user_timeout": 10000,
}


@dataclass
class Row:
    scenario: str
    event: str
    loses: bool
    account: Account


def dsn_of(*ports, **more):
    """A connection string to whichever of these takes writes."""
    params = {"host": ",".join(["127.0.0.1"] * len(ports)), "port": ",".join(map(str, ports)),
              "user": "postgres", "dbname": "postgres", **CLIENT, **more}
    return " ".join(f"{name}={value}" for name, value in params.items())


def event(scenario, what, dsn, action, primary, loses=False):
    """One event under traffic, and its row.  primary(): the server that takes writes afterwards."""
    log(f"{scenario}: {what}")
    traffic = Traffic(dsn)
    try:
        traffic.start()
        traffic.happens(action)
        server = primary()
        traffic.finish(server, lambda: lost_do_no_harm(traffic, server) if loses else None)
        result = account(traffic, server, loses)
    except BaseException:
        traffic.abandon()
        raise
    log(f"no enqueue for {result.no_enqueue:.1f} s, no commit for {result.no_commit:.1f} s; {result.enqueued} jobs, "
        f"{result.committed} commits acknowledged, {len(result.lost_jobs)} and {result.lost_commits} lost; "
        f"refused {result.refused}, gave up {result.gave_up}")
    return Row(scenario, what, loses, result)


def servers(prefix, count, **settings):
    """A primary with the extension, and servers that are nothing yet."""
    ports = free_ports(count)
    nodes = [Server(f"{prefix}{n + 1}", port) for n, port in enumerate(ports)]
    nodes[0].init(**CONF, port=ports[0], **settings)
    nodes[0].start()
    nodes[0].sql(SCHEMA)
    return nodes


def standby_of(node, source, sync=None):
    node.clone(source)
    node.start()
    source.wait_for_standby(node.name, sync)


def reads(standby, primary):
    """What a standby answers is what the primary says; wait_result waits there."""
    job = primary.value("SELECT id FROM idemq.enqueue('held', '1')")
    primary.wait_for_replay(standby)
    for query in ("SELECT queue, pending, running, retrying, dead FROM idemq.metrics ORDER BY 1",
                  "SELECT status, count(*) FROM idemq.jobs GROUP BY 1 ORDER BY 1"):
        if standby.sql(query) != primary.sql(query):
            raise Failure(f"a standby says otherwise: {query}")
    if "pending" not in standby.value("SELECT idemq.why(%s)", (job,)):
        raise Failure("why on a standby")
    with psycopg.connect(standby.conninfo(), autocommit=True) as conn:
        conn.execute("SELECT 1")
        primary.sql("SELECT idemq.commit(id, token, '\"done\"') FROM idemq.claim_job(%s)", (job,))
        if conn.execute(f"CALL idemq.wait_result(%s, '{60 * SLOW} s')", (job,)).fetchone() != ("completed", "done"):
            raise Failure("wait_result on a standby")
    log(f"{standby.name}, a standby: metrics, jobs, why as on the primary; wait_result answered")


def stale_after_loss(server, held):
    """A claim that the promotion forgot: the job is there, the token is stale once it is claimed again."""
    job, token, key, lost, lost_token = held
    again = server.value("SELECT token FROM idemq.claim_job(%s)", (job,))
    if again is None or again <= token:
        raise Failure(f"job {job}: token {again} after {token}")
    for one, its, expected in ((job, token, "IQ001"), (lost, lost_token, "IQ002")):
        try:
            server.sql("SELECT idemq.commit(%s, %s)", (one, its))
            raise Failure(f"job {one} was committed with a token of the lost primary")
        except psycopg.Error as error:
            if error.sqlstate != expected:
                raise Failure(f"job {one}, committed with a token of the lost primary: {error}") from error
    outcome, renewed = server.sql("SELECT outcome::text, id FROM idemq.enqueue('held', '3', key => %s)", (key,))[0]
    if outcome != "accepted" or renewed == lost:
        raise Failure(f"the key of a lost job: {outcome}, {renewed}")
    server.sql("SELECT idemq.commit(%s, %s)", (job, again))
    log("the old token of a job that was claimed again: IQ001; id and token of a lost one: IQ002; its key: accepted")


def behind(primary, standby, other):
    """Has a standby receive nothing more, and waits until another one has more than it ever will."""
    def still():
        # In its wait, not with a lock of which the other walsender has need.
        signal_all([pid], signal.SIGSTOP)
        if primary.value("SELECT wait_event FROM pg_stat_activity WHERE pid = %s", (pid,)) == "WalSenderMain":
            return True
        signal_all([pid], signal.SIGCONT)
        return False

    pid = primary.value("SELECT pid FROM pg_stat_replication WHERE application_name = %s", (standby.name,))
    until(still, f"the walsender of {standby.name} waits")
    sent = primary.value("SELECT sent_lsn - '0/0' FROM pg_stat_replication WHERE pid = %s", (pid,))
    until(lambda: other.received() > sent, f"{other.name} has more than {standby.name}")


def most_first(*standbys):
    """The standbys of a primary that is gone, the one that has received the most first.

    It has all that the one that was waited for has; and the other can follow it, which one that
    has more than a new primary cannot, without pg_rewind.
    """
    until(lambda: all(node.value("SELECT count(*) FROM pg_stat_wal_receiver") == 0 for node in standbys), "the standbys are cut off")
    return sorted(standbys, key=lambda node: node.received(), reverse=True)


def asynchronous():
    """A standby that lags by what a second brings is promoted; the old primary comes back by pg_rewind."""
    one, two = servers("async", 2)
    standby_of(two, one)
    dsn = dsn_of(one.port, two.port)
    held = []

    def kill():
        # Of what the standby has: a job without its claim.  Of what it has not: a claim, a job.
        job = one.value("SELECT id FROM idemq.enqueue('held', '1')")
        one.wait_for_replay(two)
        two.follow(None)
        until(lambda: one.value("SELECT count(*) FROM pg_stat_replication") == 0, "the standby is cut off")
        token = one.value("SELECT token FROM idemq.claim_job(%s)", (job,))
        lost, lost_token = one.sql("SELECT c.id, c.token FROM idemq.enqueue('held', '2', key => 'lost') e, idemq.claim_job(e.id) c")[0]
        held.extend((job, token, "lost", lost, lost_token))
        traffic_lost()
        one.kill()
        two.promote()

    def traffic_lost():
        before = one.value("SELECT count(*) FROM effects")
        until(lambda: one.value("SELECT count(*) FROM effects") >= before + 50, "commits that the standby does not hear of")

    yield event("asynchronous standby", "the primary is killed while the standby lags, and the standby is promoted", dsn, kill, lambda: two, True)
    stale_after_loss(two, held)
    one.rewind(two)
    one.start()
    two.wait_for_standby(one.name)
    two.wait_for_replay(one)
    if one.value("SELECT count(*) FROM idemq.jobs WHERE id = %s", (held[3],)):
        raise Failure("pg_rewind kept a job that the new primary has not")
    log("pg_rewind: the old primary is a standby, without the jobs that were lost")
    reads(one, two)

    def back():
        two.stop()
        one.promote()

    yield event("asynchronous standby", "planned switch back: the primary is stopped, and the rewound old primary is promoted", dsn, back, lambda: one)
    two.forget()
    one.forget()


def synchronous():
    """One of two standbys is waited for.  The one that has more when the primary dies is promoted, first that one, then the other."""
    names = "FIRST 1 (sync1, sync2, sync3)"
    one, two, three = servers("sync", 3)
    for node, sync in ((two, "sync"), (three, "potential")):
        standby_of(node, one)
        one.set(synchronous_standby_names=names)
        one.reload()
        one.wait_for_standby(node.name, sync)
        node.set(synchronous_standby_names=names)
        node.reload()
    dsn = dsn_of(one.port, two.port, three.port)

    def dies(primary, first, second):
        """Kills a primary whose second standby lags behind the first."""
        behind(primary, second, first)
        primary.kill()
        if most_first(second, first) != [first, second]:
            raise Failure(f"{first.name} has no more than {second.name}")
        first.promote()
        second.follow(first)

    yield event("synchronous standby", "the primary is killed; the synchronous standby is promoted, and the other standby follows it", dsn, lambda: dies(one, two, three), lambda: two)
    one.rewind(two)
    one.start()
    two.wait_for_standby(one.name, "sync")
    two.wait_for_standby(three.name, "potential")
    reads(one, two)
    yield event("synchronous standby", "the primary is killed; the other standby, which has received more, is promoted", dsn, lambda: dies(two, three, one), lambda: three)
    two.rewind(three)
    two.start()
    three.wait_for_standby(two.name)
    reads(two, three)
    for node in (one, two, three):
        node.forget()


def cascade():
    """A standby behind a standby: it follows the promotion of the one before it, and is promoted itself."""
    one, two, three = servers("cascade", 3)
    standby_of(two, one)
    standby_of(three, two)
    one.set(synchronous_standby_names="cascade2")
    one.reload()
    one.wait_for_standby(two.name, "sync")
    dsn = dsn_of(one.port, two.port, three.port)
    reads(three, one)

    def kill():
        one.kill()
        two.promote()

    yield event("cascade", "the primary is killed; the first standby is promoted, and the second follows it", dsn, kill, lambda: two)
    two.wait_for_standby(three.name)
    reads(three, two)

    def planned():
        two.stop()
        three.promote()

    yield event("cascade", "planned switchover: the new primary is stopped, and the second standby is promoted", dsn, planned, lambda: three)
    for node in (one, two, three):
        node.forget()


def hangs():
    """A primary that hangs (SIGSTOP): clients give up, a standby is promoted; then it wakes up."""
    names = "FIRST 1 (hang1, hang2, hang3)"
    one, two, three = servers("hang", 3)
    for node in (two, three):
        standby_of(node, one)
        node.set(synchronous_standby_names=names)
        node.reload()
    one.set(synchronous_standby_names=names)
    one.reload()
    one.wait_for_standby(two.name, "sync")
    zombie = psycopg.connect(one.conninfo(), autocommit=True)
    held = zombie.execute("SELECT c.id, c.token FROM idemq.enqueue('held', '1') e, idemq.claim_job(e.id) c").fetchone()

    def freeze():
        nonlocal two, three
        one.freeze()
        for node in (two, three):
            node.follow(None)
        two, three = most_first(two, three)
        two.promote()
        three.follow(two)

    yield event("primary hangs", "all processes of the primary are stopped (SIGSTOP), and the standby is promoted", dsn_of(one.port, two.port, three.port), freeze, lambda: two)
    # It wakes up, and its sessions believe that they are the primary's.
    one.thaw()
    zombie.execute("BEGIN")
    zombie.execute("SELECT idemq.commit(%s, %s)", held)
    zombie.execute("INSERT INTO effects VALUES ('zombie', %s, %s)", held)
    zombie.pgconn.send_query(b"COMMIT")
    zombie.pgconn.flush()
    pid = zombie.info.backend_pid
    until(lambda: one.says("SELECT wait_event FROM pg_stat_activity WHERE pid = %s", (pid,)) == "SyncRep",
          "the COMMIT on the old primary waits for a standby")
    one.stop("immediate")
    zombie.close()
    log("the old primary woke up: a COMMIT there waited for a standby, and was not acknowledged")
    two.sql("SELECT idemq.commit(%s, %s)", held)  # its worker goes on with its token, on the new primary
    if two.value("SELECT count(*) FROM effects WHERE key = 'zombie'"):
        raise Failure("an effect of the old primary is on the new one")
    one.rewind(two)
    one.start()
    two.wait_for_standby(one.name)
    reads(one, two)
    if one.value("SELECT count(*) FROM effects WHERE key = 'zombie'"):
        raise Failure("an effect that was never acknowledged is there after pg_rewind")
    for node in (one, two, three):
        node.forget()
