"""Before a launch: do target, draft and algorithm mean anything together?

SGLang starts, and answers, with an EAGLE-3 draft run as EAGLE (accept length 1.00), drops tensors whose names
it does not know, and leaves missing ones at random values. Here each is a fault with its mend. Only configs
and safetensors headers are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokgate.errors import Misconfigured, ModelMissing
from tokgate.models.safetensors import Entry, read_folder
from tokgate.models.tensor_names import VOCABULARY_MAPS, canonical, draft_shapes, target_shapes

EAGLE3_MARK = "eagle3"
# A plain Llama or an EAGLE-3 draft of one: the architectures whose tensors are known here by name.
_KNOWN_TARGET = "LlamaForCausalLM"
_KNOWN_DRAFT = "LlamaForCausalLMEagle3"


def check(
    target: Path,
    draft: Path | None,
    algorithm: str | None,
    *,
    context_length: int | None = None,
    longer_allowed: bool = False,
) -> tuple[str, ...]:
    """Refuse a pair that cannot mean what it asks.

    Args:
        target, draft: local model folders; ``None`` for no draft. Pass no hub names.
        algorithm: as given to ``--speculative-algorithm``; ``None`` for no speculation.
        context_length: tokens that the server is asked to serve; ``None`` for the target's own.
        longer_allowed: the profile sets ``SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN``.

    Returns:
        What could not be checked, or was let through on request; one line each.

    Raises:
        ModelMissing: a folder, its ``config.json`` or its weights are not there or not readable.
        Misconfigured: every fault found, each with its mend.
    """
    target_config = _config(target)
    faults: list[str] = []
    notes: list[str] = []
    if target_config.get("architectures") == [_KNOWN_TARGET]:
        faults += _tensor_faults("target", target, target_config, target_shapes, notes)
    else:
        notes.append(
            f"target: tensor names of {_names(target_config)} are not known here and were not checked"
        )
    if algorithm is None:
        if draft is not None:
            faults.append("a draft is given without speculation: name an algorithm, or drop the draft")
    elif draft is None:
        if algorithm.upper() in {"EAGLE", "EAGLE3"}:
            faults.append(f"{algorithm} needs a draft model, and none is given")
    else:
        draft_config = _config(draft)
        faults += _algorithm_faults(draft_config, algorithm.upper())
        faults += _size_faults(target_config, draft_config)
        served = context_length or _text_config(target_config).get("max_position_embeddings")
        faults += _context_faults(draft_config, served, longer_allowed, notes)
        if draft_config.get("architectures") == [_KNOWN_DRAFT]:
            faults += _tensor_faults("draft", draft, draft_config, draft_shapes, notes)
        else:
            notes.append(
                f"draft: tensor names of {_names(draft_config)} are not known here and were not checked"
            )
    if faults:
        count = f"{len(faults)} faults" if len(faults) > 1 else "1 fault"
        raise Misconfigured(
            f"{target} with {draft or 'no draft'} as {algorithm or 'baseline'}: {count}", faults
        )
    return tuple(notes)


def is_eagle3(config: Mapping[str, Any]) -> bool:
    """Whether a draft's config is an EAGLE-3 one, by architecture name or by a vocabulary of its own."""
    names = " ".join(map(str, config.get("architectures") or ())).lower()
    return EAGLE3_MARK in names or "draft_vocab_size" in config


def _algorithm_faults(draft: Mapping[str, Any], algorithm: str) -> list[str]:
    if algorithm == "EAGLE" and is_eagle3(draft):
        return [
            f"--speculative-algorithm EAGLE with an EAGLE-3 draft ({_names(draft)}): the draft would get one "
            "hidden state instead of three and accept length would be 1.00; use EAGLE3"
        ]
    if algorithm == "EAGLE3" and not is_eagle3(draft):
        return [
            f"--speculative-algorithm EAGLE3 with a draft that is not an EAGLE-3 one ({_names(draft)}): use "
            "EAGLE, or give an EAGLE-3 draft"
        ]
    return []


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
    return faults


def _context_faults(
    draft: Mapping[str, Any], served: object, longer_allowed: bool, notes: list[str]
) -> list[str]:
    longest = draft.get("max_position_embeddings")
    if not isinstance(longest, int) or not isinstance(served, int):
        notes.append("max position: not given in a config, not checked")
        return []
    if served <= longest:
        return []
    if longer_allowed:
        notes.append(f"max position: {served} tokens are served with a draft made for {longest}, as allowed")
        return []
    return [
        f"max position: the draft is made for {longest} tokens and {served} are to be served; SGLang refuses "
        f"that: set context_length to {longest} or less, or under env "
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN: '1' (accept length may fall in longer contexts)"
    ]


def _tensor_faults(
    what: str,
    folder: Path,
    config: Mapping[str, Any],
    shapes: Callable[[Mapping[str, Any]], dict[str, tuple[int, ...]]],
    notes: list[str],
) -> list[str]:
    try:
        wanted = shapes(config)
    except (KeyError, TypeError) as error:
        return [f"{what}: config.json lacks {error}"]
    if not any(folder.glob("*.safetensors*")) and any(folder.glob("*.bin")):
        notes.append(f"{what}: its weights are in PyTorch's own format; tensor names were not checked")
        return []
    found = read_folder(folder)
    optional = _optional(what, config)
    names = {canonical(name): name for name in found}
    missing = [name for name in wanted if name not in names and name not in optional]
    unknown = [
        given
        for name, given in names.items()
        if name not in wanted and name not in VOCABULARY_MAPS and not _ignored(name)
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


def _names(config: Mapping[str, Any]) -> str:
    return ", ".join(map(str, config.get("architectures") or ("no architecture",)))


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
