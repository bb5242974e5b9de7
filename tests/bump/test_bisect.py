"""Bisections: on virtual servers with the H200's noise, on the emulator, over commits; resumed, and out of budget."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bump.simulation import VERSIONS, bisections, configuration, engine
from benchmarks.bump.virtual_servers import Clock, maker
from tokgate.bump.bisection import Bisection, Result
from tokgate.bump.candidates import EngineFiles, between, commits
from tokgate.bump.steps import FAILURE, Prober, Sought, limit_of_steps
from tokgate.cli import run
from tokgate.config.engine import Engine
from tokgate.config.profiles import Profile
from tokgate.errors import Hang, HostFault, UsageFault

ROOT = Path(__file__).parents[2]


def sought(metric: str = "output_tok_s", limit: float = 0.03) -> Sought:
    profiles, workload = configuration()
    return Sought(metric, "higher", limit, profiles["baseline"], workload, seed=1)


def bisect(
    folder: Path | None,
    *,
    metric: str = "output_tok_s",
    slow: Sequence[str] = (),
    change: float = -0.5,
    hangs: Sequence[str] = (),
    unbuildable: Sequence[str] = (),
    minutes: float | None = None,
    before: Callable[[str], None] = lambda what: None,
    limit: float = 0.03,
    versions: Sequence[str] = VERSIONS,
    profile: Profile | None = None,
) -> Result:
    clock = Clock()
    servers = maker(clock, speed=dict.fromkeys(slow, 1 + change), hangs=hangs, before=before)

    def engine_of(version: str) -> Engine:
        if version in unbuildable:
            raise HostFault(f"{version} cannot be installed: no such wheel")
        return engine(version)

    asked = sought(metric, limit)
    asked = asked if profile is None else replace(asked, profile=profile)
    prober = Prober(asked, engine(versions[0]), engine_of, servers, folder, clock=clock, minutes=minutes)
    return Bisection(versions, asked, prober, folder).run()


def test_ten_versions_with_a_hang_in_the_middle_right_in_100_of_100_seeds() -> None:
    found = bisections(100, "a hang", metric=FAILURE)
    assert found.right == 100
    assert found.steps <= 6
    assert found.minutes > 0


def test_a_loss_by_a_quarter_with_the_h200s_noise_is_found_in_most_of_a_few_seeds() -> None:
    found = bisections(12, "25 % slower", -0.25)
    assert found.right >= 11, found


@pytest.mark.slow
@pytest.mark.parametrize("change", [-0.25, -0.40])
def test_a_loss_with_the_h200s_noise_is_found_in_95_of_100_seeds(change: float) -> None:
    found = bisections(100, "slower", change)
    assert found.right >= 95, found


def test_the_ends_are_verified_first() -> None:
    same = bisect(None, limit=0.4)
    assert same.found is None
    assert "is not bad on this machine today" in same.stopped
    assert [step.version for step in same.steps] == [VERSIONS[-1]]
    never_good = bisect(None, metric=FAILURE, hangs=VERSIONS[-1:])
    assert never_good.found is not None
    assert never_good.found.first_bad == VERSIONS[-1]
    assert [step.version for step in never_good.steps[:2]] == [VERSIONS[0], VERSIONS[-1]]


def test_a_good_end_that_fails_ends_it() -> None:
    with pytest.raises(Hang):
        bisect(None, hangs=VERSIONS[:1])


def test_a_hang_is_skipped_when_speed_is_sought() -> None:
    found = bisect(None, slow=VERSIONS[6:], hangs=[VERSIONS[4]])
    assert found.found is not None
    assert found.found.first_bad == VERSIONS[6]
    assert [step.finding for step in found.steps if step.version == VERSIONS[4]] in ([], ["skip"])
    hidden = bisect(None, slow=VERSIONS[6:], hangs=VERSIONS[4:6])
    assert hidden.found is not None
    assert hidden.found.suspects == VERSIONS[4:7]
    assert hidden.found.first_bad is None


def test_a_version_that_cannot_be_made_is_skipped() -> None:
    found = bisect(None, slow=VERSIONS[6:], unbuildable=[VERSIONS[5]])
    assert found.found is not None
    assert found.found.suspects == VERSIONS[5:7]


def test_steps_tell_less_than_the_ends_showed_and_no_less_than_the_limit() -> None:
    assert limit_of_steps(-0.20, "higher", 0.03) == pytest.approx(0.154, abs=0.001)
    assert limit_of_steps(-0.02, "higher", 0.03) == 0.03
    assert limit_of_steps(0.20, "lower", 0.03) == pytest.approx(0.147, abs=0.001)
    assert limit_of_steps(0.20, "higher", 0.03) == 0.03


class Killed(BaseException):
    """The process is gone."""


def test_a_crash_resumes_to_the_same_answer(tmp_path: Path) -> None:
    steps = [0]

    def counted(what: str) -> None:
        steps[0] += 1

    wanted = bisect(tmp_path / "whole", slow=VERSIONS[4:], before=counted)
    total = steps[0]
    assert wanted.found is not None
    assert wanted.found.first_bad == VERSIONS[4]
    for at in range(1, total, max(1, total // 12)):
        steps[0] = 0

        def kill(what: str, at: int = at) -> None:
            steps[0] += 1
            if steps[0] == at:
                raise Killed

        folder = tmp_path / str(at)
        with pytest.raises(Killed):
            bisect(folder, slow=VERSIONS[4:], before=kill)
        again = bisect(folder, slow=VERSIONS[4:])
        assert again.found == wanted.found
        assert [(s.version, s.finding, s.why) for s in again.steps] == [
            (s.version, s.finding, s.why) for s in wanted.steps
        ]


def test_a_budget_is_spent_in_calls(tmp_path: Path) -> None:
    calls = 0
    result = bisect(tmp_path, slow=VERSIONS[4:], minutes=6)
    while result.found is None:
        assert result.stopped == "the budget is spent"
        calls += 1
        assert calls < 20
        result = bisect(tmp_path, slow=VERSIONS[4:], minutes=6)
    assert calls > 0
    assert result.found.first_bad == VERSIONS[4]


def test_another_bisection_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    bisect(tmp_path, metric=FAILURE, hangs=VERSIONS[4:])
    with pytest.raises(UsageFault, match="another bisection"):
        bisect(tmp_path, metric=FAILURE, hangs=VERSIONS[4:], versions=VERSIONS[1:])


def test_findings_of_a_profile_that_was_changed_since_are_not_taken(tmp_path: Path) -> None:
    """Every version is judged, so that no block is opened again: the findings themselves say of what they are."""
    done = bisect(tmp_path, metric=FAILURE, hangs=VERSIONS[4:])
    assert bisect(tmp_path, metric=FAILURE, hangs=VERSIONS[4:]) == done
    changed = replace(sought().profile, random_seed=77)
    with pytest.raises(UsageFault, match="another bisection") as refused:
        bisect(tmp_path, metric=FAILURE, hangs=VERSIONS[4:], profile=changed)
    assert refused.value.details[0].startswith("profile_digest: ")


def test_releases_between_are_final_and_in_order() -> None:
    known = ["0.5.10", "0.5.9", "0.5.11rc1", "0.5.9.post2", "0.5.12", "0.4.0", "0.5.11.dev3", "0.5.10.post1"]
    assert between("0.5.9", "0.5.12", known) == ["0.5.9", "0.5.9.post2", "0.5.10", "0.5.10.post1", "0.5.12"]
    with pytest.raises(UsageFault, match="not older"):
        between("0.5.12", "0.5.9", known)
    with pytest.raises(UsageFault, match="--commits"):
        between("abc123", "0.5.9", known)


def rehearsed(folder: Path, engine_file: Callable[..., Path], *asked: str) -> int:
    for version in ("0.5.10", "0.5.12"):
        engine_file(version)
    ends = ("--good=0.5.10", "--bad=0.5.12", f"--engines={folder}/{{version}}.yaml")
    return run(["bisect", *ends, "--dry-run", f"--results={folder / 'results'}", *asked])


def test_versions_outside_the_ends_are_told(
    tmp_path: Path, engine_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert rehearsed(tmp_path, engine_file, "--versions=0.5.9,0.5.10,0.5.11,0.5.12,0.5.13") == 0
    assert (
        "left out of --versions, no release from 0.5.10 to 0.5.12: 0.5.9, 0.5.13" in capsys.readouterr().out
    )
    assert rehearsed(tmp_path, engine_file, "--versions=0.5.11") == 0
    assert "left out" not in capsys.readouterr().out


@pytest.mark.parametrize("metric", ["startup_s", "gpu_memory_mib", "accept_length"])
def test_a_metric_that_no_run_has_is_refused_before_anything_is_measured(
    tmp_path: Path, engine_file: Callable[..., Path], capsys: pytest.CaptureFixture[str], metric: str
) -> None:
    """The profile is the baseline, which has no accept length."""
    assert rehearsed(tmp_path, engine_file, "--versions=0.5.11", f"--metric={metric}") == 2
    said = capsys.readouterr().err
    assert f"--metric {metric}: not measured in runs" in said
    assert "there is: output_tok_s, ttft_s_p50, step_ms_p50, failure" in said


def test_a_metric_that_runs_have_is_sought(
    tmp_path: Path, engine_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert rehearsed(tmp_path, engine_file, "--versions=0.5.11", "--metric=ttft_s_p50") == 0
    asked = ("--versions=0.5.11", "--metric=accept_length", "--profile=eagle3-graphs")
    assert rehearsed(tmp_path, engine_file, *asked) == 0
    assert "sought: accept_length worse by" in capsys.readouterr().out


def test_engine_files_by_template(tmp_path: Path) -> None:
    for name in ("sglang-0.5.9.yaml", "sglang-0.5.10.yaml", "other.yaml"):
        (tmp_path / name).write_text("kind: emulated\nversion: 0.5.9\n")
    files = EngineFiles(f"{tmp_path}/sglang-{{version}}.yaml")
    assert sorted(files.versions()) == ["0.5.10", "0.5.9"]
    assert files.engine("0.5.9").kind == "emulated"
    with pytest.raises(UsageFault, match="no engine file"):
        files.engine("0.5.11")
    (tmp_path / "0.6.0").mkdir()
    (tmp_path / "0.6.0" / "engine.yaml").write_text("kind: emulated\nversion: 0.5.9\n")
    assert "0.6.0" in EngineFiles(f"{tmp_path}/{{version}}/engine.yaml").versions()
    with pytest.raises(UsageFault, match="once"):
        EngineFiles("engines/0.5.9.yaml")


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> tuple[Path, list[str]]:
    """A repository with tags v0.5.11 and v0.5.12 and three commits between."""
    folder = tmp_path / "clone"
    folder.mkdir()
    git(folder, "init", "-q")
    hashes = []
    for number in range(5):
        git(folder, "commit", "-q", "--allow-empty", "-m", f"change {number}")
        hashes.append(git(folder, "rev-parse", "HEAD"))
    git(folder, "tag", "v0.5.11", hashes[0])
    git(folder, "tag", "v0.5.12", hashes[4])
    return folder, hashes


def test_commits_between_two_releases(clone: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, hashes = clone
    assert commits(folder, "0.5.11", "0.5.12") == hashes
    assert commits(folder, hashes[1][:10], "v0.5.12") == hashes[1:]
    with pytest.raises(UsageFault, match="no ancestor"):
        commits(folder, "0.5.12", "0.5.11")
    with pytest.raises(UsageFault, match=r"no commit or tag '0\.5\.13'"):
        commits(folder, "0.5.11", "0.5.13")
    with pytest.raises(UsageFault, match="no git clone"):
        commits(tmp_path, "0.5.11", "0.5.12")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tokgate", "bisect", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.slow
def test_a_hang_on_the_emulator_releases_then_commits(
    tmp_path: Path, patient: Path, engine_file: Callable[..., Path], clone: tuple[Path, list[str]]
) -> None:
    """The hang came with the commit 'change 2', and so with release 0.5.12."""
    folder, hashes = clone
    hang = "capture-hang:target-decode"
    for version in ("0.5.10", "0.5.11"):
        engine_file(version)
    for version in ("0.5.12", "0.5.13"):
        engine_file(version, hang)
    for number, name in enumerate(hashes):
        engine_file("0.5.12", hang if number >= 2 else "", name=name)
    asked = [
        "--good=0.5.10",
        "--bad=0.5.13",
        f"--metric={FAILURE}",
        f"--engines={tmp_path}/{{version}}.yaml",
        "--versions=0.5.10,0.5.11,0.5.12,0.5.13",
        f"--commits={folder}",
        "--launches=1",
        f"--config-folder={patient}",
        f"--results={tmp_path / 'results'}",
    ]
    plan = command(*asked, "--dry-run")
    assert plan.returncode == 0, plan.stderr
    assert "4 versions: 0.5.10, 0.5.11, 0.5.12, 0.5.13" in plan.stdout
    done = command(*asked)
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = (tmp_path / "results").glob("bisect-*/bisect.md")
    text = log.read_text(encoding="utf-8")
    assert "0.5.12 is the first bad one, 0.5.11 the last good one" in text
    assert f"{hashes[2][:12]} is the first bad one" in text.replace(hashes[2], hashes[2][:12])
    assert ": change 2" in text
    again = command("--resume=latest", f"--results={tmp_path / 'results'}")
    assert again.returncode == 0
    assert "0.5.12 is the first bad one" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "needs --good and --bad"),
        (("--resume=latest", "--results=RESULTS"), "no bisect 'latest'"),
        (("--good=0.5.9", "--bad=0.5.12", "--engines=x.yaml"), "{version}"),
        (("--good=0.5.9", "--bad=0.5.12", "--engines=RESULTS/{version}.yaml"), "0.5.9.yaml"),
        (("--good=0.5.12", "--bad=0.5.9", "--engines=RESULTS/{version}.yaml"), "not older"),
    ],
)
def test_bad_input_is_told(
    arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [argument.replace("RESULTS", str(tmp_path)) for argument in arguments]
    assert run(["bisect", *asked]) == 2
    assert words in capsys.readouterr().err
