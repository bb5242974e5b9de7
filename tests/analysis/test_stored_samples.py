"""Stored Samples that were edited: a value of another type is a fault of the file, never a figure or a traceback."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tokgate.cli import run
from tokgate.errors import SampleFault
from tokgate.load.sample import Sample, read_samples

ROOT = Path(__file__).parents[2]
RECORDED = sorted((ROOT / "tests/assets/h200").glob("*/samples/eagle3-graphs/chat-bs8/*r00.sample.json"))[0]

ODD = [
    (("metrics", "output_tok_s"), ["900", math.nan, math.inf, None, True, [900], 10**400]),
    (("duration_s",), ["2", None, math.nan, 10**400]),
    (("contention", "steal_s"), ["0", None]),
    (("counters", "decode_graph_passes"), ["0", None]),
    (("identity", "profile"), [None, 3, ["baseline"]]),
    (("identity", "run"), ["0", 0.5, None, True]),
    (("identity", "started_at"), [None, 2026]),
    (("audit", "lag_p99_s"), ["0", math.nan]),
    (("requests", 0, "completion_tokens"), [-1, "64", 64.5, 10**30]),
    (("requests", 0, "verify_count"), [-1, "64", True]),
    (("requests", 0, "accept_histogram"), ["11", [1, None], {"a": 1}]),
    (("requests", 0), [None, "request", 3]),
    (("requests",), [None, "requests", {"a": 1}]),
    (("void",), [[{"cause": "steal"}], [None], 3]),
]


@pytest.mark.parametrize(("where", "value"), [(where, value) for where, values in ODD for value in values])
def test_an_odd_value_is_a_fault_of_the_file(
    where: tuple[str | int, ...], value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(RECORDED.read_text())
    here = data
    for part in where[:-1]:
        here = here.setdefault(part, {}) if isinstance(here, dict) else here[part]
    here[where[-1]] = value
    path = tmp_path / "odd.sample.json"
    path.write_text(json.dumps(data))
    with pytest.raises(SampleFault, match=r"odd\.sample\.json: not a sample"):
        read_samples(path)
    for metric in ("output_tok_s", "accept_length"):
        assert run(["judge", str(path), str(RECORDED), "--metric", metric]) == 2
        assert str(path) in capsys.readouterr().err


def test_copies_of_a_run_are_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three copies of a file are what one is."""
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.sample.json").write_bytes(RECORDED.read_bytes())
    others = RECORDED.parent
    assert run(["judge", str(tmp_path), str(others)]) == 2
    assert "holds a run more than once: run 0 of launch" in capsys.readouterr().err
    assert run(["judge", str(RECORDED), str(others)]) in (0, 1, 3)


def test_the_control_is_read_back_equal() -> None:
    (sample,) = read_samples(RECORDED)
    assert Sample.from_json(json.loads(json.dumps(sample.to_json()))) == sample
