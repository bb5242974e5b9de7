"""Tokens, their log-probabilities and text, and the prefix cache."""

from __future__ import annotations

from tokgate.emulator import tokens
from tokgate.emulator.sequence import PrefixCache


def test_tokens_depend_on_every_token_of_the_prompt_and_their_order() -> None:
    def first(prompt: list[int]) -> int:
        return tokens.next_token(tokens.Chain(prompt).state)

    base = first([1, 2, 3])
    others = {first(p) for p in ([1, 2, 4], [2, 1, 3], [1, 2, 3, 3], [9, 2, 3])}
    assert base not in others
    assert len(others) == 4


def test_a_chain_is_what_it_has_seen_however_it_came() -> None:
    grown = tokens.Chain([5])
    for token in (6, 7):
        grown.add(token)
    assert grown.state == tokens.Chain([5, 6, 7]).state


def test_the_gap_to_the_second_token_moves_little_between_shapes_and_is_sometimes_none() -> None:
    gaps = []
    for first in range(400):
        state = tokens.Chain([first]).state
        decoded, scored = (
            tokens.logprobs_of(7, state, 2, as_prompt=as_prompt)[1] for as_prompt in (False, True)
        )
        assert [token for _, token in decoded] == [token for _, token in scored]
        gap, again = (pair[0][0] - pair[1][0] for pair in (decoded, scored))
        assert abs(gap - again) <= tokens.WOBBLE + 1e-9
        gaps.append(gap)
    assert min(gaps) < 0.02
    assert max(gaps) > 1.9


def test_text_of_tokens_reads_back() -> None:
    ids = [3, 31999, 1234, 77]
    assert tokens.tokenize("".join(map(tokens.text_of, ids))) == ids
    assert tokens.tokenize("The capital of France, is?") == tokens.tokenize("The capital of France, is?")


def test_prefix_cache_counts_shared_prefixes() -> None:
    cache = PrefixCache(enabled=True)
    assert cache.match([1, 2, 3, 4]) == 0
    cache.add([1, 2, 3, 4])
    assert cache.match([1, 2, 9]) == 2
    assert cache.match([1, 2, 3, 4]) == 3
    cache.clear()
    assert cache.match([1, 2, 3, 4]) == 0
    off = PrefixCache(enabled=False)
    off.add([1, 2, 3])
    assert off.match([1, 2, 3]) == 0
