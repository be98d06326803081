"""The dashboard of queues and the alert rules use metrics and labels that we serve."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are another package

from penstock.core.nodes.metrics import METRICS

EXAMPLES = Path(__file__).parents[2] / "examples"
BOARD = json.loads((EXAMPLES / "grafana/queues.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((EXAMPLES / "prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
SHOWN = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
ALERTS = {rule["alert"]: rule["expr"] for rule in RULES}
DOCUMENTED = (Path(__file__).parents[2] / "docs/observing.md").read_text()


def selectors(expression: Any) -> Iterator[tuple[str, set[str]]]:
    """Yield the metric of each selector, and the labels by which it chooses."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression.name, {matcher.name for matcher in expression.matchers.matchers}
    parts = [getattr(expression, name, None) for name in ("expr", "lhs", "rhs", "vector_selector")]
    for part in (*parts, *getattr(expression, "args", ())):
        if part is not None:
            yield from selectors(part)


def names_in(text: str) -> set[str]:
    """Return the metrics of an expression, which can be parsed and have the labels it uses."""
    plain = text.replace("$__rate_interval", "5m")
    chosen = list(selectors(promql_parser.parse(plain)))
    assert {name for name, _ in chosen} == {*re.findall(r"\bpenstock_\w+", text)}
    buckets = {name for name, _ in chosen if name not in METRICS}
    assert all(METRICS[name.removesuffix("_bucket")].kind == "histogram" for name in buckets)
    chosen = [(name.removesuffix("_bucket"), labels) for name, labels in chosen]
    grouped = {
        label for group in re.findall(r"by \(([^)]*)\)", text) for label in group.split(", ")
    }
    for name, labels in chosen:
        assert labels <= {*METRICS[name].labels}
        assert not METRICS[name].labels or grouped & {*METRICS[name].labels}
        assert ("rate(" in text or "increase(" in text) or METRICS[name].kind == "gauge"
    return {name for name, _ in chosen}


@pytest.mark.parametrize("text", [*SHOWN, *ALERTS.values()])
def test_each_expression(text: str) -> None:
    """It can be parsed, and each metric and label in it is one of ours."""
    assert names_in(text) <= {*METRICS}


def test_every_metric_is_shown() -> None:
    """No metric of the server's figures is missing from the dashboard, or from the page of docs."""
    assert {name for text in SHOWN for name in names_in(text)} == {*METRICS}
    totals = {name for name in METRICS if name.endswith("_total")}
    for name in {*METRICS} - totals:
        assert f"`{name}`" in DOCUMENTED
    for name in totals:
        assert name.removeprefix("penstock_queue_").removesuffix("total") in DOCUMENTED


def test_each_alert_says_what_to_do() -> None:
    """It has a severity, a summary and the command that tells more."""
    assert len(ALERTS) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert {*rule["annotations"]} == {"summary", "remedy"}
        grouped = {*re.findall(r"by \((\w+)\)", rule["expr"])}
        assert {*re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])} <= grouped
        assert rule["annotations"]["remedy"].startswith("penstock ")


def test_names_follow_the_conventions_of_prometheus() -> None:
    """Counters, and no others, end in _total; units are base units at the end of the name."""
    for name, metric in METRICS.items():
        assert re.fullmatch(r"penstock_[a-z_]+", name)
        assert name.endswith("_total") == (metric.kind == "counter")
        assert not re.search(r"_(ms|minutes|hours|kb|mb|percent)(_|$)", name)
        assert metric.text.endswith(".")
