"""What a server really runs with: the environment of its processes, its resolved arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokgate.config.profiles import Profile
from tokgate.host import proc
from tokgate.host.proc import Process

PREFIXES = ("NCCL_", "CUDA_", "SGLANG_", "SGL_", "TORCH_", "TRITON_", "OMP_", "HF_HUB_")


@dataclass(frozen=True, slots=True)
class Override:
    """A setting for which the server chose something else than was asked."""

    setting: str
    asked: object
    resolved: object

    def __str__(self) -> str:
        return f"{self.setting}: asked {self.asked!r}, runs with {self.resolved!r}"


def environments(members: Sequence[Process]) -> dict[str, dict[str, str]]:
    """Variables that change how an engine runs, of every process that may be read.

    Read from /proc: the environment with which a process was started. What a process sets for itself
    afterwards shows only in its children.
    """
    found: dict[str, dict[str, str]] = {}
    for process in members:
        variables = proc.environment(process.pid)
        if variables is not None:
            name = f"{proc.title(process)} ({process.pid})"
            found[name] = {key: value for key, value in sorted(variables.items()) if key.startswith(PREFIXES)}
    return found


def overrides(profile: Profile, server_info: Mapping[str, Any]) -> list[Override]:
    """Settings that the profile names and for which the server reports another value.

    A setting that the server does not report is left out: nothing is known of it.
    """
    asked: dict[str, object] = {
        "tp_size": profile.tp,
        "attention_backend": profile.attention_backend,
        "prefill_attention_backend": profile.prefill_attention_backend,
        "decode_attention_backend": profile.decode_attention_backend,
        "sampling_backend": profile.sampling_backend,
        "dtype": profile.dtype,
        "mem_fraction_static": profile.mem_fraction,
        "max_running_requests": profile.max_running_requests,
        "max_total_tokens": profile.max_total_tokens,
        "context_length": profile.context_length,
        "random_seed": profile.random_seed,
        "disable_radix_cache": not profile.radix_cache,
        "disable_cuda_graph": not profile.cuda_graphs,
        "cuda_graph_max_bs": profile.cuda_graph_max_bs,
    }
    speculation = profile.speculation
    if speculation is not None:
        asked |= {
            "speculative_algorithm": speculation.algorithm,
            "speculative_num_steps": speculation.steps,
            "speculative_eagle_topk": speculation.topk,
            "speculative_num_draft_tokens": speculation.draft_tokens,
            "speculative_attention_mode": speculation.attention_mode,
            "speculative_draft_attention_backend": speculation.draft_attention_backend,
        }
    else:
        asked["speculative_algorithm"] = None
    found = []
    for setting, value in asked.items():
        if setting not in server_info:
            continue
        unasked = value is None and setting != "speculative_algorithm"
        if not unasked and server_info[setting] != value:
            found.append(Override(setting, value, server_info[setting]))
    return found
