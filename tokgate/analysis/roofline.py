"""The roofline of a decode step: what must come out of memory, over how fast memory is.

A step of one or a few tokens reads every weight once and the keys and values of all it has seen; nothing it
does can be quicker than that.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokgate.models.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Roofline:
    """A step held against the floor.

    Attributes:
        step_ms: as measured on the device.
        weights_bytes, kv_bytes: read in a step.
        bandwidth_bytes_s: of the memory, as measured.
    """

    step_ms: float
    weights_bytes: int
    kv_bytes: int
    bandwidth_bytes_s: float

    @property
    def floor_ms(self) -> float:
        """The shortest a step can be."""
        return (self.weights_bytes + self.kv_bytes) / self.bandwidth_bytes_s * 1e3

    @property
    def above(self) -> float:
        """How many times the floor the step takes."""
        return self.step_ms / self.floor_ms

    @property
    def fraction(self) -> float:
        """Share of the memory's bandwidth that the step makes use of."""
        return self.floor_ms / self.step_ms


def roofline(
    traffic: Traffic, *, step_ms: float, context_tokens: float, requests: int, bandwidth_bytes_s: float
) -> Roofline:
    """Hold a step against its floor.

    Args:
        traffic: of the model on one GPU.
        step_ms: device time of the target's pass.
        context_tokens: mean tokens of context of each request.
        requests: in the batch.
        bandwidth_bytes_s: of the memory, measured.
    """
    kv_bytes = round(traffic.kv_bytes_per_token * context_tokens * requests)
    return Roofline(step_ms, traffic.weights_bytes, kv_bytes, bandwidth_bytes_s)
