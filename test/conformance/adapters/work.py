"""The adapter of idemq-work: see protocol.md.  It starts idemq-work --lines with this program, which passes each job to the adapter over a
socket (work.py --program SOCKET) and carries out its commands.  --run: the effects are in a transaction that also commits the job."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading

DSN = os.environ["IDEMQ_DSN"]


def line_of(value):
    return json.dumps(value) + "\n"


# The program that idemq-work starts.


class Program:
    def __init__(self, where, run):
        self.adapter = socket.socket(socket.AF_UNIX)
        self.adapter.connect(where)
        self.commands = self.adapter.makefile("r")
        self.run = run
        self.conn = None

    def emit(self, **event):
        self.adapter.sendall(line_of(event).encode())

    def transaction(self, job):
        """The job's transaction; it locks the job first."""
        import psycopg

        if self.conn is None or self.conn.closed:
            self.conn = psycopg.connect(DSN, autocommit=True)
        if not self.in_transaction:
            self.conn.execute("BEGIN")
            self.in_transaction = True
            self.conn.execute("SELECT idemq.assert_current(%s, %s)", (job["id"], job["token"]))
        return self.conn

    def execute(self, job, command):
        do = command["do"]
        if do == "effect" and not self.run:
            self.emit(event="effect", token=job["token"], name=command["name"])
        elif do == "effect":
            values = (job["id"], job["token"], command["name"])
            self.transaction(job).execute("INSERT INTO conformance.effects (job, token, name) VALUES (%s, %s, %s)", values)
        elif do == "query" and self.run:
            self.transaction(job).execute(command["sql"])
        elif do == "checkpoint" and not command.get("in_transaction"):
            self.checkpoint = {"checkpoint": command["data"]}
        else:
            return False
        return True

    def reply(self, job, command):
        """What the program writes for return and raise, or None."""
        text = command.get("text")
        if command["do"] == "return":
            value = command.get("value")
            if self.in_transaction and not command.get("unencodable"):
                self.conn.execute("SELECT idemq.commit(%s, %s, %s::text::jsonb)", (job["id"], job["token"], json.dumps(value)))
                self.conn.execute("COMMIT")
            if command.get("unencodable"):
                return {"unencodable": True}
            if command.get("echo"):
                return {"echo": True}
            return {"result": value} if value is not None else {}
        if command["error"] == "panic":
            self.emit(event="ended", command=command["id"])
            os.kill(os.getpid(), signal.SIGKILL)
        return {
            "plain": {"error": text}, "retry_later": {"error": text, "retry_in": command.get("delay")}, "dead": {"error": text, "dead": True},
            "snooze": {"later": command.get("delay")},
        }.get(command["error"])  # fmt: skip

    def obey(self, job):
        while True:
            command = json.loads(self.commands.readline())
            try:
                if command["do"] in ("return", "raise"):
                    reply = self.reply(job, command)
                    if reply is not None:
                        self.emit(event="ended", command=command["id"])
                        return {**reply, **(self.checkpoint if command["do"] == "raise" else {})}
                elif self.execute(job, command):
                    self.emit(event="ended", command=command["id"], value=None)
                    continue
                self.emit(event="ended", command=command["id"], unsupported=True)
            except Exception as error:
                self.emit(event="ended", command=command["id"], error={"sqlstate": getattr(error, "sqlstate", None)})
                if not command.get("catch"):
                    return {"error": f"{type(error).__name__}: {error}"}

    def loop(self):
        for line in sys.stdin:
            # The payload stays text, which keeps all digits and levels.
            head, payload, tail = re.fullmatch(r'(.*?"payload" ?: )(.*)(, "deadline": .*)\n', line, re.S).groups()
            job = json.loads(f"{head}null{tail}")
            self.in_transaction = False
            self.checkpoint = {}
            self.emit(
                event="started", token=job["token"], job=job["id"], queue=job["queue"], kind=job["kind"], key=job["key"], group=None,
                attempt=job["attempt"], max_attempts=job["max_attempts"], headers=job["headers"], payload=json.loads(payload) if len(payload) < 100 else None,
                checkpoint=job["checkpoint"],
            )  # fmt: skip
            reply = self.obey(job)
            if self.in_transaction and not self.conn.closed:
                self.conn.execute("ROLLBACK")
            self.emit(event="ended", token=job["token"])
            if "floats" in sys.argv:
                payload = json.dumps(json.loads(payload))
            if "echo" in reply:
                sys.stdout.write('{"id": "%s", "result": %s}\n' % (job["id"], payload))
            elif "unencodable" in reply:
                sys.stdout.write('{"id": "%s", "result": {\n' % job["id"])
            else:
                sys.stdout.write(line_of({"id": job["id"], **reply}))
            sys.stdout.flush()


