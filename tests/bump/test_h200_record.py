"""The bump that was measured on an H200: its verdicts, judged again from its runs, and what its launches show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import pytest

from benchmarks.bump import record

BUMPS = list(record.bumps())
(LAUNCHES,) = (found for _, found in record.launches())


@pytest.mark.parametrize("bump", BUMPS, ids=lambda bump: bump.name)
def test_verdicts_follow_from_the_runs(bump: record.Bump) -> None:
    assert bump.over_blocks()
    for verdict in bump.over_blocks():
        again = record.judged_again(verdict, bump.report["facts"])
        assert (again.kind, again.n) == (verdict["kind"], verdict["evidence"]["blocks"])
        assert 100 * again.change == pytest.approx(verdict["evidence"]["change_percent"])


def test_a_record_is_judged_and_not_believed() -> None:
    """The control: three blocks of which the new version has half the speed are another verdict."""
    (verdict, *_) = BUMPS[0].over_blocks()
    told = dict(verdict["evidence"])
    old = [list(runs) for runs in told["old_runs"]] * 3
    planted = {"evidence": {**told, "old_runs": old, "new_runs": [[run / 2 for run in runs] for runs in old]}}
    assert record.judged_again(planted, BUMPS[0].report["facts"]).kind == "REGRESSION"


def test_one_block_decides_nothing() -> None:
    kinds = {bump.name: v["kind"] for bump in BUMPS for v in bump.over_blocks() if speed(v)}
    assert len(kinds) == 4
    assert set(kinds.values()) == {"INCONCLUSIVE"}


def speed(verdict: Mapping[str, Any]) -> bool:
    return bool(verdict["evidence"]["metric"] == "output_tok_s")


def of(server: str) -> Sequence[Mapping[str, Any]]:
    found = [launch for launch in LAUNCHES if launch["server"] == f"{server}_baseline"]
    assert len(found) == 2
    return found


def step_ms(launch: Mapping[str, Any]) -> float:
    return float(median(run["step_ms_p50"] for run in launch["runs"]))


def test_planted_delays_are_in_the_steps() -> None:
    """On the GPU in full; on the CPU less what hides behind the GPU's own time."""
    for old, slightly, slow in zip(of("old"), of("slightly"), of("slow"), strict=True):
        assert step_ms(slightly) - step_ms(old) == pytest.approx(0.25, abs=0.03)
        assert 2 < step_ms(slow) - step_ms(old) < 4


def test_launches_of_the_same_build_agree_within_one_and_a_half_percent() -> None:
    values = [
        median(run["output_tok_s"] for run in launch["runs"])
        for name in ("old", "again")
        for launch in of(name)
    ]
    assert max(values) / min(values) < 1.015


def test_the_cpu_voided_runs_of_the_delayed_server_alone() -> None:
    void = {
        (launch["server"], cause) for launch in LAUNCHES for run in launch["runs"] for cause in run["void"]
    }
    assert void == {("slow_baseline", "slow_cpu")}


def test_outputs_of_both_versions_are_equal_and_graphs_were_replayed() -> None:
    (new,) = (bump for bump in BUMPS if bump.name.endswith("/new"))
    kinds = {(v["subject"], v["evidence"]["metric"]): v["kind"] for v in new.verdicts}
    assert kinds["parity-batch-8-shared[baseline]", "greedy parity"] == "PASS"
    assert kinds["parity-batch-1[baseline]", "greedy parity"] == "PASS"
    assert kinds["chat-bs1[baseline]", "graph replay"] == "PASS"


def test_the_page_has_this_table() -> None:
    text = record.DOCUMENT.read_text(encoding="utf-8")
    assert f"{record.BEGIN}\n{record.page()}\n{record.END}" in text
