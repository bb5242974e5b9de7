"""Real answers of three servers, the names of all versions, and what happens when something is absent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tokgate.config.profiles import Profile, Speculation
from tokgate.errors import EngineFault
from tokgate.sglang.http import (
    Generation,
    Override,
    graphs,
    overrides,
    read_generation,
    read_model_info,
    read_server_info,
    resolved,
)

SAMPLES = Path(__file__).parent / "samples"


def answer(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SAMPLES / name).read_text())
    return found


def last_meta(name: str) -> dict[str, Any]:
    lines = (SAMPLES / name).read_text().splitlines()
    data = [json.loads(line[6:]) for line in lines if line.startswith('data: {"text"')]
    found: dict[str, Any] = data[-1]["meta_info"]
    return found


EAGLE = answer("0.5.15.post1/eagle3.server_info.json")
BASE = answer("0.5.15.post1/base.server_info.json")
CPU = answer("0.5.23-cpu/eagle3.server_info.json")


def test_server_info_of_three_servers() -> None:
    eagle, base, cpu = (read_server_info(item) for item in (EAGLE, BASE, CPU))
    assert (eagle.version, eagle.max_total_tokens, eagle.max_running_requests) == ("0.5.15.post1", 1637427, 8)
    assert eagle.average_accept_length == 3.125
    assert base.average_accept_length is None
    assert eagle.memory_gb == {"weight": 2.07, "kvcache": 49.97, "graph": 0.06}
    assert (cpu.version, cpu.max_running_requests, cpu.average_accept_length) == ("0.5.23", 48, 1.87)


def test_other_shapes_and_absences() -> None:
    nested = {
        "server_args": {"tp_size": 2},
        "internal_states": {"avg_spec_accept_length": 2.0},
        "version": "1",
    }
    info = read_server_info(nested)
    assert info.arguments["tp_size"] == 2
    assert info.average_accept_length == 2.0
    empty = read_server_info({})
    assert (empty.version, empty.max_total_tokens, empty.max_running_requests) == (None, None, None)
    assert (empty.average_accept_length, empty.memory_gb, empty.states) == (None, {}, ())
    assert resolved({}) == {}
    assert overrides(Profile(name="p", tp=8, cuda_graphs=False), {}) == []


@pytest.mark.parametrize("wrong", [None, [], "text", 3])
def test_an_answer_that_is_no_object_is_a_fault(wrong: object) -> None:
    with pytest.raises(EngineFault, match="expected an object"):
        read_server_info(wrong)
    with pytest.raises(EngineFault, match="expected an object"):
        read_model_info(wrong)


def test_model_info() -> None:
    info = read_model_info(answer("0.5.15.post1/eagle3.model_info.json"))
    assert info.architectures == ("LlamaForCausalLM",)
    assert (info.model_path, info.model_type, info.is_generation) == ("/models/target", "llama", True)
    assert read_model_info({}).model_path is None


def test_graphs_of_both_eras() -> None:
    newer = graphs(read_server_info(EAGLE))
    assert (newer.decode, newer.decode_max_bs, newer.prefill) == ("full", 8, "disabled")
    assert newer.decode_bs == (1, 2, 3, 4, 5, 6, 7, 8)
    older = {"disable_cuda_graph": False, "cuda_graph_max_bs": 8, "cuda_graph_bs": [1, 2, 4, 8]}
    assert graphs(read_server_info(older)).prefill == "disabled"
    piecewise = graphs(read_server_info(older | {"disable_piecewise_cuda_graph": False}))
    assert (piecewise.decode_on, piecewise.prefill_on, piecewise.decode_bs) == (True, True, (1, 2, 4, 8))
    off = graphs(read_server_info(older | {"disable_cuda_graph": True, "enable_piecewise_cuda_graph": True}))
    assert (off.decode_on, off.prefill_on) == (False, False)
    unknown = graphs(read_server_info({}))
    assert (unknown.decode_on, unknown.prefill_on) == (None, None)


def test_resolved_says_what_differs_between_two_servers() -> None:
    one, two = resolved(EAGLE), resolved(BASE)
    assert {key for key in one if one[key] != two[key]} == {
        "speculative_algorithm",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
        "cuda_graph_decode_bs",
    }
    assert not {"random_seed", "port", "model_path", "max_total_num_tokens"} & set(one)
    json.dumps(one)


ASKED = Profile(
    name="eagle3",
    cuda_graph_max_bs=8,
    prefill_cuda_graphs=False,
    attention_backend="triton",
    sampling_backend="pytorch",
    mem_fraction=0.4,
    max_running_requests=8,
    context_length=4096,
    radix_cache=False,
    speculation=Speculation(steps=3, topk=1, draft_tokens=4),
)


def test_a_server_that_did_as_asked_has_no_overrides() -> None:
    assert overrides(ASKED, EAGLE) == []
    assert overrides(replace(ASKED, speculation=None), BASE) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"max_running_requests": 64}, Override("max_running_requests", 64, 8)),
        ({"attention_backend": "fa3"}, Override("attention_backend", "fa3", "triton")),
        ({"cuda_graphs": False}, Override("cuda_graphs", False, True)),
        ({"prefill_cuda_graphs": True}, Override("prefill_cuda_graphs", True, False)),
        ({"cuda_graph_max_bs": 64}, Override("cuda_graph_max_bs", 64, 8)),
        ({"radix_cache": True}, Override("radix_cache", True, False)),
        ({"tp": 8}, Override("tp", 8, 1)),
        ({"random_seed": 42}, Override("random_seed", 42, EAGLE["random_seed"])),
        (
            {"speculation": Speculation(steps=3, topk=1, draft_tokens=8)},
            Override("speculation.draft_tokens", 8, 4),
        ),
        (
            {"speculation": Speculation(steps=3, topk=1, draft_tokens=4, attention_mode="decode")},
            Override("attention_mode", "decode", "prefill"),
        ),
        ({"speculation": None}, Override("speculation", "none", "EAGLE3")),
    ],
)
def test_each_override_is_found(change: dict[str, Any], expected: Override) -> None:
    assert overrides(replace(ASKED, **change), EAGLE) == [expected]


def test_speculation_that_did_not_happen() -> None:
    assert Override("speculation", "EAGLE3", "none") in overrides(ASKED, BASE)


def test_the_cap_of_48_is_seen_only_by_asking_the_server() -> None:
    asked = Profile(name="p", cuda_graphs=False, max_running_requests=64, speculation=Speculation(steps=3))
    assert Override("max_running_requests", 64, 48) in overrides(asked, CPU)


def test_the_final_event_of_real_servers() -> None:
    eagle = read_generation(last_meta("0.5.15.post1/eagle3.generate.sse"))
    assert (eagle.completion_tokens, eagle.verify_count) == (24, 10)
    assert eagle.accept_length == pytest.approx(2.3)
    assert eagle.reported_accept_length == pytest.approx(2.4)
    assert eagle.accept_histogram == (4, 1, 3, 2)
    assert (eagle.accepted_drafts, eagle.proposed_drafts, eagle.finish_reason) == (13, 30, "length")
    base = read_generation(last_meta("0.5.15.post1/base.generate.sse"))
    assert (base.completion_tokens, base.verify_count, base.accept_length) == (24, None, None)
    assert (base.accept_histogram, base.accepted_drafts) == (None, None)


@pytest.mark.parametrize(
    ("names", "version"),
    [
        (("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"), "0.5.9"),
        (("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"), "0.5.11"),
        (
            ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
            "0.5.23",
        ),
    ],
)
def test_the_names_of_all_versions(names: tuple[str, str, str], version: str) -> None:
    accepted, proposed, histogram = names
    meta = {
        accepted: 13,
        proposed: 30,
        histogram: [4, 1, 3, 2],
        "spec_verify_ct": 10,
        "completion_tokens": 24,
    }
    found = read_generation(meta)
    assert (found.accepted_drafts, found.proposed_drafts, found.accept_histogram) == (13, 30, (4, 1, 3, 2))
    assert found.accept_length == pytest.approx(2.3), version


def test_absent_is_none_and_nonsense_is_absent() -> None:
    assert read_generation(None) == Generation()
    assert read_generation({"spec_verify_ct": 0, "completion_tokens": 5}).accept_length is None
    odd = read_generation(
        {
            "spec_verify_ct": "7",
            "completion_tokens": True,
            "spec_accept_histogram": [1, None],
            "queue_time": "x",
        }
    )
    assert odd == Generation()


def test_on_the_cpu_engine_only_what_was_not_foretold_is_an_override() -> None:
    asked = Profile(
        name="p",
        attention_backend="triton",
        sampling_backend="flashinfer",
        cuda_graph_max_bs=64,
        prefill_cuda_graphs=True,
        max_running_requests=64,
        speculation=Speculation(steps=3, topk=1, draft_tokens=4, draft_attention_backend="triton"),
    )
    assert [item.key for item in overrides(asked, CPU, "cpu")] == ["max_running_requests"]
    everywhere = {item.key for item in overrides(asked, CPU)}
    assert {"cuda_graphs", "prefill_cuda_graphs", "attention_backend", "sampling_backend"} <= everywhere
    native = replace(asked, attention_backend="intel_amx", max_running_requests=48)
    assert [item.key for item in overrides(native, CPU, "cpu")] == ["attention_backend"]
