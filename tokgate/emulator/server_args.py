"""What SGLang makes of its flags: silent overrides, and the state that `/server_info` reports.

Values that nobody sets are those of the recorded `/server_info` of 0.5.15.post1.
"""

from __future__ import annotations

import random
from typing import Any

from tokgate.emulator.flags import FlagFault
from tokgate.emulator.version import release_of

SPECULATIVE_RUNNING_REQUESTS = 48
DEFAULT_CONTEXT = 4096
DEFAULT_KV_TOKENS = 1753207
DRAFT_KV_SHARE = 0.934

# Keys that a gate may read and that no flag of the table sets.
FIXED: dict[str, Any] = {
    "tokenizer_backend": "huggingface",
    "is_embedding": False,
    "enable_multimodal": None,
    "enable_fp32_lm_head": False,
    "enable_dynamic_chunking": False,
    "disable_chunked_prefix_cache": False,
    "scheduler_recv_interval": 1,
    "nnodes": 1,
    "node_rank": 0,
    "enable_dp_attention": False,
    "gpu_id_step": 1,
    "weight_version": "default",
    "file_storage_path": "sglang_storage",
    "sampling_defaults": "model",
    "incremental_streaming_output": False,
    "crash_dump_folder": None,
    "debug_cuda_graph": False,
    "enable_cudagraph_gc": False,
    "triton_attention_num_kv_splits": 8,
    "triton_attention_reduce_in_fp32": False,
    "pre_warm_nccl": False,
    "speculative_draft_window_size": None,
    "speculative_moe_runner_backend": "auto",
    "speculative_moe_a2a_backend": None,
    "speculative_adaptive": False,
    "moe_a2a_backend": "none",
    "lora_paths": None,
    "cpu_offload_gb": 0,
    "disaggregation_mode": "null",
    "enable_hierarchical_cache": False,
}


def capture_sizes(max_bs: int, speculative: bool) -> list[int]:
    """Batch sizes for which decode graphs are captured: denser under speculation."""
    if speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]
    else:
        sizes = [1, 2, 4, 8, *range(16, 257, 8)] if max_bs <= 8 else [1, 2, 4, 8, 12, *range(16, 257, 8)]
    kept = [size for size in sizes if size <= max_bs]
    return kept if kept and kept[-1] == max_bs else [*kept, max_bs]


def resolve(values: dict[str, Any], version: str) -> dict[str, Any]:
    """Server arguments after SGLang's own changes.

    Raises:
        FlagFault: a combination that SGLang refuses at start.
    """
    patch = release_of(version)[2]
    args = {**FIXED, **values}
    for key in ("tokenizer_path", "served_model_name"):
        args[key] = args[key] or args["model_path"]
    if args["random_seed"] is None:
        args["random_seed"] = random.SystemRandom().randrange(1 << 30)
    if args["mem_fraction_static"] is None:
        args["mem_fraction_static"] = 0.88
    if args["attention_backend"] is None and not (
        args["prefill_attention_backend"] and args["decode_attention_backend"]
    ):
        args["attention_backend"] = "torch_native" if args["device"] == "cpu" else "fa3"
    if args["context_length"] is None:
        args["context_length"] = DEFAULT_CONTEXT
    if args["tp_size"] < 1:
        raise FlagFault("tp_size must be at least 1")
    if args["speculative_attention_mode"] not in ("prefill", "decode"):
        raise FlagFault(
            "argument --speculative-attention-mode: invalid choice: "
            f"'{args['speculative_attention_mode']}' (choose from 'prefill', 'decode')"
        )
    speculative = args["speculative_algorithm"] is not None
    if speculative:
        _speculation(args)
    _graphs(args, patch, speculative)
    return args


def _speculation(args: dict[str, Any]) -> None:
    if args["speculative_algorithm"] not in ("EAGLE", "EAGLE3"):
        raise FlagFault(
            f"the emulated engine knows no speculative algorithm '{args['speculative_algorithm']}' "
            "(EAGLE, EAGLE3)"
        )
    if args["max_running_requests"] is None:
        args["max_running_requests"] = SPECULATIVE_RUNNING_REQUESTS
        args["running_requests_reset"] = True
    given = [args[f"speculative_{key}"] for key in ("num_steps", "eagle_topk", "num_draft_tokens")]
    if given[0] is None:
        if given[1] is not None or given[2] is not None:
            raise FlagFault("speculative_eagle_topk and speculative_num_draft_tokens must be None here")
        args["speculative_num_steps"] = 5
        args["speculative_eagle_topk"] = 4
        args["speculative_num_draft_tokens"] = 8
    if args["speculative_eagle_topk"] is None:
        args["speculative_eagle_topk"] = 1
    if args["speculative_eagle_topk"] == 1 or args["speculative_num_draft_tokens"] is None:
        args["speculative_num_draft_tokens"] = args["speculative_num_steps"] + 1
    if args["speculative_draft_model_revision"] is None:
        args["speculative_draft_model_revision"] = "main"
    args["enable_mixed_chunk"] = False


