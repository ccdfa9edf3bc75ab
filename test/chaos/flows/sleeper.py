"""sleeper.py: clients of the second part, in which jobs are kept from starting.  See README.md, and common.py for the arguments.

The argument tenant is a list of queues here.  A Sleeper works on these queues, and sleeps in idemq.wait_any for as long as it
takes, so only idemq can wake it.  A Feeder enqueues.  A Filler enqueues into a queue that can be full, and sleeps in
idemq.wait_for_room.  A Crowder enqueues into groups that can be full.  A Holder pauses and resumes, and a Pinger measures how
late this machine is.  The lines of the log that begin with "watch" are for watchdog.py:

    watch seeks NAME TIME QUEUES    from now on, sleeps or claims
    watch tries NAME TIME QUEUES    claims, and will roll back; the state of these queues is unknown until its next line
    watch needs NAME TIME QUEUE N   sleeps until there is room for N jobs
    watch fills NAME TIME           enqueues; the number of jobs is unknown until its next line
    watch over NAME TIME QUEUE N GROUP   has seen N unfinished jobs in a snapshot: in this group or, without GROUP, in the queue
    watch refused NAME TIME QUEUE   was refused, because a group was full
    watch leaves NAME TIME          has a job, or has lost its session
    watch answered ID TIME          the transaction of the row ID of happened is known to have committed
    watch late BEGIN END SECONDS    during this time, the machine delayed the Pinger by SECONDS
"""

import time

import psycopg

from common import FlowClient

NAMES = ("g0", "g1", "g2", "g3")
LONG = "10 min"


class WatchedClient(FlowClient):
    def __init__(self, *args):
        super().__init__(*args)
        self.queues = self.tenant.split(",")

    def mark(self, what, *more):
        self.note("watch", what, self.name, f"{time.time():.6f}", *more)

    def answered(self, number):
        self.note("watch answered", number, f"{time.time():.6f}")

    def grouped(self, queue):
        return self.ask("SELECT grouped FROM watched WHERE queue = %s", (queue,))[0][0]

    def transaction(self, sql, args, rolls_back=0.0):
        """Runs a statement in its own transaction; returns its only row, or None if it was rolled back."""
        self.execute("BEGIN")
        row = self.one(sql, args)
        if self.dice.random() < 0.3:
            time.sleep(self.dice.uniform(0, 0.03))
        if self.dice.random() < rolls_back:
            self.execute("ROLLBACK")
            return None
        self.execute("COMMIT")
        return row


class Sleeper(WatchedClient):
    def work(self):
        """Runs attempts until an error occurs, and reconnects if the session was lost."""
        try:
            self.attempts()
        except psycopg.DatabaseError as error:
            self.mark("leaves")
            if self.is_lost(error):
                self.connect()
            elif error.sqlstate in ("IQ001", "IQ002", "57014"):
                self.rollback()
            else:
                raise
        return True

    def attempts(self):
        while not self.ended:
            rolls_back = self.dice.random() < 0.03
            self.mark("seeks", self.tenant)
            job = None
            while job is None:
                self.rows("CALL idemq.wait_any(%s, %s)", (self.queues, LONG))
                if rolls_back:
                    self.mark("tries", self.tenant)
                job = self.transaction("SELECT * FROM watch_claim(%s, %s, %s)",
                                       (self.queues, self.name, self.dice.random() < 0.5), 1 if rolls_back else 0)
                if rolls_back:
                    break
            if job is not None:
                self.mark("leaves")
                self.attempt(*job)

    def attempt(self, job, token, queue, name):
        if self.dice.random() < 0.5:
            time.sleep(self.dice.uniform(0, 0.2))
        # No client pauses these queues, so a worker that has slept since before a hold does not know about the hold.
        often = queue.startswith("w.plain")
        if self.dice.random() < (0.4 if often else 0.2):
            delay = self.hold(job, token, queue, name)
            # Often keep the job until after the end of the hold, so that only idemq knows about that end.
            if self.dice.random() < (0.6 if often else 0.4):
                time.sleep(min(delay, 1) + self.dice.uniform(0, 2.5))
        how = self.dice.choices(("commit", "fail", "release", "nothing"), (80, 10, 8, 2))[0]
        if how == "nothing":
            return
        delay = 0.0 if self.dice.random() < 0.5 else self.dice.uniform(0.02, 0.8)
        self.transaction("SELECT watch_end(%s, %s, %s, %s, %s, make_interval(secs => %s))", (queue, name, job, token, how, delay))

    def hold(self, job, token, queue, name):
        scope = "group" if name is not None and self.dice.random() < 0.7 else "queue"
        delay = self.dice.uniform(0.05, 0.4) if self.dice.random() < 0.5 else self.dice.uniform(0.4, 2 if self.dice.random() < 0.9 else 3)
        try:
            row = self.transaction("SELECT watch_hold(%s, %s, %s, %s, make_interval(secs => %s), %s)",
                                   (queue, name, job, token, delay, scope), 0.1)
        except psycopg.errors.InvalidParameterValue:  # another hold has ended, and no claim has followed
            self.execute("ROLLBACK")
            return 0
        if row is not None:
            self.answered(row[0])
        return delay


