"""What one run of a workload brings."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokgate.load.recording import Timeline
from tokgate.load.sample import Audit, Request, Void


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run.

    Attributes:
        requests: in the order of sending.
        audit: how far the client can be trusted.
        metrics: name with unit -> value; absent where they have no meaning.
        duration_s: from the first request sent to the last token received of those that were answered, which rates
            are of; where none was, ``window_s``.
        void: reasons why the run does not count; empty when it does.
        timeline: every token-bearing event.
        prompts_digest: of the prompts that were sent.
        window_s: how long the client sent and read, to the end of a run that was cut short; 0 where nobody knows.
    """

    requests: tuple[Request, ...]
    audit: Audit
    metrics: dict[str, float]
    duration_s: float
    void: tuple[Void, ...]
    timeline: Timeline = field(repr=False, compare=False)
    prompts_digest: str = ""
    window_s: float = 0.0
