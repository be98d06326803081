"""The command `configure`: show or change the settings of a queue."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from penstock import Settings
from penstock.cli import output
from penstock.cli.app import Session, command, open_existing
from penstock.cli.jobs import QueueArgument
from penstock.cli.parameters import Argument, BadUsage
from penstock.core.values.near import did_you_mean

__all__ = ["configure"]


@command("configure")
def configure(
    session: Session,
    queue: QueueArgument,
    settings: Annotated[list[str] | None, Argument("NAME=VALUE")] = None,
    create: bool = False,
) -> None:
    """Store settings on a queue, for all its clients, or show those that it has.

    Times are seconds. The value `default` removes a setting.

    Args:
        settings: settings to change. Default: only show them.
        create: store them also for a queue that does not exist yet.

    Examples:
        penstock configure emails
        penstock configure emails lease=60 max_attempts=5 max_length=default
    """
    changes = dict(map(_parsed, settings or ()))
    if create and not changes:
        raise BadUsage("--create needs settings")
    with session.client() as client:
        if create:
            target = client.open(queue)
        else:
            target = open_existing(client, queue, "; --create stores settings for a new one")
        stored = target.configure(**changes) if changes else target.stats().settings
    figures = asdict(stored)
    session.answer({"queue": queue, "settings": figures}, lambda: output.facts(figures))


SETTING_NAMES = [name for name in Settings.__dataclass_fields__ if name != "paused"]


def _parsed(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE; the queue checks the value."""
    name, equals, value = text.partition("=")
    name = name.replace("-", "_")
    if not equals or name not in SETTING_NAMES:
        guess = did_you_mean(name, SETTING_NAMES)
        raise BadUsage(f"{text!r} must be NAME=VALUE{guess}; names: {', '.join(SETTING_NAMES)}")
    return name, None if value == "default" else _number(value)


def _number(text: str) -> bool | int | float | str:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:  # noqa: PERF203  # two kinds
            continue
    return text
