"""Findings of the doctor, and the functions that run its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

from redis.exceptions import ResponseError

__all__ = [
    "Finding",
    "Severity",
    "add_address",
    "broken",
    "name_check",
    "ok",
    "run_checks",
    "warning",
]

T = TypeVar("T")


Severity: TypeAlias = Literal["ok", "warning", "broken"]
"""The severity of a finding; "broken" = it breaks a promise (PROTOCOL.md, Guarantees)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Args:
        check: name of the check.
        level: how bad it is.
        text: one sentence for people.
        data: the figures behind it, for programs.
    """

    check: str
    level: Severity
    text: str
    data: Mapping[str, object]


def ok(text: str, **data: object) -> Finding:
    """Return a finding of a check that has no name yet."""
    return Finding("", "ok", text, data)


def warning(text: str, **data: object) -> Finding:
    """Return a finding that the user should know about."""
    return Finding("", "warning", text, data)


def broken(text: str, **data: object) -> Finding:
    """Return a finding that breaks a promise."""
    return Finding("", "broken", text, data)


def run_checks(subject: T, *checks: Callable[[T], Iterable[Finding]]) -> Iterator[Finding]:
    """Run checks. A command that the server refuses is a finding, and the next check runs."""
    for check in checks:
        name = check.__name__.removeprefix("check_")
        try:
            yield from name_check(name, check(subject))
        except ResponseError as error:  # each may be refused
            yield Finding(name, "warning", f"could not be checked: {error}", {})


def name_check(check: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Give findings the name of their check, unless they have one."""
    return (replace(one, check=one.check or check) for one in findings)


def add_address(findings: Iterable[Finding], kind: str, address: str) -> Iterator[Finding]:
    """Add to findings the address of the server or node that they are about.

    Args:
        findings: of one server or node.
        kind: name of the address in `data`.
        address: precedes the text.
    """
    for one in findings:
        yield replace(one, text=f"{address}: {one.text}", data={**one.data, kind: address})
