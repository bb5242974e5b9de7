"""Bookkeeping of cache slots: which slot holds which token of which request.

``req_to_token`` is ``[requests, pool_len]``: row ``r`` lists the slots of request ``r``'s tokens.
"""

import ctypes
from collections.abc import Iterator

import torch
from torch import Tensor


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy rows ``src_loc`` to rows ``tgt_loc`` in every layer's key and value buffer.

    Call site: ``kernels/ops/kvcache/cache_move.py``, ``copy_all_layer_kv_cache_func``. All sources are
    read before any target is written, so the two may overlap.

    Args:
        data_ptrs: address of each buffer, ``[buffers]``.
        strides: bytes a row of each buffer, ``[buffers]``.
    """
    if tgt_loc.numel() == 0:
        return
    targets, sources = tgt_loc.long(), src_loc.long()
    rows = 1 + int(torch.maximum(targets.max(), sources.max()))
    for address, row_bytes in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        raw = (ctypes.c_uint8 * (rows * row_bytes)).from_address(address)
        buffer = torch.frombuffer(raw, dtype=torch.uint8).view(rows, row_bytes)
        buffer[targets] = buffer[sources]


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Pack slots ``start..end`` of each request into ``out_cache_loc``, one request after another.

    Call sites: ``kernels/ops/speculative/cache_locs.py``, ``assign_extend_cache_locs_func`` and
    ``fill_front_out_cache_loc_func``.
    """
    at = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[at : at + end - start] = req_to_token[row, start:end]
        at += end - start


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """The reverse: write packed slots into ``start..end`` of each request's row.

    Call site: ``srt/mem_cache/allocation.py``, ``assign_req_to_token_pool_func``.
    """
    at = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[at : at + end - start]
        at += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """The ``topk * num_steps`` slots after each request's sequence, packed.

    Call site: ``kernels/ops/speculative/cache_locs.py``, ``assign_draft_cache_locs_contiguous_func``.
    """
    columns = seq_lens[:, None] + torch.arange(topk * num_steps)
    out_cache_loc.view(-1)[: columns.numel()] = req_to_token[req_pool_indices[:, None], columns].view(-1)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """A slot table with one row per (request, candidate), for the draft's decode steps.

    Row ``i * topk + c`` holds request ``i``'s prefix, then candidate ``c``'s own ``num_steps`` slots.
    Call site: ``IntelAMXMultiStepDraftBackend`` in ``srt/layers/attention/intel_amx_backend.py``.

    Returns:
        ``[B * topk, pool_len]``, of ``req_to_token``'s dtype.
    """
    rows = req_to_token[req_pool_indices]
    if topk == 1:  # the only candidate's slots follow the prefix already
        return rows
    table = rows.repeat_interleave(topk, dim=0)
    for i, start in enumerate(seq_lens.tolist()):
        own = rows[i, start : start + topk * num_steps].view(topk, num_steps)
        table[i * topk : (i + 1) * topk, start : start + num_steps] = own
    return table


def _spans(rows: Tensor, starts: Tensor, ends: Tensor) -> Iterator[tuple[int, int, int]]:
    return zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
