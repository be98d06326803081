"""Samples, ratios within rounds, percentiles, budgets, and the format of figures."""

from __future__ import annotations

import pytest

from benchmarks.figures import Budget, Sample, Table, median, pairwise, percentile, shown
from benchmarks.plan import FULL, IN_FLIGHT, QUICK
from benchmarks.report import budget_table, write_markdown, write_text


def test_a_sample_divides_by_its_jobs() -> None:
    """Costs are per job and in microseconds; the rate is jobs per second of wall time."""
    sample = Sample(jobs=200, server=0.001, client=0.002, wall=0.004)
    assert sample.server_us == pytest.approx(5)
    assert sample.client_us == pytest.approx(10)
    assert sample.wall_us == pytest.approx(20)
    assert sample.rate == pytest.approx(50_000)


def test_samples_add_up() -> None:
    """The sum of two samples has their jobs and their costs."""
    total = Sample(1, 0.5, 0.25, 2.0) + Sample(3, 0.5, 0.75, 1.0)
    assert total == Sample(4, 1.0, 1.0, 3.0)


def test_a_sample_without_time_has_no_rate() -> None:
    """If the clock did not advance there is no division by zero."""
    assert Sample(5).rate == 0.0


def test_ratios_are_taken_within_a_round() -> None:
    """A round in which everything was slow does not change the ratio."""
    assert pairwise([2.0, 20.0, 3.0], [1.0, 10.0, 2.0]) == 2.0
    assert pairwise([1.0, 9.0, 8.0], [1.0, 1.0, 8.0]) == 1.0
    assert pairwise([1.0], [0.0]) == 0.0


def test_ratios_need_the_same_rounds_on_both_sides() -> None:
    """A missing figure raises and does not shift the rounds."""
    with pytest.raises(ValueError, match="shorter"):
        pairwise([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    "share, expected", [(0.0, 1.0), (0.5, 50.0), (0.501, 51.0), (0.99, 99.0), (1.0, 100.0)]
)
def test_a_percentile_is_a_value_that_occurred(share: float, expected: float) -> None:
    """A percentile is the smallest value that at least this share of values does not exceed."""
    assert percentile([float(i) for i in range(100, 0, -1)], share) == expected


def test_the_median_is_the_middle() -> None:
    """For an even number of values it is the mean of the two in the middle."""
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5


@pytest.mark.parametrize(
    "value, limit, least, holds",
    [
        (1.6, 1.6, False, True),
        (1.61, 1.6, False, False),
        (0.85, 0.85, True, True),
        (0.84, 0.85, True, False),
    ],
)
def test_a_budget_includes_its_bound(value: float, limit: float, least: bool, holds: bool) -> None:
    """A figure equal to its bound is within it, for upper and lower bounds."""
    budget = Budget("what", value, limit, least)
    assert budget.holds is holds
    assert budget.verdict == ("ok" if holds else "over")
    assert budget.bound.startswith(">=" if least else "<=")


@pytest.mark.parametrize(
    "value, text",
    [
        (None, "-"),
        ("add", "add"),
        (0.0, "0"),
        (3.0, "3"),
        (0.0123, "0.012"),
        (0.256, "0.26"),
        (1.605, "1.60"),
        (12.34, "12.3"),
        (123.4, "123"),
        (1234.5, "1,234"),
        (5_000_000.0, "5,000,000"),
        (-0.5, "-0.50"),
    ],
)
def test_figures_are_shown_with_three_digits(value: str | float | None, text: str) -> None:
    """Three digits are enough for comparison, and exclude noise."""
    assert shown(value) == text


def test_a_row_has_a_cell_for_each_column() -> None:
    """A row with a wrong number of cells raises."""
    table = Table("t", "T", ("one", "two"))
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        table.add(1.0)


def judged_table() -> Table:
    """A table with a row within its budget, one over it, and one without."""
    table = Table("t", "Title", ("what", "figure"), "A note.")
    table.add("fast", 2.0, budget=Budget("fast", 2.0, 1.5, least=True))
    table.add("big", 1300.0, budget=Budget("big", 1300.0, 1200.0, unit="bytes"))
    table.add("plain", None)
    return table


def test_the_budget_table_gathers_every_budget() -> None:
    """The closing table has each budget of the run, in order, with its verdict."""
    closing = budget_table([judged_table(), Table("empty", "Empty", ("a",))])
    assert closing.texts() == [
        ("fast", "2 x", ">= 1.50 x", "ok"),
        ("big", "1,300 bytes", "<= 1,200 bytes", "over"),
    ]


def test_markdown_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The README uses it unchanged: facts as a list, figures right-aligned."""
    write_markdown([judged_table()], {"machine": "2 cores"})
    assert capsys.readouterr().out == (
        "- machine: 2 cores\n\n**Title**\n\nA note.\n\n"
        "| what | figure | budget |  |\n|---|---:|---|---|\n"
        "| fast | 2 | >= 1.50 x | ok |\n"
        "| big | 1,300 | <= 1,200 bytes | over |\n"
        "| plain | - |  |  |\n"
    )


def test_text_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal tables are plain text."""
    write_text([judged_table()], {"machine": "2 cores"})
    assert capsys.readouterr().out == (
        "machine:      2 cores\n\n== Title\n   A note.\n"
        "what   figure  budget\n"
        "fast        2  >= 1.50 x       ok\n"
        "big     1,300  <= 1,200 bytes  over\n"
        "plain       -\n"
    )


def test_a_scaled_plan_keeps_whole_batches() -> None:
    """However small the plan, each batch is full and each measurement has jobs."""
    tiny = FULL.scaled(0.0001)
    assert all(jobs % max(n, IN_FLIGHT) == 0 and jobs > 0 for n, jobs in tiny.cost.items())
    assert tiny.lifecycles == tiny.bulk == tiny.memory == 100
    assert tiny.single == tiny.fresh == 1
    assert tiny.samples == tiny.delayed == 2
    assert FULL.scaled(1.0) == FULL
    assert QUICK.scaled(1.0) == QUICK
