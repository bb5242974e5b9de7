"""Files on disk: same bytes every time, whole or not at all, refused before anything is written."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import namedtuple

import numpy as np
import pytest

from tokgate.errors import ModelMissing, ResultsUnwritable, UsageFault
from tokgate.gate.modelstore import identity
from tokgate.models import checkup, maker, presets
from tokgate.models.dial import Dial
from tokgate.models.forward import load_model, target_pass
from tokgate.models.layout import build_layout
from tokgate.models.maker import ensure, make, tensors_of
from tokgate.models.noise import from_bfloat16, hashes, to_bfloat16, uniform
from tokgate.models.rule import build_rule
from tokgate.models.safetensors import Weights, read_folder, read_header
from tokgate.models.tokenizer import tokenizer_files
from tokgate.models.truth import load_truth, predicted_output, predicted_verify_count

GOLDEN_TARGET = "b2f9c2291593ae6d"
GOLDEN_DRAFT = "db943438667ed33c"
GOLDEN_BFLOAT16 = "f1b83e7b0842e9c4"


def test_bytes_are_the_same_on_every_machine(pair):
    """Golden digests: another machine, numpy or operating system must reproduce them."""
    files = pair.truth.files
    assert files["target/model.safetensors"][:16] == GOLDEN_TARGET
    assert files["draft/model.safetensors"][:16] == GOLDEN_DRAFT


def test_the_dial_changes_only_the_draft(pair, tmp_path):
    other = make("tiny", tmp_path / "pair", accept_length=3.0)
    changed = {name for name in other.files if other.files[name] != pair.truth.files[name]}
    assert changed == {"draft/model.safetensors"}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_processes_and_shards_do_not_change_the_weights(pair, tmp_path, monkeypatch, workers):
    monkeypatch.setattr(maker, "SHARD_BYTES", 8 << 20)
    monkeypatch.setattr(maker, "IN_PROCESS_BYTES", 0)
    seen = []
    make("tiny", tmp_path / "pair", accept_length=2.5, workers=workers, progress=lambda *at: seen.append(at))
    assert len(list((tmp_path / "pair" / "target").glob("model-0*.safetensors"))) > 2
    assert seen[-1][0] == seen[-1][1]
    for part in ("target", "draft"):
        one, many = Weights(read_folder(pair.folder / part)), Weights(read_folder(tmp_path / "pair" / part))
        assert one.entries.keys() == many.entries.keys()
        assert all((np.asarray(one.raw(n)) == np.asarray(many.raw(n))).all() for n in one.entries)


def test_bfloat16_pair_holds_up(tmp_path, bfloat16_preset):
    make("tiny-bf16", tmp_path / "pair", accept_length=2.5)
    report = checkup.verify(tmp_path / "pair")
    assert report.faults == []
    assert read_folder(tmp_path / "pair" / "target")["lm_head.weight"].format == "BF16"
    assert load_truth(tmp_path / "pair").files["target/model.safetensors"][:16] == GOLDEN_BFLOAT16


def test_near_tie_pair_has_ties_where_it_says(tmp_path):
    truth = make("tiny", tmp_path / "pair", near_tie=40)
    report = checkup.verify(tmp_path / "pair")
    assert report.faults == []
    assert any("near-ties" in line for line in report.checks)
    model = load_model(tmp_path / "pair" / "target", rounded=False)
    prompt = checkup.prompt_of(truth.rule, 130)
    ids = [*prompt, *truth.rule.continuation(prompt, 60)]
    logits = model.logits(target_pass(model, ids).final)
    tied = [i for i in range(129, 190) if truth.rule.twin[truth.rule.next_token(ids, i)] >= 0]
    gaps = [
        abs(logits[i, x] - logits[i, truth.rule.twin[x]])
        for i in tied
        for x in [truth.rule.next_token(ids, i)]
    ]
    assert len(gaps) >= 1
    assert max(gaps) < 1e-3
    with pytest.raises(UsageFault, match="near-tie"):
        predicted_verify_count(truth, [3], 5, 3)


def test_verify_finds_nothing_wrong_with_a_good_pair(pair):
    report = checkup.verify(pair.folder)
    assert report.faults == []
    assert report.lines()[-1] == "the pair is as truth.json says"


def test_verify_sees_one_changed_weight(copied_pair):
    path = copied_pair / "target" / "model.safetensors"
    entry = read_header(path)["model.layers.3.self_attn.o_proj.weight"]
    data = bytearray(path.read_bytes())
    data[entry.start : entry.stop] = bytes(entry.stop - entry.start)
    path.write_bytes(data)
    report = checkup.verify(copied_pair)
    assert any("SHA-256" in line and "target/model.safetensors" in line for line in report.faults)
    assert any("next tokens as the rule says" in line for line in report.faults)
    assert report.lines()[-1] != "the pair is as truth.json says"


def test_no_matrix_is_mostly_zero(pair):
    """Zero weights draw less power and would flatter the clocks."""
    for part in ("target", "draft"):
        weights = Weights(read_folder(pair.folder / part))
        for name, entry in weights.entries.items():
            if len(entry.shape) == 2 and "embed" not in name:
                assert (weights.rows(name) == 0).mean() < 0.01, name


@pytest.mark.parametrize("name", list(presets.PRESETS))
def test_every_preset_fits_its_heads_and_dimensions(name):
    preset = presets.PRESETS[name]
    rule = build_rule(preset, 0, Dial("accept_length", 2.5))
    shapes = {part: {t.name: t.shape for t in tensors_of(rule, part)} for part in ("target", "draft")}
    assert shapes["target"]["model.embed_tokens.weight"] == (preset.vocab, preset.hidden)
    assert shapes["draft"]["lm_head.weight"] == (preset.generated, preset.hidden)
    assert preset.generated <= 32000
    assert build_layout(preset).ballast_size.min() >= 0.5


def test_a_hidden_size_too_small_is_said(monkeypatch):
    small = dataclasses.replace(presets.PRESETS["tiny"], name="x", hidden=112)
    with pytest.raises(ValueError, match=r"needs \d+ dimensions, hidden is 112"):
        build_layout(small)


def test_a_full_disk_is_refused_before_writing(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 1 << 20))
    with pytest.raises(ResultsUnwritable, match="GiB free, the pair needs"):
        make("tiny", tmp_path / "pair")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(maker, "write_shard", fail)
    with pytest.raises(ResultsUnwritable, match="No space left"):
        make("tiny", tmp_path / "pair")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_not_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageFault, match="is not a pair"):
        make("tiny", tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_older_pair_is_replaced_whole(copied_pair):
    make("tiny", copied_pair, accept_length=3.0)
    assert load_truth(copied_pair).accept_length == 3.0
    assert [p.name for p in copied_pair.parent.iterdir()] == [copied_pair.name]


def test_ensure_keeps_a_good_pair_and_makes_a_missing_one(copied_pair):
    before = (copied_pair / "truth.json").stat().st_mtime_ns
    ensure("tiny", copied_pair, accept_length=2.5)
    assert (copied_pair / "truth.json").stat().st_mtime_ns == before
    (copied_pair / "draft" / "config.json").unlink()
    ensure("tiny", copied_pair, accept_length=2.5)
    assert (copied_pair / "draft" / "config.json").is_file()
    assert ensure("tiny", copied_pair, accept_length=3.0).accept_length == 3.0


def test_unknown_preset_names_the_known_ones(tmp_path):
    with pytest.raises(UsageFault, match="no preset 'huge'") as fault:
        make("huge", tmp_path / "pair")
    assert "70b-layers" in str(fault.value)


def test_truth_of_another_version_is_refused(copied_pair):
    path = copied_pair / "truth.json"
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | {"rule_version": 99}))
    with pytest.raises(UsageFault, match="rule version 99"):
        load_truth(copied_pair)
    path.write_text("{}")
    with pytest.raises(UsageFault, match="is not the truth"):
        load_truth(copied_pair)
    path.unlink()
    with pytest.raises(ModelMissing, match="tokgate model make"):
        load_truth(copied_pair)


def test_truth_is_small_and_predicts(pair):
    assert (pair.folder / "truth.json").stat().st_size < 4096
    assert predicted_output(pair.truth, pair.prompt, 5) == pair.ids[len(pair.prompt) :][:5]


def test_noise_is_a_function_of_its_position_alone():
    whole = uniform(7, 0, 1000)
    assert (uniform(7, 400, 200) == whole[400:600]).all()
    assert (hashes(7, 10, 5) == hashes(7, 0, 20)[10:15]).all()
    assert abs(float(uniform(7, 0, 100_000).mean())) < 0.01
    assert not (uniform(8, 0, 1000) == whole).all()


def test_bfloat16_rounds_to_nearest_even():
    exact = np.array([1.0, -2.5, 2.0**-100, 0.0], np.float32)
    assert (from_bfloat16(to_bfloat16(exact)) == exact).all()
    assert from_bfloat16(to_bfloat16(np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32))).tolist() == [
        1.0,
        1 + 2**-6,
    ]


def test_tokenizer_covers_the_vocabulary_once(pair):
    files = tokenizer_files(pair.rule.preset)
    vocab = json.loads(files["tokenizer.json"])["model"]["vocab"]
    assert sorted(vocab.values()) == list(range(pair.rule.preset.vocab))
    assert vocab["A"] == 3 + ord("A")
    assert vocab["Ġ"] == 3 + ord(" ")


def test_pairs_that_differ_in_the_dial_share_one_target(pair, tmp_path):
    made = make("tiny", tmp_path / "pair", accept_length=3.0, target_of=pair.folder)
    assert made == make("tiny", tmp_path / "whole", accept_length=3.0)
    weights = "target/model.safetensors"
    assert (tmp_path / "pair" / weights).samefile(pair.folder / weights)
    assert checkup.verify(tmp_path / "pair").faults == []


def test_a_target_on_another_disk_is_copied(pair, tmp_path, monkeypatch):
    def refuse(self, source):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(type(tmp_path), "hardlink_to", refuse)
    made = make("tiny", tmp_path / "pair", accept_length=3.0, target_of=pair.folder)
    assert (tmp_path / "pair" / "target/model.safetensors").stat().st_nlink == 1
    assert made.files["target/model.safetensors"][:16] == GOLDEN_TARGET


def test_another_target_is_not_shared(pair, copied_pair, tmp_path):
    with pytest.raises(UsageFault, match="has another target"):
        make("tiny", tmp_path / "new", seed=1, target_of=pair.folder)
    (copied_pair / "target" / "tokenizer.json").unlink()
    with pytest.raises(ModelMissing, match=r"tokenizer\.json: is missing"):
        make("tiny", tmp_path / "new", target_of=copied_pair)
    assert not (tmp_path / "new").exists()


def test_truth_holds_predicted_verify_counts(pair):
    examples = load_truth(pair.folder).examples
    assert [len(each.prompt_ids) for each in examples] == [8, 64, 128]
    for each in examples:
        assert each.verify_count == predicted_verify_count(pair.truth, each.prompt_ids, each.new_tokens, 3)
        assert abs(each.verify_count - 255 / 2.5) < 3


def test_a_pair_made_before_there_were_examples_is_the_same_pair(copied_pair):
    before = identity(copied_pair)
    path = copied_pair / "truth.json"
    facts = json.loads(path.read_text())
    del facts["examples"]
    path.write_text(json.dumps(facts))
    assert load_truth(copied_pair).examples == []
    assert identity(copied_pair) == before


def test_shards_are_named_as_stored_baselines_know_them():
    """Their names are part of a pair's identity: another size of shards makes stored baselines incomparable."""
    assert maker.SHARD_BYTES == 1 << 30
