"""patroni.py: three nodes of Patroni with etcd, and what stands in front of them.

The configuration is that of deploy/patroni: idemq.yml as it is, haproxy.cfg and pgbouncer.ini with
other addresses.
"""

import json
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path

from processes import BIN, WORK, Failure, Server, end, free_ports, log, running, signal_all, start, tree, until
from scenarios import SCHEMA, dsn_of, event, reads

DEPLOY = Path(__file__).parents[2] / "deploy" / "patroni"

NODE = """
name: {name}
restapi:
  listen: 127.0.0.1:{rest}
  connect_address: 127.0.0.1:{rest}
etcd3:
  hosts: 127.0.0.1:{etcd}
postgresql:
  listen: 127.0.0.1:{port}
  connect_address: 127.0.0.1:{port}
  bin_dir: {bin}
  data_dir: {data}
  pgpass: {data}.pgpass
  authentication:
    superuser: {{username: postgres}}
    replication: {{username: replicator}}
  pg_hba:
    - host all all 127.0.0.1/32 trust
    - host replication all 127.0.0.1/32 trust
  parameters:
    unix_socket_directories: ''
    fsync: 'off'
    max_connections: 60
    log_line_prefix: '%m [%p] %e %a '
    log_min_messages: warning
"""


def http(url, body=None):
    """Status and text of an answer; 0 of none."""
    request = urllib.request.Request(url, data=None if body is None else json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


class Etcd:
    """One etcd: what is tried here is PostgreSQL, not etcd."""

    def __init__(self, name):
        self.port, peer = free_ports(2)
        url, peers = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{peer}"
        self.process = start(
            ["etcd", "--name", "one", "--data-dir", WORK / name, "--listen-client-urls", url, "--advertise-client-urls", url,
             "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"one={peers}"],
            WORK / f"{name}.log")
        until(lambda: http(f"{url}/health")[0] == 200, "etcd is healthy")


class Node(Server):
    """A server that Patroni starts and stops."""

    def __init__(self, name, etcd):
        port, self.rest = free_ports(2)
        super().__init__(name, port)
        self.process = None
        self.conf = WORK / f"{name}.conf"
        self.conf.mkdir()
        (self.conf / "idemq.yml").write_text((DEPLOY / "idemq.yml").read_text())
        (self.conf / "node.yml").write_text(NODE.format(name=name, rest=self.rest, etcd=etcd.port, port=port, bin=BIN, data=self.data))

    def begin(self):
        self.process = start(["patroni", self.conf], WORK / f"{self.name}.patroni.log")

    def kill_node(self):
        """Patroni and PostgreSQL at once, as a machine dies."""
        signal_all([self.process.pid], signal.SIGKILL)
        self.kill()
        end(self.process)

    def freeze_node(self):
        signal_all(tree(self.process.pid), signal.SIGSTOP)
        self.freeze()

    def thaw_node(self):
        self.thaw()
        signal_all(tree(self.process.pid), signal.SIGCONT)


class Cluster:
    """Three nodes; the first makes the cluster."""

    def __init__(self, name, count=3):
        self.etcd = Etcd(f"{name}-etcd")
        self.nodes = [Node(f"{name}{n + 1}", self.etcd) for n in range(count)]
        self.nodes[0].begin()
        until(self.nodes[0].is_primary, "the first node is the primary")
        for node in self.nodes[1:]:
            node.begin()
        self.wait_until_whole()
        self.primary().sql(SCHEMA)

    def members(self):
        """Roles of the nodes that run, as Patroni tells; {} while it does not."""
        for node in self.nodes:
            if node.process.poll() is None and running(node.process.pid):
                status, text = http(f"http://127.0.0.1:{node.rest}/cluster")
                if status == 200:
                    return {member["name"]: member["role"] for member in json.loads(text)["members"]
                            if member["state"] in ("running", "streaming")}
        return {}

    def wait_until_whole(self):
        """Until there are a leader, a synchronous standby, and others that follow."""
        until(lambda: sorted(self.members().values()) == ["leader", *["replica"] * (len(self.nodes) - 2), "sync_standby"],
              "leader, synchronous standby and replica", 180)
        primary = self.primary()
        for node in self.nodes:
            if node is not primary:
                primary.wait_for_standby(node.name)

    def primary(self):
        return until(lambda: next((node for node in self.nodes if node.is_primary()), None), "a primary")

    def another(self, role="sync_standby"):
        def found():
            roles = self.members()
            return next((node for node in self.nodes if roles.get(node.name) == role), None)

        return until(found, f"a node that is {role}")

    def dsn(self):
        return dsn_of(*(node.port for node in self.nodes))

    def switch_over(self):
        leader, candidate = self.primary(), self.another()
        status, text = http(f"http://127.0.0.1:{leader.rest}/switchover", {"leader": leader.name, "candidate": candidate.name})
        if status != 200:
            raise Failure(f"switchover: {status} {text}")

    def kill_primary(self):
        self.primary().kill()

    def forget(self):
        for node in self.nodes:
            end(node.process)
            node.forget()
        end(self.etcd.process)


def _tell_all(cluster, scenario, dsn, only=None):
    """The events; each begins with a whole cluster, and ends with a standby that says what the primary says."""

    def killed_node():
        dead.append(cluster.primary())
        dead[-1].kill_node()

    def frozen_node():
        dead.append(cluster.primary())
        dead[-1].freeze_node()

    def others():
        """The primary, which is none of those that are gone."""
        return until(lambda: next((node for node in cluster.nodes if node not in dead and node.is_primary()), None), "a primary")

    def whole():
        cluster.wait_until_whole()
        return cluster.another()

    def back():
        dead.pop().begin()
        return whole()

    def awake():
        # That it streams is enough: Patroni before 3.1 may name no synchronous standby anew after
        # this, by a stale cache of etcd's v3 ("Synchronous replication key updated by someone else").
        primary = others()
        dead[-1].thaw_node()
        primary.wait_for_standby(dead[-1].name)
        return dead[-1]

    dead = []
    events = [
        ("planned switchover", cluster.switch_over, whole),
        ("PostgreSQL is killed (-9)", cluster.kill_primary, whole),
        ("the whole node is killed: Patroni and PostgreSQL", killed_node, back),
        ("the whole node hangs (SIGSTOP) and wakes up later", frozen_node, awake),
    ]
    for what, action, after in events:
        if only is None or what in only:
            yield event(scenario, what, dsn, action, others)
            standby = after()
            primary = others()
            reads(standby, primary)
            errors = primary.sql("SELECT invariant, detail FROM idemq.check() WHERE severity = 'error'")
            if errors:
                raise Failure(f"check(): {errors}")


def patroni():
    """Patroni with etcd, clients with a list of hosts."""
    cluster = Cluster("patroni")
    yield from _tell_all(cluster, "Patroni", cluster.dsn())
    cluster.forget()


def proxies():
    """The same through pgbouncer and HAProxy: one address."""
    cluster = Cluster("proxy")
    front, pool = free_ports(2)
    conf = (DEPLOY / "haproxy.cfg").read_text()
    conf = conf.replace("127.0.0.1:5000", f"127.0.0.1:{front}")
    for n, node in enumerate(cluster.nodes, 1):
        conf = conf.replace(f"10.0.0.{n}:5432 check port 8008", f"127.0.0.1:{node.port} check port {node.rest}")
    (WORK / "haproxy.cfg").write_text(conf)
    ini = (DEPLOY / "pgbouncer.ini").read_text()
    for pattern, value in ((r"port=5000", f"port={front}"), (r"(?m)^listen_port = .*", f"listen_port = {pool}"),
                           (r"(?m)^auth_type = .*", "auth_type = trust"),
                           (r"(?m)^auth_file = .*", f"auth_file = {WORK}/userlist.txt\nunix_socket_dir =")):
        ini, count = re.subn(pattern, value, ini)
        if count != 1:
            raise Failure(f"pgbouncer.ini: {count} times {pattern}")
    (WORK / "pgbouncer.ini").write_text(ini)
    (WORK / "userlist.txt").write_text('"postgres" ""\n')
    if "10.0.0." in conf or "10.0.0." in ini:
        raise Failure("an address was not replaced")
    started = [start(["/usr/sbin/haproxy", "-db", "-f", WORK / "haproxy.cfg"], WORK / "haproxy.log"),
               start(["/usr/sbin/pgbouncer", WORK / "pgbouncer.ini"], WORK / "pgbouncer.log")]
    log("pgbouncer (transaction mode), HAProxy, Patroni")
    yield from _tell_all(cluster, "pgbouncer, HAProxy, Patroni", dsn_of(pool, target_session_attrs="any"),
                         ("planned switchover", "PostgreSQL is killed (-9)", "the whole node is killed: Patroni and PostgreSQL"))
    for process in started:
        end(process)
    cluster.forget()
