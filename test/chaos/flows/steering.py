"""steering.py: clients of the third part, in which jobs, queues and schedules are steered.  See README.md, and common.py for the arguments.

A Hearer runs jobs, and a second session of its process listens for cancels.  A Canceller cancels running jobs or takes them back.  A
Declarer declares queues, and an Administrator alters or drops them.  A Pauser pauses and resumes schedules.  An Enqueuer enqueues, and
finishes many jobs at once.  A Listener receives the notifications of finished jobs.  These lines of the log are for steering_account.py:

    steer hears NAME TIME JOB TOKEN             runs this attempt; from now on, the process must be told of its cancel
    steer woken NAME TIME                       the session that listens was woken, or its timeout has passed
    steer told NAME TIME JOB TOKEN OUTCOME AGE  a heartbeat returned this outcome; the one before it was sent AGE seconds earlier
    steer over NAME TIME JOB TOKEN              is about to end this attempt itself
    steer leaves NAME TIME                      its session was lost, so it has left its attempts
    steer disturbed NAME TIME                   the session that listens was lost
    steer cancels NAME TIME JOB HOW             is about to call HOW
    steer returned NAME TIME JOB OUTCOME        the call has returned
    steer ended NAME TIME JOB HOW               its transaction was committed or rolled back
    steer steers NAME TIME SCHEDULE             from now on, may lock the schedule's row
    steer steered NAME TIME SCHEDULE            no longer locks the schedule's row
"""

import json
import threading
import time

import psycopg

from sleeper import WatchedClient

MANY = 600  # jobs that an Enqueuer finishes at once; a ring of finished jobs keeps 256


class SteeringClient(WatchedClient):
    def mark(self, what, *more):
        self.note("steer", what, self.name, f"{time.time():.6f}", *more)


class Ear(threading.Thread):
    """The session in which a Hearer's process listens."""

    def __init__(self, hearer):
        super().__init__(daemon=True)
        self.hearer = hearer

    def run(self):
        while not self.hearer.ended:
            try:
                with psycopg.connect(**self.hearer.hosts[0], autocommit=True, application_name=self.hearer.name) as conn:
                    self.listen(conn)
            except psycopg.DatabaseError:
                self.hearer.mark("disturbed")
                time.sleep(0.02)

    def listen(self, conn):
        conn.execute("SELECT set_config('idemq.process', %s, false)", (self.hearer.name,))
        while not self.hearer.ended:
            conn.execute("CALL idemq.wait(NULL, '3 s')")
            self.hearer.mark("woken")
            now = time.time()
            with self.hearer.lock:
                jobs = dict(self.hearer.attempts)
            for job, token, outcome in conn.execute("SELECT id, token, outcome::text FROM idemq.heartbeat_many(%s::bigint[], %s::bigint[])",
                                                    (list(jobs), [token for token, _ in jobs.values()])).fetchall():
                self.hearer.beat(job, token, outcome, now)


