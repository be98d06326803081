"""The app for INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig


class PenstockConfig(AppConfig):
    """The app: it brings the management command `penstock_worker`."""

    name = "penstock.integrations.django"
    label = "penstock"
    verbose_name = "penstock"
