"""What the stand-in kernels do not have, and say so."""

from __future__ import annotations

import sgl_kernel
import torch
from harness import check, raises


@check
def multi_layer_draft_is_refused() -> None:
    raises(NotImplementedError, sgl_kernel.rotate_input_ids_cpu)


@check
def no_fused_kernels_are_promised() -> None:
    assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")
    assert torch.ops.sgl_kernel.decode_attention_cpu is sgl_kernel.decode_attention_cpu
    assert torch.ops.sgl_kernel.extend_attention_cpu is sgl_kernel.extend_attention_cpu
