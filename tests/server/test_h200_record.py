"""What was seen on an H200: the record in tests/assets is of trials that ended as they must."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.supervision.blows import PLAN
from benchmarks.supervision.trial import Row

ASSETS = Path(__file__).parents[1] / "assets" / "h200-trials"
ROWS = [Row(**json.loads(path.read_text())) for path in sorted(ASSETS.glob("*/row.json"))]


def test_all_but_two_gates_are_recorded() -> None:
    assert {row.trial for row in ROWS} == set(PLAN) - {"two-gates"}


@pytest.mark.parametrize("row", ROWS, ids=[row.trial for row in ROWS])
def test_each_trial_ended_as_it_must(row: Row) -> None:
    assert row.got == row.expected == PLAN[row.trial][0]
    assert row.survivors == 0 and row.mib_left == 0
    assert row.mib_held is not None and row.mib_held > 1000
    if row.got == "HANG":
        assert row.limit_s <= row.silent_s <= 1.5 * row.limit_s
        assert row.evidence_s is not None and row.evidence_s < 10
        assert row.stacks == row.processes > 3 and row.stacks_native >= row.processes - 1


def test_the_record_names_no_folder_of_that_machine() -> None:
    for path in ASSETS.rglob("*.txt"):
        text = path.read_text()
        assert len(text) < 65_000
        assert not re.search(r"/(tmp|opt|root|home)/", text), path
