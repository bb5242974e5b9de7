"""Two ranks recorded on two H200s (SGLang 0.5.15.post1, 2026-11-29), read and judged again with no GPU."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from benchmarks.tensor_parallel import gate as gates
from benchmarks.tensor_parallel import table
from benchmarks.tensor_parallel.exchange import waits
from benchmarks.tensor_parallel.host import Host
from benchmarks.tensor_parallel.parts import _hang, nccl_share
from tests.gate.runs import ROOT
from tokgate import baselines
from tokgate.cli import run as cli
from tokgate.config.engine import emulated_engine
from tokgate.config.gate import load_gate
from tokgate.config.profiles import load_profiles
from tokgate.config.workloads import Workload, load_workloads
from tokgate.errors import Hang
from tokgate.gate.cycle.net_gain import judge_net_gain
from tokgate.gate.judge import Judge
from tokgate.gate.results import read_run, read_verdicts
from tokgate.gate.runs import Measured
from tokgate.load.prompts import build
from tokgate.load.sample import Sample, read_samples
from tokgate.models.dial import Dial
from tokgate.models.presets import find_preset
from tokgate.models.rule import build_rule
from tokgate.report.ranks import lines, rank_tables
from tokgate.server.oddity import LATE_S, odd_captures
from tokgate.server.timeline import Capture
from tokgate.verdict import Kind, Verdict

ASSETS = ROOT / "tests/assets/h200-x2"
LATER = (ROOT / "tests/assets/h200-x2-gate", ROOT / "tests/assets/h200-x2-eager")
RUN = next((ASSETS / "gates/two").glob("*-*-*"))
MEASURED = ("tp2-baseline", "tp2-eagle3-graphs")
STORED = ("output_tok_s", "ttft_s_p50", "step_ms_p50")


def facts(name: str) -> dict[str, Any]:
    return dict(json.loads((ASSETS / f"{name}.json").read_text()))


def captures(name: str) -> list[Capture]:
    return [Capture(**own) for own in facts(name)["captures"]]


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return [sample for sample in read_samples(RUN / "samples") if not sample.void]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    return Judge(load_gate(ROOT / "perf_tests/gate.yaml"), tmp_path, "tokgate accept", 31)


def workload() -> Workload:
    return load_workloads(ROOT / "perf_tests/workloads.yaml", "gpu").get("chat-bs1")


def measured(samples: list[Sample], profile: str) -> Measured:
    mine = [s for s in samples if (s.identity.profile, s.identity.workload) == (profile, "chat-bs1")]
    return Measured(tuple(mine), (), tuple(Path(f"{s.identity.run}.json") for s in mine))


def test_they_name_no_folder_of_that_machine() -> None:
    files = [path for folder in (ASSETS, *LATER) for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 800_000
    for path in files:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
        assert not re.search(r"(?<![\w.])/(tmp|work|root|opt|home)/", text), path


def test_the_page_is_made_from_them() -> None:
    between = table.PAGE.read_text().partition(table.BEGIN)[2].partition(table.END)[0]
    assert between.strip() == table.pages([ASSETS, *LATER]).strip()
    # What was not seen stands before all that was.
    head, _, rest = between.partition("| capture |")
    assert "2026-11-29" in head and "30 of 33 seen" in head and "tp2-eagle3-eager: none" in head
    assert "the gate's run is interrupted" in head and "| seen |" in rest


def test_the_stored_baselines_of_two_gpus_are_those_of_the_later_gate() -> None:
    samples = [s for s in read_samples(LATER[0] / "gates/two") if not s.void]
    for profile, workload in (
        ("tp2-baseline", "chat-bs1"),
        ("tp2-baseline", "startup"),
        ("tp2-eagle3-graphs", "startup"),
    ):
        stored = baselines.read(ROOT / "baselines", "nvidia-h200-x2", profile, workload)
        assert stored is not None
        mine = [s for s in samples if (s.identity.profile, s.identity.workload) == (profile, workload)]
        assert not baselines.differences(stored, mine[0].identity)
        metric = "output_tok_s" if workload == "chat-bs1" else "startup_s"
        assert stored.series(metric) == [[pytest.approx(s.metrics[metric], rel=1e-5) for s in mine]]
        # The shipped configuration still fits them.
        known = load_profiles(ROOT / "perf_tests/profiles.yaml").get(profile)
        assert stored.identity["profile_digest"] == known.digest
    assert baselines.read(ROOT / "baselines", "nvidia-h200-x2", "tp2-eagle3-graphs", "chat-bs1") is None


def test_what_waits_for_the_cpu_is_what_differs_from_host_to_host() -> None:
    def speeds(profile: str) -> list[float]:
        found = []
        for folder in (RUN, LATER[0], LATER[1]):
            own = [
                s
                for s in read_samples(folder / "samples" if folder == RUN else folder)
                if s.identity.profile == profile
            ]
            rates = [s.metrics["output_tok_s"] for s in own if "output_tok_s" in s.metrics]
            found += [fmean(rates)] if rates else []
        return found

    baseline, eager = speeds("tp2-baseline"), speeds("tp2-eagle3-eager")
    assert max(baseline) / min(baseline) < 1.02
    assert max(eager) / min(eager) > 1.5


def test_the_table_of_a_clean_start_and_no_odd_rank_in_it() -> None:
    look = facts("look")
    verdict = Verdict(
        Kind.PASS,
        "startup[tp2]",
        "",
        evidence={
            **{key: look[key] for key in ("captures", "libraries", "environments", "variables")},
            "profile": "tp2",
            "ranks": 2,
            "odd_captures": odd_captures(captures("look"), ranks=2),
        },
    )
    told = lines(rank_tables([verdict])[0])
    alone = "not printed (TP0 alone does)"
    versions = {
        "torch": "2.11.0",
        "NCCL": "2.28.9",
        "CUDA runtime": "13.0.96",
        "sgl-kernel": "0.4.4",
        "triton": "3.6.0",
    }
    cells = [re.split(r" {2,}", line.strip()) for line in told[1:4]]
    assert cells == [
        ["rank", "target-verify", "draft-decode", "draft-extend", *versions],
        ["TP0", "6.24 s, 0.23 GB", "7.81 s, -11.67 GB", "2.89 s, 0.13 GB", *versions.values()],
        ["TP1", "6.25 s, 0.23 GB", alone, alone, *versions.values()],
    ]
    assert not any("odd rank" in line for line in told)
    said = told[-1]
    for variable in (
        "CUDA_DEVICE_MAX_CONNECTIONS=8 (SGLang; shell said 1)",
        "NCCL_CUMEM_ENABLE=0 (SGLang)",
        "NCCL_DEBUG=WARN (shell)",
        "NCCL_NVLS_ENABLE=0 (shell)",
        "NCCL_PROTO=LL (profile)",
    ):
        assert variable in said


def test_the_late_rank_is_named_and_the_one_that_waited_is_not() -> None:
    slow = captures("slow-rank")
    odd = odd_captures(slow, ranks=2)
    assert odd == facts("slow-rank")["odd"]
    assert odd[0] == "TP1 began target-verify graph capture 8.2 s after TP0, which waited for it"
    # By seconds alone TP0 would be the slow one.
    took = {c.rank: c.seconds for c in slow if c.kind == "target-verify"}
    assert took["TP0"] == 16.8 and took["TP1"] == 8.67
    assert not any(line.startswith("TP0 took") and " s for" in line for line in odd)


def test_the_stored_log_tells_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "slow-rank.log"
    log.write_bytes(gzip.decompress((ASSETS / "logs" / "slow-rank.log.gz").read_bytes()))
    assert cli(["explain", str(log)]) == 0
    odd = [line.strip() for line in capsys.readouterr().out.splitlines() if "odd rank" in line]
    assert odd == ["odd rank   TP1 target-verify: began 8 s after the others, which waited for it"]


def test_healthy_ranks_begin_together_far_below_what_is_late() -> None:
    """The supervisor looks every 0.03 s, and saw both ranks' lines at the same look, in all three starts."""
    starts = [captures("look")]
    starts += [
        [Capture(**own) for own in v.evidence["captures"]]  # type: ignore[attr-defined]
        for v in read_verdicts(RUN)
        if "captures" in v.evidence
    ]
    assert len(starts) == 3
    for start in starts:
        begun = [c.begun_s for c in start if c.kind.startswith("target") and c.begun_s is not None]
        assert len(begun) == 2 and max(begun) - min(begun) < LATE_S / 10


