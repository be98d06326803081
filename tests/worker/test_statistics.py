"""Statistics of a worker: their definitions and their bounded size."""

from __future__ import annotations

import json
import statistics
import threading
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.statistics import (
    MOST_SAMPLES,
    NO_SAMPLES,
    Statistics,
    Summary,
    WorkerStats,
    summary,
)

seconds = st.floats(min_value=0, max_value=1e6, allow_subnormal=False)


def close(expected: float) -> object:
    """Compare floats up to rounding."""
    return pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(st.lists(seconds, min_size=2, max_size=60))
def test_a_summary_agrees_with_the_statistics_module(samples: list[float]) -> None:
    """Mean, variance and percentiles agree with the statistics module."""
    found = summary(samples)
    mean = statistics.fmean(samples)
    hundredths = statistics.quantiles(samples, n=100, method="inclusive")
    assert (found.count, found.last) == (len(samples), samples[-1])
    assert (found.min, found.mean, found.max) == (min(samples), close(mean), max(samples))
    assert found.mad == close(statistics.fmean(abs(sample - mean) for sample in samples))
    assert found.variance == close(statistics.pvariance(samples))
    assert found.p50 == close(statistics.median(samples))
    assert [found.p50, found.p90, found.p99] == [close(hundredths[n]) for n in (49, 89, 98)]


@given(st.lists(st.integers(0, 10**9), max_size=40))
def test_the_figures_are_in_order(samples: list[int]) -> None:
    """Minimum, percentiles and maximum are in order; deviations are within the range."""
    found = summary(samples)
    assert found.min <= found.p50 <= found.p90 <= found.p99 <= found.max
    assert found.min <= found.mean <= found.max
    assert 0 <= found.mad <= found.max - found.min


def test_a_single_sample() -> None:
    """A single sample is every percentile, and has no deviation."""
    assert summary([3.5]) == Summary(1, 3.5, 3.5, 3.5, 3.5, 0.0, 0.0, 3.5, 3.5, 3.5)


def test_mad_is_the_mean_absolute_deviation() -> None:
    """MAD is the mean absolute deviation from the mean, as in Carmine; the median
    one would be 1.
    """
    assert summary([1, 2, 3, 4, 100]).mad == pytest.approx(31.2)


def test_a_new_worker_has_done_nothing() -> None:
    """A new worker has zeros and no outcomes or queues."""
    found = Statistics().snapshot()
    assert found == WorkerStats({}, NO_SAMPLES, {}, NO_SAMPLES, NO_SAMPLES)
    assert (found.jobs, found.handling.count, found.handling.p99) == (0, 0, 0.0)


def test_jobs_are_counted_by_outcome() -> None:
    """A batch counts as one call with one time; all its jobs count."""
    figures = Statistics()
    figures.add_outcome("done", 1, 0.1, 0.5)
    figures.add_outcome("done", 100, 0.3, 0.7)
    figures.add_outcome("retried", 1, 0.2, None)
    figures.add_outcome("handed back", 5, None, None)
    found = figures.snapshot()
    assert found.counts == {"done": 101, "retried": 1, "handed back": 5}
    assert found.jobs == 107
    assert (found.handling.count, found.handling.last, found.handling.max) == (3, 0.2, 0.3)
    assert (found.queueing.count, found.queueing.last) == (2, 0.7)


def test_the_window_is_the_last_thousand() -> None:
    """Figures cover the last thousand samples; counts cover all."""
    figures = Statistics()
    figures.add_outcome("done", 1, 1e6, 1e6)
    for number in range(MOST_SAMPLES):
        figures.add_outcome("done", 1, number, number)
    found = figures.snapshot()
    assert found.counts == {"done": MOST_SAMPLES + 1}
    assert found.handling == found.queueing == summary(range(MOST_SAMPLES))


def test_sizes_are_kept_queue_by_queue_and_together() -> None:
    """Sizes are kept for each queue; the total is the sum of the last ones."""
    figures = Statistics()
    for queue, size in [("a", 5), ("b", 10), ("a", 1), ("b", 0)]:
        figures.add_size(queue, size)
    found = figures.snapshot()
    assert found.queue_sizes == {"a": summary([5, 1]), "b": summary([10, 0])}
    assert found.queue_size == summary([5, 15, 11, 1])


def test_figures_go_into_json() -> None:
    """Statistics can be stored as JSON and restored."""
    figures = Statistics()
    figures.add_outcome("done", 2, 0.25, 1.5)
    figures.add_size("q", 7)
    as_dict = figures.snapshot().as_dict()
    assert json.loads(json.dumps(as_dict)) == as_dict
    assert as_dict["counts"] == {"done": 2}
    assert as_dict["queue_sizes"]["q"]["last"] == as_dict["queue_size"]["last"] == 7
    assert set(as_dict["handling"]) == {
        "count", "last", "min", "mean", "max", "mad", "variance", "p50", "p90", "p99",
    }  # fmt: skip


def test_a_snapshot_stays_as_it_is() -> None:
    """A snapshot is immutable and has no later samples."""
    figures = Statistics()
    figures.add_outcome("done", 1, 1, None)
    before = figures.snapshot()
    figures.add_outcome("done", 1, 2, None)
    assert (before.jobs, before.handling.max) == (1, 1)
    with pytest.raises(FrozenInstanceError):
        before.counts = {}  # type: ignore[misc]  # on purpose


def test_threads_record_while_another_looks() -> None:
    """Threads record while another takes snapshots: no job is lost."""
    figures = Statistics()

    def work() -> None:
        for number in range(3000):
            figures.add_outcome("done", 2, number, number)
            figures.add_size("q", number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    seen = [figures.snapshot().jobs]
    while any(thread.is_alive() for thread in threads):
        seen.append(figures.snapshot().jobs)
    for thread in threads:
        thread.join()
    assert seen == sorted(seen)
    assert figures.snapshot().counts == {"done": 4 * 3000 * 2}