class Hearer(SteeringClient):
    def __init__(self, *args):
        super().__init__(*args)
        self.lock = threading.Lock()
        self.attempts = {}  # job: its token, and when its last heartbeat was sent
        self.ear = None

    def connect(self):
        with self.lock:
            self.attempts.clear()
            self.mark("leaves")
        super().connect()
        if self.ear is None:
            self.ear = Ear(self)
            self.ear.start()

    def beat(self, job, token, outcome, now):
        """Called by the Ear.  An attempt that this client is ending by itself is no longer among its attempts."""
        with self.lock:
            if self.attempts.get(job, (None,))[0] != token:
                return
            if outcome == "current":
                self.attempts[job] = (token, now)
            else:
                self.mark("told", job, token, outcome, f"{now - self.attempts[job][1]:.3f}")
                del self.attempts[job]

    def is_current(self, job, token):
        with self.lock:
            return self.attempts.get(job, (None,))[0] == token

    def over(self, job, token):
        """Returns whether the attempt is to be ended here; otherwise, this process was told that it is over."""
        with self.lock:
            if self.attempts.get(job, (None,))[0] != token:
                return False
            del self.attempts[job]
            self.mark("over", job, token)
            return True

    def work(self):
        jobs = []

        def take():
            self.execute("SELECT set_config('idemq.process', %s, false)", (self.name,))
            now = time.time()
            jobs[:] = self.rows("SELECT id, token, queue FROM take(%s, %s, %s, false)", (["s.told", "s.ticks", "s.burst"], self.dice.choice((1, 2, 4)), self.name))
            with self.lock:
                for job, token, _ in jobs:
                    self.attempts[job] = (token, now)
                    self.mark("hears", job, token)

        self.do(take)
        for job, token, queue in jobs:
            # Another job's session may have been lost meanwhile, and all attempts with it.
            self.do(lambda job=job, token=token, queue=queue: self.attempt(job, token, queue), ("IQ002",))
        return bool(jobs)

    def attempt(self, job, token, queue):
        if not self.is_current(job, token):
            self.execute("SELECT idemq.release(%s, %s)", (job, token))
            return
        holds_row = self.dice.random() < 0.5
        if holds_row:
            self.execute("BEGIN")
            self.execute("SELECT idemq.assert_current(%s, %s)", (job, token))
        end = time.time() + self.duration(queue)
        while time.time() < end and self.is_current(job, token):
            time.sleep(0.003)
        if not self.over(job, token):
            if holds_row:
                self.execute("ROLLBACK")
            self.execute("SELECT idemq.release(%s, %s)", (job, token))
            return
        how = "commit" if queue == "s.burst" else self.dice.choices(("commit", "dead", "release", "rollback", "nothing"), (75, 8, 5, 10, 2))[0]
        if not holds_row:
            self.execute("BEGIN")
        if how == "release":
            self.execute("SELECT idemq.release(%s, %s)", (job, token))
        elif how != "nothing":
            self.execute("SELECT steer_finish(%s, %s, %s, %s)", (queue, job, token, how))
        self.execute("ROLLBACK" if how == "rollback" else "COMMIT")

    def duration(self, queue):
        # An Enqueuer that was killed may have left many jobs.
        if queue == "s.burst":
            return 0
        return self.dice.uniform(0, 0.1) if queue == "s.ticks" or self.dice.random() < 0.4 else self.dice.uniform(0.1, 3)


class Canceller(SteeringClient):
    def work(self):
        time.sleep(self.dice.uniform(0.02, 0.3))
        running = self.ask("SELECT id, key FROM idemq.jobs WHERE queue_id = idemq.queue_id('s.told') AND status = 'running' ORDER BY random() LIMIT 1")
        if running:
            self.do(lambda: self.cancel(*running[0]), ("IQ002", "40P01"))
        return True

    def cancel(self, job, key):
        how = self.dice.choice(("cancel", "cancel_by_key", "revoke_lease"))
        self.execute("BEGIN")
        self.mark("cancels", job, how)
        outcome = self.one("SELECT steer_cancel('s.told', %s, %s, %s)", (job, key, how))[0]
        self.mark("returned", job, outcome)
        if self.dice.random() < 0.4:
            time.sleep(self.dice.uniform(0, 0.2))
        rolls_back = self.dice.random() < 0.25
        self.execute("ROLLBACK" if rolls_back else "COMMIT")
        self.mark("ended", job, "rolled_back" if rolls_back else "committed")


class Declarer(SteeringClient):
    """Declares queues with one of two declarations: of two versions of a program, each has its own."""

    VERSIONS = ({"max_attempts": 5, "max_running": 10, "rate_limit": 100}, {"max_attempts": 5, "max_running": 20, "group_max_running": 2})

    def work(self):
        queue = self.dice.choice(("d.one", "d.two"))
        # Another version is deployed only now and then, so that what the DBA has set stays for some calls.
        version = int(time.time() / 1.5 + self.dice.uniform(0, 0.2)) % 2
        isolation = self.dice.choice(("READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"))

        def declare():
            self.execute("SET default_transaction_isolation TO '" + isolation.lower() + "'")
            self.transaction("SELECT steer_declare(%s, %s)", (queue, json.dumps(self.VERSIONS[version])), 0.1)

        self.do(declare, ("40001",))
        time.sleep(self.dice.uniform(0, 0.1))
        return True


