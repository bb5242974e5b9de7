"""Worst case of what the noise can do to the target's signal: arithmetic, no measurement.

RMSNorm gives every layer inputs of length at most sqrt(hidden), so a matrix of bound b gives outputs of at most
b * hidden each (Cauchy-Schwarz: row length at most b * sqrt(hidden)).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokgate.models.layout import DIFFERENCE, Layout
from tokgate.models.target import energy, head_noise, rms, signal_columns
from tokgate.models.tensors import DOWN_BOUND, OUT_BOUND, QUIET, noise_bound


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Worst cases.

    Attributes:
        residual: what all layers' noise can add to one element of the residual stream (the signal is 1).
        logit: what all noise can take from the lead of the best logit.
        lead: that lead without noise: what one wrong digit costs.
    """

    residual: float
    logit: float
    lead: float


def noise_ceiling(layout: Layout) -> Ceiling:
    """The worst cases of a preset, all noise adding up with the worst signs."""
    preset = layout.preset
    hidden = preset.hidden
    output = noise_bound(hidden) * hidden
    attention = OUT_BOUND * preset.heads * preset.head_dim * output
    mlp = DOWN_BOUND * preset.intermediate * output**2
    carried = QUIET * hidden
    residual = preset.layers * (attention + mlp + carried)
    amplitude = 1 / rms(energy(layout, preset.layers), hidden)
    weights = sum(len(c) * layout.weight(k) for k, c in enumerate(layout.context)) + len(layout.phase)
    assert len(signal_columns(layout)) <= weights
    # Two rows differ by at most twice their weights; the head's noise is counted for either row.
    logit = 2 * weights * residual * amplitude + 2 * head_noise(preset) * hidden
    return Ceiling(residual, logit, DIFFERENCE * amplitude)
