"""Options that would be taken for something else are refused by name; --resume takes more blocks, nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from benchmarks.bump.simulation import CONFIG, VERSIONS, configuration, engine
from benchmarks.bump.virtual_servers import Clock, maker
from tests.bump.conftest import speed_of
from tokgate.bump.bisection import Bisection
from tokgate.bump.campaign import Campaign
from tokgate.bump.candidates import check_releases
from tokgate.bump.options import FILE, BumpOptions, prepare, read_options
from tokgate.bump.question import Pairing, check_names
from tokgate.bump.steps import Prober, Sought, Step
from tokgate.bump.verdicts import verdicts
from tokgate.cli import run
from tokgate.cli.interruption import terminable
from tokgate.config.engine import EngineKind
from tokgate.config.gate import GateFile, Limit, load_gate
from tokgate.errors import UsageFault

AA = ("--from=emulated", "--to=emulated", "--dry-run")
ENDS = ("--good=0.5.9", "--bad=0.5.12", "--dry-run")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bump", *AA, "--calibration=/nope"), "--calibration /nope: no such file or folder"),
        (("bump", *AA, "--mem-fraction=7"), "--mem-fraction is a share above 0 and at most 1, not 7"),
        (("bump", *AA, "--mem-fraction=nan"), "--mem-fraction is a share above 0 and at most 1, not nan"),
        (("bump", *AA, "--mem-fraction=0"), "--mem-fraction is a share above 0 and at most 1, not 0"),
        (("bump", *AA, "--profiles=,"), "--profiles was given without a name"),
        (("bump", *AA, "--metrics="), "--metrics was given without a name"),
        (("bump", "--from=foo", "--to=0.5.12"), "'foo' is neither a version of SGLang nor an engine file"),
        (("bisect", *ENDS, "--calibration=/nope"), "--calibration /nope: no such file or folder"),
        (("bisect", *ENDS, "--mem-fraction=nan"), "--mem-fraction is a share"),
        (("bisect", *ENDS, "--limit-percent=-5"), "--limit-percent is above 0 and below 100 percent, not -5"),
        (("bisect", *ENDS, "--limit-percent=nan"), "--limit-percent is above 0 and below 100 percent"),
        (("bisect", *ENDS, "--versions=0.5.11,xx"), "'xx' is no version"),
        (("bisect", *ENDS, "--versions=,"), "--versions was given without a name"),
        (("bisect", *ENDS, "--versions=0.5.11", "--commits=/nope"), "--commits /nope: no such folder"),
    ],
)
def test_a_wrong_option_is_named(
    arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, f"--results={tmp_path}"]) == 2
    assert words in capsys.readouterr().err


def test_judge_speaks_of_percent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        data = {"unit": "tok/s", "better": "higher", "launches": [[100.0, 101.0]], "what": name}
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    asked = ["judge", str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert run([*asked, "--limit-percent=-3"]) == 2
    assert "--limit-percent is above 0 and below 100 percent, not -3" in capsys.readouterr().err
    assert run(asked) == 3
    assert "no calibration" in capsys.readouterr().out


def test_commits_are_those_of_a_clone_with_releases(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="is no git clone"):
        check_releases(tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    with pytest.raises(UsageFault, match="has no tag of a release"):
        check_releases(tmp_path)
    subprocess.run([*git, "tag", "v0.5.11"], check=True)
    check_releases(tmp_path)


def test_a_misspelled_metric_of_gate_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_names(load_gate(CONFIG / "gate.yaml"), Path("gate.yaml"))
    folder = tmp_path / "perf_tests"
    shutil.copytree(CONFIG, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    gate = folder / "gate.yaml"
    gate.write_text(gate.read_text().replace("ttft_s_p50:", "tfft_s_p50:"))
    assert run(["bump", *AA, f"--config-folder={folder}", f"--results={tmp_path}"]) == 2
    assert "metrics.tfft_s_p50: no such metric; did you mean 'ttft_s_p50'?" in capsys.readouterr().err


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A bump that was begun with at most 12 blocks."""
    folder = tmp_path / "bump-x"
    folder.mkdir()
    asked = BumpOptions(
        "emulated",
        "emulated",
        str(CONFIG),
        str(tmp_path),
        "baselines",
        profiles=("baseline",),
        workloads=("chat-bs1",),
        blocks=12,
    )
    asked.write(folder)
    return folder


