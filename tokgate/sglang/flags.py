"""Neutral profile words -> the server arguments of one SGLang version.

The spellings were read from the argparse definitions of the wheels 0.5.9 to 0.5.23; the option lists of
those wheels lie beside the tests, which check every flag emitted here against them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from tokgate.config.engine import EngineKind
from tokgate.config.profiles import Profile, Speculation
from tokgate.errors import Misconfigured
from tokgate.sglang.version import Rules, rules_for

# Algorithms that need no draft model.
DRAFTLESS = frozenset({"NGRAM"})

# Backends that exist in SGLang's CPU build; a profile's other backends are replaced there.
CPU_ATTENTION = "torch_native"
CPU_SPECULATIVE_ATTENTION = "intel_amx"
CPU_BACKENDS = frozenset({CPU_ATTENTION, CPU_SPECULATIVE_ATTENTION})
CPU_SAMPLING = "pytorch"
CPU_SPECULATES_SINCE = 16
"""Patch release of 0.5 from which EAGLE-3 is tried on a CPU: 0.5.10 and 0.5.15 were seen to fail, 0.5.18 to run."""

# Flags that a later release removed: flag -> (first patch release of 0.5 without it, its replacement).
# From there argparse either finds no such option or calls the prefix ambiguous, and exits with status 2.
REMOVED: Mapping[str, tuple[int, str]] = {
    "--cuda-graph-max-bs": (20, "--cuda-graph-max-bs-decode"),
    "--cuda-graph-bs": (20, "--cuda-graph-bs-decode"),
    "--disable-piecewise-cuda-graph": (20, "--disable-prefill-cuda-graph"),
    "--enforce-piecewise-cuda-graph": (20, "--cuda-graph-backend-prefill"),
    "--enable-piecewise-cuda-graph": (14, "--cuda-graph-backend-prefill"),
}


@dataclass(frozen=True, slots=True)
class ServerArguments:
    """What a server process is started with.

    Attributes:
        argv: flags, to follow the engine's launcher.
        env: variables that the profile and the engine kind need.
        notes: where the profile's words were not taken literally, one sentence each.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    notes: tuple[str, ...]


def server_arguments(
    profile: Profile,
    *,
    version: str,
    kind: EngineKind,
    target: str,
    draft: str | None,
    host: str,
    port: int,
) -> ServerArguments:
    """The arguments with which this SGLang version runs this profile.

    Args:
        profile: what is wanted, in neutral words.
        version: SGLang's version; an unknown one gets the nearest known rules and a note.
        kind: ``cpu`` replaces what needs a GPU; ``emulated`` gets what ``gpu`` gets.
        target: path or hub name of the target model.
        draft: path or hub name of the draft model, ``None`` when there is none.
        host: address to listen on.
        port: port to listen on.

    Raises:
        Misconfigured: speculation without a draft model, or an extra flag that this version rejects.
    """
    rules = rules_for(version)
    notes = [rules.note] if rules.note else []
    on_cpu = kind == "cpu"
    argv = ["--model-path", target, "--host", host, "--port", str(port), "--enable-metrics"]
    if profile.tp != 1:
        argv += ["--tp-size", str(profile.tp)]
    if on_cpu:
        argv += ["--device", "cpu"]
    argv += _backends(profile, on_cpu, notes)
    argv += _sizes(profile, on_cpu)
    argv += _graphs(profile, rules, on_cpu, notes)
    if not profile.radix_cache:
        argv.append("--disable-radix-cache")
    if profile.random_seed is not None:
        argv += ["--random-seed", str(profile.random_seed)]
    if profile.speculation is not None:
        argv += _speculation(profile, profile.speculation, rules, on_cpu, draft, notes)
    argv += _extra(profile, rules, version)
    return ServerArguments(tuple(argv), _env(profile, kind, target), tuple(notes))


def applicability(profile: Profile, kind: EngineKind, version: str) -> str | None:
    """Why the profile cannot mean anything on an engine of this kind and version; ``None`` when it can."""
    if kind != "cpu":
        return None
    if not profile.cuda_graphs:
        return "the CPU engine has no CUDA graphs: without them this profile is the same server as with them"
    if profile.speculation is not None and profile.speculation.attention_mode != "prefill":
        return "the attention mode makes no difference on the CPU engine: one backend serves both modes"
    drafts = profile.speculation is not None and profile.speculation.algorithm not in DRAFTLESS
    if drafts and not rules_for(version).since(CPU_SPECULATES_SINCE):
        return f"SGLang {version} cannot speculate with a draft model on a CPU"
    return None


def _optional(flag: str, value: object | None) -> list[str]:
    return [] if value is None else [flag, str(value)]


def _backends(profile: Profile, on_cpu: bool, notes: list[str]) -> list[str]:
    main, prefill, decode = (
        profile.attention_backend,
        profile.prefill_attention_backend,
        profile.decode_attention_backend,
    )
    sampling, dtype = profile.sampling_backend, profile.dtype
    if on_cpu:
        split = CPU_SPECULATIVE_ATTENTION if profile.speculation is not None else None
        main = _cpu_backend("attention_backend", main, CPU_ATTENTION, notes)
        prefill = _cpu_backend("prefill_attention_backend", prefill, split, notes)
        decode = _cpu_backend("decode_attention_backend", decode, split, notes)
        if sampling not in {None, CPU_SAMPLING}:
            notes.append(f"sampling_backend {sampling} needs a GPU: {CPU_SAMPLING} is used")
        sampling = CPU_SAMPLING
        dtype = dtype or "float32"
    return [
        *_optional("--attention-backend", main),
        *_optional("--prefill-attention-backend", prefill),
        *_optional("--decode-attention-backend", decode),
        *_optional("--sampling-backend", sampling),
        *_optional("--dtype", dtype),
    ]


