"""The tests of the shop, on a server with idemq.test_clock: python test_shop.py"""

import json
import os
import unittest
import urllib.request
from typing import Any, Dict, List

import psycopg
from idemq import KeyReused, advance_clock, assert_enqueued, drain

from queues import Order, declare_queues, mails
from shop import handlers, place
from tables import create_tables

dsn = os.environ["DSN"]
db = psycopg.connect(dsn, autocommit=True)
create_tables(db)
declare_queues(db)


def done(what: str) -> List[Dict[str, Any]]:
    with urllib.request.urlopen(f"{os.environ['PROVIDER']}/{what}") as response:
        return list(json.load(response))


class Shop(unittest.TestCase):
    def test_1_an_order_is_charged_once_and_the_customer_gets_a_receipt(self) -> None:
        for _ in range(2):
            place(db, Order("a", "anna", 12))
        drain(dsn, handlers)
        self.assertEqual(done("charges"), [{"id": "a", "customer": "anna", "amount": 12}])
        self.assertEqual(done("mails"), [{"order": "a", "to": "anna", "text": "receipt"}])
        with self.assertRaises(KeyReused):
            place(db, Order("a", "anna", 13))

    def test_2_a_review_is_due_tomorrow(self) -> None:
        assert_enqueued(db, mails.name, {"order": "a", "text": "review"})
        advance_clock(db, "23 h")
        drain(dsn, handlers)
        self.assertEqual(len(done("mails")), 1)
        advance_clock(db, "1 h")
        drain(dsn, handlers)
        self.assertEqual(done("mails")[1], {"order": "a", "to": "anna", "text": "review"})

    def test_3_the_orders_of_a_customer_are_charged_in_their_order(self) -> None:
        for id in ("b", "c", "d"):
            place(db, Order(id, "berta", 1))
        drain(dsn, handlers[:1])  # only the charges
        self.assertEqual([each["id"] for each in done("charges")[1:]], ["b", "c", "d"])

    def test_4_each_minute_has_a_report(self) -> None:
        advance_clock(db, "1 min")
        drain(dsn, handlers)
        rows = db.execute("SELECT paid, total FROM reports ORDER BY tick DESC LIMIT 1").fetchall()
        self.assertEqual(rows, [(4, 15)])


if __name__ == "__main__":
    unittest.main()
