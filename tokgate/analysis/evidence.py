"""Evidence on the log scale for a shift away from a null value, from block differences.

Both kinds are likelihood ratios averaged over alternatives, so that under the null their mean is at most 1
and the chance that they *ever* exceed 1/a is at most a (Ville's inequality): one may look after each block.

* With a history: the variance has the scaled inverse chi-square prior that the history gives (``nu0`` degrees
  of freedom about ``s0``); it is integrated out of both sides, which leaves ``(Q(null)/Q(alternative))**h``.
* Without one: the variance has the scale-invariant prior and alternatives are stated in units of the unknown
  scatter, which gives a test of the t statistic alone, valid whatever the scatter is (Lai 1976; Wang and
  Ramdas 2023, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance").
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tokgate.analysis.values import Values

EFFECTS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Alternatives without a history, in units of the scatter of block differences; equal weights."""


def with_history(
    shift: Values,
    spread: Values,
    n: Values,
    nu0: float,
    step: float,
    steps: Sequence[float],
    weights: Sequence[float],
) -> Values:
    """ln of the evidence that the mean lies ``steps`` away from the null.

    A component stops growing and would fall again once the data lie far beyond its alternative, because the
    marginal likelihood is heavy-tailed. It is held at its largest value from there on, so that a larger
    effect never counts for less.

    Args:
        shift: mean of the differences minus the null value, positive towards the alternative; log scale.
        spread: ``nu0 * p + sum of squared deviations from the mean``, same shape.
        n: number of blocks, same shape.
        nu0: degrees of freedom of the history.
        step: the limit on the log scale, above 0.
        steps, weights: alternatives in limits, and their weights, which add up to 1.
    """

    half = (nu0 + n) / 2
    terms = []
    for multiple, weight in zip(steps, weights, strict=True):
        away = multiple * step
        # (spread + n x^2) / (spread + n (x - away)^2) is largest where x (x - away) = spread / n.
        peak = (away + np.sqrt(away * away + 4 * spread / n)) / 2
        x = np.minimum(shift, peak)
        gain = np.log(spread + n * x * x) - np.log(spread + n * (x - away) ** 2)
        terms.append(math.log(weight) + half * gain)
    total: Values = np.logaddexp.reduce(terms, axis=0)
    return total


def without_history(shift: Values, squares: Values, n: Values, effects: Sequence[float] = EFFECTS) -> Values:
    """ln of the evidence that the mean lies beyond the null, whatever the scatter.

    Args:
        shift: mean of the differences minus the null value, positive towards the alternative; log scale.
        squares: sum of squared deviations from the mean, same shape.
        n: number of blocks, same shape.
        effects: alternatives in units of the scatter.
    """
    from scipy.special import gammaln

    shift, squares, n = np.broadcast_arrays(shift, squares, n)
    norm = np.sqrt(squares + n * shift * shift)
    # r = sum(d)/sqrt(sum(d^2)) holds all that the data say when the scale is unknown; |r| <= sqrt(n).
    r = np.divide(n * shift, norm, out=np.zeros(shift.shape), where=norm > 0)
    constant = gammaln(n / 2) + (n / 2 - 1) * math.log(2)
    nodes = np.linspace(-8, 8, 41)
    terms = []
    power = (n - 1)[..., None]
    for effect in effects:
        pull = effect * r
        # The likelihood ratio is exp(-n e^2/2) times an integral of u^(n-1) exp(-u^2/2 + e r u) over u > 0:
        # log-concave with curvature at least 1, so a grid of +-8 about its peak holds all of it.
        peak = (pull + np.sqrt(pull * pull + 4 * (n - 1))) / 2
        u = peak[..., None] + nodes
        inside = np.maximum(u, 1e-300)
        height = power * np.log(inside) - u * u / 2 + pull[..., None] * u
        top = height.max(axis=-1, keepdims=True)
        area = np.where(u > 0, np.exp(height - top), 0).sum(axis=-1) * (nodes[1] - nodes[0])
        integral = top[..., 0] + np.log(area)
        terms.append(integral - constant - n * effect * effect / 2 - math.log(len(effects)))
    total: Values = np.logaddexp.reduce(terms, axis=0)
    return total
