"""Margins of the looking-back heads, for every preset and every distance."""

from __future__ import annotations

import pytest

from tokgate.models import bounds
from tokgate.models.bounds import noise_ceiling
from tokgate.models.checkup import LEAST_ROTARY_MARGIN
from tokgate.models.layout import build_layout, hops
from tokgate.models.presets import PRESETS
from tokgate.models.rotary import PEAK, frequencies, margin, scores


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_head_of_a_preset_wins_clearly(name):
    preset = PRESETS[name]
    rates = frequencies(preset.head_dim, preset.rope_theta, preset.rotary_pairs)
    found = [margin(hop, 0.0, rates, preset.max_position) for hop in {0, *hops(preset)}]
    found += [
        margin(d, preset.self_weight, rates, preset.max_position)
        for d in (preset.relay_distance, *preset.distances)
    ]
    assert min(each.present for each in found) >= LEAST_ROTARY_MARGIN
    assert min(each.absent for each in found) >= LEAST_ROTARY_MARGIN


def test_an_unlucky_distance_is_seen_as_such():
    preset = PRESETS["tiny"]
    rates = frequencies(preset.head_dim, preset.rope_theta, preset.rotary_pairs)
    assert margin(2, preset.self_weight, rates, preset.max_position).absent < LEAST_ROTARY_MARGIN
    assert margin(19, 0.0, rates[:2], preset.max_position).present < LEAST_ROTARY_MARGIN


def test_score_peaks_at_the_distance():
    rates = frequencies(64, 1e4, 10)
    found = scores(57, 0.0, rates, 1000)
    assert found.argmax() == 57
    assert found[57] == pytest.approx(1.0)
    assert PEAK > 0


@pytest.mark.parametrize("name", list(PRESETS))
def test_noise_cannot_change_a_token_even_in_the_worst_case(name):
    found = noise_ceiling(build_layout(PRESETS[name]))
    assert found.residual < 0.02
    assert found.logit < found.lead / 2


def test_the_ceiling_would_see_louder_noise(monkeypatch):
    monkeypatch.setattr(bounds, "OUT_BOUND", 2.0**-20)
    found = noise_ceiling(build_layout(PRESETS["8b"]))
    assert found.logit > found.lead
