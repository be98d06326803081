"""The page of a read-only replica."""

from __future__ import annotations

from collections.abc import Callable

from penstock import Penstock
from penstock.embedded import EmbeddedServer
from tests.support.replicated import replicated
from tests.web.conftest import Open


def test_a_replica_is_enough(make_server: Callable[..., EmbeddedServer], open_page: Open) -> None:
    """Every page can be read from a replica; an action there says that it can't."""
    with replicated(make_server) as servers, Penstock(servers.url) as ps:
        q = ps.queue("emails")
        q.enqueue_many(range(3))
        q.schedules.add("hourly", every="1h", job=1)
        [job] = q.reserve(block=0)
        job.bury("ValueError: no")
        servers.settle()
        page = open_page(url=servers.replicas[0].url, write=True)
        paths = ["/", "/schedules", "/nodes", "/workers", f"/jobs/{job.id}"]
        paths += [f"/queues/emails?state={state}" for state in ("ready", "dead")]
        for path in (*paths, "/queues/emails?state=dead&error=value"):
            assert page.get(path).status == 200, path
        refused = page.press(page.get("/queues/emails"), "side", "all")
        assert refused.status == 503
        assert "read-only replica" in refused.text
        assert q.stats().settings.paused is None
