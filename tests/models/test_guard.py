"""The guard before a launch: every misuse refused with its mend, a good pair let through."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from tokgate.errors import Misconfigured, ModelMissing
from tokgate.models import guard
from tokgate.models.safetensors import read_header


def edit(folder, **changes):
    path = folder / "config.json"
    body = json.loads(path.read_text())
    for key, value in changes.items():
        body.pop(key, None)
        if value is not None:
            body[key] = value
    path.write_text(json.dumps(body))


def rewrite_header(path, change):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def faults(pair, algorithm="EAGLE3", draft="draft"):
    with pytest.raises(Misconfigured) as fault:
        guard.check(pair / "target", pair / draft if draft else None, algorithm)
    assert fault.value.exit_code == 1
    return "\n".join(fault.value.details)


def test_a_good_pair_passes(pair):
    guard.check(pair.folder / "target", pair.folder / "draft", "EAGLE3")
    guard.check(pair.folder / "target", None, None)


def test_eagle_with_an_eagle3_draft(pair):
    assert "use EAGLE3" in faults(pair.folder, "EAGLE")


def test_eagle3_with_a_plain_draft(copied_pair):
    edit(copied_pair / "draft", architectures=["LlamaForCausalLMEagle"], draft_vocab_size=None)
    assert "not an EAGLE-3 one (LlamaForCausalLMEagle): use EAGLE" in faults(copied_pair)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hidden_size", 512, "hidden size: draft expects 512, target has 256"),
        ("vocab_size", 9000, "vocabulary: draft 9000, target 8192"),
        ("max_position_embeddings", 2048, "set context_length to 2048 or less"),
    ],
)
def test_sizes_that_do_not_match(copied_pair, key, value, message):
    edit(copied_pair / "draft", **{key: value})
    assert message in faults(copied_pair)


def test_a_missing_tensor(copied_pair):
    rewrite_header(copied_pair / "draft" / "model.safetensors", lambda h: h.pop("fc.weight"))
    assert "1 tensors missing, first 'model.fc.weight'" in faults(copied_pair)


def test_an_unknown_name_is_not_dropped_in_silence(copied_pair):
    rewrite_header(
        copied_pair / "target" / "model.safetensors",
        lambda h: h.update(
            {"model.layers.0.self_attn.qq_proj.weight": h.pop("model.layers.0.self_attn.q_proj.weight")}
        ),
    )
    found = faults(copied_pair)
    assert "tensors of unknown name, first 'model.layers.0.self_attn.qq_proj.weight'" in found
    assert "tensors missing, first 'model.layers.0.self_attn.q_proj.weight'" in found


def test_a_missing_vocabulary_map(copied_pair):
    rewrite_header(copied_pair / "draft" / "model.safetensors", lambda h: h.pop("d2t"))
    assert "no 'd2t' says which" in faults(copied_pair)


def test_a_shape_that_config_does_not_ask_for(copied_pair):
    edit(copied_pair / "draft", intermediate_size=500)
    assert "'midlayer.mlp.gate_proj.weight' is [512, 256], config.json asks for [500, 256]" in faults(
        copied_pair
    )


def test_draft_without_speculation_and_the_reverse(pair):
    assert "given without speculation" in faults(pair.folder, None)
    assert "needs a draft model" in faults(pair.folder, "EAGLE3", None)


def test_absent_folders_and_files(pair, copied_pair, tmp_path):
    with pytest.raises(ModelMissing, match="no such folder"):
        guard.check(tmp_path / "none", None, None)
    with pytest.raises(ModelMissing, match="no such folder"):
        guard.check(pair.folder / "target", tmp_path / "none", "EAGLE3")
    (copied_pair / "draft" / "model.safetensors").unlink()
    with pytest.raises(ModelMissing, match=r"holds no \.safetensors"):
        guard.check(copied_pair / "target", copied_pair / "draft", "EAGLE3")
    (copied_pair / "draft" / "config.json").write_text("{")
    with pytest.raises(ModelMissing, match="is not JSON"):
        guard.check(copied_pair / "target", copied_pair / "draft", "EAGLE3")


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 64, struct.pack("<Q", 8) + b"[1,2,3] "])
def test_a_file_that_is_not_safetensors(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelMissing, match="not a safetensors file"):
        read_header(path)


def test_a_file_cut_short(copied_pair):
    path = copied_pair / "target" / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)
    with pytest.raises(ModelMissing, match="is cut short"):
        guard.check(copied_pair / "target", None, None)


def test_only_headers_are_read(pair, monkeypatch):
    monkeypatch.setattr(np, "memmap", None)
    guard.check(pair.folder / "target", pair.folder / "draft", "EAGLE3")


def test_other_architectures_are_judged_by_config_alone(copied_pair):
    """A model whose tensors are not known by name: sizes still count, names do not."""
    (copied_pair / "target" / "model.safetensors").unlink()
    edit(copied_pair / "target", architectures=["KimiK25ForConditionalGeneration"])
    guard.check(copied_pair / "target", copied_pair / "draft", "EAGLE3")
    edit(
        copied_pair / "target",
        text_config={"hidden_size": 7168, "vocab_size": 8192, "max_position_embeddings": 4096},
    )
    assert "target has 7168" in faults(copied_pair)
