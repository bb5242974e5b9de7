"""Attention of decode and extend, against softmax(q k) v."""

from __future__ import annotations

from functools import partial

import sgl_kernel
import torch
from harness import check, raises
from torch import Tensor

SLOTS, HEADS, HEAD_SIZE = 64, 4, 8


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
