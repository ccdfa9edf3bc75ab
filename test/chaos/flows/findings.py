"""findings.py: what account.py, watchdog.py and steering_account.py share: the database that is their first argument, and their report."""

import sys

import psycopg

conn = psycopg.connect(sys.argv[1], autocommit=True)


def rows(sql, args=None):
    return conn.execute(sql, args).fetchall()


def found(what, *details):
    """Reports a violation."""
    print("found:", what, *details)


def none(what, sql):
    """Reports the first rows of a query that must return none."""
    for row in rows(sql + " LIMIT 5"):
        found(what, row)


def figure(what, counts):
    print(f"figure: {what}:", ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=str)))
