"""Repeated starts, start-up times against baselines, and servers that start and do not serve."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.gate.runs import ROOT, Finished, gate, tokgate
from tokgate.baselines import digest
from tokgate.gate.started import Started
from tokgate.gate.starts import Starts
from tokgate.load.sample import Sample
from tokgate.verdict import Kind

QUICK = ("--engine=emulated:steady", "--profiles=baseline")
READY = "-k=startup and not startup_time"


def test_starts_that_hang_now_and_then_are_a_rate_with_an_interval(tmp_path: Path) -> None:
    run = gate(tmp_path, *QUICK, "--startup-repeats=5", "--engine-fault=capture-hang:target-decode/3", READY)
    verdict = run.one("startup[baseline]")
    assert verdict.line == (
        "HANG startup[baseline] 1 of 5 starts hung at target-decode graph capture (20 %, 95 % CI 1..72 %)"
    )
    # The hung launch by its number, its evidence, and the log of that launch.
    assert verdict.body[0].startswith("start 3: target-decode graph capture: no progress for")
    assert any(path.endswith("baseline-2.log") for path in verdict.files)
    assert any("/forensics/" in path and Path(path).is_file() for path in verdict.files)
    assert len(list((run.folder / "logs").glob("baseline-*.log"))) == 5
    assert len(run.samples("baseline", "startup")) == 4
    assert run.code == 1


def test_a_rate_is_told_to_all_tests_when_the_last_start_hangs(tmp_path: Path) -> None:
    run = gate(
        tmp_path,
        *QUICK,
        "--startup-repeats=2",
        "--workloads=chat-bs1",
        "--engine-fault=capture-hang:target-decode/2",
        f"{READY} or throughput",
    )
    assert [v.line for v in run.verdicts] == [
        "HANG startup[baseline] 1 of 2 starts hung at target-decode graph capture (50 %, 95 % CI 1..99 %)"
    ], run.output
    assert run.code == 1


def test_no_start_hangs_without_the_fault_and_the_bound_of_the_rate_is_said(tmp_path: Path) -> None:
    run = gate(tmp_path, *QUICK, "--startup-repeats=5", READY)
    verdict = run.one("startup[baseline]")
    assert verdict.kind is Kind.PASS
    assert verdict.headline.startswith("none of 5 starts hung (0 %, 95 % CI 0..52 %); ready and generating")
    assert verdict.evidence["hang_rate"]["trials"] == 5  # type: ignore[index]
    assert run.code == 0


def test_a_stored_phase_of_no_length_is_no_baseline(make_sample: Callable[..., Sample]) -> None:
    """On a crowded host a phase of milliseconds may pass between two looks: 0 s, and no measurement."""
    good = Started(make_sample({"imports_s": 0.15}, workload="startup"), Path("s.json"))
    starts = Starts((good,), {})
    found = starts.unjudged("imports_s", 0.4, [0.1, 0.0])
    assert found is not None
    assert found[0] is Kind.VACUOUS
    assert "so short that a start of the stored baseline showed none of it" in found[1]
    assert starts.unjudged("imports_s", 0.4, [0.1, 0.12]) is None
    assert starts.unjudged("imports_s", 0.4, []) is None


def test_starts_that_die_now_and_then_are_not_called_hung(tmp_path: Path) -> None:
    run = gate(tmp_path, *QUICK, "--startup-repeats=2", "--engine-fault=start-exit:weights/2", READY)
    verdict = run.one("startup[baseline]")
    assert verdict.kind is Kind.EXITED
    assert verdict.headline.startswith("1 of 2 starts failed at weight loading (50 %")


def test_repeats_must_be_a_number_of_launches(tmp_path: Path) -> None:
    run = gate(tmp_path, *QUICK, "--startup-repeats=0", READY)
    assert run.code == 2
    assert "'0' is not a whole number from 1 to 10000" in run.output


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("http-500:1", r"first generation: /generate answered 500"),
        ("truncate:4", r"first generation: it gave 4 tokens, 8 were asked"),
    ],
)
def test_a_wrong_first_generation_is_not_a_death(tmp_path: Path, fault: str, said: str) -> None:
    run = gate(tmp_path, *QUICK, f"--engine-fault={fault}", READY)
    verdict = run.one("startup[baseline]")
    assert verdict.kind is Kind.NOT_SERVING
    assert re.match(said, verdict.headline), verdict.line
    assert "/health answers 200" in verdict.body
    assert run.code == 1


def _times(folder: Path, *arguments: str, baselines: Path) -> Finished:
    return gate(folder, *QUICK, "--startup-repeats=3", READY.split()[0], *arguments, baselines=baselines)


def test_start_up_time_is_held_against_the_stored_one(tmp_path: Path) -> None:
    """Recorded first, then judged; a phase shorter than the clock resolves is not judged."""
    baselines = tmp_path / "baselines"
    first = _times(tmp_path / "first", baselines=baselines)
    missing = first.one("startup[baseline]", "capture:target-decode_s")
    assert missing.kind is Kind.VACUOUS, first.output
    whole = [v for v in first.verdicts if "no stored baseline" in v.headline]
    assert [v.evidence["metric"] for v in whole if v.headline.startswith("startup_s:")] == ["startup_s"]
    assert first.one("startup[baseline]", "capture:target-verify_s").kind is Kind.NOT_APPLICABLE
    done = tokgate(
        "accept",
        "latest",
        "--reason=first",
        f"--results={first.results}",
        f"--baselines={baselines}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    again = _times(tmp_path / "again", baselines=baselines)
    judged = [v for v in again.verdicts if v.headline.startswith("startup_s:")]
    # One recorded session can decide nothing, whatever the change; that is what the judgement says.
    assert [v.kind for v in judged] == [Kind.INCONCLUSIVE], again.output
    assert "3 runs on 3 launches" in " ".join(judged[0].body)
    assert judged[0].evidence["reference"] is not None


def test_the_start_tells_of_captures_environment_and_overrides(tmp_path: Path) -> None:
    run = gate(tmp_path, "--engine=emulated:steady", "--profiles=eagle3-graphs", READY, NCCL_PROTO="LL")
    verdict = run.one("startup[eagle3-graphs]")
    kinds = {(c["kind"], c["rank"]) for c in verdict.evidence["captures"]}  # type: ignore[attr-defined]
    assert ("target-verify", "") in kinds and ("draft-extend", "") in kinds
    assert any(line.startswith("target-verify graph capture: ") for line in verdict.body)
    assert any("NCCL_PROTO=LL" in line for line in verdict.body if line.startswith("environment of"))
    assert len(verdict.line) < 200


def _four_ranks(folder: Path) -> Path:
    """The shipped configuration with four ranks on every profile."""
    folder.mkdir()
    for name in ("profiles", "workloads", "gate"):
        text = (ROOT / "perf_tests" / f"{name}.yaml").read_text()
        (folder / f"{name}.yaml").write_text(text.replace("  baseline:\n", "  baseline:\n    tp: 4\n", 1))
    return folder


def test_an_odd_rank_and_a_silent_override_are_flagged(tmp_path: Path) -> None:
    config = _four_ranks(tmp_path / "config")
    ranks = ("--engine=emulated:steady", "--profiles=baseline", f"--config-folder={config}", READY)
    odd = gate(
        tmp_path / "odd",
        *ranks,
        "--engine-fault=odd-rank:TP2",
        "--engine-flag=--max-running-requests",
        "--engine-flag=32",
    ).one("startup[baseline]")
    assert odd.kind is Kind.PASS
    assert odd.headline.endswith("; 1 odd rank; 1 silent override"), odd.line
    assert odd.body[0].startswith("odd rank: TP2 took ")
    assert "silent override: max_running_requests: asked 64, got 32" in odd.body
    table = odd.evidence["captures"]
    assert [c["rank"] for c in table] == ["TP0", "TP1", "TP2", "TP3"]  # type: ignore[attr-defined]
    control = gate(tmp_path / "control", *ranks).one("startup[baseline]")
    assert not any("odd" in line or "override" in line for line in (control.headline, *control.body))


def _slower(seconds: float) -> tuple[str, str]:
    return "--engine-flag=--scenario-override", f"--engine-flag=startup.weights_s={seconds}"


@pytest.mark.slow
def test_a_phase_that_takes_longer_fails_against_its_baseline(tmp_path: Path) -> None:
    """Weights that take three seconds instead of one, against eight recorded sessions."""
    stored = tmp_path / "baselines"
    first = _times(tmp_path / "first", *_slower(1.0), baselines=stored)
    done = tokgate(
        "accept", "latest", "--reason=first", f"--results={first.results}", f"--baselines={stored}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = stored.glob("*/baseline/startup.yaml")
    content = yaml.safe_load(path.read_text())
    (session,) = content["epochs"][0]["sessions"]
    for number in range(1, 8):
        # As seven more runs would be, each a little slower or faster in everything.
        factor = 1 + 0.01 * (number % 3 - 1)
        more = {**session, "run": f"{session['run']}-{number}"}
        more["samples"] = {
            name: [value * factor for value in values] for name, values in session["samples"].items()
        }
        content["epochs"][0]["sessions"].append({**more, "digest": digest(more)})
    path.write_text(yaml.safe_dump(content))
    slow = _times(tmp_path / "slow", *_slower(3.0), baselines=stored)
    judged = {v.evidence["metric"]: v for v in slow.verdicts if "metric" in v.evidence}
    assert judged["weights_s"].kind is Kind.REGRESSION, slow.output
    assert slow.code == 1
    control = _times(tmp_path / "control", *_slower(1.0), baselines=stored)
    # Of a busy machine it may be undecided.
    assert control.one("startup[baseline]", "weights_s").outcome != "failed", control.output
