"""What handlers tell to the clients that watch their jobs, from the worker's side."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.calls.failures import about_server
from penstock.core.flows.effects import Flow
from penstock.core.jobs.emission import KEPT_REFUSALS
from penstock.core.jobs.job import Delivery, emission_of, make_emission
from penstock.core.jobs.logs import Fields
from penstock.worker.concerns import run_call
from penstock.worker.polls import QueuePoll
from penstock.worker.state import WorkerState

__all__ = ["send_rest", "warn_of_refusal"]


def send_rest(state: WorkerState, poll: QueuePoll, jobs: Sequence[Delivery]) -> Flow:
    """Send what the handlers of jobs have told last, before the jobs are reported.

    The heartbeat may be sending it, too: what comes twice is stored once.
    """
    for job in jobs:
        emission = emission_of(job)
        while emission is not None and emission.must_go:
            part = emission.first_part()
            try:
                reply = yield from run_call(state, poll, poll.ops.emit(job, emission.ttl_ms, part))
                refusal = KEPT_REFUSALS.get(reply.kept, "")
            except Exception as error:
                if about_server(error):
                    raise
                refusal = f"{type(error).__name__}: {error}"
            emission.drop_to(part[-1].number)
            warn_of_refusal(state, job, refusal)


def warn_of_refusal(state: WorkerState, job: Delivery, refusal: str) -> None:
    """Log that entries were not stored, at most once a minute for a queue, and those dropped."""
    emission = make_emission(job)
    dropped, emission.dropped = emission.dropped, 0
    if dropped:
        refusal = f"{dropped} of them came faster than they could be sent"
    if refusal and state.complaints.allows(f"chunks of {job.queue_name}"):
        text = "chunks or progress of %s are dropped, those that watch it do not see them: %s"
        state.log.warning(text, job.id, refusal, extra=Fields(job))
