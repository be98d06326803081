"""Tables of the shop."""

from django.db import models


class Order(models.Model):
    """An order, and what jobs have done for it."""

    customer = models.CharField(max_length=100)
    confirmed = models.BooleanField(default=False)
    packed = models.BooleanField(default=False)
