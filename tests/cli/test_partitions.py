"""Partitioned queues: commands need only their name."""

from __future__ import annotations

from penstock import Penstock, parse_id
from tests.cli.support import Cli


def test_a_queue_in_partitions_is_one_queue(cli: Cli, client: Penstock) -> None:
    """Commands read the number of partitions; keys choose among them."""
    queue = client.queue("emails", partitions=4)
    queue.enqueue_many([{"n": number} for number in range(8)], key=lambda body: str(body["n"]))
    assert cli("queues").out == "emails\n"
    [one] = cli("stats", "--json").document["queues"]
    assert (one["name"], one["ready"], one["partitions"]) == ("emails", 8, 4)
    [first, second] = [
        cli("enqueue", "emails", "{}", "--key", "ada", "--json").document["jobs"][0]["id"]
        for _ in range(2)
    ]
    assert parse_id(first).crc == parse_id(second).crc
    assert cli("show", first, "--json").document["queue"] == "emails"
    assert len(cli("peek", "emails", "-n", "20", "--json").document["jobs"]) == 10
    assert cli("pause", "emails").code == 0
    assert client.open("emails").stats().settings.paused == "out"
    assert cli("resume", "emails").code == 0
    assert cli("purge", "emails", "--yes").code == 0
    assert client.open("emails").stats().ready == 0


def test_the_doctor_knows_partitions(cli: Cli, client: Penstock) -> None:
    """Partitions and the key with their number are not reported."""
    client.queue("emails", partitions=4).enqueue_many(range(8), key=str)
    found = cli("doctor", "--json").document["findings"]
    told = [one["text"] for one in found if one["check"] in ("queues", "keys")]
    assert len(told) == 2, told
    assert "no damage was found" in told[0]
