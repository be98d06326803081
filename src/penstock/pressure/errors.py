"""The exceptions that only queues of pressure raise."""

from __future__ import annotations

from penstock.errors import NotReplicated, PenstockError

__all__ = ["OperationUnblocked", "PutNotReplicated", "QueueEmpty", "QueueExists"]


class QueueEmpty(PenstockError):
    """The queue has no message, or none arrived before the timeout."""


class QueueExists(PenstockError):
    """The queue exists, or keys of an earlier one are left; nothing was written."""


class OperationUnblocked(PenstockError):
    """`unblock` ended the call while it waited; nothing was put or taken."""


class PutNotReplicated(NotReplicated):
    """A message was put, but too few replicas confirmed it in time.

    The message stays in the primary's queue: putting it again puts it twice. It is lost if a
    replica without the message becomes the primary.

    Args:
        wanted: number of replicas asked for.
        got: number of replicas that confirmed.

    `withdrawn` is False.
    """

    def __init__(self, wanted: int, got: int) -> None:
        super().__init__(wanted, got, False)
        text = "the message is in the queue: do not put it again"
        self.args = (f"{got} of {wanted} replicas confirmed: {text}",)