class Feeder(WatchedClient):
    """Enqueues some jobs, and then none for a while, so that a later job does not wake a worker that was not woken for these."""

    def __init__(self, *args):
        super().__init__(*args)
        self.next = dict.fromkeys(self.queues, 0.0)

    def work(self):
        for queue in self.queues:
            if self.next[queue] < time.time():
                self.feed(queue)
        time.sleep(0.02)
        return True

    def feed(self, queue):
        if self.ask("SELECT EXISTS (SELECT FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s) AND finished_at IS NULL)", (queue,))[0][0]:
            # If the workers wrongly sleep on, this gives the watchdog enough time to notice.
            if time.time() < self.next[queue] + 3:
                return
        grouped = self.grouped(queue)
        for _ in range(self.dice.choice((1, 2, 3, 5))):
            name = self.dice.choice(NAMES) if grouped and self.dice.random() < 0.9 else None
            delay = 0.0 if self.dice.random() < 0.4 else self.dice.uniform(0.02, 0.8)
            self.do(lambda name=name, delay=delay: self.transaction("SELECT watch_enqueue(%s, %s, make_interval(secs => %s))", (queue, name, delay), 0.03))
        self.next[queue] = time.time() + self.dice.uniform(0, 0.3)


class Crowder(WatchedClient):
    """Fills two groups of each queue, so that many of its jobs are refused."""

    COUNT = ("SELECT group_key, count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id(%s) AND finished_at IS NULL GROUP BY 1 "
             "HAVING count(*) > (SELECT group_max_unfinished FROM watched WHERE queue = %s)")

    def work(self):
        for queue in self.queues:
            for name, there in self.ask(self.COUNT, (queue, queue)):
                self.mark("over", queue, there, name)
            delay = 0.0 if self.dice.random() < 0.7 else self.dice.uniform(0.02, 0.4)
            jobs = self.dice.choice((1, 1, 2))
            name = self.dice.choice(NAMES[:2])
            if self.do(lambda queue=queue, name=name, delay=delay, jobs=jobs: self.crowd(queue, name, delay, jobs), ("IQ007",)) == "IQ007":
                self.mark("refused", queue)
        time.sleep(self.dice.uniform(0, 0.3))
        return True

    def crowd(self, queue, name, delay, jobs):
        self.transaction("SELECT watch_enqueue(%s, %s, make_interval(secs => %s)) FROM generate_series(1, %s) ORDER BY 1 LIMIT 1",
                         (queue, name, delay, jobs), 0.1)


class Filler(WatchedClient):
    """Fills a queue that has max_unfinished."""

    def work(self):
        try:
            self.fill()
        except psycopg.DatabaseError as error:
            self.mark("leaves")
            if self.is_lost(error):
                self.connect()
            elif error.sqlstate in ("IQ007", "57014"):
                self.rollback()
            else:
                raise
        return True

    def fill(self):
        queue, jobs = self.tenant, self.dice.choice((1, 1, 2))
        most, there = self.rows("SELECT max_unfinished, (SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id(queue) AND finished_at IS NULL) "
                                "FROM watched WHERE queue = %s", (queue,))[0]
        if there > most:
            self.mark("over", queue, there)
        self.mark("needs", queue, jobs)
        self.rows("CALL idemq.wait_for_room(%s, %s, %s)", (queue, jobs, LONG))
        self.mark("fills")
        delay = 0.0 if self.dice.random() < 0.7 else self.dice.uniform(0.02, 0.8)
        self.transaction("SELECT watch_enqueue(%s, NULL, make_interval(secs => %s)) FROM generate_series(1, %s) ORDER BY 1 LIMIT 1",
                         (queue, delay, jobs), 0.05)
        self.mark("leaves")
        time.sleep(self.dice.uniform(0, 0.3))


class Holder(WatchedClient):
    """Pauses and resumes queues and groups; first resumes those that an earlier Holder of its name has left paused."""

    def __init__(self, *args):
        super().__init__(*args)
        self.next = {}

    def work(self):
        if not self.next:
            self.resume_all()
            self.next = {queue: time.time() + self.dice.uniform(0, 3) for queue in self.queues}
        queue = min(self.next, key=self.next.get)
        if self.next[queue] < time.time():
            self.change(queue)
            self.next[queue] = time.time() + self.dice.uniform(0.2, 4)
        time.sleep(0.02)
        return True

    def change(self, queue):
        name = self.dice.choice(NAMES) if self.grouped(queue) and self.dice.random() < 0.7 else None
        if self.dice.random() < 0.2:
            self.resume(queue, name)
        elif self.dice.random() < 0.6:
            self.pause(queue, name, self.dice.uniform(0.05, 1))
        else:
            self.pause(queue, name, None)
            time.sleep(self.dice.uniform(0.02, 0.4))
            self.resume(queue, name)

    def pause(self, queue, name, delay):
        def work():
            row = self.transaction("SELECT watch_pause(%s, %s, make_interval(secs => %s))", (queue, name, delay), 0.05)
            if row is not None:
                self.answered(row[0])

        # 22023: the time had passed before the call saw it.
        self.do(work, ("22023",))

    def resume(self, queue, name):
        self.do(lambda: self.transaction("SELECT watch_resume(%s, %s)", (queue, name)))

    def resume_all(self):
        for queue in self.queues:
            for name in (*(NAMES if self.grouped(queue) else ()), None):
                self.resume(queue, name)


class Pinger(WatchedClient):
    """Measures how late a process wakes and a session answers when idemq is not involved."""

    def work(self):
        begin = time.time()
        time.sleep(0.005)
        self.ask("SELECT 1")
        end = time.time()
        if end - begin > 0.02:
            self.note("watch late", f"{begin:.6f} {end:.6f} {end - begin - 0.005:.6f}")
        return True
