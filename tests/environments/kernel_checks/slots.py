"""Cache slots: rows copied, tables packed and unpacked, places of drafted and accepted tokens."""

from __future__ import annotations

import sgl_kernel
import torch
from harness import check


@check
def copy_rows_in_every_buffer() -> None:
    buffers = [torch.randn(10, 3), torch.randn(10, 2, 2), torch.randn(10, 5)]
    before = [buffer.clone() for buffer in buffers]
    sgl_kernel.copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
        torch.tensor([buffer[0].nbytes for buffer in buffers]),
        torch.tensor([1, 2, 3]),
        torch.tensor([2, 3, 9]),  # overlaps: every source is read before any target is written
    )
    for old, new in zip(before, buffers, strict=True):
        want = old.clone()
        for target, source in ((1, 2), (2, 3), (3, 9)):
            want[target] = old[source]
        assert torch.equal(new, want)


@check
def slots_packed_and_unpacked() -> None:
    table = torch.arange(40, dtype=torch.int32).view(4, 10)
    rows, start, end = torch.tensor([3, 1]), torch.tensor([2, 5]), torch.tensor([5, 7])
    out = torch.full((5,), -1)
    sgl_kernel.assign_extend_cache_locs_cpu(rows, table, start, end, out, 10)
    assert out.tolist() == [32, 33, 34, 15, 16]
    other = torch.zeros_like(table)
    sgl_kernel.assign_req_to_token_pool_cpu(rows, other, start, end, out, 10)
    assert other[3].tolist() == [0, 0, 32, 33, 34, 0, 0, 0, 0, 0]
    assert other[1].tolist() == [0, 0, 0, 0, 0, 15, 16, 0, 0, 0]
    assert not other[[0, 2]].any()


@check
def draft_slots() -> None:
    table = torch.arange(40, dtype=torch.int32).view(4, 10)
    out = torch.full((8,), -1)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(
        torch.tensor([2, 0]), table, torch.tensor([3, 5]), out, 10, 2, 2
    )
    assert out.tolist() == [23, 24, 25, 26, 5, 6, 7, 8]


@check
def draft_table() -> None:
    table = torch.arange(40, dtype=torch.int32).view(4, 10)
    rows, lengths = torch.tensor([2, 0]), torch.tensor([3, 1])
    chain = sgl_kernel.build_draft_decode_metadata_cpu(table, rows, lengths, 1, 3, 10)
    assert chain[0, :6].tolist() == [20, 21, 22, 23, 24, 25] and chain[1, :4].tolist() == [0, 1, 2, 3]
    two = sgl_kernel.build_draft_decode_metadata_cpu(table, rows, lengths, 2, 3, 10)
    assert [row[:6].tolist() for row in two[:2]] == [[20, 21, 22, 23, 24, 25], [20, 21, 22, 26, 27, 28]]
    assert [row[:4].tolist() for row in two[2:]] == [[0, 1, 2, 3], [0, 4, 5, 6]]
    assert table[2, 3] == 23, "the scheduler's own table is untouched"


@check
def bonus_tokens() -> None:
    out = torch.zeros(2, dtype=torch.int32)
    sgl_kernel.fill_bonus_tokens_cpu(torch.arange(8).view(2, 4), torch.tensor([3, 1]), out, 4)
    assert out.tolist() == [2, 4]


@check
def accepted_slots() -> None:
    out = torch.zeros(6, dtype=torch.long)
    slots = torch.arange(100, 108)
    sgl_kernel.fill_accept_out_cache_loc_cpu(torch.tensor([[0, 1, -1], [4, -1, -1]]), slots, out)
    assert out.tolist() == [100, 101, 104, 0, 0, 0]
