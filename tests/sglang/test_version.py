"""Versions are read and ordered as pip does, and unknown ones are said to be unknown."""

from __future__ import annotations

import itertools

import pytest

from tokgate.sglang.version import KNOWN_FIRST, KNOWN_LAST, parse_version, rules_for

ORDERED = [
    "0.5.9",
    "0.5.10",
    "0.5.13",
    "0.5.13.post1",
    "0.5.14.dev20260801",
    "0.5.14rc1",
    "0.5.14",
    "0.5.14.post2",
    "0.5.15.dev3+gabc1234",
    "0.5.15",
    "0.5.15.post1.dev4",
    "0.5.15.post1",
    "0.6",
]


def test_order() -> None:
    versions = [parse_version(text) for text in ORDERED]
    assert None not in versions
    for lower, higher in itertools.pairwise(versions):
        assert lower is not None and higher is not None
        assert lower < higher
        assert not higher < lower


def test_local_suffix_does_not_change_identity() -> None:
    assert parse_version("0.5.15.post1+cu130") == parse_version("v0.5.15.post1")
    assert parse_version("0.5.15.post1") != parse_version("0.5.15")


@pytest.mark.parametrize("text", ["", "unknown", "main", "abc1234", "0.5.x", "0.5.9 (dirty)"])
def test_not_a_version(text: str) -> None:
    assert parse_version(text) is None
    rules = rules_for(text)
    assert rules.release == KNOWN_LAST.release
    assert rules.note is not None and "cannot be read" in rules.note


@pytest.mark.parametrize(
    ("text", "release", "word"),
    [
        ("0.5.9", (0, 5, 9), None),
        ("0.5.13.post1", (0, 5, 13), None),
        ("0.5.23", (0, 5, 23), None),
        ("0.5.23.post2", (0, 5, 23), None),
        ("0.5.24", (0, 5, 23), "newer"),
        ("0.6.0", (0, 5, 23), "newer"),
        ("1.0", (0, 5, 23), "newer"),
        ("0.5.8", (0, 5, 9), "older"),
        ("0.4.10", (0, 5, 9), "older"),
    ],
)
def test_rules(text: str, release: tuple[int, ...], word: str | None) -> None:
    rules = rules_for(text)
    assert rules.release == release
    if word is None:
        assert rules.note is None
    else:
        assert rules.note is not None and word in rules.note
        assert str(KNOWN_FIRST) in rules.note and str(KNOWN_LAST) in rules.note


def test_a_release_candidate_follows_its_release() -> None:
    assert rules_for("0.5.14rc1").since(14)
    assert not rules_for("0.5.13.post1").since(14)
