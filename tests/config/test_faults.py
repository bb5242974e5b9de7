"""Configuration faults: all of them at once, each with file:line, key and the nearest known key."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokgate.config.document import Document
from tokgate.config.engine import load_engine, resolve_engine
from tokgate.config.gate import load_gate
from tokgate.config.names import EXPECTED
from tokgate.config.profiles import load_profiles
from tokgate.config.workloads import load_workloads
from tokgate.errors import ConfigFault, UsageFault

PERF_TESTS = Path(__file__).parents[2] / "perf_tests"


def emulated_workloads(path: Path) -> Any:
    return load_workloads(path, "emulated")


def faults(text: str, folder: Path, load: Callable[[Path], Any]) -> list[str]:
    """Fault lines of a file, without its path."""
    path = folder / "file.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigFault) as caught:
        load(path)
    lines = caught.value.details or (caught.value.headline,)
    assert all(line.startswith(str(path)) for line in lines)
    return [line.removeprefix(f"{path}").lstrip(":").strip() for line in lines]


def test_shipped_files_have_no_fault() -> None:
    profiles = load_profiles(PERF_TESTS / "profiles.yaml").profiles
    assert {"baseline", "baseline-eager", "eagle3-graphs", "eagle3-eager", "eagle3-attn-decode"} <= set(
        profiles
    )
    assert load_workloads(PERF_TESTS / "workloads.yaml", "gpu").workloads
    assert load_gate(PERF_TESTS / "gate.yaml").metrics["output_tok_s"].unit == "tok/s"


def test_profiles_list_every_fault_in_line_order(tmp_path: Path) -> None:
    text = """\
profiles:
  a: {cuda_graph: off, tp: "x"}
  a: {}
  b: {extends: zz}
  c: {extends: d}
  d: {extends: c}
  e: {attention_mode: decode}
  f: {speculation: {stps: 3, steps: 0}}
  g: {model: nowhere, reference: bb}
  ../h: {}
models:
  m: {}
default_model: {gpu: mm}
"""
    assert faults(text, tmp_path, load_profiles) == [
        "2: profiles.a.cuda_graph: unknown key; did you mean 'cuda_graphs'?",
        "2: profiles.a.tp: input should be a valid integer, got 'x'",
        "3: profiles.a: given twice, first on line 2",
        "4: profiles.b.extends: no profile 'zz'; known here: ../h, a, b, c, d, e, f, g",
        "5: profiles.c.extends: goes round in a circle: c -> d -> c",
        "6: profiles.d.extends: goes round in a circle: d -> c -> d",
        "7: profiles.e.attention_mode: is the attention mode of speculative verification; "
        "this profile has no 'speculation'",
        "8: profiles.f.speculation.steps: input should be greater than or equal to 1, got 0",
        "8: profiles.f.speculation.stps: unknown key; did you mean 'steps'?",
        "9: profiles.g.model: no model 'nowhere'; known here: m",
        "9: profiles.g.reference: no profile 'bb'; did you mean 'b'?",
        f"10: profiles.../h: is no name: expected {EXPECTED}",
        "12: models.m: give either 'synthetic' or 'target'",
        "13: default_model.gpu: no model 'mm'; did you mean 'm'?",
    ]


def test_workloads_list_every_fault(tmp_path: Path) -> None:
    text = """\
workloads:
  a: {concurrency: 8, requests: 4, output_tokens: 1}
  b: {requests: 1, output_tokens: 8, prompts: {kind: trace}}
  c:
    requests: 1
    output_tokens: 8
    arrival: {process: poisson}
  d: {requests: 2, output_tokens: 8, concurrency: 2, size_on: {gpu: {requests: 1}}, engine: [gpu]}
  e/f: {requests: 1, output_tokens: 8}