def _cpu_backend(key: str, asked: str | None, used: str | None, notes: list[str]) -> str | None:
    if asked is None or asked in CPU_BACKENDS:
        return asked or used
    notes.append(f"{key} {asked} needs a GPU: {used or 'none'} is used")
    return used


def _sizes(profile: Profile, on_cpu: bool) -> list[str]:
    mem_fraction, total_tokens = profile.mem_fraction, profile.max_total_tokens
    if on_cpu:
        # Unbounded, the CPU engine sizes its KV cache by the machine's whole memory.
        mem_fraction = mem_fraction if mem_fraction is not None else 0.5
        total_tokens = total_tokens if total_tokens is not None else 8192
    return [
        *_optional("--mem-fraction-static", mem_fraction),
        *_optional("--max-running-requests", profile.max_running_requests),
        *_optional("--max-total-tokens", total_tokens),
        *_optional("--context-length", profile.context_length),
    ]


def _graphs(profile: Profile, rules: Rules, on_cpu: bool, notes: list[str]) -> list[str]:
    decode = profile.cuda_graphs
    prefill = profile.prefill_cuda_graphs
    if on_cpu:
        if decode:
            notes.append("the CPU engine has no CUDA graphs: off, whatever the profile says")
        decode, prefill = False, False
    elif not decode and prefill is None:
        # `off` means no graph at all, as SGLang's own switch does.
        prefill = False
    argv = []
    if profile.cuda_graph_max_bs is not None and not on_cpu:
        # Kept with graphs off, so that a graphs/eager pair differs in the switch alone.
        flag = "--cuda-graph-max-bs-decode" if rules.since(14) else "--cuda-graph-max-bs"
        argv += [flag, str(profile.cuda_graph_max_bs)]
    if rules.since(14):
        argv += [] if decode else ["--disable-decode-cuda-graph"]
        argv += ["--disable-prefill-cuda-graph"] if prefill is False else []
        return argv
    if not decode:
        if prefill:
            notes.append("before 0.5.14 one switch turns off decode and prefill graphs alike: both are off")
        return [*argv, "--disable-cuda-graph"]
    if prefill is False and rules.since(10):
        argv.append("--disable-piecewise-cuda-graph")
    if prefill and not rules.since(10):
        argv.append("--enable-piecewise-cuda-graph")
    return argv


def _speculation(
    profile: Profile, asked: Speculation, rules: Rules, on_cpu: bool, draft: str | None, notes: list[str]
) -> list[str]:
    algorithm = asked.algorithm.upper()
    if draft is None and algorithm not in DRAFTLESS:
        raise Misconfigured(
            f"MISCONFIGURED profile '{profile.name}': {algorithm} needs a draft model, its model has none",
            ["give the model a 'draft' in profiles.yaml, or drop 'speculation' from the profile"],
        )
    backend = asked.draft_attention_backend
    if on_cpu:
        backend = _cpu_backend(
            "speculation.draft_attention_backend", backend, CPU_SPECULATIVE_ATTENTION, notes
        )
        if not rules.since(23):
            notes.append("EAGLE-3 on the CPU engine is only known to be right in 0.5.23")
    if asked.topk == 1 and None not in (asked.steps, asked.draft_tokens):
        forced = (asked.steps or 0) + 1
        if asked.draft_tokens != forced:
            notes.append(f"with topk 1 SGLang takes draft_tokens {forced}, not {asked.draft_tokens}")
    if asked.steps is None:
        notes.append("speculation.steps is not given: SGLang chooses steps, topk and draft_tokens")
    if profile.max_running_requests is None:
        notes.append("max_running_requests is not given: with speculation SGLang caps it at 48")
    split = {profile.prefill_attention_backend, profile.decode_attention_backend} - {None}
    if len(split) == 2 and not rules.since(17) and not on_cpu:
        notes.append(
            "different prefill and decode attention backends with EAGLE are reported to crash before 0.5.17 "
            "(sglang issue 32268)"
        )
    return [
        "--speculative-algorithm",
        algorithm,
        *_optional("--speculative-draft-model-path", draft),
        *_optional("--speculative-num-steps", asked.steps),
        *_optional("--speculative-eagle-topk", asked.topk),
        *_optional("--speculative-num-draft-tokens", asked.draft_tokens),
        "--speculative-attention-mode",
        asked.attention_mode,
        *_optional("--speculative-draft-attention-backend", backend),
    ]


def _extra(profile: Profile, rules: Rules, version: str) -> tuple[str, ...]:
    for item in profile.extra_flags:
        flag = item.partition("=")[0]
        patch, replacement = REMOVED.get(flag, (0, ""))
        if patch and rules.since(patch):
            raise Misconfigured(
                f"MISCONFIGURED profile '{profile.name}': SGLang {version} rejects {flag} (extra_flags)",
                [f"use {replacement}; the flag was removed in 0.5.{patch}"],
            )
    return profile.extra_flags


def _env(profile: Profile, kind: EngineKind, target: str) -> Mapping[str, str]:
    env: dict[str, str] = {}
    if kind == "cpu":
        env = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
        if target.startswith(("/", ".")):
            env["HF_HUB_OFFLINE"] = "1"
        if profile.tp > 1:
            # Without it SGLang wants a NUMA node for each rank. A rank more than there are CPUs shares one.
            cpus = sorted(os.sched_getaffinity(0))
            env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(cpus[n % len(cpus)]) for n in range(profile.tp))
    return env | dict(profile.env)
