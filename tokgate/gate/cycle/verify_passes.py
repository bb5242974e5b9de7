"""Verify passes that a run has traced: what more tokens cost the target, told by passes of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokgate.analysis.cycles import Cycles
from tokgate.analysis.step_parts import OTHER
from tokgate.gate.runs import Measured
from tokgate.sglang.trace_spans import VERIFY

_ALIKE = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "speculative_attention_mode",
    "cuda_graph_decode",
    "quantization",
    "kv_cache_dtype",
    "tp_size",
)
"""Resolved arguments that must be equal for two passes to lie on one line."""


@dataclass(frozen=True, slots=True)
class VerifyPass:
    """The mean verify pass of one trace.

    Attributes:
        cycles: of the trace.
        streams: requests in flight.
        tokens: of a pass: draft tokens of all streams.
        ms: on the device, with what belongs to no labelled part (sampling, the tree).
    """

    cycles: Cycles
    streams: int
    tokens: int
    ms: float


class VerifyPasses:
    """Collects them, and gives those of the same target under the same backends."""

    def __init__(self) -> None:
        self._found: list[tuple[tuple[object, ...], VerifyPass]] = []

    def add(self, measured: Measured, cycles: Cycles | None, streams: int) -> None:
        """One trace; of no verify pass on a device, or of a server that does not tell its draft tokens: nothing."""
        tokens = tokens_of(measured)
        if cycles is None or not cycles.on_device or tokens is None or VERIFY not in cycles.parts_ms:
            return
        if any(item.cycles is cycles for _, item in self._found):
            return
        ms = cycles.parts_ms[VERIFY] + cycles.parts_ms.get(OTHER, 0.0)
        self._found.append((_key(measured), VerifyPass(cycles, streams, tokens * streams, ms)))

    def like(self, measured: Measured) -> Sequence[VerifyPass]:
        """Passes of servers that resolved like this one, but for their draft steps and tokens."""
        wanted = _key(measured)
        return [item for key, item in self._found if key == wanted]


def tokens_of(measured: Measured) -> int | None:
    """Tokens of a stream's verify pass, as resolved; ``None`` where it is not told."""
    tokens = measured.samples[0].identity.resolved.get("speculative_num_draft_tokens")
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def _key(measured: Measured) -> tuple[object, ...]:
    identity = measured.samples[0].identity
    return (identity.model, *(identity.resolved.get(name) for name in _ALIKE))
