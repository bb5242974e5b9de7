"""An independent forward pass in numpy: reads the files by name and knows nothing of how they were made.

It computes what SGLang's Llama and its EAGLE-3 draft compute (norm, rotary attention, SwiGLU; aux hidden
states before layers 2, L//2 and L-3; ``fc``; vocabulary map), in float32, or with every intermediate rounded
to bfloat16 as a kernel that works in bfloat16 would.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokgate.models.noise import from_bfloat16, to_bfloat16
from tokgate.models.safetensors import Weights, read_folder

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

KvFault = Callable[[int, F32, F32], None]
"""Called with layer, rotated keys and values [tokens, kv_heads, head_dim]; may change them in place."""

_HEAD_ROWS = 16384


@dataclass(slots=True)
class Model:
    """One model's files.

    Attributes:
        rounded: round intermediates to bfloat16.
    """

    weights: Weights
    config: dict[str, Any]
    rounded: bool
    _kept: dict[str, F32] = field(default_factory=dict)

    def matrix(self, name: str) -> F32:
        """A weight as float32; small ones are kept."""
        if name not in self._kept:
            found = self.weights.rows(name)
            if found.size > 1 << 22:
                return found
            self._kept[name] = found
        return self._kept[name]

    def round(self, values: F32) -> F32:
        return from_bfloat16(to_bfloat16(values)) if self.rounded else values

    def norm(self, x: F32, name: str) -> F32:
        size = np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(self.config["rms_norm_eps"]))
        return self.round(x / size * self.matrix(name))

    def linear(self, x: F32, name: str) -> F32:
        return self.round(x @ self.matrix(name).T)

    def logits(self, x: F32, name: str = "lm_head.weight") -> F32:
        """Scores of every id, float32 [tokens, vocab] (not rounded: ties show)."""
        rows = self.weights.entries[name].shape[0]
        parts = [
            x @ self.weights.rows(name, slice(first, first + _HEAD_ROWS)).T
            for first in range(0, rows, _HEAD_ROWS)
        ]
        return np.concatenate(parts, axis=1)

    def rotate(self, x: F32, positions: I64) -> F32:
        """Rotary embedding (rotate-half), x [tokens, heads, head_dim]; float32 angles, as in engines."""
        half = x.shape[-1] // 2
        rates = (1.0 / self.config["rope_theta"] ** (np.arange(half, dtype=np.float32) / half)).astype(
            np.float32
        )
        angles = positions.astype(np.float32)[:, None] * rates
        cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., :half], x[..., half:]
        return self.round(np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=-1))

    def project(self, x: F32, prefix: str, positions: I64) -> tuple[F32, F32, F32]:
        """Rotated queries, rotated keys and values, [tokens, heads, head_dim]."""
        width = self.config["head_dim"]
        q = self.linear(x, prefix + "q_proj.weight").reshape(len(x), -1, width)
        k = self.linear(x, prefix + "k_proj.weight").reshape(len(x), -1, width)
        v = self.linear(x, prefix + "v_proj.weight").reshape(len(x), -1, width)
        return self.rotate(q, positions), self.rotate(k, positions), v

    def mlp(self, x: F32, prefix: str) -> F32:
        gate = self.linear(x, prefix + "gate_proj.weight")
        up = self.linear(x, prefix + "up_proj.weight")
        return self.linear(self.round(silu(gate) * up), prefix + "down_proj.weight")


def silu(z: F32) -> F32:
    """z * sigmoid(z)."""
    result: F32 = z / (1 + np.exp(-z))
    return result


def load_model(folder: Path, *, rounded: bool) -> Model:
    """Open a model's folder; weights are read when used."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return Model(Weights(read_folder(folder)), config, rounded)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a query may look at: keys and values [keys, kv_heads, head_dim] and, per query, which keys."""

    keys: F32
    values: F32
    mask: NDArray[np.bool_]


