"""Checks of the stand-in kernels against plain PyTorch formulas.

Run by the CPU engine's Python (the gate's own has no torch): prints one JSON object, check name to
``null`` or the traceback. Only definitions are used as formulas: loops, softmax, indexing.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from functools import partial

import sgl_kernel
import torch
from torch import Tensor

CHECKS: dict[str, Callable[[], None]] = {}
SLOTS, HEADS, HEAD_SIZE = 64, 4, 8


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def raises(kind: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


class Cache:
    """A paged cache with requests of given lengths in scattered slots; row 0 of the table is unused."""

    def __init__(self, lengths: list[int], kv_heads: int = HEADS, seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)
        self.generator = g
        self.k = torch.randn(SLOTS, kv_heads, HEAD_SIZE, generator=g)
        self.v = torch.randn(SLOTS, kv_heads, HEAD_SIZE, generator=g)
        self.table = torch.zeros(len(lengths) + 1, 32, dtype=torch.int32)
        slots = torch.randperm(SLOTS - 1, generator=g) + 1
        at = 0
        for row, length in enumerate(lengths, start=1):
            self.table[row, :length] = slots[at : at + length].int()
            at += length
        self.rows = torch.arange(1, len(lengths) + 1)
        self.lengths = torch.tensor(lengths)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)


def attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float) -> Tensor:
    """softmax(scale q k) v, head by head and query by query; ``visible`` lists the keys of each query."""
    out = torch.empty_like(q)
    share = q.shape[1] // k.shape[1]
    for query in range(q.shape[0]):
        seen = visible[query].nonzero().flatten()
        for head in range(q.shape[1]):
            weights = torch.softmax(k[seen, head // share] @ q[query, head] * scale, dim=0)
            out[query, head] = weights @ v[seen, head // share]
    return out


def decode(
    cache: Cache, q: Tensor, k: Tensor | None = None, v: Tensor | None = None, **more: object
) -> Tensor:
    o = torch.empty_like(q)
    loc = cache.table[cache.rows, cache.lengths - 1].long()
    arguments = {"logit_cap": 0.0, "k_scale": 1.0, "sliding_window": 0} | more
    sgl_kernel.decode_attention_cpu(
        q, cache.k, cache.v, arguments["k_scale"], 1.0, o, k, v, loc, torch.empty(0), cache.table,
        cache.rows, cache.lengths, 0.3, arguments["logit_cap"], False, arguments["sliding_window"],
    )  # fmt: skip
    return o


def check_decode(lengths: list[int], kv_heads: int = HEADS) -> None:
    cache = Cache(lengths, kv_heads)
    q = cache.random(len(lengths), HEADS, HEAD_SIZE)
    k, v = (cache.random(len(lengths), kv_heads * HEAD_SIZE) for _ in range(2))
    got = decode(cache, q, k, v)
    for i, (row, length) in enumerate(zip(cache.rows.tolist(), lengths, strict=True)):
        slots = cache.table[row, :length].long()
        assert torch.equal(cache.k[slots[-1]], k[i].view(kv_heads, HEAD_SIZE)), "the new key is in the cache"
        assert torch.equal(cache.v[slots[-1]], v[i].view(kv_heads, HEAD_SIZE)), (
            "the new value is in the cache"
        )
        all_visible = torch.ones(1, length, dtype=torch.bool)
        want = attention(q[i : i + 1], cache.k[slots], cache.v[slots], all_visible, 0.3)
        torch.testing.assert_close(got[i : i + 1], want)


def extend(
    cache: Cache, q: Tensor, extends: list[int], mask: Tensor | None = None, causal: bool = True
) -> Tensor:
    o = torch.empty_like(q)
    sizes = torch.tensor(extends, dtype=torch.int32)
    starts = torch.cumsum(sizes, 0, dtype=torch.int32) - sizes
    sgl_kernel.extend_attention_cpu(
        q, None, None, o, cache.k, cache.v, 1.0, 1.0, cache.table, cache.rows, cache.lengths, sizes, starts,
        max(extends), 0.3, 0.0, False, 0, None, None, mask, causal,
    )  # fmt: skip
    return o


def check_extend(
    lengths: list[int],
    extends: list[int],
    trees: list[Tensor] | None = None,
    causal: bool = True,
    kv_heads: int = HEADS,
) -> None:
    cache = Cache(lengths, kv_heads)
    q = cache.random(sum(extends), HEADS, HEAD_SIZE)
    flat = torch.cat([tree.flatten() for tree in trees]) if trees else None
    got, at = extend(cache, q, extends, flat, causal), 0
    for i, (row, n, e) in enumerate(zip(cache.rows.tolist(), lengths, extends, strict=True)):
        visible = torch.ones(e, n, dtype=torch.bool)
        for query in range(e):
            for new in range(e):
                seen = trees[i][query, new] if trees else (new <= query or not causal)
                visible[query, n - e + new] = bool(seen)
        slots = cache.table[row, :n].long()
        want = attention(q[at : at + e], cache.k[slots], cache.v[slots], visible, 0.3)
        torch.testing.assert_close(got[at : at + e], want)
        at += e


@check
def decode_one_request() -> None:
    check_decode([7])


@check
def decode_requests_of_different_lengths() -> None:
    check_decode([5, 1, 12])


@check
def decode_shared_key_heads() -> None:
    check_decode([5], kv_heads=2)
    check_decode([5, 9], kv_heads=2)


@check
def decode_without_writing() -> None:
    cache = Cache([6])
    before = cache.k.clone()
    decode(cache, cache.random(1, HEADS, HEAD_SIZE))
    assert torch.equal(before, cache.k)


@check
def decode_refuses_what_it_lacks() -> None:
    cache = Cache([6])
    q = cache.random(1, HEADS, HEAD_SIZE)
    for more in ({"logit_cap": 30.0}, {"k_scale": 0.5}, {"sliding_window": 4}):
        raises(NotImplementedError, partial(decode, cache, q, **more))


@check
def extend_whole_prompt() -> None:
    check_extend([6], [6])


@check
def extend_after_a_prefix() -> None:
    check_extend([9], [4])


@check
def extend_uneven_batch() -> None:
    check_extend([9, 3, 5], [4, 3, 1])


@check
def extend_even_batch() -> None:
    check_extend([9, 4, 20], [4, 4, 4])


@check
def extend_shared_key_heads() -> None:
    check_extend([9, 7], [3, 3], kv_heads=2)
    check_extend([9, 7], [3, 2], kv_heads=2)


@check
def extend_not_causal() -> None:
    check_extend([6, 7], [3, 3], causal=False)


@check
def extend_tree() -> None:
    chain = torch.ones(3, 3, dtype=torch.bool).tril()
    fork = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    check_extend([8, 5], [3, 3], [fork, chain])


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


class Tree:
    """Outputs of the tree builder for a batch of trees of ``n`` nodes."""

    def __init__(
        self, parents: list[list[int]], selected: list[list[int]], lengths: list[int], topk: int, depth: int
    ):
        batch, self.n = len(selected), len(selected[0]) + 1
        self.mask = torch.ones(batch * self.n * self.n, dtype=torch.bool)
        self.positions = torch.zeros(batch * self.n, dtype=torch.long)
        self.rows, self.child, self.sibling = (torch.full((batch, self.n), -1) for _ in range(3))
        sgl_kernel.build_tree_kernel_efficient_cpu(
            torch.tensor(parents), torch.tensor(selected), torch.tensor(lengths), self.mask, self.positions,
            self.rows, self.child, self.sibling, topk, depth, self.n, 1,
        )  # fmt: skip

    def verify(
        self, tokens: list[list[int]], target: list[list[int]], most: int
    ) -> tuple[list[int], list[list[int]], list[int]]:
        predicts = torch.full((self.rows.numel(),), -7, dtype=torch.int32)
        accepted = torch.full((len(tokens), most), -1, dtype=torch.int32)
        counts = torch.zeros(len(tokens), dtype=torch.int32)
        sgl_kernel.verify_tree_greedy_cpu(
            predicts=predicts,
            accept_index=accepted,
            accept_token_num=counts,
            candidates=torch.tensor(tokens),
            retrive_index=self.rows,
            retrive_next_token=self.child,
            retrive_next_sibling=self.sibling,
            target_predict=torch.tensor(target),
        )
        return predicts.tolist(), accepted.tolist(), counts.tolist()


def chains(batch: int) -> Tree:
    """topk 1: node i's parent is node i - 1."""
    return Tree([[-1, 0, 1]] * batch, [[0, 1, 2]] * batch, list(range(10, 10 + batch)), topk=1, depth=3)


