"""The Grafana dashboard uses metrics, labels and outcomes that the integration exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from penstock import Handlers, Penstock, Reject, Retry, RetryPolicy, Worker
from penstock.integrations.prometheus import Prometheus
from tests.support.backends import Backend

FILE = Path(__file__).parents[2] / "examples/grafana/penstock.json"
BOARD = json.loads(FILE.read_text())
EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
VARIABLES = {one["name"]: one for one in BOARD["templating"]["list"]}
METRIC = re.compile(r"\bpenstock_\w+")


@pytest.fixture
def exported(backend: Backend) -> dict[str, set[str]]:
    """Samples of a process that has added jobs and run them: name -> its labels."""
    registry = CollectorRegistry()
    handlers = Handlers()

    @handlers.handler
    def end(how: str) -> Any:
        ends = {"done": None, "retried": Retry(after=60), "rejected": Reject("no")}
        return ends[how]

    with Penstock(backend.sync_client(), middleware=[Prometheus(registry)]) as client:
        queue = client.queue("q")
        for how in ("done", "retried", "rejected"):
            end.enqueue(queue, how)
        queue.enqueue({"how": "dead"}, headers={"handler": "end"}, retry=RetryPolicy(1))
        queue.enqueue({}, headers={"handler": "gone"})
        Worker(client, "q", handlers, burst=True).run()
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    found: dict[str, set[str]] = {}
    for sample in samples:
        found.setdefault(sample.name, set()).update(sample.labels)
        if "outcome" in sample.labels:
            found.setdefault("outcome", set()).add(sample.labels["outcome"])
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_each_expression(exported: dict[str, set[str]], expression: str) -> None:
    """Metrics and labels exist, variables are declared, and brackets are closed."""
    metrics = METRIC.findall(expression)
    assert metrics
    labels = set(re.findall(r"(\w+)=~?\"", expression))
    for group in re.findall(r"by \(([^)]*)\)", expression):
        labels |= set(group.split(", "))
    for metric in metrics:
        assert labels <= exported[metric]
    used = set(re.findall(r"\$(\w+)", expression)) - {"__rate_interval"}
    assert used <= set(VARIABLES)
    for opened, closed in ("()", "{}", "[]"):
        assert expression.count(opened) == expression.count(closed)


def test_legends_show_labels_of_the_result() -> None:
    """A label in a legend is one by which the expression groups."""
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert re.search(rf"by \([^)]*\b{label}\b", target["expr"])


def test_outcomes_exist(exported: dict[str, set[str]]) -> None:
    """The outcomes of failures are named as the integration names them."""
    texts = {text for one in EXPRESSIONS for text in re.findall(r'outcome=~"([^"]*)"', one)}
    named = {name for text in texts for name in text.split("|")}
    assert named - exported["outcome"] == {"lost"}  # its lease has ended
    assert exported["outcome"] - named == {"done"}


def test_each_metric_is_shown(exported: dict[str, set[str]]) -> None:
    """No metric of the integration is missing from the dashboard."""
    shown = {re.sub("_bucket$", "", one) for text in EXPRESSIONS for one in METRIC.findall(text)}
    documented = re.findall(r"`(penstock_\w+)`", Prometheus.__doc__ or "")
    assert shown == set(documented)
    assert len(documented) == 5


def test_variables_ask_for_labels_that_exist(exported: dict[str, set[str]]) -> None:
    """They list the values of a label of a metric."""
    for name in ("queue", "handler"):
        query = VARIABLES[name]["query"]["query"]
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()  # type: ignore[union-attr]  # or the test fails
        assert label in exported[metric]


def test_panels_have_places_of_their_own() -> None:
    """Ids differ, and no panel covers another one."""
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