def attend(model: Model, q: F32, seen: Sequence[Seen]) -> F32:
    """Softmax attention over several stores at once, [tokens, heads * head_dim]."""
    heads = q.shape[1]
    out = np.empty_like(q)
    for head in range(heads):
        scores = []
        for store in seen:
            kv = head // (heads // store.keys.shape[1])
            raw = q[:, head] @ store.keys[:, kv].T / np.float32(np.sqrt(q.shape[-1]))
            scores.append(np.where(store.mask, raw, np.float32(-np.inf)))
        joined = np.concatenate(scores, axis=1)
        share = np.exp(joined - joined.max(axis=1, keepdims=True))
        share = model.round(share / share.sum(axis=1, keepdims=True))
        values = np.concatenate([s.values[:, head // (heads // s.keys.shape[1])] for s in seen])
        out[:, head] = model.round(share @ values)
    return out.reshape(len(q), -1)


@dataclass(frozen=True, slots=True)
class TargetPass:
    """Attributes:
    final: [tokens, hidden] after the last norm.
    aux: captured hidden states, one next to another, [tokens, 3 * hidden].
    """

    final: F32
    aux: F32


def target_pass(
    model: Model,
    ids: Sequence[int] | I64,
    *,
    positions: I64 | None = None,
    capture: Sequence[int] | None = None,
    kv_fault: KvFault | None = None,
) -> TargetPass:
    """One prefill of the target.

    Args:
        positions: of the tokens; by default 0, 1, ...
        capture: layers whose inputs are captured; by default SGLang's.
        kv_fault: changes a layer's keys and values before they are looked at.
    """
    tokens = np.asarray(ids, np.int64)
    at = np.arange(len(tokens)) if positions is None else positions
    layers = int(model.config["num_hidden_layers"])
    wanted = (2, layers // 2, layers - 3) if capture is None else tuple(capture)
    x = model.weights.rows("model.embed_tokens.weight", tokens)
    causal = np.tril(np.ones((len(tokens), len(tokens)), np.bool_))
    captured: dict[int, F32] = {}
    for layer in range(layers):
        captured[layer] = x
        prefix = f"model.layers.{layer}."
        q, k, v = model.project(model.norm(x, prefix + "input_layernorm.weight"), prefix + "self_attn.", at)
        if kv_fault is not None:
            kv_fault(layer, k, v)
        mixed = attend(model, q, [Seen(k, v, causal)])
        x = model.round(x + model.linear(mixed, prefix + "self_attn.o_proj.weight"))
        x = model.round(
            x + model.mlp(model.norm(x, prefix + "post_attention_layernorm.weight"), prefix + "mlp.")
        )
    aux = np.concatenate([captured[layer] for layer in wanted], axis=1)
    return TargetPass(model.norm(x, "model.norm.weight"), aux)


def draft_chain(model: Model, embedding: Weights, ids: Sequence[int] | I64, hidden: F32, steps: int) -> I64:
    """What the draft proposes at every position of a sequence.

    Args:
        embedding: weights that hold the target's ``model.embed_tokens.weight``.
        ids: the tokens, shape [n].
        hidden: what the draft is given for tokens 0..n-2: aux states [n-1, 3 * hidden], put through ``fc``,
            or states of the draft's own width, which SGLang hands on as they are.
        steps: drafted tokens in a chain.

    Returns:
        Target ids, shape [n-1, steps]: element [p, s] is the s-th drafted token after tokens 0..p+1.
    """
    tokens = np.asarray(ids, np.int64)[1:]
    count = len(tokens)
    width = int(model.config["hidden_size"])
    offsets = np.asarray(model.weights.raw("d2t"), np.int64)
    h = model.linear(hidden, "fc.weight") if hidden.shape[1] != width else hidden
    stores: list[Seen] = []
    at = np.arange(count)
    proposed = np.empty((count, steps), np.int64)
    for step in range(steps):
        e = embedding.rows("model.embed_tokens.weight", tokens)
        x = np.concatenate(
            [model.norm(e, "midlayer.input_layernorm.weight"), model.norm(h, "midlayer.hidden_norm.weight")],
            axis=1,
        )
        q, k, v = model.project(x, "midlayer.self_attn.", at + step)
        # Row p looks at the extend pass's rows up to p, and at its own chain's rows only.
        mask = np.tril(np.ones((count, count), np.bool_)) if step == 0 else np.eye(count, dtype=np.bool_)
        stores.append(Seen(k, v, mask))
        h = model.round(h + model.linear(attend(model, q, stores), "midlayer.self_attn.o_proj.weight"))
        h = model.round(
            h + model.mlp(model.norm(h, "midlayer.post_attention_layernorm.weight"), "midlayer.mlp.")
        )
        best = model.logits(model.norm(h, "norm.weight")).argmax(axis=1)
        tokens = best + offsets[best]
        proposed[:, step] = tokens
    return proposed