def _graphs(args: dict[str, Any], patch: int, speculative: bool) -> None:
    max_bs = args.get("cuda_graph_max_bs_decode") or args.get("cuda_graph_max_bs")
    sizes = args.get("cuda_graph_bs_decode") or args.get("cuda_graph_bs")
    if max_bs is None:
        max_bs = max(sizes) if sizes else min(args["max_running_requests"] or 256, 256)
    sizes = sizes or capture_sizes(max_bs, speculative)
    on_cpu = args["device"] == "cpu"
    decode_off = (
        on_cpu
        or args["disable_cuda_graph"]
        or args.get("disable_decode_cuda_graph", False)
        or args.get("cuda_graph_backend_decode") == "disabled"
    )
    prefill_off = (
        on_cpu
        or args["disable_cuda_graph"]
        or args.get("disable_prefill_cuda_graph", False)
        or args.get("cuda_graph_backend_prefill") == "disabled"
        or patch < 14
    )
    args["emulated_decode_graphs"] = not decode_off
    args["emulated_capture_sizes"] = sizes
    if patch < 14:
        args["cuda_graph_max_bs"], args["cuda_graph_bs"] = max_bs, sizes
        return
    # From here on these are aliases on the command line, no attributes of their own.
    for old in ("cuda_graph_max_bs", "cuda_graph_bs", "disable_piecewise_cuda_graph"):
        args.pop(old, None)
    args["cuda_graph_max_bs_decode"] = max_bs
    args["cuda_graph_config"] = {
        "decode": {
            "backend": "disabled" if decode_off else args.get("cuda_graph_backend_decode") or "full",
            "max_bs": max_bs,
            "bs": sizes,
            "tc_compiler": "eager",
            "full_prefill_max_req": None,
        },
        "prefill": {
            "backend": "disabled" if prefill_off else args.get("cuda_graph_backend_prefill") or "piecewise",
            "max_bs": args["context_length"],
            "bs": [
                size
                for size in (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
                if size <= args["context_length"]
            ],
            "tc_compiler": "eager",
            "full_prefill_max_req": None,
        },
    }


def condition_of(args: dict[str, Any]) -> str:
    """Which condition resolved server arguments ask for."""
    if args["speculative_algorithm"] is None:
        return "baseline" if args["emulated_decode_graphs"] else "baseline_eager"
    name = "eagle3" if args["emulated_decode_graphs"] else "eagle3_eager"
    return f"{name}_attention_decode" if args["speculative_attention_mode"] == "decode" else name


def kv_tokens(args: dict[str, Any]) -> int:
    """Capacity of the KV cache, in tokens: ``--max-total-tokens``, or a share of an imagined GPU."""
    if args["max_total_tokens"]:
        return int(args["max_total_tokens"])
    tokens = int(DEFAULT_KV_TOKENS * args["mem_fraction_static"] / 0.4)
    return int(tokens * DRAFT_KV_SHARE) if args["speculative_algorithm"] else tokens


def running_limit(args: dict[str, Any]) -> int:
    """Most requests that run together."""
    return int(args["max_running_requests"] or min(max(kv_tokens(args) // 1024, 1), 4096))


def server_info(args: dict[str, Any], version: str, state: dict[str, Any]) -> dict[str, Any]:
    """Body of `/server_info`.

    Args:
        state: what only the scheduler knows: throughput, memory, accept length (absent until known).
    """
    shown = {key: value for key, value in args.items() if not _private(key)}
    tokens = kv_tokens(args)
    inner = {
        **shown,
        "disable_chunked_prefix_cache": True,
        "pp_max_micro_batch_size": running_limit(args),
        "max_speculative_num_draft_tokens": args["speculative_num_draft_tokens"],
        **state,
        "effective_max_running_requests_per_dp": running_limit(args),
    }
    return {
        **shown,
        "status": "ready",
        "max_total_num_tokens": tokens,
        "max_req_input_len": args["context_length"] - 6,
        "internal_states": [inner],
        "version": version,
        "kv_events": None,
    }


def _private(key: str) -> bool:
    return key.startswith("emulated_") or key == "running_requests_reset"
