"""Before a launch: do target, draft and algorithm mean anything together?

SGLang starts, and answers, with an EAGLE-3 draft run as EAGLE (accept length 1.00), drops tensors whose names
it does not know, and leaves missing ones at random values. Here each is a fault with its mend. Only configs
and safetensors headers are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokgate.errors import Misconfigured, ModelMissing
from tokgate.models.safetensors import Entry, read_folder

EAGLE3_MARK = "eagle3"
_MAPS = frozenset({"d2t", "t2d"})
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
# A plain Llama or an EAGLE-3 draft of one: the architectures whose tensors are known here by name.
_KNOWN_TARGET = "LlamaForCausalLM"
_KNOWN_DRAFT = "LlamaForCausalLMEagle3"


def check(target: Path, draft: Path | None, algorithm: str | None) -> None:
    """Refuse a pair that cannot mean what it asks.

    Args:
        target, draft: local model folders; ``None`` for no draft. Pass no hub names.
        algorithm: as given to ``--speculative-algorithm``; ``None`` for no speculation.

    Raises:
        ModelMissing: a folder, its ``config.json`` or its weights are not there or not readable.
        Misconfigured: every fault found, each with its mend.
    """
    target_config = _config(target)
    faults: list[str] = []
    if target_config.get("architectures") == [_KNOWN_TARGET]:
        faults += _tensor_faults("target", target, target_config, _target_shapes)
    if algorithm is None:
        if draft is not None:
            faults.append("a draft is given without speculation: name an algorithm, or drop the draft")
    elif draft is None:
        if algorithm.upper() in {"EAGLE", "EAGLE3"}:
            faults.append(f"{algorithm} needs a draft model, and none is given")
    else:
        faults += _pair_faults(target_config, draft, algorithm.upper())
    if faults:
        count = f"{len(faults)} faults" if len(faults) > 1 else "1 fault"
        raise Misconfigured(
            f"{target} with {draft or 'no draft'} as {algorithm or 'baseline'}: {count}", faults
        )


def is_eagle3(config: Mapping[str, Any]) -> bool:
    """Whether a draft's config is an EAGLE-3 one, by architecture name or by a vocabulary of its own."""
    names = " ".join(map(str, config.get("architectures") or ())).lower()
    return EAGLE3_MARK in names or "draft_vocab_size" in config


def _pair_faults(target: Mapping[str, Any], draft_folder: Path, algorithm: str) -> list[str]:
    draft = _config(draft_folder)
    faults = []
    names = ", ".join(map(str, draft.get("architectures") or ("none",)))
    if algorithm == "EAGLE" and is_eagle3(draft):
        faults.append(
            f"--speculative-algorithm EAGLE with an EAGLE-3 draft ({names}): the draft would get one hidden "
            "state instead of three and accept length would be 1.00; use EAGLE3"
        )
    if algorithm == "EAGLE3" and not is_eagle3(draft):
        faults.append(
            f"--speculative-algorithm EAGLE3 with a draft that is not an EAGLE-3 one ({names}): use EAGLE, "
            "or give an EAGLE-3 draft"
        )
    faults += _size_faults(target, draft)
    if draft.get("architectures") == [_KNOWN_DRAFT]:
        faults += _tensor_faults("draft", draft_folder, {**draft, "_target": target}, _draft_shapes)
    return faults


def _size_faults(target: Mapping[str, Any], draft: Mapping[str, Any]) -> list[str]:
    faults = []
    outer = _text_config(target)
    hidden = draft.get("target_hidden_size", draft.get("hidden_size"))
    if hidden != outer.get("hidden_size"):
        faults.append(
            f"hidden size: draft expects {hidden}, target has {outer.get('hidden_size')}; "
            "give the draft made for this target"
        )
    if draft.get("vocab_size") != outer.get("vocab_size"):
        faults.append(
            f"vocabulary: draft {draft.get('vocab_size')}, target {outer.get('vocab_size')}; "
            "give the draft made for this target"
        )
    theirs, ours = draft.get("max_position_embeddings"), outer.get("max_position_embeddings")
    if isinstance(theirs, int) and isinstance(ours, int) and theirs < ours:
        faults.append(
            f"max position: draft {theirs}, target {ours}; beyond {theirs} tokens the draft is past what it "
            f"knows: set context_length to {theirs} or less, or give a draft for longer contexts"
        )
    return faults


def _tensor_faults(
    what: str,
    folder: Path,
    config: Mapping[str, Any],
    shapes: Callable[[Mapping[str, Any]], dict[str, tuple[int, ...]]],
) -> list[str]:
    try:
        wanted = shapes(config)
    except (KeyError, TypeError) as error:
        return [f"{what}: config.json lacks {error}"]
    found = read_folder(folder)
    optional = _optional(what, config)
    names = {_canonical(name): name for name in found}
    missing = [name for name in wanted if name not in names and name not in optional]
    unknown = [
        given
        for name, given in names.items()
        if name not in wanted and name not in _MAPS and not _ignored(name)
    ]
    faults = []
    if missing:
        faults.append(
            f"{what}: {len(missing)} tensors missing, first '{missing[0]}'; SGLang would run with random "
            "values: get the whole checkpoint"
        )
    if unknown:
        faults.append(
            f"{what}: {len(unknown)} tensors of unknown name, first '{unknown[0]}'; SGLang would drop them "
            "silently: rename them or give another checkpoint"
        )
    for name, shape in wanted.items():
        entry = found.get(names.get(name, ""))
        if entry is not None and entry.shape != shape:
            faults.append(
                f"{what}: '{names[name]}' is {list(entry.shape)}, config.json asks for {list(shape)}"
            )
            break
    if what == "draft":
        faults += _map_faults(found, config)
    return faults


def _map_faults(found: Mapping[str, Entry], config: Mapping[str, Any]) -> list[str]:
    own, whole = config.get("draft_vocab_size"), config.get("vocab_size")
    if own is None or own == whole:
        return []
    if "d2t" not in found:
        return [f"draft: it knows {own} of {whole} ids, and no 'd2t' says which: get the whole checkpoint"]
    if found["d2t"].shape != (own,):
        return [f"draft: 'd2t' is {list(found['d2t'].shape)}, draft_vocab_size is {own}"]
    return []


def _optional(what: str, config: Mapping[str, Any]) -> frozenset[str]:
    optional = set()
    if config.get("tie_word_embeddings"):
        optional.add("lm_head.weight")
    if what == "draft":
        # The draft shares the target's embedding, and its head when it has no vocabulary of its own.
        optional.add("model.embed_tokens.weight")
        if config.get("draft_vocab_size") is None:
            optional.add("lm_head.weight")
    return frozenset(optional)


def _ignored(name: str) -> bool:
    return "rotary_emb" in name or name.endswith((".k_scale", ".v_scale"))


def _canonical(name: str) -> str:
    """One spelling for a draft's names, which checkpoints write in several ways."""
    if name in _MAPS or name == "lm_head.weight":
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


def _target_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
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


def _draft_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
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


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language part of a multimodal config."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not folder.is_dir():
        raise ModelMissing(
            f"{folder}: no such folder",
            ["make a pair with `tokgate model make`, or give the path of a local model"],
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelMissing(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelMissing(f"{path}: is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelMissing(f"{path}: is not a model's configuration")
    return found
