"""Bumps of two real versions that were measured on the CPU engine: judged again from their runs, and what they show."""

from __future__ import annotations

import pytest

from benchmarks.bump import page, record
from benchmarks.bump.comparison import without_paths

BUMPS = list(record.bumps(record.CPU_RECORDS))


@pytest.mark.parametrize("bump", BUMPS, ids=lambda bump: bump.name)
def test_verdicts_follow_from_the_runs(bump: record.Bump) -> None:
    assert {v["evidence"]["metric"] for v in bump.over_blocks()} == {"output_tok_s", "startup_s"}
    for verdict in bump.over_blocks():
        again = record.judged_again(verdict, bump.report["facts"])
        assert (again.kind, again.n) == (verdict["kind"], verdict["evidence"]["blocks"])
        assert 100 * again.change == pytest.approx(verdict["evidence"]["change_percent"])


@pytest.mark.parametrize("bump", BUMPS, ids=lambda bump: bump.name)
def test_outputs_of_both_versions_are_equal_and_what_moved_is_told(bump: record.Bump) -> None:
    parity = {v["subject"]: v["kind"] for v in bump.verdicts if v["evidence"]["metric"] == "greedy parity"}
    assert parity == {"parity-batch-1[baseline]": "PASS", "parity-batch-8-shared[baseline]": "PASS"}
    moved = {item["what"]: (item["old"], item["new"]) for item in bump.report["moved"]}
    assert moved["sglang"] == ("0.5.15.post1", "0.5.23")


def test_the_page_has_this_table() -> None:
    assert len(BUMPS) == 2
    text = page.DOCUMENT.read_text(encoding="utf-8")
    assert f"{page.CPU_BEGIN}\n{page.on_cpu()}\n{page.CPU_END}" in text


def test_what_is_kept_names_no_place_of_one_machine() -> None:
    told = {
        "header": [
            "old: a",
            "alpha 0.005 a verdict, at most 4 blocks a profile; results: /here/bump-1; tokgate 1",
        ],
        "verdicts": [{"kind": "PASS", "files": ["/here/x"], "next_command": "tokgate x"}],
        "again": "tokgate bump --resume bump-1 --results /here",
    }
    kept = without_paths(told)
    assert "/here" not in str(kept)
    assert kept["header"][1].endswith("at most 4 blocks a profile; tokgate 1")
