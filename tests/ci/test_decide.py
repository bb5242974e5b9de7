"""What ci/decide.sh makes of a change, as the first job of gate.yml runs it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.ci.repository import decided, git, pin
from tests.ci.workflows import ROOT


def test_change_of_the_pin_is_a_bump(clone: Path, env: dict[str, str], tmp_path: Path) -> None:
    old = (ROOT / "ci" / "sglang.pin").read_text().strip()
    pin(clone, "9.9.9")
    assert decided(clone, env, tmp_path) == {
        "kind": "bump",
        "reason": f"ci/sglang.pin: {old} -> 9.9.9",
        "versions": f"{old} 9.9.9",
    }


def test_pin_that_only_the_base_branch_moved_is_no_bump(
    clone: Path, env: dict[str, str], tmp_path: Path
) -> None:
    git(clone, "checkout", "--quiet", "-b", "change")
    git(clone, "checkout", "--quiet", "--detach", "origin/main")
    pin(clone, "9.9.9")
    git(clone, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(clone, "checkout", "--quiet", "change")
    assert decided(clone, env, tmp_path)["kind"] == "none"


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ('[\n  "docs",\n  "gpu-gate"\n]', "gate"),
        ('["gpu-gate"]', "gate"),
        ('["docs", "gpu-gate","x"]', "gate"),
        ('["docs","no-gpu-gate"]', "none"),
        ("gpu-gate", "gate"),
        ("docs\ngpu-gate\n", "gate"),
        ('[\n  "no-gpu-gate"\n]', "none"),
        ("[]", "none"),
        ("null", "none"),
        ("", "none"),
    ],
)
def test_label_asks_for_the_gate(
    labels: str, kind: str, clone: Path, env: dict[str, str], tmp_path: Path
) -> None:
    assert decided(clone, {**env, "TOKGATE_LABELS": labels}, tmp_path)["kind"] == kind


def test_a_gate_that_is_asked_for_is_one_also_where_the_last_commit_moved_the_pin(
    clone: Path, env: dict[str, str], tmp_path: Path
) -> None:
    """Who follows the how-to sets the pin, then starts the workflow by hand, to get baselines."""
    by_hand = {**env, "TOKGATE_ASKED": "gate", "GITHUB_BASE_REF": ""}
    assert decided(clone, by_hand, tmp_path)["kind"] == "gate"
    pin(clone, "9.9.9")
    assert decided(clone, by_hand, tmp_path) == {
        "kind": "gate",
        "reason": "the gate, asked for by hand",
        "versions": "9.9.9",
    }


def test_a_bump_that_is_asked_for_needs_a_pin_that_moved(
    clone: Path, env: dict[str, str], tmp_path: Path
) -> None:
    asked = {**env, "TOKGATE_ASKED": "bump", "GITHUB_BASE_REF": "", "TOKGATE_BASE": "origin/main"}
    same = decided(clone, {**asked, "TOKGATE_LABELS": "gpu-gate"}, tmp_path)
    assert (same["kind"], same["reason"]) == (
        "none",
        "a bump, asked for by hand; ci/sglang.pin is as in origin/main",
    )
    pin(clone, "9.9.9")
    assert decided(clone, asked, tmp_path)["kind"] == "bump"


def test_what_cannot_be_asked_for_is_said(clone: Path, env: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "ci/decide.sh"],
        cwd=clone,
        env={**os.environ, **env, "TOKGATE_ASKED": "all"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "decide: TOKGATE_ASKED is gate or bump, not 'all'\n")


def test_base_that_is_not_there_is_said(clone: Path, env: dict[str, str], tmp_path: Path) -> None:
    found = decided(clone, {**env, "GITHUB_BASE_REF": "nowhere"}, tmp_path)
    assert (found["kind"], found["reason"]) == (
        "none",
        "there is no origin/nowhere to compare ci/sglang.pin with, and there is no label 'gpu-gate'",
    )
