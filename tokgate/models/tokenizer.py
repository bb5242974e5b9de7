"""Tokenizer files for a synthetic model: bytes in, printable words out.

Any text is encoded byte by byte (ids 3..258, no merges), so text routes accept everything. The ids that the
target generates decode to words of their own (`` w12345``), always valid UTF-8.
"""

from __future__ import annotations

import json

from tokgate.models.presets import Preset
from tokgate.models.rule import FIRST_GENERATED

SPECIAL = ("<unk>", "<s>", "</s>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_letters() -> list[str]:
    """The printable letter that byte-level tokenizers write for each byte 0..255 (GPT-2's table)."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in kept}
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + len(letters) - len(kept))
    return [letters[byte] for byte in range(256)]


def tokenizer_files(preset: Preset) -> dict[str, str]:
    """File name -> text, of ``tokenizer.json`` and ``tokenizer_config.json``."""
    letters = byte_letters()
    tokens = [*SPECIAL, *letters]
    assert len(tokens) == FIRST_GENERATED
    space = letters[ord(" ")]
    tokens += [f"{space}w{i:0{len(str(preset.vocab))}d}" for i in range(FIRST_GENERATED, preset.vocab)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    special = [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, token in enumerate(SPECIAL)
    ]
    body: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "</s>",
        "model_max_length": preset.max_position,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    return {
        "tokenizer.json": json.dumps(body, ensure_ascii=True) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=1) + "\n",
    }
