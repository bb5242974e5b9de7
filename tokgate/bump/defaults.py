"""Arguments that two servers of one profile resolved differently: changed defaults, new and dropped ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokgate.sglang.http import graphs, read_server_info

# What differs from launch to launch, or says who asked rather than how it is served.
OF_A_LAUNCH = frozenset(
    {
        "port", "host", "nccl_port", "dist_init_addr", "model_path", "tokenizer_path", "served_model_name",
        "speculative_draft_model_path", "random_seed", "status", "version", "internal_states", "log_level",
        "max_total_num_tokens", "max_req_input_len", "scheduler_info", "last_receive_tstamp", "load_snapshot",
        "kv_events", "memory_usage", "prefill_round_robin_balance", "api_key", "admin_api_key", "ssl_keyfile",
        "ssl_keyfile_password",
    }
)  # fmt: skip
# Single switches that cuda_graph_config replaced in 0.5.14: compared through what they mean.
GRAPH_KEYS = frozenset(
    {
        "cuda_graph_config", "disable_cuda_graph", "cuda_graph_max_bs", "cuda_graph_bs",
        "disable_decode_cuda_graph", "disable_prefill_cuda_graph", "cuda_graph_max_bs_decode",
        "cuda_graph_bs_decode", "disable_piecewise_cuda_graph", "enable_piecewise_cuda_graph",
    }
)  # fmt: skip
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Changed:
    """One argument; ``-`` where a side does not have it."""

    name: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Defaults:
    """How two servers resolved one profile.

    Attributes:
        changed: arguments that both have, with other values; graph settings in one form for all versions.
        added, dropped: names of arguments that only the new or the old version knows.
    """

    changed: tuple[Changed, ...]
    added: tuple[str, ...]
    dropped: tuple[str, ...]


def settled(server_info: object) -> dict[str, Any]:
    """What a server resolved, JSON values, without what belongs to one launch.

    Args:
        server_info: the answer of ``/server_info``.
    """
    info = read_server_info(server_info)
    found = {
        name: value
        for name, value in info.arguments.items()
        if name not in OF_A_LAUNCH and name not in GRAPH_KEYS and not name.startswith("_")
    }
    graph = graphs(info)
    for name, value in (
        ("decode graphs", graph.decode),
        ("decode graphs up to batch", graph.decode_max_bs),
        ("decode graph batches", list(graph.decode_bs) if graph.decode_bs is not None else None),
        ("prefill graphs", graph.prefill),
    ):
        if value is not None:
            found[name] = value
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain


def defaults(old: Mapping[str, Any], new: Mapping[str, Any]) -> Defaults:
    """Compare two answers of :func:`settled`."""
    both = sorted(old.keys() & new.keys())
    return Defaults(
        tuple(Changed(name, _text(old[name]), _text(new[name])) for name in both if old[name] != new[name]),
        tuple(sorted(new.keys() - old.keys())),
        tuple(sorted(old.keys() - new.keys())),
    )


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