@pytest.mark.parametrize(
    "option", ["--runs=9", "--profiles=baseline", "--seed=3", "--metrics=output_tok_s", "--one-at-a-time"]
)
def test_resume_refuses_what_asks_another_question(
    option: str, begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bump", f"--resume={begun}", option]) == 2
    assert f"{option.partition('=')[0]}: not together with --resume" in capsys.readouterr().err


def test_resume_of_a_bisection_refuses_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bisect", "--resume=latest", "--launches=9", "--good=0.5.9", f"--results={tmp_path}"]) == 2
    assert "--good, --launches: not together with --resume" in capsys.readouterr().err


def test_resume_takes_more_blocks_and_no_fewer(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["bump", f"--resume={begun}", "--dry-run"]
    assert run(asked) == 0
    assert "12 blocks" in capsys.readouterr().out
    assert run([*asked, "--blocks=30"]) == 0
    assert "30 blocks" in capsys.readouterr().out
    assert read_options(begun).blocks == 12
    assert run([*asked, "--blocks=5"]) == 2
    assert "--blocks 5: it was begun with 12; --resume can only allow more" in capsys.readouterr().err


def test_a_bump_goes_on_when_more_blocks_are_allowed(
    campaign: Callable[..., Campaign], tmp_path: Path
) -> None:
    """-2.2 % under a limit of 3 %: neither a loss nor none after three blocks."""
    first = campaign(-0.022, folder=tmp_path, blocks=3)
    assert speed_of(verdicts(first)).kind == "INCONCLUSIVE"
    (held,) = [len(group.runner.blocks) for group in first.groups]
    second = campaign(-0.022, folder=tmp_path, blocks=8)
    (now,) = [len(group.runner.blocks) for group in second.groups]
    assert held == 3
    assert now > held


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_bump_says_how_to_go_on(
    number: signal.Signals, begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    was = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(typer.Exit) as ended, terminable("bump", begun):
            os.kill(os.getpid(), number)
            signal.pause()
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, was)
    assert ended.value.exit_code == 130
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(f"go on: tokgate bump --resume {begun}")
    assert second == f"tokgate bump: ended by {number.name}"
    assert (begun / FILE).is_file()


def test_a_bisection_takes_up_an_undecided_step_when_more_blocks_are_allowed(tmp_path: Path) -> None:
    profiles, workload = configuration()

    def bad_end(blocks: int) -> Step:
        clock = Clock()
        servers = maker(clock, speed={VERSIONS[-1]: 1 - 0.022})
        sought = Sought(
            "output_tok_s", "higher", 0.03, profiles["baseline"], workload, seed=1, blocks_max=blocks
        )
        prober = Prober(sought, engine(VERSIONS[0]), engine, servers, tmp_path, clock=clock)
        return Bisection(VERSIONS, sought, prober, tmp_path).run().steps[0]

    first = bad_end(3)
    assert (first.finding, first.blocks) == ("skip", 3)
    assert bad_end(3) == first
    assert bad_end(8).blocks > 3


def test_every_documented_metric_is_known() -> None:
    """The list of names that gate.yaml may have keeps up with the reference of metrics."""
    text = (CONFIG.parent / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    text = text[: text.index("`failed_requests`")]
    documented = re.findall(
        r"^\| `([a-z0-9_]+)`(?:, `_p99`)?(?:, `_mean`)?(?:, .*?)? \| (?:tokens|1|s|ms|MiB|GB)", text, re.M
    )
    names = {*documented}
    assert {"output_tok_s", "queue_s_p50", "gpu_memory_mib"} <= names
    limits = {name: Limit(unit="x", better="lower", limit_percent=1) for name in names}
    check_names(GateFile(metrics=limits), Path("gate.yaml"))


def test_an_interrupted_calibration_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Told(BaseException):
        """As a signal ends it."""

    def ended(*arguments: object, **options: object) -> None:
        raise Told

    monkeypatch.setattr("tokgate.gate.blocks.calibrating.calibrate", ended)
    was = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(Told):
            run(
                [
                    "calibrate",
                    "run",
                    "--engine=emulated",
                    "--profiles=baseline",
                    f"--config-folder={CONFIG}",
                    f"--results={tmp_path / 'r'}",
                    f"--baselines={tmp_path / 'b'}",
                ]
            )
    finally:
        signal.signal(signal.SIGTERM, was)
    assert "go on: the same command again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "pairing", "flags", "bounded"),
    [
        ("gpu", "pair", ("--sleep-on-idle",), True),
        ("gpu", "apart", (), False),
        ("cpu", "pair", ("--sleep-on-idle",), False),
        ("cpu", "apart", (), False),
        ("emulated", "pair", (), False),
    ],
)
def test_a_server_that_waits_for_its_turn_does_not_poll_at_a_core(
    kind: EngineKind, pairing: Pairing, flags: tuple[str, ...], bounded: bool, tmp_path: Path
) -> None:
    """Of several real servers both versions get the flag; one that is up alone is as its profile says."""
    old, new = (replace(engine(version), kind=kind) for version in ("0.5.13", "0.5.15"))
    options = BumpOptions(
        old="0.5.13",
        new="0.5.15",
        folder=str(CONFIG),
        results=str(tmp_path),
        baselines=str(tmp_path / "none"),
        profiles=("baseline",),
        pairing=pairing,
    )
    prepared = prepare(options, (old, new))
    assert [profile.extra_flags for profile in prepared.ask.profiles] == [flags]
    assert any("--sleep-on-idle" in note for note in prepared.notes) == bool(flags)
    assert any("KV caches bounded" in note for note in prepared.notes) == bounded
