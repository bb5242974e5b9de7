"""``tokgate judge`` and ``tokgate calibrate`` as they are called."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tokgate.analysis.calibration_file import read_calibration, write_calibration
from tokgate.cli import run
from tokgate.load.sample import Request, Void

GOOD = {"unit": "tok/s", "better": "higher", "launches": [[900, 905, 899, 902]] * 3}


@pytest.fixture
def write(tmp_path):
    def put(name: str, data: object) -> str:
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        return str(path)

    return put


def launches(factor: float, count: int = 6, seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    level = rng.normal(0, 0.003, (count, 1))
    values = 900 * factor * np.exp(level + rng.normal(0, 0.005, (count, 4)))
    return {"unit": "tok/s", "better": "higher", "launches": values.tolist()}


def judged(capsys, *arguments: str) -> tuple[int, dict]:
    capsys.readouterr()
    code = run(["judge", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("factor", "verdict", "code"), [(1.0, "PASS", 0), (0.9, "REGRESSION", 1), (1.1, "IMPROVED", 0)]
)
def test_planted_changes_come_out_with_their_exit_codes(write, capsys, factor, verdict, code):
    a, b = write("a.json", launches(1.0)), write("b.json", launches(factor, seed=1))
    got, data = judged(capsys, a, b)
    assert (got, data["verdict"]) == (code, verdict)
    assert data["interval"][0] <= data["ratio"] <= data["interval"][1]
    assert data["n"] == 6 and data["blocks_needed"] == 0 and data["smallest_detectable"] > 0


def test_one_launch_a_side_is_inconclusive_and_gives_what_can_be_said(write, capsys):
    a = write("a.json", {"unit": "tok/s", "better": "higher", "launches": [[82.5, 82.4, 82.6]]})
    b = write("b.json", {"unit": "tok/s", "better": "higher", "launches": [[60.4, 65.5, 50.9, 61.5, 59.5]]})
    code, data = judged(capsys, a, b)
    assert (code, data["verdict"]) == (3, "INCONCLUSIVE")
    assert data["servers"]["high"] < 0.81
    run(["judge", a, b])
    text = capsys.readouterr().out
    # Line 1 gives the levels whose ratio is the change, without the slowest quarter; the body all runs.
    assert text.startswith("INCONCLUSIVE launches tok/s: 61.87 vs 82.53 tok/s, -25.0 %")
    assert (
        "of the servers measured, all runs: 59.56 vs 82.5, 0.72x (95 % CI 0.64..0.80, 5 runs, "
        "launch effect not covered)"
    ) in text
    assert "one launch a side" in text


def test_the_text_says_what_the_json_says(write, capsys):
    a, b = write("a.json", launches(1.0)), write("b.json", launches(0.9, seed=1))
    assert run(["judge", a, b]) == 1
    text = capsys.readouterr().out
    assert text.startswith("REGRESSION launches tok/s: ")
    assert "6 blocks, limit -3.0 %" in text
    for part in ("scatter now", "smallest loss found", "slowest runs trimmed: 12 of 48"):
        assert part in text


def test_sharing_alpha_over_more_verdicts_asks_for_more(write, capsys):
    a, b = write("a.json", launches(1.0, 4)), write("b.json", launches(0.93, 4, seed=1))
    _, alone = judged(capsys, a, b, "--verdicts", "1")
    _, shared = judged(capsys, a, b, "--verdicts", "10000")
    assert (alone["verdict"], shared["verdict"]) == ("REGRESSION", "INCONCLUSIVE")
    assert shared["blocks_needed"] >= 1


BAD = {
    "not json": "{",
    "a number": "3",
    "no launches": {"unit": "tok/s", "better": "higher", "launches": []},
    "empty launch": {"unit": "tok/s", "better": "higher", "launches": [[]]},
    "zero": {"unit": "tok/s", "better": "higher", "launches": [[0.0, 1.0]]},
    "negative": {"unit": "tok/s", "better": "higher", "launches": [[-3.0]]},
    "nan": '{"unit": "tok/s", "better": "higher", "launches": [[NaN, 1.0]]}',
    "infinite": '{"unit": "tok/s", "better": "higher", "launches": [[Infinity]]}',
    "huge": {"unit": "tok/s", "better": "higher", "launches": [[1e308, 1e308]]},
    "beyond floats": {"unit": "tok/s", "better": "higher", "launches": [[10**400]]},
    "text": {"unit": "tok/s", "better": "higher", "launches": [["fast"]]},
    "boolean": {"unit": "tok/s", "better": "higher", "launches": [[True]]},
    "flat": {"unit": "tok/s", "better": "higher", "launches": [1.0, 2.0]},
    "no unit": {"better": "higher", "launches": [[1.0]]},
    "no direction": {"unit": "tok/s", "launches": [[1.0]]},
    "bad direction": {"unit": "tok/s", "better": "up", "launches": [[1.0]]},
    "unknown key": {"unit": "tok/s", "better": "higher", "launches": [[1.0]], "limt": 3},
    "a sample of no schema": {"schema": 99},
    "a list of numbers": "[1, 2]",
    "an empty list": "[]",
}


@pytest.mark.parametrize("what", BAD)
def test_bad_files_give_a_message_and_no_verdict(write, capsys, what):
    good, bad = write("good.json", GOOD), write("bad.json", BAD[what])
    for pair in ((good, bad), (bad, good)):
        assert run(["judge", *pair]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "bad.json" in err and "Traceback" not in err


def test_a_missing_file_and_bad_options_are_usage_faults(write, capsys):
    good, other = write("good.json", GOOD), write("other.json", {**GOOD, "what": "another build"})
    assert run(["judge", good, other]) in (0, 3)
    assert run(["judge", good, good + ".not"]) == 2
    for option, words in (
        (["--limit-percent", "0"], "limit"),
        (["--alpha", "2"], "alpha"),
        (["--better", "up"], "up"),
    ):
        capsys.readouterr()
        assert run(["judge", good, other, *option]) == 2
        told = capsys.readouterr().err
        assert words in told and "Traceback" not in told


def test_a_file_of_bench_is_told_apart(write, capsys):
    good, other = write("good.json", GOOD), write("bench.json", {"schema": "tokgate-bench/1", "metrics": {}})
    assert run(["judge", good, other]) == 2
    assert "bench.json: written by tokgate bench, which cannot be judged" in capsys.readouterr().err


def test_a_metric_of_launches_that_name_none_is_refused(write, capsys, tmp_path, make_sample):
    good, other = write("good.json", GOOD), write("other.json", launches(1.0))
    assert run(["judge", good, other, "--metric", "foo"]) == 2
    assert "--metric foo: " in capsys.readouterr().err
    a = store(tmp_path, "a.json", sampled(make_sample, 1.0, 1))
    b = store(tmp_path, "b.json", sampled(make_sample, 1.0, 2))
    assert judged(capsys, a, b, "--metric", "output_tok_s")[1] == judged(capsys, a, b)[1]


def test_a_build_is_not_judged_against_itself(write, capsys, tmp_path, make_sample):
    good = write("good.json", GOOD)
    (tmp_path / "link.json").symlink_to(good)
    for other in (good, str(tmp_path / "link.json"), write("copy.json", GOOD)):
        assert run(["judge", good, other]) == 2
        assert "A and B are the same" in capsys.readouterr().err
    a = store(tmp_path, "a2.json", sampled(make_sample, 1.0, 2))
    again = store(tmp_path, "b2.json", sampled(make_sample, 1.0, 2, count=4))
    run(["judge", a, again])
    assert "both sides hold runs of launch l0" in capsys.readouterr().out


def test_the_case_is_named_after_what_is_judged(capsys, tmp_path, make_sample):
    a = store(tmp_path, "a3.json", sampled(make_sample, 1.0, 2))
    other = {"profile": "eagle3-graphs", "sglang_version": "0.5.23"}
    b = store(tmp_path, "b3.json", [make_sample(890.0 + i, launch=f"x{i}", identity=other) for i in range(2)])
    run(["judge", a, b])
    text = capsys.readouterr().out
    assert " chat-bs1[eagle3-graphs] " in text.splitlines()[0]
    assert "compared with chat-bs1[baseline]" in text and "SGLang 0.5.23 against 0.5.15.post1" in text


def test_the_levels_of_line_1_have_the_ratio_that_is_told(write, capsys):
    a, b = write("a.json", launches(1.0)), write("b.json", launches(0.9, seed=1))
    run(["judge", a, b])
    words = capsys.readouterr().out.split("tok/s: ", 1)[1].split()
    now, reference, change = float(words[0]), float(words[2]), float(words[4])
    assert 100 * (now / reference - 1) == pytest.approx(change, abs=0.06)


def test_different_units_are_incomparable(write, capsys):
    a = write("a.json", GOOD)
    b = write("b.json", GOOD | {"unit": "ms"})
    code, data = judged(capsys, a, b)
    assert (code, data["verdict"]) == (1, "INCOMPARABLE")


def store(tmp_path, name: str, samples) -> str:
    path = tmp_path / name
    path.write_text(json.dumps([sample.to_json() for sample in samples]), encoding="utf-8")
    return str(path)


def sampled(make_sample, factor: float, seed: int, count: int = 5, **parts):
    rng = np.random.default_rng(seed)
    for launch in range(count):
        level = math.exp(rng.normal(0, 0.003))
        for run_number in range(4):
            yield make_sample(
                900 * factor * level * math.exp(rng.normal(0, 0.004)),
                launch=f"l{launch}",
                run=run_number,
                started_at=f"2026-01-05T10:{launch:02}:00+00:00",
                **parts,
            )


def test_stored_samples_are_judged_by_launch(make_sample, tmp_path, capsys):
    a = store(tmp_path, "a.json", sampled(make_sample, 1.0, 1))
    b = store(tmp_path, "b.json", sampled(make_sample, 0.9, 2))
    code, data = judged(capsys, a, b)
    assert (code, data["verdict"], data["n"]) == (1, "REGRESSION", 5)
    assert data["line"].startswith("REGRESSION chat-bs1[baseline] output_tok_s: ")


def test_samples_of_another_host_or_metric_are_told_apart(make_sample, tmp_path, capsys):
    a = store(tmp_path, "a.json", sampled(make_sample, 1.0, 1))
    b = store(tmp_path, "b.json", sampled(make_sample, 1.0, 2, identity={"host_class": "nvidia-h100"}))
    code, data = judged(capsys, a, b)
    assert (code, data["verdict"]) == (1, "INCOMPARABLE")
    c = store(tmp_path, "c.json", sampled(make_sample, 1.0, 3))
    assert run(["judge", a, c, "--metric", "ttft_s_p50"]) == 2
    assert "no metric 'ttft_s_p50'; there is: output_tok_s" in capsys.readouterr().err


def test_calibrate_pools_launches_and_judge_uses_them(make_sample, tmp_path, capsys):
    a = store(tmp_path, "a.json", sampled(make_sample, 1.0, 1, count=40))
    b = store(tmp_path, "b.json", sampled(make_sample, 1.0, 2, count=2))
    cal = str(tmp_path / "cal.yaml")
    assert run(["calibrate", "pool", a, "--out", cal]) == 0
    assert "20 A/A blocks" in capsys.readouterr().out
    assert run(["calibrate", "pool", a, "--out", cal]) == 2
    assert "holds these launches already" in capsys.readouterr().err
    assert run(["calibrate", "show", cal]) == 0
    out = capsys.readouterr().out
    assert "scatter of a block difference s0" in out and "true change -3.0 %: REGRESSION" in out
    # The very same figures of another build: no rule can see a change.
    newer = {"sglang_version": "0.5.23"}
    again = store(tmp_path, "again.json", sampled(make_sample, 1.0, 2, count=2, identity=newer))
    _, blind = judged(capsys, b, again)
    _, known = judged(capsys, b, again, "--calibration", cal)
    assert blind["s0"] is None and known["s0"] > 0
    assert (blind["verdict"], known["verdict"]) == ("INCONCLUSIVE", "PASS")
    other = store(tmp_path, "o.json", sampled(make_sample, 1.0, 1, identity={"profile": "eagle3-graphs"}))
    more = store(tmp_path, "p.json", sampled(make_sample, 1.0, 2, identity={"profile": "eagle3-graphs"}))
    assert run(["judge", other, more, "--calibration", cal]) == 2
    assert "calibration of profile 'baseline'" in capsys.readouterr().err


def test_judge_refuses_a_calibration_of_something_else_or_an_edited_one(make_sample, tmp_path, capsys):
    a = store(tmp_path, "a.json", sampled(make_sample, 1.0, 1, count=8))
    b = store(tmp_path, "b.json", sampled(make_sample, 1.0, 2, count=2))
    cal = tmp_path / "cal.yaml"
    assert run(["calibrate", "pool", a, "--out", str(cal)]) == 0
    sides = []
    for name, seed in (("m.json", 2), ("n.json", 3)):
        sides.append(
            store(tmp_path, name, sampled(make_sample, 1.0, seed, count=2, identity={"model": "8b"}))
        )
    assert run(["judge", *sides, "--calibration", str(cal)]) == 2
    assert "the calibration is of something else: model: calibrated" in capsys.readouterr().err
    cal.write_text(cal.read_text().replace("second: [", "second: [1.0, ", 1))
    assert run(["judge", b, a, "--calibration", str(cal)]) == 2
    assert "was edited after tokgate calibrate wrote it" in capsys.readouterr().err


def test_pool_says_what_it_leaves_out_and_mixes_no_builds(make_sample, tmp_path, capsys):
    odd = store(tmp_path, "odd.json", sampled(make_sample, 1.0, 1, count=3))
    assert run(["calibrate", "pool", odd, "--out", str(tmp_path / "c.yaml")]) == 0
    out = capsys.readouterr().out
    assert "1 A/A block added" in out and "the last launch has no counterpart" in out
    one = list(sampled(make_sample, 1.0, 1, count=1))
    other = list(sampled(make_sample, 1.0, 2, count=1, identity={"sglang_version": "9"}))
    mixed = store(tmp_path, "mixed.json", [*one, *other])
    assert run(["calibrate", "pool", mixed, "--out", str(tmp_path / "d.yaml")]) == 2
    assert "holds more than one sglang_version" in capsys.readouterr().err


def test_pooled_launches_are_not_added_to_blocks_of_a_known_form(make_sample, tmp_path, capsys):
    a = store(tmp_path, "a.json", sampled(make_sample, 1.0, 1, count=4))
    cal = tmp_path / "cal.yaml"
    assert run(["calibrate", "pool", a, "--out", str(cal)]) == 0
    known = read_calibration(cal)
    write_calibration(cal, replace(known, sessions=(), identity={**known.identity, "block": "4 runs an arm"}))
    capsys.readouterr()
    assert run(["calibrate", "pool", a, "--out", str(cal)]) == 2
    assert "says of its sessions: block: 4 runs an arm" in capsys.readouterr().err


def test_calibrate_show_takes_the_metrics_own_limit(make_sample, tmp_path, capsys, monkeypatch):
    a = store(tmp_path, "a.json", sampled(make_sample, 1.0, 1, count=40))
    monkeypatch.chdir(tmp_path)

    def shown(*options):
        assert run(["calibrate", "show", "cal.yaml", *options]) == 0
        return capsys.readouterr().out

    assert run(["calibrate", "pool", a, "--out", "cal.yaml"]) == 0
    assumed = "loss to be found 3 % (assumed: there is no perf_tests/gate.yaml)"
    assert assumed in capsys.readouterr().out
    assert assumed in shown()
    assert "-0 %" not in capsys.readouterr().out
    for folder, metric in (("mine", "output_tok_s"), ("other", "accept_length")):
        Path(folder).mkdir()
        limit = "{unit: x, better: higher, limit_percent: 7}"
        Path(folder, "gate.yaml").write_text(f"metrics:\n  {metric}: {limit}\n")
    out = shown("--config-folder=mine")
    assert "loss to be found 7 % (mine/gate.yaml)" in out
    assert "true change -7.0 %: REGRESSION" in out
    out = shown("--config-folder=other")
    assert "loss to be found 3 % (assumed: other/gate.yaml has no limit for output_tok_s)" in out
    assert "true change -3.0 %: REGRESSION" in out
    out = shown("--config-folder=mine", "--limit-percent=5")
    assert "loss to be found 5 % (as given)" in out
    assert "true change -5.0 %: REGRESSION" in out
    assert run(["calibrate", "pool", a, "--out", "new.yaml", "--config-folder=mine"]) == 0
    assert "loss to be found 7 % (mine/gate.yaml)" in capsys.readouterr().out
    Path("mine/gate.yaml").write_text("metrics: 3")
    assert run(["calibrate", "show", "cal.yaml", "--config-folder=mine"]) == 2


def counted(make_sample, passes: int, runs: int = 3, **identity: str):
    request = Request(0, "ok", 0.0, completion_tokens=512, verify_count=passes, cached_tokens=0)
    for run_number in range(runs):
        yield make_sample(
            511 / passes, metric="accept_length", run=run_number, requests=(request,), identity=identity
        )


def test_accept_length_of_a_synthetic_pair_is_compared_exactly(make_sample, tmp_path, capsys):
    """One launch a side is enough for a figure without noise, and for no other."""
    a = store(tmp_path, "a.json", counted(make_sample, 177))
    same = store(tmp_path, "b.json", counted(make_sample, 177, sglang_version="0.5.23"))
    lost = store(tmp_path, "c.json", counted(make_sample, 200))
    arguments = ("--metric", "accept_length", "--limit-percent", "1")
    code, data = judged(capsys, a, same, *arguments)
    assert (code, data["verdict"], data["method"]) == (0, "PASS", "exact counts")
    code, data = judged(capsys, a, lost, *arguments)
    assert (code, data["verdict"]) == (1, "REGRESSION")
    assert "177 passes for 511 tokens, now 200" in data["notes"][0]


def test_all_runs_void_is_no_verdict(make_sample, tmp_path, capsys):
    good = store(tmp_path, "a.json", [make_sample()])
    void = store(tmp_path, "b.json", [make_sample(void=(Void("steal", 0.5, 0.02, "share", ""),))])
    assert run(["judge", good, void]) == 2
    assert "all 1 runs are void: steal" in capsys.readouterr().err


def test_ten_thousand_samples_are_judged_at_once(write):
    """CPU time, and the quickest of three: a shared machine must not fail it."""
    from tokgate.cli import judge

    rng = np.random.default_rng(1)
    sides = [
        {"unit": "tok/s", "better": "higher", "launches": rng.normal(900 * f, 9, (40, 125)).tolist()}
        for f in (1.0, 0.99)
    ]
    a, b = (write(f"{name}.json", side) for name, side in zip("ab", sides, strict=True))
    plan = judge.plan_of(3.0, "higher", 0.01, 0.05, 1, 40)
    took = []
    for _ in range(3):
        began = time.process_time()
        series = [judge.read(Path(path), "output_tok_s", None) for path in (a, b)]
        assert judge.verdict_of(*series, "output_tok_s", plan, None).kind == "PASS"
        took.append(time.process_time() - began)
    assert min(took) < 0.2
