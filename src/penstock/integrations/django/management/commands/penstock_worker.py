"""`python manage.py penstock_worker`."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from penstock.errors import BadArgument
from penstock.integrations.django import make_worker
from penstock.worker import LifespanError

COMMAND_OPTIONS = [
    "queues",
    "concurrency",
    "grace",
    "time_limit",
    "max_jobs",
    "name",
    "burst",
    "log_jobs",
]


class Command(BaseCommand):
    """Runs the worker of the project until a signal stops it."""

    help = "Run the handlers and tasks of all apps until SIGTERM, Ctrl-C or SIGHUP."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options; those that are not given have the defaults of `Worker`."""
        parser.add_argument("--queues", type=lambda text: text.split(","), metavar="NAME,...")
        parser.add_argument("--concurrency", type=int)
        parser.add_argument("--grace", type=float, metavar="SECONDS")
        parser.add_argument("--time-limit", type=float, metavar="SECONDS")
        parser.add_argument("--max-jobs", type=int)
        parser.add_argument("--name")
        for flag, text in (
            ("--burst", "end when there is no job to take"),
            ("--log-jobs", "log a line for each finished job"),
        ):
            parser.add_argument(flag, action="store_true", default=None, help=text)

    def handle(self, **given: Any) -> None:
        """Run the worker."""
        options = {name: given[name] for name in COMMAND_OPTIONS if given[name] is not None}
        try:
            make_worker(**options).run()
        except (BadArgument, LifespanError) as error:
            raise CommandError(str(error)) from error
