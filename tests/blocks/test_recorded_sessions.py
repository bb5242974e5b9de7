"""A/A sessions of several GPUs: measured, kept small, and made into the same calibrations again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.decision import host, recorded
from tokgate.analysis.calibration_file import read_calibration

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sessions_of_two_gpus_are_kept_and_pooled(tmp_path: Path) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    done = subprocess.run(
        [
            sys.executable, "-m", "benchmarks.decision.host", "--engine=emulated:steady", f"--out={out}",
            "--profiles=baseline", "--gpus=0,1", "--blocks=2", "--budget-s=150",
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    host.keep(out, kept)
    assert len(recorded.sessions(kept)) == 2 and not list(kept.rglob("*.log"))
    place = "emulated-steady/calibration/baseline/chat-bs1/output_tok_s.calibration.yaml"
    recorded.pool(kept, tmp_path / "pooled")
    pooled = read_calibration(tmp_path / "pooled" / place).sessions
    alone = [
        read_calibration(path).sessions[0] for path in sorted(out.glob(f"calibrate-*/baselines/{place}"))
    ]
    assert [s.blocks for s in pooled] == [s.blocks for s in sorted(alone, key=lambda s: s.started_at)]
    assert sum(len(s.blocks) for s in pooled) == 4


def test_blocks_of_the_h200_make_the_stored_calibrations(tmp_path: Path) -> None:
    """What ``tokgate calibrate run`` wrote on the GPU follows from the blocks that were kept."""
    written = recorded.pool(ROOT / "tests" / "assets" / "h200-aa", tmp_path)
    assert len(written) == 9
    for path in written:
        again, stored = (
            read_calibration(root / path.relative_to(tmp_path)) for root in (tmp_path, ROOT / "baselines")
        )
        assert again.identity == stored.identity
        assert again.sessions[0] in stored.sessions
    speed = read_calibration(
        tmp_path / "nvidia-h200/calibration/baseline/chat-bs1/output_tok_s.calibration.yaml"
    )
    history = speed.history()
    assert history is not None and history.blocks == 6 and 0.06 < history.s0 < 0.08
