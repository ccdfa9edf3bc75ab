"""repmgr.py: servers that repmgr has cloned, promoted, told to follow and taken back."""

from processes import BIN, WORK, Server, call, free_ports, log
from scenarios import CONF, SCHEMA, dsn_of, event, most_first, reads

CONFIGURATION = """node_id = {number}
node_name = '{name}'
conninfo = '{conninfo}'
data_directory = '{data}'
pg_bindir = '{bin}'
pg_ctl_options = '-l {log}'
"""


class Node(Server):
    """A server that repmgr knows."""

    def __init__(self, number, port):
        super().__init__(f"repmgr{number}", port)
        self.conf = WORK / f"{self.name}.repmgr.conf"
        self.conf.write_text(CONFIGURATION.format(
            number=number, name=self.name, conninfo=self.conninfo(connect_timeout=2), data=self.data, bin=BIN, log=self.log))

    def repmgr(self, *words):
        return call(BIN / "repmgr", "-f", self.conf, *words)


def repmgr():
    """The primary dies; repmgr promotes a standby, has the other follow, and takes the old one back."""
    names = "FIRST 1 (repmgr1, repmgr2, repmgr3)"
    one, two, three = nodes = [Node(n + 1, port) for n, port in enumerate(free_ports(3))]
    one.init(**CONF, port=one.port)
    one.start()
    one.sql(SCHEMA)
    one.repmgr("primary", "register")
    for node in (two, three):
        node.repmgr("-h", "127.0.0.1", "-p", str(one.port), "-U", "postgres", "-d", "postgres", "standby", "clone", "--fast-checkpoint")
        node.set(port=node.port)
        node.start()
        one.wait_for_standby(node.name)
        node.repmgr("standby", "register")
    for node in nodes:
        node.set(synchronous_standby_names=names)
        node.reload()
    one.wait_for_standby(two.name, "sync")

    def killed():
        nonlocal two, three
        one.kill()
        two, three = most_first(two, three)
        two.repmgr("standby", "promote")
        three.repmgr("standby", "follow")

    yield event("repmgr", "the primary is killed; then repmgr's standby promote and standby follow are run", dsn_of(*(node.port for node in nodes)), killed, lambda: two)
    two.sql("CHECKPOINT")  # as Server.rewind
    # pg_rewind brings the other's files, its port among them.
    one.repmgr("-d", two.conninfo(), "node", "rejoin", "--force-rewind", "--config-files=postgresql.conf")
    two.wait_for_standby(one.name)
    log("node rejoin --force-rewind: the old primary is a standby")
    reads(one, two)
    for node in nodes:
        node.forget()
