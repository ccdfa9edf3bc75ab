"""A worker behind pgbouncer in transaction mode: waits, claims, commits, until it
has done so many jobs.  Prints what it did.

usage: wait_claim_commit.py CONNINFO COUNT
"""
import sys

import psycopg


def main(conninfo, count):
    # No prepared statements: the next transaction may be on another server session.
    with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None) as connection:
        done = 0
        while done < count:
            ready = connection.execute("CALL idemq.wait('q', '100 s')").fetchone()[0]
            if not ready:
                sys.exit("nothing came")
            with connection.transaction():
                for job in connection.execute("SELECT id, token, payload FROM idemq.claim('q')").fetchall():
                    outcome = connection.execute("SELECT idemq.commit(%s, %s)", job[:2]).fetchone()[0]
                    print(job[2], outcome)
                    done += 1
    # A driver that opens a transaction by itself gets an error that says what to do.
    with psycopg.connect(conninfo, prepare_threshold=None) as connection:
        try:
            connection.execute("CALL idemq.wait('q', '1 s')")
        except psycopg.errors.InvalidTransactionTermination as error:
            print(error.sqlstate, "autocommit" in error.diag.message_hint)


main(sys.argv[1], int(sys.argv[2]))
