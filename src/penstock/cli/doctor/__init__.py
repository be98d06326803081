"""`penstock doctor`: what of a server and of its queues breaks a promise."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import typer

from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.doctor import cluster, keys, server
from penstock.cli.doctor.findings import Finding, Level, Patient, examined, examined_apart
from penstock.core.urls import shown

__all__ = ["doctor"]


@command("doctor")
def doctor(session: Session) -> None:
    """Examine the server and the queues; exit code 1 if something breaks a promise.

    Nothing is written. Jobs are looked at by sampling, keys for a few seconds at most.
    """
    with closing(Patient(session.url, session.prefix)) as patient:
        findings = [
            *examined(patient, cluster.CHECKS),
            *examined_apart(patient, server.CHECKS),
            *examined(patient, keys.CHECKS),
        ]
    healthy = all(finding.level is not Level.BROKEN for finding in findings)
    document = {
        "url": shown(session.url),
        "prefix": session.prefix,
        "healthy": healthy,
        "findings": [_document(finding) for finding in findings],
    }
    session.answer(document, lambda: _print(findings))
    if not healthy:
        raise typer.Exit(1)


def _document(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "level": finding.level.value,
        "text": finding.text,
        "data": finding.data,
    }


def _print(findings: list[Finding]) -> None:
    output.table(("", "check", ""), [(one.level, one.check, one.text) for one in findings])