@check
def tree_of_a_chain() -> None:
    tree = chains(2)
    lower = torch.ones(4, 4, dtype=torch.bool).tril()
    assert torch.equal(tree.mask.view(2, 4, 4), torch.stack([lower, lower]))
    assert tree.positions.tolist() == [10, 11, 12, 13, 11, 12, 13, 14]
    assert tree.rows.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert tree.child.tolist() == [[1, 2, 3, -1]] * 2
    assert tree.sibling.tolist() == [[-1] * 4] * 2


def fork() -> Tree:
    """topk 2. Candidates 0, 1 hang on the root; group 1 (2, 3) on candidate 0, group 2 (4, 5) on 1."""
    return Tree([[-1, 0, 1]], [[0, 1, 2, 4]], [20], topk=2, depth=2)


@check
def tree_with_branches() -> None:
    tree = fork()
    assert tree.mask.view(5, 5).int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 1, 0, 1],
    ]
    assert tree.positions.tolist() == [20, 21, 21, 22, 22]
    assert tree.child.tolist() == [[1, 3, 4, -1, -1]]
    assert tree.sibling.tolist() == [[-1, 2, -1, -1, -1]]


@check
def tree_leaves_out_orphans() -> None:
    tree = Tree([[-1, 0, 1]], [[0, 2, 4]], [20], topk=2, depth=2)  # candidate 1, parent of 4, is missing
    assert tree.child.tolist() == [[1, 2, -1, -1]]
    assert 3 not in tree.child.flatten().tolist() and 3 not in tree.sibling.flatten().tolist()


