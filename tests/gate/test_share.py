"""Several GPUs: how profiles are dealt out, and runs of all shares with one summary and one exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gate.runs import ROOT, tokgate
from tokgate.cli.child import Ended
from tokgate.cli.gate import _exit_code
from tokgate.errors import HostFault, UsageFault
from tokgate.gate import setup as gate_setup
from tokgate.gate import share
from tokgate.gate.results import Results, read_run, read_verdicts
from tokgate.gate.run import Run
from tokgate.verdict import Kind, Verdict

ALL = ("baseline", "baseline-eager", "eagle3-graphs", "eagle3-eager", "eagle3-attn-decode")


def setup_of(tmp_path: Path, *profiles: str) -> gate_setup.Setup:
    return gate_setup.read(
        gate_setup.Request(
            folder=ROOT / "perf_tests",
            results=tmp_path,
            baselines=tmp_path,
            kind="emulated",
            profiles=profiles,
        )
    )


def test_every_profile_is_dealt_once_and_takes_its_reference(tmp_path: Path) -> None:
    shares = share.deal(setup_of(tmp_path, *ALL), (0, 1), emulated=True)
    assert [item.gpus for item in shares] == [(0,), (1,)]
    dealt = [name for item in shares for name in item.profiles]
    # The reference comes along by itself: naming it would only repeat it.
    assert sorted(dealt) == sorted(set(ALL) - {"baseline"})
    assert abs(len(shares[0].profiles) - len(shares[1].profiles)) <= 1
    for item in shares:
        chosen = setup_of(tmp_path, *item.profiles)
        for name in item.profiles:
            assert chosen.profiles[name].reference in {None, *chosen.profiles}


def test_no_share_is_empty_and_a_reference_alone_is_a_profile(tmp_path: Path) -> None:
    shares = share.deal(setup_of(tmp_path, "baseline"), (3, 5), emulated=True)
    assert shares == [share.Share((3,), ("baseline",))]


def test_profiles_with_ranks_get_as_many_gpus(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    for name in ("profiles", "workloads", "gate"):
        text = (ROOT / "perf_tests" / f"{name}.yaml").read_text()
        text = text.replace("  baseline-eager:\n", "  baseline-eager:\n    tp: 2\n")
        (folder / f"{name}.yaml").write_text(text)
    request = gate_setup.Request(
        folder, tmp_path, tmp_path, kind="emulated", profiles=("baseline-eager", "eagle3-graphs")
    )
    setup = gate_setup.read(request)
    shares = share.deal(setup, (0, 1, 2, 3), emulated=True)
    # The small ones first, as many side by side as there are GPUs; then the large ones.
    assert shares == [share.Share((0,), ("eagle3-graphs",)), share.Share((0, 1), ("baseline-eager",))]
    assert shares[1].name == "0+1"
    # On one GPU the profile with two ranks is left out and said to be, not measured on too few.
    assert share.deal(setup, (0,), emulated=True) == [share.Share((0,), ("eagle3-graphs",))]
    assert share.left_out(setup, (0,)) == {"baseline-eager": "needs 2 GPUs and --gpus names 1"}
    assert share.left_out(setup, (0, 1)) == {}
    only = gate_setup.read(
        gate_setup.Request(folder, tmp_path, tmp_path, kind="emulated", profiles=("baseline-eager",))
    )
    with pytest.raises(UsageFault, match="need 2 GPUs at once and --gpus names 1"):
        share.deal(only, (0,), emulated=True)


@pytest.mark.parametrize(
    ("text", "message"), [("0,x", "NVML numbers"), ("0,,1", "NVML numbers"), ("1,1", "twice")]
)
def test_numbers_that_are_none(text: str, message: str) -> None:
    with pytest.raises(UsageFault, match=message):
        share.numbers(text)


def test_a_host_without_gpus_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share.gpu, "open_nvml", lambda: "no NVIDIA driver answers: not found")
    with pytest.raises(HostFault, match="this host shows none: no NVIDIA driver"):
        share.deal(setup_of(tmp_path, *ALL), (0, 1), emulated=False)


@pytest.mark.parametrize(
    ("statuses", "code"),
    [((5, 5), 2), ((0, 4), 2), ((2, 2), 3), ((-9, 0), 137), ((3, 5), 3), ((-15,), 130)],
)
def test_exit_codes_of_shares_that_did_not_end_well(statuses: tuple[int, ...], code: int) -> None:
    assert _exit_code([Ended(status, None) for status in statuses], strict=False) == code


def test_shares_run_side_by_side_and_are_summed_up(tmp_path: Path) -> None:
    """Two pytests on the emulated engine; one share has a planted fault's profile, both have the reference."""
    results = tmp_path / "results"
    done = tokgate(
        "gate",
        "--gpus=0,1",
        "perf_tests",
        "-p",
        "no:cacheprovider",
        "--engine=emulated:steady",
        "--profiles=baseline-eager,eagle3-graphs",
        "--engine-fault=capture-hang:draft-extend",
        "-k=startup and not startup_time",
        f"--results={results}",
    )
    output = done.stdout + done.stderr
    assert "tokgate: GPU 0: eagle3-graphs" in output and "tokgate: GPU 1: baseline-eager" in output
    assert "[GPU 0] tokgate: engine emulated-steady" in output
    assert "tokgate: 2 shares" in output and "1 HANG, 2 PASS" in output
    assert sorted(path.name for path in results.glob("*.xml")) == ["junit-gpu0.xml", "junit-gpu1.xml"]
    runs = [path.parent for path in results.glob("*/run.json") if not path.parent.is_symlink()]
    found = {v.subject: v.kind for run in runs for v in read_verdicts(run)}
    assert found == {
        "startup[baseline]": Kind.PASS,
        "startup[baseline-eager]": Kind.PASS,
        "startup[eagle3-graphs]": Kind.HANG,
    }
    # The engine's processes really got the GPU of their share.
    seen = {
        values["CUDA_VISIBLE_DEVICES"]
        for run in runs
        for v in read_verdicts(run)
        if v.subject == "startup[baseline-eager]"
        for values in v.evidence["environments"].values()  # type: ignore[attr-defined]
    }
    assert seen == {"1"}
    assert done.returncode == 1, output


