"""The app for INSTALLED_APPS."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, register

__all__ = ["PenstockConfig"]


class PenstockConfig(AppConfig):
    """The app: it brings the management command `penstock_worker`, and checks the settings."""

    name = "penstock.integrations.django"
    label = "penstock"
    verbose_name = "penstock"

    def ready(self) -> None:
        """Register the check of the settings, which `manage.py check` runs."""
        register(_check_settings)


def _check_settings(**_: Any) -> list[CheckMessage]:
    from penstock.errors import BadArgument
    from penstock.integrations.django.project import checked_settings
    from penstock.integrations.django.running import configured_backends

    try:
        checked_settings()
        configured_backends()
    except BadArgument as error:
        return [Error(str(error), id="penstock.E001")]
    return []