@check
def tree_refuses_other_masks() -> None:
    one = torch.zeros(1, 2, dtype=torch.long)
    call = sgl_kernel.build_tree_kernel_efficient_cpu
    raises(
        NotImplementedError,
        lambda: call(one, one[:, :1], one[0, :1], one, one[0], one, one, one, 1, 1, 2, 0),
    )


@check
def verify_accepts_the_longest_match() -> None:
    tokens = [[5, 6, 7, 8], [5, 6, 7, 8]]
    target = [[6, 7, 9, 1], [9, 7, 8, 1]]  # first: two drafts right; second: none
    predicts, accepted, counts = chains(2).verify(tokens, target, 4)
    assert counts == [2, 0]
    assert accepted == [[0, 1, 2, -1], [4, -1, -1, -1]]
    assert predicts == [6, 7, 9, -7, 9, -7, -7, -7]


@check
def verify_accepts_a_whole_chain() -> None:
    predicts, accepted, counts = chains(1).verify([[5, 6, 7, 8]], [[6, 7, 8, 9]], 4)
    assert (predicts, accepted, counts) == ([6, 7, 8, 9], [[0, 1, 2, 3]], [3])


@check
def verify_takes_the_right_branch() -> None:
    tokens, target = [[5, 6, 7, 8, 9]], [[7, 0, 9, 0, 3]]  # root -> second child -> its child
    predicts, accepted, counts = fork().verify(tokens, target, 3)
    assert (accepted, counts) == ([[0, 2, 4]], [2])
    assert [predicts[row] for row in (0, 2, 4)] == [7, 9, 3]


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


@check
def multi_layer_draft_is_refused() -> None:
    raises(NotImplementedError, sgl_kernel.rotate_input_ids_cpu)


@check
def no_fused_kernels_are_promised() -> None:
    assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")
    assert torch.ops.sgl_kernel.decode_attention_cpu is sgl_kernel.decode_attention_cpu
    assert torch.ops.sgl_kernel.extend_attention_cpu is sgl_kernel.extend_attention_cpu


def main() -> None:
    torch.manual_seed(0)
    results: dict[str, str | None] = {}
    for name, function in CHECKS.items():
        try:
            function()
            results[name] = None
        except Exception:  # noqa: BLE001 - each check reports, whatever it raises
            results[name] = traceback.format_exc()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