@pytest.mark.parametrize("part", ["hang-capture", "hang-decode"])
def test_the_message_of_a_hang_names_tp1_with_its_stack(part: str, tmp_path: Path) -> None:
    text = (ASSETS / f"{part}.txt").read_text()
    headline, *rest = text.splitlines()
    told = [line[2:] for line in rest if line.startswith("  ")]
    files = [Path(line) for line in rest if not line.startswith("  ")]
    limit_s = float(re.findall(r"limit (\d+) s", headline)[0])
    hang = Hang(headline[5:], told, waited_s=limit_s, limit_s=limit_s, files=files)
    host = Host(emulated_engine(), "", "", tmp_path, until_s=0.0)
    _hang(host, part, hang, "TP1")
    assert [seen.ok for seen in host.seen] == [True, True, True]
    assert (tmp_path / f"{part}.txt").read_text() == text
    stacks = {
        rank: line
        for line in told
        for rank in ("TP0", "TP1")
        if f"scheduler_{rank}: " in line and "<" in line
    }
    # Who waits stands in an exchange; who was suspended stands where it was.
    assert re.search(r"scheduler_TP0: (barrier|broadcast) \(torch/distributed", stacks["TP0"])
    assert "torch/distributed" not in stacks["TP1"]
    assert sum("0 MiB still held" in line for line in told) == 2
    # Asked of the rank that only waited, the same message is no evidence.
    _hang(host, part, hang, "TP0")
    assert [seen.ok for seen in host.seen[3:]] == [True, False, True]


