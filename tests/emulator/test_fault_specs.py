"""Fault specs: what is refused, what each means, and which cannot happen."""

from __future__ import annotations

import pytest

from tokgate.emulator import command_line, faults
from tokgate.errors import UsageFault

EAGLE3 = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "d"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no-such", "no fault 'no-such'"),
        ("stal", "did you mean 'stall'"),
        ("capture-hang", "needs an argument"),
        ("capture-hang:verify", "none of target-verify"),
        ("capture-hang:draft-extend@3", "no rank"),
        ("stall:x", "no number"),
        ("stall:1.5", "positive number"),
        ("slow:0", "positive number"),
        ("abort@TP1", "cannot name a rank"),
        ("accept-one:2", "takes no argument"),
        ("odd-rank:3", "no rank"),
        ("stall:4/0", "no number of launches"),
        ("stall:4/x", "no number of launches"),
    ],
)
def test_bad_fault_specs(spec: str, message: str) -> None:
    with pytest.raises(faults.FaultSpecError, match=message):
        faults.parse(spec)


def test_a_fault_of_some_launches_is_known_by_the_launch_seed() -> None:
    specs = ["capture-hang:draft-extend@TP1/3", "stall"]
    due = [seed for seed in range(9) if "capture-hang" in faults.Faults(specs, seed)]
    assert due == [2, 5, 8]
    assert "capture-hang" not in faults.Faults(specs)
    assert "capture-hang" in faults.Faults(["capture-hang:draft-extend"])
    assert all("stall" in faults.Faults(specs, seed) for seed in range(9))
    assert faults.Faults(specs, 2).has("capture-hang", "draft-extend", 1)


def test_every_fault_is_documented_and_parses() -> None:
    arguments = {"capture-hang": ":draft-extend@TP3", "start-exit": ":weights", "odd-rank": ":TP2"}
    for name, kind in faults.KINDS.items():
        assert name in faults.overview()
        assert kind.help
        assert faults.parse(name + arguments.get(name, "")).name == name
    with pytest.raises(UsageFault, match="capture-hang:KIND"):
        command_line.read(["--model-path", "m", "--fault", "nothing"])


@pytest.mark.parametrize(
    ("spec", "given_flags", "reason"),
    [
        ("capture-hang:draft-extend", [], "it is not captured"),
        ("capture-hang:target-decode", EAGLE3, "it is not captured"),
        ("capture-hang:target-decode@TP3", ["--tp-size", "2"], "no rank TP3"),
        ("capture-hang:target-decode", ["--disable-cuda-graph"], "it is not captured"),
        ("odd-rank:TP1", [], "no rank TP1"),
        ("accept-one", [], "no speculation"),
        ("not-replayed", ["--disable-cuda-graph"], "no graphs"),
        ("capture-hang:target-verify@TP1", [*EAGLE3, "--tp-size", "2"], ""),
        ("accept-one", EAGLE3, ""),
        ("stall", [], ""),
    ],
)
def test_a_fault_that_cannot_happen_here_is_said(
    spec: str, given_flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line.read(["--model-path", "m", "--scenario", "steady", "--fault", spec, *given_flags])
    said = capsys.readouterr().err
    assert (f"warning: fault {spec} cannot happen here: {reason}" in said) == bool(reason)
    assert bool(said) == bool(reason)
