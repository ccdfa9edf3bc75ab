#!/usr/bin/python3
"""worker.py DSN NAME LOG PATIENCE: claims jobs of queue work and commits each with its effect.

The effect is a row of effects (key, job, token), in the transaction of idemq.commit.  A
transaction whose answer is lost is run again, with the same id and token, on whichever
server takes writes by then.  Lines of LOG; TIME is the monotonic clock:
    claim TIME ID TOKEN KEY PORT      a job that was given to us, and by which server
    done TIME ID TOKEN KEY            its commit was acknowledged (now, or by IQ006)
    IQ001 | IQ002 TIME ID TOKEN KEY   refused: stale; no such job
    gave-up                           a statement was not answered within PATIENCE seconds
Ends at SIGTERM, with no job in its hands.
"""

import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "load"))
from client import Client  # pylint: disable=wrong-import-position


class Worker(Client):
    stopping = False
    prepare_threshold = None  # a pooler may stand between

    def stop(self, *_):
        self.stopping = True

    def attempt(self, job_id, token, key):
        self.execute("BEGIN")
        self.execute("SELECT idemq.commit(%s, %s)", (job_id, token))
        time.sleep(random.uniform(0, 0.02))  # so that what happens comes in the middle
        self.execute("INSERT INTO effects (key, job, token) VALUES (%s, %s, %s)", (key, job_id, token))
        self.execute("COMMIT")

    def work(self, job_id, token, key, port):
        self.note("claim", time.monotonic(), job_id, token, key, port)
        refused = self.settle(lambda: self.attempt(job_id, token, key), ("IQ001", "IQ002", "IQ006"))
        what = "done" if refused in (None, "IQ006") else refused
        self.note(what, time.monotonic(), job_id, token, key)

    def run(self):
        self.connect()
        while not self.stopping:
            jobs = self.ask(
                "SELECT id, token, payload ->> 'key', inet_server_port() FROM idemq.claim('work', 5, worker => %s)",
                (self.name,),
            )
            for job in jobs:
                self.work(*job)
            if not jobs:
                self.ask("CALL idemq.wait('work', '1 s')")


if __name__ == "__main__":
    worker = Worker(*sys.argv[1:4], patience=float(sys.argv[4]))
    signal.signal(signal.SIGTERM, worker.stop)
    worker.run()
