"""Pages of the shop."""

from functools import partial

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from penstock.integrations.django import client
from shop.models import Order
from shop.tasks import confirm, pack


@csrf_exempt
@transaction.atomic
def add(_: HttpRequest, customer: str) -> JsonResponse:
    order = Order.objects.create(customer=customer)
    transaction.on_commit(partial(confirm.enqueue, client().queue("default"), order.pk))
    pack.enqueue(order.pk)  # its backend waits for the commit
    return JsonResponse({"order": order.pk}, status=202)


def listing(_: HttpRequest) -> JsonResponse:
    return JsonResponse(list(Order.objects.values()), safe=False)
