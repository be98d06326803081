"""Sends what the handler of a delivery tells to those that watch its job."""

from __future__ import annotations

from penstock.client._async.transport.executor import AsyncExecutor
from penstock.core.jobs.emission import KEPT_REFUSALS
from penstock.core.jobs.job import Delivery, make_emission, ops_of, sent_progress
from penstock.core.jobs.outcomes import OUTCOME_OF_CODE, Outcome

__all__ = ["send_emission"]


async def send_emission(executor: AsyncExecutor, job: Delivery) -> str:
    """Send what a delivery has to tell; return why some of it was not stored, or "".

    If the delivery has ended, or no client watches and nothing is to be kept, the rest is dropped.
    """
    emission, refusal = make_emission(job), ""
    while emission.must_go:
        part = emission.first_part()
        reply = await executor.run(ops_of(job).emit(job, emission.ttl_ms, part))
        emission.drop_to(part[-1].number)
        for entry in part:
            if entry.kind == "p":
                sent_progress(job, entry.text)
        refusal = KEPT_REFUSALS.get(reply.kept, refusal)
        is_held = OUTCOME_OF_CODE[reply.outcome] in (Outcome.DONE, Outcome.CANCELLED)
        if not is_held:
            emission.ttl_ms = 0
        emission.note_watched(is_held and bool(reply.watched))
    return refusal
