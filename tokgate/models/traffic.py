"""What a step of a dense model reads from memory, from the headers of its weights and its configuration."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokgate.errors import ModelMissing
from tokgate.models.safetensors import read_folder

EMBEDDING = "embed_tokens.weight"
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a step of a model reads.

    Attributes:
        weights_bytes: of all layers and the output head, on one GPU.
        kv_bytes_per_token: keys and values of one token of context, on one GPU.
    """

    weights_bytes: int
    kv_bytes_per_token: int


def traffic(folder: Path, ranks: int = 1) -> Traffic | str:
    """What a step reads; of a model of which that cannot be said, why.

    Keys and values are taken to be stored in the model's own type. Of the embedding a step reads a row or
    two, unless it is the output head as well.

    Args:
        folder: of the target: ``config.json`` and ``*.safetensors``.
        ranks: GPUs over which weights and heads are split.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        entries = read_folder(folder)
    except (OSError, ValueError, ModelMissing) as error:
        return f"the model cannot be read: {error}"
    if not isinstance(config, dict):
        return f"the model cannot be read: {folder / 'config.json'} holds no object"
    if any(config.get(key) for key in _EXPERTS):
        return "a mixture of experts: which weights a step reads depends on the routing"
    if "kv_lora_rank" in config:
        return "latent attention (MLA): its cache is not reckoned here"
    try:
        heads = int(config.get("num_key_value_heads") or config["num_attention_heads"])
        size = int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
        element = _BYTES[str(config.get("dtype") or config["torch_dtype"])]
        per_token = 2 * int(config["num_hidden_layers"]) * heads * size * element
    except (KeyError, TypeError, ValueError) as error:
        return f"its configuration lacks what the size of keys and values follows from: {error}"
    tied = bool(config.get("tie_word_embeddings"))
    weights = sum(e.stop - e.start for name, e in entries.items() if tied or not name.endswith(EMBEDDING))
    return Traffic(weights // ranks, per_token // ranks)
