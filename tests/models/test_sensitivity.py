"""What a pair notices: each fault is planted in the numpy forward pass, beside a control without it."""

from __future__ import annotations

import numpy as np
import pytest

from tokgate.models.checkup import prompt_of
from tokgate.models.forward import draft_chain, target_pass
from tokgate.models.layout import hop_layers, hops


@pytest.mark.parametrize("rounded", [False, True], ids=["float32", "bfloat16"])
def test_control_every_next_token_follows_the_rule(pair, next_tokens, rounded):
    expected = [pair.rule.next_token(pair.ids, i) for i in range(len(pair.ids))]
    assert next_tokens(rounded=rounded).tolist() == expected


def test_control_accept_length_is_the_predicted_one(pair, accept_length):
    new = len(pair.ids) - len(pair.prompt)
    passes = pair.rule.verify_count(pair.prompt, new, 3)
    assert accept_length() == (new - 1) / passes
    assert abs(passes - (new - 1) / 2.5) <= 1


@pytest.mark.parametrize("capture", [(3, 5, 6), (1, 3, 4), (4, 2, 5), (5, 4, 2), (2, 4, 6), (0, 0, 0)])
def test_wrong_or_unordered_capture_layers_end_acceptance(accept_length, capture):
    assert accept_length(capture=capture) < 1.15


def test_skipping_fc_ends_acceptance(accept_length):
    assert accept_length(skip_fc=True) < 1.15


def test_eagle_with_the_targets_head_ends_acceptance(pair):
    """As EAGLE, SGLang skips fc and gives the draft the target's head and whole vocabulary."""
    target, draft = pair.model("target"), pair.model("draft")
    result = target_pass(target, pair.ids)
    raw, vocab = draft.weights.raw, pair.rule.preset.vocab
    draft.weights.entries = {
        **draft.weights.entries,
        "lm_head.weight": target.weights.entries["lm_head.weight"],
    }
    draft.weights.raw = lambda name: np.zeros(vocab, np.int64) if name == "d2t" else raw(name)
    proposed = draft_chain(draft, target.weights, pair.ids, result.final[:-1], 1)[:, 0]
    assert (proposed[:-1] == pair.ids[2:]).mean() < 0.05


def test_shifted_vocabulary_map_ends_acceptance(pair, accept_length):
    draft = pair.model("draft")
    raw = draft.weights.raw
    draft.weights.raw = lambda name: raw(name) + 1 if name == "d2t" else raw(name)
    assert accept_length(draft) == 1.0


def later(changed: np.ndarray, position: int) -> np.ndarray:
    return np.flatnonzero(changed) - position


@pytest.mark.parametrize("layer", range(8))
def test_a_swapped_cache_entry_shows_in_every_layer(pair, next_tokens, layer):
    """The entry's values become those of another token's, in one layer only."""
    right = next_tokens()
    victim, donors = 30, range(31, 60)
    seen = False
    for donor in donors:

        def swap(at, keys, values, donor=donor):
            if at == layer:
                values[victim] = values[donor]

        seen = seen or bool((next_tokens(kv_fault=swap) != right).any())
        if seen:
            break
    assert seen
    # Three of four other relay digits differ, so a handful of donors suffices.
    assert donor <= victim + 8


def test_a_zeroed_cache_entry_shows(pair, next_tokens):
    right = next_tokens()
    changed = 0
    for victim in range(20, 60):

        def zero(layer, keys, values, victim=victim):
            keys[victim] = 0
            values[victim] = 0

        changed += bool((next_tokens(kv_fault=zero) != right).any())
        if victim >= 25:
            break
    assert changed == 6


def test_each_distance_reads_exactly_that_token(pair, next_tokens):
    """Changing one token changes the choices at its own place and at the chosen distances, nowhere else."""
    right = next_tokens()
    position = 40
    reached = set()
    for token in pair.rule.generated[:12]:
        ids = list(pair.ids)
        ids[position] = int(token)
        reached |= set(later(next_tokens(ids) != right, position).tolist())
    assert reached == {0, *pair.truth.distances}


def test_positions_off_by_one_from_a_point_on_show(pair, next_tokens):
    """From a point on tokens stand one position too far: looks across it land beside their token."""
    right = next_tokens()
    at = np.arange(len(pair.ids))
    at[80:] += 1
    changed = later(next_tokens(positions=at) != right, 80)
    assert len(changed) > 20
    assert changed.min() >= 0
    # All positions moved alike is the same sequence to rotary embedding: the one shift that cannot show.
    assert (next_tokens(positions=np.arange(len(pair.ids)) + 1) == right).all()


def test_a_stale_prefix_shows(pair, next_tokens):
    """The cache holds another request's first 60 tokens."""
    right = next_tokens()
    other = [*prompt_of(pair.rule, 400)[200:260], *pair.ids[60:]]
    changed = np.flatnonzero(next_tokens(other) != right)
    reach = max(pair.truth.distances)
    assert changed.max() >= 60
    assert changed.max() < 60 + reach
    new = changed[changed >= len(pair.prompt) - 1]
    assert len(new) > 5


def test_swapped_caches_of_two_requests_show_at_once(pair, next_tokens):
    other_prompt = prompt_of(pair.rule, 400)[-len(pair.prompt) :]
    model = pair.model("target")
    kept = {}
    others = [*other_prompt, *pair.ids[len(pair.prompt) :]]
    target_pass(model, others, kv_fault=lambda layer, k, v: kept.update({layer: (k.copy(), v.copy())}))

    def swap(layer, keys, values):
        keys[: len(pair.prompt)] = kept[layer][0][: len(pair.prompt)]
        values[: len(pair.prompt)] = kept[layer][1][: len(pair.prompt)]

    right = next_tokens()
    changed = np.flatnonzero(next_tokens(kv_fault=swap) != right)
    assert len(set(changed) & set(range(len(pair.prompt) - 1, len(pair.prompt) + 11))) > 5


def test_every_layer_and_kv_head_carries_the_relay(pair):
    preset = pair.rule.preset
    assert sum(hops(preset)) == preset.relay_distance
    assert min(hops(preset)) >= 1
    assert {layer % preset.kv_heads for layer in range(preset.layers)} == set(range(preset.kv_heads))
    assert len(set(hop_layers(preset))) == len(preset.distances)
