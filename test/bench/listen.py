#!/usr/bin/python3
"""listen.py CONNINFO CHANNEL FILE: counts the notifications of a channel in a file."""

import os
import sys

import psycopg


def main():
    conninfo, channel, path = sys.argv[1:4]

    def count(heard):
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(f"{heard}\n")
        os.rename(path + ".new", path)

    with psycopg.connect(conninfo, autocommit=True) as conn:
        conn.execute(f'LISTEN "{channel}"')
        count(0)
        for heard, _ in enumerate(conn.notifies(), 1):
            count(heard)


if __name__ == "__main__":
    main()
