"""Jobs of the shop: one as a handler of penstock, one as a task of Django."""

from django_tasks import task  # with Django 6: from django.tasks import task

from penstock.integrations.django import handlers
from shop.models import Order


@handlers.handler("confirm")
def confirm(order: int) -> None:
    Order.objects.filter(pk=order).update(confirmed=True)


@task(queue_name="emails")
def pack(order: int) -> str:
    Order.objects.filter(pk=order).update(packed=True)
    return "packed"
