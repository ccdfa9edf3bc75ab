"""The tables of the shop, and all its SQL."""

from typing import Any

from psycopg import Connection

Conn = Connection[Any]

TABLES = """
    CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, customer text, amount int, charge text);
    CREATE TABLE IF NOT EXISTS reports (tick text, paid bigint, total bigint)"""


def create_tables(db: Conn) -> None:
    db.execute(TABLES)


def insert_order(db: Conn, id: str, customer: str, amount: int) -> None:
    values = [id, customer, amount]
    db.execute("INSERT INTO orders VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", values)


def mark_paid(db: Conn, order: str, charge: str) -> None:
    db.execute("UPDATE orders SET charge = %s WHERE id = %s", [charge, order])


def insert_report(db: Conn, tick: str) -> None:
    paid = "SELECT %s, count(*), sum(amount) FROM orders WHERE charge IS NOT NULL"
    db.execute("INSERT INTO reports " + paid, [tick])
