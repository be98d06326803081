"""The command `check`: what is wrong now, with an exit code for probes and cron."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.output import Failed
from penstock.cli.parameters import Argument, Option
from penstock.core.jobs.logs import counted

__all__ = ["check"]


@command("check")
def check(
    session: Session,
    pattern: Annotated[str, Argument("PATTERN")] = "*",
    longest_wait: Annotated[float, Option(low=0)] = 300,
    most_dead: Annotated[int, Option(low=0)] = 0,
    dead_since: Annotated[float | None, Option(low=0)] = None,
) -> None:
    """Say what is wrong now with queues, their work, and nodes; exit code 1 if anything is.

    That is: a node that does not answer or whose memory is nearly full; a queue that is full, or
    whose jobs wait for too long, with a worker or without one; jobs that a worker gives back, as it
    has no such handler; a schedule that is late, whose handler was removed, or whose last job fails
    or is dead; a batch that can't end; dead letters; jobs in a paused queue. Each comes with the
    command that mends it or tells more.

    Args:
        pattern: only queues whose names match: * any text, ? any character, [abc] one of these. If
            none does, the exit code is 1.
        longest_wait: time that a job may wait, and a tick of a schedule be late, in queues without
            a setting longest_wait.
        most_dead: dead letters that a queue may have.
        dead_since: dead letters are a problem only if the last death was not longer ago.

    Examples:
        penstock check
        penstock check 'shop.*' --longest-wait 60 --most-dead 100
        penstock check --dead-since 3600
    """
    with session.client() as client:
        queues = list(client.scan_queues_iter(pattern=pattern))
        if not queues and pattern != "*":
            raise Failed(f"no queue matches {pattern!r}: `penstock queues` lists the queues")
        found = client.find_problems(
            queues, longest_wait=longest_wait, most_dead=most_dead, dead_since=dead_since
        )
    rows = [(one.kind, one.queue or "", one.text, one.remedy) for one in found]

    def show() -> None:
        if rows:
            output.table(("", "queue", "what is wrong", "command"), rows)
        else:
            output.write(f"nothing is wrong with {counted(len(queues), 'queue')}")

    session.answer({"problems": [asdict(one) for one in found]}, show)
    if found:
        raise SystemExit(1)
