"""What blocks can find is told in words that hold for any scatter: golden texts of dry run and report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests import golden
from tokgate.bump.campaign import Campaign
from tokgate.bump.verdicts import verdicts
from tokgate.cli import run
from tokgate.report.bump_record import cells

GOLDEN = Path(__file__).parents[1] / "messages" / "bump"


def test_the_dry_run_of_any_scatter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for scatter in ("0.3", "3", "53", "140", "2000"):
        asked = ["--from=0.5.13.post1", "--to=0.5.15.post1", "--workloads=chat-bs1", "--profiles=baseline"]
        asked += ["--metrics=output_tok_s,ttft_s_p50", "--blocks=3", f"--assume-scatter-percent={scatter}"]
        assert (
            run(
                [
                    "bump",
                    "--dry-run",
                    *asked,
                    "--host-class=h",
                    f"--results={tmp_path / 'r'}",
                    f"--baselines={tmp_path}",
                ]
            )
            == 0
        )
        told += [line for line in capsys.readouterr().out.splitlines() if "chat-bs1[baseline]" in line]
    golden.compare(GOLDEN / "dry-run-detectable.txt", "\n".join(told) + "\n")


def test_the_table_of_any_scatter(campaign: Callable[..., Campaign]) -> None:
    (speed,) = [v for v in verdicts(campaign(-0.04, blocks=3)) if v.evidence["metric"] == "output_tok_s"]
    rows = []
    for found in (None, 0.042, 4.1, 12.3, 78.4, 99.97, 140.0, 1774.0):
        of = replace(speed, evidence={**speed.evidence, "smallest_detectable_percent": found})
        rows.append(f"{found}: {cells(of)[-1]}")
    golden.compare(GOLDEN / "table-detectable.txt", "\n".join(rows) + "\n")


@pytest.mark.parametrize(
    ("minutes", "told"),
    [
        # At the 40th of 40 blocks the fixed-size test is made anyway.
        ("1000", "40 blocks: 3 %"),
        ("15", "7 blocks: 9.5 % (scatter 2 %, assumed (--assume-scatter-percent)); with --blocks 7: 5.7 %"),
        ("8", "3 blocks: nothing (scatter 2 %"),
        ("8", "with --blocks 3: 33 %"),
        ("5", "2 blocks a profile can find: none, a REGRESSION needs three"),
    ],
)
def test_the_dry_run_says_what_as_many_blocks_would_find_were_they_all(
    minutes: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        "--from=0.5.13.post1",
        "--to=0.5.15.post1",
        "--workloads=chat-bs1",
        "--profiles=baseline",
        "--dry-run",
    ]
    asked += ["--assume-scatter-percent=2", f"--budget-minutes={minutes}", f"--baselines={tmp_path}"]
    run(["bump", *asked, f"--results={tmp_path / 'r'}", "--host-class=h"])
    found = capsys.readouterr().out.splitlines()
    (line,) = [line for line in found if "output_tok_s, limit" in line or "REGRESSION needs" in line]
    assert told in line
    assert ("with --blocks" in line) == (minutes in ("15", "8"))