# The adapter.


class Adapter:
    def __init__(self):
        self.lock = threading.Lock()
        self.programs = {}
        self.work = None

    def emit(self, **event):
        with self.lock:
            sys.stdout.write(line_of(event))
            sys.stdout.flush()

    def program(self, end):
        """Passes on what a program says.  idemq-work ends a program that must stop."""
        token, pending = None, []
        for line in end.makefile("r"):
            event = json.loads(line)
            if event["event"] == "started":
                token = event["token"]
                self.programs[token] = (end, pending)
            elif "command" in event:
                pending.remove(event["command"])
            elif event["event"] == "ended":
                self.programs.pop(token, None)
                token = None
            self.emit(**event)
        if token is not None:
            self.programs.pop(token, None)
            self.emit(event="ended", token=token, told=True)
            self.emit(event="ended", token=token)
        for command in pending:
            self.emit(event="ended", command=command, error={"gone": True})

    def accept(self, listener):
        while True:
            threading.Thread(target=self.program, args=(listener.accept()[0],), daemon=True).start()

    def start(self, command):
        options = command.get("options", {})
        # These options idemq-work lacks, and batch means nothing to it.
        if set(options) - {"concurrency", "batch", "grace", "lease", "timeout", "wait_dsn"} or (options.get("batch", 1) > 1):
            self.emit(event="ended", command=command["id"], unsupported=True)
            return
        where = os.path.join(tempfile.mkdtemp(prefix="conformance."), "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(where)
        listener.listen(100)
        threading.Thread(target=self.accept, args=(listener,), daemon=True).start()
        given = [f"--{name.replace('_', '-')}={options[name]}" for name in ("grace", "lease", "timeout", "wait_dsn") if name in options]
        attach = ["--attach"] if command["mode"] == "run" and "wait_dsn" not in options else []
        self.work = subprocess.Popen(
            ["idemq-work", "-d", DSN, "-q", command["queue"], "-j", str(options.get("concurrency", 1)), *given, *attach, "--lines", "--",
             sys.executable, os.path.abspath(__file__), "--program", where, command["mode"], *sys.argv[1:]], stdin=subprocess.DEVNULL,
        )  # fmt: skip
        threading.Thread(target=self.end, args=(command,), daemon=True).start()

    def end(self, command):
        status = self.work.wait()
        if status == 0:
            self.emit(event="ended", command=command["id"], value=None)
        else:
            self.emit(event="ended", command=command["id"], error={"sqlstate": None, "text": f"status {status}"})
        os._exit(0)

    def terminate(self, *_):
        if self.work is None:
            os._exit(0)
        self.work.terminate()

    def loop(self):
        signal.signal(signal.SIGTERM, self.terminate)
        for line in iter(sys.stdin.readline, ""):
            command = json.loads(line)
            if "token" in command:
                end, pending = self.programs.get(command["token"], (None, None))
                if end is None:
                    self.emit(event="ended", command=command["id"], error={"gone": True})
                    continue
                pending.append(command["id"])
                try:
                    end.sendall(line.encode())
                except OSError:
                    pass  # the program has ended, and its reader says so
            elif command["do"] == "work":
                self.start(command)
            else:
                self.emit(event="ended", command=command["id"], unsupported=True)


if "--program" in sys.argv:
    Program(sys.argv[2], sys.argv[3] == "run").loop()
else:
    Adapter().loop()
