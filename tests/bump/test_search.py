"""Bisection as such: right wherever the fault is, whatever cannot be judged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokgate.bump.search import Finding, next_index, search, steps_at_most


@given(st.integers(2, 40), st.data())
def test_it_finds_the_first_bad_version(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(1, count - 1))
    versions = [str(number) for number in range(count)]
    asked: list[str] = []

    def judge(version: str) -> Finding:
        asked.append(version)
        return "bad" if int(version) >= bad else "good"

    found = search(versions, judge)
    assert found.first_bad == str(bad)
    assert found.last_good == str(bad - 1)
    assert len(asked) <= steps_at_most(count)
    assert len(set(asked)) == len(asked)


@given(st.integers(3, 30), st.data())
def test_what_cannot_be_judged_widens_the_answer_and_never_falsifies_it(
    count: int, data: st.DataObject
) -> None:
    bad = data.draw(st.integers(1, count - 1))
    skipped = data.draw(st.sets(st.integers(1, count - 2)))

    def judge(version: str) -> Finding:
        if int(version) in skipped:
            return "skip"
        return "bad" if int(version) >= bad else "good"

    found = search([str(number) for number in range(count)], judge)
    assert str(bad) in found.suspects
    assert int(found.last_good) < bad
    # Every suspect but the last was asked and could not be judged.
    assert {int(version) for version in found.suspects[:-1]} <= skipped


def test_the_middle_first_then_its_neighbours() -> None:
    assert next_index(0, 8, {}) == 4
    assert next_index(0, 8, {4: "skip"}) == 5
    assert next_index(0, 8, {4: "skip", 5: "skip"}) == 3
    assert next_index(0, 1, {}) is None


@pytest.mark.parametrize("versions", [["1"], [], ["1", "1"]])
def test_one_version_is_no_row(versions: list[str]) -> None:
    with pytest.raises(ValueError, match="two or more different"):
        search(versions, lambda version: "good")
