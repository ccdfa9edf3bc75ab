"""The tests that the manual shows (doc/usage/django.md)."""

from django_common import Shop

# After django.setup().
from django.core import mail
from django.test import TestCase, TransactionTestCase
from django_shop.models import Order
from django_shop.orders import confirm, confirm_once, send_receipt
from tap import main

from idemq.django import drain


class PayTest(TransactionTestCase):
    def test_an_order_is_confirmed(self):
        self.client.get("/pay/42")
        self.assertEqual(drain(), {"committed": 1})
        self.assertTrue(Order.objects.get(number=42).paid)


class EnqueueTest(TestCase):
    def test_a_task_is_enqueued(self):
        result = confirm.enqueue(42)
        self.assertEqual(confirm.get_result(result.id).args, [42])


class Others(TransactionTestCase):
    def setUp(self):
        Shop.sql("DELETE FROM idemq.jobs")

    def test_a_receipt(self):
        Order.objects.create(number=42)
        send_receipt.enqueue(42)
        drain()
        self.assertEqual(len(mail.outbox), 1)
        self.assertTrue(Order.objects.get(number=42).paid)

    def test_once(self):
        Order.objects.create(number=42)
        self.assertEqual(confirm_once(42).id, confirm_once(42).id)
        self.assertEqual(drain(), {"committed": 1})


if __name__ == "__main__":
    Shop.sql("DELETE FROM idemq.jobs")
    main()
