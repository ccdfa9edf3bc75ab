"""testing.py DSN: runs the tests that doc/usage/testing.md shows, as a test runner would."""

import sys

import psycopg
from idemq import advance_clock, assert_enqueued, drain, enqueue, make_due


def place_order(conn, order):
    enqueue(conn, "mail", {"order": order}, key=f"order-{order}", delay="1 h")


def confirm(job, conn):
    conn.execute("INSERT INTO confirmations VALUES (%s)", [job.payload["order"]])


def fresh(conn):
    """Before each test."""
    conn.execute("SELECT idemq.drop_queue(name, force => true) FROM idemq.queues WHERE name = 'mail'")
    conn.execute("SELECT idemq.create_queue('mail')")
    conn.execute("TRUNCATE confirmations")


def test_an_order_is_confirmed_an_hour_later_and_once(dsn, conn):
    place_order(conn, 42)
    place_order(conn, 42)  # the request is repeated
    assert drain(dsn, "mail", confirm) == {}  # it is not due
    advance_clock(conn, "1 h")
    assert drain(dsn, "mail", confirm) == {"committed": 1}
    assert conn.execute("SELECT * FROM confirmations").fetchall() == [(42,)]


def test_a_reminder_is_sent_tomorrow(dsn, conn):
    tomorrow = conn.execute("SELECT idemq.now() + interval '1 day'").fetchone()[0]
    enqueue(conn, "mail", {"order": 42}, run_at=tomorrow)
    advance_clock(conn, "23 h")
    assert drain(dsn, "mail", confirm) == {}
    advance_clock(conn, "1 h")
    assert drain(dsn, "mail", confirm) == {"committed": 1}


def test_an_order_enqueues_its_confirmation(dsn, conn):
    with conn.transaction(force_rollback=True):  # the test leaves nothing behind
        place_order(conn, 42)
        assert_enqueued(conn, "mail", {"order": 42}, key="order-42")


def test_it_is_tried_again(dsn, conn):
    attempts = []

    def fails_twice(job, conn):
        confirm(job, conn)  # undone with the attempt
        attempts.append(job.attempt)
        if job.attempt < 3:
            raise ConnectionError("busy")

    enqueue(conn, "mail", {"order": 42})
    for outcome in "retrying", "retrying", "committed":
        assert drain(dsn, "mail", fails_twice) == {outcome: 1}
        make_due(conn)
    assert attempts == [1, 2, 3]
    assert conn.execute("SELECT count(*) FROM confirmations").fetchone() == (1,)


def test_a_worker_dies_before_it(dsn, conn):
    enqueue(conn, "mail", {"order": 42})
    with psycopg.connect(dsn, autocommit=True) as dies:
        dies.execute("SELECT idemq.claim('mail', attach => true)")
    conn.execute("CALL idemq.wait('mail', '1 min')")  # until the server has noticed
    attempts = []
    assert drain(dsn, "mail", lambda job, conn: attempts.append(job.attempt)) == {"committed": 1}
    assert attempts == [2]


if __name__ == "__main__":
    tests = [test for name, test in sorted(globals().items()) if name.startswith("test_")]
    with psycopg.connect(sys.argv[1], autocommit=True) as connection:
        connection.execute("CREATE TABLE confirmations (order_id int)")
        for each in tests:
            fresh(connection)
            # On a busy machine a retry may be due before a drain has looked again, or a lease be over.
            connection.execute("SELECT idemq.alter_queue('mail', retry_base => '1 h', lease => '1 h')")
            each(sys.argv[1], connection)
    print(f"{len(tests)} tests")
