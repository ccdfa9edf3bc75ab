"""What the manual shows (doc/usage/django.md)."""

from django.core.mail import send_mail
from django.db import transaction
from django.http import HttpResponse

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

from .models import Order


@task(queue_name="mail")
def confirm(number):
    order = Order.objects.get(number=number)
    order.paid = True
    order.save()


@transaction.atomic
def pay(request, number):
    Order.objects.create(number=number)
    confirm.enqueue(number)
    return HttpResponse(f"order {number}")


@task(queue_name="mail", takes_context=True)
def send_receipt(context, number):
    def send(step):
        return send_mail(f"Order {number}", "Thank you", None, ["alice@shop.example"])

    context.job.step("mail", send)
    Order.objects.filter(number=number).update(paid=True)


send_receipt = send_receipt.using(outside=True)


def confirm_once(number):
    return confirm.using(key=f"order-{number}", group_key="alice", max_attempts=3).enqueue(number)
