"""Results: complete after a crash, whole or absent after a full disk, readable again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokgate.errors import ResultsUnwritable, SampleFault
from tokgate.gate.results import Results, find_run, read_run, read_verdicts
from tokgate.load.sample import Sample, read_samples, write_json
from tokgate.verdict import Kind, Verdict, exit_code

Make = Callable[..., Sample]
VERDICT = Verdict(
    Kind.NET_LOSS, "chat-bs1[eagle3-graphs]", "59.6 vs 82.5 tok/s", body=("a", "b"), evidence={"x": 1.5}
)


def test_samples_and_verdicts_are_read_back_equal(tmp_path: Path, make_sample: Make) -> None:
    results = Results(tmp_path, {"engine": "emulated"})
    sample = make_sample({"output_tok_s": 82.5})
    path = results.add_sample(sample)
    results.add_verdict(VERDICT)
    assert read_run(find_run(tmp_path, "latest"))["status"] == "running"
    results.close("complete")
    folder = find_run(tmp_path, results.name)
    assert read_run(folder)["status"] == "complete"
    assert read_samples(folder / "samples") == [sample] == read_samples(path)
    assert read_verdicts(folder) == [VERDICT]


def test_a_line_cut_short_by_a_crash_is_dropped_and_others_are_not(tmp_path: Path) -> None:
    results = Results(tmp_path, {})
    results.add_verdict(VERDICT)
    with (results.folder / "verdicts.jsonl").open("a") as file:
        file.write('{"kind": "PA')
    assert read_verdicts(results.folder) == [VERDICT]
    (results.folder / "verdicts.jsonl").write_text('{"kind": "PA\n{}\n')
    with pytest.raises(SampleFault, match=r"verdicts\.jsonl:1: not a verdict"):
        read_verdicts(results.folder)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"a": 1})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ResultsUnwritable, match="No space left on device"):
        write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_nan_is_never_stored(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"a": float("nan")})


def test_an_unknown_run_names_those_that_exist(tmp_path: Path) -> None:
    results = Results(tmp_path, {})
    with pytest.raises(SampleFault) as caught:
        find_run(tmp_path, "nonesuch")
    assert caught.value.details == (f"runs there: {results.name}",)


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_any_json_is_a_sample_or_a_fault(tmp_path_factory: pytest.TempPathFactory, data: object) -> None:
    path = tmp_path_factory.getbasetemp() / "any.sample.json"
    path.write_text(json.dumps(data))
    with pytest.raises(SampleFault):
        read_samples(path)


def test_a_loss_beyond_the_limit_is_never_green() -> None:
    """One stored session cannot call a build slower, but ten times slower must not look green either."""
    green = Verdict(Kind.PASS, "startup[p]", "")
    undecided = Verdict(Kind.INCONCLUSIVE, "w[p]", "", evidence={"beyond_limit": False})
    assert exit_code([green, undecided]) == 0
    assert exit_code([green, Verdict(Kind.INCONCLUSIVE, "w[p]", "", evidence={"beyond_limit": True})]) == 3


@pytest.mark.parametrize(
    ("kinds", "strict", "code"),
    [
        ([Kind.PASS], False, 0),
        ([Kind.PASS, Kind.INCONCLUSIVE], False, 0),
        ([Kind.PASS, Kind.INCONCLUSIVE], True, 3),
        ([Kind.INCONCLUSIVE], False, 3),
        ([Kind.NOT_APPLICABLE], False, 3),
        ([], False, 3),
        ([Kind.PASS, Kind.UNFIT], False, 3),
        ([Kind.UNFIT, Kind.HANG], False, 1),
        ([Kind.PASS, Kind.MISSING], False, 1),
        ([Kind.IMPROVED, Kind.VACUOUS], False, 0),
    ],
)
def test_exit_codes(kinds: list[Kind], strict: bool, code: int) -> None:
    verdicts = [Verdict(kind, "w[p]", "") for kind in kinds]
    assert exit_code(verdicts, strict_inconclusive=strict) == code
