"""May two profiles be compared at all? What a server resolved decides, not what was asked.

SGLang changes arguments silently under speculation (it caps running requests at 48, say), which would make
one side of a comparison serve a smaller batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MUST_BE_EQUAL = (
    "max_running_requests",
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "tp_size",
    "context_length",
    "chunked_prefill_size",
    "page_size",
    "disable_radix_cache",
    "stream_interval",
)
WORTH_SAYING = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "sampling_backend",
)


def obstacles(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What makes two servers incomparable, one phrase each.

    Args:
        one, other: resolved arguments as in :attr:`tokgate.load.sample.Identity.resolved`.
    """
    found = _differences(MUST_BE_EQUAL, one, other)
    largest = [max(side.get("cuda_graph_decode_bs") or [0]) for side in (one, other)]
    graphs = [side.get("cuda_graph_decode") not in (None, "disabled") for side in (one, other)]
    if all(graphs) and largest[0] != largest[1]:
        found.append(f"largest captured batch {largest[0]} against {largest[1]}")
    return found


def remarks(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Differences that a reader should know and that do not forbid the comparison."""
    return _differences(WORTH_SAYING, one, other)


def _differences(keys: tuple[str, ...], one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [
        f"{key} {one[key]} against {other[key]}"
        for key in keys
        if key in one and key in other and one[key] != other[key]
    ]
