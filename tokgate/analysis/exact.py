"""Accept length of a synthetic pair: a count, the same run after run, so compared and not tested.

Such a pair accepts what it was built to accept; the number of verify passes for a prompt does not vary.
When it changes, that is a finding, however small; whether it fails is a matter of the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tokgate.analysis.decision import Decision, DecisionKind
from tokgate.analysis.values import log_limit
from tokgate.errors import SampleFault
from tokgate.load.sample import Sample

METHOD = "exact counts"


@dataclass(frozen=True, slots=True)
class Count:
    """One request: tokens that verify passes produced (the first token is the prefill's), and the passes."""

    tokens: int
    passes: int


Counts = tuple[Count, ...]


def counts(sample: Sample) -> Counts | None:
    """Counts of a run in prompt order.

    Returns:
        ``None`` when a request failed or its server reported no verify passes: absent is not zero.
    """
    found = []
    for request in sorted(sample.requests, key=lambda item: item.index):
        if request.outcome != "ok" or not request.verify_count or not request.completion_tokens:
            return None
        found.append(Count(request.completion_tokens - 1, request.verify_count))
    return tuple(found) or None


def accept_length(run: Counts) -> float:
    """Tokens per verify pass over all requests of a run.

    Raises:
        SampleFault: no passes.
    """
    passes = sum(item.passes for item in run)
    tokens = sum(item.tokens for item in run)
    if passes < 1 or tokens < 1:
        raise SampleFault(f"accept length of {tokens} tokens in {passes} verify passes")
    return tokens / passes


def judge_counts(
    reference: Sequence[Counts], candidate: Sequence[Counts], *, limit: float
) -> Decision | None:
    """Compare the counts of all runs of both sides.

    Args:
        reference, candidate: counts of every run, of every launch; the same prompts on both sides.
        limit: the loss of accept length that fails, as a fraction.

    Returns:
        ``None`` when the counts vary from run to run on a side: then they are no exact figure, and
        :mod:`tokgate.analysis.bootstrap` judges.

    Raises:
        SampleFault: a side is empty or the sides have different numbers of requests.
    """
    if not reference or not candidate:
        raise SampleFault(f"{'reference' if not reference else 'candidate'}: no runs with verify counts")
    if len(set(reference)) != 1 or len(set(candidate)) != 1:
        return None
    before, after = reference[0], candidate[0]
    if len(before) != len(after):
        raise SampleFault(f"{len(before)} requests in the reference but {len(after)} in the candidate")
    old, new = accept_length(before), accept_length(after)
    ratio = new / old
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    notes = []
    if changed:
        first = changed[0]
        notes.append(
            f"verify counts changed for {len(changed)} of {len(before)} requests: request {first} took "
            f"{before[first].passes} passes for {before[first].tokens} tokens, now {after[first].passes} "
            f"for {after[first].tokens}"
        )
    kind: DecisionKind = "PASS"
    if math.log(ratio) <= -log_limit(limit, "higher"):
        kind = "REGRESSION"
    elif math.log(ratio) >= -math.log1p(-limit):
        kind = "IMPROVED"
    return Decision(
        kind=kind,
        ratio=ratio,
        interval=(ratio, ratio),
        n=min(len(reference), len(candidate)),
        s=0.0,
        s0=None,
        smallest_detectable=limit,
        blocks_needed=0,
        method=METHOD,
        limit=limit,
        level=1.0,
        notes=tuple(notes),
    )