class Administrator(SteeringClient):
    def work(self):
        queue = self.dice.choice(("d.one", "d.two"))
        named = None if self.dice.random() < 0.1 else json.dumps(
            {self.dice.choice(("max_attempts", "max_running", "rate_limit", "group_max_running")): self.dice.randint(31, 60)})
        # IQ005: the queue does not exist.
        self.do(lambda: self.transaction("SELECT steer_alter(%s, %s)", (queue, named), 0.1), ("IQ005", "40P01"))
        time.sleep(self.dice.uniform(0, 0.4))
        return True


class Pauser(SteeringClient):
    def work(self):
        schedule = f"every{self.dice.randint(1, 7)}"
        self.steer(schedule, "pause")
        time.sleep(self.dice.uniform(0, 2.5))
        if self.dice.random() < 0.2:
            self.steer(schedule, "pause")
        # The rollback of a resume may leave it paused.
        while not self.steer(schedule, "resume"):
            pass
        if self.dice.random() < 0.2:
            self.steer(schedule, "resume")
        time.sleep(self.dice.uniform(0, 0.5))
        return True

    def steer(self, schedule, what):
        """Returns whether it was committed."""
        done = []

        def steer():
            self.mark("steers", schedule)
            done[:] = [self.transaction("SELECT true FROM steer_schedule(%s, %s)", (schedule, what), 0.1)]
            self.mark("steered", schedule)

        self.do(steer)
        return done and done[0] is not None


class Enqueuer(SteeringClient):
    def work(self):
        waiting = self.ask("SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('s.told') AND status = 'pending'")[0][0]
        if waiting < 6:
            self.do(lambda: self.transaction("SELECT idemq.enqueue('s.told', '{}', key => nextval('numbers')::text)", None, 0.05))
        if self.dice.random() < 0.1:
            self.do(lambda: self.burst(self.dice.choice((5, 100, MANY)), 0.2), ("IQ002",))
        time.sleep(0.05)
        return True

    def forever(self, work):
        super().forever(work)
        # However slow the machine was, there is an overflow after the last crash.
        self.do(lambda: self.burst(MANY, 0), ("IQ002",))

    def burst(self, jobs, rolls_back):
        """Enqueues jobs, and completes what is in the queue in one transaction."""
        self.execute("SELECT idemq.enqueue_many('s.burst', array_fill('{}'::jsonb, ARRAY[%s]))", (jobs,))
        claimed = self.rows("SELECT id, token FROM idemq.claim('s.burst', %s)", (2 * MANY,))
        self.transaction("WITH done AS (SELECT id FROM idemq.commit_many(%s::bigint[], %s::bigint[]) WHERE outcome = 'committed'), "
                         "noted AS (INSERT INTO finishes SELECT 's.burst', id, 'completed' FROM done) SELECT count(*) FROM done",
                         ([job for job, _ in claimed], [token for _, token in claimed]), rolls_back)


class Listener(SteeringClient):
    """Must not be disturbed, so that it can lose a notification only in a crash."""

    def connect(self):
        super().connect()
        self.heard = []
        try:
            self.conn.add_notify_handler(lambda notify: self.heard.append(notify.payload))
            for queue in ("s.told", "s.ticks", "s.burst"):
                self.execute(f'LISTEN "idemq_finished:{queue}"')
            self.execute("INSERT INTO listening DEFAULT VALUES")
        except psycopg.DatabaseError as error:
            if not self.is_lost(error):
                raise

    def work(self):
        self.do(self.listen)
        return False

    def listen(self):
        self.execute("SELECT 1")
        while self.heard:
            told = json.loads(self.heard[0])
            if told["event"] == "overflow":
                self.execute("INSERT INTO overflows VALUES (%s, %s)", (told["queue"], told["lost"]))
            for status in ("completed", "dead", "cancelled"):
                self.execute("INSERT INTO announced SELECT %s, job, %s, EXISTS (SELECT FROM finishes f WHERE (f.job, f.status) = (j.job, %s)) "
                             "FROM unnest(%s::bigint[]) j (job)", (told["queue"], status, status, told.get(status, [])))
            del self.heard[0]
