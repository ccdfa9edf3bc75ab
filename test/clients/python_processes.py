"""python_processes.py: several workers in a process, a fork, a container.

For python.pl, which says where the server is (IDEMQ_DSN).
"""

import os
import signal
import sys
import threading

import idemq
import tap
from python_common import DSN, QuickFirstUse


class Processes(QuickFirstUse):
    """Where a worker may run."""

    def test_several_in_a_process(self):
        other = self.queue + "_other"
        self.sql("SELECT idemq.create_queue(%s, lease => '1 h')", other)
        stops = [self.start(self.do, concurrency=2), self.start(lambda job: None, outside=True)]
        jobs = self.add(*range(30))
        third = idemq.Worker(DSN, other)
        thread = threading.Thread(target=third.run, args=(lambda job, conn: job.payload,))
        thread.start()
        beside = idemq.enqueue(self.conn, other, 7).id
        self.until("SELECT count(*) = 31 FROM idemq.jobs WHERE status = 'completed' AND id = ANY (%s)", [*jobs, beside])
        third.stop()
        thread.join(60)
        for stop in stops:
            stop()
        self.assertEqual(self.job(beside)[2], 7)

    def test_after_a_fork(self):
        """A worker is of the process that has made it."""
        worker = idemq.Worker(DSN, self.queue)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                worker.run(self.do)
            except RuntimeError as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        with os.fdopen(read) as said:
            self.assertIn("create a separate Worker in each process after the fork", said.read())
        self.add(1)
        self.assertEqual(worker.drain(self.do), {"committed": 1})

    def test_in_a_container_it_is_process_1(self):
        """For whom a signal does nothing, unless there is a handler."""
        script = ("import idemq, os, sys; print(os.getpid(), flush=True);"
                  "print(idemq.Worker(sys.argv[1], sys.argv[2]).run(lambda job, conn: job.payload), flush=True)")
        import subprocess

        command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", sys.executable, "-W", "ignore", "-c", script, DSN, self.queue]
        try:
            subprocess.run(command[:6] + ["true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no namespaces of processes here")
        (job,) = self.add(1)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            self.assertEqual(process.stdout.readline(), "1\n")
            self.until("SELECT status = 'completed' FROM idemq.jobs WHERE id = %s", job)
            with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
                os.kill(int(children.read().split()[0]), signal.SIGTERM)
            self.assertEqual(process.stdout.readline(), "{'committed': 1}\n")
            self.assertEqual(process.wait(60), 0)


if __name__ == "__main__":
    tap.main()
