"""Samples, ratios, budgets and tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Budget", "Row", "Sample", "Table", "median", "pairwise", "percentile"]


@dataclass(frozen=True, slots=True)
class Sample:
    """The cost of a piece of work.

    Attributes:
        jobs: how many jobs it moved.
        server: CPU seconds of the server.
        client: CPU seconds of this process.
        wall: seconds.
    """

    jobs: int = 0
    server: float = 0.0
    client: float = 0.0
    wall: float = 0.0

    def __add__(self, other: Sample) -> Sample:
        return Sample(
            self.jobs + other.jobs,
            self.server + other.server,
            self.client + other.client,
            self.wall + other.wall,
        )

    @property
    def server_us(self) -> float:
        """Return microseconds of server CPU per job."""
        return self.server / self.jobs * 1e6

    @property
    def client_us(self) -> float:
        """Return microseconds of client CPU per job."""
        return self.client / self.jobs * 1e6

    @property
    def wall_us(self) -> float:
        """Return microseconds per job."""
        return self.wall / self.jobs * 1e6

    @property
    def rate(self) -> float:
        """Return jobs per second."""
        return self.jobs / self.wall if self.wall else 0.0


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def pairwise(ours: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of the ratios within each round, so that common disturbances cancel out."""
    ratios = [a / b for a, b in zip(ours, base, strict=True) if b]
    return statistics.median(ratios) if ratios else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ranked = sorted(values)
    place = max(-(-len(ranked) * share // 1), 1)
    return ranked[int(place) - 1]


@dataclass(frozen=True, slots=True)
class Budget:
    """A bound on one figure.

    Attributes:
        name: its name in the closing table.
        value: the figure.
        limit: the bound.
        least: whether the bound is a lower one.
        unit: of both: `x` is a ratio.
    """

    name: str
    value: float
    limit: float
    least: bool = False
    unit: str = "x"

    @property
    def holds(self) -> bool:
        """Tell if the figure is within the bound."""
        return self.value >= self.limit if self.least else self.value <= self.limit

    @property
    def bound(self) -> str:
        """Return the bound in words."""
        return f"{'>=' if self.least else '<='} {shown(self.limit)} {self.unit}"

    @property
    def verdict(self) -> str:
        """Return `ok` or `over`."""
        return "ok" if self.holds else "over"

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "value": self.value,
            "limit": self.limit,
            "least": self.least,
            "unit": self.unit,
            "holds": self.holds,
        }


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table.

    Attributes:
        cells: a figure or text for each column; None = does not apply.
        budget: the bound on one of them.
    """

    cells: tuple[str | float | None, ...]
    budget: Budget | None = None


@dataclass(slots=True)
class Table:
    """A section of the report.

    Attributes:
        name: for programs.
        title: for people.
        columns: the heads of the columns.
        note: how it was measured.
        rounds: the single figures of each round, for `--json`.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    note: str = ""
    rows: list[Row] = field(default_factory=list)
    rounds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, *cells: str | float | None, budget: Budget | None = None) -> None:
        """Append a row."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{self.name}: {len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(Row(cells, budget))

    @property
    def budgets(self) -> list[Budget]:
        """Return the bounds of its rows."""
        return [row.budget for row in self.rows if row.budget is not None]

    @property
    def heads(self) -> tuple[str, ...]:
        """Return all column heads, with the verdict's."""
        return (*self.columns, "budget", "")

    def texts(self) -> list[tuple[str, ...]]:
        """Return every row as text."""
        return [
            (
                *(shown(cell) for cell in row.cells),
                row.budget.bound if row.budget else "",
                row.budget.verdict if row.budget else "",
            )
            for row in self.rows
        ]

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "title": self.title,
            "note": self.note,
            "rows": [
                dict(zip(self.columns, row.cells, strict=True))
                | ({"budget": row.budget.as_json()} if row.budget else {})
                for row in self.rows
            ],
            "rounds": self.rounds,
        }


def shown(value: str | float | None) -> str:
    """Return a figure with three significant digits."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if value == int(value):
        return f"{value:.0f}"
    places = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 else 3
    return f"{value:.{places}f}"
