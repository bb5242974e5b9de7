"""Baselines: what `accept` writes is what the gate reads; what must not become a baseline does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tokgate import accepting, baselines
from tokgate.errors import ConfigFault, ResultsUnwritable, UsageFault
from tokgate.load.sample import Sample, Void

Make = Callable[..., Sample]


def accept(root: Path, samples: list[Sample], run: str = "r1", *, new_epoch: bool = False) -> list[Path]:
    return accepting.accept(
        root,
        samples,
        run=run,
        reason="first record",
        metrics=["output_tok_s", "accept_length"],
        new_epoch=new_epoch,
        tokgate_version="0.1.0",
    )


def read(root: Path) -> baselines.Baseline:
    found = baselines.read(root, "emulated-founding", "baseline", "chat-bs1")
    assert found is not None
    return found


def test_sessions_are_added_and_read_back(tmp_path: Path, make_sample: Make) -> None:
    assert baselines.read(tmp_path, "emulated-founding", "baseline", "chat-bs1") is None
    written = accept(tmp_path, [make_sample({"output_tok_s": 82.51234567}, run=i) for i in range(3)])
    assert written == [tmp_path / "emulated-founding/baseline/chat-bs1.yaml"]
    accept(tmp_path, [make_sample({"output_tok_s": 82.0})], run="r2")
    found = read(tmp_path)
    assert found.series("output_tok_s") == [[82.5123, 82.5123, 82.5123], [82.0]]
    assert found.series("accept_length") == []
    assert [s.run for s in found.sessions] == ["r1", "r2"]


def test_the_runs_of_a_metric_stand_on_one_line(tmp_path: Path, make_sample: Make) -> None:
    (path,) = accept(tmp_path, [make_sample({"output_tok_s": 80.0 + i}, run=i) for i in range(40)])
    lines = [line.strip() for line in path.read_text().splitlines()]
    assert "output_tok_s: [" + ", ".join(f"{80.0 + i}" for i in range(40)) + "]" in lines


def test_a_metric_that_is_named_twice_is_stored_once(tmp_path: Path, make_sample: Make) -> None:
    """A phase of the start that is gated is one of the phases too: a launch must not count as two."""
    accepting.accept(
        tmp_path,
        [make_sample({"startup_s": 50.0, "spawn_s": 2.0}, workload="startup")],
        run="r1",
        reason="x",
        metrics=["startup_s", "spawn_s", "startup_s"],
        new_epoch=False,
        tokgate_version="0.1.0",
    )
    stored = baselines.read(tmp_path, "emulated-founding", "baseline", "startup")
    assert (
        stored is not None and stored.series("startup_s") == [[50.0]] and stored.series("spawn_s") == [[2.0]]
    )


def test_a_changed_identity_starts_an_epoch_and_is_a_difference(tmp_path: Path, make_sample: Make) -> None:
    accept(tmp_path, [make_sample({"output_tok_s": 82.0})])
    changed = make_sample({"output_tok_s": 95.0}, workload_digest="w2", engine="cpu")
    assert baselines.differences(read(tmp_path), changed.identity) == [
        "engine: baseline emulated, now cpu",
        "workload digest: baseline w1, now w2",
    ]
    accept(tmp_path, [changed], run="r2")
    found = read(tmp_path)
    assert found.series("output_tok_s") == [[95.0]]
    assert baselines.differences(found, changed.identity) == []
    accept(tmp_path, [changed], run="r3", new_epoch=True)
    assert len(read(tmp_path).sessions) == 1


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"void": (Void("steal", 0.2, 0.02, "share", "steal 20 % of wall time"),)}, "steal 20 %"),
        ({"outcome": "http_5xx"}, "1 of 1 requests not ok"),
    ],
)
def test_a_spoiled_run_is_never_accepted(
    tmp_path: Path, make_sample: Make, spoil: dict[str, object], message: str
) -> None:
    samples = [make_sample({"output_tok_s": 82.0}), make_sample({"output_tok_s": 82.0}, run=1, **spoil)]
    with pytest.raises(UsageFault, match="cannot be accepted: 1 void or failed runs") as caught:
        accept(tmp_path, samples)
    assert message in caught.value.details[0]
    assert not list(tmp_path.iterdir())


def test_a_run_is_recorded_once(tmp_path: Path, make_sample: Make) -> None:
    accept(tmp_path, [make_sample({"output_tok_s": 82.0})])
    with pytest.raises(UsageFault, match="already holds run r1"):
        accept(tmp_path, [make_sample({"output_tok_s": 82.0})])


def test_nothing_is_written_when_one_case_cannot_be(tmp_path: Path, make_sample: Make) -> None:
    samples = [make_sample({"output_tok_s": 82.0}), make_sample({"ttft_s": 1.0}, profile="eagle3-graphs")]
    with pytest.raises(UsageFault, match=r"chat-bs1\[eagle3-graphs\] has none of the gated metrics"):
        accept(tmp_path, samples)
    assert not list(tmp_path.iterdir())


def test_a_faulty_file_is_said_with_its_line(tmp_path: Path, make_sample: Make) -> None:
    (path,) = accept(tmp_path, [make_sample({"output_tok_s": 82.0})])
    path.write_text(path.read_text().replace("output_tok_s: [82.0]", "output_tok_s: [fast]"))
    with pytest.raises(ConfigFault) as caught:
        read(tmp_path)
    assert "output_tok_s[0]: input should be a valid number" in caught.value.details[0]


def test_an_unwritable_folder_is_said(tmp_path: Path, make_sample: Make) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsUnwritable, match="cannot be written"):
        accept(tmp_path / "file", [make_sample({"output_tok_s": 82.0})])


def test_orphans_are_found(tmp_path: Path, make_sample: Make) -> None:
    accept(tmp_path, [make_sample({"output_tok_s": 82.0}), make_sample({"output_tok_s": 1.0}, profile="old")])
    orphans = baselines.orphans(tmp_path, "emulated-founding", [("baseline", "chat-bs1")])
    assert orphans == [tmp_path / "emulated-founding/old/chat-bs1.yaml"]


def test_figures_edited_by_hand_are_refused_with_their_line(tmp_path: Path, make_sample: Make) -> None:
    (path,) = accept(tmp_path, [make_sample({"output_tok_s": 82.5})])
    good = path.read_text()
    path.write_text(good.replace("82.5", "72.5"))
    with pytest.raises(ConfigFault, match=r"chat-bs1\.yaml") as caught:
        read(tmp_path)
    assert "edited after `tokgate accept` wrote it" in str(caught.value)
    assert f"git checkout {path} brings it back, tokgate accept records a new session" in str(caught.value)
    line = next(
        n for n, text in enumerate(good.splitlines(), 1) if "digest:" in text and "_digest" not in text
    )
    assert f":{line}: epochs[0].sessions[0].digest" in str(caught.value)
    # The reason is for people, who may word it better.
    path.write_text(good.replace("reason: first record", "reason: the very first record"))
    assert read(tmp_path).series("output_tok_s") == [[82.5]]


def test_a_session_that_was_pasted_is_refused_with_its_line(tmp_path: Path, make_sample: Make) -> None:
    """Three copies of one session are no three sessions."""
    (path,) = accept(tmp_path, [make_sample({"output_tok_s": 82.5})])
    good = path.read_text()
    at = good.index("  - run: r1")
    path.write_text(good + good[at:] * 2)
    first, *others = (n for n, text in enumerate(path.read_text().splitlines(), 1) if "- run: r1" in text)
    with pytest.raises(ConfigFault, match="2 faults") as caught:
        read(tmp_path)
    for line in others:
        assert f"{path}:{line}: epochs[0].sessions" in str(caught.value)
    assert f"run r1 is there twice, first on line {first}: remove one" in str(caught.value)
    # The control: another run with the same figures is a session, and so is the same run in a later epoch.
    path.write_text(good)
    accept(tmp_path, [make_sample({"output_tok_s": 82.5})], run="r2")
    assert len(read(tmp_path).sessions) == 2
    accept(tmp_path, [make_sample({"output_tok_s": 90.0})], run="r3", new_epoch=True)
    accept(tmp_path, [make_sample({"output_tok_s": 82.5})], run="r1", new_epoch=True)
    assert [s.run for s in read(tmp_path).sessions] == ["r1"]


def test_a_session_whose_digest_was_taken_out_is_refused(tmp_path: Path, make_sample: Make) -> None:
    """Else deleting one line would undo the check."""
    (path,) = accept(tmp_path, [make_sample({"output_tok_s": 82.5})])
    good = path.read_text()
    path.write_text("\n".join(text for text in good.splitlines() if not text.strip().startswith("digest:")))
    with pytest.raises(ConfigFault, match="digest") as caught:
        read(tmp_path)
    assert "sessions[0]" in str(caught.value)


def test_digests_of_earlier_epochs_survive_a_change_of_identity(tmp_path: Path, make_sample: Make) -> None:
    accept(tmp_path, [make_sample({"output_tok_s": 82.5})])
    accept(tmp_path, [make_sample({"output_tok_s": 1e-05})], run="r2", new_epoch=True)
    assert read(tmp_path).series("output_tok_s") == [[1e-05]]


def test_an_unknown_key_is_answered_with_the_keys_of_the_file(tmp_path: Path, make_sample: Make) -> None:
    (path,) = accept(tmp_path, [make_sample({"output_tok_s": 82.5})])
    path.write_text(path.read_text() + "zzz: 1\n")
    with pytest.raises(ConfigFault, match=r"zzz: unknown key; known here: epochs, identity, schema$"):
        read(tmp_path)