"""
    assert faults(text, tmp_path, emulated_workloads) == [
        "2: workloads.a.output_tokens: input should be greater than or equal to 2, got 1",
        "2: workloads.a.requests: 4 is fewer than the concurrency, 8",
        "3: workloads.b.prompts: a trace needs 'path'",
        "7: workloads.c.arrival: needs 'rate_per_s' (requests a second)",
        "8: workloads.d.engine: unknown key; did you mean 'engines'?",
        "8: workloads.d.size_on.gpu.requests: 1 is fewer than the concurrency, 2",
        f"9: workloads.e/f: is no name: expected {EXPECTED}",
    ]


def test_a_limit_without_unit_is_a_fault(tmp_path: Path) -> None:
    text = "metrics:\n  output_tok_s: {better: up, limit_percent: -3}\n"
    text += "  ../m: {better: higher, limit_percent: 3, unit: s}\n"
    assert faults(text, tmp_path, load_gate) == [
        "2: metrics.output_tok_s.better: input should be 'higher' or 'lower', got 'up'",
        "2: metrics.output_tok_s.limit_percent: input should be greater than 0, got -3",
        "2: metrics.output_tok_s.unit: is missing",
        f"3: metrics.../m: is no name: expected {EXPECTED}",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1: profiles: is missing"),
        ("profiles: [1, 2]", "1: profiles: holds no profile"),
        ("- a\n- b\n", "1: expected keys with values at the top"),
        ("profiles: {a: [}", "1: not valid YAML: expected the node content, but found '}'"),
        ("profiles: &x {a: *x}", "1: profiles.a: refers to itself through an anchor"),
    ],
)
def test_files_that_are_not_what_they_should_be(text: str, expected: str, tmp_path: Path) -> None:
    assert expected in faults(text, tmp_path, load_profiles)


def test_a_missing_and_an_undecodable_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigFault, match="cannot be read: No such file"):
        load_profiles(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"profiles: {\xe9: 1}")
    with pytest.raises(ConfigFault, match=r"is not UTF-8 \(byte 11\)"):
        load_profiles(tmp_path / "latin.yaml")


@given(st.text(max_size=200))
def test_any_text_gives_profiles_or_a_config_fault(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(ConfigFault):
        load_profiles(path)


def test_line_of_a_missing_key_is_that_of_its_section(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("a:\n  b:\n    c: 1\n")
    assert Document(path).line(("a", "b", "none")) == 2


def test_profiles_inherit_and_keep_their_own(tmp_path: Path) -> None:
    path = tmp_path / "profiles.yaml"
    path.write_text(
        """\
profiles:
  base: {tp: 2, env: {NCCL_PROTO: LL, NCCL_ALGO: Ring}, cuda_graphs: on}
  spec: {extends: base, speculation: {steps: 3}, env: {NCCL_ALGO: Tree}}
  decode: {extends: spec, attention_mode: decode, cuda_graphs: off}
"""
    )
    profiles = load_profiles(path).profiles
    decode = profiles["decode"]
    assert decode.tp == 2
    assert decode.env == {"NCCL_PROTO": "LL", "NCCL_ALGO": "Tree"}
    assert not decode.cuda_graphs
    assert decode.speculation is not None
    assert (decode.speculation.steps, decode.speculation.attention_mode) == (3, "decode")
    assert profiles["base"].digest != profiles["spec"].digest
    assert profiles["spec"].digest != decode.digest


def test_a_workload_has_a_size_and_a_digest_of_its_own_on_each_engine(tmp_path: Path) -> None:
    path = tmp_path / "workloads.yaml"
    path.write_text(
        "workloads:\n"
        "  a: {requests: 1, output_tokens: 8, size_on: {gpu: {output_tokens: 512, length_tokens: 9}}}\n"
    )
    small, large = load_workloads(path, "cpu").get("a"), load_workloads(path, "gpu").get("a")
    assert (small.output_tokens, large.output_tokens) == (8, 512)
    assert large.prompts.length_tokens == 9
    assert small.digest != large.digest
    with pytest.raises(UsageFault, match="no workload 'b'"):
        load_workloads(path, "gpu").get("b")


def test_engine_files(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text("kind: gpu\nversion: 0.5.15.post1\n")
    with pytest.raises(ConfigFault) as caught:
        load_engine(path)
    assert "must name its interpreter" in caught.value.details[0]
    path.write_text("kind: gpu\nversion: 0.5.15.post1\npython: /opt/sglang/bin/python\nenv: {A: b}\n")
    engine = load_engine(path)
    assert (engine.kind, engine.python, engine.name) == ("gpu", "/opt/sglang/bin/python", tmp_path.name)
    with pytest.raises(UsageFault, match="no engine named 'gpuu'"):
        resolve_engine("gpuu", tmp_path)
    assert resolve_engine("emulated:steady", tmp_path).scenario == "steady"
