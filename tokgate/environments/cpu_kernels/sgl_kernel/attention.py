"""Attention over the paged key-value cache.

Shapes: ``T`` query tokens of ``B`` requests, ``H`` query heads, ``Hkv`` key-value heads (``H`` is a
multiple of ``Hkv``), head size ``D``; the cache buffers are ``[slots, Hkv, D]`` and row
``req_to_token[r, :n]`` lists the slots of request ``r``'s first ``n`` tokens.

Call sites: ``srt/layers/attention/intel_amx_backend.py``, ``forward_decode`` and ``forward_extend``.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def decode_attention_cpu(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    o: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross: bool = False,
    sliding_window: int = 0,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
) -> None:
    """One query token a request, against all of its ``seq_lens`` tokens; the result goes to ``o``.

    Args:
        q: ``[B, H, D]``.
        k, v: the new tokens' rows, written to the buffers at ``loc`` first; None when the caller did.
        attn_logits: the real kernel's scratch space, not used here.
        req_to_token, req_pool_indices, seq_lens: which slots each request sees.
    """
    _supported(k_scale, v_scale, logit_cap, is_cross, sliding_window, sinks)
    if k is not None and v is not None:
        k_buffer[loc] = k.view(-1, *k_buffer.shape[1:])
        v_buffer[loc] = v.view(-1, *v_buffer.shape[1:])
    if q.shape[0] == 1:
        slots = req_to_token[req_pool_indices[0], : int(seq_lens[0])]
        o.copy_(_attend_one(q, k_buffer, v_buffer, slots, None, sm_scale))
        return
    longest = int(seq_lens.max())
    slots = req_to_token[req_pool_indices, :longest]
    visible = torch.arange(longest) < seq_lens[:, None]
    o.copy_(_attend_padded(q[:, None], k_buffer, v_buffer, slots, visible[:, None], sm_scale)[:, 0])


def extend_attention_cpu(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    o: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross: bool = False,
    sliding_window: int = 0,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
    tree_mask: Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """The last ``extend_seq_lens`` tokens of each request against its whole sequence; result in ``o``.

    Args:
        q: ``[T, H, D]``, requests one after another, request ``i`` from ``extend_start_loc[i]``.
        k, v: the new tokens' rows; the caller has already written them to the buffers.
        seq_lens: tokens a request sees, the extended ones included.
        tree_mask: bool, flat: for each request an ``e x e`` matrix (``e`` its extended tokens), row may
            see column; the tokens before them are visible to all. None means a chain: causal.
    """
    _supported(k_scale, v_scale, logit_cap, is_cross, sliding_window, sinks)
    lengths, extends = seq_lens.tolist(), extend_seq_lens.tolist()
    starts = extend_start_loc.tolist()
    uniform = len(lengths) > 1 and min(extends) == max(extends)
    if uniform and tree_mask is None and is_causal and starts == list(range(0, q.shape[0], extends[0])):
        e, longest = extends[0], max(lengths)
        slots = req_to_token[req_pool_indices, :longest]
        last = seq_lens[:, None] - e + torch.arange(e)  # [B, e]: the last position each query may see
        visible = torch.arange(longest) <= last[:, :, None]
        batched = q.view(len(lengths), e, *q.shape[1:])
        o.copy_(_attend_padded(batched, k_buffer, v_buffer, slots, visible, sm_scale).reshape(o.shape))
        return
    rows = req_pool_indices.tolist()
    mask_at = 0
    for row, n, e, start in zip(rows, lengths, extends, starts, strict=True):
        visible = None
        if tree_mask is not None:
            among = tree_mask.view(-1)[mask_at : mask_at + e * e].view(e, e)
            visible = torch.cat([torch.ones(e, n - e, dtype=torch.bool), among.bool()], dim=1)
            mask_at += e * e
        elif is_causal and e > 1:
            visible = torch.ones(e, n, dtype=torch.bool).tril(n - e)
        part = slice(start, start + e)
        o[part] = _attend_one(q[part], k_buffer, v_buffer, req_to_token[row, :n], visible, sm_scale)


def _attend_one(
    q: Tensor, k_buffer: Tensor, v_buffer: Tensor, slots: Tensor, visible: Tensor | None, scale: float
) -> Tensor:
    """Queries ``[e, H, D]`` of one request against its ``slots``; ``visible`` is ``[e, n]`` or None."""
    keys, values = k_buffer[slots].transpose(0, 1), v_buffer[slots].transpose(0, 1)
    grouped = q.shape[1] != keys.shape[0]
    return scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], attn_mask=visible, scale=scale, enable_gqa=grouped
    )[0].transpose(0, 1)


def _attend_padded(
    q: Tensor, k_buffer: Tensor, v_buffer: Tensor, slots: Tensor, visible: Tensor, scale: float
) -> Tensor:
    """Queries ``[B, e, H, D]`` against ``slots`` ``[B, n]``; padding is what ``visible`` ``[B, e, n]`` hides.

    Slots beyond a request's length are whatever its row of the table holds: in range, and masked.
    """
    keys, values = k_buffer[slots].transpose(1, 2), v_buffer[slots].transpose(1, 2)
    grouped = q.shape[2] != keys.shape[1]
    return scaled_dot_product_attention(
        q.transpose(1, 2), keys, values, attn_mask=visible[:, None], scale=scale, enable_gqa=grouped
    ).transpose(1, 2)


def _supported(
    k_scale: float,
    v_scale: float,
    logit_cap: float,
    is_cross: bool,
    sliding_window: int,
    sinks: Tensor | None,
) -> None:
    """Refuse what a dense Llama does not use. SGLang passes 0 for "no cap" and "no window"."""
    if k_scale != 1.0 or v_scale != 1.0:
        raise NotImplementedError("CPU stand-in: a quantised key-value cache")
    if logit_cap > 0 or is_cross or sliding_window > 0 or sinks is not None:
        raise NotImplementedError("CPU stand-in: logit cap, cross attention, sliding window or sinks")
