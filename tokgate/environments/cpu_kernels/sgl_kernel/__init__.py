"""Stand-in for the CPU build of ``sgl_kernel``, in plain PyTorch, for SGLang 0.5.23.

PyPI ships SGLang's kernels for CUDA only. These are the operations that SGLang's CPU path calls for
a dense text model, with and without EAGLE-3; each function names the call site whose signature it
follows (paths under ``sglang/``). What is not needed for that is refused, never approximated.

``convert_weight_packed`` is left out on purpose: SGLang reads its presence as "this CPU has AMX" and
would call fused kernels that are not here. Without it norm, rotary embedding and linear layers take
SGLang's own PyTorch paths.

The package refuses to load unless ``SGLANG_USE_CPU_ENGINE=1`` and torch sees no CUDA device, since it
would otherwise hide the real kernels.
"""

import os

import torch

if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
    raise ImportError(
        "this sgl_kernel is tokgate's stand-in for the CPU engine and SGLANG_USE_CPU_ENGINE is not 1: "
        "take its folder off PYTHONPATH"
    )
if torch.cuda.is_available():
    raise ImportError(
        "this sgl_kernel is tokgate's stand-in for the CPU engine and torch sees a CUDA device: take its "
        "folder off PYTHONPATH, or set CUDA_VISIBLE_DEVICES= to run the CPU engine on this host"
    )

from .attention import decode_attention_cpu, extend_attention_cpu
from .cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
)
from .speculation import (
    build_tree_kernel_efficient_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]
__version__ = "0+tokgate.cpu"

# SGLang takes the two attention kernels from the torch.ops namespace. Plain attributes suffice (nothing
# here is traced or dispatched) and save the dispatcher's cost on every layer.
torch.ops.sgl_kernel.decode_attention_cpu = decode_attention_cpu
torch.ops.sgl_kernel.extend_attention_cpu = extend_attention_cpu
