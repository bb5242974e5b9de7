"""Every flag emitted exists, undeprecated, in the recorded option list of its version."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tokgate.config.profiles import Profile, Speculation
from tokgate.errors import Misconfigured
from tokgate.sglang.flags import REMOVED, ServerArguments, applicability, server_arguments

OPTIONS = {
    path.stem: path.read_text().splitlines() for path in (Path(__file__).parent / "options").glob("*.txt")
}
VERSIONS = sorted(OPTIONS, key=lambda text: [int(part) for part in text.split(".")[:3]])

BASE = Profile(
    name="baseline",
    cuda_graph_max_bs=64,
    prefill_cuda_graphs=False,
    attention_backend="triton",
    sampling_backend="pytorch",
    mem_fraction=0.4,
    max_running_requests=64,
    context_length=4096,
    radix_cache=False,
    random_seed=42,
)
EAGLE = replace(BASE, name="eagle3", speculation=Speculation(steps=3, topk=1, draft_tokens=4))
PROFILES = [
    BASE,
    replace(BASE, name="eager", cuda_graphs=False),
    replace(BASE, name="prefill-graphs", prefill_cuda_graphs=True),
    replace(BASE, name="prefill-graphs-only", cuda_graphs=False, prefill_cuda_graphs=True),
    replace(BASE, name="tp8", tp=8, dtype="bfloat16", max_total_tokens=1000),
    EAGLE,
    replace(EAGLE, name="eagle-eager", cuda_graphs=False),
    replace(
        EAGLE,
        name="split",
        prefill_attention_backend="flashinfer",
        decode_attention_backend="triton",
        speculation=Speculation(attention_mode="decode", draft_attention_backend="triton"),
    ),
]


def arguments(profile: Profile, version: str, kind: str = "gpu") -> ServerArguments:
    return server_arguments(
        profile,
        version=version,
        kind=kind,  # type: ignore[arg-type]
        target="/models/target",
        draft="/models/draft",
        host="127.0.0.1",
        port=30000,
    )


def value(found: ServerArguments, flag: str) -> str | None:
    return found.argv[found.argv.index(flag) + 1] if flag in found.argv else None


@pytest.mark.parametrize("kind", ["gpu", "cpu", "emulated"])
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_flag_is_in_that_version(version: str, profile: Profile, kind: str) -> None:
    found = arguments(profile, version, kind)
    flags = [item for item in found.argv if item.startswith("--")]
    assert len(flags) == len(set(flags))
    # `--disable-cuda-graph` is listed as deprecated from 0.5.14: it must not be used there.
    assert [flag for flag in flags if flag not in OPTIONS[version]] == []
    assert "--enable-metrics" in flags


def test_the_check_above_can_fail() -> None:
    assert "--cuda-graph-max-bs" not in OPTIONS["0.5.20"]
    assert "--cuda-graph-max-bs (deprecated)" in OPTIONS["0.5.19"]
    assert "--disable-decode-cuda-graph" not in OPTIONS["0.5.13.post1"]


@pytest.mark.parametrize(("flag", "removal"), list(REMOVED.items()))
def test_removed_flags_are_really_gone(flag: str, removal: tuple[int, str]) -> None:
    patch, replacement = removal
    for version, lines in OPTIONS.items():
        present = flag in lines or f"{flag} (deprecated)" in lines
        if int(version.split(".")[2]) >= patch:
            assert not present, version
            assert replacement in lines, version


def test_graphs_off_by_version() -> None:
    eager = replace(BASE, cuda_graphs=False)
    assert "--disable-cuda-graph" in arguments(eager, "0.5.13.post1").argv
    newer = arguments(eager, "0.5.15.post1").argv
    assert "--disable-decode-cuda-graph" in newer
    assert "--disable-prefill-cuda-graph" in newer
    assert "--disable-cuda-graph" not in newer


def test_graphs_and_eager_differ_in_the_switch_alone() -> None:
    for version in VERSIONS:
        graphs = set(arguments(BASE, version).argv)
        eager = set(arguments(replace(BASE, cuda_graphs=False), version).argv)
        differing = {item for item in graphs ^ eager if "cuda-graph" not in item}
        assert differing == set()


def test_prefill_graphs_by_version() -> None:
    assert not [flag for flag in arguments(BASE, "0.5.9").argv if "piecewise" in flag]
    assert "--disable-piecewise-cuda-graph" in arguments(BASE, "0.5.13.post1").argv
    assert "--disable-prefill-cuda-graph" in arguments(BASE, "0.5.14").argv
    on = replace(BASE, prefill_cuda_graphs=True)
    assert "--enable-piecewise-cuda-graph" in arguments(on, "0.5.9").argv
    assert not [flag for flag in arguments(on, "0.5.15").argv if "disable" in flag and "graph" in flag]


def test_speculation_words() -> None:
    found = arguments(EAGLE, "0.5.15.post1")
    assert value(found, "--speculative-algorithm") == "EAGLE3"
    assert value(found, "--speculative-draft-model-path") == "/models/draft"
    assert value(found, "--speculative-num-steps") == "3"
    assert value(found, "--speculative-num-draft-tokens") == "4"
    assert value(found, "--speculative-attention-mode") == "prefill"
    assert found.notes == ()


def test_silent_overrides_are_foretold() -> None:
    loose = replace(
        EAGLE, max_running_requests=None, speculation=Speculation(steps=2, topk=1, draft_tokens=8)
    )
    notes = " | ".join(arguments(loose, "0.5.15.post1").notes)
    assert "caps it at 48" in notes
    assert "draft_tokens 3, not 8" in notes
    assert "SGLang chooses" in " ".join(arguments(replace(EAGLE, speculation=Speculation()), "0.5.15").notes)


def test_split_backends_with_eagle_are_suspect_before_17() -> None:
    split = PROFILES[-1]
    assert any("crash" in note for note in arguments(split, "0.5.15.post1").notes)
    assert not any("crash" in note for note in arguments(split, "0.5.17").notes)


def test_cpu_replaces_what_needs_a_gpu_and_says_so() -> None:
    found = arguments(EAGLE, "0.5.23", "cpu")
    assert value(found, "--device") == "cpu"
    assert value(found, "--attention-backend") == "torch_native"
    assert value(found, "--prefill-attention-backend") == "intel_amx"
    assert value(found, "--decode-attention-backend") == "intel_amx"
    assert value(found, "--speculative-draft-attention-backend") == "intel_amx"
    assert value(found, "--dtype") == "float32"
    assert value(found, "--max-total-tokens") == "8192"
    assert value(found, "--mem-fraction-static") == "0.4"
    assert found.env == {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    assert any("triton needs a GPU" in note for note in found.notes)
    assert any("no CUDA graphs" in note for note in found.notes)
    base = arguments(BASE, "0.5.23", "cpu")
    assert value(base, "--prefill-attention-backend") is None
    assert any("only known to be right in 0.5.23" in note for note in arguments(EAGLE, "0.5.18", "cpu").notes)


def test_profile_env_wins() -> None:
    own = replace(BASE, env={"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "2"})
    assert arguments(own, "0.5.15.post1").env == {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "2"}
    assert arguments(own, "0.5.23", "cpu").env["OMP_NUM_THREADS"] == "2"


def test_emulated_is_as_gpu() -> None:
    assert arguments(EAGLE, "0.5.15.post1", "emulated") == arguments(EAGLE, "0.5.15.post1", "gpu")


def test_unknown_version_is_said() -> None:
    found = arguments(EAGLE, "0.7.1")
    assert found.argv == arguments(EAGLE, "0.5.23").argv
    assert any("newer than tokgate knows" in note for note in found.notes)


def test_applicability() -> None:
    eager = replace(BASE, cuda_graphs=False)
    decode = replace(EAGLE, speculation=Speculation(attention_mode="decode"))
    for profile in (BASE, EAGLE, eager, decode):
        for version in ("0.5.15.post1", "0.5.23"):
            assert applicability(profile, "gpu", version) is None
            assert applicability(profile, "emulated", version) is None
    assert applicability(BASE, "cpu", "0.5.23") is None
    assert applicability(EAGLE, "cpu", "0.5.23") is None
    assert "no CUDA graphs" in (applicability(eager, "cpu", "0.5.23") or "")
    assert "attention mode" in (applicability(decode, "cpu", "0.5.23") or "")


@pytest.mark.parametrize("version", ["0.5.10", "0.5.15", "0.5.15.post1"])
def test_a_draft_model_does_not_apply_to_an_old_version_on_a_cpu(version: str) -> None:
    assert applicability(EAGLE, "cpu", version) == (
        f"SGLang {version} cannot speculate with a draft model on a CPU"
    )
    ngram = replace(EAGLE, speculation=Speculation(algorithm="NGRAM"))
    for profile in (BASE, ngram):
        assert applicability(profile, "cpu", version) is None


@pytest.mark.parametrize("version", ["0.5.18", "0.5.23", "0.7.1", "a-commit"])
def test_a_draft_model_applies_to_a_newer_or_an_unknown_version_on_a_cpu(version: str) -> None:
    assert applicability(EAGLE, "cpu", version) is None


def test_speculation_without_a_draft_is_refused() -> None:
    with pytest.raises(Misconfigured, match="needs a draft model"):
        server_arguments(EAGLE, version="0.5.15", kind="gpu", target="t", draft=None, host="h", port=1)
    ngram = replace(EAGLE, speculation=Speculation(algorithm="NGRAM", steps=3, draft_tokens=4))
    found = server_arguments(ngram, version="0.5.15", kind="gpu", target="t", draft=None, host="h", port=1)
    assert "--speculative-draft-model-path" not in found.argv


def test_an_extra_flag_that_the_version_rejects_is_refused_before_launch() -> None:
    old = replace(BASE, extra_flags=("--cuda-graph-max-bs=8",))
    assert arguments(old, "0.5.18").argv[-1] == "--cuda-graph-max-bs=8"
    with pytest.raises(Misconfigured, match="rejects --cuda-graph-max-bs"):
        arguments(old, "0.5.20")


def test_ranks_on_the_cpu_get_a_cpu_each() -> None:
    two = replace(BASE, tp=2)
    found = arguments(two, "0.5.23", "cpu").env["SGLANG_CPU_OMP_THREADS_BIND"].split("|")
    assert len(found) == 2 and set(map(int, found)) <= os.sched_getaffinity(0)
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in arguments(two, "0.5.23", "gpu").env
    own = replace(two, env={"SGLANG_CPU_OMP_THREADS_BIND": "0-3|4-7"})
    assert arguments(own, "0.5.23", "cpu").env["SGLANG_CPU_OMP_THREADS_BIND"] == "0-3|4-7"