@pytest.mark.slow
def test_shares_of_another_size_come_after(tmp_path: Path) -> None:
    results = tmp_path / "results"
    done = tokgate(
        "gate",
        "--gpus=0,1",
        "perf_tests/test_startup.py::test_startup",
        "-p",
        "no:cacheprovider",
        "--engine=emulated:steady",
        "--profiles=baseline,baseline-eager,tp2-baseline",
        f"--results={results}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("GPU 0: baseline\n", "GPU 1: baseline-eager\n", "GPU 0+1: tp2-baseline\n"):
        assert f"tokgate: {words}" in done.stdout
    runs = [read_run(path.parent) for path in results.glob("*/run.json") if not path.parent.is_symlink()]
    (large,) = (run for run in runs if run["profiles"] == ["tp2-baseline"])
    assert len(runs) == 3
    assert all(run["ended_at"] <= large["started_at"] for run in runs if run is not large)


def test_gpus_without_any_gpu_is_the_hosts_fault(tmp_path: Path) -> None:
    done = tokgate("gate", "--gpus=0,1", f"--results={tmp_path}", CUDA_VISIBLE_DEVICES="")
    if "this host shows none" not in done.stderr:
        pytest.skip("this host has GPUs")
    assert done.returncode == 3
    assert "--gpus needs GPUs" in done.stderr and "Traceback" not in done.stderr


def test_shares_of_one_gate_share_its_error_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a gate is dealt out, all its verdicts together alarm falsely at most alpha of the time."""
    seen = []
    monkeypatch.setattr(
        "tokgate.gate.run.Judge", lambda gate, stored, accept, verdicts: seen.append(verdicts)
    )
    for shares in (None, "2"):
        if shares:
            monkeypatch.setenv(share.SHARES, shares)
        with Run(
            setup_of(tmp_path, "baseline"),
            profiles=["baseline"],
            workloads=[],
            with_parity=False,
            verdicts=20,
        ):
            pass
    assert seen == [20, 40]


@pytest.mark.parametrize(("reached", "code"), [(1, 0), (2, 3), (None, 3)])
def test_a_run_whose_verdicts_were_lost_is_not_green(
    tmp_path: Path, reached: int | None, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a full disk lost may have been undecided, and worse than its limit."""
    run = Results(tmp_path, {})
    run.add_verdict(Verdict(Kind.PASS, "chat-bs1[baseline]", ""))
    run.close("complete", **({} if reached is None else {"verdicts": reached}))
    assert _exit_code([Ended(0, run.folder)], strict=False) == code
    assert ("of 2 verdicts reached" in capsys.readouterr().err) == (reached == 2)
    # Beside a share that is whole and green it is not green either.
    whole = Results(tmp_path, {})
    whole.add_verdict(Verdict(Kind.PASS, "chat-bs1[baseline]", ""))
    whole.close("complete", verdicts=1)
    assert _exit_code([Ended(0, whole.folder), Ended(0, run.folder)], strict=False) == code


@pytest.mark.parametrize(
    ("kind", "signalled", "told", "code"),
    [
        (Kind.PASS, True, {}, 130),
        (Kind.PASS, False, {"interrupted": {"signal": "SIGTERM"}}, 130),
        # The control: what stopped it was no signal.
        (Kind.PASS, False, {}, 3),
        # What failed before stays visible, and a host that was unfit is no failure of the build.
        (Kind.HANG, True, {}, 1),
        (Kind.UNFIT, True, {}, 130),
    ],
)
def test_the_exit_code_of_an_interrupted_run(
    tmp_path: Path, kind: Kind, signalled: bool, told: dict[str, object], code: int
) -> None:
    run = Results(tmp_path, {})
    run.add_verdict(Verdict(kind, "chat-bs1[baseline]", ""))
    run.close("interrupted", **told)
    assert _exit_code([Ended(2, run.folder, signalled)], strict=False) == code
