"""The operations of a queue: each builds the `Call` of a script, whose result is typed."""

from penstock.core.operations.base import AckResults
from penstock.core.operations.batching import Batching
from penstock.core.operations.consuming import Consuming, Taken
from penstock.core.operations.managing import Managing
from penstock.core.operations.producing import Producing
from penstock.core.operations.scheduling import Scheduling

__all__ = ["AckResults", "QueueOps", "Taken"]


class QueueOps(Producing, Consuming, Managing, Scheduling, Batching):
    """All operations of one queue."""
