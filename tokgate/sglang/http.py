"""Reading SGLang's HTTP answers: what was measured, and where the server did not do as asked.

The typed readings themselves are in :mod:`tokgate.sglang.readings` and are offered here too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tokgate.config.profiles import Profile
from tokgate.sglang.readings import (
    Generation,
    ModelInfo,
    ServerInfo,
    as_counts,
    as_int,
    as_mapping,
    as_text,
    read_generation,
    read_model_info,
    read_server_info,
)

__all__ = [
    "Generation",
    "Graphs",
    "ModelInfo",
    "Override",
    "ServerInfo",
    "graphs",
    "overrides",
    "read_generation",
    "read_model_info",
    "read_server_info",
    "resolved",
]

# Arguments that change what is measured and keep their name in all known versions.
PLAIN_ARGUMENTS = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "sampling_backend",
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "tp_size",
    "dp_size",
    "pp_size",
    "ep_size",
    "page_size",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "max_running_requests",
    "max_total_tokens",
    "mem_fraction_static",
    "context_length",
    "schedule_policy",
    "schedule_conservativeness",
    "num_continuous_decode_steps",
    "disable_radix_cache",
    "disable_overlap_schedule",
    "enable_mixed_chunk",
    "enable_torch_compile",
    "enable_deterministic_inference",
    "enable_two_batch_overlap",
    "disable_custom_all_reduce",
    "disable_cuda_graph_padding",
    "stream_interval",
    "decode_log_interval",
    "triton_attention_num_kv_splits",
    "moe_runner_backend",
    "moe_a2a_backend",
    "fp8_gemm_runner_backend",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_attention_mode",
    "speculative_draft_attention_backend",
    "speculative_accept_threshold_single",
    "speculative_accept_threshold_acc",
    "speculative_token_map",
    "speculative_adaptive",
    "device",
)


@dataclass(frozen=True, slots=True)
class Override:
    """An argument that the server did not take as asked. ``key`` is the profile's word."""

    key: str
    asked: object
    got: object

    def __str__(self) -> str:
        return f"{self.key}: asked {self.asked}, got {self.got}"


@dataclass(frozen=True, slots=True)
class Graphs:
    """CUDA graph settings of either era, in one form; ``None`` where the server does not say."""

    decode: str | None = None
    decode_max_bs: int | None = None
    decode_bs: tuple[int, ...] | None = None
    prefill: str | None = None

    @property
    def decode_on(self) -> bool | None:
        """Whether decode graphs are on."""
        return None if self.decode is None else self.decode != "disabled"

    @property
    def prefill_on(self) -> bool | None:
        """Whether prefill graphs are on."""
        return None if self.prefill is None else self.prefill != "disabled"


def graphs(info: ServerInfo) -> Graphs:
    """CUDA graph settings: ``cuda_graph_config`` from 0.5.14, single arguments before."""
    arguments = info.arguments
    config = arguments.get("cuda_graph_config")
    if isinstance(config, dict):
        decode, prefill = as_mapping(config.get("decode")), as_mapping(config.get("prefill"))
        return Graphs(
            decode=as_text(decode.get("backend")),
            decode_max_bs=as_int(decode.get("max_bs")),
            decode_bs=as_counts(decode.get("bs")),
            prefill=as_text(prefill.get("backend")),
        )
    off = arguments.get("disable_cuda_graph")
    if not isinstance(off, bool):
        return Graphs()
    if "disable_decode_cuda_graph" in arguments:
        # A log of 0.5.14 or later prints the single switches before they are folded into the config.
        return Graphs(
            decode="disabled" if off or arguments["disable_decode_cuda_graph"] else "full",
            decode_max_bs=as_int(arguments.get("cuda_graph_max_bs_decode")),
            decode_bs=as_counts(arguments.get("cuda_graph_bs_decode")),
            prefill="disabled" if off or arguments.get("disable_prefill_cuda_graph") else "default",
        )
    if "disable_piecewise_cuda_graph" in arguments:
        piecewise = not arguments["disable_piecewise_cuda_graph"]
    else:
        piecewise = bool(arguments.get("enable_piecewise_cuda_graph"))
    return Graphs(
        decode="disabled" if off else "full",
        decode_max_bs=as_int(arguments.get("cuda_graph_max_bs")),
        decode_bs=as_counts(arguments.get("cuda_graph_bs")),
        prefill="tc_piecewise" if piecewise and not off else "disabled",
    )


