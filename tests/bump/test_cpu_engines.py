"""Two real SGLang versions on the CPU, end to end. Minutes on a quiet machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bump.test_commands import bump
from tests.environments.engines import cpu_engine
from tokgate.environments import root

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(5400)]


def test_two_real_versions_answer_alike_and_what_moved_is_told(tmp_path: Path) -> None:
    """0.5.15.post1 against 0.5.23, without speculation: 0.5.15.post1 cannot speculate on a CPU."""
    for name in ("cpu-0.5.15.post1", "cpu"):
        cpu_engine(name)
    results = tmp_path / "results"
    done = bump(
        f"--from-engine={root() / 'cpu-0.5.15.post1' / 'engine.yaml'}",
        f"--to-engine={root() / 'cpu' / 'engine.yaml'}",
        "--profiles=baseline",
        "--workloads=chat-bs1",
        "--metrics=output_tok_s",
        "--blocks=3",
        "--runs=2",
        "--parity=batch-1,batch-8-shared",
        "--one-at-a-time",
        f"--results={results}",
        timeout_s=5000,
    )
    # How fast two versions are on this machine is nobody's to say here.
    assert done.returncode in (0, 1, 3), done.stderr
    (folder,) = results.glob("bump-*")
    report = json.loads((folder / "report.json").read_text())
    by_subject = {v["subject"]: v["kind"] for v in report["verdicts"] if "parity" in v["subject"]}
    assert by_subject == {"parity-batch-1[baseline]": "PASS", "parity-batch-8-shared[baseline]": "PASS"}
    (speed,) = [v for v in report["verdicts"] if v["evidence"]["metric"] == "output_tok_s"]
    assert speed["evidence"]["blocks"] >= 2
    moved = {item["what"]: (item["old"], item["new"]) for item in report["moved"]}
    assert moved["sglang"] == ("0.5.15.post1", "0.5.23")
    assert "transformers" in moved
    assert ("chunked_prefill_size", "2048", "4096") in {
        (item["what"], item["old"], item["new"]) for item in report["defaults"]
    }
    assert "torch==" in (folder / "old.lock.txt").read_text()
