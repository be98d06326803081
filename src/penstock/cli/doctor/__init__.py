"""`penstock doctor`: what of a server and of its queues breaks a promise."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.app import Failed, Session, command
from penstock.cli.doctor import cluster, keys, server, times
from penstock.cli.doctor.findings import Finding, Patient, Severity, examined, examined_apart
from penstock.core.urls import shown

__all__ = ["doctor"]


@command("doctor")
def doctor(
    session: Session,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Correct times that a wrong server clock has set too far in the future.",
        ),
    ] = False,
    horizon: Annotated[
        int,
        typer.Option(
            metavar="DAYS",
            min=1,
            max=36_600,
            help="A delay or window that ends later than this counts as a wrong time.",
        ),
    ] = times.HORIZON_DAYS,
) -> None:
    """Examine the server and the queues; exit code 1 if something breaks a promise.

    Nothing is written without --repair. Jobs are looked at by sampling, keys for a few seconds
    at most.
    """
    with closing(Patient(session.url, session.prefix)) as patient:
        if repair:
            _check_clock(patient)
        findings = [
            *examined(patient, cluster.CHECKS),
            *examined_apart(patient, server.CHECKS),
            *examined(patient, keys.checks(horizon, repair=repair)),
        ]
    healthy = all(finding.level is not Severity.BROKEN for finding in findings)
    document = {
        "url": shown(session.url),
        "prefix": session.prefix,
        "healthy": healthy,
        "findings": [_document(finding) for finding in findings],
    }
    session.answer(document, lambda: _print(findings))
    if not healthy:
        raise typer.Exit(1)


def _check_clock(patient: Patient) -> None:
    error = times.clock_error(patient)
    if abs(error) > times.CLOCK_SLACK:
        side = "ahead of" if error > 0 else "behind"
        raise Failed(
            f"the server's clock is {output.span(abs(error))} {side} ours: set the wrong one first,"
            " or right times would be taken for wrong ones; nothing was repaired"
        )


def _document(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "level": finding.level.value,
        "text": finding.text,
        "data": finding.data,
    }


def _print(findings: list[Finding]) -> None:
    output.table(("", "check", ""), [(one.level, one.check, one.text) for one in findings])
