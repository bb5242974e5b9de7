"""Names and shapes of the tensors that a Llama and its EAGLE-3 draft consist of, from their configs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

VOCABULARY_MAPS = frozenset({"d2t", "t2d"})
"""d2t: target id less draft id, by draft id. t2d: whether the draft knows an id, by target id."""

_LAYER_PARTS = (
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
)


def canonical(name: str) -> str:
    """One spelling for a draft's names, which checkpoints write in several ways."""
    if name in VOCABULARY_MAPS or name == "lm_head.weight":
        return name
    name = re.sub(r"^model\.(?=(midlayer|fc|norm|embed_tokens|layers)\.)", "", name)
    name = re.sub(r"^midlayer\.", "layers.0.", name)
    return f"model.{name}"


def _sizes(config: Mapping[str, Any]) -> tuple[int, int, int, int]:
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    width = int(config.get("head_dim") or hidden // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    return hidden, heads * width, kv_heads * width, int(config["intermediate_size"])


def _layer_shapes(config: Mapping[str, Any], inputs: int) -> dict[str, tuple[int, ...]]:
    hidden, queries, keys, wide = _sizes(config)
    shapes = (
        (queries, inputs),
        (keys, inputs),
        (keys, inputs),
        (hidden, queries),
        (wide, hidden),
        (wide, hidden),
        (hidden, wide),
        (hidden,),
        (hidden,),
    )
    return dict(zip(_LAYER_PARTS, shapes, strict=True))


def target_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensors of a ``LlamaForCausalLM``.

    Raises:
        KeyError: the config lacks a size.
    """
    hidden, vocab = int(config["hidden_size"]), int(config["vocab_size"])
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(int(config["num_hidden_layers"])):
        for part, shape in _layer_shapes(config, hidden).items():
            shapes[f"model.layers.{layer}.{part}"] = shape
    return shapes


def draft_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensors of a ``LlamaForCausalLMEagle3``, in :func:`canonical` spelling, vocabulary maps aside.

    Raises:
        KeyError: the config lacks a size.
    """
    hidden = int(config["hidden_size"])
    given = int(config.get("target_hidden_size") or hidden)
    captured = int(config.get("num_aux_hidden_states") or 3)
    own = int(config.get("draft_vocab_size") or config["vocab_size"])
    shapes: dict[str, tuple[int, ...]] = {
        "model.fc.weight": (hidden, captured * given),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (own, hidden),
        "model.embed_tokens.weight": (int(config["vocab_size"]), given),
    }
    for layer in range(int(config["num_hidden_layers"])):
        parts = _layer_shapes(config, 2 * hidden if layer == 0 else hidden)
        parts["hidden_norm.weight"] = (hidden,)
        for part, shape in parts.items():
            shapes[f"model.layers.{layer}.{part}"] = shape
    return shapes
