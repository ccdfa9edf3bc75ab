"""The pages of the application of django.pl."""

from django.contrib import admin
from django.http import HttpResponse
from django.urls import path
from django_shop.orders import pay
from django_shop.tasks import add


def order(request, number):
    result = add.enqueue(number)
    if number < 0:
        raise LookupError("after the task was enqueued")
    return HttpResponse(result.id)


urlpatterns = [path("admin/", admin.site.urls), path("order/<str:number>", lambda request, number: order(request, int(number))), path("pay/<int:number>", pay)]
