"""What CUDA graphs a server should capture and launch: read from the draft workers of 0.5.9 to 0.5.23."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokgate.sglang.version import rules_for

# First patch release of 0.5 whose draft extend is captured, by the draft's attention backend. With any
# other backend, and before that release, draft extend runs eagerly. 9 stands for "9 or earlier".
DRAFT_EXTEND_SINCE: Mapping[str, int] = {
    "triton": 9,
    "trtllm_mla": 9,
    "trtllm_mha": 13,
    "flashinfer": 14,
    "fa3": 23,
    "flashmla": 23,
}


@dataclass(frozen=True, slots=True)
class ExpectedGraphs:
    """What a server should capture, and how often it should launch a graph in one step.

    Attributes:
        captures: kinds as in :class:`tokgate.sglang.log_events.CaptureBegin`, prefill graphs aside.
        launches_per_step: ``cudaGraphLaunch`` calls a decode step or verify cycle.
        draft_on_all_ranks: whether every rank prints its draft captures (rank 0 alone from 0.5.12).
        why: one sentence for each part that is not captured.
    """

    captures: tuple[str, ...]
    launches_per_step: int
    draft_on_all_ranks: bool
    why: tuple[str, ...] = ()


def expected_graphs(
    version: str,
    *,
    decode_graphs: bool,
    speculative: bool,
    steps: int | None = None,
    draft_backend: str | None = None,
) -> ExpectedGraphs:
    """The graphs of one CUDA server.

    Args:
        version: SGLang's version; an unknown one gets the nearest known rules.
        decode_graphs: whether they are on, as the server reports it.
        speculative: EAGLE or EAGLE-3.
        steps: draft steps as resolved; with one step there is no draft graph.
        draft_backend: the draft's attention backend as resolved.
    """
    rules = rules_for(version)
    on_all_ranks = not rules.since(12)
    if not decode_graphs:
        return ExpectedGraphs((), 0, on_all_ranks, ("decode graphs are off",))
    if not speculative:
        return ExpectedGraphs(("target-decode",), 1, on_all_ranks)
    captures = ["target-verify"]
    why = []
    if steps is None or steps > 1:
        captures.append("draft-decode")
    else:
        why.append("with one draft step the draft has no graph")
    since = DRAFT_EXTEND_SINCE.get(draft_backend or "")
    if since is not None and rules.since(since):
        captures.append("draft-extend")
    elif since is not None:
        why.append(f"draft extend with {draft_backend} is captured from 0.5.{since} on: here it runs eagerly")
    else:
        why.append(f"draft extend with {draft_backend or 'an unknown backend'} runs eagerly, as far as known")
    return ExpectedGraphs(tuple(captures), len(captures), on_all_ranks, tuple(why))
