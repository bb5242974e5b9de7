"""Expected graphs against what real logs captured; where the attention mode is inert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokgate.sglang import log_events as ev
from tokgate.sglang.attention import attention_mode_effect
from tokgate.sglang.graphs import expected_graphs
from tokgate.sglang.http import resolved
from tokgate.sglang.log import read_events

SAMPLES = Path(__file__).parent / "samples"


@pytest.mark.parametrize(
    "name",
    [
        "0.5.13.post1/baseline-graphs.log",
        "0.5.13.post1/eagle3-graphs.log",
        "0.5.15.post1/baseline-graphs.log",
        "0.5.15.post1/baseline-eager.log",
        "0.5.15.post1/eagle3-accept-2.5.log",
        "0.5.15.post1/eagle3-eager.log",
        "0.5.15.post1/eagle3-graphs-attention-decode.log",
    ],
)
def test_real_logs_captured_what_is_expected(name: str) -> None:
    events = list(read_events([(SAMPLES / name).read_bytes()]))
    arguments = next(resolved(dict(e.values)) for e in events if isinstance(e, ev.ServerArgs))
    expected = expected_graphs(
        name.partition("/")[0],
        decode_graphs=arguments["cuda_graph_decode"] != "disabled",
        speculative=bool(arguments["speculative_algorithm"]),
        steps=arguments["speculative_num_steps"],
        draft_backend=arguments["attention_backend"],
    )
    assert tuple(e.kind for e in events if isinstance(e, ev.CaptureEnd)) == expected.captures


@pytest.mark.parametrize(
    ("version", "backend", "steps", "launches"),
    [
        ("0.5.15.post1", "triton", 3, 3),
        ("0.5.15.post1", "triton", 1, 2),
        ("0.5.15.post1", "fa3", 3, 2),
        ("0.5.23", "fa3", 3, 3),
        ("0.5.13.post1", "flashinfer", 3, 2),
        ("0.5.14", "flashinfer", 3, 3),
        ("0.5.15", "wave", 3, 2),
    ],
)
def test_launches_per_step(version: str, backend: str, steps: int, launches: int) -> None:
    found = expected_graphs(version, decode_graphs=True, speculative=True, steps=steps, draft_backend=backend)
    assert found.launches_per_step == launches
    assert bool(found.why) == (launches < 3)


def test_off_baseline_and_ranks() -> None:
    off = expected_graphs("0.5.15", decode_graphs=False, speculative=True)
    assert (off.captures, off.launches_per_step) == ((), 0)
    assert expected_graphs("0.5.15", decode_graphs=True, speculative=False).launches_per_step == 1
    assert expected_graphs("0.5.11", decode_graphs=True, speculative=False).draft_on_all_ranks
    assert not expected_graphs("0.5.12", decode_graphs=True, speculative=False).draft_on_all_ranks


def arguments_of(name: str) -> dict[str, Any]:
    return resolved(json.loads((SAMPLES / name).read_text()))


def test_the_mode_is_inert_on_the_real_dense_server() -> None:
    found = attention_mode_effect(
        arguments_of("0.5.15.post1/eagle3.server_info.json"),
        architectures=["LlamaForCausalLM"],
        hybrid_line=False,
        version="0.5.15.post1",
    )
    assert found.real is False
    assert "one backend (triton)" in found.why
    assert "flashinfer" in found.remedy and "0.5.17" in found.remedy


def test_where_the_mode_is_real_or_unknown() -> None:
    dense = arguments_of("0.5.15.post1/eagle3.server_info.json")
    assert attention_mode_effect(dense, hybrid_line=True).real is True
    assert attention_mode_effect(dense, architectures=["DeepseekV3ForCausalLM"]).real is True
    assert attention_mode_effect(dense, architectures=["KimiK25ForConditionalGeneration"]).real is True
    split = dense | {"prefill_attention_backend": "flashinfer"}
    assert attention_mode_effect(split).real is True
    assert attention_mode_effect(split, hybrid_line=False).real is None
    assert attention_mode_effect({"speculative_algorithm": "EAGLE3"}).real is None
    base = attention_mode_effect(arguments_of("0.5.15.post1/base.server_info.json"))
    assert base.real is False and "no speculation" in base.why
    assert attention_mode_effect(dense, version="0.5.18").remedy.endswith("triton")