def test_the_share_of_nccl_is_what_it_was() -> None:
    files = sorted((ASSETS / "trace").glob("*.gz"))
    stored = facts("trace-nccl-share")
    for file in files:
        again = nccl_share(file)
        for figure in ("nccl_kernels", "nccl_ms", "span_ms", "share"):
            assert again[figure] == stored[file.name][figure], (file.name, figure)
    assert [stored[file.name]["share"] for file in files] == [0.0263, 0.3139]


def test_tp1_waited_for_tp0_and_not_for_the_link() -> None:
    first, second = sorted((ASSETS / "trace").glob("*.gz"))
    waited, other = waits(second, first), waits(first, second)
    assert (waited.count, waited.long, other.long) == (1474, 112, 2)
    assert waited.explained_ms > 0.98 * waited.long_ms
    assert waited.row_ms > 0.75 * waited.whole_ms and waited.row == 70
    # Nobody was later than TP1 where TP0's own exchanges are long: that is no wait for TP1.
    assert other.explained_ms < 1 and other.whole_ms < 12


def test_judged_again_the_verdicts_are_the_same(samples: list[Sample], judge: Judge) -> None:
    recorded = {(v.subject, v.evidence.get("metric")): v for v in read_verdicts(RUN)}
    for profile in MEASURED:
        for metric in STORED:
            again = judge.against_baseline(measured(samples, profile), metric)
            before = recorded[f"chat-bs1[{profile}]", metric]
            assert (again.kind, again.headline) == (
                before.kind,
                before.headline,
            ) and again.kind is Kind.MISSING
    gain = judge_net_gain(workload(), *(measured(samples, profile) for profile in reversed(MEASURED)))
    before = recorded["chat-bs1[tp2-eagle3-graphs]", "decode_tok_s"]
    assert (gain.kind, gain.headline) == (before.kind, before.headline)
    assert gain.kind is Kind.PASS and "1.32x" in gain.headline


def test_verify_counts_of_two_ranks_were_exactly_as_predicted(samples: list[Sample], judge: Judge) -> None:
    rule = build_rule(find_preset("8b"), 0, Dial("accept_length", 2.5, 3), None)
    predicted = [rule.verify_count(ids, 512, 3) for ids in build(workload(), 128256).ids or ()]
    graphs = measured(samples, "tp2-eagle3-graphs")
    assert judge.accept_length(graphs, predicted).kind is Kind.PASS
    # Without graphs too: two of its five runs were stored before the budget ended.
    eager = measured(samples, "tp2-eagle3-eager")
    assert len(eager.samples) == 2 and judge.accept_length(eager, predicted).kind is Kind.PASS
    assert judge.accept_length(graphs, [predicted[0] - 1, *predicted[1:]]).kind is Kind.REGRESSION


def test_a_run_that_was_cut_off_is_no_baseline() -> None:
    assert read_run(RUN)["status"] == "interrupted"
    assert [name for _, name, ok, _ in json.loads((ASSETS / "seen.json").read_text()) if ok is False] == [
        "3 profiles on two GPUs",
        "output_tok_s of tp2-eagle3-eager",
        "baselines under nvidia-h200-x2",
    ]


def test_the_gate_is_planned_by_the_time_that_is_left() -> None:
    """Two recorded runs planned for 5 runs what had time for less: a plan must fit with a fifth to spare."""
    whole = gates.plan(720.0)
    assert whole is not None and (whole.profiles, whole.runs, whole.together) == (gates.PROFILES, 5, 1)
    short = gates.plan(430.0 - 5.0)
    assert short is not None and (short.profiles, short.runs, short.together) == (gates.PROFILES, 2, 3)
    assert gates.SLACK * short.seconds() <= 410.0
    few = gates.plan(200.0)
    assert few is not None and few.profiles == gates.PROFILES[:1]
    assert gates.plan(60.0) is None
    # A host whose starts take half as long has time for more.
    quick = gates.plan(425.0, start_s=70.0)
    assert quick is not None and (quick.runs, quick.together) > (short.runs, 1)