def resolved(server_info: object) -> dict[str, Any]:
    """The arguments that change what is measured, under names that are the same in all versions.

    Args:
        server_info: the answer of ``/server_info``, or a :class:`ServerInfo`.

    Returns:
        Argument -> value; an argument that the server does not report is left out, and so are the model
        paths, the random seed and the size of the KV cache, which differs from launch to launch.
    """
    info = _info(server_info)
    found = {name: info.arguments[name] for name in PLAIN_ARGUMENTS if name in info.arguments}
    graph = graphs(info)
    more: dict[str, Any] = {
        "cuda_graph_decode": graph.decode,
        "cuda_graph_decode_max_bs": graph.decode_max_bs,
        "cuda_graph_decode_bs": list(graph.decode_bs) if graph.decode_bs is not None else None,
        "cuda_graph_prefill": graph.prefill,
        "effective_max_running_requests": info.max_running_requests if info.states else None,
    }
    return found | {name: value for name, value in more.items() if value is not None}


def overrides(profile: Profile, server_info: object) -> list[Override]:
    """Where the server did not take what the profile asks.

    Args:
        profile: what was asked; a key left ``None`` asks for nothing.
        server_info: the answer of ``/server_info``, or a :class:`ServerInfo`.

    Returns:
        One entry a differing key. Arguments that the server does not report are not judged.
    """
    info = _info(server_info)
    graph = graphs(info)
    reported = info.arguments
    radix_off = reported.get("disable_radix_cache")
    pairs: list[tuple[str, object, object]] = [
        ("tp", profile.tp, reported.get("tp_size")),
        ("cuda_graphs", profile.cuda_graphs, graph.decode_on),
        ("prefill_cuda_graphs", profile.prefill_cuda_graphs, graph.prefill_on),
        ("attention_backend", profile.attention_backend, reported.get("attention_backend")),
        ("sampling_backend", profile.sampling_backend, reported.get("sampling_backend")),
        ("dtype", profile.dtype, reported.get("dtype")),
        ("mem_fraction", profile.mem_fraction, reported.get("mem_fraction_static")),
        ("max_running_requests", profile.max_running_requests, info.max_running_requests),
        ("max_total_tokens", profile.max_total_tokens, info.max_total_tokens),
        ("context_length", profile.context_length, reported.get("context_length")),
        ("radix_cache", profile.radix_cache, not radix_off if isinstance(radix_off, bool) else None),
        ("random_seed", profile.random_seed, reported.get("random_seed")),
    ]
    for name in ("prefill_attention_backend", "decode_attention_backend"):
        pairs.append((name, getattr(profile, name), reported.get(name)))
    if graph.decode_on:
        pairs.append(("cuda_graph_max_bs", profile.cuda_graph_max_bs, graph.decode_max_bs))
    asked = profile.speculation
    if asked is None:
        if reported.get("speculative_algorithm"):
            return [*_differing(pairs), Override("speculation", "none", reported["speculative_algorithm"])]
        return _differing(pairs)
    if "speculative_algorithm" in reported and reported["speculative_algorithm"] is None:
        return [*_differing(pairs), Override("speculation", asked.algorithm, "none")]
    pairs += [
        ("speculation.algorithm", asked.algorithm.upper(), reported.get("speculative_algorithm")),
        ("speculation.steps", asked.steps, reported.get("speculative_num_steps")),
        ("speculation.topk", asked.topk, reported.get("speculative_eagle_topk")),
        ("speculation.draft_tokens", asked.draft_tokens, reported.get("speculative_num_draft_tokens")),
        ("attention_mode", asked.attention_mode, reported.get("speculative_attention_mode")),
        (
            "speculation.draft_attention_backend",
            asked.draft_attention_backend,
            reported.get("speculative_draft_attention_backend"),
        ),
    ]
    return _differing(pairs)


def _differing(pairs: Iterable[tuple[str, object, object]]) -> list[Override]:
    return [
        Override(key, asked, got)
        for key, asked, got in pairs
        if asked is not None and got is not None and asked != got
    ]


def _info(server_info: object) -> ServerInfo:
    return server_info if isinstance(server_info, ServerInfo) else read_server_info(server_info)
