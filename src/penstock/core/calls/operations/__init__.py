"""The operations of a queue: each builds the `Call` of a script, whose result is typed."""

from penstock.core.calls.operations.base import OwnNode
from penstock.core.calls.operations.batching import Batching
from penstock.core.calls.operations.consuming import Consuming, Taken
from penstock.core.calls.operations.managing import Managing
from penstock.core.calls.operations.producing import Producing
from penstock.core.calls.operations.scheduling import Scheduling

__all__ = ["OwnNode", "QueueOps", "Taken"]


class QueueOps(Producing, Consuming, Managing, Scheduling, Batching):
    """All operations of one queue."""
